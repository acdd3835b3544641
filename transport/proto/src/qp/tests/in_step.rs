//! Losses in step with what is sent: the same PSN is lost again and again unless the burst shrinks.

use super::*;
use WcStatus::Success;
use xroce_wire::opcode::{Position, Service};

/// What was lost on a network with a round trip of 20 µs and one packet in 1 µs.
struct Wire {
    /// Packets sent so far, and every how many-th of them is lost; 0: none.
    sent: u64,
    period: u64,
}

impl Wire {
    fn loses(&mut self) -> bool {
        self.sent += 1;
        self.period != 0 && self.sent.is_multiple_of(self.period)
    }
}

/// The answers arrive a round trip later; if nothing may leave then, the timer is waited for.
fn answer(t: &mut Bench, answers: Vec<P>, done: &mut Vec<(u64, WcStatus)>) {
    t.now += Duration::from_micros(20);
    for answer in answers {
        t.rx(answer);
    }
    done.extend(t.sent());
    if !t.qp.wants_to_send(t.now)
        && let Some(at) = t.qp.poll_timeout()
    {
        t.now = t.now.max(at);
        t.cx(|qp, cx| qp.handle_timeout(cx));
    }
    assert_eq!(t.qp.state(), QpState::Rts, "{done:?}");
}

/// Sends `packets` as one WRITE; the whole window leaves before any answer comes. Gives how many
/// packets it took and the time.
fn transfer(t: &mut Bench, wire: &mut Wire, packets: u32) -> (u64, Duration) {
    let start = t.now;
    let before = wire.sent;
    let full: Vec<Sge> = (0..packets / 64).map(|_| sge(0, 0x1_0000)).collect();
    let mut expected = t.qp.send_psns().0;
    let mut nak_sent = false;
    for sges in full.chunks(4) {
        t.send_sges(1, write(0x10), sges, SendFlags::SIGNALED);
    }
    let wanted = full.len().div_ceil(4);
    let mut done = Vec::new();
    while done.len() < wanted {
        let mut answers = Vec::new();
        while let Some(frame) = t.tx_frame() {
            t.now += Duration::from_micros(1);
            let pkt = Packet::parse(&frame).unwrap();
            if wire.loses() {
                continue;
            }
            let ahead = expected.distance_to(pkt.psn());
            if ahead > 0 {
                if !nak_sent {
                    answers.push(nak(expected.value(), 0x60));
                }
                nak_sent = true;
                continue;
            }
            if ahead == 0 {
                expected = expected.add(1);
                nak_sent = false;
            }
            if pkt.ack_req() {
                answers.push(ack(expected.sub(1).value()));
            }
        }
        answer(t, answers, &mut done);
    }
    assert!(done.iter().all(|&(_, status)| status == Success));
    (wire.sent - before, t.now - start)
}

#[test]
fn case_114_losses_in_step_end_in_completion_and_half_the_goodput() {
    for period in [
        130, 16, 17, 24, 31, 32, 48, 64, 100, 128, 200, 250, 255, 256, 257, 260, 280, 300,
    ] {
        let mut t = Bench::new();
        let mut wire = Wire { sent: 0, period };
        let packets = 8192;
        let (sent, took) = transfer(&mut t, &mut wire, packets);
        // Go-back-N with a window of 256 repeats up to 255 packets for one that is lost: losses at
        // random leave period / (period + 255).
        let at_random = period as f64 / (period as f64 + 255.0);
        let goodput = f64::from(packets) / sent as f64;
        assert!(
            goodput > at_random / 2.0,
            "every {period}th: {goodput} of {at_random}"
        );
        let ms = took.as_nanos() / 1_000_000;
        assert!(ms < 400, "every {period}th: {ms} ms for 8 ms of packets");
    }
}

/// Rule R18.
#[test]
fn case_114_a_burst_shrinks_when_a_packet_is_lost_twice_and_grows_again() {
    let mut t = Bench::new();
    for wr_id in 0..30 {
        t.send(wr_id, SendOp::Send, 8);
    }
    assert_eq!(t.tx().len(), 30);
    t.wait(Duration::from_millis(100));
    assert_eq!(t.tx().len(), 30, "lost once");
    t.wait(Duration::from_millis(300));
    assert_eq!(t.tx().len(), 8, "lost twice");
    t.wait(Duration::from_millis(300));
    assert_eq!(t.tx().len(), 30, "the peer may have the eight");
    t.wait(Duration::from_millis(300));
    let asks = t.tx();
    assert_eq!(asks.len(), 4);
    assert!(asks.iter().all(|sent| sent.contains(" A ")), "{asks:?}");
    t.rx(ack(0x103));
    assert_eq!(t.tx().len(), 4);
    t.rx(ack(0x107));
    assert_eq!(t.tx().len(), 4);
    t.rx(ack(0x10b));
    assert_eq!(t.tx().len(), 8, "three bursts arrived");
}

/// Rules R17, X6.
#[test]
fn what_a_nak_asked_for_is_sent_once_more_after_some_round_trips() {
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 8);
    t.tx();
    t.now += Duration::from_micros(20);
    t.rx(ack(0x100));
    for wr_id in 2..6 {
        t.send(wr_id, SendOp::Send, 8);
    }
    t.tx();
    t.rx(nak(0x102, 0x60));
    assert_eq!(t.tx().len(), 3);
    t.wait(Duration::from_micros(99));
    t.expect_silence();
    t.wait(Duration::from_micros(100));
    assert_eq!(
        t.tx().len(),
        3,
        "twice the longest round trip, 100 µs at least"
    );
    assert_eq!(t.qp.counters().early_timeouts, 1);
    t.wait(Duration::from_millis(60));
    t.expect_silence();
    t.wait(Duration::from_millis(10));
    assert_eq!(t.tx().len(), 3, "then the ACK timeout decides");
    assert_eq!(t.qp.counters().timeouts, 1);
}

/// Reads `psns` responses with each of several READs.
fn read_all(t: &mut Bench, wire: &mut Wire, psns: u32, reads: u64) {
    // The region is smaller than a READ: it comes to the same place several times.
    let pieces: Vec<Sge> = (0..psns)
        .step_by(64)
        .map(|from| sge(0, (psns - from).min(64) * MTU as u32))
        .collect();
    for wr_id in 0..reads {
        t.send_sges(wr_id, read(0x10), &pieces, SendFlags::SIGNALED);
    }
    let mut done = Vec::new();
    while done.len() < reads as usize {
        let mut answers = Vec::new();
        while let Some(frame) = t.tx_frame() {
            let pkt = Packet::parse(&frame).unwrap();
            let asked = (pkt.reth().unwrap().len).div_ceil(MTU as u32);
            for n in 0..asked {
                let opcode =
                    Opcode::read_response(Service::Rc, Position::of(n == 0, n + 1 == asked));
                t.now += Duration::from_micros(1);
                if !wire.loses() {
                    answers.push(response(opcode.unwrap(), pkt.psn().add(n).value(), MTU));
                }
            }
        }
        answer(t, answers, &mut done);
    }
    assert!(done.iter().all(|&(_, status)| status == Success));
}

/// Rule R18.
#[test]
fn case_114_a_read_in_step_is_asked_for_in_parts() {
    for period in [
        16, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257,
    ] {
        for psns in [16, 32, 64, 127, 128, 255, 256] {
            for skip in [0, 1, period / 2, period - 1] {
                let mut t = Bench::new();
                let mut wire = Wire { sent: skip, period };
                read_all(&mut t, &mut wire, psns, 16);
            }
        }
    }
}
