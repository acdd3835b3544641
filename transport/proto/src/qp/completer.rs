//! Completer: responses to completions (R6 to R14).
//!
//! One cursor, the oldest unacknowledged PSN, moves over the WQEs in order: a READ or atomic moves
//! it only by its own responses, everything else by any response at or beyond it.

use xroce_wire::aeth::Aeth;
use xroce_wire::newtypes::{Psn, Qpn};
use xroce_wire::opcode::{OpcodeInfo, Operation};
use xroce_wire::packet::Packet;
use xroce_wire::syndrome::{NakCode, RnrTimer, Syndrome};

use super::report::LastSeen;
use super::requester::Cause;
use super::{Cx, Qp, sge};
use crate::cc::{AckSample, Congestion, CongestionController};
use crate::memory::Memory;
use crate::params;
use crate::recovery::LossSignal;
use crate::rtt::Timed;
use crate::time::{Duration, Instant};
use crate::wc::{Completion, Sink, WcFlags, WcOpcode, WcStatus};
use crate::wr::SendFlags;

impl Qp {
    #[inline]
    pub(super) fn handle_response<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
    ) {
        if self.selective.is_some() {
            self.selective_response(cx, pkt);
            return;
        }
        let psn = pkt.psn();
        let outstanding = self.tx.una_psn.distance_to(self.tx.max_psn).unsigned_abs();
        if !psn.is_within(self.tx.una_psn, outstanding) {
            // Never sent, or acknowledged before: no progress, no timer, no completion (R9).
            self.counters.rare().ghost_responses += 1;
            return;
        }
        let aeth = pkt.aeth();
        self.cold.last_seen = LastSeen {
            at: Some(cx.now),
            psn,
            syndrome: aeth.map(|a| a.syndrome),
        };
        match pkt.info().operation {
            Operation::Acknowledge => {
                if let Some(aeth) = aeth {
                    self.handle_aeth(cx, psn, &aeth);
                }
            }
            Operation::ReadResponse => self.handle_read_response(cx, pkt),
            Operation::AtomicAcknowledge => self.handle_atomic_ack(cx, pkt),
            _ => self.bad_response(cx),
        }
    }

    #[inline]
    fn handle_aeth<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>, psn: Psn, aeth: &Aeth) {
        if let Syndrome::Ack { .. } = aeth.syndrome {
            self.acknowledge_before(cx, psn.add(1));
            return;
        }
        // Any NAK acknowledges all before it (R7).
        if !self.acknowledge_before(cx, psn) {
            return;
        }
        match aeth.syndrome {
            Syndrome::Nak(NakCode::PsnSequence) => {
                self.counters.rare().seq_naks_in += 1;
                self.lose(cx, LossSignal::SequenceNak(psn), Congestion::SequenceNak);
            }
            Syndrome::RnrNak { timer } => self.handle_rnr_nak(cx, psn, timer),
            Syndrome::Nak(code) => {
                let status = self.fatal_nak(code);
                self.fail_send(cx, self.sq.head, status);
            }
            Syndrome::Ack { .. } | Syndrome::Reserved(_) => self.bad_response(cx),
        }
    }

    #[cold]
    pub(super) fn fatal_nak(&mut self, code: NakCode) -> WcStatus {
        let counters = self.counters.rare();
        let status = match code {
            NakCode::InvalidRequest => {
                counters.invalid_request_naks_in += 1;
                WcStatus::RemInvReqErr
            }
            NakCode::RemoteAccess => {
                counters.access_naks_in += 1;
                WcStatus::RemAccessErr
            }
            NakCode::RemoteOperational => {
                counters.operational_naks_in += 1;
                WcStatus::RemOpErr
            }
            // No answer to a reliable connection.
            NakCode::PsnSequence | NakCode::InvalidRdRequest => return WcStatus::BadRespErr,
        };
        counters.fatal_naks_in += 1;
        status
    }

    /// Takes one of the RNR retries and begins the wait the peer asked for; `false` if none was left
    /// and the oldest request has failed.
    pub(super) fn wait_for_receiver<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        timer: RnrTimer,
    ) -> bool {
        if self.cold.rnr_retry != params::RNR_RETRY_INFINITE {
            if self.tx.rnr_retries_left == 0 {
                self.counters.rare().rnr_retries_exceeded += 1;
                self.fail_send(cx, self.sq.head, WcStatus::RnrRetryExcErr);
                return false;
            }
            self.tx.rnr_retries_left -= 1;
        }
        self.tx.rnr_until = cx.now + Duration::from_nanos(timer.nanos());
        self.tx.ack_deadline = Instant::NEVER;
        self.tx.demand_since = Instant::NEVER;
        true
    }

    fn handle_rnr_nak<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        psn: Psn,
        timer: RnrTimer,
    ) {
        self.counters.rare().rnr_naks_in += 1;
        if self.tx.rnr_until != Instant::NEVER {
            return;
        }
        if !self.wait_for_receiver(cx, timer) {
            return;
        }
        // The peer is alive: neither its wait nor answers lost before count against retry_cnt
        // (R13).
        self.tx.retries_left = self.cold.retry_cnt;
        self.cold.recovery.on_arrival();
        self.end_of_silence();
        self.cold.cause = Cause::Rnr;
        self.go_back(psn);
    }

    /// The peer has been heard of: the waits that got longer and longer are over.
    #[inline]
    fn end_of_silence(&mut self) {
        let cold = &mut *self.cold;
        cold.timeouts_in_row = 0;
        cold.repairing = false;
        cold.next_wait = cold.ack_wait;
        if self.tx.is_burst_limited() {
            self.expect_repair();
        }
    }

    /// Acknowledges every PSN before `end`. `false` if the response of a READ or atomic is missing
    /// on the way: then that loss has been acted upon (R8) and the caller has nothing more to do.
    #[inline(always)]
    pub(super) fn acknowledge_before<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        end: Psn,
    ) -> bool {
        let start = self.tx.una_psn;
        let mut missing = false;
        while self.tx.una_psn.is_before(end) && self.sq.head != self.sq.started {
            let wqe = self.sq.wqe(self.sq.head);
            if wqe.has_response() {
                missing = true;
                break;
            }
            let next = wqe.first_psn.add(wqe.psns);
            if end.is_before(next) {
                self.tx.una_psn = end;
                break;
            }
            self.tx.una_psn = next;
            self.complete_head(cx.sink, WcStatus::Success);
        }
        let acked = start.distance_to(self.tx.una_psn).unsigned_abs();
        if acked != 0 {
            self.on_progress(cx, acked);
        }
        if missing {
            self.counters.rare().implied_naks += 1;
            self.lose(
                cx,
                LossSignal::ImpliedNak(self.tx.una_psn),
                Congestion::SequenceNak,
            );
        }
        // What was acknowledged may have been all that a request which cannot be sent waited for.
        !missing && self.tx.state.sends()
    }

    /// The oldest unacknowledged PSN moved by `acked_packets`.
    #[inline]
    pub(super) fn on_progress<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        acked_packets: u32,
    ) {
        let timed = self.timed.sent != Instant::NEVER && self.timed.psn.is_before(self.tx.una_psn);
        let rtt = timed.then(|| self.note_rtt(cx.now));
        self.tx.retries_left = self.cold.retry_cnt;
        self.tx.rnr_retries_left = self.cold.rnr_retry;
        let window = self.unlimited_psns();
        self.cold.recovery.on_progress(self.tx.una_psn, window);
        self.tx.burst_shift = self.cold.recovery.burst_shift();
        self.end_of_silence();
        if self.tx.is_demanding() && self.tx.rnr_until == Instant::NEVER {
            self.tx.demand_since = cx.now;
            self.tx.ack_deadline = cx.now + self.cold.next_wait;
        } else {
            self.tx.demand_since = Instant::NEVER;
            self.tx.ack_deadline = Instant::NEVER;
        }
        if self.tx.next_psn.is_before(self.tx.una_psn) {
            // What was about to be sent again has arrived after all.
            self.seek(self.tx.una_psn);
            if self.tx.is_outstanding() {
                self.cold.recovery.on_late_arrival(self.tx.una_psn);
            }
        }
        self.cc.on_ack(&AckSample {
            now: cx.now,
            acked_packets,
            rtt,
            ecn_marked: false,
        });
        if self.sq.head == self.sq.started {
            self.on_all_started_done(cx);
        }
        self.ensure_answer();
    }

    #[inline(never)]
    fn note_rtt(&mut self, now: Instant) -> Duration {
        let timed = core::mem::replace(&mut self.timed, Timed::NONE);
        let rtt = now.since(timed.sent);
        self.cold.rtt.get_or_insert_default().record(rtt);
        self.cold.rtt_estimator.sample(rtt);
        self.adapt_wait();
        self.cold.largest_acked = self.cold.largest_acked.max(timed.payload);
        rtt
    }

    pub(super) fn on_all_started_done<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>) {
        if self.tx.poisoned {
            self.fail_send(cx, self.sq.head, self.cold.poison_status);
        } else {
            self.notify_if_drained(cx.sink);
        }
    }

    fn handle_read_response<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
    ) {
        let psn = pkt.psn();
        // A response acknowledges everything before it, and proves a loss if a READ is among it.
        if !self.acknowledge_before(cx, psn_of_read(self, psn)) {
            return;
        }
        if self.sq.head == self.sq.started {
            return;
        }
        let index = self.sq.head;
        let wqe = *self.sq.wqe(index);
        if !wqe.is_read() {
            self.handle_bare_response(cx, pkt);
            return;
        }
        if self.tx.una_psn != psn {
            self.counters.rare().implied_naks += 1;
            self.lose(
                cx,
                LossSignal::ImpliedNak(self.tx.una_psn),
                Congestion::SequenceNak,
            );
            return;
        }
        let packet = wqe.first_psn.distance_to(psn).unsigned_abs();
        let offset = packet << self.tx.mtu.shift();
        let is_last = packet + 1 == wqe.psns;
        let expected_len = ((wqe.len - offset) as usize).min(self.tx.mtu.bytes());
        let info = pkt.info();
        // First and Only answer a request's own start; a late packet of an earlier answer may
        // stand at that place as Middle or Last, but never at the start of the READ (R10).
        let starts_ok = if info.starts() {
            packet == 0 || psn == self.tx.read_start_psn
        } else {
            packet != 0
        };
        let aeth_ok = pkt
            .aeth()
            .is_none_or(|a| matches!(a.syndrome, Syndrome::Ack { .. }));
        let shape_ok = starts_ok && info.ends() == is_last
            || self.may_be_of_a_part(psn, wqe.first_psn, info, is_last);
        if !shape_ok || pkt.payload().len() != expected_len || !aeth_ok {
            self.bad_response(cx);
            return;
        }
        let pd = self.cold.init.pd;
        if sge::scatter(cx, pd, self.sq.sges(index), offset.into(), pkt.payload()).is_err() {
            self.fail_send(cx, index, WcStatus::LocProtErr);
            return;
        }
        self.tx.una_psn = psn.add(1);
        if is_last {
            self.complete_head(cx.sink, WcStatus::Success);
        }
        self.on_progress(cx, 1);
    }

    /// Whether a response stands where it can because the READ was asked for again in parts: the
    /// first and the last of any part, which may be late.
    #[cold]
    fn may_be_of_a_part(&self, psn: Psn, first: Psn, info: &OpcodeInfo, is_last: bool) -> bool {
        let in_parts = self.cold.recovery.is_in_parts(psn);
        in_parts && (info.starts() || psn != first) && (info.ends() || !is_last)
    }

    /// Retires the oldest WQE; errors are reported even if unsignaled (C2).
    #[inline(always)]
    pub(super) fn complete_head(&mut self, sink: &mut impl Sink, status: WcStatus) {
        let wqe = self.sq.wqe(self.sq.head);
        let (wr_id, len, opcode) = (wqe.wr_id, wqe.len, wqe.wc_opcode);
        let signaled = wqe.flags.contains(SendFlags::SIGNALED);
        let answered = wqe.has_response();
        self.sq.head = self.sq.head.wrapping_add(1);
        if answered {
            self.tx.reads = self.tx.reads.saturating_sub(1);
        }
        let success = status == WcStatus::Success;
        self.counters.sends_completed += u64::from(success);
        if !success || signaled {
            let mut wc = self.completion(wr_id, status, opcode);
            wc.byte_len = len;
            sink.complete(self.cold.init.send_cq, wc);
        }
    }

    /// A completion of this queue pair, with nothing in its optional fields.
    #[inline]
    pub(super) fn completion(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Completion {
        Completion {
            wr_id,
            status,
            opcode,
            flags: WcFlags::empty(),
            byte_len: 0,
            qpn: self.cold.qpn,
            imm: [0; 4],
            src_qp: Qpn::new(0),
        }
    }

    pub(super) fn bad_response<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>) {
        self.fail_send(cx, self.sq.head, WcStatus::BadRespErr);
    }
}

/// Up to where a READ response at `psn` acknowledges other requests: to the start of the READ it
/// belongs to.
fn psn_of_read(qp: &Qp, psn: Psn) -> Psn {
    match qp.sq.find(psn) {
        Some(index) if qp.sq.wqe(index).is_read() => {
            let first = qp.sq.wqe(index).first_psn;
            if first.is_before(qp.tx.una_psn) {
                qp.tx.una_psn
            } else {
                first
            }
        }
        _ => psn,
    }
}
