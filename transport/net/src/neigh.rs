//! Interfaces, routes and neighbours, from the kernel's tables through netlink.
//!
//! Slow path: it allocates and makes system calls; call it when connecting, never per packet.
//! Everything is looked up in the network namespace of the calling thread. `/sys/class/net` is
//! not used: it shows the namespace in which it was mounted, not that of the caller.

mod interface;
mod netlink;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::time::Duration;

use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;
use xroce_wire::newtypes::MacAddr;

pub use interface::{Address, Interface, Scope, Vlan, interface, interface_by_index, interfaces};

/// The port that throws away what it gets (RFC 863): the datagram that provokes ARP or ND.
const DISCARD_PORT: u16 = 9;
/// Pause between two looks at the neighbour table, first and longest, in ms.
const POLL_MS: (u64, u64) = (1, 20);
/// Time after which the kernel is asked to resolve again, in ms: it gives up after 3 probes
/// of 1 s.
const RETRY_MS: u64 = 1000;

/// Why a lookup failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NeighError {
    /// There is no interface of that name here.
    #[error("no network interface `{name}` here; there are: {}", have.join(", "))]
    NoInterface {
        /// What was asked for.
        name: String,
        /// The names there are.
        have: Vec<String>,
    },
    /// The interface is administratively down.
    #[error("interface {0} is down; bring it up: ip link set dev {0} up")]
    Down(String),
    /// The routing table has no way to the destination.
    #[error("no route to {dst}{}: {source}", via(.src, .ifname))]
    NoRoute {
        /// Where to.
        dst: IpAddr,
        /// From which address, if that was asked for.
        src: Option<IpAddr>,
        /// Out of which interface, if that was asked for.
        ifname: Option<String>,
        /// What the kernel said.
        source: io::Error,
    },
    /// The source address is not one of this machine.
    #[error("{0} is not an address of this machine (see: ip addr)")]
    NoSource(IpAddr),
    /// The destination is this machine: frames to it never reach an interface.
    #[error("{0} is an address of this machine; give the address of the peer")]
    Local(IpAddr),
    /// Nobody answered ARP or neighbour discovery.
    #[error(
        "{next_hop} does not answer {} on {ifname} ({waited_ms} ms): is the peer up, the cable \
         in, both in the same VLAN and subnet?",
        if next_hop.is_ipv4() { "ARP" } else { "neighbour discovery" }
    )]
    NoAnswer {
        /// Who was asked: the destination, or the gateway towards it.
        next_hop: IpAddr,
        /// Where.
        ifname: String,
        /// How long it was waited.
        waited_ms: u64,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

fn via(src: &Option<IpAddr>, ifname: &Option<String>) -> String {
    let src = src.map(|s| format!(" from {s}")).unwrap_or_default();
    let ifname = ifname
        .as_ref()
        .map(|n| format!(" through {n}"))
        .unwrap_or_default();
    src + &ifname
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> NeighError {
    move |source| NeighError::System { what, source }
}

/// The way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Whether it leaves this machine, and how.
    pub kind: RouteKind,
    /// Interface it leaves by.
    pub ifindex: u32,
    /// Whose Ethernet address the frame carries: the gateway's, or the destination itself.
    pub next_hop: IpAddr,
    /// The source address the kernel would choose (or was told).
    pub src: Option<IpAddr>,
}

/// What kind of destination a route leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// One other host.
    Unicast,
    /// This machine.
    Local,
    /// All hosts of a subnet.
    Broadcast,
    /// A group.
    Multicast,
}

/// An entry of the neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its Ethernet address; `None` while unknown.
    pub mac: Option<MacAddr>,
    /// The kernel tried and got no answer.
    pub failed: bool,
    /// Confirmed lately, or entered by hand; otherwise the kernel re-checks it on next use.
    pub fresh: bool,
}

/// The kernel's route to `dst`, as it would be used for a packet from `src` out of `ifindex`
/// (each if given).
///
/// # Errors
/// [`NeighError::NoRoute`].
pub fn route(dst: IpAddr, src: Option<IpAddr>, ifindex: Option<u32>) -> Result<Route, NeighError> {
    let mut message = RouteMessage::default();
    message.header.address_family = family(dst);
    message.header.destination_prefix_length = bits(dst);
    message
        .attributes
        .push(RouteAttribute::Destination(RouteAddress::from(dst)));
    if let Some(src) = src.filter(|s| s.is_ipv4() == dst.is_ipv4()) {
        message.header.source_prefix_length = bits(src);
        message
            .attributes
            .push(RouteAttribute::Source(RouteAddress::from(src)));
    }
    if let Some(ifindex) = ifindex {
        message.attributes.push(RouteAttribute::Oif(ifindex));
    }
    let no_route = |source| NeighError::NoRoute {
        dst,
        src,
        ifname: None,
        source,
    };
    match netlink::get(RouteNetlinkMessage::GetRoute(message)) {
        Ok(Some(RouteNetlinkMessage::NewRoute(answer))) => {
            parse_route(&answer, dst, src).ok_or_else(|| no_route(Errno::HOSTUNREACH.into()))
        }
        Ok(_) => Err(no_route(Errno::NETUNREACH.into())),
        Err(source) => Err(no_route(source)),
    }
}

fn parse_route(message: &RouteMessage, dst: IpAddr, src: Option<IpAddr>) -> Option<Route> {
    let kind = match message.header.kind {
        RouteType::Unicast | RouteType::Anycast => RouteKind::Unicast,
        RouteType::Local => RouteKind::Local,
        RouteType::Broadcast => RouteKind::Broadcast,
        RouteType::Multicast => RouteKind::Multicast,
        _ => return None,
    };
    let mut route = Route {
        kind,
        ifindex: 0,
        next_hop: dst,
        src,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => route.ifindex = *index,
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) => route.next_hop = (*ip).into(),
            RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => route.next_hop = (*ip).into(),
            RouteAttribute::Via(RouteVia::Inet6(ip)) => route.next_hop = (*ip).into(),
            RouteAttribute::PrefSource(RouteAddress::Inet(ip)) => route.src = Some((*ip).into()),
            RouteAttribute::PrefSource(RouteAddress::Inet6(ip)) => route.src = Some((*ip).into()),
            _ => {}
        }
    }
    Some(route)
}

/// What the neighbour table of interface `ifindex` says about `ip`; `None`: nothing.
///
/// # Errors
/// [`NeighError::System`].
pub fn neighbour(ifindex: u32, ip: IpAddr) -> Result<Option<Neighbour>, NeighError> {
    let mut message = NeighbourMessage::default();
    message.header.family = family(ip);
    message.header.ifindex = ifindex;
    message
        .attributes
        .push(NeighbourAttribute::Destination(match ip {
            IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
            IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
        }));
    match netlink::get(RouteNetlinkMessage::GetNeighbour(message)) {
        Ok(Some(RouteNetlinkMessage::NewNeighbour(entry))) => Ok(Some(parse_neighbour(&entry))),
        Ok(_) => Ok(None),
        Err(e) if e.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(None),
        Err(source) => Err(NeighError::System {
            what: "looking up the neighbour table",
            source,
        }),
    }
}

fn parse_neighbour(entry: &NeighbourMessage) -> Neighbour {
    let state = entry.header.state;
    let known = matches!(
        state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp
    );
    let mac = entry.attributes.iter().find_map(|a| match a {
        NeighbourAttribute::LinkLayerAddress(bytes) if known => mac(bytes),
        _ => None,
    });
    let fresh = matches!(
        state,
        NeighbourState::Reachable | NeighbourState::Permanent | NeighbourState::Noarp
    );
    Neighbour {
        mac,
        failed: state == NeighbourState::Failed,
        fresh,
    }
}

/// The Ethernet address frames from `src` to `dst` out of interface `ifindex` carry: the
/// neighbour's, the gateway's, or the one computed for a group.
///
/// If the kernel does not know it, an ordinary UDP datagram to the discard port makes the kernel
/// ask, and the table is polled until it knows or about `timeout_ms` have passed.
///
/// For an address of another interface of this machine it is that interface's.
///
/// # Errors
/// All of [`NeighError`].
pub fn resolve(
    ifindex: u32,
    src: IpAddr,
    dst: IpAddr,
    timeout_ms: u64,
) -> Result<MacAddr, NeighError> {
    if let Some(mac) = multicast_mac(dst) {
        return Ok(mac);
    }
    let all = interfaces()?;
    if !all.iter().any(|i| i.addresses.iter().any(|a| a.ip == src)) {
        return Err(NeighError::NoSource(src));
    }
    let interface = interface::pick(all.clone(), &format!("#{ifindex}"), |i| i.index == ifindex)?;
    let mut others = all
        .iter()
        .filter(|i| i.index != ifindex && i.up && !i.loopback);
    if !interface.up {
        return Err(NeighError::Down(interface.name));
    }
    let route = route_through(dst, src, ifindex).map_err(|e| match e {
        NeighError::NoRoute {
            dst, src, source, ..
        } => NeighError::NoRoute {
            dst,
            src,
            ifname: Some(interface.name.clone()),
            source,
        },
        other => other,
    })?;
    match route.kind {
        // Another port of this machine: over the cable between them, not through `lo`
        // (case 13). Whether there is one, the packets will show.
        RouteKind::Local => {
            let other = others.find(|i| i.addresses.iter().any(|a| a.ip == dst));
            return other.map(|i| i.mac).ok_or(NeighError::Local(dst));
        }
        RouteKind::Broadcast => return Ok(BROADCAST),
        RouteKind::Unicast | RouteKind::Multicast => {}
    }
    if interface.no_arp {
        return Ok(MacAddr::default());
    }
    poll_neighbour(&interface, src, dst, route.next_hop, timeout_ms)
}

/// The route to `dst` out of `ifindex`.
fn route_through(dst: IpAddr, src: IpAddr, ifindex: u32) -> Result<Route, NeighError> {
    if dst.is_ipv4() {
        // Told the interface, the kernel takes any IPv4 address without a route for a neighbour;
        // so first find out whether there is a route.
        let free = route(dst, Some(src), None)?;
        if free.ifindex == ifindex || free.kind != RouteKind::Unicast {
            return Ok(free);
        }
    }
    route(dst, Some(src), Some(ifindex))
}

fn poll_neighbour(
    interface: &Interface,
    src: IpAddr,
    dst: IpAddr,
    next_hop: IpAddr,
    timeout_ms: u64,
) -> Result<MacAddr, NeighError> {
    // Time is counted in sleeps: this crate reads no clock.
    let mut waited_ms = 0;
    let mut pause_ms = POLL_MS.0;
    let mut ask_at_ms = 0;
    loop {
        let entry = neighbour(interface.index, next_hop)?;
        let mac = entry.and_then(|n| n.mac);
        let fresh = entry.is_some_and(|n| n.fresh);
        if !fresh && waited_ms >= ask_at_ms {
            provoke(interface, src, dst)?;
            ask_at_ms = waited_ms + RETRY_MS;
        }
        if let Some(mac) = mac {
            return Ok(mac);
        }
        if waited_ms >= timeout_ms {
            return Err(NeighError::NoAnswer {
                next_hop,
                ifname: interface.name.clone(),
                waited_ms,
            });
        }
        std::thread::sleep(Duration::from_millis(pause_ms));
        waited_ms += pause_ms;
        pause_ms = (pause_ms * 2).min(POLL_MS.1);
    }
}

/// Sends one byte to the discard port of `dst`; the kernel resolves the next hop for it.
fn provoke(interface: &Interface, src: IpAddr, dst: IpAddr) -> Result<(), NeighError> {
    let what = "sending a datagram to provoke address resolution";
    let domain = if dst.is_ipv4() {
        Domain::IPV4
    } else {
        Domain::IPV6
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(system(what))?;
    socket.set_nonblocking(true).map_err(system(what))?;
    // Needs CAP_NET_RAW before Linux 5.7; without it the routing table decides.
    let _ = socket.bind_device(Some(interface.name.as_bytes()));
    socket
        .bind(&socket_addr(src, 0, interface.index).into())
        .map_err(system(what))?;
    socket
        .connect(&socket_addr(dst, DISCARD_PORT, interface.index).into())
        .map_err(|source| NeighError::NoRoute {
            dst,
            src: Some(src),
            ifname: Some(interface.name.clone()),
            source,
        })?;
    // That nobody listens there, or an earlier failure to resolve, is no news.
    let _ = socket.send(&[0]);
    Ok(())
}

fn socket_addr(ip: IpAddr, port: u16, ifindex: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(v4) => SocketAddrV4::new(v4, port).into(),
        IpAddr::V6(v6) => {
            let scope = if v6.is_unicast_link_local() {
                ifindex
            } else {
                0
            };
            SocketAddrV6::new(v6, port, 0, scope).into()
        }
    }
}

const BROADCAST: MacAddr = MacAddr::new([0xff; 6]);

/// The Ethernet address of an IP group: 01:00:5e and 23 bits (RFC 1112 §6.4), or 33:33 and
/// 32 bits (RFC 2464 §7); all ones for 255.255.255.255; `None` for a unicast address.
#[must_use]
pub fn multicast_mac(ip: IpAddr) -> Option<MacAddr> {
    match ip {
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(BROADCAST),
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            Some(MacAddr::new([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let [.., a, b, c, d] = v6.octets();
            Some(MacAddr::new([0x33, 0x33, a, b, c, d]))
        }
        _ => None,
    }
}

fn mac(bytes: &[u8]) -> Option<MacAddr> {
    bytes.try_into().ok().map(MacAddr::new)
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

fn bits(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule W24.
    #[test]
    fn multicast_addresses_are_computed() {
        let mac = |ip: &str| multicast_mac(ip.parse().unwrap()).map(|m| m.to_string());
        assert_eq!(mac("224.0.0.1").as_deref(), Some("01:00:5e:00:00:01"));
        assert_eq!(mac("239.255.3.4").as_deref(), Some("01:00:5e:7f:03:04"));
        assert_eq!(mac("ff02::1:ff00:17").as_deref(), Some("33:33:ff:00:00:17"));
        assert_eq!(mac("255.255.255.255").as_deref(), Some("ff:ff:ff:ff:ff:ff"));
        assert_eq!(mac("192.0.2.1"), None);
        assert_eq!(mac("2001:db8::1"), None);
    }

    #[test]
    fn loopback_is_found_without_privileges() {
        let lo = interface("lo").unwrap();
        assert!(lo.loopback && lo.no_arp && lo.mtu > 0);
        assert_eq!(interface_by_index(lo.index).unwrap(), lo);
        let error = interface("nosuch0").unwrap_err();
        assert!(error.to_string().contains("lo"), "{error}");
    }

    #[test]
    fn a_local_destination_is_told_apart() {
        let localhost = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(route(localhost, None, None).unwrap().kind, RouteKind::Local);
        let lo = interface("lo").unwrap();
        assert!(matches!(
            resolve(lo.index, localhost, localhost, 10),
            Err(NeighError::Local(_))
        ));
    }

    #[test]
    fn a_foreign_source_is_told_apart() {
        let lo = interface("lo").unwrap();
        let error = resolve(lo.index, [192, 0, 2, 77].into(), [127, 0, 0, 1].into(), 0);
        assert!(matches!(error, Err(NeighError::NoSource(_))), "{error:?}");
    }
}
