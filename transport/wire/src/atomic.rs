//! Atomic headers: AtomicETH (28 bytes: VA, R_Key, swap or add, compare) and AtomicAckETH (8
//! bytes: original value). The operands are integers in network order, not memory images.

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::newtypes::{RKey, Va};

/// Request of a compare-and-swap or fetch-and-add.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AtomicEth {
    /// Address of the eight bytes; legal only if a multiple of eight.
    pub va: Va,
    /// Key of the remote region.
    pub rkey: RKey,
    /// Value to store (compare-and-swap) or to add.
    pub swap_add: u64,
    /// Value to compare with; ignored by fetch-and-add.
    pub compare: u64,
}

/// What the eight bytes held before the atomic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AtomicAckEth {
    /// The original value.
    pub original: u64,
}

/// AtomicETH as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct AtomicEthWire {
    va: U64,
    rkey: U32,
    swap_add: U64,
    compare: U64,
}

/// AtomicAckETH as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct AtomicAckEthWire {
    original: U64,
}

impl From<&AtomicEthWire> for AtomicEth {
    #[inline]
    fn from(w: &AtomicEthWire) -> Self {
        Self {
            va: Va::new(w.va.get()),
            rkey: RKey::new(w.rkey.get()),
            swap_add: w.swap_add.get(),
            compare: w.compare.get(),
        }
    }
}

impl From<&AtomicEth> for AtomicEthWire {
    #[inline]
    fn from(h: &AtomicEth) -> Self {
        Self {
            va: U64::new(h.va.value()),
            rkey: U32::new(h.rkey.value()),
            swap_add: U64::new(h.swap_add),
            compare: U64::new(h.compare),
        }
    }
}

impl From<&AtomicAckEthWire> for AtomicAckEth {
    #[inline]
    fn from(w: &AtomicAckEthWire) -> Self {
        Self {
            original: w.original.get(),
        }
    }
}

impl From<&AtomicAckEth> for AtomicAckEthWire {
    #[inline]
    fn from(h: &AtomicAckEth) -> Self {
        Self {
            original: U64::new(h.original),
        }
    }
}

const _: () = assert!(size_of::<AtomicEthWire>() == 28 && size_of::<AtomicAckEthWire>() == 8);
