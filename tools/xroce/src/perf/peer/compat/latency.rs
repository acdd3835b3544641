//! One message at a time: what `ib_send_lat`, `ib_write_lat`, `ib_read_lat` and
//! `ibv_rc_pingpong` do.

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use xroce_engine::clock;
use xroce_proto::time::Instant;

use super::bandwidth::Receives;
use super::line::Role;
use super::session::Session;
use crate::perf::device::Device;
use crate::perf::measure::flow::{Area, Done};
use crate::perf::measure::quantiles::LONGEST_NS;
use crate::perf::plan::{Op, Step};

/// What a latency test found.
#[derive(Debug)]
pub(super) struct RoundTrips {
    /// From a message of this side to the next of the other, in ns.
    pub histogram: Histogram<u64>,
    /// The whole test, in ns.
    pub elapsed_ns: u64,
}

/// One test in progress.
struct Run<'s, 'a, D: Device> {
    session: &'s mut Session<'a, D>,
    step: Step,
    /// Messages outstanding at most.
    depth: u64,
    receives: Option<Receives>,
    posted: u64,
    sent: u64,
    done: Vec<Done>,
}

/// Exchanges `iterations` messages, of READ only the client's. With SEND the client's comes first.
/// With WRITE the server's does: seen of `ib_write_lat` 4.5, either role, against `rdma_rxe`; it
/// waits for exactly the next mark, so that an earlier WRITE would be overwritten and missed.
///
/// # Errors
/// A message failed, the peer is gone, or the user interrupts.
pub(super) fn run<D: Device>(
    session: &mut Session<'_, D>,
    step: Step,
    depth: u32,
    iterations: u64,
    receives: Option<Receives>,
) -> Result<RoundTrips> {
    let mut histogram = match Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3) {
        Ok(h) => h,
        Err(e) => bail!("histogram: {e}"),
    };
    session.begin();
    let first = (session.role == Role::Client) != (step.op == Op::Write);
    let mut run = Run {
        session,
        step,
        depth: depth.into(),
        receives,
        posted: 0,
        sent: 0,
        done: Vec::with_capacity(64),
    };
    let begin = clock::now();
    let mut left: Option<Instant> = None;
    for n in 0..iterations {
        if !first {
            let arrived = run.await_message(n)?;
            record(&mut histogram, left, arrived);
        }
        left = Some(run.post(n)?);
        if first {
            let arrived = run.await_message(n)?;
            record(&mut histogram, left, arrived);
        }
    }
    let elapsed_ns = clock::now().since(begin).as_nanos();
    run.await_sends()?;
    Ok(RoundTrips {
        histogram,
        elapsed_ns,
    })
}

fn record(histogram: &mut Histogram<u64>, left: Option<Instant>, arrived: Instant) {
    if let Some(left) = left {
        histogram.saturating_record(arrived.since(left).as_nanos());
    }
}

impl<D: Device> Run<'_, '_, D> {
    fn turn(&mut self) -> Result<()> {
        self.session.reap(&mut self.done)?;
        for d in self.done.drain(..) {
            match &mut self.receives {
                Some(receives) if d.received => receives.take(&mut self.session.flow, d)?,
                _ => self.sent = d.n + 1,
            }
        }
        Ok(())
    }

    /// Sends message `n`; returns when.
    fn post(&mut self, n: u64) -> Result<Instant> {
        while self.posted - self.sent >= self.depth {
            self.turn()?;
        }
        let flow = &mut self.session.flow;
        if self.step.op == Op::Write {
            flow.set_last_byte(Area::Source, self.step.size, mark(n));
        }
        let area = if self.step.op == Op::Read {
            Area::Target
        } else {
            Area::Source
        };
        let now = clock::now();
        flow.post(self.step, area, 0, n, true)?;
        self.posted += 1;
        Ok(now)
    }

    /// Waits for message `n` of the other side; returns when it came.
    fn await_message(&mut self, n: u64) -> Result<Instant> {
        loop {
            let here = match (&self.receives, self.step.op) {
                (Some(receives), _) => receives.arrived() > n,
                (None, Op::Read) => self.sent > n,
                (None, _) => {
                    let size = self.step.size;
                    self.session.flow.last_byte(Area::Target, 0, 0, size) == mark(n)
                }
            };
            if here {
                return Ok(clock::now());
            }
            self.turn()?;
        }
    }

    /// Waits until all messages of this side are acknowledged. A peer that has hung up after it
    /// had the last one owes nothing any more.
    fn await_sends(&mut self) -> Result<()> {
        // Where it hangs up beforehand, that says nothing.
        let tells = !std::mem::replace(&mut self.session.may_leave, true);
        while self.sent < self.posted && !(tells && self.session.line.is_over()) {
            self.turn()?;
        }
        Ok(())
    }
}

/// The last byte of WRITE `n`, which the other side waits for.
fn mark(n: u64) -> u8 {
    n.wrapping_add(1).to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::mark;

    #[test]
    fn marks_count_from_one_and_wrap() {
        assert_eq!([0, 1, 254, 255, 256].map(mark), [1, 2, 255, 0, 1]);
    }
}
