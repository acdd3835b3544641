//! Wire quantities as types: a PSN is not a QPN is not a key.
//!
//! Every field is private, so a value that exists is in range. `Psn` has no `Ord` on purpose:
//! 24-bit serial numbers have no total order, only [`Psn::distance_to`] within half the space.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

const MASK_24: u32 = 0x00ff_ffff;

/// Packet sequence number: 24 bits, modular (W15).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `v`.
    #[must_use]
    pub const fn new(v: u32) -> Self {
        Self(v & MASK_24)
    }

    /// The number, 0 ..= 0xff_ffff.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// `self + n`, modulo 2^24.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & MASK_24)
    }

    /// `self - n`, modulo 2^24.
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n) & MASK_24)
    }

    /// Signed distance from `self` to `other`, -2^23 .. 2^23: how far ahead `other` is.
    #[must_use]
    #[allow(
        clippy::cast_possible_wrap,
        reason = "the serial-number trick: sign of the shifted difference"
    )]
    pub const fn distance_to(self, other: Self) -> i32 {
        (other.0.wrapping_sub(self.0) << 8) as i32 >> 8
    }

    /// Whether `self` comes before `other` in serial order.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.distance_to(other) > 0
    }

    /// Whether `self` lies in `first .. first + n`.
    #[must_use]
    pub const fn is_within(self, first: Self, n: u32) -> bool {
        (self.0.wrapping_sub(first.0) & MASK_24) < n
    }
}

/// Message sequence number: 24 bits, counts completely executed request messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Msn(u32);

impl Msn {
    /// The low 24 bits of `v`.
    #[must_use]
    pub const fn new(v: u32) -> Self {
        Self(v & MASK_24)
    }

    /// The number, 0 ..= 0xff_ffff.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The next number, modulo 2^24.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }
}

/// Queue pair number, 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// QP1, the general services interface.
    pub const GSI: Self = Self(1);
    /// Destination of every multicast datagram.
    pub const MULTICAST: Self = Self(MASK_24);

    /// The low 24 bits of `v`.
    #[must_use]
    pub const fn new(v: u32) -> Self {
        Self(v & MASK_24)
    }

    /// The number, 0 ..= 0xff_ffff.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// XRC shared receive queue number, 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Srqn(u32);

impl Srqn {
    /// The low 24 bits of `v`.
    #[must_use]
    pub const fn new(v: u32) -> Self {
        Self(v & MASK_24)
    }

    /// The number, 0 ..= 0xff_ffff.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// Partition key: bit 15 is full membership, the low 15 bits name the partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PKey(u16);

impl PKey {
    /// The default partition with full membership, the only one RoCE uses.
    pub const DEFAULT: Self = Self(0xffff);

    /// Any 16-bit value.
    #[must_use]
    pub const fn new(v: u16) -> Self {
        Self(v)
    }

    /// The 16-bit value.
    #[must_use]
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Whether two members may talk: same non-zero partition, at least one side full.
    #[must_use]
    pub const fn matches(self, other: Self) -> bool {
        let base = self.0 & 0x7fff;
        base != 0 && base == other.0 & 0x7fff && (self.0 | other.0) & 0x8000 != 0
    }
}

impl Default for PKey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

macro_rules! key32 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            /// Any 32-bit value.
            #[must_use]
            pub const fn new(v: u32) -> Self {
                Self(v)
            }

            /// The 32-bit value.
            #[must_use]
            pub const fn value(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#010x})"), self.0)
            }
        }
    };
}

key32!(
    /// Queue key of a datagram QP.
    QKey
);
key32!(
    /// Local memory key: index in the upper 24 bits, consumer part in the low 8.
    LKey
);
key32!(
    /// Remote memory key: index in the upper 24 bits, consumer part in the low 8.
    RKey
);

/// Virtual address in a remote or local region; every 64-bit value is possible on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Va(u64);

impl Va {
    /// Any 64-bit value.
    #[must_use]
    pub const fn new(v: u64) -> Self {
        Self(v)
    }

    /// The 64-bit value.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }

    /// `self + n`, or `None` past the end of the address space.
    #[must_use]
    pub const fn checked_add(self, n: u64) -> Option<Self> {
        match self.0.checked_add(n) {
            Some(v) => Some(Self(v)),
            None => None,
        }
    }

    /// `self + n` modulo 2^64; only for addresses whose range was checked before.
    #[must_use]
    pub const fn wrapping_add(self, n: u64) -> Self {
        Self(self.0.wrapping_add(n))
    }
}

/// A GID as RoCEv2 uses it: an IPv6 address, or an IPv4 address mapped into `::ffff:0:0/96`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid([u8; 16]);

impl Gid {
    /// From the 16 bytes in network order.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes in network order.
    #[must_use]
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// From four IPv4 bytes.
    #[must_use]
    pub const fn from_v4(v4: [u8; 4]) -> Self {
        // As one number: the receive path makes two of these per packet, and sixteen single bytes
        // cost twice as many instructions.
        let mapped = 0xffff_0000_0000 | u32::from_be_bytes(v4) as u128;
        Self(mapped.to_be_bytes())
    }

    /// The IPv4 bytes of a mapped GID.
    #[must_use]
    pub const fn v4(self) -> Option<[u8; 4]> {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }

    /// The IP address packets with this GID carry.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self::from_v4(v4.octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({})", self.ip())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

/// Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MacAddr([u8; 6]);

impl MacAddr {
    /// From the six bytes in wire order.
    #[must_use]
    pub const fn new(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }

    /// The six bytes in wire order.
    #[must_use]
    pub const fn bytes(self) -> [u8; 6] {
        self.0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacAddr({self})")
    }
}

/// 802.1Q tag control information: PCP(3) DEI(1) VID(12).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct VlanTci(u16);

impl VlanTci {
    /// From the 16 bits on the wire.
    #[must_use]
    pub const fn new(v: u16) -> Self {
        Self(v)
    }

    /// A tag of VLAN `vid` (its low 12 bits) with priority `pcp` (its low 3 bits).
    #[must_use]
    pub const fn tagged(vid: u16, pcp: u8) -> Self {
        Self((pcp as u16 & 7) << 13 | (vid & 0x0fff))
    }

    /// The 16 bits on the wire.
    #[must_use]
    pub const fn value(self) -> u16 {
        self.0
    }

    /// VLAN id, 0 ..= 4095.
    #[must_use]
    pub const fn vid(self) -> u16 {
        self.0 & 0x0fff
    }

    /// Priority code point, 0 ..= 7.
    #[must_use]
    pub const fn pcp(self) -> u8 {
        (self.0 >> 13) as u8
    }
}

/// Path MTU: payload bytes per packet, and its enum value 1 ..= 5 in verbs and CM messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl PathMtu {
    /// All five, ascending.
    pub const ALL: [Self; 5] = [
        Self::Mtu256,
        Self::Mtu512,
        Self::Mtu1024,
        Self::Mtu2048,
        Self::Mtu4096,
    ];

    /// Bytes a RoCEv2 packet may add to its payload within the IP MTU: the kernel's CM counts
    /// GRH 40, UDP 8, BTH 12, XRC 4, AtomicETH 28 and ICRC 4 (W5).
    pub const OVERHEAD: usize = 96;

    /// Payload bytes per packet.
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// Binary logarithm of [`PathMtu::bytes`].
    #[must_use]
    pub const fn shift(self) -> u32 {
        7 + self as u32
    }

    /// From the number of bytes; `None` unless one of the five.
    #[must_use]
    pub fn from_bytes(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// From the verbs enum value 1 ..= 5.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|m| *m as u8 == code)
    }

    /// The largest path MTU an IP MTU carries, with the same allowance as Linux `rdma_cm`.
    #[must_use]
    pub fn for_link_mtu(ip_mtu: usize) -> Option<Self> {
        Self::ALL
            .into_iter()
            .rev()
            .find(|m| m.bytes() + Self::OVERHEAD <= ip_mtu)
    }

    /// PSNs a SEND, WRITE or READ of `len` bytes takes: at least one.
    #[must_use]
    pub const fn packets(self, len: u32) -> u32 {
        if len == 0 {
            return 1;
        }
        ((len - 1) >> self.shift()) + 1
    }
}

macro_rules! debug_hex {
    ($($name:ident)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    )*};
}
debug_hex!(Psn Msn Qpn Srqn PKey Va);

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule W15.
    #[test]
    fn psn_is_a_serial_number() {
        let a = Psn::new(0xff_fffe);
        assert_eq!(a.add(3), Psn::new(1));
        assert_eq!(a.distance_to(Psn::new(1)), 3);
        assert_eq!(Psn::new(1).distance_to(a), -3);
        assert!(a.is_before(Psn::new(0)));
        assert!(!Psn::new(0).is_before(a));
        assert!(Psn::new(2).is_within(a, 5));
        assert!(!Psn::new(3).is_within(a, 5));
        assert_eq!(Psn::new(0).distance_to(Psn::new(0x80_0000)), -0x80_0000);
    }

    /// Rule W23.
    #[test]
    fn pkey_needs_one_full_member() {
        assert!(PKey::DEFAULT.matches(PKey::new(0x7fff)));
        assert!(!PKey::new(0x7fff).matches(PKey::new(0x7fff)));
        assert!(!PKey::new(0x8000).matches(PKey::new(0x8000)));
    }

    /// Rules W5, W16.
    #[test]
    fn path_mtu_sizes() {
        assert_eq!(
            PathMtu::ALL.map(PathMtu::bytes),
            [256, 512, 1024, 2048, 4096]
        );
        assert_eq!(PathMtu::for_link_mtu(1500), Some(PathMtu::Mtu1024));
        assert_eq!(PathMtu::for_link_mtu(4191), Some(PathMtu::Mtu2048));
        assert_eq!(PathMtu::for_link_mtu(4192), Some(PathMtu::Mtu4096));
        assert_eq!(PathMtu::for_link_mtu(300), None);
        assert_eq!(PathMtu::Mtu1024.packets(0), 1);
        assert_eq!(PathMtu::Mtu1024.packets(1025), 2);
    }

    /// Rule W21.
    #[test]
    fn gid_maps_ipv4() {
        let gid = Gid::from("192.0.2.1".parse::<IpAddr>().unwrap());
        assert_eq!(gid.v4(), Some([192, 0, 2, 1]));
        assert_eq!(gid.to_string(), "192.0.2.1");
        assert_eq!(Gid::from("fe80::1".parse::<IpAddr>().unwrap()).v4(), None);
    }
}
