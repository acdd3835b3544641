//! What the requester of go-back-N does when it hears of a loss, or of nothing (R8, R12).
//!
//! It goes back to the oldest PSN that is not acknowledged, and waits for the answer to what it sends
//! again: as long as the timeout attribute says, longer after timeouts in a row, shorter for what a
//! NAK asked for. [`crate::recovery`] remembers losses and says how much may be sent again at once.

use xroce_wire::newtypes::Psn;

use super::requester::Cause;
use super::{Cx, Qp, turn};
use crate::cc::{Congestion, CongestionController};
use crate::memory::Memory;
use crate::params;
use crate::recovery::LossSignal;
use crate::time::{Duration, Instant};
use crate::wc::{Sink, WcStatus};

impl Qp {
    /// The timer fired: resend from the oldest unacknowledged PSN (R12).
    pub(super) fn ack_timeout<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>) {
        if self.selective.is_some() {
            self.selective_timeout(cx);
            return;
        }
        self.tx.ack_deadline = Instant::NEVER;
        if !self.tx.is_outstanding() {
            return;
        }
        if self.rate().is_limited() && self.may_request(turn::WHENEVER) {
            // The packets that the pacer holds back may be those that the peer waits for.
            self.tx.ack_deadline = cx.now + self.cold.next_wait;
            return;
        }
        if self.cold.repairing {
            self.repair_failed(cx);
            return;
        }
        self.counters.rare().timeouts += 1;
        self.lose(
            cx,
            LossSignal::Timeout(self.tx.una_psn),
            Congestion::Timeout,
        );
    }

    /// What a NAK asked for was sent and is not acknowledged after some round trips: it got lost
    /// once more, and a second NAK is not allowed (S1). It is sent again; if that brings
    /// nothing either, the ACK timeout decides. No retry is used up: the peer has just spoken.
    #[cold]
    fn repair_failed<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>) {
        self.counters.rare().early_timeouts += 1;
        if let Some(psn) = self.recover(LossSignal::Timeout(self.tx.una_psn)) {
            self.cold.cause = Cause::Timeout;
            self.cc.on_congestion(cx.now, Congestion::SequenceNak);
            self.go_back(psn);
        }
        self.cold.repairing = false;
        self.cold.next_wait = self.wait_after(self.cold.timeouts_in_row);
    }

    /// Where to go back to after a loss, if it was not acted upon yet.
    fn recover(&mut self, signal: LossSignal) -> Option<Psn> {
        let window = self.unlimited_psns();
        let psn = self.cold.recovery.on_loss(signal, window);
        self.tx.burst_shift = self.cold.recovery.burst_shift();
        psn
    }

    /// Moves the send position back to `psn`: from there on everything asks anew.
    pub(super) fn go_back(&mut self, psn: Psn) {
        self.tx.forget_demand();
        self.seek(psn);
    }

    /// Acts on a loss once, or fails the oldest work request when the retries are used up.
    pub(super) fn lose<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        signal: LossSignal,
        congestion: Congestion,
    ) {
        // An RNR wait wins over everything (X8, case 56): it ends in a resend anyway.
        if self.tx.rnr_until != Instant::NEVER {
            return;
        }
        let Some(psn) = self.recover(signal) else {
            return;
        };
        if !self.take_retry(cx.now, signal) {
            self.counters.rare().transport_retries_exceeded += 1;
            self.fail_send(cx, self.sq.head, WcStatus::RetryExcErr);
            return;
        }
        self.counters.rare().retries += 1;
        self.cold.cause = signal.into();
        self.cc.on_congestion(cx.now, congestion);
        self.go_back(psn);
        self.expect_after(signal);
    }

    /// Decides how long to wait for an answer to what is sent again, from the packet on that asks
    /// for it.
    fn expect_after(&mut self, signal: LossSignal) {
        let is_timeout = matches!(signal, LossSignal::Timeout(_));
        let row = if is_timeout {
            self.cold.timeouts_in_row.saturating_add(1)
        } else {
            // The peer has spoken.
            0
        };
        self.cold.timeouts_in_row = row;
        self.cold.next_wait = self.wait_after(row);
        self.cold.repairing = false;
        let outstanding = self.tx.una_psn.distance_to(self.tx.max_psn).unsigned_abs();
        let burst = 1 << self.tx.burst_shift;
        let is_last_often_lost = outstanding == burst && self.cold.recovery.is_end_lost_in_step();
        if !is_timeout || outstanding > burst || is_last_often_lost {
            self.expect_repair();
        }
    }

    /// Waits no longer than a repair takes: after a NAK, and while bursts are so small that the
    /// last packet of one is often the one that is lost, which no NAK tells.
    #[cold]
    pub(super) fn expect_repair(&mut self) {
        if let Some(repair) = self.repair_wait()
            && repair < self.cold.next_wait
        {
            self.cold.next_wait = repair;
            self.cold.repairing = true;
        }
    }

    /// How long the answer to what a NAK asked for takes at most: twice what almost no round trip
    /// exceeds, or before the first is measured a part of the ACK timeout.
    fn repair_wait(&self) -> Option<Duration> {
        let timeout = self.cold.timeout()?.as_nanos();
        let ns = match self.cold.rtt_estimator.longest() {
            Some(longest) => 2 * longest.as_nanos(),
            None => timeout / params::REPAIRS_PER_TIMEOUT,
        };
        Some(Duration::from_nanos(ns).max(params::REPAIR_FLOOR))
    }

    /// How long to wait after `row` timeouts in a row: 2 T after the first, then 4 T, the longest
    /// the specification allows (R12). A peer that is alive but slower than T would otherwise get
    /// more copies to throw away with every timeout, and fall further behind.
    pub(super) fn wait_after(&self, row: u8) -> Duration {
        if self.cold.adaptive().is_some() {
            return self.adaptive_wait();
        }
        let doublings = row.min(params::TIMEOUT_DOUBLINGS);
        self.cold.timeout().map_or(Duration::MAX, |timeout| {
            Duration::from_nanos(timeout.as_nanos() << doublings)
        })
    }
}
