//! Asking for ACKs (R2): which packets ask, and what is done where none would.
//!
//! Whatever is outstanding is acknowledged or timed out at some time. So something outstanding has
//! always asked for an answer, or will: packets that do not ask are followed by one that does. The
//! ACK timer runs from the first packet that asks. `docs/protocol.md` has the table.

use xroce_wire::newtypes::Psn;

use super::requester::{Cause, MUST_WAIT};
use super::{Qp, QpState, QpType, turn};
use crate::params;
use crate::time::Instant;

impl Qp {
    /// AckReq: whenever the requester is about to wait, and every so often in between (R2).
    /// Asking at each message would cost an ACK per message; asking at the last of a burst costs
    /// one per burst.
    #[inline(always)]
    pub(super) fn wants_ack(&self, index: u32, is_last: bool, resend: bool) -> bool {
        let tx = &self.tx;
        let in_flight = tx.una_psn.distance_to(tx.next_psn).unsigned_abs() + 1;
        if tx.since_ack_req + 1 >= params::ACK_REQ_INTERVAL || in_flight >= self.window_psns() {
            return true;
        }
        // The last packet of a small burst, which asks, may be the one that is lost each time.
        if tx.is_burst_limited() || tx.solicit {
            return true;
        }
        if !is_last {
            return false;
        }
        let next = index.wrapping_add(1);
        if resend || next == self.sq.tail || tx.state != QpState::Rts {
            return true;
        }
        let next = self.sq.wqe(next);
        next.traits.intersects(MUST_WAIT)
    }

    /// An answer was asked for up to PSN `last`. The timer runs from the first packet that asks:
    /// silence after packets that do not is no sign of anything.
    #[inline(always)]
    pub(super) fn demand(&mut self, now: Instant, last: Psn) {
        let tx = &mut self.tx;
        tx.solicit = false;
        tx.asked_psn = last;
        if tx.demand_since == Instant::NEVER {
            tx.demand_since = now;
            tx.ack_deadline = now + self.cold.next_wait;
        } else if self.rate().is_limited() {
            // What the peer waits for may have been held back until now. The window bounds this.
            self.tx.ack_deadline = now + self.cold.next_wait;
        }
    }

    /// What is under way has not asked for an ACK, and the packets behind it, which would have, wait
    /// for one. The next one leaves and asks if only the window keeps it; else the last one is sent
    /// again to ask.
    pub(super) fn solicit_ack(&mut self) {
        if self.selective.is_some() {
            self.solicit_sack();
            return;
        }
        let last = self.tx.next_psn.sub(1);
        let in_flight = self.tx.una_psn.distance_to(self.tx.next_psn);
        if in_flight <= 0 || !self.tx.asked_psn.is_before(last) {
            return;
        }
        self.tx.solicit = true;
        if self.may_request(turn::WHENEVER) {
            return;
        }
        self.tx.solicit = false;
        // A READ or atomic is answered anyway, and later PSNs of a READ cannot be asked for alone.
        if self
            .sq
            .find(last)
            .is_some_and(|i| !self.sq.wqe(i).has_response())
        {
            self.cold.cause = Cause::Solicit;
            self.seek(last);
            self.tx.solicit = true;
        }
    }

    /// Sees to it that whatever is outstanding is acknowledged or timed out at some time: if no
    /// answer is awaited and nothing more may leave, as when the window has shrunk to less than
    /// what is in flight, an ACK is asked for. A pacer is no reason: what it holds back will leave.
    #[inline]
    pub(super) fn ensure_answer(&mut self) {
        if self.is_stuck() {
            self.solicit_ack();
        }
    }

    /// Whether something is outstanding, no answer is awaited and nothing more may leave.
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        let tx = &self.tx;
        tx.demand_since == Instant::NEVER && tx.is_outstanding() && self.has_stopped()
    }

    #[inline(never)]
    fn has_stopped(&self) -> bool {
        let tx = &self.tx;
        tx.qp_type == QpType::Rc
            && tx.state.sends()
            && tx.rnr_until == Instant::NEVER
            && !self.may_request(turn::WHENEVER)
    }
}
