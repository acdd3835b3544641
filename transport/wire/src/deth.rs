//! Datagram extended transport header, 8 bytes: Q_Key(32) reserved(8) source QP(24).

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bth::{be24, u24};
use crate::newtypes::{QKey, Qpn};

/// What a datagram says about its sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Deth {
    /// Must equal the key of the receiving QP.
    pub qkey: QKey,
    /// QP that sent the datagram.
    pub src_qp: Qpn,
}

/// The header as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct DethWire {
    qkey: U32,
    reserved: u8,
    src_qp: [u8; 3],
}

impl From<&DethWire> for Deth {
    #[inline]
    fn from(w: &DethWire) -> Self {
        Self {
            qkey: QKey::new(w.qkey.get()),
            src_qp: Qpn::new(u24(w.src_qp)),
        }
    }
}

impl From<&Deth> for DethWire {
    #[inline]
    fn from(h: &Deth) -> Self {
        Self {
            qkey: U32::new(h.qkey.value()),
            reserved: 0,
            src_qp: be24(h.src_qp.value()),
        }
    }
}

const _: () = assert!(size_of::<DethWire>() == 8);
