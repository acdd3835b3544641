//! FLUSH extended transport header, 4 bytes: reserved(26) SEL(2) PLT(4); IBTA 1.5, before RETH.

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const PLACEMENT: u32 = 0x0f;
const SELECTIVITY: u32 = 0x30;

/// What a FLUSH wants to be flushed, and how far.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Feth {
    /// Placement type, 4 bits: bit 0 global visibility, bit 1 persistence.
    pub placement: u8,
    /// Selectivity, 2 bits: 0 the memory range of the RETH, 1 the whole region.
    pub selectivity: u8,
}

/// The header as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct FethWire {
    bits: U32,
}

impl From<&FethWire> for Feth {
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "masked to 4 and 2 bits")]
    fn from(w: &FethWire) -> Self {
        let bits = w.bits.get();
        Self {
            placement: (bits & PLACEMENT) as u8,
            selectivity: ((bits & SELECTIVITY) >> 4) as u8,
        }
    }
}

impl From<&Feth> for FethWire {
    #[inline]
    fn from(h: &Feth) -> Self {
        let selectivity = u32::from(h.selectivity) << 4 & SELECTIVITY;
        Self {
            bits: U32::new(u32::from(h.placement) & PLACEMENT | selectivity),
        }
    }
}

const _: () = assert!(size_of::<FethWire>() == 4);
