//! Atomics, ATOMIC WRITE, FLUSH and keys taken back, between two engines.

use xroce_net::sim::Impairment;
use xroce_proto::memory::Access;
use xroce_proto::qp::QpState;
use xroce_proto::wc::{WcFlags, WcOpcode, WcStatus};
use xroce_proto::wr::{Placement, SendOp};
use xroce_wire::newtypes::Qpn;
use xroce_wire::opcode::Operation;

use crate::common::{ALL_ACCESS, Setup, World};
use crate::{MIDDLE, MTU, SECOND, TIMEOUT_NS, calm, fast, finish, ids, lose, ok, pair};

fn word(world: &World, host: usize, at: u64) -> u64 {
    u64::from_ne_bytes(world.hosts[host].bytes(at, 8).try_into().unwrap())
}

/// FETCH_ADD of `add` to the word at offset 0 of the other host, its result to `at`.
fn fetch_add(world: &mut World, from: usize, qpn: Qpn, wr_id: u64, add: u64, at: u64) {
    let peer = &world.hosts[1 - from];
    let (va, rkey) = (peer.va(0), peer.mr.rkey);
    let host = &mut world.hosts[from];
    let sge = host.sge(at, 8);
    host.post_send(qpn, wr_id, SendOp::FetchAdd { va, rkey, add }, &[sge]);
}

#[test]
fn case_21_a_lost_atomic_ack_costs_a_timeout_and_no_second_execution() {
    let (mut world, [a, b]) = pair();
    world.hosts[1]
        .region
        .write_at(0, &5u64.to_ne_bytes())
        .unwrap();
    let back = world.link.back;
    let lost = lose(&world, back, 1, |p| {
        p.info().operation == Operation::AtomicAcknowledge
    });
    fetch_add(&mut world, 0, a, 1, 1, MIDDLE);
    let (sent, _) = finish(&mut world, 1, 0, SECOND);
    assert_eq!((lost.get(), ids(&sent)), (1, ok(&[1])));
    assert_eq!((sent[0].opcode, sent[0].byte_len), (WcOpcode::FetchAdd, 8));
    assert_eq!((word(&world, 0, MIDDLE), word(&world, 1, 0)), (5, 6));
    assert!(world.net.now() >= TIMEOUT_NS);
    let counters = world.hosts[1].engine.qp_counters(b).unwrap();
    assert_eq!(counters.duplicates, 1);
}

/// Rule R8.
#[test]
fn r8_a_later_answer_shows_the_loss_without_a_timeout() {
    let (mut world, [a, _]) = pair();
    let back = world.link.back;
    let lost = lose(&world, back, 1, |p| {
        p.info().operation == Operation::AtomicAcknowledge
    });
    for id in 0..4 {
        fetch_add(&mut world, 0, a, id, 1, MIDDLE + 8 * id);
    }
    let (sent, _) = finish(&mut world, 4, 0, SECOND);
    assert_eq!((lost.get(), ids(&sent)), (1, ok(&[0, 1, 2, 3])));
    assert!(world.net.now() < TIMEOUT_NS, "{} ns", world.net.now());
    let results = [0, 1, 2, 3].map(|id| word(&world, 0, MIDDLE + 8 * id));
    assert_eq!((results, word(&world, 1, 0)), ([0, 1, 2, 3], 4));
}

/// Both hosts count in one word of each other over two pairs, while every twentieth frame is lost.
#[test]
fn additions_are_exact_at_five_percent_loss() {
    const PER_QP: u64 = 1500;
    const DEPTH: u64 = 16;
    let wire = Impairment {
        loss_ppm: 50_000,
        duplicate_ppm: 20_000,
        duplicate_delay_ns: 5_000,
        ..Impairment::delay(2000)
    };
    let setup = Setup {
        seed: 21,
        wires: [wire; 2],
        ..Setup::default()
    };
    let mut world = setup.build();
    let pairs = [0xff_ff00, 7].map(|psn| world.connect(MTU, [psn, 1], |_| {}, fast));
    // QP n of host h adds n + 1, and keeps each result.
    let mut posted = [[0u64; 2]; 2];
    let mut done = [[0u64; 2]; 2];
    let slot = |n: usize, i: u64| MIDDLE + (n as u64 * PER_QP + i) * 8;
    let end = world.net.now() + 60 * SECOND;
    while done != [[PER_QP; 2]; 2] {
        assert!(world.net.now() < end, "{done:?}");
        for (host, n) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            while posted[host][n] < PER_QP && posted[host][n] - done[host][n] < DEPTH {
                let i = posted[host][n];
                let id = (n as u64) << 32 | i;
                let add = n as u64 + 1;
                fetch_add(&mut world, host, pairs[n][host], id, add, slot(n, i));
                posted[host][n] += 1;
            }
        }
        assert!(world.step(None), "nothing will ever happen");
        for host in [0, 1] {
            for wc in world.hosts[host].completions() {
                let n = (wc.wr_id >> 32) as usize;
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                assert_eq!(wc.wr_id & 0xffff_ffff, done[host][n], "in order");
                done[host][n] += 1;
            }
        }
    }
    for host in [0, 1] {
        assert_eq!(word(&world, 1 - host, 0), PER_QP * 3, "the sum");
        // What each addition found and what it left make one chain.
        let mut steps: Vec<(u64, u64)> = Vec::new();
        for n in [0, 1] {
            let found = (0..PER_QP).map(|i| word(&world, host, slot(n, i)));
            steps.extend(found.map(|old| (old, n as u64 + 1)));
        }
        steps.sort_unstable();
        let mut at = 0;
        for (old, add) in steps {
            assert_eq!(old, at);
            at += add;
        }
        let counters = world.hosts[host]
            .engine
            .qp_counters(pairs[0][host])
            .unwrap();
        assert!(counters.implied_naks > 50, "{counters:?}");
        assert!(counters.duplicates > 50, "{counters:?}");
    }
}

#[test]
fn a_lock_taken_by_compare_swap_is_held_by_one() {
    let (mut world, [a, _]) = pair();
    let (va, rkey) = (world.hosts[1].va(64), world.hosts[1].mr.rkey);
    for (id, swap) in [(1, 11), (2, 22)] {
        let left = &mut world.hosts[0];
        let sge = left.sge(MIDDLE + id * 8, 8);
        let op = SendOp::CompareSwap {
            va,
            rkey,
            compare: 0,
            swap,
        };
        left.post_send(a, id, op, &[sge]);
    }
    let (sent, _) = finish(&mut world, 2, 0, SECOND);
    assert_eq!(ids(&sent), ok(&[1, 2]));
    assert_eq!(sent[0].opcode, WcOpcode::CompSwap);
    let found = [1, 2].map(|id| word(&world, 0, MIDDLE + id * 8));
    assert_eq!((found, word(&world, 1, 64)), ([0, 11], 11));
}

#[test]
fn a_key_is_taken_back_with_a_send_and_stays_dead() {
    let (mut world, [a, b]) = pair();
    let [left, right] = &mut world.hosts;
    let access = ALL_ACCESS | Access::INVALIDATE;
    let (at, mr) = right.carve(4096, access);
    let (va, rkey) = (right.va(at), mr.rkey);
    left.region.write_at(0, b"12345678").unwrap();
    right.post_recv(b, 1, &[right.sge(MIDDLE, 64)]);
    let eight = [left.sge(0, 8)];
    left.post_send(a, 2, SendOp::Write { va, rkey }, &eight);
    left.post_send(a, 3, SendOp::SendInv { rkey }, &eight);
    let (sent, received) = finish(&mut world, 2, 1, SECOND);
    assert_eq!((ids(&sent), ids(&received)), (ok(&[2, 3]), ok(&[1])));
    let wc = received[0];
    assert_eq!((wc.flags, wc.byte_len), (WcFlags::WITH_INV, 8));
    assert_eq!(wc.invalidated(), Some(rkey));
    assert_eq!(world.hosts[1].bytes(at, 8), b"12345678");
    // The place is not free before the region is given up.
    let [left, right] = &mut world.hosts;
    left.post_send(a, 4, SendOp::Write { va, rkey }, &eight);
    right.engine.dereg_mr(mr.lkey).unwrap();
    let (sent, _) = finish(&mut world, 1, 0, SECOND);
    assert_eq!(ids(&sent), [(4, WcStatus::RemAccessErr)]);
}

#[test]
fn case_81_a_peer_cannot_take_back_what_was_not_meant_for_it() {
    let (mut world, [a, b]) = pair();
    let [left, right] = &mut world.hosts;
    right.post_recv(b, 1, &[right.sge(MIDDLE, 64)]);
    let rkey = right.mr.rkey;
    left.post_send(a, 2, SendOp::SendInv { rkey }, &[left.sge(0, 8)]);
    let (sent, received) = finish(&mut world, 1, 1, SECOND);
    assert_eq!(ids(&sent), [(2, WcStatus::RemAccessErr)]);
    assert_eq!(ids(&received), [(1, WcStatus::RemInvReqErr)]);
    // Others go on using it.
    let qpns = world.connect(MTU, [1, 1], |_| {}, fast);
    crate::exchange(&mut world, qpns, 5000, SECOND);
}

#[test]
fn local_inv_comes_after_all_that_was_posted_before() {
    let (mut world, [a, _]) = pair();
    let [left, right] = &mut world.hosts;
    let (at, mr) = left.carve(4096, ALL_ACCESS | Access::INVALIDATE);
    let sge = xroce_proto::wr::Sge {
        lkey: mr.lkey,
        va: left.va(at),
        len: 4096,
    };
    let (va, rkey) = (right.va(0), right.mr.rkey);
    left.post_send(a, 1, SendOp::Write { va, rkey }, &[sge]);
    left.post_send(a, 2, SendOp::Read { va, rkey }, &[sge]);
    left.post_send(a, 3, SendOp::LocalInv { rkey: mr.rkey }, &[]);
    left.post_send(a, 4, SendOp::Write { va, rkey }, &[sge]);
    let (sent, _) = finish(&mut world, 4, 0, SECOND);
    assert_eq!(ids(&sent)[..3], ok(&[1, 2, 3]));
    assert_eq!(sent[2].opcode, WcOpcode::LocalInv);
    assert_eq!(ids(&sent)[3..], [(4, WcStatus::LocProtErr)]);
}

#[test]
fn atomic_write_and_flush_survive_the_loss_of_their_answers() {
    let mut world = calm().build();
    let access = ALL_ACCESS | Access::FLUSH_GLOBAL;
    let [a, b] = world.connect(
        MTU,
        [1, 2],
        |_| {},
        |attr| {
            fast(attr);
            attr.access = attr.access.map(|_| access);
        },
    );
    let (at, mr) = world.hosts[1].carve(4096, access);
    let (va, rkey) = (world.hosts[1].va(at), mr.rkey);
    let back = world.link.back;
    let lost = lose(&world, back, 2, |p| {
        p.info().operation == Operation::ReadResponse
    });
    let left = &mut world.hosts[0];
    left.region.write_at(0, b"abcdefgh").unwrap();
    let sge = left.sge(0, 8);
    left.post_send(a, 1, SendOp::AtomicWrite { va, rkey }, &[sge]);
    let flush = |whole_region| SendOp::Flush {
        va,
        rkey,
        len: 4096,
        placement: Placement::GLOBAL,
        whole_region,
    };
    left.post_send(a, 2, flush(false), &[]);
    left.post_send(a, 3, flush(true), &[]);
    let (sent, _) = finish(&mut world, 3, 0, SECOND);
    assert_eq!((lost.get(), ids(&sent)), (2, ok(&[1, 2, 3])));
    let opcodes: Vec<WcOpcode> = sent.iter().map(|c| c.opcode).collect();
    let flush = WcOpcode::Flush;
    assert_eq!(opcodes, [WcOpcode::AtomicWrite, flush, flush]);
    assert_eq!(world.hosts[1].bytes(at, 8), b"abcdefgh");
    assert_eq!(world.hosts[1].engine.qp_state(b), Some(QpState::Rts));
}
