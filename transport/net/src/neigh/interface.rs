//! Interfaces and their addresses.

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use xroce_wire::newtypes::MacAddr;

use super::{NeighError, mac, netlink, system};

/// A network interface and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Index, unique in the network namespace.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Ethernet address; zero on `lo`.
    pub mac: MacAddr,
    /// IP MTU, in bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Up and with carrier.
    pub running: bool,
    /// `lo`.
    pub loopback: bool,
    /// Does not resolve addresses (point to point, dummy, `lo`).
    pub no_arp: bool,
    /// Receive queues the driver made; it may use fewer.
    pub rx_queues: u32,
    /// Transmit queues the driver made; it may use fewer.
    pub tx_queues: u32,
    /// For a VLAN device: where it sits and which tag it adds.
    pub vlan: Option<Vlan>,
    /// Addresses, in the kernel's order.
    pub addresses: Vec<Address>,
}

/// What a VLAN device adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Index of the interface below; 0 if it is in another namespace.
    pub parent: u32,
    /// VLAN id, 1 ..= 4094.
    pub vid: u16,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address itself.
    pub ip: IpAddr,
    /// Bits of the subnet.
    pub prefix: u8,
    /// How far it is valid.
    pub scope: Scope,
    /// May be used as source: not tentative (duplicate detection under way) nor a duplicate.
    pub usable: bool,
}

/// How far an address is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere.
    Global,
    /// On this link only (fe80::/10, 169.254/16).
    Link,
    /// On this machine only.
    Host,
}

/// All interfaces.
///
/// # Errors
/// [`NeighError::System`].
pub fn interfaces() -> Result<Vec<Interface>, NeighError> {
    let links = netlink::dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))
        .map_err(system("listing the interfaces"))?;
    let mut found: Vec<_> = links.iter().filter_map(link).collect();
    add_addresses(&mut found)?;
    Ok(found)
}

/// The interface called `name`.
///
/// # Errors
/// [`NeighError::NoInterface`], [`NeighError::System`].
pub fn interface(name: &str) -> Result<Interface, NeighError> {
    pick(interfaces()?, name, |i| i.name == name)
}

/// The interface with this index.
///
/// # Errors
/// As [`interface`].
pub fn interface_by_index(index: u32) -> Result<Interface, NeighError> {
    pick(interfaces()?, &format!("#{index}"), |i| i.index == index)
}

/// The one that `fits`, called `name` in the error if none does.
pub(super) fn pick(
    mut all: Vec<Interface>,
    name: &str,
    fits: impl Fn(&Interface) -> bool,
) -> Result<Interface, NeighError> {
    match all.iter().position(fits) {
        Some(at) => Ok(all.swap_remove(at)),
        None => {
            let have = all.into_iter().map(|i| i.name).collect();
            Err(NeighError::NoInterface {
                name: name.to_owned(),
                have,
            })
        }
    }
}

fn link(message: &RouteNetlinkMessage) -> Option<Interface> {
    let RouteNetlinkMessage::NewLink(link) = message else {
        return None;
    };
    let flags = link.header.flags;
    let mut parent = 0;
    let mut vid = None;
    let mut found = Interface {
        index: link.header.index,
        name: String::new(),
        mac: MacAddr::default(),
        mtu: 0,
        up: flags.contains(LinkFlags::Up),
        running: flags.contains(LinkFlags::LowerUp),
        loopback: flags.contains(LinkFlags::Loopback),
        no_arp: flags.intersects(LinkFlags::Noarp | LinkFlags::Loopback),
        rx_queues: 1,
        tx_queues: 1,
        vlan: None,
        addresses: Vec::new(),
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => found.name.clone_from(name),
            LinkAttribute::Address(bytes) => found.mac = mac(bytes).unwrap_or_default(),
            LinkAttribute::Mtu(mtu) => found.mtu = *mtu,
            LinkAttribute::NumRxQueues(n) => found.rx_queues = *n,
            LinkAttribute::NumTxQueues(n) => found.tx_queues = *n,
            LinkAttribute::Link(index) => parent = *index,
            LinkAttribute::LinkInfo(infos) => vid = vlan_id(infos),
            _ => {}
        }
    }
    found.vlan = vid.map(|vid| Vlan { parent, vid });
    Some(found)
}

fn vlan_id(infos: &[LinkInfo]) -> Option<u16> {
    if !infos
        .iter()
        .any(|i| matches!(i, LinkInfo::Kind(InfoKind::Vlan)))
    {
        return None;
    }
    infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vlan(data)) => data.iter().find_map(|d| match d {
            InfoVlan::Id(vid) => Some(*vid),
            _ => None,
        }),
        _ => None,
    })
}

fn add_addresses(interfaces: &mut [Interface]) -> Result<(), NeighError> {
    let answers = netlink::dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))
        .map_err(system("listing the addresses"))?;
    for answer in answers {
        let RouteNetlinkMessage::NewAddress(message) = answer else {
            continue;
        };
        let Some(interface) = interfaces
            .iter_mut()
            .find(|i| i.index == message.header.index)
        else {
            continue;
        };
        interface.addresses.extend(address(&message));
    }
    Ok(())
}

fn address(message: &AddressMessage) -> Option<Address> {
    let mut local = None;
    let mut peer = None;
    let header = message.header.flags;
    let mut usable =
        !header.intersects(AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed);
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link `Address` is the other end.
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => peer = Some(*ip),
            AddressAttribute::Flags(flags) => {
                usable &= !flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed);
            }
            _ => {}
        }
    }
    let scope = match message.header.scope {
        AddressScope::Link => Scope::Link,
        AddressScope::Host | AddressScope::Nowhere => Scope::Host,
        _ => Scope::Global,
    };
    Some(Address {
        ip: local.or(peer)?,
        prefix: message.header.prefix_len,
        scope,
        usable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_device_tells_its_parent_and_id() {
        let mut message = LinkMessage::default();
        message.header.index = 7;
        message.header.flags = LinkFlags::Up;
        message.attributes = vec![
            LinkAttribute::IfName("eth0.42".to_owned()),
            LinkAttribute::Link(3),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Vlan),
                LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(42)])),
            ]),
        ];
        let found = link(&RouteNetlinkMessage::NewLink(message)).unwrap();
        assert_eq!(
            (found.index, found.name.as_str(), found.up),
            (7, "eth0.42", true)
        );
        assert_eq!(found.vlan, Some(Vlan { parent: 3, vid: 42 }));
    }
}
