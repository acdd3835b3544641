//! Responder transcripts. Rows are those of the collected cases.

use super::*;
use WcStatus::{LocLenErr, LocProtErr, RemInvReqErr, Success, WrFlushErr};
use xroce_wire::opcode::Opcode as O;

#[test]
fn a_send_is_received_and_acknowledged_once() {
    let mut t = Bench::new();
    t.recv(1, 4096);
    t.rx(p(O::RcSendFirst, 0x100).bytes(&[1; MTU]));
    t.rx(p(O::RcSendMiddle, 0x101).bytes(&[2; MTU]));
    t.expect_silence();
    t.rx(p(O::RcSendLast, 0x102).bytes(&[3; 5]).a());
    t.expect(&["ACK 102 syn=1f msn=1"]);
    assert_eq!(t.log.recvs[0].byte_len, 2053);
    assert_eq!(t.received(), [(1, Success)]);
    assert_eq!(t.mem.bytes[..3], [1, 1, 1]);
    assert_eq!(t.mem.bytes[MTU..MTU + 3], [2, 2, 2]);
    assert_eq!(t.mem.bytes[2 * MTU..2 * MTU + 5], [3; 5]);
}

/// Rules W17, S7.
#[test]
fn a_burst_costs_one_ack() {
    let mut t = Bench::new();
    for i in 0..10 {
        t.recv(i, 64);
        t.rx(p(O::RcSendOnly, 0x100 + i as u32).len(64).a());
    }
    t.expect(&["ACK 109 syn=1f msn=10"]);
}

#[test]
fn a_send_scatters_over_all_sges() {
    let mut t = Bench::new();
    let sges = [sge(0, 1000), sge(5000, 0), sge(2000, 100), sge(9000, 2000)];
    t.qp.post_recv(
        &RecvWr {
            wr_id: 1,
            sges: &sges,
        },
        &mut t.log,
    )
    .unwrap();
    let data: Vec<u8> = (0..MTU * 2).map(|i| (i % 253) as u8).collect();
    t.rx(p(O::RcSendFirst, 0x100).bytes(&data[..MTU]));
    t.rx(p(O::RcSendLast, 0x101).bytes(&data[MTU..]).a());
    t.expect(&["ACK 101 syn=1f msn=1"]);
    assert_eq!(t.mem.bytes[..1000], data[..1000]);
    assert_eq!(t.mem.bytes[2000..2100], data[1000..1100]);
    assert_eq!(t.mem.bytes[9000..9948], data[1100..]);
}

#[test]
fn case_18_bad_rkey_write_and_read_are_naked_at_once() {
    for (packet, psn) in [
        (
            p(O::RcWriteOnly, 0x100).reth(BASE, 0xbad, 8).len(8).a(),
            0x100,
        ),
        (
            p(O::RcWriteFirst, 0x100).reth(BASE, 0xbad, 2000).len(MTU),
            0x100,
        ),
        (p(O::RcReadRequest, 0x100).reth(BASE, 0xbad, 8).a(), 0x100),
    ] {
        let mut t = Bench::new();
        t.recv(1, 64);
        t.rx(packet);
        t.expect(&[&format!("ACK {psn:x} syn=62 msn=0")]);
        assert_eq!(t.qp.state(), QpState::Err);
        assert_eq!(t.received(), [(1, WrFlushErr)]);
        assert_eq!(t.events(), [Event::QpAccessErr]);
        // One NAK, then silence.
        t.rx(p(O::RcWriteOnly, 0x100).reth(BASE, KEY, 8).len(8).a());
        t.expect_silence();
        assert!(t.qp.failure().unwrap().by_responder);
    }
}

/// Rule S16.
#[test]
fn case_30_a_refused_key_is_an_event_unless_a_receive_tells_of_it() {
    let bad = |opcode| p(opcode, 0x100).reth(BASE, 0xbad, 8).len(8).a();
    for (packet, receives, completed, events) in [
        (bad(O::RcWriteOnly), 1, WrFlushErr, vec![Event::QpAccessErr]),
        (bad(O::RcWriteOnlyImm), 1, WcStatus::LocAccessErr, vec![]),
        // Without a receive it cannot tell: the answer is RNR, and the key is not looked at yet.
        (bad(O::RcWriteOnlyImm), 0, Success, vec![]),
    ] {
        let mut t = Bench::new();
        (0..receives).for_each(|i| t.recv(i, 64));
        t.rx(packet);
        let rnr = receives == 0;
        assert_eq!(t.tx()[0].contains("syn=62"), !rnr);
        assert_eq!(t.qp.state() == QpState::Err, !rnr);
        let expected: Vec<_> = (0..receives).map(|i| (i, completed)).collect();
        assert_eq!(t.received(), expected);
        assert_eq!(t.events(), events);
    }
}

/// Rule S7.
#[test]
fn case_41_acks_come_when_asked_for_and_only_then() {
    let mut t = Bench::new();
    for i in 0..1000 {
        let mut packet = p(O::RcWriteOnly, 0x100 + i).reth(BASE, KEY, 8).len(8);
        if i % 64 == 63 {
            packet = packet.a();
        }
        t.rx(packet);
        if i % 64 == 63 {
            t.expect(&[&format!("ACK {:x} syn=1f msn={}", 0x100 + i, i + 1)]);
        } else {
            t.expect_silence();
        }
    }
    // What was never asked for is answered with the next that is.
    t.rx(p(O::RcWriteOnly, 0x100 + 1000)
        .reth(BASE, KEY, 8)
        .len(8)
        .a());
    t.expect(&["ACK 4e8 syn=1f msn=1001"]);
}

#[test]
fn case_18_atomics_are_refused_as_invalid() {
    // By a QP without the right.
    let mut t = Bench::new();
    t.rx(p(O::RcFetchAdd, 0x100).a());
    t.expect(&["ACK 100 syn=61 msn=0"]);
    assert_eq!(t.events(), [Event::QpReqErr]);
}

/// Rules S4, W18.
#[test]
fn case_19_lengths_that_contradict_position_or_announcement() {
    let first = || p(O::RcWriteFirst, 0x100).reth(BASE, KEY, 2000).len(MTU);
    let send_first = || p(O::RcSendFirst, 0x100).len(MTU);
    let bad: Vec<Vec<P>> = vec![
        vec![p(O::RcSendFirst, 0x100).len(MTU - 4)],
        vec![send_first(), p(O::RcSendMiddle, 0x101).len(MTU - 1)],
        vec![send_first(), p(O::RcSendLast, 0x101).len(0)],
        vec![send_first(), p(O::RcSendLast, 0x101).len(MTU + 4)],
        vec![p(O::RcSendOnly, 0x100).len(MTU + 1)],
        vec![
            p(O::RcWriteOnly, 0x100)
                .reth(BASE, KEY, MTU as u32 + 4)
                .len(MTU + 4),
        ],
        vec![first(), p(O::RcWriteMiddle, 0x101).len(MTU - 1)],
        vec![first(), p(O::RcWriteMiddle, 0x101).len(MTU)],
        vec![first(), p(O::RcWriteLast, 0x101).len(0)],
        vec![first(), p(O::RcWriteLast, 0x101).len(2000 - MTU - 1)],
        vec![first(), p(O::RcWriteLast, 0x101).len(2000 - MTU + 1)],
        vec![p(O::RcWriteOnly, 0x100).reth(BASE, KEY, 9).len(8)],
        vec![p(O::RcWriteOnly, 0x100).reth(BASE, KEY, 0).len(8)],
        vec![
            p(O::RcWriteFirst, 0x100)
                .reth(BASE, KEY, MTU as u32)
                .len(MTU),
        ],
        vec![
            p(O::RcWriteFirst, 0x100)
                .reth(BASE, KEY, (1 << 31) + 1)
                .len(MTU),
        ],
        vec![p(O::RcReadRequest, 0x100).reth(BASE, KEY, (1 << 31) + 1)],
        vec![p(O::RcReadRequest, 0x100).reth(BASE, KEY, 8).len(8)],
    ];
    for (i, packets) in bad.into_iter().enumerate() {
        let mut t = Bench::new();
        t.recv(1, 8192);
        let last = packets.last().unwrap().psn;
        for packet in packets {
            t.rx(packet);
        }
        t.expect(&[&format!("ACK {last:x} syn=61 msn=0")]);
        assert_eq!(t.qp.state(), QpState::Err, "row {i}");
    }
}

/// Rule S2.
#[test]
fn opcodes_out_of_sequence_are_invalid_requests() {
    let bad: Vec<Vec<P>> = vec![
        vec![p(O::RcSendMiddle, 0x100).len(MTU)],
        vec![p(O::RcSendLast, 0x100).len(4)],
        vec![p(O::RcWriteMiddle, 0x100).len(MTU)],
        vec![p(O::RcWriteLast, 0x100).len(4)],
        vec![
            p(O::RcSendFirst, 0x100).len(MTU),
            p(O::RcWriteLast, 0x101).len(4),
        ],
        vec![
            p(O::RcSendFirst, 0x100).len(MTU),
            p(O::RcSendOnly, 0x101).len(4),
        ],
        vec![
            p(O::RcWriteFirst, 0x100).reth(BASE, KEY, 2000).len(MTU),
            p(O::RcReadRequest, 0x101).reth(BASE, KEY, 8),
        ],
        vec![
            p(O::RcWriteFirst, 0x100).reth(BASE, KEY, 2000).len(MTU),
            p(O::RcSendLast, 0x101).len(4),
        ],
    ];
    for packets in bad {
        let mut t = Bench::new();
        t.recv(1, 8192);
        let last = packets.last().unwrap().psn;
        packets.into_iter().for_each(|packet| t.rx(packet));
        t.expect(&[&format!("ACK {last:x} syn=61 msn=0")]);
        assert_eq!(t.qp.state(), QpState::Err);
    }
}

/// Rule S12.
#[test]
fn case_22_a_duplicate_read_is_answered_from_where_it_asks() {
    let mut t = Bench::new();
    let read = |psn, va, len| p(O::RcReadRequest, psn).reth(va, KEY, len).a();
    t.rx(read(0x100, BASE, 4096));
    t.expect(&[
        "RDMA READ Response First 100 syn=1f msn=1 [1024]",
        "RDMA READ Response Middle 101 [1024]",
        "RDMA READ Response Middle 102 [1024]",
        "RDMA READ Response Last 103 syn=1f msn=1 [1024]",
    ]);
    t.rx(read(0x102, BASE + 2048, 2048));
    t.expect(&[
        "RDMA READ Response First 102 syn=1f msn=1 [1024]",
        "RDMA READ Response Last 103 syn=1f msn=1 [1024]",
    ]);
    t.rx(read(0x103, BASE + 3072, 1024));
    t.expect(&["RDMA READ Response Only 103 syn=1f msn=1 [1024]"]);
    // Part of the middle, as hardware may ask.
    t.rx(read(0x101, BASE + 1024, 1000));
    t.expect(&["RDMA READ Response Only 101 syn=1f msn=1 [1000]"]);
    // Outside the original range, another key, a moved address: dropped without a word.
    for (psn, va, key, len) in [
        (0x102, BASE + 2048, KEY, 2049),
        (0x102, BASE, KEY, 2048),
        (0x102, BASE + 2048, KEY + 1, 2048),
        (0x0ff, BASE, KEY, 8),
    ] {
        t.rx(p(O::RcReadRequest, psn).reth(va, key, len));
        t.expect_silence();
    }
    assert_eq!(t.qp.expected_psn(), Psn::new(0x104));
    // The key is checked again at each execution.
    t.mem.alive = false;
    t.rx(read(0x103, BASE + 3072, 1024));
    t.expect_silence();
    assert_eq!(t.qp.state(), QpState::Rts);
}

/// Rule S9.
#[test]
fn a_read_answers_what_memory_holds() {
    let mut t = Bench::new();
    t.rx(p(O::RcReadRequest, 0x100).reth(BASE + 3, KEY, 1030));
    let first = t.tx_frame().unwrap();
    let last = t.tx_frame().unwrap();
    let payload = |f: &[u8]| Packet::parse(f).unwrap().payload().to_vec();
    assert_eq!(payload(&first), t.mem.bytes[3..3 + MTU]);
    assert_eq!(payload(&last), t.mem.bytes[3 + MTU..3 + 1030]);
}

#[test]
fn r5_a_read_returns_what_is_written_until_it_is_answered() {
    for later in [false, true] {
        let mut t = Bench::new();
        t.rx(p(O::RcWriteOnly, 0x100).reth(BASE, KEY, 8).bytes(&[7; 8]));
        t.rx(p(O::RcReadRequest, 0x101).reth(BASE, KEY, 8));
        if later {
            t.rx(p(O::RcWriteOnly, 0x102).reth(BASE, KEY, 8).bytes(&[9; 8]));
        }
        let answer = t.tx_frame().unwrap();
        let value = if later { 9 } else { 7 };
        assert_eq!(Packet::parse(&answer).unwrap().payload(), [value; 8]);
    }
}

/// Rule K4.
#[test]
fn case_24_ranges_that_overflow() {
    for (va, len) in [
        (u64::MAX - 3, 8u32),
        (BASE + SIZE as u64 - 4, 8),
        (BASE - 1, 8),
        (0, 8),
        (u64::MAX, 1),
    ] {
        let mut t = Bench::new();
        t.rx(p(O::RcWriteOnly, 0x100)
            .reth(va, KEY, len)
            .len(len as usize)
            .a());
        t.expect(&["ACK 100 syn=62 msn=0"]);
        let mut t = Bench::new();
        t.rx(p(O::RcReadRequest, 0x100).reth(va, KEY, len).a());
        t.expect(&["ACK 100 syn=62 msn=0"]);
    }
    let mut t = Bench::new();
    t.rx(p(O::RcWriteFirst, 0x100).reth(BASE, KEY, u32::MAX).len(MTU));
    t.expect(&["ACK 100 syn=61 msn=0"]);
    // Zero bytes at the end of the region, or anywhere else.
    let mut t = Bench::new();
    t.rx(p(O::RcWriteOnly, 0x100)
        .reth(BASE + SIZE as u64, KEY, 0)
        .a());
    t.expect(&["ACK 100 syn=1f msn=1"]);
}

/// Rule S9.
#[test]
fn case_26_memory_that_goes_away_in_the_middle_of_a_read() {
    let mut t = Bench::new();
    t.rx(p(O::RcReadRequest, 0x100).reth(BASE, KEY, 8192));
    for _ in 0..2 {
        t.tx_frame().unwrap();
    }
    t.mem.alive = false;
    t.expect(&["ACK 102 syn=62 msn=1"]);
    assert_eq!(t.qp.state(), QpState::Err);
    assert_eq!(t.events(), [Event::QpAccessErr]);
}

#[test]
fn memory_that_goes_away_in_the_middle_of_a_write() {
    let mut t = Bench::new();
    t.rx(p(O::RcWriteFirst, 0x100).reth(BASE, KEY, 3000).len(MTU));
    t.mem.alive = false;
    t.rx(p(O::RcWriteMiddle, 0x101).len(MTU));
    t.expect(&["ACK 101 syn=62 msn=0"]);
}

/// Rule C4.
#[test]
fn case_29_everything_posted_is_flushed() {
    let mut t = Setup {
        rts: QpAttr {
            retry_cnt: Some(0),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    for i in 0..10 {
        t.recv(100 + i, 64);
        t.send(i, SendOp::Send, 8);
    }
    assert_eq!(t.tx().len(), 10);
    t.wait(Duration::from_millis(100));
    let mut expected = vec![(0, WcStatus::RetryExcErr)];
    expected.extend((1..10).map(|i| (i, WrFlushErr)));
    assert_eq!(t.sent(), expected);
    assert_eq!(
        t.received(),
        (100..110).map(|i| (i, WrFlushErr)).collect::<Vec<_>>()
    );
    // What is posted later is flushed as well.
    t.send(77, SendOp::Send, 8);
    t.recv(78, 8);
    assert_eq!(t.sent(), [(77, WrFlushErr)]);
    assert_eq!(t.received(), [(78, WrFlushErr)]);
    t.expect_silence();
}

/// Rules S11, Q3.
#[test]
fn case_33_more_reads_than_agreed() {
    let mut t = Setup {
        rtr: QpAttr {
            max_dest_rd_atomic: Some(2),
            ..QpAttr::rtr(path(), PathMtu::Mtu1024, PEER, Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    let read = |psn| p(O::RcReadRequest, psn).reth(BASE, KEY, 8);
    t.rx(read(0x100));
    t.rx(read(0x101));
    t.rx(read(0x102));
    // Those accepted are answered before the NAK.
    t.expect(&[
        "RDMA READ Response Only 100 syn=1f msn=2 [8]",
        "RDMA READ Response Only 101 syn=1f msn=2 [8]",
        "ACK 102 syn=61 msn=2",
    ]);
    assert_eq!(t.qp.state(), QpState::Err);
}

#[test]
fn a_new_read_takes_the_place_of_a_repetition() {
    // A late copy of a READ request asks for an answer that the peer has had: the next READ is
    // within the limit all the same.
    let mut t = Setup {
        rtr: QpAttr {
            max_dest_rd_atomic: Some(2),
            ..QpAttr::rtr(path(), PathMtu::Mtu1024, PEER, Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    let read = |psn| p(O::RcReadRequest, psn).reth(BASE, KEY, 8);
    t.rx(read(0x100));
    t.rx(read(0x101));
    assert_eq!(t.tx().len(), 2);
    t.rx(read(0x100));
    t.rx(read(0x101));
    t.rx(read(0x102));
    t.expect(&[
        "RDMA READ Response Only 101 syn=1f msn=3 [8]",
        "RDMA READ Response Only 102 syn=1f msn=3 [8]",
    ]);
    t.rx(read(0x103));
    t.expect(&["RDMA READ Response Only 103 syn=1f msn=4 [8]"]);
    assert_eq!(t.qp.state(), QpState::Rts);
}

#[test]
fn case_32_no_reads_at_all() {
    let mut t = Setup {
        rtr: QpAttr {
            max_dest_rd_atomic: Some(0),
            ..QpAttr::rtr(path(), PathMtu::Mtu1024, PEER, Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    t.rx(p(O::RcReadRequest, 0x100).reth(BASE, KEY, 8));
    t.expect(&["ACK 100 syn=61 msn=0"]);
}

/// Rule K3.
#[test]
fn case_35_zero_length_looks_at_no_key() {
    let mut t = Bench::new();
    t.rx(p(O::RcWriteOnly, 0x100).reth(0, 0xdead, 0).a());
    t.expect(&["ACK 100 syn=1f msn=1"]);
    t.rx(p(O::RcReadRequest, 0x101).reth(0, 0xdead, 0).a());
    t.expect(&["RDMA READ Response Only 101 syn=1f msn=2"]);
    assert_eq!(t.qp.expected_psn(), Psn::new(0x102));
    // And is answered again like any other.
    t.rx(p(O::RcReadRequest, 0x101).reth(0, 0xdead, 0).a());
    t.expect(&["RDMA READ Response Only 101 syn=1f msn=2"]);
}

/// Rules S12, X4.
#[test]
fn case_40_a_duplicate_is_acknowledged_again_and_not_executed() {
    let mut t = Bench::new();
    t.recv(1, 64);
    t.recv(2, 64);
    let send = p(O::RcSendOnly, 0x100).bytes(&[9; 8]).a();
    t.rx(send.clone());
    t.expect(&["ACK 100 syn=1f msn=1"]);
    assert_eq!(t.received(), [(1, Success)]);
    for _ in 0..3 {
        t.rx(send.clone());
        t.expect(&["ACK 100 syn=1f msn=1"]);
    }
    assert_eq!(t.received(), []);
    assert_eq!(t.qp.counters().duplicates, 3);
    // Of a WRITE as well: memory is not written a second time.
    t.rx(p(O::RcWriteOnly, 0x101)
        .reth(BASE, KEY, 4)
        .bytes(&[1; 4])
        .a());
    t.rx(p(O::RcWriteOnly, 0x102)
        .reth(BASE, KEY, 4)
        .bytes(&[2; 4])
        .a());
    t.rx(p(O::RcWriteOnly, 0x101)
        .reth(BASE, KEY, 4)
        .bytes(&[1; 4])
        .a());
    t.expect(&["ACK 102 syn=1f msn=3"]);
    assert_eq!(t.mem.bytes[..4], [2; 4]);
}

/// Rule S12.
#[test]
fn a_repeated_ack_does_not_pass_a_read_whose_answer_may_be_lost() {
    let mut t = Bench::new();
    t.recv(1, 64);
    t.rx(p(O::RcSendOnly, 0x100).len(8).a());
    t.rx(p(O::RcReadRequest, 0x101).reth(BASE, KEY, 8).a());
    t.rx(p(O::RcWriteOnly, 0x102).reth(BASE, KEY, 8).len(8).a());
    t.expect(&[
        "RDMA READ Response Only 101 syn=1f msn=3 [8]",
        "ACK 102 syn=1f msn=3",
    ]);
    t.rx(p(O::RcSendOnly, 0x100).len(8).a());
    t.expect(&["ACK 100 syn=1f msn=3"]);
    t.rx(p(O::RcWriteOnly, 0x102).reth(BASE, KEY, 8).len(8).a());
    t.expect(&["ACK 102 syn=1f msn=3"]);
}

/// Rule S1.
#[test]
fn case_43_one_nak_per_gap() {
    let mut t = Bench::new();
    for i in 1..=6 {
        t.recv(i, 64);
    }
    let send = |psn| p(O::RcSendOnly, psn).len(8).a();
    t.rx(send(0x100));
    t.expect(&["ACK 100 syn=1f msn=1"]);
    for psn in 0x102..=0x105 {
        t.rx(send(psn));
    }
    t.expect(&["ACK 101 syn=60 msn=1"]);
    t.rx(send(0x106));
    t.expect_silence();
    for psn in 0x101..=0x105 {
        t.rx(send(psn));
    }
    t.expect(&["ACK 105 syn=1f msn=6"]);
    assert_eq!(t.received().len(), 6);
    assert_eq!(t.qp.counters().out_of_sequence, 5);
    assert_eq!(t.qp.counters().seq_naks_out, 1);
}

#[test]
fn case_44_a_duplicate_of_send_last_with_imm_completes_nothing() {
    let mut t = Bench::new();
    t.recv(1, 4096);
    t.recv(2, 4096);
    t.rx(p(O::RcSendFirst, 0x100).len(MTU));
    let last = p(O::RcSendLastImm, 0x101).len(8).a();
    t.rx(last.clone());
    t.rx(last);
    t.expect(&["ACK 101 syn=1f msn=1"]);
    assert_eq!(t.received(), [(1, Success)]);
}

#[test]
fn case_47_reset_forgets_the_old_incarnation() {
    let mut t = Bench::new();
    t.recv(1, 64);
    t.rx(p(O::RcSendOnly, 0x100).len(8).a());
    t.rx(p(O::RcReadRequest, 0x101).reth(BASE, KEY, 8).a());
    t.qp.modify(&QpAttr::state(QpState::Reset), &mut t.log)
        .unwrap();
    t.expect_silence();
    t.qp.modify(&QpAttr::init(Access::REMOTE_READ), &mut t.log)
        .unwrap();
    let rtr = QpAttr::rtr(path(), PathMtu::Mtu1024, PEER, Psn::new(0x90_0000));
    t.qp.modify(&rtr, &mut t.log).unwrap();
    t.qp.modify(&QpAttr::rts(Psn::new(0x5)), &mut t.log)
        .unwrap();
    // Stale packets lie behind or ahead of the new PSN: neither is executed or answered by data.
    t.recv(2, 64);
    t.received();
    t.rx(p(O::RcReadRequest, 0x101).reth(BASE, KEY, 8).a());
    t.rx(p(O::RcSendOnly, 0x101).len(8));
    assert_eq!(t.received(), []);
    assert!(t.tx().iter().all(|s| s.starts_with("ACK")));
    t.rx(p(O::RcSendOnly, 0x90_0000).len(8).a());
    t.expect(&["ACK 900000 syn=1f msn=1"]);
    t.send(3, SendOp::Send, 1);
    t.expect(&["SEND Only 5 A [1]"]);
}

/// Rule S6.
#[test]
fn no_receive_is_rnr_and_what_follows_is_dropped_silently() {
    let mut t = Bench::new();
    t.rx(p(O::RcSendFirst, 0x100).len(MTU));
    t.rx(p(O::RcSendMiddle, 0x101).len(MTU));
    t.rx(p(O::RcSendLast, 0x102).len(8).a());
    t.expect(&["ACK 100 syn=2c msn=0"]);
    t.rx(p(O::RcSendOnly, 0x103).len(8).a());
    t.expect_silence();
    t.recv(1, 4096);
    t.rx(p(O::RcSendFirst, 0x100).len(MTU));
    t.rx(p(O::RcSendMiddle, 0x101).len(MTU));
    t.rx(p(O::RcSendLast, 0x102).len(8).a());
    t.expect(&["ACK 102 syn=1f msn=1"]);
    assert_eq!(t.received(), [(1, Success)]);
}

#[test]
fn a_gap_is_reported_again_once_the_rnr_wait_is_over() {
    let mut t = Bench::new();
    t.rx(p(O::RcSendOnly, 0x100).len(8).a());
    t.expect(&["ACK 100 syn=2c msn=0"]);
    t.rx(p(O::RcSendOnly, 0x102).len(8).a());
    t.expect_silence();
    t.recv(1, 8);
    t.recv(2, 8);
    t.rx(p(O::RcSendOnly, 0x100).len(8).a());
    t.expect(&["ACK 100 syn=1f msn=1"]);
    t.rx(p(O::RcSendOnly, 0x102).len(8).a());
    t.expect(&["ACK 101 syn=60 msn=1"]);
}

#[test]
fn a_queue_pair_taken_to_err_answers_nothing_any_more() {
    let mut t = Bench::new();
    t.rx(p(O::RcReadRequest, 0x100).reth(BASE, KEY, 4 * MTU as u32));
    t.rx(p(O::RcWriteOnly, 0x104).reth(BASE, KEY, 8).len(8).a());
    t.tx_frame().unwrap();
    t.qp.modify(&QpAttr::state(QpState::Err), &mut t.log)
        .unwrap();
    t.expect_silence();
    t.rx(p(O::RcReadRequest, 0x105).reth(BASE, KEY, 8));
    t.expect_silence();
}

/// Rule S6.
#[test]
fn write_with_immediate_takes_a_receive_at_its_last_packet() {
    let mut t = Bench::new();
    t.rx(p(O::RcWriteFirst, 0x100)
        .reth(BASE, KEY, 1030)
        .bytes(&[5; MTU]));
    t.rx(p(O::RcWriteLastImm, 0x101).bytes(&[6; 6]).a());
    t.expect(&["ACK 101 syn=2c msn=0"]);
    assert_eq!(
        t.mem.bytes[..MTU],
        [5; MTU],
        "the earlier packets stay written"
    );
    t.recv(1, 0);
    t.rx(p(O::RcWriteLastImm, 0x101).bytes(&[6; 6]).a());
    t.expect(&["ACK 101 syn=1f msn=1"]);
    let wc = t.log.recvs[0];
    assert_eq!(
        (wc.byte_len, wc.opcode),
        (1030, crate::wc::WcOpcode::RecvRdmaWithImm)
    );
    assert_eq!(t.mem.bytes[MTU..MTU + 6], [6; 6]);
}

/// Rule S5.
#[test]
fn a_send_longer_than_the_receive() {
    let mut t = Bench::new();
    t.recv(1, 1500);
    t.recv(2, 1500);
    t.rx(p(O::RcSendFirst, 0x100).len(MTU));
    t.rx(p(O::RcSendLast, 0x101).len(500).a());
    t.expect(&["ACK 101 syn=61 msn=0"]);
    assert_eq!(t.received(), [(1, LocLenErr), (2, WrFlushErr)]);
}

/// Rule S16.
#[test]
fn a_bad_receive_buffer_is_the_responders_own_fault() {
    let mut t = Bench::new();
    let bad = Sge {
        lkey: LKey::new(0xbad),
        ..sge(0, 64)
    };
    t.qp.post_recv(
        &RecvWr {
            wr_id: 1,
            sges: &[bad],
        },
        &mut t.log,
    )
    .unwrap();
    t.rx(p(O::RcSendOnly, 0x100).len(8).a());
    t.expect(&["ACK 100 syn=63 msn=0"]);
    assert_eq!(t.received(), [(1, LocProtErr)]);
}

#[test]
fn an_invalid_request_in_the_middle_of_a_send_completes_its_receive() {
    let mut t = Bench::new();
    t.recv(1, 4096);
    t.rx(p(O::RcSendFirst, 0x100).len(MTU));
    t.rx(p(O::RcWriteOnly, 0x101).reth(BASE, KEY, 8).len(8));
    t.expect(&["ACK 101 syn=61 msn=0"]);
    assert_eq!(t.received(), [(1, RemInvReqErr)]);
    assert_eq!(t.events(), []);
}

/// Rules S3, K4.
#[test]
fn rights_of_the_qp_come_before_the_key() {
    let mut t = Setup {
        access: Access::LOCAL_WRITE,
        ..Setup::default()
    }
    .build();
    t.rx(p(O::RcWriteOnly, 0x100).reth(BASE, 0xbad, 8).len(8).a());
    t.expect(&["ACK 100 syn=61 msn=0"]);
}

/// Rule W22.
#[test]
fn packets_that_are_not_for_this_connection() {
    let mut t = Bench::new();
    t.recv(1, 64);
    for opcode in [O::UcSendOnly, O::UdSendOnly, O::Cnp, O::XrcSendOnly] {
        t.rx(p(opcode, 0x100).len(8));
    }
    assert_eq!(t.qp.counters().discards, 4);
    t.expect_silence();
    assert_eq!(t.received(), []);
}

/// Rules W15, W17.
#[test]
fn case_96_responder_counts_over_the_wrap() {
    let mut t = Setup {
        rtr: QpAttr::rtr(path(), PathMtu::Mtu1024, PEER, Psn::new(0xff_fffe)),
        ..Setup::default()
    }
    .build();
    t.rx(p(O::RcWriteFirst, 0xff_fffe)
        .reth(BASE, KEY, 4 * MTU as u32 + 1)
        .len(MTU));
    t.rx(p(O::RcWriteMiddle, 0xff_ffff).len(MTU));
    t.rx(p(O::RcWriteMiddle, 1).len(MTU));
    t.expect(&["ACK 0 syn=60 msn=0"]);
    t.rx(p(O::RcWriteMiddle, 0).len(MTU));
    t.rx(p(O::RcWriteMiddle, 1).len(MTU));
    t.rx(p(O::RcWriteLast, 2).len(1).a());
    t.expect(&["ACK 2 syn=1f msn=1"]);
}

/// Rule S15.
#[test]
fn comm_est_once_in_rtr() {
    let mut log = Log::default();
    let mut t = Bench::new();
    t.qp = Qp::new(OWN, Setup::default().init, Lower::Udp).unwrap();
    t.qp.modify(&QpAttr::init(Access::REMOTE_WRITE), &mut log)
        .unwrap();
    let write = p(O::RcWriteOnly, 0x100).reth(0, 0, 0).a();
    t.rx(write.clone());
    t.expect_silence();
    t.qp.modify(&Setup::default().rtr, &mut log).unwrap();
    t.rx(write.clone());
    t.expect(&["ACK 100 syn=1f msn=1"]);
    t.rx(p(O::RcWriteOnly, 0x101).reth(0, 0, 0).a());
    assert_eq!(t.events(), [Event::CommEst]);
}
