//! `xroce perf loopback`: both ends are queue pairs of one device that sends to itself, and one thread
//! posts and polls for both.
//!
//! What an engine in this thread, one that another thread moves, and a device of the daemon cost beside
//! each other, without a second process that wants a core: for `make boundary`.

use std::io::Write;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use xroce_engine::clock;
use xroce_proto::time::Duration;
use xroce_wire::newtypes::{RKey, Va};

use crate::perf::args::{DaemonArgs, Poll, PortArgs, SeveralArgs};
use crate::perf::client::own_path_mtu;
use crate::perf::device::ports::ports;
use crate::perf::device::{self, Device, User};
use crate::perf::measure::flow::{Area, Attributes, Done, FULL_ACCESS, Flow, RemoteAreas};
use crate::perf::measure::posting::{Posting, Progress};
use crate::perf::measure::quantiles::{Quantiles, histogram};
use crate::perf::parse::parse_seconds;
use crate::perf::plan::{Op, Repair, Shape, Step, Test};
use crate::stop;

/// Messages outstanding at most.
const DEPTH: u32 = 256;
/// Bytes of a message.
const SIZE: u32 = 64;
/// In the latency test every 64th message completes at its sender, so that the send queue does not fill.
const SIGNALED: u64 = 64;

/// `xroce perf loopback`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LoopbackArgs {
    #[command(flatten)]
    pub port_args: PortArgs,
    #[command(flatten)]
    pub daemon: DaemonArgs,
    /// Seconds for the rate, and again for latency
    #[arg(long, default_value = "1", value_name = "S", value_parser = parse_seconds)]
    pub seconds: u64,
}

/// What was found.
#[derive(Clone, Copy, Debug, Serialize)]
struct Found {
    /// WRITEs a second.
    messages_per_s: f64,
    /// Half of a SEND there and a SEND back.
    half_round_trip: Quantiles,
}

/// Measures, and prints one JSON object.
///
/// # Errors
/// One line that says what is wrong.
pub(crate) fn run(args: &LoopbackArgs, out: &mut dyn Write) -> Result<()> {
    let all = ports(&args.port_args, &SeveralArgs::default(), &args.daemon)?;
    let [port] = all.as_slice() else {
        bail!("{} ports: give one --dev and one --local", all.len());
    };
    let both = BothEnds {
        poll: port.poll,
        time: Duration::from_millis(args.seconds),
        out,
    };
    device::open(port, None, both)
}

struct BothEnds<'a> {
    poll: Poll,
    time: Duration,
    out: &'a mut dyn Write,
}

impl User for BothEnds<'_> {
    fn run<D: Device>(self, mut device: D) -> Result<()> {
        let path_mtu = own_path_mtu(&device, None)?;
        let path = device.path(device.local().into())?;
        let mut flow = Flow::with_memory(&mut device, SIZE.into(), 2, self.poll)?;
        let areas = [1, 0].map(|qp| RemoteAreas {
            source: Va::new(flow.address(Area::Source, qp)),
            target: Va::new(flow.address(Area::Target, qp)),
            rkey: RKey::new(flow.memory().rkey),
        });
        flow.set_peer(areas.to_vec(), path_mtu, path);
        let shape = Shape {
            qps: 2,
            depth: DEPTH,
            receives: DEPTH,
            slots: 1,
            stride: SIZE,
            round: None,
        };
        let own = flow.start_step(shape, FULL_ACCESS)?;
        let mut theirs = own.clone();
        theirs.reverse();
        let attributes = Attributes::for_size(SIZE, Repair::default());
        flow.connect_step(&own, &theirs, attributes)?;
        let found = Found {
            messages_per_s: rate(&mut flow, self.time)?,
            half_round_trip: latency(&mut flow, self.time)?,
        };
        writeln!(self.out, "{}", serde_json::to_string(&found)?).context("cannot write the results")
    }
}

const fn step(op: Op, test: Test) -> Step {
    Step {
        op,
        test,
        size: SIZE,
        qps: 2,
        depth: DEPTH,
        rate: None,
    }
}

/// WRITEs a second from the first queue pair to the second.
#[allow(clippy::cast_precision_loss, reason = "a rate")]
fn rate<D: Device>(flow: &mut Flow<'_, D>, time: Duration) -> Result<f64> {
    let posting = Posting::new(step(Op::Write, Test::Bw), DEPTH, None);
    let mut progress = Progress::default();
    let mut done: Vec<Done> = Vec::with_capacity(DEPTH as usize);
    let start = clock::now();
    let mut now = start;
    while posting.fill(flow, 0, &mut progress, now.since(start) >= time)? {
        flow.turn(now)?;
        flow.reap(&mut done)?;
        // A completion stands for all before it.
        if let Some(last) = done.last() {
            progress.done = last.n + 1;
            stop::check()?;
        }
        done.clear();
        now = clock::now();
    }
    Ok(progress.done as f64 * 1e9 / now.since(start).as_nanos().max(1) as f64)
}

/// Half of a SEND there and a SEND back.
fn latency<D: Device>(flow: &mut Flow<'_, D>, time: Duration) -> Result<Quantiles> {
    let step = step(Op::Send, Test::Lat);
    let mut times = histogram()?;
    let mut done = Vec::with_capacity(DEPTH as usize);
    let begin = clock::now();
    let mut n = 0;
    loop {
        let signaled = u64::is_multiple_of(n, SIGNALED);
        let start = clock::now();
        for (from, to) in [(0, 1), (1, 0)] {
            flow.post_recv(to, n, SIZE)?;
            flow.post(step, Area::Source, from, n, signaled)?;
            await_receive(flow, to, &mut done)?;
        }
        let end = clock::now();
        // Others do not wait for a completion of the sender.
        if !signaled {
            times.saturating_record(end.since(start).as_nanos() / 2);
        }
        n += 1;
        if end.since(begin) >= time && !times.is_empty() {
            return Ok(Quantiles::of(&times));
        }
    }
}

/// Until queue pair `qp` has received a message.
fn await_receive<D: Device>(flow: &mut Flow<'_, D>, qp: u32, done: &mut Vec<Done>) -> Result<()> {
    loop {
        flow.turn(clock::now())?;
        flow.reap(done)?;
        if done.drain(..).filter(|d| d.received && d.qp == qp).count() > 0 {
            return Ok(());
        }
        stop::check()?;
    }
}
