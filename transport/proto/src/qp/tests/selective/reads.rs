//! READs and what else is answered: responses in any order, asked for again one by one.

use super::*;
use WcStatus::{BadRespErr, Success};
use xroce_wire::opcode::Opcode as O;

/// Response `n` of `psns` from `psn` on, filled with `fill`.
fn reply(psn: u32, (n, psns): (u32, u32), fill: u8) -> P {
    let opcode = match (n, n + 1 == psns) {
        (0, true) => O::RcReadResponseOnly,
        (0, false) => O::RcReadResponseFirst,
        (_, true) => O::RcReadResponseLast,
        (_, false) => O::RcReadResponseMiddle,
    };
    P {
        payload: vec![fill; MTU],
        ..response(opcode, psn + n, MTU)
    }
}

/// Rule E11.
#[test]
fn responses_are_placed_as_they_come_and_lost_ones_asked_for_alone() {
    let mut t = bench();
    t.send(1, read(0x3000), 10 * MTU as u32);
    t.expect(&["RDMA READ Request 100 A va=3000 rkey=77 len=10240"]);
    for n in [0, 3, 4, 7, 8] {
        t.rx(reply(0x100, (n, 10), n as u8 + 1));
    }
    // More than two have overtaken 1 and 2, not more than two 5 and 6.
    t.expect(&["RDMA READ Request 101 A va=3400 rkey=77 len=2048"]);
    assert_eq!(t.mem.bytes[8 * MTU..9 * MTU], [9; MTU]);
    t.rx(reply(0x100, (9, 10), 10));
    t.expect(&["RDMA READ Request 105 A va=4400 rkey=77 len=2048"]);
    // The answers are messages of their own.
    t.rx(reply(0x105, (1, 2), 7));
    t.rx(reply(0x105, (0, 2), 6));
    t.rx(reply(0x101, (0, 2), 2));
    assert_eq!(t.sent(), []);
    t.rx(reply(0x101, (1, 2), 3));
    assert_eq!(t.sent(), [(1, Success)]);
    for n in 0..10 {
        assert_eq!(t.mem.bytes[n * MTU..(n + 1) * MTU], [n as u8 + 1; MTU]);
    }
    assert_eq!(t.qp.counters().retransmits_selective, 2);
}

/// Rule E11.
#[test]
fn an_ack_beyond_a_read_does_not_make_it_lost() {
    let mut t = bench();
    t.send(1, read(0x3000), 2 * MTU as u32);
    t.send(2, SendOp::Send, 8);
    t.tx();
    t.rx(ack(0x102));
    t.expect_silence();
    t.rx(reply(0x100, (1, 2), 2));
    assert_eq!(t.sent(), []);
    t.rx(reply(0x100, (0, 2), 1));
    assert_eq!(t.sent(), [(1, Success), (2, Success)]);
    // Copies are nobody's.
    t.send(3, SendOp::Send, 8);
    t.rx(reply(0x100, (0, 2), 9));
    assert_eq!(t.qp.counters().ghost_responses, 1);
    assert_eq!(t.mem.bytes[..MTU], [1; MTU]);
}

#[test]
fn a_lost_request_of_a_read_is_found_like_any_other_packet() {
    let mut t = bench();
    t.send(1, read(0x3000), 3 * MTU as u32);
    for wr_id in 2..6 {
        t.send(wr_id, SendOp::Send, 8);
    }
    t.tx();
    t.rx(sack(0x100, &[0x103, 0x104, 0x105], 0x105));
    t.expect(&["RDMA READ Request 100 A va=3000 rkey=77 len=3072"]);
    // It was executed, and with it all that had waited.
    for n in 0..3 {
        t.rx(reply(0x100, (n, 3), 1));
    }
    assert_eq!(t.sent(), [(1, Success)]);
    t.rx(sack(0x107, &[], 0x100));
    assert_eq!(t.sent().len(), 4);
}

#[test]
fn an_atomic_is_asked_for_again_with_its_own_psn() {
    let mut t = bench();
    let add = SendOp::FetchAdd {
        va: Va::new(0x3000),
        rkey: RKey::new(0x77),
        add: 5,
    };
    t.send(1, add, 8);
    for wr_id in 2..6 {
        t.send_sges(wr_id, read(0x3000), &[sge(64, 8)], SendFlags::SIGNALED);
    }
    t.tx();
    for psn in 0x101..=0x103 {
        t.rx(response(O::RcReadResponseOnly, psn, 8));
    }
    t.expect(&["Fetch Add 100 A va=3000 rkey=77 swap_add=5 compare=0"]);
    let answer = P {
        original: 0x0102_0304,
        aeth: Some(Syndrome::ACK),
        ..p(O::RcAtomicAcknowledge, 0x100)
    };
    t.rx(answer);
    assert_eq!(t.mem.bytes[..8], 0x0102_0304u64.to_ne_bytes());
    assert_eq!(t.sent().len(), 4);
}

#[test]
fn a_read_longer_than_the_range_is_asked_for_in_parts() {
    let mut t = bench();
    // 150 packets, 64 at a time; a SEND waits behind it for PSNs.
    let sges = [sge(0, 0x1_0000), sge(0, 0x1_0000), sge(0, 22 * 1024)];
    t.send_sges(1, read(0x3000), &sges, SendFlags::SIGNALED);
    t.send(2, SendOp::Send, 8);
    t.expect(&["RDMA READ Request 100 A va=3000 rkey=77 len=65536"]);
    for n in 0..64 {
        t.expect_silence();
        t.rx(reply(0x100, (n, 64), 1));
    }
    t.expect(&["RDMA READ Request 140 A va=13000 rkey=77 len=65536"]);
    for n in 0..64 {
        t.rx(reply(0x140, (n, 64), 1));
    }
    t.expect(&[
        "RDMA READ Request 180 A va=23000 rkey=77 len=22528",
        "SEND Only 196 A [8]",
    ]);
    for n in 0..22 {
        t.rx(reply(0x180, (n, 22), 1));
    }
    assert_eq!(t.sent(), [(1, Success)]);
    t.rx(ack(0x196));
    assert_eq!(t.sent(), [(2, Success)]);
}

#[test]
fn wrong_answers_fail_the_request() {
    let short = response(O::RcReadResponseFirst, 0x100, MTU - 4);
    let nak = P {
        aeth: Some(Syndrome::from_u8(0x62)),
        ..reply(0x100, (0, 3), 1)
    };
    let other = P {
        aeth: Some(Syndrome::ACK),
        ..p(O::RcAtomicAcknowledge, 0x100)
    };
    for bad in [short, nak, other, response(O::RcReadResponseOnly, 0x103, 0)] {
        let mut t = bench();
        t.send(1, read(0x3000), 3 * MTU as u32);
        t.send(2, SendOp::Send, 8);
        t.tx();
        t.rx(bad);
        assert_eq!(t.sent()[0], (1, BadRespErr));
        assert_eq!(t.qp.state(), QpState::Err);
    }
}

#[test]
fn flush_and_atomic_write_have_their_empty_answers() {
    let mut t = bench();
    let op = SendOp::AtomicWrite {
        va: Va::new(0x3000),
        rkey: RKey::new(0x77),
    };
    t.send(1, op, 8);
    t.send(2, SendOp::Send, 8);
    t.tx();
    t.rx(ack(0x101));
    assert_eq!(t.sent(), []);
    t.rx(response(O::RcReadResponseOnly, 0x100, 0));
    assert_eq!(t.sent(), [(1, Success), (2, Success)]);
}

/// A peer that acknowledges a READ and never answers it: each time nothing comes for twice as long,
/// so that it is not asked at the rate of round trips.
#[test]
fn a_response_that_never_comes_is_asked_for_less_and_less_often() {
    let mut t = bench();
    measured(&mut t, 10);
    // measured() has used 100.
    t.send(1, read(0x3000), 8);
    t.tx();
    let mut asked = Vec::new();
    let start = t.now;
    let end = start + us(5000);
    while t.now < end {
        t.wait(us(20));
        // Only the timeout with nothing received at all makes it be asked for the first time.
        for _ in t.tx() {
            asked.push(t.now.since(start).as_nanos() / 1000);
        }
        t.rx(sack_again(0x102, &[], 0x101));
    }
    assert!((5..20).contains(&asked.len()), "{asked:?}");
    let gaps: Vec<u64> = asked.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps.last() > gaps.first(), "{asked:?}");
}

#[test]
fn case_115_a_peer_that_takes_less_ahead_than_a_read_needs_stops_nothing() {
    for mpr in [1, 2, 3] {
        let mut t = bench();
        t.send(1, SendOp::Send, 8);
        t.expect(&["SEND Only 100 A [8]"]);
        let mut sack = p(O::ExtSack, 0x100);
        sack.seth = Seth {
            cause: SackCause::Packet {
                offset: 0,
                again: false,
            },
            cack_psn: Psn::new(0x100),
            mpr,
            sack_offset: 1,
            bitmap: 0,
        };
        t.rx(sack);
        assert_eq!(t.sent(), [(1, Success)]);
        let sges = [sge(0, 0x1_0000), sge(0, 0x1_0000), sge(0, 22 * 1024)];
        t.send_sges(2, read(0x3000), &sges, SendFlags::SIGNALED);
        t.send(3, SendOp::Send, 8);
        let mut answered = 0;
        let mut done = Vec::new();
        while done.len() < 2 {
            let sent = t
                .tx_frame()
                .expect("work is there, and nothing is under way");
            assert!(t.qp.poll_timeout().is_some());
            let pkt = Packet::parse(&sent).unwrap();
            let Some(reth) = pkt.reth() else {
                t.rx(ack(pkt.psn().value()));
                done.extend(t.sent());
                continue;
            };
            let psns = reth.len.div_ceil(1024);
            assert_eq!(pkt.psn(), Psn::new(0x101 + answered));
            for n in 0..psns {
                t.rx(reply(0x101 + answered, (n, psns), 1));
            }
            answered += psns;
            done.extend(t.sent());
        }
        assert_eq!(done, [(2, Success), (3, Success)]);
    }
}
