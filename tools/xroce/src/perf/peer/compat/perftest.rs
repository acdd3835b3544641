//! A conversation with a program of perftest, as either side.

use anyhow::{Result, bail};
use xroce_proto::memory::Access;
use xroce_proto::params::RD_ATOMIC_MAX;
use xroce_wire::newtypes::{PathMtu, RKey, Va};

use super::bandwidth::{self, Receives};
use super::job::Job;
use super::latency;
use super::line::{Line, Role};
use super::message::{self, DONE, KEY_LEN, Key, PeerReport, Version};
use super::order::Order;
use super::report::{Latency, Report, Row};
use super::session::{Session, peer_gid};
use crate::perf::args::Poll;
use crate::perf::client::own_path_mtu;
use crate::perf::device::Device;
use crate::perf::measure::flow::{Area, Attributes, Flow, RemoteAreas};
use crate::perf::peer::message::{MemoryData, QpData};
use crate::perf::plan::{MAX_MEMORY, Op, Shape, Step, Test};

/// What both sides have agreed on before there are queue pairs.
struct Agreed {
    version: Version,
    cycle_buffer: u32,
    cache_line: u32,
    path_mtu: PathMtu,
}

/// Does `job` as `role`.
///
/// # Errors
/// One line that says what is wrong.
pub(super) fn run<D: Device>(
    job: &Job,
    role: Role,
    poll: Poll,
    device: &mut D,
    line: &mut Line,
) -> Result<Report> {
    let own_mtu = own_path_mtu(device, job.mtu)?;
    let agreed = agree(job, role, own_mtu, line)?;
    let mut report = Report::new(job, role, line, device);
    report.peer_version = Some(agreed.version.text.clone());
    report.path_mtu = agreed.path_mtu.bytes();

    let area = u64::from(job.max_size().max(agreed.cycle_buffer));
    let bytes = 2 * area * u64::from(job.qps);
    if bytes > MAX_MEMORY {
        bail!(
            "{} queue pairs with messages of {} bytes (pages of {} bytes) need {} MiB of buffers, \
             more than {}: use fewer --qps or a smaller --size",
            job.qps,
            job.max_size(),
            agreed.cycle_buffer,
            bytes >> 20,
            MAX_MEMORY >> 20
        );
    }
    let mut flow = Flow::with_memory(device, area, job.qps, poll)?;
    let shape = Shape {
        qps: job.qps,
        depth: job.depth,
        receives: job.rx_depth,
        slots: 1,
        stride: 1,
        round: None,
    };
    // What the peer's requests need; SEND as perftest has it.
    let access = match job.op {
        Op::Read => Access::REMOTE_READ,
        Op::Send | Op::Write => Access::REMOTE_WRITE,
    };
    let own = flow.start_step(shape, access)?;
    Session::new(flow, line, role, own, job.patience).finish(|session| {
        Conversation::new(job, session, agreed).run(&mut report)?;
        report.count(&mut session.flow)
    })?;
    Ok(report)
}

/// Versions, sizes of memory, path MTU.
fn agree(job: &Job, role: Role, own_mtu: PathMtu, line: &mut Line) -> Result<Agreed> {
    let patience = job.patience;
    let mut nap = || {
        std::thread::sleep(std::time::Duration::from_millis(1));
        Ok(false)
    };
    let theirs = line.swap(role, "version", &message::version(), patience, &mut nap)?;
    let version = message::parse_version(&theirs)?;
    let mut larger = |what, own: u32, limit| -> Result<u32> {
        let theirs = line.swap(role, what, &own.to_be_bytes(), patience, &mut nap)?;
        Ok(message::parse_number(what, theirs, limit)?.max(own))
    };
    let cycle_buffer = larger(
        "cycle_buffer",
        message::CYCLE_BUFFER,
        message::MAX_CYCLE_BUFFER,
    )?;
    let cache_line = larger("cache_line", message::CACHE_LINE, message::MAX_CACHE_LINE)?;
    let theirs = line.swap(role, "mtu", &message::mtu(own_mtu), patience, &mut nap)?;
    Ok(Agreed {
        version,
        cycle_buffer,
        cache_line,
        path_mtu: own_mtu.min(message::parse_mtu(theirs)?),
    })
}

/// Everything from the first queue pair on.
struct Conversation<'s, 'a, D: Device> {
    job: &'s Job,
    session: &'s mut Session<'a, D>,
    agreed: Agreed,
    own: Vec<[u8; KEY_LEN]>,
    theirs: Vec<Key>,
    /// Whether this side sends, and whether it takes receives.
    sends: bool,
    receives: bool,
}

impl<'s, 'a, D: Device> Conversation<'s, 'a, D> {
    fn new(job: &'s Job, session: &'s mut Session<'a, D>, agreed: Agreed) -> Self {
        let flow = &session.flow;
        let key = |(qp, data): (u32, &QpData)| Key {
            out_reads: reads(job).into(),
            qpn: data.qpn,
            psn: data.psn,
            rkey: flow.memory().rkey,
            va: flow.address(Area::Target, qp),
            gid: flow.device().local().into(),
        };
        let keys = (0..).zip(&session.own).map(key);
        let own = keys.map(|key| key.encode()).collect();
        let both = job.bidirectional || (job.test == Test::Lat && job.op != Op::Read);
        Self {
            own,
            theirs: Vec::with_capacity(job.qps as usize),
            sends: both || session.role == Role::Client,
            receives: job.op == Op::Send && (both || session.role == Role::Server),
            job,
            session,
            agreed,
        }
    }

    fn run(&mut self, report: &mut Report) -> Result<()> {
        let order = Order::of(self.job);
        let all = 0..self.job.qps as usize;
        if order.early {
            self.shake(0)?;
        }
        for qp in all.clone() {
            self.meet(qp)?;
        }
        self.connect()?;
        if order.zero_first {
            self.wait(0)?;
        }
        for qp in all {
            self.wait(qp)?;
        }
        if !order.zero_first {
            self.wait(0)?;
        }
        for &size in &self.job.sizes {
            let mut row = Row::new(size, self.job.iterations);
            self.measure(order, size, &mut row)?;
            if row.is_of_use() {
                report.rows.push(row);
            }
        }
        if order.report_last {
            self.wait(0)?;
            let own = report.rows.last().and_then(|r| r.bandwidth);
            let theirs = self.exchange_reports(own.unwrap_or_default())?;
            // A side that only waited sends figures that mean nothing.
            if self.session.role == Role::Server {
                report.rows.push(Row::of_peer(theirs));
            }
        }
        if order.close {
            self.wait(0)?;
            self.session.line.send("done", &DONE)?;
        }
        self.session.farewell()
    }

    /// All messages of one size.
    fn measure(&mut self, order: Order, size: u32, row: &mut Row) -> Result<()> {
        let job = self.job;
        let step = Step {
            op: job.op,
            test: job.test,
            size,
            qps: job.qps,
            depth: job.depth,
            rate: None,
        };
        let (slots, stride) = layout(step, &self.agreed);
        let flow = &mut self.session.flow;
        flow.use_slots(slots, stride);
        let receives = if self.receives {
            let (qps, depth) = (job.qps, job.rx_depth);
            Some(Receives::post(flow, qps, size, job.iterations, depth)?)
        } else {
            None
        };
        if order.before {
            self.wait(0)?;
        } else if (job.op, job.test) == (Op::Write, Test::Lat) {
            self.wait_as_later_versions()?;
        }
        if self.sends || self.receives {
            self.traffic(step, receives, row)?;
        }
        if order.after && !order.report_first {
            self.wait(0)?;
        }
        if order.report_each {
            row.peer = Some(self.exchange_reports(row.bandwidth.unwrap_or_default())?);
        }
        if order.after && order.report_first {
            self.wait(0)?;
        }
        Ok(())
    }

    fn traffic(&mut self, step: Step, receives: Option<Receives>, row: &mut Row) -> Result<()> {
        let (depth, n) = (self.job.depth, self.job.iterations);
        match step.test {
            Test::Bw | Test::Open => {
                let found = bandwidth::run(self.session, step, depth, n, self.sends, receives)?;
                row.bandwidth = Some(found);
            }
            Test::Lat => {
                let found = latency::run(self.session, step, depth, n, receives)?;
                row.latency = Some(Latency::of(&found, step.op));
            }
        }
        Ok(())
    }

    fn connect(&mut self) -> Result<()> {
        let Some(first) = self.theirs.first() else {
            bail!("no queue pair");
        };
        let device = self.session.flow.device();
        let gid = peer_gid(first.gid, device, "-x")?;
        let path = device.path(gid)?;
        let mut areas = Vec::with_capacity(self.theirs.len());
        let mut reads_out = RD_ATOMIC_MAX;
        for key in &self.theirs {
            if key.gid != first.gid {
                bail!(
                    "the peer's queue pairs have different GIDs: {gid} and {}",
                    key.gid
                );
            }
            let len = u64::from(self.job.max_size().max(self.agreed.cycle_buffer));
            let memory = MemoryData {
                va: key.va,
                len,
                rkey: key.rkey,
            };
            memory.check(len)?;
            areas.push(RemoteAreas {
                source: Va::new(key.va),
                target: Va::new(key.va),
                rkey: RKey::new(key.rkey),
            });
            reads_out = reads_out.min(u8::try_from(key.out_reads).unwrap_or(u8::MAX));
        }
        if self.job.op == Op::Read && reads_out == 0 {
            bail!("the peer answers no READs: its \"key\" message says 0 outstanding READs");
        }
        let attributes = Attributes {
            reads_in: reads(self.job),
            reads_out,
            rnr_retry: 7,
            sends: self.sends || self.job.test == Test::Lat,
            repair: self.job.repair,
        };
        let theirs: Vec<QpData> = self.theirs.iter().map(|key| key.qp()).collect();
        let own = self.session.own.clone();
        let flow = &mut self.session.flow;
        flow.set_peer(areas, self.agreed.path_mtu, path);
        flow.connect_step(&own, &theirs, attributes)
    }

    /// Both sides tell their queue pair number `qp`.
    fn shake(&mut self, qp: usize) -> Result<Key> {
        let own = self.own.get(qp).copied().unwrap_or([0; KEY_LEN]);
        let theirs = self.session.swap("key", &own)?;
        Ok(Key::parse(&theirs)?)
    }

    /// The same for the first time.
    fn meet(&mut self, qp: usize) -> Result<()> {
        let key = self.shake(qp)?;
        if self.theirs.iter().any(|known| known.qpn == key.qpn) {
            bail!(
                "the peer has only {qp} queue pairs, this side {}: give both the same --qps (-q)",
                self.job.qps
            );
        }
        self.theirs.push(key);
        Ok(())
    }

    /// The same again, to wait for each other.
    fn wait(&mut self, qp: usize) -> Result<()> {
        let key = self.shake(qp)?;
        match self.theirs.get(qp) {
            Some(known) if known.qpn == key.qpn => Ok(()),
            known => bail!(
                "the peer sent the key of queue pair {:#x} where that of {:#x} was expected: does \
                 it have as many queue pairs (-q), and does it do {} {}?",
                key.qpn,
                known.map_or(0, |k| k.qpn),
                self.job.op,
                self.job.test
            ),
        }
    }

    /// Versions after ours wait once more before the messages of a WRITE latency test, nobody knows
    /// since which. So a client only says its part: a server that does not wait never reads it. And
    /// a server answers one that does wait whenever it speaks.
    fn wait_as_later_versions(&mut self) -> Result<()> {
        let own = self.own.first().copied().unwrap_or([0; KEY_LEN]);
        if self.session.role == Role::Server {
            self.session.late = Some(own);
        } else if self.agreed.version.is_later() {
            self.session.line.send("key", &own)?;
        }
        Ok(())
    }

    fn exchange_reports(&mut self, own: PeerReport) -> Result<PeerReport> {
        let mut theirs = [[0; 8]; 5];
        for ((what, own), theirs) in PeerReport::NAMES
            .into_iter()
            .zip(own.encode())
            .zip(&mut theirs)
        {
            *theirs = self.session.swap(what, &own)?;
        }
        Ok(PeerReport::parse(theirs))
    }
}

/// READs answered at a time: perftest asks for the most only if there will be any.
fn reads(job: &Job) -> u8 {
    if job.op == Op::Read { RD_ATOMIC_MAX } else { 1 }
}

/// Where the messages of a step lie: small ones of a bandwidth test go through the cycle buffer,
/// one cache line or more apart; others all lie at the start. Returns number and distance.
fn layout(step: Step, agreed: &Agreed) -> (u32, u32) {
    let stride = step.size.next_multiple_of(agreed.cache_line);
    if step.test == Test::Bw && step.size <= agreed.cycle_buffer / 2 {
        ((agreed.cycle_buffer / stride).max(1), stride)
    } else {
        (1, stride)
    }
}
