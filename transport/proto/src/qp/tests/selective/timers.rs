//! Round trips, probes, and the two timeouts.

use super::*;
use WcStatus::{RetryExcErr, Success, WrFlushErr};

#[test]
fn round_trips_are_measured_by_packets_sent_once() {
    let mut t = bench();
    assert_eq!(t.qp.gauges().srtt, None);
    measured(&mut t, 10);
    assert_eq!(t.qp.gauges().srtt, Some(us(10)));
    for wr_id in 0..5 {
        t.send(wr_id, SendOp::Send, 8);
    }
    t.tx();
    t.now += us(18);
    // Made for 104, which took 18 µs.
    t.rx(sack(0x101, &[0x102, 0x103, 0x104], 0x104));
    assert_eq!(t.qp.gauges().srtt, Some(us(11)));
    assert_eq!(t.tx(), ["SEND Only 101 A [8]"]);
    t.now += us(3);
    // To which copy is this the answer?
    t.rx(sack(0x106, &[], 0x101));
    assert_eq!(t.qp.gauges().srtt, Some(us(11)));
    assert_eq!(t.qp.rtt().count(), 2);
}

/// Rule E7.
#[test]
fn a_probe_asks_when_nothing_comes_for_two_round_trips() {
    let mut t = bench();
    measured(&mut t, 10);
    for wr_id in 0..3 {
        t.send(wr_id, SendOp::Send, 8);
    }
    t.tx();
    t.wait(us(29));
    t.expect_silence();
    // Three round trips here: the first sample leaves a deviation of half of it.
    t.wait(us(1));
    t.expect(&["Probe 101 A id=1"]);
    // The answer says that the last is missing, and it has stayed away for long enough.
    t.now += us(10);
    t.rx(sack_of_probe(0x103, &[], 1));
    assert_eq!(t.sent().len(), 2);
    t.expect(&["SEND Only 103 A [8]"]);
    t.rx(sack(0x104, &[], 0x103));
    assert_eq!(t.sent().len(), 1);
    assert_eq!(t.qp.poll_timeout(), None);
    let counters = t.qp.counters();
    assert_eq!(
        (counters.tail_probes, counters.probes_out, counters.timeouts),
        (1, 1, 0)
    );
}

/// Rule E12.
#[test]
fn with_few_packets_in_flight_the_timeout_is_short() {
    for (packets, floor) in [(2, 100), (3, 320)] {
        let mut t = bench();
        for wr_id in 0..packets {
            t.send(wr_id, SendOp::Send, 8);
        }
        t.tx();
        t.wait(us(floor - 1));
        t.expect_silence();
        t.wait(us(1));
        assert_eq!(t.tx().len() as u64, packets, "all of it");
        assert_eq!(t.qp.counters().timeouts, 1);
        // Nothing was measured, and nothing came: the next takes twice as long.
        t.wait(us(2 * floor - 1));
        t.expect_silence();
        t.wait(us(1));
        assert_eq!(t.tx().len() as u64, packets);
    }
}

#[test]
fn the_oldest_packet_is_sent_again_even_if_it_was_reported() {
    let mut t = bench();
    for wr_id in 0..3 {
        t.send(wr_id, SendOp::Send, 8);
    }
    t.tx();
    t.rx(sack(0x100, &[0x101, 0x102], 0x102));
    // Executed, and then 101 was refused for want of a receive; the NAK got lost.
    t.rx(ack(0x100));
    assert_eq!(t.sent().len(), 1);
    t.wait(us(400));
    t.expect(&["Probe 101 A id=1"]);
    t.wait(us(400));
    t.expect(&["SEND Only 101 A [8]"]);
}

/// Rule E12.
#[test]
fn a_dead_peer_is_given_up_after_as_long_as_ever() {
    let mut setup = Setup::default();
    setup.rtr.reliability = Some(Reliability::Selective(params()));
    // 1.05 ms, twice it, four times it.
    setup.rts.timeout = Some(8);
    setup.rts.retry_cnt = Some(2);
    let mut t = setup.build();
    let begun = t.now;
    t.send(1, SendOp::Send, 8);
    t.send(2, SendOp::Send, 8);
    t.tx();
    let mut copies = 0;
    while t.qp.state() == QpState::Rts {
        t.wait(us(1100));
        copies += t.tx().len();
    }
    assert_eq!(t.sent(), [(1, RetryExcErr), (2, WrFlushErr)]);
    let waited = t.now.since(begun).as_nanos() / 1000;
    assert!((7 * 1048..9 * 1048).contains(&waited), "{waited} µs");
    assert!((8..=24).contains(&copies), "{copies}");
    assert_eq!(t.qp.counters().transport_retries_exceeded, 1);
    let failure = t.qp.failure().unwrap();
    assert_eq!(failure.last_psn_sent, Psn::new(0x101));
    assert_eq!(failure.last_psn_acked, Psn::new(0xff));
}

#[test]
fn progress_begins_the_patience_anew() {
    let mut setup = Setup::default();
    setup.rtr.reliability = Some(Reliability::Selective(params()));
    setup.rts.timeout = Some(5);
    setup.rts.retry_cnt = Some(0);
    let mut t = setup.build();
    for wr_id in 0..20 {
        t.send(wr_id, SendOp::Send, 8);
    }
    t.tx();
    // One packet is acknowledged every 100 µs; 131 µs without would be the end.
    for psn in 0x100..0x114 {
        t.wait(us(100));
        t.tx();
        t.rx(ack(psn));
    }
    assert_eq!(t.sent().len(), 20);
    assert_eq!(t.qp.state(), QpState::Rts);
}

/// Rule E8.
#[test]
fn an_overtaken_packet_is_late_after_a_time() {
    let mut t = bench();
    measured(&mut t, 10);
    t.send(1, SendOp::Send, 8);
    t.send(2, SendOp::Send, 8);
    t.tx();
    t.now += us(10);
    // One has overtaken it: tolerated, for a while.
    t.rx(sack(0x101, &[0x102], 0x102));
    t.expect_silence();
    let due = t.qp.poll_timeout().unwrap().since(t.now).as_nanos() / 1000;
    assert!((10..=30).contains(&due), "{due} µs");
    t.wait(us(due + 1));
    t.expect(&["SEND Only 101 A [8]"]);
    t.rx(sack(0x103, &[], 0x101));
    assert_eq!(t.sent(), [(1, Success), (2, Success)]);
}

/// While the pacer holds the next packet back there is nothing to ask about, and no timer runs for
/// it either: it would be due at every look, and an engine that sleeps could not.
#[test]
fn a_probe_waits_for_the_pacer_and_costs_no_timer_meanwhile() {
    let mut t = bench();
    measured(&mut t, 10);
    let slow = QpAttr {
        // A packet of 64 bytes and what surrounds it takes more than 1 ms.
        rate_limit: Some(crate::cc::Rate::bits_per_second(1_000_000)),
        ..QpAttr::default()
    };
    t.qp.modify(&slow, &mut t.log).unwrap();
    for wr_id in 0..3 {
        t.send(wr_id, SendOp::Send, 100);
    }
    assert_eq!(t.tx().len(), 1);
    let mut looks = 0;
    let end = t.now + us(300);
    while let Some(at) = t.qp.poll_timeout().filter(|&at| at <= end) {
        assert!(at > t.now || looks < 3, "due, and not to be had");
        t.now = t.now.max(at);
        t.cx(|qp, cx| qp.handle_timeout(cx));
        looks += 1;
        assert!(looks < 10, "{:?}", t.qp.poll_timeout());
    }
}

/// What is to be sent again and waits for the pacer is no second silence of the peer.
#[test]
fn a_copy_that_the_pacer_holds_back_is_not_timed_before_it_leaves() {
    let mut setup = Setup::default();
    setup.rtr.reliability = Some(Reliability::Selective(params()));
    // 1.05 ms, twice it, four times it: the peer is given up after 7.3 ms.
    setup.rts.timeout = Some(8);
    setup.rts.retry_cnt = Some(2);
    // A packet takes 9 ms.
    setup.rts.rate_limit = Some(crate::cc::Rate::bits_per_second(1_000_000));
    let mut t = setup.build();
    t.send(1, SendOp::Send, 1024);
    t.expect(&["SEND Only 100 A [1024]"]);
    for _ in 0..16 {
        t.wait(us(500));
        t.expect_silence();
    }
    assert_eq!(t.qp.counters().timeouts, 1);
    t.wait(us(2000));
    t.expect(&["SEND Only 100 A [1024]"]);
    assert_eq!(t.qp.counters().timeouts, 1);
    t.rx(ack(0x100));
    assert_eq!(t.sent(), [(1, Success)]);
}
