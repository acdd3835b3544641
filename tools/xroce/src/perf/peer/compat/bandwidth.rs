//! Many messages outstanding: what `ib_send_bw`, `ib_write_bw` and `ib_read_bw` do.

use anyhow::{Result, bail};
use xroce_engine::clock;

use super::message::PeerReport;
use super::session::Session;
use crate::perf::device::Device;
use crate::perf::measure::flow::{Done, Flow};
use crate::perf::measure::meter::Meter;
use crate::perf::measure::posting::{Posting, Progress};
use crate::perf::plan::Step;

/// Receives of one size.
pub(super) struct Receives {
    size: u32,
    /// Messages expected on each queue pair.
    target: u64,
    posted: Vec<u64>,
    arrived: Vec<u64>,
}

impl Receives {
    /// Posts as many on each of `qps` queue pairs as are kept posted, at most `depth`.
    ///
    /// # Errors
    /// As [`Flow::post_recv`].
    pub(super) fn post<D: Device>(
        flow: &mut Flow<'_, D>,
        qps: u32,
        size: u32,
        target: u64,
        depth: u32,
    ) -> Result<Self> {
        let mut receives = Self {
            size,
            target,
            posted: vec![0; qps as usize],
            arrived: vec![0; qps as usize],
        };
        for qp in 0..qps {
            for _ in 0..target.min(depth.into()) {
                receives.post_one(flow, qp)?;
            }
        }
        Ok(receives)
    }

    fn post_one<D: Device>(&mut self, flow: &mut Flow<'_, D>, qp: u32) -> Result<()> {
        if let Some(posted) = self.posted.get_mut(qp as usize)
            && *posted < self.target
        {
            flow.post_recv(qp, *posted, self.size)?;
            *posted += 1;
        }
        Ok(())
    }

    /// Counts a message and posts a receive for another.
    ///
    /// # Errors
    /// It has another size, or the post fails.
    pub(super) fn take<D: Device>(&mut self, flow: &mut Flow<'_, D>, d: Done) -> Result<()> {
        if d.len != self.size {
            bail!(
                "a message of {} bytes came where {} were expected: give both sides the same size",
                d.len,
                self.size
            );
        }
        if let Some(arrived) = self.arrived.get_mut(d.qp as usize) {
            *arrived += 1;
        }
        self.post_one(flow, d.qp)
    }

    /// Messages so far.
    pub(super) fn arrived(&self) -> u64 {
        self.arrived.iter().sum()
    }

    fn are_complete(&self) -> bool {
        self.arrived.iter().all(|&n| n >= self.target)
    }
}

fn report(meter: &Meter, size: u32, iterations: u64) -> PeerReport {
    let mib = |rate: f64| rate * f64::from(size) / f64::from(1 << 20);
    PeerReport {
        size: size.into(),
        iterations,
        peak_mib_per_s: mib(meter.peak()),
        average_mib_per_s: mib(meter.average()),
        mega_messages_per_s: meter.average() / 1e6,
    }
}

/// Sends `iterations` messages of `step` on each queue pair if this side `sends`, and waits for
/// what `receives` expects.
///
/// # Errors
/// A message failed, the peer is gone, or the user interrupts.
pub(super) fn run<D: Device>(
    session: &mut Session<'_, D>,
    step: Step,
    depth: u32,
    iterations: u64,
    sends: bool,
    mut receives: Option<Receives>,
) -> Result<PeerReport> {
    session.begin();
    let qps = if sends { session.own.len() } else { 0 };
    let posting = Posting::new(step, depth, Some(iterations));
    let mut all = vec![Progress::default(); qps];
    let stretch = u64::from(depth).max(iterations / 10);
    let mut meter = Meter::new(clock::now(), stretch);
    let mut done = Vec::with_capacity(64);
    loop {
        let mut busy = receives.as_ref().is_some_and(|r| !r.are_complete());
        for (qp, p) in (0..).zip(all.iter_mut()) {
            busy |= posting.fill(&mut session.flow, qp, p, false)?;
        }
        if !busy {
            break;
        }
        session.reap(&mut done)?;
        if done.is_empty() {
            continue;
        }
        for d in done.drain(..) {
            match (d.received, &mut receives, all.get_mut(d.qp as usize)) {
                (true, Some(receives), _) => receives.take(&mut session.flow, d)?,
                // A completion stands for all before it.
                (false, _, Some(p)) => p.done = d.n + 1,
                _ => {}
            }
        }
        let messages = if sends {
            all.iter().map(|p| p.done).sum()
        } else {
            receives.as_ref().map_or(0, Receives::arrived)
        };
        meter.see(clock::now(), messages);
    }
    // All queue pairs together, as perftest says it.
    let total = iterations * session.own.len() as u64;
    Ok(report(&meter, step.size, total))
}
