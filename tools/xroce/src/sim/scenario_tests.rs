//! The scenarios that come with the program: each can be run, and shows what it says.

use xroce_fabric::{Report, Time};

use super::run::simulate;
use super::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

fn scenarios() -> Vec<PathBuf> {
    let files = fs::read_dir(folder()).unwrap().map(|f| f.unwrap().path());
    let is_scenario = |p: &PathBuf| {
        let name = p.file_name().unwrap().to_string_lossy().into_owned();
        name.ends_with(".toml") && !name.starts_with("sweep")
    };
    let mut all: Vec<PathBuf> = files.filter(is_scenario).collect();
    all.sort();
    all
}

fn run_for(path: &Path, limit: Option<Time>) -> Report {
    let source = Source {
        scenario: path.to_owned(),
        set: Vec::new(),
        seed: None,
    };
    let (scenario, mut setup) = load(&source).unwrap();
    setup.end = limit.map_or(setup.end, |limit| limit.min(setup.end));
    simulate(setup, &scenario.name, |_, _| {}).unwrap().0
}

fn whole(name: &str) -> Report {
    let report = run_for(&folder().join(name), None);
    assert_eq!(
        report.summary.completed, report.summary.flows,
        "{}",
        report.ended
    );
    report
}

fn fct(report: &Report, group: u32) -> f64 {
    let of = report.flows.iter().filter(|f| f.group == group);
    of.filter_map(|f| f.fct_us).fold(0.0, f64::max)
}

#[test]
fn every_scenario_runs_a_little() {
    let all = scenarios();
    assert!(all.len() >= 10, "{all:?}");
    for path in all {
        let report = run_for(&path, Some(Time::from_us(200)));
        assert!(
            report.contents_right && report.packet_events > 1000,
            "{}",
            path.display()
        );
        assert!(report.census.is_conserved());
    }
}

#[test]
fn an_incast_under_pfc_loses_nothing() {
    for name in ["incast-2.toml", "incast-8.toml"] {
        let report = whole(name);
        assert_eq!(
            (report.summary.drops, report.summary.retransmissions),
            (0, 0),
            "{name}"
        );
        assert!(
            report.summary.goodput_gbps > 36.0,
            "{name}: {}",
            report.summary.goodput_gbps
        );
        assert!(
            report.summary.jain > 0.95,
            "{name}: {}",
            report.summary.jain
        );
    }
}

#[test]
fn a_storm_of_pauses_stops_flows_that_have_nothing_to_do_with_it() {
    let report = whole("pfc-storm.toml");
    let [same, other] = [1, 2].map(|g| fct(&report, g));
    assert!(same > 2000.0 && other < 1000.0, "{same} and {other} µs");
    let spread = report.links.iter().filter(|l| l.paused_us > 500.0);
    assert!(
        spread.clone().any(|l| l.link.starts_with("spine")),
        "{:?}",
        report.links
    );
    assert!(spread.clone().any(|l| l.link.starts_with('h')));
    assert_eq!(report.summary.drops, 0);
}

#[test]
fn a_failed_link_costs_only_those_on_it() {
    let report = whole("link-failure.toml");
    assert!(report.census.dropped_link_down > 0 && report.census.dropped_wire > 0);
    let hit = report
        .flows
        .iter()
        .filter(|f| f.retransmissions > 0)
        .count();
    assert!((1..16).contains(&hit), "{hit} of 16");
}
