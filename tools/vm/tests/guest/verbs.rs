//! Queue pairs of one rxe, which talk to each other.

use std::time::Duration;

use xroce_vm::Agent;

use crate::common::{SOON, ask, connect, fill, fnv, gid, refused, statuses};

/// Two queue pairs of one rxe, both ways of the kernel's loopback.
pub(crate) fn loopback(agent: &mut Agent, kind: &str) {
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

pub(crate) fn datagrams(agent: &mut Agent) {
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

pub(crate) fn windows(agent: &mut Agent) {
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
