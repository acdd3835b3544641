//! The gate itself (`make gate`): that it closes, and says at what.
#![allow(dead_code, unreachable_pub, reason = "each includer uses its own part")]
#![allow(clippy::unwrap_used, reason = "what fails, fails the test")]

#[path = "../benches/gate/baseline.rs"]
mod baseline;
#[path = "../benches/support/callgrind.rs"]
mod callgrind;

use baseline::{Baseline, Cost};
use callgrind::{Place, parse};

const ENGINE: (&str, &str) = ("/a/transport/engine/src/rx.rs", "xroce_engine::rx::receive");
const CRC: (&str, &str) = ("/a/transport/crc/src/clmul.rs", "xroce_crc::clmul::update");

fn costs(engine: f64, crc: f64) -> Baseline {
    let mut costs = Baseline::default();
    let cost = Cost::of([(ENGINE, engine), (CRC, crc), (("x.c", "tiny"), 1.0)]);
    costs.paths.insert("send".into(), cost);
    costs
}

fn slips(now: &Baseline, before: &Baseline) -> String {
    let all: Vec<String> = now.slips(before).iter().map(ToString::to_string).collect();
    all.join("\n")
}

#[test]
fn a_slip_of_more_than_three_percent_names_its_function() {
    let before = costs(800.0, 200.0);
    assert_eq!(slips(&costs(800.0, 229.0), &before), "", "2.9 %");
    let said = slips(&costs(800.0, 240.0), &before);
    assert!(
        said.starts_with("send: 1041.0 instructions, 1001.0 in the baseline: 4.0 % more"),
        "{said}"
    );
    assert!(
        said.contains("function xroce_crc::clmul::update: 200.0 -> 240.0"),
        "{said}"
    );
    assert!(
        said.contains("file transport/crc/src/clmul.rs: 200.0 -> 240.0"),
        "{said}"
    );
    assert!(
        !said.contains("receive"),
        "what did not grow is not named: {said}"
    );
    // What one function saves another may spend.
    assert_eq!(slips(&costs(700.0, 330.0), &before), "");
}

#[test]
fn less_is_told_but_no_slip() {
    let (now, before) = (costs(700.0, 200.0), costs(800.0, 200.0));
    assert_eq!(slips(&now, &before), "");
    assert_eq!(now.gains(&before), ["send: 1001.0 -> 901.0"]);
    assert!(before.gains(&before).is_empty());
}

#[test]
fn allocations_and_sizes_are_exact_system_calls_nearly() {
    let mut before = Baseline::default();
    before.allocations.insert("send".into(), 0);
    before.sizes.insert("Qp".into(), 1088);
    let calls = [("sendto".to_owned(), 40.0)];
    before.syscalls.insert("send".into(), calls.into());
    assert_eq!(slips(&before, &before), "");
    let mut now = before.clone();
    now.allocations.insert("send".into(), 1);
    now.sizes.insert("Qp".into(), 1152);
    let more = [("sendto".to_owned(), 42.0), ("poll".to_owned(), 3.0)];
    now.syscalls.insert("send".into(), more.into());
    let said = slips(&now, &before);
    for part in [
        "allocations of 1000 send: 1, 0 in the baseline",
        "bytes of Qp: 1152, 1088 in the baseline",
        "42.0 calls of sendto for 1000 units, 40.0",
        "3.0 calls of poll for 1000 units, 0.0",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(slips(&before, &now), "", "less is never a slip");
}

#[test]
fn what_the_baseline_does_not_have_is_a_slip() {
    let said = slips(&costs(1.0, 1.0), &Baseline::default());
    assert_eq!(
        said,
        "send is not in the baseline: write it down with --bless"
    );
    // What was not measured here is not compared.
    assert_eq!(slips(&Baseline::default(), &costs(1.0, 1.0)), "");
}

#[test]
fn the_baseline_is_one() {
    let text = include_str!("../benches/gate/baseline.toml");
    let baseline: Baseline = toml::from_str(text).unwrap();
    assert!(baseline.paths.contains_key("send-64"));
    assert!(baseline.allocations.values().all(|n| *n == 0));
}

#[test]
fn the_file_of_callgrind() {
    let text = "events: Ir\n\
        fl=(1) a/rx.rs\nfn=(1) receive\n10 100\n+3 5\n\
        fi=(2) a/bth.rs\n12 7\nfe=(1)\n\
        cfl=(3) x.S\ncfn=(2) memcpy\ncalls=4 20\n11 900\n13 1\n\
        fl=(3)\nfn=(2)\n0 900\n\
        fn=(3) update\n* 50\n\
        totals: 1063\n";
    let place = |file: &str, function: &str| Place {
        file: file.to_owned(),
        function: function.to_owned(),
    };
    let expected = [
        (place("a/rx.rs", "receive"), 106.0),
        (place("a/bth.rs", "receive"), 7.0),
        (place("x.S", "memcpy"), 900.0),
        (place("x.S", "update"), 50.0),
    ];
    assert_eq!(parse(text), expected.into());
    assert!(parse("nonsense\n=\n)(\ncalls=\n").is_empty());
}
