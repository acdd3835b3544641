//! `xroce stat` and `xroce top --once` of a daemon with processes.

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use common::{command, xroce};
use xroce_daemon::{Below, Daemon, DaemonConfig, DeviceConfig};
use xroce_verbs::{Access, ConnectAttr, Context, RecvBatch, SendBatch};

const LONG: Duration = Duration::from_secs(60);

/// An address of loopback that no other test has: RoCE has one port.
fn address() -> IpAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 180, high, low.clamp(1, 254)))
}

#[test]
fn stat_and_top_show_devices_sessions_and_queue_pairs() {
    let dir = tempfile::tempdir().unwrap();
    let device = DeviceConfig::new(Below::Udp {
        addr: address(),
        ifname: None,
    });
    let name = device.name.clone();
    let socket = dir.path().join("xroced.sock");
    let _daemon = Daemon::start(DaemonConfig::new(&socket, vec![device])).unwrap();
    let context = Context::attach(&socket, None).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(256).unwrap();
    let mr = pd.alloc_mr(1 << 16, Access::LOCAL_WRITE).unwrap();
    let rights = Access::LOCAL_WRITE;
    let mut connected = Vec::new();
    // More than a page of queue pairs has.
    for _ in 0..10 {
        let [a, b] = [(); 2].map(|()| {
            let qp = pd.qp::<xroce_verbs::Rc>(&cq, &cq).create().unwrap();
            qp.init(rights).unwrap()
        });
        let ends = [a.endpoint().unwrap(), b.endpoint().unwrap()];
        let attr = ConnectAttr::default();
        connected.push((
            a.connect(&ends[1], &attr).unwrap(),
            b.connect(&ends[0], &attr).unwrap(),
        ));
    }
    let (a, b) = &connected[0];
    let mut receive = RecvBatch::new();
    receive.recv(1).sge(mr.slice(0..4096).unwrap());
    b.post_recv(&receive).unwrap();
    let mut batch = SendBatch::new();
    batch.send(2).sge(mr.slice(8192..9192).unwrap());
    a.post(&batch).unwrap();
    for _ in 0..2 {
        cq.next(LONG).unwrap().unwrap().ok().unwrap();
    }

    let path = socket.display();
    let json = xroce(&format!("stat --socket {path} --interval 0.1 --json")).json();
    assert_eq!(json["devices"][0]["device"], name.as_str());
    assert_eq!(json["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(json["sessions"][0]["posted"], 2);
    assert_eq!(json["sessions"][0]["objects"][0], 20);
    let qps = json["qps"].as_array().unwrap();
    assert_eq!(qps.len(), 20);
    let sent = qps
        .iter()
        .map(|qp| qp["counters"]["sends_completed"].as_u64().unwrap());
    assert_eq!(sent.sum::<u64>(), 1);

    let all = format!("stat --socket {path} --interval 0 --counters");
    let shown = xroce(&all);
    assert_eq!(shown.code, Some(0), "{shown:#?}");
    assert_eq!(shown.out.matches("RC RTS").count(), 20, "{}", shown.out);
    for words in [name.as_str(), "sends_completed", "1 sessions"] {
        assert!(shown.out.contains(words), "{words}: {}", shown.out);
    }
    for (list, words) in [("", "posted"), ("--qps", "RC RTS")] {
        let frame = xroce(&format!("top --socket {path} --once --interval 0.1 {list}"));
        assert_eq!(frame.code, Some(0), "{frame:#?}");
        assert!(
            frame.out.contains(&name) && frame.out.contains(words),
            "{}",
            frame.out
        );
    }

    let wrong = xroce(&format!("stat --socket {path} --session 77"));
    wrong.fails(1, &["no session 77"]);
    let output = command("top --socket").arg(&socket).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("--once"), "{error}");
}

#[test]
fn without_a_daemon_it_says_where_it_looked() {
    for what in ["stat", "top --once"] {
        let done = xroce(&format!("{what} --socket /nowhere/xroced.sock"));
        done.fails(1, &["/nowhere/xroced.sock", "xroced running"]);
    }
    let done = xroce("stat --interval many");
    done.fails(2, &["many", "number of seconds"]);
}
