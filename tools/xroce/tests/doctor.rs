//! `xroce doctor` without privileges: over UDP on loopback, and what it says to wrong arguments.
#![allow(clippy::unwrap_used, reason = "the test has failed")]

mod common;

use common::{Running, command, xroce};
use serde_json::Value;

/// A doctor that listens at a loopback address, and where.
fn listening(address: &str, more: &str) -> (Running, String) {
    let doctor = Running::start(command(&format!(
        "doctor --listen {address}:0 --udp {address} {more}"
    )));
    let line = doctor.out_line();
    let port = line.strip_prefix("listening on TCP port ").unwrap();
    let port = port.split(',').next().unwrap();
    (doctor, format!("{address}:{port}"))
}

#[test]
fn over_udp_it_says_what_it_cannot_see() {
    let (far, at) = listening("127.0.7.1", "");
    let near = xroce(&format!("doctor {at} --udp 127.0.7.2 --json"));
    let report = near.json();
    let far = far.finish();
    assert_eq!(far.code, Some(0), "{far:#?}");
    let findings = report["findings"].as_array().unwrap();
    let state_of = |check: &str| -> Vec<&str> {
        let of = findings.iter().filter(|f| f["check"] == check);
        of.map(|f| f["state"].as_str().unwrap()).collect()
    };
    assert_eq!(state_of("dscp"), ["not_checked"; 2], "{report:#}");
    assert_eq!(state_of("neighbour"), ["not_checked"; 2]);
    for check in ["port", "reachability", "addresses", "icrc", "ecn"] {
        assert_eq!(state_of(check), ["ok"; 2], "{check}: {report:#}");
    }
    assert!(far.out.contains("checks were not possible"), "{}", far.out);
    assert_eq!(report["near"], "127.0.7.2");
    let has_fault = |f: &Value| !f["fault"].is_null();
    assert!(!findings.iter().any(has_fault), "{report:#}");
}

#[test]
fn a_port_that_does_not_open_is_a_finding_of_both_sides() {
    let (far, at) = listening("127.0.7.3", "");
    // An address of a network for documentation: no machine has it.
    let near = xroce(&format!("doctor {at} --udp 192.0.2.1"));
    let far = far.finish();
    for side in [&near, &far] {
        assert_eq!(side.code, Some(1), "{side:#?}");
        assert!(side.out.contains("PROBLEM: port, 192.0.2.1"), "{side:#?}");
        assert!(side.err.contains("the path has problems"), "{side:#?}");
    }
}

#[test]
fn a_program_of_another_kind_is_named() {
    let (far, at) = listening("127.0.7.4", "");
    let (host, port) = at.split_once(':').unwrap();
    let perf = xroce(&format!(
        "perf client {host} --port {port} --backend udp --local 127.0.7.5"
    ));
    assert_eq!(perf.code, Some(1), "{perf:#?}");
    far.finish().fails_after_a_line(&["not xroce doctor"]);
}

#[test]
fn wrong_arguments_are_named() {
    for (code, args, words) in [
        (2, "doctor", "HOST"),
        (2, "doctor host --listen", "--listen"),
        (2, "doctor host --udp 127.0.0.1 --dev lo", "--dev"),
        (1, "doctor host --dev nosuch0", "nosuch0"),
        (1, "doctor host:0x --udp 127.0.0.1", "no TCP port"),
        (1, "doctor 127.0.7.6:1 --udp 127.0.7.6", "nobody listens"),
    ] {
        xroce(args).fails(code, &[words]);
    }
}
