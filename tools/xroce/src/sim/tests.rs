use std::fs;

use super::edit::{Assignment, load, plain, value};
use xroce_bench_report::escape;

use super::html::document;
use super::pareto::{Objective, front};
use super::plot::{Axes, Curve, distribution, heat, lines, scatter};
use super::*;

const SMALL: &str = "name = \"small <one>\"\nduration = \"1ms\"\nsample = \"10us\"\n\
    [topology.star]\nhosts = 5\n[ecn]\nkmin = \"5KB\"\nkmax = \"50KB\"\npmax = 0.1\n\
    [[workload]]\nincast = { senders = 4, bytes = \"100KB\" }\n";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn args(words: &[&str]) -> SimCommand {
    use clap::Parser as _;
    #[derive(clap::Parser)]
    struct Only {
        #[command(subcommand)]
        command: SimCommand,
    }
    let words = ["sim"].iter().chain(words);
    Only::try_parse_from(words).unwrap().command
}

/// Runs a subcommand, without its signal handler.
fn told(words: &[&str]) -> Result<String> {
    let mut out = Vec::new();
    match args(words) {
        SimCommand::Run(args) => run::run(&args, &mut out)?,
        SimCommand::Sweep(args) => sweep::run(&args, &mut out)?,
        SimCommand::Check(args) => check(&args, &mut out)?,
    }
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn a_run_ends_with_a_table_json_and_a_page() {
    let dir = folder();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("s.toml"), SMALL).unwrap();
    let (json, html) = (path("deep/out.json"), path("deep/out.html"));
    let out = told(&[
        "run",
        &path("s.toml"),
        "-q",
        "--json",
        &json,
        "--html",
        &html,
    ])
    .unwrap();
    assert!(
        out.contains("incast") && out.contains("s0→h0") && out.contains("packet events"),
        "{out}"
    );
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(json["report"]["summary"]["completed"], 4);
    assert!(json["report"]["summary"]["ecn_marks"].as_u64().unwrap() > 0);
    assert!(json["pace"]["packet_events_per_s"].as_f64().unwrap() > 0.0);
    let page = fs::read_to_string(html).unwrap();
    assert!(page.contains("small &lt;one&gt;") && !page.contains("<one>"));
    // Rates, queues, two distributions, two maps; nothing was paused.
    assert_eq!(page.matches("<svg").count(), 6);
    for loaded in ["<script", "<link", "<img", "src=", "@import"] {
        assert!(!page.contains(loaded), "{loaded}");
    }
}

#[test]
fn the_same_seed_gives_the_same_report_and_pictures() {
    let once = || {
        let (scenario, setup) = Scenario::load(SMALL, Some(3)).unwrap();
        let (report, _) = run::simulate(setup, &scenario.name, |_, _| {}).unwrap();
        let pace = run::Pace {
            wall_s: 1.0,
            packet_events_per_s: 1.0,
            virtual_per_wall: 1.0,
        };
        let page = html::page("", &report, &pace);
        (serde_json::to_string(&report).unwrap(), page)
    };
    assert_eq!(once(), once());
}

#[test]
fn a_sweep_names_the_combinations_that_none_beats() {
    let dir = folder();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("s.toml"), SMALL).unwrap();
    let html = path("sweep.html");
    let json = path("sweep.json");
    let vary = "workload.0.incast.bytes=20KB,100KB,400KB";
    let words = [
        "sweep",
        &path("s.toml"),
        "-q",
        "--vary",
        vary,
        "--vary",
        "ecn.kmin=5KB,60KB",
        "--objective",
        "fct_p99,queue_max",
        "--html",
        &html,
        "--json",
        &json,
    ];
    let out = told(&words).unwrap();
    // The shortest flows have the shortest time and queue; kmin above kmax is impossible.
    assert!(
        out.contains("1 of 6 combinations") && out.contains("is below kmin"),
        "{out}"
    );
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let best: Vec<_> = json["points"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|p| p["best"] == true)
        .collect();
    assert_eq!(best.len(), 1);
    assert_eq!(best[0]["values"][0], "20KB");
    assert!(fs::read_to_string(&html).unwrap().contains("<svg"));
    // The same as a file, with random combinations and several seeds.
    let file = "scenario = \"s.toml\"\nrandom = 3\nseeds = 2\nobjectives = [\"jain\"]\n[vary]\n\
        \"workload.0.incast.bytes\" = [\"20KB\", \"30KB\"]\n[set]\n\"ecn.pmax\" = 0.5\n";
    fs::write(path("w.toml"), file).unwrap();
    let out = told(&["sweep", &path("w.toml"), "-q", "--html", &html]).unwrap();
    assert!(
        out.contains("of 3 combinations") && out.contains("jain"),
        "{out}"
    );
}

#[test]
fn wrong_files_and_options_are_told() {
    let dir = folder();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("s.toml"), SMALL).unwrap();
    fs::write(path("bad.toml"), SMALL.replace("kmin", "kmni")).unwrap();
    let good = path("s.toml");
    let cases: [(&[&str], &str); 7] = [
        (&["check", &path("none.toml")], "cannot read"),
        (
            &["check", &path("bad.toml")],
            "bad.toml: line 7: unknown key \"kmni\"",
        ),
        (
            &["check", &good, "--set", "ecn.kmax=1KB"],
            "ecn.kmax: 1 KB is below kmin",
        ),
        (
            &["check", &good, "--set", "workload.3.start=1us"],
            "there is no element 3",
        ),
        (&["check", &good, "--set", "name.x=1"], "is no table"),
        (&["sweep", &good], "nothing varies"),
        (
            &["sweep", &good, "--vary", "ecn.pmax=2,3"],
            "none of the combinations is possible",
        ),
    ];
    for (words, says) in cases {
        let error = format!("{:#}", told(words).unwrap_err());
        assert!(error.contains(says), "{words:?}: {error}");
    }
    assert!(
        told(&["check", &good])
            .unwrap()
            .contains("5 hosts, 1 switches, 5 links; 4 flows")
    );
    assert!(
        Assignment::parse("noequals")
            .unwrap_err()
            .contains("KEY=VALUE")
    );
}

#[test]
fn values_need_quotes_only_where_toml_would_not_know_them() {
    use toml::Value;
    assert_eq!(value("5"), Value::Integer(5));
    assert_eq!(value("0.5"), Value::Float(0.5));
    assert_eq!(value("true"), Value::Boolean(true));
    assert_eq!(value("20KB"), Value::String("20KB".into()));
    assert_eq!(value("\"20KB\""), Value::String("20KB".into()));
    assert_eq!(value("1\nx = 2"), Value::String("1\nx = 2".into()));
    assert_eq!(plain(&value("[1, 2]")), "[1, 2]");
    let set = Assignment::parse("workload.0.incast.senders = 2").unwrap();
    let (_, setup) = load(SMALL, &[set], None).unwrap();
    assert_eq!(setup.flows.len(), 2);
}

#[test]
fn the_front_is_what_nothing_beats() {
    let objectives = [Objective::FctP99, Objective::Goodput];
    let rows = [[1.0, 1.0], [2.0, 3.0], [2.0, 2.0], [0.5, 0.5], [1.0, 1.0]];
    let rows = rows.map(|r| r.to_vec());
    assert_eq!(front(&objectives, &rows), [true, true, false, true, true]);
    assert_eq!(front(&objectives, &[]), [false; 0]);
}

#[test]
fn plots_of_nothing_and_of_odd_numbers_are_still_plots() {
    let axes = Axes { x: "x", y: "y" };
    let curve = |points: &[(f64, f64)]| Curve {
        name: "<c>".into(),
        points: points.to_vec(),
    };
    let odd = [f64::NAN, f64::INFINITY, 0.0, -1.0, 1e300];
    let plots = [
        lines(axes, &[]),
        lines(axes, &[curve(&[]), curve(&[(1.0, 1.0)])]),
        distribution(axes, Vec::new()),
        distribution(axes, odd.to_vec()),
        scatter(axes, &[]),
        scatter(axes, &[(1.0, 1.0, true), (f64::NAN, 1.0, false)]),
        heat("t", 0.0, &[], 1.0),
        heat("t", 1.0, &[("<row>".into(), odd.to_vec())], 1.0),
    ];
    for plot in plots {
        assert!(
            plot.starts_with("<svg") || plot.starts_with("<p>"),
            "{plot}"
        );
        assert!(!plot.contains("<c>") && !plot.contains("<row>"), "{plot}");
    }
    assert_eq!(escape("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
    assert!(document("t", "<p>x</p>").contains("<p>x</p>"));
}

#[test]
fn names_of_reports_are_plain() {
    let path = report_path("../../etc/a b", "-sweep");
    assert_eq!(path.to_str(), Some("report/sim/______etc_a_b-sweep.html"));
}
