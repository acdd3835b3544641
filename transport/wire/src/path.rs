//! Where packets go: the address a program gives, and the address vector it is resolved to.

use crate::newtypes::{Gid, MacAddr, Qpn, VlanTci};
use serde::{Deserialize, Serialize};

/// Hop limit of a path that asks for none. Never 1: such packets do not get past a router.
pub const HOP_LIMIT_DEFAULT: u8 = 64;

/// Lowest UDP source port of RoCEv2 packets; the highest is 0xffff.
pub const SRC_PORT_MIN: u16 = 0xc000;

/// Highest service level.
pub const SL_MAX: u8 = 15;

/// Largest flow label.
pub const FLOW_LABEL_MAX: u32 = 0x000f_ffff;

/// Path from one end to the other, resolved down to the Ethernet addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

    /// VLAN id of its packets, 0 without VLAN: what a frame without tag and one that carries only
    /// a priority have in common.
    #[inline]
    #[must_use]
    pub const fn vid(&self) -> u16 {
        match self.vlan {
            Some(tci) => tci.vid(),
            None => 0,
        }
    }
}

/// Address of a peer as a program gives it: `ibv_ah_attr` with its GRH, which RoCE always has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AhAttr {
    /// The peer, or a group.
    pub dgid: Gid,
    /// Which of the port's addresses packets come from; it decides on the VLAN too.
    pub sgid_index: u32,
    /// Service level, 0 ..= 15; its low three bits are the priority in the VLAN tag.
    pub sl: u8,
    /// DSCP(6) ECN(2), sent as given.
    pub traffic_class: u8,
    /// Flow label, 20 bits; if not 0, the UDP source port follows from it.
    pub flow_label: u32,
    /// TTL or hop limit; 0 stands for [`HOP_LIMIT_DEFAULT`].
    pub hop_limit: u8,
}

impl AhAttr {
    /// To `dgid` from the first address of the port, everything else as usual.
    #[must_use]
    pub const fn to(dgid: Gid) -> Self {
        Self {
            dgid,
            sgid_index: 0,
            sl: 0,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: HOP_LIMIT_DEFAULT,
        }
    }
}

/// Whose packets a path carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Flow {
    /// Those of a connected queue pair.
    Connected {
        /// Own number.
        local: Qpn,
        /// Number of the peer.
        peer: Qpn,
    },
    /// Datagrams to whomever.
    Datagrams,
}

impl Flow {
    /// UDP source port for a path with this flow label, 0xc000 ..= 0xffff: by the label if there
    /// is one, else by the two numbers, the same in both directions (`ib_core`: `rdma_calc_flow_label`
    /// and `rdma_flow_label_to_udp_sport`). Datagrams without label all take the lowest.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "cut to 14 bits")]
    pub const fn src_port(self, flow_label: u32) -> u16 {
        let label = match self {
            _ if flow_label != 0 => flow_label & FLOW_LABEL_MAX,
            Self::Datagrams => 0,
            Self::Connected { local, peer } => {
                let mut v = local.value() as u64 * peer.value() as u64;
                v ^= v >> 20;
                v ^= v >> 40;
                v as u32 & FLOW_LABEL_MAX
            }
        };
        let folded = (label & 0x3fff) ^ (label >> 14);
        SRC_PORT_MIN | folded as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule W4.
    #[test]
    fn source_ports_are_those_of_ib_core() {
        let flow = |local, peer| Flow::Connected {
            local: Qpn::new(local),
            peer: Qpn::new(peer),
        };
        assert_eq!(flow(0x11, 0x12).src_port(0), 0xc132);
        assert_eq!(flow(0x12, 0x11).src_port(0), 0xc132);
        assert_eq!(flow(0x11, 0x12).src_port(0xabcde), 0xfcf4);
        assert_eq!(Flow::Datagrams.src_port(0xabcde), 0xfcf4);
        assert_eq!(Flow::Datagrams.src_port(0), 0xc000);
        for label in [1, 0x3fff, FLOW_LABEL_MAX, u32::MAX] {
            assert!(Flow::Datagrams.src_port(label) >= SRC_PORT_MIN);
        }
    }

    #[test]
    fn no_tag_and_a_mere_priority_are_the_same_vlan() {
        let mut av = AddressVector {
            src: Gid::new([0; 16]),
            dst: Gid::new([0; 16]),
            src_mac: MacAddr::default(),
            dst_mac: MacAddr::default(),
            vlan: None,
            traffic_class: 0,
            hop_limit: HOP_LIMIT_DEFAULT,
            flow_label: 0,
            src_port: SRC_PORT_MIN,
        };
        assert_eq!(av.vid(), 0);
        av.vlan = Some(VlanTci::tagged(0, 5));
        assert_eq!(av.vid(), 0);
        av.vlan = Some(VlanTci::tagged(100, 3));
        assert_eq!((av.vid(), av.vlan.map(VlanTci::pcp)), (100, Some(3)));
    }
}
