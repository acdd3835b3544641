//! Whose turn it is: requests and responses share a queue pair's way out, and its deadlines are one.

use super::hot::Debt;
use super::{Cx, Qp, QpType, Transmit};
use crate::cc::{CongestionControl, CongestionController, Rate};
use crate::memory::Memory;
use crate::time::Instant;
use crate::wc::Sink;

/// Later than every appointment of a pacer: what may be sent then may be sent but for the pacer.
pub(super) const WHENEVER: Instant = Instant::from_nanos(u64::MAX - 1);

impl Qp {
    /// Writes the next packet into `frame`, if one may leave now.
    pub fn poll_transmit<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        if self.cnp_owed {
            return self.write_cnp(frame);
        }
        if self.tx.qp_type != QpType::Rc {
            return self.poll_unreliable(cx, frame);
        }
        let response_first = if self.replay.is_pending() {
            // A long READ answered must not starve own requests, nor the reverse.
            !self.responded_last
        } else {
            match self.rx.debt {
                Debt::Nothing => false,
                // One request may go ahead of an ACK: in a conversation it is the answer to what
                // the ACK is for, and the peer waits for the answer.
                Debt::Ack(_) => self.ack_passed,
                _ => true,
            }
        };
        let len = if response_first {
            match self.respond(cx, frame) {
                Some(len) => Some(len),
                None => self.request(cx, frame),
            }
        } else {
            match self.request(cx, frame) {
                Some(len) => Some(len),
                None => self.respond(cx, frame),
            }
        }?;
        self.counters.tx_packets += 1;
        Some(Transmit {
            len,
            dst: self.cold.av.dst,
            traffic_class: self.cold.traffic_class,
        })
    }

    #[inline]
    pub(super) fn respond<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<usize> {
        if !self.may_respond(cx.now) {
            return None;
        }
        let len = self.poll_response(cx, frame)?;
        self.responded_last = true;
        self.ack_passed = false;
        Some(len)
    }

    #[inline]
    pub(super) fn request<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let len = self.poll_request(cx, frame)?;
        self.responded_last = false;
        self.ack_passed = matches!(self.rx.debt, Debt::Ack(_));
        Some(len)
    }

    /// Whether [`Qp::poll_transmit`] could give a packet at `now`.
    #[must_use]
    pub fn wants_to_send(&self, now: Instant) -> bool {
        self.cnp_owed || self.may_respond(now) || self.may_request(now)
    }

    /// When [`Qp::handle_timeout`] has to be called, or sending becomes possible again.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let mut at = self.tx.ack_deadline.min(self.tx.rnr_until);
        if self.is_paced() {
            at = at.min(self.pacer.next());
        }
        if self.is_stuck() {
            // At once: congestion control may have taken the last packet for a reason to let no
            // other leave.
            at = Instant::default();
        }
        at.min(self.cc.next_timer()).deadline()
    }

    /// Acts on every deadline that has passed.
    pub fn handle_timeout<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>) {
        if self.cc.next_timer() <= cx.now {
            self.cc.on_timer(cx.now);
            self.allowance_changed();
        }
        if self.tx.rnr_until <= cx.now {
            self.tx.rnr_until = Instant::NEVER;
            self.end_selective_wait(cx.now);
        }
        if self.tx.ack_deadline <= cx.now {
            self.ack_timeout(cx);
        }
        self.ensure_answer();
    }

    /// Rate or window may be others now: what they were keeps nothing waiting.
    pub(super) fn allowance_changed(&mut self) {
        self.pacer.raise(self.rate());
        self.ensure_answer();
    }

    /// Whether only the pacer holds the next packet back.
    pub(super) fn is_paced(&self) -> bool {
        self.rate().is_limited() && (self.replay.is_pending() || self.may_request(WHENEVER))
    }

    /// Rate at which data may leave now. However low congestion control would have it, a packet
    /// leaves every quarter of the ACK timeout: one that is slower looks dead to the peer, which
    /// gives up on READs whose responses it waits for. What the user has set is kept.
    #[inline(always)]
    pub(super) fn rate(&self) -> Rate {
        let rate = match &self.cc {
            CongestionControl::Fixed(cc) => cc.rate(),
            governed => governed.rate().max(self.cold.least_rate),
        };
        rate.min(self.rate_limit)
    }

    /// Whether the pacer lets data pass at `now`.
    #[inline(always)]
    pub(super) fn may_pass(&self, now: Instant) -> bool {
        !self.rate().is_limited() || self.pacer.next() <= now
    }

    /// Whether a response may leave at `now`. READ responses are data, and paced; an ACK or NAK
    /// must not pass those that come before it.
    #[inline]
    pub(super) fn may_respond(&self, now: Instant) -> bool {
        if self.replay.is_pending() {
            return self.may_pass(now);
        }
        self.rx.debt != Debt::Nothing
    }
}
