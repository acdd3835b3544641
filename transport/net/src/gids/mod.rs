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

use xroce_api::GidEntry;
use xroce_wire::newtypes::Gid;

use crate::neigh::{self, Address, Interface, NeighError, Scope};

pub use watch::Watch;

/// Entries at most: what rxe has.
pub const GIDS_MAX: usize = 1024;

/// What a refresh found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An address came, here.
    Added(u32, GidEntry),
    /// The address that was here is gone; queue pairs that use it cannot reach their peers any
    /// more, and what is sent to it does not arrive.
    Removed(u32, GidEntry),
}

/// Which addresses a table has.
#[derive(Clone, Debug)]
enum Selection {
    /// Those of an interface and of the VLAN devices on it; with a tag, those of the interface
    /// itself are in that VLAN.
    Interface { name: String, tag: Option<u16> },
    /// One address, which a socket is bound to; an index of 0 stands for any interface.
    One { ip: IpAddr, ifindex: u32 },
    /// Whatever the owner says.
    Given,
}

/// The table of one port.
#[derive(Clone, Debug)]
pub struct GidTable {
    selection: Selection,
    entries: Vec<Option<GidEntry>>,
    up: bool,
}

impl GidTable {
    /// The addresses interface `ifname` and the VLAN devices on it have now.
    ///
    /// # Errors
    /// There is no such interface, or the kernel does not say.
    pub fn open(ifname: &str) -> Result<Self, NeighError> {
        Self::open_tagged(ifname, None)
    }

    /// As [`GidTable::open`], with the addresses of the interface itself in VLAN `tag`: for ports
    /// that write tags which the kernel knows nothing of.
    ///
    /// # Errors
    /// As [`GidTable::open`].
    pub fn open_tagged(ifname: &str, tag: Option<u16>) -> Result<Self, NeighError> {
        let name = ifname.to_owned();
        Self::select(Selection::Interface { name, tag })
    }

    /// The one address a UDP port is bound to, on any interface if `ifindex` is 0.
    ///
    /// # Errors
    /// No interface has it, or the kernel does not say.
    pub fn open_one(ip: IpAddr, ifindex: u32) -> Result<Self, NeighError> {
        let ip = ip.to_canonical();
        let table = Self::select(Selection::One { ip, ifindex })?;
        match table.get(0) {
            Some(_) => Ok(table),
            None => Err(NeighError::NoSource(ip)),
        }
    }

    /// A table with these entries, for ports the kernel has no addresses for. Only
    /// [`GidTable::replace`] changes it.
    #[must_use]
    pub fn given(entries: Vec<GidEntry>) -> Self {
        let mut table = Self::empty(Selection::Given);
        table.update(entries);
        table
    }

    fn empty(selection: Selection) -> Self {
        Self {
            selection,
            entries: Vec::new(),
            up: true,
        }
    }

    fn select(selection: Selection) -> Result<Self, NeighError> {
        let mut table = Self::empty(selection);
        table.refresh()?;
        Ok(table)
    }

    /// Takes over what has changed, removals first. Of [`GidTable::given`]: nothing.
    ///
    /// # Errors
    /// As [`GidTable::open`]; the table is then as before.
    pub fn refresh(&mut self) -> Result<Vec<Change>, NeighError> {
        match &self.selection {
            Selection::Given => Ok(Vec::new()),
            Selection::Interface { name, tag } => {
                let all = neigh::interfaces()?;
                let Some(port) = all.iter().find(|i| i.name == *name) else {
                    let have = all.into_iter().map(|i| i.name).collect();
                    let name = name.clone();
                    return Err(NeighError::NoInterface { name, have });
                };
                self.up = port.running;
                let found = candidates(&all, port, *tag);
                Ok(self.update(found))
            }
            Selection::One { ip, ifindex } => {
                let all = neigh::interfaces()?;
                let one = one(&all, *ip, *ifindex);
                self.up = one.as_ref().is_some_and(|(_, up)| *up);
                Ok(self.update(one.into_iter().map(|(entry, _)| entry).collect()))
            }
        }
    }

    /// Replaces all entries and tells what changed.
    pub fn replace(&mut self, entries: Vec<GidEntry>) -> Vec<Change> {
        self.update(entries)
    }

    /// Notes that the interface is gone.
    pub(crate) fn lose_link(&mut self) {
        self.up = false;
    }

    /// Whether the link was up, with carrier, at the last refresh.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.up
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

    /// Where an address of a certain interface is.
    #[must_use]
    pub fn find_on(&self, gid: Gid, ifindex: u32) -> Option<u32> {
        self.iter()
            .find(|(_, e)| e.gid == gid && e.ifindex == ifindex)
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
fn candidates(all: &[Interface], port: &Interface, tag: Option<u16>) -> Vec<GidEntry> {
    let mut devices: Vec<(&Interface, Option<u16>)> = all
        .iter()
        .filter_map(|i| {
            let vlan = i.vlan.filter(|v| v.parent == port.index)?;
            Some((i, Some(vlan.vid)))
        })
        .collect();
    devices.sort_by_key(|(_, vid)| *vid);
    devices.insert(0, (port, tag.or_else(|| port.vlan.map(|v| v.vid))));
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

/// The entry for one address, and whether its interface is up.
fn one(all: &[Interface], ip: IpAddr, ifindex: u32) -> Option<(GidEntry, bool)> {
    let device = all.iter().find(|i| {
        let has = |a: &Address| a.usable && (a.ip == ip || i.loopback && covers(a, ip));
        (ifindex == 0 || i.index == ifindex) && i.addresses.iter().any(has)
    })?;
    let entry = GidEntry {
        gid: Gid::from(ip),
        ifindex: device.index,
        ifname: device.name.clone(),
        mac: device.mac,
        // The kernel writes the tag.
        vlan: None,
        link_local: Class::of(ip) == Class::LinkLocal,
    };
    Some((entry, device.running))
}

/// Whether an IPv4 address is in the subnet of another: all of 127/8 is this machine's, although
/// `lo` lists one address of it.
fn covers(address: &Address, ip: IpAddr) -> bool {
    let (IpAddr::V4(of), IpAddr::V4(ip)) = (address.ip, ip) else {
        return false;
    };
    let host_bits = 32 - u32::from(address.prefix.min(32));
    (of.to_bits() ^ ip.to_bits())
        .checked_shr(host_bits)
        .unwrap_or(0)
        == 0
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
    use xroce_wire::newtypes::MacAddr;

    use super::*;
    use crate::neigh::Vlan;

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
        GidTable::given(found(all))
    }

    fn found(all: &[Interface]) -> Vec<GidEntry> {
        let port = all.iter().find(|i| i.name == "eth0").unwrap();
        candidates(all, port, None)
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
    fn a_tag_of_the_port_is_for_its_own_addresses() {
        let all = [
            interface(2, "eth0", None, &["10.77.0.1"]),
            interface(5, "eth0.3", Some((2, 3)), &["10.79.0.1"]),
        ];
        let table = GidTable::given(candidates(&all, &all[0], Some(100)));
        assert_eq!(
            shown(&table),
            ["0 10.77.0.1 eth0 Some(100)", "1 10.79.0.1 eth0.3 Some(3)"]
        );
    }

    #[test]
    fn of_two_interfaces_with_one_link_local_address_the_index_tells() {
        let all = [
            interface(2, "eth0", None, &["fe80::1"]),
            interface(3, "eth1", None, &["fe80::1"]),
        ];
        let ip: IpAddr = "fe80::1".parse().unwrap();
        for (asked, found) in [(0, 2), (2, 2), (3, 3)] {
            assert_eq!(one(&all, ip, asked).unwrap().0.ifindex, found);
        }
        assert!(one(&all, ip, 4).is_none());
        let entry = |ifindex| one(&all, ip, ifindex).unwrap().0;
        let table = GidTable::given(vec![entry(2), entry(3)]);
        assert_eq!(table.find(ip.into()), Some(0));
        assert_eq!(table.find_on(ip.into(), 3), Some(1));
    }

    #[test]
    fn all_of_127_is_the_loopback_interface() {
        let mut lo = interface(1, "lo", None, &["127.0.0.1"]);
        lo.addresses[0].prefix = 8;
        let found = |lo: &Interface, ip: &str| {
            one(std::slice::from_ref(lo), ip.parse().unwrap(), 0).is_some()
        };
        assert!(!found(&lo, "127.0.5.2"), "not of an ordinary interface");
        lo.loopback = true;
        assert!(found(&lo, "127.0.5.2") && found(&lo, "127.0.0.1"));
        assert!(!found(&lo, "128.0.0.1") && !found(&lo, "::1"));
        lo.addresses[0].prefix = 0;
        assert!(found(&lo, "128.0.0.1"));
    }

    #[test]
    fn an_address_keeps_its_index_and_a_hole_is_filled() {
        let with = |ips: &[&str]| [interface(2, "eth0", None, ips)];
        let mut table = table(&with(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
        let changes = table.update(found(&with(&["10.0.0.1", "10.0.0.3"])));
        assert!(
            matches!(&changes[..], [Change::Removed(1, e)] if e.gid == Gid::from_v4([10, 0, 0, 2]))
        );
        assert_eq!(table.find(Gid::from_v4([10, 0, 0, 3])), Some(2));
        assert_eq!(table.get(1), None);
        let changes = table.update(found(&with(&["10.0.0.9", "10.0.0.3"])));
        assert!(matches!(
            &changes[..],
            [Change::Removed(0, _), Change::Added(0, _)]
        ));
        assert!(
            table
                .update(found(&with(&["10.0.0.3", "10.0.0.9"])))
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
