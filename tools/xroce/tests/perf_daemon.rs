//! `xroce perf --daemon`: the daemon's devices measured as an engine of one's own is, over loopback.

#![allow(clippy::unwrap_used, reason = "the test has failed")]

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use common::{Finished, Running, command, server, udp_server, xroce};
use serde_json::Value;
use tempfile::TempDir;
use xroce_daemon::{Below, Daemon, DaemonConfig, DeviceConfig};

/// An address of loopback that no other test has: RoCE has one port.
fn address(test: u8, n: u8) -> IpAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(
        127,
        100 + 4 * test + n,
        high,
        low.clamp(1, 254),
    ))
}

/// A daemon with two devices, UDP sockets of loopback.
struct Host {
    daemon: Option<Daemon>,
    dir: TempDir,
    addresses: [IpAddr; 2],
}

impl Host {
    fn new(test: u8) -> Self {
        let mut host = Self {
            daemon: None,
            dir: tempfile::tempdir().unwrap(),
            addresses: [address(test, 0), address(test, 1)],
        };
        host.start();
        host
    }

    fn start(&mut self) {
        let devices = self.addresses.map(|addr| {
            let ifname = None;
            DeviceConfig::new(Below::Udp { addr, ifname })
        });
        let config = DaemonConfig::new(self.socket(), devices.to_vec());
        self.daemon = Some(Daemon::start(config).unwrap());
    }

    fn stop(&mut self, reason: &str) {
        self.daemon.take().unwrap().stop(reason);
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// `--daemon` with one of the devices.
    fn device(&self, n: usize) -> String {
        let name = self.daemon.as_ref().unwrap().devices()[n].clone();
        format!("--daemon {} --device {name}", self.socket().display())
    }

    /// A server on the first device.
    fn server(&self, more: &str) -> (Running, u16) {
        let bind = self.addresses[0];
        let device = self.device(0);
        server(command(&format!(
            "perf server {device} --bind {bind} --port 0 {more}"
        )))
    }

    /// A client on the second device, against a server on the first.
    fn client(&self, port: u16, more: &str) -> Finished {
        let (to, device) = (self.addresses[0], self.device(1));
        xroce(&format!("perf client {to} {device} --port {port} {more}"))
    }
}

/// Every row was compared and nothing differed.
#[track_caller]
fn check_rows(report: &Value, rows: usize) {
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), rows, "{report}");
    for row in results {
        assert_eq!(row["mismatches"], 0, "{row}");
        assert_eq!(row["total"]["icrc_errors"], 0, "{row}");
        assert!(row["verified"].as_u64().unwrap() > 0, "{row}");
    }
}

#[test]
fn every_operation_and_test_through_daemons_at_both_ends() {
    let host = Host::new(0);
    let (server, port) = host.server("");
    let both = "--op send,write,read --verify --json";
    let report = host.client(
        port,
        &format!("{both} --test bw,lat --sizes 1,5000 --messages 30 --stats"),
    );
    let report = report.json();
    check_rows(&report, 6);
    for row in report["results"].as_array().unwrap() {
        assert_eq!(row["bandwidth"]["messages"], 30, "{row}");
        assert_eq!(row["latency"]["samples"], 30, "{row}");
    }
    for port in ["client_port", "server_port"] {
        let name = report[port].as_str().unwrap();
        assert!(name.contains("(daemon: UDP lo"), "{name}");
    }
    let stats = &report["stats"];
    assert!(
        stats["engine"]["rx_frames"].as_u64().unwrap() > 0,
        "{stats}"
    );
    assert!(stats["port"]["tx_frames"].as_u64().unwrap() > 0, "{stats}");
    assert!(
        stats["qp"]["sends_completed"].as_u64().unwrap() > 0,
        "{stats}"
    );
    assert_eq!(stats["rtt"], serde_json::json!({}), "the daemon keeps them");

    // Several queue pairs, the list of work requests changes queue pairs all the time.
    let more = "--qps 3 --depth 7 --size 300 --messages 100 --bidirectional --mtu 1024";
    let report = host.client(port, &format!("{both} {more}")).json();
    check_rows(&report, 3);
    assert_eq!(report["path_mtu"], 1024);
    drop(server);
}

#[test]
fn a_daemon_at_one_end_only() {
    let host = Host::new(1);
    let (own, far) = (address(1, 2), address(1, 3));
    let what = "--op send,write,read --test bw,lat --size 100 --messages 50 --verify --json";

    let (server, port) = host.server("--once");
    let to = host.addresses[0];
    let client = format!("perf client {to} --local {own} --port {port} {what}");
    check_rows(&xroce(&client).json(), 3);
    assert_eq!(server.finish().code, Some(0));

    let (server, port) = udp_server(&far.to_string(), "--once");
    let device = host.device(1);
    let client = format!("perf client {far} {device} --port {port} {what}");
    let report = xroce(&client).json();
    check_rows(&report, 3);
    assert_eq!(report["client"], host.addresses[1].to_string());
    assert_eq!(server.finish().code, Some(0));
}

#[test]
fn an_open_loop_with_every_output() {
    let host = Host::new(2);
    let (_server, port) = host.server("");
    let file = host.dir.path().join("h");
    let open = "--op send,write,read --size 64 --rate 2k --messages 40";
    let histogram = file.display();
    let report = host
        .client(port, &format!("{open} --json --histogram {histogram}"))
        .json();
    let rows = report["results"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!(row["open"]["latency"]["samples"], 40, "{row}");
    }
    let written = std::fs::read_to_string(&file).unwrap();
    assert_eq!(written.matches("TotalCount").count(), 3, "{written}");
    let csv = host.client(
        port,
        &format!("{open} --format csv --arrivals poisson --seed 3"),
    );
    assert_eq!(
        (csv.code, csv.out.lines().count()),
        (Some(0), 4),
        "{csv:#?}"
    );
    let both = host.client(port, &format!("{open} --bidirectional"));
    assert_eq!(both.code, Some(0), "{both:#?}");
    for word in ["offered/s", "p99.9 µs", "READ", "(daemon: UDP lo"] {
        assert!(both.out.contains(word), "{word}: {both:#?}");
    }
}

/// The peer speaks perftest, its counterpart is a device of the daemon.
#[test]
fn the_language_of_another_program() {
    let host = Host::new(3);
    for what in [
        "--compat perftest --op send --qps 2 --messages 50 --size 300",
        "--compat perftest --op write --test lat --messages 50 --size 300",
        "--compat pingpong --messages 50",
    ] {
        let (server, port) = host.server(&format!("--once --json {what}"));
        let report = host.client(port, &format!("--json {what}")).json();
        assert_eq!(report["counters"]["icrc_errors"], 0, "{report}");
        assert_eq!(report["results"].as_array().unwrap().len(), 1, "{report}");
        server.finish().json();
    }
}

#[test]
fn options_that_do_not_go_with_the_daemon() {
    let host = Host::new(4);
    let socket = host.socket();
    let with = |more: &str| format!("perf client 127.0.0.1 --daemon {} {more}", socket.display());
    for (more, words) in [
        (
            "--dev lo",
            &["--dev lo is for a port", "leave --dev away", "--device"][..],
        ),
        ("--ring 128", &["--ring 128", "leave --ring away"]),
        ("--queue 1", &["--queue 1", "leave --queue away"]),
        ("--backend udp", &["--backend udp", "leave --backend away"]),
        ("--cores 0,1", &["--cores 0,1", "--core with one core"]),
    ] {
        xroce(&with(more)).fails(1, words);
        // The server's are the same.
        let socket = socket.display();
        xroce(&format!("perf server --port 0 --daemon {socket} {more}")).fails(1, words);
    }
    xroce("perf client h --device x").fails(2, &["--daemon"]);
    let nowhere = host.dir.path().join("nowhere");
    let nowhere = format!("perf server --port 0 --daemon {}", nowhere.display());
    let done = xroce(&nowhere);
    done.fails(1, &["no xroce daemon at", "is xroced running"]);
    assert_eq!(
        done.err.matches("os error").count(),
        1,
        "said once: {done:#?}"
    );
    let [first, second] = [0, 1].map(|n| host.daemon.as_ref().unwrap().devices()[n].clone());
    let server = |more: &str| {
        let socket = socket.display();
        xroce(&format!("perf server --port 0 --daemon {socket} {more}"))
    };
    server("--device eth7").fails(1, &["no device \"eth7\"", &first, &second]);
    let has = host.addresses[0].to_string();
    server("--local 127.0.0.9").fails(1, &["--local 127.0.0.9", "give one of", &has]);
}

#[test]
fn the_end_of_the_daemon_is_told_and_the_server_goes_on() {
    let mut host = Host::new(5);
    let (server, port) = host.server("");
    let (to, device) = (host.addresses[0], host.device(1));
    let long =
        format!("perf client {to} {device} --port {port} --op write --seconds 50 --progress-json");
    let client = Running::start(command(&format!(
        "{long} --test lat,bw --latency-seconds 0.05"
    )));
    // The first of two measurements is over, the second runs.
    client.err_line();
    host.stop("maintenance");
    let done = client.finish();
    assert_eq!(done.code, Some(1), "{done:#?}");
    assert!(done.err.contains("maintenance"), "{done:#?}");
    // The server has lost the same daemon.
    assert!(server.err_line().contains("maintenance"));

    // Without a daemon the client, which has an engine of its own, hears why it is not served.
    let own = address(5, 2);
    let client = format!("perf client {to} --local {own} --port {port} --messages 20");
    xroce(&client).fails(1, &["no xroce daemon at"]);
    host.start();
    let done = xroce(&client);
    assert_eq!(done.code, Some(0), "{done:#?}");
}
