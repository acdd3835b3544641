//! The 40 bytes in front of a received datagram: what the network layer said about it.

use zerocopy::IntoBytes;

use super::{Frame, Lower, SocketLower, UdpMeta, socket_lower};
use crate::ip::{self, Ipv4Hdr, Ipv6Hdr, PROTO_UDP};

/// Bytes in front of a datagram's payload in a receive buffer.
pub const GRH_LEN: usize = Ipv6Hdr::LEN;

/// Hop limit where a socket did not tell.
const HOPS_UNKNOWN: u8 = 64;

impl Frame<'_> {
    /// What a UD receive buffer begins with (UD2): the IPv6 header as received, or 20
    /// zero bytes and the IPv4 header. Behind a socket the header is made anew of what the socket
    /// told, with a right checksum and identification 0.
    #[must_use]
    pub fn grh(&self) -> [u8; GRH_LEN] {
        match &self.lower {
            Lower::V4(l) => of_v4(&l.ip),
            Lower::V6(l) => zerocopy::transmute!(l.ip),
            Lower::Grh(g) => zerocopy::transmute!(**g),
            Lower::Socket(m) => of_socket(m, self.transport.len()),
        }
    }
}

fn of_v4(ip: &Ipv4Hdr) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    let fits = ip.write_to_suffix(&mut grh);
    debug_assert!(fits.is_ok());
    grh
}

fn of_socket(m: &UdpMeta, transport_len: usize) -> [u8; GRH_LEN] {
    let hops = m.hop_limit.unwrap_or(HOPS_UNKNOWN);
    match socket_lower(m, transport_len) {
        Some(SocketLower::V4(l)) => {
            let (src, dst) = (l.ip.src().v4(), l.ip.dst().v4());
            let (src, dst) = (src.unwrap_or_default(), dst.unwrap_or_default());
            let mut ip = Ipv4Hdr::new(src, dst, m.tos, hops, 0);
            ip.total_len.set(l.ip.total_len());
            ip.checksum.set(!ip::fold(ip.sum()));
            of_v4(&ip)
        }
        Some(SocketLower::V6(l)) => {
            let mut ip = Ipv6Hdr::new(m.src, m.dst, m.tos, 0, PROTO_UDP, hops);
            ip.payload_len.set(l.ip.payload_len());
            zerocopy::transmute!(ip)
        }
        // Longer than IP carries: no such datagram arrives.
        None => [0; GRH_LEN],
    }
}
