//! Opens the port that the command line asks for.

use std::net::IpAddr;

use anyhow::{Result, anyhow, bail};
use xroce_net::addressing::Addressing;
use xroce_net::datapath::Datapath;
use xroce_net::neigh::{self, Interface, Scope};
use xroce_net::udp::{UdpConfig, UdpPort};
use xroce_wire::newtypes::Gid;
use xroce_wire::path::AhAttr;

use crate::perf::args::{Backend, PortArgs};
use crate::perf::device::node::{Node, Place};

/// What to do with the port, whichever backend it has: `dyn` would cost a call for each packet.
pub(crate) trait Visitor {
    /// Uses the port.
    ///
    /// # Errors
    /// Whatever goes wrong.
    fn visit<D: Datapath>(self, node: Node<D>) -> Result<()>;
}

/// Finds what is wrong with the arguments before anything is done.
///
/// # Errors
/// The interface does not exist, or this program has no such backend.
pub(crate) fn check(args: &PortArgs) -> Result<()> {
    if args.backend() == Backend::Xdp && cfg!(not(feature = "xdp")) {
        return Err(without_xdp());
    }
    if let (Backend::Udp, Some(id)) = (args.backend(), args.vlan) {
        bail!(
            "--vlan is for --backend xdp: over UDP sockets the kernel writes the tags, give the \
             VLAN interface as --dev (ip link add link eth0 name eth0.{id} type vlan id {id})"
        );
    }
    match &args.dev {
        Some(dev) => drop(neigh::interface(dev)?),
        None if args.backend() == Backend::Xdp => {
            let names: Vec<String> = neigh::interfaces()?.into_iter().map(|i| i.name).collect();
            bail!(
                "AF_XDP needs an interface: give --dev, one of {}",
                names.join(", ")
            );
        }
        None => {}
    }
    Ok(())
}

pub(crate) fn without_xdp() -> anyhow::Error {
    anyhow!(
        "this xroce was built without AF_XDP: install clang, libelf-dev, zlib1g-dev and m4 and \
         build it again, or use --backend udp"
    )
}

/// Opens the port and hands it to `visitor`. `near` is the address of this side on the side
/// channel, if there is one yet: the port uses it if no other was given.
///
/// # Errors
/// The port cannot be opened, or what `visitor` returns.
pub(crate) fn open(args: &PortArgs, near: Option<IpAddr>, visitor: impl Visitor) -> Result<()> {
    if args.local.len() > 1 {
        bail!("one port has one address: give one --local");
    }
    if let Some(core) = args.core {
        pin(core)?;
    }
    match args.backend() {
        Backend::Udp => {
            let local = udp_address(args, near)?;
            let mut config = UdpConfig::default();
            if let (IpAddr::V6(v6), Some(dev)) = (local, &args.dev)
                && v6.is_unicast_link_local()
            {
                config.scope_id = neigh::interface(dev)?.index;
            }
            let port = UdpPort::bind(local, &config)?;
            let src_port = port.src_port();
            let addressing = Addressing::udp(Gid::from(local), config.scope_id, src_port)?;
            let place = place(args, addressing, 0, usize::MAX)?;
            visitor.visit(Node::new(port, place)?)
        }
        Backend::Xdp => open_xdp(args, near, visitor),
    }
}

#[cfg(feature = "xdp")]
fn open_xdp(args: &PortArgs, near: Option<IpAddr>, visitor: impl Visitor) -> Result<()> {
    let dev = args.dev.as_deref().unwrap_or_default();
    let interface = neigh::interface(dev)?;
    let local = interface_address(&interface, args.address(), near)?;
    let (below, vlan) = tagging(&interface, args.vlan)?;
    let addresses = vec![Gid::from(local)];
    let mode = args.xdp_mode.unwrap_or_default();
    let port = xdp_port(&below, args.queue(), args.ring(), mode, addresses)?;
    let tag = vlan.filter(|_| interface.vlan.is_none());
    let addressing = Addressing::ethernet(&below, tag)?;
    let index = addressing.gids().find_on(Gid::from(local), interface.index);
    let index = index.ok_or_else(|| anyhow!("{local} cannot be the source of packets of {dev}"))?;
    let place = place(args, addressing, index, interface.mtu as usize)?;
    visitor.visit(Node::new(port, place)?)
}

/// How everything is sent from the address at `index`, as the command line asks for it.
fn place(args: &PortArgs, addressing: Addressing, index: u32, mtu: usize) -> Result<Place> {
    let attr = AhAttr {
        sgid_index: index,
        sl: args.sl,
        traffic_class: args.traffic_class,
        flow_label: args.flow_label,
        hop_limit: args.hop_limit,
        // Of each path its own.
        dgid: Gid::new([0; 16]),
    };
    Ok(Place {
        addressing,
        attr,
        mtu,
        congestion: args.congestion.resolve()?,
    })
}

/// The interface that frames of `interface` really leave by, and the VLAN id in them.
///
/// # Errors
/// A VLAN interface with another id, or one whose frames leave from another namespace.
#[cfg(feature = "xdp")]
fn tagging(interface: &Interface, asked: Option<u16>) -> Result<(String, Option<u16>)> {
    let Some(neigh::Vlan { parent, vid }) = interface.vlan else {
        return Ok((interface.name.clone(), asked));
    };
    let name = &interface.name;
    if let Some(asked) = asked.filter(|&asked| asked != vid) {
        bail!("{name} has VLAN id {vid}, not {asked}: leave --vlan away");
    }
    if parent == 0 {
        bail!("the interface below {name} is in another network namespace: start xroce there");
    }
    Ok((neigh::interface_by_index(parent)?.name, Some(vid)))
}

/// An AF_XDP port as `perf` uses it, for RoCE frames to these addresses, or to all of the
/// interface; the raw rate is measured on the same.
#[cfg(feature = "xdp")]
pub(crate) fn xdp_port(
    dev: &str,
    queue: u32,
    ring_size: u32,
    mode: crate::perf::args::XdpMode,
    addresses: Vec<Gid>,
) -> Result<xroce_net::xdp::XdpPort> {
    use crate::perf::args::XdpMode;
    use xroce_net::xdp::{Mode, XdpConfig, XdpPort};
    let mode = match mode {
        XdpMode::Auto => Mode::Auto,
        XdpMode::Native => Mode::Native,
        XdpMode::Generic => Mode::Generic,
    };
    Ok(XdpPort::open(&XdpConfig {
        queue,
        mode,
        ring_size,
        addresses,
        ..XdpConfig::new(dev)
    })?)
}

#[cfg(not(feature = "xdp"))]
fn open_xdp(_: &PortArgs, _: Option<IpAddr>, _: impl Visitor) -> Result<()> {
    Err(without_xdp())
}

/// The address of a UDP port.
///
/// # Errors
/// None was given, or the interface has no such address.
pub(crate) fn udp_address(args: &PortArgs, near: Option<IpAddr>) -> Result<IpAddr> {
    if let Some(dev) = &args.dev {
        return interface_address(&neigh::interface(dev)?, args.address(), near);
    }
    let local = args.address().or(near).map(|ip| ip.to_canonical());
    local.ok_or_else(|| anyhow!("the UDP port needs an address: give --local or --dev"))
}

/// The address to use on an interface: the one asked for, else the one of the side channel, else
/// the first of the same family.
///
/// # Errors
/// The interface is down or has no such address.
pub(crate) fn interface_address(
    interface: &Interface,
    asked: Option<IpAddr>,
    near: Option<IpAddr>,
) -> Result<IpAddr> {
    let name = &interface.name;
    if !interface.up {
        bail!("interface {name} is down; bring it up: ip link set dev {name} up");
    }
    let has = |ip: IpAddr| interface.addresses.iter().any(|a| a.ip == ip);
    if let Some(asked) = asked.map(|ip| ip.to_canonical()) {
        if has(asked) {
            return Ok(asked);
        }
        bail!("{asked} is not an address of {name}: see \"ip address show dev {name}\"");
    }
    let near = near.map(|ip| ip.to_canonical());
    if let Some(near) = near.filter(|&ip| has(ip)) {
        return Ok(near);
    }
    let mut usable: Vec<_> = interface
        .addresses
        .iter()
        .filter(|a| a.usable && near.is_none_or(|n| n.is_ipv4() == a.ip.is_ipv4()))
        .collect();
    // Addresses that are valid everywhere first, and IPv4 before IPv6.
    usable.sort_by_key(|a| (a.scope != Scope::Global, a.ip.is_ipv6()));
    usable.first().map(|a| a.ip).ok_or_else(|| {
        let family = match near {
            Some(ip) if ip.is_ipv6() => "IPv6 ",
            Some(_) => "IPv4 ",
            None => "",
        };
        anyhow!("{name} has no usable {family}address: ip address add ADDRESS/BITS dev {name}")
    })
}

/// Binds this thread to a core.
///
/// # Errors
/// There is no such core for this process.
pub(crate) fn pin(core: usize) -> Result<()> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let Some(id) = cores.iter().find(|c| c.id == core) else {
        let all: Vec<String> = cores.iter().map(|c| c.id.to_string()).collect();
        bail!(
            "there is no core {core} for this process: use --core with one of {}",
            all.join(", ")
        );
    };
    if !core_affinity::set_for_current(*id) {
        bail!("cannot bind to core {core}");
    }
    Ok(())
}

#[cfg(all(test, feature = "xdp"))]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_interface_names_tag_and_interface_below() {
        let lo = neigh::interface("lo").unwrap();
        assert_eq!(tagging(&lo, None).unwrap(), ("lo".to_owned(), None));
        assert_eq!(tagging(&lo, Some(7)).unwrap(), ("lo".to_owned(), Some(7)));
        let above = |parent| Interface {
            name: "lo.7".to_owned(),
            vlan: Some(neigh::Vlan { parent, vid: 7 }),
            ..lo.clone()
        };
        let vlan = above(lo.index);
        assert_eq!(tagging(&vlan, None).unwrap(), ("lo".to_owned(), Some(7)));
        assert_eq!(tagging(&vlan, Some(7)).unwrap(), ("lo".to_owned(), Some(7)));
        for (interface, asked, words) in [
            (&vlan, Some(8), "VLAN id 7, not 8"),
            (&above(0), None, "another network namespace"),
        ] {
            let error = tagging(interface, asked).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
