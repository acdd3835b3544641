//! Our end: an engine over AF_XDP on the tap, in a thread of its own inside the namespace; the same
//! in a daemon, to which this process attaches; or two engines with nothing but a pipe between them.

mod device;
mod looped;
mod nic;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use xroce_api::GidEntry;
use xroce_engine::{Engine, EngineConfig, PollMode, Poller, clock};
use xroce_net::addressing::Addressing;
use xroce_net::neigh;
use xroce_net::xdp::{XdpConfig, XdpPort};
use xroce_testnet::Netns;
use xroce_wire::newtypes::{Gid, MacAddr};

use super::{
    AhId, Bind, Bound, Connect, CqId, End, Happened, Mr, MrId, Mw, QpId, QpSpec, Recv, Send, SrqId,
    Wc,
};
use crate::fabric::{DEV, Route, VLAN, VM_MAC};
use device::{Daemoned, Ours, Verbs};
use nic::{Nic, Station};

pub(crate) use looped::{LoopPair, Looped, loop_ends};

/// Chunks of the receive ring: a burst of the machine at path MTU 4096, two a frame.
const RING: u32 = 4_096;
/// Pause between two looks at a completion queue.
const LOOK: Duration = Duration::from_micros(200);
/// Host number in our addresses.
const HOST: u8 = 1;
/// The machine's.
const PEER: u8 = 2;

type Job = Box<dyn FnOnce(&mut Nic<Ours>) + std::marker::Send>;

/// A software RNIC.
pub(crate) struct Xroce {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Xroce {
    /// Opens the tap in `netns`, in a daemon if `daemon`.
    ///
    /// # Errors
    /// AF_XDP does not work here.
    pub(crate) fn open(netns: &Netns, daemon: bool) -> Result<Self> {
        let (jobs, todo) = channel::<Job>();
        let (ready, opened) = channel();
        let nic = netns.run(|| open(daemon))?;
        let name = netns.name().to_owned();
        let thread = thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || {
                // Neighbours are looked up in the namespace of the calling thread.
                let entered = xroce_testnet::enter_named(&name).map_err(|e| anyhow!(e));
                let failed = entered.is_err();
                // The other side waits for exactly this.
                let _ = ready.send(entered);
                if failed { Ok(()) } else { turn(nic, &todo) }
            })
            .context("thread of the engine")?;
        opened.recv().context("thread of the engine")??;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Runs `job` in the thread of the engine.
    fn with<T: std::marker::Send + 'static>(
        &mut self,
        job: impl FnOnce(&mut Nic<Ours>) -> T + std::marker::Send + 'static,
    ) -> Result<T> {
        let (done, result) = channel();
        let jobs = self.jobs.as_ref().context("the engine is closed")?;
        let job: Job = Box::new(move |nic| {
            // Nobody waits any more if the caller is gone.
            let _ = done.send(job(nic));
        });
        let sent = jobs.send(job).is_ok();
        match result.recv() {
            Ok(value) if sent => Ok(value),
            _ => Err(self.why_it_ended()),
        }
    }

    fn why_it_ended(&mut self) -> anyhow::Error {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(e))) => e.context("the engine failed"),
            Some(Err(_)) => anyhow!("the engine panicked"),
            _ => anyhow!("the engine has ended"),
        }
    }

    /// Packets since the start whose ICRC was wrong, or whose form already was.
    pub(crate) fn damaged(&mut self) -> Result<u64> {
        self.with(|nic| nic.device.damaged())
    }
}

impl Drop for Xroce {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A failure of the engine has shown in the call that met it.
            let _ = thread.join();
        }
    }
}

/// The loop of the thread: jobs, then the engine.
fn turn(mut nic: Nic<Ours>, jobs: &Receiver<Job>) -> Result<()> {
    let mut poller = Poller::new(PollMode::Adaptive);
    loop {
        if matches!(nic.device, Ours::Daemon(_)) {
            // Moves by itself.
            match jobs.recv() {
                Ok(job) => job(&mut nic),
                Err(_) => return Ok(()),
            }
        }
        loop {
            match jobs.try_recv() {
                Ok(job) => job(&mut nic),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        if let Ours::Engine(engine) = &mut nic.device {
            poller.step(engine, clock::now()).context("port")?;
        }
    }
}

/// All addresses of a host, with the VLAN of each.
fn addresses(host: u8) -> [(Gid, Option<u16>); 4] {
    let each = |v6, vlan: bool| {
        let gid = Gid::from(Route { v6, vlan }.ip(host));
        (gid, vlan.then_some(VLAN))
    };
    [
        each(false, false),
        each(true, false),
        each(false, true),
        each(true, true),
    ]
}

/// What the daemon has to know: nobody tells it what is in the VLAN, or where the machine is.
fn addressing(mac: MacAddr, ifindex: u32) -> Addressing {
    let entry = |(gid, vlan)| GidEntry {
        gid,
        ifindex,
        ifname: DEV.to_owned(),
        mac,
        vlan,
        link_local: false,
    };
    let own = addresses(HOST).map(entry);
    let peer = addresses(PEER).map(|(gid, _)| (gid, MacAddr::new(VM_MAC)));
    Addressing::given(own.into(), peer.into())
}

/// The engine on the tap.
fn open(daemon: bool) -> Result<Nic<Ours>> {
    let interface = neigh::interface(DEV)?;
    let port = XdpPort::open(&XdpConfig {
        ring_size: RING,
        addresses: addresses(HOST).map(|(gid, _)| gid).into(),
        ..XdpConfig::new(DEV)
    })?;
    let station = Station {
        mac: interface.mac,
        host: HOST,
        peer: PEER,
        next: Err(interface.index),
    };
    let device = if daemon {
        let addressing = addressing(interface.mac, interface.index);
        Ours::Daemon(Box::new(Daemoned::start(port, addressing)?))
    } else {
        let engine = Engine::new(port, EngineConfig::default());
        Ours::Engine(Box::new(engine))
    };
    Nic::new(device, station)
}

impl End for Xroce {
    fn name(&self) -> &'static str {
        "xroce"
    }

    fn gid(&self, route: Route) -> Gid {
        Gid::from(route.ip(HOST))
    }

    fn reset(&mut self) -> Result<()> {
        self.with(move |nic| nic.reset())?
    }

    fn mr(&mut self, len: u64, access: u32) -> Result<Mr> {
        self.with(move |nic| nic.mr(len, access))?
    }

    fn fill(&mut self, mr: MrId, off: u64, len: u64, seed: u64) -> Result<()> {
        self.with(move |nic| nic.fill(mr, off, len, seed))?
    }

    fn hash(&mut self, mr: MrId, off: u64, len: u64) -> Result<u64> {
        self.with(move |nic| nic.hash(mr, off, len))?
    }

    fn cq(&mut self, depth: u32) -> Result<CqId> {
        self.with(move |nic| nic.cq(depth))?
    }

    fn qp(&mut self, spec: &QpSpec, access: u32) -> Result<(QpId, u32)> {
        let spec = *spec;
        self.with(move |nic| nic.qp(&spec, access))?
    }

    fn datagram_qp(&mut self, spec: &QpSpec, qkey: u32) -> Result<(QpId, u32)> {
        let spec = *spec;
        self.with(move |nic| nic.datagram_qp(&spec, qkey))?
    }

    fn ah(&mut self, route: Route, group: Option<Gid>) -> Result<AhId> {
        self.with(move |nic| nic.ah(route, group))?
    }

    fn attach(&mut self, qp: QpId, group: Gid) -> Result<()> {
        self.with(move |nic| nic.attach(qp, group))?
    }

    fn peek(&mut self, mr: MrId, off: u64, len: u64) -> Result<Vec<u8>> {
        self.with(move |nic| nic.peek(mr, off, len))?
    }

    fn connect(&mut self, qp: QpId, to: &Connect) -> Result<()> {
        let to = *to;
        self.with(move |nic| nic.connect(qp, &to))?
    }

    fn send(&mut self, qp: QpId, send: &Send) -> Result<()> {
        let send = send.clone();
        self.with(move |nic| nic.send(qp, &send))?
    }

    fn recv(&mut self, qp: QpId, recv: &Recv) -> Result<()> {
        let recv = recv.clone();
        self.with(move |nic| nic.recv(qp, &recv))?
    }

    fn srq(&mut self, depth: u32, sges: u8) -> Result<SrqId> {
        self.with(move |nic| nic.srq(depth, sges))?
    }

    fn srq_recv(&mut self, srq: SrqId, recv: &Recv) -> Result<()> {
        let recv = recv.clone();
        self.with(move |nic| nic.srq_recv(srq, &recv))?
    }

    fn srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<()> {
        self.with(move |nic| nic.srq_limit(srq, limit))?
    }

    fn mw(&mut self, type2: bool) -> Result<Mw> {
        self.with(move |nic| nic.mw(type2))?
    }

    fn bind(&mut self, qp: QpId, mw: Mw, bind: &Bind) -> Result<Bound> {
        let bind = *bind;
        self.with(move |nic| nic.bind(qp, mw, &bind))?
    }

    fn free_mw(&mut self, mw: Mw) -> Result<()> {
        self.with(move |nic| nic.free_mw(mw))?
    }

    fn state(&mut self, qp: QpId) -> Result<String> {
        self.with(move |nic| nic.state(qp))?
    }

    fn failure(&mut self, qp: QpId) -> Result<Option<String>> {
        self.with(move |nic| nic.failure(qp))?
    }

    fn poll(&mut self, cq: CqId, min: u32, max: u32, timeout: Duration) -> Result<Vec<Wc>> {
        let (min, max) = (min as usize, max as usize);
        let until = crate::clock::now() + timeout;
        let mut all: Vec<Wc> = Vec::new();
        loop {
            let room = max - all.len();
            let got = self.with(move |nic| nic.poll(cq, room))??;
            all.extend(got);
            if all.len() >= min || crate::clock::now() >= until {
                return Ok(all);
            }
            thread::sleep(LOOK);
        }
    }

    fn events(&mut self, timeout: Duration) -> Result<Vec<Happened>> {
        let until = crate::clock::now() + timeout;
        loop {
            let events = self.with(Nic::events)?;
            if !events.is_empty() || crate::clock::now() >= until {
                return Ok(events);
            }
            thread::sleep(LOOK);
        }
    }

    fn counters(&mut self) -> Result<BTreeMap<String, u64>> {
        self.with(|nic| nic.counters())
    }
}
