//! Integers at fixed places.

use xroce_proto::wr::Sge;
use xroce_wire::newtypes::{LKey, Va};

use crate::BadEntry;

/// Bytes of an SGE: address 8, length 4, key 4.
pub(crate) const SGE: usize = 16;

/// The `N` bytes at `at`; zeros past the end, which no caller reaches.
pub(crate) fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    from.get(at..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .unwrap_or([0; N])
}

pub(crate) fn byte(from: &[u8], at: usize) -> u8 {
    u8::from_ne_bytes(bytes(from, at))
}

pub(crate) fn word16(from: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(bytes(from, at))
}

pub(crate) fn word32(from: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes(from, at))
}

pub(crate) fn word64(from: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes(from, at))
}

/// Writes `value` at `at`, if it fits.
pub(crate) fn put(to: &mut [u8], at: usize, value: &[u8]) {
    let end = at.saturating_add(value.len());
    if let Some(place) = to.get_mut(at..end) {
        place.copy_from_slice(value);
    }
}

/// An error unless `value` is 0.
pub(crate) fn zero(what: &'static str, value: u64) -> Result<(), BadEntry> {
    if value == 0 {
        Ok(())
    } else {
        Err(BadEntry::Reserved { what, value })
    }
}

pub(crate) fn put_sge(to: &mut [u8], at: usize, sge: &Sge) {
    put(to, at, &sge.va.value().to_ne_bytes());
    put(to, at + 8, &sge.len.to_ne_bytes());
    put(to, at + 12, &sge.lkey.value().to_ne_bytes());
}

pub(crate) fn sge(from: &[u8], at: usize) -> Sge {
    Sge {
        va: Va::new(word64(from, at)),
        len: word32(from, at + 8),
        lkey: LKey::new(word32(from, at + 12)),
    }
}
