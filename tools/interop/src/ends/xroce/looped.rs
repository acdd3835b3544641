//! Two engines in this thread, frames moving between them without a network.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use xroce_engine::{Engine, EngineConfig, clock};
use xroce_net::sim::{LoopConfig, LoopPort, loop_pair};
use xroce_wire::newtypes::{Gid, MacAddr};

use super::nic::{Nic, Station};
use super::{
    AhId, Bind, Bound, Connect, CqId, End, Happened, Mr, MrId, Mw, QpId, QpSpec, Recv, Route, Send,
    SrqId, Wc,
};

/// Locally administered addresses.
const MACS: [MacAddr; 2] = [
    MacAddr::new([2, 0, 0, 0, 0, 1]),
    MacAddr::new([2, 0, 0, 0, 0, 2]),
];

/// Both engines.
pub(crate) struct Pair {
    nics: [Nic<Engine<LoopPort>>; 2],
}

impl Pair {
    /// One turn of each.
    fn turn(&mut self) -> Result<()> {
        for nic in &mut self.nics {
            nic.device.poll_once(clock::now()).context("pipe")?;
        }
        Ok(())
    }
}

/// Both engines, for both ends.
pub(crate) type LoopPair = RefCell<Pair>;

/// Two engines, connected.
pub(crate) fn loop_ends() -> Result<LoopPair> {
    let (a, b) = loop_pair(&LoopConfig::default());
    let station = |host: u8, at: usize| Station {
        mac: MACS[at],
        host,
        peer: 3 - host,
        next: Ok(MACS[1 - at]),
    };
    let engine = |port| Engine::new(port, EngineConfig::default());
    Ok(RefCell::new(Pair {
        nics: [
            Nic::new(engine(a), station(1, 0))?,
            Nic::new(engine(b), station(2, 1))?,
        ],
    }))
}

/// One of them.
pub(crate) struct Looped<'p> {
    pair: &'p LoopPair,
    at: usize,
}

impl<'p> Looped<'p> {
    /// Both ends of a pair.
    pub(crate) fn both(pair: &'p LoopPair) -> [Self; 2] {
        [0, 1].map(|at| Self { pair, at })
    }

    fn with<T>(&self, job: impl FnOnce(&mut Nic<Engine<LoopPort>>) -> T) -> T {
        job(&mut self.pair.borrow_mut().nics[self.at])
    }

    /// Both engines run until `enough`, or the time is over.
    fn until<T>(
        &mut self,
        timeout: Duration,
        mut look: impl FnMut(&mut Nic<Engine<LoopPort>>) -> Result<(T, bool)>,
    ) -> Result<T> {
        let until = crate::clock::now() + timeout;
        loop {
            self.pair.borrow_mut().turn()?;
            let (value, enough) = self.with(&mut look)?;
            if enough || crate::clock::now() >= until {
                return Ok(value);
            }
        }
    }
}

impl End for Looped<'_> {
    fn name(&self) -> &'static str {
        "xroce"
    }

    fn gid(&self, route: Route) -> Gid {
        self.with(|nic| nic.gid(route))
    }

    fn reset(&mut self) -> Result<()> {
        self.with(|nic| nic.reset())
    }

    fn mr(&mut self, len: u64, access: u32) -> Result<Mr> {
        self.with(|nic| nic.mr(len, access))
    }

    fn fill(&mut self, mr: MrId, off: u64, len: u64, seed: u64) -> Result<()> {
        self.with(|nic| nic.fill(mr, off, len, seed))
    }

    fn hash(&mut self, mr: MrId, off: u64, len: u64) -> Result<u64> {
        self.with(|nic| nic.hash(mr, off, len))
    }

    fn cq(&mut self, depth: u32) -> Result<CqId> {
        self.with(|nic| nic.cq(depth))
    }

    fn qp(&mut self, spec: &QpSpec, access: u32) -> Result<(QpId, u32)> {
        self.with(|nic| nic.qp(spec, access))
    }

    fn datagram_qp(&mut self, spec: &QpSpec, qkey: u32) -> Result<(QpId, u32)> {
        self.with(|nic| nic.datagram_qp(spec, qkey))
    }

    fn ah(&mut self, route: Route, group: Option<Gid>) -> Result<AhId> {
        self.with(|nic| nic.ah(route, group))
    }

    fn attach(&mut self, qp: QpId, group: Gid) -> Result<()> {
        self.with(|nic| nic.attach(qp, group))
    }

    fn peek(&mut self, mr: MrId, off: u64, len: u64) -> Result<Vec<u8>> {
        self.with(|nic| nic.peek(mr, off, len))
    }

    fn connect(&mut self, qp: QpId, to: &Connect) -> Result<()> {
        self.with(|nic| nic.connect(qp, to))
    }

    fn send(&mut self, qp: QpId, send: &Send) -> Result<()> {
        self.with(|nic| nic.send(qp, send))
    }

    fn recv(&mut self, qp: QpId, recv: &Recv) -> Result<()> {
        self.with(|nic| nic.recv(qp, recv))
    }

    fn srq(&mut self, depth: u32, sges: u8) -> Result<SrqId> {
        self.with(|nic| nic.srq(depth, sges))
    }

    fn srq_recv(&mut self, srq: SrqId, recv: &Recv) -> Result<()> {
        self.with(|nic| nic.srq_recv(srq, recv))
    }

    fn srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<()> {
        self.with(|nic| nic.srq_limit(srq, limit))
    }

    fn mw(&mut self, type2: bool) -> Result<Mw> {
        self.with(|nic| nic.mw(type2))
    }

    fn bind(&mut self, qp: QpId, mw: Mw, bind: &Bind) -> Result<Bound> {
        self.with(|nic| nic.bind(qp, mw, bind))
    }

    fn free_mw(&mut self, mw: Mw) -> Result<()> {
        self.with(|nic| nic.free_mw(mw))
    }

    fn state(&mut self, qp: QpId) -> Result<String> {
        self.with(|nic| nic.state(qp))
    }

    fn failure(&mut self, qp: QpId) -> Result<Option<String>> {
        self.with(|nic| nic.failure(qp))
    }

    fn poll(&mut self, cq: CqId, min: u32, max: u32, timeout: Duration) -> Result<Vec<Wc>> {
        let (min, max) = (min as usize, max as usize);
        let mut all: Vec<Wc> = Vec::new();
        self.until(timeout, |nic| {
            all.extend(nic.poll(cq, max - all.len())?);
            Ok(((), all.len() >= min))
        })?;
        Ok(all)
    }

    fn events(&mut self, timeout: Duration) -> Result<Vec<Happened>> {
        self.until(timeout, |nic| {
            let events = nic.events();
            let enough = !events.is_empty();
            Ok((events, enough))
        })
    }

    fn counters(&mut self) -> Result<BTreeMap<String, u64>> {
        Ok(self.with(|nic| nic.counters()))
    }
}
