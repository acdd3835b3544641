//! Transcripts of atomics, ATOMIC WRITE, FLUSH and of keys that are taken back, both sides. Rows
//! are those of the collected cases.

use super::*;
use crate::wc::{WcFlags, WcOpcode};
use crate::wr::{Placement, PostError};
use WcStatus::{
    BadRespErr, LocProtErr, LocQpOpErr, RemAccessErr, RemInvReqErr, RetryExcErr, Success,
    WrFlushErr,
};
use xroce_wire::opcode::Opcode as O;

const FLUSHES: Access = Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT);

/// A QP and a region that allow everything.
fn bench() -> Bench {
    let all = Access::all();
    let mut t = Setup {
        access: all,
        ..Setup::default()
    }
    .build();
    t.mem.access = all;
    t
}

/// The same with `n` READs and atomics each way.
fn bench_with_limit(n: u8) -> Bench {
    let mut setup = Setup {
        access: Access::all(),
        ..Setup::default()
    };
    setup.rtr.max_dest_rd_atomic = Some(n);
    setup.rts.max_rd_atomic = Some(n);
    let mut t = setup.build();
    t.mem.access = Access::all();
    t
}

impl Bench {
    fn put(&mut self, offset: usize, value: u64) {
        self.mem.bytes[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
    }

    fn get(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.mem.bytes[offset..offset + 8].try_into().unwrap())
    }

    /// The results of the atomics answered now.
    fn originals(&mut self) -> Vec<(u32, u64)> {
        let mut all = Vec::new();
        while let Some(frame) = self.tx_frame() {
            let pkt = Packet::parse(&frame).unwrap();
            if let Some(ack) = pkt.atomic_ack() {
                all.push((pkt.psn().value(), ack.original));
            }
        }
        all
    }
}

fn fetch_add(psn: u32, va: u64, add: u64) -> P {
    p(O::RcFetchAdd, psn).a().atomic(va, KEY, add, 0)
}

fn cmp_swap(psn: u32, va: u64, compare: u64, swap: u64) -> P {
    p(O::RcCmpSwap, psn).a().atomic(va, KEY, swap, compare)
}

fn atomic_write(psn: u32, va: u64, bytes: &[u8]) -> P {
    let len = bytes.len() as u32;
    p(O::RcAtomicWrite, psn).a().reth(va, KEY, len).bytes(bytes)
}

fn flush(psn: u32, placement: u8, selectivity: u8) -> P {
    p(O::RcFlush, psn)
        .a()
        .reth(BASE, KEY, 100)
        .feth(placement, selectivity)
}

fn add(va: u64, add: u64) -> SendOp {
    SendOp::FetchAdd {
        va: Va::new(va),
        rkey: RKey::new(0x77),
        add,
    }
}

fn swap(va: u64, compare: u64, swap: u64) -> SendOp {
    SendOp::CompareSwap {
        va: Va::new(va),
        rkey: RKey::new(0x77),
        compare,
        swap,
    }
}

fn atomic_ack(psn: u32, original: u64) -> P {
    P {
        aeth: Some(Syndrome::ACK),
        original,
        ..p(O::RcAtomicAcknowledge, psn)
    }
}

fn flush_op(placement: Placement, whole_region: bool) -> SendOp {
    SendOp::Flush {
        va: Va::new(0x40),
        rkey: RKey::new(0x77),
        len: 5_000_000,
        placement,
        whole_region,
    }
}

/// Rule S10.
#[test]
fn atomics_change_memory_and_return_what_was_there() {
    let mut t = bench();
    t.put(0x40, 0x1122_3344_5566_7788);
    t.rx(cmp_swap(0x100, BASE + 0x40, 0x1122_3344_5566_7788, 7));
    t.expect(&["ATOMIC ACK 100 syn=1f msn=1 original=1122334455667788"]);
    assert_eq!(t.get(0x40), 7);
    t.rx(cmp_swap(0x101, BASE + 0x40, 8, 9));
    t.expect(&["ATOMIC ACK 101 syn=1f msn=2 original=7"]);
    assert_eq!(t.get(0x40), 7);
    t.rx(fetch_add(0x102, BASE + 0x40, u64::MAX));
    t.rx(fetch_add(0x103, BASE + 0x40, u64::MAX - 10));
    t.expect(&[
        "ATOMIC ACK 102 syn=1f msn=4 original=7",
        "ATOMIC ACK 103 syn=1f msn=4 original=6",
    ]);
    assert_eq!(t.get(0x40), 6u64.wrapping_sub(11));
    assert_eq!(t.qp.expected_psn(), Psn::new(0x104));
}

/// Rule S12.
#[test]
fn case_21_a_lost_atomic_ack_is_replayed_and_not_executed_again() {
    let mut t = bench();
    t.put(0, 5);
    t.rx(fetch_add(0x100, BASE, 1));
    assert_eq!(t.originals(), [(0x100, 5)]);
    assert_eq!(t.get(0), 6);
    t.rx(p(O::RcWriteOnly, 0x101).reth(BASE + 64, KEY, 8).len(8).a());
    t.tx();
    for _ in 0..3 {
        t.rx(fetch_add(0x100, BASE, 1));
        // The stored result, the MSN of now (S12).
        t.expect(&["ATOMIC ACK 100 syn=1f msn=2 original=5"]);
    }
    assert_eq!((t.get(0), t.mem.atomics), (6, 1));
    assert_eq!(t.qp.counters().duplicates, 3);
}

#[test]
fn case_21_sixteen_outstanding_are_all_replayed() {
    let mut t = bench();
    t.put(0, 5);
    for i in 0..16 {
        t.rx(fetch_add(0x100 + i, BASE, 1));
    }
    let first = t.originals();
    assert_eq!(first.len(), 16);
    assert_eq!((first[0], first[15]), ((0x100, 5), (0x10f, 20)));
    for i in 0..16 {
        t.rx(fetch_add(0x100 + i, BASE, 1));
    }
    assert_eq!(t.originals(), first);
    assert_eq!((t.get(0), t.mem.atomics), (21, 16));
}

#[test]
fn case_21_an_unknown_duplicate_is_dropped() {
    let mut t = bench_with_limit(1);
    t.rx(fetch_add(0x100, BASE, 1));
    t.rx(p(O::RcSendOnly, 0xff).a());
    t.tx();
    t.rx(fetch_add(0x101, BASE, 1));
    t.tx();
    let before = t.get(0);
    for packet in [
        // Given up for the next one; never seen; another operation, address or key.
        fetch_add(0x100, BASE, 1),
        fetch_add(0x90, BASE, 1),
        cmp_swap(0x101, BASE, before, 0),
        fetch_add(0x101, BASE + 8, 1),
        p(O::RcFetchAdd, 0x101).atomic(BASE, KEY + 1, 1, 0),
        p(O::RcReadRequest, 0x101).reth(BASE, KEY, 0),
        atomic_write(0x101, BASE, &[1; 8]),
        flush(0x101, 1, 0),
    ] {
        t.rx(packet);
        t.expect_silence();
    }
    assert_eq!((t.get(0), t.mem.atomics), (before, 2));
    assert_eq!(t.qp.state(), QpState::Rts);
}

/// Rules S10, S16.
#[test]
fn case_18_and_68_refused_atomics_are_naked_by_acknowledge() {
    let (none, atomic) = (Access::empty(), Access::REMOTE_ATOMIC);
    let (write, global) = (Access::REMOTE_WRITE, Access::FLUSH_GLOBAL);
    // Packet, right the region lacks, syndrome.
    let rows: [(P, Access, u8); 15] = [
        (
            p(O::RcFetchAdd, 0x100).atomic(BASE, 0xbad, 1, 0),
            none,
            0x62,
        ),
        (p(O::RcCmpSwap, 0x100).atomic(BASE, 0xbad, 1, 0), none, 0x62),
        (fetch_add(0x100, BASE - 8, 1), none, 0x62),
        (fetch_add(0x100, BASE + SIZE as u64 - 4, 1), none, 0x62),
        (fetch_add(0x100, BASE, 1), atomic, 0x62),
        (fetch_add(0x100, BASE + 4, 1), none, 0x61),
        (cmp_swap(0x100, BASE + 1, 1, 1), none, 0x61),
        (fetch_add(0x100, BASE, 1).len(4), none, 0x61),
        (atomic_write(0x100, BASE + 4, &[1; 8]), none, 0x61),
        (atomic_write(0x100, BASE, &[1; 4]), none, 0x61),
        (atomic_write(0x100, BASE, &[1; 12]), none, 0x61),
        (
            atomic_write(0x100, BASE, &[1; 8]).reth(BASE, KEY, 4),
            none,
            0x61,
        ),
        (atomic_write(0x100, BASE, &[1; 8]), write, 0x62),
        (flush(0x100, 1, 0), global, 0x62),
        (
            flush(0x100, 1, 0).reth(BASE, KEY, SIZE as u32 + 1),
            none,
            0x62,
        ),
    ];
    for (packet, lacks, syndrome) in rows {
        let mut t = bench();
        t.mem.access.remove(lacks);
        t.recv(1, 64);
        let what = packet.opcode;
        let before = t.mem.bytes.clone();
        t.rx(packet);
        assert_eq!(
            t.tx(),
            [format!("ACK 100 syn={syndrome:x} msn=0")],
            "{what:?}"
        );
        assert_eq!(t.qp.state(), QpState::Err);
        assert_eq!(t.received(), [(1, WrFlushErr)], "none was in use");
        let event = if syndrome == 0x61 {
            Event::QpReqErr
        } else {
            Event::QpAccessErr
        };
        assert_eq!(t.events(), [event]);
        assert!(t.mem.bytes == before && t.mem.flushes.is_empty());
    }
}

#[test]
fn rights_of_the_qp_come_first_and_are_invalid_requests() {
    for (packet, right) in [
        (fetch_add(0x100, BASE, 1), Access::REMOTE_ATOMIC),
        (cmp_swap(0x100, BASE, 1, 1), Access::REMOTE_ATOMIC),
        (atomic_write(0x100, BASE, &[1; 8]), Access::REMOTE_WRITE),
        (flush(0x100, 1, 0), Access::FLUSH_GLOBAL),
        (flush(0x100, 2, 1), Access::FLUSH_PERSISTENT),
        (flush(0x100, 3, 1), Access::FLUSH_PERSISTENT),
    ] {
        let access = Access::all().difference(right);
        let mut t = Setup {
            access,
            ..Setup::default()
        }
        .build();
        // The region refuses it as well; that is not looked at.
        t.rx(packet);
        t.expect(&["ACK 100 syn=61 msn=0"]);
        assert_eq!(t.events(), [Event::QpReqErr]);
    }
}

/// Rule S11.
#[test]
fn case_33_too_many_atomics_are_refused() {
    let mut t = bench_with_limit(2);
    t.rx(fetch_add(0x100, BASE, 1));
    t.rx(p(O::RcReadRequest, 0x101).reth(BASE, KEY, 8).a());
    t.rx(fetch_add(0x102, BASE, 1));
    let sent = t.tx();
    assert_eq!(sent.len(), 3, "{sent:?}");
    assert_eq!(sent[2], "ACK 102 syn=61 msn=2");
    assert_eq!(t.mem.atomics, 1);
}

/// Rule S8.
#[test]
fn responses_leave_in_the_order_of_the_requests() {
    let mut t = bench();
    t.put(0, 1);
    t.recv(1, 64);
    t.rx(p(O::RcReadRequest, 0x100).reth(BASE, KEY, 2000).a());
    t.rx(fetch_add(0x102, BASE, 1));
    t.rx(flush(0x103, 1, 0));
    t.rx(p(O::RcSendOnly, 0x104).len(8).a());
    t.expect(&[
        "RDMA READ Response First 100 syn=1f msn=4 [1024]",
        "RDMA READ Response Last 101 syn=1f msn=4 [976]",
        "ATOMIC ACK 102 syn=1f msn=4 original=1",
        "RDMA READ Response Only 103 syn=1f msn=4",
        "ACK 104 syn=1f msn=4",
    ]);
}

#[test]
fn a_repeated_ack_does_not_pass_an_atomic() {
    let mut t = bench();
    t.recv(1, 64);
    t.rx(p(O::RcSendOnly, 0x100).len(8).a());
    t.rx(fetch_add(0x101, BASE, 1));
    t.tx();
    t.rx(p(O::RcSendOnly, 0x100).len(8).a());
    t.expect(&["ACK 100 syn=1f msn=2"]);
}

/// Rule S10.
#[test]
fn atomic_write_stores_the_bytes_as_they_came_once() {
    let mut t = bench();
    let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
    t.rx(atomic_write(0x100, BASE + 8, &bytes));
    t.expect(&["RDMA READ Response Only 100 syn=1f msn=1"]);
    assert_eq!(t.mem.bytes[8..16], bytes);
    // Somebody else writes there; the duplicate must not undo it.
    t.put(8, 0);
    t.rx(atomic_write(0x100, BASE + 8, &bytes));
    t.expect(&["RDMA READ Response Only 100 syn=1f msn=1"]);
    assert_eq!((t.get(8), t.mem.atomics), (0, 1));
}

/// Rule S19.
#[test]
fn flush_is_done_once_as_far_as_it_says() {
    let mut t = bench();
    for (i, (placement, selectivity, need)) in [
        (1, 0, Access::FLUSH_GLOBAL),
        (2, 0, Access::FLUSH_PERSISTENT),
        (3, 1, FLUSHES),
    ]
    .into_iter()
    .enumerate()
    {
        let psn = 0x100 + i as u32;
        for _ in 0..2 {
            t.rx(flush(psn, placement, selectivity));
            let answer = format!("RDMA READ Response Only {psn:x} syn=1f msn={}", i + 1);
            t.expect(&[&answer]);
        }
        assert_eq!(t.mem.flushes[i..], [(selectivity == 1, need)]);
    }
    for (placement, selectivity) in [(0, 0), (4, 0), (1, 2), (1, 3)] {
        let mut t = bench();
        t.rx(flush(0x100, placement, selectivity));
        t.expect(&["ACK 100 syn=61 msn=0"]);
    }
}

/// rdma_rxe sends both again with the remote address 0 (seen with Linux 6.12). Nothing is executed
/// and nothing of the memory is told, so that the key and the PSN are enough.
/// Rule X18.
#[test]
fn what_is_answered_by_nothing_may_come_again_with_another_address() {
    let mut t = bench();
    let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
    t.rx(atomic_write(0x100, BASE + 8, &bytes));
    t.expect(&["RDMA READ Response Only 100 syn=1f msn=1"]);
    t.rx(flush(0x101, 1, 0));
    t.expect(&["RDMA READ Response Only 101 syn=1f msn=2"]);
    t.put(8, 0);
    t.rx(atomic_write(0x100, 0, &bytes));
    t.expect(&["RDMA READ Response Only 100 syn=1f msn=2"]);
    let again = p(O::RcFlush, 0x101).a().reth(0, KEY, 100);
    t.rx(again.feth(1, 0));
    t.expect(&["RDMA READ Response Only 101 syn=1f msn=2"]);
    assert_eq!((t.get(8), t.mem.atomics, t.mem.flushes.len()), (0, 1, 1));
    // Under another key it is somebody else's.
    let other = p(O::RcAtomicWrite, 0x100).a().reth(BASE + 8, KEY + 1, 8);
    t.rx(other.bytes(&bytes));
    t.expect_silence();
}

#[test]
fn atomics_are_posted_and_completed() {
    let mut t = bench();
    t.send(1, swap(0x40, 5, 6), 8);
    t.send(2, add(0x48, u64::MAX), 8);
    t.expect(&[
        "Compare Swap 100 A va=40 rkey=77 swap_add=6 compare=5",
        "Fetch Add 101 A va=48 rkey=77 swap_add=ffffffffffffffff compare=0",
    ]);
    t.rx(atomic_ack(0x100, 0x0102_0304_0506_0708));
    let wc = t.log.sends[0];
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::CompSwap, 8));
    assert_eq!(t.get(0), 0x0102_0304_0506_0708, "an integer of this host");
    t.rx(atomic_ack(0x101, 9));
    assert_eq!(t.log.sends[1].opcode, WcOpcode::FetchAdd);
    assert_eq!(t.sent(), [(1, Success), (2, Success)]);
    assert_eq!(t.qp.poll_timeout(), None);
}

/// Rule S20.
#[test]
fn atomic_write_and_flush_are_posted_and_completed() {
    let mut t = bench();
    let (va, rkey) = (Va::new(0x40), RKey::new(0x77));
    t.send(1, SendOp::AtomicWrite { va, rkey }, 8);
    let wr = SendWr {
        wr_id: 2,
        op: SendOp::AtomicWrite { va, rkey },
        flags: SendFlags::SIGNALED,
        data: Data::Inline(&[&[1, 2, 3], &[4, 5, 6, 7, 8]]),
    };
    t.qp.post_send(&wr, &mut t.log).unwrap();
    t.send_sges(
        3,
        flush_op(Placement::GLOBAL, false),
        &[],
        SendFlags::SIGNALED,
    );
    t.send_sges(
        4,
        flush_op(Placement::all(), true),
        &[],
        SendFlags::SIGNALED,
    );
    t.expect(&[
        "ATOMIC WRITE 100 A va=40 rkey=77 len=8 [8]",
        "ATOMIC WRITE 101 A va=40 rkey=77 len=8 [8]",
        "FLUSH 102 A va=40 rkey=77 len=5000000 plt=1 sel=0",
        "FLUSH 103 A va=40 rkey=77 len=5000000 plt=3 sel=1",
    ]);
    for psn in 0x100..0x104 {
        t.rx(response(O::RcReadResponseOnly, psn, 0));
    }
    let opcodes: Vec<WcOpcode> = t.log.sends.iter().map(|c| c.opcode).collect();
    let (write, flush) = (WcOpcode::AtomicWrite, WcOpcode::Flush);
    assert_eq!(opcodes, [write, write, flush, flush]);
    assert_eq!(t.sent(), [1, 2, 3, 4].map(|id| (id, Success)));
}

#[test]
fn case_52_an_ack_does_not_complete_past_an_unanswered_atomic() {
    let mut t = bench();
    t.send(40, write(0x10), 8);
    t.send(41, add(0x40, 1), 8);
    t.send(42, write(0x20), 8);
    assert_eq!(t.tx().len(), 3);
    t.rx(ack(0x102));
    assert_eq!(t.sent(), [(40, Success)]);
    t.expect(&[
        "Fetch Add 101 A va=40 rkey=77 swap_add=1 compare=0",
        "RDMA WRITE Only 102 A va=20 rkey=77 len=8 [8]",
    ]);
    t.rx(atomic_ack(0x101, 3));
    t.rx(ack(0x102));
    assert_eq!(t.sent(), [(41, Success), (42, Success)]);
    assert_eq!(t.qp.counters().implied_naks, 1);
}

#[test]
fn a_later_response_implies_the_loss_of_an_earlier_one_once() {
    let mut t = bench();
    for id in 0..4 {
        t.send(id, add(0x40, 1), 8);
    }
    t.tx();
    for psn in [0x100, 0x102, 0x103] {
        t.rx(atomic_ack(psn, psn.into()));
    }
    assert_eq!(t.sent(), [(0, Success)]);
    let again = [
        "Fetch Add 101 A va=40 rkey=77 swap_add=1 compare=0",
        "Fetch Add 102 A va=40 rkey=77 swap_add=1 compare=0",
        "Fetch Add 103 A va=40 rkey=77 swap_add=1 compare=0",
    ];
    t.expect(&again);
    for psn in 0x101..0x104 {
        t.rx(atomic_ack(psn, psn.into()));
    }
    assert_eq!(t.sent(), [1, 2, 3].map(|id| (id, Success)));
    assert_eq!(t.qp.counters().retransmits, 3);
}

#[test]
fn a_silent_peer_gets_the_same_atomic_again_until_the_retries_are_used_up() {
    let mut t = bench();
    t.send(1, add(0x40, 1), 8);
    let first = t.tx();
    for _ in 0..7 {
        t.wait(Duration::from_nanos(1 << 40));
        assert_eq!(t.tx(), first);
    }
    t.wait(Duration::from_nanos(1 << 40));
    assert_eq!(t.sent(), [(1, RetryExcErr)]);
}

#[test]
fn case_53_bad_answers_to_atomics_fail_them() {
    let rows: [(SendOp, u32, P); 9] = [
        (add(0x40, 1), 8, response(O::RcReadResponseOnly, 0x100, 8)),
        (add(0x40, 1), 8, response(O::RcReadResponseOnly, 0x100, 0)),
        (add(0x40, 1), 8, atomic_ack(0x100, 1).len(4)),
        (
            add(0x40, 1),
            8,
            P {
                aeth: Some(Syndrome::from_u8(0x62)),
                ..atomic_ack(0x100, 1)
            },
        ),
        (SendOp::Send, 8, atomic_ack(0x100, 1)),
        (read(0x40), 8, atomic_ack(0x100, 1)),
        (flush_op(Placement::GLOBAL, false), 0, atomic_ack(0x100, 1)),
        (
            flush_op(Placement::GLOBAL, false),
            0,
            response(O::RcReadResponseOnly, 0x100, 4),
        ),
        (
            flush_op(Placement::GLOBAL, false),
            0,
            response(O::RcReadResponseFirst, 0x100, 0),
        ),
    ];
    for (op, len, answer) in rows {
        let mut t = bench();
        t.send(1, op, len);
        t.send(2, SendOp::Send, 8);
        t.tx();
        t.rx(answer);
        assert_eq!(t.sent(), [(1, BadRespErr), (2, WrFlushErr)], "{op:?}");
    }
}

#[test]
fn naks_of_atomics_are_told() {
    for (byte, status) in [(0x61, RemInvReqErr), (0x62, RemAccessErr)] {
        let mut t = bench();
        t.send_flags(1, add(0x40, 1), 8, SendFlags::empty());
        t.send(2, add(0x40, 1), 8);
        t.tx();
        t.rx(nak(0x100, byte));
        assert_eq!(t.sent(), [(1, status), (2, WrFlushErr)]);
    }
}

/// Rule R3.
#[test]
fn the_requester_keeps_to_its_limit_of_reads_and_atomics() {
    let mut t = bench_with_limit(2);
    t.send(1, add(0x40, 1), 8);
    t.send(2, read(0x40), 8);
    t.send_sges(
        3,
        flush_op(Placement::GLOBAL, false),
        &[],
        SendFlags::SIGNALED,
    );
    t.send(4, SendOp::Send, 8);
    assert_eq!(t.tx().len(), 2);
    t.rx(atomic_ack(0x100, 1));
    t.expect(&[
        "FLUSH 102 A va=40 rkey=77 len=5000000 plt=1 sel=0",
        "SEND Only 103 A [8]",
    ]);
    let mut t = bench_with_limit(0);
    let wr = SendWr {
        wr_id: 1,
        op: add(0x40, 1),
        flags: SendFlags::SIGNALED,
        data: Data::Sges(&[sge(0, 8)]),
    };
    let refused = t.qp.post_send(&wr, &mut t.log);
    assert_eq!(refused, Err(PostError::NoRdAtomic));
    // And the responder of such a QP refuses them (case 32).
    t.rx(fetch_add(0x100, BASE, 1));
    t.expect(&["ACK 100 syn=61 msn=0"]);
}

/// Rule R4.
#[test]
fn case_64_a_fence_waits_for_atomics_and_nothing_else() {
    let fenced = SendFlags::FENCE | SendFlags::SIGNALED;
    for (op, len, answer) in [
        (add(0x40, 1), 8, atomic_ack(0x101, 1)),
        (
            flush_op(Placement::GLOBAL, false),
            0,
            response(O::RcReadResponseOnly, 0x101, 0),
        ),
    ] {
        let mut t = bench();
        t.send(1, write(0x10), 8);
        t.send(2, op, len);
        t.send_flags(3, SendOp::Send, 8, fenced);
        assert_eq!(t.tx().len(), 2);
        t.rx(answer);
        t.expect(&["SEND Only 102 A [8]"]);
    }
    let mut t = bench();
    t.send(1, write(0x10), 8);
    t.send_flags(2, add(0x40, 1), 8, fenced);
    assert_eq!(t.tx().len(), 2, "a WRITE needs no fence");
}

#[test]
fn what_cannot_be_posted() {
    let mut t = bench();
    let mut post = |op, data: Data<'_>| {
        let wr = SendWr {
            wr_id: 1,
            op,
            flags: SendFlags::SIGNALED,
            data,
        };
        t.qp.post_send(&wr, &mut t.log)
    };
    let eight = [sge(0, 8)];
    let eight = Data::Sges(&eight);
    let seven = [sge(0, 7)];
    let seven = Data::Sges(&seven);
    let given = 7;
    let misaligned = Err(PostError::Misaligned(Va::new(0x44)));
    assert_eq!(post(add(0x44, 1), eight), misaligned);
    assert_eq!(post(swap(0x44, 1, 1), eight), misaligned);
    assert_eq!(
        post(add(0x40, 1), seven),
        Err(PostError::AtomicLen { given })
    );
    let inline = Data::Inline(&[&[0; 8]]);
    assert_eq!(post(add(0x40, 1), inline), Err(PostError::InlineRead));
    let flush = flush_op(Placement::GLOBAL, false);
    assert_eq!(post(flush, seven), Err(PostError::NoData { given }));
    let rkey = RKey::new(KEY);
    let inv = SendOp::LocalInv { rkey };
    assert_eq!(post(inv, seven), Err(PostError::NoData { given }));
    let nowhere = flush_op(Placement::empty(), true);
    assert_eq!(post(nowhere, Data::Sges(&[])), Err(PostError::NoPlacement));
    assert_eq!(t.qp.sends_posted(), 0);
    t.expect_silence();
}

#[test]
fn the_result_needs_a_writable_sge() {
    let mut t = bench();
    t.mem.access.remove(Access::LOCAL_WRITE);
    t.send(1, add(0x40, 1), 8);
    t.expect_silence();
    assert_eq!(t.sent(), [(1, LocProtErr)]);
    // Gone while the answer was on its way.
    let mut t = bench();
    t.send(1, add(0x40, 1), 8);
    t.tx();
    t.mem.alive = false;
    t.rx(atomic_ack(0x100, 1));
    assert_eq!(t.sent(), [(1, LocProtErr)]);
    // What an ATOMIC WRITE carries is only read.
    let mut t = bench();
    t.mem.access.remove(Access::LOCAL_WRITE);
    let (va, rkey) = (Va::new(0x40), RKey::new(0x77));
    t.send(1, SendOp::AtomicWrite { va, rkey }, 8);
    assert_eq!(t.tx().len(), 1);
}

#[test]
fn a_send_with_invalidate_is_sent() {
    let mut t = bench();
    let inv = SendOp::SendInv {
        rkey: RKey::new(0xabcd),
    };
    t.send_flags(1, inv, 8, SendFlags::SOLICITED | SendFlags::SIGNALED);
    t.send(2, inv, 1500);
    t.send(3, inv, 0);
    t.expect(&[
        "SEND Only Inv 100 SE inv=abcd [8]",
        "SEND First 101 [1024]",
        "SEND Last Inv 102 inv=abcd [476]",
        "SEND Only Inv 103 A inv=abcd",
    ]);
    t.rx(ack(0x103));
    assert_eq!(t.log.sends[0].opcode, WcOpcode::Send);
    assert_eq!(t.sent().len(), 3);
}

/// Rule S14.
#[test]
fn a_send_with_invalidate_takes_the_key_back_after_its_data() {
    let mut t = bench();
    t.recv(1, 2000);
    t.recv(2, 2000);
    t.rx(p(O::RcSendFirst, 0x100).bytes(&[7; MTU]));
    assert!(t.mem.alive);
    t.rx(p(O::RcSendLastInvalidate, 0x101)
        .bytes(&[8; 4])
        .a()
        .inv(KEY));
    // Into the region of that very key.
    assert_eq!(
        t.mem.bytes[MTU - 1..MTU + 5],
        [7, 8, 8, 8, 8, t.mem.bytes[MTU + 4]]
    );
    assert!(!t.mem.alive);
    let wc = t.log.recvs[0];
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::Recv, 1028));
    assert_eq!(wc.flags, WcFlags::WITH_INV);
    assert_eq!(wc.invalidated(), Some(RKey::new(KEY)));
    assert_eq!(t.received(), [(1, Success)]);
    t.expect(&["ACK 101 syn=1f msn=1"]);
    // Again: acknowledged, and no error although the key is gone.
    t.rx(p(O::RcSendLastInvalidate, 0x101)
        .bytes(&[8; 4])
        .a()
        .inv(KEY));
    t.expect(&["ACK 101 syn=1f msn=1"]);
    assert_eq!(t.received(), []);
    // Case 81: what used the key is refused.
    t.rx(p(O::RcWriteOnly, 0x102).reth(BASE, KEY, 8).len(8).a());
    t.expect(&["ACK 102 syn=62 msn=1"]);
    assert_eq!(t.received(), [(2, WrFlushErr)]);
}

/// Rule S14.
#[test]
fn case_81_a_key_that_cannot_be_invalidated_is_a_remote_access_error() {
    for bad_key in [false, true] {
        let mut t = bench();
        let key = if bad_key { KEY + 1 } else { KEY };
        if !bad_key {
            t.mem.access.remove(Access::INVALIDATE);
        }
        t.recv(1, 64);
        t.recv(2, 64);
        t.rx(p(O::RcSendOnlyInvalidate, 0x100).len(8).a().inv(key));
        t.expect(&["ACK 100 syn=62 msn=0"]);
        assert_eq!(t.received(), [(1, RemInvReqErr), (2, WrFlushErr)]);
        assert_eq!(t.qp.state(), QpState::Err);
        assert!(t.mem.alive);
    }
}

#[test]
fn an_invalidated_region_ends_a_read_in_the_middle() {
    let mut t = bench();
    t.recv(1, 64);
    t.rx(p(O::RcReadRequest, 0x100).reth(BASE, KEY, 3000).a());
    assert!(t.tx_frame().is_some());
    t.rx(p(O::RcSendOnlyInvalidate, 0x103).a().inv(KEY));
    t.expect(&["ACK 101 syn=62 msn=2"]);
}

/// Rule R4.
#[test]
fn local_inv_waits_for_all_earlier_work() {
    let mut t = bench();
    let rkey = RKey::new(KEY);
    t.send(1, write(0x10), 8);
    t.send_sges(2, SendOp::LocalInv { rkey }, &[], SendFlags::SIGNALED);
    // It must be asked for, or the wait has no end.
    t.expect(&["RDMA WRITE Only 100 A va=10 rkey=77 len=8 [8]"]);
    assert!(t.mem.alive && t.sent().is_empty());
    t.rx(ack(0x100));
    t.expect_silence();
    assert!(!t.mem.alive);
    assert_eq!(t.log.sends[1].opcode, WcOpcode::LocalInv);
    assert_eq!(t.sent(), [(1, Success), (2, Success)]);
    assert_eq!(
        t.qp.send_psns(),
        (Psn::new(0x101), Psn::new(0x101)),
        "no PSN"
    );
    // What comes after it and uses the key fails.
    t.send(3, write(0x10), 8);
    t.expect_silence();
    assert_eq!(t.sent(), [(3, LocProtErr)]);
}

#[test]
fn local_inv_goes_on_with_what_follows_and_unsignaled_it_is_silent() {
    let mut t = bench();
    let rkey = RKey::new(KEY);
    t.send_sges(1, SendOp::LocalInv { rkey }, &[], SendFlags::empty());
    t.send_sges(2, SendOp::Send, &[], SendFlags::SIGNALED);
    t.expect(&["SEND Only 100 A"]);
    assert_eq!(t.sent(), []);
    assert!(!t.mem.alive);
}

#[test]
fn local_inv_of_a_key_that_is_not_there_fails() {
    let mut t = bench();
    let rkey = RKey::new(KEY + 1);
    t.send_sges(1, SendOp::LocalInv { rkey }, &[], SendFlags::empty());
    t.send(2, SendOp::Send, 8);
    t.expect_silence();
    assert_eq!(t.sent(), [(1, LocQpOpErr), (2, WrFlushErr)]);
    assert_eq!(t.qp.state(), QpState::Err);
    assert_eq!(t.events(), [], "the completion says it");
}

/// Rule W19.
#[test]
fn the_solicited_event_reaches_every_receive_and_no_plain_write() {
    let mut t = bench();
    let flags = SendFlags::SOLICITED | SendFlags::SIGNALED;
    t.send_flags(1, write(0x10), 8, flags);
    t.send_flags(2, add(0x40, 1), 8, flags);
    t.expect(&[
        "RDMA WRITE Only 100 A va=10 rkey=77 len=8 [8]",
        "Fetch Add 101 A va=40 rkey=77 swap_add=1 compare=0",
    ]);
    for (i, opcode) in [
        O::RcSendOnly,
        O::RcSendOnlyImm,
        O::RcSendOnlyInvalidate,
        O::RcWriteOnlyImm,
    ]
    .into_iter()
    .enumerate()
    {
        t.recv(1, 64);
        let packet = p(opcode, 0x100 + i as u32).reth(BASE, KEY, 8).len(8).a();
        t.rx(packet.inv(KEY).se());
        let wc = t.log.recvs[i];
        assert!(wc.flags.contains(WcFlags::SOLICITED), "{opcode:?}");
        t.mem.alive = true;
    }
}
