//! `xroce perf --compat` at both ends of a path; `compat_peer.rs` has it against a peer that is not
//! xroce.

#![allow(clippy::unwrap_used, reason = "the test has failed")]

mod common;

use common::{Running, server, udp_server, xroce};
use serde_json::Value;
use xroce_testnet::NetnsPair;

/// A whole conversation over UDP; returns what the client and the server printed.
#[track_caller]
fn over_udp(near: &str, far: &str, what: &str) -> (Value, Value) {
    let (server, port) = udp_server(near, &format!("--once --json {what}"));
    let client = xroce(&format!(
        "perf client {near} --local {far} --port {port} --json {what}"
    ));
    let client = client.json();
    (client, server.finish().json())
}

#[track_caller]
fn check(report: &Value, rows: usize, measured: &str, iterations: u64) {
    assert_eq!(report["schema"], 1, "{report}");
    assert_eq!(report["counters"]["icrc_errors"], 0, "{report}");
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), rows, "{report}");
    for row in results {
        assert_eq!(row["iterations"], iterations, "{report}");
        assert!(row[measured].is_object(), "{measured}: {report}");
    }
}

#[test]
fn every_test_of_perftest_over_udp() {
    for op in ["send", "write", "read"] {
        let what = format!("--compat perftest --op {op} --test bw --messages 300 --qps 3");
        let (client, server) = over_udp("127.0.7.1", "127.0.7.2", &what);
        check(&client, 1, "bandwidth", 300);
        assert_eq!(client["peer_version"], "6.06");
        assert_eq!(client["results"][0]["size"], 65536);
        // The server of a SEND counts what arrives, the others are told.
        let measured = if op == "send" { "bandwidth" } else { "peer" };
        let told = if op == "send" { 300 } else { 900 };
        check(&server, 1, measured, told);
        if op != "send" {
            assert_eq!(
                server["results"][0]["peer"],
                client["results"][0]["bandwidth"]
            );
        }
        assert_eq!(client["results"][0]["bandwidth"]["iterations"], 900);

        let what = format!("--compat perftest --op {op} --test lat --messages 300 --size 5000");
        let (client, server) = over_udp("127.0.7.1", "127.0.7.2", &what);
        check(&client, 1, "latency", 300);
        let rows = usize::from(op != "read");
        check(&server, rows, "latency", 300);
    }
}

/// Small messages go through the cycle buffer, receives are fewer than messages.
#[test]
fn small_messages_and_few_receives() {
    for (op, more) in [("send", "--rx-depth 3"), ("write", ""), ("read", "")] {
        let what = format!(
            "--compat perftest --op {op} --size 100 --messages 1000 --depth 16 --mtu 256 {more}"
        );
        let (client, _) = over_udp("127.0.7.3", "127.0.7.4", &what);
        check(&client, 1, "bandwidth", 1000);
        assert_eq!(client["path_mtu"], 256);
    }
}

#[test]
fn both_sides_send_and_all_sizes() {
    for op in ["send", "write", "read"] {
        let both = format!("--compat perftest --op {op} --bidirectional --messages 20");
        let (client, server) = over_udp("127.0.7.5", "127.0.7.6", &format!("{both} --qps 2"));
        for report in [&client, &server] {
            check(report, 1, "bandwidth", 20);
            check(report, 1, "peer", 20);
        }
        assert_eq!(
            server["results"][0]["peer"],
            client["results"][0]["bandwidth"]
        );
        assert_eq!(
            client["results"][0]["peer"],
            server["results"][0]["bandwidth"]
        );

        let all = format!("--compat perftest --op {op} --sizes all --messages 3");
        let (client, _) = over_udp("127.0.7.5", "127.0.7.6", &all);
        check(&client, 23, "bandwidth", 3);
        assert_eq!(client["results"][22]["size"], 8 << 20);
        let (client, _) = over_udp("127.0.7.5", "127.0.7.6", &format!("{all} --test lat"));
        check(&client, 23, "latency", 3);
        let (client, _) = over_udp("127.0.7.5", "127.0.7.6", &format!("{all} --bidirectional"));
        check(&client, 23, "peer", 3);
    }
}

#[test]
fn pingpong_over_udp() {
    let (client, server) = over_udp("127.0.7.7", "127.0.7.8", "--compat pingpong");
    for report in [&client, &server] {
        check(report, 1, "latency", 1000);
        assert_eq!(report["results"][0]["size"], 4096);
        assert_eq!(report["path_mtu"], 1024);
        assert_eq!(report["compat"], "pingpong");
    }
}

#[test]
fn tables_have_the_columns_of_perftest() {
    for (test, columns) in [
        (
            "bw",
            &["#bytes", "BW average[MB/sec]", "MsgRate[Mpps]", " 65536 "][..],
        ),
        (
            "lat",
            &[
                "#iterations",
                "t_typical[usec]",
                "99.9% percentile[usec]",
                " 2 ",
            ],
        ),
    ] {
        let what = format!("--compat perftest --test {test} --messages 50");
        let (server, port) = udp_server("127.0.7.9", &format!("--once {what}"));
        let client = xroce(&format!(
            "perf client 127.0.7.9 --local 127.0.7.10 --port {port} {what}"
        ));
        let server = server.finish();
        for done in [client, server] {
            assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
            for column in columns {
                assert!(done.out.contains(column), "{column}: {}", done.out);
            }
        }
    }
}

/// One server, several clients, over AF_XDP and UDP, IPv4 and IPv6.
#[test]
fn every_test_on_veth() {
    let Some(pair) = NetnsPair::or_skip(4200, 1) else {
        return;
    };
    let backends = if cfg!(feature = "xdp") {
        &["xdp", "udp"][..]
    } else {
        &["udp"]
    };
    let tests = [
        "--compat perftest --op send --test bw --qps 2 --messages 300",
        "--compat perftest --op write --test bw --qps 2 --messages 300",
        "--compat perftest --op read --test bw --qps 2 --messages 300",
        "--compat perftest --op send --test lat --messages 300",
        "--compat perftest --op write --test lat --messages 300",
        "--compat perftest --op read --test lat --messages 300",
        "--compat pingpong --messages 300",
    ];
    for backend in backends {
        for v6 in [false, true] {
            let (near, far) = (pair.a.ip(v6).to_string(), pair.b.ip(v6).to_string());
            for test in tests {
                let mut start = pair.a.command(common::XROCE);
                start.args(["perf", "server", "--backend", backend, "--port", "0"]);
                start.args(["--dev", pair.a.ifname(), "--local", &near, "--json"]);
                start.args(test.split(' '));
                let (_server, port) = server(start);
                for _ in 0..2 {
                    let mut client = pair.b.command(common::XROCE);
                    client.args(["perf", "client", &near, "--port", &port.to_string()]);
                    client.args(["--backend", backend, "--dev", pair.b.ifname()]);
                    client.args(["--local", &far, "--json"]);
                    client.args(test.split(' '));
                    let report = Running::start(client).finish().json();
                    let measured = if test.contains("bw") {
                        "bandwidth"
                    } else {
                        "latency"
                    };
                    check(&report, 1, measured, 300);
                }
            }
        }
    }
}

#[test]
fn what_the_other_program_does_not_have() {
    let client = |args: &str| xroce(&format!("perf client 127.0.0.1 --compat {args}"));
    for (args, words) in [
        ("perftest --verify", &["--verify"][..]),
        ("pingpong --verify", &["--verify"]),
        ("perftest --seconds 1", &["--messages", "--seconds"]),
        ("perftest --op send,write", &["one --op"]),
        ("perftest --test bw,lat", &["one --test"]),
        ("perftest --sizes 2,4", &["--size", "--sizes all"]),
        ("perftest --test lat --qps 2", &["--qps", "--test bw"]),
        ("perftest --test lat --bidirectional", &["--bidirectional"]),
        ("perftest --op read --rx-depth 3", &["--rx-depth", "SEND"]),
        ("pingpong --op write", &["--op", "perftest"]),
        ("pingpong --test bw", &["--test", "perftest"]),
        ("pingpong --qps 2", &["--qps"]),
        ("pingpong --depth 2", &["--depth"]),
        ("pingpong --sizes all", &["--sizes"]),
        ("pingpong --bidirectional", &["--bidirectional"]),
    ] {
        client(args).fails(1, words);
    }
    client("qperf").fails(2, &["perftest, pingpong"]);
    xroce("perf client h --rx-depth 1").fails(1, &["--rx-depth", "--compat"]);
    for option in [
        "--op send",
        "--size 4k",
        "--json",
        "--format csv",
        "--qps 1",
        "--timeout 1",
        "--bidirectional",
    ] {
        let name = option.split(' ').next().unwrap();
        xroce(&format!("perf server {option}")).fails(1, &[name, "--compat"]);
    }
}
