//! `xroce hop` with `xroce perf` through it.
#![cfg(feature = "xdp")]
#![allow(clippy::unwrap_used, reason = "the test has failed")]

mod common;

use common::{Running, XROCE, server, xroce};
use xroce_testnet::{IFNAME, Star};

#[test]
fn wrong_arguments_are_named() {
    for (args, words) in [
        ("hop", "IF"),
        ("hop a b --towards c", "none of the interfaces joined"),
        ("hop a b --rate fast", "fast"),
        ("hop a b --loss 2", "a share is 0 to 1"),
        ("hop nosuch0 nosuch1", "nosuch0"),
    ] {
        let done = xroce(args);
        assert!(done.code == Some(1) || done.code == Some(2), "{done:?}");
        assert!(done.err.contains(words), "{done:?}");
    }
}

/// Verified data through a bottleneck that loses and marks, repaired selectively; the hop has seen
/// all of it.
#[test]
fn a_measurement_through_a_bottleneck() {
    let Some(star) = Star::or_skip(2, 1500) else {
        return;
    };
    let [near, far] = [&star.leaves[0], &star.leaves[1]];
    // The side channel takes another way: TCP behind a veth leaves its checksums to the device.
    let name = far.name();
    let link = format!("link add talk type veth peer name talk netns {name}");
    near.ip_cmd(&link).unwrap();
    for (leaf, host) in [(near, 1), (far, 2)] {
        leaf.ip_cmd("link set talk up").unwrap();
        leaf.ip_cmd(&format!("addr add 10.78.0.{host}/24 dev talk"))
            .unwrap();
    }
    let mut hop = star.middle.command(XROCE);
    hop.args(["hop", &Star::port(0), &Star::port(1), "--json"]);
    hop.args(["--towards", &Star::port(0), "--loss", "2%"]);
    hop.args([
        "--rate", "1G", "--kmin", "0B", "--kmax", "8KB", "--limit", "10MB",
    ]);
    let hop = Running::start(hop);
    let mut start = near.command(XROCE);
    start.args(["perf", "server", "--backend", "xdp", "--dev", IFNAME]);
    start.args(["--local", &near.v4.to_string(), "--port", "0"]);
    let (_server, port) = server(start);
    let client = || {
        let mut client = far.command(XROCE);
        client.args(["perf", "client", "10.78.0.1", "--port", &port.to_string()]);
        client.args(["--backend", "xdp", "--dev", IFNAME]);
        client.args(["--local", &far.v4.to_string()]);
        client
    };
    // Acknowledgements of answers are lost too: the server is asked again before they are complete.
    let mut ping = client();
    ping.args(["--op", "send,write", "--test", "lat", "--size", "64"]);
    ping.args([
        "--messages",
        "700",
        "--verify",
        "--repair",
        "adaptive",
        "--json",
    ]);
    let report = Running::start(ping).finish().json();
    for row in report["results"].as_array().unwrap() {
        assert_eq!(row["mismatches"], 0, "{row}");
        assert_eq!(row["latency"]["samples"], 700, "{row}");
    }
    let mut client = client();
    client.args(["--op", "send,write", "--size", "20000", "--messages", "300"]);
    client.args(["--repair", "selective", "--verify", "--json"]);
    client.args(["--cc", "dcqcn", "--line-rate", "2G"]);
    let report = Running::start(client).finish().json();
    for row in report["results"].as_array().unwrap() {
        assert_eq!(row["mismatches"], 0, "{row}");
        assert_eq!(row["bandwidth"]["messages"], 300, "{row}");
    }
    hop.signal("INT");
    let seen = hop.finish().json();
    let [towards_server, back] = [&seen["ports"][0], &seen["ports"][1]];
    let number = |port: &serde_json::Value, key: &str| port[key].as_u64().unwrap();
    assert_eq!(towards_server["towards"], "port0");
    // 600 messages of 20 packets.
    assert!(number(towards_server, "frames") > 12_000, "{seen}");
    assert!(number(towards_server, "lost") > 50, "{seen}");
    assert!(number(towards_server, "marked") > 50, "{seen}");
    assert!(
        number(back, "frames") > 100 && number(back, "lost") == 0,
        "{seen}"
    );
}
