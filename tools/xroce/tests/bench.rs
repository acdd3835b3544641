//! `xroce bench`: files of runs, good and bad.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Finished, Running, command};
use serde_json::{Value, json};

/// A run whose D1 is `ours` to 100, give or take one.
fn run(ours: f64) -> Value {
    let samples: Vec<Value> = [-1.0, 0.0, 1.0]
        .iter()
        .map(|d| json!({"ours": (ours + d) * 1e3, "peer": 100e3}))
        .collect();
    json!({
        "schema": 2,
        "started": "2026-03-01T12:30:00Z",
        "complete": true,
        "rounds": 3,
        "seconds": 1.0,
        "took": 60.0,
        "machine": {
            "facts": [{"name": "kernel", "value": "6.18"}],
            "cores": 2,
            "threads": 2,
            "others": [0.0],
            "stolen": [0.0],
        },
        "rows": [{
            "key": "D1",
            "id": "D1",
            "measure": "SEND of 64 B",
            "against": "raw frames",
            "unit": "packets_per_second",
            "goal": {"ratio_at_least": 0.9},
            "samples": samples,
        }],
    })
}

fn save(folder: &Path, name: &str, value: &Value) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, value.to_string()).unwrap();
    path
}

#[track_caller]
fn bench(what: &str, paths: &[&Path], more: &str) -> Finished {
    let mut command = command(&format!("bench {what}"));
    command.args(paths).args(more.split_whitespace());
    Running::start(command).finish()
}

#[test]
fn two_runs_compared() {
    let dir = tempfile::tempdir().unwrap();
    let before = save(dir.path(), "a.json", &run(95.0));
    let after = save(dir.path(), "b.json", &run(85.0));
    let done = bench("compare", &[&before, &after], "");
    assert_eq!(done.code, Some(0), "{done:#?}");
    let line =
        "| D1 | SEND of 64 B | 0.95× (0.94×–0.96×) | 0.85× (0.84×–0.86×) | -10.5 % | **worse** |";
    assert!(done.out.contains(line), "{}", done.out);

    // What it prints stays the same, only the status tells.
    let failed = bench("compare", &[&before, &after], "--fail-over 5");
    assert_eq!((failed.code, &failed.out), (Some(1), &done.out));
    assert!(failed.err.contains("D1 by 10.5 %"), "{}", failed.err);
    for more in ["--fail-over 20", "--fail-over 20%"] {
        assert_eq!(bench("compare", &[&before, &after], more).code, Some(0));
    }
    let better = bench("compare", &[&after, &before], "--fail-over 0");
    assert_eq!(better.code, Some(0), "{better:#?}");

    let json = bench("compare", &[&before, &after], "--json").json();
    assert_eq!(json["differences"][0]["change"], "worse");
}

#[test]
fn a_run_shown_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = save(dir.path(), "a.json", &run(95.0));
    let shown = bench("report", &[&file], "");
    assert!(shown.out.contains("1 of 1 targets"), "{shown:#?}");
    let page = dir.path().join("a.html");
    let written = bench("report", &[&file, Path::new("-o"), &page], "");
    assert_eq!(written.code, Some(0), "{written:#?}");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("1 of 1 targets"));
    bench("report", &[&file, Path::new("-o"), Path::new("a.pdf")], "")
        .fails(1, &["a.pdf", ".html or .md"]);
}

#[test]
fn files_that_are_no_runs() {
    let dir = tempfile::tempdir().unwrap();
    let good = save(dir.path(), "good.json", &run(95.0));
    bench("report", &[Path::new("nowhere.json")], "").fails(1, &["nowhere.json", "No such file"]);
    bench("report", &[dir.path()], "").fails(1, &["directory"]);
    let mut old = run(95.0);
    old["schema"] = json!(1);
    let mut wrong = run(95.0);
    wrong["rows"][0]["samples"][2]["ours"] = json!("fast");
    for (value, words) in [
        (json!({}), &["bad.json", "\"schema\""][..]),
        (old, &["bad.json", "schema 1", "reads schema 2"]),
        (
            wrong,
            &["bad.json", "rows[0].samples[2].ours", "invalid type"],
        ),
    ] {
        let bad = save(dir.path(), "bad.json", &value);
        bench("report", &[&bad], "").fails(1, words);
        bench("compare", &[&good, &bad], "").fails(1, words);
        bench("compare", &[&bad, &good], "").fails(1, words);
    }
    bench("compare", &[&good], "").fails(2, &["AFTER"]);
    bench("compare", &[&good, &good], "--fail-over much").fails(2, &["--fail-over", "percentage"]);
}
