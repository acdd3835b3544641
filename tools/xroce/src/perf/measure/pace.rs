//! Open loop: when messages are due, whatever becomes of those before them, and how long each took
//! from then on.
//!
//! A closed loop waits for a completion before it posts again, so that a stall of a millisecond
//! counts as one slow message, and the hundreds that should have left meanwhile are left out
//! ("coordinated omission"). Here each message has a time at which it is due, latency counts from
//! that time, and a message that could not leave at all counts with the time it had waited.

use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use xroce_proto::time::{Duration, Instant};

use crate::perf::measure::quantiles::{Quantiles, histogram};

/// Messages still due when the time is up may leave for so long: those of the last moment are no
/// backlog.
const GRACE: Duration = Duration::from_millis(10);
/// Most messages that never left which are recorded one by one: the first, which waited longest.
const MAX_UNSENT: u64 = 1 << 24;

/// How the times at which messages are due follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arrivals {
    /// At equal distances.
    #[default]
    Fixed,
    /// At random, independent of each other: what many clients together look like.
    Poisson,
}

/// Where a schedule ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// After so many messages; all of them are sent, however late.
    Messages(u64),
    /// After so much time; what is due and has not left by then never does.
    After(Duration),
}

/// The times at which messages are due, in ns since the start.
#[derive(Debug)]
pub(crate) struct Schedule {
    rate: u64,
    arrivals: Arrivals,
    end: End,
    random: fastrand::Rng,
    /// Messages so far.
    count: u64,
    /// Time of the last one (Poisson).
    at: f64,
}

impl Schedule {
    /// `rate` messages a second; the same seed gives the same times.
    pub(crate) fn new(rate: u64, arrivals: Arrivals, seed: u64, end: End) -> Self {
        Self {
            rate: rate.max(1),
            arrivals,
            end,
            random: fastrand::Rng::with_seed(seed),
            count: 0,
            at: 0.0,
        }
    }
}

impl Iterator for Schedule {
    type Item = u64;

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times of up to an hour: a double tells their nanoseconds apart"
    )]
    #[inline]
    fn next(&mut self) -> Option<u64> {
        let due = match self.arrivals {
            Arrivals::Fixed => {
                let ns = u128::from(self.count) * 1_000_000_000 / u128::from(self.rate);
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
            Arrivals::Poisson => {
                // In (0, 1], so that the logarithm exists.
                let u = 1.0 - self.random.f64();
                self.at -= u.ln() * 1e9 / self.rate as f64;
                self.at as u64
            }
        };
        let over = match self.end {
            End::Messages(n) => self.count >= n,
            End::After(time) => due >= time.as_nanos(),
        };
        if over {
            return None;
        }
        self.count += 1;
        Some(due)
    }
}

/// A schedule in the course of time. Knows nothing of queue pairs: whoever posts asks what is
/// [due](Pacer::is_due), and says what was [posted](Pacer::post) and [completed](Pacer::complete).
#[derive(Debug)]
pub(crate) struct Pacer {
    schedule: Schedule,
    next: Option<u64>,
    start: Instant,
    /// Nothing is posted from then on.
    close: Option<Instant>,
    /// When the messages outstanding were due, by queue pair and number.
    due: Vec<u64>,
    depth: u64,
    latency: Histogram<u64>,
    behind: Histogram<u64>,
    unsent: u64,
}

impl Pacer {
    /// Starts the clock. On each of `qps` queue pairs up to `depth` messages may be outstanding.
    ///
    /// # Errors
    /// No histogram can be made, which cannot be.
    pub(crate) fn new(
        mut schedule: Schedule,
        start: Instant,
        qps: u32,
        depth: u32,
    ) -> anyhow::Result<Self> {
        let close = match schedule.end {
            End::Messages(_) => None,
            End::After(time) => {
                Some(start + Duration::from_nanos(time.as_nanos() + GRACE.as_nanos()))
            }
        };
        Ok(Self {
            next: schedule.next(),
            schedule,
            start,
            close,
            due: vec![0; qps as usize * depth as usize],
            depth: depth.into(),
            latency: histogram()?,
            behind: histogram()?,
            unsent: 0,
        })
    }

    /// Whether a message should have left by now, or just now.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|due| self.since_start(now) >= due)
    }

    /// How long until the next message is due; `None` if there is none.
    #[cfg(test)]
    pub(crate) fn until_due(&self, now: Instant) -> Option<Duration> {
        let due = self.next?;
        Some(Duration::from_nanos(
            due.saturating_sub(self.since_start(now)),
        ))
    }

    /// The message that is due was posted as number `n` of a queue pair.
    #[inline]
    pub(crate) fn post(&mut self, qp: u32, n: u64, now: Instant) {
        let Some(due) = self.next else { return };
        let at = self.place(qp, n);
        if let Some(place) = self.due.get_mut(at) {
            *place = due;
        }
        self.behind
            .saturating_record(self.since_start(now).saturating_sub(due));
        self.next = self.schedule.next();
    }

    /// Message `n` of a queue pair is completed.
    #[inline]
    pub(crate) fn complete(&mut self, qp: u32, n: u64, now: Instant) {
        let due = self.due.get(self.place(qp, n)).copied().unwrap_or(0);
        self.latency
            .saturating_record(self.since_start(now).saturating_sub(due));
    }

    /// Whether there is nothing left to post. What is due when the time is up is given up.
    #[inline]
    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        if self.next.is_some() && self.close.is_some_and(|close| now >= close) {
            self.give_up(now);
        }
        self.next.is_none()
    }

    /// Counts what was due and has not left: with the time it has waited, a lower bound of what it
    /// would have taken.
    #[cold]
    fn give_up(&mut self, now: Instant) {
        let now = self.since_start(now);
        let mut next = self.next.take();
        while let Some(due) = next {
            let waited = now.saturating_sub(due);
            self.unsent += 1;
            self.latency.saturating_record(waited);
            self.behind.saturating_record(waited);
            if self.unsent >= MAX_UNSENT {
                return;
            }
            next = self.schedule.next();
        }
    }

    /// What was found.
    pub(crate) fn found(&self) -> Found {
        Found {
            latency: self.latency.clone(),
            behind: self.behind.clone(),
            unsent: self.unsent,
        }
    }

    #[inline]
    fn since_start(&self, now: Instant) -> u64 {
        now.since(self.start).as_nanos()
    }

    #[inline]
    fn place(&self, qp: u32, n: u64) -> usize {
        let at = u64::from(qp) * self.depth + n % self.depth.max(1);
        usize::try_from(at).unwrap_or(usize::MAX)
    }
}

/// What an open loop found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// From when a message was due to its completion, in ns.
    pub latency: Histogram<u64>,
    /// From when a message was due to when it was posted, in ns.
    pub behind: Histogram<u64>,
    /// Messages that were due and never left.
    pub unsent: u64,
}

impl Found {
    /// Adds what another port found.
    pub(crate) fn add(&mut self, other: &Self) {
        // The same bounds: nothing can be out of range.
        let _ = self.latency.add(&other.latency);
        let _ = self.behind.add(&other.behind);
        self.unsent += other.unsent;
    }

    /// The same in numbers.
    pub(crate) fn numbers(&self) -> Paced {
        Paced {
            latency: Quantiles::of(&self.latency),
            behind: Quantiles::of(&self.behind),
            unsent: self.unsent,
        }
    }
}

/// What an open loop found, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paced {
    /// From when a message was due to its completion.
    pub latency: Quantiles,
    /// From when a message was due to when it was posted: how far the sender fell behind.
    pub behind: Quantiles,
    /// Messages that were due and never left.
    pub unsent: u64,
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
