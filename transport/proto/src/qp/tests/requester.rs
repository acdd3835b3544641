//! Requester transcripts. Rows are those of the collected cases.

use super::*;
use crate::wr::PostError;
use WcStatus::{LocProtErr, RetryExcErr, RnrRetryExcErr, Success, WrFlushErr};
use xroce_wire::opcode::Opcode as O;

/// Rule R1.
#[test]
fn a_message_becomes_first_middle_last() {
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 2 * MTU as u32 + 1);
    t.expect(&[
        "SEND First 100 [1024]",
        "SEND Middle 101 [1024]",
        "SEND Last 102 A [1]",
    ]);
    t.rx(ack(0x102));
    assert_eq!(t.sent(), [(1, Success)]);
    t.send(
        2,
        SendOp::WriteImm {
            va: Va::new(0xabc),
            rkey: RKey::new(7),
            imm: [1, 2, 3, 4],
        },
        1025,
    );
    t.expect(&[
        "RDMA WRITE First 103 va=abc rkey=7 len=1025 [1024]",
        "RDMA WRITE Last Imm 104 A imm=[01, 02, 03, 04] [1]",
    ]);
}

/// Rule W16.
#[test]
fn case_36_zero_length_takes_one_psn() {
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 0);
    t.send(2, SendOp::Send, 1);
    t.send(3, read(0x10), 0);
    t.send(4, write(0x20), 0);
    t.expect(&[
        "SEND Only 100",
        "SEND Only 101 A [1]",
        "RDMA READ Request 102 A va=10 rkey=77 len=0",
        "RDMA WRITE Only 103 A va=20 rkey=77 len=0",
    ]);
    t.rx(response(O::RcReadResponseOnly, 0x102, 0));
    t.rx(ack(0x103));
    assert_eq!(
        t.sent(),
        [(1, Success), (2, Success), (3, Success), (4, Success)]
    );
}

/// Rule R2.
#[test]
fn an_ack_is_asked_for_at_the_end_of_a_burst() {
    let mut t = Bench::new();
    for i in 0..4 {
        t.send(i, SendOp::Send, 1);
    }
    t.expect(&[
        "SEND Only 100 [1]",
        "SEND Only 101 [1]",
        "SEND Only 102 [1]",
        "SEND Only 103 A [1]",
    ]);
    t.rx(ack(0x103));
    assert_eq!(t.sent().len(), 4);
    // And every 32 packets inside a long message.
    t.send(9, SendOp::Send, 40 * MTU as u32);
    let asked: Vec<usize> = t
        .tx()
        .iter()
        .enumerate()
        .filter(|(_, s)| s.contains(" A"))
        .map(|(i, _)| i)
        .collect();
    assert_eq!(asked, [31, 39]);
}

/// Rule C6.
#[test]
fn case_73_data_is_gathered_from_all_sges_and_from_all_inline_parts() {
    let mut t = Bench::new();
    let sges = [sge(100, 3), sge(0, 0), sge(200, 2), sge(300, 1)];
    t.send_sges(1, SendOp::Send, &sges, SendFlags::empty());
    let frame = t.tx_frame().unwrap();
    let m = &t.mem.bytes;
    let expected = [m[100], m[101], m[102], m[200], m[201], m[300]];
    assert_eq!(Packet::parse(&frame).unwrap().payload(), expected);
    // Inline data of four parts, free to change after the post.
    let parts: [&[u8]; 4] = [b"ab", b"", b"cde", b"f"];
    let wr = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        data: Data::Inline(&parts),
    };
    t.qp.post_send(&wr, &mut t.log).unwrap();
    let frame = t.tx_frame().unwrap();
    assert_eq!(Packet::parse(&frame).unwrap().payload(), b"abcdef");
}

/// Rules R7, R11.
#[test]
fn case_43_go_back_n_resends_from_the_nak() {
    let mut t = Bench::new();
    for i in 0..6 {
        t.send(i, SendOp::Send, 8);
    }
    assert_eq!(t.tx().len(), 6);
    t.rx(nak(0x102, 0x60));
    assert_eq!(t.sent(), [(0, Success), (1, Success)]);
    t.expect(&[
        "SEND Only 102 A [8]",
        "SEND Only 103 A [8]",
        "SEND Only 104 A [8]",
        "SEND Only 105 A [8]",
    ]);
    t.rx(ack(0x105));
    assert_eq!(t.sent().len(), 4);
    assert_eq!(t.qp.counters().retransmits, 4);
}

/// Rules R11, X3.
#[test]
fn case_54_repeated_naks_cause_one_resend() {
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 20 * MTU as u32);
    assert_eq!(t.tx().len(), 20);
    for _ in 0..5 {
        t.rx(nak(0x10b, 0x60));
    }
    assert_eq!(t.tx().len(), 9);
    t.rx(nak(0x10b, 0x60));
    t.expect_silence();
}

/// Rule R15.
#[test]
fn case_60_a_resend_in_the_middle_keeps_the_opcode_of_its_psn() {
    let mut t = Bench::new();
    t.send(1, write(0x5000), 4 * MTU as u32);
    assert_eq!(t.tx().len(), 4);
    t.rx(nak(0x102, 0x60));
    t.expect(&[
        "RDMA WRITE Middle 102 [1024]",
        "RDMA WRITE Last 103 A [1024]",
    ]);
    let mut t = Bench::new();
    t.send(1, write(0x5000), 2 * MTU as u32);
    assert_eq!(t.tx().len(), 2);
    t.wait(Duration::from_millis(70));
    t.expect(&[
        "RDMA WRITE First 100 va=5000 rkey=77 len=2048 [1024]",
        "RDMA WRITE Last 101 A [1024]",
    ]);
}

/// Rule R13.
#[test]
fn case_55_rnr_retry_counts_and_seven_is_for_ever() {
    for (rnr_retry, naks) in [(0, 1), (3, 4)] {
        let mut t = Setup {
            rts: QpAttr {
                rnr_retry: Some(rnr_retry),
                ..QpAttr::rts(Psn::new(0x100))
            },
            ..Setup::default()
        }
        .build();
        t.send(1, SendOp::Send, 8);
        t.send(2, SendOp::Send, 8);
        for i in 0..naks {
            assert_eq!(t.tx().len(), 2, "try {i}");
            assert_eq!(t.sent(), []);
            t.rx(nak(0x100, 0x2c));
            t.expect_silence();
            t.wait(Duration::from_micros(641));
        }
        assert_eq!(t.sent(), [(1, RnrRetryExcErr), (2, WrFlushErr)]);
    }
    let mut t = Setup {
        rts: QpAttr {
            rnr_retry: Some(7),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    t.send(1, SendOp::Send, 8);
    for _ in 0..1000 {
        t.expect(&["SEND Only 100 A [8]"]);
        t.rx(nak(0x100, 0x21));
        t.wait(Duration::from_micros(11));
    }
    assert_eq!(t.sent(), []);
    assert_eq!(t.qp.counters().timeouts, 0);
}

#[test]
fn an_rnr_nak_that_comes_twice_is_one_try_and_one_wait() {
    let mut t = Setup {
        rts: QpAttr {
            rnr_retry: Some(2),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    t.send(1, SendOp::Send, 8);
    for _ in 0..2 {
        t.expect(&["SEND Only 100 A [8]"]);
        t.rx(nak(0x100, 0x2c));
        // 0.64 ms from the first copy on.
        let end = t.qp.poll_timeout();
        assert_eq!(end, Some(t.now + Duration::from_micros(640)));
        t.wait(Duration::from_micros(100));
        t.rx(nak(0x100, 0x2c));
        assert_eq!(t.sent(), []);
        assert_eq!(t.qp.poll_timeout(), end);
        t.expect_silence();
        t.wait(Duration::from_micros(540));
    }
    t.expect(&["SEND Only 100 A [8]"]);
    assert_eq!(t.qp.counters().rnr_naks_in, 4);
    t.rx(nak(0x100, 0x2c));
    assert_eq!(t.sent(), [(1, RnrRetryExcErr)]);
}

#[test]
fn rnr_retries_are_reloaded_by_progress() {
    let mut t = Setup {
        rts: QpAttr {
            rnr_retry: Some(1),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    for i in 0..20 {
        t.send(i, SendOp::Send, 8);
        t.tx();
        t.rx(nak(0x100 + i as u32, 0x21));
        t.wait(Duration::from_micros(11));
        t.tx();
        t.rx(ack(0x100 + i as u32));
        assert_eq!(t.sent(), [(i, Success)]);
    }
}

/// Rule R13.
#[test]
fn an_rnr_nak_restores_the_retries_of_the_timeout() {
    // A receiver that is long not ready answers many times; some of its answers get lost. It is
    // alive all the same: only timeouts without any answer between them add up to an error.
    let mut t = Setup {
        rts: QpAttr {
            timeout: Some(8),
            retry_cnt: Some(2),
            rnr_retry: Some(7),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    t.send(1, SendOp::Send, 8);
    for _ in 0..20 {
        t.expect(&["SEND Only 100 A [8]"]);
        t.wait(Duration::from_millis(2));
        t.expect(&["SEND Only 100 A [8]"]);
        t.rx(nak(0x100, 0x21));
        t.wait(Duration::from_micros(11));
    }
    assert_eq!(t.sent(), []);
    assert_eq!(t.qp.counters().timeouts, 20);
}

/// Rules R13, X8.
#[test]
fn case_56_silence_until_the_rnr_timer_expires() {
    // ACK timeout 1.05 ms (code 8), RNR code 31: 491.52 ms.
    let mut t = Setup {
        rts: QpAttr {
            timeout: Some(8),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    t.send(1, SendOp::Send, 8);
    assert_eq!(t.tx().len(), 1);
    t.rx(nak(0x100, 0x3f));
    for _ in 0..491 {
        t.wait(Duration::from_millis(1));
        t.expect_silence();
        // A sequence NAK meanwhile changes nothing (rxe sends one for the rest of the burst).
        t.rx(nak(0x100, 0x60));
        t.expect_silence();
    }
    t.wait(Duration::from_micros(600));
    t.expect(&["SEND Only 100 A [8]"]);
    assert_eq!(t.qp.counters().timeouts, 0);
}

/// Rules R12, X3.
#[test]
fn case_58_and_70_retries_the_time_to_error_and_its_status() {
    let mut t = Setup {
        rts: QpAttr {
            timeout: Some(8),
            retry_cnt: Some(3),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    let start = t.now;
    t.send(1, SendOp::Send, 8);
    t.send(2, SendOp::Send, 8);
    let mut sends = 0;
    while t.qp.state() == QpState::Rts {
        sends += t.tx().len();
        t.wait(Duration::from_millis(10));
    }
    assert_eq!(sends, 8, "four transmissions of both packets");
    assert_eq!(t.sent(), [(1, RetryExcErr), (2, WrFlushErr)]);
    // Between once and four times (retry_cnt + 1) · 4.096 µs · 2^8: T, 2 T, 4 T, 4 T.
    let failure = *t.qp.failure().unwrap();
    assert_eq!(failure.at - start, Duration::from_nanos(11 * (4096 << 8)));
    assert_eq!(failure.last_psn_sent, Psn::new(0x101));
    assert_eq!(failure.last_psn_acked, Psn::new(0xff));
    let said = failure.to_string();
    for part in [
        "RetryExcErr",
        "0x101",
        "retry_cnt 3",
        "nothing ever came back",
        "SEND of 8 bytes at PSN 0x100",
    ] {
        assert!(said.contains(part), "{part} in: {said}");
    }
}

/// Seen of rdma_rxe in a busy machine: it answered each of 256 packets, but only after eight
/// timeouts, in which it had got 256 copies more each.
/// Rule R12.
#[test]
fn a_peer_slower_than_the_timeout_gets_time_not_copies() {
    let timeout = Duration::from_nanos(4096 << 8);
    let mut t = Setup {
        rts: QpAttr {
            timeout: Some(8),
            retry_cnt: Some(7),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    let ms = |n: u64| Duration::from_nanos(n * timeout.as_nanos() / 4);
    t.send(1, SendOp::Send, 8);
    let mut copies = 0;
    // Twelve timeouts, in quarters.
    for _ in 0..48 {
        copies += t.tx().len();
        t.wait(ms(1));
    }
    assert_eq!(t.qp.state(), QpState::Rts);
    assert_eq!(copies, 5, "sent at 0, T, 3 T, 7 T, 11 T");
    t.rx(ack(0x100));
    assert_eq!(t.sent(), [(1, Success)]);
    // It has spoken: the next loss is noticed after T again.
    t.send(2, SendOp::Send, 8);
    assert_eq!(t.tx().len(), 1);
    t.wait(ms(5));
    assert_eq!(t.tx().len(), 1);
}

/// Rule R12.
#[test]
fn case_58_progress_restores_the_retries() {
    let mut t = Setup {
        rts: QpAttr {
            retry_cnt: Some(1),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    for i in 0..20 {
        t.send(i, SendOp::Send, 8);
        assert_eq!(t.tx().len(), 1);
        t.wait(Duration::from_millis(70));
        assert_eq!(t.tx().len(), 1);
        t.rx(ack(0x100 + i as u32));
    }
    assert_eq!(t.sent().len(), 20);
}

/// Rule R4.

#[test]
fn retries_are_reloaded_by_another_value_and_not_by_the_same() {
    // T, 2 T, 4 T: 1.05 ms is the first.
    for (set_to, more) in [(None, 0), (Some(1), 0), (Some(2), 2)] {
        let mut t = Setup {
            rts: QpAttr {
                timeout: Some(8),
                retry_cnt: Some(1),
                ..QpAttr::rts(Psn::new(0x100))
            },
            ..Setup::default()
        }
        .build();
        t.send(1, SendOp::Send, 8);
        t.expect(&["SEND Only 100 A [8]"]);
        t.wait(Duration::from_millis(2));
        t.expect(&["SEND Only 100 A [8]"]);
        t.qp.modify(&QpAttr::state(QpState::Sqd), &mut t.log)
            .unwrap();
        let attr = QpAttr {
            retry_cnt: set_to,
            ..QpAttr::default()
        };
        t.qp.modify(&attr, &mut t.log).unwrap();
        let mut copies = 0;
        while t.qp.state() == QpState::Sqd {
            t.wait(Duration::from_millis(10));
            copies += t.tx().len();
        }
        assert_eq!(copies, more, "{set_to:?}");
        assert_eq!(t.sent(), [(1, RetryExcErr)]);
    }
}

#[test]
fn case_64_a_fence_waits_for_reads_and_for_nothing_else() {
    let fence = SendFlags::FENCE | SendFlags::SIGNALED;
    let mut t = Bench::new();
    t.send(1, write(0x10), 8);
    t.send_flags(2, SendOp::Send, 8, fence);
    t.expect(&[
        "RDMA WRITE Only 100 A va=10 rkey=77 len=8 [8]",
        "SEND Only 101 A [8]",
    ]);

    let mut t = Bench::new();
    t.send(1, read(0x10), 2000);
    t.send_flags(2, SendOp::Send, 8, fence);
    t.expect(&["RDMA READ Request 100 A va=10 rkey=77 len=2000"]);
    t.rx(response(O::RcReadResponseFirst, 0x100, MTU));
    t.expect_silence();
    t.rx(response(O::RcReadResponseLast, 0x101, 2000 - MTU));
    t.expect(&["SEND Only 102 A [8]"]);
    // Case 65: the READ's data is what the fenced SEND carries.
    assert_eq!(t.mem.bytes[..8], [0xaa; 8]);
}

/// Rules R3, Q3.
#[test]
fn reads_in_flight_are_limited() {
    let mut t = Setup {
        rts: QpAttr {
            max_rd_atomic: Some(2),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    for i in 0..3 {
        t.send(i, read(0x10), 8);
    }
    t.send(9, SendOp::Send, 1);
    assert_eq!(t.tx().len(), 2);
    t.rx(response(O::RcReadResponseOnly, 0x100, 8));
    t.expect(&[
        "RDMA READ Request 102 A va=10 rkey=77 len=8",
        "SEND Only 103 A [1]",
    ]);
}

#[test]
fn case_96_a_message_over_the_wrap() {
    let mut t = Setup {
        rts: QpAttr::rts(Psn::new(0xff_fffe)),
        ..Setup::default()
    }
    .build();
    t.send(1, write(0x10), 5 * MTU as u32);
    let all = [
        "RDMA WRITE First # va=10 rkey=77 len=5120 [1024]",
        "RDMA WRITE Middle # [1024]",
        "RDMA WRITE Middle # [1024]",
        "RDMA WRITE Middle # [1024]",
        "RDMA WRITE Last # A [1024]",
    ];
    assert_eq!(t.tx(), train(0xff_fffe, &all));
    t.rx(nak(0, 0x60));
    assert_eq!(t.tx(), train(0, &all[2..]));
    t.rx(ack(2));
    assert_eq!(t.sent(), [(1, Success)]);
}

/// Rules R6, C6.
#[test]
fn case_97_one_ack_for_everything_over_the_wrap() {
    let mut t = Setup {
        rts: QpAttr::rts(Psn::new(0xff_fff0)),
        ..Setup::default()
    }
    .build();
    for i in 0..32 {
        t.send(i, SendOp::Send, 1);
    }
    assert_eq!(t.tx().len(), 32);
    t.rx(ack(0x0f));
    assert_eq!(t.sent().len(), 32);
}

/// Rule W19.
#[test]
fn case_103_imm_and_se_only_on_the_last_packet() {
    let mut t = Bench::new();
    let flags = SendFlags::SOLICITED;
    t.send_flags(1, SendOp::SendImm([9; 4]), 2049, flags);
    t.expect(&[
        "SEND First 100 [1024]",
        "SEND Middle 101 [1024]",
        "SEND Last Imm 102 A SE imm=[09, 09, 09, 09] [1]",
    ]);
}

/// Rule K5.
#[test]
fn a_bad_local_key_fails_after_what_came_before() {
    let bad = [Sge {
        lkey: LKey::new(0xbad),
        ..sge(0, 8)
    }];
    let mut t = Bench::new();
    t.send_sges(1, SendOp::Send, &bad, SendFlags::empty());
    t.send(2, SendOp::Send, 8);
    t.expect_silence();
    assert_eq!(t.sent(), [(1, LocProtErr), (2, WrFlushErr)]);

    let mut t = Bench::new();
    t.send(1, SendOp::Send, 8);
    t.send_sges(2, write(0), &bad, SendFlags::empty());
    t.send(3, SendOp::Send, 8);
    // The packet before asks again, since the one behind it never will.
    t.expect(&["SEND Only 100 [8]", "SEND Only 100 A [8]"]);
    t.rx(ack(0x100));
    assert_eq!(t.sent(), [(1, Success), (2, LocProtErr), (3, WrFlushErr)]);
    // A READ needs a buffer it may write.
    let mut t = Bench::new();
    t.mem.access = Access::REMOTE_READ;
    t.send(1, read(0), 8);
    t.expect_silence();
    assert_eq!(t.sent(), [(1, LocProtErr)]);
}

#[test]
fn case_61_each_failing_request_completes() {
    let bad = [Sge {
        lkey: LKey::new(0xbad),
        ..sge(0, 8)
    }];
    let mut t = Bench::new();
    let mut seen = 0;
    for i in 0..300 {
        t.send_sges(i, SendOp::Send, &bad, SendFlags::empty());
        t.expect_silence();
        seen += t.sent().len();
    }
    assert_eq!(seen, 300);
}

#[test]
fn case_80_one_too_many_is_refused_and_the_others_unaffected() {
    let mut t = Bench::new();
    for i in 0..128 {
        t.send(i, SendOp::Send, 1);
        t.recv(i, 1);
    }
    let wr = SendWr {
        wr_id: 999,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        data: Data::Sges(&[sge(0, 1)]),
    };
    assert_eq!(
        t.qp.post_send(&wr, &mut t.log),
        Err(PostError::QueueFull { depth: 128 })
    );
    let recv = RecvWr {
        wr_id: 999,
        sges: &[],
    };
    assert_eq!(
        t.qp.post_recv(&recv, &mut t.log),
        Err(PostError::QueueFull { depth: 128 })
    );
    assert_eq!(t.tx().len(), 128);
    t.rx(ack(0x17f));
    assert_eq!(t.sent().len(), 128);
    assert!(t.qp.post_send(&wr, &mut t.log).is_ok());
}

#[test]
fn what_cannot_be_posted() {
    let mut t = Bench::new();
    let mut post = |op, data: Data<'_>| {
        let wr = SendWr {
            wr_id: 1,
            op,
            flags: SendFlags::empty(),
            data,
        };
        t.qp.post_send(&wr, &mut t.log)
    };
    let many = [sge(0, 1); 5];
    assert!(matches!(
        post(SendOp::Send, Data::Sges(&many)),
        Err(PostError::TooManySges { .. })
    ));
    let long: &[&[u8]] = &[&[0; 65]];
    assert!(matches!(
        post(SendOp::Send, Data::Inline(long)),
        Err(PostError::InlineTooLong { .. })
    ));
    assert_eq!(post(read(0), Data::Inline(&[])), Err(PostError::InlineRead));
    let huge = [sge(0, u32::MAX), sge(0, u32::MAX)];
    assert!(matches!(
        post(SendOp::Send, Data::Sges(&huge)),
        Err(PostError::MessageTooLong { .. })
    ));
    let two_gib = [sge(0, (1 << 31) + 1)];
    assert!(matches!(
        post(SendOp::Send, Data::Sges(&two_gib)),
        Err(PostError::MessageTooLong { .. })
    ));
    t.expect_silence();
    let mut fresh = Qp::new(OWN, Setup::default().init, Lower::Udp).unwrap();
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        data: Data::Sges(&[]),
    };
    assert_eq!(
        fresh.post_send(&wr, &mut t.log),
        Err(PostError::State(QpState::Reset))
    );
    let recv = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    assert_eq!(
        fresh.post_recv(&recv, &mut t.log),
        Err(PostError::State(QpState::Reset))
    );
}

/// Rule Q1.
#[test]
fn sqd_finishes_what_runs_and_starts_nothing() {
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 8);
    t.send(2, SendOp::Send, 8);
    t.tx_frame().unwrap();
    let drain = QpAttr {
        en_sqd_async_notify: Some(true),
        ..QpAttr::state(QpState::Sqd)
    };
    t.qp.modify(&drain, &mut t.log).unwrap();
    t.expect(&["SEND Only 100 A [8]"]);
    assert_eq!(t.events(), []);
    t.rx(ack(0x100));
    assert_eq!(t.sent(), [(1, Success)]);
    assert_eq!(t.events(), [Event::SqDrained]);
    t.expect_silence();
    t.qp.modify(&QpAttr::state(QpState::Rts), &mut t.log)
        .unwrap();
    t.expect(&["SEND Only 101 A [8]"]);
}

#[test]
fn a_failed_modify_changes_nothing() {
    use super::super::ModifyError;
    let mut t = Bench::new();
    let bad = [
        QpAttr {
            timeout: Some(3),
            ..QpAttr::state(QpState::Rts)
        },
        QpAttr {
            cur_state: Some(QpState::Rtr),
            ..QpAttr::state(QpState::Rts)
        },
        QpAttr::init(Access::empty()),
    ];
    for attr in bad {
        t.qp.modify(&attr, &mut t.log).unwrap_err();
        assert_eq!(t.qp.state(), QpState::Rts);
    }
    let mut fresh = Qp::new(OWN, Setup::default().init, Lower::Udp).unwrap();
    let err = fresh
        .modify(&QpAttr::state(QpState::Init), &mut t.log)
        .unwrap_err();
    assert!(matches!(err, ModifyError::Missing { .. }), "{err}");
    fresh
        .modify(&QpAttr::init(Access::empty()), &mut t.log)
        .unwrap();
    let mut rtr = Setup::default().rtr;
    rtr.av = Some(AddressVector {
        dst: Gid::new([0xfe; 16]),
        ..path()
    });
    let err = fresh.modify(&rtr, &mut t.log).unwrap_err();
    assert!(matches!(err, ModifyError::Path(_)), "{err}");
    assert_eq!(fresh.state(), QpState::Init);
}

#[test]
fn a_packet_that_was_sent_again_measures_no_round_trip() {
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 8);
    t.tx();
    t.wait(Duration::from_millis(70));
    t.expect(&["SEND Only 100 A [8]"]);
    t.now += Duration::from_micros(10);
    t.rx(ack(0x100));
    // The second of these asks, and would tell.
    t.send(2, SendOp::Send, 8);
    t.send(3, SendOp::Send, 8);
    t.expect(&["SEND Only 101 [8]", "SEND Only 102 A [8]"]);
    t.now += Duration::from_micros(500);
    t.rx(nak(0x101, 0x60));
    assert_eq!(t.tx().len(), 2);
    t.now += Duration::from_micros(10);
    t.rx(ack(0x102));
    assert_eq!(t.sent().len(), 3);
    assert_eq!(t.qp.rtt().count(), 0, "to which copy is it the answer?");
    assert_eq!(t.qp.gauges().srtt, None);
    t.send(4, SendOp::Send, 8);
    t.tx();
    t.now += Duration::from_micros(10);
    t.rx(ack(0x103));
    assert_eq!(t.qp.rtt().count(), 1);
    assert_eq!(t.qp.gauges().srtt, Some(Duration::from_micros(10)));
}

#[test]
fn a_rate_limit_spaces_packets() {
    use crate::cc::{CongestionControl, Fixed, Rate};
    let slow = CongestionControl::Fixed(Fixed::new(Rate::bits_per_second(8_000_000), 256));
    let mut t = Setup {
        rts: QpAttr {
            congestion: Some(slow),
            ..QpAttr::rts(Psn::new(0x100))
        },
        ..Setup::default()
    }
    .build();
    t.send(1, SendOp::Send, 10 * MTU as u32);
    let mut sent = 0;
    let end = t.now + Duration::from_millis(5);
    while t.now < end {
        sent += t.tx().len();
        t.wait(Duration::from_millis(1));
    }
    // 1 MB/s: one packet of 1040 bytes in 1.04 ms.
    assert_eq!(sent, 5);
}
