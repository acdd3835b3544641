//! IPv4 and IPv6 headers as RoCEv2 uses them, and the GRH of RoCEv1, which is an IPv6 header.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::newtypes::Gid;

/// IP protocol number of UDP.
pub const PROTO_UDP: u8 = 17;
/// Next-header value of a RoCEv1 GRH: an IB transport header follows.
pub const NEXT_HEADER_IBA: u8 = 0x1b;
/// Version 4, five words: the only first byte RoCEv2 over IPv4 may have (no options).
pub const V4_NO_OPTIONS: u8 = 0x45;

const DONT_FRAGMENT: u16 = 0x4000;
/// More-fragments flag and fragment offset.
const FRAGMENT: u16 = 0x3fff;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// IPv4 header without options, 20 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Ipv4Hdr {
    version_ihl: u8,
    tos: u8,
    pub(crate) total_len: U16,
    id: U16,
    flags_offset: U16,
    ttl: u8,
    protocol: u8,
    pub(crate) checksum: U16,
    src: [u8; 4],
    dst: [u8; 4],
}

impl Ipv4Hdr {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<Self>();

    /// A UDP header with DF set, total length and checksum zero.
    #[must_use]
    pub fn new(src: [u8; 4], dst: [u8; 4], tos: u8, ttl: u8, id: u16) -> Self {
        Self {
            version_ihl: V4_NO_OPTIONS,
            tos,
            total_len: U16::ZERO,
            id: U16::new(id),
            flags_offset: U16::new(DONT_FRAGMENT),
            ttl,
            protocol: PROTO_UDP,
            checksum: U16::ZERO,
            src,
            dst,
        }
    }

    /// Version and header length are those of IPv4 without options.
    #[inline]
    #[must_use]
    pub const fn has_no_options(&self) -> bool {
        self.version_ihl == V4_NO_OPTIONS
    }

    /// DSCP and ECN.
    #[inline]
    #[must_use]
    pub const fn tos(&self) -> u8 {
        self.tos
    }

    /// Bytes of header and payload.
    #[inline]
    #[must_use]
    pub fn total_len(&self) -> u16 {
        self.total_len.get()
    }

    /// Identification; covered by the ICRC.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id.get()
    }

    /// Whether this is one of several fragments.
    #[inline]
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.flags_offset.get() & FRAGMENT != 0
    }

    /// Offset of this fragment, in units of eight bytes.
    #[inline]
    #[must_use]
    pub fn fragment_offset(&self) -> u16 {
        self.flags_offset.get() & FRAGMENT_OFFSET
    }

    /// Bytes of this header with its options, as it says.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0x0f) * 4
    }

    /// Hop limit.
    #[inline]
    #[must_use]
    pub const fn ttl(&self) -> u8 {
        self.ttl
    }

    /// Protocol of the payload.
    #[inline]
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Source as a mapped GID.
    #[inline]
    #[must_use]
    pub const fn src(&self) -> Gid {
        Gid::from_v4(self.src)
    }

    /// Destination as a mapped GID.
    #[inline]
    #[must_use]
    pub const fn dst(&self) -> Gid {
        Gid::from_v4(self.dst)
    }

    /// One's complement sum of all words, not folded; folded it is 0xffff in a good header.
    #[inline]
    #[must_use]
    pub fn sum(&self) -> u32 {
        // Five words of 32 bits, whose carries a u64 collects: fewer steps than ten of 16.
        let words: [U32; 5] = zerocopy::transmute!(*self);
        let sum: u64 = words.iter().map(|w| u64::from(w.get())).sum();
        let sum = (sum & 0xffff_ffff) + (sum >> 32);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "each half is at most 17 bits after folding"
        )]
        let sum = ((sum & 0xffff) + (sum >> 16)) as u32;
        sum
    }

    /// Whether the header checksum is right.
    #[inline]
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        fold(self.sum()) == 0xffff
    }
}

/// A 32-bit sum of 16-bit words folded to 16 bits.
#[inline]
#[allow(
    clippy::cast_possible_truncation,
    reason = "after two folds no carry is left"
)]
pub(crate) const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// IPv6 header, 40 bytes; also the GRH of RoCEv1.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Ipv6Hdr {
    version_class_flow: U32,
    pub(crate) payload_len: U16,
    next_header: u8,
    hop_limit: u8,
    src: [u8; 16],
    dst: [u8; 16],
}

impl Ipv6Hdr {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<Self>();

    /// A header of payload length zero; the flow label is cut to 20 bits.
    #[must_use]
    pub fn new(src: Gid, dst: Gid, tclass: u8, flow: u32, next: u8, hop_limit: u8) -> Self {
        let bits = 6 << 28 | u32::from(tclass) << 20 | flow & 0x000f_ffff;
        Self {
            version_class_flow: U32::new(bits),
            payload_len: U16::ZERO,
            next_header: next,
            hop_limit,
            src: src.bytes(),
            dst: dst.bytes(),
        }
    }

    /// IP version, 6 in a good header.
    #[inline]
    #[must_use]
    pub fn version(&self) -> u8 {
        self.version_class_flow.as_bytes()[0] >> 4
    }

    /// DSCP and ECN.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "cut to 8 bits on purpose")]
    pub fn tclass(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }

    /// Flow label, 20 bits.
    #[inline]
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & 0x000f_ffff
    }

    /// Bytes after this header.
    #[inline]
    #[must_use]
    pub fn payload_len(&self) -> u16 {
        self.payload_len.get()
    }

    /// Type of what follows.
    #[inline]
    #[must_use]
    pub const fn next_header(&self) -> u8 {
        self.next_header
    }

    /// Hop limit.
    #[inline]
    #[must_use]
    pub const fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Source.
    #[inline]
    #[must_use]
    pub const fn src(&self) -> Gid {
        Gid::new(self.src)
    }

    /// Destination.
    #[inline]
    #[must_use]
    pub const fn dst(&self) -> Gid {
        Gid::new(self.dst)
    }
}

const _: () = assert!(Ipv4Hdr::LEN == 20 && Ipv6Hdr::LEN == 40);
