//! Loss and congestion against what theory and papers say: rows L1 to L8, computed by the fabric
//! simulator with production engines.
//!
//! `make paper` computes all rows, prints them and writes `docs/paper.txt`; a change of behaviour
//! shows as a change of that file. Without `XROCE_PAPER` only the rows that take a second are
//! computed and held against the file.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a test that fails may panic; ratios of counts; it talks"
)]

mod congestion;
mod loss;

use std::fmt::Write as _;
use std::path::Path;

use xroce_fabric::scenario::Scenario;
use xroce_fabric::{Report, Setup, Simulation};

/// One table: its heading, and lines.
pub(crate) struct Table {
    pub(crate) title: &'static str,
    pub(crate) lines: Vec<String>,
}

impl Table {
    pub(crate) fn new(title: &'static str, head: &str) -> Self {
        Self {
            title,
            lines: vec![head.to_owned()],
        }
    }

    pub(crate) fn row(&mut self, line: String) {
        self.lines.push(line);
    }

    fn text(&self) -> String {
        let mut text = String::new();
        writeln!(text, "{}", self.title).unwrap();
        for line in &self.lines {
            writeln!(text, "  {line}").unwrap();
        }
        text
    }
}

/// A scenario of `xroce sim`, changed.
pub(crate) fn scenario(name: &str, tune: impl FnOnce(&mut Setup)) -> Report {
    let path = root().join("tools/xroce/scenarios").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let (_, mut setup) = Scenario::load(&text, None).unwrap();
    tune(&mut setup);
    run(setup)
}

pub(crate) fn run(setup: Setup) -> Report {
    let report = Simulation::new(setup).unwrap().run();
    assert!(report.census.is_conserved());
    let whole = report.ended == "all flows have ended" || report.ended == "the time is over";
    assert!(whole, "{}", report.ended);
    assert!(report.contents_right, "what arrived is not what was sent");
    report
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

const FILE: &str = "docs/paper.txt";

/// Rows that take about a second each.
fn quick() -> Vec<Table> {
    vec![loss::repair(), congestion::cnp_train()]
}

fn all() -> Vec<Table> {
    let mut tables = quick();
    tables.extend([
        loss::reordering(),
        congestion::two_flows(),
        congestion::incast(),
        loss::irn(),
    ]);
    tables
}

#[test]
fn the_rows_are_those_of_the_file() {
    let file = root().join(FILE);
    if std::env::var_os("XROCE_PAPER").is_some() {
        let texts: Vec<String> = all().iter().map(Table::text).collect();
        let text = texts.join("\n");
        println!("{text}");
        std::fs::write(file, text).unwrap();
        return;
    }
    let known = std::fs::read_to_string(file).unwrap();
    for table in quick() {
        let text = table.text();
        assert!(
            known.contains(&text),
            "{FILE} has other values (make paper writes it); now:\n{text}"
        );
    }
}
