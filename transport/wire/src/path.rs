//! Where packets go: the address vector of a queue pair.

use crate::newtypes::{Gid, MacAddr, VlanTci};

/// Path from one end to the other, resolved down to the Ethernet addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// Own address; its family decides between IPv4 and IPv6.
    pub src: Gid,
    /// The peer's address, of the same family.
    pub dst: Gid,
    /// Own Ethernet address; unused below a UDP socket.
    pub src_mac: MacAddr,
    /// Ethernet address of the next hop; unused below a UDP socket.
    pub dst_mac: MacAddr,
    /// 802.1Q tag, if the path is in a VLAN.
    pub vlan: Option<VlanTci>,
    /// DSCP(6) ECN(2), sent as given.
    pub traffic_class: u8,
    /// TTL or hop limit, at least 1.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; unused over IPv4.
    pub flow_label: u32,
    /// UDP source port; constant over the life of a connection, or packets overtake each other.
    pub src_port: u16,
}

impl AddressVector {
    /// Whether packets are IPv4.
    #[inline]
    #[must_use]
    pub const fn is_v4(&self) -> bool {
        self.dst.v4().is_some()
    }
}
