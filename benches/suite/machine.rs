//! Where and when it was measured.

use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

use rustix::time::{ClockId, clock_gettime};
use time::OffsetDateTime;
use xroce_bench_report::Fact;

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// What a program prints, on one line; empty if it does not.
fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.ok().filter(|o| o.status.success());
    let text = text.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    super::rows::one_line(&text.unwrap_or_default())
}

/// Cores that this process may use.
pub(crate) fn cores() -> u32 {
    available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
}

/// Facts and their names, in the order of the report.
pub(crate) fn facts() -> Vec<Fact> {
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(':'))
        .map_or("?", |(_, model)| model.trim());
    let virtual_machine = match cpuinfo.contains(" hypervisor") {
        true => "yes",
        false => "no",
    };
    let load = read("/proc/loadavg");
    let load: Vec<&str> = load.split_whitespace().take(3).collect();
    let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let facts = [
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("CPU", model.to_owned()),
        ("cores", cores().to_string()),
        ("virtual machine", virtual_machine.to_owned()),
        ("frequency governor", governor),
        ("load before (1, 5, 15 min)", load.join(" ")),
        ("compiler", said("rustc", &["--version"])),
        ("iperf3", iperf()),
    ];
    let known = facts.into_iter().map(|(name, value)| fact(name, &value));
    known.filter(|f| !f.value.is_empty()).collect()
}

/// "iperf 3.12 (cJSON 1.7.15) Linux …", the first words.
fn iperf() -> String {
    let words = said("iperf3", &["--version"]);
    words.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

pub(crate) fn fact(name: &str, value: &str) -> Fact {
    Fact {
        name: name.to_owned(),
        value: super::rows::one_line(value),
    }
}

/// The commit of the folder it runs in; marked if files differ from it.
pub(crate) fn commit() -> String {
    let commit = said("git", &["rev-parse", "--short", "HEAD"]);
    let changed = !said("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
    match (commit.is_empty(), changed) {
        (true, _) => String::new(),
        (false, false) => commit,
        (false, true) => format!("{commit} and changes"),
    }
}

/// "2026-03-01T12:30:00Z", of the clock of the machine.
pub(crate) fn date() -> String {
    utc(clock_gettime(ClockId::Realtime).tv_sec)
}

/// Of seconds since 1970; nothing if no calendar goes so far.
fn utc(seconds: i64) -> String {
    let Ok(t) = OffsetDateTime::from_unix_timestamp(seconds) else {
        return String::new();
    };
    let (year, month, day) = (t.year(), u8::from(t.month()), t.day());
    let (hour, minute, second) = t.to_hms();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    #![allow(
        dead_code,
        unused_imports,
        reason = "the bench itself is compiled as a test, but without its tests"
    )]
    use super::*;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (i64::MAX, ""),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn the_machine_is_known() {
        let facts = facts();
        assert!(facts.iter().any(|f| f.name == "kernel"), "{facts:?}");
        assert!(facts.iter().all(|f| !f.value.contains('\n')));
    }
}
