//! The responder: what it takes before its turn, and what it says about that.

use super::*;
use WcStatus::{LocAccessErr, Success, WrFlushErr};
use xroce_wire::opcode::Opcode as O;

/// Packet `n` of a WRITE of `psns` packets, the last of `last` bytes, to offset `at`; it is filled
/// with `fill`.
fn part(psn: u32, msn: u16, at: u64, (n, psns): (u32, u32), last: usize, fill: u8) -> P {
    let opcode = match (n, n + 1 == psns) {
        (0, true) => O::ExtWriteOnly,
        (0, false) => O::ExtWriteFirst,
        (_, true) => O::ExtWriteLast,
        (_, false) => O::ExtWriteMiddle,
    };
    let total = (psns - 1) as usize * MTU + last;
    let skipped = n as usize * MTU;
    let len = if n + 1 == psns { last } else { MTU };
    let rest = (total - skipped) as u32;
    p(opcode, psn + n)
        .reth(BASE + at + skipped as u64, KEY, rest)
        .msn(msn)
        .bytes(&vec![fill; len])
}

/// Rule E4.
#[test]
fn a_write_packet_goes_to_its_place_before_its_turn() {
    let mut t = bench();
    t.rx(part(0x100, 0, 0, (0, 4), 8, 1));
    t.rx(part(0x100, 0, 0, (2, 4), 8, 3));
    assert_eq!(t.mem.bytes[2 * MTU..3 * MTU], [3; MTU]);
    t.expect(&["SACK 100 for 102 mpr=1 from 101: 10"]);
    t.rx(part(0x100, 0, 0, (3, 4), 8, 4));
    assert_eq!(t.mem.bytes[3 * MTU..3 * MTU + 8], [4; 8]);
    t.expect(&["SACK 100 for 103 mpr=1 from 101: 110"]);
    assert_eq!(t.qp.gauges().ahead, 2);
    // The hole closes: all of it is executed.
    t.rx(part(0x100, 0, 0, (1, 4), 8, 2));
    t.expect(&["SACK 103 for 101 mpr=1 from 104: 0"]);
    assert_eq!(t.mem.bytes[MTU..2 * MTU], [2; MTU]);
    assert_eq!((t.qp.gauges().ahead, t.qp.counters().placed_early), (0, 2));
    // One message was executed: the next one has number 1.
    t.rx(part(0x104, 1, 0, (0, 1), 8, 5).a());
    t.expect(&["ACK 104 syn=1f msn=2"]);
}

#[test]
fn a_write_packet_goes_to_its_place_when_the_first_is_the_one_that_is_missing() {
    let mut t = bench();
    t.rx(part(0x100, 0, 64, (1, 3), 8, 2));
    t.rx(part(0x100, 0, 64, (2, 3), 8, 3));
    assert_eq!(t.mem.bytes[64 + MTU..64 + 2 * MTU], [2; MTU]);
    t.expect(&["SACK ff for 102 mpr=1 from 100: 110"]);
    t.rx(part(0x100, 0, 64, (0, 3), 8, 1));
    t.expect(&["SACK 102 for 100 mpr=1 from 103: 0"]);
    assert_eq!(t.mem.bytes[64..64 + MTU], [1; MTU]);
}

/// Rule E4.
#[test]
fn nothing_is_placed_of_a_write_whose_beginning_is_not_allowed() {
    let mut t = bench();
    // The message begins before the region; this part of it does not.
    let second = p(O::ExtWriteLast, 0x101).msn(0).reth(BASE, KEY, 8);
    t.rx(second.bytes(&[9; 8]));
    assert_ne!(t.mem.bytes[..8], [9; 8]);
    assert_eq!(t.qp.counters().placed_early, 0);
    // Its key is wrong: the same.
    let other = p(O::ExtWriteMiddle, 0x102).msn(0);
    t.rx(other.reth(BASE + 4096, KEY + 1, 4096).len(MTU));
    assert_eq!(t.qp.counters().placed_early, 0);
    // The first is judged in its turn, and refused.
    let first = p(O::ExtWriteFirst, 0x100).msn(0);
    t.rx(first.reth(BASE - MTU as u64, KEY, MTU as u32 + 8).len(MTU));
    t.expect(&["ACK 100 syn=62 msn=0"]);
    assert_eq!(t.events(), [Event::CommEst, Event::QpAccessErr][1..]);
    assert_ne!(t.mem.bytes[..8], [9; 8]);
}

#[test]
fn writes_of_different_messages_over_each_other_end_as_they_were_sent() {
    // The older message is two packets to 0..; the newer one is written over its second.
    let first = part(0x100, 0, 0, (0, 2), 8, 1);
    let second = part(0x100, 0, 0, (1, 2), 8, 2);
    let newer = part(0x102, 1, MTU as u64, (0, 1), 8, 3);
    let all = [first, second, newer];
    for order in [[0, 2, 1], [1, 2, 0], [2, 0, 1], [2, 1, 0], [1, 0, 2]] {
        let mut t = bench();
        for i in order {
            t.rx(all[i].clone());
        }
        assert_eq!(t.mem.bytes[MTU..MTU + 8], [3; 8], "{order:?}");
        assert_eq!(t.mem.bytes[..MTU], [1; MTU], "{order:?}");
        t.rx(part(0x103, 2, 0, (0, 1), 8, 4).a());
        assert!(t.tx().concat().contains(" 103 ") || t.qp.expected_psn() == Psn::new(0x104));
    }
}

/// Rule E2.
#[test]
fn a_write_that_does_not_go_on_as_it_began_is_an_invalid_request() {
    let bend: [fn(&mut Reth); 3] = [
        |r| r.va = r.va.wrapping_add(4),
        |r| r.rkey = RKey::new(KEY + 1),
        |r| r.len += 1,
    ];
    for bend in bend {
        // In its turn, and placed before it when the first was not known.
        for early in [false, true] {
            let mut t = bench();
            let mut second = part(0x100, 0, 0, (1, 3), 8, 2);
            bend(second.reth.as_mut().unwrap());
            let packets = [part(0x100, 0, 0, (0, 3), 8, 1), second];
            for i in if early { [1, 0] } else { [0, 1] } {
                t.rx(packets[i].clone());
            }
            assert_eq!(t.tx().pop().unwrap(), "ACK 101 syn=61 msn=0");
            assert_eq!(t.qp.state(), QpState::Err);
        }
    }
}

/// Rule E5.
#[test]
fn sends_wait_for_their_turn_and_complete_in_order() {
    let mut t = bench();
    for wr_id in 0..3 {
        t.recv(wr_id, 4096);
    }
    t.rx(p(O::RcSendOnly, 0x102).len(8));
    t.rx(p(O::RcSendOnly, 0x101).len(8).a());
    assert_eq!(t.received(), []);
    assert_eq!(t.qp.gauges().ahead, 2);
    t.expect(&["SACK ff for 101 mpr=1 from 100: 110"]);
    t.rx(p(O::RcSendOnly, 0x100).len(8));
    assert_eq!(t.received(), [(0, Success), (1, Success), (2, Success)]);
    t.expect(&["SACK 102 for 100 mpr=1 from 103: 0"]);
}

#[test]
fn reads_and_atomics_wait_for_their_turn() {
    let mut t = bench();
    // A READ of three packets, an atomic behind it, and a WRITE that changes what is read.
    t.rx(p(O::RcReadRequest, 0x101).reth(BASE, KEY, 3 * MTU as u32));
    t.rx(p(O::RcFetchAdd, 0x104).atomic(BASE + 0x2000, KEY, 1, 0));
    t.expect(&["SACK ff for 104 mpr=1 from 100: 10010"]);
    assert_eq!(t.mem.atomics, 0);
    t.rx(part(0x100, 0, 0, (0, 1), 8, 7));
    let sent = t.tx();
    assert_eq!(sent[0], "SACK 104 for 100 mpr=1 from 105: 0");
    assert_eq!(sent[1], "RDMA READ Response First 101 syn=1f msn=3 [1024]");
    assert_eq!(sent[3], "RDMA READ Response Last 103 syn=1f msn=3 [1024]");
    assert!(
        sent[4].starts_with("ATOMIC ACK 104 syn=1f msn=3"),
        "{sent:?}"
    );
    assert_eq!(t.mem.atomics, 1);
}

/// Rule E6.
#[test]
fn a_copy_is_reported_and_not_executed() {
    let mut t = bench();
    t.recv(0, 64);
    t.recv(1, 64);
    t.rx(p(O::RcSendOnly, 0x101).len(8));
    t.expect(&["SACK ff for 101 mpr=1 from 100: 10"]);
    t.rx(p(O::RcSendOnly, 0x101).len(8));
    t.expect(&["SACK ff for 101 again mpr=1 from 100: 10"]);
    t.rx(p(O::RcSendOnly, 0x100).len(8));
    t.rx(p(O::RcSendOnly, 0x100).len(8));
    t.expect(&["SACK 101 for 100 again mpr=1 from 102: 0"]);
    assert_eq!(t.received(), [(0, Success), (1, Success)]);
    assert_eq!(t.qp.counters().duplicates, 2);
}

#[test]
fn no_receive_is_an_rnr_nak_for_the_packet_whose_turn_it_is() {
    let mut t = bench();
    t.recv(0, 64);
    t.rx(p(O::RcSendOnly, 0x101).len(8));
    t.rx(p(O::RcSendOnly, 0x102).len(8));
    t.rx(part(0x103, 3, 0, (0, 1), 8, 1));
    t.tx();
    // 100 takes the only receive; 101 has none and must come again, the others stay.
    t.rx(p(O::RcSendOnly, 0x100).len(8));
    assert_eq!(t.received(), [(0, Success)]);
    t.expect(&["ACK 101 syn=2c msn=1"]);
    assert_eq!(t.qp.gauges().ahead, 2);
    // What comes meanwhile is taken too.
    t.rx(part(0x104, 4, 64, (0, 1), 8, 1));
    t.expect(&["SACK 100 for 104 mpr=1 from 101: 1110"]);
    t.recv(1, 64);
    t.recv(2, 64);
    t.rx(p(O::RcSendOnly, 0x101).len(8));
    assert_eq!(t.received(), [(1, Success), (2, Success)]);
    t.expect(&["SACK 104 for 101 mpr=1 from 105: 0"]);
}

#[test]
fn an_immediate_takes_its_receive_when_the_hole_closes() {
    let mut t = bench();
    let mut last = part(0x100, 0, 0, (1, 2), 8, 2).a();
    last.opcode = O::ExtWriteLastImm;
    t.rx(last.clone());
    assert_eq!(t.mem.bytes[MTU..MTU + 8], [2; 8]);
    t.tx();
    t.rx(part(0x100, 0, 0, (0, 2), 8, 1));
    t.expect(&["ACK 101 syn=2c msn=0"]);
    t.recv(5, 0);
    t.rx(last);
    assert_eq!(t.log.recvs[0].byte_len, MTU as u32 + 8);
    assert_eq!(t.received(), [(5, Success)]);
    t.expect(&["ACK 101 syn=1f msn=1"]);
}

#[test]
fn a_fatal_error_takes_what_was_ahead_with_it() {
    let mut t = bench();
    t.recv(0, 64);
    t.recv(1, 64);
    t.rx(p(O::RcSendOnly, 0x102).len(8));
    t.rx(part(0x101, 1, 0, (0, 1), 8, 9).reth(BASE, KEY + 1, 8));
    t.tx();
    t.rx(p(O::RcSendOnly, 0x100).len(8));
    // 101 is refused in its turn, 102 is not executed.
    t.expect(&["ACK 101 syn=62 msn=1"]);
    assert_eq!(t.received(), [(0, Success), (1, WrFlushErr)]);
    assert_eq!((t.qp.state(), t.qp.gauges().ahead), (QpState::Err, 0));
    assert_eq!(t.qp.failure().unwrap().status, LocAccessErr);
    t.rx(p(O::RcSendOnly, 0x102).len(8));
    t.expect_silence();
}

#[test]
fn reset_and_error_forget_what_was_ahead() {
    for state in [QpState::Err, QpState::Reset] {
        let mut t = bench();
        for psn in 0x101..0x104 {
            t.rx(p(O::RcSendOnly, psn).len(8));
        }
        assert_eq!(t.qp.gauges().ahead, 3);
        t.qp.modify(&QpAttr::state(state), &mut t.log).unwrap();
        assert_eq!(t.qp.gauges().ahead, 0);
        t.expect_silence();
    }
}

/// Rule E3.
#[test]
fn what_is_beyond_the_range_or_does_not_fit_is_as_good_as_lost() {
    let mut t = bench();
    t.rx(p(O::RcSendOnly, 0x100 + 128).len(8));
    t.rx(p(O::RcSendOnly, 0x100 + 0x4000).len(8));
    assert_eq!(t.qp.counters().beyond_range, 2);
    t.expect_silence();
    // The last that is within, three more, and one for which there is no slot.
    for psn in [0x17f, 0x101, 0x102, 0x103, 0x104] {
        t.rx(p(O::RcSendOnly, psn).len(8));
    }
    assert_eq!(t.qp.counters().reorder_store_full, 1);
    assert_eq!(t.qp.gauges().ahead, 4);
    let far = format!("SACK ff for 103 mpr=1 from 140: 1{}", "0".repeat(63));
    t.expect(&["SACK ff for 103 mpr=1 from 101: 111", &far]);
}

#[test]
fn it_wraps() {
    let mut t = with(params(), 0xff_fffe);
    for wr_id in 0..4 {
        t.recv(wr_id, 64);
    }
    for psn in [1, 0, 0xff_ffff] {
        t.rx(p(O::RcSendOnly, psn).len(8));
    }
    t.expect(&["SACK fffffd for ffffff mpr=1 from fffffe: 1110"]);
    t.rx(p(O::RcSendOnly, 0xff_fffe).len(8));
    t.expect(&["SACK 1 for fffffe mpr=1 from 2: 0"]);
    assert_eq!(t.received().len(), 4);
}

/// Rules E6, E7.
#[test]
fn a_probe_is_told_everything_behind_the_answers_to_reads() {
    let mut t = bench();
    t.rx(p(O::RcSendOnly, 0x103).len(8));
    t.rx(p(O::RcReadRequest, 0x100).reth(BASE, KEY, 2 * MTU as u32));
    t.rx(probe(0x100, 7));
    t.expect(&[
        "SACK 101 for 100 mpr=1 from 102: 10",
        "RDMA READ Response First 100 syn=1f msn=1 [1024]",
        "RDMA READ Response Last 101 syn=1f msn=1 [1024]",
        "SACK 101 for probe 7 mpr=1 from 102: 10",
    ]);
    // One each when the peer introduced itself.
    assert_eq!(t.qp.counters().probes_in, 1 + 1);
    assert_eq!(t.qp.counters().sacks_out, 2 + 1);
}

/// Rule E10.
#[test]
fn case_124_a_peer_that_has_not_shown_to_agree_is_told_of_a_gap_by_a_nak() {
    let mut setup = Setup::default();
    setup.rtr.reliability = Some(Reliability::Selective(params()));
    let mut t = setup.build();
    for n in 0..6 {
        t.recv(n, 64);
    }
    t.rx(p(O::RcSendOnly, 0x101).len(8));
    t.rx(p(O::RcSendOnly, 0x103).len(8));
    t.expect(&["ACK 100 syn=60 msn=0"]);
    // Go-back-N sends all of it again; what was kept is executed once.
    for psn in 0x100..0x105 {
        let last = p(O::RcSendOnly, psn).len(8);
        t.rx(if psn == 0x104 { last.a() } else { last });
    }
    assert_eq!(t.tx().last().unwrap(), "ACK 104 syn=1f msn=5");
    assert_eq!(t.received().len(), 5);
    assert_eq!(t.qp.counters().sacks_out, 0);
    // A selective requester answers the NAK with a probe, and shows itself by that.
    t.rx(p(O::RcSendOnly, 0x106).len(8));
    t.expect(&["ACK 105 syn=60 msn=5"]);
    t.rx(probe(0x105, 1));
    t.expect(&["SACK 104 for probe 1 mpr=1 from 105: 10"]);
}

#[test]
fn several_parts_of_a_read_are_asked_for_again_at_once() {
    let mut t = bench();
    t.rx(p(O::RcReadRequest, 0x100).reth(BASE, KEY, 8 * MTU as u32));
    t.tx();
    t.rx(p(O::RcReadRequest, 0x101).reth(BASE + MTU as u64, KEY, MTU as u32));
    t.rx(p(O::RcReadRequest, 0x104).reth(BASE + 4 * MTU as u64, KEY, 2 * MTU as u32));
    t.expect(&[
        "RDMA READ Response Only 101 syn=1f msn=1 [1024]",
        "RDMA READ Response First 104 syn=1f msn=1 [1024]",
        "RDMA READ Response Last 105 syn=1f msn=1 [1024]",
    ]);
}

#[test]
fn a_read_asked_for_again_too_early_still_counts_as_answered() {
    // Two READs at once at most: the third may come when the first has been answered once.
    let mut setup = Setup::default();
    setup.rtr.reliability = Some(Reliability::Selective(params()));
    setup.rtr.max_dest_rd_atomic = Some(1);
    let mut t = setup.build();
    let read = p(O::RcReadRequest, 0x100).reth(BASE, KEY, 8);
    t.rx(read.clone());
    t.rx(read);
    t.expect(&["RDMA READ Response Only 100 syn=1f msn=1 [8]"]);
    t.rx(p(O::RcReadRequest, 0x101).reth(BASE, KEY, 8));
    t.expect(&["RDMA READ Response Only 101 syn=1f msn=2 [8]"]);
}

#[test]
fn psns_that_a_read_took_are_no_requests() {
    let mut t = bench();
    // Somebody claims that 102 is a request, but the READ at 101 takes it for its answer.
    t.rx(p(O::RcSendOnly, 0x102).len(8));
    t.rx(p(O::RcReadRequest, 0x101).reth(BASE, KEY, 3 * MTU as u32));
    t.rx(part(0x100, 0, 0, (0, 1), 8, 1));
    assert_eq!(t.qp.expected_psn(), Psn::new(0x104));
    assert_eq!(t.qp.gauges().ahead, 0);
    assert_eq!(t.received(), []);
}

/// Rule E1.
#[test]
fn extension_packets_are_refused_by_who_has_not_agreed() {
    let mut t = Bench::new();
    t.rx(part(0x100, 0, 0, (0, 1), 8, 1));
    t.rx(probe(0x100, 1));
    t.send(1, SendOp::Send, 8);
    t.tx();
    t.rx(sack(0x101, &[], 0x100));
    assert_eq!(t.sent(), []);
    t.expect_silence();
    let counters = t.qp.counters();
    assert_eq!((counters.discards, counters.unagreed_extensions), (3, 3));
    assert_eq!(t.qp.state(), QpState::Rts);
}
