//! Acknowledge extended transport header, 4 bytes: syndrome(8) MSN(24).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bth::{be24, u24};
use crate::newtypes::Msn;
use crate::syndrome::Syndrome;

/// Answer of a responder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// Messages completely executed so far.
    pub msn: Msn,
}

/// The header as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct AethWire {
    syndrome: u8,
    msn: [u8; 3],
}

impl From<&AethWire> for Aeth {
    #[inline]
    fn from(w: &AethWire) -> Self {
        Self {
            syndrome: Syndrome::from_u8(w.syndrome),
            msn: Msn::new(u24(w.msn)),
        }
    }
}

impl From<&Aeth> for AethWire {
    #[inline]
    fn from(h: &Aeth) -> Self {
        Self {
            syndrome: h.syndrome.to_u8(),
            msn: be24(h.msn.value()),
        }
    }
}

const _: () = assert!(size_of::<AethWire>() == 4);
