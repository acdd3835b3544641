//! The end of a queue pair: everything posted completes as flushed (C4), and a report says why.

use super::{Qp, QpState};
use crate::time::Instant;
use crate::wc::{Event, Sink, WcOpcode, WcStatus};

impl Qp {
    /// To ERR for a reason of this side. What was executed is still acknowledged: the completions
    /// of this side say so, and the peer's should.
    pub(super) fn enter_error(&mut self, sink: &mut impl Sink) {
        self.end_reads();
        self.flush(sink);
    }

    /// To ERR with everything posted flushed. The debts of the responder stay: the peer has to
    /// hear of its error once.
    pub(super) fn flush(&mut self, sink: &mut impl Sink) {
        self.tx.state = QpState::Err;
        self.tx.ack_deadline = Instant::NEVER;
        self.tx.rnr_until = Instant::NEVER;
        if let Some(selective) = &mut self.selective {
            selective.clear();
        }
        self.flush_sends(sink);
        self.flush_recvs(sink);
        self.report_last_wqe(sink);
    }

    pub(super) fn flush_sends(&mut self, sink: &mut impl Sink) {
        while !self.sq.is_empty() {
            let wqe = *self.sq.wqe(self.sq.head);
            self.sq.head = self.sq.head.wrapping_add(1);
            self.counters.rare().sends_flushed += 1;
            let wc = self.completion(wqe.wr_id, WcStatus::WrFlushErr, wqe.wc_opcode);
            sink.complete(self.cold.init.send_cq, wc);
        }
        self.sq.started = self.sq.head;
        self.tx.send_index = self.sq.head;
        self.tx.send_packet = 0;
        self.tx.reads = 0;
        self.tx.una_psn = self.tx.max_psn;
    }

    pub(super) fn flush_recvs(&mut self, sink: &mut impl Sink) {
        while let Some(wqe) = self.rq.pop() {
            self.counters.rare().recvs_flushed += 1;
            let wc = self.completion(wqe.wr_id, WcStatus::WrFlushErr, WcOpcode::Recv);
            sink.complete(self.cold.init.recv_cq, wc);
        }
    }

    /// Tells that SQD has drained, if that was asked for and is so.
    pub(super) fn notify_if_drained(&mut self, sink: &mut impl Sink) {
        if self.tx.state == QpState::Sqd
            && self.cold.notify_drained
            && self.sq.head == self.sq.started
        {
            self.cold.notify_drained = false;
            sink.event(self.cold.qpn, Event::SqDrained);
        }
    }
}
