//! Spinning, or spinning and then sleeping.

use std::io;
use std::time::Duration as StdDuration;

use xroce_net::datapath::Datapath;
use xroce_proto::time::{Duration, Instant};

use crate::engine::{Engine, Work};

/// How a thread that drives an engine waits for work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollMode {
    /// Never sleeps: lowest latency, one core.
    Busy,
    /// Sleeps in the port's `wait` after so long without work; two engines share a core well.
    Adaptive {
        /// Time without work before the first sleep.
        spin: Duration,
    },
}

impl PollMode {
    /// Adaptive with 50 µs of spinning: longer than a round trip on veth, shorter than a person
    /// or a scheduler notices.
    pub const ADAPTIVE: Self = Self::Adaptive {
        spin: Duration::from_micros(50),
    };
}

/// Longest sleep, so that a caller sees its stop flag.
const SLEEP_MAX: StdDuration = StdDuration::from_millis(50);

/// Drives an engine according to a [`PollMode`].
#[derive(Clone, Copy, Debug)]
pub struct Poller {
    mode: PollMode,
    last_work: Instant,
}

impl Poller {
    /// A poller that has not found work yet.
    #[must_use]
    pub const fn new(mode: PollMode) -> Self {
        Self {
            mode,
            last_work: Instant::from_nanos(0),
        }
    }

    /// One poll, and a sleep if the mode says so. `busy` tells that the caller has work of its
    /// own to do right after.
    ///
    /// # Errors
    /// The port is broken.
    pub fn step<D: Datapath>(
        &mut self,
        engine: &mut Engine<D>,
        now: Instant,
        busy: bool,
    ) -> io::Result<Work> {
        let work = engine.poll_once(now)?;
        if busy || !work.is_idle() {
            self.last_work = now;
            return Ok(work);
        }
        let PollMode::Adaptive { spin } = self.mode else {
            return Ok(work);
        };
        if now.since(self.last_work) < spin {
            return Ok(work);
        }
        let until = match engine.next_deadline() {
            Some(deadline) => {
                StdDuration::from_nanos(deadline.since(now).as_nanos()).min(SLEEP_MAX)
            }
            None => SLEEP_MAX,
        };
        engine.wait(until)?;
        Ok(work)
    }
}
