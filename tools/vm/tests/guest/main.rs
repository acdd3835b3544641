//! Real machines: `XROCE_VM=6.12 cargo test -p xroce-vm --test guest` (or `6.1`). Without the
//! variable they are skipped, for they download packages and need QEMU.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that fails may panic, and says why it is skipped"
)]

mod common;
mod nonsense;
mod outside;
mod verbs;

use std::time::Duration;

use xroce_vm::{Accel, Agent, Vm};

use common::{SOON, ask, config, gid, image, refused};

#[test]
fn one_machine() {
    let Some(image) = image() else {
        eprintln!("skipped: XROCE_VM is not set");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&config(&image, dir.path(), 1)).unwrap();
    eprintln!("{} up after {:.1?}", vm.release(), vm.boot_time());
    assert_eq!(vm.release(), image.release);
    assert_ne!(vm.accel(), Accel::Auto);
    let agent = vm.agent();
    for addr in ["::ffff:10.0.0.1", "fd00::1", "::ffff:10.5.0.1", "fd05::1"] {
        gid(agent, addr);
    }
    assert!(agent.counters().unwrap().contains_key("sent_pkts"));
    programs(agent);
    files(agent);
    nonsense::nonsense(agent);
    verbs::loopback(agent, "rc");
    verbs::loopback(agent, "uc");
    verbs::datagrams(agent);
    verbs::windows(agent);
    modules(agent);
    let leftovers = vm.console();
    assert!(
        !leftovers.contains("WARNING") && !leftovers.contains("BUG"),
        "{leftovers}"
    );
    pauses(&mut vm);
    vm.kill();
    assert!(!dir.path().join("net1").exists() && !dir.path().join("vm1/agent.sock").exists());
}

fn programs(agent: &mut Agent) {
    let output = agent.exec("echo out; echo err >&2; exit 3", SOON).unwrap();
    assert_eq!((output.rc, output.text.as_str()), (3, "out\nerr\n"));
    let second = Duration::from_secs(1);
    let output = agent.exec("echo a; sleep 100 & sleep 100", second).unwrap();
    assert_eq!((output.rc, output.text.as_str()), (124, "a\n"));
    // What it leaves running keeps nobody waiting.
    let output = agent.exec("sleep 100 & echo done", SOON).unwrap();
    assert_eq!((output.rc, output.text.as_str()), (0, "done\n"));
    let output = agent
        .exec("head -c 1000000 /dev/zero | tr '\\0' x; echo end", SOON)
        .unwrap();
    assert_eq!(output.text.len(), 256 << 10);
    assert!(output.text.ends_with("xend\n"));
    agent.spawn("a", "echo began; exec sleep 100").unwrap();
    assert!(agent.spawn("a", "true").is_err());
    agent.exec("sleep 0.5", SOON).unwrap();
    agent.signal("a", 15).unwrap();
    let output = agent.wait("a", SOON).unwrap();
    assert_eq!((output.rc, output.text.as_str()), (143, "began\n"));
    assert!(agent.wait("a", SOON).is_err());
    for program in [
        "rping",
        "ib_send_bw",
        "ibv_rc_pingpong",
        "ucmatose",
        "udaddy",
    ] {
        // Their usage text needs all of their libraries.
        let output = agent.exec(&format!("{program} -h"), SOON).unwrap();
        assert!(
            output.rc != 127 && output.text.contains("-"),
            "{program}: {output:?}"
        );
    }
    let info = agent.exec("ibv_devinfo -v; tc qdisc; ip -V", SOON).unwrap();
    assert!(info.ok().unwrap().contains("PORT_ACTIVE"));
}

fn files(agent: &mut Agent) {
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| n.to_le_bytes()[1]).collect();
    #[expect(clippy::disallowed_methods, reason = "tells how fast a file goes in")]
    let start = std::time::Instant::now();
    agent.put("/tmp/new/file", 0o755, &bytes).unwrap();
    eprintln!("put: {:.1} MB/s", 3.0 / start.elapsed().as_secs_f64());
    #[expect(clippy::disallowed_methods, reason = "tells how fast an answer comes")]
    let start = std::time::Instant::now();
    for _ in 0..200 {
        ask(agent, "events timeout_ms=0");
    }
    eprintln!("round trip: {:.2?}", start.elapsed() / 200);
    let back = agent.get("/tmp/new/file", 4_000_000).unwrap();
    assert!(back == bytes);
    assert_eq!(agent.get("/tmp/new/file", 5).unwrap(), bytes[..5]);
    let mode = agent.exec("stat -c %a /tmp/new/file", SOON).unwrap();
    assert_eq!(mode.text, "755\n");
    agent.put("/tmp/empty", 0o600, b"").unwrap();
    assert_eq!(agent.get("/tmp/empty", 10).unwrap(), b"");
    assert!(refused(agent, "get path=/no/such").contains("errno=2"));
    assert!(agent.put("relative", 0o600, b"x").is_err());
}

fn modules(agent: &mut Agent) {
    let script = "modprobe -a nvme-rdma nvmet_rdma null_blk act_gact && \
        tc qdisc add dev eth0 root netem delay 1ms && tc qdisc del dev eth0 root && \
        tc qdisc add dev eth0 ingress && tc filter add dev eth0 ingress protocol ip prio 1 u32 \
        match ip protocol 17 0xff match ip dport 4791 0xffff action ok random determ drop 10 && \
        tc qdisc del dev eth0 ingress";
    agent.exec(script, SOON).unwrap().ok().unwrap();
}

fn pauses(vm: &mut Vm) {
    vm.pause().unwrap();
    let short = Duration::from_millis(300);
    let frozen = vm.agent().call("gids", "", None, short);
    assert!(
        frozen
            .unwrap_err()
            .to_string()
            .contains("no answer to request")
    );
    vm.resume().unwrap();
    assert!(vm.agent().reset().is_err(), "an answer is on the way");
}

#[test]
fn what_fails_inside_is_told() {
    let Some(image) = image() else {
        eprintln!("skipped: XROCE_VM is not set");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&image, dir.path(), 1);
    config.v4 = Some(([10, 0, 0, 1].into(), 99));
    let error = Vm::boot(&config).unwrap_err().to_string();
    assert!(error.contains("QEMU ended"), "{error}");
    assert!(error.contains("failed: ip addr add 10.0.0.1/99"), "{error}");
    config.v4 = None;
    config.cpu = Some("no-such-model".to_owned());
    let error = Vm::boot(&config).unwrap_err().to_string();
    assert!(error.contains("no-such-model"), "{error}");
}
