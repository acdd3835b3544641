//! Ports of AF_XDP in namespaces.

use xroce_net::neigh::{self, NeighError};
use xroce_net::xdp::{XdpConfig, XdpError, XdpPort};
use xroce_testnet::{IFNAME, Netns};
use xroce_wire::newtypes::Gid;

use super::Place;

/// The port of a namespace with `ring` receive chunks, and where it is.
pub fn open(ns: &Netns, ring: u32) -> Result<(XdpPort, Place), XdpError> {
    let mut config = XdpConfig::new(IFNAME);
    config.ring_size = ring;
    let port = ns.run(|| XdpPort::open(&config))?;
    let interface: Result<_, NeighError> = ns.run(|| neigh::interface(IFNAME));
    let place = Place {
        gid: Gid::from(ns.ip(false)),
        mac: interface?.mac,
        src_port: 0xc000,
    };
    Ok((port, place))
}
