//! `xroce doctor` names each fault of a device between two hosts, and none where there is none.
//! Needs root and AF_XDP; prints why it is skipped otherwise.
#![cfg(feature = "xdp")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "the test has failed")]

#[path = "../common/mod.rs"]
mod common;
mod middlebox;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use common::{Running, XROCE};
use middlebox::{Faults, Middlebox};
use serde_json::Value;
use xroce_testnet::{IFNAME, Netns, Star};

/// Carries path MTU 4096.
const MTU: u32 = 4200;
const THERE: &str = "10.77.0.1 to 10.77.0.2";
const BACK: &str = "10.77.0.2 to 10.77.0.1";

/// One at a time: each has two hosts and a device between them on the same few cores.
static TURN: Mutex<()> = Mutex::new(());

/// A doctor in a namespace, with the arguments that say which way its packets go.
fn doctor(ns: &Netns, local: &str, args: &[&str]) -> Running {
    let mut command = ns.command(XROCE);
    command.args(["doctor", "--dev", IFNAME, "--local", local]);
    command.args(args);
    Running::start(command)
}

/// What the two sides say about each other through a device with these faults. The side channel
/// takes another way, as through a network for management.
fn examined_between(faults: Faults, near_gid: &str, far_gid: &str) -> Option<Value> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let star = Star::or_skip(2, MTU)?;
    let [near, far] = [&star.leaves[0], &star.leaves[1]];
    let link = format!(
        "link add talk type veth peer name talk netns {}",
        far.name()
    );
    near.ip_cmd(&link).unwrap();
    for (leaf, host) in [(near, 1), (far, 2)] {
        leaf.ip_cmd("link set talk up").unwrap();
        leaf.ip_cmd(&format!("addr add 10.78.0.{host}/24 dev talk"))
            .unwrap();
    }
    let _middlebox = Middlebox::start(&star, faults);
    let listening = doctor(far, far_gid, &["--listen", "10.78.0.2:0"]);
    let line = listening.out_line();
    let port = line.strip_prefix("listening on TCP port ").unwrap();
    let port = port.split(',').next().unwrap();
    let host = format!("10.78.0.2:{port}");
    let near = doctor(near, near_gid, &[&host, "--json"]).finish();
    let far = listening.finish();
    let report: Value =
        serde_json::from_str(&near.out).unwrap_or_else(|e| panic!("{e}: {near:#?}"));
    eprintln!("{}", far.out);
    let has_problem = report["state"] == "problem";
    assert_eq!(near.code, Some(i32::from(has_problem)), "{near:#?}");
    assert_eq!(far.code, near.code, "{far:#?}");
    // The other side shows the same.
    for (fault, _) in faults_of(&report) {
        let finding = found(&report, &fault);
        let measured = finding["measured"].as_str().unwrap();
        assert!(far.out.contains(measured), "{measured}: {}", far.out);
    }
    Some(report)
}

fn examined(faults: Faults) -> Option<Value> {
    examined_between(faults, "10.77.0.1", "10.77.0.2")
}

/// All that is wrong, and where.
fn faults_of(report: &Value) -> BTreeSet<(String, String)> {
    let findings = report["findings"].as_array().unwrap();
    let bad = findings
        .iter()
        .filter(|f| f["state"] == "problem" || f["state"] == "warning");
    let text = |f: &Value, key: &str| f[key].as_str().unwrap_or_default().to_owned();
    bad.map(|f| (text(f, "fault"), text(f, "place"))).collect()
}

/// The first finding with this fault.
fn found<'r>(report: &'r Value, fault: &str) -> &'r Value {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|f| f["fault"] == fault).unwrap()
}

/// These faults and no others, and their explanation has these words.
#[track_caller]
fn names(report: &Value, fault: &str, places: &[&str], words: &[&str]) {
    let expected: BTreeSet<_> = places
        .iter()
        .map(|p| (fault.to_owned(), (*p).to_owned()))
        .collect();
    assert_eq!(faults_of(report), expected, "{report:#}");
    let finding = found(report, fault).to_string();
    for word in words {
        assert!(finding.contains(word), "\"{word}\" is not in {finding}");
    }
}

/// State of a check in a direction.
fn state<'r>(report: &'r Value, check: &str, place: &str) -> &'r str {
    let findings = report["findings"].as_array().unwrap();
    let finding = findings
        .iter()
        .find(|f| f["check"] == check && f["place"] == place);
    finding.unwrap()["state"].as_str().unwrap()
}

#[test]
fn netns_a_path_without_faults_has_none() {
    for [near, far] in [["10.77.0.1", "10.77.0.2"], ["fd77::1", "fd77::2"]] {
        let Some(report) = examined_between(Faults::default(), near, far) else {
            return;
        };
        assert_eq!(report["state"], "ok", "{report:#}");
        for f in report["findings"].as_array().unwrap() {
            assert_eq!(f["state"], "ok", "{f}");
        }
    }
}

#[test]
fn netns_an_mtu_too_small_in_the_middle() {
    let faults = Faults {
        mtu: Some(1500),
        ..Faults::default()
    };
    let Some(report) = examined(faults) else {
        return;
    };
    let words = [
        "1500 bytes arrive",
        "1504 bytes do not",
        "path MTU 1024",
        "something between",
    ];
    names(&report, "mtu_in_the_middle", &[THERE, BACK], &words);
    assert_eq!(state(&report, "connection", THERE), "ok");
}

#[test]
fn netns_a_firewall_that_drops_udp_port_4791() {
    let faults = Faults {
        firewall: true,
        ..Faults::default()
    };
    let Some(report) = examined(faults) else {
        return;
    };
    let words = [
        "0 of 20",
        "20 of 20",
        "firewall",
        "permit UDP destination port 4791",
    ];
    names(&report, "udp_4791_blocked", &[THERE], &words);
    assert_eq!(state(&report, "reachability", BACK), "ok");
    assert_eq!(state(&report, "loss", THERE), "not_checked");
    assert_eq!(state(&report, "connection", THERE), "not_checked");
}

#[test]
fn netns_a_nat_that_rewrites_addresses() {
    let faults = Faults {
        nat: Some([10, 77, 0, 99]),
        ..Faults::default()
    };
    let Some(report) = examined(faults) else {
        return;
    };
    let words = [
        "sent from 10.77.0.1",
        "arrived from 10.77.0.99",
        "NAT",
        "ICRC",
    ];
    names(&report, "address_translation", &[THERE], &words);
    assert_eq!(state(&report, "addresses", BACK), "ok");
    assert_eq!(state(&report, "connection", THERE), "not_checked");
}

#[test]
fn netns_bleached_ecn() {
    let faults = Faults {
        bleach: true,
        ..Faults::default()
    };
    let Some(report) = examined(faults) else {
        return;
    };
    let words = ["sent ECT(0)", "Not-ECT", "bleaching", "DSCP only"];
    names(&report, "ecn_bleached", &[THERE], &words);
    assert_eq!(state(&report, "dscp", THERE), "ok");
    assert_eq!(state(&report, "ecn", BACK), "ok");
}

#[test]
fn netns_one_percent_loss() {
    let faults = Faults {
        loss: 10,
        ..Faults::default()
    };
    let Some(report) = examined(faults) else {
        return;
    };
    names(&report, "loss", &[THERE], &["packets lost", "one by one"]);
    assert_eq!(found(&report, "loss")["state"], "problem");
    assert_eq!(state(&report, "order", THERE), "ok");
}

#[test]
fn netns_five_percent_reordering() {
    let faults = Faults {
        reorder: 50,
        ..Faults::default()
    };
    let Some(report) = examined(faults) else {
        return;
    };
    let words = ["came too late", "several ways", "balance by flow"];
    names(&report, "reordering", &[THERE], &words);
    assert_eq!(state(&report, "loss", THERE), "ok");
}

#[test]
fn netns_duplicates() {
    let faults = Faults {
        duplicate: 5,
        ..Faults::default()
    };
    let Some(report) = examined(faults) else {
        return;
    };
    names(&report, "duplication", &[THERE], &["came again", "mirror"]);
}

#[test]
fn netns_gids_of_two_families() {
    let Some(report) = examined_between(Faults::default(), "10.77.0.1", "fd77::2") else {
        return;
    };
    let words = [
        "10.77.0.1 (IPv4) and fd77::2 (IPv6)",
        "no common GID family",
        "10.77.0.2",
    ];
    names(&report, "gid_family", &["both"], &words);
    assert_eq!(state(&report, "reachability", "both"), "not_checked");
}
