//! One engine with its port.
//!
//! With [`super::flow`] the only module of `perf` that calls the engine. Everything runs in the
//! calling thread: the engine moves when [`Flow::turn`](super::flow::Flow::turn) is called, and
//! only then.

use std::net::IpAddr;

use anyhow::{Context, Result, anyhow};
use xroce_api::GidEntry;
use xroce_engine::{Engine, EngineConfig};
use xroce_net::addressing::{Addressing, PathEvent};
use xroce_net::datapath::{Datapath, Link};
use xroce_proto::memory::Pd;
use xroce_proto::time::{Duration, Instant};
use xroce_proto::wc::{Completion, Cq};
use xroce_wire::newtypes::{Gid, Qpn};
use xroce_wire::path::{AddressVector, AhAttr, Flow};

use super::congestion::Congestion;

/// Completions taken from the queue at once.
pub(super) const REAP: usize = 32;
/// How often the kernel is asked what happened to addresses and link.
const LOOK: Duration = Duration::from_millis(100);

/// Where the frames of a node come from and how they are to be sent.
#[derive(Debug)]
pub(crate) struct Place {
    /// The addresses of the port.
    pub(crate) addressing: Addressing,
    /// Index of the one in use, and how everything is sent from it.
    pub(crate) attr: AhAttr,
    /// IP MTU of the interface in bytes, if it may be smaller than that of the link: a VLAN's.
    pub(crate) mtu: usize,
    /// How fast queue pairs send.
    pub(crate) congestion: Congestion,
}

/// One engine with its port.
pub(crate) struct Node<D: Datapath> {
    pub(super) engine: Engine<D>,
    pub(super) pd: Pd,
    local: IpAddr,
    place: Place,
    /// When to look again at addresses and link.
    next_look: Instant,
    /// The completion queue and its depth: kept from step to step, replaced by a deeper one.
    cq: Option<(Cq, u32)>,
}

impl<D: Datapath> Node<D> {
    /// An engine on `port`.
    ///
    /// # Errors
    /// There is no address at the index given.
    pub(crate) fn new(port: D, place: Place) -> Result<Self> {
        let index = place.attr.sgid_index;
        let gids = place.addressing.gids();
        let entry = gids.get(index).ok_or_else(|| anyhow!("no GID {index}"))?;
        let local = entry.gid.ip().to_canonical();
        let mut engine = Engine::new(port, EngineConfig::default());
        engine.set_gids(gids);
        let pd = engine.alloc_pd();
        Ok(Self {
            engine,
            pd,
            local,
            place,
            next_look: Instant::from_nanos(0),
            cq: None,
        })
    }

    /// Tells the engine what happened to addresses and link, now and then.
    ///
    /// # Errors
    /// The kernel does not answer.
    #[inline]
    pub(super) fn look(&mut self, now: Instant) -> Result<()> {
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + LOOK;
        self.events(&mut |_| {})
    }

    /// Tells the engine what happened to addresses and link since the last look, and `each` too.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(crate) fn events(&mut self, each: &mut impl FnMut(&PathEvent)) -> Result<()> {
        let (addressing, engine) = (&mut self.place.addressing, &mut self.engine);
        let mut both = |event| {
            engine.apply(&event);
            each(&event);
        };
        addressing
            .poll(&mut both)
            .context("what happened to addresses and link")
    }

    /// The port itself. Nothing else moves it: the engine does only when it is polled.
    pub(crate) fn port(&mut self) -> &mut D {
        self.engine.port_mut()
    }

    /// The entry of the GID table that packets come from.
    pub(crate) fn entry(&self) -> Option<&GidEntry> {
        let index = self.place.attr.sgid_index;
        self.place.addressing.gids().get(index)
    }

    /// The addresses of the port.
    pub(crate) const fn addressing(&self) -> &Addressing {
        &self.place.addressing
    }

    /// How fast queue pairs send.
    pub(super) fn congestion(&self) -> &Congestion {
        &self.place.congestion
    }

    /// RoCE address of this side.
    pub(crate) fn local(&self) -> IpAddr {
        self.local
    }

    /// Whether IPv4 headers are the kernel's, so that this side never sees those of the peer.
    pub(crate) fn is_blind(&self) -> bool {
        self.engine.caps().link == Link::Udp && self.local.is_ipv4()
    }

    /// IP MTU of the link in bytes.
    pub(crate) fn link_mtu(&self) -> usize {
        self.engine.caps().mtu.min(self.place.mtu)
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
        let attr = AhAttr {
            dgid: dst,
            ..self.place.attr
        };
        Ok(self.place.addressing.resolve(&attr, Flow::Datagrams)?)
    }

    /// The path as the packets from one queue pair to another take it: with a source port of
    /// their own, if that is ours to say.
    pub(super) fn path_of(&self, local: Qpn, peer: Qpn, mut path: AddressVector) -> AddressVector {
        if self.engine.caps().link == Link::Ethernet {
            path.src_port = Flow::Connected { local, peer }.src_port(path.flow_label);
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
