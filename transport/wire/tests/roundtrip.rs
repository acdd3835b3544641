//! Properties: what is emitted parses to what was put in; another implementation of the lower
//! layers agrees; the CRC paths agree with each other and with recomputation.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic"
)]

mod common;

use common::{Ext, emit};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use xroce_wire::frame::{Frame, MAX_GSO_ID, UdpMeta, bytes_after_id};
use xroce_wire::icrc::{crc_update, icrc_portable, id_delta, id_of_delta};
use xroce_wire::newtypes::{Gid, MacAddr, PKey, Psn, Qpn, VlanTci};
use xroce_wire::opcode::Opcode;
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;
use xroce_wire::template::{Emit, HeaderTemplate, Lower, Stamp, TemplateError, TemplateOptions};

fn gids() -> impl Strategy<Value = (Gid, Gid)> {
    prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (Gid::from_v4(a), Gid::from_v4(b))),
        any::<([u8; 16], [u8; 16])>()
            .prop_map(|(a, b)| (Gid::new(a), Gid::new(b)))
            .prop_filter("not mapped", |(a, b)| a.v4().is_none() && b.v4().is_none()),
    ]
}

prop_compose! {
    fn paths()(
        (src, dst) in gids(),
        macs in any::<([u8; 6], [u8; 6])>(),
        vlan in proptest::option::of(any::<u16>()),
        traffic_class: u8,
        hop_limit in 1u8..,
        flow_label in 0u32..1 << 20,
        src_port: u16,
    ) -> AddressVector {
        AddressVector {
            src,
            dst,
            src_mac: MacAddr::new(macs.0),
            dst_mac: MacAddr::new(macs.1),
            vlan: vlan.map(VlanTci::new),
            traffic_class,
            hop_limit,
            flow_label,
            src_port,
        }
    }
}

prop_compose! {
    fn emits()(
        opcode in proptest::sample::select(Opcode::ALL),
        psn: u32,
        ack_req: bool,
        solicited: bool,
        len in prop_oneof![0usize..=130, 0usize..=4096, Just(1024), Just(4096)],
    ) -> Emit {
        let payload_len = if opcode.info().has_payload() { len } else { 0 };
        Emit { opcode, psn: Psn::new(psn), ack_req, solicited, payload_len }
    }
}

prop_compose! {
    fn options()(ip_id: u16, mig_req: bool, fecn: bool, becn: bool) -> TemplateOptions {
        TemplateOptions { ip_id, mig_req, fecn, becn }
    }
}

/// The frame of [`emit`] by a stamp, its payload joined to the headers where that is possible.
fn stamped(stamp: &Stamp, e: &Emit, ext: &Ext) -> Vec<u8> {
    assert!(stamp.fits(e.opcode, e.payload_len));
    let mut bytes = vec![0xff; 5000];
    let mut out = stamp.start(&mut bytes, e).unwrap();
    ext.write(e.opcode.info().headers, &mut out);
    for (i, byte) in out.payload_mut().iter_mut().enumerate() {
        *byte = i as u8;
    }
    let len = match out.head() {
        Some(head) => {
            let register = head.joined_to(out.payload_mut());
            out.finish_joined(register)
        }
        None => out.finish(),
    };
    bytes.truncate(len);
    bytes
}

fn check_packet(p: &Packet<'_>, e: &Emit, ext: &Ext, t: &HeaderTemplate, o: &TemplateOptions) {
    assert_eq!(p.opcode(), e.opcode);
    assert_eq!(
        (p.psn(), p.ack_req(), p.solicited()),
        (e.psn, e.ack_req, e.solicited)
    );
    assert_eq!(
        (p.dest_qp(), p.mig_req(), p.fecn()),
        (t.dest_qp(), o.mig_req, o.fecn)
    );
    assert_eq!(p.becn(), o.becn || e.opcode == Opcode::Cnp);
    assert!(p.pad_ok());
    let payload: Vec<u8> = (0..e.payload_len).map(|i| i as u8).collect();
    assert_eq!(p.payload(), payload);
    assert!(p.reth().is_none_or(|h| h == ext.reth));
    assert!(p.aeth().is_none_or(|h| h == ext.aeth));
    assert!(p.atomic().is_none_or(|h| h == ext.atomic));
    assert!(p.atomic_ack().is_none_or(|h| h == ext.atomic_ack));
    assert!(p.imm().is_none_or(|h| h == ext.imm));
    assert!(p.ieth().is_none_or(|h| h == ext.ieth));
    assert!(p.deth().is_none_or(|h| h == ext.deth));
    assert!(p.xrceth().is_none_or(|h| h == ext.xrceth));
    assert!(p.feth().is_none_or(|h| h == ext.feth));
    assert!(p.meth().is_none_or(|h| h == ext.meth));
    assert!(p.seth().is_none_or(|h| h == ext.seth));
    assert!(p.peth().is_none_or(|h| h == ext.peth));
    check_kept(p);
}

/// A copy that is kept for later reads as the packet itself.
fn check_kept(p: &Packet<'_>) {
    let mut copy = vec![0xff; Packet::kept_len(p.payload().len())];
    let len = p.keep(&mut copy).unwrap();
    let again = Packet::parse(&copy[..len]).unwrap();
    assert_eq!(again.bth(), p.bth());
    assert_eq!(again.payload(), p.payload());
    assert_eq!((again.reth(), again.meth()), (p.reth(), p.meth()));
    assert_eq!((again.imm(), again.ieth()), (p.imm(), p.ieth()));
    assert_eq!(p.keep(&mut copy[..len - 1]), None);
    let len = p.keep_head(&mut copy).unwrap();
    let head = Packet::parse(&copy[..len]).unwrap();
    assert_eq!((head.bth(), head.reth()), (p.bth(), p.reth()));
    assert_eq!(head.payload(), b"");
}

/// What `etherparse` reads below BTH.
fn check_oracle(bytes: &[u8], av: &AddressVector, o: &TemplateOptions) {
    let sliced = SlicedPacket::from_ethernet(bytes).unwrap();
    let Some(etherparse::LinkSlice::Ethernet2(eth)) = &sliced.link else {
        panic!("no Ethernet")
    };
    assert_eq!(
        (eth.source(), eth.destination()),
        (av.src_mac.bytes(), av.dst_mac.bytes())
    );
    let tag = sliced.vlan().map(|v| match v {
        etherparse::VlanSlice::SingleVlan(tag) => tag,
        other => panic!("{other:?}"),
    });
    assert_eq!(
        tag.as_ref().map(|t| t.vlan_identifier().value()),
        av.vlan.map(VlanTci::vid)
    );
    let pcp = tag.map(|t| t.priority_code_point().value());
    assert_eq!(pcp, av.vlan.map(VlanTci::pcp));
    let ip_len = match sliced.net.unwrap() {
        NetSlice::Ipv4(ip) => {
            let h = ip.header();
            assert_eq!(h.header_checksum(), h.to_header().calc_header_checksum());
            assert_eq!(
                (h.source(), h.destination()),
                (av.src.v4().unwrap(), av.dst.v4().unwrap())
            );
            assert_eq!(h.dcp().value() << 2 | h.ecn().value(), av.traffic_class);
            assert_eq!((h.ttl(), h.identification()), (av.hop_limit, o.ip_id));
            assert!(h.dont_fragment() && !h.more_fragments());
            assert_eq!((h.fragments_offset().value(), h.ihl()), (0, 5));
            usize::from(h.total_len()) - 20
        }
        NetSlice::Ipv6(ip) => {
            let h = ip.header();
            assert_eq!(
                (h.source(), h.destination()),
                (av.src.bytes(), av.dst.bytes())
            );
            assert_eq!(
                (h.traffic_class(), h.hop_limit()),
                (av.traffic_class, av.hop_limit)
            );
            assert_eq!(h.flow_label().value(), av.flow_label);
            usize::from(h.payload_length())
        }
        NetSlice::Arp(arp) => panic!("{arp:?}"),
    };
    let Some(TransportSlice::Udp(udp)) = sliced.transport else {
        panic!("no UDP")
    };
    assert_eq!(
        (udp.source_port(), udp.destination_port()),
        (av.src_port, 4791)
    );
    assert_eq!((usize::from(udp.length()), udp.checksum()), (ip_len, 0));
    let lower = bytes.len() - (ip_len - 8);
    assert_eq!(udp.payload(), &bytes[lower..]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        ProptestConfig::default().cases.max(if cfg!(miri) { 0 } else { 2000 })
    ))]

    /// Rule W8.
    #[test]
    fn emitted_frames_parse_back(
        av in paths(), e in emits(), o in options(), seed: u64, qpn: u32, pkey: u16,
    ) {
        let (qpn, pkey) = (Qpn::new(qpn), PKey::new(pkey));
        let t = HeaderTemplate::with_options(Lower::Ethernet, &av, qpn, pkey, &o).unwrap();
        let ext = Ext::from_seed(seed);
        let bytes = emit(&t, &e, &ext);
        let f = Frame::parse_ethernet(&bytes).unwrap();
        prop_assert_eq!((f.src(), f.dst(), f.src_port()), (av.src, av.dst, av.src_port));
        prop_assert_eq!((f.src_mac(), f.dst_mac()), (Some(av.src_mac), Some(av.dst_mac)));
        prop_assert_eq!((f.vlan(), f.tos(), f.hop_limit()),
            (av.vlan, av.traffic_class, Some(av.hop_limit)));
        prop_assert!(f.icrc_ok());
        prop_assert_eq!(icrc_portable(&f.icrc_input()).to_le_bytes(), f.icrc_computed().unwrap());
        let p = Packet::parse(f.transport()).unwrap();
        prop_assert_eq!(p.pkey(), pkey);
        check_packet(&p, &e, &ext, &t, &o);
        check_oracle(&bytes, &av, &o);
        if let Some(stamp) = t.stamp(e.opcode, e.payload_len) {
            prop_assert_eq!(stamped(&stamp, &e, &ext), bytes);
        } else {
            prop_assert_eq!(e.opcode, Opcode::Cnp);
        }
    }

    #[test]
    fn emitted_datagrams_parse_back(av in paths(), e in emits(), seed: u64, id in 0u16..200) {
        let o = TemplateOptions::default();
        let t = HeaderTemplate::new(Lower::Udp, &av, Qpn::new(7), PKey::DEFAULT).unwrap();
        let ext = Ext::from_seed(seed);
        let mut bytes = emit(&t, &e, &ext);
        let meta = UdpMeta {
            src: av.src, dst: av.dst, src_port: av.src_port, tos: 0, hop_limit: None,
        };
        let f = Frame::from_udp(&meta, &bytes);
        prop_assert!(f.icrc_ok());
        prop_assert_eq!(icrc_portable(&f.icrc_input()).to_le_bytes(), f.icrc_computed().unwrap());
        check_packet(&Packet::parse(f.transport()).unwrap(), &e, &ext, &t, &o);

        // A kernel that numbers the segments of one send changes the identification.
        let delta = id_delta(bytes_after_id(bytes.len()), id).to_le_bytes();
        let at = bytes.len() - 4;
        bytes[at..].iter_mut().zip(delta).for_each(|(b, d)| *b ^= d);
        let v4 = av.dst.v4().is_some();
        let accepted = Frame::from_udp(&meta, &bytes).icrc_ok();
        prop_assert_eq!(accepted, if v4 { id <= MAX_GSO_ID } else { id == 0 });

        // And the delta is right: it is what a frame with that identification has.
        if v4 {
            let options = TemplateOptions { ip_id: id, ..o };
            let l2 = HeaderTemplate::with_options(
                Lower::Ethernet, &av, Qpn::new(7), PKey::DEFAULT, &options).unwrap();
            let frame = emit(&l2, &e, &ext);
            prop_assert_eq!(Frame::parse_ethernet(&frame).unwrap().transport(), &bytes[..]);
        }
    }

    #[test]
    fn corrupted_datagrams_are_noticed(av in paths(), e in emits(), bit: prop::sample::Index) {
        let t = HeaderTemplate::new(Lower::Udp, &av, Qpn::new(7), PKey::DEFAULT).unwrap();
        let mut bytes = emit(&t, &e, &Ext::from_seed(1));
        let meta = UdpMeta {
            src: av.src, dst: av.dst, src_port: av.src_port, tos: 0, hop_limit: None,
        };
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let masked = bit / 8 == 4;
        prop_assert_eq!(Frame::from_udp(&meta, &bytes).icrc_ok(), masked);
    }

    #[test]
    fn fast_crc_is_the_portable_crc(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        prop_assert_eq!(!crc_update(!0, &bytes), icrc_portable(&bytes));
    }

    #[test]
    fn crc_of_parts_is_the_crc(bytes in prop::collection::vec(any::<u8>(), 0..700),
        cut: prop::sample::Index, state: u32) {
        let (a, b) = bytes.split_at(cut.index(bytes.len() + 1));
        prop_assert_eq!(crc_update(crc_update(state, a), b), crc_update(state, &bytes));
    }

    #[test]
    fn id_delta_is_what_recomputation_gives(
        head in any::<[u8; 4]>(), rest in prop::collection::vec(any::<u8>(), 0..if cfg!(miri) { 300 } else { 5000 }), id: u16,
    ) {
        let with = |id: u16| {
            let state = crc_update(!0, &head);
            !crc_update(crc_update(state, &id.to_be_bytes()), &rest)
        };
        let delta = with(id) ^ with(0);
        prop_assert_eq!(id_delta(rest.len(), id), delta);
        prop_assert_eq!(id_of_delta(rest.len(), delta), Some(id));
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(f) = Frame::parse_ethernet(&bytes) {
            let _ = (f.icrc_ok(), Packet::parse(f.transport()));
        }
        let _ = Packet::parse(&bytes);
        let meta = UdpMeta {
            src: Gid::default(), dst: Gid::default(), src_port: 0, tos: 0, hop_limit: None,
        };
        let _ = Frame::from_udp(&meta, &bytes).icrc_ok();
    }

    /// A buffer of any size either takes the frame or is refused; exactly the frame's size does.
    #[test]
    fn short_buffers_are_refused(av in paths(), e in emits(), room in 0usize..300) {
        let t = HeaderTemplate::new(Lower::Ethernet, &av, Qpn::new(7), PKey::DEFAULT).unwrap();
        let ext = Ext::from_seed(1);
        let whole = emit(&t, &e, &ext);
        let mut small = vec![0; room];
        let started = t.start(&mut small, &e).is_some();
        prop_assert_eq!(started, room >= whole.len());
        let mut exact = vec![0xaa; whole.len()];
        let mut out = t.start(&mut exact, &e).unwrap();
        ext.write(e.opcode.info().headers, &mut out);
        out.payload_mut().iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        prop_assert_eq!(out.finish(), whole.len());
        prop_assert_eq!(exact, whole);
    }
}

#[test]
fn packets_larger_than_ip_are_refused() {
    let e = |payload_len| Emit {
        opcode: Opcode::RcSendOnly,
        psn: Psn::new(0),
        ack_req: false,
        solicited: false,
        payload_len,
    };
    let mut frame = vec![0; 70_000];
    for (av, max) in [
        (common::path(common::V4, None), 65_488),
        (common::path(common::V6, None), 65_508),
    ] {
        for lower in [Lower::Ethernet, Lower::Udp] {
            let t = HeaderTemplate::new(lower, &av, Qpn::new(7), PKey::DEFAULT).unwrap();
            assert!(t.start(&mut frame, &e(max)).is_some());
            assert!(t.start(&mut frame, &e(max + 1)).is_none());
            assert!(t.start(&mut frame, &e(usize::MAX)).is_none());
            assert!(t.start(&mut frame, &e(usize::MAX - 3)).is_none());
        }
    }
}

/// Rule W21.
#[test]
fn impossible_paths_are_refused() {
    let good = common::path(common::V4, None);
    let new = |av| HeaderTemplate::new(Lower::Udp, &av, Qpn::new(7), PKey::DEFAULT).unwrap_err();
    let mixed = AddressVector {
        dst: common::V6.1,
        ..good
    };
    assert_eq!(new(mixed), TemplateError::FamilyMismatch);
    let label = AddressVector {
        flow_label: 1 << 20,
        ..good
    };
    assert_eq!(new(label), TemplateError::FlowLabel(1 << 20));
    assert_eq!(
        new(AddressVector {
            hop_limit: 0,
            ..good
        }),
        TemplateError::HopLimit
    );
}

#[test]
fn hot_sizes() {
    assert!(size_of::<HeaderTemplate>() <= 128);
    assert!(size_of::<Packet<'_>>() <= 48);
    assert!(size_of::<Frame<'_>>() <= 80);
}
