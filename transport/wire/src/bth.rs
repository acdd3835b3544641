//! Base transport header: the 12 bytes every packet begins with.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::newtypes::{PKey, Psn, Qpn};

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const PAD: u8 = 0x30;
const VERSION: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;

/// BTH as on the wire.
///
/// | byte | field |
/// |---|---|
/// | 0 | opcode |
/// | 1 | solicited event(1) MigReq(1) pad count(2) version(4) = 0 |
/// | 2-3 | P_Key |
/// | 4 | FECN(1) BECN(1) reserved(6); the whole byte is masked in the ICRC |
/// | 5-7 | destination QP |
/// | 8 | AckReq(1) reserved(7) |
/// | 9-11 | PSN |
///
/// Reserved bits are sent as zero and ignored on receipt.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    flags: u8,
    pkey: U16,
    congestion: u8,
    dest_qp: [u8; 3],
    ack: u8,
    psn: [u8; 3],
}

/// The fields of a BTH that is to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BthFields {
    pub(crate) opcode: u8,
    pub(crate) solicited: bool,
    pub(crate) pad: u8,
    pub(crate) ack_req: bool,
    pub(crate) psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<Self>();

    /// What stays the same over the life of a template.
    pub(crate) fn constant(dest_qp: Qpn, pkey: PKey, mig_req: bool, congestion: u8) -> Self {
        Self {
            opcode: 0,
            flags: if mig_req { MIG_REQ } else { 0 },
            pkey: U16::new(pkey.value()),
            congestion,
            dest_qp: be24(dest_qp.value()),
            ack: 0,
            psn: [0; 3],
        }
    }

    /// The byte with FECN and BECN.
    pub(crate) const fn congestion_byte(fecn: bool, becn: bool) -> u8 {
        (if fecn { FECN } else { 0 }) | (if becn { BECN } else { 0 })
    }

    /// This header with the fields of one packet.
    #[inline]
    pub(crate) fn with(mut self, f: &BthFields, dest_qp: Qpn) -> Self {
        self.opcode = f.opcode;
        self.flags |= (u8::from(f.solicited) * SOLICITED) | ((f.pad << 4) & PAD);
        self.dest_qp = be24(dest_qp.value());
        self.ack = u8::from(f.ack_req) * ACK_REQ;
        self.psn = be24(f.psn.value());
        self
    }

    /// This header with BECN set.
    #[inline]
    pub(crate) fn marked(mut self) -> Self {
        self.congestion |= BECN;
        self
    }

    /// Destination queue pair.
    #[inline]
    #[must_use]
    pub const fn dest_qp(&self) -> Qpn {
        Qpn::new(u24(self.dest_qp))
    }

    /// Opcode byte, known or not.
    #[inline]
    #[must_use]
    pub const fn opcode(&self) -> u8 {
        self.opcode
    }

    /// Packet sequence number.
    #[inline]
    #[must_use]
    pub const fn psn(&self) -> Psn {
        Psn::new(u24(self.psn))
    }

    /// Partition key.
    #[inline]
    #[must_use]
    pub fn pkey(&self) -> PKey {
        PKey::new(self.pkey.get())
    }

    /// Whether the sender wants an acknowledgement.
    #[inline]
    #[must_use]
    pub const fn ack_req(&self) -> bool {
        self.ack & ACK_REQ != 0
    }

    /// Whether a solicited completion event is wanted.
    #[inline]
    #[must_use]
    pub const fn solicited(&self) -> bool {
        self.flags & SOLICITED != 0
    }

    /// Migration state; without path migration it has no effect.
    #[inline]
    #[must_use]
    pub const fn mig_req(&self) -> bool {
        self.flags & MIG_REQ != 0
    }

    /// Zero bytes after the payload, 0 ..= 3.
    #[inline]
    #[must_use]
    pub const fn pad(&self) -> u8 {
        (self.flags & PAD) >> 4
    }

    /// Transport header version; only 0 is defined.
    #[inline]
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.flags & VERSION
    }

    /// Forward congestion notification (unused by RoCEv2, which marks in the IP header).
    #[inline]
    #[must_use]
    pub const fn fecn(&self) -> bool {
        self.congestion & FECN != 0
    }

    /// Backward congestion notification: set in a CNP.
    #[inline]
    #[must_use]
    pub const fn becn(&self) -> bool {
        self.congestion & BECN != 0
    }
}

/// 24-bit field as a number.
#[inline]
pub(crate) const fn u24(bytes: [u8; 3]) -> u32 {
    let [a, b, c] = bytes;
    u32::from_be_bytes([0, a, b, c])
}

/// The low 24 bits of a number as a field.
#[inline]
pub(crate) const fn be24(v: u32) -> [u8; 3] {
    let [_, a, b, c] = v.to_be_bytes();
    [a, b, c]
}

const _: () = assert!(Bth::LEN == 12);
