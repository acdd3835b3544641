//! Requester: work requests to packets (R1 to R4, R12 to R15).
//!
//! The send position is a WQE and a packet of it; going back is arithmetic on PSNs, so nothing is
//! kept per packet.

use alloc::boxed::Box;

use xroce_wire::newtypes::Psn;
use xroce_wire::opcode::{Opcode, Operation, Position, Service};
use xroce_wire::reth::Reth;
use xroce_wire::template::Emit;

use super::sq::{Traits, Wqe};
use super::{Cx, Qp, QpState, sge};
use crate::cc::CongestionController;
use crate::memory::{Access, KeyError, Memory};
use crate::params;
use crate::recovery::LossSignal;
use crate::rtt::Timed;
use crate::time::Instant;
use crate::wc::{Sink, WcStatus};

/// What may have to wait for those before it.
pub(super) const MUST_WAIT: Traits = Traits::LOCAL.union(Traits::ANSWERED).union(Traits::FENCE);

/// Why packets are sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    Timeout,
    SequenceNak,
    ImpliedNak,
    Rnr,
    /// Only to ask for an ACK.
    Solicit,
}

impl From<LossSignal> for Cause {
    fn from(signal: LossSignal) -> Self {
        match signal {
            LossSignal::Timeout(_) => Self::Timeout,
            LossSignal::SequenceNak(_) => Self::SequenceNak,
            LossSignal::ImpliedNak(_) => Self::ImpliedNak,
        }
    }
}

impl Qp {
    /// Whether a request packet may leave at `now`; the WQE itself is looked at last.
    #[inline]
    pub(super) fn may_request(&self, now: Instant) -> bool {
        if self.selective.is_some() {
            return self.selective_may_request(now);
        }
        let tx = &self.tx;
        if tx.send_index == self.sq.tail || tx.rnr_until != Instant::NEVER {
            return false;
        }
        let in_flight = tx.una_psn.distance_to(tx.next_psn).unsigned_abs();
        if !tx.state.sends() || (in_flight >= self.window_psns() && !tx.solicit) {
            return false;
        }
        if !self.may_pass(now) {
            return false;
        }
        if tx.send_index == self.sq.started {
            return self.may_start(in_flight);
        }
        !tx.is_burst_limited() || self.may_go_on(in_flight)
    }

    /// Whether a WQE that has begun may go on while bursts are small. Of a READ that is asked for in
    /// parts one is under way at a time: rdma_rxe drops whatever begins before the latest part.
    #[cold]
    fn may_go_on(&self, in_flight: u32) -> bool {
        let is_read = self.sq.wqe(self.tx.send_index).is_read();
        !is_read || self.tx.send_packet == 0 || in_flight == 0
    }

    /// How many responses of a READ to ask for, from `packet` on: all that are still to come, or a
    /// part while losses come in step. A READ as long as the period would lose the same response
    /// every time.
    #[inline]
    fn read_psns(&self, wqe: &Wqe, packet: u32, resend: bool) -> u32 {
        let rest = wqe.psns - packet;
        if !resend || !self.tx.is_burst_limited() {
            return rest;
        }
        // Only of a READ that the peer is known to have: to one that has not had it the part would
        // be a READ of its own.
        let has_it = packet != 0 || self.cold.recovery.has_answer_beyond(wqe.first_psn);
        if has_it {
            rest.min(self.part_psns())
        } else {
            rest
        }
    }

    /// Up to one burst, and more than half of it. Nothing tells soon that the last response of a
    /// part got lost. So parts differ, as a hash of the PSN says: were they alike, it could be the
    /// last one every time.
    fn part_psns(&self) -> u32 {
        let burst = self.window_psns();
        let shorter = (burst / 2).max(1);
        let hash = self.tx.next_psn.value().wrapping_mul(0x9e37_79b9) >> 16;
        burst - hash % shorter
    }

    /// Packets that may be in flight now: the window of congestion control, or less while losses
    /// come in step with what is sent.
    #[inline(always)]
    pub(super) fn window_psns(&self) -> u32 {
        self.cc.window_psns().min(1 << self.tx.burst_shift)
    }

    /// PSNs that would be in flight without a limit to bursts: a window of them. A long READ has more.
    #[inline(always)]
    pub(super) fn unlimited_psns(&self) -> u32 {
        let outstanding = self.tx.una_psn.distance_to(self.tx.max_psn).unsigned_abs();
        self.cc.window_psns().max(outstanding)
    }

    /// Whether the next unstarted WQE may begin (R3, R4, SQD).
    #[inline(always)]
    pub(super) fn may_start(&self, in_flight: u32) -> bool {
        let tx = &self.tx;
        if tx.state != QpState::Rts || tx.poisoned {
            return false;
        }
        let wqe = self.sq.wqe(tx.send_index);
        if !wqe.traits.intersects(MUST_WAIT) {
            return true;
        }
        if wqe.traits.contains(Traits::FENCE) && tx.reads != 0 {
            return false;
        }
        if wqe.is_local() {
            return self.sq.head == tx.send_index;
        }
        !wqe.has_response()
            || (tx.reads < tx.max_reads.max(1)
                && in_flight + wqe.psns_at(tx.mtu) <= params::OUTSTANDING_PSNS_MAX)
    }

    /// Writes the next request packet, if one may leave now.
    pub(super) fn poll_request<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<usize> {
        if self.selective.is_some() {
            return self.selective_poll(cx, frame);
        }
        if !self.may_request(cx.now) {
            return None;
        }
        let index = self.tx.send_index;
        let wqe = self.sq.wqe(index);
        if wqe.traits.intersects(Traits::LOCAL.union(Traits::ANSWERED)) {
            return self.poll_rare_request(cx, frame);
        }
        let fresh = index == self.sq.started;
        if fresh && let Err(status) = self.start(cx, index) {
            return self.poison(cx, frame, status);
        }
        let wqe = *self.sq.wqe(index);
        let packet = self.tx.send_packet;
        let psn = self.tx.next_psn;
        let resend = psn.is_before(self.tx.max_psn);
        let ack_req = self.wants_ack(index, packet + 1 == wqe.psns, resend);
        match self.write_data(cx, frame, index, &wqe, packet, psn, ack_req, Service::Rc) {
            Ok(len) => {
                self.on_request_sent(cx.now, packet + 1 == wqe.psns, 1, len?, ack_req);
                self.note_sent(cx.now, &wqe, packet, psn, resend, ack_req);
                len
            }
            Err(_) => self.request_failed(cx, frame, index),
        }
    }

    /// Work requests without packets, and those that a response of their own answers.
    #[inline(never)]
    fn poll_rare_request<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<usize> {
        if self.sq.wqe(self.tx.send_index).is_local() {
            if !self.execute_local(cx) {
                return None;
            }
            return self.poll_request(cx, frame);
        }
        let index = self.tx.send_index;
        let fresh = index == self.sq.started;
        if fresh && let Err(status) = self.start_answered(cx, index) {
            return self.poison(cx, frame, status);
        }
        let wqe = *self.sq.wqe(index);
        let packet = self.tx.send_packet;
        let psn = self.tx.next_psn;
        let resend = psn.is_before(self.tx.max_psn);
        let psns = if wqe.is_read() {
            self.read_psns(&wqe, packet, resend)
        } else {
            1
        };
        let is_last = packet + psns == wqe.psns;
        let sent = if wqe.is_read() {
            self.write_read_part(frame, &wqe, packet, psns)
        } else if wqe.is_atomic() || wqe.operation == Operation::Flush {
            self.write_bare_request(frame, index, psn)
        } else {
            self.write_data(cx, frame, index, &wqe, packet, psn, true, Service::Rc)
        };
        match sent {
            Ok(len) => {
                if wqe.is_read() && packet != 0 {
                    self.tx.read_start_psn = psn;
                }
                if !is_last {
                    self.cold.recovery.on_parts(wqe.first_psn.add(wqe.psns));
                }
                self.on_request_sent(cx.now, is_last, psns, len?, true);
                self.note_sent(cx.now, &wqe, packet, psn, resend, true);
                len
            }
            Err(_) => self.request_failed(cx, frame, index),
        }
    }

    /// Its memory does not allow it: it fails when those before it are done (K5), as if it had not
    /// begun. If some of it has left, that is of no interest any more.
    ///
    /// If the packet was only to ask for an ACK once more, the ACK may come by itself: the timer
    /// runs as if it had been asked for.
    #[cold]
    pub(super) fn request_failed<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
        index: u32,
    ) -> Option<usize> {
        let is_last = self.tx.poisoned || self.tx.next_psn.add(1) == self.tx.max_psn;
        let is_again = self.tx.next_psn.is_before(self.tx.max_psn);
        if self.tx.solicit && is_again && is_last && self.cold.timeout().is_some() {
            let last = self.tx.next_psn;
            self.demand(cx.now, last);
            self.seek(last.add(1));
            return None;
        }
        self.sq.started = index;
        self.tx.send_index = index;
        self.tx.send_packet = 0;
        let first_psn = self.sq.wqe(index).first_psn;
        if self.selective.is_none() {
            // Whatever comes back for later PSNs acknowledges what is before this request.
            self.tx.next_psn = first_psn;
        }
        self.poison(cx, frame, WcStatus::LocProtErr)
    }

    /// Counts and times a packet that has just left.
    #[inline(always)]
    fn note_sent(
        &mut self,
        now: Instant,
        wqe: &Wqe,
        packet: u32,
        psn: Psn,
        resend: bool,
        ack_req: bool,
    ) {
        if resend {
            self.count_resend();
        } else if ack_req && self.timed.sent == Instant::NEVER {
            self.time_packet(now, wqe, packet, psn);
        }
    }

    /// Gives a WQE that only an ACK acknowledges its PSNs, after checking what can be checked
    /// before its first packet.
    #[inline(always)]
    pub(super) fn start<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        index: u32,
    ) -> Result<(), WcStatus> {
        let psns = self.tx.mtu.packets(self.sq.wqe(index).len);
        // The only packet of a message is checked when it is gathered.
        if psns > 1 {
            sge::check(cx, self.cold.init.pd, self.sq.sges(index), Access::empty())
                .map_err(|_| WcStatus::LocProtErr)?;
        }
        self.give_psns(index, psns);
        Ok(())
    }

    /// [`Qp::start`] of one with a response of its own.
    pub(super) fn start_answered<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        index: u32,
    ) -> Result<(), WcStatus> {
        if self.tx.max_reads == 0 {
            return Err(WcStatus::LocQpOpErr);
        }
        let wqe = self.sq.wqe(index);
        let need = if wqe.is_read() || wqe.is_atomic() {
            Access::LOCAL_WRITE
        } else {
            Access::empty()
        };
        sge::check(cx, self.cold.init.pd, self.sq.sges(index), need)
            .map_err(|_| WcStatus::LocProtErr)?;
        self.give_psns(index, wqe.psns_at(self.tx.mtu));
        self.tx.reads += 1;
        Ok(())
    }

    #[inline(always)]
    pub(super) fn give_psns(&mut self, index: u32, psns: u32) {
        let first_psn = self.tx.next_psn;
        let wqe = self.sq.wqe_mut(index);
        wqe.first_psn = first_psn;
        wqe.psns = psns;
        self.sq.started = index.wrapping_add(1);
    }

    /// Asks for `psns` responses of a READ from `packet` on: after a loss not for all (R8).
    pub(super) fn write_read_part(
        &mut self,
        frame: &mut [u8],
        wqe: &Wqe,
        packet: u32,
        psns: u32,
    ) -> Result<Option<usize>, KeyError> {
        let emit = Emit {
            opcode: Opcode::RcReadRequest,
            psn: wqe.first_psn.add(packet),
            ack_req: true,
            solicited: false,
            payload_len: 0,
        };
        let template = self.template.as_mut();
        let Some(mut out) = template.and_then(|t| t.start(frame, &emit)) else {
            return Ok(None);
        };
        let shift = self.tx.mtu.shift();
        let skipped = packet << shift;
        let rest = wqe.len - skipped;
        let end = u64::from(psns) << shift;
        out.reth(&Reth {
            va: wqe.va.wrapping_add(skipped.into()),
            rkey: wqe.rkey,
            len: u32::try_from(end).map_or(rest, |end| rest.min(end)),
        });
        Ok(Some(out.finish()))
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "one packet's coordinates, inlined"
    )]
    #[inline(always)]
    pub(super) fn write_data<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
        index: u32,
        wqe: &Wqe,
        packet: u32,
        psn: Psn,
        ack_req: bool,
        service: Service,
    ) -> Result<Option<usize>, KeyError> {
        let is_last = packet + 1 == wqe.psns;
        let position = Position::of(packet == 0, is_last);
        let imm = wqe.imm;
        let inv = wqe.traits.contains(Traits::INVALIDATE);
        let opcode = Opcode::for_request(service, wqe.operation, position, imm.is_some(), inv);
        let offset = u64::from(packet) << self.tx.mtu.shift();
        let rest = wqe.len as usize - usize::try_from(offset).unwrap_or(usize::MAX);
        let payload_len = rest.min(self.tx.mtu.bytes());
        let (Some(opcode), Some(template)) = (opcode, self.template.as_mut()) else {
            return Ok(None);
        };
        let emit = Emit {
            opcode,
            psn,
            ack_req,
            solicited: is_last && wqe.is_solicited(),
            payload_len,
        };
        let Some(mut out) = template.start(frame, &emit) else {
            return Ok(None);
        };
        if opcode.info().reth_offset().is_some() {
            out.reth(&Reth {
                va: wqe.va,
                rkey: wqe.rkey,
                len: wqe.len,
            });
        }
        if is_last && let Some(imm) = imm {
            out.imm(imm);
        }
        if is_last && inv {
            out.ieth(wqe.rkey);
        }
        self.counters.tx_bytes += payload_len as u64;
        // Almost always: one piece of memory, copied by the loop that computes the ICRC.
        if let Some((sge, within)) = wqe.piece(offset)
            && payload_len != 0
            && let Some(head) = out.head()
        {
            let pd = self.cold.init.pd;
            let register = cx.mem.gather(pd, sge, within, out.payload_mut(), &head)?;
            return Ok(Some(out.finish_joined(register)));
        }
        if wqe.traits.contains(Traits::INLINE) {
            let at = usize::try_from(offset).unwrap_or(usize::MAX);
            out.payload_mut()
                .copy_from_slice(self.sq.inline(index, at, payload_len));
        } else {
            sge::gather(
                cx,
                self.cold.init.pd,
                self.sq.sges(index),
                offset,
                out.payload_mut(),
            )?;
        }
        Ok(Some(out.finish()))
    }

    /// Moves the send position behind a packet that stands for `psns` PSNs, the last of its WQE if
    /// `is_last`.
    #[inline(always)]
    pub(super) fn on_request_sent(
        &mut self,
        now: Instant,
        is_last: bool,
        psns: u32,
        len: usize,
        ack_req: bool,
    ) {
        let tx = &mut self.tx;
        tx.next_psn = tx.next_psn.add(psns);
        if is_last {
            tx.send_index = tx.send_index.wrapping_add(1);
            tx.send_packet = 0;
        } else {
            tx.send_packet += psns;
        }
        if tx.max_psn.is_before(tx.next_psn) {
            tx.max_psn = tx.next_psn;
        }
        if ack_req {
            tx.since_ack_req = 0;
            self.demand(now, self.tx.next_psn.sub(1));
        } else {
            tx.since_ack_req += 1;
        }
        self.on_data_sent(now, len);
    }

    #[cold]
    fn count_resend(&mut self) {
        let counters = self.counters.rare();
        counters.retransmits += 1;
        match self.cold.cause {
            Cause::Timeout => counters.retransmits_timeout += 1,
            Cause::SequenceNak => counters.retransmits_seq_nak += 1,
            Cause::ImpliedNak => counters.retransmits_implied_nak += 1,
            Cause::Rnr => counters.retransmits_rnr += 1,
            Cause::Solicit => counters.retransmits_solicit += 1,
        }
    }

    /// Times a packet that has just left for the first time and asks for an answer.
    #[inline(never)]
    pub(super) fn time_packet(&mut self, now: Instant, wqe: &Wqe, packet: u32, psn: Psn) {
        self.timed = Timed {
            sent: now,
            psn,
            payload: self.payload_at(wqe, packet),
        };
    }

    /// Payload of a packet of a message or, of a READ, of the response in its place; in bytes.
    pub(super) fn payload_at(&self, wqe: &Wqe, packet: u32) -> u32 {
        let sent_before = packet << self.tx.mtu.shift();
        wqe.len
            .saturating_sub(sent_before)
            .min(1 << self.tx.mtu.shift())
    }

    /// Moves the send position to `psn`, which is outstanding or the next new one.
    pub(super) fn seek(&mut self, psn: Psn) {
        // The answer could be to either copy (Karn).
        self.timed = Timed::NONE;
        self.tx.solicit = false;
        self.tx.next_psn = psn;
        match self.sq.find(psn) {
            Some(index) => {
                self.tx.send_index = index;
                self.tx.send_packet = self.sq.wqe(index).first_psn.distance_to(psn).unsigned_abs();
            }
            None => {
                self.tx.send_index = self.sq.started;
                self.tx.send_packet = 0;
            }
        }
    }

    /// The next WQE cannot be sent: it fails with `status` once all before it are done (K5),
    /// which the last packet before it asks for once more.
    #[cold]
    pub(super) fn poison<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
        status: WcStatus,
    ) -> Option<usize> {
        self.tx.poisoned = true;
        self.cold.poison_status = status;
        if self.sq.head == self.sq.started {
            self.fail_send(cx, self.sq.head, status);
            return None;
        }
        self.solicit_ack();
        self.poll_request(cx, frame)
    }

    /// PSN behind the last WQE that has begun; while one is poisoned, packets behind it may have
    /// left and are of no interest any more.
    pub(super) fn end_of_started(&self) -> Psn {
        if self.sq.head == self.sq.started {
            return self.tx.una_psn;
        }
        let last = self.sq.wqe(self.sq.started.wrapping_sub(1));
        last.first_psn.add(last.psns)
    }

    /// Completes WQE `index` with `status`, flushes all others and goes to ERR.
    pub(super) fn fail_send<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        index: u32,
        status: WcStatus,
    ) {
        let wqe = self.sq.wqe(index);
        let (wr_id, request) = (wqe.wr_id, wqe.request());
        let report = self.failure_report(cx.now, status, Some(wr_id), Some(request), None);
        self.cold.failure = Some(Box::new(report));
        self.counters.rare().send_errors += 1;
        while self.sq.head != index {
            self.complete_head(cx.sink, WcStatus::WrFlushErr);
        }
        self.complete_head(cx.sink, status);
        self.enter_error(cx.sink);
    }
}
