//! Spinning, or spinning for a moment and then sleeping: the one rule for whoever drives an engine.

use std::io;
use std::time::Duration as StdDuration;

use xroce_api::{PollMode, Work};
use xroce_net::datapath::Datapath;
use xroce_proto::time::{Duration, Instant};

use crate::engine::Engine;

/// Without work for so long, an adaptive engine offers its core to others in every turn.
const SPIN: Duration = Duration::from_micros(5);
/// Without work for so long, it sleeps. Longer than it takes to wake the other side (50 to 100 µs
/// here): otherwise each side falls asleep while the other wakes, and every message of a ping-pong
/// pays for a wake-up.
const AWAKE: Duration = Duration::from_micros(1_000);
/// Longest sleep: a caller has other things to look at (a side channel, a stop flag) that cannot
/// wake the port.
const SLEEP_MAX: StdDuration = StdDuration::from_micros(500);

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

    /// One poll; if there was nothing to do, what the mode says.
    ///
    /// # Errors
    /// The port is broken.
    #[inline]
    pub fn step<D: Datapath>(&mut self, engine: &mut Engine<D>, now: Instant) -> io::Result<Work> {
        let work = engine.poll_once(now)?;
        if !work.is_idle() {
            self.last_work = now;
            return Ok(work);
        }
        let idle = now.since(self.last_work);
        match self.mode {
            PollMode::Adaptive if idle >= AWAKE => doze(engine, now)?,
            PollMode::Adaptive if idle >= SPIN => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
        Ok(work)
    }
}

#[cold]
fn doze<D: Datapath>(engine: &mut Engine<D>, now: Instant) -> io::Result<()> {
    let until = engine.next_deadline().map_or(SLEEP_MAX, |deadline| {
        StdDuration::from_nanos(deadline.since(now).as_nanos()).min(SLEEP_MAX)
    });
    engine.wait(until)
}
