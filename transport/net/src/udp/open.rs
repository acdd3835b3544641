//! Opening a port: the socket with its options, and the interface behind its address.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::ReceiveTimestampns;
use nix::{libc, setsockopt_impl, sockopt_impl};
use quinn_udp::{UdpSockRef, UdpSocketState};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

use super::error::UdpError;
use crate::neigh::{self, Interface};

/// UDP port of RoCEv2, as source and destination.
pub const ROCE_PORT: u16 = 4791;

sockopt_impl!(
    /// Take UDP over IPv6 with checksum 0. RoCEv2 allows that and NICs send it (the ICRC covers
    /// more); the kernel drops such packets unless told otherwise (RFC 6935).
    AcceptZeroChecksum, SetOnly, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, bool
);

/// How a port is set up.
#[derive(Clone, Copy, Debug)]
pub struct UdpConfig {
    /// Own port and that of all peers. The ICRC of a packet sent from or to another port than
    /// 4791 is wrong for everybody else: change it in tests only.
    pub port: u16,
    /// Bytes asked for as SO_RCVBUF and SO_SNDBUF. Without privileges the kernel gives at most
    /// `net.core.rmem_max` and `wmem_max`.
    pub buffer_bytes: usize,
    /// Let the kernel cut trains of frames (`UDP_SEGMENT`), if it can. Off, each frame costs a
    /// system call.
    pub segmentation: bool,
    /// Interface of a link-local IPv6 address that several interfaces have; 0 takes the first.
    pub scope_id: u32,
}

impl Default for UdpConfig {
    /// Port 4791, 8 MiB, segmentation on.
    fn default() -> Self {
        Self {
            port: ROCE_PORT,
            buffer_bytes: 8 << 20,
            segmentation: true,
            scope_id: 0,
        }
    }
}

/// An open socket and what is known about it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) socket: Socket,
    pub(super) state: UdpSocketState,
    pub(super) addr: SocketAddr,
    pub(super) mtu: usize,
    pub(super) ifname: String,
    pub(super) rcvbuf: usize,
    pub(super) sndbuf: usize,
}

/// IP MTU assumed when the interface cannot be found, bytes.
const DEFAULT_MTU: usize = 1500;

pub(super) fn open(ip: IpAddr, cfg: &UdpConfig) -> Result<Opened, UdpError> {
    let ip = ip.to_canonical();
    if ip.is_unspecified() {
        return Err(UdpError::Wildcard(ip));
    }
    let device = interface_of(ip, cfg.scope_id);
    let addr = match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, cfg.port),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            let scope = device.as_ref().map_or(cfg.scope_id, |d| d.index);
            SocketAddrV6::new(v6, cfg.port, 0, scope).into()
        }
        IpAddr::V6(v6) => SocketAddrV6::new(v6, cfg.port, 0, 0).into(),
    };
    let fail = |what| move |source| UdpError::System { what, addr, source };
    let domain = if ip.is_ipv4() {
        Domain::IPV4
    } else {
        Domain::IPV6
    };
    let socket = Socket::new(domain, Type::DGRAM.cloexec(), Some(Protocol::UDP))
        .map_err(fail("making a socket"))?;
    if ip.is_ipv6() {
        socket
            .set_only_v6(true)
            .map_err(fail("setting IPV6_V6ONLY"))?;
        setsockopt(&socket, AcceptZeroChecksum, &true)
            .map_err(|e| fail("setting UDP_NO_CHECK6_RX")(e.into()))?;
    }
    // Before bind: from then on packets arrive.
    let (rcvbuf, sndbuf) = size_buffers(&socket, cfg.buffer_bytes).map_err(fail("buffers"))?;
    socket.bind(&addr.into()).map_err(|e| bind_error(addr, e))?;
    // Sets O_NONBLOCK, DF by IP_MTU_DISCOVER = PROBE (which also makes the kernel send
    // identification 0), UDP_GRO, IP_PKTINFO, IP_RECVTOS and their IPv6 counterparts.
    let state =
        UdpSocketState::new(UdpSockRef::from(&socket)).map_err(fail("setting socket options"))?;
    drop_timestamps(&socket).map_err(fail("clearing SO_TIMESTAMPNS"))?;
    state
        .enable_transport_errors(UdpSockRef::from(&socket))
        .map_err(fail("setting IP_RECVERR"))?;
    let (ifname, mtu) = match device {
        Some(d) => (d.name, usize::try_from(d.mtu).unwrap_or(DEFAULT_MTU)),
        None => (String::from("?"), DEFAULT_MTU),
    };
    Ok(Opened {
        socket,
        state,
        addr,
        mtu,
        ifname,
        rcvbuf,
        sndbuf,
    })
}

/// quinn-udp 0.6.3 also asks for time stamps, but its buffer for control messages has no room for
/// them besides those of a coalesced train: the kernel leaves out the last one, which is ECN. So
/// every train would arrive without its marks. Nobody here needs the time stamps.
fn drop_timestamps(socket: &Socket) -> io::Result<()> {
    setsockopt(socket, ReceiveTimestampns, &false).map_err(io::Error::from)
}

fn bind_error(addr: SocketAddr, e: io::Error) -> UdpError {
    match e.kind() {
        io::ErrorKind::AddrInUse => UdpError::InUse(addr),
        io::ErrorKind::AddrNotAvailable => UdpError::NotLocal(addr.ip()),
        io::ErrorKind::PermissionDenied => UdpError::Denied { addr, source: e },
        // A link-local address without an interface that has it.
        io::ErrorKind::InvalidInput if addr.is_ipv6() => UdpError::NotLocal(addr.ip()),
        _ => UdpError::System {
            what: "bind",
            addr,
            source: e,
        },
    }
}

/// As large as allowed: root may pass the limit. Returns what the kernel says it set, which is
/// twice the payload it thinks of.
fn size_buffers(socket: &Socket, bytes: usize) -> io::Result<(usize, usize)> {
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        socket.set_recv_buffer_size(bytes)?;
    }
    if sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        socket.set_send_buffer_size(bytes)?;
    }
    Ok((socket.recv_buffer_size()?, socket.send_buffer_size()?))
}

/// The interface that has the address, or `lo` for the other addresses of its subnet
/// (127.0.0.2 is local but not listed). `None` if there is none or the kernel does not tell.
fn interface_of(ip: IpAddr, scope_id: u32) -> Option<Interface> {
    let mut all = neigh::interfaces().ok()?;
    let has = |d: &Interface| d.addresses.iter().any(|a| a.ip == ip);
    let at = all
        .iter()
        .position(|d| has(d) && (scope_id == 0 || d.index == scope_id))
        .or_else(|| all.iter().position(|d| ip.is_loopback() && d.loopback))?;
    Some(all.swap_remove(at))
}
