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
pub(crate) mod lower;

pub use gf2::{id_delta, id_of_delta};

use crc::{CRC_32_ISO_HDLC, Crc, Table};

use crate::frame::{LowerV4, LowerV6};
use crate::ip::Ipv6Hdr;

/// Bytes of the ICRC.
pub const ICRC_LEN: usize = 4;

/// CRC register after the eight bytes of ones that stand for the absent LRH.
pub const PREFIX_STATE: u32 = 0xdebb_20e3;

/// The reflected polynomial.
const POLY: u32 = 0xedb8_8320;

/// CRC register after `bytes`: the one function everything that is not a header goes through.
#[inline]
#[must_use]
pub fn crc_update(state: u32, bytes: &[u8]) -> u32 {
    xroce_crc::update(state, bytes)
}

/// ICRC bytes over masked BTH .. pad, starting from the register after the headers below.
/// `None` if there is not even the part of BTH that holds the masked byte.
#[inline(always)]
pub(crate) fn over_transport(lower: u32, covered: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let (bth, rest) = covered.split_first_chunk::<8>()?;
    Some(finished([lower::bth(lower, *bth)], rest))
}

/// What a packet has in front of its payload, masked, as blocks that the payload is joined to: so
/// that whoever copies the payload can compute the CRC on the way. Over these and the payload it
/// is [`xroce_crc::update_joined`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head([u128; 2]);

impl Head {
    /// For BTH alone and BTH with RETH, which is what long messages are made of; `None` for any
    /// other length.
    #[inline(always)]
    pub(crate) fn new(lower: u32, headers: &[u8]) -> Option<Self> {
        let (bth, ext) = headers.split_first_chunk::<12>()?;
        let bth = lower::whole_bth(lower, *bth);
        match *ext {
            [] => Some(Self([0, bth])),
            ref reth => Some(Self([bth, u128::from_le_bytes(reth.try_into().ok()?)])),
        }
    }

    /// The blocks.
    #[inline]
    #[must_use]
    pub const fn blocks(&self) -> [u128; 2] {
        self.0
    }

    /// Register after the headers and `payload`.
    #[inline]
    #[must_use]
    pub fn joined_to(&self, payload: &[u8]) -> u32 {
        xroce_crc::update_joined(self.0, payload)
    }
}

/// ICRC bytes over masked headers in blocks and what follows them.
#[inline(always)]
fn finished<const N: usize>(head: [u128; N], rest: &[u8]) -> [u8; ICRC_LEN] {
    (!xroce_crc::update_joined(head, rest)).to_le_bytes()
}

/// ICRC bytes over IPv4, UDP and BTH .. pad. `None` as [`over_transport`].
#[inline(always)]
pub(crate) fn over_v4(headers: &LowerV4, covered: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let (bth, rest) = covered.split_first_chunk::<8>()?;
    Some(finished(lower::v4(headers, *bth), rest))
}

/// ICRC bytes over IPv6, UDP and BTH .. pad. `None` as [`over_transport`].
#[inline]
pub(crate) fn over_v6(headers: &LowerV6, covered: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let (bth, rest) = covered.split_first_chunk::<8>()?;
    Some(finished(lower::v6(headers, *bth), rest))
}

/// ICRC bytes over GRH and BTH .. pad. `None` as [`over_transport`].
#[inline]
pub(crate) fn over_grh(grh: &Ipv6Hdr, covered: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let (bth, rest) = covered.split_first_chunk::<8>()?;
    Some(finished(lower::grh(grh, *bth), rest))
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
