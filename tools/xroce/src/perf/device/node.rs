//! One engine with its port.
//!
//! The only module of `perf` that calls the engine. Everything runs in the calling thread: the
//! engine moves when [`Device::turn`] is called, and only then.

use std::net::IpAddr;

use anyhow::{Context, Result, anyhow};
use xroce_api::{EngineStats, Failure, GidEntry, Mr, PollMode, PortStats};
use xroce_engine::{Engine, EngineConfig, Poller};
use xroce_net::addressing::{Addressing, PathEvent};
use xroce_net::datapath::{Datapath, Link};
use xroce_proto::counters::Counters;
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::rtt::Histogram;
use xroce_proto::time::{Duration, Instant};
use xroce_proto::wc::{Completion, Cq};
use xroce_proto::wr::{RecvWr, SendWr};
use xroce_shm::Region;
use xroce_wire::newtypes::{Gid, LKey, Qpn};
use xroce_wire::path::{AddressVector, AhAttr, Flow};

use crate::perf::congestion::Congestion;
use crate::perf::device::Device;

/// Completions taken from the queue at once.
pub(crate) const REAP: usize = 32;
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
    engine: Engine<D>,
    poller: Poller,
    pd: Pd,
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
            poller: Poller::new(PollMode::Adaptive),
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
    fn look(&mut self, now: Instant) -> Result<()> {
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
}

impl<D: Datapath> Device for Node<D> {
    type Path = AddressVector;

    fn local(&self) -> IpAddr {
        self.local
    }

    fn link_mtu(&self) -> usize {
        self.engine.caps().mtu.min(self.place.mtu)
    }

    fn port_name(&self) -> &str {
        &self.engine.caps().name
    }

    fn is_blind(&self) -> bool {
        self.engine.caps().link == Link::Udp && self.local.is_ipv4()
    }

    fn congestion(&self) -> &Congestion {
        &self.place.congestion
    }

    /// The way to `dst`, with its Ethernet address if we need it.
    fn path(&self, dst: Gid) -> Result<AddressVector> {
        let attr = AhAttr {
            dgid: dst,
            ..self.place.attr
        };
        Ok(self.place.addressing.resolve(&attr, Flow::Datagrams)?)
    }

    fn pd(&self) -> Pd {
        self.pd
    }

    fn reg_mr(&mut self, region: &Region, access: Access) -> Result<Mr> {
        Ok(self.engine.reg_mr(self.pd, region, access)?)
    }

    fn dereg_mr(&mut self, lkey: LKey) {
        // Whoever registered it takes it back, and nobody else does.
        let _ = self.engine.dereg_mr(lkey);
    }

    /// Kept from step to step, replaced by a deeper one.
    fn cq(&mut self, depth: u32) -> Result<Cq> {
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

    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn> {
        Ok(self.engine.create_qp(init)?)
    }

    fn modify_qp(&mut self, qpn: Qpn, attr: &QpAttr) -> Result<()> {
        Ok(self.engine.modify_qp(qpn, attr)?)
    }

    fn connect_qp(
        &mut self,
        qpn: Qpn,
        peer: Qpn,
        mut path: AddressVector,
        rtr: QpAttr,
    ) -> Result<()> {
        // A source port for each connection, if that is ours to say.
        if self.engine.caps().link == Link::Ethernet {
            let flow = Flow::Connected { local: qpn, peer };
            path.src_port = flow.src_port(path.flow_label);
        }
        let rtr = QpAttr {
            av: Some(path),
            ..rtr
        };
        self.modify_qp(qpn, &rtr)
    }

    fn destroy_qp(&mut self, qpn: Qpn) {
        // It exists: nobody else destroys it.
        let _ = self.engine.destroy_qp(qpn);
    }

    #[inline]
    fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<()> {
        Ok(self.engine.post_send(qpn, wr)?)
    }

    #[inline]
    fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<()> {
        Ok(self.engine.post_recv(qpn, wr)?)
    }

    /// The engine has them already.
    #[inline]
    fn ring(&mut self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn poll_cq(&mut self, cq: Cq, out: &mut [Completion]) -> Result<usize> {
        Ok(self.engine.poll_cq(cq, out))
    }

    fn set_poll(&mut self, mode: PollMode) {
        self.poller = Poller::new(mode);
    }

    #[inline]
    fn turn(&mut self, now: Instant) -> Result<bool> {
        self.look(now)?;
        let work = self.poller.step(&mut self.engine, now);
        Ok(!work.context("the port failed")?.is_idle())
    }

    fn counters(&self, qpn: Qpn) -> Option<Counters> {
        self.engine.qp_counters(qpn)
    }

    fn rtt(&self, qpn: Qpn) -> Option<&Histogram> {
        self.engine.qp_rtt(qpn)
    }

    fn stats(&mut self) -> Result<(EngineStats, PortStats)> {
        Ok((self.engine.stats(), self.engine.port_stats()))
    }

    fn failure(&self, qpn: Qpn) -> Result<Option<Failure>> {
        Ok(self.engine.failure(qpn))
    }
}
