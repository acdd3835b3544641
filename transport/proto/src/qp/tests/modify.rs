//! Attributes: what a failed modify leaves (Q2), what a query says, SQD, partitions.

use proptest::prelude::*;

use super::*;
use crate::qp::QpInfo;
use crate::qp::state::{QpType, rule_of};

/// Attributes at random, as likely to fit a transition as not.
fn attrs() -> impl Strategy<Value = QpAttr> {
    let state = proptest::option::weighted(0.9, proptest::sample::select(&QpState::ALL[..]));
    let bits = proptest::collection::vec(proptest::bool::weighted(0.4), 17);
    (state, any::<bool>(), bits, any::<u8>(), any::<u16>()).prop_map(
        |(state, complete, bits, n, m)| {
            let mut attr = QpAttr::default();
            if complete {
                // Everything a step of the usual way up needs, and then some is spoilt.
                match state {
                    Some(QpState::Init) => attr = QpAttr::init(Access::LOCAL_WRITE),
                    Some(QpState::Rtr) => attr = Setup::default().rtr,
                    Some(QpState::Rts) => attr = Setup::default().rts,
                    _ => {}
                }
            }
            attr.state = state;
            if !complete || n % 4 == 0 {
                spoil(&mut attr, &bits, n, m);
            }
            attr
        },
    )
}

fn spoil(attr: &mut QpAttr, bits: &[bool], n: u8, m: u16) {
    let on = |i: usize| bits[i];
    let bad_path = AddressVector {
        dst: Gid::new([0xfe; 16]),
        ..path()
    };
    if on(0) {
        attr.cur_state = Some(QpState::ALL[usize::from(n) % 7]);
    }
    if on(1) {
        attr.en_sqd_async_notify = Some(n & 1 == 0);
    }
    if on(2) {
        attr.access = Some(Access::from_bits_truncate(n.into()));
    }
    if on(3) {
        attr.pkey_index = Some(u16::from(n.is_multiple_of(3)));
        attr.pkey = PKey::new(m);
    }
    if on(4) {
        attr.port = Some(n % 3);
    }
    if on(5) {
        attr.av = Some(if n & 1 == 0 { path() } else { bad_path });
    }
    if on(6) {
        attr.path_mtu = Some(PathMtu::Mtu2048);
    }
    if on(7) {
        attr.timeout = Some(n % 40);
    }
    if on(8) {
        attr.retry_cnt = Some(n % 10);
    }
    if on(9) {
        attr.rnr_retry = Some(n % 10);
    }
    if on(10) {
        attr.rq_psn = Some(Psn::new(m.into()));
    }
    if on(11) {
        attr.max_rd_atomic = Some(n);
    }
    if on(12) {
        attr.min_rnr_timer = xroce_wire::syndrome::RnrTimer::new(n % 32);
    }
    if on(13) {
        attr.sq_psn = Some(Psn::new(m.into()));
    }
    if on(14) {
        attr.max_dest_rd_atomic = Some(n);
    }
    if on(15) {
        attr.dest_qpn = Some(Qpn::new(u32::from(n % 5)));
    }
    if on(16) {
        attr.congestion = Some(crate::cc::CongestionControl::Fixed(Default::default()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(512)))]

    /// Over walks through all states: a modify is done as asked or not at all (Q2).
    #[test]
    fn q2_a_failed_modify_changes_nothing(walk in proptest::collection::vec(attrs(), 1..12)) {
        let mut init = Setup::default().init;
        (init.max_send_wr, init.max_recv_wr, init.max_inline) = (1, 1, 0);
        let mut qp = Qp::new(OWN, init, Lower::Udp).unwrap();
        let mut log = Log::default();
        for attr in walk {
            let before = format!("{qp:?}");
            let from = qp.state();
            match qp.modify(&attr, &mut log) {
                Err(_) => prop_assert_eq!(before, format!("{qp:?}")),
                Ok(()) => {
                    let to = attr.state.unwrap_or(from);
                    prop_assert_eq!(qp.state(), to);
                    prop_assert!(rule_of(QpType::Rc, from, to).is_some());
                    if to != QpState::Reset {
                        says(&qp.query(), &attr)?;
                    }
                }
            }
        }
    }
}

/// The query gives back what was just set.
fn says(info: &QpInfo, set: &QpAttr) -> Result<(), TestCaseError> {
    let got = &info.attr;
    macro_rules! same {
        ($($field:ident)*) => { $(
            if set.$field.is_some() {
                prop_assert_eq!(&got.$field, &set.$field);
            }
        )* };
    }
    same!(state access pkey_index port av path_mtu timeout retry_cnt rnr_retry);
    same!(rq_psn max_rd_atomic min_rnr_timer sq_psn max_dest_rd_atomic dest_qpn);
    if set.pkey_index.is_some() {
        prop_assert_eq!(got.pkey, set.pkey);
    }
    Ok(())
}

/// Rule Q6.
#[test]
fn a_query_says_what_is_now() {
    let mut t = Bench::new();
    t.recv(1, 64);
    t.rx(p(Opcode::RcSendOnly, 0x100).len(8));
    t.send(1, SendOp::Send, 3000);
    t.tx();
    let info = t.qp.query();
    assert_eq!(info.attr.state, Some(QpState::Rts));
    assert_eq!(info.attr.rq_psn, Some(Psn::new(0x101)));
    assert_eq!(info.attr.sq_psn, Some(Psn::new(0x103)));
    assert_eq!(
        (info.attr.timeout, info.attr.retry_cnt),
        (Some(14), Some(7))
    );
    assert_eq!(info.attr.dest_qpn, Some(PEER));
    assert_eq!(info.attr.max_dest_rd_atomic, Some(16));
    assert_eq!(info.init.max_send_sge, 4);
    assert!(!info.sq_draining);
    t.qp.modify(&QpAttr::state(QpState::Sqd), &mut t.log)
        .unwrap();
    assert!(t.qp.query().sq_draining);
    t.rx(ack(0x102));
    assert!(!t.qp.query().sq_draining);
    // RESET forgets them (case 47).
    t.qp.modify(&QpAttr::state(QpState::Reset), &mut t.log)
        .unwrap();
    let attr = t.qp.query().attr;
    assert_eq!(
        (attr.rq_psn, attr.dest_qpn, attr.timeout),
        (None, None, None)
    );
}

#[test]
fn q1_the_responder_goes_on_in_sqd() {
    let mut t = Bench::new();
    t.recv(1, 64);
    t.qp.modify(&QpAttr::state(QpState::Sqd), &mut t.log)
        .unwrap();
    t.rx(p(Opcode::RcSendOnly, 0x100).len(8).a());
    t.rx(p(Opcode::RcReadRequest, 0x101).reth(BASE, KEY, 8).a());
    assert_eq!(t.received(), [(1, WcStatus::Success)]);
    t.expect(&["RDMA READ Response Only 101 syn=1f msn=2 [8]"]);
    // Posting is allowed and starts nothing.
    t.send(2, SendOp::Send, 8);
    t.expect_silence();
    t.qp.modify(&QpAttr::state(QpState::Rts), &mut t.log)
        .unwrap();
    t.expect(&["SEND Only 100 A [8]"]);
}

#[test]
fn q1_an_event_asked_for_in_one_sqd_does_not_come_in_the_next() {
    let mut t = Bench::new();
    t.send(1, SendOp::Send, 8);
    t.tx();
    let drain = QpAttr {
        en_sqd_async_notify: Some(true),
        ..QpAttr::state(QpState::Sqd)
    };
    t.qp.modify(&drain, &mut t.log).unwrap();
    t.qp.modify(&QpAttr::state(QpState::Rts), &mut t.log)
        .unwrap();
    t.qp.modify(&QpAttr::state(QpState::Sqd), &mut t.log)
        .unwrap();
    t.rx(ack(0x100));
    assert_eq!(t.sent(), [(1, WcStatus::Success)]);
    assert_eq!(t.events(), []);
}

/// Whether a QP with one P_Key takes a packet with another.
fn takes(own: u16, theirs: u16) -> bool {
    let mut setup = Setup::default();
    setup.rtr.pkey_index = Some(0);
    setup.rtr.pkey = PKey::new(own);
    let mut t = setup.build();
    let back = AddressVector {
        src: path().dst,
        dst: path().src,
        ..path()
    };
    t.peer = HeaderTemplate::new(Lower::Udp, &back, OWN, PKey::new(theirs)).unwrap();
    t.recv(1, 64);
    t.rx(p(Opcode::RcSendOnly, 0x100).len(8).a());
    let taken = t.received() == [(1, WcStatus::Success)];
    let answered = t.tx_frame();
    assert_eq!(answered.is_some(), taken, "a mismatch is dropped silently");
    assert_eq!(t.qp.counters().discards, u64::from(!taken));
    if let Some(frame) = answered {
        assert_eq!(Packet::parse(&frame).unwrap().pkey(), PKey::new(own));
    }
    taken
}

#[test]
fn case_51_partitions_and_membership() {
    for (own, theirs, taken) in [
        (0xffff, 0xffff, true),
        (0xffff, 0x7fff, true),
        (0x7fff, 0xffff, true),
        (0x7fff, 0x7fff, false),
        (0x8001, 0x0001, true),
        (0x8001, 0x8002, false),
        (0x8001, 0xffff, false),
    ] {
        assert_eq!(takes(own, theirs), taken, "{own:#x} {theirs:#x}");
    }
}

#[test]
fn a_changed_table_entry_reaches_a_running_queue_pair() {
    let mut t = Bench::new();
    t.qp.set_pkey(PKey::new(0x8123)).unwrap();
    t.send(1, SendOp::Send, 8);
    let frame = t.tx_frame().unwrap();
    assert_eq!(Packet::parse(&frame).unwrap().pkey(), PKey::new(0x8123));
    t.rx(ack(0x100));
    assert_eq!(t.sent(), [], "the peer is in another partition");
}
