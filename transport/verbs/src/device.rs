//! Devices: what can be opened, and what an open one says about itself.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use xroce_api::message::Limits;
#[cfg(feature = "inproc")]
use xroce_net::addressing::{AddressError, Addressing};
#[cfg(feature = "inproc")]
use xroce_net::neigh;
#[cfg(feature = "inproc")]
use xroce_net::udp::{UdpConfig, UdpPort};
use xroce_proto::params;
use xroce_wire::newtypes::PathMtu;

use crate::backend::Backend;
use crate::context::{Context, Drive};
use crate::error::VerbsError;

/// Bytes at the beginning of a UD receive that hold the network header.
pub const GRH_BYTES: u32 = 40;

/// A device that can be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Device {
    /// A UDP socket on one address of this machine: no privileges, and the peer has to be xroce,
    /// or anybody who tolerates what the kernel does to the packets.
    Udp {
        /// The address.
        addr: IpAddr,
        /// Interface of a link-local address that several have.
        ifname: Option<String>,
    },
    /// AF_XDP on one queue of an interface: needs CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW.
    Xdp(XdpOptions),
    /// A device of the xroce daemon on this machine: no privileges but to open its socket. The
    /// daemon moves it, whatever [`Drive`] says.
    Daemon {
        /// The daemon's socket.
        socket: PathBuf,
        /// Name of the device; `None`: the daemon's first.
        device: Option<String>,
    },
}

/// How AF_XDP is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XdpOptions {
    /// Interface.
    pub ifname: String,
    /// Its queue, from 0.
    pub queue: u32,
    /// Receive chunks, a power of two from 64 to 16384.
    pub ring_size: u32,
}

impl Device {
    /// The UDP device of an address.
    #[must_use]
    pub const fn udp(addr: IpAddr) -> Self {
        Self::Udp { addr, ifname: None }
    }

    /// The first device of the daemon at its usual place.
    #[must_use]
    pub fn daemon() -> Self {
        Self::Daemon {
            socket: xroce_api::SOCKET_DEFAULT.into(),
            device: None,
        }
    }

    /// The AF_XDP device of an interface: queue 0, and receive chunks for more than the window of
    /// a queue pair.
    #[must_use]
    pub fn xdp(ifname: impl Into<String>) -> Self {
        Self::Xdp(XdpOptions {
            ifname: ifname.into(),
            queue: 0,
            ring_size: 1024,
        })
    }

    #[cfg(feature = "inproc")]
    /// What could be opened here (`ibv_get_device_list`): an AF_XDP device per interface that is
    /// up and not `lo`, a UDP device per address.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn list() -> Result<Vec<Self>, VerbsError> {
        let interfaces = neigh::interfaces().map_err(AddressError::from)?;
        let up = || interfaces.iter().filter(|i| i.up);
        let mut all = Vec::new();
        if cfg!(feature = "xdp") {
            let ethernet = up().filter(|i| !i.loopback && i.vlan.is_none());
            all.extend(ethernet.map(|i| Self::xdp(i.name.clone())));
        }
        for interface in up() {
            let usable = interface.addresses.iter().filter(|a| a.usable);
            all.extend(usable.map(|a| Self::Udp {
                addr: a.ip,
                ifname: Some(interface.name.clone()),
            }));
        }
        Ok(all)
    }

    pub(crate) fn open(&self, drive: Drive) -> Result<Context, VerbsError> {
        match self {
            Self::Udp { addr, ifname } => open_udp(*addr, ifname.as_deref(), drive),
            Self::Xdp(options) => open_xdp(options, drive),
            Self::Daemon { socket, device } => attach(socket, device.as_deref()),
        }
    }
}

#[cfg(feature = "inproc")]
fn open_udp(addr: IpAddr, ifname: Option<&str>, drive: Drive) -> Result<Context, VerbsError> {
    let mut config = UdpConfig::default();
    if let Some(name) = ifname {
        let found = neigh::interface(name).map_err(AddressError::from)?;
        config.scope_id = found.index;
    }
    let port = UdpPort::bind(addr, &config)?;
    let (gid, src_port) = (port.gid(), port.src_port());
    let addressing = Addressing::udp(gid, config.scope_id, src_port)?;
    Context::on_port(port, addressing, drive)
}

#[cfg(not(feature = "inproc"))]
fn open_udp(_: IpAddr, _: Option<&str>, _: Drive) -> Result<Context, VerbsError> {
    Err(VerbsError::NotBuilt {
        what: "an engine in this process",
        feature: "inproc",
    })
}

#[cfg(feature = "daemon")]
fn attach(socket: &Path, device: Option<&str>) -> Result<Context, VerbsError> {
    Context::attach(socket, device)
}

#[cfg(not(feature = "daemon"))]
fn attach(_: &Path, _: Option<&str>) -> Result<Context, VerbsError> {
    Err(VerbsError::NotBuilt {
        what: "devices of the daemon",
        feature: "daemon",
    })
}

#[cfg(feature = "xdp")]
fn open_xdp(options: &XdpOptions, drive: Drive) -> Result<Context, VerbsError> {
    use xroce_net::xdp::{XdpConfig, XdpPort};
    let port = XdpPort::open(&XdpConfig {
        queue: options.queue,
        ring_size: options.ring_size,
        ..XdpConfig::new(options.ifname.as_str())
    })?;
    let addressing = Addressing::ethernet(&options.ifname, None)?;
    Context::on_port(port, addressing, drive)
}

#[cfg(not(feature = "xdp"))]
fn open_xdp(_: &XdpOptions, _: Drive) -> Result<Context, VerbsError> {
    Err(VerbsError::NoXdp)
}

/// Limits of a device (`ibv_device_attr`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceAttr {
    /// Name of its port.
    pub name: String,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests per queue.
    pub max_qp_wr: u32,
    /// SGEs per work request.
    pub max_sge: u8,
    /// Inline bytes per send.
    pub max_inline: u32,
    /// Completion queues, address handles and shared receive queues, each.
    pub max_handles: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions and windows together.
    pub max_mr: u32,
    /// Bytes of a message, and of one SGE, that every queue pair takes. Queue pairs with a path MTU
    /// above 256 take 2^31.
    pub max_msg: u32,
    /// READs, atomics and FLUSHes of a queue pair at once, in each direction.
    pub max_rd_atomic: u8,
    /// Work requests of a shared receive queue.
    pub max_srq_wr: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs in one group.
    pub max_mcast_qp_attach: u32,
    /// Entries of the P_Key table.
    pub max_pkeys: u16,
    /// Ports.
    pub ports: u8,
}

impl DeviceAttr {
    pub(crate) fn of(backend: &dyn Backend) -> Self {
        use xroce_api::limits;
        // What the daemon grants this process, where there is one.
        let granted = backend.fixed().limits;
        let least = |ours: u32, of: fn(&Limits) -> u32| granted.map_or(ours, |g| of(&g).min(ours));
        Self {
            name: backend.fixed().name.clone(),
            max_qp: least(limits::QPS_MAX, |g| g.qps),
            max_qp_wr: least(params::QUEUE_DEPTH_MAX, |g| g.queue_depth),
            max_sge: params::SGE_MAX,
            max_inline: params::INLINE_MAX,
            max_handles: least(limits::HANDLES_MAX, |g| g.cqs.min(g.ahs).min(g.srqs)),
            max_cqe: least(limits::CQ_DEPTH_MAX, |g| g.cq_depth),
            max_mr: least(limits::REGIONS_MAX, |g| g.mrs),
            max_msg: params::MESSAGE_LEN_ANY_MTU,
            max_rd_atomic: params::RD_ATOMIC_MAX,
            max_srq_wr: least(params::QUEUE_DEPTH_MAX, |g| g.queue_depth),
            max_mcast_grp: limits::GROUPS_MAX,
            max_mcast_qp_attach: limits::MEMBERS_MAX,
            max_pkeys: 1,
            ports: 1,
        }
    }
}

/// Whether a port can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// No link, or the device is broken.
    Down,
    /// It can.
    Active,
}

/// What is below the frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkLayer {
    /// Ethernet, whose headers xroce writes.
    Ethernet,
    /// A UDP socket: the kernel writes them.
    UdpSocket,
}

/// State of a port (`ibv_port_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAttr {
    /// Whether it can be used.
    pub state: PortState,
    /// What is below.
    pub link_layer: LinkLayer,
    /// IP MTU of the link, bytes.
    pub link_mtu: usize,
    /// Largest path MTU that it carries.
    pub active_mtu: PathMtu,
    /// Largest there is.
    pub max_mtu: PathMtu,
    /// Entries of the GID table, counting holes.
    pub gid_tbl_len: u32,
    /// Longest message that every queue pair takes, bytes; as [`DeviceAttr::max_msg`].
    pub max_msg_sz: u32,
}

impl PortAttr {
    pub(crate) fn of(backend: &dyn Backend) -> Self {
        let fixed = backend.fixed();
        let gids = backend.gids().unwrap_or_default();
        Self {
            state: if backend.is_up().unwrap_or(false) {
                PortState::Active
            } else {
                PortState::Down
            },
            link_layer: if fixed.ethernet {
                LinkLayer::Ethernet
            } else {
                LinkLayer::UdpSocket
            },
            link_mtu: fixed.link_mtu,
            active_mtu: fixed.path_mtu,
            max_mtu: PathMtu::Mtu4096,
            gid_tbl_len: gids.last().map_or(0, |(index, _)| index + 1),
            max_msg_sz: params::MESSAGE_LEN_ANY_MTU,
        }
    }
}
