//! Cores, privileges and descriptors of this machine and process.

use std::collections::BTreeMap;

use rustix::process::{Resource, getrlimit};
use xroce_daemon::{Below, DaemonConfig, DeviceConfig};
use xroce_engine::PollMode;

use super::Findings;

/// Capabilities that AF_XDP needs, with their numbers.
const NEEDED: [(&str, u32); 4] = [
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_RAW", 13),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];
/// `CAP_IPC_LOCK`, with which there is no limit on locked memory.
const IPC_LOCK: u64 = 1 << 14;
/// Bytes of a frame, and frames for each receive chunk: as many are sent.
const FRAME: u64 = 4096;
const FRAMES_PER_CHUNK: u64 = 2;
/// Descriptors of a session: socket, bells, and a completion channel.
const DESCRIPTORS: u64 = 4;
/// Descriptors of the daemon itself.
const OWN_DESCRIPTORS: u64 = 64;

/// "0-3,8" as numbers; what is no number is left out.
pub(super) fn parse(list: &str) -> Vec<usize> {
    let mut all = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse()) {
            all.extend(first..=last);
        }
    }
    all
}

/// Numbers as "0-3, 8".
pub(super) fn show(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let one = |&(first, last): &(usize, usize)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    runs.iter().map(one).collect::<Vec<_>>().join(", ")
}

pub(super) fn cores_of_node(node: u32) -> Vec<usize> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    parse(&std::fs::read_to_string(path).unwrap_or_default())
}

/// Whether the cores exist, and are enough.
pub(super) fn check_cores(devices: &[DeviceConfig], found: &mut Findings) {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
    let online = parse(&online.unwrap_or_default());
    found.about(format!("cores of this machine: {}", show(&online)));
    let mut busy: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for device in devices {
        let Some(core) = device.core else { continue };
        if !online.is_empty() && !online.contains(&core) {
            found.wrong(format!(
                "core {core} of device {} does not exist or is offline",
                device.name
            ));
        }
        if device.poll == PollMode::Busy {
            busy.entry(core).or_default().push(&device.name);
        }
    }
    for (core, names) in busy.iter().filter(|(_, names)| names.len() > 1) {
        found.wrong(format!(
            "core {core} is to be busy for {}: give each a core, or poll = \"adaptive\"",
            names.join(" and ")
        ));
    }
    let spinning = devices.iter().filter(|d| d.poll == PollMode::Busy).count();
    if spinning != 0 && spinning >= online.len() {
        found.say(format!(
            "hint: {spinning} busy devices on {} cores leave none for the processes they serve",
            online.len()
        ));
    }
}

/// Whether AF_XDP is permitted to this process.
pub(super) fn check_privileges(devices: &[DeviceConfig], found: &mut Findings) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let held = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let Some(held) = held else {
        return found.say("privileges: the system does not tell");
    };
    let lacking: Vec<&str> = NEEDED
        .iter()
        .filter(|(_, bit)| held & (1 << bit) == 0)
        .map(|(name, _)| *name)
        .collect();
    if lacking.is_empty() {
        found.about("privileges: those that AF_XDP needs are there");
    } else {
        found.about("privileges");
        found.wrong(format!(
            "AF_XDP needs {}: run as root, or by the unit xroced.service",
            lacking.join(", ")
        ));
    }
    let chunks = devices.iter().map(|d| match d.below {
        Below::Xdp { ring_size, .. } => u64::from(ring_size),
        Below::Udp { .. } => 0,
    });
    let needed = chunks.sum::<u64>() * FRAME * FRAMES_PER_CHUNK;
    if held & IPC_LOCK == 0
        && let Some(limit) = getrlimit(Resource::Memlock).maximum
        && limit < needed
    {
        found.wrong(format!(
            "frames take about {needed} bytes of locked memory, the limit is {limit}: raise it (ulimit -l, \
             LimitMEMLOCK of the unit), or give a smaller ring-size"
        ));
    }
}

/// Whether as many processes as configured can attach.
pub(super) fn check_descriptors(daemon: &DaemonConfig, found: &mut Findings) {
    let Some(limit) = getrlimit(Resource::Nofile).maximum else {
        return;
    };
    let fit = limit.saturating_sub(OWN_DESCRIPTORS) / DESCRIPTORS;
    if fit < u64::from(daemon.sessions) {
        found.say(format!(
            "hint: the limit of {limit} descriptors is reached at about {fit} processes, before --sessions {}; \
             LimitNOFILE of the unit raises it",
            daemon.sessions
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_and_shown() {
        assert_eq!(parse("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert!(parse("").is_empty());
        assert_eq!(parse("x,2-y,5"), [5]);
        assert_eq!(show(&[0, 1, 2, 3, 8]), "0-3, 8");
        assert_eq!(show(&[]), "");
    }
}
