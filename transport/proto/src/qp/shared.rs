//! Receives from a shared receive queue (K7, C4, C5).

use super::{Qp, QpState};
use crate::wc::{Event, Sink};

impl Qp {
    /// Whether a receive is at hand for a request that needs one. A QP with an SRQ takes it now:
    /// from then on it is this QP's, and completes or is flushed with it.
    #[inline(always)]
    pub(super) fn has_receive(&mut self, sink: &mut impl Sink) -> bool {
        !self.rq.is_empty() || self.take_shared(sink)
    }

    #[inline]
    fn take_shared(&mut self, sink: &mut impl Sink) -> bool {
        match self.cold.init.srq {
            Some(srq) => sink.take_shared(srq, &mut self.rq),
            None => false,
        }
    }

    /// In ERR, after the receive this QP had taken is flushed: it will take no other (C5).
    pub(super) fn report_last_wqe(&self, sink: &mut impl Sink) {
        if self.cold.init.srq.is_some() && self.tx.state == QpState::Err {
            sink.event(self.cold.qpn, Event::QpLastWqeReached);
        }
    }
}
