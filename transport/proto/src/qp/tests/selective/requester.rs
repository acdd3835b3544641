//! The requester: what it sends again, and when.

use super::*;
use WcStatus::{RemAccessErr, RnrRetryExcErr, Success};

/// Posts so many SENDs of one packet and sends them.
fn sends(t: &mut Bench, n: u64) -> Vec<String> {
    for wr_id in 0..n {
        t.send(wr_id, SendOp::Send, 8);
    }
    t.tx()
}

/// Rule E2.
#[test]
fn a_write_describes_itself_in_every_packet() {
    let mut t = bench();
    t.send(1, write(0x5000), 2 * MTU as u32 + 5);
    let op = SendOp::WriteImm {
        va: Va::new(0x40),
        rkey: RKey::new(0x77),
        imm: [1, 2, 3, 4],
    };
    t.send(2, op, 8);
    t.expect(&[
        "RDMA WRITE First 100 va=5000 rkey=77 len=2053 msn=0 [1024]",
        "RDMA WRITE Middle 101 va=5400 rkey=77 len=1029 msn=0 [1024]",
        "RDMA WRITE Last 102 va=5800 rkey=77 len=5 msn=0 [5]",
        "RDMA WRITE Only Imm 103 A va=40 rkey=77 len=8 msn=1 imm=[01, 02, 03, 04] [8]",
    ]);
    t.rx(ack(0x103));
    assert_eq!(t.sent(), [(1, Success), (2, Success)]);
}

/// Rule E8.
#[test]
fn only_what_is_lost_is_sent_again_and_once() {
    let mut t = bench();
    assert_eq!(sends(&mut t, 6).len(), 6);
    // Two have overtaken it: that is tolerated.
    t.rx(sack(0x100, &[0x101, 0x102], 0x102));
    t.expect_silence();
    t.rx(sack(0x100, &[0x101, 0x102, 0x103], 0x103));
    t.expect(&["SEND Only 100 A [8]"]);
    // The same again, and more of it.
    t.rx(sack(0x100, &[0x101, 0x102, 0x103], 0x103));
    t.rx(sack(0x100, &[0x101, 0x102, 0x103, 0x104, 0x105], 0x105));
    t.expect_silence();
    assert_eq!(t.sent(), []);
    t.rx(sack(0x106, &[], 0x100));
    assert_eq!(t.sent().len(), 6);
    let counters = t.qp.counters();
    assert_eq!(
        (counters.retransmits, counters.retransmits_selective),
        (1, 1)
    );
    assert_eq!((counters.sacks_in, counters.spurious_retransmits), (5, 0));
}

#[test]
fn a_packet_lost_twice_is_found_by_what_was_sent_after_it() {
    let mut t = bench();
    sends(&mut t, 4);
    t.rx(sack(0x100, &[0x101, 0x102, 0x103], 0x103));
    t.expect(&["SEND Only 100 A [8]"]);
    for wr_id in 4..8 {
        t.send(wr_id, SendOp::Send, 8);
    }
    assert_eq!(t.tx().len(), 4);
    t.now += us(20);
    t.rx(sack(0x100, &[0x101, 0x102, 0x103, 0x104, 0x105], 0x105));
    t.expect_silence();
    t.rx(sack(
        0x100,
        &[0x101, 0x102, 0x103, 0x104, 0x105, 0x106],
        0x106,
    ));
    t.expect(&["SEND Only 100 A [8]"]);
    assert_eq!(t.qp.counters().retransmits, 2);
}

#[test]
fn sacks_may_get_lost_come_twice_or_late() {
    let mut t = bench();
    sends(&mut t, 8);
    // All but the last SACK got lost; then an older one comes, twice.
    let newest = sack(0x104, &[0x105, 0x106, 0x107], 0x107);
    t.rx(newest.clone());
    assert_eq!(t.sent().len(), 4);
    t.expect(&["SEND Only 104 A [8]"]);
    let old = sack(0x102, &[0x103], 0x103);
    t.rx(old.clone());
    t.rx(old);
    t.rx(newest);
    t.expect_silence();
    assert_eq!(t.sent(), []);
    t.rx(sack(0x108, &[], 0x104));
    assert_eq!(t.sent().len(), 4);
}

#[test]
fn the_cumulative_psn_may_jump_by_more_than_a_bitmap() {
    let mut t = bench();
    assert_eq!(sends(&mut t, 100).len(), 100);
    t.rx(sack(0x100, &[0x13f, 0x140, 0x141], 0x141));
    assert!(t.tx().len() > 60);
    t.rx(sack(0x164, &[], 0x163));
    assert_eq!(t.sent().len(), 100);
    t.expect_silence();
}

#[test]
fn it_wraps() {
    let mut t = with(params(), 0xff_fffd);
    let sent = sends(&mut t, 6);
    assert_eq!(sent[0], "SEND Only fffffd [8]");
    assert_eq!(sent[5], "SEND Only 2 A [8]");
    t.rx(sack(0xff_fffe, &[0xff_ffff, 0, 1], 1));
    assert_eq!(t.sent().len(), 1);
    t.expect(&["SEND Only fffffe A [8]"]);
    t.rx(sack(3, &[], 0xff_fffe));
    assert_eq!(t.sent().len(), 5);
}

#[test]
fn a_window_of_packets_and_a_range_of_psns() {
    let small = SelectiveParams {
        window: 4,
        ..params()
    };
    let mut t = with(small, 0x100);
    assert_eq!(sends(&mut t, 200).len(), 4);
    // Reported packets make room although the oldest is missing.
    t.rx(sack(0x100, &[0x101, 0x102], 0x102));
    assert_eq!(t.tx().len(), 2);
    // The loss makes room too, and takes it.
    t.rx(sack(0x100, &[0x101, 0x102, 0x103, 0x104, 0x105], 0x105));
    let sent = t.tx();
    assert_eq!((sent.len(), &sent[0][..]), (4, "SEND Only 100 A [8]"));
    // Never more than the range ahead of it.
    let mut last = 0x108;
    loop {
        let told: Vec<u32> = (0x101.max(last - 62)..=last).collect();
        t.rx(sack(0x100, &told, last));
        let new = t.tx().iter().filter(|s| !s.contains(" 100 ")).count() as u32;
        if new == 0 {
            break;
        }
        last += new;
    }
    assert_eq!(last, 0x100 + 127);
}

#[test]
fn what_came_twice_and_was_sent_twice_is_counted() {
    let mut t = bench();
    sends(&mut t, 4);
    t.rx(sack(0x100, &[0x101, 0x102, 0x103], 0x103));
    t.tx();
    t.rx(sack(0x104, &[], 0x100));
    t.rx(sack_again(0x104, &[], 0x100));
    // The network doubled this one: it was sent once.
    t.rx(sack_again(0x104, &[], 0x102));
    assert_eq!(t.qp.counters().spurious_retransmits, 1);
}

/// Rule E9.
#[test]
fn an_rnr_nak_stops_everything_and_brings_one_packet_again() {
    let mut t = bench();
    sends(&mut t, 4);
    t.rx(sack(0x100, &[0x101, 0x102], 0x102));
    t.rx(nak(0x101, 0x21));
    assert_eq!(t.sent(), [(0, Success)]);
    // An old SACK says it was there: it is not any more.
    t.rx(sack(0x100, &[0x101, 0x102], 0x102));
    // So does a second copy of the NAK.
    t.rx(nak(0x101, 0x21));
    t.send(9, SendOp::Send, 8);
    t.expect_silence();
    t.wait(us(11));
    t.expect(&["SEND Only 101 A [8]", "SEND Only 104 A [8]"]);
    t.rx(sack(0x105, &[], 0x101));
    assert_eq!(t.sent().len(), 4);
    let counters = t.qp.counters();
    assert_eq!((counters.rnr_naks_in, counters.retransmits), (2, 1));
}

/// An engine that sleeps comes back later than the wait ends. Nothing was sent meanwhile that could
/// have been answered: that is no timeout, and nothing to tell congestion control.
#[test]
fn an_rnr_wait_that_ends_late_is_no_timeout() {
    let mut t = bench();
    sends(&mut t, 4);
    t.rx(sack(0x100, &[0x101, 0x102], 0x102));
    t.rx(nak(0x101, 0x21));
    t.now += Duration::from_millis(3);
    t.cx(|qp, cx| qp.handle_timeout(cx));
    t.expect(&["SEND Only 101 A [8]"]);
    t.rx(sack(0x103, &[], 0x101));
    let counters = t.qp.counters();
    assert_eq!((counters.timeouts, counters.retransmits), (0, 1));
}

#[test]
fn an_rnr_nak_that_comes_during_the_wait_for_another_is_heard() {
    let mut t = bench();
    sends(&mut t, 4);
    t.rx(nak(0x100, 0x21));
    // 100 had been sent again before that NAK came, and was taken.
    t.rx(sack(0x101, &[0x102, 0x103], 0x100));
    t.rx(nak(0x101, 0x21));
    t.wait(us(11));
    t.expect(&["SEND Only 101 A [8]"]);
    assert!(t.qp.poll_timeout().is_some(), "or it would wait for ever");
}

#[test]
fn rnr_retries_are_used_up_as_ever() {
    let mut setup = Setup::default();
    setup.rtr.reliability = Some(Reliability::Selective(params()));
    setup.rts.rnr_retry = Some(1);
    let mut t = setup.build();
    sends(&mut t, 2);
    t.rx(nak(0x100, 0x21));
    t.wait(us(11));
    t.expect(&["SEND Only 100 A [8]"]);
    t.rx(nak(0x100, 0x21));
    assert_eq!(t.sent()[0], (0, RnrRetryExcErr));
    assert_eq!(t.qp.counters().rnr_retries_exceeded, 1);
}

/// Rule E9.
#[test]
fn a_fatal_nak_waits_for_the_answers_it_overtook() {
    let mut t = bench();
    t.send(1, read(0x3000), 8);
    t.send(2, write(0x10), 8);
    t.send(3, SendOp::Send, 8);
    t.tx();
    t.rx(nak(0x101, 0x62));
    assert_eq!(t.sent(), []);
    t.rx(response(Opcode::RcReadResponseOnly, 0x100, 8));
    assert_eq!(t.sent()[..2], [(1, Success), (2, RemAccessErr)]);
    let failure = t.qp.failure().unwrap();
    assert_eq!(failure.last_psn_sent, Psn::new(0x102));
    assert_eq!(failure.last_psn_acked, Psn::new(0x100));
    t.expect_silence();
}

#[test]
fn a_request_that_cannot_be_sent_has_a_probe_ask_for_those_before_it() {
    let mut t = bench();
    t.send(1, SendOp::Send, 8);
    let bad = Sge {
        lkey: LKey::new(1),
        ..sge(0, 8)
    };
    t.send_sges(2, SendOp::Send, &[bad], SendFlags::SIGNALED);
    let sent = t.tx();
    assert_eq!(sent.last().unwrap(), "Probe 100 A id=1");
    t.rx(sack_of_probe(0x101, &[], 1));
    assert_eq!(t.sent(), [(1, Success), (2, WcStatus::LocProtErr)]);
}

#[test]
fn the_timeout_attributes_do_not_show_on_the_wire_of_others() {
    // The same requests of a queue pair that has not agreed.
    let mut t = Bench::new();
    t.send(1, write(0x5000), MTU as u32 + 5);
    t.expect(&[
        "RDMA WRITE First 100 va=5000 rkey=77 len=1029 [1024]",
        "RDMA WRITE Last 101 A [5]",
    ]);
}

/// Rule E10.
#[test]
fn case_124_a_nak_is_answered_by_a_probe() {
    let mut t = bench();
    for wr_id in 0..4 {
        t.send(wr_id, SendOp::Send, 8);
    }
    t.tx();
    t.rx(nak(0x101, 0x60));
    assert_eq!(t.sent(), [(0, Success)]);
    t.expect(&["Probe 101 A id=1"]);
    t.rx(sack_of_probe(0x104, &[], 1));
    assert_eq!(t.sent(), [(1, Success), (2, Success), (3, Success)]);
}
