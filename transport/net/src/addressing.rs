//! From a GID index and the peer's GID to the headers of packets, and notice of what happens to
//! them: addresses that come and go, a link that fails, ICMP errors.
//!
//! Slow path: it makes system calls. Resolve when connecting or making an address handle; call
//! [`Addressing::poll`] now and then, and hand its events to the engine.

use std::io;

use thiserror::Error;
use xroce_api::{GidEntry, IcmpError};
use xroce_wire::newtypes::{Gid, MacAddr, VlanTci};
use xroce_wire::path::{AddressVector, AhAttr, FLOW_LABEL_MAX, Flow, HOP_LIMIT_DEFAULT, SL_MAX};

use crate::gids::{Change, GidTable, Watch};
use crate::icmp::IcmpWatch;
use crate::neigh::{self, NeighError};

/// A neighbour that the kernel does not know yet is waited for so long, in ms.
pub const RESOLVE_MS: u64 = 3_000;

/// Why an address could not be resolved.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// There is no address at that index (any more).
    #[error("the port has no address at GID index {index}; there are: {}", have.join(", "))]
    NoGid {
        /// Index given.
        index: u32,
        /// The ones there are, with their index.
        have: Vec<String>,
    },
    /// One address is IPv4, the other IPv6.
    #[error("{dgid} cannot be reached from {sgid} (GID index {index}): one is IPv4, one IPv6")]
    Family {
        /// Index given.
        index: u32,
        /// Address there.
        sgid: Gid,
        /// Address of the peer.
        dgid: Gid,
    },
    /// More than 4 bits.
    #[error("service level {0} exceeds {SL_MAX}")]
    ServiceLevel(u8),
    /// More than 20 bits.
    #[error("flow label {0:#x} exceeds {FLOW_LABEL_MAX:#x}")]
    FlowLabel(u32),
    /// Nobody has that address, as far as the owner of the table has said.
    #[error("no neighbour has the address {0}")]
    NoNeighbour(Gid),
    /// See [`NeighError`].
    #[error(transparent)]
    Neigh(#[from] NeighError),
    /// The kernel does not tell of changes.
    #[error("listening for changes of addresses: {0}")]
    Watch(#[source] io::Error),
}

/// Something that happened below the queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathEvent {
    /// An address came, at this GID index.
    GidAdded(u32, GidEntry),
    /// The address at this GID index is gone.
    GidRemoved(u32, GidEntry),
    /// The link is up.
    PortUp,
    /// The link is down, has no carrier, or the interface was removed.
    PortDown,
    /// Somebody could not deliver a packet of this host.
    Icmp(IcmpError),
}

impl From<Change> for PathEvent {
    fn from(change: Change) -> Self {
        match change {
            Change::Added(index, entry) => Self::GidAdded(index, entry),
            Change::Removed(index, entry) => Self::GidRemoved(index, entry),
        }
    }
}

/// What is below the frames of a port.
#[derive(Debug)]
enum Below {
    /// Ethernet: the engine writes all headers.
    Ethernet,
    /// A UDP socket: the kernel writes them, from this UDP port.
    Udp { src_port: u16 },
    /// Ethernet without a kernel: a simulated network.
    Given { neighbours: Vec<(Gid, MacAddr)> },
}

/// The addresses of one port and the ways to others.
#[derive(Debug)]
pub struct Addressing {
    below: Below,
    gids: GidTable,
    up: bool,
    watch: Option<Watch>,
    icmp: Option<IcmpWatch>,
}

impl Addressing {
    /// Of an Ethernet port (AF_XDP) on interface `ifname`: its addresses and those of the VLAN
    /// devices on it. With `tag`, its own ones are in that VLAN, which the kernel need not know.
    ///
    /// ICMP errors are told of if this process may receive them (CAP_NET_RAW).
    ///
    /// # Errors
    /// There is no such interface, or the kernel does not tell of changes.
    pub fn ethernet(ifname: &str, tag: Option<u16>) -> Result<Self, AddressError> {
        // Before the table is read, so that nothing happens in between.
        let watch = Watch::open().map_err(AddressError::Watch)?;
        let gids = GidTable::open_tagged(ifname, tag)?;
        Ok(Self::new(Below::Ethernet, gids, Some(watch)))
    }

    /// Of a UDP port bound to `local`, on interface `ifindex` (0: whichever has the address), which
    /// sends from UDP port `src_port`.
    ///
    /// # Errors
    /// As [`Addressing::ethernet`].
    pub fn udp(local: Gid, ifindex: u32, src_port: u16) -> Result<Self, AddressError> {
        let watch = Watch::open().map_err(AddressError::Watch)?;
        let gids = GidTable::open_one(local.ip(), ifindex)?;
        Ok(Self::new(Below::Udp { src_port }, gids, Some(watch)))
    }

    /// Of a port the kernel knows nothing of: these addresses, these neighbours.
    #[must_use]
    pub fn given(entries: Vec<GidEntry>, neighbours: Vec<(Gid, MacAddr)>) -> Self {
        Self::new(Below::Given { neighbours }, GidTable::given(entries), None)
    }

    fn new(below: Below, gids: GidTable, watch: Option<Watch>) -> Self {
        let icmp = watch.as_ref().and_then(|_| IcmpWatch::open().ok());
        Self {
            below,
            up: gids.is_up(),
            gids,
            watch,
            icmp,
        }
    }

    /// The GID table.
    #[must_use]
    pub const fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// The UDP port that everything is sent from; `None` if every connection has its own.
    #[must_use]
    pub const fn src_port(&self) -> Option<u16> {
        match self.below {
            Below::Udp { src_port } => Some(src_port),
            Below::Ethernet | Below::Given { .. } => None,
        }
    }

    /// Whether the link was up when last looked at.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.up
    }

    /// Whether ICMP errors are told of.
    #[must_use]
    pub const fn hears_icmp(&self) -> bool {
        self.icmp.is_some()
    }

    /// The way to `attr.dgid`, with its Ethernet address if the port needs it; a group has a
    /// computed one. A neighbour unknown to the kernel is waited for, [`RESOLVE_MS`] at most.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn resolve(&self, attr: &AhAttr, flow: Flow) -> Result<AddressVector, AddressError> {
        let entry = self.checked(attr)?;
        let (src, dst) = (entry.gid, attr.dgid);
        let (src_mac, dst_mac) = match &self.below {
            Below::Udp { .. } => (MacAddr::default(), MacAddr::default()),
            Below::Ethernet => {
                let mac = neigh::resolve(entry.ifindex, src.ip(), dst.ip(), RESOLVE_MS)?;
                (entry.mac, mac)
            }
            Below::Given { neighbours } => {
                let known = neighbours.iter().find(|(gid, _)| *gid == dst);
                let mac = neigh::multicast_mac(dst.ip()).or_else(|| known.map(|(_, mac)| *mac));
                (entry.mac, mac.ok_or(AddressError::NoNeighbour(dst))?)
            }
        };
        Ok(AddressVector {
            src,
            dst,
            src_mac,
            dst_mac,
            vlan: entry.vlan.map(|vid| VlanTci::tagged(vid, attr.sl)),
            traffic_class: attr.traffic_class,
            hop_limit: match attr.hop_limit {
                0 => HOP_LIMIT_DEFAULT,
                given => given,
            },
            flow_label: attr.flow_label,
            src_port: match self.below {
                Below::Udp { src_port } => src_port,
                Below::Ethernet | Below::Given { .. } => flow.src_port(attr.flow_label),
            },
        })
    }

    /// The entry at the index of `attr`, if everything else of `attr` is in range.
    fn checked(&self, attr: &AhAttr) -> Result<&GidEntry, AddressError> {
        let index = attr.sgid_index;
        let Some(entry) = self.gids.get(index) else {
            let shown = |(n, e): (u32, &GidEntry)| format!("{n} {} ({})", e.gid, e.ifname);
            let have = self.gids.iter().map(shown).collect();
            return Err(AddressError::NoGid { index, have });
        };
        if entry.gid.v4().is_some() != attr.dgid.v4().is_some() {
            return Err(AddressError::Family {
                index,
                sgid: entry.gid,
                dgid: attr.dgid,
            });
        }
        if attr.sl > SL_MAX {
            return Err(AddressError::ServiceLevel(attr.sl));
        }
        if attr.flow_label > FLOW_LABEL_MAX {
            return Err(AddressError::FlowLabel(attr.flow_label));
        }
        Ok(entry)
    }

    /// Hands on what happened since the last call. Never blocks; a look at a quiet kernel is three
    /// system calls, so every 100 ms is often enough.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn poll(&mut self, each: &mut impl FnMut(PathEvent)) -> Result<(), AddressError> {
        if let Some(watch) = &self.watch
            && watch.changed().map_err(AddressError::Watch)?
        {
            let changes = match self.gids.refresh() {
                Ok(changes) => changes,
                // Renamed, removed or moved to another namespace.
                Err(NeighError::NoInterface { .. }) => {
                    self.gids.lose_link();
                    self.gids.replace(Vec::new())
                }
                Err(e) => return Err(e.into()),
            };
            changes
                .into_iter()
                .map(PathEvent::from)
                .for_each(&mut *each);
            if self.up != self.gids.is_up() {
                self.up = self.gids.is_up();
                each(if self.up {
                    PathEvent::PortUp
                } else {
                    PathEvent::PortDown
                });
            }
        }
        if let Some(icmp) = &mut self.icmp {
            let told = icmp.poll(&mut |error| each(PathEvent::Icmp(error)));
            told.map_err(AddressError::Watch)?;
        }
        Ok(())
    }

    /// Replaces the addresses of [`Addressing::given`] and hands on what changed.
    pub fn replace(&mut self, entries: Vec<GidEntry>, each: &mut impl FnMut(PathEvent)) {
        let changes = self.gids.replace(entries);
        changes.into_iter().map(PathEvent::from).for_each(each);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may panic")]
    use xroce_wire::newtypes::Qpn;

    use super::*;

    fn gid(ip: &str) -> Gid {
        ip.parse::<std::net::IpAddr>().unwrap().into()
    }

    fn mac(n: u8) -> MacAddr {
        MacAddr::new([2, 0, 0, 0, 0, n])
    }

    fn entry(ip: &str, vlan: Option<u16>) -> GidEntry {
        GidEntry {
            gid: gid(ip),
            ifindex: 2,
            ifname: "eth0".to_owned(),
            mac: mac(1),
            vlan,
            link_local: false,
        }
    }

    fn addressing() -> Addressing {
        let entries = vec![
            entry("10.0.0.1", None),
            entry("10.0.7.1", Some(7)),
            entry("fd00::1", None),
        ];
        let neighbours = vec![
            (gid("10.0.0.2"), mac(2)),
            (gid("10.0.7.2"), mac(3)),
            (gid("fd00::2"), mac(2)),
        ];
        Addressing::given(entries, neighbours)
    }

    /// Rule W26.
    #[test]
    fn the_gid_index_decides_on_source_and_vlan_and_the_service_level_on_priority() {
        let addressing = addressing();
        let flow = Flow::Connected {
            local: Qpn::new(0x11),
            peer: Qpn::new(0x12),
        };
        let av = addressing
            .resolve(&AhAttr::to(gid("10.0.0.2")), flow)
            .unwrap();
        assert_eq!((av.src, av.src_mac), (gid("10.0.0.1"), mac(1)));
        assert_eq!((av.dst, av.dst_mac), (gid("10.0.0.2"), mac(2)));
        assert_eq!((av.vlan, av.hop_limit, av.src_port), (None, 64, 0xc132));
        let attr = AhAttr {
            sgid_index: 1,
            sl: 13,
            traffic_class: 0x6a,
            hop_limit: 7,
            ..AhAttr::to(gid("10.0.7.2"))
        };
        let av = addressing.resolve(&attr, flow).unwrap();
        assert_eq!(av.src, gid("10.0.7.1"));
        assert_eq!(
            av.vlan,
            Some(VlanTci::tagged(7, 5)),
            "priority: SL modulo 8"
        );
        assert_eq!((av.traffic_class, av.hop_limit), (0x6a, 7));
        let attr = AhAttr {
            sgid_index: 2,
            flow_label: 0xabcde,
            ..AhAttr::to(gid("fd00::2"))
        };
        let av = addressing.resolve(&attr, flow).unwrap();
        assert_eq!((av.flow_label, av.src_port), (0xabcde, 0xfcf4));
        let av = addressing.resolve(&AhAttr::to(gid("239.1.2.3")), Flow::Datagrams);
        let av = av.unwrap();
        assert_eq!(av.dst_mac, MacAddr::new([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(av.src_port, 0xc000);
    }

    /// Rule W25.
    #[test]
    fn case_15_a_hop_limit_that_nobody_gave_is_64_and_a_given_one_is_kept() {
        for (given, sent) in [(0, 64), (1, 1), (64, 64), (255, 255)] {
            let attr = AhAttr {
                hop_limit: given,
                ..AhAttr::to(gid("10.0.0.2"))
            };
            let av = addressing().resolve(&attr, Flow::Datagrams).unwrap();
            assert_eq!(av.hop_limit, sent);
        }
        assert_eq!(AhAttr::to(gid("10.0.0.2")).hop_limit, 64);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_limit() {
        let base = AhAttr::to(gid("10.0.0.2"));
        for (attr, words) in [
            (
                AhAttr {
                    sgid_index: 3,
                    ..base
                },
                "0 10.0.0.1 (eth0), 1 10.0.7.1",
            ),
            (
                AhAttr {
                    sgid_index: 2,
                    ..base
                },
                "one is IPv4, one IPv6",
            ),
            (AhAttr { sl: 16, ..base }, "service level 16 exceeds 15"),
            (
                AhAttr {
                    flow_label: 1 << 20,
                    ..base
                },
                "0x100000 exceeds 0xfffff",
            ),
            (
                AhAttr::to(gid("10.0.0.9")),
                "no neighbour has the address 10.0.0.9",
            ),
        ] {
            let error = addressing().resolve(&attr, Flow::Datagrams).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn replacing_given_addresses_tells_what_changed() {
        let mut addressing = addressing();
        let mut seen = Vec::new();
        let now = vec![entry("10.0.0.1", None), entry("10.0.0.9", None)];
        addressing.replace(now, &mut |event| seen.push(event));
        assert_eq!(
            seen,
            [
                PathEvent::GidRemoved(1, entry("10.0.7.1", Some(7))),
                PathEvent::GidRemoved(2, entry("fd00::1", None)),
                PathEvent::GidAdded(1, entry("10.0.0.9", None)),
            ]
        );
    }
}
