//! Programs that end a queue pair as soon as they have what they waited for: what was done is told.

use xroce_net::datapath::Datapath;
use xroce_net::sim::Impairment;
use xroce_proto::memory::Access;
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::recovery::{Reliability, SelectiveParams};
use xroce_proto::wc::{Completion, WcStatus};
use xroce_proto::wr::SendOp;
use xroce_wire::newtypes::{LKey, Qpn, RKey};

use crate::common::{ALL_ACCESS, Setup, World};
use crate::{MTU, SECOND, calm, fast};

/// How a program is done with its queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Destroy,
    To(QpState),
}

const ENDS: [End; 3] = [End::Destroy, End::To(QpState::Err), End::To(QpState::Reset)];

fn end(world: &mut World, host: usize, qpn: Qpn, how: End) {
    let engine = &mut world.hosts[host].engine;
    match how {
        End::Destroy => engine.destroy_qp(qpn).unwrap(),
        End::To(state) => engine.modify_qp(qpn, &QpAttr::state(state)).unwrap(),
    }
}

/// Both programs look at their CQ after every poll, and the second one ends its queue pair with its
/// first completion. What each was told.
fn close_at_once(world: &mut World, b: Qpn, how: End, wanted: usize) -> [Vec<Completion>; 2] {
    let mut told = [Vec::new(), Vec::new()];
    let mut ended = false;
    while world.net.now() < SECOND && told[0].len() < wanted {
        let now = world.now();
        for host in [0, 1] {
            world.hosts[host].engine.poll_once(now).unwrap();
            told[host].extend(world.hosts[host].completions());
        }
        if !ended && !told[1].is_empty() {
            ended = true;
            end(world, 1, b, how);
        }
        let next = world.net.now() + 1000;
        world.net.advance_to(next);
    }
    told
}

fn statuses(told: &[Completion]) -> Vec<WcStatus> {
    told.iter().map(|wc| wc.status).collect()
}

/// Rule S17.
#[test]
fn case_110_a_receiver_that_closes_at_once() {
    let reliability = [
        None,
        Some(Reliability::Selective(SelectiveParams::default())),
    ];
    for how in ENDS {
        for reliability in reliability {
            let mut world = calm().build();
            let [a, b] = world.connect(
                MTU,
                [1, 1],
                |_| {},
                |attr| {
                    if attr.state == Some(QpState::Rtr) {
                        attr.reliability = reliability;
                    }
                },
            );
            let [left, right] = &mut world.hosts;
            right.post_recv(b, 1, &[right.sge(0, 64)]);
            let (va, rkey) = (right.va(128), right.mr.rkey);
            // What is owed is more than an ACK.
            let add = SendOp::FetchAdd { va, rkey, add: 1 };
            left.post_send(a, 1, add, &[left.sge(0, 8)]);
            let read = SendOp::Read { va, rkey };
            left.post_send(a, 2, read, &[left.sge(64, 2000)]);
            left.post_send(a, 3, SendOp::Send, &[left.sge(0, 8)]);
            let told = close_at_once(&mut world, b, how, 3);
            assert_eq!(statuses(&told[0]), [WcStatus::Success; 3], "{how:?}");
            assert_eq!(statuses(&told[1]), [WcStatus::Success], "{how:?}");
            assert!(world.net.now() < 10_000_000, "{how:?}: no timeout");
        }
    }
}

#[test]
fn case_110_a_refusal_is_told_by_who_closes_at_once() {
    for how in ENDS {
        let mut world = calm().build();
        let [a, b] = world.connect(MTU, [1, 1], |_| {}, |_| {});
        let [left, right] = &mut world.hosts;
        right.post_recv(b, 1, &[right.sge(0, 4)]);
        left.post_send(a, 1, SendOp::Send, &[left.sge(0, 8)]);
        let told = close_at_once(&mut world, b, how, 1);
        assert_eq!(statuses(&told[0]), [WcStatus::RemInvReqErr], "{how:?}");
        assert_eq!(statuses(&told[1]), [WcStatus::LocLenErr], "{how:?}");
    }
}

#[test]
fn case_110_a_full_port_does_not_swallow_the_last_word() {
    for how in ENDS {
        // The port takes four frames, and its wire is slow.
        let slow = Impairment {
            rate_bps: 10_000_000,
            ..Impairment::delay(1000)
        };
        let mut world = Setup {
            tx_ring: 4,
            wires: [Impairment::delay(1000), slow],
            ..Setup::default()
        }
        .build();
        let [a, b] = world.connect(MTU, [1, 1], |_| {}, |_| {});
        let [_, d] = world.connect(MTU, [1, 1], |_| {}, |_| {});
        let [left, right] = &mut world.hosts;
        right.post_recv(b, 1, &[right.sge(0, 64)]);
        let (va, rkey) = (left.va(0), left.mr.rkey);
        right.post_send(d, 7, SendOp::Write { va, rkey }, &[right.sge(0, 1 << 16)]);
        let now = world.now();
        world.hosts[1].engine.poll_once(now).unwrap();
        assert!(world.hosts[1].engine.port_mut().tx_begin().is_none());
        let left = &mut world.hosts[0];
        left.post_send(a, 1, SendOp::Send, &[left.sge(0, 8)]);
        let told = close_at_once(&mut world, b, how, 1);
        assert_eq!(statuses(&told[0]), [WcStatus::Success], "{how:?}");
        assert!(world.net.now() < 60_000_000, "{how:?}: no timeout");
    }
}

#[test]
fn case_110_the_own_mistake_does_not_cost_the_peer_its_ack() {
    let mut world = calm().build();
    let [a, b] = world.connect(MTU, [1, 1], |_| {}, |_| {});
    let [left, right] = &mut world.hosts;
    right.post_recv(b, 1, &[right.sge(0, 64)]);
    left.post_send(a, 1, SendOp::Send, &[left.sge(0, 8)]);
    let mut told = [Vec::new(), Vec::new()];
    let mut answered = false;
    while world.net.now() < SECOND && told[0].is_empty() {
        let now = world.now();
        for host in [0, 1] {
            world.hosts[host].engine.poll_once(now).unwrap();
            told[host].extend(world.hosts[host].completions());
        }
        if !answered && !told[1].is_empty() {
            answered = true;
            let right = &mut world.hosts[1];
            let mut nowhere = right.sge(0, 8);
            nowhere.lkey = LKey::new(0x99);
            right.post_send(b, 2, SendOp::Send, &[nowhere]);
        }
        let next = world.net.now() + 1000;
        world.net.advance_to(next);
    }
    assert_eq!(statuses(&told[0]), [WcStatus::Success]);
}

/// A READ request comes twice; its sender, who has the data, takes the key back.
#[test]
fn case_109_a_copy_of_a_read_and_a_send_with_invalidate() {
    let there = Impairment {
        duplicate_ppm: 1_000_000,
        duplicate_delay_ns: 101_000,
        ..Impairment::delay(1000)
    };
    let mut world = World::new(1, there, Impairment::delay(1000));
    let [a, b] = world.connect(MTU, [1, 1], |_| {}, |_| {});
    let [left, right] = &mut world.hosts;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::INVALIDATE;
    let (_, mr) = right.carve(4096, access);
    right.post_recv(b, 1, &[right.sge(0, 64)]);
    let (va, rkey) = (mr.va, mr.rkey);
    left.post_send(a, 2, SendOp::Read { va, rkey }, &[left.sge(1 << 20, 4096)]);
    let mut told = [Vec::new(), Vec::new()];
    let mut asked = false;
    while world.net.now() < SECOND && told[0].len() < 2 {
        let now = world.now();
        world.hosts[0].engine.poll_once(now).unwrap();
        told[0].extend(world.hosts[0].completions());
        if told[0].len() == 1 && !asked {
            asked = true;
            world.hosts[0].post_send(a, 3, SendOp::SendInv { rkey }, &[]);
        }
        // The other program looks every 100 µs.
        if world.net.now().is_multiple_of(100_000) {
            for _ in 0..3 {
                world.hosts[1].engine.poll_once(now).unwrap();
            }
            told[1].extend(world.hosts[1].completions());
        }
        let next = world.net.now() + 1000;
        world.net.advance_to(next);
    }
    assert_eq!(statuses(&told[0]), [WcStatus::Success; 2]);
    assert_eq!(statuses(&told[1]), [WcStatus::Success]);
    still_up(&world, [a, b]);
}

fn still_up(world: &World, qpns: [Qpn; 2]) {
    for (host, qpn) in world.hosts.iter().zip(qpns) {
        assert_eq!(host.engine.qp_state(qpn), Some(QpState::Rts));
    }
}

/// Storage: READs of 1 MB, each followed by a SEND that gives the key back; every packet comes
/// twice, the copy up to 12 ms late. Nothing is lost.
#[test]
fn case_109_keys_are_given_back_while_every_packet_comes_twice() {
    let slow = Impairment {
        rate_bps: 1_000_000_000,
        ..Impairment::delay(1000)
    };
    let copies = Impairment {
        duplicate_ppm: 1_000_000,
        duplicate_delay_ns: 12_000_000,
        ..slow
    };
    let reliability = [
        None,
        Some(Reliability::Selective(SelectiveParams::default())),
    ];
    for reliability in reliability {
        let mut world = World::new(1, copies, slow);
        let [a, b] = world.connect(
            MTU,
            [1, 1],
            |_| {},
            |attr| {
                if attr.state == Some(QpState::Rtr) {
                    attr.reliability = reliability;
                }
            },
        );
        for n in 0..20 {
            let [left, right] = &mut world.hosts;
            let access = ALL_ACCESS | Access::INVALIDATE;
            let (engine, pd) = (&mut right.engine, right.pd);
            let mr = engine.reg_mr_range(pd, &right.region, 4096, 1 << 20, access);
            let mr = mr.unwrap();
            right.post_recv(b, n, &[right.sge(0, 64)]);
            let (va, rkey) = (mr.va, mr.rkey);
            let sge = left.sge(1 << 20, 1 << 20);
            left.post_send(a, 2 * n, SendOp::Read { va, rkey }, &[sge]);
            give_back(&mut world, a, 2 * n + 1, rkey);
            still_up(&world, [a, b]);
            world.hosts[1].engine.dereg_mr(mr.lkey).unwrap();
        }
    }
}

/// Waits for the READ, then gives the key back.
fn give_back(world: &mut World, a: Qpn, wr_id: u64, rkey: RKey) {
    let mut told = [Vec::new(), Vec::new()];
    let mut collect = |w: &mut World, sent: usize, received: usize| {
        for (told, host) in told.iter_mut().zip(&mut w.hosts) {
            told.extend(host.completions());
        }
        told[0].len() == sent && told[1].len() == received
    };
    assert!(world.run(SECOND, |w| collect(w, 1, 0)), "the READ");
    world.hosts[0].post_send(a, wr_id, SendOp::SendInv { rkey }, &[]);
    assert!(world.run(SECOND, |w| collect(w, 2, 1)), "the SEND");
    for wc in told.iter().flatten() {
        assert_eq!(wc.status, WcStatus::Success);
    }
}

/// A CQ that overflows takes its queue pairs along, and they still say what they have done.
#[test]
fn case_110_an_overflow_of_the_queue_does_not_swallow_the_last_word() {
    let mut world = calm().build();
    let cq = world.hosts[1].engine.create_cq(1).unwrap();
    let [a, b] = [
        world.create_qp(0, |_| {}),
        world.create_qp(1, |init| init.recv_cq = cq),
    ];
    world.bring_up([a, b], MTU, [1, 1], |_, attr| fast(attr));
    let [left, right] = &mut world.hosts;
    for id in 0..2 {
        right.post_recv(b, id, &[right.sge(0, 64)]);
        left.post_send(a, id, SendOp::Send, &[left.sge(0, 8)]);
    }
    let mut told = Vec::new();
    world.run(SECOND, |w| {
        told.extend(w.hosts[0].completions());
        told.len() == 2
    });
    assert_eq!(statuses(&told), [WcStatus::Success; 2]);
    assert_eq!(world.hosts[1].engine.qp_state(b), Some(QpState::Err));
}
