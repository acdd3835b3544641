//! A device by its verbs: one of the daemon, or an engine in this process that a thread moves.
//!
//! What is posted is collected and handed over as a list, with one doorbell, as programs do that have
//! several work requests at a time. The lists are cleared and filled again, so that nothing is
//! allocated for a work request.

use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration as StdDuration;

use anyhow::{Result, anyhow, bail};
use xroce_api::message::Path;
use xroce_api::types::Range;
use xroce_api::{EngineStats, Failure, GidEntry, Mr, Notify, PollMode, PortStats};
use xroce_proto::counters::Counters;
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::rtt::Histogram;
use xroce_proto::time::{Duration, Instant};
use xroce_proto::wc::{Completion, Cq};
use xroce_proto::wr::{RecvWr, SendWr};
use xroce_shm::Region;
use xroce_verbs::raw::{RawDevice, RawRecvs, RawSends};
use xroce_verbs::{BadWr, CompChannel, Context, Drive, LinkLayer, XdpOptions};
use xroce_wire::newtypes::{Gid, LKey, Qpn};
use xroce_wire::path::{AhAttr, Flow};

use crate::perf::args::{Backend, PortArgs};
use crate::perf::congestion::Congestion;
use crate::perf::device::Device;
use crate::perf::device::node::REAP;
use crate::perf::device::port;
use crate::perf::report::failed::QpFailed;

/// Time without work after which an adaptive process yields its core in every turn, as an engine does.
const SPIN: Duration = Duration::from_micros(5);
/// Time without work after which it sleeps until a completion comes.
const AWAKE: Duration = Duration::from_micros(1_000);
/// Longest sleep: a WRITE of the peer wakes nobody here, nor does the side channel.
const SLEEP_MAX: StdDuration = StdDuration::from_micros(500);

/// Which device is measured by its verbs.
#[derive(Clone, Debug)]
pub(crate) enum Verbs {
    /// One of the daemon that listens at this socket: the one of that name, or its first.
    Daemon {
        socket: PathBuf,
        device: Option<String>,
    },
    /// The port that the command line asks for, moved by a thread.
    Thread,
}

/// An error of the verbs, whose text has its causes in it already.
#[cold]
fn plain(error: impl Display) -> anyhow::Error {
    anyhow!("{error}")
}

/// A device by its verbs.
pub(crate) struct VerbsDevice {
    raw: RawDevice,
    context: Context,
    /// Where completions are waited for.
    channel: CompChannel,
    pd: Pd,
    local: IpAddr,
    /// How everything is sent, but for the destination.
    attr: AhAttr,
    congestion: Congestion,
    /// The completion queue and its depth: kept from step to step, replaced by a deeper one.
    cq: Option<(Cq, u32)>,
    /// Posted and not shown to the device, of one queue pair each.
    sends: RawSends,
    sends_of: Option<Qpn>,
    recvs: RawRecvs,
    recvs_of: Option<Qpn>,
    mode: PollMode,
    /// Something was posted or completed since the last turn, and when that was so last.
    moved: bool,
    worked: Instant,
}

impl VerbsDevice {
    /// Opens the device that the command line asks for. `near` is the address to use, if no other
    /// was given and the device has it.
    ///
    /// # Errors
    /// There is no such device or address.
    pub(crate) fn open(args: &PortArgs, near: Option<IpAddr>) -> Result<Self> {
        if let Some(core) = args.core {
            port::pin(core)?;
        }
        let congestion = args.congestion.resolve()?;
        let context = open(args, near)?;
        let (sgid_index, local) = choose(&context, args.address(), near)?;
        let raw = RawDevice::of(&context).map_err(plain)?;
        Ok(Self {
            channel: context.create_channel().map_err(plain)?,
            pd: raw.alloc_pd().map_err(plain)?,
            raw,
            context,
            local,
            attr: AhAttr {
                sgid_index,
                sl: args.sl,
                traffic_class: args.traffic_class,
                flow_label: args.flow_label,
                hop_limit: args.hop_limit,
                // Of each path its own.
                dgid: Gid::new([0; 16]),
            },
            congestion,
            cq: None,
            sends: RawSends::default(),
            sends_of: None,
            recvs: RawRecvs::default(),
            recvs_of: None,
            mode: PollMode::Adaptive,
            moved: false,
            worked: Instant::from_nanos(0),
        })
    }

    fn ring_sends(&mut self) -> Result<()> {
        let Some(qpn) = self.sends_of.take() else {
            return Ok(());
        };
        let posted = self.raw.post_send(qpn, &self.sends);
        self.sends.clear();
        posted.map_err(|bad| self.refused(qpn, bad))
    }

    fn ring_recvs(&mut self) -> Result<()> {
        let Some(qpn) = self.recvs_of.take() else {
            return Ok(());
        };
        let posted = self.raw.post_recv(qpn, &self.recvs);
        self.recvs.clear();
        posted.map_err(|bad| self.refused(qpn, bad))
    }

    /// Why a queue pair did not take a work request: it has failed, or what the device said.
    #[cold]
    fn refused(&self, qpn: Qpn, bad: BadWr) -> anyhow::Error {
        match self.failure(qpn) {
            Ok(Some(failure)) => QpFailed::new(failure).into(),
            Ok(None) => plain(bad).context(format!("queue pair {:#x}", qpn.value())),
            Err(broken) => broken,
        }
    }

    /// Until a completion comes, or for a moment.
    #[cold]
    fn sleep(&self) -> Result<()> {
        let Some((cq, _)) = self.cq else {
            std::thread::sleep(SLEEP_MAX);
            return Ok(());
        };
        if !self.raw.arm_cq(cq, Notify::Any).map_err(plain)? {
            self.channel.wait(&[], SLEEP_MAX).map_err(plain)?;
        }
        Ok(())
    }
}

fn open(args: &PortArgs, near: Option<IpAddr>) -> Result<Context> {
    let device = match (&args.verbs, args.backend()) {
        (Some(Verbs::Daemon { socket, device }), _) => {
            return Context::attach(socket, device.as_deref()).map_err(plain);
        }
        (_, Backend::Udp) => xroce_verbs::Device::udp(port::udp_address(args, near)?),
        (_, Backend::Xdp) => xroce_verbs::Device::Xdp(XdpOptions {
            ifname: args.dev.clone().unwrap_or_default(),
            queue: args.queue(),
            ring_size: args.ring(),
        }),
    };
    Context::open(&device, Drive::Thread(args.poll.into())).map_err(plain)
}

/// The address to use: the one asked for, else the one of the side channel, else the first of the
/// same family. Addresses that are valid everywhere come first, and IPv4 before IPv6.
fn choose(context: &Context, asked: Option<IpAddr>, near: Option<IpAddr>) -> Result<(u32, IpAddr)> {
    let address = |entry: &GidEntry| entry.gid.ip().to_canonical();
    let mut all = context.gids();
    all.sort_by_key(|(_, entry)| (entry.link_local, address(entry).is_ipv6()));
    let find = |ip: IpAddr| all.iter().find(|(_, entry)| address(entry) == ip);
    let of_family = |(_, entry): &&(u32, GidEntry)| {
        near.is_none_or(|n| n.to_canonical().is_ipv4() == address(entry).is_ipv4())
    };
    let found = match asked.map(|ip| ip.to_canonical()) {
        Some(asked) => find(asked),
        None => near
            .and_then(|ip| find(ip.to_canonical()))
            .or_else(|| all.iter().find(of_family)),
    };
    if let Some((index, entry)) = found {
        return Ok((*index, address(entry)));
    }
    let has: Vec<String> = all.iter().map(|(_, e)| address(e).to_string()).collect();
    let (has, name) = (has.join(", "), context.name());
    match (asked, near) {
        (Some(asked), _) => {
            bail!("--local {asked} is not an address of {name}: give one of {has}")
        }
        (None, Some(near)) if !has.is_empty() => bail!(
            "{name} has no address of the family of {near}, which the side channel uses: reach the \
             other side by another address; the device has {has}"
        ),
        _ => bail!("{name} has no address: give its interface one (ip address add)"),
    }
}

impl Device for VerbsDevice {
    /// Resolved by the device when a queue pair is connected.
    type Path = AhAttr;

    fn local(&self) -> IpAddr {
        self.local
    }

    fn link_mtu(&self) -> usize {
        self.context.query_port().link_mtu
    }

    fn port_name(&self) -> &str {
        self.context.name()
    }

    fn is_blind(&self) -> bool {
        self.local.is_ipv4() && self.context.query_port().link_layer == LinkLayer::UdpSocket
    }

    fn congestion(&self) -> &Congestion {
        &self.congestion
    }

    fn path(&self, dst: Gid) -> Result<AhAttr> {
        Ok(AhAttr {
            dgid: dst,
            ..self.attr
        })
    }

    fn pd(&self) -> Pd {
        self.pd
    }

    fn reg_mr(&mut self, region: &Region, access: Access) -> Result<Mr> {
        let range = Range {
            region,
            offset: 0,
            len: region.len() as u64,
            iova: None,
        };
        let registered = self.raw.reg_mr(self.pd, &range, access);
        registered.map_err(|e| plain(e).context("registering the buffers"))
    }

    fn dereg_mr(&mut self, lkey: LKey) {
        // If the device is gone, so is the region.
        let _ = self.raw.dereg_mr(lkey);
    }

    fn cq(&mut self, depth: u32) -> Result<Cq> {
        if let Some((cq, has)) = self.cq
            && has >= depth
        {
            // What queue pairs of an earlier step left.
            while self
                .raw
                .poll_cq(cq, &mut [Completion::EMPTY; REAP])
                .map_err(plain)?
                > 0
            {}
            return Ok(cq);
        }
        if let Some((old, _)) = self.cq.take() {
            self.raw.destroy_cq(old).map_err(plain)?;
        }
        let depth = depth.next_power_of_two();
        let cq = self
            .raw
            .create_cq(depth, Some(&self.channel))
            .map_err(plain)?;
        self.cq = Some((cq, depth));
        Ok(cq)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn> {
        self.raw.create_qp(init).map_err(plain)
    }

    fn modify_qp(&mut self, qpn: Qpn, attr: &QpAttr) -> Result<()> {
        self.raw
            .modify_qp(qpn, Box::new(attr.clone()), None)
            .map_err(plain)
    }

    fn connect_qp(&mut self, qpn: Qpn, peer: Qpn, path: AhAttr, rtr: QpAttr) -> Result<()> {
        let flow = Flow::Connected { local: qpn, peer };
        let path = Path { attr: path, flow };
        self.raw
            .modify_qp(qpn, Box::new(rtr), Some(path))
            .map_err(plain)
    }

    fn destroy_qp(&mut self, qpn: Qpn) {
        // What was not shown to the device goes with the queue pair.
        if self.sends_of == Some(qpn) {
            self.sends_of = None;
            self.sends.clear();
        }
        if self.recvs_of == Some(qpn) {
            self.recvs_of = None;
            self.recvs.clear();
        }
        // If the device is gone, so is the queue pair.
        let _ = self.raw.destroy_qp(qpn);
    }

    #[inline]
    fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<()> {
        if self.sends_of != Some(qpn) {
            self.ring_sends()?;
            self.sends_of = Some(qpn);
        }
        self.sends.push(wr, None);
        self.moved = true;
        Ok(())
    }

    #[inline]
    fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<()> {
        if self.recvs_of != Some(qpn) {
            self.ring_recvs()?;
            self.recvs_of = Some(qpn);
        }
        self.recvs.push(wr);
        self.moved = true;
        Ok(())
    }

    /// Receives first: an answer to a send finds one.
    #[inline]
    fn ring(&mut self) -> Result<()> {
        self.ring_recvs()?;
        self.ring_sends()
    }

    #[inline]
    fn poll_cq(&mut self, cq: Cq, out: &mut [Completion]) -> Result<usize> {
        let found = self.raw.poll_cq(cq, out).map_err(plain)?;
        self.moved |= found > 0;
        Ok(found)
    }

    fn set_poll(&mut self, mode: PollMode) {
        self.mode = mode;
    }

    #[inline]
    fn turn(&mut self, now: Instant) -> Result<bool> {
        self.ring()?;
        if std::mem::take(&mut self.moved) {
            self.worked = now;
            return Ok(true);
        }
        let idle = now.since(self.worked);
        match self.mode {
            PollMode::Adaptive if idle >= AWAKE => self.sleep()?,
            PollMode::Adaptive if idle >= SPIN => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
        Ok(false)
    }

    fn counters(&self, qpn: Qpn) -> Option<Counters> {
        self.raw.counters(qpn).ok()
    }

    /// The daemon keeps them to itself: `xroce stat` shows their quantiles.
    fn rtt(&self, _: Qpn) -> Option<&Histogram> {
        None
    }

    fn stats(&mut self) -> Result<(EngineStats, PortStats)> {
        self.raw.stats().map_err(plain)
    }

    fn failure(&self, qpn: Qpn) -> Result<Option<Failure>> {
        self.raw.failure(qpn).map_err(plain)
    }
}
