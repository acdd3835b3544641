//! Wire scenarios of other stacks' bugs; each test names the row of the collection it comes from.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic"
)]

mod common;

use common::{V4, V6, frame, path};
use xroce_wire::frame::{Frame, FrameError};
use xroce_wire::icrc::{ICRC_LEN, icrc_portable};
use xroce_wire::opcode::Opcode;
use xroce_wire::packet::{Packet, PacketError};
use xroce_wire::template::Lower;

/// Miri takes some lengths and bits only.
const STEP: usize = if cfg!(miri) { 43 } else { 1 };

const ETH: usize = 14;
const BTH_V4: usize = ETH + 28;
const BTH_V6: usize = ETH + 48;

fn send(v: (xroce_wire::newtypes::Gid, xroce_wire::newtypes::Gid), len: usize) -> Vec<u8> {
    frame(Lower::Ethernet, &path(v, None), Opcode::RcSendOnly, len)
}

/// Recomputes the IPv4 header checksum as a router does.
fn fix_checksum(bytes: &mut [u8]) {
    bytes[ETH + 10..ETH + 12].fill(0);
    let words = bytes[ETH..ETH + 20].chunks(2);
    let sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[ETH + 10..ETH + 12].copy_from_slice(&sum.to_be_bytes());
}

fn icrc(bytes: &[u8]) -> [u8; ICRC_LEN] {
    let f = Frame::parse_ethernet(bytes).unwrap();
    let fast = f.icrc_computed().unwrap();
    assert_eq!(icrc_portable(&f.icrc_input()).to_le_bytes(), fast);
    fast
}

/// Rules W9, W10.
#[test]
fn case_1_pad_bytes_are_covered() {
    for len in [1, 2, 3, 5, 33, 1021, 1022, 1023] {
        for v in [V4, V6] {
            let good = frame(Lower::Ethernet, &path(v, None), Opcode::RcWriteOnly, len);
            let f = Frame::parse_ethernet(&good).unwrap();
            let p = Packet::parse(f.transport()).unwrap();
            assert!(f.icrc_ok());
            assert_eq!(usize::from(p.pad()), (4 - len % 4) % 4);
            assert_eq!(p.payload().len(), len);
            for pad in 0..usize::from(p.pad()) {
                let mut bad = good.clone();
                let at = bad.len() - ICRC_LEN - 1 - pad;
                assert_eq!(bad[at], 0, "pad is zero, whatever was in the buffer");
                bad[at] = 1;
                assert!(!Frame::parse_ethernet(&bad).unwrap().icrc_ok());
            }
        }
    }
}

/// Rules W3, W10.
#[test]
fn case_3_what_routers_change_is_masked() {
    let good = send(V4, 64);
    let want = icrc(&good);
    // TTL, TOS, UDP checksum, FECN, BECN and the six reserved bits.
    for (at, values) in [
        (ETH + 8, vec![1, 63, 255]),
        (ETH + 1, vec![0, 2, 3, 0xff]),
        (ETH + 26, vec![0x12]),
        (ETH + 27, vec![0x34]),
        (BTH_V4 + 4, vec![0x80, 0x40, 0xc0, 0x3f, 0xff]),
    ] {
        for value in values {
            let mut bytes = good.clone();
            bytes[at] = value;
            fix_checksum(&mut bytes);
            assert_eq!(icrc(&bytes), want, "byte {at} = {value:#x}");
            assert!(Frame::parse_ethernet(&bytes).unwrap().icrc_ok());
        }
    }
    let good = send(V6, 64);
    let want = icrc(&good);
    for (at, values) in [
        (ETH, vec![0x60, 0x6f]),
        (ETH + 1, vec![0, 0xff]),
        (ETH + 2, vec![0, 0xff]),
        (ETH + 3, vec![0, 0xff]),
        (ETH + 7, vec![1, 255]),
        (ETH + 46, vec![0x12]),
        (ETH + 47, vec![0x34]),
        (BTH_V6 + 4, vec![0x80, 0x40, 0xc0, 0x3f, 0xff]),
    ] {
        for value in values {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert_eq!(icrc(&bytes), want, "byte {at} = {value:#x}");
        }
    }
}

/// Every other bit is covered: flipping it is either noticed by the frame or by the ICRC.
/// Rule W10.
#[test]
fn case_3_everything_else_is_covered() {
    let masked_v4 = [ETH + 1, ETH + 8, ETH + 26, ETH + 27, BTH_V4 + 4];
    let masked_v6 = [
        ETH,
        ETH + 1,
        ETH + 2,
        ETH + 3,
        ETH + 7,
        ETH + 46,
        ETH + 47,
        BTH_V6 + 4,
    ];
    for (v, masked) in [(V4, &masked_v4[..]), (V6, &masked_v6[..])] {
        let good = send(v, 5);
        for at in ETH..good.len() {
            for bit in (0..8).step_by(STEP) {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                let checksum = (ETH + 10..ETH + 12).contains(&at);
                if v == V4 && at < ETH + 20 && !checksum {
                    fix_checksum(&mut bytes);
                }
                let accepted = Frame::parse_ethernet(&bytes).is_ok_and(|f| f.icrc_ok());
                // The version nibble shares its byte with masked bits but is checked.
                let version = at == ETH && bit >= 4;
                assert_eq!(
                    accepted,
                    masked.contains(&at) && !version,
                    "byte {at} bit {bit}"
                );
            }
        }
    }
}

/// Rule W9.
#[test]
fn case_4_short_packets_and_forged_pads() {
    let write = frame(Lower::Udp, &path(V4, None), Opcode::RcWriteOnly, 8);
    let headers = 12 + 16;
    for len in 0..headers + ICRC_LEN {
        assert_eq!(
            Packet::parse(&write[..len]).unwrap_err(),
            PacketError::Short,
            "{len}"
        );
    }
    for payload in 0..=2 {
        let mut short = write[..headers + payload + ICRC_LEN].to_vec();
        for pad in 0..=3 {
            short[1] = pad << 4;
            let parsed = Packet::parse(&short);
            assert_eq!(
                parsed.is_ok(),
                usize::from(pad) <= payload,
                "pad {pad} of {payload}"
            );
            if let Ok(p) = parsed {
                assert_eq!(p.payload().len(), payload - usize::from(pad));
                assert_eq!(p.pad_ok(), payload % 4 == 0);
            }
        }
    }
}

/// Rule W7.
#[test]
fn case_5_every_opcode_and_length() {
    for opcode in 0..=u8::MAX {
        for len in (0..=128).step_by(STEP) {
            for pad in 0..=3 {
                let mut bytes = vec![0; len];
                if let [first, second, ..] = &mut bytes[..] {
                    *first = opcode;
                    *second = pad << 4;
                }
                let parsed = Packet::parse(&bytes);
                let Some(info) = Opcode::from_u8(opcode) else {
                    assert!(parsed.is_err());
                    if len >= 12 {
                        assert_eq!(parsed.unwrap_err(), PacketError::Opcode(opcode));
                    }
                    continue;
                };
                let least = 12 + usize::from(info.header_len + pad) + ICRC_LEN;
                assert_eq!(parsed.is_ok(), len >= least, "{info:?} {len}");
                let Ok(p) = parsed else { continue };
                assert_eq!(p.payload().len(), len - least);
                let headers = (p.reth(), p.aeth(), p.atomic(), p.atomic_ack(), p.imm());
                let more = (p.ieth(), p.deth(), p.xrceth(), p.feth());
                let found = [
                    more.1.is_some(),
                    more.2.is_some(),
                    more.3.is_some(),
                    p.meth().is_some(),
                    headers.0.is_some(),
                    headers.2.is_some(),
                    headers.1.is_some(),
                    headers.3.is_some(),
                    headers.4.is_some(),
                    more.0.is_some(),
                    p.seth().is_some(),
                    p.peth().is_some(),
                ];
                let bits = found
                    .iter()
                    .enumerate()
                    .map(|(i, f)| u16::from(*f) << i)
                    .sum::<u16>();
                assert_eq!(bits, info.headers.bits(), "exactly the headers of {info:?}");
            }
        }
    }
}

/// The same through whole frames, with an ICRC that is right and one that is not.
#[test]
fn case_5_whole_frames() {
    let template = send(V4, 128);
    for opcode in 0..=u8::MAX {
        for len in (0..=128usize).step_by(STEP) {
            let mut bytes = template[..BTH_V4 + len].to_vec();
            if len > 0 {
                bytes[BTH_V4] = opcode;
            }
            bytes[ETH + 2..ETH + 4].copy_from_slice(&(len as u16 + 28).to_be_bytes());
            bytes[ETH + 24..ETH + 26].copy_from_slice(&(len as u16 + 8).to_be_bytes());
            fix_checksum(&mut bytes);
            let f = Frame::parse_ethernet(&bytes).unwrap();
            assert_eq!(f.transport().len(), len);
            let _ = (Packet::parse(f.transport()), f.icrc_ok());
            if let Some(right) = f.icrc_computed() {
                let end = bytes.len();
                bytes[end - ICRC_LEN..].copy_from_slice(&right);
                let f = Frame::parse_ethernet(&bytes).unwrap();
                assert!(f.icrc_ok());
                let _ = Packet::parse(f.transport());
            } else {
                assert!(len < 8 + ICRC_LEN);
            }
        }
    }
}

/// Rules W6, Q4.
#[test]
fn case_7_reserved_bits() {
    // Sent as zero, over a buffer full of ones.
    for opcode in Opcode::ALL {
        let info = opcode.info();
        let bytes = frame(Lower::Udp, &path(V4, None), *opcode, 16);
        assert_eq!(bytes[4] & 0x3f, 0, "{info:?}: resv6");
        assert_eq!(bytes[8] & 0x7f, 0, "{info:?}: resv7");
        assert_eq!(bytes[1] & 0x0f, 0, "{info:?}: version");
        let p = Packet::parse(&bytes).unwrap();
        let after_bth = &bytes[12..];
        if p.deth().is_some() {
            assert_eq!(after_bth[4], 0, "{info:?}: DETH");
        }
        if p.xrceth().is_some() {
            assert_eq!(after_bth[0], 0, "{info:?}: XRCETH");
        }
        if p.feth().is_some() {
            assert_eq!(after_bth[..3], [0; 3], "{info:?}: FETH");
            assert_eq!(after_bth[3] & 0xc0, 0, "{info:?}: FETH");
        }
        if p.seth().is_some() {
            assert_eq!(after_bth[0], 0, "{info:?}: SETH");
            assert_eq!(after_bth[1] & !3, 0, "{info:?}: SETH");
            assert_eq!(after_bth[4..13], [0; 9], "{info:?}: SETH");
            assert_eq!(after_bth[16], 0, "{info:?}: SETH");
        }
        if p.peth().is_some() {
            assert_eq!(after_bth[..4], [0; 4], "{info:?}: PETH");
            assert_eq!(after_bth[6..16], [0; 10], "{info:?}: PETH");
        }
    }
    // Ignored on receipt: the parse is the same.
    let mut bytes = frame(Lower::Udp, &path(V4, None), Opcode::RcSendOnly, 16);
    let plain = Packet::parse(&bytes)
        .map(|p| (p.psn(), p.dest_qp(), p.ack_req()))
        .unwrap();
    bytes[4] |= 0x3f;
    bytes[8] |= 0x7f;
    let p = Packet::parse(&bytes).unwrap();
    assert_eq!((p.psn(), p.dest_qp(), p.ack_req()), plain);
    assert!(!p.fecn() && !p.becn());
    let mut datagram = frame(Lower::Udp, &path(V4, None), Opcode::UdSendOnly, 16);
    let plain = Packet::parse(&datagram).unwrap().deth();
    datagram[12 + 4] = 0xff;
    assert_eq!(Packet::parse(&datagram).unwrap().deth(), plain);
}

/// Rule W6.
#[test]
fn case_7_a_version_other_than_zero_is_dropped() {
    let mut bytes = frame(Lower::Udp, &path(V4, None), Opcode::RcSendOnly, 16);
    bytes[1] |= 1;
    assert_eq!(Packet::parse(&bytes).unwrap_err(), PacketError::Version(1));
}

#[test]
fn case_16_rewritten_addresses_break_the_icrc() {
    let mut bytes = send(V4, 64);
    bytes[ETH + 15] = 9;
    fix_checksum(&mut bytes);
    assert!(!Frame::parse_ethernet(&bytes).unwrap().icrc_ok());
}

/// Lengths and kinds come from the headers: Ethernet pads short frames, and a peer may pad any.
/// Rule W1.
#[test]
fn case_91_a_frame_is_not_judged_by_its_length() {
    for len in [0, 1, 64] {
        let bytes = send(V4, len);
        for padding in [0, 2, 4, 6, 12, 16, 1000] {
            let mut padded = bytes.clone();
            padded.resize(bytes.len() + padding, 0xee);
            let f = Frame::parse_ethernet(&padded).unwrap();
            assert!(f.icrc_ok());
            let pkt = Packet::parse(f.transport()).unwrap();
            assert_eq!(pkt.info().opcode, Opcode::RcSendOnly);
            assert_eq!(pkt.payload().len(), len);
        }
    }
}

/// Rules W1, W2.
#[test]
fn what_is_not_a_roce_frame() {
    let good = send(V4, 64);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        fix_checksum(&mut bytes);
        Frame::parse_ethernet(&bytes).unwrap_err()
    };
    assert_eq!(with(13, 0x06), FrameError::NotRoce); // ARP
    assert_eq!(with(ETH, 0x46), FrameError::NotRoce); // IHL 6: the port is elsewhere
    assert_eq!(with(ETH, 0x65), FrameError::IpHeader);
    assert_eq!(with(ETH + 9, 6), FrameError::NotRoce); // TCP
    assert_eq!(with(ETH + 6, 0x20), FrameError::Fragment); // more fragments
    assert_eq!(with(ETH + 7, 0x01), FrameError::NotRoce); // offset 1: no port to see
    let mut options = good.clone();
    options[ETH] = 0x46;
    options.splice(ETH + 20..ETH + 20, [1; 4]);
    assert_eq!(
        Frame::parse_ethernet(&options).unwrap_err(),
        FrameError::IpHeader
    );
    assert_eq!(with(ETH + 22, 0), FrameError::NotRoce); // other port
    assert_eq!(with(ETH + 3, good[ETH + 3] + 1), FrameError::Length);
    assert_eq!(with(ETH + 25, good[ETH + 25] + 1), FrameError::Length);
    let mut bad = good.clone();
    bad[ETH + 8] = 1; // TTL without checksum
    assert_eq!(
        Frame::parse_ethernet(&bad).unwrap_err(),
        FrameError::IpChecksum
    );
    let shown = Frame::dissect_ethernet(&bad).unwrap();
    assert!(shown.icrc_ok() && !shown.ip_checksum_ok());
    for len in 0..good.len() {
        assert!(Frame::parse_ethernet(&good[..len]).is_err());
    }
    let v6 = send(V6, 64);
    for len in 0..v6.len() {
        assert!(Frame::parse_ethernet(&v6[..len]).is_err());
    }
    let mut ext = v6.clone();
    ext[ETH + 6] = 44; // fragment header
    assert_eq!(
        Frame::parse_ethernet(&ext).unwrap_err(),
        FrameError::NotRoce
    );
    // UDP length below its own header, and IP agrees.
    let mut tiny = v6.clone();
    tiny[ETH + 4..ETH + 6].copy_from_slice(&7u16.to_be_bytes());
    tiny[ETH + 44..ETH + 46].copy_from_slice(&7u16.to_be_bytes());
    assert_eq!(
        Frame::parse_ethernet(&tiny).unwrap_err(),
        FrameError::Length
    );
}
