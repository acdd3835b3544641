//! One engine with its port.
//!
//! With [`super::flow`] the only module of `perf` that calls the engine. Everything runs in the
//! calling thread: the engine moves when [`Flow::turn`](super::flow::Flow::turn) is called, and
//! only then.

use std::net::IpAddr;

use anyhow::Result;
use xroce_engine::{Engine, EngineConfig};
use xroce_net::datapath::Datapath;
use xroce_net::neigh;
use xroce_proto::memory::Pd;
use xroce_proto::wc::{Completion, Cq};
use xroce_wire::newtypes::{Gid, MacAddr, Qpn, VlanTci};
use xroce_wire::path::AddressVector;

/// Completions taken from the queue at once.
pub(super) const REAP: usize = 32;
/// A neighbour is waited for so long, in ms.
const RESOLVE_MS: u64 = 3_000;
/// RoCE source ports are taken from here up, so that every queue pair is a flow of its own.
const SRC_PORT_MIN: u16 = 0xc000;

/// How frames get their lower headers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// We write them.
    #[cfg_attr(
        not(feature = "xdp"),
        allow(dead_code, reason = "AF_XDP is the one such port")
    )]
    Ethernet {
        /// Interface.
        ifindex: u32,
        /// Its address.
        mac: MacAddr,
        /// Its IP MTU in bytes; a VLAN interface may have a smaller one than the link.
        mtu: usize,
        /// Tag of its frames.
        vlan: Option<VlanTci>,
    },
    /// The kernel does; its UDP source port is part of the ICRC.
    Udp {
        /// UDP source port.
        src_port: u16,
    },
}

/// One engine with its port.
pub(crate) struct Node<D: Datapath> {
    pub(super) engine: Engine<D>,
    pub(super) pd: Pd,
    local: IpAddr,
    way: Way,
    /// The completion queue and its depth: kept from step to step, replaced by a deeper one.
    cq: Option<(Cq, u32)>,
}

impl<D: Datapath> Node<D> {
    /// An engine on `port`, which has the address `local`.
    pub(crate) fn new(port: D, local: IpAddr, way: Way) -> Self {
        let mut engine = Engine::new(port, EngineConfig::default());
        let pd = engine.alloc_pd();
        Self {
            engine,
            pd,
            local: local.to_canonical(),
            way,
            cq: None,
        }
    }

    /// RoCE address of this side.
    pub(crate) fn local(&self) -> IpAddr {
        self.local
    }

    /// Whether IPv4 headers are the kernel's, so that this side never sees those of the peer.
    pub(crate) fn is_blind(&self) -> bool {
        matches!(self.way, Way::Udp { .. }) && self.local.is_ipv4()
    }

    /// IP MTU of the link in bytes.
    pub(crate) fn link_mtu(&self) -> usize {
        let link = self.engine.caps().mtu;
        match self.way {
            Way::Ethernet { mtu, .. } => link.min(mtu),
            Way::Udp { .. } => link,
        }
    }

    /// Name of the port, for messages to people.
    pub(crate) fn port_name(&self) -> &str {
        &self.engine.caps().name
    }

    /// The way to `dst`, with its Ethernet address if we need it.
    ///
    /// # Errors
    /// There is no way, or nobody answers there.
    pub(crate) fn path(&self, dst: Gid) -> Result<AddressVector> {
        let (src_mac, dst_mac, vlan, src_port) = match self.way {
            Way::Ethernet {
                ifindex, mac, vlan, ..
            } => {
                let theirs = neigh::resolve(ifindex, self.local, dst.ip(), RESOLVE_MS)?;
                (mac, theirs, vlan, SRC_PORT_MIN)
            }
            Way::Udp { src_port } => (MacAddr::default(), MacAddr::default(), None, src_port),
        };
        Ok(AddressVector {
            src: Gid::from(self.local),
            dst,
            src_mac,
            dst_mac,
            vlan,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            src_port,
        })
    }

    /// The path as one queue pair takes it: with a source port of its own, if that is ours to say.
    pub(super) fn path_of(&self, qpn: Qpn, mut path: AddressVector) -> AddressVector {
        if matches!(self.way, Way::Ethernet { .. }) {
            // 14 bits: 0xc000 ..= 0xffff.
            path.src_port |= u16::try_from(qpn.value() & 0x3fff).unwrap_or(0);
        }
        path
    }

    /// A completion queue of at least this depth, empty.
    pub(super) fn cq(&mut self, depth: u32) -> Result<Cq> {
        if let Some((cq, has)) = self.cq
            && has >= depth
        {
            // What queue pairs of an earlier step left.
            while self.engine.poll_cq(cq, &mut [Completion::EMPTY; REAP]) > 0 {}
            return Ok(cq);
        }
        let depth = depth.next_power_of_two();
        let cq = self.engine.create_cq(depth)?;
        self.cq = Some((cq, depth));
        Ok(cq)
    }
}
