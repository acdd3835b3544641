//! Unreliable connection: messages that arrive whole or not at all (UC1 to UC4), and what UC and
//! UD have in common when they send.
//!
//! Nothing is acknowledged, so a request is done when its last packet is written and no PSN is
//! ever outstanding. The receiver keeps one message in progress. Whatever breaks it, a gap or a
//! refusal, ends it without a word: its receive stays posted and is filled anew, and only a First
//! or Only packet, whatever its PSN, begins the next.

use alloc::boxed::Box;

use super::hot::Ongoing;
use super::report::Refusal;
use super::sq::Wqe;
use super::{Cx, Qp, QpState, QpType, Transmit};
use crate::memory::Memory;
use crate::reject::Reject;
use crate::time::Instant;
use crate::wc::{Event, Sink, WcOpcode, WcStatus};
use crate::wr::{PostError, SendOp};
use xroce_wire::packet::Packet;

/// Whether an unreliable QP can do this at all (UC4); a UD QP is told where to, or nothing.
#[inline(always)]
pub(super) fn check_operation(qp_type: QpType, op: &SendOp) -> Result<(), PostError> {
    match (qp_type, op) {
        (QpType::Ud, _) => Err(PostError::NoDestination),
        (_, SendOp::Send | SendOp::SendImm(_) | SendOp::Write { .. } | SendOp::WriteImm { .. }) => {
            Ok(())
        }
        _ => Err(PostError::Operation(qp_type)),
    }
}

impl Qp {
    #[inline(always)]
    pub(super) fn check_operation(&self, op: &SendOp) -> Result<(), PostError> {
        check_operation(self.tx.qp_type, op)
    }

    /// Writes the next packet of a UC or UD QP, if one may leave now.
    // Out of line, so that it costs RC one comparison and no registers.
    #[inline(never)]
    pub(super) fn poll_unreliable<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        if !self.may_request(cx.now) {
            return None;
        }
        let transmit = if self.tx.qp_type == QpType::Ud {
            self.poll_datagram(cx, frame)
        } else {
            let (dst, traffic_class) = (self.cold.av.dst, self.cold.traffic_class);
            self.poll_unacknowledged(cx, frame).map(|len| Transmit {
                len,
                dst,
                traffic_class,
            })
        }?;
        self.counters.tx_packets += 1;
        Some(transmit)
    }

    fn poll_unacknowledged<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let index = self.tx.send_index;
        if index == self.sq.started
            && let Err(status) = self.start(cx, index)
        {
            self.stop_sending(cx, status);
            return None;
        }
        let wqe = *self.sq.wqe(index);
        let (packet, psn) = (self.tx.send_packet, self.tx.next_psn);
        let service = QpType::Uc.service();
        // Nobody answers: AckReq stays clear (case 69).
        match self.write_data(cx, frame, index, &wqe, packet, psn, false, service) {
            Ok(len) => {
                let len = len?;
                self.on_unreliable_sent(cx.sink, cx.now, &wqe, len);
                Some(len)
            }
            Err(_) => {
                self.stop_sending(cx, WcStatus::LocProtErr);
                None
            }
        }
    }

    /// Moves the send position on; a message is done when its last packet is written (UC3).
    pub(super) fn on_unreliable_sent(
        &mut self,
        sink: &mut impl Sink,
        now: Instant,
        wqe: &Wqe,
        len: usize,
    ) {
        let tx = &mut self.tx;
        tx.next_psn = tx.next_psn.add(1);
        // Nothing is outstanding, so neither window nor timer ever holds.
        tx.una_psn = tx.next_psn;
        tx.max_psn = tx.next_psn;
        tx.send_packet += 1;
        let done = tx.send_packet == wqe.psns;
        if done {
            tx.send_index = tx.send_index.wrapping_add(1);
            tx.send_packet = 0;
        }
        self.on_data_sent(now, len);
        if done {
            self.complete_head(sink, WcStatus::Success);
            self.notify_if_drained(sink);
        }
    }

    /// The oldest send fails with `status` and those behind it are flushed; receiving goes on
    /// (Q1). SQE is left by a modify to RTS.
    #[cold]
    pub(super) fn stop_sending<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        status: WcStatus,
    ) {
        let wr_id = self.sq.wqe(self.sq.head).wr_id;
        let request = Some(self.sq.wqe(self.sq.head).request());
        let report = self.failure_report(cx.now, status, Some(wr_id), request, None);
        self.cold.failure = Some(Box::new(report));
        self.counters.rare().send_errors += 1;
        self.complete_head(cx.sink, status);
        self.tx.state = QpState::Sqe;
        self.flush_sends(cx.sink);
    }

    /// A packet for a UC QP, from its peer.
    // Out of line and by value, so that the receive path of RC stays small enough to be inlined
    // and keeps its packet in registers.
    #[inline(never)]
    pub(super) fn handle_unacknowledged<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: Packet<'_>,
    ) {
        let pkt = &pkt;
        if self.tx.qp_type != QpType::Uc {
            // A datagram without its network header: the driver has another entry for it.
            self.counters.rare().invalid_requests += 1;
            return;
        }
        let (info, psn) = (pkt.info(), pkt.psn());
        let in_order = psn == self.rx.expected_psn;
        self.rx.expected_psn = psn.add(1);
        if info.starts() || !in_order {
            // Also where the sender gave its message up and began another.
            self.rx.ongoing = Ongoing::Nothing;
        }
        if !in_order {
            self.counters.rare().out_of_sequence += 1;
        }
        if self.check_sequence(info, info.operation).is_err() {
            // The rest of a message whose beginning is missing, or of another one.
            self.rx.ongoing = Ongoing::Nothing;
            self.counters.rare().out_of_sequence += u64::from(in_order);
            return;
        }
        if self.tx.state == QpState::Rtr && !self.cold.comm_est {
            self.cold.comm_est = true;
            cx.sink.event(self.cold.qpn, Event::CommEst);
        }
        match self.accept_unacknowledged(cx, pkt) {
            Ok(()) => return,
            Err(Reject::Rnr(_)) => self.counters.rare().no_receive += 1,
            Err(Reject::Fatal(_, WcStatus::LocProtErr)) => {
                self.fail_receive(cx, WcStatus::LocProtErr);
            }
            Err(_) => self.counters.rare().invalid_requests += 1,
        }
        self.rx.ongoing = Ongoing::Nothing;
    }

    /// The checks of RC in their order, without an answer to any (UC2).
    fn accept_unacknowledged<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
    ) -> Result<(), Reject> {
        let info = pkt.info();
        let operation = info.operation;
        self.check_permitted(operation)?;
        self.check_resources(cx, info, operation)?;
        self.check_length(pkt, operation)?;
        let named = match pkt.reth() {
            Some(reth) => Some((reth, self.check_key(cx, operation, &reth)?)),
            None => None,
        };
        self.execute(cx, named, pkt, operation)
    }

    /// The own receive buffer cannot be written: its work request fails and the QP goes to ERR.
    #[cold]
    pub(super) fn fail_receive<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        status: WcStatus,
    ) {
        let claimed = self.rq.pop();
        let wr_id = claimed.map(|wqe| wqe.wr_id);
        let own = Some(Refusal::OwnBuffer);
        let report = self.failure_report(cx.now, status, wr_id, None, own);
        self.cold.failure = Some(Box::new(report));
        if let Some(wqe) = claimed {
            self.counters.rare().recv_errors += 1;
            let wc = self.completion(wqe.wr_id, status, WcOpcode::Recv);
            cx.sink.complete(self.cold.init.recv_cq, wc);
        }
        self.enter_error(cx.sink);
    }
}
