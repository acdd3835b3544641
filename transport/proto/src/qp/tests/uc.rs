//! UC (UC1 to UC4): messages vanish whole or arrive whole, and nobody is told.

use super::*;
use crate::wr::PostError;
use Opcode as O;

fn setup() -> Setup {
    let mut init = QpInit::uc(PD, SEND_CQ, RECV_CQ);
    init.max_send_sge = 4;
    init.max_recv_sge = 4;
    Setup {
        init,
        rtr: QpAttr::rtr_uc(path(), PathMtu::Mtu1024, PEER, Psn::new(0x100)),
        rts: QpAttr::rts_unreliable(Psn::new(0x100)),
        ..Setup::default()
    }
}

fn bench() -> Bench {
    setup().build()
}

const OK: WcStatus = WcStatus::Success;
const FLUSH: WcStatus = WcStatus::WrFlushErr;

/// A whole message of one packet arrives into receive `wr_id`: the QP works.
#[track_caller]
fn works(b: &mut Bench, psn: u32, wr_id: u64) {
    b.rx(p(O::UcSendOnly, psn).bytes(b"fine"));
    assert_eq!(b.received(), [(wr_id, OK)]);
    assert_eq!(b.mem.bytes[..4], *b"fine");
    b.expect_silence();
}

/// Rule UC3.
#[test]
fn sends_complete_when_written() {
    let mut b = bench();
    b.send(1, SendOp::Send, 10);
    b.send(2, SendOp::SendImm([1, 2, 3, 4]), 0);
    b.send_flags(3, SendOp::Send, 5, SendFlags::empty());
    b.send(4, SendOp::SendImm([5; 4]), 2050);
    assert_eq!(b.sent(), []);
    b.expect(&[
        "SEND Only 100 [10]",
        "SEND Only Imm 101 imm=[01, 02, 03, 04]",
        "SEND Only 102 [5]",
        "SEND First 103 [1024]",
        "SEND Middle 104 [1024]",
        "SEND Last Imm 105 imm=[05, 05, 05, 05] [2]",
    ]);
    assert_eq!(b.sent(), [(1, OK), (2, OK), (4, OK)]);
    assert_eq!(b.qp.sends_posted(), 0);
    assert_eq!(b.qp.poll_timeout(), None);
}

#[test]
fn a_message_completes_with_its_last_packet_not_before() {
    let mut b = bench();
    b.send(1, SendOp::Send, 2049);
    for _ in 0..2 {
        b.tx_frame().unwrap();
        assert_eq!(b.sent(), []);
    }
    b.tx_frame().unwrap();
    assert_eq!(b.sent(), [(1, OK)]);
}

#[test]
fn writes_name_their_target_once() {
    let mut b = bench();
    b.send(1, write(0x5000), 1025);
    let imm = SendOp::WriteImm {
        va: Va::new(0x6000),
        rkey: RKey::new(0x77),
        imm: [9; 4],
    };
    b.send(2, imm, 3);
    b.send(3, imm, 1025);
    b.expect(&[
        "RDMA WRITE First 100 va=5000 rkey=77 len=1025 [1024]",
        "RDMA WRITE Last 101 [1]",
        "RDMA WRITE Only Imm 102 va=6000 rkey=77 len=3 imm=[09, 09, 09, 09] [3]",
        "RDMA WRITE First 103 va=6000 rkey=77 len=1025 [1024]",
        "RDMA WRITE Last Imm 104 imm=[09, 09, 09, 09] [1]",
    ]);
    assert_eq!(b.sent(), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn case_103_only_the_last_packet_is_solicited() {
    let mut b = bench();
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    b.send_flags(1, SendOp::SendImm([1; 4]), 2049, flags);
    b.expect(&[
        "SEND First 100 [1024]",
        "SEND Middle 101 [1024]",
        "SEND Last Imm 102 SE imm=[01, 01, 01, 01] [1]",
    ]);
}

/// Rule UC4.
#[test]
fn case_69_no_ack_is_asked_for_or_given() {
    let mut b = bench();
    b.send(1, SendOp::Send, 100 * 1024);
    assert!(b.tx().iter().all(|t| !t.contains(" A")));
    b.recv(2, 4096);
    b.rx(p(O::UcSendOnly, 0x100).a().len(8));
    assert_eq!(b.received(), [(2, OK)]);
    b.expect_silence();
    assert_eq!(b.qp.counters().acks_out, 0);
}

#[test]
fn case_96_psns_wrap() {
    let mut s = setup();
    s.rts.sq_psn = Some(Psn::new(0xff_fffe));
    s.rtr.rq_psn = Some(Psn::new(0xff_fffe));
    let mut b = s.build();
    b.send(1, SendOp::Send, 3 * 1024);
    b.expect(&[
        "SEND First fffffe [1024]",
        "SEND Middle ffffff [1024]",
        "SEND Last 0 [1024]",
    ]);
    b.recv(2, 4096);
    b.rx(p(O::UcSendFirst, 0xff_fffe).len(MTU));
    b.rx(p(O::UcSendMiddle, 0xff_ffff).len(MTU));
    b.rx(p(O::UcSendLast, 0).len(1));
    assert_eq!(b.log.recvs[0].byte_len, 2049);
    assert_eq!(b.received(), [(2, OK)]);
}

/// Rule UC4.
#[test]
fn what_uc_cannot_do_is_refused_at_the_post() {
    let mut b = bench();
    let wr = SendWr {
        wr_id: 1,
        op: read(0),
        flags: SendFlags::SIGNALED,
        data: Data::Sges(&[sge(0, 8)]),
    };
    let refused = b.qp.post_send(&wr, &mut b.log);
    assert_eq!(refused, Err(PostError::Operation(QpType::Uc)));
    assert_eq!(b.qp.sends_posted(), 0);
}

#[test]
fn what_uc_has_no_attribute_for_is_refused() {
    let mut log = Log::default();
    let mut qp = Qp::new(OWN, setup().init, Lower::Udp).unwrap();
    qp.modify(&QpAttr::init(Access::empty()), &mut log).unwrap();
    let rc = QpAttr::rtr(path(), PathMtu::Mtu1024, PEER, Psn::new(0));
    assert!(qp.modify(&rc, &mut log).is_err());
    assert_eq!(qp.state(), QpState::Init);
    qp.modify(&setup().rtr, &mut log).unwrap();
    assert!(qp.modify(&QpAttr::rts(Psn::new(0)), &mut log).is_err());
    qp.modify(&setup().rts, &mut log).unwrap();
}

/// Rule UC1.
#[test]
fn a_gap_drops_the_message_and_its_receive_is_used_again() {
    let mut b = bench();
    b.recv(1, 8192);
    b.rx(p(O::UcSendFirst, 0x100).len(MTU));
    b.rx(p(O::UcSendMiddle, 0x102).len(MTU));
    b.rx(p(O::UcSendLast, 0x103).len(8));
    assert_eq!(b.received(), []);
    assert_eq!(b.qp.counters().out_of_sequence, 2);
    // Whatever PSN comes first or alone.
    works(&mut b, 0x9999, 1);
}

/// Rule UC1.
#[test]
fn a_first_may_come_at_any_psn() {
    let mut b = bench();
    for (wr_id, psn) in [(1, 0x7f_0000), (2, 0x10), (3, 0xff_ffff)] {
        b.recv(wr_id, 8192);
        b.rx(p(O::UcSendFirst, psn).len(MTU));
        b.rx(p(O::UcSendLast, Psn::new(psn).add(1).value()).len(3));
        assert_eq!(b.received(), [(wr_id, OK)]);
    }
}

#[test]
fn a_lost_last_is_noticed_by_the_next_first() {
    let mut b = bench();
    b.recv(1, 8192);
    b.rx(p(O::UcSendFirst, 0x100).bytes(&[1; MTU]));
    b.rx(p(O::UcSendFirst, 0x102).bytes(&[2; MTU]));
    b.rx(p(O::UcSendLast, 0x103).bytes(&[2; 5]));
    assert_eq!(b.log.recvs[0].byte_len, MTU as u32 + 5);
    assert_eq!(b.received(), [(1, OK)]);
    assert!(b.mem.bytes[..MTU + 5].iter().all(|&x| x == 2));
}

#[test]
fn a_message_given_up_by_its_sender_is_dropped() {
    // In order, and yet a new message begins: the sender failed in the middle and went on.
    let mut b = bench();
    b.recv(1, 8192);
    b.rx(p(O::UcSendFirst, 0x100).len(MTU));
    works(&mut b, 0x101, 1);
    assert_eq!(b.qp.counters().out_of_sequence, 0);
}

#[test]
fn middles_of_another_kind_do_not_continue_a_message() {
    let mut b = bench();
    b.recv(1, 8192);
    b.rx(p(O::UcSendFirst, 0x100).len(MTU));
    b.rx(p(O::UcWriteMiddle, 0x101).len(MTU));
    b.rx(p(O::UcSendLast, 0x102).len(MTU));
    assert_eq!(b.received(), []);
    works(&mut b, 0x103, 1);
}

/// Rule UC2.
#[test]
fn a_send_without_receive_vanishes() {
    let mut b = bench();
    b.rx(p(O::UcSendFirst, 0x100).len(MTU));
    b.recv(1, 8192);
    b.rx(p(O::UcSendLast, 0x101).len(8));
    assert_eq!(b.received(), []);
    assert_eq!(b.qp.counters().no_receive, 1);
    works(&mut b, 0x102, 1);
}

#[test]
fn a_write_lands_and_with_immediate_takes_a_receive() {
    let mut b = bench();
    b.recv(1, 16);
    b.rx(p(O::UcWriteFirst, 0x100)
        .reth(BASE + 0x4000, KEY, 1028)
        .bytes(&[3; MTU]));
    b.rx(p(O::UcWriteLastImm, 0x101).bytes(&[4; 4]));
    assert_eq!(b.mem.bytes[0x4000..0x4000 + MTU], [3; MTU]);
    assert_eq!(b.mem.bytes[0x4000 + MTU..0x4000 + 1028], [4; 4]);
    let wc = b.log.recvs[0];
    assert_eq!(wc.opcode, crate::wc::WcOpcode::RecvRdmaWithImm);
    assert_eq!((wc.wr_id, wc.byte_len), (1, 1028));
    // Without immediate nobody is told.
    b.received();
    b.rx(p(O::UcWriteOnly, 0x102)
        .reth(BASE + 0x4000, KEY, 4)
        .bytes(&[5; 4]));
    assert_eq!(b.mem.bytes[0x4000..0x4004], [5; 4]);
    assert_eq!(b.received(), []);
}

#[test]
fn a_write_with_immediate_without_receive_vanishes() {
    let mut b = bench();
    b.rx(p(O::UcWriteOnlyImm, 0x100)
        .reth(BASE + 0x4000, KEY, 4)
        .bytes(&[5; 4]));
    assert_eq!(b.qp.counters().no_receive, 1);
    b.recv(1, 64);
    works(&mut b, 0x101, 1);
}

/// Rule UC2.
#[test]
fn a_bad_key_drops_the_write_and_nothing_else() {
    let mut b = bench();
    let before = b.mem.bytes.clone();
    b.recv(1, 64);
    for (va, key, len) in [
        (BASE, KEY + 1, 4),
        (BASE + SIZE as u64 - 3, KEY, 4),
        (u64::MAX - 3, KEY, 8),
        (BASE - 1, KEY, 4),
    ] {
        let payload = vec![9; len as usize];
        b.rx(p(O::UcWriteOnly, 0x100).reth(va, key, len).bytes(&payload));
    }
    // The rest of a refused message is not looked at.
    b.rx(p(O::UcWriteFirst, 0x101).reth(BASE, KEY + 1, 1028).len(MTU));
    b.rx(p(O::UcWriteLast, 0x102).len(4));
    assert!(b.mem.bytes == before);
    assert_eq!(b.events(), []);
    assert_eq!(b.qp.counters().invalid_requests, 5);
    works(&mut b, 0x103, 1);
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn case_35_the_key_of_nothing_is_not_looked_at() {
    let mut b = bench();
    b.recv(1, 64);
    b.rx(p(O::UcWriteOnlyImm, 0x100).reth(0, 0xdead, 0));
    assert_eq!(b.received(), [(1, OK)]);
}

#[test]
fn writes_need_the_right_of_the_qp() {
    let mut s = setup();
    s.access = Access::LOCAL_WRITE;
    let mut b = s.build();
    let before = b.mem.bytes.clone();
    b.rx(p(O::UcWriteOnly, 0x100).reth(BASE, KEY, 4).len(4));
    assert!(b.mem.bytes == before);
    assert_eq!(b.events(), []);
    b.recv(1, 64);
    works(&mut b, 0x101, 1);
}

#[test]
fn case_19_wrong_lengths_drop_the_message() {
    let mut b = bench();
    b.recv(1, 8192);
    let first = || p(O::UcSendFirst, 0x100).len(MTU);
    let write = |len| {
        p(O::UcWriteFirst, 0x100)
            .reth(BASE + 0x4000, KEY, len)
            .len(MTU)
    };
    let stories: Vec<Vec<P>> = vec![
        vec![
            p(O::UcSendFirst, 0x100).len(MTU - 4),
            p(O::UcSendLast, 0x101).len(4),
        ],
        vec![
            first(),
            p(O::UcSendMiddle, 0x101).len(MTU - 1),
            p(O::UcSendLast, 0x102).len(4),
        ],
        vec![first(), p(O::UcSendLast, 0x101)],
        vec![first(), p(O::UcSendLast, 0x101).len(MTU + 4)],
        vec![p(O::UcSendOnly, 0x100).len(MTU + 1)],
        vec![write(2000), p(O::UcWriteLastImm, 0x101).len(975)],
        vec![write(2000), p(O::UcWriteLastImm, 0x101).len(977)],
        vec![write(1024), p(O::UcWriteLastImm, 0x101).len(1)],
    ];
    for (i, story) in stories.into_iter().enumerate() {
        story.into_iter().for_each(|packet| b.rx(packet));
        assert_eq!(b.received(), [], "story {i}");
    }
    works(&mut b, 0x100, 1);
}

#[test]
fn a_message_longer_than_its_receive_is_dropped() {
    let mut b = bench();
    b.recv(1, 1500);
    b.rx(p(O::UcSendFirst, 0x100).len(MTU));
    b.rx(p(O::UcSendLast, 0x101).len(MTU));
    assert_eq!(b.received(), []);
    works(&mut b, 0x102, 1);
}

#[test]
fn an_unusable_receive_ends_the_qp() {
    let mut b = bench();
    let bad = Sge {
        lkey: LKey::new(0xbad),
        ..sge(0, 64)
    };
    for (wr_id, sge) in [(1, bad), (2, sge(0, 64))] {
        let wr = RecvWr {
            wr_id,
            sges: &[sge],
        };
        b.qp.post_recv(&wr, &mut b.log).unwrap();
    }
    b.rx(p(O::UcSendOnly, 0x100).len(8));
    assert_eq!(b.received(), [(1, WcStatus::LocProtErr), (2, FLUSH)]);
    assert_eq!(b.qp.state(), QpState::Err);
    assert!(b.qp.failure().unwrap().by_responder);
    b.expect_silence();
}

/// Rule Q1.
#[test]
fn a_send_that_fails_stops_sending_only() {
    let mut b = bench();
    b.recv(9, 64);
    let bad = Sge {
        lkey: LKey::new(0xbad),
        ..sge(0, 64)
    };
    b.send(1, SendOp::Send, 8);
    b.send_sges(2, SendOp::Send, &[bad], SendFlags::empty());
    b.send(3, SendOp::Send, 8);
    b.expect(&["SEND Only 100 [8]"]);
    assert_eq!(b.sent(), [(1, OK), (2, WcStatus::LocProtErr), (3, FLUSH)]);
    assert_eq!(b.qp.state(), QpState::Sqe);
    // Posts are accepted and flushed; receiving goes on.
    b.send(4, SendOp::Send, 8);
    assert_eq!(b.sent(), [(4, FLUSH)]);
    works(&mut b, 0x100, 9);
    b.qp.modify(&QpAttr::state(QpState::Rts), &mut b.log)
        .unwrap();
    b.send(5, SendOp::Send, 8);
    b.expect(&["SEND Only 101 [8]"]);
    assert_eq!(b.sent(), [(5, OK)]);
}

#[test]
fn memory_that_goes_away_in_the_middle_of_a_message_stops_sending() {
    let mut b = bench();
    b.send(1, SendOp::Send, 3000);
    assert!(b.tx_frame().is_some());
    b.mem.alive = false;
    b.expect_silence();
    assert_eq!(b.sent(), [(1, WcStatus::LocProtErr)]);
    assert_eq!(b.qp.state(), QpState::Sqe);
    b.mem.alive = true;
    b.qp.modify(&QpAttr::state(QpState::Rts), &mut b.log)
        .unwrap();
    // The next message begins anew, so that the receiver drops the first half.
    b.send(2, SendOp::Send, 1);
    b.expect(&["SEND Only 101 [1]"]);
}

#[test]
fn draining_finishes_the_message_under_way() {
    let mut b = bench();
    b.send(1, SendOp::Send, 2048);
    b.send(2, SendOp::Send, 1);
    assert!(b.tx_frame().is_some());
    let drain = QpAttr {
        en_sqd_async_notify: Some(true),
        ..QpAttr::state(QpState::Sqd)
    };
    b.qp.modify(&drain, &mut b.log).unwrap();
    assert_eq!(b.events(), []);
    b.expect(&["SEND Last 101 [1024]"]);
    assert_eq!(b.events(), [Event::SqDrained]);
    b.qp.modify(&QpAttr::state(QpState::Rts), &mut b.log)
        .unwrap();
    b.expect(&["SEND Only 102 [1]"]);
    assert_eq!(b.sent(), [(1, OK), (2, OK)]);
}

#[test]
fn case_29_error_flushes_everything() {
    let mut b = bench();
    b.recv(1, 64);
    b.rx(p(O::UcSendFirst, 0x100).len(MTU));
    b.send(2, SendOp::Send, 1);
    b.qp.modify(&QpAttr::state(QpState::Err), &mut b.log)
        .unwrap();
    b.send(3, SendOp::Send, 1);
    b.recv(4, 64);
    assert_eq!(b.sent(), [(2, FLUSH), (3, FLUSH)]);
    assert_eq!(b.received(), [(1, FLUSH), (4, FLUSH)]);
    b.expect_silence();
}

#[test]
fn the_first_packet_in_rtr_says_that_the_connection_is_up() {
    let s = setup();
    let mut log = Log::default();
    let mut b = bench();
    b.qp = Qp::new(OWN, s.init, Lower::Udp).unwrap();
    b.qp.modify(&QpAttr::init(s.access), &mut log).unwrap();
    b.recv(1, 64);
    b.rx(p(O::UcSendOnly, 0x100).len(1));
    b.qp.modify(&s.rtr, &mut log).unwrap();
    b.rx(p(O::UcSendOnly, 0x100).len(1));
    b.rx(p(O::UcSendOnly, 0x101).len(1));
    assert_eq!(b.received(), [(1, OK)]);
    assert_eq!(b.events(), [Event::CommEst]);
}

#[test]
fn packets_of_other_services_are_dropped() {
    let mut b = bench();
    b.recv(1, 64);
    for opcode in [
        O::RcSendOnly,
        O::UdSendOnly,
        O::RcAcknowledge,
        O::XrcSendOnly,
    ] {
        b.rx(p(opcode, 0x100).len(4));
    }
    assert_eq!(b.qp.counters().discards, 4);
    works(&mut b, 0x100, 1);
}

#[test]
fn case_47_reset_forgets_the_message_under_way() {
    let s = setup();
    let mut b = bench();
    b.recv(1, 8192);
    b.rx(p(O::UcSendFirst, 0x100).len(MTU));
    b.qp.modify(&QpAttr::state(QpState::Reset), &mut b.log)
        .unwrap();
    for attr in [&QpAttr::init(s.access), &s.rtr, &s.rts] {
        b.qp.modify(attr, &mut b.log).unwrap();
    }
    b.recv(2, 8192);
    b.rx(p(O::UcSendLast, 0x101).len(4));
    assert_eq!(b.received(), []);
    works(&mut b, 0x101, 2);
}

/// A shared queue of two receives of 2000 bytes, 1 and 2.
pub(super) fn shared() -> SharedReceiveQueue {
    let attr = crate::srq::SrqAttr {
        max_wr: 16,
        max_sge: 4,
        limit: 0,
    };
    let mut srq = SharedReceiveQueue::new(&attr).unwrap();
    for wr_id in [1, 2] {
        let sges = &[sge(0, 2000)];
        srq.post(&RecvWr { wr_id, sges }).unwrap();
    }
    srq
}

#[test]
fn a_shared_receive_of_a_broken_message_serves_the_next() {
    let mut s = setup();
    s.init.srq = Some(Srq(5));
    let mut b = s.build();
    b.log.srq = Some(shared());
    b.rx(p(O::UcSendFirst, 0x100).len(MTU));
    b.rx(p(O::UcSendLast, 0x102).len(8));
    assert_eq!(b.received(), []);
    assert_eq!(b.log.srq.as_ref().unwrap().len(), 1);
    works(&mut b, 0x103, 1);
    works(&mut b, 0x104, 2);
    b.rx(p(O::UcSendOnly, 0x105).len(8));
    assert_eq!(b.qp.counters().no_receive, 1);
}
