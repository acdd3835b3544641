//! Spaces packets so that a QP keeps to its rate.
//!
//! One deadline, no tokens: after `n` bytes the next packet may leave `n · 8 / rate` later. A
//! late packet does not save credit beyond [`Pacer::BURST`], so an idle QP cannot burst.

use crate::cc::Rate;
use crate::time::{Duration, Instant};

/// The next time a QP may send.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pacer {
    next: Instant,
}

impl Pacer {
    /// Lateness that is made up for: covers the poll interval of a busy engine.
    pub const BURST: Duration = Duration::from_micros(20);

    /// When the next packet may leave.
    #[must_use]
    pub const fn next(&self) -> Instant {
        self.next
    }

    /// Accounts for a packet of `bytes` sent at `now`.
    pub fn on_sent(&mut self, now: Instant, bytes: usize, rate: Rate) {
        let Some(gap) = rate.time_for(bytes) else {
            return;
        };
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(Self::BURST.as_nanos()));
        self.next = self.next.max(earliest) + gap;
    }
}
