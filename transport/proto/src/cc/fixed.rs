//! No control at all: a rate and a window that never change.

use super::{AckSample, Congestion, CongestionController, Rate};
use crate::params::{OUTSTANDING_PSNS_MAX, WINDOW_PSNS_DEFAULT};
use crate::time::Instant;

/// A fixed rate and a fixed window.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    rate: Rate,
    window_psns: u32,
}

impl Fixed {
    /// `window_psns` is brought into 1 ..= 2^23 - 1.
    #[must_use]
    pub fn new(rate: Rate, window_psns: u32) -> Self {
        Self {
            rate,
            window_psns: window_psns.clamp(1, OUTSTANDING_PSNS_MAX),
        }
    }
}

impl Default for Fixed {
    fn default() -> Self {
        Self::new(Rate::UNLIMITED, WINDOW_PSNS_DEFAULT)
    }
}

impl CongestionController for Fixed {
    #[inline]
    fn on_sent(&mut self, _now: Instant, _bytes: usize) {}

    #[inline]
    fn on_ack(&mut self, _ack: &AckSample) {}

    fn on_congestion(&mut self, _now: Instant, _what: Congestion) {}

    fn on_cnp(&mut self, _now: Instant) -> bool {
        false
    }

    fn on_timer(&mut self, _now: Instant) {}

    #[inline]
    fn next_timer(&self) -> Instant {
        Instant::NEVER
    }

    #[inline]
    fn rate(&self) -> Rate {
        self.rate
    }

    #[inline]
    fn window_psns(&self) -> u32 {
        self.window_psns
    }

    fn wants_ecn(&self) -> bool {
        false
    }
}
