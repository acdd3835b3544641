//! Receives from a shared receive queue (K7, C4, C5).

use xroce_wire::opcode::{OpcodeInfo, Operation};
use xroce_wire::packet::Packet;

use super::{Qp, QpState};
use crate::wc::{Event, Sink, Srq};

/// Whether a request takes a receive: the first packet of a SEND, and the one with the immediate
/// data of a WRITE.
#[inline(always)]
pub(super) fn takes_receive(operation: Operation, info: &OpcodeInfo) -> bool {
    match operation {
        Operation::Send => info.starts(),
        Operation::Write => info.has_imm(),
        _ => false,
    }
}

impl Qp {
    /// Whether a receive is at hand for a request that needs one. A QP with an SRQ takes it now:
    /// from then on it is this QP's, and completes or is flushed with it.
    #[inline(always)]
    pub(super) fn has_receive(&mut self, sink: &mut impl Sink) -> bool {
        !self.rq.is_empty() || self.take_shared(sink)
    }

    /// Whether a packet that takes a receive, if it is accepted, would find none of this queue
    /// pair's own. There may be one in its shared receive queue.
    #[must_use]
    #[inline]
    pub fn lacks_receive(&self, pkt: &Packet<'_>) -> bool {
        self.rq.is_empty() && takes_receive(pkt.info().operation, pkt.info())
    }

    /// Where it takes its receives from instead of a queue of its own.
    #[must_use]
    pub fn srq(&self) -> Option<Srq> {
        self.cold.init.srq
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
