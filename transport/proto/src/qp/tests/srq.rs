//! A queue pair that takes its receives from a shared queue.

use super::*;
use crate::srq::{SharedReceiveQueue, SrqAttr};
use crate::wc::{Srq, WcOpcode};
use crate::wr::PostError;

use WcStatus::{Success, WrFlushErr};

/// A bench whose QP has an SRQ of `count` receives of 2000 bytes, from 100 on.
fn bench(count: u64) -> Bench {
    let mut setup = Setup::default();
    setup.init.srq = Some(Srq(5));
    let mut t = setup.build();
    let attr = SrqAttr {
        max_wr: 16,
        max_sge: 4,
        limit: 0,
    };
    t.log.srq = Some(SharedReceiveQueue::new(&attr).unwrap());
    for id in 100..100 + count {
        post(&mut t, id, 2000);
    }
    t
}

fn post(t: &mut Bench, wr_id: u64, len: u32) {
    let sges = [sge(0, len)];
    let srq = t.log.srq.as_mut().unwrap();
    srq.post(&RecvWr { wr_id, sges: &sges }).unwrap();
}

fn left(t: &Bench) -> u32 {
    t.log.srq.as_ref().unwrap().len()
}

/// Rules R16, S6, K7.
#[test]
fn a_receive_is_taken_at_the_first_packet_in_order_and_credits_are_never_told() {
    let mut t = bench(3);
    t.rx(p(Opcode::RcSendFirst, 0x100).len(MTU));
    assert_eq!(left(&t), 2, "K7: taken at First");
    t.rx(p(Opcode::RcSendLast, 0x101).len(5).a());
    t.rx(p(Opcode::RcSendOnly, 0x102).len(9).a());
    assert_eq!(t.received(), [(100, Success), (101, Success)]);
    assert_eq!(left(&t), 1);
    // Syndrome 1f: credit code 31.
    t.expect(&["ACK 102 syn=1f msn=2"]);
}

#[test]
fn write_with_immediate_takes_one_at_its_last_packet() {
    let mut t = bench(1);
    let imm = Opcode::RcWriteLastImm;
    t.rx(p(Opcode::RcWriteFirst, 0x100)
        .reth(BASE, KEY, 1030)
        .len(MTU));
    assert_eq!(left(&t), 1);
    t.rx(p(imm, 0x101).len(6).a());
    assert_eq!(left(&t), 0);
    let wc = t.log.recvs[0];
    assert_eq!((wc.wr_id, wc.opcode), (100, WcOpcode::RecvRdmaWithImm));
    assert_eq!(wc.byte_len, 1030);
}

#[test]
fn an_empty_srq_is_receiver_not_ready() {
    let mut t = bench(0);
    t.rx(p(Opcode::RcSendOnly, 0x100).len(8).a());
    t.expect(&["ACK 100 syn=2c msn=0"]);
    // WRITE and READ need no receive; the PSN is still that of the SEND.
    post(&mut t, 7, 100);
    t.rx(p(Opcode::RcSendOnly, 0x100).len(8).a());
    assert_eq!(t.received(), [(7, Success)]);
}

/// Rule K7.
#[test]
fn the_limit_is_reported_once() {
    let mut t = bench(3);
    let srq = t.log.srq.as_mut().unwrap();
    assert_eq!(srq.modify(None, Some(3)), Ok(false));
    t.rx(p(Opcode::RcSendOnly, 0x100).len(8));
    t.rx(p(Opcode::RcSendOnly, 0x101).len(8));
    t.rx(p(Opcode::RcSendOnly, 0x102).len(8));
    assert_eq!(t.events(), [Event::SrqLimitReached]);
    // An empty queue reports when it is armed: nothing could be taken to report it later.
    let srq = t.log.srq.as_mut().unwrap();
    assert_eq!(srq.modify(None, Some(1)), Ok(true));
    assert_eq!(srq.query().limit, 0);
}

#[test]
fn c4_c5_err_flushes_what_was_taken_and_leaves_the_rest() {
    let mut t = bench(3);
    t.rx(p(Opcode::RcSendFirst, 0x100).len(MTU));
    t.qp.modify(&QpAttr::state(QpState::Err), &mut t.log)
        .unwrap();
    assert_eq!(t.received(), [(100, WrFlushErr)]);
    assert_eq!(left(&t), 2);
    assert_eq!(t.events(), [Event::QpLastWqeReached]);
    // Nothing is taken, and nothing reported again, in ERR.
    t.rx(p(Opcode::RcSendOnly, 0x100).len(8).a());
    t.qp.modify(&QpAttr::state(QpState::Err), &mut t.log)
        .unwrap();
    assert_eq!((left(&t), t.events()), (2, vec![]));
    t.expect_silence();
}

#[test]
fn c5_also_after_an_error_of_the_peer_or_of_a_send() {
    let mut t = bench(2);
    t.rx(p(Opcode::RcSendFirst, 0x100).len(MTU));
    t.rx(p(Opcode::RcSendLast, 0x101).len(MTU).a());
    assert_eq!(t.received(), [(100, WcStatus::LocLenErr)]);
    assert_eq!(t.events(), [Event::QpLastWqeReached]);
    t.expect(&["ACK 101 syn=61 msn=0"]);
    assert_eq!(left(&t), 1);

    let mut t = bench(2);
    let bad = Sge {
        lkey: LKey::new(1),
        ..sge(0, 8)
    };
    t.send_sges(1, SendOp::Send, &[bad], SendFlags::empty());
    t.expect_silence();
    assert_eq!(t.sent(), [(1, WcStatus::LocProtErr)]);
    assert_eq!(t.events(), [Event::QpLastWqeReached]);
    assert_eq!((left(&t), t.received()), (2, vec![]));
}

#[test]
fn a_bad_buffer_from_the_srq_is_the_responders_own_fault() {
    let mut t = bench(0);
    let bad = Sge {
        lkey: LKey::new(1),
        ..sge(0, 100)
    };
    let srq = t.log.srq.as_mut().unwrap();
    srq.post(&RecvWr {
        wr_id: 3,
        sges: &[bad],
    })
    .unwrap();
    post(&mut t, 4, 100);
    t.rx(p(Opcode::RcSendOnly, 0x100).len(8).a());
    t.expect(&["ACK 100 syn=63 msn=0"]);
    assert_eq!(t.received(), [(3, WcStatus::LocProtErr)]);
    assert_eq!(left(&t), 1);
}

#[test]
fn reset_drops_what_was_taken() {
    let mut t = bench(2);
    t.rx(p(Opcode::RcSendFirst, 0x100).len(MTU));
    t.qp.modify(&QpAttr::state(QpState::Reset), &mut t.log)
        .unwrap();
    assert_eq!((t.received(), t.events()), (vec![], vec![]));
    assert_eq!(left(&t), 1);
}

#[test]
fn receives_are_posted_to_the_srq_and_nowhere_else() {
    let mut t = bench(0);
    let wr = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    let refused = t.qp.post_recv(&wr, &mut t.log);
    assert_eq!(refused, Err(PostError::HasSrq));
}

#[test]
fn a_duplicate_takes_nothing() {
    let mut t = bench(3);
    t.rx(p(Opcode::RcSendOnly, 0x100).len(8).a());
    t.rx(p(Opcode::RcSendOnly, 0x100).len(8).a());
    t.rx(p(Opcode::RcSendOnly, 0x105).len(8).a());
    assert_eq!(t.received(), [(100, Success)]);
    assert_eq!(left(&t), 2);
}
