//! Where it was measured.

use std::fs;
use std::thread::available_parallelism;

/// Facts and their names, in the order of the report.
pub(crate) fn facts() -> Vec<(&'static str, String)> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(':'))
        .map_or("?", |(_, model)| model.trim());
    let cores = available_parallelism().map_or(1, usize::from);
    let load = read("/proc/loadavg");
    let load: Vec<&str> = load.split_whitespace().take(3).collect();
    vec![
        ("kernel", read("/proc/sys/kernel/osrelease").trim().into()),
        ("CPU", model.into()),
        ("cores", cores.to_string()),
        ("load before (1, 5, 15 min)", load.join(" ")),
    ]
}
