//! Queue pairs that end, on purpose or not, and those that come after them.

use xroce_api::AsyncEvent;
use xroce_net::sim::{Impairment, Rng};
use xroce_proto::memory::Access;
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::wc::{Completion, Cq, Event, WcStatus};
use xroce_proto::wr::{SendOp, Sge};
use xroce_wire::newtypes::{LKey, Qpn, RKey, Va};

use crate::common::{Setup, World};
use crate::{MIDDLE, MTU, SECOND, calm, exchange, fast, finish, ids, ok, pair};

fn to_state(world: &mut World, host: usize, qpn: Qpn, state: QpState) {
    let attr = QpAttr::state(state);
    world.hosts[host].engine.modify_qp(qpn, &attr).unwrap();
}

#[test]
fn case_47_a_hundred_lives_of_one_pair_with_stragglers_of_the_old_ones() {
    // Copies come up to 2 ms late, in lives that follow each other within microseconds.
    let wire = Impairment {
        duplicate_ppm: 300_000,
        duplicate_delay_ns: 2_000_000,
        reorder_ppm: 10_000,
        reorder_positions: 3,
        ..Impairment::delay(1000)
    };
    let setup = Setup {
        seed: 47,
        wires: [wire; 2],
        ..Setup::default()
    };
    let mut world = setup.build();
    let mut rng = Rng::new(47);
    let qpns = [0, 1].map(|host| world.create_qp(host, |_| {}));
    for life in 0..100 {
        let psns = [0, 1].map(|_| rng.below(1 << 24) as u32);
        world.bring_up(qpns, MTU, psns, |_, attr| fast(attr));
        for len in [0, 1, 1024, 5000] {
            exchange(&mut world, qpns, len, SECOND);
        }
        for host in [0, 1] {
            let state = world.hosts[host].engine.qp_state(qpns[host]);
            assert_eq!(state, Some(QpState::Rts), "life {life}");
            to_state(&mut world, host, qpns[host], QpState::Reset);
        }
    }
    let old: u64 = [0, 1]
        .map(|i: usize| world.hosts[i].engine.qp_counters(qpns[i]).unwrap())
        .iter()
        .map(|c| c.duplicates + c.out_of_sequence + c.ghost_responses + c.discards)
        .sum();
    assert!(old > 200, "{old} stragglers");
}

#[test]
fn case_28_to_err_with_a_thousand_receives_and_a_send_on_its_way() {
    // Before the SEND is polled, and after.
    for polled in [false, true] {
        let mut world = calm().build();
        let [a, b] = world.connect(MTU, [1, 1], |init| init.max_recv_wr = 1000, fast);
        let [left, right] = &mut world.hosts;
        for id in 0..1000 {
            right.post_recv(b, id, &[right.sge(0, 64)]);
        }
        left.post_send(a, 1, SendOp::Send, &[left.sge(0, 64)]);
        let now = world.now();
        world.hosts[0].engine.poll_once(now).unwrap();
        world.net.advance_to(world.net.now() + 10_000);
        if polled {
            let now = world.now();
            world.hosts[1].engine.poll_once(now).unwrap();
        }
        to_state(&mut world, 1, b, QpState::Err);
        world.idle(100_000);
        let received = world.hosts[1].completions();
        assert_eq!(received.len(), 1000);
        for (i, wc) in received.iter().enumerate() {
            let success = polled && i == 0;
            let status = if success {
                WcStatus::Success
            } else {
                WcStatus::WrFlushErr
            };
            assert_eq!((wc.wr_id, wc.status), (i as u64, status));
        }
        world.idle(SECOND);
        assert_eq!(world.hosts[1].completions(), []);
    }
}

/// Rule C7.
#[test]
fn case_78_a_full_completion_queue_is_an_event_and_the_end_of_its_queue_pairs() {
    let mut world = calm().build();
    let small = world.hosts[0].engine.create_cq(4).unwrap();
    let [a, b] = world.connect(MTU, [1, 1], |_| {}, fast);
    let own = world.create_qp(0, |init| init.send_cq = small);
    let peer = world.create_qp(1, |_| {});
    world.bring_up([own, peer], MTU, [9, 9], |_, attr| fast(attr));
    for id in 0..8 {
        let [left, right] = &mut world.hosts;
        let (va, rkey) = (right.va(0), right.mr.rkey);
        left.post_send(own, id, SendOp::Write { va, rkey }, &[left.sge(0, 8)]);
    }
    world.idle(SECOND / 10);
    let engine = &mut world.hosts[0].engine;
    assert_eq!(engine.qp_state(own), Some(QpState::Err));
    assert_eq!(
        engine.poll_event(),
        Some(AsyncEvent::cq(small, Event::CqErr))
    );
    assert_eq!(
        engine.poll_event(),
        Some(AsyncEvent::qp(own, Event::QpFatal))
    );
    assert_eq!(engine.poll_event(), None);
    assert!(engine.stats().cq_overflows >= 4);
    // What there was room for is not lost, and not touched.
    let mut wcs = [Completion::EMPTY; 8];
    assert_eq!(engine.poll_cq(small, &mut wcs), 4);
    assert_eq!(ids(&wcs[..4]), ok(&[0, 1, 2, 3]));
    // The others on this engine have another CQ.
    exchange(&mut world, [a, b], 5000, SECOND);
}

/// Posts eight WRITEs, and lets them and what follows from them happen.
fn eight_writes(world: &mut World, qpn: Qpn) {
    let [left, right] = &mut world.hosts;
    let (va, rkey) = (right.va(0), right.mr.rkey);
    for id in 0..8 {
        left.post_send(qpn, id, SendOp::Write { va, rkey }, &[left.sge(0, 8)]);
    }
    world.idle(SECOND / 10);
}

/// The events of an overrun of `cq` that ended these queue pairs, and no other.
fn expect_overrun(world: &mut World, cq: Cq, ended: &[Qpn]) {
    let engine = &mut world.hosts[0].engine;
    let events: Vec<AsyncEvent> = std::iter::from_fn(|| engine.poll_event()).collect();
    let mut expected = vec![AsyncEvent::cq(cq, Event::CqErr)];
    expected.extend(ended.iter().map(|&q| AsyncEvent::qp(q, Event::QpFatal)));
    assert_eq!(events, expected);
    for &qpn in ended {
        assert_eq!(engine.qp_state(qpn), Some(QpState::Err));
    }
}

/// Rule C7.
#[test]
fn case_119_no_overrun_is_silent_however_often_its_queue_was_drained() {
    let mut world = calm().build();
    let small = world.hosts[0].engine.create_cq(4).unwrap();
    let qpns = |world: &mut World| {
        let own = world.create_qp(0, |init| init.send_cq = small);
        [own, world.create_qp(1, |_| {})]
    };
    let up = |world: &mut World, qpns| world.bring_up(qpns, MTU, [9, 9], |_, attr| fast(attr));
    let drained = |world: &mut World| {
        let mut wcs = [Completion::EMPTY; 16];
        world.hosts[0].engine.poll_cq(small, &mut wcs)
    };
    let [old, fresh] = [qpns(&mut world), qpns(&mut world)];
    up(&mut world, old);
    eight_writes(&mut world, old[0]);
    expect_overrun(&mut world, small, &[old[0]]);
    // The one made on the full CQ loses its completions too, and is told of it.
    up(&mut world, fresh);
    eight_writes(&mut world, fresh[0]);
    expect_overrun(&mut world, small, &[fresh[0]]);
    // Drained, the CQ is as good as new, until it is overrun again.
    for depth in [4, 4, 5] {
        assert!(drained(&mut world) >= 4);
        world.hosts[0].engine.resize_cq(small, depth).unwrap();
        for host in [0, 1] {
            to_state(&mut world, host, old[host], QpState::Reset);
        }
        up(&mut world, old);
        let [left, right] = &mut world.hosts;
        let (va, rkey) = (right.va(0), right.mr.rkey);
        left.post_send(old[0], 9, SendOp::Write { va, rkey }, &[left.sge(0, 8)]);
        world.idle(SECOND / 10);
        assert_eq!(world.hosts[0].engine.poll_event(), None);
        assert_eq!(drained(&mut world), 1);
        eight_writes(&mut world, old[0]);
        expect_overrun(&mut world, small, &[old[0]]);
    }
    // Flushed without room: nothing is left to end, but what is lost is told.
    let lost = world.hosts[0].engine.stats().cq_overflows;
    eight_writes(&mut world, old[0]);
    assert_eq!(world.hosts[0].engine.stats().cq_overflows, lost + 8);
    expect_overrun(&mut world, small, &[]);
}

#[test]
fn case_46_a_queue_pair_destroyed_with_packets_in_flight_leaves_nothing() {
    let (mut world, [a, b]) = pair();
    let mut old = b;
    let mut current = [a, b];
    for round in 0..200 {
        let [left, right] = &mut world.hosts;
        let (va, rkey) = (right.va(0), right.mr.rkey);
        let whole = left.sge(0, 100_000);
        left.post_send(current[0], round, SendOp::Write { va, rkey }, &[whole]);
        let read = left.sge(MIDDLE, 100_000);
        left.post_send(current[0], round, SendOp::Read { va, rkey }, &[read]);
        // Long enough for some packets to be there and others to be under way.
        world.idle(1500 + round * 97 % 9000);
        for host in [0, 1] {
            let engine = &mut world.hosts[host].engine;
            engine.destroy_qp(current[host]).unwrap();
            assert!(engine.qp_state(current[host]).is_none());
        }
        world.hosts[0].completions();
        let next = [0, 1].map(|host| world.create_qp(host, |_| {}));
        assert_ne!(next[1], old, "a number just in use");
        old = current[1];
        world.bring_up(next, MTU, [round as u32 * 77, 5], |_, attr| fast(attr));
        exchange(&mut world, next, 3000, SECOND);
        let fresh = world.hosts[1].engine.qp_counters(next[1]).unwrap();
        assert_eq!((fresh.discards, fresh.out_of_sequence), (0, 0), "{fresh:?}");
        current = next;
    }
    let stats = world.hosts[1].engine.stats();
    assert!(stats.unknown_qp > 1000, "{stats:?}");
    world.idle(SECOND);
    for host in [0, 1] {
        world.hosts[host].engine.destroy_qp(current[host]).unwrap();
        assert_eq!(world.hosts[host].engine.next_deadline(), None);
    }
}

/// Rules C2, C4.
#[test]
fn case_29_61_every_failing_request_completes() {
    let (mut world, [a, b]) = pair();
    let [left, right] = &mut world.hosts;
    let bad = Sge {
        lkey: LKey::new(0xbad0),
        ..left.sge(0, 8)
    };
    let (va, rkey) = (right.va(0), right.mr.rkey);
    // One by one: the first takes the QP to ERR, all others are flushed, three times the depth.
    for id in 0..768 {
        let host = &mut world.hosts[0];
        host.post_send(a, id, SendOp::Write { va, rkey }, &[bad]);
        host.post_recv(a, 1000 + id, &[host.sge(0, 8)]);
        world.settle();
        let status = if id == 0 {
            WcStatus::LocProtErr
        } else {
            WcStatus::WrFlushErr
        };
        let done = world.hosts[0].completions();
        assert_eq!(
            ids(&done),
            [(id, status), (1000 + id, WcStatus::WrFlushErr)]
        );
    }
    assert_eq!(world.hosts[0].engine.qp_state(a), Some(QpState::Err));
    assert_eq!(world.hosts[1].engine.qp_state(b), Some(QpState::Rts));
}

#[test]
fn case_29_retries_used_up_flush_both_queues() {
    let (mut world, [a, b]) = pair();
    world.net.add_blackhole(world.link.there, 0, u64::MAX);
    let host = &mut world.hosts[0];
    for id in 0..10 {
        host.post_send(a, id, SendOp::Send, &[host.sge(0, 8)]);
        host.post_recv(a, 100 + id, &[host.sge(0, 8)]);
    }
    let (done, _) = finish(&mut world, 20, 0, SECOND);
    let mut expected = vec![(0, WcStatus::RetryExcErr)];
    expected.extend((1..10).chain(100..110).map(|id| (id, WcStatus::WrFlushErr)));
    assert_eq!(ids(&done), expected);
    let host = &mut world.hosts[0];
    host.post_send(a, 50, SendOp::Send, &[host.sge(0, 8)]);
    host.post_recv(a, 150, &[host.sge(0, 8)]);
    let flushed = [50, 150].map(|id| (id, WcStatus::WrFlushErr));
    assert_eq!(ids(&host.completions()), flushed);
    assert_eq!(host.engine.poll_event(), None, "the completion says it");
    assert_eq!(world.hosts[1].engine.qp_state(b), Some(QpState::Rts));
}

#[test]
fn case_75_an_error_is_a_completion_and_an_empty_queue_is_none() {
    let (mut world, [a, _]) = pair();
    let cq = world.hosts[0].engine.create_cq(4).unwrap();
    let own = world.create_qp(0, |init| init.send_cq = cq);
    let mut wcs = [Completion::EMPTY; 4];
    let engine = &mut world.hosts[0].engine;
    assert_eq!(engine.poll_cq(cq, &mut wcs), 0);
    engine
        .modify_qp(own, &QpAttr::init(Access::empty()))
        .unwrap();
    to_state(&mut world, 0, own, QpState::Err);
    let sge = world.hosts[0].sge(0, 8);
    world.hosts[0].post_send(own, 1, SendOp::Send, &[sge]);
    world.idle(1000);
    let engine = &mut world.hosts[0].engine;
    assert_eq!(engine.poll_cq(cq, &mut wcs), 1);
    assert_eq!(ids(&wcs[..1]), [(1, WcStatus::WrFlushErr)]);
    // Nothing more, and nobody else's queue has it.
    assert_eq!(engine.poll_cq(cq, &mut wcs), 0);
    assert_eq!(world.hosts[0].completions(), []);
    assert_eq!(world.hosts[0].engine.qp_state(a), Some(QpState::Rts));
}

#[test]
fn case_123_a_failed_request_is_a_completion_and_no_event() {
    let (mut world, [a, b]) = pair();
    let host = &mut world.hosts[0];
    let (va, rkey) = (Va::new(0), RKey::new(0xbad));
    host.post_send(a, 1, SendOp::Write { va, rkey }, &[host.sge(0, 8)]);
    let (done, _) = finish(&mut world, 1, 0, SECOND);
    assert_eq!(ids(&done), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(world.hosts[0].engine.poll_event(), None);
    // The other side has no completion that tells of it.
    let told = AsyncEvent::qp(b, Event::QpAccessErr);
    let events: Vec<_> = std::iter::from_fn(|| world.hosts[1].engine.poll_event()).collect();
    assert!(events.contains(&told), "{events:?}");
}
