//! `xroce perf` as a benchmark: lists, both directions, open loop, ports, forms of output. What is
//! counted is checked, how long it took is not.

#![allow(clippy::unwrap_used, reason = "the test has failed")]

mod common;

use std::time::Duration;

use common::{Running, command, server, udp_server, xroce};
use serde_json::Value;
use xroce_testnet::{Netns, NetnsPair};

/// A server with a port at each of these addresses.
#[track_caller]
fn udp_ports(addresses: &str) -> (Running, u16) {
    let first = addresses.split(',').next().unwrap();
    server(command(&format!(
        "perf server --local {addresses} --bind {first} --port 0"
    )))
}

fn rows(report: &Value) -> &Vec<Value> {
    report["results"].as_array().unwrap()
}

/// Whether what a message cost has been measured on both sides.
#[track_caller]
fn check_cost(row: &Value) {
    for side in ["client", "server"] {
        let cost = &row["cpu"][side];
        assert!(cost["ns_per_message"].as_f64().unwrap() > 0.0, "{row}");
        // Either the machine counts instructions, or there is a reason.
        let counted = cost["instructions_per_message"].is_f64();
        assert_ne!(counted, cost["refusal"].is_string(), "{row}");
    }
}

#[test]
fn every_size_with_every_depth_and_number_of_queue_pairs() {
    let (server, port) = udp_server("127.0.10.1", "--once");
    let report = xroce(&format!(
        "perf client 127.0.10.1 --local 127.0.10.2 --port {port} --op send,read --sizes 64,5000 \
         --qps 1,3 --depth 2,8 --messages 200 --verify --json"
    ))
    .json();
    let of: Vec<_> = rows(&report)
        .iter()
        .map(|r| {
            (
                r["op"].as_str().unwrap(),
                r["size"].as_u64().unwrap(),
                r["qps"].as_u64().unwrap(),
                r["depth"].as_u64().unwrap(),
            )
        })
        .collect();
    let mut want = Vec::new();
    for op in ["send", "read"] {
        for size in [64, 5000] {
            want.extend(
                [(1, 2), (1, 8), (3, 2), (3, 8)].map(|(qps, depth)| (op, size, qps, depth)),
            );
        }
    }
    assert_eq!(of, want);
    for row in rows(&report) {
        let messages = 200 * row["qps"].as_u64().unwrap();
        assert_eq!(row["bandwidth"]["messages"], messages, "{row}");
        assert_eq!(
            (&row["verified"], &row["mismatches"]),
            (&messages.into(), &0.into()),
            "{row}"
        );
        assert_eq!(row["bandwidth"]["depth"], row["depth"], "{row}");
        check_cost(row);
    }
    assert_eq!(server.finish().code, Some(0));
}

#[test]
fn both_sides_send_at_once() {
    let (_server, port) = udp_server("127.0.10.3", "");
    for verify in ["", "--verify"] {
        let report = xroce(&format!(
            "perf client 127.0.10.3 --local 127.0.10.4 --port {port} --op send,write,read \
             --sizes 1,5000 --qps 2 --depth 8 --messages 3000 --bidirectional --json {verify}"
        ))
        .json();
        assert_eq!(
            (rows(&report).len(), &report["bidirectional"]),
            (6, &true.into())
        );
        for row in rows(&report) {
            assert_eq!(row["bandwidth"]["messages"], 6000, "{row}");
            assert_eq!(row["reverse"]["messages"], 6000, "{row}");
            let verified = if verify.is_empty() { 0 } else { 12_000 };
            assert_eq!(
                (&row["verified"], &row["mismatches"]),
                (&verified.into(), &0.into()),
                "{row}"
            );
            let rate = |v: &Value| v["gbit_per_s"].as_f64().unwrap();
            let sum = rate(&row["bandwidth"]) + rate(&row["reverse"]);
            assert!((rate(&row["sum"]) - sum).abs() < 1e-9, "{row}");
        }
    }
    // By time, with a warm-up.
    let report = xroce(&format!(
        "perf client 127.0.10.3 --local 127.0.10.4 --port {port} --op send,write,read --size 64 \
         --seconds 0.05 --warmup 20ms --bidirectional --json"
    ))
    .json();
    for row in rows(&report) {
        assert!(row["bandwidth"]["messages"].as_u64().unwrap() > 0, "{row}");
        assert!(row["reverse"]["messages"].as_u64().unwrap() > 0, "{row}");
    }
}

#[test]
fn messages_of_a_warm_up_do_not_count() {
    let (_server, port) = udp_server("127.0.10.5", "");
    for more in [
        "",
        "--verify",
        "--bidirectional",
        "--bidirectional --verify",
    ] {
        let args = format!(
            "perf client 127.0.10.5 --local 127.0.10.6 --port {port} --op send --size 64 \
             --messages 10 --stats --json {more}"
        );
        let packets = |warmup: &str| {
            let report = xroce(&format!("{args} --warmup {warmup}")).json();
            assert_eq!(
                report["results"][0]["bandwidth"]["messages"], 10,
                "{report}"
            );
            report["stats"]["qp"]["tx_packets"].as_u64().unwrap()
        };
        // A hundred messages take less than 100 ms, whoever else wants the cores.
        let (cold, warm) = (packets("0"), packets("100ms"));
        assert!(cold < 100 && warm > 100, "{more}: {cold} {warm}");
    }
}

#[test]
fn an_open_loop_leaves_no_message_out() {
    let (_server, port) = udp_server("127.0.10.7", "");
    let run = |more: &str| {
        xroce(&format!(
            "perf client 127.0.10.7 --local 127.0.10.8 --port {port} --json {more}"
        ))
        .json()
    };
    // Every message that is due within the time is there, in whatever time it was done.
    let report = run("--op send,write,read --rate 1k,2k --qps 2 --seconds 0.1 --warmup 20ms");
    assert_eq!(rows(&report).len(), 6);
    for row in rows(&report) {
        let open = &row["open"];
        let due = open["offered_per_s"].as_u64().unwrap() / 10;
        assert_eq!(open["latency"]["samples"], due, "{row}");
        assert_eq!(open["behind"]["samples"], due, "{row}");
        let sent = row["bandwidth"]["messages"].as_u64().unwrap();
        assert_eq!(sent + open["unsent"].as_u64().unwrap(), due, "{row}");
        let quantile = |name: &str| open["latency"][name].as_u64().unwrap();
        let names = [
            "p50_ns", "p90_ns", "p99_ns", "p999_ns", "p9999_ns", "max_ns",
        ];
        assert!(names.map(quantile).is_sorted(), "{row}");
        check_cost(row);
    }
    // One at a time can never be so fast: what did not leave counts too.
    let report = run("--op write --rate 5M --depth 1 --seconds 0.1");
    let row = &report["results"][0];
    let unsent = row["open"]["unsent"].as_u64().unwrap();
    assert!(unsent > 0, "{row}");
    assert_eq!(row["open"]["latency"]["samples"], 500_000, "{row}");
    assert_eq!(row["bandwidth"]["messages"], 500_000 - unsent, "{row}");
    // By number all leave.
    let report = run("--op send --rate 5M --depth 4 --messages 300 --qps 3");
    let row = &report["results"][0];
    assert_eq!(
        (&row["open"]["unsent"], &row["bandwidth"]["messages"]),
        (&0.into(), &900.into())
    );
}

#[test]
fn poisson_arrivals_say_their_seed() {
    let (_server, port) = udp_server("127.0.10.9", "");
    let run = |more: &str| {
        xroce(&format!(
            "perf client 127.0.10.9 --local 127.0.10.10 --port {port} --op write --rate 5k \
             --seconds 0.1 --json {more}"
        ))
        .json()
    };
    let due = |more: &str| {
        let report = run(more);
        let samples = report["results"][0]["open"]["latency"]["samples"].clone();
        (
            samples.as_u64().unwrap(),
            report["arrivals"]["seed"].clone(),
        )
    };
    // How many are due depends on the seed alone.
    let (n, seed) = due("--arrivals poisson --seed 7");
    assert_eq!(seed, 7);
    assert_eq!(due("--arrivals poisson --seed 7").0, n);
    assert!(n != 500 || due("--arrivals poisson --seed 8").0 != 500);
    let (n, seed) = due("--arrivals poisson");
    assert_eq!(due(&format!("--arrivals poisson --seed {seed}")), (n, seed));
    // Both sides, each with its own.
    let report = run("--bidirectional --arrivals poisson");
    let open = &report["results"][0]["reverse"]["open"];
    assert!(open["latency"]["samples"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn csv_and_the_columns_of_perftest() {
    let (_server, port) = udp_server("127.0.10.11", "");
    let run = |more: &str| {
        let done = xroce(&format!(
            "perf client 127.0.10.11 --local 127.0.10.12 --port {port} --sizes 2,4096 \
             --messages 100 {more}"
        ));
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
        done.out
    };
    let text = run("--test bw,lat --format csv");
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').collect()).collect();
    assert_eq!(lines.len(), 1 + 4, "{text}");
    assert!(lines.iter().all(|l| l.len() == lines[0].len()), "{text}");
    let column = |name: &str| {
        let at = lines[0].iter().position(|n| *n == name).unwrap();
        lines[1..].iter().map(|l| l[at]).collect::<Vec<_>>()
    };
    assert_eq!(column("op"), ["send"; 4]);
    assert_eq!(column("test"), ["bw", "lat", "bw", "lat"]);
    assert_eq!(column("size"), ["2", "2", "4096", "4096"]);
    assert_eq!(column("messages"), ["100", "", "100", ""]);
    assert_eq!(column("samples"), ["", "100", "", "100"]);

    let text = run("--op write --test bw,lat --format perftest");
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert!(text.starts_with(
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
    ));
    for (line, start, columns) in [
        (1, ["2", "100"], 5),
        (2, ["4096", "100"], 5),
        (4, ["2", "100"], 9),
        (5, ["4096", "100"], 9),
    ] {
        assert_eq!(lines[line][..2], start, "{text}");
        assert_eq!(lines[line].len(), columns, "{text}");
        assert!(
            lines[line].iter().all(|c| c.parse::<f64>().is_ok()),
            "{text}"
        );
    }
}

#[test]
fn a_histogram_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("latency.txt");
    let (_server, port) = udp_server("127.0.10.13", "");
    let args = format!(
        "perf client 127.0.10.13 --local 127.0.10.14 --port {port} --op write,read --test lat,bw \
         --size 64 --messages 100 --histogram"
    );
    assert_eq!(xroce(&format!("{args} {}", file.display())).code, Some(0));
    let text = std::fs::read_to_string(&file).unwrap();
    // One for each latency test, none for bandwidth.
    assert_eq!(
        text.matches("Total count    =          100]").count(),
        2,
        "{text}"
    );
    assert!(text.contains("#[WRITE latency of 64 B"), "{text}");
    xroce(&format!("{args} {}/none/x", dir.path().display())).fails(1, &["cannot write", "none/x"]);
}

#[test]
fn several_addresses_are_several_ports() {
    let (server, port) = udp_ports("127.0.10.15,127.0.10.16");
    let args = format!(
        "perf client 127.0.10.15 --port {port} --op send,write,read --test bw,lat --size 5000 \
         --messages 500 --qps 2 --verify --json --local 127.0.10.17"
    );
    let report = xroce(&format!("{args},127.0.10.18")).json();
    let ports = report["ports"].as_array().unwrap();
    for (n, (client, there)) in [
        ("127.0.10.17", "127.0.10.15"),
        ("127.0.10.18", "127.0.10.16"),
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(
            (&ports[n]["client"], &ports[n]["server"]),
            (&(*client).into(), &(*there).into())
        );
    }
    for row in rows(&report) {
        assert_eq!(row["bandwidth"]["messages"], 2000, "{row}");
        assert_eq!(row["latency"]["samples"], 1000, "{row}");
        assert_eq!(row["mismatches"], 0, "{row}");
        for port in row["ports"].as_array().unwrap() {
            assert_eq!(port["bandwidth"]["messages"], 1000, "{row}");
            assert_eq!(port["latency"]["samples"], 500, "{row}");
        }
    }
    // The rate is that of all ports together.
    let open = xroce(&format!(
        "perf client 127.0.10.15 --port {port} --local 127.0.10.17,127.0.10.18 --rate 3001 \
         --seconds 1 --json --op write"
    ))
    .json();
    let row = &open["results"][0]["open"];
    assert_eq!(
        (&row["offered_per_s"], &row["latency"]["samples"]),
        (&3001.into(), &3001.into())
    );
    // A client with one port is welcome, one with three is not.
    assert!(xroce(&args).json()["ports"].is_null());
    let many = xroce(&format!("{args},127.0.10.18,127.0.10.19"));
    let error = many.failure()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("3 ports, this server 2"), "{error}");
    assert!(server.err_line().contains("3 ports, this server 2"));
}

/// A port that cannot be opened ends the others, too, and at once.
#[test]
fn one_port_that_fails_ends_the_others() {
    let (_server, port) = udp_ports("127.0.10.20,127.0.10.21");
    let taken = std::net::UdpSocket::bind("127.0.10.23:4791").unwrap();
    let args = format!(
        "perf client 127.0.10.20 --port {port} --local 127.0.10.22,127.0.10.23 --messages 10"
    );
    xroce(&args).fails(1, &["port 1", "127.0.10.23"]);
    drop(taken);
    assert_eq!(xroce(&args).code, Some(0));
}

/// A connection that breaks: the JSON says what the text says.
#[test]
fn a_failed_connection_is_an_object_too() {
    let (server, port) = udp_server("127.0.10.24", "");
    let client = Running::start(command(&format!(
        "perf client 127.0.10.24 --local 127.0.10.25 --port {port} --op write --test lat,bw \
         --size 64 --latency-seconds 0.01 --seconds 60 --warmup 0 --progress-json --json"
    )));
    // The bandwidth test begins after the latency test; the server then stands still.
    while !client.err_line().contains("round trip") {}
    std::thread::sleep(Duration::from_millis(700));
    server.signal("STOP");
    let done = client.finish();
    let report = done.failure();
    let failure = &report["failure"];
    assert_eq!(
        (&report["schema"], &failure["status"]),
        (&1.into(), &"RetryExcErr".into())
    );
    for name in [
        "last_psn_sent",
        "last_psn_acked",
        "retry_cnt",
        "silent_ns",
        "last_response_psn",
    ] {
        assert!(failure[name].is_u64(), "{name}: {failure}");
    }
    let error = report["error"].as_str().unwrap();
    assert!(error.starts_with("WRITE bandwidth of 64 B"), "{error}");
    let causes = failure["likely_causes"].as_array().unwrap();
    assert!(!causes.is_empty(), "{failure}");
    for cause in causes {
        assert!(error.contains(cause.as_str().unwrap()), "{cause}: {error}");
    }
    server.signal("CONT");
}

#[test]
fn a_long_run_is_announced() {
    let (_server, port) = udp_server("127.0.10.26", "");
    let client = Running::start(command(&format!(
        "perf client 127.0.10.26 --local 127.0.10.27 --port {port} --sizes 2,4 --qps 1,2 \
         --seconds 40 --warmup 1"
    )));
    assert_eq!(client.err_line(), "4 measurements, about 2 min 44 s");
    client.signal("INT");
    assert_eq!(client.finish().code, Some(130));
}

/// A client or server in a namespace.
fn perf(ns: &Netns, role: &str, more: &str) -> std::process::Command {
    let mut command = ns.command(common::XROCE);
    command.args(["perf", role]).args(more.split_whitespace());
    command
}

const ALL: &str = "--op send,write,read --sizes 64,20000 --qps 2 --messages 500 --verify --json";

/// Every operation on two ports of each side, one way and both ways.
#[track_caller]
fn on_two_ports(pair: &NetnsPair, ports: &str) {
    let (_server, port) = server(perf(&pair.a, "server", &format!("{ports} --port 0")));
    for both in ["", "--bidirectional"] {
        let client = format!("{} {ports} --port {port} {ALL} {both}", pair.a.v4);
        let report = Running::start(perf(&pair.b, "client", &client))
            .finish()
            .json();
        assert_eq!(report["ports"].as_array().unwrap().len(), 2, "{report}");
        assert_eq!(rows(&report).len(), 6);
        for row in rows(&report) {
            assert_eq!(
                (&row["bandwidth"]["messages"], &row["mismatches"]),
                (&2000.into(), &0.into()),
                "{row}"
            );
            for port in row["ports"].as_array().unwrap() {
                assert_eq!(port["bandwidth"]["messages"], 1000, "{row}");
            }
            let verified = if both.is_empty() { 2000 } else { 4000 };
            assert_eq!(row["verified"], verified, "{row}");
        }
    }
}

#[test]
fn two_queues_of_an_interface_on_veth() {
    if cfg!(not(feature = "xdp")) {
        return;
    }
    if let Some(pair) = NetnsPair::or_skip(4200, 2) {
        on_two_ports(&pair, "--dev veth0 --queues 0-1 --ring 512");
    }
}

#[test]
fn two_interfaces_on_veth() {
    let Some(pair) = NetnsPair::or_skip(4200, 1) else {
        return;
    };
    let link = format!(
        "link add more type veth peer name more netns {}",
        pair.b.name()
    );
    pair.a.ip_cmd(&link).unwrap();
    for (ns, host) in [(&pair.a, 1), (&pair.b, 2)] {
        ns.ip_cmd("link set more mtu 4200 up").unwrap();
        ns.ip_cmd(&format!("addr add 10.78.0.{host}/24 dev more"))
            .unwrap();
    }
    if cfg!(feature = "xdp") {
        on_two_ports(&pair, "--dev veth0,more");
    }
    on_two_ports(&pair, "--dev veth0,more --backend udp");
}
