//! RDMA extended transport header, 16 bytes: VA(64) R_Key(32) DMALen(32).

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::newtypes::{RKey, Va};

/// Remote range of a WRITE, READ, FLUSH or ATOMIC WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Reth {
    /// First byte in the remote region.
    pub va: Va,
    /// Key of the remote region.
    pub rkey: RKey,
    /// Bytes of the whole message; at most 2^31 is legal, any value can arrive.
    pub len: u32,
}

/// The header as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RethWire {
    va: U64,
    rkey: U32,
    len: U32,
}

impl From<&RethWire> for Reth {
    #[inline]
    fn from(w: &RethWire) -> Self {
        Self {
            va: Va::new(w.va.get()),
            rkey: RKey::new(w.rkey.get()),
            len: w.len.get(),
        }
    }
}

impl From<&Reth> for RethWire {
    #[inline]
    fn from(h: &Reth) -> Self {
        Self {
            va: U64::new(h.va.value()),
            rkey: U32::new(h.rkey.value()),
            len: U32::new(h.len),
        }
    }
}

const _: () = assert!(size_of::<RethWire>() == 16);
