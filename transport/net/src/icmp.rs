//! ICMP errors about RoCE packets of this host: who could not deliver what, and why.
//!
//! RoCE has no answer of its own to "there is no way" or "too long for the next link": a requester
//! would only time out. Routers and hosts do say it by ICMP (RFC 792, RFC 1191, RFC 4443), with the
//! start of the packet they mean; what they say goes into the report of a failed queue pair.
//!
//! Needs CAP_NET_RAW. Untrusted like everything received: what does not parse is left out, and
//! nothing is decided by it alone.

use std::io::{self, Read};
use std::net::{Ipv4Addr, Ipv6Addr};

use socket2::{Domain, Protocol, Socket, Type};
use xroce_api::{IcmpError, IcmpReason};
use xroce_wire::newtypes::Qpn;

/// Bytes from the start of the UDP header to the destination queue pair in BTH.
const DEST_QP: usize = 8 + 5;
/// UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;
/// IP protocol number of UDP.
const UDP: u8 = 17;
/// Longest message looked at; what counts is at the start.
const MESSAGE_MAX: usize = 1500;
/// Messages taken at once, so that a flood of them does not hold up the caller.
const BURST: usize = 64;

/// Receives them.
#[derive(Debug)]
pub struct IcmpWatch {
    v4: Socket,
    v6: Socket,
}

impl IcmpWatch {
    /// Listens in the network namespace of the calling thread.
    ///
    /// # Errors
    /// No CAP_NET_RAW.
    pub fn open() -> io::Result<Self> {
        let open = |domain, protocol| -> io::Result<Socket> {
            let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        Ok(Self {
            v4: open(Domain::IPV4, Protocol::ICMPV4)?,
            v6: open(Domain::IPV6, Protocol::ICMPV6)?,
        })
    }

    /// Hands what has come to `each`, 64 messages of each family at most. Never blocks.
    ///
    /// # Errors
    /// A socket is broken.
    pub fn poll(&mut self, each: &mut impl FnMut(IcmpError)) -> io::Result<()> {
        let mut buffer = [0; MESSAGE_MAX];
        for _ in 0..BURST {
            let Some(len) = receive(&mut self.v4, &mut buffer)? else {
                break;
            };
            buffer.get(..len).and_then(parse_v4).map(&mut *each);
        }
        for _ in 0..BURST {
            let Some((len, from)) = receive_v6(&self.v6, &mut buffer)? else {
                break;
            };
            if let Some(message) = buffer.get(..len) {
                parse_v6(from, message).map(&mut *each);
            }
        }
        Ok(())
    }
}

/// `None` when nothing is waiting.
fn receive(socket: &mut Socket, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match socket.read(buffer) {
        Ok(len) => Ok(Some(len)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}

/// A raw IPv6 socket gives no header; the sender is asked for apart.
fn receive_v6(socket: &Socket, buffer: &mut [u8]) -> io::Result<Option<(usize, Ipv6Addr)>> {
    let got = rustix::net::recvfrom(socket, buffer, rustix::net::RecvFlags::empty());
    match got {
        Ok((len, _, from)) => {
            let from = from.and_then(|a| std::net::SocketAddrV6::try_from(a).ok());
            Ok(Some((len, from.map_or(Ipv6Addr::UNSPECIFIED, |a| *a.ip()))))
        }
        Err(e) if e == rustix::io::Errno::AGAIN => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes(pair.try_into().ok()?))
}

fn v4_at(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(Ipv4Addr::from(octets))
}

fn v6_at(bytes: &[u8], at: usize) -> Option<Ipv6Addr> {
    let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets))
}

/// Length of the IPv4 header at the start of `packet`.
fn ihl(packet: &[u8]) -> Option<usize> {
    let first = *packet.first()?;
    let len = usize::from(first & 15) * 4;
    (first >> 4 == 4 && len >= 20).then_some(len)
}

/// UDP source port, if the destination port is RoCE's.
fn roce_src_port(udp: &[u8]) -> Option<u16> {
    (be16(udp, 2)? == ROCE_PORT).then(|| be16(udp, 0))?
}

/// Destination queue pair of a quoted packet.
fn dest_qpn(udp: &[u8]) -> Option<Qpn> {
    let &[a, b, c] = udp.get(DEST_QP..DEST_QP + 3)?.first_chunk()?;
    Some(Qpn::new(u32::from_be_bytes([0, a, b, c])))
}

/// An IPv4 packet with an ICMP message.
fn parse_v4(packet: &[u8]) -> Option<IcmpError> {
    let icmp = packet.get(ihl(packet)?..)?;
    let (kind, code) = (*icmp.first()?, *icmp.get(1)?);
    let reason = match (kind, code) {
        (3, 3) => IcmpReason::PortUnreachable,
        (3, 4) => IcmpReason::TooLong {
            mtu: be16(icmp, 6)?.into(),
        },
        (3, 9 | 10 | 13) => IcmpReason::Prohibited,
        (3, code) => IcmpReason::Unreachable { code },
        (11, 0) => IcmpReason::HopLimit,
        _ => return None,
    };
    let inner = icmp.get(8..)?;
    let udp = inner.get(ihl(inner)?..)?;
    if *inner.get(9)? != UDP {
        return None;
    }
    Some(IcmpError {
        from: v4_at(packet, 12)?.into(),
        src: v4_at(inner, 12)?.into(),
        dst: v4_at(inner, 16)?.into(),
        src_port: roce_src_port(udp)?,
        dest_qpn: dest_qpn(udp),
        reason,
    })
}

/// An ICMPv6 message.
fn parse_v6(from: Ipv6Addr, icmp: &[u8]) -> Option<IcmpError> {
    let (kind, code) = (*icmp.first()?, *icmp.get(1)?);
    let reason = match (kind, code) {
        (1, 4) => IcmpReason::PortUnreachable,
        (1, 1 | 5) => IcmpReason::Prohibited,
        (1, code) => IcmpReason::Unreachable { code },
        (2, _) => IcmpReason::TooLong {
            mtu: u32::from(be16(icmp, 4)?) << 16 | u32::from(be16(icmp, 6)?),
        },
        (3, 0) => IcmpReason::HopLimit,
        _ => return None,
    };
    let inner = icmp.get(8..)?;
    // RoCE has no extension headers: what has them is not ours.
    if inner.first()? >> 4 != 6 || *inner.get(6)? != UDP {
        return None;
    }
    let udp = inner.get(40..)?;
    Some(IcmpError {
        from: from.into(),
        src: v6_at(inner, 8)?.into(),
        dst: v6_at(inner, 24)?.into(),
        src_port: roce_src_port(udp)?,
        dest_qpn: dest_qpn(udp),
        reason,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may panic")]
    use std::net::IpAddr;

    use super::*;

    fn v4(kind: u8, code: u8, rest: [u8; 4], protocol: u8, port: u16) -> Vec<u8> {
        let header = |protocol: u8, src: u8, dst: u8| {
            let mut h = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
            h.extend([10, 0, 0, src, 10, 0, 0, dst]);
            h
        };
        let mut packet = header(1, 254, 1);
        packet.extend([kind, code, 0, 0]);
        packet.extend(rest);
        packet.extend(header(protocol, 1, 2));
        packet.extend(0xc123_u16.to_be_bytes());
        packet.extend(port.to_be_bytes());
        packet.extend([0; 4]);
        packet
    }

    #[test]
    fn what_routers_say_over_ipv4() {
        let said = |kind, code, rest| parse_v4(&v4(kind, code, rest, UDP, ROCE_PORT)).unwrap();
        let error = said(3, 4, [0, 0, 5, 0xdc]);
        assert_eq!(error.reason, IcmpReason::TooLong { mtu: 1500 });
        assert_eq!(error.from, IpAddr::from([10, 0, 0, 254]));
        assert_eq!(error.src, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(error.dst, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(error.src_port, 0xc123);
        assert_eq!(error.dest_qpn, None, "eight bytes of the datagram only");
        for (kind, code, reason) in [
            (3, 0, IcmpReason::Unreachable { code: 0 }),
            (3, 1, IcmpReason::Unreachable { code: 1 }),
            (3, 3, IcmpReason::PortUnreachable),
            (3, 13, IcmpReason::Prohibited),
            (11, 0, IcmpReason::HopLimit),
        ] {
            assert_eq!(said(kind, code, [0; 4]).reason, reason);
        }
    }

    #[test]
    fn the_queue_pair_is_in_a_longer_quotation() {
        let mut packet = v4(3, 4, [0; 4], UDP, ROCE_PORT);
        packet.extend([4, 0x40, 0xff, 0xff, 0, 0xab, 0xcd]);
        assert_eq!(parse_v4(&packet).unwrap().dest_qpn, None);
        packet.push(0xef);
        assert_eq!(
            parse_v4(&packet).unwrap().dest_qpn,
            Some(Qpn::new(0xabcdef))
        );
    }

    #[test]
    fn other_packets_are_nobodys_business() {
        assert_eq!(parse_v4(&v4(8, 0, [0; 4], UDP, ROCE_PORT)), None, "echo");
        assert_eq!(parse_v4(&v4(3, 3, [0; 4], 6, ROCE_PORT)), None, "TCP");
        assert_eq!(parse_v4(&v4(3, 3, [0; 4], UDP, 53)), None, "DNS");
        let whole = v4(3, 3, [0; 4], UDP, ROCE_PORT);
        // Eight bytes of the datagram are all that must be there; its ports are the first four.
        for cut in 0..whole.len() - 4 {
            assert_eq!(parse_v4(&whole[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn what_routers_say_over_ipv6() {
        let packet = |kind: u8, code: u8, rest: [u8; 4]| {
            let mut p = vec![kind, code, 0, 0];
            p.extend(rest);
            p.extend([0x60, 0, 0, 0, 0, 8, UDP, 64]);
            p.extend([0xfd; 16]);
            p.extend([0xfc; 16]);
            p.extend([0xc1, 0x23, 0x12, 0xb7]);
            p
        };
        let from = Ipv6Addr::LOCALHOST;
        let error = parse_v6(from, &packet(2, 0, [0, 0, 5, 0])).unwrap();
        assert_eq!(error.reason, IcmpReason::TooLong { mtu: 1280 });
        assert_eq!(error.dst, IpAddr::from([0xfc; 16]));
        for (kind, code, reason) in [
            (1, 0, IcmpReason::Unreachable { code: 0 }),
            (1, 1, IcmpReason::Prohibited),
            (1, 4, IcmpReason::PortUnreachable),
            (3, 0, IcmpReason::HopLimit),
        ] {
            assert_eq!(
                parse_v6(from, &packet(kind, code, [0; 4])).unwrap().reason,
                reason
            );
        }
        let whole = packet(1, 4, [0; 4]);
        for cut in 0..whole.len() {
            assert_eq!(parse_v6(from, &whole[..cut]), None, "cut at {cut}");
        }
    }
}
