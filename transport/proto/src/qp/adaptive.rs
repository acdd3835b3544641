//! The ACK timeout that follows the measured round trip ([`Reliability::Adaptive`]).
//!
//! A packet that is sent again and lost again brings no second NAK (S1): only the timeout helps,
//! and the one configured is a thousand round trips. Nothing of this shows on the wire, so it is
//! for any peer. What is configured still says when the peer is given up: a retry is used up when
//! so much time has passed, not with each of the shorter waits.
//!
//! [`Reliability::Adaptive`]: crate::recovery::Reliability::Adaptive

use super::Qp;
use crate::recovery::LossSignal;
use crate::time::{Duration, Instant};

/// Doublings of a wait that brings nothing back, at most.
const BACKOFF_MAX: u8 = 16;

impl Qp {
    /// A round trip was measured.
    pub(super) fn adapt_wait(&mut self) {
        let cold = &mut *self.cold;
        let (Some(params), Some(configured)) = (cold.adaptive(), cold.timeout()) else {
            return;
        };
        if let Some(longest) = cold.rtt_estimator.longest() {
            cold.ack_wait = longest.max(params.floor).min(configured);
        }
    }

    /// How long to wait after a resend: twice as long after each timeout in a row.
    pub(super) fn adaptive_wait(&self) -> Duration {
        let Some(configured) = self.cold.timeout() else {
            return Duration::MAX;
        };
        let wait = self.cold.ack_wait.min(configured).as_nanos();
        let doubled = wait << self.cold.timeouts_in_row.min(BACKOFF_MAX);
        Duration::from_nanos(doubled).min(configured)
    }

    /// Takes one of the retries for a loss; `false` if none is left.
    pub(super) fn take_retry(&mut self, now: Instant, signal: LossSignal) -> bool {
        if let (LossSignal::Timeout(_), Some(_), Some(configured)) =
            (signal, self.cold.adaptive(), self.cold.timeout())
        {
            if self.cold.timeouts_in_row == 0 {
                self.cold.quiet_since = self.tx.demand_since.min(now);
            }
            let quiet = now.since(self.cold.quiet_since).as_nanos();
            let retries = self.cold.retry_cnt;
            // A pacer may keep the packets so far apart that all that time is one try.
            return self.cold.timeouts_in_row < retries
                || quiet / configured.as_nanos() <= u64::from(retries);
        }
        if self.tx.retries_left == 0 {
            return false;
        }
        self.tx.retries_left -= 1;
        true
    }
}
