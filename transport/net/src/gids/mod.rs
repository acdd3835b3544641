//! The GID table of a port: the addresses of its interface, and of the VLAN devices on it, by
//! index, as verbs programs name them (`ibv_query_gid`, `sgid_index`).
//!
//! Order of a new table: IPv4 addresses (mapped, `::ffff:a.b.c.d`), then IPv6, then link-local
//! IPv6; within each those of the interface itself, then of its VLAN devices by id; the kernel's
//! order within those. Afterwards an address keeps its index for as long as it exists: one that
//! goes leaves a hole, one that comes takes the lowest hole or a new place, as in the kernel. A
//! queue pair may therefore keep an index and learn from [`Change::Removed`] that its address went.
//!
//! Slow path, like [`crate::neigh`] whose tables it is made from.

mod watch;

use std::net::IpAddr;

use xroce_wire::newtypes::{Gid, MacAddr};

use crate::neigh::{self, Interface, NeighError, Scope};

pub use watch::Watch;

/// Entries at most: what rxe has.
pub const GIDS_MAX: usize = 1024;

/// An address that can be the source of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Interface that has it: the port's or a VLAN device on it. The scope of a link-local one.
    pub ifindex: u32,
    /// Its name.
    pub ifname: String,
    /// Ethernet address that packets from it carry.
    pub mac: MacAddr,
    /// VLAN id of packets from it.
    pub vlan: Option<u16>,
    /// Valid on this link only: the peer must be on the same one.
    pub link_local: bool,
}

/// What a refresh found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An address came, here.
    Added(u32, GidEntry),
    /// The address that was here is gone; queue pairs that use it cannot reach their peers any
    /// more, and what is sent to it does not arrive.
    Removed(u32, GidEntry),
}

/// The table of one port.
#[derive(Clone, Debug)]
pub struct GidTable {
    ifname: String,
    entries: Vec<Option<GidEntry>>,
}

impl GidTable {
    /// The addresses interface `ifname` and the VLAN devices on it have now.
    ///
    /// # Errors
    /// There is no such interface, or the kernel does not say.
    pub fn open(ifname: &str) -> Result<Self, NeighError> {
        let mut table = Self {
            ifname: ifname.to_owned(),
            entries: Vec::new(),
        };
        table.refresh()?;
        Ok(table)
    }

    /// Takes over what has changed, removals first.
    ///
    /// # Errors
    /// As [`GidTable::open`]; the table is then as before.
    pub fn refresh(&mut self) -> Result<Vec<Change>, NeighError> {
        let all = neigh::interfaces()?;
        if !all.iter().any(|i| i.name == self.ifname) {
            // For its error, which names what there is.
            neigh::interface(&self.ifname)?;
        }
        Ok(self.update(candidates(&all, &self.ifname)))
    }

    /// The entry at an index.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&GidEntry> {
        self.entries.get(index as usize)?.as_ref()
    }

    /// Entries in use, by index.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &GidEntry)> {
        (0..)
            .zip(&self.entries)
            .filter_map(|(index, entry)| Some((index, entry.as_ref()?)))
    }

    /// Where an address is; of a link-local one that several interfaces have, the first.
    #[must_use]
    pub fn find(&self, gid: Gid) -> Option<u32> {
        self.iter()
            .find(|(_, e)| e.gid == gid)
            .map(|(index, _)| index)
    }

    fn update(&mut self, now: Vec<GidEntry>) -> Vec<Change> {
        let mut changes = Vec::new();
        for (index, slot) in (0..).zip(&mut self.entries) {
            if let Some(entry) = slot.take_if(|e| !now.contains(e)) {
                changes.push(Change::Removed(index, entry));
            }
        }
        for entry in now {
            if self.entries.iter().flatten().any(|e| *e == entry) {
                continue;
            }
            let hole = self.entries.iter().position(Option::is_none);
            let at = hole.unwrap_or(self.entries.len());
            let Ok(index) = u32::try_from(at) else { break };
            if at >= GIDS_MAX {
                break;
            }
            if at == self.entries.len() {
                self.entries.push(None);
            }
            if let Some(slot) = self.entries.get_mut(at) {
                *slot = Some(entry.clone());
                changes.push(Change::Added(index, entry));
            }
        }
        changes
    }
}

/// Usable addresses in the order of a new table.
fn candidates(all: &[Interface], ifname: &str) -> Vec<GidEntry> {
    let Some(port) = all.iter().find(|i| i.name == ifname) else {
        return Vec::new();
    };
    let mut devices: Vec<(&Interface, Option<u16>)> = all
        .iter()
        .filter_map(|i| {
            let vlan = i.vlan.filter(|v| v.parent == port.index)?;
            Some((i, Some(vlan.vid)))
        })
        .collect();
    devices.sort_by_key(|(_, vid)| *vid);
    devices.insert(0, (port, port.vlan.map(|v| v.vid)));
    let mut found = Vec::new();
    for class in [Class::V4, Class::V6, Class::LinkLocal] {
        for (device, vlan) in &devices {
            let fitting = device
                .addresses
                .iter()
                .filter(|a| a.usable && a.scope != Scope::Host && Class::of(a.ip) == class);
            found.extend(fitting.map(|address| GidEntry {
                gid: Gid::from(address.ip),
                ifindex: device.index,
                ifname: device.name.clone(),
                mac: device.mac,
                vlan: *vlan,
                link_local: class == Class::LinkLocal,
            }));
        }
    }
    found
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    V4,
    V6,
    LinkLocal,
}

impl Class {
    fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Self::LinkLocal,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may panic")]
    use super::*;
    use crate::neigh::{Address, Vlan};

    fn address(ip: &str) -> Address {
        let ip: IpAddr = ip.parse().unwrap();
        let link = matches!(Class::of(ip), Class::LinkLocal);
        Address {
            ip,
            prefix: 24,
            scope: if link { Scope::Link } else { Scope::Global },
            usable: true,
        }
    }

    fn interface(index: u32, name: &str, vlan: Option<(u32, u16)>, ips: &[&str]) -> Interface {
        Interface {
            index,
            name: name.to_owned(),
            mac: MacAddr::new([2, 0, 0, 0, 0, index.to_le_bytes()[0]]),
            mtu: 1500,
            up: true,
            running: true,
            loopback: false,
            no_arp: false,
            rx_queues: 1,
            tx_queues: 1,
            vlan: vlan.map(|(parent, vid)| Vlan { parent, vid }),
            addresses: ips.iter().map(|ip| address(ip)).collect(),
        }
    }

    fn shown(table: &GidTable) -> Vec<String> {
        table
            .iter()
            .map(|(i, e)| format!("{i} {} {} {:?}", e.gid, e.ifname, e.vlan))
            .collect()
    }

    fn table(all: &[Interface]) -> GidTable {
        let mut table = GidTable {
            ifname: "eth0".to_owned(),
            entries: Vec::new(),
        };
        table.update(candidates(all, "eth0"));
        table
    }

    #[test]
    fn ipv4_first_then_ipv6_then_link_local_and_vlans_after_the_port() {
        let all = [
            interface(9, "eth0.7", Some((2, 7)), &["fe80::9", "10.78.0.1"]),
            interface(
                2,
                "eth0",
                None,
                &["fe80::2", "fd77::1", "10.77.0.1", "10.77.0.9"],
            ),
            interface(3, "eth1", None, &["10.9.0.1"]),
            interface(5, "eth0.3", Some((2, 3)), &["10.79.0.1"]),
            interface(6, "eth1.7", Some((3, 7)), &["10.80.0.1"]),
        ];
        let table = table(&all);
        assert_eq!(
            shown(&table),
            [
                "0 10.77.0.1 eth0 None",
                "1 10.77.0.9 eth0 None",
                "2 10.79.0.1 eth0.3 Some(3)",
                "3 10.78.0.1 eth0.7 Some(7)",
                "4 fd77::1 eth0 None",
                "5 fe80::2 eth0 None",
                "6 fe80::9 eth0.7 Some(7)",
            ]
        );
        assert_eq!(table.find(Gid::from_v4([10, 78, 0, 1])), Some(3));
        assert_eq!(table.find(Gid::from_v4([10, 80, 0, 1])), None);
        assert!(table.get(6).unwrap().link_local && !table.get(4).unwrap().link_local);
    }

    #[test]
    fn an_address_keeps_its_index_and_a_hole_is_filled() {
        let with = |ips: &[&str]| [interface(2, "eth0", None, ips)];
        let mut table = table(&with(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
        let changes = table.update(candidates(&with(&["10.0.0.1", "10.0.0.3"]), "eth0"));
        assert!(
            matches!(&changes[..], [Change::Removed(1, e)] if e.gid == Gid::from_v4([10, 0, 0, 2]))
        );
        assert_eq!(table.find(Gid::from_v4([10, 0, 0, 3])), Some(2));
        assert_eq!(table.get(1), None);
        let changes = table.update(candidates(&with(&["10.0.0.9", "10.0.0.3"]), "eth0"));
        assert!(matches!(
            &changes[..],
            [Change::Removed(0, _), Change::Added(0, _)]
        ));
        assert!(
            table
                .update(candidates(&with(&["10.0.0.3", "10.0.0.9"]), "eth0"))
                .is_empty()
        );
    }

    #[test]
    fn a_tentative_address_and_one_of_the_host_are_left_out() {
        let mut eth0 = interface(2, "eth0", None, &["fd77::1", "10.0.0.1"]);
        eth0.addresses[0].usable = false;
        eth0.addresses[1].scope = Scope::Host;
        assert!(shown(&table(&[eth0])).is_empty());
    }

    #[test]
    fn no_more_entries_than_the_limit() {
        let mut eth0 = interface(2, "eth0", None, &[]);
        eth0.addresses = (0..2000_u32)
            .map(|n| address(&format!("10.0.{}.{}", n / 250, n % 250 + 1)))
            .collect();
        assert_eq!(table(&[eth0]).iter().count(), GIDS_MAX);
    }
}
