//! Bytes as a frame: parsed, checked against slower twins, made anew from what was parsed.

use xroce_wire::frame::{Frame, UdpMeta};
use xroce_wire::icrc::icrc_portable;
use xroce_wire::newtypes::Gid;
use xroce_wire::opcode::Operation;
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;
use xroce_wire::template::{Emit, HeaderTemplate, Lower, TemplateOptions};

use crate::bytes::Bytes;

const ICRC_LEN: usize = 4;

/// The first byte says as what the others arrive, and whether the ICRC is made right before.
pub fn frame(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let how = bytes.u8();
    let mut whole = bytes.take(usize::MAX).to_vec();
    if how & 16 != 0 {
        smooth(how, &mut whole);
    }
    if how & 4 != 0 {
        seal(how, &mut whole);
    }
    let Some(frame) = parse(how, &whole) else {
        return;
    };
    check_frame(&frame, &whole, how);
    let Ok(pkt) = Packet::parse(frame.transport()) else {
        return;
    };
    check_packet(&frame, &pkt);
    if how & 3 == 0 {
        rebuild(&frame, &pkt);
    }
}

fn parse(how: u8, bytes: &[u8]) -> Option<Frame<'_>> {
    match how & 3 {
        0 => Frame::parse_ethernet(bytes).ok(),
        1 => Frame::dissect_ethernet(bytes).ok(),
        2 => {
            let kind = u16::from_be_bytes(*bytes.first_chunk()?);
            Frame::dissect(kind, &bytes[2..]).ok()
        }
        _ => Some(Frame::from_udp(&meta(how), bytes)),
    }
}

fn meta(how: u8) -> UdpMeta {
    let v6 = how & 8 != 0;
    let gid = |n| {
        if v6 {
            Gid::new([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n])
        } else {
            Gid::from_v4([192, 0, 2, n])
        }
    };
    UdpMeta {
        src: gid(1),
        dst: gid(2),
        src_port: 0xc000,
        tos: how,
        hop_limit: None,
    }
}

/// Makes the headers in front of BTH right, so that something gets behind them.
fn smooth(how: u8, bytes: &mut [u8]) {
    let at = match how & 3 {
        0 | 1 => 14,
        _ => return,
    };
    if bytes.len() < at + 48 {
        return;
    }
    let len = (bytes.len() - at) as u16;
    let (eth, ip) = bytes.split_at_mut(at);
    if how & 32 == 0 {
        eth[12..].copy_from_slice(&[8, 0]);
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        ip[6..8].copy_from_slice(&[0x40, 0]);
        ip[9..12].copy_from_slice(&[17, 0, 0]);
        ip[22..24].copy_from_slice(&4791u16.to_be_bytes());
        ip[24..26].copy_from_slice(&(len - 20).to_be_bytes());
        let words = ip[..20].chunks(2);
        let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let check = !((sum & 0xffff) + (sum >> 16)) as u16;
        ip[10..12].copy_from_slice(&check.to_be_bytes());
    } else {
        eth[12..].copy_from_slice(&[0x86, 0xdd]);
        ip[0] = 0x60 | ip[0] & 0xf;
        ip[4..6].copy_from_slice(&(len - 40).to_be_bytes());
        ip[6] = 17;
        ip[42..44].copy_from_slice(&4791u16.to_be_bytes());
        ip[44..46].copy_from_slice(&(len - 40).to_be_bytes());
    }
}

/// Makes the ICRC right where there is one.
fn seal(how: u8, bytes: &mut [u8]) {
    let Some(frame) = parse(how, bytes) else {
        return;
    };
    let transport = frame.transport();
    let Some(icrc) = frame.icrc_computed() else {
        return;
    };
    let at = transport.as_ptr().addr() - bytes.as_ptr().addr() + transport.len() - ICRC_LEN;
    bytes[at..at + ICRC_LEN].copy_from_slice(&icrc);
    let again = parse(how, bytes).expect("the ICRC is no matter of the headers");
    assert!(again.icrc_ok());
}

fn check_frame(frame: &Frame<'_>, whole: &[u8], how: u8) {
    let transport = frame.transport();
    assert!(transport.len() <= whole.len());
    let _ = (frame.src(), frame.dst(), frame.src_port(), frame.tos());
    let _ = (frame.ecn(), frame.hop_limit(), frame.flow_label());
    let _ = (
        frame.ip_id(),
        frame.vlan(),
        frame.src_mac(),
        frame.dst_mac(),
    );
    let _ = (frame.is_roce_v1(), frame.ip_checksum_ok(), frame.grh());
    let computed = frame.icrc_computed();
    if let (Some(computed), Some(received)) = (computed, transport.last_chunk::<ICRC_LEN>()) {
        let slow = icrc_portable(&frame.icrc_input());
        assert_eq!(slow.to_le_bytes(), computed, "two computations of the ICRC");
        // A socket hides the identification: there other values may be right too.
        let same = computed == *received;
        assert!(if how & 3 == 3 {
            frame.icrc_ok() || !same
        } else {
            frame.icrc_ok() == same
        });
    } else {
        assert!(!frame.icrc_ok());
    }
}

fn check_packet(frame: &Frame<'_>, pkt: &Packet<'_>) {
    let info = pkt.info();
    let fixed = 12 + usize::from(info.header_len) + usize::from(pkt.pad()) + ICRC_LEN;
    assert_eq!(frame.transport().len(), fixed + pkt.payload().len());
    let padded = pkt.payload().len() + usize::from(pkt.pad());
    assert_eq!(pkt.pad_ok(), padded.is_multiple_of(4));
    use xroce_wire::opcode::Headers;
    let has = |h| info.headers.contains(h);
    assert_eq!(pkt.reth().is_some(), has(Headers::RETH));
    assert_eq!(pkt.aeth().is_some(), has(Headers::AETH));
    assert_eq!(pkt.imm().is_some(), has(Headers::IMM));
    assert_eq!(pkt.deth().is_some(), has(Headers::DETH));
    assert_eq!(
        info.starts() && info.ends(),
        info.position == xroce_wire::opcode::Position::Only
    );
    let _ = (
        pkt.atomic(),
        pkt.atomic_ack(),
        pkt.ieth(),
        pkt.xrceth(),
        pkt.feth(),
    );
}

/// The same packet from a template says the same.
fn rebuild(frame: &Frame<'_>, pkt: &Packet<'_>) {
    let av = AddressVector {
        src: frame.src(),
        dst: frame.dst(),
        src_mac: frame.src_mac().unwrap(),
        dst_mac: frame.dst_mac().unwrap(),
        vlan: frame.vlan(),
        traffic_class: frame.tos(),
        hop_limit: frame.hop_limit().unwrap(),
        flow_label: frame.flow_label(),
        src_port: frame.src_port(),
    };
    let options = TemplateOptions {
        ip_id: frame.ip_id().unwrap_or(0),
        mig_req: pkt.mig_req(),
        fecn: pkt.fecn(),
        becn: pkt.becn(),
    };
    let template =
        HeaderTemplate::with_options(Lower::Ethernet, &av, pkt.dest_qp(), pkt.pkey(), &options);
    let Ok(template) = template else {
        return;
    };
    let emit = Emit {
        opcode: pkt.opcode(),
        psn: pkt.psn(),
        ack_req: pkt.ack_req(),
        solicited: pkt.solicited(),
        payload_len: pkt.payload().len(),
    };
    let mut room = vec![0xee; template.max_len(pkt.payload().len())];
    let Some(mut buf) = template.start(&mut room, &emit) else {
        return;
    };
    if let Some(h) = pkt.reth() {
        buf.reth(&h);
    }
    if let Some(h) = pkt.aeth() {
        buf.aeth(&h);
    }
    if let Some(h) = pkt.atomic() {
        buf.atomic(&h);
    }
    if let Some(h) = pkt.atomic_ack() {
        buf.atomic_ack(&h);
    }
    if let Some(h) = pkt.imm() {
        buf.imm(h);
    }
    if let Some(h) = pkt.ieth() {
        buf.ieth(h);
    }
    if let Some(h) = pkt.deth() {
        buf.deth(&h);
    }
    if let Some(h) = pkt.xrceth() {
        buf.xrceth(&h);
    }
    if let Some(h) = pkt.feth() {
        buf.feth(&h);
    }
    buf.payload_mut().copy_from_slice(pkt.payload());
    let len = buf.finish();
    let made = Frame::parse_ethernet(&room[..len]).expect("what was made is a frame");
    assert!(made.icrc_ok());
    let (src, dst) = (made.src(), made.dst());
    assert_eq!(
        (src, dst, made.vlan()),
        (frame.src(), frame.dst(), frame.vlan())
    );
    let again = Packet::parse(made.transport()).expect("what was made is a packet");
    assert_eq!(again.opcode(), pkt.opcode());
    assert_eq!(
        (again.psn(), again.dest_qp(), again.pkey()),
        (pkt.psn(), pkt.dest_qp(), pkt.pkey())
    );
    assert_eq!(
        (again.ack_req(), again.solicited()),
        (pkt.ack_req(), pkt.solicited())
    );
    assert_eq!(again.payload(), pkt.payload());
    assert_eq!(
        (again.reth(), again.aeth(), again.imm()),
        (pkt.reth(), pkt.aeth(), pkt.imm())
    );
    assert_eq!(
        (again.atomic(), again.atomic_ack()),
        (pkt.atomic(), pkt.atomic_ack())
    );
    assert_eq!(
        (again.ieth(), again.deth(), again.feth()),
        (pkt.ieth(), pkt.deth(), pkt.feth())
    );
    let is_cnp = pkt.info().operation == Operation::Cnp;
    assert!(again.becn() == pkt.becn() || is_cnp);
}
