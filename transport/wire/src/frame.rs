//! From L2, IP or a UDP socket to the transport bytes: the only place that knows the stack below
//! BTH on receipt.
//!
//! Lengths are taken from the IP and UDP headers, never from the size of the frame, since Ethernet
//! pads short frames. A UDP checksum is not looked at: senders leave it zero over IPv6 too, and the
//! ICRC covers more.

mod grh;

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::eth::{EthHdr, VlanHdr, ethertype};
use crate::icrc::{self, ICRC_LEN, id_of_delta};
use crate::ip::{Ipv4Hdr, Ipv6Hdr, NEXT_HEADER_IBA, PROTO_UDP};
use crate::newtypes::{Gid, MacAddr, VlanTci};
use crate::udp::{ROCE_PORT, UdpHdr};
pub use grh::GRH_LEN;

/// Largest IPv4 identification a kernel gives to a segment of one `UDP_SEGMENT` send: it numbers
/// them from the identification of the first, which is 0, and cuts at most 64.
pub const MAX_GSO_ID: u16 = 63;

/// What a UDP socket tells about a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpMeta {
    /// Source address.
    pub src: Gid,
    /// Destination address, of the same family.
    pub dst: Gid,
    /// Source port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class; 0 if unknown.
    pub tos: u8,
    /// TTL or hop limit, if known.
    pub hop_limit: Option<u8>,
}

/// Why a frame is not a RoCEv2 frame, or not a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame ends before its headers do.
    #[error("frame ends inside its headers")]
    Short,
    /// Neither IPv4 nor IPv6, or not UDP, or not port 4791: traffic of others.
    #[error("not RoCEv2")]
    NotRoce,
    /// RoCEv1: ethertype 0x8915. This stack speaks version 2 only.
    #[error("RoCEv1 frame (ethertype 0x8915), only RoCEv2 is spoken")]
    RoceV1,
    /// The IP version does not fit the ethertype, or IPv4 options are present.
    #[error("IP version wrong or IPv4 options present")]
    IpHeader,
    /// IPv4 header checksum wrong.
    #[error("IPv4 header checksum wrong")]
    IpChecksum,
    /// A first fragment; RoCE must not be fragmented. Later ones show no port: `NotRoce`.
    #[error("IP fragment")]
    Fragment,
    /// IP and UDP lengths contradict each other or exceed the frame.
    #[error("IP or UDP length wrong")]
    Length,
}

/// ECN field of the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN capable.
    NotEct = 0,
    /// ECN capable, ECT(1).
    Ect1 = 1,
    /// ECN capable, ECT(0).
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// From TOS or traffic class.
    #[inline]
    #[must_use]
    pub const fn from_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// IPv4 and UDP headers in one piece.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct LowerV4 {
    pub(crate) ip: Ipv4Hdr,
    pub(crate) udp: UdpHdr,
}

/// IPv6 and UDP headers in one piece.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct LowerV6 {
    pub(crate) ip: Ipv6Hdr,
    pub(crate) udp: UdpHdr,
}

#[derive(Clone, Copy, Debug)]
enum Lower<'a> {
    V4(&'a LowerV4),
    V6(&'a LowerV6),
    Grh(&'a Ipv6Hdr),
    Socket(UdpMeta),
}

/// A frame whose headers below BTH are checked.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    lower: Lower<'a>,
    eth: Option<&'a EthHdr>,
    vlan: Option<VlanTci>,
    transport: &'a [u8],
}

impl<'a> Frame<'a> {
    /// From an Ethernet frame without FCS, as received: untagged or with one 802.1Q tag.
    ///
    /// # Errors
    /// Anything but a whole, unfragmented RoCEv2 packet with a right IPv4 header checksum.
    #[inline]
    pub fn parse_ethernet(bytes: &'a [u8]) -> Result<Self, FrameError> {
        Self::behind(split_ethernet(bytes)?)
    }

    /// [`Frame::parse_ethernet`] that refuses frames with a tag, and is a little cheaper.
    ///
    /// # Errors
    /// As [`Frame::parse_ethernet`], and a tag is [`FrameError::NotRoce`].
    #[inline]
    pub fn parse_untagged(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (eth, l3) = EthHdr::ref_from_prefix(bytes).map_err(|_| FrameError::Short)?;
        Self::behind((eth, None, eth.ethertype(), l3))
    }

    #[inline(always)]
    fn behind((eth, vlan, kind, l3): Ethernet<'a>) -> Result<Self, FrameError> {
        let (lower, transport) = match kind {
            ethertype::IPV4 => {
                let (lower, transport) = split_v4(l3)?;
                if !lower.ip.checksum_ok() {
                    return Err(FrameError::IpChecksum);
                }
                (Lower::V4(lower), transport)
            }
            ethertype::IPV6 => split_v6(l3)?,
            ethertype::ROCE_V1 => return Err(FrameError::RoceV1),
            _ => return Err(FrameError::NotRoce),
        };
        Ok(Self {
            lower,
            eth: Some(eth),
            vlan,
            transport,
        })
    }

    /// From a captured Ethernet frame, for tools: accepts what [`Frame::parse_ethernet`] refuses
    /// but can be shown, that is RoCEv1 and a wrong IPv4 checksum (capture before offload).
    ///
    /// # Errors
    /// Anything else that is no whole RoCE packet.
    pub fn dissect_ethernet(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (eth, vlan, kind, l3) = split_ethernet(bytes)?;
        let frame = Self::dissect(kind, l3)?;
        Ok(Self {
            eth: Some(eth),
            vlan,
            ..frame
        })
    }

    /// From captured bytes whose ethertype was found by other means, for tools: no Ethernet
    /// header, or one of another kind. Accepts what [`Frame::dissect_ethernet`] accepts.
    ///
    /// # Errors
    /// As [`Frame::dissect_ethernet`].
    pub fn dissect(kind: u16, l3: &'a [u8]) -> Result<Self, FrameError> {
        let (vlan, kind, l3) = split_vlan(kind, l3)?;
        let (lower, transport) = match kind {
            ethertype::IPV4 => {
                let (lower, transport) = split_v4(l3)?;
                (Lower::V4(lower), transport)
            }
            ethertype::IPV6 => split_v6(l3)?,
            ethertype::ROCE_V1 => split_grh(l3)?,
            _ => return Err(FrameError::NotRoce),
        };
        Ok(Self {
            lower,
            eth: None,
            vlan,
            transport,
        })
    }

    /// From a datagram received on port 4791. The socket hides the IPv4 identification and flags:
    /// DF is taken as set, the identification is found by [`Frame::icrc_ok`].
    #[inline]
    #[must_use]
    pub const fn from_udp(meta: &UdpMeta, payload: &'a [u8]) -> Self {
        Self {
            lower: Lower::Socket(*meta),
            eth: None,
            vlan: None,
            transport: payload,
        }
    }

    /// BTH .. ICRC, without Ethernet padding. Unchecked: see [`crate::packet::Packet::parse`].
    #[inline]
    #[must_use]
    pub const fn transport(&self) -> &'a [u8] {
        self.transport
    }

    /// Source address.
    #[inline]
    #[must_use]
    pub const fn src(&self) -> Gid {
        match &self.lower {
            Lower::V4(l) => l.ip.src(),
            Lower::V6(l) => l.ip.src(),
            Lower::Grh(g) => g.src(),
            Lower::Socket(m) => m.src,
        }
    }

    /// Destination address.
    #[inline]
    #[must_use]
    pub const fn dst(&self) -> Gid {
        match &self.lower {
            Lower::V4(l) => l.ip.dst(),
            Lower::V6(l) => l.ip.dst(),
            Lower::Grh(g) => g.dst(),
            Lower::Socket(m) => m.dst,
        }
    }

    /// UDP source port; 0 in RoCEv1.
    #[inline]
    #[must_use]
    pub fn src_port(&self) -> u16 {
        match &self.lower {
            Lower::V4(l) => l.udp.src_port(),
            Lower::V6(l) => l.udp.src_port(),
            Lower::Grh(_) => 0,
            Lower::Socket(m) => m.src_port,
        }
    }

    /// IPv4 TOS or IPv6 traffic class; 0 if a socket did not tell.
    #[inline]
    #[must_use]
    pub fn tos(&self) -> u8 {
        match &self.lower {
            Lower::V4(l) => l.ip.tos(),
            Lower::V6(l) => l.ip.tclass(),
            Lower::Grh(g) => g.tclass(),
            Lower::Socket(m) => m.tos,
        }
    }

    /// Congestion marking.
    #[inline]
    #[must_use]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_tos(self.tos())
    }

    /// TTL or hop limit; `None` if a socket did not tell.
    #[inline]
    #[must_use]
    pub const fn hop_limit(&self) -> Option<u8> {
        match &self.lower {
            Lower::V4(l) => Some(l.ip.ttl()),
            Lower::V6(l) => Some(l.ip.hop_limit()),
            Lower::Grh(g) => Some(g.hop_limit()),
            Lower::Socket(m) => m.hop_limit,
        }
    }

    /// IPv6 flow label; 0 over IPv4 and from a socket.
    #[inline]
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        match &self.lower {
            Lower::V6(l) => l.ip.flow_label(),
            Lower::Grh(g) => g.flow_label(),
            Lower::V4(_) | Lower::Socket(_) => 0,
        }
    }

    /// IPv4 identification, where it is visible.
    #[inline]
    #[must_use]
    pub fn ip_id(&self) -> Option<u16> {
        match &self.lower {
            Lower::V4(l) => Some(l.ip.id()),
            _ => None,
        }
    }

    /// 802.1Q tag.
    #[inline]
    #[must_use]
    pub const fn vlan(&self) -> Option<VlanTci> {
        self.vlan
    }

    /// Ethernet source, if the frame has an Ethernet header.
    #[inline]
    #[must_use]
    pub fn src_mac(&self) -> Option<MacAddr> {
        self.eth.map(EthHdr::src)
    }

    /// Ethernet destination, if the frame has an Ethernet header.
    #[inline]
    #[must_use]
    pub fn dst_mac(&self) -> Option<MacAddr> {
        self.eth.map(EthHdr::dst)
    }

    /// Whether this is RoCEv1; only the `dissect` functions let it through.
    #[inline]
    #[must_use]
    pub const fn is_roce_v1(&self) -> bool {
        matches!(self.lower, Lower::Grh(_))
    }

    /// Whether the IPv4 header checksum is right; true without IPv4 header.
    #[must_use]
    pub fn ip_checksum_ok(&self) -> bool {
        match &self.lower {
            Lower::V4(l) => l.ip.checksum_ok(),
            _ => true,
        }
    }

    /// Whether the ICRC is that of the bytes received.
    ///
    /// Behind an Ethernet header this is exact. A socket over IPv4 hides the identification: it is
    /// taken as 0; if the ICRC differs, it must differ as an identification of 1 ..=
    /// [`MAX_GSO_ID`] would make it, which a corrupted packet does once in 2^26.
    #[inline]
    #[must_use]
    pub fn icrc_ok(&self) -> bool {
        let Some((covered, received)) = self.transport.split_last_chunk::<ICRC_LEN>() else {
            return false;
        };
        let Some(computed) = self.icrc_over(covered) else {
            return false;
        };
        *received == computed || self.is_segment(computed, *received)
    }

    /// The ICRC these bytes should have; identification 0 is assumed where a socket hides it.
    /// `None` if the transport part is too short for BTH and ICRC.
    #[must_use]
    pub fn icrc_computed(&self) -> Option<[u8; ICRC_LEN]> {
        let (covered, _) = self.transport.split_last_chunk::<ICRC_LEN>()?;
        self.icrc_over(covered)
    }

    /// ICRC over the headers below BTH and `covered`.
    #[inline]
    fn icrc_over(&self, covered: &[u8]) -> Option<[u8; ICRC_LEN]> {
        match &self.lower {
            Lower::V4(l) => icrc::over_v4(l, covered),
            Lower::V6(l) => icrc::over_v6(l, covered),
            Lower::Grh(g) => icrc::over_grh(g, covered),
            Lower::Socket(m) => match socket_lower(m, self.transport.len())? {
                SocketLower::V4(l) => icrc::over_v4(&l, covered),
                SocketLower::V6(l) => icrc::over_v6(&l, covered),
            },
        }
    }

    /// Whether two ICRCs differ by the identification of a segment of one `UDP_SEGMENT` send.
    #[inline(never)]
    fn is_segment(&self, computed: [u8; ICRC_LEN], received: [u8; ICRC_LEN]) -> bool {
        let Lower::Socket(meta) = &self.lower else {
            return false;
        };
        if meta.dst.v4().is_none() {
            return false;
        }
        let delta = u32::from_le_bytes(computed) ^ u32::from_le_bytes(received);
        let after_id = bytes_after_id(self.transport.len());
        id_of_delta(after_id, delta).is_some_and(|id| (1..=MAX_GSO_ID).contains(&id))
    }

    /// The exact bytes the ICRC covers, masked, with the eight bytes of ones in front. The slow
    /// twin of the computation in place, for tests and tools: it allocates.
    #[must_use]
    pub fn icrc_input(&self) -> Vec<u8> {
        let mut out = vec![0xff; 8];
        let start = out.len();
        match &self.lower {
            Lower::V4(l) => out.extend_from_slice(l.as_bytes()),
            Lower::V6(l) => out.extend_from_slice(l.as_bytes()),
            Lower::Grh(g) => out.extend_from_slice(g.as_bytes()),
            Lower::Socket(m) => match socket_lower(m, self.transport.len()) {
                Some(SocketLower::V4(l)) => out.extend_from_slice(l.as_bytes()),
                Some(SocketLower::V6(l)) => out.extend_from_slice(l.as_bytes()),
                None => {}
            },
        }
        let bth = out.len();
        let covered = self.transport.len().saturating_sub(ICRC_LEN);
        out.extend_from_slice(self.transport.get(..covered).unwrap_or_default());
        let v4 = [
            (start + 1, 0xff),
            (start + 8, 0xff),
            (start + 10, 0xff),
            (start + 11, 0xff),
        ];
        let v6 = [
            (start, 0x0f),
            (start + 1, 0xff),
            (start + 2, 0xff),
            (start + 3, 0xff),
        ];
        let is_v4 = bth - start == size_of::<LowerV4>();
        let ip = if is_v4 { v4 } else { v6 };
        let hop = if is_v4 {
            (start + 8, 0xff)
        } else {
            (start + 7, 0xff)
        };
        let mut masks = ip.to_vec();
        masks.extend([hop, (bth + 4, 0xff)]);
        if !self.is_roce_v1() {
            masks.extend([(bth.saturating_sub(2), 0xff), (bth.saturating_sub(1), 0xff)]);
        }
        for (at, mask) in masks {
            if let Some(byte) = out.get_mut(at) {
                *byte |= mask;
            }
        }
        out
    }
}

/// Covered bytes behind the IPv4 identification in front of a transport part of `len` bytes.
#[inline]
#[must_use]
pub const fn bytes_after_id(transport_len: usize) -> usize {
    // The identification ends at offset 6 of the IPv4 header.
    (Ipv4Hdr::LEN - 6 + UdpHdr::LEN + transport_len).saturating_sub(ICRC_LEN)
}

enum SocketLower {
    V4(LowerV4),
    V6(LowerV6),
}

/// The headers that must have been below a datagram; `None` if it is longer than IP allows.
#[inline]
fn socket_lower(m: &UdpMeta, transport_len: usize) -> Option<SocketLower> {
    let udp_len = u16::try_from(transport_len + UdpHdr::LEN).ok()?;
    let udp = UdpHdr::new(m.src_port, udp_len);
    // TOS, TTL, class, label and hop limit are masked: any value does.
    Some(match (m.src.v4(), m.dst.v4()) {
        (Some(src), Some(dst)) => {
            let mut ip = Ipv4Hdr::new(src, dst, 0, 0, 0);
            ip.total_len.set(udp_len.checked_add(20)?);
            SocketLower::V4(LowerV4 { ip, udp })
        }
        _ => {
            let mut ip = Ipv6Hdr::new(m.src, m.dst, 0, 0, PROTO_UDP, 0);
            ip.payload_len.set(udp_len);
            SocketLower::V6(LowerV6 { ip, udp })
        }
    })
}

type Ethernet<'a> = (&'a EthHdr, Option<VlanTci>, u16, &'a [u8]);

#[inline]
fn split_ethernet(bytes: &[u8]) -> Result<Ethernet<'_>, FrameError> {
    let (eth, l3) = EthHdr::ref_from_prefix(bytes).map_err(|_| FrameError::Short)?;
    split_vlan(eth.ethertype(), l3).map(|(vlan, kind, l3)| (eth, vlan, kind, l3))
}

#[inline]
fn split_vlan(kind: u16, bytes: &[u8]) -> Result<(Option<VlanTci>, u16, &[u8]), FrameError> {
    if kind != ethertype::VLAN {
        return Ok((None, kind, bytes));
    }
    let (tag, l3) = VlanHdr::ref_from_prefix(bytes).map_err(|_| FrameError::Short)?;
    Ok((Some(tag.tci()), tag.ethertype(), l3))
}

/// IPv4 and UDP headers and the UDP payload; the header checksum is left to the caller.
#[inline]
fn split_v4(l3: &[u8]) -> Result<(&LowerV4, &[u8]), FrameError> {
    let Ok((lower, rest)) = LowerV4::ref_from_prefix(l3) else {
        return Err(short_v4(l3));
    };
    if lower.ip.protocol() != PROTO_UDP {
        return Err(FrameError::NotRoce);
    }
    if !lower.ip.has_no_options() || lower.ip.is_fragment() {
        return Err(odd_v4(lower, l3));
    }
    if lower.udp.dst_port() != ROCE_PORT {
        return Err(FrameError::NotRoce);
    }
    let udp_len = usize::from(lower.udp.len());
    if usize::from(lower.ip.total_len()) != Ipv4Hdr::LEN + udp_len {
        return Err(FrameError::Length);
    }
    Ok((lower, udp_payload(rest, udp_len)?))
}

/// What is wrong with IPv4 options or a fragment, or that it is traffic of others: these headers
/// are legal, only RoCE does not use them.
#[cold]
fn odd_v4(lower: &LowerV4, l3: &[u8]) -> FrameError {
    if lower.ip.fragment_offset() != 0 {
        // The ports are in the first fragment only.
        return FrameError::NotRoce;
    }
    let udp = l3.get(lower.ip.header_len()..).unwrap_or_default();
    match UdpHdr::ref_from_prefix(udp) {
        Ok((udp, _)) if udp.dst_port() != ROCE_PORT => FrameError::NotRoce,
        _ if lower.ip.is_fragment() => FrameError::Fragment,
        _ => FrameError::IpHeader,
    }
}

/// Whether a packet too short for IPv4 and UDP headers is ours at all.
#[cold]
fn short_v4(l3: &[u8]) -> FrameError {
    match Ipv4Hdr::ref_from_prefix(l3) {
        Ok((ip, _)) if ip.protocol() != PROTO_UDP => FrameError::NotRoce,
        _ => FrameError::Short,
    }
}

#[inline]
fn split_v6(l3: &[u8]) -> Result<(Lower<'_>, &[u8]), FrameError> {
    let Ok((lower, rest)) = LowerV6::ref_from_prefix(l3) else {
        return Err(short_v6(l3));
    };
    // Extension headers are not followed: RoCE senders use none, and a fragment header is one.
    if lower.ip.next_header() != PROTO_UDP || lower.udp.dst_port() != ROCE_PORT {
        return Err(FrameError::NotRoce);
    }
    if lower.ip.version() != 6 {
        return Err(FrameError::IpHeader);
    }
    if lower.ip.payload_len() != lower.udp.len() {
        return Err(FrameError::Length);
    }
    Ok((
        Lower::V6(lower),
        udp_payload(rest, usize::from(lower.udp.len()))?,
    ))
}

/// Whether a packet too short for IPv6 and UDP headers is ours at all.
#[cold]
fn short_v6(l3: &[u8]) -> FrameError {
    match Ipv6Hdr::ref_from_prefix(l3) {
        Ok((ip, _)) if ip.next_header() != PROTO_UDP => FrameError::NotRoce,
        _ => FrameError::Short,
    }
}

#[inline]
fn udp_payload(rest: &[u8], udp_len: usize) -> Result<&[u8], FrameError> {
    let len = udp_len.checked_sub(UdpHdr::LEN).ok_or(FrameError::Length)?;
    rest.get(..len).ok_or(FrameError::Length)
}

fn split_grh(l3: &[u8]) -> Result<(Lower<'_>, &[u8]), FrameError> {
    let (grh, rest) = Ipv6Hdr::ref_from_prefix(l3).map_err(|_| FrameError::Short)?;
    if grh.version() != 6 || grh.next_header() != NEXT_HEADER_IBA {
        return Err(FrameError::IpHeader);
    }
    let transport = rest
        .get(..usize::from(grh.payload_len()))
        .ok_or(FrameError::Length)?;
    Ok((Lower::Grh(grh), transport))
}
