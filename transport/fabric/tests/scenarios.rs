//! Scenarios as text: what they turn into, and what is said about those that are wrong.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic"
)]

use proptest::prelude::*;
use xroce_fabric::scenario::Scenario;
use xroce_fabric::{Op, Setup, Simulation, Time};

const WHOLE: &str = r#"
name = "everything"
seed = 7
duration = "2ms"
warmup = "10us"
sample = "20us"

[topology.leaf_spine]
leaves = 2
spines = 2
hosts = 3
link = { rate = "40G", delay = "500ns" }
oversubscription = 1.5

[switch]
buffer = "2MB"
alpha = 0.5
weights = [1, 1, 1, 4, 1, 1, 0, 0]
ecmp = "flow"
reroute_delay = "50us"

[ecn]
kmin = "5KB"
kmax = "200KB"
pmax = 0.01

[pfc]
priorities = [3]
xoff = "30KB"

[host]
nic_queue = 8
delay = "200ns"
[host.dscp]
10 = 2

[transport]
path_mtu = 1024
timeout = "400us"
message = "64KB"

[congestion]
algorithm = "fixed"
rate = "20G"
window = 128

[class.bulk]
dscp = 10
ecn = false
[class.data]
dscp = 26

[[workload]]
class = "data"
incast = { senders = 4, bytes = "100KB", repeat = 2, every = "500us" }

[[workload]]
name = "background"
class = "bulk"
start = "10us"
poisson = { load = 0.1, sizes = "irn", until = "300us" }

[[workload]]
class = "data"
[[workload.flows]]
src = 0
dst = 5
bytes = 1000
rate_limit = "1G"
[[workload.flows]]
src = 1
dst = 4
bytes = "20KB"
op = "read"

[[fault]]
at = "100us"
between = ["spine0", "leaf0"]
set = "wire"
one_way = true
rate = "10G"
loss = 0.001

[[fault]]
at = "200us"
between = ["leaf1", "spine1"]
set = "down"
"#;

fn load(text: &str) -> Result<Setup, String> {
    let loaded = Scenario::load(text, None);
    loaded.map(|(_, setup)| setup).map_err(|e| e.to_string())
}

#[test]
fn a_scenario_with_everything_becomes_a_run() {
    let setup = load(WHOLE).unwrap();
    assert_eq!((setup.seed, setup.sample), (7, Time::from_us(20)));
    // 3 · 40 G down, 2 uplinks, 1.5 to 1.
    assert_eq!(
        setup.topology.links.last().unwrap().rate.bps(),
        40_000_000_000
    );
    assert_eq!(setup.groups, ["incast", "background", "flows"]);
    let listed: Vec<_> = setup.flows.iter().filter(|f| f.group == 2).collect();
    assert_eq!((listed[1].op, listed[1].class), (Op::Read, 1));
    assert!(listed[0].rate_limit.is_some() && listed[1].rate_limit.is_none());
    let report = Simulation::new(setup).unwrap().run();
    assert!(report.census.is_conserved() && report.contents_right);
    assert!(report.summary.completed > 10, "{:?}", report.summary);
    assert_eq!(report.summary.failed, 0);
}

/// The scenario above with one piece replaced.
fn with(old: &str, new: &str) -> Result<Setup, String> {
    assert!(WHOLE.contains(old), "{old}");
    load(&WHOLE.replacen(old, new, 1))
}

#[test]
fn mistakes_are_told_with_line_key_value_and_remedy() {
    let cases = [
        (
            "kmin = \"5KB\"",
            "kmni = \"5KB\"",
            "line 23: unknown key \"kmni\": did you mean \"kmin\"?",
        ),
        (
            "kmax = \"200KB\"",
            "kmax = \"2KB\"",
            "line 24: ecn.kmax: 2 KB is below kmin, which is 5 KB",
        ),
        (
            "pmax = 0.01",
            "pmax = 1.5",
            "line 25: ecn.pmax: 1.5 is out of range, it must be 0 to 1",
        ),
        (
            "rate = \"40G\"",
            "rate = \"40Q\"",
            "line 12: rate: \"40Q\" is no rate",
        ),
        (
            "ecmp = \"flow\"",
            "ecmp = \"flwo\"",
            "did you mean \"flow\"?",
        ),
        (
            "senders = 4",
            "senders = 6",
            "workload.0.incast.senders: 6 is out of range, it must be 1 to 5",
        ),
        (
            "\"fixed\"",
            "\"fixde\"",
            "congestion.algorithm: unknown algorithm \"fixde\": did you mean \"fixed\"?",
        ),
        (
            "window = 128",
            "windw = 128",
            "congestion.windw: unknown key \"windw\": did you mean \"window\"?",
        ),
        (
            "path_mtu = 1024",
            "path_mtu = 1000",
            "line 38: transport.path_mtu: 1000 is no path MTU",
        ),
        (
            "\"spine0\", \"leaf0\"",
            "\"spine0\", \"laef0\"",
            "did you mean \"leaf0\"?",
        ),
        (
            "\"spine0\", \"leaf0\"",
            "\"spine0\", \"h0\"",
            "there is no link between spine0 and h0",
        ),
        (
            "buffer = \"2MB\"",
            "buffer = \"20KB\"",
            "switch.buffer: the buffer of switch leaf0",
        ),
        (
            "buffer = \"2MB\"",
            "port_buffer = \"8KB\"",
            "line 16: switch.port_buffer: the buffer of a port of switch spine0 is 8000 bytes, headroom",
        ),
        (
            "buffer = \"2MB\"",
            "port_buffer = 100",
            "line 16: switch.port_buffer: 100 is out of range",
        ),
        (
            "buffer = \"2MB\"",
            "buffer = \"2MB\"\nport_buffer = \"240KB\"",
            "line 17: switch.port_buffer: ports share the buffer or have one each",
        ),
        (
            "ecmp = \"flow\"",
            "order = \"ingres\"",
            "line 19: unknown name \"ingres\": did you mean \"ingress\"?",
        ),
        (
            "dst = 5",
            "dst = 0",
            "workload.2.flows.0.dst: host 0 would send to itself",
        ),
        (
            "sizes = \"irn\"",
            "sizes = { fixed = 0 }",
            "workload.1.poisson.sizes: 0 is out of range",
        ),
        (
            "load = 0.1",
            "load = 0",
            "workload.1.poisson.load: 0 is out of range",
        ),
        (
            "class = \"bulk\"",
            "class = \"blk\"",
            "workload.1.class: unknown class \"blk\": did you mean \"bulk\"?",
        ),
        (
            "duration = \"2ms\"",
            "duration = 2",
            "line 4: duration: \"2\" is no time",
        ),
        ("[ecn]", "[ecn", "line 22: "),
        ("hosts = 3", "hosts = -1", "line 11: hosts: "),
        (
            "leaves = 2",
            "leaves = 9000\nhosts2 = 1",
            "unknown key \"hosts2\": did you mean \"hosts\"?",
        ),
        (
            "leaves = 2",
            "leaves = 9000",
            "topology.leaf_spine: 27000 hosts, 16384 are possible",
        ),
        (
            "[[workload]]\nname",
            "[[workload]]\npermutation = { bytes = 1 }\nname",
            "exactly one of incast",
        ),
        ("spines = 2", "", "missing field `spines`"),
    ];
    for (old, new, says) in cases {
        let error = with(old, new).unwrap_err();
        assert!(error.contains(says), "{new}: {error}");
    }
}

/// Flows of a workload by hosts.
type Count = fn(usize) -> usize;

#[test]
fn all_kinds_of_workloads_and_shapes() {
    let shapes = [
        ("[topology.star]\nhosts = 6", 6),
        (
            "[topology.dumbbell]\npairs = 3\nbottleneck = { rate = \"10G\" }",
            6,
        ),
        (
            "[topology.leaf_spine]\nleaves = 2\nspines = 2\nhosts = 3",
            6,
        ),
        ("[topology.fat_tree]\nk = 4\noversubscription = 2", 16),
        ("[topology.rails]\nnodes = 4\ngpus = 2\nspines = 2", 8),
    ];
    let workloads: [(&str, Count); 8] = [
        (
            "incast = { senders = 5, bytes = 3000, stagger = \"1us\" }",
            |_| 5,
        ),
        ("permutation = { bytes = \"5KB\" }", |n| n),
        ("permutation = { bytes = \"5KB\", stride = 3 }", |n| n),
        ("all_to_all = { bytes = 2000 }", |n| n * (n - 1)),
        ("all_to_all = { bytes = 2000, hosts = 4 }", |_| 12),
        ("allreduce = { bytes = \"60KB\", repeat = 2 }", |n| {
            4 * (n - 1) * n
        }),
        ("checkpoint = { storage = 2, bytes = \"10KB\" }", |n| n - 2),
        ("op = \"send\"\nallreduce = { bytes = 100 }", |n| {
            2 * (n - 1) * n
        }),
    ];
    for (shape, hosts) in shapes {
        for (workload, flows) in workloads {
            let text = format!("{shape}\n[[workload]]\n{workload}\n");
            let setup = load(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(setup.flows.len(), flows(hosts), "{text}");
            let report = Simulation::new(setup).unwrap().run();
            let summary = &report.summary;
            assert_eq!(
                (summary.completed, summary.drops),
                (flows(hosts), 0),
                "{text}"
            );
            assert!(report.census.is_conserved() && report.contents_right);
        }
    }
    let rails = "[topology.rails]\nnodes = 4\ngpus = 2\nspines = 2\n[[workload]]\n";
    let setup = load(&format!(
        "{rails}allreduce = {{ bytes = 4000, rings = \"rail\" }}"
    ))
    .unwrap();
    // Two rings of four; nothing leaves its rail.
    assert_eq!(setup.flows.len(), 2 * 6 * 4);
    let report = Simulation::new(setup).unwrap().run();
    assert!(
        report.links.iter().all(|l| !l.link.contains("spine")),
        "{:?}",
        report.links
    );
}

#[test]
fn an_allreduce_takes_the_time_of_its_steps() {
    let text = "[topology.star]\nhosts = 4\nlink = { rate = \"100G\", delay = \"1us\" }\n\
                [[workload]]\nallreduce = { bytes = \"4MB\" }";
    let report = Simulation::new(load(text).unwrap()).unwrap().run();
    let got = report.groups[0].span_us;
    // Six steps of 1 MB at 100 G less headers, and two links of 1 µs and one frame more each.
    let step = 1e6 * 8.0 / (100e3 * 1024.0 / 1106.0) + 2.0;
    let least = 6.0 * step;
    assert!(
        got > least && got < least * 1.02 + 3.0,
        "{got} µs, at least {least}"
    );
}

#[test]
fn poisson_traffic_has_its_load() {
    let text = "duration = \"20ms\"\n[topology.star]\nhosts = 8\n[[workload]]\n\
                poisson = { load = 0.4, sizes = { fixed = \"100KB\" } }";
    let setup = load(text).unwrap();
    let bytes: u64 = setup.flows.iter().map(|f| f.bytes).sum();
    // 8 hosts of 100 G at 0.4 for 20 ms are 800 MB: 8000 flows, deviation 90.
    assert!(
        (7500..8500).contains(&(bytes / 100_000)),
        "{}",
        bytes / 100_000
    );
    assert!(setup.flows.windows(2).all(|w| w[0].start <= w[1].start));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever a file holds, the answer is a run, in which no frame vanishes, or a message.
    #[test]
    fn no_text_makes_it_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..9, any::<char>(), any::<i64>()), 1..4)
    ) {
        let mut text: Vec<String> = WHOLE.lines().map(str::to_owned).collect();
        for (at, how, c, number) in edits {
            let i = at.index(text.len());
            let line = text[i].clone();
            let key = line.split('=').next().unwrap_or_default().to_owned();
            let little = number.rem_euclid(70);
            match how {
                0 => text[i] = String::new(),
                1 => text.insert(i, line),
                2 => {
                    let j = number.unsigned_abs() as usize % text.len();
                    text.swap(i, j);
                }
                3 => text[i].push(c),
                4 => text[i] = format!("{key}= {number}"),
                5 => text[i] = format!("{key}= \"{number}KB\""),
                // Values that may well be possible.
                6 if line.contains('"') => text[i] = format!("{key}= \"{little}us\""),
                7 if line.contains('"') => text[i] = format!("{key}= \"{little}KB\""),
                8 if line.contains('"') => text[i] = format!("{key}= \"{little}G\""),
                _ => text[i] = format!("{key}= {little}"),
            }
        }
        match load(&text.join("\n")) {
            Err(error) => prop_assert!(!error.is_empty() && !error.contains('\n'), "{error}"),
            // What is small enough to be tried is.
            Ok(mut setup) => {
                let small = setup.topology.hosts.len() <= 16 && setup.flows.len() <= 2000;
                if small && setup.transport.message_bytes <= 1 << 20 {
                    setup.end = setup.end.min(Time::from_us(150));
                    setup.sample = setup.sample.max(Time::from_us(1));
                    let report = Simulation::new(setup).unwrap().run();
                    prop_assert!(report.census.is_conserved(), "{:?}", report.census);
                }
            }
        }
    }
}
