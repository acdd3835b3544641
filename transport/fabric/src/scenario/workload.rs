//! `[[workload]]`: from patterns to flows.

use serde::Deserialize;
use xroce_net::sim::Rng;

use super::congestion::to_rate;
use super::error::{Problem, within};
use super::sizes::{BYTES_MAX, Sizes, uniform};
use crate::flow::{Flow, Op};
use crate::units::{BitRate, Bytes, Time};

/// Flows of all workloads of a scenario, at most.
pub(crate) const FLOWS_MAX: u64 = 1_000_000;

/// One pattern of traffic; exactly one of the kinds.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Name, for the report; the kind without.
    pub name: Option<String>,
    /// Class of its packets; the first by name without.
    pub class: Option<String>,
    /// Operation.
    pub op: Option<OpName>,
    /// When it begins.
    pub start: Time,
    /// Many to one.
    pub incast: Option<Incast>,
    /// Every host to one other, each receiving from one.
    pub permutation: Option<Permutation>,
    /// Every host to every other.
    pub all_to_all: Option<AllToAll>,
    /// Ring all-reduce.
    pub allreduce: Option<AllReduce>,
    /// Random flows at random times.
    pub poisson: Option<Poisson>,
    /// All hosts to a few that store.
    pub checkpoint: Option<Checkpoint>,
    /// One by one.
    pub flows: Option<Vec<ListedFlow>>,
}

/// Names of [`Op`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpName {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// SEND.
    Send,
    /// RDMA READ.
    Read,
}

impl From<OpName> for Op {
    fn from(name: OpName) -> Self {
        match name {
            OpName::Write => Self::Write,
            OpName::WriteImm => Self::WriteImm,
            OpName::Send => Self::Send,
            OpName::Read => Self::Read,
        }
    }
}

/// Many to one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incast {
    /// Hosts that send: those after the receiver.
    pub senders: u32,
    /// The receiver.
    #[serde(default)]
    pub to: u32,
    /// Bytes of each.
    pub bytes: Bytes,
    /// Each begins so much after the one before.
    #[serde(default)]
    pub stagger: Time,
    /// Times.
    #[serde(default = "once")]
    pub repeat: u32,
    /// Time from one to the next.
    #[serde(default)]
    pub every: Time,
}

/// Every host to one other.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permutation {
    /// Bytes of each.
    pub bytes: Bytes,
    /// Host i sends to i + stride; at random without.
    pub stride: Option<u32>,
}

/// Every host to every other.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllToAll {
    /// Bytes of each flow.
    pub bytes: Bytes,
    /// The first so many hosts; all without.
    pub hosts: Option<u32>,
}

/// Ring all-reduce: 2·(n − 1) steps, in each of which every rank sends a part of bytes/n to its
/// neighbour, once the part of the step before has arrived from the other.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllReduce {
    /// Bytes to be reduced, at each rank.
    pub bytes: Bytes,
    /// How hosts form rings.
    #[serde(default)]
    pub rings: Rings,
    /// Rounds, each after the one before.
    #[serde(default = "once")]
    pub repeat: u32,
}

/// How hosts form rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rings {
    /// One of all hosts, in the order of their numbers.
    #[default]
    One,
    /// One for each rail, of the hosts on it.
    Rail,
}

/// Random flows at random times.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Poisson {
    /// Mean load of the hosts' links, as payload, 0.001 to 2.
    pub load: f64,
    /// Lengths.
    pub sizes: Sizes,
    /// No flow begins later; the end of the run without.
    pub until: Option<Time>,
}

/// All hosts to a few that store.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// The last so many hosts store; the others send to them in turn.
    pub storage: u32,
    /// Bytes of each sender.
    pub bytes: Bytes,
    /// Each begins so much after the one before.
    #[serde(default)]
    pub stagger: Time,
    /// Times.
    #[serde(default = "once")]
    pub repeat: u32,
    /// Time from one to the next.
    #[serde(default)]
    pub every: Time,
}

/// One flow.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedFlow {
    /// Host the data is at.
    pub src: u32,
    /// Host it goes to.
    pub dst: u32,
    /// Bytes.
    pub bytes: Bytes,
    /// When it begins, after the start of the workload.
    #[serde(default)]
    pub start: Time,
    /// Operation, instead of the workload's.
    pub op: Option<OpName>,
    /// Class, instead of the workload's.
    pub class: Option<String>,
    /// No faster than this, whatever congestion control says.
    pub rate_limit: Option<BitRate>,
}

const fn once() -> u32 {
    1
}

/// What patterns are spread over.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) hosts: u32,
    /// Machines and GPUs.
    pub(crate) machines: Option<(u32, u32)>,
    pub(crate) rate: BitRate,
    pub(crate) end: Time,
    pub(crate) classes: Vec<String>,
}

/// A workload being turned into flows.
struct Maker<'a> {
    path: String,
    ground: &'a Ground,
    template: Flow,
    rng: Rng,
    flows: Vec<Flow>,
    /// Flows before these.
    offset: u64,
}

impl Workload {
    /// Its kind, if there is exactly one.
    pub(crate) fn kind(&self) -> Option<&'static str> {
        let kinds = [
            ("incast", self.incast.is_some()),
            ("permutation", self.permutation.is_some()),
            ("all_to_all", self.all_to_all.is_some()),
            ("allreduce", self.allreduce.is_some()),
            ("poisson", self.poisson.is_some()),
            ("checkpoint", self.checkpoint.is_some()),
            ("flows", self.flows.is_some()),
        ];
        let mut given = kinds.iter().filter(|(_, is)| *is);
        let first = given.next()?.0;
        given.next().is_none().then_some(first)
    }

    /// Its flows; `offset` others come before them.
    pub(crate) fn flows(
        &self,
        (index, offset): (usize, u64),
        ground: &Ground,
        rng: Rng,
    ) -> Result<Vec<Flow>, Problem> {
        let path = format!("workload.{index}");
        let Some(kind) = self.kind() else {
            let what = "a workload is exactly one of incast, permutation, all_to_all, allreduce, \
                        poisson, checkpoint and flows";
            return Err(Problem::at(&path, what));
        };
        within(
            &format!("{path}.start"),
            self.start,
            (Time::ZERO, ground.end),
        )?;
        let class = class(
            &format!("{path}.class"),
            self.class.as_deref(),
            &ground.classes,
        )?;
        let op = match (self.op, kind) {
            (Some(op), _) => op.into(),
            // The next step waits for the data.
            (None, "allreduce") => Op::WriteImm,
            (None, _) => Op::Write,
        };
        let template = Flow {
            start: self.start,
            op,
            class,
            group: u32::try_from(index).unwrap_or(0),
            ..Flow::write(0, 0, 0)
        };
        let mut maker = Maker {
            path: format!("{path}.{kind}"),
            ground,
            template,
            rng,
            flows: Vec::new(),
            offset,
        };
        self.fill(&mut maker)?;
        Ok(maker.flows)
    }

    fn fill(&self, maker: &mut Maker<'_>) -> Result<(), Problem> {
        if let Some(w) = &self.incast {
            maker.incast(w)?;
        }
        if let Some(w) = &self.permutation {
            maker.permutation(w)?;
        }
        if let Some(w) = &self.all_to_all {
            maker.all_to_all(w)?;
        }
        if let Some(w) = &self.allreduce {
            maker.allreduce(w)?;
        }
        if let Some(w) = &self.poisson {
            maker.poisson(w)?;
        }
        if let Some(w) = &self.checkpoint {
            maker.checkpoint(w)?;
        }
        if let Some(w) = &self.flows {
            maker.listed(w)?;
        }
        Ok(())
    }
}

fn class(path: &str, name: Option<&str>, classes: &[String]) -> Result<usize, Problem> {
    let Some(name) = name else { return Ok(0) };
    let found = classes.iter().position(|c| c == name);
    found.ok_or_else(|| {
        let known: Vec<&str> = classes.iter().map(String::as_str).collect();
        Problem::at(path, super::error::unknown("class", name, &known))
    })
}

impl Maker<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    fn bytes(&self, bytes: Bytes) -> Result<u64, Problem> {
        within(&self.key("bytes"), bytes.0, (1, BYTES_MAX))
    }

    /// Not more flows than a run may have.
    fn count(&self, more: u64) -> Result<(), Problem> {
        if self.offset.saturating_add(more) <= FLOWS_MAX {
            return Ok(());
        }
        let what = format!(
            "{more} flows here, {} before: {FLOWS_MAX} are possible",
            self.offset
        );
        Err(Problem::at(&self.path, what))
    }

    fn add(&mut self, src: u32, dst: u32, bytes: u64, after_start: Time) {
        self.flows.push(Flow {
            src,
            dst,
            bytes,
            start: self.template.start + after_start,
            ..self.template.clone()
        });
    }

    fn incast(&mut self, w: &Incast) -> Result<(), Problem> {
        let hosts = self.ground.hosts;
        let senders = within(&self.key("senders"), w.senders, (1, hosts - 1))?;
        let to = within(&self.key("to"), w.to, (0, hosts - 1))?;
        let bytes = self.bytes(w.bytes)?;
        let repeat = within(&self.key("repeat"), w.repeat, (1, 1_000_000))?;
        self.count(u64::from(senders) * u64::from(repeat))?;
        for round in 0..repeat {
            for i in 0..senders {
                let at = times(w.every, round) + times(w.stagger, i);
                self.add((to + 1 + i) % hosts, to, bytes, at);
            }
        }
        Ok(())
    }

    fn permutation(&mut self, w: &Permutation) -> Result<(), Problem> {
        let hosts = self.ground.hosts;
        let bytes = self.bytes(w.bytes)?;
        self.count(hosts.into())?;
        let mut to: Vec<u32> = (0..hosts).collect();
        if let Some(stride) = w.stride {
            let stride = within(&self.key("stride"), stride, (1, hosts - 1))?;
            to.rotate_left(stride as usize);
        } else {
            // Sattolo's shuffle: one cycle, so nobody sends to itself.
            for i in (1..to.len()).rev() {
                to.swap(i, self.rng.index(i));
            }
        }
        for (src, dst) in (0..hosts).zip(to) {
            self.add(src, dst, bytes, Time::ZERO);
        }
        Ok(())
    }

    fn all_to_all(&mut self, w: &AllToAll) -> Result<(), Problem> {
        let all = self.ground.hosts;
        let hosts = within(&self.key("hosts"), w.hosts.unwrap_or(all), (2, all))?;
        let bytes = self.bytes(w.bytes)?;
        self.count(u64::from(hosts) * u64::from(hosts - 1))?;
        // In each round every host sends to another one: no two begin with the same.
        for distance in 1..hosts {
            for src in 0..hosts {
                self.add(src, (src + distance) % hosts, bytes, Time::ZERO);
            }
        }
        Ok(())
    }

    fn allreduce(&mut self, w: &AllReduce) -> Result<(), Problem> {
        let bytes = self.bytes(w.bytes)?;
        let repeat = within(&self.key("repeat"), w.repeat, (1, 1_000_000))?;
        let rings = self.rings(w.rings)?;
        let ranks = rings.first().map_or(0, Vec::len) as u64;
        let steps = 2 * (ranks - 1) * u64::from(repeat);
        self.count(
            steps
                .saturating_mul(ranks)
                .saturating_mul(rings.len() as u64),
        )?;
        for ring in rings {
            let n = ring.len();
            let part = (bytes / n as u64).max(1);
            // The flow that each rank waits for.
            let mut before: Vec<Option<u32>> = vec![None; n];
            for _ in 0..steps {
                let mut sent = vec![None; n];
                for i in 0..n {
                    let id = self.offset + self.flows.len() as u64;
                    let id = u32::try_from(id).unwrap_or(u32::MAX);
                    self.add(ring[i], ring[(i + 1) % n], part, Time::ZERO);
                    if let Some(flow) = self.flows.last_mut() {
                        flow.channel = Some(flow.group);
                        flow.after.extend(before[i]);
                    }
                    sent[(i + 1) % n] = Some(id);
                }
                before = sent;
            }
        }
        Ok(())
    }

    fn rings(&self, rings: Rings) -> Result<Vec<Vec<u32>>, Problem> {
        let all = self.ground.hosts;
        match (rings, self.ground.machines) {
            (Rings::One, _) => Ok(vec![(0..all).collect()]),
            (Rings::Rail, Some((nodes, gpus))) if nodes > 1 => {
                let rail = |r| (0..nodes).map(|n| n * gpus + r).collect();
                Ok((0..gpus).map(rail).collect())
            }
            (Rings::Rail, _) => {
                let what = "rings by rail need topology.rails with at least 2 nodes";
                Err(Problem::at(&self.key("rings"), what))
            }
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times in ps, checked to be within the run"
    )]
    fn poisson(&mut self, w: &Poisson) -> Result<(), Problem> {
        let load = within(&self.key("load"), w.load, (0.001, 2.0))?;
        let cdf = w.sizes.cdf(&self.key("sizes"))?;
        let start = self.template.start;
        let until = w.until.unwrap_or(self.ground.end);
        let until = within(&self.key("until"), until, (start, self.ground.end))?;
        let hosts = self.ground.hosts;
        // Mean time between flows of the whole fabric.
        let bits = load * self.ground.rate.bps() as f64 * f64::from(hosts);
        let gap = cdf.mean() * 8.0 / bits;
        let expected = until.since(start).seconds() / gap;
        self.count((expected * 1.1) as u64)?;
        let mut at = 0.0;
        loop {
            // 1 - u is never 0.
            at -= (1.0 - uniform(&mut self.rng)).ln() * gap;
            let offset = Time::from_ps((at * 1e12) as u64);
            if start + offset >= until || self.flows.len() as u64 >= FLOWS_MAX {
                return Ok(());
            }
            let src = self.rng.below(hosts.into()) as u32;
            let dst = (src + 1 + self.rng.below(u64::from(hosts) - 1) as u32) % hosts;
            let bytes = cdf.draw(&mut self.rng);
            self.add(src, dst, bytes, offset);
        }
    }

    fn checkpoint(&mut self, w: &Checkpoint) -> Result<(), Problem> {
        let hosts = self.ground.hosts;
        let storage = within(&self.key("storage"), w.storage, (1, hosts - 1))?;
        let bytes = self.bytes(w.bytes)?;
        let repeat = within(&self.key("repeat"), w.repeat, (1, 1_000_000))?;
        let senders = hosts - storage;
        self.count(u64::from(senders) * u64::from(repeat))?;
        for round in 0..repeat {
            for i in 0..senders {
                let at = times(w.every, round) + times(w.stagger, i);
                self.add(i, senders + i % storage, bytes, at);
            }
        }
        Ok(())
    }

    fn listed(&mut self, list: &[ListedFlow]) -> Result<(), Problem> {
        self.count(list.len() as u64)?;
        for (i, flow) in list.iter().enumerate() {
            let key = |key: &str| format!("{}.{i}.{key}", self.path);
            let host = |name, host| within(&key(name), host, (0, self.ground.hosts - 1));
            let (src, dst) = (host("src", flow.src)?, host("dst", flow.dst)?);
            if src == dst {
                let what = format!("host {dst} would send to itself");
                return Err(Problem::at(&key("dst"), what));
            }
            let bytes = within(&key("bytes"), flow.bytes.0, (1, BYTES_MAX))?;
            let class = match &flow.class {
                Some(name) => class(&key("class"), Some(name), &self.ground.classes)?,
                None => self.template.class,
            };
            self.add(src, dst, bytes, flow.start);
            if let Some(made) = self.flows.last_mut() {
                made.class = class;
                made.op = flow.op.map_or(made.op, Into::into);
                made.rate_limit = flow.rate_limit.map(to_rate);
            }
        }
        Ok(())
    }
}

fn times(time: Time, n: u32) -> Time {
    Time::from_ps(time.ps().saturating_mul(n.into()))
}
