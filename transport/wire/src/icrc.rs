//! The invariant CRC: CRC-32 (reflected, 0xEDB88320) over eight bytes of ones, the IP and UDP
//! headers, BTH, extension headers, payload and pad, with the bytes that routers may change
//! replaced by ones. On the wire its least significant byte comes first, unlike every other field.
//!
//! | header | masked |
//! |---|---|
//! | IPv4 | TOS, TTL, header checksum |
//! | IPv6, GRH | traffic class, flow label, hop limit |
//! | UDP | checksum |
//! | BTH | byte 4: FECN, BECN, reserved |
//!
//! All code works on the raw CRC register (neither inverted at the start nor at the end), because
//! that is linear: `update(a ^ b, x ^ y) == update(a, x) ^ update(b, y)`. The length tables of
//! emission (`lens`) and [`id_delta`] rest on it.

mod gf2;
pub(crate) mod lens;

pub use gf2::{id_delta, id_of_delta};

use crc::{CRC_32_ISO_HDLC, Crc, Table};
use zerocopy::little_endian::U32 as Le32;
use zerocopy::transmute;

use crate::ip::{Ipv4Hdr, Ipv6Hdr};
use crate::udp::UdpHdr;

/// Bytes of the ICRC.
pub const ICRC_LEN: usize = 4;

/// CRC register after the eight bytes of ones that stand for the absent LRH.
pub const PREFIX_STATE: u32 = 0xdebb_20e3;

/// The reflected polynomial.
const POLY: u32 = 0xedb8_8320;

/// `TABLES[n][b]` is the register after byte `b` and `n` zero bytes, starting from zero.
static TABLES: [[u32; 256]; 16] = tables();

const fn tables() -> [[u32; 256]; 16] {
    let mut t = [[0; 256]; 16];
    let mut b = 0;
    while b < 256 {
        #[allow(clippy::cast_possible_truncation, reason = "below 256")]
        let mut v = b as u32;
        let mut bit = 0;
        while bit < 8 {
            v = gf2::times_x(v);
            bit += 1;
        }
        t[0][b] = v;
        b += 1;
    }
    let mut n = 1;
    while n < 16 {
        let mut b = 0;
        while b < 256 {
            let v = t[n - 1][b];
            t[n][b] = (v >> 8) ^ t[0][(v & 0xff) as usize];
            b += 1;
        }
        n += 1;
    }
    t
}

/// CRC register after `bytes`: the one function everything that is not a header goes through.
#[inline]
#[must_use]
pub fn crc_update(state: u32, bytes: &[u8]) -> u32 {
    xroce_crc::update(state, bytes)
}

/// CRC register after `W` little-endian words, up to four: all lookups independent.
#[inline(always)]
fn step<const W: usize>(state: u32, words: [u32; W]) -> u32 {
    let mut acc = 0;
    let mut left = 4 * W;
    let mut carry = state;
    for word in words {
        let [a, b, c, d] = (word ^ carry).to_le_bytes();
        carry = 0;
        acc ^= TABLES[left - 1][usize::from(a)]
            ^ TABLES[left - 2][usize::from(b)]
            ^ TABLES[left - 3][usize::from(c)]
            ^ TABLES[left - 4][usize::from(d)];
        left -= 4;
    }
    acc
}

/// Register after the prefix and masked IPv4 and UDP headers.
#[inline]
pub(crate) fn lower_v4(ip: &Ipv4Hdr, udp: &UdpHdr) -> u32 {
    let ip: [Le32; 5] = transmute!(*ip);
    let udp: [Le32; 2] = transmute!(*udp);
    let [a, b, c, d, e] = ip.map(Le32::get);
    let [ports, len] = udp.map(Le32::get);
    // Byte i of a header is bits 8i..8i+8 of these little-endian words.
    let state = step(PREFIX_STATE, [a | 0x0000_ff00, b, c | 0xffff_00ff, d]);
    step(state, [e, ports, len | 0xffff_0000])
}

/// Register after the prefix and masked IPv6 and UDP headers.
#[inline]
pub(crate) fn lower_v6(ip: &Ipv6Hdr, udp: &UdpHdr) -> u32 {
    let udp: [Le32; 2] = transmute!(*udp);
    let [ports, len] = udp.map(Le32::get);
    let (state, [i, j]) = v6_words(ip);
    step(state, [i, j, ports, len | 0xffff_0000])
}

/// Register after the prefix and the masked GRH of RoCEv1.
#[inline]
pub(crate) fn lower_grh(grh: &Ipv6Hdr) -> u32 {
    let (state, last) = v6_words(grh);
    step(state, last)
}

/// Register after the first 32 masked bytes, and the last eight.
#[inline]
fn v6_words(ip: &Ipv6Hdr) -> (u32, [u32; 2]) {
    let ip: [Le32; 10] = transmute!(*ip);
    let [a, b, c, d, e, f, g, h, i, j] = ip.map(Le32::get);
    // Of the first byte the version nibble stays.
    let state = step(PREFIX_STATE, [a | 0xffff_ff0f, b | 0xff00_0000, c, d]);
    (step(state, [e, f, g, h]), [i, j])
}

/// ICRC bytes over masked BTH .. pad, starting from the register after the headers below.
/// `None` if there is not even the part of BTH that holds the masked byte.
#[inline]
pub(crate) fn over_transport(lower: u32, covered: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let (bth, rest) = covered.split_first_chunk::<8>()?;
    let bth: [Le32; 2] = transmute!(*bth);
    let [a, b] = bth.map(Le32::get);
    let state = step(lower, [a, b | 0x0000_00ff]);
    Some((!crc_update(state, rest)).to_le_bytes())
}

/// A CRC register in the making, for callers who assemble the covered bytes themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcrcState(u32);

impl IcrcState {
    /// After the eight bytes of ones.
    pub const START: Self = Self(PREFIX_STATE);

    /// After `masked` in addition.
    #[inline]
    #[must_use]
    pub fn update(self, masked: &[u8]) -> Self {
        Self(crc_update(self.0, masked))
    }

    /// The four bytes on the wire.
    #[inline]
    #[must_use]
    pub const fn finish(self) -> [u8; ICRC_LEN] {
        (!self.0).to_le_bytes()
    }
}

/// The slow twin of everything here, by the `crc` crate: CRC-32 value of the complete masked
/// input, its eight leading bytes of ones included. The wire has it little-endian.
#[must_use]
pub fn icrc_portable(masked_input: &[u8]) -> u32 {
    static CRC: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);
    CRC.checksum(masked_input)
}
