//! XRC extended transport header, 4 bytes: reserved(8) XRC SRQ number(24). In every XRC request,
//! directly after BTH; never in responses.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bth::{be24, u24};
use crate::newtypes::Srqn;

/// Target of an XRC request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct XrcEth {
    /// Shared receive queue the message is for.
    pub srqn: Srqn,
}

/// The header as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct XrcEthWire {
    reserved: u8,
    srqn: [u8; 3],
}

impl From<&XrcEthWire> for XrcEth {
    #[inline]
    fn from(w: &XrcEthWire) -> Self {
        Self {
            srqn: Srqn::new(u24(w.srqn)),
        }
    }
}

impl From<&XrcEth> for XrcEthWire {
    #[inline]
    fn from(h: &XrcEth) -> Self {
        Self {
            reserved: 0,
            srqn: be24(h.srqn.value()),
        }
    }
}

const _: () = assert!(size_of::<XrcEthWire>() == 4);
