//! Completer of a selective queue pair.
//!
//! A request is complete when the responder has executed it, or answered it; what a SACK reports
//! is only not sent again. Completions are in order, answers need not be: one that is not the next
//! goes to its memory at once.

use xroce_wire::ext::{MPR_UNIT, SackCause, Seth};
use xroce_wire::newtypes::Psn;
use xroce_wire::opcode::{Operation, Position};
use xroce_wire::packet::Packet;
use xroce_wire::syndrome::{NakCode, RnrTimer, Syndrome};

use crate::cc::{AckSample, CongestionController};
use crate::memory::Memory;
use crate::qp::report::LastSeen;
use crate::qp::{Cx, Qp, sge};
use crate::time::Instant;
use crate::wc::{Sink, WcStatus};

impl Qp {
    /// [`Qp::handle_response`] of a selective queue pair.
    #[inline(never)]
    pub(in crate::qp) fn selective_response<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
    ) {
        let (psn, aeth) = (pkt.psn(), pkt.aeth());
        let seth = pkt.seth();
        // A SACK may have nothing to acknowledge.
        let first = if seth.is_some() {
            self.tx.una_psn.sub(1)
        } else {
            self.tx.una_psn
        };
        let outstanding = first.distance_to(self.tx.max_psn).unsigned_abs();
        let known = seth.map_or(psn, |s| s.cack_psn);
        let is_old_sack = seth.is_some() && known.is_before(first) && self.tx.is_outstanding();
        if !known.is_within(first, outstanding) && !is_old_sack {
            self.counters.rare().ghost_responses += 1;
            return;
        }
        let syndrome = match seth {
            Some(_) => Some(Syndrome::ACK),
            None => aeth.map(|a| a.syndrome),
        };
        self.cold.last_seen = LastSeen {
            at: Some(cx.now),
            psn: known,
            syndrome,
        };
        match (pkt.info().operation, aeth, seth) {
            (Operation::Sack, _, Some(seth)) => self.handle_sack(cx, &seth),
            (Operation::Acknowledge, Some(aeth), _) => match aeth.syndrome {
                Syndrome::Ack { .. } => self.handle_ack(cx, psn),
                Syndrome::RnrNak { timer } => self.selective_rnr(cx, psn, timer),
                Syndrome::Nak(NakCode::PsnSequence) => self.selective_sequence_nak(cx, psn),
                Syndrome::Nak(code) => self.selective_nak(cx, psn, code),
                Syndrome::Reserved(_) => self.bad_response(cx),
            },
            (Operation::ReadResponse | Operation::AtomicAcknowledge, ..) => {
                self.handle_answer(cx, pkt);
            }
            _ => self.bad_response(cx),
        }
    }

    /// A peer that does not know yet that this side is selective, or is not itself: it lacks this
    /// packet, or had it overtaken. A probe shows it who is asking, and has it say what it has.
    fn selective_sequence_nak<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>, psn: Psn) {
        self.counters.rare().seq_naks_in += 1;
        self.hear(cx, psn, None, None);
        let outstanding = self.tx.is_outstanding();
        if let Some(selective) = &mut self.selective {
            selective.ask |= outstanding;
        }
    }

    fn handle_ack<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>, psn: Psn) {
        self.hear(cx, psn.add(1), Some(psn), None);
    }

    fn handle_sack<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>, seth: &Seth) {
        self.counters.rare().sacks_in += 1;
        let max = self.tx.max_psn;
        let Some(selective) = &mut self.selective else {
            return;
        };
        selective.note_agreement();
        if seth.mpr != 0 {
            selective.peer_range = u32::from(seth.mpr) * MPR_UNIT;
        }
        match seth.cause {
            SackCause::Packet { again: true, .. } => {
                let psn = seth.ack_psn().unwrap_or(seth.cack_psn);
                let kept = selective.params.range;
                if psn.is_within(max.sub(kept), kept) && selective.board.times(psn) > 1 {
                    self.counters.rare().spurious_retransmits += 1;
                }
            }
            SackCause::Probe(id) if selective.probe.is_some_and(|p| p.id == id) => {
                if let Some(probe) = selective.probe.take() {
                    selective.board.probe_answered(probe.places);
                }
            }
            SackCause::Packet { .. } | SackCause::Probe(_) => {}
        }
        let timed = match seth.cause {
            SackCause::Packet { again: false, .. } => seth.ack_psn(),
            _ => None,
        };
        self.hear(cx, seth.cack_psn.add(1), timed, Some(seth));
    }

    /// Everything before `end` was executed, and what else a SACK says; `timed` is the packet whose
    /// round trip ends here. Completes what is complete.
    fn hear<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        end: Psn,
        timed: Option<Psn>,
        seth: Option<&Seth>,
    ) {
        let (una, max) = (self.tx.una_psn, self.tx.max_psn);
        let Some(selective) = &self.selective else {
            return;
        };
        let rule = self.loss_rule(selective);
        let sample = timed
            .filter(|psn| psn.is_within(una, una.distance_to(max).unsigned_abs()))
            .and_then(|psn| Some((psn, selective.board.timed(psn)?)));
        let Some(selective) = &mut self.selective else {
            return;
        };
        let mut news = selective.board.executed(cx.now, end, &rule);
        if let Some(seth) = seth {
            let base = seth.base();
            news += selective
                .board
                .sacked(cx.now, base, seth.bitmap, max, &rule);
        }
        if let Some((psn, sent)) = sample {
            self.measure(cx.now, psn, sent);
        }
        self.heard(cx, news);
    }

    /// A round trip was measured (Karn: of a packet that was sent once).
    fn measure(&mut self, now: Instant, psn: Psn, sent: Instant) {
        let rtt = now.since(sent);
        self.cold.rtt.get_or_insert_default().record(rtt);
        self.cold.rtt_estimator.sample(rtt);
        if let Some(index) = self.sq.find(psn) {
            let wqe = self.sq.wqe(index);
            let packet = wqe.first_psn.distance_to(psn).unsigned_abs();
            let payload = self.payload_at(wqe, packet);
            self.cold.largest_acked = self.cold.largest_acked.max(payload);
        }
        if let Some(selective) = &mut self.selective {
            selective.backoff = 0;
            selective.measured = Some(rtt);
        }
    }

    /// After everything that may bring news, of so many packets.
    fn heard<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>, news: u32) {
        if news != 0 {
            let mut rtt = None;
            if let Some(selective) = &mut self.selective {
                selective.asked = false;
                rtt = selective.measured.take();
            }
            self.cc.on_ack(&AckSample {
                now: cx.now,
                acked_packets: news,
                rtt,
                ecn_marked: false,
            });
        }
        self.find_losses(cx.now);
        if self.complete_executed(cx) {
            self.tx.retries_left = self.cold.retry_cnt;
            self.tx.rnr_retries_left = self.cold.rnr_retry;
        }
        if let Some(selective) = &mut self.selective
            && !self.tx.is_outstanding()
        {
            selective.ask = false;
        }
        self.note_heard(cx.now, news != 0);
        let una = self.tx.una_psn;
        let fatal = self.selective.as_ref().and_then(|s| s.fatal);
        if let Some((_, status)) = fatal.filter(|&(psn, _)| psn == una)
            && self.sq.head != self.sq.started
        {
            self.fail_send(cx, self.sq.head, status);
            return;
        }
        self.ensure_answer();
        self.set_selective_deadline();
        if self.sq.head == self.sq.started {
            self.on_all_started_done(cx);
        }
    }

    /// Completes in order what is executed or answered; whether the oldest PSN moved.
    fn complete_executed<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>) -> bool {
        let before = self.tx.una_psn;
        while self.sq.head != self.sq.started {
            let Some(selective) = &self.selective else {
                break;
            };
            let wqe = self.sq.wqe(self.sq.head);
            let next = wqe.first_psn.add(wqe.psns);
            let mut una = self.tx.una_psn;
            if wqe.has_response() {
                while una != next && una != self.tx.max_psn && selective.board.is_done(una) {
                    una = una.add(1);
                }
            } else {
                let cum = selective.board.cum();
                una = if cum.is_before(next) { cum } else { next };
                if una.is_before(self.tx.una_psn) {
                    una = self.tx.una_psn;
                }
            }
            self.tx.una_psn = una;
            if una != next {
                break;
            }
            self.complete_head(cx.sink, WcStatus::Success);
        }
        before != self.tx.una_psn
    }

    /// The responder has no receive for this packet: it comes again after the wait, everything
    /// behind it stays where it is.
    fn selective_rnr<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        psn: Psn,
        timer: RnrTimer,
    ) {
        let stale = self
            .selective
            .as_ref()
            .is_none_or(|s| psn.is_before(s.board.cum()));
        if stale {
            self.counters.rare().ghost_responses += 1;
            return;
        }
        self.counters.rare().rnr_naks_in += 1;
        self.hear(cx, psn, None, None);
        if !self.tx.state.sends() {
            return;
        }
        // While it waits for one packet it may hear that another is refused, if that NAK was
        // overtaken or came late: then it waits for that one.
        let known = self.tx.rnr_until != Instant::NEVER
            && self.selective.as_ref().is_some_and(|s| s.refused == psn);
        if known {
            return;
        }
        if !self.wait_for_receiver(cx, timer) {
            return;
        }
        if let Some(selective) = &mut self.selective {
            selective.refused = psn;
            selective.board.refused(psn);
            selective.asked = false;
        }
    }

    /// A fatal NAK fails its request once everything before it is answered: the answers were sent
    /// before it and may only have been overtaken.
    fn selective_nak<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        psn: Psn,
        code: NakCode,
    ) {
        let status = self.fatal_nak(code);
        if let Some(selective) = &mut self.selective {
            selective.fatal = Some((psn, status));
        }
        self.hear(cx, psn, None, None);
    }

    /// A READ response, or the answer to an atomic, ATOMIC WRITE or FLUSH.
    fn handle_answer<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>, pkt: &Packet<'_>) {
        let psn = pkt.psn();
        let Some(index) = self.sq.find(psn) else {
            self.counters.rare().ghost_responses += 1;
            return;
        };
        let wqe = *self.sq.wqe(index);
        let packet = wqe.first_psn.distance_to(psn).unsigned_abs();
        if !wqe.has_response() || !self.is_answer(&wqe, packet, pkt) {
            self.bad_response(cx);
            return;
        }
        let Some(selective) = &self.selective else {
            return;
        };
        if selective.board.is_done(psn) {
            self.counters.rare().ghost_responses += 1;
            return;
        }
        let end = wqe.first_psn.add(selective.part_end(&wqe, packet));
        let end = if self.tx.max_psn.is_before(end) {
            self.tx.max_psn
        } else {
            end
        };
        let sample = selective.board.timed(psn);
        let rule = self.loss_rule(selective);
        if self.place_answer(cx, index, &wqe, packet, pkt).is_err() {
            self.fail_send(cx, index, WcStatus::LocProtErr);
            return;
        }
        let mut news = 1;
        if let Some(selective) = &mut self.selective {
            news += selective.board.executed(cx.now, end, &rule);
            selective.board.answered(psn);
        }
        if let Some(sent) = sample {
            self.measure_answer(cx.now, psn, sent);
        }
        self.heard(cx, news);
    }

    /// The time to the first response of a READ may be one of waiting behind others: it counts as
    /// a round trip if it shortens what is known of them.
    fn measure_answer(&mut self, now: Instant, psn: Psn, sent: Instant) {
        let rtt = now.since(sent);
        if self.cold.rtt_estimator.srtt().is_none_or(|srtt| rtt < srtt) {
            self.measure(now, psn, sent);
        } else {
            self.cold.rtt.get_or_insert_default().record(rtt);
        }
    }

    /// Whether a packet is what this request is answered with at this place (R10). Where the
    /// message of responses begins and ends depends on what was asked for, and several requests
    /// may be under way.
    fn is_answer(&self, wqe: &crate::qp::sq::Wqe, packet: u32, pkt: &Packet<'_>) -> bool {
        let is_ack = |s: Syndrome| matches!(s, Syndrome::Ack { .. });
        if !pkt.aeth().is_none_or(|a| is_ack(a.syndrome)) {
            return false;
        }
        let len = pkt.payload().len();
        if wqe.is_read() {
            let expected = self.payload_at(wqe, packet);
            return pkt.info().operation == Operation::ReadResponse && len == expected as usize;
        }
        if wqe.is_atomic() {
            return pkt.atomic_ack().is_some() && len == 0;
        }
        let info = pkt.info();
        info.operation == Operation::ReadResponse && info.position == Position::Only && len == 0
    }

    fn place_answer<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        index: u32,
        wqe: &crate::qp::sq::Wqe,
        packet: u32,
        pkt: &Packet<'_>,
    ) -> Result<(), crate::memory::KeyError> {
        let (pd, sges) = (self.cold.init.pd, self.sq.sges(index));
        if let Some(ack) = pkt.atomic_ack() {
            return sge::scatter(cx, pd, sges, 0, &ack.original.to_ne_bytes());
        }
        if !wqe.is_read() {
            return Ok(());
        }
        let offset = packet << self.tx.mtu.shift();
        sge::scatter(cx, pd, sges, offset.into(), pkt.payload())
    }
}
