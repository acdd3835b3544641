//! Ethernet header and 802.1Q tag.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::newtypes::{MacAddr, VlanTci};

/// Ethertypes this stack looks at.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// 802.1Q tag.
    pub const VLAN: u16 = 0x8100;
    /// RoCEv1: a GRH follows, neither IP nor UDP.
    pub const ROCE_V1: u16 = 0x8915;
}

/// Ethernet header, 14 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct EthHdr {
    dst: [u8; 6],
    src: [u8; 6],
    ethertype: U16,
}

impl EthHdr {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<Self>();

    /// A header.
    #[must_use]
    pub fn new(dst: MacAddr, src: MacAddr, ethertype: u16) -> Self {
        Self {
            dst: dst.bytes(),
            src: src.bytes(),
            ethertype: U16::new(ethertype),
        }
    }

    /// Destination address.
    #[inline]
    #[must_use]
    pub const fn dst(&self) -> MacAddr {
        MacAddr::new(self.dst)
    }

    /// Source address.
    #[inline]
    #[must_use]
    pub const fn src(&self) -> MacAddr {
        MacAddr::new(self.src)
    }

    /// Type of what follows.
    #[inline]
    #[must_use]
    pub fn ethertype(&self) -> u16 {
        self.ethertype.get()
    }
}

/// The four bytes an 802.1Q tag inserts, counted from its TCI: TCI and the inner ethertype.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct VlanHdr {
    tci: U16,
    ethertype: U16,
}

impl VlanHdr {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<Self>();

    /// A tag.
    #[must_use]
    pub fn new(tci: VlanTci, ethertype: u16) -> Self {
        Self {
            tci: U16::new(tci.value()),
            ethertype: U16::new(ethertype),
        }
    }

    /// Priority, DEI and VLAN id.
    #[inline]
    #[must_use]
    pub fn tci(&self) -> VlanTci {
        VlanTci::new(self.tci.get())
    }

    /// Type of what follows the tag.
    #[inline]
    #[must_use]
    pub fn ethertype(&self) -> u16 {
        self.ethertype.get()
    }
}

const _: () = assert!(EthHdr::LEN == 14 && VlanHdr::LEN == 4);
