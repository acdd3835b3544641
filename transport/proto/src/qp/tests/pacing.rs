//! The ACK timer, the rule that asks for ACKs, and the pacer: silence counts only after a packet
//! that has asked, and something has always asked, or will.

use super::*;
use crate::cc::{CongestionControl, Fixed, Rate};
use crate::recovery::{AdaptiveParams, Reliability, SelectiveParams};
use WcStatus::Success;

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn selective() -> Option<Reliability> {
    Some(Reliability::Selective(SelectiveParams::default()))
}

fn adaptive() -> Option<Reliability> {
    Some(Reliability::Adaptive(AdaptiveParams::default()))
}

/// What a peer saw that loses nothing and acknowledges what asks, and nothing else.
struct Seen {
    packets: u32,
    took: Duration,
    done: Vec<(u64, WcStatus)>,
}

/// Runs until `wanted` sends are complete, `most` at most; ACKs take `rtt`.
fn perfect_peer(t: &mut Bench, rtt: Duration, most: Duration, wanted: usize) -> Seen {
    let (start, end) = (t.now, t.now + most);
    let mut expected = t.qp.send_psns().1;
    let mut seen = Seen {
        packets: 0,
        took: most,
        done: Vec::new(),
    };
    let mut acks: Vec<(Instant, u32)> = Vec::new();
    while t.now < end {
        while let Some(frame) = t.tx_frame() {
            let pkt = Packet::parse(&frame).unwrap();
            if pkt.psn() == expected {
                expected = expected.add(1);
            }
            seen.packets += 1;
            if pkt.ack_req() {
                acks.push((t.now + rtt, expected.sub(1).value()));
            }
        }
        seen.done.extend(t.sent());
        if seen.done.len() >= wanted {
            seen.took = t.now - start;
            break;
        }
        let ack_at = acks.first().map_or(Instant::NEVER, |&(at, _)| at);
        let at = t.qp.poll_timeout().unwrap_or(Instant::NEVER).min(ack_at);
        assert_ne!(at, Instant::NEVER, "it stands still for ever");
        t.now = t.now.max(at);
        if ack_at <= t.now {
            let (_, psn) = acks.remove(0);
            t.rx(ack(psn));
        }
        if t.qp.poll_timeout().is_some_and(|at| at <= t.now) {
            t.cx(|qp, cx| qp.handle_timeout(cx));
        }
    }
    seen
}

/// 60 packets with a full payload at so many kb/s.
fn limited(kbps: u64, timeout: u8, retry_cnt: u8, reliability: Option<Reliability>) -> Bench {
    let mut setup = Setup::default();
    setup.rtr.reliability = reliability;
    setup.rts.timeout = Some(timeout);
    setup.rts.retry_cnt = Some(retry_cnt);
    setup.rts.rate_limit = Some(Rate::bits_per_second(kbps * 1000));
    let mut t = setup.build();
    // A short one, so that a round trip is known.
    t.send(99, SendOp::Send, 8);
    t.send(1, write(0x10), 60 * 1024);
    t
}

#[test]
fn case_111_a_pacer_is_no_silence_of_the_peer() {
    for (kbps, timeout, retry_cnt, reliability) in [
        (10_000, 8, 7, None),
        (10_000, 8, 3, None),
        (10_000, 8, 0, None),
        (2_000, 8, 7, None),
        (3_000, 14, 0, None),
        (100, 14, 0, None),
        (100_000, 14, 7, adaptive()),
        (1_000, 14, 0, adaptive()),
        (100_000, 14, 7, selective()),
        (10_000, 14, 0, selective()),
        (100, 14, 0, selective()),
        (1_000_000, 14, 0, None),
    ] {
        let mut t = limited(kbps, timeout, retry_cnt, reliability);
        let seen = perfect_peer(&mut t, us(20), us(100_000_000), 2);
        let name = format!("{kbps} kb/s, timeout {timeout}, {retry_cnt} retries, {reliability:?}");
        assert_eq!(seen.done, [(99, Success), (1, Success)], "{name}");
        let counters = t.qp.counters();
        assert_eq!(counters.timeouts, 0, "{name}");
        assert_eq!(counters.retransmits, 0, "{name}");
        // 61 requests; a selective queue pair may ask by probes as well.
        assert_eq!(u64::from(seen.packets), 61 + counters.probes_out, "{name}");
        // 60 frames of at most 1200 bytes on the wire, and some round trips.
        let ideal = 60 * 1200 * 8 * 1_000_000 / kbps + 1_000_000;
        assert!(seen.took.as_nanos() < ideal, "{name}: {:?}", seen.took);
    }
}

/// Rule CC12.
#[test]
fn case_111_congestion_control_at_its_floor_causes_no_timeout() {
    for (name, timeout) in [("dcqcn-mlx5", 14), ("dcqcn", 14), ("dcqcn-mlx5", 10)] {
        for reliability in [None, adaptive(), selective()] {
            let line = Rate::bits_per_second(10_000_000_000);
            let mut setup = Setup::default();
            setup.rtr.reliability = reliability;
            setup.rts.timeout = Some(timeout);
            setup.rts.retry_cnt = Some(0);
            setup.rts.congestion = Some(CongestionControl::by_name(name, line, &[]).unwrap());
            let mut t = setup.build();
            for _ in 0..2000 {
                t.now += us(5);
                let now = t.now;
                t.qp.handle_cnp(now, &arrival());
            }
            t.send(1, write(0x10), 60 * 1024);
            let seen = perfect_peer(&mut t, us(20), us(20_000_000), 1);
            assert_eq!(seen.done, [(1, Success)], "{name} {reliability:?}");
            let counters = t.qp.counters();
            assert_eq!((counters.timeouts, counters.retransmits), (0, 0), "{name}");
        }
    }
}

#[test]
fn the_timer_runs_from_the_packet_that_asks() {
    let mut t = Bench::new();
    t.send(1, write(0x10), 60 * 1024);
    for _ in 0..31 {
        let frame = t.tx_frame().unwrap();
        assert!(!Packet::parse(&frame).unwrap().ack_req());
        assert_eq!(t.qp.poll_timeout(), None, "nobody has been asked");
    }
    t.now += us(500);
    let frame = t.tx_frame().unwrap();
    assert!(Packet::parse(&frame).unwrap().ack_req());
    let timeout = Duration::from_nanos(4096 << 14);
    assert_eq!(t.qp.poll_timeout(), Some(t.now + timeout));
    t.tx_frame().unwrap();
    // What asked is acknowledged; what left after it has not asked.
    t.rx(ack(0x11f));
    assert_eq!(t.qp.poll_timeout(), None);
}

/// Rule R2.
#[test]
fn case_116_a_smaller_window_asks_for_what_is_under_way() {
    let smaller = |n| QpAttr {
        congestion: Some(CongestionControl::Fixed(Fixed::new(Rate::UNLIMITED, n))),
        ..QpAttr::default()
    };
    let mut t = Bench::new();
    t.send(1, write(0x10), 60 * 1024);
    for _ in 0..20 {
        t.tx_frame().unwrap();
    }
    t.qp.modify(&smaller(8), &mut t.log).unwrap();
    t.expect(&["RDMA WRITE Middle 114 A [1024]"]);
    t.rx(ack(0x114));
    assert_eq!(t.tx().len(), 8, "the next window");
    // What has asked already is not asked for again.
    t.qp.modify(&smaller(4), &mut t.log).unwrap();
    t.expect_silence();
    assert_eq!(t.qp.counters().timeouts, 0);
}

#[test]
fn case_116_a_window_cut_by_delay_asks_for_what_is_under_way() {
    for reliability in [None, selective()] {
        let mut setup = Setup::default();
        let swift = CongestionControl::by_name("swift", Rate::UNLIMITED, &[("max_cwnd", 30)]);
        setup.rtr.reliability = reliability;
        setup.rts.congestion = Some(swift.unwrap());
        let mut t = setup.build();
        t.send(1, SendOp::Send, 8);
        t.tx();
        t.send(2, write(0x10), 60 * 1024);
        // Another queue pair has its turn after those that have not asked yet.
        while !t.qp.gauges().in_flight.eq(&17) {
            t.tx_frame().unwrap();
        }
        t.now += us(500);
        t.rx(ack(0x100));
        assert!(t.qp.gauges().window < 17);
        let asks = t.tx();
        assert!(
            asks.is_empty() || asks.len() == 1 && asks[0].contains(" A"),
            "{asks:?}"
        );
        assert!(
            t.qp.poll_timeout().is_some(),
            "{reliability:?}: an answer is awaited"
        );
    }
}

/// Rule CC11.
#[test]
fn case_120_a_rate_limit_that_is_raised_holds_at_once() {
    for kbps in [1, 10] {
        let mut t = limited(kbps, 14, 0, None);
        assert_eq!(t.tx().len(), 1);
        let limit = Some(Rate::bits_per_second(10_000_000_000));
        let attr = QpAttr {
            rate_limit: limit,
            ..QpAttr::default()
        };
        t.qp.modify(&attr, &mut t.log).unwrap();
        assert!(t.tx().len() > 10, "it need not wait");
    }
}

#[test]
fn case_121_a_timeout_switched_on_holds_for_what_is_outstanding() {
    let mut setup = Setup::default();
    setup.rts.timeout = Some(0);
    let mut t = setup.build();
    t.send(1, read(0x3000), 8);
    assert_eq!(t.tx().len(), 1);
    assert_eq!(t.qp.poll_timeout(), None);
    let sent = t.now;
    t.now += us(300);
    t.qp.modify(&QpAttr::state(QpState::Sqd), &mut t.log)
        .unwrap();
    for (code, after) in [(14, Some(4096 << 14)), (0, None), (8, Some(4096 << 8))] {
        let attr = QpAttr {
            timeout: Some(code),
            ..QpAttr::default()
        };
        t.qp.modify(&attr, &mut t.log).unwrap();
        let due = after.map(|ns| sent + Duration::from_nanos(ns));
        assert_eq!(t.qp.poll_timeout(), due, "code {code}");
    }
    t.wait(us(2000));
    t.expect(&["RDMA READ Request 100 A va=3000 rkey=77 len=8"]);
}

/// Rule K5.
#[test]
fn case_122_an_error_in_the_middle_of_a_request_spares_those_before_it() {
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 8);
    t.send(2, write(0x10), 3 * 1024);
    t.send(3, SendOp::Send, 8);
    t.tx_frame().unwrap();
    t.tx_frame().unwrap();
    t.mem.alive = false;
    // The packet that would ask for an ACK needs the memory, too.
    t.expect_silence();
    assert_eq!(t.sent(), []);
    assert!(t.qp.poll_timeout().is_some());
    t.rx(ack(0x100));
    let failed = [
        (1, Success),
        (2, WcStatus::LocProtErr),
        (3, WcStatus::WrFlushErr),
    ];
    assert_eq!(t.sent(), failed);
    assert_eq!(t.events(), [], "the completion says it");
}

#[test]
fn case_122_those_before_it_are_asked_for() {
    for reliability in [None, selective()] {
        let mut setup = Setup::default();
        setup.rtr.reliability = reliability;
        let mut t = setup.build();
        t.send_sges(1, SendOp::Send, &[], SendFlags::SIGNALED);
        t.send(2, write(0x10), 3 * 1024);
        t.tx_frame().unwrap();
        t.tx_frame().unwrap();
        t.mem.alive = false;
        let asks = t.tx();
        assert_eq!(asks.len(), 1, "{asks:?}");
        assert!(asks[0].contains(" A"), "{asks:?}");
        // The peer has what was sent of the second, too.
        t.rx(ack(0x101));
        assert_eq!(t.sent(), [(1, Success), (2, WcStatus::LocProtErr)]);
    }
    // Nothing is before it.
    let mut t = Bench::new();
    t.send(2, write(0x10), 3 * 1024);
    t.tx_frame().unwrap();
    t.mem.alive = false;
    t.expect_silence();
    assert_eq!(t.sent(), [(2, WcStatus::LocProtErr)]);
}
