//! What our end is made of: an engine of its own, or a device of the daemon. The same calls on
//! either.

use anyhow::{Context, Result};
use xroce_api::message::Path;
use xroce_api::{Ah, AsyncEvent, EngineError, Failure, Mr, Mw, MwId, MwType, Range, UdDest};
use xroce_engine::Engine;
use xroce_net::datapath::Datapath;
use xroce_net::xdp::XdpPort;
use xroce_proto::counters::Counters;
use xroce_proto::memory::{Access, Bind, Pd};
use xroce_proto::qp::{QpAttr, QpInit, QpState};
use xroce_proto::srq::SrqAttr;
use xroce_proto::wc::{Completion, Cq, Srq};
use xroce_proto::wr::{RecvWr, SendWr};
use xroce_verbs::raw::{RawDevice, RawRecvs, RawSends};
use xroce_wire::newtypes::{Gid, LKey, Qpn, RKey};
use xroce_wire::path::{AddressVector, AhAttr, Flow};

/// Where packets go, as whoever makes them wants to be told.
pub(super) struct Way {
    /// Resolved.
    pub av: AddressVector,
    /// For queue pairs or datagrams.
    pub flow: Flow,
}

/// The trait, and an enum that is either.
macro_rules! verbs {
    ($(fn $name:ident($($arg:ident: $Type:ty),*) -> $Back:ty;)+) => {
        /// A device.
        pub(super) trait Verbs {
            $(fn $name(&mut self, $($arg: $Type),*) -> $Back;)+
        }

        impl Verbs for Ours {
            $(fn $name(&mut self, $($arg: $Type),*) -> $Back {
                match self {
                    Self::Engine(device) => Verbs::$name(&mut **device, $($arg),*),
                    Self::Daemon(device) => Verbs::$name(&mut **device, $($arg),*),
                }
            })+
        }
    };
}

verbs! {
    fn alloc_pd() -> Result<Pd>;
    fn reg_mr(pd: Pd, range: &Range<'_>, access: Access) -> Result<Mr>;
    fn dereg_mr(lkey: LKey) -> Result<()>;
    fn alloc_mw(pd: Pd, kind: MwType) -> Result<Mw>;
    fn dealloc_mw(mw: MwId) -> Result<()>;
    fn bind_mw(mw: MwId, bind: &Bind) -> Result<RKey>;
    fn create_cq(depth: u32) -> Result<Cq>;
    fn destroy_cq(cq: Cq) -> Result<()>;
    fn poll_cq(cq: Cq, out: &mut [Completion]) -> Result<usize>;
    fn create_srq(pd: Pd, attr: &SrqAttr) -> Result<Srq>;
    fn arm_srq(srq: Srq, limit: u32) -> Result<()>;
    fn destroy_srq(srq: Srq) -> Result<()>;
    fn post_srq_recv(srq: Srq, wr: &RecvWr<'_>) -> Result<()>;
    fn create_qp(init: &QpInit) -> Result<Qpn>;
    fn modify_qp(qpn: Qpn, attr: &QpAttr, way: Option<&Way>) -> Result<()>;
    fn qp_state(qpn: Qpn) -> Result<QpState>;
    fn destroy_qp(qpn: Qpn) -> Result<()>;
    fn post_send(qpn: Qpn, wr: &SendWr<'_>, to: Option<&UdDest>) -> Result<()>;
    fn post_recv(qpn: Qpn, wr: &RecvWr<'_>) -> Result<()>;
    fn counters(qpn: Qpn) -> Option<Counters>;
    fn failure(qpn: Qpn) -> Option<Failure>;
    fn attach_mcast(qpn: Qpn, group: Gid) -> Result<()>;
    fn create_ah(pd: Pd, way: &Way) -> Result<Ah>;
    fn destroy_ah(ah: Ah) -> Result<()>;
    fn poll_event() -> Option<AsyncEvent>;
    fn damaged() -> u64;
}

/// Our end over the cable.
pub(super) enum Ours {
    /// An engine that the thread of the end polls.
    Engine(Box<Engine<XdpPort>>),
    /// A device of a daemon, which has threads of its own.
    Daemon(Box<Daemoned>),
}

impl<D: Datapath> Verbs for Engine<D> {
    fn alloc_pd(&mut self) -> Result<Pd> {
        Ok(Self::alloc_pd(self))
    }

    fn reg_mr(&mut self, pd: Pd, range: &Range<'_>, access: Access) -> Result<Mr> {
        Ok(self.reg_mr_at(pd, range, access)?)
    }

    fn dereg_mr(&mut self, lkey: LKey) -> Result<()> {
        Ok(Self::dereg_mr(self, lkey)?)
    }

    fn alloc_mw(&mut self, pd: Pd, kind: MwType) -> Result<Mw> {
        Ok(Self::alloc_mw(self, pd, kind)?)
    }

    fn dealloc_mw(&mut self, mw: MwId) -> Result<()> {
        Ok(Self::dealloc_mw(self, mw)?)
    }

    fn bind_mw(&mut self, mw: MwId, bind: &Bind) -> Result<RKey> {
        Ok(Self::bind_mw(self, mw, bind)?)
    }

    fn create_cq(&mut self, depth: u32) -> Result<Cq> {
        Ok(Self::create_cq(self, depth)?)
    }

    fn destroy_cq(&mut self, cq: Cq) -> Result<()> {
        Ok(Self::destroy_cq(self, cq)?)
    }

    fn poll_cq(&mut self, cq: Cq, out: &mut [Completion]) -> Result<usize> {
        Ok(Self::poll_cq(self, cq, out))
    }

    fn create_srq(&mut self, pd: Pd, attr: &SrqAttr) -> Result<Srq> {
        Ok(Self::create_srq(self, pd, attr)?)
    }

    fn arm_srq(&mut self, srq: Srq, limit: u32) -> Result<()> {
        Ok(self.modify_srq(srq, None, Some(limit))?)
    }

    fn destroy_srq(&mut self, srq: Srq) -> Result<()> {
        Ok(Self::destroy_srq(self, srq)?)
    }

    fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<()> {
        Ok(Self::post_srq_recv(self, srq, wr)?)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn> {
        Ok(Self::create_qp(self, init)?)
    }

    fn modify_qp(&mut self, qpn: Qpn, attr: &QpAttr, way: Option<&Way>) -> Result<()> {
        let attr = QpAttr {
            av: way.map(|way| way.av),
            ..attr.clone()
        };
        Ok(Self::modify_qp(self, qpn, &attr)?)
    }

    fn qp_state(&mut self, qpn: Qpn) -> Result<QpState> {
        Ok(Self::qp_state(self, qpn).ok_or(EngineError::NoQp(qpn))?)
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<()> {
        Ok(Self::destroy_qp(self, qpn)?)
    }

    fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>, to: Option<&UdDest>) -> Result<()> {
        Ok(match to {
            None => Self::post_send(self, qpn, wr),
            Some(to) => self.post_datagram(qpn, wr, to),
        }?)
    }

    fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<()> {
        Ok(Self::post_recv(self, qpn, wr)?)
    }

    fn counters(&mut self, qpn: Qpn) -> Option<Counters> {
        self.qp_counters(qpn)
    }

    fn failure(&mut self, qpn: Qpn) -> Option<Failure> {
        Self::failure(self, qpn)
    }

    fn attach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<()> {
        Ok(Self::attach_mcast(self, qpn, group)?)
    }

    fn create_ah(&mut self, pd: Pd, way: &Way) -> Result<Ah> {
        Ok(Self::create_ah(self, pd, &way.av)?)
    }

    fn destroy_ah(&mut self, ah: Ah) -> Result<()> {
        Ok(Self::destroy_ah(self, ah)?)
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        Self::poll_event(self)
    }

    fn damaged(&mut self) -> u64 {
        let stats = self.stats();
        stats.icrc_errors + stats.bad_packets
    }
}

/// A device of a daemon that serves this one process.
pub(super) struct Daemoned {
    /// Before the daemon, so that the session ends first.
    raw: RawDevice,
    context: xroce_verbs::Context,
    #[allow(dead_code, reason = "kept running")]
    daemon: xroce_daemon::Daemon,
    #[allow(dead_code, reason = "kept")]
    dir: tempfile::TempDir,
    sends: RawSends,
    recvs: RawRecvs,
}

impl Daemoned {
    /// A daemon on a port, and attached to it.
    pub(super) fn start(
        port: XdpPort,
        addressing: xroce_net::addressing::Addressing,
    ) -> Result<Self> {
        use xroce_daemon::{Below, Daemon, DaemonConfig, DeviceConfig};
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("xroced.sock");
        let device = DeviceConfig::new(Below::Xdp {
            ifname: crate::fabric::DEV.to_owned(),
            queue: 0,
            ring_size: 0,
        });
        let config = DaemonConfig::new(&socket, Vec::new());
        let daemon = Daemon::on_port(config, &device, port, addressing)?;
        let context = xroce_verbs::Context::attach(&socket, None)?;
        Ok(Self {
            raw: RawDevice::of(&context)?,
            context,
            daemon,
            dir,
            sends: RawSends::default(),
            recvs: RawRecvs::default(),
        })
    }

    /// Waits until the daemon has taken what was posted: the next step of a scenario may be that the
    /// other end sends, and what comes before its receive is lost where nothing is repeated.
    fn settled(&self, qpn: Qpn) -> Result<()> {
        Ok(self.raw.query_qp(qpn).map(drop)?)
    }

    /// The way in the words of a program, which the daemon resolves.
    fn asked(&self, way: &Way) -> Result<(AhAttr, Flow)> {
        let gids = self.context.gids();
        let at = gids.iter().find(|(_, entry)| entry.gid == way.av.src);
        let (sgid_index, _) = at.with_context(|| format!("no address {}", way.av.src))?;
        let attr = AhAttr {
            sgid_index: *sgid_index,
            traffic_class: way.av.traffic_class,
            hop_limit: way.av.hop_limit,
            ..AhAttr::to(way.av.dst)
        };
        Ok((attr, way.flow))
    }
}

impl Verbs for Daemoned {
    fn alloc_pd(&mut self) -> Result<Pd> {
        Ok(self.raw.alloc_pd()?)
    }

    fn reg_mr(&mut self, pd: Pd, range: &Range<'_>, access: Access) -> Result<Mr> {
        Ok(self.raw.reg_mr(pd, range, access)?)
    }

    fn dereg_mr(&mut self, lkey: LKey) -> Result<()> {
        Ok(self.raw.dereg_mr(lkey)?)
    }

    fn alloc_mw(&mut self, pd: Pd, kind: MwType) -> Result<Mw> {
        Ok(self.raw.alloc_mw(pd, kind)?)
    }

    fn dealloc_mw(&mut self, mw: MwId) -> Result<()> {
        Ok(self.raw.dealloc_mw(mw)?)
    }

    fn bind_mw(&mut self, mw: MwId, bind: &Bind) -> Result<RKey> {
        Ok(self.raw.bind_mw(mw, *bind)?)
    }

    fn create_cq(&mut self, depth: u32) -> Result<Cq> {
        Ok(self.raw.create_cq(depth, None)?)
    }

    fn destroy_cq(&mut self, cq: Cq) -> Result<()> {
        Ok(self.raw.destroy_cq(cq)?)
    }

    fn poll_cq(&mut self, cq: Cq, out: &mut [Completion]) -> Result<usize> {
        Ok(self.raw.poll_cq(cq, out)?)
    }

    fn create_srq(&mut self, pd: Pd, attr: &SrqAttr) -> Result<Srq> {
        Ok(self.raw.create_srq(pd, attr)?)
    }

    fn arm_srq(&mut self, srq: Srq, limit: u32) -> Result<()> {
        Ok(self.raw.modify_srq(srq, None, Some(limit))?)
    }

    fn destroy_srq(&mut self, srq: Srq) -> Result<()> {
        Ok(self.raw.destroy_srq(srq)?)
    }

    fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<()> {
        self.recvs.clear();
        self.recvs.push(wr);
        self.raw.post_srq_recv(srq, &self.recvs)?;
        // As below.
        Ok(self.raw.query_srq(srq).map(drop)?)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn> {
        Ok(self.raw.create_qp(init)?)
    }

    fn modify_qp(&mut self, qpn: Qpn, attr: &QpAttr, way: Option<&Way>) -> Result<()> {
        let path = way.map(|way| self.asked(way)).transpose()?;
        let path = path.map(|(attr, flow)| Path { attr, flow });
        Ok(self.raw.modify_qp(qpn, Box::new(attr.clone()), path)?)
    }

    fn qp_state(&mut self, qpn: Qpn) -> Result<QpState> {
        let info = self.raw.query_qp(qpn)?;
        info.attr.state.context("a queue pair without a state")
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<()> {
        Ok(self.raw.destroy_qp(qpn)?)
    }

    fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>, to: Option<&UdDest>) -> Result<()> {
        self.sends.clear();
        self.sends.push(wr, to);
        self.raw.post_send(qpn, &self.sends)?;
        self.settled(qpn)
    }

    fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<()> {
        self.recvs.clear();
        self.recvs.push(wr);
        self.raw.post_recv(qpn, &self.recvs)?;
        self.settled(qpn)
    }

    fn counters(&mut self, qpn: Qpn) -> Option<Counters> {
        self.raw.counters(qpn).ok()
    }

    fn failure(&mut self, qpn: Qpn) -> Option<Failure> {
        self.raw.failure(qpn).ok().flatten()
    }

    fn attach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<()> {
        Ok(self.raw.attach_mcast(qpn, group)?)
    }

    fn create_ah(&mut self, pd: Pd, way: &Way) -> Result<Ah> {
        let (attr, _) = self.asked(way)?;
        Ok(self.raw.create_ah(pd, &attr)?)
    }

    fn destroy_ah(&mut self, ah: Ah) -> Result<()> {
        Ok(self.raw.destroy_ah(ah)?)
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.raw.poll_event().ok().flatten()
    }

    fn damaged(&mut self) -> u64 {
        let (stats, _) = self.context.stats();
        stats.icrc_errors + stats.bad_packets
    }
}
