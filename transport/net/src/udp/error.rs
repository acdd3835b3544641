//! What can go wrong when a port is opened, and what the kernel says later.

use std::io;
use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

/// A port could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UdpError {
    /// The wildcard address was given.
    #[error(
        "{0} is no address to bind RoCE to, since the ICRC covers the source address: \
         give one address of this machine (`ip -br address` lists them)"
    )]
    Wildcard(IpAddr),
    /// No interface has the address.
    #[error("{0} is not an address of this machine: `ip -br address` lists those it has")]
    NotLocal(IpAddr),
    /// Somebody has the port.
    #[error(
        "UDP port {} of {} is in use, by another xroce or by the kernel's rdma_rxe \
         (`ss -uanp 'sport = {}'` shows whom): stop it, or use another address of this machine",
        .0.port(), .0.ip(), .0.port()
    )]
    InUse(SocketAddr),
    /// Not allowed.
    #[error("no permission for UDP port {} of {}: {source}", .addr.port(), .addr.ip())]
    Denied {
        /// What was asked for.
        addr: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Anything else.
    #[error("{what} for UDP {addr}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The address of the port.
        addr: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Something the network or the kernel said about what was sent; no reason to close the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SendTrouble {
    /// ICMP: nothing listens there.
    #[error("{} answered that nothing listens on UDP port {port}: start the peer there", by(.from))]
    PortUnreachable {
        /// Who said so.
        from: Option<IpAddr>,
        /// The port sent to.
        port: u16,
    },
    /// ICMP: no way to the destination.
    #[error("{} answered: destination unreachable ({})", by(.from), os(*.errno))]
    Unreachable {
        /// Who said so.
        from: Option<IpAddr>,
        /// What it is called here.
        errno: i32,
    },
    /// ICMP: a link on the way has a smaller MTU.
    #[error("{} answered that its MTU is {mtu}: use a smaller path MTU", by(.from))]
    PathTooNarrow {
        /// Who said so.
        from: Option<IpAddr>,
        /// IP MTU there, bytes.
        mtu: u32,
    },
    /// The own link's MTU is too small for a packet.
    #[error(
        "a RoCE packet of {len} bytes does not fit the MTU of {mtu} of the interface (at most \
         {limit}): use a smaller path MTU or raise the interface's MTU"
    )]
    TooLong {
        /// Bytes from BTH to ICRC.
        len: usize,
        /// Most of them possible.
        limit: usize,
        /// IP MTU, bytes.
        mtu: usize,
    },
    /// The destination is of the other address family.
    #[error("{dst} cannot be reached from {src}: one is IPv4, the other IPv6")]
    WrongFamily {
        /// Address of the port.
        src: IpAddr,
        /// Where the frame was to go.
        dst: IpAddr,
    },
    /// The kernel refused to send.
    #[error("sending to {dst}: {}", os(*.errno))]
    Refused {
        /// Where the frame was to go.
        dst: IpAddr,
        /// Why.
        errno: i32,
    },
}

fn by(from: &Option<IpAddr>) -> String {
    from.map_or_else(|| String::from("a router"), |ip| ip.to_string())
}

fn os(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
