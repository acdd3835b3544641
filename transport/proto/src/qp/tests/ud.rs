//! UD (UD1 to UD7).

use super::*;
use crate::qp::{AddressHandle, Destination};
use crate::wc::WcFlags;
use crate::wr::PostError;
use xroce_wire::frame::GRH_LEN;

const OK: WcStatus = WcStatus::Success;
const FLUSH: WcStatus = WcStatus::WrFlushErr;
/// What stands for the network header here.
const HEADER: [u8; GRH_LEN] = [0x5a; GRH_LEN];

fn bench() -> Bench {
    let mut init = QpInit::ud(PD, SEND_CQ, RECV_CQ);
    init.max_send_sge = 4;
    init.max_recv_sge = 4;
    let setup = Setup {
        init,
        rtr: QpAttr::state(QpState::Rtr),
        rts: QpAttr::rts_unreliable(Psn::new(0xff_ffff)),
        ..Setup::default()
    };
    let mut b = setup.build();
    b.qp.set_port_mtu(PathMtu::Mtu1024);
    b
}

fn handle() -> AddressHandle {
    AddressHandle::new(Lower::Udp, &path(), PD).unwrap()
}

impl Bench {
    fn datagram(
        &mut self,
        wr_id: u64,
        op: SendOp,
        sges: &[Sge],
        qkey: u32,
    ) -> Result<(), PostError> {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            data: Data::Sges(sges),
        };
        let to = Destination {
            ah: &handle(),
            qpn: Qpn::new(0x42),
            qkey: QKey::new(qkey),
        };
        self.qp.post_datagram(&wr, &to, &mut self.log)
    }

    /// A datagram arrives.
    fn arrive(&mut self, qkey: u32, pkey: u16, imm: Option<[u8; 4]>, payload: &[u8]) {
        let mut frame = [0; 5000];
        let emit = Emit {
            opcode: imm.map_or(Opcode::UdSendOnly, |_| Opcode::UdSendOnlyImm),
            psn: Psn::new(0x77_7777),
            ack_req: false,
            solicited: false,
            payload_len: payload.len(),
        };
        let template = HeaderTemplate::new(Lower::Udp, &path(), OWN, PKey::new(pkey)).unwrap();
        let mut out = template.start(&mut frame, &emit).unwrap();
        out.deth(&Deth {
            qkey: QKey::new(qkey),
            src_qp: PEER,
        });
        imm.inspect(|&imm| out.imm(imm));
        out.payload_mut().copy_from_slice(payload);
        let len = out.finish();
        let pkt = Packet::parse(&frame[..len]).unwrap();
        self.cx(|qp, cx| qp.handle_datagram(cx, &HEADER, false, &pkt));
    }

    fn good(&mut self, payload: &[u8]) {
        self.arrive(QKEY, 0xffff, None, payload);
    }
}

/// Rule UD6.
#[test]
fn datagrams_go_where_each_says() {
    let mut b = bench();
    b.datagram(1, SendOp::Send, &[sge(0, 5)], 0x22).unwrap();
    b.datagram(2, SendOp::SendImm([1, 2, 3, 4]), &[sge(0, 0)], 0x33)
        .unwrap();
    assert_eq!(b.sent(), []);
    let frame = b.tx_frame().unwrap();
    assert_eq!(Packet::parse(&frame).unwrap().dest_qp(), Qpn::new(0x42));
    assert_eq!(
        text(&Packet::parse(&frame).unwrap()),
        "SEND Only ffffff qkey=22 src=11 [5]"
    );
    // Each takes a PSN (UD6).
    b.expect(&["SEND Only Imm 0 qkey=33 src=11 imm=[01, 02, 03, 04]"]);
    assert_eq!(b.sent(), [(1, OK), (2, OK)]);
    assert_eq!(b.qp.poll_timeout(), None);
}

/// Rule UD4.
#[test]
fn case_50_a_controlled_qkey_stands_for_the_own_one() {
    let mut b = bench();
    b.datagram(1, SendOp::Send, &[], 0x8000_0000).unwrap();
    b.expect(&["SEND Only ffffff qkey=11111111 src=11"]);
}

/// Rule UD4.
#[test]
fn case_50_another_qkey_is_dropped_and_counted() {
    let mut b = bench();
    b.recv(1, 100);
    b.arrive(QKEY + 1, 0xffff, None, b"no");
    assert_eq!(b.received(), []);
    assert_eq!(b.qp.counters().qkey_violations, 1);
    b.good(b"yes");
    assert_eq!(b.received(), [(1, OK)]);
}

#[test]
fn case_51_another_pkey_is_dropped() {
    let mut b = bench();
    b.recv(1, 100);
    b.arrive(QKEY, 0x1234, None, b"no");
    assert_eq!(b.received(), []);
    // A limited member may talk to a full one.
    b.arrive(QKEY, 0x7fff, None, b"yes");
    assert_eq!(b.received(), [(1, OK)]);
}

/// Rule UD2.
#[test]
fn the_network_header_is_in_front() {
    let mut b = bench();
    b.recv(1, 100);
    b.arrive(QKEY, 0xffff, Some([7; 4]), b"hello");
    let wc = b.log.recvs[0];
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, OK, 45));
    assert_eq!(wc.flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert_eq!((wc.src_qp, wc.imm), (PEER, [7; 4]));
    assert_eq!(b.mem.bytes[..40], HEADER);
    assert_eq!(b.mem.bytes[40..45], *b"hello");
}

#[test]
fn a_receive_in_pieces_is_filled_in_order() {
    let mut b = bench();
    let sges = [sge(0, 39), sge(100, 3), sge(200, 100)];
    let wr = RecvWr {
        wr_id: 1,
        sges: &sges,
    };
    b.qp.post_recv(&wr, &mut b.log).unwrap();
    b.good(b"hello");
    assert_eq!(b.mem.bytes[..39], HEADER[..39]);
    assert_eq!(b.mem.bytes[100..103], [0x5a, b'h', b'e']);
    assert_eq!(b.mem.bytes[200..203], *b"llo");
}

/// Rule UD5.
#[test]
fn case_20_what_does_not_fit_is_dropped_and_the_qp_lives() {
    let mut b = bench();
    b.recv(1, 40 + 1000);
    b.good(&[1; 1001]);
    // Longer than the port's MTU.
    b.good(&[1; 2048]);
    assert_eq!(b.received(), []);
    assert_eq!(b.qp.counters().invalid_requests, 2);
    assert_eq!(b.qp.state(), QpState::Rts);
    b.good(&[2; 1000]);
    assert_eq!(b.received(), [(1, OK)]);
    b.recv(2, 39);
    b.good(&[]);
    assert_eq!(b.received(), []);
}

#[test]
fn without_receive_a_datagram_vanishes() {
    let mut b = bench();
    b.good(b"gone");
    assert_eq!(b.qp.counters().no_receive, 1);
    b.recv(1, 100);
    b.good(b"here");
    assert_eq!(b.received(), [(1, OK)]);
}

/// Rule UD1.
#[test]
fn a_datagram_longer_than_a_packet_is_refused() {
    let mut b = bench();
    let refused = b.datagram(1, SendOp::Send, &[sge(0, 1000), sge(0, 25)], 0);
    let e = refused.unwrap_err();
    let (given, max) = (1025, 1024);
    assert_eq!(e, PostError::DatagramTooLong { given, max });
    assert!(e.to_string().contains("1024"), "{e}");
    b.datagram(2, SendOp::Send, &[sge(0, 1000), sge(0, 24)], 0)
        .unwrap();
    b.expect(&["SEND Only ffffff qkey=0 src=11 [1024]"]);
}

#[test]
fn a_qp_without_connection_needs_a_destination_and_only_that() {
    let mut b = bench();
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        data: Data::Sges(&[]),
    };
    let refused = b.qp.post_send(&wr, &mut b.log);
    assert_eq!(refused, Err(PostError::NoDestination));
    let refused = b.datagram(1, write(0), &[], 0);
    assert_eq!(refused, Err(PostError::Operation(QpType::Ud)));
    let foreign = AddressHandle::new(Lower::Udp, &path(), Pd(8)).unwrap();
    let to = Destination {
        ah: &foreign,
        qpn: PEER,
        qkey: QKey::new(0),
    };
    let refused = b.qp.post_datagram(&wr, &to, &mut b.log);
    assert_eq!(refused, Err(PostError::AddressPd));
    let mut rc = Bench::new();
    let refused = rc.datagram(1, SendOp::Send, &[], 0);
    assert_eq!(refused, Err(PostError::Connected(QpType::Rc)));
    assert_eq!((b.qp.sends_posted(), rc.qp.sends_posted()), (0, 0));
}

#[test]
fn datagrams_are_posted_from_rts_on() {
    let mut b = bench();
    b.qp.modify(&QpAttr::state(QpState::Reset), &mut b.log)
        .unwrap();
    let qkey = QKey::new(5);
    for attr in [QpAttr::init_ud(qkey), QpAttr::state(QpState::Rtr)] {
        let refused = b.datagram(1, SendOp::Send, &[], 0);
        assert_eq!(refused, Err(PostError::State(b.qp.state())));
        b.qp.modify(&attr, &mut b.log).unwrap();
    }
    let attr = QpAttr::rts_unreliable(Psn::new(3));
    b.qp.modify(&attr, &mut b.log).unwrap();
    b.datagram(1, SendOp::Send, &[], 0x8000_0001).unwrap();
    b.expect(&["SEND Only 3 qkey=5 src=11"]);
    // The limit of the port outlives a reset.
    assert!(b.datagram(1, SendOp::Send, &[sge(0, 1025)], 0).is_err());
}

#[test]
fn the_qkey_may_change_while_it_works() {
    let mut b = bench();
    b.recv(1, 100);
    let attr = QpAttr {
        qkey: Some(QKey::new(6)),
        ..QpAttr::default()
    };
    b.qp.modify(&attr, &mut b.log).unwrap();
    b.good(b"old");
    b.arrive(6, 0xffff, None, b"new");
    assert_eq!(b.received(), [(1, OK)]);
    assert_eq!(b.qp.counters().qkey_violations, 1);
}

#[test]
fn a_connection_has_no_qkey() {
    let mut b = Bench::new();
    let attr = QpAttr {
        qkey: Some(QKey::new(6)),
        ..QpAttr::default()
    };
    assert!(b.qp.modify(&attr, &mut b.log).is_err());
}

#[test]
fn a_datagram_that_fails_stops_sending_only() {
    let mut b = bench();
    b.recv(9, 100);
    let bad = Sge {
        lkey: LKey::new(0xbad),
        ..sge(0, 64)
    };
    b.datagram(1, SendOp::Send, &[sge(0, 1)], 0).unwrap();
    b.datagram(2, SendOp::Send, &[bad], 0).unwrap();
    b.datagram(3, SendOp::Send, &[sge(0, 1)], 0).unwrap();
    b.expect(&["SEND Only ffffff qkey=0 src=11 [1]"]);
    assert_eq!(b.sent(), [(1, OK), (2, WcStatus::LocProtErr), (3, FLUSH)]);
    assert_eq!(b.qp.state(), QpState::Sqe);
    b.datagram(4, SendOp::Send, &[], 0).unwrap();
    assert_eq!(b.sent(), [(4, FLUSH)]);
    b.good(b"still");
    assert_eq!(b.received(), [(9, OK)]);
    b.qp.modify(&QpAttr::state(QpState::Rts), &mut b.log)
        .unwrap();
    b.datagram(5, SendOp::Send, &[], 0).unwrap();
    b.expect(&["SEND Only 0 qkey=0 src=11"]);
}

#[test]
fn an_unusable_receive_ends_the_qp() {
    let mut b = bench();
    let bad = Sge {
        lkey: LKey::new(0xbad),
        ..sge(0, 64)
    };
    let wr = RecvWr {
        wr_id: 1,
        sges: &[bad],
    };
    b.qp.post_recv(&wr, &mut b.log).unwrap();
    b.good(b"x");
    assert_eq!(b.received(), [(1, WcStatus::LocProtErr)]);
    assert_eq!(b.qp.state(), QpState::Err);
}

/// Rule UD7.
#[test]
fn case_10_a_group_is_sent_to_by_its_number() {
    let mut b = bench();
    let av = AddressVector {
        dst: Gid::from_v4([224, 0, 0, 9]),
        ..path()
    };
    let ah = AddressHandle::new(Lower::Udp, &av, PD).unwrap();
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        data: Data::Inline(&[b"all"]),
    };
    let to = Destination {
        ah: &ah,
        qpn: Qpn::new(0x42),
        qkey: QKey::new(1),
    };
    b.qp.post_datagram(&wr, &to, &mut b.log).unwrap();
    let frame = b.tx_frame().unwrap();
    let pkt = Packet::parse(&frame).unwrap();
    assert_eq!(pkt.dest_qp(), Qpn::MULTICAST);
    assert_eq!(pkt.payload(), b"all");
}

#[test]
fn packets_of_other_services_are_dropped() {
    let mut b = bench();
    b.recv(1, 100);
    b.rx(p(Opcode::RcSendOnly, 0).len(4));
    b.rx(p(Opcode::UcSendOnly, 0).len(4));
    // By the entry that does not know its network header.
    b.rx(p(Opcode::UdSendOnly, 0).len(4));
    assert_eq!(b.received(), []);
    let mut rc = Bench::new();
    rc.recv(1, 100);
    rc.good(b"x");
    assert_eq!(rc.received(), []);
    assert_eq!(rc.qp.counters().discards, 1);
}

#[test]
fn shared_receives_are_taken_by_datagrams() {
    let mut init = QpInit::ud(PD, SEND_CQ, RECV_CQ);
    init.max_recv_sge = 4;
    init.srq = Some(Srq(5));
    let setup = Setup {
        init,
        rtr: QpAttr::state(QpState::Rtr),
        rts: QpAttr::rts_unreliable(Psn::new(0)),
        ..Setup::default()
    };
    let mut b = setup.build();
    b.log.srq = Some(uc::shared());
    b.arrive(QKEY + 1, 0xffff, None, b"no");
    assert_eq!(b.log.srq.as_ref().unwrap().len(), 2);
    // Too long for a receive, which is then this QP's.
    b.good(&[1; 1961]);
    b.good(b"one");
    b.good(b"two");
    b.good(b"too many");
    assert_eq!(b.received(), [(1, OK), (2, OK)]);
    assert_eq!(b.qp.counters().no_receive, 1);
}

#[test]
fn another_pkey_of_the_qp_is_sent() {
    let mut b = bench();
    b.qp.set_pkey(PKey::new(0x8123)).unwrap();
    b.datagram(1, SendOp::Send, &[], 0).unwrap();
    let frame = b.tx_frame().unwrap();
    assert_eq!(Packet::parse(&frame).unwrap().pkey(), PKey::new(0x8123));
    b.recv(1, 100);
    b.good(b"default partition");
    b.arrive(QKEY, 0x0123, None, b"limited member of ours");
    assert_eq!(b.received(), [(1, OK)]);
}
