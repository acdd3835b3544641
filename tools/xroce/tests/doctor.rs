//! `xroce doctor` without privileges: over UDP on loopback, and what it says to wrong arguments.
#![allow(clippy::unwrap_used, reason = "the test has failed")]

mod common;

use std::io::Write;
use std::net::{Shutdown, TcpStream};

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

/// Header and body of a message.
fn framed(version: u8, length: u32, body: &str) -> Vec<u8> {
    let mut bytes = b"XRDR\x00".to_vec();
    bytes.extend([version, 0, 0]);
    bytes.extend(length.to_be_bytes());
    bytes.extend(body.as_bytes());
    bytes
}

fn message(body: &str) -> Vec<u8> {
    framed(1, u32::try_from(body.len()).unwrap(), body)
}

#[test]
fn a_hostile_peer_is_turned_away_with_the_reason() {
    let hello = r#"{"type":"hello","run":1,"end":{"gid":"127.0.7.7","addresses":[],"port":"x",
        "ethernet":false,"up":true,"link_mtu":1500,"queues":0,"qpn":77,"other_port":9,
        "trouble":null}}"#;
    let train = |groups: &str, rate: u32| {
        let train = format!(
            r#"{{"type":"send","train":{{"number":1,"carrier":"roce","groups":{groups},
            "rate":{rate},"class":0}}}}"#
        );
        [message(hello), message(&train)].concat()
    };
    for (bytes, words) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "not xroce doctor"),
        (framed(9, 0, ""), "version 9"),
        (framed(1, u32::MAX, ""), "4294967295 bytes"),
        (message("{}"), "cannot be understood"),
        (
            message(r#"{"type":"measure"}"#),
            "\"measure\" where \"hello\"",
        ),
        (message(&hello.replace("77,", "1,")), "queue pair number"),
        (
            message(&hello.replace("127.0.7.7", "224.0.0.1")),
            "RoCE address",
        ),
        (
            train(r#"[{"payload":64,"count":4294967295}]"#, 1000),
            "number of packets",
        ),
        (
            train(r#"[{"payload":65000,"count":1}]"#, 1000),
            "payload of a probe",
        ),
        (train("[]", 0), "rate of probes"),
        ([message(hello), message(hello)].concat(), "\"hello\" where"),
    ] {
        let (doctor, at) = listening("127.0.7.8", "");
        let mut peer = TcpStream::connect(&at).unwrap();
        peer.write_all(&bytes).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let done = doctor.finish();
        assert_eq!(done.err.lines().count(), 1, "{done:#?}");
        done.fails_after_a_line(&[words]);
    }
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
