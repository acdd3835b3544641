//! Completer transcripts. Rows are those of the collected cases.

use super::*;
use WcStatus::{BadRespErr, RemAccessErr, RemInvReqErr, RemOpErr, Success, WrFlushErr};
use xroce_wire::opcode::Opcode as O;

#[test]
fn a_read_lands_in_its_sges() {
    let mut t = Bench::new();
    let sges = [sge(0, 1000), sge(4000, 2000)];
    t.send_sges(1, read(0x10), &sges, SendFlags::SIGNALED);
    t.tx();
    t.rx(response(O::RcReadResponseFirst, 0x100, MTU));
    t.rx(response(O::RcReadResponseMiddle, 0x101, MTU));
    assert_eq!(t.sent(), []);
    t.rx(response(O::RcReadResponseLast, 0x102, 3000 - 2 * MTU));
    assert_eq!(t.log.sends[0].byte_len, 3000);
    assert_eq!(t.sent(), [(1, Success)]);
    assert_eq!(t.mem.bytes[..1000], [0xaa; 1000]);
    assert_eq!(t.mem.bytes[4000..6000], [0xaa; 2000]);
    assert_ne!(t.mem.bytes[1000..1004], [0xaa; 4]);
}

/// Rule C2.
#[test]
fn unsignaled_requests_complete_silently_but_errors_speak() {
    let mut t = Bench::new();
    t.send_flags(1, SendOp::Send, 8, SendFlags::empty());
    t.send(2, SendOp::Send, 8);
    t.tx();
    t.rx(ack(0x101));
    assert_eq!(t.sent(), [(2, Success)]);
    t.send_flags(3, SendOp::Send, 8, SendFlags::empty());
    t.tx();
    t.rx(nak(0x102, 0x61));
    assert_eq!(t.sent(), [(3, RemInvReqErr)]);
}

#[test]
fn c3_an_unsignaled_request_frees_its_slot_when_it_is_done() {
    let mut t = Bench::new();
    for i in 0..128 {
        t.send_flags(i, SendOp::Send, 1, SendFlags::empty());
    }
    t.tx();
    t.rx(ack(0x17f));
    assert_eq!(t.sent(), []);
    t.send(128, SendOp::Send, 1);
    t.tx();
    t.rx(ack(0x180));
    assert_eq!(t.sent(), [(128, Success)]);
}

/// Rules R6, R8.
#[test]
fn case_52_an_ack_does_not_complete_past_an_unanswered_read() {
    let mut t = Bench::new();
    t.send(40, write(0x10), 8);
    t.send(41, read(0x3000), 3000);
    t.send(42, write(0x20), 8);
    assert_eq!(t.tx().len(), 3);
    // PSNs: 100, 101..103, 104. The second and third response get lost.
    t.rx(response(O::RcReadResponseFirst, 0x101, MTU));
    assert_eq!(t.sent(), [(40, Success)]);
    t.rx(ack(0x104));
    assert_eq!(t.sent(), []);
    t.expect(&[
        "RDMA READ Request 102 A va=3400 rkey=77 len=1976",
        "RDMA WRITE Only 104 A va=20 rkey=77 len=8 [8]",
    ]);
    t.rx(response(O::RcReadResponseFirst, 0x102, MTU));
    t.rx(response(O::RcReadResponseLast, 0x103, 3000 - 2 * MTU));
    t.rx(ack(0x104));
    assert_eq!(t.sent(), [(41, Success), (42, Success)]);
    assert_eq!(t.qp.counters().implied_naks, 1);
}

/// Rule R8.
#[test]
fn a_gap_in_read_responses_asks_for_the_rest_once() {
    let mut t = Bench::new();
    t.send(1, read(0x3000), 4 * MTU as u32);
    t.tx();
    t.rx(response(O::RcReadResponseFirst, 0x100, MTU));
    t.rx(response(O::RcReadResponseMiddle, 0x102, MTU));
    t.rx(response(O::RcReadResponseLast, 0x103, MTU));
    t.expect(&["RDMA READ Request 101 A va=3400 rkey=77 len=3072"]);
    t.rx(response(O::RcReadResponseFirst, 0x101, MTU));
    // A late packet of the first answer fits as well.
    t.rx(response(O::RcReadResponseMiddle, 0x102, MTU));
    t.rx(response(O::RcReadResponseMiddle, 0x102, MTU));
    t.rx(response(O::RcReadResponseLast, 0x103, MTU));
    assert_eq!(t.sent(), [(1, Success)]);
    t.expect_silence();
}

/// What the peer sent before it was asked again comes behind the response that others overtook.
/// It is no second loss.
#[test]
fn case_130_one_late_response_is_one_loss() {
    let mut t = Bench::new();
    let len = MTU as u32 + 8;
    t.send(1, read(0x3000), len);
    t.send(2, read(0x5000), len);
    assert_eq!(t.tx().len(), 2);
    // The second response of the first READ overtakes the first one.
    t.rx(response(O::RcReadResponseLast, 0x101, 8));
    t.rx(response(O::RcReadResponseFirst, 0x100, MTU));
    t.expect(&[
        "RDMA READ Request 101 A va=3400 rkey=77 len=8",
        "RDMA READ Request 102 A va=5000 rkey=77 len=1032",
    ]);
    t.send(3, read(0x7000), len);
    t.expect(&["RDMA READ Request 104 A va=7000 rkey=77 len=1032"]);
    // The answer to the second READ as it was asked for first, then what was asked for again.
    t.rx(response(O::RcReadResponseFirst, 0x102, MTU));
    t.rx(response(O::RcReadResponseLast, 0x103, 8));
    t.rx(response(O::RcReadResponseOnly, 0x101, 8));
    t.rx(response(O::RcReadResponseFirst, 0x102, MTU));
    t.rx(response(O::RcReadResponseLast, 0x103, 8));
    assert_eq!(t.sent(), [(1, Success), (2, Success)]);
    t.expect_silence();
    // The first response of the third is really missing.
    t.rx(response(O::RcReadResponseLast, 0x105, 8));
    t.expect(&["RDMA READ Request 104 A va=7000 rkey=77 len=1032"]);
}

/// Rule R9.
#[test]
fn case_53_ghosts_are_dropped() {
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 8);
    t.tx();
    for packet in [
        ack(0x10a),
        ack(0xff),
        nak(0x10a, 0x62),
        response(O::RcReadResponseOnly, 0x101, 8),
    ] {
        t.rx(packet);
    }
    assert_eq!(t.sent(), []);
    assert_eq!(t.qp.state(), QpState::Rts);
    assert_eq!(t.qp.counters().ghost_responses, 4);
    t.rx(ack(0x100));
    assert_eq!(t.sent(), [(1, Success)]);
}

/// Rules R10, R14, X10.
#[test]
fn case_53_bad_responses_fail_the_request() {
    let start = || {
        let mut t = Bench::new();
        t.send(1, read(0x10), 3 * MTU as u32);
        t.send(2, SendOp::Send, 8);
        t.tx();
        t
    };
    let bad = [
        response(O::RcReadResponseMiddle, 0x100, MTU),
        response(O::RcReadResponseLast, 0x100, MTU),
        response(O::RcReadResponseOnly, 0x100, MTU),
        response(O::RcReadResponseFirst, 0x100, MTU - 4),
        response(O::RcReadResponseFirst, 0x100, 0),
        P {
            aeth: Some(Syndrome::from_u8(0x62)),
            ..response(O::RcReadResponseFirst, 0x100, MTU)
        },
        nak(0x100, 0x40),
        nak(0x100, 0x7f),
        nak(0x100, 0x64),
        p(O::RcAtomicAcknowledge, 0x100),
    ];
    for packet in bad {
        let mut t = start();
        t.rx(packet);
        assert_eq!(t.sent(), [(1, BadRespErr), (2, WrFlushErr)]);
        assert_eq!(t.events(), [], "the completion says it");
    }
    // A READ response to what was a SEND.
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 8);
    t.tx();
    t.rx(response(O::RcReadResponseOnly, 0x100, 8));
    assert_eq!(t.sent(), [(1, BadRespErr)]);
    // First in the middle of an answer that was never asked for again.
    let mut t = start();
    t.rx(response(O::RcReadResponseFirst, 0x100, MTU));
    t.rx(response(O::RcReadResponseFirst, 0x101, MTU));
    assert_eq!(t.sent(), [(1, BadRespErr), (2, WrFlushErr)]);
}

/// Rules R9, X5.
#[test]
fn case_98_an_old_ack_is_no_progress() {
    let mut t = Setup {
        rts: QpAttr {
            retry_cnt: Some(2),
            timeout: Some(8),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    t.send(1, SendOp::Send, 8);
    t.tx();
    t.rx(ack(0x100));
    t.send(2, SendOp::Send, 8);
    t.tx();
    for _ in 0..100 {
        t.rx(ack(0x100));
        t.wait(Duration::from_micros(100));
        t.tx();
    }
    assert_eq!(t.sent(), [(1, Success), (2, WcStatus::RetryExcErr)]);
    assert_eq!(t.qp.counters().timeouts, 3);
}

/// Rules R14, C1, X9.
#[test]
fn fatal_naks_and_their_status() {
    for (byte, status) in [(0x61, RemInvReqErr), (0x62, RemAccessErr), (0x63, RemOpErr)] {
        let mut t = Bench::new();
        for i in 1..=4 {
            t.send(i, SendOp::Send, 8);
        }
        t.recv(9, 8);
        t.tx();
        t.rx(nak(0x102, byte));
        assert_eq!(
            t.sent(),
            [(1, Success), (2, Success), (3, status), (4, WrFlushErr)],
            "{byte:#x}"
        );
        assert_eq!(t.received(), [(9, WrFlushErr)]);
        assert_eq!(t.qp.state(), QpState::Err);
        t.expect_silence();
    }
}

#[test]
fn case_65_a_fenced_send_carries_what_the_read_before_it_brought() {
    let mut t = Bench::new();
    t.mem.bytes[..8].fill(0);
    t.send(1, read(0x9000), 8);
    t.send_flags(2, SendOp::Send, 8, SendFlags::FENCE);
    t.expect(&["RDMA READ Request 100 A va=9000 rkey=77 len=8"]);
    t.rx(response(O::RcReadResponseOnly, 0x100, 0).bytes(b"read me!"));
    let frame = t.tx_frame().unwrap();
    assert_eq!(Packet::parse(&frame).unwrap().payload(), b"read me!");
    assert_eq!(t.sent(), [(1, Success)]);
}

#[test]
fn case_26_a_nak_in_the_middle_of_a_read_is_final() {
    let mut t = Bench::new();
    t.send(1, read(0x10), 8 * MTU as u32);
    t.tx();
    t.rx(response(O::RcReadResponseFirst, 0x100, MTU));
    t.rx(response(O::RcReadResponseMiddle, 0x101, MTU));
    t.rx(nak(0x102, 0x62));
    assert_eq!(t.sent(), [(1, RemAccessErr)]);
    t.expect_silence();
}

#[test]
fn an_ack_that_overtakes_a_resend_ends_it() {
    let mut t = Bench::new();
    for i in 0..8 {
        t.send(i, SendOp::Send, 8);
    }
    t.tx();
    t.wait(Duration::from_millis(70));
    // The timer sent us back to the start; two packets in, the original ACK arrives.
    t.tx_frame().unwrap();
    t.tx_frame().unwrap();
    t.rx(ack(0x105));
    t.expect(&["SEND Only 106 A [8]", "SEND Only 107 A [8]"]);
    t.rx(ack(0x107));
    assert_eq!(t.sent().len(), 8);
    assert_eq!(t.qp.poll_timeout(), None, "no timer on an idle QP");
}

#[test]
fn the_window_bounds_what_is_in_flight() {
    use crate::cc::{CongestionControl, Fixed, Rate};
    let narrow = CongestionControl::Fixed(Fixed::new(Rate::UNLIMITED, 4));
    let mut t = Setup {
        rts: QpAttr {
            congestion: Some(narrow),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    t.send(1, SendOp::Send, 10 * MTU as u32);
    let sent = t.tx();
    assert_eq!(sent.len(), 4);
    assert_eq!(
        sent[3], "SEND Middle 103 A [1024]",
        "the packet that fills it asks for an ACK"
    );
    t.rx(ack(0x101));
    assert_eq!(t.tx().len(), 2);
}

/// The peer waits for one ACK timeout after each packet of a READ's responses: a governed rate below
/// that would end the connection. A rate that the user has set is kept.
/// Rule CC12.
#[test]
fn congestion_control_slows_down_to_a_packet_per_quarter_of_the_timeout() {
    use crate::cc::{CongestionControl, Fixed, Rate};
    let rate = Rate::bits_per_second(1_000_000);
    let slow = [
        ("rpg_min_rate", 1),
        ("rate_to_set_on_first_cnp", 1),
        ("rpg_time_reset", 1_000_000),
    ];
    let line = Rate::bits_per_second(1_000_000_000);
    let governed = CongestionControl::by_name("dcqcn", line, &slow).unwrap();
    let fixed = CongestionControl::Fixed(Fixed::new(rate, 256));
    // 4.096 µs · 2^8 is 1.05 ms; at 1 Mb/s the 1106 bytes of a packet take 8.8 ms.
    for (congestion, packets) in [(governed, 30..=40), (fixed, 1..=1)] {
        let mut t = Setup {
            rts: QpAttr {
                congestion: Some(congestion),
                timeout: Some(8),
                ..QpAttr::rts(Psn::new(0x100))
            },
            ..Setup::default()
        }
        .build();
        t.qp.handle_cnp(t.now, &arrival());
        t.rx(p(O::RcReadRequest, 0x100)
            .reth(BASE, KEY, 60 * MTU as u32)
            .a());
        let end = t.now + Duration::from_nanos(8 << 20);
        let mut sent = 0;
        while t.now < end {
            sent += t.tx().len();
            t.wait(Duration::from_micros(10));
        }
        assert!(packets.contains(&sent), "{sent}");
    }
}
