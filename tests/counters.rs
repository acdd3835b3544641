//! Every counter of queue pairs and of the engine is counted: some story makes each of them move.
//! `docs/counters.md` says what the tables in the code say; `XROCE_WRITE_DOCS=1` writes it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic, and its sizes are small"
)]

#[path = "common/mod.rs"]
mod common;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use common::{ALL_ACCESS, Setup, World, gid};
use xroce_api::IcmpReason as Reason;
use xroce_api::{EngineStats, GidEntry, IcmpError, PORT_TABLE, UdDest};
use xroce_net::addressing::{Addressing, PathEvent};
use xroce_net::datapath::Datapath;
use xroce_net::sim::{Impairment, SimPort, Verdict};
use xroce_proto::cc::{CongestionControl, Rate};
use xroce_proto::counters::{CounterInfo, Counters};
use xroce_proto::qp::{QpAttr, QpState, QpType};
use xroce_proto::recovery::{Reliability, SelectiveParams};
use xroce_proto::wr::{Data, SendFlags, SendOp, SendWr};
use xroce_wire::ext::Meth;
use xroce_wire::frame::Frame;
use xroce_wire::newtypes::{LKey, MacAddr, PathMtu, Psn, QKey, Qpn, RKey, VlanTci};
use xroce_wire::opcode::{Opcode, Operation};
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;
use xroce_wire::reth::Reth;
use xroce_wire::template::{Emit, HeaderTemplate, Lower};

const MTU: PathMtu = PathMtu::Mtu1024;
const MS: u64 = 1_000_000;

fn fast(attr: &mut QpAttr) {
    if attr.state == Some(QpState::Rts) {
        attr.timeout = Some(8);
    }
}

fn pair(tune: impl Fn(&mut QpAttr)) -> (World, [Qpn; 2]) {
    let wire = Impairment {
        ce_ppm: 1_000_000,
        ..Impairment::delay(1000)
    };
    let mut world = World::new(1, wire, wire);
    let qpns = world.connect(
        MTU,
        [1, 1],
        |_| {},
        |attr| {
            fast(attr);
            tune(attr);
        },
    );
    (world, qpns)
}

/// What the stories have counted.
#[derive(Default)]
struct Sum {
    qps: Counters,
    engines: EngineStats,
}

impl Sum {
    /// Lets 100 ms pass and adds up.
    fn after(&mut self, mut world: World, qpns: [Qpn; 2]) {
        world.idle(100 * MS);
        for (host, qpn) in world.hosts.iter().zip(qpns) {
            self.qps += host.engine.qp_counters(qpn).unwrap();
            self.engines += host.engine.stats();
        }
    }
}

/// Loses the first packet on the way there, or back, that does this.
fn lose_one(world: &World, back: bool, operation: Operation) {
    let wire = if back {
        world.link.back
    } else {
        world.link.there
    };
    let lost = Cell::new(false);
    world.net.set_filter(wire, move |frame| {
        let parsed = Frame::parse_ethernet(frame).unwrap();
        let pkt = Packet::parse(parsed.transport()).unwrap();
        if pkt.info().operation == operation && !lost.replace(true) {
            Verdict::Drop
        } else {
            Verdict::Pass
        }
    });
}

fn read(world: &mut World, qpn: Qpn) {
    let [left, right] = &mut world.hosts;
    let (va, rkey) = (right.va(0), right.mr.rkey);
    left.post_send(qpn, 9, SendOp::Read { va, rkey }, &[left.sge(0, 8)]);
}

fn write(world: &mut World, qpn: Qpn, rkey: Option<RKey>) {
    let [left, right] = &mut world.hosts;
    let (va, rkey) = (right.va(0), rkey.unwrap_or(right.mr.rkey));
    left.post_send(qpn, 8, SendOp::Write { va, rkey }, &[left.sge(0, 8)]);
}

fn send(world: &mut World, [a, b]: [Qpn; 2], capacity: u32) {
    let [left, right] = &mut world.hosts;
    right.post_recv(b, 7, &[right.sge(0, capacity)]);
    left.post_send(a, 7, SendOp::Send, &[left.sge(0, 8)]);
}

/// One frame, as somebody on the first host's cable would send it.
fn inject(world: &mut World, frame: &[u8]) {
    let port: &mut SimPort = world.hosts[0].engine.port_mut();
    let room = port.tx_begin().unwrap();
    room[..frame.len()].copy_from_slice(frame);
    let meta = xroce_net::datapath::TxMeta {
        dst: gid("192.0.2.2"),
        tos: 0,
    };
    port.tx_commit(&meta, frame.len());
    port.tx_flush().unwrap();
}

fn frame_of(path: &AddressVector, opcode: Opcode, to: Qpn, payload_len: usize) -> Vec<u8> {
    let pkey = xroce_wire::newtypes::PKey::DEFAULT;
    let template = HeaderTemplate::new(Lower::Ethernet, path, to, pkey).unwrap();
    let mut frame = vec![0; 2048];
    let emit = Emit {
        opcode,
        psn: Psn::new(0),
        ack_req: false,
        solicited: false,
        payload_len,
    };
    let mut out = template.start(&mut frame, &emit).unwrap();
    if opcode.info().is_extension() {
        out.meth(&Meth::default());
        out.reth(&Reth::default());
    }
    out.payload_mut().fill(0);
    let len = out.finish();
    frame.truncate(len);
    frame
}

fn losses(sum: &mut Sum) {
    // The ordinary course of things, once with each loss.
    for (back, operation) in [
        (false, Operation::Send),
        (true, Operation::Acknowledge),
        (true, Operation::ReadResponse),
        (false, Operation::Cnp),
    ] {
        let (mut world, qpns) = pair(|_| {});
        lose_one(&world, back, operation);
        send(&mut world, qpns, 64);
        if operation == Operation::Send {
            // What follows shows the gap.
            send(&mut world, qpns, 64);
        } else {
            read(&mut world, qpns[0]);
            write(&mut world, qpns[0], None);
        }
        sum.after(world, qpns);
    }
    // What a NAK asks for is lost, too.
    let (mut world, qpns) = pair(|_| {});
    send(&mut world, qpns, 64);
    world.idle(MS);
    let lost = Cell::new((None, 0));
    world.net.set_filter(world.link.there, move |frame| {
        let parsed = Frame::parse_ethernet(frame).unwrap();
        let psn = Packet::parse(parsed.transport()).unwrap().psn();
        let (first, times) = lost.get();
        if times < 2 && first.is_none_or(|first| first == psn) {
            lost.set((Some(psn), times + 1));
            Verdict::Drop
        } else {
            Verdict::Pass
        }
    });
    send(&mut world, qpns, 64);
    send(&mut world, qpns, 64);
    sum.after(world, qpns);
    // Nothing but a lost ACK: the timer, and a duplicate.
    let (mut world, qpns) = pair(|_| {});
    lose_one(&world, true, Operation::Acknowledge);
    send(&mut world, qpns, 64);
    sum.after(world, qpns);
    // Every ACK twice.
    let (mut world, qpns) = pair(|_| {});
    world
        .net
        .set_filter(world.link.back, |_| Verdict::Duplicate);
    send(&mut world, qpns, 64);
    sum.after(world, qpns);
    // The peer is not there.
    let (mut world, qpns) = pair(|_| {});
    world.net.add_blackhole(world.link.there, 0, u64::MAX);
    send(&mut world, qpns, 64);
    sum.after(world, qpns);
    // A receive that comes late, and one that never comes.
    for never in [false, true] {
        let (mut world, qpns) = pair(|attr| {
            if attr.state == Some(QpState::Rts) && never {
                attr.rnr_retry = Some(0);
            }
        });
        let left = &mut world.hosts[0];
        left.post_send(qpns[0], 7, SendOp::Send, &[left.sge(0, 8)]);
        if !never {
            world.idle(20_000);
            let right = &mut world.hosts[1];
            right.post_recv(qpns[1], 7, &[right.sge(0, 64)]);
        }
        sum.after(world, qpns);
    }
    // The one behind cannot be sent: who was to ask for the ACK asks in its place.
    let (mut world, qpns) = pair(|_| {});
    write(&mut world, qpns[0], None);
    let left = &mut world.hosts[0];
    let bad = xroce_proto::wr::Sge {
        lkey: LKey::new(0xdead),
        ..left.sge(0, 8)
    };
    left.post_send(qpns[0], 1, SendOp::Send, &[bad]);
    sum.after(world, qpns);
}

/// Marks, and a sender that acts upon their notification.
fn marks(sum: &mut Sum) {
    let line = Rate::bits_per_second(40_000_000_000);
    let dcqcn = CongestionControl::by_name("dcqcn", line, &[]).unwrap();
    let (mut world, qpns) = pair(|attr| {
        if attr.state == Some(QpState::Rts) {
            attr.congestion = Some(dcqcn.clone());
        }
    });
    for _ in 0..8 {
        write(&mut world, qpns[0], None);
    }
    sum.after(world, qpns);
}

/// A pair that has agreed to selective retransmission; the second host's range and store are small.
fn selective_pair() -> (World, [Qpn; 2]) {
    let mut world = World::new(1, Impairment::delay(1000), Impairment::delay(1000));
    let qpns = [0, 1].map(|host| world.create_qp(host, |_| {}));
    world.bring_up(qpns, MTU, [1, 1], |host, attr| {
        fast(attr);
        if attr.state == Some(QpState::Rtr) {
            let mut params = SelectiveParams::default();
            if host == 1 {
                (params.range, params.window, params.store) = (128, 128, 1);
            }
            attr.reliability = Some(Reliability::Selective(params));
        }
    });
    // A round trip is measured.
    send(&mut world, qpns, 64);
    world.idle(MS);
    (world, qpns)
}

fn selective(sum: &mut Sum) {
    // The first of five messages is lost, and there is room for one of the others; then the last
    // packet of all, so that a probe asks.
    let (mut world, qpns) = selective_pair();
    lose_one(&world, false, Operation::Send);
    for _ in 0..5 {
        send(&mut world, qpns, 64);
    }
    world.idle(MS);
    lose_one(&world, false, Operation::Send);
    send(&mut world, qpns, 64);
    sum.after(world, qpns);
    // A packet of a long WRITE is lost, and many messages behind it.
    let (mut world, qpns) = selective_pair();
    lose_one(&world, false, Operation::Write);
    let [left, right] = &mut world.hosts;
    let (va, rkey) = (right.va(0), right.mr.rkey);
    left.post_send(qpns[0], 8, SendOp::Write { va, rkey }, &[left.sge(0, 9000)]);
    for _ in 0..200 {
        write(&mut world, qpns[0], None);
    }
    sum.after(world, qpns);
    // Everything arrives and nothing is heard of it for a while.
    let (mut world, qpns) = selective_pair();
    let now = world.net.now();
    world.net.add_blackhole(world.link.back, now, now + MS / 2);
    send(&mut world, qpns, 64);
    sum.after(world, qpns);
    // Only one side was told to.
    let (mut world, qpns) = pair(|_| {});
    let path = world.hosts[0].path_to(&world.hosts[1]);
    let frame = frame_of(&path, Opcode::ExtWriteOnly, qpns[1], 4);
    inject(&mut world, &frame);
    sum.after(world, qpns);
}

fn refusals(sum: &mut Sum) {
    let (mut world, qpns) = pair(|_| {});
    write(&mut world, qpns[0], Some(RKey::new(0xdead_beef)));
    sum.after(world, qpns);
    let (mut world, qpns) = pair(|_| {});
    send(&mut world, qpns, 4);
    send(&mut world, qpns, 64);
    sum.after(world, qpns);
    // The receive buffer goes away between the post and the message.
    let (mut world, [a, b]) = pair(|_| {});
    let right = &mut world.hosts[1];
    let (at, mr) = right.carve(64, ALL_ACCESS);
    let gone = xroce_proto::wr::Sge {
        lkey: mr.lkey,
        va: mr.va,
        len: 64,
    };
    assert!(at > 0);
    right.post_recv(b, 1, &[gone]);
    right.engine.dereg_mr(mr.lkey).unwrap();
    let left = &mut world.hosts[0];
    left.post_send(a, 1, SendOp::Send, &[left.sge(0, 8)]);
    sum.after(world, [a, b]);
    // An atomic.
    let (mut world, [a, b]) = pair(|_| {});
    let [left, right] = &mut world.hosts;
    let op = SendOp::FetchAdd {
        va: right.va(0),
        rkey: right.mr.rkey,
        add: 1,
    };
    left.post_send(a, 1, op, &[left.sge(0, 8)]);
    sum.after(world, [a, b]);
}

fn strangers(sum: &mut Sum) {
    // From another address.
    let (mut world, qpns) = pair(|_| {});
    let mut path = world.hosts[0].path_to(&world.hosts[1]);
    path.src = gid("192.0.2.77");
    let frame = frame_of(&path, Opcode::RcSendOnly, qpns[1], 4);
    inject(&mut world, &frame);
    // A congestion notification, to a QP and to none.
    let path = world.hosts[0].path_to(&world.hosts[1]);
    for to in [qpns[1], Qpn::new(0x999)] {
        let frame = frame_of(&path, Opcode::Cnp, to, 16);
        inject(&mut world, &frame);
    }
    // Damage of every kind.
    let good = frame_of(&path, Opcode::RcSendOnly, qpns[1], 4);
    for at in [12, good.len() - 1, 42] {
        let mut bad = good.clone();
        bad[at] ^= 0xe0;
        inject(&mut world, &bad);
    }
    // A CQ of one entry.
    let small = world.hosts[1].engine.create_cq(1).unwrap();
    let other = [
        world.create_qp(0, |_| {}),
        world.create_qp(1, |init| init.recv_cq = small),
    ];
    world.bring_up(other, MTU, [1, 1], |_, attr| fast(attr));
    for _ in 0..3 {
        send(&mut world, other, 64);
    }
    sum.after(world, qpns);
}

fn datagrams(sum: &mut Sum) {
    let mut world = Setup::default().build();
    let qpns = [0, 1].map(|host| {
        let qpn = world.create_qp(host, |init| init.qp_type = QpType::Ud);
        for attr in [
            QpAttr::init_ud(QKey::new(1)),
            QpAttr::state(QpState::Rtr),
            QpAttr::rts_unreliable(Psn::new(0)),
        ] {
            world.hosts[host].engine.modify_qp(qpn, &attr).unwrap();
        }
        qpn
    });
    let entry = GidEntry {
        gid: world.hosts[1].gid,
        ifindex: 1,
        ifname: "sim".to_owned(),
        mac: MacAddr::default(),
        vlan: None,
        link_local: false,
    };
    let addressing = Addressing::given(vec![entry], Vec::new());
    world.hosts[1].engine.set_gids(addressing.gids());
    // Wrong Q_Key; no receive; too small a receive; another VLAN.
    for (qkey, capacity, vlan) in [
        (2, None, None),
        (1, None, None),
        (1, Some(44), None),
        (1, Some(64), Some(VlanTci::tagged(9, 0))),
    ] {
        let mut path = world.hosts[0].path_to(&world.hosts[1]);
        path.vlan = vlan;
        let [left, right] = &mut world.hosts;
        if let Some(capacity) = capacity {
            right.post_recv(qpns[1], 1, &[right.sge(0, capacity)]);
        }
        let ah = left.engine.create_ah(left.pd, &path).unwrap();
        let to = UdDest {
            ah,
            qpn: qpns[1],
            qkey: QKey::new(qkey),
        };
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            data: Data::Sges(&[left.sge(0, 8)]),
        };
        left.engine.post_datagram(qpns[0], &wr, &to).unwrap();
        world.idle(MS);
    }
    sum.after(world, qpns);
}

fn events(sum: &mut Sum) {
    let (mut world, qpns) = pair(|_| {});
    let entry = GidEntry {
        gid: world.hosts[0].gid,
        ifindex: 1,
        ifname: "sim".to_owned(),
        mac: MacAddr::default(),
        vlan: None,
        link_local: false,
    };
    let engine = &mut world.hosts[0].engine;
    engine.apply(&PathEvent::PortDown);
    for _ in 0..600 {
        engine.apply(&PathEvent::GidRemoved(0, entry.clone()));
        engine.apply(&PathEvent::GidAdded(0, entry.clone()));
    }
    engine.apply(&PathEvent::Icmp(IcmpError {
        from: [10, 0, 0, 254].into(),
        src: [192, 0, 2, 1].into(),
        dst: [192, 0, 2, 2].into(),
        src_port: common::SRC_PORT,
        dest_qpn: None,
        reason: Reason::HopLimit,
    }));
    sum.after(world, qpns);
}

fn still<T>(table: &[CounterInfo<T>], counters: &T) -> Vec<&'static str> {
    let zero = table.iter().filter(|info| (info.get)(counters) == 0);
    zero.map(|info| info.name).collect()
}

#[test]
fn every_counter_moves() {
    let mut sum = Sum::default();
    losses(&mut sum);
    marks(&mut sum);
    selective(&mut sum);
    refusals(&mut sum);
    strangers(&mut sum);
    datagrams(&mut sum);
    events(&mut sum);
    let none: [&str; 0] = [];
    assert_eq!(still(Counters::TABLE, &sum.qps), none, "{:#?}", sum.qps);
    let engines = &sum.engines;
    assert_eq!(still(EngineStats::TABLE, engines), none, "{engines:#?}");
    let c = sum.qps;
    let again = c.retransmits_timeout
        + c.retransmits_seq_nak
        + c.retransmits_implied_nak
        + c.retransmits_rnr
        + c.retransmits_solicit
        + c.retransmits_selective;
    assert_eq!(c.retransmits, again);
    let naks = c.invalid_request_naks_in + c.access_naks_in + c.operational_naks_in;
    assert_eq!(c.fatal_naks_in, naks);
    let naks = c.invalid_request_naks_out + c.access_naks_out + c.operational_naks_out;
    assert_eq!(c.fatal_naks_out, naks);
    assert_eq!(c.cnps_handled + c.cnps_ignored, c.cnps_in);
    assert_eq!(c.cnps_out + c.cnps_suppressed, c.ce_marked);
}

#[test]
fn round_trips_are_timed_and_never_those_of_packets_sent_twice() {
    // Two wires of 1 µs each, and the wheel and polls of the simulation in between.
    let (mut world, qpns) = pair(|_| {});
    for _ in 0..10 {
        send(&mut world, qpns, 64);
        world.idle(MS);
    }
    let rtt = world.hosts[0].engine.qp_rtt(qpns[0]).unwrap().clone();
    assert_eq!(rtt.count(), 10);
    let median = rtt.quantile(500).unwrap().as_nanos();
    assert!((2000..3000).contains(&median), "{median} ns");
    let gauges = world.hosts[0].engine.qp_gauges(qpns[0]).unwrap();
    assert_eq!((gauges.window, gauges.rate, gauges.in_flight), (256, 0, 0));
    // Karn: the ACK of a packet that was sent twice says nothing.
    lose_one(&world, true, Operation::Acknowledge);
    send(&mut world, qpns, 64);
    world.idle(100 * MS);
    let engine = &world.hosts[0].engine;
    assert_eq!(engine.qp_counters(qpns[0]).unwrap().retransmits, 1);
    assert_eq!(engine.qp_rtt(qpns[0]).unwrap().count(), 10);
}

fn rows<T>(text: &mut String, title: &str, table: &[CounterInfo<T>]) {
    let mut seen = BTreeSet::new();
    writeln!(text, "\n## {title}\n").unwrap();
    writeln!(text, "| counter | counts | mlx5 | rxe | when |").unwrap();
    writeln!(text, "|---|---|---|---|---|").unwrap();
    for info in table {
        assert!(seen.insert(info.name), "{} twice", info.name);
        let other = |name: Option<&str>| name.map(|n| format!("`{n}`")).unwrap_or_default();
        let meaning = info.meaning.trim().trim_end_matches('.');
        writeln!(
            text,
            "| `{}` | {} | {} | {} | {meaning} |",
            info.name,
            info.unit,
            other(info.mlx5),
            other(info.rxe)
        )
        .unwrap();
    }
}

#[test]
fn the_document_says_what_the_tables_say() {
    let mut text = "# Counters

Made from the tables in the code (`Counters::TABLE`, `EngineStats::TABLE`, `PORT_TABLE`) by
`XROCE_WRITE_DOCS=1 cargo test --test counters`. The names of mlx5 and rxe are those of
`/sys/class/infiniband/*/ports/*/hw_counters`, where one means the same. `xroce perf client --stats`
prints all of them, with `--json` under these names; `Engine::qp_counters`, `stats` and
`port_stats` give them to programs. All count from the creation of their object.

Besides counters a queue pair has a histogram of round-trip times (`Engine::qp_rtt`): one packet in
flight is timed, from being sent to its acknowledgement, if it asks for one and was sent once; a
READ to its first response. Steps of 64 ns up to 512 ns, then eight buckets per power of two, up to
68 s. A selective queue pair times every packet that an ACK or SACK was made for. And it has gauges
(`Engine::qp_gauges`): window, rate, packets in flight, sends posted, READs in progress, smoothed
round-trip time and its deviation, packets received before their turn. The engine remembers the 16 addresses from which most packets failed the ICRC check
(`Engine::icrc_failures`).
"
    .to_owned();
    rows(&mut text, "Of a queue pair", Counters::TABLE);
    rows(&mut text, "Of an engine", EngineStats::TABLE);
    rows(&mut text, "Of a port", PORT_TABLE);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/counters.md");
    if std::env::var_os("XROCE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "docs/counters.md is not what the tables say: XROCE_WRITE_DOCS=1"
    );
}
