//! ICMP errors about packets of this host, as failures and events tell of them.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use xroce_wire::newtypes::Qpn;

/// What an ICMP message says about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum IcmpReason {
    /// No route to the network or host (codes of RFC 792 and RFC 4443).
    Unreachable {
        /// ICMP or ICMPv6 code.
        code: u8,
    },
    /// The host is there, but nobody takes UDP port 4791.
    PortUnreachable,
    /// A filter forbids it.
    Prohibited,
    /// Longer than a link carries, and it may not be fragmented.
    TooLong {
        /// IP MTU of that link in bytes, 0 if the router does not say.
        mtu: u32,
    },
    /// The hop limit was used up: a loop, or hop limit 1 across a router.
    HopLimit,
}

impl fmt::Display for IcmpReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { code } => write!(f, "unreachable (code {code})"),
            Self::PortUnreachable => f.write_str("nobody takes UDP port 4791 there"),
            Self::Prohibited => f.write_str("forbidden by a filter"),
            Self::TooLong { mtu: 0 } => f.write_str("too long for a link on the way"),
            Self::TooLong { mtu } => write!(f, "too long for a link with an IP MTU of {mtu}"),
            Self::HopLimit => f.write_str("hop limit used up"),
        }
    }
}

/// An ICMP error about a RoCE packet this host has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IcmpError {
    /// Who says so.
    pub from: IpAddr,
    /// Source of the packet that is meant.
    pub src: IpAddr,
    /// Its destination.
    pub dst: IpAddr,
    /// Its UDP source port.
    pub src_port: u16,
    /// Its destination queue pair. `None` if the message quotes the packet only up to the UDP
    /// header, as routers may (RFC 792).
    pub dest_qpn: Option<Qpn>,
    /// What is the matter.
    pub reason: IcmpReason,
}

impl fmt::Display for IcmpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} about packets to {}: {}",
            self.from, self.dst, self.reason
        )
    }
}

/// ICMP errors about packets of one queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IcmpSeen {
    /// How many.
    pub count: u64,
    /// The latest.
    pub last: Option<IcmpError>,
    /// Smallest IP MTU a router named, in bytes.
    pub mtu: Option<u32>,
}

impl IcmpSeen {
    /// Counts one.
    pub fn note(&mut self, error: &IcmpError) {
        self.count += 1;
        self.last = Some(*error);
        if let IcmpReason::TooLong { mtu } = error.reason
            && mtu != 0
        {
            self.mtu = Some(self.mtu.map_or(mtu, |least| least.min(mtu)));
        }
    }
}
