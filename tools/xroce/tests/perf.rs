//! `xroce perf` and `xroce demo` as a whole: two processes, data verified on the far side.

#![allow(clippy::unwrap_used, reason = "the test has failed")]

mod common;

use common::{Running, command, server, udp_server, xroce};
use xroce_testnet::NetnsPair;

/// Every row is complete: all was compared, nothing differed, nothing was retransmitted in vain.
#[track_caller]
fn check_rows(report: &serde_json::Value, rows: usize) {
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), rows);
    for row in results {
        assert_eq!(row["mismatches"], 0, "{row}");
        assert_eq!(row["total"]["icrc_errors"], 0, "{row}");
        if report["verify"] == true {
            assert!(row["verified"].as_u64().unwrap() > 0, "{row}");
        }
    }
}

#[test]
fn every_operation_and_test_over_udp() {
    let (server, port) = udp_server("127.0.6.1", "--once");
    let report = xroce(&format!(
        "perf client 127.0.6.1 --local 127.0.6.2 --port {port} --op send,write,read --test bw,lat \
         --sizes 1,3,4096,4097,100000 --messages 300 --verify --json"
    ))
    .json();
    check_rows(&report, 15);
    for row in report["results"].as_array().unwrap() {
        assert_eq!(row["bandwidth"]["messages"], 300, "{row}");
        assert_eq!(row["latency"]["samples"], 300, "{row}");
        assert!(
            row["latency"]["p50_ns"].as_u64() >= row["latency"]["min_ns"].as_u64(),
            "{row}"
        );
        // READ is compared where it arrives, with the source at the far side; a SEND or WRITE of
        // the latency test at both sides.
        let latency = if row["op"] == "read" { 364 } else { 2 * 364 };
        assert_eq!(row["verified"], 300 + latency, "{row}");
    }
    assert_eq!(server.finish().code, Some(0));
}

#[test]
fn several_queue_pairs_and_clients_one_after_another() {
    let (_server, port) = udp_server("127.0.6.3", "");
    for verify in ["", "--verify"] {
        let report = xroce(&format!(
            "perf client 127.0.6.3 --local 127.0.6.4 --port {port} --op send,write,read --qps 5 \
             --depth 7 --sizes 64,5000 --messages 500 --mtu 512 --json {verify}"
        ))
        .json();
        check_rows(&report, 6);
        assert_eq!(report["path_mtu"], 512);
        for row in report["results"].as_array().unwrap() {
            assert_eq!(row["bandwidth"]["messages"], 5 * 500, "{row}");
            assert_eq!(
                row["verified"],
                if verify.is_empty() { 0 } else { 2500 },
                "{row}"
            );
        }
    }
}

#[test]
fn a_test_by_time_prints_a_table() {
    let (_server, port) = udp_server("127.0.6.5", "--once --poll busy");
    let done = xroce(&format!(
        "perf client 127.0.6.5 --local 127.0.6.6 --port {port} --op write --test bw,lat \
         --sizes 2,64k --seconds 0.1 --poll adaptive"
    ));
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    for word in [
        "WRITE",
        "64 KB",
        "messages/s",
        "p50 µs",
        "retransm.",
        "path MTU 4096",
    ] {
        assert!(done.out.contains(word), "{word}: {}", done.out);
    }
}

/// All path MTUs, IPv4 and IPv6, AF_XDP and UDP; data verified both ways.
#[test]
fn path_mtu_family_backend_matrix_on_veth() {
    let Some(pair) = NetnsPair::or_skip(4200, 1) else {
        return;
    };
    let backends = if cfg!(feature = "xdp") {
        &["xdp", "udp"][..]
    } else {
        &["udp"]
    };
    for backend in backends {
        for v6 in [false, true] {
            let (near, far) = (pair.a.ip(v6), pair.b.ip(v6));
            let mut start = pair.a.command(common::XROCE);
            start.args([
                "perf",
                "server",
                "--backend",
                backend,
                "--dev",
                pair.a.ifname(),
            ]);
            start.args(["--local", &near.to_string(), "--port", "0"]);
            let (_server, port) = server(start);
            for mtu in [256, 512, 1024, 2048, 4096] {
                let mut client = pair.b.command(common::XROCE);
                client.args([
                    "perf",
                    "client",
                    &near.to_string(),
                    "--port",
                    &port.to_string(),
                ]);
                client.args(["--backend", backend, "--dev", pair.b.ifname()]);
                client.args(["--local", &far.to_string(), "--mtu", &mtu.to_string()]);
                client.args([
                    "--op",
                    "send,write,read",
                    "--test",
                    "bw,lat",
                    "--verify",
                    "--json",
                ]);
                let sizes = format!("1,{mtu},{},20000", mtu + 1);
                client.args(["--sizes", &sizes, "--messages", "200"]);
                let report = Running::start(client).finish().json();
                assert_eq!(report["path_mtu"], mtu);
                check_rows(&report, 12);
            }
        }
    }
}

/// Tagged frames come to AF_XDP; the kernel, which knows no such VLAN here, drops them.
#[test]
fn frames_with_a_vlan_tag_on_veth() {
    if cfg!(not(feature = "xdp")) {
        return;
    }
    let Some(pair) = NetnsPair::or_skip(4200, 1) else {
        return;
    };
    for (backend, received) in [("xdp", true), ("udp", false)] {
        for v6 in [false, true] {
            let (near, far) = (pair.a.ip(v6).to_string(), pair.b.ip(v6).to_string());
            let mut start = pair.a.command(common::XROCE);
            start.args(["perf", "server", "--port", "0", "--local", &near]);
            start.args(["--backend", backend, "--dev", pair.a.ifname()]);
            if received {
                start.args(["--vlan", "7"]);
            }
            let (_server, port) = server(start);
            let mut client = pair.b.command(common::XROCE);
            client.args(["perf", "client", &near, "--port", &port.to_string()]);
            client.args(["--dev", pair.b.ifname(), "--local", &far, "--vlan", "7"]);
            client.args(["--op", "send,write,read", "--size", "20000"]);
            client.args(["--messages", "50", "--verify", "--json"]);
            let done = Running::start(client).finish();
            if received {
                check_rows(&done.json(), 3);
            } else {
                let failure = &done.failure()["failure"];
                assert_eq!(failure["status"], "RetryExcErr", "{failure}");
                assert_eq!(failure["silent_ns"], serde_json::Value::Null, "{failure}");
                assert!(done.err.contains("nothing ever came back"), "{done:#?}");
            }
        }
    }
}

/// A path MTU that a link cannot carry, at either end.
#[test]
fn path_mtu_too_large_on_veth() {
    let Some(pair) = NetnsPair::or_skip(1500, 1) else {
        return;
    };
    let mut start = pair.a.command(common::XROCE);
    start.args([
        "perf",
        "server",
        "--backend",
        "udp",
        "--dev",
        pair.a.ifname(),
        "--port",
        "0",
    ]);
    let (_server, port) = server(start);
    let client = |mtu: &str| {
        let mut client = pair.b.command(common::XROCE);
        client.args([
            "perf",
            "client",
            &pair.a.v4.to_string(),
            "--port",
            &port.to_string(),
        ]);
        client.args([
            "--backend",
            "udp",
            "--dev",
            pair.b.ifname(),
            "--messages",
            "10",
        ]);
        client.args(if mtu.is_empty() {
            ["--format", "json"]
        } else {
            ["--mtu", mtu]
        });
        Running::start(client).finish()
    };
    let words = ["4096", "4192", "1500", "this side's", "--mtu 1024"];
    client("4096").fails(1, &words);
    assert_eq!(client("").json()["path_mtu"], 1024);

    pair.b
        .ip_cmd(&format!("link set {} mtu 4200", pair.b.ifname()))
        .unwrap();
    client("4096").fails(1, &["4096", "1500", "the server's", "--mtu 1024"]);
    // Without --mtu the smaller link decides.
    assert_eq!(client("").json()["path_mtu"], 1024);
}

#[test]
fn raw_rate_on_veth() {
    if cfg!(not(feature = "xdp")) {
        return;
    }
    let Some(pair) = NetnsPair::or_skip(4200, 1) else {
        return;
    };
    let raw = |ns: &xroce_testnet::Netns, role: &str, more: &str| {
        let mut command = ns.command(common::XROCE);
        command.args(["perf", "raw", role, "--dev", ns.ifname(), "--json"]);
        command.args(more.split_whitespace());
        Running::start(command)
    };
    for (near, far, frame) in [("receive", "send", 122), ("echo", "ping", 4154)] {
        let to = format!("--frame {frame} --to {}", pair.b.v4);
        let receiver = raw(&pair.a, near, &to);
        assert_eq!(receiver.out_line(), "ready");
        let to = format!("--frame {frame} --seconds 0.2 --to {}", pair.a.v4);
        let sent = raw(&pair.b, far, &to).finish().json();
        let received = receiver.finish().json();
        // How many depends on who else wants the cores.
        assert!(received["frames"].as_u64().unwrap() > 0, "{received}");
        // A ping that was given up for lost may have been echoed all the same, only late.
        let left = sent["frames"].as_u64().unwrap() + sent["lost"].as_u64().unwrap();
        assert!(
            left >= received["frames"].as_u64().unwrap(),
            "{sent} {received}"
        );
        assert_eq!(sent["frame"], frame);
    }
    raw(&pair.a, "receive", "--timeout 0.2").finish();
    let lonely = raw(&pair.a, "receive", "--timeout 0.2").finish();
    assert_eq!(lonely.code, Some(1));
    assert!(
        lonely.err.contains("no frame came within 0.2 s"),
        "{lonely:?}"
    );
}

#[test]
fn demo_over_udp() {
    let report = xroce("demo --backend udp --seconds 0.02 --json").json();
    check_rows(&report["report"], 33);
    assert_eq!(report["raw"].as_array().unwrap().len(), 0);
}

/// Namespaces of process `pid` that exist.
fn namespaces(pid: u32) -> Vec<String> {
    let names = std::fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .flatten();
    let names = names.map(|e| e.file_name().to_string_lossy().into_owned());
    names
        .filter(|n| n.starts_with(&format!("xr{pid}-")))
        .collect()
}

#[test]
fn demo_over_xdp_on_veth_leaves_nothing() {
    if cfg!(not(feature = "xdp")) || NetnsPair::or_skip(1500, 1).is_none() {
        return;
    }
    let demo = Running::start(command("demo --backend xdp --seconds 0.02 --json"));
    let pid = demo.id();
    let report = demo.finish().json();
    check_rows(&report["report"], 33);
    assert!(
        report["raw"][0]["ratio"].as_f64().unwrap() > 0.0,
        "{}",
        report["raw"]
    );
    assert_eq!(namespaces(pid), Vec::<String>::new());
}

#[test]
fn an_interrupted_demo_leaves_nothing_on_veth() {
    if cfg!(not(feature = "xdp")) || NetnsPair::or_skip(1500, 1).is_none() {
        return;
    }
    for signal in ["INT", "TERM", "KILL"] {
        let demo = Running::start(command("demo --backend xdp --seconds 5"));
        let pid = demo.id();
        while !demo.err_line().contains("1/54") {}
        assert_eq!(namespaces(pid).len(), 2);
        demo.signal(signal);
        let done = demo.finish();
        if signal == "KILL" {
            // The next one cleans up; its programs have died with it.
            xroce("demo --backend xdp --seconds 0.001 --json").json();
        } else {
            assert_eq!(done.code, Some(130), "{done:?}");
        }
        assert_eq!(namespaces(pid), Vec::<String>::new(), "{signal}");
        let mut left = Vec::new();
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains(&format!("--parent {pid}")) {
                left.push(line);
            }
        }
        assert_eq!(left, Vec::<String>::new(), "{signal}");
    }
}
