//! UDP header.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// UDP header, 8 bytes. RoCEv2 senders leave the checksum zero, over IPv6 too.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct UdpHdr {
    src_port: U16,
    dst_port: U16,
    pub(crate) len: U16,
    checksum: U16,
}

impl UdpHdr {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<Self>();

    /// A header to port 4791 without checksum; `len` counts the header.
    #[must_use]
    pub fn new(src_port: u16, len: u16) -> Self {
        Self {
            src_port: U16::new(src_port),
            dst_port: U16::new(ROCE_PORT),
            len: U16::new(len),
            checksum: U16::ZERO,
        }
    }

    /// Source port: entropy for multipath, means nothing to the receiver.
    #[inline]
    #[must_use]
    pub fn src_port(&self) -> u16 {
        self.src_port.get()
    }

    /// Destination port.
    #[inline]
    #[must_use]
    pub fn dst_port(&self) -> u16 {
        self.dst_port.get()
    }

    /// Bytes of header and payload.
    #[inline]
    #[must_use]
    #[allow(
        clippy::len_without_is_empty,
        reason = "a header field, not a collection"
    )]
    pub fn len(&self) -> u16 {
        self.len.get()
    }
}

const _: () = assert!(UdpHdr::LEN == 8);
