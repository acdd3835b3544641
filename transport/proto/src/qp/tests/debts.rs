//! What a responder owes, what takes its place, and what becomes of it when the queue pair ends.

use super::*;
use crate::recovery::{Reliability, SelectiveParams};
use WcStatus::{LocProtErr, Success, WrFlushErr};
use xroce_wire::opcode::Opcode as O;

const READ_1: &str = "RDMA READ Response Only 100 syn=1f msn=1 [8]";

fn bench() -> Bench {
    bench_with_limit(16)
}

/// Everything is allowed; so many READs and atomics at once.
fn bench_with_limit(limit: u8) -> Bench {
    let mut setup = Setup {
        access: Access::all(),
        ..Setup::default()
    };
    setup.rtr.max_dest_rd_atomic = Some(limit);
    let mut t = setup.build();
    t.mem.access = Access::all();
    t.mem.bytes[16..24].fill(0);
    t
}

fn selective_bench() -> Bench {
    let mut setup = Setup {
        access: Access::all(),
        ..Setup::default()
    };
    setup.rtr.reliability = Some(Reliability::Selective(SelectiveParams::default()));
    let mut t = setup.build();
    t.mem.access = Access::all();
    selective::introduce(&mut t, 0x100);
    t
}

fn read(psn: u32, len: u32) -> P {
    p(O::RcReadRequest, psn).a().reth(BASE, KEY, len)
}

fn send(psn: u32) -> P {
    p(O::RcSendOnly, psn).len(8)
}

fn add_one(psn: u32) -> P {
    p(O::RcFetchAdd, psn).a().atomic(BASE + 16, KEY, 1, 0)
}

fn store(psn: u32) -> P {
    p(O::RcAtomicWrite, psn)
        .a()
        .reth(BASE + 8, KEY, 8)
        .bytes(&[1; 8])
}

fn flush(psn: u32) -> P {
    p(O::RcFlush, psn).a().reth(BASE, KEY, 100).feth(1, 0)
}

fn to_err(t: &mut Bench) {
    t.qp.modify(&QpAttr::state(QpState::Err), &mut t.log)
        .unwrap();
}

fn set_limit(t: &mut Bench, limit: u8) {
    if t.qp.state() != QpState::Sqd {
        t.qp.modify(&QpAttr::state(QpState::Sqd), &mut t.log)
            .unwrap();
    }
    let attr = QpAttr {
        max_dest_rd_atomic: Some(limit),
        ..QpAttr::default()
    };
    t.qp.modify(&attr, &mut t.log).unwrap();
    assert_eq!(t.qp.query().attr.max_dest_rd_atomic, Some(limit));
}

/// Rule S9.
#[test]
fn case_109_a_copy_of_a_read_outlives_its_key() {
    for (selective, burst) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut t = if selective {
            selective_bench()
        } else {
            bench()
        };
        t.recv(1, 64);
        t.rx(read(0x100, 4096));
        assert_eq!(t.tx().len(), 4);
        t.rx(read(0x100, 4096));
        if !burst {
            t.tx_frame().unwrap();
        }
        // The peer has all of it from the first answer, and gives the key back.
        t.rx(p(O::RcSendOnlyInvalidate, 0x104).inv(KEY).a());
        t.expect(&["ACK 104 syn=1f msn=2"]);
        assert_eq!(t.received(), [(1, Success)]);
        assert_eq!((t.qp.state(), t.events()), (QpState::Rts, vec![]));
        assert!(!t.qp.wants_to_send(t.now));
        // A copy that comes later finds no memory at all.
        t.rx(read(0x100, 4096));
        t.expect_silence();
    }
}

#[test]
fn case_109_what_was_never_sent_fails_whoever_asked_for_it_again() {
    let mut t = bench();
    t.rx(read(0x100, 4096));
    for _ in 0..2 {
        t.tx_frame().unwrap();
    }
    t.rx(read(0x100, 4096));
    let again = t.tx_frame().unwrap();
    let first = "RDMA READ Response First 100 syn=1f msn=1 [1024]";
    assert_eq!(text(&Packet::parse(&again).unwrap()), first);
    t.mem.alive = false;
    // 0x101 was only to be repeated; 0x102 is owed.
    t.expect(&["ACK 102 syn=62 msn=1"]);
    assert_eq!(t.qp.state(), QpState::Err);
}

#[test]
fn case_109_what_is_owed_behind_a_repetition_is_paid() {
    let mut t = bench();
    t.rx(read(0x100, 2048));
    assert_eq!(t.tx().len(), 2);
    t.rx(read(0x100, 2048));
    t.rx(add_one(0x102));
    t.mem.alive = false;
    t.expect(&["ATOMIC ACK 102 syn=1f msn=2 original=0"]);
    assert_eq!(t.qp.state(), QpState::Rts);
}

/// A READ of four packets at 0x100, of which two have left.
fn half_answered() -> Bench {
    let mut t = bench();
    t.rx(read(0x100, 4096));
    for _ in 0..2 {
        t.tx_frame().unwrap();
    }
    t
}

/// So many packets of that READ from `index` on are asked for again.
fn part(index: u32, packets: u32) -> P {
    let va = BASE + u64::from(index) * 1024;
    p(O::RcReadRequest, 0x100 + index)
        .a()
        .reth(va, KEY, packets * 1024)
}

/// Rule S9.
#[test]
fn case_114_a_part_asked_for_again_is_all_that_is_answered() {
    let mut t = half_answered();
    t.rx(part(1, 1));
    t.expect(&["RDMA READ Response Only 101 syn=1f msn=1 [1024]"]);
    t.rx(part(2, 2));
    t.expect(&[
        "RDMA READ Response First 102 syn=1f msn=1 [1024]",
        "RDMA READ Response Last 103 syn=1f msn=1 [1024]",
    ]);
    // What has not been sent cannot be asked for again.
    t.rx(read(0x104, 4096));
    t.tx_frame().unwrap();
    t.rx(p(O::RcReadRequest, 0x107).a().reth(BASE + 3072, KEY, 1024));
    assert_eq!(t.tx().len(), 3);
}

/// Rule S9.
#[test]
fn case_114_a_late_copy_of_a_part_does_not_cut_the_rest_short() {
    let mut t = half_answered();
    t.rx(part(1, 1));
    t.tx_frame().unwrap();
    t.rx(part(2, 2));
    t.rx(part(1, 1));
    let said = t.tx();
    assert_eq!(
        said.last().unwrap(),
        "RDMA READ Response Last 103 syn=1f msn=1 [1024]"
    );
    assert!(!t.qp.owes());
}

/// Rules S8, S9, R8.
#[test]
fn case_114_what_lies_behind_a_part_waits_until_it_is_asked_for() {
    let mut t = half_answered();
    t.recv(1, 64);
    t.rx(read(0x104, 2048));
    t.rx(add_one(0x106));
    t.rx(flush(0x107));
    t.rx(send(0x108).a());
    t.rx(part(1, 1));
    t.expect(&["RDMA READ Response Only 101 syn=1f msn=5 [1024]"]);
    t.rx(part(2, 2));
    assert_eq!(t.tx().len(), 2);
    t.rx(read(0x104, 2048));
    t.rx(add_one(0x106));
    t.rx(flush(0x107));
    t.rx(send(0x108).a());
    t.expect(&[
        "RDMA READ Response First 104 syn=1f msn=5 [1024]",
        "RDMA READ Response Last 105 syn=1f msn=5 [1024]",
        "ATOMIC ACK 106 syn=1f msn=5 original=0",
        "RDMA READ Response Only 107 syn=1f msn=5",
        "ACK 108 syn=1f msn=5",
    ]);
    assert_eq!(t.received(), [(1, Success)]);
    assert_eq!(t.mem.bytes[16], 1, "executed once");
}

/// Rules S9, S12.
#[test]
fn case_114_memory_that_goes_between_two_parts_is_missed() {
    let mut t = half_answered();
    t.rx(part(1, 1));
    t.tx_frame().unwrap();
    t.mem.alive = false;
    t.expect_silence();
    // It was sent: what asks for it may be a copy. The rest is still owed.
    t.rx(part(2, 2));
    t.expect(&["ACK 102 syn=62 msn=1"]);
    assert_eq!(t.qp.state(), QpState::Err);
}

/// Rule S17.
#[test]
fn case_110_an_ack_that_is_owed_outlives_the_queue_pair() {
    let mut t = bench();
    t.recv(1, 64);
    t.recv(2, 64);
    t.rx(send(0x100).a());
    to_err(&mut t);
    assert_eq!(t.received(), [(1, Success), (2, WrFlushErr)]);
    assert!(t.qp.wants_to_send(t.now));
    t.expect(&["ACK 100 syn=1f msn=1"]);
    // It answers nothing new.
    t.rx(send(0x101).a());
    t.expect_silence();

    // The own send fails for a reason of this side.
    let mut t = bench();
    t.recv(1, 64);
    t.rx(send(0x100).a());
    let lkey = LKey::new(0x99);
    let bad = Sge { lkey, ..sge(0, 8) };
    t.send_sges(5, SendOp::Send, &[bad], SendFlags::SIGNALED);
    t.expect(&["ACK 100 syn=1f msn=1"]);
    assert_eq!(t.sent(), [(5, LocProtErr)]);
    assert_eq!(t.qp.state(), QpState::Err);
}

#[test]
fn case_110_naks_and_what_was_executed_are_told_at_the_end() {
    // A gap.
    let mut t = bench();
    t.recv(1, 64);
    t.rx(send(0x100).a());
    t.rx(send(0x102).a());
    to_err(&mut t);
    t.expect(&["ACK 101 syn=60 msn=1"]);
    // No receive.
    let mut t = bench();
    t.recv(1, 64);
    t.rx(send(0x100).a());
    t.rx(send(0x101).a());
    to_err(&mut t);
    t.expect(&["ACK 101 syn=2c msn=1"]);
    // Atomics, and a SACK as an ordinary ACK.
    let mut t = bench();
    t.recv(1, 64);
    t.rx(add_one(0x100));
    t.rx(store(0x101));
    t.rx(flush(0x102));
    t.rx(send(0x103).a());
    to_err(&mut t);
    t.expect(&[
        "ATOMIC ACK 100 syn=1f msn=4 original=0",
        "RDMA READ Response Only 101 syn=1f msn=4",
        "RDMA READ Response Only 102 syn=1f msn=4",
        "ACK 103 syn=1f msn=4",
    ]);
    let mut t = selective_bench();
    t.recv(1, 64);
    t.recv(2, 64);
    t.rx(send(0x100).a());
    t.rx(send(0x102).a());
    to_err(&mut t);
    t.expect(&["ACK 100 syn=1f msn=1"]);
}

#[test]
fn case_110_nothing_is_acknowledged_beyond_a_read_that_stays_unanswered() {
    let mut t = bench();
    for i in 0..3 {
        t.recv(i, 64);
    }
    t.rx(send(0x100).a());
    t.rx(add_one(0x101));
    t.rx(send(0x102).a());
    t.rx(read(0x103, 2048));
    t.rx(flush(0x105));
    t.rx(send(0x106).a());
    to_err(&mut t);
    t.expect(&[
        "ATOMIC ACK 101 syn=1f msn=6 original=0",
        "ACK 102 syn=1f msn=6",
    ]);
    // The responses that were sent have acknowledged all before them.
    let mut t = bench();
    t.recv(1, 64);
    t.rx(send(0x100).a());
    t.rx(read(0x101, 2048));
    t.tx_frame().unwrap();
    to_err(&mut t);
    t.expect_silence();
    // A repetition is no debt.
    let mut t = bench();
    t.recv(1, 64);
    t.rx(read(0x100, 8));
    t.expect(&[READ_1]);
    t.rx(read(0x100, 8));
    t.rx(send(0x101).a());
    to_err(&mut t);
    t.expect(&["ACK 101 syn=1f msn=2"]);
}

/// The last words of a QP that its driver is about to end, without and with READs.
fn last_words(t: &mut Bench, reads: bool) -> Vec<String> {
    if !reads {
        t.qp.end_reads();
    }
    let mut all = Vec::new();
    loop {
        let mut frame = [0; 5000];
        let Some(transmit) = t.cx(|qp, cx| qp.poll_last_words(cx, &mut frame)) else {
            return all;
        };
        all.push(text(&Packet::parse(&frame[..transmit.len]).unwrap()));
    }
}

#[test]
fn case_110_last_words_are_debts_alone() {
    for reads in [true, false] {
        let mut t = bench();
        t.recv(1, 64);
        t.send(1, SendOp::Send, 8);
        t.rx(add_one(0x100));
        t.rx(read(0x101, 2048));
        t.rx(send(0x103).a());
        let told = last_words(&mut t, reads);
        let atomic = "ATOMIC ACK 100 syn=1f msn=3 original=0";
        if reads {
            let first = "RDMA READ Response First 101 syn=1f msn=3 [1024]";
            let last = "RDMA READ Response Last 102 syn=1f msn=3 [1024]";
            assert_eq!(told, [atomic, first, last, "ACK 103 syn=1f msn=3"]);
        } else {
            assert_eq!(told, [atomic]);
        }
        t.expect(&["SEND Only 100 A [8]"]);
    }
    // Memory that has gone is no reason to complete anything now.
    let mut t = bench();
    t.recv(1, 64);
    t.recv(2, 64);
    t.rx(send(0x100).a());
    t.rx(read(0x101, 2048));
    t.mem.alive = false;
    assert_eq!(last_words(&mut t, true), ["ACK 100 syn=1f msn=2"]);
    assert_eq!(t.received(), [(1, Success)]);
    // A fatal NAK, behind the READ before it.
    let mut t = bench();
    t.recv(1, 4);
    t.rx(read(0x100, 8));
    t.rx(send(0x101).a());
    assert_eq!(t.qp.state(), QpState::Err);
    assert_eq!(last_words(&mut t, true), [READ_1, "ACK 101 syn=61 msn=1"]);
    assert_eq!(last_words(&mut t, true), [""; 0]);
}

/// Rule S19.
#[test]
fn case_112_flushes_take_no_resource() {
    let mut t = bench_with_limit(4);
    t.rx(add_one(0x100));
    t.rx(store(0x101));
    t.rx(read(0x102, 2000));
    t.rx(flush(0x104));
    t.rx(read(0x105, 8));
    t.expect(&[
        "ATOMIC ACK 100 syn=1f msn=5 original=0",
        "RDMA READ Response Only 101 syn=1f msn=5",
        "RDMA READ Response First 102 syn=1f msn=5 [1024]",
        "RDMA READ Response Last 103 syn=1f msn=5 [976]",
        "RDMA READ Response Only 104 syn=1f msn=5",
        "RDMA READ Response Only 105 syn=1f msn=5 [8]",
    ]);
    // One more that counts is still too much.
    for psn in 0x106..0x10a {
        t.rx(read(psn, 8));
    }
    t.rx(flush(0x10a));
    t.rx(read(0x10b, 8));
    assert_eq!(t.tx().last().unwrap(), "ACK 10b syn=61 msn=10");
    // Who takes no READs may take FLUSHes.
    let mut t = bench_with_limit(0);
    t.rx(flush(0x100));
    t.expect(&["RDMA READ Response Only 100 syn=1f msn=1"]);
}

#[test]
fn case_112_repeated_flushes_keep_their_place_among_repeated_reads() {
    let mut t = bench_with_limit(4);
    let burst = |t: &mut Bench| {
        t.rx(flush(0x100));
        t.rx(read(0x101, 8));
        t.rx(flush(0x102));
        t.rx(add_one(0x103));
        t.rx(flush(0x104));
    };
    burst(&mut t);
    let first = t.tx();
    assert_eq!(first.len(), 5);
    burst(&mut t);
    assert_eq!(t.tx(), first);
    assert_eq!((t.mem.atomics, t.mem.flushes.len()), (1, 3));
    // Of another key it is not the one that was done.
    t.rx(p(O::RcFlush, 0x102).a().reth(BASE, KEY + 1, 100).feth(1, 0));
    t.rx(flush(0x103));
    t.expect_silence();
}

/// Rule S19.
#[test]
fn case_112_more_flushes_than_are_kept_come_again_when_there_is_room() {
    let mut t = bench_with_limit(4);
    for psn in 0x100..0x190 {
        t.rx(flush(psn));
    }
    // 128 are kept; the NAK leaves behind their answers, when there is room again.
    let sent = t.tx();
    assert_eq!(sent.len(), 129);
    assert_eq!(sent[128], "ACK 180 syn=60 msn=128");
    for psn in 0x180..0x190 {
        t.rx(flush(psn));
    }
    assert_eq!(t.tx().len(), 16);
    // Long forgotten ones are answered all the same: they were done.
    for psn in [0x100, 0x101, 0x180] {
        t.rx(flush(psn));
    }
    let answers = t.tx();
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[0], "RDMA READ Response Only 100 syn=1f msn=144");
    assert_eq!(t.mem.flushes.len(), 144);
    assert_eq!(t.qp.state(), QpState::Rts);
}

#[test]
fn case_113_the_limit_set_to_its_value_changes_nothing() {
    let mut t = bench();
    t.rx(add_one(0x100));
    t.tx();
    t.rx(read(0x101, 2048));
    t.tx_frame().unwrap();
    set_limit(&mut t, 16);
    t.expect(&["RDMA READ Response Last 102 syn=1f msn=2 [1024]"]);
    t.rx(add_one(0x100));
    t.expect(&["ATOMIC ACK 100 syn=1f msn=2 original=0"]);
}

/// Rule Q3.
#[test]
fn case_113_another_limit_keeps_what_was_accepted() {
    for limit in [2, 5, 9] {
        let mut t = bench_with_limit(4);
        // Four places, the oldest of which is not the first slot.
        for psn in 0x100..0x106 {
            t.rx(add_one(psn));
            t.tx();
        }
        for psn in 0x106..0x109 {
            t.rx(read(psn, 8));
        }
        set_limit(&mut t, limit);
        let answers = t.tx();
        assert_eq!(answers.len(), 3, "limit {limit}");
        t.rx(add_one(0x105));
        t.expect(&["ATOMIC ACK 105 syn=1f msn=9 original=5"]);
        // The new limit counts.
        for psn in 0x109..0x10a + u32::from(limit) {
            t.rx(read(psn, 8));
        }
        assert_eq!(t.qp.state(), QpState::Err, "limit {limit}");
        assert_eq!(t.tx().len(), usize::from(limit) + 1);
    }
    // While more is owed than the new limit allows, nothing new is accepted.
    let mut t = bench_with_limit(4);
    for psn in 0x100..0x103 {
        t.rx(read(psn, 8));
    }
    set_limit(&mut t, 1);
    t.tx_frame().unwrap();
    t.tx_frame().unwrap();
    t.rx(read(0x103, 8));
    assert_eq!(t.qp.state(), QpState::Err);
    let mut t = bench_with_limit(4);
    t.rx(read(0x100, 8));
    set_limit(&mut t, 0);
    t.expect(&[READ_1]);
    t.rx(read(0x101, 8));
    t.expect(&["ACK 101 syn=61 msn=1"]);
}

/// Rule S1.
#[test]
fn case_117_a_dropped_packet_is_asked_for_though_the_gap_closes() {
    for late in [send(0x101), send(0x101).a()] {
        let mut t = bench();
        for i in 0..4 {
            t.recv(i, 64);
        }
        t.rx(send(0x100).a());
        t.tx();
        t.rx(send(0x102).a());
        t.rx(late);
        t.expect(&["ACK 102 syn=60 msn=2"]);
        // One NAK per gap.
        t.rx(send(0x103).a());
        t.expect_silence();
        t.rx(send(0x102).a());
        t.expect(&["ACK 102 syn=1f msn=3"]);
    }
    let mut t = bench();
    t.recv(1, 64);
    t.rx(send(0x101).a());
    t.rx(read(0x100, 8));
    t.expect(&[READ_1, "ACK 101 syn=60 msn=1"]);
}

#[test]
fn case_117_no_nak_names_what_was_never_sent() {
    // All that was dropped comes again before the NAK leaves.
    for asked in [false, true] {
        let mut t = bench();
        for i in 0..4 {
            t.recv(i, 64);
        }
        t.rx(if asked { send(0x100).a() } else { send(0x100) });
        t.rx(send(0x103));
        t.rx(send(0x102));
        for psn in 0x101..0x104 {
            t.rx(send(psn));
        }
        let acks: &[&str] = if asked {
            &["ACK 103 syn=1f msn=4"]
        } else {
            &[]
        };
        t.expect(acks);
    }
    // The late READ answers for all before it.
    let mut t = bench();
    for i in 0..4 {
        t.recv(i, 64);
    }
    t.rx(send(0x100).a());
    t.rx(send(0x102).a());
    t.rx(send(0x101).a());
    t.rx(read(0x102, 8));
    t.expect(&["RDMA READ Response Only 102 syn=1f msn=3 [8]"]);
    // An ACK that a duplicate asks for is not lost either.
    let mut t = bench();
    for i in 0..4 {
        t.recv(i, 64);
    }
    t.rx(send(0x100));
    t.rx(send(0x102));
    t.rx(send(0x100).a());
    t.rx(send(0x101));
    t.rx(send(0x102));
    t.expect(&["ACK 102 syn=1f msn=3"]);
}

#[test]
fn case_117_an_rnr_nak_that_is_owed_ends_with_its_packet() {
    for (dropped, told) in [
        (false, "ACK 100 syn=1f msn=1"),
        (true, "ACK 101 syn=60 msn=1"),
    ] {
        let mut t = bench();
        t.rx(send(0x100).a());
        if dropped {
            t.rx(send(0x101).a());
        }
        t.recv(1, 64);
        t.rx(send(0x100).a());
        t.expect(&[told]);
        assert_eq!(t.received(), [(1, Success)]);
    }
    let mut t = selective_bench();
    t.rx(send(0x100).a());
    t.rx(send(0x101).a());
    t.recv(1, 64);
    t.recv(2, 64);
    t.rx(send(0x100));
    assert_eq!(t.received().len(), 2);
    t.expect(&["SACK 101 for 100 mpr=8 from 102: 0"]);
}

/// Empty WRITEs from one PSN up to another, none of which asks for an ACK.
fn empty_writes(t: &mut Bench, from: u32, to: u32) {
    let goal = Psn::new(to);
    let mut psn = Psn::new(from);
    while psn != goal {
        let write = p(O::RcWriteOnly, psn.value()).reth(0, 0, 0);
        let asks = psn.value().is_multiple_of(1 << 20);
        t.rx(if asks { write.a() } else { write });
        if asks {
            t.tx();
        }
        psn = psn.add(1);
    }
    t.tx();
}

/// Rule S18.
#[test]
fn case_118_what_was_answered_a_lap_of_psns_ago_is_not_what_comes_again() {
    let mut t = bench();
    t.rx(read(0x100, 16 * 1024));
    assert_eq!(t.tx().len(), 16);
    t.rx(add_one(0x110));
    t.rx(flush(0x111));
    assert_eq!(t.tx().len(), 2);
    empty_writes(&mut t, 0x112, 0x108);
    let new = p(O::RcReadRequest, 0x108).a().reth(BASE + 64, KEY, 8);
    for _ in 0..2 {
        t.rx(new.clone());
        let answers = t.tx();
        assert_eq!(answers.len(), 1);
        assert!(answers[0].starts_with("RDMA READ Response Only 108"));
    }
    empty_writes(&mut t, 0x109, 0x110);
    for _ in 0..2 {
        t.rx(add_one(0x110));
        let answers = t.tx();
        assert_eq!(answers.len(), 1);
        assert!(answers[0].ends_with("original=1"), "{answers:?}");
    }
    // The FLUSH of before was a SEND's PSN this time.
    empty_writes(&mut t, 0x111, 0x112);
    t.rx(flush(0x111));
    t.expect_silence();
}

#[test]
fn case_118_an_old_read_does_not_hold_back_acks_for_ever() {
    let mut t = bench();
    t.rx(read(0x100, 8));
    t.tx();
    // More than half a lap later the READ seems to lie ahead.
    empty_writes(&mut t, 0x101, 0x90_0000);
    t.rx(p(O::RcWriteOnly, 0x8f_0000).reth(0, 0, 0).a());
    let acks = t.tx();
    assert_eq!(acks.len(), 1);
    assert!(acks[0].starts_with("ACK 8fffff "), "{acks:?}");
}
