//! Headers of the extension packets that two peers of this stack exchange when both were told to
//! (`docs/wire-extensions.md`): METH, SETH and PETH.
//!
//! Shapes and opcodes are those of MRC as far as they are public (E13). Nothing here is ever sent
//! to a peer that did not agree (E1).

use zerocopy::byteorder::network_endian::{I16, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bth::{be24, u24};
use crate::newtypes::Psn;

/// PSNs per step of [`Seth::mpr`].
pub const MPR_UNIT: u32 = 128;

/// PSNs that one bitmap of a [`Seth`] tells about.
pub const SACK_BITS: u32 = 64;

/// Message extended transport header, 4 bytes, between BTH and the RETH of a self-contained WRITE
/// packet: rqmsn(16) msn(16).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Meth {
    /// Messages before this one that take a receive, modulo 2^16. Sent as 0 and ignored here:
    /// receives are taken in the order of PSNs.
    pub rqmsn: u16,
    /// Messages of the requester before this one, modulo 2^16: the MSN the responder has while
    /// it is receiving this message.
    pub msn: u16,
}

/// The header as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct MethWire {
    rqmsn: U16,
    msn: U16,
}

impl From<&MethWire> for Meth {
    #[inline]
    fn from(w: &MethWire) -> Self {
        Self {
            rqmsn: w.rqmsn.get(),
            msn: w.msn.get(),
        }
    }
}

impl From<&Meth> for MethWire {
    #[inline]
    fn from(h: &Meth) -> Self {
        Self {
            rqmsn: U16::new(h.rqmsn),
            msn: U16::new(h.msn),
        }
    }
}

/// What a SACK was made for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SackCause {
    /// A request packet, so many PSNs from [`Seth::cack_psn`].
    Packet {
        /// PSN of the packet less the cumulative one, in serial order.
        offset: i16,
        /// Its PSN had been received before: it was sent twice, or the network doubled it.
        again: bool,
    },
    /// A probe with this number.
    Probe(u16),
}

/// SACK extended transport header, 28 bytes.
///
/// | byte | field |
/// |---|---|
/// | 0-1 | type(4) nxt(5) m(2) reserved(3) pr(1) again(1) |
/// | 2-3 | ack_psn_offset, signed; with pr the number of the probe |
/// | 4-7 | entropy |
/// | 8-11 | spdcid(16) dpdcid(16) |
/// | 12 | reserved |
/// | 13-15 | cack_psn |
/// | 16-17 | cc_type(4) cc_fl(4) mpr(8) |
/// | 18-19 | sack_offset, signed |
/// | 20-27 | sack_bitmap |
///
/// type, nxt, m, entropy, the two ids, cc_type and cc_fl are sent as zero and ignored. `again` is
/// a reserved bit of MRC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Seth {
    /// What it was made for.
    pub cause: SackCause,
    /// Every request packet up to this PSN was received and executed.
    pub cack_psn: Psn,
    /// PSNs beyond `cack_psn` that the responder takes, in units of [`MPR_UNIT`].
    pub mpr: u8,
    /// First PSN of the bitmap less `cack_psn`, in serial order.
    pub sack_offset: i16,
    /// Bit n: the request packet n PSNs behind the first was received. 0 says nothing about PSNs
    /// that belong to responses.
    pub bitmap: u64,
}

const PR: u8 = 1 << 1;
const AGAIN: u8 = 1;

impl Seth {
    /// First PSN of the bitmap.
    #[inline]
    #[must_use]
    pub const fn base(&self) -> Psn {
        offset_psn(self.cack_psn, self.sack_offset)
    }

    /// PSN of the packet it was made for; `None` for a probe.
    #[inline]
    #[must_use]
    pub const fn ack_psn(&self) -> Option<Psn> {
        match self.cause {
            SackCause::Packet { offset, .. } => Some(offset_psn(self.cack_psn, offset)),
            SackCause::Probe(_) => None,
        }
    }
}

const fn offset_psn(from: Psn, offset: i16) -> Psn {
    let distance = offset.unsigned_abs() as u32;
    if offset < 0 {
        from.sub(distance)
    } else {
        from.add(distance)
    }
}

/// The header as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SethWire {
    kind: u8,
    flags: u8,
    ack_psn_offset: I16,
    entropy: U32,
    pdc_ids: U32,
    reserved: u8,
    cack_psn: [u8; 3],
    cc: u8,
    mpr: u8,
    sack_offset: I16,
    bitmap: U64,
}

impl From<&SethWire> for Seth {
    #[inline]
    fn from(w: &SethWire) -> Self {
        let offset = w.ack_psn_offset.get();
        let cause = if w.flags & PR != 0 {
            SackCause::Probe(offset.cast_unsigned())
        } else {
            let again = w.flags & AGAIN != 0;
            SackCause::Packet { offset, again }
        };
        Self {
            cause,
            cack_psn: Psn::new(u24(w.cack_psn)),
            mpr: w.mpr,
            sack_offset: w.sack_offset.get(),
            bitmap: w.bitmap.get(),
        }
    }
}

impl From<&Seth> for SethWire {
    #[inline]
    fn from(h: &Seth) -> Self {
        let (flags, field) = match h.cause {
            SackCause::Packet { offset, again } => (u8::from(again) * AGAIN, offset),
            SackCause::Probe(id) => (PR, id.cast_signed()),
        };
        Self {
            kind: 0,
            flags,
            ack_psn_offset: I16::new(field),
            entropy: U32::new(0),
            pdc_ids: U32::new(0),
            reserved: 0,
            cack_psn: be24(h.cack_psn.value()),
            cc: 0,
            mpr: h.mpr,
            sack_offset: I16::new(h.sack_offset),
            bitmap: U64::new(h.bitmap),
        }
    }
}

/// Probe extended transport header, 16 bytes: asks for a SACK and carries nothing else.
///
/// | byte | field |
/// |---|---|
/// | 0-1 | type(4) nxt(5) reserved(7) |
/// | 2-3 | reserved(8) vendor(8) |
/// | 4-5 | probe_id |
/// | 6-7 | reserved |
/// | 8-11 | spdcid(16) dpdcid(16) |
/// | 12-15 | tx_timestamp(16) tsr(1) reserved(11) ftype(4) |
///
/// All but probe_id is sent as zero and ignored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Peth {
    /// Comes back in the SACK that answers it.
    pub probe_id: u16,
}

/// The header as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct PethWire {
    lead: U32,
    probe_id: U16,
    reserved: U16,
    pdc_ids: U32,
    timestamp: U32,
}

impl From<&PethWire> for Peth {
    #[inline]
    fn from(w: &PethWire) -> Self {
        Self {
            probe_id: w.probe_id.get(),
        }
    }
}

impl From<&Peth> for PethWire {
    #[inline]
    fn from(h: &Peth) -> Self {
        Self {
            lead: U32::new(0),
            probe_id: U16::new(h.probe_id),
            reserved: U16::new(0),
            pdc_ids: U32::new(0),
            timestamp: U32::new(0),
        }
    }
}

const _: () = assert!(size_of::<MethWire>() == 4);
const _: () = assert!(size_of::<SethWire>() == 28);
const _: () = assert!(size_of::<PethWire>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    fn seth(cack: u32, sack_offset: i16) -> Seth {
        Seth {
            cause: SackCause::Probe(0),
            cack_psn: Psn::new(cack),
            mpr: 8,
            sack_offset,
            bitmap: 0,
        }
    }

    #[test]
    fn bases_at_the_ends_of_the_offset() {
        assert_eq!(seth(0xff_ffff, 1).base(), Psn::new(0));
        assert_eq!(seth(0, i16::MAX).base(), Psn::new(0x7fff));
        assert_eq!(seth(0, i16::MIN).base(), Psn::new(0xff_8000));
        assert_eq!(seth(0x7fff, i16::MIN).base(), Psn::new(0xff_ffff));
    }

    /// Rule E13.
    #[test]
    fn bytes_are_those_of_the_table() {
        let header = Seth {
            cause: SackCause::Packet {
                offset: -2,
                again: true,
            },
            cack_psn: Psn::new(0x12_3456),
            mpr: 0x89,
            sack_offset: 0x0102,
            bitmap: 0x8000_0000_0000_0001,
        };
        let wire = SethWire::from(&header);
        let bytes = [
            0, 1, 0xff, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56, 0, 0x89, 1, 2, 0x80, 0,
            0, 0, 0, 0, 0, 1,
        ];
        assert_eq!(wire.as_bytes(), bytes);
        let probe = Seth {
            cause: SackCause::Probe(0xfffe),
            ..header
        };
        assert_eq!(SethWire::from(&probe).as_bytes()[..4], [0, 2, 0xff, 0xfe]);
        assert_eq!(probe.ack_psn(), None);
        assert_eq!(header.ack_psn(), Some(Psn::new(0x12_3454)));
        let meth = MethWire::from(&Meth { rqmsn: 1, msn: 2 });
        assert_eq!(meth.as_bytes(), [0, 1, 0, 2]);
        let peth = PethWire::from(&Peth { probe_id: 0x0304 });
        assert_eq!(peth.as_bytes()[..8], [0, 0, 0, 0, 3, 4, 0, 0]);
    }
}
