//! The headers below BTH and the first half of BTH, masked, as the 16-byte blocks that the CRC
//! starts with. What does not fill its blocks has zeros in front, which change nothing.

use zerocopy::{FromBytes, Unaligned, transmute};

use super::{PREFIX_STATE, crc_update};
use crate::frame::{LowerV4, LowerV6};
use crate::ip::Ipv6Hdr;

/// Ones at some bytes of 16.
const fn ones(at: &[usize]) -> u128 {
    let mut mask = 0;
    let mut i = 0;
    while i < at.len() {
        mask |= 0xff << (8 * at[i]);
        i += 1;
    }
    mask
}

/// IPv4 bytes 0 to 3: TOS.
const V4_FIRST: u128 = ones(&[1]);
/// IPv4 bytes 4 to 19: TTL and checksum.
const V4_REST: u128 = ones(&[4, 6, 7]);
/// The first bytes of IPv6 and GRH: traffic class, flow label, hop limit; of the first byte the
/// version nibble stays.
const V6_FIRST: u128 = ones(&[1, 2, 3, 7]) | 0x0f;
/// UDP, then half of BTH: checksum, and the byte of FECN and BECN.
const UDP_BTH: u128 = ones(&[6, 7, 12]);
/// Half of BTH behind eight other bytes.
const BTH: u128 = ones(&[12]);

/// A BTH behind four other bytes.
const WHOLE_BTH: u128 = ones(&[8]);

/// IPv4 and UDP headers, cut where blocks end.
#[derive(FromBytes, Unaligned)]
#[repr(C)]
struct V4 {
    first: [u8; 4],
    rest: [u8; 16],
    udp: [u8; 8],
}

/// IPv6 and UDP headers, cut where blocks end.
#[derive(FromBytes, Unaligned)]
#[repr(C)]
struct V6 {
    first: [u8; 8],
    middle: [u8; 16],
    last: [u8; 16],
    udp: [u8; 8],
}

/// A GRH, cut where blocks end.
#[derive(FromBytes, Unaligned)]
#[repr(C)]
struct Grh {
    first: [u8; 16],
    middle: [u8; 16],
    last: [u8; 8],
}

#[inline]
fn half(bytes: [u8; 8]) -> u128 {
    u64::from_le_bytes(bytes).into()
}

/// Half of a BTH with the register after the headers before it.
#[inline]
pub(super) fn bth(lower: u32, bth: [u8; 8]) -> u128 {
    (half(bth) ^ u128::from(lower)) << 64 | BTH
}

/// A BTH behind four zeros, with the register after the headers before it.
#[inline(always)]
pub(super) fn whole_bth(lower: u32, bth: [u8; 12]) -> u128 {
    let mut block = [0; 16];
    let (_, whole) = block.split_at_mut(4);
    whole.copy_from_slice(&bth);
    (u128::from_le_bytes(block) ^ u128::from(lower) << 32) | WHOLE_BTH
}

/// 36 bytes.
#[inline]
pub(super) fn v4(headers: &LowerV4, bth: [u8; 8]) -> [u128; 3] {
    let h: V4 = transmute!(*headers);
    let first = u128::from(u32::from_le_bytes(h.first)) | V4_FIRST;
    [
        (first ^ u128::from(PREFIX_STATE)) << 96,
        u128::from_le_bytes(h.rest) | V4_REST,
        half(h.udp) | half(bth) << 64 | UDP_BTH,
    ]
}

/// 56 bytes.
#[inline]
pub(super) fn v6(headers: &LowerV6, bth: [u8; 8]) -> [u128; 4] {
    let h: V6 = transmute!(*headers);
    let first = half(h.first) | V6_FIRST;
    [
        (first ^ u128::from(PREFIX_STATE)) << 64,
        u128::from_le_bytes(h.middle),
        u128::from_le_bytes(h.last),
        half(h.udp) | half(bth) << 64 | UDP_BTH,
    ]
}

/// 48 bytes.
#[inline]
pub(super) fn grh(headers: &Ipv6Hdr, bth: [u8; 8]) -> [u128; 3] {
    let h: Grh = transmute!(*headers);
    let first = u128::from_le_bytes(h.first) | V6_FIRST;
    [
        first ^ u128::from(PREFIX_STATE),
        u128::from_le_bytes(h.middle),
        half(h.last) | half(bth) << 64 | BTH,
    ]
}

/// Register after the prefix and masked IPv4 and UDP headers.
pub(crate) fn register_v4(headers: &LowerV4) -> u32 {
    register(v4(headers, [0; 8]))
}

/// Register after the prefix and masked IPv6 and UDP headers.
pub(crate) fn register_v6(headers: &LowerV6) -> u32 {
    register(v6(headers, [0; 8]))
}

/// Register after the prefix and the masked GRH of RoCEv1.
pub(crate) fn register_grh(headers: &Ipv6Hdr) -> u32 {
    register(grh(headers, [0; 8]))
}

/// Register after all blocks without the half of BTH at the end.
fn register<const N: usize>(blocks: [u128; N]) -> u32 {
    blocks.iter().enumerate().fold(0, |state, (i, block)| {
        let len = if i + 1 == N { 8 } else { 16 };
        crc_update(state, &block.to_le_bytes()[..len])
    })
}
