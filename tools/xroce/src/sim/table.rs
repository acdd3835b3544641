//! A run in tables for people.

use comfy_table::{CellAlignment, Table, presets};
use xroce_fabric::{GroupReport, Report};

use super::run::Pace;
use crate::perf::report::rate;

/// Both tables and a line about the run.
pub(crate) fn of(report: &Report, pace: &Pace) -> String {
    format!(
        "{}\n{}\n{}",
        flows(report),
        network(report),
        line(report, pace)
    )
}

/// A table with the look of the others and its numbers on the right.
pub(crate) fn table(head: Vec<String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(head);
    table
}

/// Aligns all columns but the first `left`.
pub(crate) fn right(table: &mut Table, left: usize) {
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// A number with as many digits as help.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => rate(value),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn strings<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.iter().map(|c| (*c).to_owned()).collect()
}

fn flows(report: &Report) -> Table {
    let mut table = table(strings([
        "flows",
        "ended",
        "of",
        "FCT p50 µs",
        "p99 µs",
        "slowdown p50",
        "p99",
        "goodput Gb/s",
        "Jain",
    ]));
    let mut row = |group: &GroupReport| {
        table.add_row(vec![
            group.name.clone(),
            group.completed.to_string(),
            group.flows.to_string(),
            short(group.fct_us.p50),
            short(group.fct_us.p99),
            short(group.slowdown.p50),
            short(group.slowdown.p99),
            short(group.goodput_gbps),
            format!("{:.4}", group.jain),
        ]);
    };
    report.groups.iter().for_each(&mut row);
    if report.sizes.len() > 1 {
        report.sizes.iter().for_each(&mut row);
    }
    right(&mut table, 1);
    table
}

#[allow(clippy::cast_precision_loss, reason = "shown to people")]
fn network(report: &Report) -> Table {
    let s = &report.summary;
    let mut table = table(strings([
        "worst queue",
        "p50 KB",
        "p95 KB",
        "max KB",
        "ECN marks",
        "CNPs",
        "pauses",
        "paused ms",
        "drops",
        "retransm.",
        "timeouts",
    ]));
    let kb = |bytes: u64| short(bytes as f64 / 1000.0);
    table.add_row(vec![
        s.worst_queue.clone(),
        kb(s.queue.p50),
        kb(s.queue.p95),
        kb(s.queue.max),
        s.ecn_marks.to_string(),
        s.cnps.to_string(),
        s.pauses.to_string(),
        short(s.paused_us / 1000.0),
        s.drops.to_string(),
        s.retransmissions.to_string(),
        s.timeouts.to_string(),
    ]);
    right(&mut table, 1);
    table
}

/// "1.2 ms of virtual time …".
pub(crate) fn line(report: &Report, pace: &Pace) -> String {
    format!(
        "{}: {} ms of virtual time in {:.2} s ({}), seed {}; {} M packet events, {} M a second",
        report.name,
        short(report.end_us / 1000.0),
        pace.wall_s,
        report.ended,
        report.seed,
        short(events(report)),
        short(pace.packet_events_per_s / 1e6),
    )
}

#[allow(clippy::cast_precision_loss, reason = "shown to people")]
fn events(report: &Report) -> f64 {
    report.packet_events as f64 / 1e6
}
