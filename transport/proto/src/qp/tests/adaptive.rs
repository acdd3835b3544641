//! The ACK timeout that follows the round trip.

use super::*;
use crate::recovery::{AdaptiveParams, Reliability};
use WcStatus::RetryExcErr;

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// T = 4.2 ms, two retries, a floor of 100 µs.
fn bench() -> Bench {
    let mut setup = Setup::default();
    let floor = us(100);
    setup.rtr.reliability = Some(Reliability::Adaptive(AdaptiveParams { floor }));
    setup.rts.timeout = Some(10);
    setup.rts.retry_cnt = Some(2);
    setup.build()
}

/// A SEND of its own that takes so long.
fn round_trip(t: &mut Bench, psn: u32, micros: u64) {
    t.send(9, SendOp::Send, 8);
    t.tx();
    t.now += us(micros);
    t.rx(ack(psn));
    t.sent();
}

#[test]
fn before_the_first_round_trip_the_timeout_is_the_configured_one() {
    let mut t = bench();
    t.send(1, SendOp::Send, 8);
    t.tx();
    t.wait(us(4000));
    t.expect_silence();
    t.wait(us(300));
    t.expect(&["SEND Only 100 A [8]"]);
}

/// Rule R19.
#[test]
fn the_timeout_follows_the_round_trip_between_floor_and_configured() {
    // Three round trips after the first sample: the smoothed one and four times half of it.
    for (rtt, wait) in [(10, 100), (200, 600), (3000, 4194)] {
        let mut t = bench();
        round_trip(&mut t, 0x100, rtt);
        t.send(1, SendOp::Send, 8);
        t.tx();
        t.wait(us(wait - 1));
        t.expect_silence();
        t.wait(us(2));
        t.expect(&["SEND Only 101 A [8]"]);
    }
}

/// Rule R19.
#[test]
fn short_timeouts_do_not_use_up_the_retries() {
    let mut t = bench();
    round_trip(&mut t, 0x100, 10);
    t.send(1, SendOp::Send, 8);
    t.tx();
    let begun = t.now;
    let mut copies = 0;
    while t.qp.state() == QpState::Rts {
        t.wait(us(5000));
        copies += t.tx().len();
    }
    assert_eq!(t.sent(), [(1, RetryExcErr)]);
    // Three times T, as three waits of T without it.
    let waited = t.now.since(begun).as_nanos() / 1000;
    assert!((3 * 4194..5 * 4194).contains(&waited), "{waited} µs");
    assert!((5..=10).contains(&copies), "{copies}");
}

#[test]
fn a_new_life_has_all_its_retries() {
    let mut t = bench();
    t.send(1, SendOp::Send, 8);
    t.tx();
    while t.qp.state() == QpState::Rts {
        t.wait(us(5000));
        t.tx();
    }
    t.sent();
    // RESET and up again, with the timeouts of the old life behind it.
    t.qp.modify(&QpAttr::state(QpState::Reset), &mut t.log)
        .unwrap();
    let floor = us(100);
    let psn = Psn::new(0x100);
    let mut rtr = QpAttr::rtr(path(), PathMtu::Mtu1024, PEER, psn);
    rtr.reliability = Some(Reliability::Adaptive(AdaptiveParams { floor }));
    let mut rts = QpAttr::rts(psn);
    (rts.timeout, rts.retry_cnt) = (Some(10), Some(2));
    for attr in [QpAttr::init(Access::empty()), rtr, rts] {
        t.qp.modify(&attr, &mut t.log).unwrap();
    }
    t.now += us(1_000_000);
    t.send(2, SendOp::Send, 8);
    t.tx();
    t.wait(us(4300));
    t.expect(&["SEND Only 100 A [8]"]);
    assert_eq!(t.sent(), []);
}

#[test]
fn nothing_of_it_shows_on_the_wire() {
    let mut t = bench();
    t.send(1, write(0x10), 2000);
    t.send(2, SendOp::Send, 8);
    let mut plain = Bench::new();
    plain.send(1, write(0x10), 2000);
    plain.send(2, SendOp::Send, 8);
    assert_eq!(t.tx(), plain.tx());
}
