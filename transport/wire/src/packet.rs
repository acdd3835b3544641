//! A packet from BTH to ICRC: checked once by [`Packet::parse`], then infallible; and the buffer
//! that [`crate::template::HeaderTemplate::start`] lends for writing one.

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::aeth::{Aeth, AethWire};
use crate::atomic::{AtomicAckEth, AtomicAckEthWire, AtomicEth, AtomicEthWire};
use crate::bth::Bth;
use crate::deth::{Deth, DethWire};
use crate::ext::{Meth, MethWire, Peth, PethWire, Seth, SethWire};
use crate::feth::{Feth, FethWire};
use crate::icrc::{self, Head, ICRC_LEN};
use crate::imm::{Ieth, IethWire, Imm};
use crate::newtypes::{PKey, Psn, Qpn, RKey};
use crate::opcode::{Headers, Opcode, OpcodeInfo, Slot};
use crate::reth::{Reth, RethWire};
use crate::xrceth::{XrcEth, XrcEthWire};

/// Why transport bytes are no packet. All of these are silent drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PacketError {
    /// Shorter than the headers of its opcode, its pad and the ICRC.
    #[error("shorter than its headers, pad and ICRC")]
    Short,
    /// Opcode unknown or reserved.
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// Transport header version other than 0.
    #[error("transport header version {0}")]
    Version(u8),
}

/// A packet with known opcode and room for everything its opcode and pad count promise.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    info: &'static OpcodeInfo,
    bth: &'a Bth,
    /// Exactly `info.header_len` bytes.
    ext: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks opcode, version and length; neither ICRC nor contents.
    ///
    /// # Errors
    /// See [`PacketError`].
    #[inline]
    pub fn parse(transport: &'a [u8]) -> Result<Self, PacketError> {
        let (bth, rest) = Bth::ref_from_prefix(transport).map_err(|_| PacketError::Short)?;
        let Some(info) = Opcode::from_u8(bth.opcode()) else {
            return Err(PacketError::Opcode(bth.opcode()));
        };
        if bth.version() != 0 {
            return Err(PacketError::Version(bth.version()));
        }
        let (ext, rest) = rest
            .split_at_checked(usize::from(info.header_len))
            .ok_or(PacketError::Short)?;
        let trailer = usize::from(bth.pad()) + ICRC_LEN;
        let payload_len = rest.len().checked_sub(trailer).ok_or(PacketError::Short)?;
        let payload = rest.get(..payload_len).ok_or(PacketError::Short)?;
        Ok(Self {
            info,
            bth,
            ext,
            payload,
        })
    }

    /// Row of its opcode.
    #[inline]
    #[must_use]
    pub const fn info(&self) -> &'static OpcodeInfo {
        self.info
    }

    /// Opcode.
    #[inline]
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        self.info.opcode
    }

    /// Its BTH.
    #[inline]
    #[must_use]
    pub const fn bth(&self) -> &'a Bth {
        self.bth
    }

    /// Packet sequence number.
    #[inline]
    #[must_use]
    pub const fn psn(&self) -> Psn {
        self.bth.psn()
    }

    /// Destination queue pair.
    #[inline]
    #[must_use]
    pub const fn dest_qp(&self) -> Qpn {
        self.bth.dest_qp()
    }

    /// Partition key.
    #[inline]
    #[must_use]
    pub fn pkey(&self) -> PKey {
        self.bth.pkey()
    }

    /// Whether the sender wants an acknowledgement.
    #[inline]
    #[must_use]
    pub const fn ack_req(&self) -> bool {
        self.bth.ack_req()
    }

    /// Whether a solicited completion event is wanted.
    #[inline]
    #[must_use]
    pub const fn solicited(&self) -> bool {
        self.bth.solicited()
    }

    /// Migration state.
    #[inline]
    #[must_use]
    pub const fn mig_req(&self) -> bool {
        self.bth.mig_req()
    }

    /// Pad count, 0 ..= 3.
    #[inline]
    #[must_use]
    pub const fn pad(&self) -> u8 {
        self.bth.pad()
    }

    /// Whether the pad count is the one the payload length demands: together a multiple of four.
    /// A responder answers a request without it with NAK "invalid request".
    #[inline]
    #[must_use]
    pub fn pad_ok(&self) -> bool {
        (self.payload.len() + usize::from(self.bth.pad())).is_multiple_of(4)
    }

    /// Forward congestion notification bit.
    #[inline]
    #[must_use]
    pub const fn fecn(&self) -> bool {
        self.bth.fecn()
    }

    /// Backward congestion notification bit.
    #[inline]
    #[must_use]
    pub const fn becn(&self) -> bool {
        self.bth.becn()
    }

    /// Payload without pad; may be non-empty even where the opcode allows none.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    #[inline]
    fn ext<T>(&self, slot: Slot) -> Option<&'a T>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let bytes = self.ext.get(self.info.offset(slot)?..)?;
        T::ref_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// RETH, if the opcode has one.
    #[inline]
    #[must_use]
    pub fn reth(&self) -> Option<Reth> {
        self.ext::<RethWire>(Slot::Reth).map(Reth::from)
    }

    /// AETH, if the opcode has one.
    #[inline]
    #[must_use]
    pub fn aeth(&self) -> Option<Aeth> {
        self.ext::<AethWire>(Slot::Aeth).map(Aeth::from)
    }

    /// AtomicETH, if the opcode has one.
    #[inline]
    #[must_use]
    pub fn atomic(&self) -> Option<AtomicEth> {
        self.ext::<AtomicEthWire>(Slot::AtomicEth)
            .map(AtomicEth::from)
    }

    /// AtomicAckETH, if the opcode has one.
    #[inline]
    #[must_use]
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        self.ext::<AtomicAckEthWire>(Slot::AtomicAck)
            .map(AtomicAckEth::from)
    }

    /// Immediate data, if the opcode has some.
    #[inline]
    #[must_use]
    pub fn imm(&self) -> Option<Imm> {
        self.ext::<Imm>(Slot::Imm).copied()
    }

    /// Key to invalidate, if the opcode has one.
    #[inline]
    #[must_use]
    pub fn ieth(&self) -> Option<Ieth> {
        self.ext::<IethWire>(Slot::Ieth).map(|w| RKey::new(w.get()))
    }

    /// DETH, if the opcode has one.
    #[inline]
    #[must_use]
    pub fn deth(&self) -> Option<Deth> {
        self.ext::<DethWire>(Slot::Deth).map(Deth::from)
    }

    /// XRCETH, if the opcode has one.
    #[inline]
    #[must_use]
    pub fn xrceth(&self) -> Option<XrcEth> {
        self.ext::<XrcEthWire>(Slot::XrcEth).map(XrcEth::from)
    }

    /// FETH, if the opcode has one.
    #[inline]
    #[must_use]
    pub fn feth(&self) -> Option<Feth> {
        self.ext::<FethWire>(Slot::Feth).map(Feth::from)
    }

    /// METH, if the opcode has one.
    #[inline]
    #[must_use]
    pub fn meth(&self) -> Option<Meth> {
        self.ext::<MethWire>(Slot::Meth).map(Meth::from)
    }

    /// SETH, if the opcode has one.
    #[inline]
    #[must_use]
    pub fn seth(&self) -> Option<Seth> {
        self.ext::<SethWire>(Slot::Seth).map(Seth::from)
    }

    /// PETH, if the opcode has one.
    #[inline]
    #[must_use]
    pub fn peth(&self) -> Option<Peth> {
        self.ext::<PethWire>(Slot::Peth).map(Peth::from)
    }

    /// Longest copy [`Packet::keep`] makes of a packet with `payload_len` bytes of payload.
    #[must_use]
    pub const fn kept_len(payload_len: usize) -> usize {
        // AtomicETH behind XRCETH are the longest headers of a request.
        Bth::LEN + 32 + payload_len + 3 + ICRC_LEN
    }

    /// Copies it so that [`Packet::parse`] reads the same from the copy later; pad and ICRC are
    /// there but zero. Bytes written, or `None` if they do not fit.
    #[must_use]
    pub fn keep(&self, into: &mut [u8]) -> Option<usize> {
        self.copy_with(self.payload, into)
    }

    /// [`Packet::keep`] without the payload.
    #[must_use]
    pub fn keep_head(&self, into: &mut [u8]) -> Option<usize> {
        self.copy_with(&[], into)
    }

    fn copy_with(&self, payload: &[u8], into: &mut [u8]) -> Option<usize> {
        let mut len = 0;
        for part in [self.bth.as_bytes(), self.ext, payload] {
            let end = len + part.len();
            into.get_mut(len..end)?.copy_from_slice(part);
            len = end;
        }
        let end = len + usize::from(self.pad()) + ICRC_LEN;
        into.get_mut(len..end)?.fill(0);
        Some(end)
    }
}

/// A frame being written: headers up to BTH and the pad are there, extension headers and payload
/// are the caller's, [`PacketBuf::finish`] adds the ICRC.
///
/// Every extension header of the opcode must be written (checked in debug builds); writing one the
/// opcode does not have is a bug that does nothing in release builds.
#[derive(Debug)]
pub struct PacketBuf<'f> {
    /// Bytes in front of BTH.
    lower_len: usize,
    /// BTH .. ICRC, exactly.
    transport: &'f mut [u8],
    payload_at: usize,
    payload_len: usize,
    info: &'static OpcodeInfo,
    /// CRC register after the headers below BTH.
    lower_state: u32,
    written: Headers,
}

impl<'f> PacketBuf<'f> {
    /// `transport` is BTH .. ICRC of `info`'s opcode with `payload_len` bytes of payload.
    #[inline]
    pub(crate) fn new(
        lower_len: usize,
        transport: &'f mut [u8],
        payload_len: usize,
        info: &'static OpcodeInfo,
        lower_state: u32,
    ) -> Self {
        let payload_at = Bth::LEN + usize::from(info.header_len);
        let written = Headers::empty();
        Self {
            lower_len,
            transport,
            payload_at,
            payload_len,
            info,
            lower_state,
            written,
        }
    }

    #[inline(always)]
    fn put<T: IntoBytes + Immutable>(&mut self, slot: Slot, header: &T) {
        debug_assert!(
            self.info.offset(slot).is_some(),
            "{:?} has no such header",
            self.info
        );
        if let Some(at) = self.info.offset(slot)
            && let Some(bytes) = self.transport.get_mut(Bth::LEN + at..)
        {
            // An error would mean that the buffer is too short, which `start` has excluded.
            let fits = header.write_to_prefix(bytes);
            debug_assert!(fits.is_ok());
            self.written |= Headers::from_bits_retain(1 << slot as u16);
        }
    }

    /// Writes the RETH.
    #[inline]
    pub fn reth(&mut self, header: &Reth) {
        self.put(Slot::Reth, &RethWire::from(header));
    }

    /// Writes the AETH.
    #[inline]
    pub fn aeth(&mut self, header: &Aeth) {
        self.put(Slot::Aeth, &AethWire::from(header));
    }

    /// Writes the AtomicETH.
    #[inline]
    pub fn atomic(&mut self, header: &AtomicEth) {
        self.put(Slot::AtomicEth, &AtomicEthWire::from(header));
    }

    /// Writes the AtomicAckETH.
    #[inline]
    pub fn atomic_ack(&mut self, header: &AtomicAckEth) {
        self.put(Slot::AtomicAck, &AtomicAckEthWire::from(header));
    }

    /// Writes the immediate data.
    #[inline]
    pub fn imm(&mut self, imm: Imm) {
        self.put(Slot::Imm, &imm);
    }

    /// Writes the key to invalidate.
    #[inline]
    pub fn ieth(&mut self, rkey: Ieth) {
        self.put(Slot::Ieth, &IethWire::new(rkey.value()));
    }

    /// Writes the DETH.
    #[inline]
    pub fn deth(&mut self, header: &Deth) {
        self.put(Slot::Deth, &DethWire::from(header));
    }

    /// Writes the XRCETH.
    #[inline]
    pub fn xrceth(&mut self, header: &XrcEth) {
        self.put(Slot::XrcEth, &XrcEthWire::from(header));
    }

    /// Writes the FETH.
    #[inline]
    pub fn feth(&mut self, header: &Feth) {
        self.put(Slot::Feth, &FethWire::from(header));
    }

    /// Writes the METH.
    #[inline]
    pub fn meth(&mut self, header: &Meth) {
        self.put(Slot::Meth, &MethWire::from(header));
    }

    /// Writes the SETH.
    #[inline]
    pub fn seth(&mut self, header: &Seth) {
        self.put(Slot::Seth, &SethWire::from(header));
    }

    /// Writes the PETH.
    #[inline]
    pub fn peth(&mut self, header: &Peth) {
        self.put(Slot::Peth, &PethWire::from(header));
    }

    /// The payload, exactly as long as announced, with unspecified content.
    #[inline(always)]
    #[must_use]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let end = self.payload_at + self.payload_len;
        self.transport
            .get_mut(self.payload_at..end)
            .unwrap_or_default()
    }

    /// The headers of a packet whose payload is copied and summed up in one go, see
    /// [`PacketBuf::finish_joined`]; `None` if there are others than BTH and RETH.
    #[inline(always)]
    #[must_use]
    pub fn head(&self) -> Option<Head> {
        Head::new(self.lower_state, self.transport.get(..self.payload_at)?)
    }

    /// [`PacketBuf::finish`] with the CRC register after [`PacketBuf::head`] and the payload in
    /// the frame.
    #[inline(always)]
    #[must_use]
    pub fn finish_joined(self, register: u32) -> usize {
        debug_assert_eq!(
            self.written, self.info.headers,
            "headers missing: {:?}",
            self.info
        );
        let len = self.lower_len + self.transport.len();
        let end = self.payload_at + self.payload_len;
        if let Some((covered, icrc)) = self.transport.split_last_chunk_mut::<ICRC_LEN>() {
            let pad = covered.get(end..).unwrap_or_default();
            let register = if pad.is_empty() {
                register
            } else {
                icrc::crc_update(register, pad)
            };
            *icrc = (!register).to_le_bytes();
        }
        len
    }

    /// Writes the ICRC over the bytes in the frame and returns the length of the frame.
    #[inline(always)]
    #[must_use]
    pub fn finish(self) -> usize {
        debug_assert_eq!(
            self.written, self.info.headers,
            "headers missing: {:?}",
            self.info
        );
        let len = self.lower_len + self.transport.len();
        if let Some((covered, icrc)) = self.transport.split_last_chunk_mut::<ICRC_LEN>()
            && let Some(crc) = icrc::over_transport(self.lower_state, covered)
        {
            *icrc = crc;
        }
        len
    }
}
