//! Frames that mean harm, field by field.

use xroce_wire::frame::Frame;
use xroce_wire::newtypes::{Psn, Qpn};
use xroce_wire::opcode::{Headers, Opcode};

use super::innocent::Innocent;
use super::victim::{QKEY, Victim};
use super::{Host, OPEN_LEN, SRC_PORT};
use crate::bytes::Bytes;

const ICRC: usize = 4;
const PAYLOAD_MAX: usize = 400;

/// Where the ICRC is, and what it should be.
fn icrc(frame: &[u8]) -> Option<(usize, [u8; ICRC])> {
    let parsed = Frame::parse_ethernet(frame).ok()?;
    let transport = parsed.transport();
    let start = transport.as_ptr().addr() - frame.as_ptr().addr();
    Some((start + transport.len() - ICRC, parsed.icrc_computed()?))
}

/// Makes the ICRC right, if this is a frame.
pub(crate) fn seal(frame: &mut [u8]) {
    if let Some((at, icrc)) = icrc(frame) {
        frame[at..at + ICRC].copy_from_slice(&icrc);
    }
}

/// Makes the ICRC wrong, if this is a frame.
pub(crate) fn spoil(frame: &mut [u8]) {
    if let Some((at, icrc)) = icrc(frame)
        && frame[at..at + ICRC] == icrc
    {
        frame[at] ^= 0x40;
    }
}

impl Victim {
    /// A frame to a host, from its peer or from a stranger.
    pub(crate) fn frame(
        &self,
        hosts: &[Host; 2],
        to: usize,
        innocent: &Innocent,
        bytes: &mut Bytes<'_>,
    ) -> Vec<u8> {
        let how = bytes.u8();
        let transport = self.transport(hosts, to, innocent, how, bytes);
        let stranger = how & 0x20 != 0 && bytes.below(4) == 0;
        let mut frame = lower(&hosts[to], &hosts[1 - to], stranger, &transport);
        if how & 0x40 == 0 || bytes.flag() {
            seal(&mut frame);
        }
        frame
    }

    fn transport(
        &self,
        hosts: &[Host; 2],
        to: usize,
        innocent: &Innocent,
        how: u8,
        bytes: &mut Bytes<'_>,
    ) -> Vec<u8> {
        let qpn = match how & 7 {
            n @ 0..=3 => self.qpns[usize::from(n)][to],
            4 => self.qpns[0][to],
            5 => innocent.qpns[to],
            6 => Qpn::MULTICAST,
            _ => Qpn::new(bytes.u32() & 0xff_ffff),
        };
        let opcode = bytes.u8();
        let info = Opcode::from_u8(opcode);
        let (flags, ack) = if how & 8 == 0 {
            (0x40, 0x80)
        } else {
            (bytes.u8(), bytes.u8())
        };
        let delta = if how & 0x10 == 0 { 0 } else { bytes.u8() };
        let near = i32::from(delta.cast_signed()).cast_unsigned() & 0xff_ffff;
        let psn = self.psn(hosts, to, qpn, info.is_some_and(|i| i.is_response()));
        let psn = psn.add(near);
        let mut t = vec![opcode, flags, 0xff, 0xff, 0];
        t.extend_from_slice(&qpn.value().to_be_bytes()[1..]);
        t.push(ack);
        t.extend_from_slice(&psn.value().to_be_bytes()[1..]);
        let payload = match bytes.below(8) {
            0 => 0,
            1 => 8,
            2 | 3 => 256,
            4 => 255,
            5 => 257,
            _ => usize::from(bytes.u16()) % PAYLOAD_MAX,
        };
        let headers = info.map_or(Headers::empty(), |i| i.headers);
        let has_payload = info.is_none_or(|i| i.has_payload()) || flags & 1 != 0;
        let payload = if has_payload { payload } else { 0 };
        self.headers(hosts, to, headers, payload, &mut t, bytes);
        t.resize(t.len() + payload, 0xa5);
        if how & 8 == 0 {
            let pad = payload.wrapping_neg() & 3;
            t[1] |= (pad as u8) << 4;
            t.resize(t.len() + pad, 0);
        }
        t.extend_from_slice(&[0; ICRC]);
        t
    }

    /// What the QP expects next, or has asked last.
    fn psn(&self, hosts: &[Host; 2], to: usize, qpn: Qpn, answers: bool) -> Psn {
        let Some(info) = hosts[to].engine.query_qp(qpn) else {
            return Psn::new(0);
        };
        let psn = if answers {
            info.attr.sq_psn.map(|p| p.sub(1))
        } else {
            info.attr.rq_psn
        };
        psn.unwrap_or(Psn::new(0))
    }

    fn headers(
        &self,
        hosts: &[Host; 2],
        to: usize,
        headers: Headers,
        payload: usize,
        t: &mut Vec<u8>,
        bytes: &mut Bytes<'_>,
    ) {
        if headers.contains(Headers::DETH) {
            let qkey = if bytes.below(4) == 0 {
                bytes.u32()
            } else {
                QKEY
            };
            t.extend_from_slice(&qkey.to_be_bytes());
            t.extend_from_slice(&u32::from(bytes.u8()).to_be_bytes());
        }
        if headers.contains(Headers::XRCETH) {
            t.extend_from_slice(&[0; 4]);
        }
        if headers.contains(Headers::METH) {
            t.extend_from_slice(&[0, 0]);
            t.extend_from_slice(&u16::from(bytes.u8()).to_be_bytes());
        }
        if headers.contains(Headers::SETH) {
            let sack = sack(t, bytes);
            t.extend_from_slice(&sack);
        }
        if headers.contains(Headers::PETH) {
            t.extend_from_slice(&[0; 4]);
            t.extend_from_slice(&u16::from(bytes.u8()).to_be_bytes());
            t.extend_from_slice(&[0; 10]);
        }
        if headers.contains(Headers::FETH) {
            t.extend_from_slice(&u32::from(bytes.u8()).to_be_bytes());
        }
        if headers.contains(Headers::RETH) {
            t.extend_from_slice(&self.address(to, bytes).to_be_bytes());
            t.extend_from_slice(&self.key(hosts, to, bytes).to_be_bytes());
            let len = match bytes.below(4) {
                0 => payload as u32,
                1 => payload as u32 + 256 * u32::from(bytes.below(8)),
                2 => u32::from(bytes.u16()),
                _ => bytes.u32(),
            };
            t.extend_from_slice(&len.to_be_bytes());
        }
        if headers.contains(Headers::ATOMIC_ETH) {
            t.extend_from_slice(&self.address(to, bytes).to_be_bytes());
            t.extend_from_slice(&self.key(hosts, to, bytes).to_be_bytes());
            t.extend_from_slice(&[1; 16]);
        }
        if headers.contains(Headers::AETH) {
            t.extend_from_slice(&bytes.u32().to_le_bytes());
        }
        if headers.contains(Headers::ATOMIC_ACK) {
            t.extend_from_slice(&[7; 8]);
        }
        if headers.contains(Headers::IMM) {
            t.extend_from_slice(&[9; 4]);
        }
        if headers.contains(Headers::IETH) {
            t.extend_from_slice(&self.key(hosts, to, bytes).to_be_bytes());
        }
    }

    fn address(&self, to: usize, bytes: &mut Bytes<'_>) -> u64 {
        let (open, readable) = (self.open[to].va, self.readable[to].va);
        match bytes.below(8) {
            0 => open.value() + OPEN_LEN - u64::from(bytes.u8()),
            1 => open.value().wrapping_sub(u64::from(bytes.u8())),
            2 => readable.value() + u64::from(bytes.u16()),
            3 => bytes.u64(),
            4 => u64::from(bytes.u8()),
            5 => open.value() + u64::from(bytes.u16()),
            _ => open.value() + 8 * u64::from(bytes.u8()),
        }
    }

    fn key(&self, hosts: &[Host; 2], to: usize, bytes: &mut Bytes<'_>) -> u32 {
        let _ = hosts;
        match bytes.below(8) {
            0 => self.readable[to].rkey.value(),
            1 => self.open[to].rkey.value() ^ 1 << bytes.below(32),
            2 | 3 => {
                let keys = &self.window_keys[to];
                let n = usize::from(bytes.u8()).checked_rem(keys.len());
                n.map_or(0, |n| keys[n].value())
            }
            4 => bytes.u32(),
            5 => self.foreign[to].value(),
            _ => self.open[to].rkey.value(),
        }
    }
}

/// A SACK header about PSNs near that of the BTH before it.
fn sack(bth: &[u8], bytes: &mut Bytes<'_>) -> [u8; 28] {
    let mut h = [0; 28];
    let near = |bytes: &mut Bytes<'_>| i16::from(bytes.u8().cast_signed()).to_be_bytes();
    h[1] = bytes.u8() & 3;
    h[2..4].copy_from_slice(&near(bytes));
    let psn = Psn::new(u32::from_be_bytes([0, bth[9], bth[10], bth[11]]));
    let cumulative = psn.sub(u32::from(bytes.below(4)));
    h[13..16].copy_from_slice(&cumulative.value().to_be_bytes()[1..]);
    h[17] = bytes.below(4);
    h[18..20].copy_from_slice(&near(bytes));
    h[20..28].copy_from_slice(&bytes.u64().to_be_bytes());
    h
}

/// Ethernet, IPv4 and UDP in front of it.
fn lower(host: &Host, peer: &Host, stranger: bool, transport: &[u8]) -> Vec<u8> {
    let mut f = Vec::with_capacity(42 + transport.len());
    f.extend_from_slice(&host.mac.bytes());
    f.extend_from_slice(&peer.mac.bytes());
    f.extend_from_slice(&[8, 0]);
    let ip_len = 28 + transport.len() as u16;
    let mut ip = [0u8; 20];
    ip[..2].copy_from_slice(&[0x45, 3]);
    ip[2..4].copy_from_slice(&ip_len.to_be_bytes());
    ip[6..10].copy_from_slice(&[0x40, 0, 64, 17]);
    ip[12..16].copy_from_slice(&peer.gid.v4().unwrap());
    if stranger {
        ip[15] = 77;
    }
    ip[16..20].copy_from_slice(&host.gid.v4().unwrap());
    let words = ip.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let check = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    f.extend_from_slice(&ip);
    f.extend_from_slice(&SRC_PORT.to_be_bytes());
    f.extend_from_slice(&4791u16.to_be_bytes());
    f.extend_from_slice(&(ip_len - 20).to_be_bytes());
    f.extend_from_slice(&[0, 0]);
    f.extend_from_slice(transport);
    f
}
