//! Marks, their notification, and what senders do about it.

use std::cell::RefCell;
use std::rc::Rc;

use xroce_engine::{CnpScope, EngineConfig, NotifyConfig, TrafficClasses};
use xroce_net::sim::{Impairment, Verdict};
use xroce_proto::cc::{CongestionControl, Rate};
use xroce_proto::counters::Counters;
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::time::Duration;
use xroce_proto::wr::SendOp;
use xroce_wire::frame::{Ecn, Frame};
use xroce_wire::newtypes::Qpn;
use xroce_wire::opcode::{Opcode, Operation};
use xroce_wire::packet::Packet;

use crate::common::{Host, Setup, World};
use crate::{MIDDLE, MTU, SECOND, calm};

const MS: u64 = 1_000_000;
const LINE: Rate = Rate::bits_per_second(40_000_000_000);

/// Never so slow that the work of a test does not fit.
fn dcqcn() -> CongestionControl {
    CongestionControl::by_name("dcqcn", LINE, &[("rpg_min_rate", 10_000)]).unwrap()
}

/// Two hosts, marks on the way there, notifications every 50 µs.
fn marking(scope: CnpScope) -> Setup {
    let wire = Impairment {
        ce_ppm: 1_000_000,
        ..Impairment::delay(1000)
    };
    let notify = NotifyConfig {
        min_time_between_cnps: Duration::from_micros(50),
        scope,
        ..NotifyConfig::default()
    };
    Setup {
        wires: [wire, Impairment::delay(1000)],
        engine: EngineConfig {
            notify,
            ..EngineConfig::default()
        },
        ..Setup::default()
    }
}

fn with(cc: CongestionControl) -> impl Fn(&mut QpAttr) {
    move |attr| {
        if let Some(av) = &mut attr.av {
            av.traffic_class = 0;
        }
        if attr.state == Some(QpState::Rts) {
            attr.congestion = Some(cc.clone());
        }
    }
}

/// What a wire carried: TOS bytes, opcodes, whole transport parts.
type Seen = Rc<RefCell<Vec<(Ecn, u8, Opcode, Vec<u8>)>>>;

fn watch(world: &World, wire: xroce_net::sim::WireId) -> Seen {
    let seen = Seen::default();
    let list = Rc::clone(&seen);
    world.net.set_filter(wire, move |bytes| {
        let frame = Frame::parse_ethernet(bytes).unwrap();
        let pkt = Packet::parse(frame.transport()).unwrap();
        let tos = bytes[15];
        let row = (
            frame.ecn(),
            tos,
            pkt.info().opcode,
            frame.transport().to_vec(),
        );
        list.borrow_mut().push(row);
        Verdict::Pass
    });
    seen
}

/// A WRITE to the start of a host's memory.
fn write_to(host: &Host) -> SendOp {
    SendOp::Write {
        va: host.va(0),
        rkey: host.mr.rkey,
    }
}

/// Writes of one packet, one every `gap` ns.
fn write_every(world: &mut World, qpn: Qpn, gap: u64, count: u64) {
    for n in 0..count {
        let [left, right] = &mut world.hosts;
        let op = write_to(right);
        left.post_send(qpn, n, op, &[left.sge(0, 64)]);
        world.idle(gap);
        world.hosts[0].completions();
    }
}

/// Rules W20, CC2, CC4, CC13.
#[test]
fn case_94_a_thousand_marks_in_a_millisecond_are_twenty_notifications() {
    let mut world = marking(CnpScope::Qp).build();
    let back = watch(&world, world.link.back);
    let qpns = world.connect(MTU, [1, 1], |_| {}, with(dcqcn()));
    write_every(&mut world, qpns[0], 1000, 1000);
    world.idle(MS);
    let sender = world.hosts[0].engine.qp_counters(qpns[0]).unwrap();
    let receiver = world.hosts[1].engine.qp_counters(qpns[1]).unwrap();
    assert_eq!(receiver.ce_marked, 1000);
    assert!((20..=21).contains(&receiver.cnps_out), "{receiver:#?}");
    assert_eq!(
        receiver.ce_marked,
        receiver.cnps_out + receiver.cnps_suppressed
    );
    assert_eq!(sender.cnps_in, receiver.cnps_out);
    assert_eq!(
        (sender.cnps_handled, sender.cnps_ignored),
        (sender.cnps_in, 0)
    );
    let seen = back.borrow();
    let cnps = seen.iter().filter(|row| row.2 == Opcode::Cnp);
    let mut count = 0;
    for (ecn, tos, _, transport) in cnps {
        count += 1;
        let pkt = Packet::parse(transport).unwrap();
        assert_eq!(
            (*ecn, *tos),
            (Ecn::NotEct, 48 << 2),
            "DSCP 48, never marked"
        );
        assert_eq!(pkt.dest_qp(), qpns[0], "to the QP that must slow down");
        assert!(pkt.becn() && !pkt.fecn() && !pkt.ack_req());
        assert_eq!(pkt.psn().value(), 0);
        assert_eq!(pkt.payload(), [0; 16]);
    }
    assert_eq!(count, receiver.cnps_out);
}

/// Rule CC3.
#[test]
fn case_94_marks_of_acks_and_notifications_are_not_told() {
    let mut setup = marking(CnpScope::Qp);
    setup.wires.swap(0, 1);
    let mut world = setup.build();
    let there = watch(&world, world.link.there);
    // ECT on everything, so that the ACKs are marked.
    let qpns = world.connect(MTU, [1, 1], |_| {}, |_| {});
    write_every(&mut world, qpns[0], 10_000, 20);
    let sender = world.hosts[0].engine.qp_counters(qpns[0]).unwrap();
    assert!(sender.rx_packets >= 20);
    assert_eq!((sender.ce_marked, sender.cnps_out), (0, 0));
    assert!(there.borrow().iter().all(|row| row.2 != Opcode::Cnp));
}

/// Rule CC3.
#[test]
fn case_93_loss_alone_is_never_notified() {
    let wire = Impairment {
        loss_ppm: 50_000,
        ..Impairment::delay(1000)
    };
    let setup = Setup {
        wires: [wire; 2],
        ..Setup::default()
    };
    let mut world = setup.build();
    let qpns = world.connect(
        MTU,
        [1, 1],
        |_| {},
        |attr| {
            with(dcqcn())(attr);
            crate::fast(attr);
        },
    );
    write_every(&mut world, qpns[0], 20_000, 500);
    world.idle(100 * MS);
    let [sender, receiver] = [0, 1].map(|n| world.hosts[n].engine.qp_counters(qpns[n]).unwrap());
    assert!(sender.retransmits > 0);
    assert_eq!((receiver.cnps_out, sender.cnps_in), (0, 0));
}

/// Rule CC1.
#[test]
fn data_is_ecn_capable_where_the_control_lives_on_marks() {
    for (name, expected) in [
        ("fixed", Ecn::NotEct),
        ("swift", Ecn::NotEct),
        ("dcqcn", Ecn::Ect0),
        ("nscc", Ecn::Ect0),
    ] {
        let mut world = calm().build();
        let there = watch(&world, world.link.there);
        let cc = CongestionControl::by_name(name, LINE, &[]).unwrap();
        let qpns = world.connect(MTU, [1, 1], |_| {}, with(cc));
        write_every(&mut world, qpns[0], 10_000, 3);
        let seen = there.borrow();
        assert!(seen.len() >= 3, "{name}");
        assert!(seen.iter().all(|row| row.0 == expected), "{name}");
        // What was asked for is what a query shows.
        let av = world.hosts[0].engine.query_qp(qpns[0]).unwrap().attr.av;
        assert_eq!(av.unwrap().traffic_class, 0);
    }
}

/// A READ of 1 MB over wires of 40 Gb/s, answers marked or not: how long it took, and both counters.
fn read_marked(ce_ppm: u32) -> (u64, [Counters; 2]) {
    let mut setup = marking(CnpScope::Qp);
    setup.wires = [0, ce_ppm].map(|ce_ppm| Impairment {
        ce_ppm,
        rate_bps: 40_000_000_000,
        ..Impairment::delay(1000)
    });
    setup.tx_ring = 16;
    let mut world = setup.build();
    let qpns = world.connect(MTU, [1, 1], |_| {}, with(dcqcn()));
    let [left, right] = &mut world.hosts;
    let op = SendOp::Read {
        va: right.va(0),
        rkey: right.mr.rkey,
    };
    left.post_send(qpns[0], 1, op, &[left.sge(MIDDLE, 1 << 20)]);
    let start = world.net.now();
    assert!(world.run(SECOND, |w| !w.hosts[0].completions().is_empty()));
    let took = world.net.now() - start;
    let counters = [0, 1].map(|n| world.hosts[n].engine.qp_counters(qpns[n]).unwrap());
    (took, counters)
}

#[test]
fn notifications_slow_a_reader_down_too() {
    // The data of a READ is sent by the responder: it has the rate.
    let (clean, _) = read_marked(0);
    let (took, [reader, responder]) = read_marked(1_000_000);
    assert!(reader.cnps_out > 2);
    assert_eq!(reader.cnps_out, responder.cnps_handled);
    assert_eq!((responder.cnps_out, responder.ce_marked), (0, 0));
    // A quarter of the link in the end.
    assert!(took > 2 * clean, "{took} {clean}");
}

#[test]
fn a_rate_limit_is_kept_exactly() {
    for mbps in [1_u64, 100, 10_000] {
        let mut world = Setup::default().build();
        let limit = Rate::bits_per_second(mbps * 1_000_000);
        let qpns = world.connect(
            MTU,
            [1, 1],
            |init| init.max_send_wr = 4096,
            |attr| {
                if attr.state == Some(QpState::Rts) {
                    attr.rate_limit = Some(limit);
                    attr.timeout = Some(0);
                }
            },
        );
        let messages = 2000;
        let [left, right] = &mut world.hosts;
        for n in 0..messages {
            let op = write_to(right);
            left.post_send(qpns[0], n, op, &[left.sge(0, 1024)]);
        }
        let start = world.net.now();
        let mut done = 0;
        assert!(world.run(200 * SECOND, |w| {
            done += w.hosts[0].completions().len() as u64;
            done == messages
        }));
        let took = world.net.now() - start;
        // Ethernet 14, IPv4 20, UDP 8, BTH 12, RETH 16, ICRC 4, and 24 around the frame.
        let bits = messages * (1024 + 14 + 20 + 8 + 12 + 16 + 4 + 24) * 8;
        let expected = bits * 1000 / mbps;
        // What an idle QP saves in the beginning, the way, and a tick of the wheel.
        let off = took.abs_diff(expected);
        assert!(
            off <= expected / 1000 + 25_000,
            "{mbps} Mb/s: {took} {expected}"
        );
    }
}

/// Rule CC4.
#[test]
fn a_notification_waits_for_no_rate() {
    let mut world = marking(CnpScope::Qp).build();
    let back = watch(&world, world.link.back);
    let qpns = world.connect(
        MTU,
        [1, 1],
        |_| {},
        |attr| {
            with(dcqcn())(attr);
            if attr.state == Some(QpState::Rts) {
                // Slower than one packet in the time of this test.
                attr.rate_limit = Some(Rate::bits_per_second(1000));
            }
        },
    );
    // The receiver of marks has used up its own rate with data of its own.
    let [left, right] = &mut world.hosts;
    for n in 0..4 {
        let op = write_to(left);
        right.post_send(qpns[1], n, op, &[right.sge(0, 1024)]);
    }
    let op = write_to(right);
    left.post_send(qpns[0], 9, op, &[left.sge(0, 64)]);
    world.idle(MS);
    let seen = back.borrow();
    let data = seen
        .iter()
        .filter(|row| row.2.info().operation == Operation::Write);
    assert_eq!(data.count(), 1, "the rate holds");
    assert!(seen.iter().any(|row| row.2 == Opcode::Cnp));
}

#[test]
fn what_is_urgent_does_not_wait_behind_bulk() {
    for strict in [false, true] {
        let mut classes = TrafficClasses::default();
        classes.of_dscp[46] = 1;
        classes.weights[1] = if strict { 0 } else { 1 };
        let mut setup = calm();
        setup.tx_ring = 32;
        setup.engine.classes = classes;
        let mut world = setup.build();
        let there = watch(&world, world.link.there);
        let bulk: Vec<_> = (0..8)
            .map(|_| world.connect(MTU, [1, 1], |_| {}, |_| {}))
            .collect();
        let urgent = world.connect(
            MTU,
            [1, 1],
            |_| {},
            |attr| {
                if let Some(av) = &mut attr.av {
                    av.traffic_class = 46 << 2 | 2;
                }
            },
        );
        let [left, right] = &mut world.hosts;
        let op = write_to(right);
        for qpns in &bulk {
            left.post_send(qpns[0], 1, op, &[left.sge(0, 1 << 20)]);
        }
        world.idle(50_000);
        let before = there.borrow().len();
        let left = &mut world.hosts[0];
        left.post_send(urgent[0], 2, op, &[left.sge(0, 64)]);
        world.idle(50_000);
        let seen = there.borrow();
        let place = seen.iter().skip(before).position(|row| row.1 >> 2 == 46);
        // What is in the port's ring goes first, and the turn that has begun; 8 × 256 packets of
        // bulk are waiting.
        assert!(place.unwrap() <= 32 + 16, "{place:?}");
    }
}

/// Rule CC2.
#[test]
fn counters_of_marks_reconcile_at_every_scope() {
    for (scope, most) in [
        (CnpScope::Qp, 3 * 21),
        (CnpScope::Destination, 21),
        (CnpScope::Port, 21),
    ] {
        let mut world = marking(scope).build();
        let pairs: Vec<_> = (0..3)
            .map(|_| world.connect(MTU, [1, 1], |_| {}, with(dcqcn())))
            .collect();
        for n in 0..1000 {
            let [left, right] = &mut world.hosts;
            let op = write_to(right);
            for qpns in &pairs {
                left.post_send(qpns[0], n, op, &[left.sge(0, 64)]);
            }
            world.idle(1000);
            world.hosts[0].completions();
        }
        world.idle(MS);
        let mut out = 0;
        for qpns in &pairs {
            let receiver = world.hosts[1].engine.qp_counters(qpns[1]).unwrap();
            assert_eq!(receiver.ce_marked, 1000);
            assert_eq!(receiver.cnps_out + receiver.cnps_suppressed, 1000);
            out += receiver.cnps_out;
        }
        assert!((20..=most).contains(&out), "{scope:?}: {out}");
    }
}

#[test]
fn a_port_that_stays_full_serves_all_in_turn() {
    let mut setup = calm();
    // Fewer frames than a turn has.
    setup.tx_ring = 4;
    setup.wires[0].rate_bps = 1_000_000_000;
    let mut world = setup.build();
    let there = watch(&world, world.link.there);
    let pairs: Vec<_> = (0..4)
        .map(|_| world.connect(MTU, [1, 1], |_| {}, |_| {}))
        .collect();
    let [left, right] = &mut world.hosts;
    for qpns in &pairs {
        let op = write_to(right);
        left.post_send(qpns[0], 1, op, &[left.sge(0, 1 << 18)]);
    }
    world.idle(400_000);
    let seen = there.borrow();
    let sent = pairs.iter().map(|qpns| {
        let to = |row: &&(Ecn, u8, Opcode, Vec<u8>)| {
            Packet::parse(&row.3).is_ok_and(|pkt| pkt.dest_qp() == qpns[1])
        };
        seen.iter().filter(to).count()
    });
    let sent: Vec<usize> = sent.collect();
    let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    assert!(*least > 5 && most - least <= 8, "{sent:?}");
}
