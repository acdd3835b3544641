//! Real machines: `XROCE_VM=6.12 cargo test -p xroce-vm --test guest` (or `6.1`). Without the
//! variable they are skipped, for they download packages and need QEMU.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that fails may panic, and says why it is skipped"
)]

use std::path::Path;
use std::time::Duration;

use xroce_vm::{
    Accel, Agent, Answer, Cache, Extra, Image, Kernel, Net, Refused, Vlan, Vm, VmConfig,
};

const SOON: Duration = Duration::from_secs(30);

fn kernel() -> Option<Kernel> {
    match std::env::var("XROCE_VM").ok()?.as_str() {
        "6.1" => Some(Kernel::V6_1),
        "6.12" => Some(Kernel::V6_12),
        other => panic!("XROCE_VM={other}: 6.1 or 6.12"),
    }
}

fn image() -> Option<Image> {
    let kernel = kernel()?;
    let cache = Cache::from_env().unwrap();
    Some(xroce_vm::prepare(&cache, kernel, &[], &mut |line| eprintln!("{line}")).unwrap())
}

/// Machine `n` of two that are connected to each other.
fn config(image: &Image, dir: &Path, n: u8) -> VmConfig {
    let net = Net::Dgram {
        local: dir.join(format!("net{n}")),
        remote: dir.join(format!("net{}", 3 - n)),
    };
    let mut config = VmConfig::new(image.clone(), net, dir.join(format!("vm{n}")));
    config.name = format!("rxe{n}");
    config.mac[5] = n;
    config.v4 = Some((format!("10.0.0.{n}").parse().unwrap(), 24));
    config.v6 = Some((format!("fd00::{n}").parse().unwrap(), 64));
    config.vlan = Some(Vlan {
        id: 5,
        v4: (format!("10.5.0.{n}").parse().unwrap(), 24),
        v6: (format!("fd05::{n}").parse().unwrap(), 64),
    });
    config
}

fn ask(agent: &mut Agent, line: &str) -> Answer {
    let (verb, args) = line.split_once(' ').unwrap_or((line, ""));
    agent.call(verb, args, None, SOON).unwrap()
}

fn refused(agent: &mut Agent, line: &str) -> String {
    let (verb, args) = line.split_once(' ').unwrap_or((line, ""));
    match agent.call(verb, args, None, SOON) {
        Ok(answer) => panic!("{line}: {answer:?}"),
        Err(error) => error.downcast::<Refused>().unwrap().text,
    }
}

/// The GID table's entry for an address.
fn gid(agent: &mut Agent, addr: &str) -> (u32, String) {
    let gids = agent.gids().unwrap();
    let gid = gids.iter().find(|gid| gid.addr.to_string() == addr);
    let gid = gid.unwrap_or_else(|| panic!("{addr} is not among {gids:?}"));
    assert!(gid.v2);
    (gid.index, gid.hex())
}

/// Brings an RC or UC queue pair up.
fn connect(agent: &mut Agent, qp: u32, kind: &str, peer: (u32, &str), index: u32) {
    let (qpn, dgid) = peer;
    ask(agent, &format!("modify qp={qp} state=init access=0xf"));
    let reliable = if kind == "rc" {
        " rd_in=4 rnr_timer=12"
    } else {
        ""
    };
    ask(
        agent,
        &format!(
            "modify qp={qp} state=rtr mtu=5 dqpn=0x{qpn:x} rq_psn=0x100{reliable} dgid={dgid} \
             gid_index={index}"
        ),
    );
    let reliable = if kind == "rc" {
        " timeout=14 retry=6 rnr=7 rd_out=4"
    } else {
        ""
    };
    ask(
        agent,
        &format!("modify qp={qp} state=rts sq_psn=0x100{reliable}"),
    );
}

/// Statuses of the next `n` completions.
fn statuses(agent: &mut Agent, cq: u32, n: usize) -> Vec<u32> {
    let completions = agent.poll(cq, n, SOON).unwrap();
    assert_eq!(completions.len(), n, "{completions:?}");
    completions.iter().map(|wc| wc.status).collect()
}

/// The guest's bytes, by the same formula.
fn fill(len: u64, seed: u64) -> Vec<u8> {
    (0..len)
        .map(|p| {
            (p + 1)
                .wrapping_mul(seed | 1)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        })
        .map(|x| x.to_be_bytes()[0])
        .collect()
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

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
    nonsense(agent);
    loopback(agent, "rc");
    loopback(agent, "uc");
    datagrams(agent);
    windows(agent);
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

/// Requests that make no sense are answered with err, and change nothing.
fn nonsense(agent: &mut Agent) {
    ask(agent, "cq id=1 depth=16");
    ask(agent, "mr id=1 len=4096 access=0xf");
    ask(agent, "qp id=1 type=rc scq=1 rcq=1");
    for line in [
        "fly",
        "cq",
        "cq id=1",
        "cq id=1024",
        "cq id=-1",
        "cq id=2 depth=0",
        "cq id=2 depth=99999999",
        "mr id=2",
        "mr id=2 len=0xffffffffffffffff",
        "mr id=2 len=1000000000",
        "mr id=2 len=4096 access=2",
        "qp id=2 type=xx scq=1 rcq=1",
        "qp id=2 scq=9 rcq=1",
        "qp id=2 scq=1 rcq=1 srq=3",
        "qp id=2 scq=1 rcq=1 swr=4000000000",
        "modify qp=1 state=rtr",
        "modify qp=1 state=rtr dgid=00",
        "modify qp=1 state=flying",
        "modify qp=1 state=rts timeout=32",
        "query qp=2",
        "send qp=1 op=send sge=1:0:64",
        "send qp=1 op=fly",
        "send qp=1 op=send sge=1:0",
        "send qp=1 op=send sge=1",
        "send qp=1 op=send sge=",
        "send qp=1 op=send sge=1:0:4097",
        "send qp=1 op=send sge=1:0xfffffffffffffff0:32",
        "send qp=1 op=send sge=2:0:1",
        "send qp=1 op=send n=0",
        "send qp=1 op=send n=5000",
        "send qp=1 op=send sge=1:0:64 n=65 stride=64",
        "send qp=9",
        "recv qp=1 sge=1:0:64",
        "recv srq=1",
        "poll cq=1 min=513",
        "poll cq=7",
        "fill mr=1 len=5000",
        "fill mr=1 off=0xffffffffffffffff len=2",
        "hash mr=1 off=4097",
        "peek mr=1 off=1 len=4096",
        "poke mr=1 hex=abc",
        "poke mr=1 hex=zz",
        "poke mr=1 off=4095 hex=0000",
        "ah id=1 dgid=zz",
        "mw id=1 type=3",
        "bind qp=1 mw=1",
        "mcast qp=1 gid=00",
        "destroy kind=pd id=1",
        "destroy kind=qp id=2",
        "destroy kind=cq id=1",
        "dereg id=5",
        "kill name=nobody",
        "kill",
        "wait name=",
        "get",
        "exec",
        "put path=/tmp",
        "gids novalue",
    ] {
        // `exec` without a script runs nothing, which is no error.
        if line == "exec" {
            ask(agent, line);
        } else {
            refused(agent, line);
        }
    }
    let many = "k=v ".repeat(300);
    assert!(refused(agent, &format!("gids {many}")).contains("more than"));
    assert!(refused(agent, "mr id=2 len=x").contains("len=x is no number"));
    assert!(refused(agent, "modify qp=1 state=rtr").contains("errno=22"));
    assert_eq!(ask(agent, "query qp=1").text("state").unwrap(), "reset");
    agent.reset().unwrap();
    assert!(refused(agent, "query qp=1").contains("there is no qp 1"));
}

/// Two queue pairs of one rxe, both ways of the kernel's loopback.
fn loopback(agent: &mut Agent, kind: &str) {
    let (index, dgid) = gid(agent, "::ffff:10.0.0.1");
    ask(agent, "cq id=1 depth=512");
    ask(agent, "cq id=2 depth=512");
    let qpn = [1, 2].map(|id| {
        let line = format!("qp id={id} type={kind} scq=1 rcq=2 swr=128 rwr=128 inline=64");
        ask(agent, &line).num32("qpn").unwrap()
    });
    connect(agent, 1, kind, (qpn[1], &dgid), index);
    connect(agent, 2, kind, (qpn[0], &dgid), index);
    assert_eq!(ask(agent, "query qp=1").num32("dqpn").unwrap(), qpn[1]);
    ask(agent, "mr id=1 len=65536 access=0xf");
    let remote = ask(agent, "mr id=2 len=65536 access=0xf");
    let (addr, rkey) = (remote.num("addr").unwrap(), remote.num("rkey").unwrap());
    ask(agent, "fill mr=1 off=3 len=10000 seed=42");
    let sent = fnv(&fill(10000, 42));
    assert_eq!(
        ask(agent, "hash mr=1 off=3 len=10000").num("fnv").unwrap(),
        sent
    );

    ask(agent, "recv qp=2 wr=7 sge=2:0:4000,2:5000:6000");
    assert_eq!(
        ask(
            agent,
            "send qp=1 wr=9 op=send_imm imm=0x12345678 sge=1:3:10000"
        )
        .num("posted")
        .unwrap(),
        1
    );
    assert_eq!(statuses(agent, 1, 1), [0]);
    let received = agent.poll(2, 1, SOON).unwrap();
    assert_eq!(
        (received[0].wr_id, received[0].byte_len, received[0].imm),
        (7, 10000, 0x1234_5678)
    );
    assert_eq!((received[0].status, received[0].qp_num), (0, qpn[1]));
    let peek = ask(agent, "peek mr=2 off=5000 len=16");
    let hex: String = fill(10000, 42)[4000..4016]
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert_eq!(peek.text("hex").unwrap(), hex);

    // A burst: 100 writes of 64 bytes, the places one after the other.
    let line = format!(
        "send qp=1 wr=100 op=write rva={addr} rkey={rkey} sge=1:3:64 n=100 stride=64 rstride=64"
    );
    assert_eq!(ask(agent, &line).num("posted").unwrap(), 100);
    assert_eq!(statuses(agent, 1, 100), [0; 100]);
    let sent = fnv(&fill(10000, 42)[..6400]);
    assert_eq!(ask(agent, "hash mr=2 len=6400").num("fnv").unwrap(), sent);
    // More than the queue holds: what was posted is told.
    let many = format!("send qp=1 op=write rva={addr} rkey={rkey} sge=1:0:8 n=1000");
    let text = refused(agent, &many);
    assert!(
        text.contains("errno=12") && text.contains("posted="),
        "{text}"
    );
    let posted: usize = text.rsplit('=').next().unwrap().parse().unwrap();
    assert!((128..1000).contains(&posted), "{text}");
    statuses(agent, 1, posted);

    if kind == "rc" {
        reads_and_atomics(agent, addr, rkey);
        errors(agent, addr, rkey);
    }
    agent.reset().unwrap();
}

fn reads_and_atomics(agent: &mut Agent, addr: u64, rkey: u64) {
    ask(agent, "poke mr=2 off=8 hex=0500000000000000");
    ask(
        agent,
        &format!(
            "send qp=1 op=fadd cmp=3 rva={} rkey={rkey} sge=1:0:8",
            addr + 8
        ),
    );
    ask(
        agent,
        &format!(
            "send qp=1 op=cas cmp=8 swap=0x77 rva={} rkey={rkey} sge=1:8:8",
            addr + 8
        ),
    );
    ask(
        agent,
        &format!("send qp=1 op=read rva={} rkey={rkey} sge=1:16:8", addr + 8),
    );
    assert_eq!(statuses(agent, 1, 3), [0; 3]);
    let hex = ask(agent, "peek mr=1 len=24");
    let expected = "050000000000000008000000000000007700000000000000";
    assert_eq!(hex.text("hex").unwrap(), expected);
    // Without the signaled flag there is no completion.
    ask(
        agent,
        &format!("send qp=1 flags=0 op=write rva={addr} rkey={rkey} sge=-"),
    );
    let nothing = agent.poll(1, 1, Duration::from_millis(200)).unwrap();
    assert_eq!(nothing, []);
    // Inline data is taken when it is posted.
    ask(
        agent,
        &format!("send qp=1 flags=0xa op=write rva={addr} rkey={rkey} sge=1:0:24"),
    );
    assert_eq!(statuses(agent, 1, 1), [0]);
}

/// A bad key is refused by the responder, and both queue pairs are broken.
fn errors(agent: &mut Agent, addr: u64, rkey: u64) {
    let beyond = addr + 65530;
    ask(
        agent,
        &format!("send qp=1 wr=5 op=write rva={beyond} rkey={rkey} sge=1:0:64"),
    );
    assert_eq!(statuses(agent, 1, 1), [10]);
    assert_eq!(ask(agent, "query qp=1").text("state").unwrap(), "err");
    ask(agent, "send qp=1 op=send sge=1:65500:100 raw=1 lkey=0x1");
    assert_eq!(statuses(agent, 1, 1), [5]);
    let events = ask(agent, "events timeout_ms=100");
    eprintln!("events: {:?}", events.all("event").collect::<Vec<_>>());
    ask(agent, "modify qp=1 state=reset");
    assert_eq!(ask(agent, "query qp=1").text("state").unwrap(), "reset");
}

fn datagrams(agent: &mut Agent) {
    let (index, dgid) = gid(agent, "::ffff:10.0.0.1");
    ask(agent, "cq id=1 depth=64");
    ask(agent, "srq id=1 wr=32 sge=1");
    ask(agent, "mr id=1 len=65536 access=1");
    for id in [1, 2] {
        ask(agent, &format!("qp id={id} type=ud scq=1 rcq=1 srq=1"));
        ask(agent, &format!("modify qp={id} state=init qkey=0x11111111"));
        ask(agent, &format!("modify qp={id} state=rtr"));
        ask(agent, &format!("modify qp={id} state=rts sq_psn=0"));
    }
    let qpn = ask(agent, "query qp=2").num32("qpn").unwrap();
    ask(agent, "recv srq=1 wr=20 sge=1:4096:4136 n=3 stride=5000");
    ask(
        agent,
        &format!("ah id=1 gid_index={index} dgid={dgid} tclass=8 hop=3"),
    );
    ask(
        agent,
        &format!("send qp=1 wr=1 op=send ah=1 rqpn={qpn} rqkey=0x11111111 sge=1:0:100"),
    );
    let done = agent.poll(1, 2, SOON).unwrap();
    let received = done.iter().find(|wc| wc.wr_id == 20).unwrap();
    assert_eq!((received.status, received.byte_len), (0, 140), "{done:?}");
    assert!(refused(agent, "send qp=1 op=send sge=1:0:4").contains("ah= is missing"));
    multicast(agent, index);
    // An operation that UD has not is posted, and then flushed; the queue pair is in error.
    ask(
        agent,
        &format!("send qp=1 op=write ah=1 rqpn={qpn} sge=1:0:4"),
    );
    let status = statuses(agent, 1, 1)[0];
    assert!(
        [2, 5].contains(&status),
        "6.1 says 2, 6.12 says 5: {status}"
    );
    agent.reset().unwrap();
}

fn multicast(agent: &mut Agent, index: u32) {
    let group = "00000000000000000000ffffef010203";
    ask(agent, &format!("mcast qp=2 gid={group} attach=1"));
    ask(agent, &format!("ah id=2 gid_index={index} dgid={group}"));
    ask(
        agent,
        "send qp=1 wr=2 op=send ah=2 rqpn=0xffffff rqkey=0x11111111 sge=1:0:64",
    );
    assert_eq!(statuses(agent, 1, 1), [0]);
    ask(agent, &format!("mcast qp=2 gid={group} attach=0"));
}

fn windows(agent: &mut Agent) {
    let (index, dgid) = gid(agent, "fd00::1");
    ask(agent, "cq id=1 depth=64");
    ask(agent, "cq id=2 depth=64");
    let qpn = [1, 2].map(|id| {
        ask(agent, &format!("qp id={id} scq=1 rcq=2"))
            .num32("qpn")
            .unwrap()
    });
    connect(agent, 1, "rc", (qpn[1], &dgid), index);
    connect(agent, 2, "rc", (qpn[0], &dgid), index);
    ask(agent, "mr id=1 len=4096 access=1");
    // MW_BIND beside the local and remote rights.
    let addr = ask(agent, "mr id=2 len=4096 access=0x1f")
        .num("addr")
        .unwrap();
    ask(agent, "mw id=2 type=2");
    let rkey = ask(agent, "bind qp=2 mw=2 mr=2 off=64 len=128 access=2")
        .num("rkey")
        .unwrap();
    assert_eq!(statuses(agent, 1, 1), [0]);
    ask(
        agent,
        &format!(
            "send qp=1 op=write rva={} rkey={rkey} sge=1:0:128",
            addr + 64
        ),
    );
    assert_eq!(statuses(agent, 1, 1), [0]);
    ask(agent, "recv qp=2 wr=3 sge=2:0:64");
    ask(
        agent,
        &format!("send qp=1 op=send_inv inv={rkey} sge=1:0:8"),
    );
    assert_eq!(statuses(agent, 1, 1), [0]);
    let received = agent.poll(2, 1, SOON).unwrap();
    assert_eq!(
        (received[0].status, u64::from(received[0].imm)),
        (0, rkey),
        "{received:?}"
    );
    ask(
        agent,
        &format!("send qp=1 op=write rva={} rkey={rkey} sge=1:0:8", addr + 64),
    );
    assert_eq!(statuses(agent, 1, 1), [10]);
    agent.reset().unwrap();
    // Any order: what others use goes first, and destroy says what is in use.
    ask(agent, "cq id=1 depth=4");
    ask(agent, "qp id=1 scq=1 rcq=1");
    assert!(refused(agent, "destroy kind=cq id=1").contains("errno="));
    ask(agent, "destroy kind=qp id=1");
    ask(agent, "destroy kind=cq id=1");
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
fn two_machines() {
    let Some(image) = image() else {
        eprintln!("skipped: XROCE_VM is not set");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut one = Vm::boot(&config(&image, dir.path(), 1)).unwrap();
    let mut two = Vm::boot(&config(&image, dir.path(), 2)).unwrap();
    for addr in ["10.0.0.2", "fd00::2", "10.5.0.2", "fd05::2"] {
        // 4172 bytes and the IPv4 and ICMP headers make 4200.
        let ping = format!(
            "ping -c 3 -s {} {addr}",
            if addr.contains(':') { 4152 } else { 4172 }
        );
        one.agent().exec(&ping, SOON).unwrap().ok().unwrap();
    }
    for (mine, theirs) in [
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2"),
        ("fd00::1", "fd00::2"),
        ("::ffff:10.5.0.1", "::ffff:10.5.0.2"),
        ("fd05::1", "fd05::2"),
    ] {
        let ends = [(one.agent(), mine), (two.agent(), theirs)].map(|(agent, addr)| {
            ask(agent, "cq id=1 depth=64");
            let qpn = ask(agent, "qp id=1 scq=1 rcq=1").num32("qpn").unwrap();
            ask(agent, "mr id=1 len=65536 access=0xf");
            (gid(agent, addr), qpn)
        });
        let [((index1, gid1), qpn1), ((index2, gid2), qpn2)] = ends;
        connect(one.agent(), 1, "rc", (qpn2, &gid2), index1);
        connect(two.agent(), 1, "rc", (qpn1, &gid1), index2);
        ask(one.agent(), "fill mr=1 seed=7");
        ask(two.agent(), "recv qp=1 wr=1 sge=1:0:65536");
        ask(one.agent(), "send qp=1 wr=2 op=send sge=1:0:65536");
        assert_eq!(statuses(one.agent(), 1, 1), [0]);
        assert_eq!(statuses(two.agent(), 1, 1), [0]);
        let sent = fnv(&fill(65536, 7));
        assert_eq!(ask(two.agent(), "hash mr=1").num("fnv").unwrap(), sent);
        one.agent().reset().unwrap();
        two.agent().reset().unwrap();
    }
    two.agent()
        .spawn("server", "rping -s -a 10.0.0.2 -C 5")
        .unwrap();
    let client = "sleep 1; rping -c -a 10.0.0.2 -C 5 -v";
    one.agent().exec(client, SOON).unwrap().ok().unwrap();
    two.agent().wait("server", SOON).unwrap().ok().unwrap();
    two.agent()
        .spawn("server", "ib_send_bw -d rxe0 -x 1 -n 50 -s 4096")
        .unwrap();
    let client = "sleep 1; ib_send_bw -d rxe0 -x 1 -n 50 -s 4096 10.0.0.2";
    one.agent().exec(client, SOON).unwrap().ok().unwrap();
    two.agent().wait("server", SOON).unwrap().ok().unwrap();
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

/// A network namespace, gone at the end.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        run(&format!("ip netns add {name}"));
        Self(name.to_owned())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let args = ["netns", "del", &self.0];
        let _ = std::process::Command::new("ip").args(args).status();
    }
}

fn run(line: &str) -> String {
    let output = std::process::Command::new("sh")
        .args(["-c", line])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {text}{error}");
    text
}

/// A tap in a namespace, and a program of the host in the image.
#[test]
fn a_tap_and_an_extra_program() {
    let (Some(_), true) = (image(), rustix::process::getuid().is_root()) else {
        eprintln!("skipped: XROCE_VM is not set, or not root");
        return;
    };
    let own = std::env::current_exe().unwrap();
    let extra = Extra {
        guest: "/opt/test/guest".to_owned(),
        host: own,
        mode: 0o755,
    };
    let missing = Extra {
        host: "/no/such".into(),
        ..extra.clone()
    };
    let cache = Cache::from_env().unwrap();
    let prepare = |extra| xroce_vm::prepare(&cache, kernel().unwrap(), &[extra], &mut |_| ());
    assert!(
        prepare(missing)
            .unwrap_err()
            .to_string()
            .contains("/no/such")
    );
    let image = prepare(extra).unwrap();

    let space = Namespace::new(&format!("xroce-vm-{}", std::process::id()));
    let name = &space.0;
    run(&format!("ip -n {name} tuntap add tap0 mode tap"));
    run(&format!("ip -n {name} link set tap0 mtu 4200 up"));
    run(&format!("ip -n {name} addr add 10.0.0.9/24 dev tap0"));
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&image, dir.path(), 1);
    config.netns = Some(name.clone());
    config.net = Net::Tap {
        ifname: "tap0".to_owned(),
    };
    let mut vm = Vm::boot(&config).unwrap();
    run(&format!(
        "ip netns exec {name} ping -c 3 -M do -s 4172 10.0.0.1"
    ));
    vm.agent()
        .exec("ping -c 3 -s 4172 10.0.0.9", SOON)
        .unwrap()
        .ok()
        .unwrap();
    let tests = vm
        .agent()
        .exec("/opt/test/guest --list", SOON)
        .unwrap()
        .ok()
        .unwrap();
    assert!(
        tests.contains("a_tap_and_an_extra_program: test"),
        "{tests}"
    );
    let is_there = || run("ps -eo args").contains(dir.path().to_str().unwrap());
    assert!(is_there());
    vm.kill();
    assert!(!is_there());
}

/// Random words in the place of verbs, keys and values: the agent answers each request, and is
/// there afterwards.
#[test]
fn random_requests() {
    let Some(image) = image() else {
        eprintln!("skipped: XROCE_VM is not set");
        return;
    };
    let verbs = "reset mr dereg cq qp srq ah mw destroy mcast events fill hash peek poke modify \
        query send recv bind poll kill wait get gids counters x";
    let keys = "id qp cq mr ah srq mw scq rcq wr n sge op rva rkey lkey raw off len access depth \
        type state dgid gid gid_index mtu dqpn rq_psn sq_psn timeout retry rnr rnr_timer rd_in \
        rd_out kind inv imm cmp swap flags stride rstride hex seed max min qkey swr rwr name sig";
    let values = "0 1 2 3 4 0x10 64 4096 65536 0x7fffffff 0xffffffff 0xffffffffffffffff -1 rc ud \
        uc init rtr rts err reset send write read cas fadd send_inv write_imm local_inv qp cq mr \
        1:0:64 1:0:64,2:0:8 2:4000:4096 - : 1: 1::: 00000000000000000000ffff0a000001 00ff x";
    let [verbs, keys, values] =
        [verbs, keys, values].map(|s| s.split_whitespace().collect::<Vec<_>>());
    let seed = std::env::var("XROCE_SEED").map_or(1, |seed| seed.parse::<u64>().unwrap());
    eprintln!("XROCE_SEED={seed}");
    let mut state = seed;
    let mut pick = |words: &[&'static str]| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        words[usize::try_from(state >> 33).unwrap() % words.len()]
    };
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&config(&image, dir.path(), 1)).unwrap();
    let mut done = 0;
    for _ in 0..5000 {
        let verb = pick(&verbs);
        let mut args = String::new();
        for _ in 0..pick(&["0", "2", "4", "6", "9"]).parse::<u32>().unwrap() {
            // Half of the ids are 1, so that objects meet.
            let value = if pick(&["a", "b"]) == "a" {
                "1"
            } else {
                pick(&values)
            };
            args.push_str(&format!("{}={value} ", pick(&keys)));
        }
        match vm.agent().call(verb, args.trim_end(), None, SOON) {
            Ok(_) => done += 1,
            Err(error) if error.is::<Refused>() => {}
            Err(error) => panic!("{error:#}\n{}", vm.console()),
        }
    }
    eprintln!("{done} of 5000 were done");
    vm.agent().reset().unwrap();
    assert!(!vm.console().contains("BUG"), "{}", vm.console());
}
