//! Packets that get lost, and receivers that are not ready.

use xroce_net::sim::Impairment;
use xroce_proto::counters::Counters;
use xroce_proto::qp::QpState;
use xroce_proto::wc::WcStatus;
use xroce_proto::wr::SendOp;
use xroce_wire::newtypes::Qpn;
use xroce_wire::opcode::Operation;
use xroce_wire::syndrome::RnrTimer;

use crate::common::{Setup, World};
use crate::{MTU, SECOND, TIMEOUT_NS, calm, exchange, fast, finish, ids, lose, ok, pair};

/// Counters of both ends of a pair.
fn counters(world: &World, qpns: [Qpn; 2]) -> [Counters; 2] {
    [0, 1].map(|i: usize| world.hosts[i].engine.qp_counters(qpns[i]).unwrap())
}

#[test]
fn a_lost_read_response_is_asked_for_again_at_once() {
    let (mut world, qpns) = pair();
    let back = world.link.back;
    let lost = lose(&world, back, 1, |p| {
        p.info().operation == Operation::ReadResponse && !p.info().starts()
    });
    let took = exchange(&mut world, qpns, 10 * 1024, SECOND);
    assert_eq!(lost.get(), 1);
    assert!(
        took < TIMEOUT_NS,
        "{took} ns: the gap shows without a timer"
    );
    let [c, _] = counters(&world, qpns);
    // Every later response implies it; it is asked for once.
    assert_eq!((c.retransmits, c.timeouts), (1, 0), "{c:?}");
    assert_eq!(c.implied_naks, 8, "{c:?}");
}

#[test]
fn a_lost_last_read_response_and_a_lost_request_take_the_timer() {
    for response in [true, false] {
        let (mut world, qpns) = pair();
        let wire = if response {
            world.link.back
        } else {
            world.link.there
        };
        let lost = lose(&world, wire, 1, move |p| {
            if response {
                p.info().operation == Operation::ReadResponse && p.info().ends()
            } else {
                p.info().operation == Operation::ReadRequest
            }
        });
        let took = exchange(&mut world, qpns, 10 * 1024, SECOND);
        assert_eq!(lost.get(), 1);
        assert!((TIMEOUT_NS..2 * TIMEOUT_NS).contains(&took), "{took} ns");
        let [c, d] = counters(&world, qpns);
        assert_eq!(c.timeouts, 1, "{c:?}");
        assert_eq!(d.duplicates, u64::from(response), "{d:?}");
    }
}

#[test]
fn a_lost_ack_is_made_up_for_by_a_later_one() {
    let (mut world, qpns) = pair();
    let back = world.link.back;
    let lost = lose(&world, back, 1, |p| {
        p.info().operation == Operation::Acknowledge
    });
    // The SEND's ACK is lost; the READ's response says the same.
    let took = exchange(&mut world, qpns, 100, SECOND);
    assert_eq!(lost.get(), 1);
    assert!(took < TIMEOUT_NS, "{took} ns");
    assert_eq!(counters(&world, qpns)[0].retransmits, 0);
}

#[test]
fn case_40_the_last_ack_is_lost_twice_and_the_third_counts() {
    let (mut world, [a, b]) = pair();
    let back = world.link.back;
    let lost = lose(&world, back, 2, |p| {
        p.info().operation == Operation::Acknowledge
    });
    let [left, right] = &mut world.hosts;
    right.post_recv(b, 1, &[right.sge(0, 8)]);
    right.post_recv(b, 2, &[right.sge(8, 8)]);
    left.post_send(a, 3, SendOp::Send, &[left.sge(0, 8)]);
    let (sent, received) = finish(&mut world, 1, 1, SECOND);
    assert_eq!(lost.get(), 2);
    assert_eq!((ids(&sent), ids(&received)), (ok(&[3]), ok(&[1])));
    let [c, d] = counters(&world, [a, b]);
    assert_eq!((c.timeouts, c.retransmits), (2, 2));
    assert_eq!((d.duplicates, d.recvs_completed), (2, 1));
}

#[test]
fn a_blackhole_of_three_seconds_is_survived_with_a_fitting_timeout() {
    let mut world = calm().build();
    // Code 17: 537 ms; sent again after that, after 1.6 s and after 3.8 s.
    let qpns = world.connect(
        MTU,
        [5, 6],
        |_| {},
        |attr| {
            if attr.state == Some(QpState::Rts) {
                attr.timeout = Some(17);
            }
        },
    );
    exchange(&mut world, qpns, 100, SECOND);
    let now = world.net.now();
    for wire in [world.link.there, world.link.back] {
        world.net.add_blackhole(wire, now, now + 3 * SECOND);
    }
    let took = exchange(&mut world, qpns, 100_000, 5 * SECOND);
    assert!(took > 3 * SECOND, "{took} ns");
    let [c, _] = counters(&world, qpns);
    assert_eq!(c.timeouts, 3, "{c:?}");
}

/// A peer that is silent from the start, or from some time on; returns when the request failed
/// and what the engine says about it.
fn silence(heard_before: bool) -> (u64, String) {
    let (mut world, [a, b]) = pair();
    if heard_before {
        exchange(&mut world, [a, b], 100, SECOND);
    }
    let start = world.net.now();
    world.net.add_blackhole(world.link.there, start, u64::MAX);
    let [left, right] = &mut world.hosts;
    right.post_recv(b, 1, &[right.sge(0, 8)]);
    for id in [2, 3] {
        left.post_send(a, id, SendOp::Send, &[left.sge(0, 8)]);
    }
    let (sent, _) = finish(&mut world, 2, 0, SECOND);
    let failed = [(2, WcStatus::RetryExcErr), (3, WcStatus::WrFlushErr)];
    assert_eq!(ids(&sent), failed);
    assert_eq!(world.hosts[0].engine.qp_state(a), Some(QpState::Err));
    let text = world.hosts[0].engine.failure(a).unwrap().to_string();
    (world.net.now() - start, text)
}

#[test]
fn case_58_a_blackhole_for_ever_ends_in_time_and_says_what_it_knows() {
    for (heard_before, words) in [(false, "nothing ever came back"), (true, "last response")] {
        let (took, text) = silence(heard_before);
        // The first try waits one timeout, the first retry two, the other six four each; a tick of
        // the wheel on top.
        let expected = 27 * TIMEOUT_NS;
        let late = 8 * 8192 + 1000;
        assert!((expected..expected + late).contains(&took), "{took} ns");
        assert!(text.contains(words), "{text}");
        assert!(text.contains("RetryExcErr on work request 2"), "{text}");
        assert!(text.contains("8 timeouts (retry_cnt 7)"), "{text}");
        let cause = if heard_before {
            "the peer stopped"
        } else {
            "the peer is down"
        };
        assert!(text.contains(cause), "{text}");
    }
}

#[test]
fn case_95_an_rnr_storm_is_no_livelock() {
    let mut world = calm().build();
    let [a, b] = world.connect(
        MTU,
        [1, 1],
        |init| init.max_recv_wr = 4,
        |attr| {
            fast(attr);
            attr.min_rnr_timer = attr.min_rnr_timer.and(RnrTimer::new(1));
            attr.rnr_retry = attr.rnr_retry.map(|_| 7);
        },
    );
    // 5000 messages a second for a fifth of a second, against a sender that has them all ready.
    const MESSAGES: u64 = 1000;
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    while received < MESSAGES {
        let [left, right] = &mut world.hosts;
        right.post_recv(b, received, &[right.sge(0, 64)]);
        while posted < MESSAGES && posted - sent < 128 {
            left.post_send(a, posted, SendOp::Send, &[left.sge(0, 64)]);
            posted += 1;
        }
        world.idle(200_000);
        let done = ids(&world.hosts[1].completions());
        assert_eq!(done, ok(&[received]), "one receive, one message");
        received += 1;
        let done = world.hosts[0].completions();
        assert!(done.iter().all(|c| c.status == WcStatus::Success));
        sent += done.len() as u64;
    }
    assert_eq!(world.net.now(), MESSAGES * 200_000);
    let [c, _] = counters(&world, [a, b]);
    assert!(c.rnr_naks_in > MESSAGES && c.timeouts == 0, "{c:?}");
}

#[test]
fn case_90_sizes_around_8_k_with_loss_in_both_directions() {
    let wire = Impairment {
        loss_ppm: 10_000,
        rate_bps: 10_000_000_000,
        ..Impairment::delay(2000)
    };
    let setup = Setup {
        seed: 90,
        wires: [wire; 2],
        ..Setup::default()
    };
    let mut world = setup.build();
    let qpns = world.connect(MTU, [0xff_ff00, 0], |_| {}, fast);
    for _ in 0..50 {
        for len in [8191, 8192, 8193, 16 << 10] {
            exchange(&mut world, qpns, len, SECOND);
        }
    }
    let [c, d] = counters(&world, qpns);
    let recovered = c.timeouts + c.seq_naks_in + c.implied_naks;
    assert!(recovered > 20 && d.duplicates > 0, "{c:?} {d:?}");
    assert_eq!(c.sends_completed, 600);
}

#[test]
fn case_90_small_and_large_in_one_pipeline() {
    let wire = Impairment {
        loss_ppm: 10_000,
        ..Impairment::delay(2000)
    };
    let setup = Setup {
        seed: 91,
        wires: [wire; 2],
        ..Setup::default()
    };
    let mut world = setup.build();
    let [a, b] = world.connect(MTU, [7, 7], |_| {}, fast);
    for round in 0..100 {
        let [left, right] = &mut world.hosts;
        let bytes = crate::common::pattern(round, 10_000);
        left.region.write_at(0, &bytes).unwrap();
        let parts = [(0u64, 64u32), (64, 8192), (8256, 64)];
        for (i, (at, len)) in parts.into_iter().enumerate() {
            let (va, rkey) = (right.va(at), right.mr.rkey);
            left.post_send(
                a,
                i as u64,
                SendOp::Write { va, rkey },
                &[left.sge(at, len)],
            );
        }
        let (sent, _) = finish(&mut world, 3, 0, SECOND);
        assert_eq!(ids(&sent), ok(&[0, 1, 2]));
        assert!(world.hosts[1].bytes(0, 8320) == bytes[..8320], "{round}");
    }
    assert!(counters(&world, [a, b])[0].retransmits > 0);
}

/// A host whose thread was away for longer than the ACK timeout looks at what came meanwhile before
/// it takes the time for silence.
#[test]
fn case_130_what_came_while_nobody_polled_ends_the_wait() {
    let (mut world, [a, _]) = pair();
    let [left, right] = &mut world.hosts;
    let (va, rkey) = (right.va(0), right.mr.rkey);
    left.post_send(a, 1, SendOp::Read { va, rkey }, &[left.sge(0, 3000)]);
    for host in [0, 1, 1] {
        let now = world.now();
        world.hosts[host].engine.poll_once(now).unwrap();
        let next = world.net.now() + 10_000;
        world.net.advance_to(next);
    }
    // Twenty timeouts.
    let next = world.net.now() + 20_000_000;
    world.net.advance_to(next);
    let now = world.now();
    world.hosts[0].engine.poll_once(now).unwrap();
    let told = world.hosts[0].completions();
    assert_eq!(ids(&told), ok(&[1]));
    let counters = world.hosts[0].engine.qp_counters(a).unwrap();
    assert_eq!((counters.timeouts, counters.retransmits), (0, 0));
}
