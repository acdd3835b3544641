//! Emission from prebuilt headers: everything that stays the same over the life of a path is
//! written once, a packet costs one copy and a handful of patched fields.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::bth::{Bth, BthFields};
use crate::eth::{EthHdr, VlanHdr, ethertype};
use crate::frame::{LowerV4, LowerV6};
use crate::icrc::{ICRC_LEN, lens, lower};
use crate::ip::{self, Ipv4Hdr, Ipv6Hdr, NEXT_HEADER_IBA, PROTO_UDP};
use crate::newtypes::{PKey, Psn, Qpn};
use crate::opcode::{Opcode, Operation};
use crate::packet::PacketBuf;
use crate::path::AddressVector;
use crate::udp::UdpHdr;

/// Bytes reserved for the headers: Ethernet 14, tag 4, IPv6 40, UDP 8 and BTH 12, rounded up to a
/// size that copies in whole vector registers.
const ROOM: usize = 80;

/// Which headers a frame begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lower {
    /// Ethernet, IP and UDP are in the frame.
    Ethernet,
    /// The frame begins at BTH; a socket adds the rest. Over IPv4 the ICRC is for identification 0.
    Udp,
    /// Ethernet and the GRH of RoCEv1. For tests and tools: the engine does not speak it.
    RoceV1,
}

/// Why a path gives no template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TemplateError {
    /// One address is IPv4, the other IPv6.
    #[error("source and destination address are of different families")]
    FamilyMismatch,
    /// The flow label has more than 20 bits.
    #[error("flow label {0:#x} exceeds 20 bits")]
    FlowLabel(u32),
    /// Hop limit 0: no such packet may be sent.
    #[error("hop limit is 0")]
    HopLimit,
}

/// Header fields outside an address vector that tests and tools set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TemplateOptions {
    /// IPv4 identification of every packet; 0 is right for packets that are never fragmented.
    pub ip_id: u16,
    /// BTH MigReq.
    pub mig_req: bool,
    /// BTH FECN.
    pub fecn: bool,
    /// BTH BECN; a CNP has it anyway.
    pub becn: bool,
}

/// What changes from packet to packet.
#[derive(Clone, Copy, Debug)]
pub struct Emit {
    /// Opcode.
    pub opcode: Opcode,
    /// Packet sequence number.
    pub psn: Psn,
    /// Whether an acknowledgement is wanted.
    pub ack_req: bool,
    /// Whether a solicited event is wanted.
    pub solicited: bool,
    /// Payload bytes; for a CNP the 16 reserved bytes.
    pub payload_len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
    Grh,
}

/// Prebuilt headers of a path.
#[derive(Clone, Debug)]
pub struct HeaderTemplate {
    /// The headers in front of BTH as far as they are in the frame, then BTH, then nothing.
    bytes: [u8; ROOM],
    bth: Bth,
    dest_qp: Qpn,
    /// CRC register after the headers below BTH, with all lengths zero.
    lower_state: u32,
    /// Sum over the IPv4 header with length and checksum zero.
    ip_sum: u32,
    /// Bytes in front of BTH in the frame.
    lower_len: u8,
    family: Family,
}

const _: () = assert!(size_of::<HeaderTemplate>() <= 128);

impl HeaderTemplate {
    /// A template for packets of one path to one queue pair.
    ///
    /// # Errors
    /// The path contradicts itself, see [`TemplateError`].
    pub fn new(
        lower: Lower,
        av: &AddressVector,
        dest_qp: Qpn,
        pkey: PKey,
    ) -> Result<Self, TemplateError> {
        Self::with_options(lower, av, dest_qp, pkey, &TemplateOptions::default())
    }

    /// [`HeaderTemplate::new`] with header fields that have a usual value.
    ///
    /// # Errors
    /// As [`HeaderTemplate::new`].
    pub fn with_options(
        lower: Lower,
        av: &AddressVector,
        dest_qp: Qpn,
        pkey: PKey,
        options: &TemplateOptions,
    ) -> Result<Self, TemplateError> {
        check(av)?;
        let mut out = Writer::default();
        let bth_congestion = Bth::congestion_byte(options.fecn, options.becn);
        let mut template = Self {
            bytes: [0; ROOM],
            bth: Bth::constant(dest_qp, pkey, options.mig_req, bth_congestion),
            dest_qp,
            lower_state: 0,
            ip_sum: 0,
            lower_len: 0,
            family: Family::V6,
        };
        let udp = UdpHdr::new(av.src_port, 0);
        let class = av.traffic_class;
        match (lower, av.src.v4(), av.dst.v4()) {
            (Lower::RoceV1, ..) => {
                let (label, hops) = (av.flow_label, av.hop_limit);
                let grh = Ipv6Hdr::new(av.src, av.dst, class, label, NEXT_HEADER_IBA, hops);
                template.family = Family::Grh;
                template.lower_state = lower::register_grh(&grh);
                out.ethernet(av, ethertype::ROCE_V1);
                out.put(&grh);
            }
            (_, Some(src), Some(dst)) => {
                let ip = Ipv4Hdr::new(src, dst, class, av.hop_limit, options.ip_id);
                template.family = Family::V4;
                template.ip_sum = ip.sum();
                let headers = LowerV4 { ip, udp };
                template.lower_state = lower::register_v4(&headers);
                out.ethernet(av, ethertype::IPV4);
                out.put(&headers);
            }
            _ => {
                let (label, hops) = (av.flow_label, av.hop_limit);
                let ip = Ipv6Hdr::new(av.src, av.dst, class, label, PROTO_UDP, hops);
                let headers = LowerV6 { ip, udp };
                template.lower_state = lower::register_v6(&headers);
                out.ethernet(av, ethertype::IPV6);
                out.put(&headers);
            }
        }
        if lower != Lower::Udp {
            template.bytes = out.bytes;
            template.lower_len = out.len;
        }
        Ok(template)
    }

    /// Destination queue pair of [`HeaderTemplate::start`].
    #[must_use]
    pub const fn dest_qp(&self) -> Qpn {
        self.dest_qp
    }

    /// Longest frame with `payload_len` bytes of payload, whatever the opcode.
    #[must_use]
    pub fn max_len(&self, payload_len: usize) -> usize {
        // XRCETH and AtomicETH are the longest headers that occur together.
        let headers = Bth::LEN + 32;
        usize::from(self.lower_len) + headers + payload_len.next_multiple_of(4) + ICRC_LEN
    }

    /// Begins a packet in `frame`: writes all headers up to BTH, their lengths and the IPv4
    /// checksum, and the pad. `None` if `frame` or IP is too small for it.
    #[inline(always)]
    pub fn start<'f>(&self, frame: &'f mut [u8], e: &Emit) -> Option<PacketBuf<'f>> {
        self.start_to(frame, e, self.dest_qp)
    }

    /// [`HeaderTemplate::start`] with another destination queue pair, for datagrams and CNPs.
    #[inline(always)]
    pub fn start_to<'f>(
        &self,
        frame: &'f mut [u8],
        e: &Emit,
        dest_qp: Qpn,
    ) -> Option<PacketBuf<'f>> {
        let info = e.opcode.info();
        let pad = e.payload_len.wrapping_neg() & 3;
        let len = Bth::LEN + usize::from(info.header_len) + ICRC_LEN;
        let len = len.checked_add(e.payload_len)?.checked_add(pad)?;
        let lower_len = usize::from(self.lower_len);
        self.copy_lower(frame)?;
        let frame = frame.get_mut(..lower_len.checked_add(len)?)?;
        // The last word before the ICRC holds the pad; the rest of it is written over later.
        let (covered, _) = frame.split_last_chunk_mut::<ICRC_LEN>()?;
        *covered.last_chunk_mut::<4>()? = [0; 4];
        let lower_state = self.patch_lengths(frame, u16::try_from(len).ok()?)?;
        #[allow(clippy::cast_possible_truncation, reason = "masked to two bits")]
        let fields = BthFields {
            opcode: e.opcode as u8,
            solicited: e.solicited,
            pad: pad as u8,
            ack_req: e.ack_req,
            psn: e.psn,
        };
        let mut bth = self.bth.with(&fields, dest_qp);
        if info.operation == Operation::Cnp {
            bth = bth.marked();
        }
        let transport = frame.get_mut(lower_len..)?;
        bth.write_to_prefix(transport).ok()?;
        Some(PacketBuf::new(
            lower_len,
            transport,
            e.payload_len,
            info,
            lower_state,
        ))
    }

    /// For packets of `opcode`, or another with the same headers, and `payload_len`; `None` if IP
    /// is too small for them, and for CNPs, which are rare.
    #[must_use]
    #[inline]
    pub fn stamp(&self, opcode: Opcode, payload_len: usize) -> Option<Stamp> {
        let info = opcode.info();
        if info.operation == Operation::Cnp {
            return None;
        }
        let pad = payload_len.wrapping_neg() & 3;
        let len = Bth::LEN + usize::from(info.header_len) + ICRC_LEN;
        let len = u16::try_from(len.checked_add(payload_len)?.checked_add(pad)?).ok()?;
        let mut bytes = self.bytes;
        let lower_state = self.patch_lengths(&mut bytes, len)?;
        #[allow(clippy::cast_possible_truncation, reason = "masked to two bits")]
        let pad = pad as u8;
        Some(Stamp {
            bytes,
            bth: self.bth,
            dest_qp: self.dest_qp,
            lower_state,
            payload_len,
            lower_len: self.lower_len,
            header_len: info.header_len,
            pad,
            len,
        })
    }

    /// Copies the headers in front of BTH.
    #[inline(always)]
    fn copy_lower(&self, frame: &mut [u8]) -> Option<()> {
        if self.lower_len == 0 {
            return Some(());
        }
        // A copy of constant size is a few vector moves; what it writes beyond the headers is
        // written over. Frames are that long except in tests.
        if let Some(all) = frame.first_chunk_mut::<ROOM>() {
            *all = self.bytes;
        } else {
            let len = usize::from(self.lower_len);
            frame
                .get_mut(..len)?
                .copy_from_slice(self.bytes.get(..len)?);
        }
        Some(())
    }

    /// Writes lengths and checksum for a transport part of `len` bytes, and returns the CRC
    /// register after the headers.
    #[inline(always)]
    fn patch_lengths(&self, frame: &mut [u8], len: u16) -> Option<u32> {
        let lower_len = usize::from(self.lower_len);
        #[allow(clippy::cast_possible_truncation, reason = "header sizes are 8 and 20")]
        const UDP: u16 = UdpHdr::LEN as u16;
        #[allow(clippy::cast_possible_truncation, reason = "header sizes are 8 and 20")]
        const IPV4: u16 = Ipv4Hdr::LEN as u16;
        let lower = frame.get_mut(..lower_len)?;
        let delta = match self.family {
            Family::V4 => {
                let udp_len = len.checked_add(UDP)?;
                let total_len = udp_len.checked_add(IPV4)?;
                if let Ok((_, l)) = LowerV4::mut_from_suffix(lower) {
                    l.ip.total_len.set(total_len);
                    l.ip.checksum
                        .set(!ip::fold(self.ip_sum + u32::from(total_len)));
                    l.udp.len.set(udp_len);
                }
                lens::v4(total_len, udp_len)
            }
            Family::V6 => {
                let udp_len = len.checked_add(UDP)?;
                if let Ok((_, l)) = LowerV6::mut_from_suffix(lower) {
                    l.ip.payload_len.set(udp_len);
                    l.udp.len.set(udp_len);
                }
                lens::v6(udp_len)
            }
            Family::Grh => {
                if let Ok((_, grh)) = Ipv6Hdr::mut_from_suffix(lower) {
                    grh.payload_len.set(len);
                }
                lens::grh(len)
            }
        };
        Some(self.lower_state ^ delta)
    }
}

/// A template for packets of one length: what depends on it is written already. For many packets
/// in a row, which most often have the same.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// As [`HeaderTemplate::bytes`], with lengths and checksum.
    bytes: [u8; ROOM],
    bth: Bth,
    dest_qp: Qpn,
    /// CRC register after the headers below BTH.
    lower_state: u32,
    payload_len: usize,
    lower_len: u8,
    /// Of the extension headers.
    header_len: u8,
    pad: u8,
    /// Bytes of BTH .. ICRC.
    len: u16,
}

impl Stamp {
    /// Whether this is what [`HeaderTemplate::stamp`] would give.
    #[inline(always)]
    #[must_use]
    pub fn fits(&self, opcode: Opcode, payload_len: usize) -> bool {
        self.payload_len == payload_len && self.header_len == opcode.info().header_len
    }

    /// [`HeaderTemplate::start`] for the payload length this was made for, whatever `e` says.
    /// `None` also if `frame` is shorter than any frame that a port lends.
    #[inline(always)]
    pub fn start<'f>(&self, frame: &'f mut [u8], e: &Emit) -> Option<PacketBuf<'f>> {
        let info = e.opcode.info();
        if info.header_len != self.header_len {
            return None;
        }
        let lower_len = usize::from(self.lower_len);
        if lower_len != 0 {
            *frame.first_chunk_mut::<ROOM>()? = self.bytes;
        }
        let transport = frame.get_mut(lower_len..lower_len + usize::from(self.len))?;
        if self.pad != 0 {
            // The last word before the ICRC holds the pad; the rest of it is written over later.
            let (covered, _) = transport.split_last_chunk_mut::<ICRC_LEN>()?;
            *covered.last_chunk_mut::<4>()? = [0; 4];
        }
        let fields = BthFields {
            opcode: e.opcode as u8,
            solicited: e.solicited,
            pad: self.pad,
            ack_req: e.ack_req,
            psn: e.psn,
        };
        let bth = self.bth.with(&fields, self.dest_qp);
        bth.write_to_prefix(transport).ok()?;
        Some(PacketBuf::new(
            lower_len,
            transport,
            self.payload_len,
            info,
            self.lower_state,
        ))
    }
}

fn check(av: &AddressVector) -> Result<(), TemplateError> {
    if av.src.v4().is_some() != av.dst.v4().is_some() {
        return Err(TemplateError::FamilyMismatch);
    }
    if av.flow_label >> 20 != 0 {
        return Err(TemplateError::FlowLabel(av.flow_label));
    }
    if av.hop_limit == 0 {
        return Err(TemplateError::HopLimit);
    }
    Ok(())
}

/// Headers put one behind the other.
struct Writer {
    bytes: [u8; ROOM],
    len: u8,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            bytes: [0; ROOM],
            len: 0,
        }
    }
}

impl Writer {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "headers are at most 40 bytes"
    )]
    fn put<T: IntoBytes + Immutable>(&mut self, header: &T) {
        let at = usize::from(self.len);
        let fits = self
            .bytes
            .get_mut(at..)
            .map(|room| header.write_to_prefix(room));
        debug_assert!(matches!(fits, Some(Ok(()))));
        self.len += size_of::<T>() as u8;
    }

    fn ethernet(&mut self, av: &AddressVector, kind: u16) {
        if let Some(tci) = av.vlan {
            self.put(&EthHdr::new(av.dst_mac, av.src_mac, ethertype::VLAN));
            self.put(&VlanHdr::new(tci, kind));
        } else {
            self.put(&EthHdr::new(av.dst_mac, av.src_mac, kind));
        }
    }
}
