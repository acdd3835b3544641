//! Requester of a selective queue pair: lost packets first, then new ones.
//!
//! New packets are taken at the send position as go-back-N does; it only never goes back.

use xroce_wire::ext::{Meth, Peth};
use xroce_wire::newtypes::Psn;
use xroce_wire::opcode::{Opcode, Operation, Position, Service};
use xroce_wire::reth::Reth;
use xroce_wire::template::Emit;

use super::{Probe, Selective};
use crate::cc::{Congestion, CongestionController};
use crate::memory::{KeyError, Memory};
use crate::params;
use crate::qp::requester::MUST_WAIT;
use crate::qp::sq::{Traits, Wqe};
use crate::qp::{Cx, Qp, QpState, sge};
use crate::recovery::State;
use crate::time::Instant;
use crate::wc::{Sink, WcStatus};

impl Selective {
    /// Responses one READ request asks for, at most: half the range, so that the next can be
    /// asked for while the last of these come.
    fn read_part(&self) -> u32 {
        self.params.range / 2
    }

    /// PSNs from `packet` on that one request stands for.
    fn part(&self, wqe: &Wqe, packet: u32) -> u32 {
        if wqe.is_read() {
            (wqe.psns - packet).min(self.read_part())
        } else {
            1
        }
    }

    /// Where the READ request that asked for `packet` ends.
    pub(super) fn part_end(&self, wqe: &Wqe, packet: u32) -> u32 {
        if wqe.is_read() {
            let part = self.read_part();
            ((packet / part + 1) * part).min(wqe.psns)
        } else {
            packet + 1
        }
    }
}

impl Qp {
    /// The first PSN to be sent again.
    fn first_lost(&self, selective: &Selective) -> Option<Psn> {
        let una = self.tx.una_psn;
        let end = if self.tx.poisoned {
            self.end_of_started()
        } else {
            self.tx.max_psn
        };
        let count = u32::try_from(una.distance_to(end)).unwrap_or(0);
        selective.board.first_lost(una, count)
    }

    /// [`Qp::may_request`] of a selective queue pair.
    #[inline(never)]
    pub(in crate::qp) fn selective_may_request(&self, now: Instant) -> bool {
        let (tx, Some(selective)) = (&self.tx, &self.selective) else {
            return false;
        };
        if tx.rnr_until != Instant::NEVER || !tx.state.sends() {
            return false;
        }
        if !self.may_pass(now) {
            return false;
        }
        if selective.ask && tx.is_outstanding() {
            return true;
        }
        if selective.board.flying() >= self.window_now(selective) {
            return false;
        }
        self.first_lost(selective).is_some() || self.may_send_new(selective)
    }

    fn may_send_new(&self, selective: &Selective) -> bool {
        let tx = &self.tx;
        if tx.send_index == self.sq.tail {
            return false;
        }
        let wqe = self.sq.wqe(tx.send_index);
        let fresh = tx.send_index == self.sq.started;
        if fresh && !self.may_start(0) {
            return false;
        }
        if wqe.is_local() {
            return true;
        }
        let mut need = 1;
        if wqe.is_read() {
            // The next part of a READ when all before it is there.
            if !fresh && tx.una_psn != tx.next_psn {
                return false;
            }
            let psns = tx.mtu.packets(wqe.len);
            need = (psns - tx.send_packet).min(selective.read_part());
        }
        // With nothing outstanding this is what the responder expects: it takes that even if it
        // takes nothing, or less than this, ahead.
        let used = tx.una_psn.distance_to(tx.next_psn).unsigned_abs();
        used == 0 || used + need <= selective.range()
    }

    /// [`Qp::poll_request`] of a selective queue pair.
    #[inline(never)]
    pub(in crate::qp) fn selective_poll<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<usize> {
        if !self.selective_may_request(cx.now) {
            return None;
        }
        let selective = self.selective.as_ref()?;
        if let Some(psn) = self.first_lost(selective)
            && selective.board.flying() < self.window_now(selective)
        {
            return self.send_again(cx, frame, psn);
        }
        if selective.ask && self.tx.is_outstanding() {
            return self.write_probe(cx.now, frame);
        }
        self.send_new(cx, frame)
    }

    fn send_new<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let index = self.tx.send_index;
        let wqe = self.sq.wqe(index);
        if wqe.is_local() {
            if !self.execute_local(cx) {
                return None;
            }
            return self.selective_poll(cx, frame);
        }
        let fresh = index == self.sq.started;
        let started = match (fresh, wqe.has_response()) {
            (false, _) => Ok(()),
            (true, true) => self.start_answered(cx, index),
            (true, false) => self.start(cx, index),
        };
        if let Err(status) = started {
            return self.poison(cx, frame, status);
        }
        let wqe = *self.sq.wqe(index);
        let (packet, psn) = (self.tx.send_packet, self.tx.next_psn);
        let selective = self.selective.as_mut()?;
        let psns = selective.part(&wqe, packet);
        if packet == 0 || wqe.is_read() {
            selective.current_msn = selective.next_msn;
            selective.next_msn = selective.next_msn.wrapping_add(1);
        }
        let msn = selective.current_msn;
        let is_last = packet + psns == wqe.psns;
        let ack_req = wqe.has_response() || self.selective_wants_ack(index, is_last);
        match self.write_request(cx, frame, index, &wqe, (packet, psns), msn, ack_req) {
            Ok(len) => {
                self.on_request_sent(cx.now, is_last, psns, len?, ack_req);
                let selective = self.selective.as_mut()?;
                let answered = wqe.has_response();
                selective.board.sent(cx.now, psn, psns, answered, msn);
                selective.sent_at = cx.now;
                self.set_selective_deadline();
                len
            }
            Err(_) => self.request_failed(cx, frame, index),
        }
    }

    fn send_again<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
        psn: Psn,
    ) -> Option<usize> {
        let index = self.sq.find(psn)?;
        let wqe = *self.sq.wqe(index);
        let packet = wqe.first_psn.distance_to(psn).unsigned_abs();
        let selective = self.selective.as_ref()?;
        let part = selective.part_end(&wqe, packet) - packet;
        let reply = selective.board.state(psn) == State::LostReply;
        let psns = if reply {
            selective.board.lost_replies(psn, part)
        } else {
            part
        };
        let msn = selective.board.msn(psn);
        match self.write_request(cx, frame, index, &wqe, (packet, psns), msn, true) {
            Ok(len) => {
                self.on_data_sent(cx.now, len?);
                self.counters.rare().retransmits += 1;
                self.counters.rare().retransmits_selective += 1;
                self.tx.since_ack_req = 0;
                let (last, asked) = (psn.add(psns - 1), self.tx.asked_psn);
                self.demand(cx.now, if last.is_before(asked) { asked } else { last });
                let selective = self.selective.as_mut()?;
                if reply {
                    selective.board.asked_again(cx.now, psn, psns);
                } else {
                    selective.board.sent_again(cx.now, psn, psns);
                }
                selective.sent_at = cx.now;
                self.set_selective_deadline();
                len
            }
            Err(_) => self.request_failed(cx, frame, index),
        }
    }

    /// One request packet, new or again: packet number and PSNs it stands for.
    #[allow(clippy::too_many_arguments, reason = "one packet's coordinates")]
    fn write_request<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
        index: u32,
        wqe: &Wqe,
        (packet, psns): (u32, u32),
        msn: u16,
        ack_req: bool,
    ) -> Result<Option<usize>, KeyError> {
        let psn = wqe.first_psn.add(packet);
        if wqe.is_read() {
            self.write_read_part(frame, wqe, packet, psns)
        } else if wqe.is_atomic() || wqe.operation == Operation::Flush {
            self.write_bare_request(frame, index, psn)
        } else if wqe.operation == Operation::Write {
            self.write_ext(cx, frame, index, wqe, packet, msn, ack_req)
        } else {
            self.write_data(cx, frame, index, wqe, packet, psn, ack_req, Service::Rc)
        }
    }

    /// A WRITE packet that describes itself: its own place, and the rest of the message from it on.
    #[allow(clippy::too_many_arguments, reason = "one packet's coordinates")]
    fn write_ext<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
        index: u32,
        wqe: &Wqe,
        packet: u32,
        msn: u16,
        ack_req: bool,
    ) -> Result<Option<usize>, KeyError> {
        let is_last = packet + 1 == wqe.psns;
        let position = Position::of(packet == 0, is_last);
        let imm = wqe.imm.filter(|_| is_last);
        let has_imm = imm.is_some();
        let opcode = Opcode::for_request(Service::Ext, Operation::Write, position, has_imm, false);
        // Within the message, which is below 2^32.
        let offset = packet << self.tx.mtu.shift();
        let rest = wqe.len - offset;
        let payload_len = (rest as usize).min(self.tx.mtu.bytes());
        let (Some(opcode), Some(template)) = (opcode, self.template.as_mut()) else {
            return Ok(None);
        };
        let emit = Emit {
            opcode,
            psn: wqe.first_psn.add(packet),
            ack_req,
            solicited: is_last && wqe.is_solicited(),
            payload_len,
        };
        let Some(mut out) = template.start(frame, &emit) else {
            return Ok(None);
        };
        out.meth(&Meth { rqmsn: 0, msn });
        out.reth(&Reth {
            va: wqe.va.wrapping_add(offset.into()),
            rkey: wqe.rkey,
            len: rest,
        });
        if let Some(imm) = imm {
            out.imm(imm);
        }
        if wqe.traits.contains(Traits::INLINE) {
            let bytes = self.sq.inline(index, offset as usize, payload_len);
            out.payload_mut().copy_from_slice(bytes);
        } else {
            let (pd, sges) = (self.cold.init.pd, self.sq.sges(index));
            sge::gather(cx, pd, sges, offset.into(), out.payload_mut())?;
        }
        self.counters.tx_bytes += payload_len as u64;
        Ok(Some(out.finish()))
    }

    /// A probe carries the oldest unacknowledged PSN and takes none.
    fn write_probe(&mut self, now: Instant, frame: &mut [u8]) -> Option<usize> {
        let emit = Emit {
            opcode: Opcode::ExtProbe,
            psn: self.tx.una_psn,
            ack_req: true,
            solicited: false,
            payload_len: 0,
        };
        let selective = self.selective.as_mut()?;
        let probe_id = selective.probe_id.wrapping_add(1);
        let mut out = self.template.as_mut()?.start(frame, &emit)?;
        out.peth(&Peth { probe_id });
        let len = out.finish();
        selective.probe_id = probe_id;
        selective.probe = Some(Probe {
            id: probe_id,
            places: selective.board.probe(),
        });
        selective.ask = false;
        selective.sent_at = now;
        self.counters.rare().probes_out += 1;
        self.on_data_sent(now, len);
        self.demand(now, self.tx.max_psn.sub(1));
        self.set_selective_deadline();
        Some(len)
    }

    /// Has the peer say what it has: used when the packets that would have asked do not leave.
    #[inline(never)]
    pub(in crate::qp) fn solicit_sack(&mut self) {
        let outstanding = self.tx.is_outstanding();
        if let Some(selective) = &mut self.selective {
            selective.ask = outstanding;
        }
    }

    /// AckReq: eight times per window, and whenever the requester is about to wait.
    fn selective_wants_ack(&self, index: u32, is_last: bool) -> bool {
        let (tx, Some(selective)) = (&self.tx, &self.selective) else {
            return true;
        };
        let window = self.window_now(selective);
        let interval = (window / 8).clamp(1, params::ACK_REQ_INTERVAL.into());
        let used = tx.una_psn.distance_to(tx.next_psn).unsigned_abs() + 1;
        if u32::from(tx.since_ack_req) + 1 >= interval
            || selective.board.flying() + 1 >= window
            || used >= selective.range()
        {
            return true;
        }
        if !is_last {
            return false;
        }
        let next = index.wrapping_add(1);
        next == self.sq.tail
            || tx.state != QpState::Rts
            || self.sq.wqe(next).traits.intersects(MUST_WAIT)
    }

    /// [`Qp::ack_timeout`] of a selective queue pair: whatever timer it was.
    #[inline(never)]
    pub(in crate::qp) fn selective_timeout<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>) {
        self.tx.ack_deadline = Instant::NEVER;
        if !self.tx.is_outstanding() || self.tx.rnr_until != Instant::NEVER {
            return;
        }
        self.find_losses(cx.now);
        let Some(selective) = &self.selective else {
            return;
        };
        if let Some(quiet) = self.quiet_since(selective) {
            if cx.now >= quiet + self.selective_rto(selective) {
                self.selective_rto_expired(cx);
            } else if !selective.asked && self.probe_after().is_some_and(|t| cx.now >= quiet + t) {
                if let Some(selective) = &mut self.selective {
                    selective.ask = true;
                    selective.asked = true;
                }
                self.counters.rare().tail_probes += 1;
            }
        }
        self.set_selective_deadline();
    }

    fn selective_rto_expired<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>) {
        self.counters.rare().timeouts += 1;
        let patience = self.selective_patience();
        let silence = cx.now.since(self.tx.demand_since);
        let Some(selective) = &mut self.selective else {
            return;
        };
        // A pacer may keep the packets so far apart that all that time is one try.
        let tries = selective.backoff >= self.cold.retry_cnt;
        if patience.is_some_and(|most| silence >= most) && tries {
            self.counters.rare().transport_retries_exceeded += 1;
            self.fail_send(cx, self.sq.head, WcStatus::RetryExcErr);
            return;
        }
        let (una, max) = (self.tx.una_psn, self.tx.max_psn);
        let count = una.distance_to(max).unsigned_abs();
        selective.board.lose_all(una, count);
        selective.backoff = (selective.backoff + 1).min(super::BACKOFF_MAX);
        selective.asked = true;
        selective.sent_at = cx.now;
        self.counters.rare().retries += 1;
        self.cc.on_congestion(cx.now, Congestion::Timeout);
    }

    /// Has lost packets sent again; congestion control hears of it once per window.
    pub(super) fn find_losses(&mut self, now: Instant) {
        let Some(selective) = &self.selective else {
            return;
        };
        let rule = self.loss_rule(selective);
        let Some(selective) = &mut self.selective else {
            return;
        };
        let lost = selective.board.detect(now, &rule);
        if lost == 0 {
            return;
        }
        let una = self.tx.una_psn;
        if selective.in_recovery && una.is_before(selective.recovery_end) {
            return;
        }
        selective.in_recovery = true;
        selective.recovery_end = self.tx.max_psn;
        self.counters.rare().retries += 1;
        self.cc.on_congestion(now, Congestion::SequenceNak);
    }
}
