//! Responder of a selective queue pair: packets are taken as they come and executed in their turn.
//!
//! A WRITE packet goes to its place at once if every hole before it belongs to its own message:
//! then nothing before it can write there later. All others wait. When a hole closes, what waits
//! takes the ordinary steps in the ordinary order, so completions, MSN, RNR and NAKs are those of
//! RC.

use xroce_wire::ext::SackCause;
use xroce_wire::newtypes::{Psn, RKey, Va};
use xroce_wire::opcode::{Opcode, Operation};
use xroce_wire::packet::Packet;
use xroce_wire::reth::Reth;
use xroce_wire::template::Emit;

use super::reorder::Kept;
use crate::memory::{Grant, Memory};
use crate::params;
use crate::qp::hot::{Debt, Ongoing};
use crate::qp::responder::INVALID_REQUEST;
use crate::qp::{Cx, Qp, atomic};
use crate::reject::Reject;
use crate::wc::{Sink, WcOpcode};

/// The WRITE being received, as its packets have to go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    /// Where the next packet in turn goes.
    va: Va,
    rkey: RKey,
}

impl Running {
    pub(super) const NONE: Self = Self {
        va: Va::new(0),
        rkey: RKey::new(0),
    };
}

impl Qp {
    #[inline(never)]
    pub(in crate::qp) fn selective_request<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
    ) {
        if pkt.info().is_extension()
            && let Some(selective) = &mut self.selective
        {
            selective.note_agreement();
        }
        if let Some(peth) = pkt.peth() {
            self.counters.rare().probes_in += 1;
            if let Some(selective) = &mut self.selective {
                selective.reorder.tell_again();
                selective.reorder.probe = Some(peth.probe_id);
            }
            self.owe_sack(false);
            return;
        }
        let (psn, expected) = (pkt.psn(), self.rx.expected_psn);
        let ahead = expected.distance_to(psn);
        if ahead > 0 {
            self.take_ahead(cx, pkt, ahead.unsigned_abs());
            return;
        }
        let owed = self.rx.debt == Debt::Sack;
        let holes = self
            .selective
            .as_ref()
            .is_some_and(|s| !s.reorder.is_empty());
        // Responses asked for again are no copies, and are their own answer.
        let again = ahead < 0 && !atomic::has_response(pkt.info().operation);
        if ahead == 0 || again {
            self.note_came(psn, again);
        }
        let done = self.selective_step(cx, pkt);
        let executed = done.is_ok() && ahead == 0;
        self.conclude(cx, pkt, done);
        if executed {
            self.drain(cx, expected);
        }
        if owed || holes || again {
            self.owe_sack(true);
        }
    }

    fn note_came(&mut self, psn: Psn, again: bool) {
        if let Some(selective) = &mut self.selective {
            selective.reorder.came(psn, again);
        }
    }

    /// A packet in its turn or a duplicate. A WRITE that describes itself must go on where the
    /// packet before it ended.
    fn selective_step<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
    ) -> Result<(), Reject> {
        let info = pkt.info();
        let in_turn = pkt.psn() == self.rx.expected_psn;
        if in_turn && info.is_extension() && !info.starts() && self.rx.ongoing == Ongoing::Write {
            self.check_goes_on(pkt, pkt.payload().len())?;
        }
        self.step_other(cx, pkt, info.operation)?;
        if in_turn {
            self.note_running(pkt, pkt.payload().len());
        }
        Ok(())
    }

    /// Whether a packet names the place where the message in progress goes on, and its rest.
    fn check_goes_on(&self, pkt: &Packet<'_>, payload_len: usize) -> Result<(), Reject> {
        let running = self.selective.as_ref().map_or(Running::NONE, |s| s.running);
        let rest = self.rx.write_len.wrapping_sub(self.rx.received);
        let agrees = pkt.reth().is_some_and(|reth| {
            (reth.va, reth.rkey, reth.len) == (running.va, running.rkey, rest)
                && if pkt.info().ends() {
                    payload_len == rest as usize
                } else {
                    payload_len < rest as usize
                }
        });
        if agrees { Ok(()) } else { Err(INVALID_REQUEST) }
    }

    /// A WRITE packet was executed: the next one goes behind it.
    fn note_running(&mut self, pkt: &Packet<'_>, payload_len: usize) {
        let (Some(reth), Some(selective)) = (pkt.reth(), &mut self.selective) else {
            return;
        };
        selective.running = Running {
            va: reth.va.wrapping_add(payload_len as u64),
            rkey: reth.rkey,
        };
    }

    /// A packet before its turn: placed, stored, or dropped as if it had got lost.
    fn take_ahead<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
        ahead: u32,
    ) {
        let psn = pkt.psn();
        self.counters.rare().out_of_sequence += 1;
        let Some(selective) = &mut self.selective else {
            return;
        };
        if ahead >= selective.reorder.range() {
            self.counters.rare().beyond_range += 1;
            return;
        }
        let again = selective.reorder.has(psn);
        if again {
            self.counters.rare().duplicates += 1;
        } else if self.place(cx, pkt, ahead) {
            self.counters.rare().placed_early += 1;
        } else if !self.store(pkt) {
            self.counters.rare().reorder_store_full += 1;
            return;
        }
        self.note_came(psn, again);
        let agrees = self.selective.as_ref().is_some_and(|s| s.peer_agrees);
        if !agrees && !self.rx.nak_sent && !self.rx.rnr_sent {
            self.rx.nak_sent = true;
            self.owe_refusal(Debt::SequenceNak, psn);
        }
        self.owe_sack(true);
    }

    fn store(&mut self, pkt: &Packet<'_>) -> bool {
        let selective = self.selective.as_mut();
        selective.is_some_and(|s| s.reorder.store(pkt))
    }

    /// Puts the payload of a WRITE packet in its place, if that is known and safe.
    fn place<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
        ahead: u32,
    ) -> bool {
        let Some((grant, offset)) = self.place_of(cx, pkt, ahead) else {
            return false;
        };
        cx.mem.write(&grant, offset, pkt.payload()).is_ok()
            && self
                .selective
                .as_mut()
                .is_some_and(|s| s.reorder.keep_head(pkt))
    }

    /// Where the payload of a packet goes, if it describes its place, is well formed and belongs to
    /// the message that is expected next. The whole message must be allowed: what its first packet
    /// would be refused for must leave nothing behind.
    fn place_of<M: Memory, S: Sink>(
        &self,
        cx: &Cx<'_, M, S>,
        pkt: &Packet<'_>,
        ahead: u32,
    ) -> Option<(Grant, u32)> {
        let info = pkt.info();
        let (meth, reth) = (pkt.meth()?, pkt.reth()?);
        #[allow(clippy::cast_possible_truncation, reason = "the field has 16 bits")]
        let current = self.rx.msn.value() as u16;
        if meth.msn != current || info.starts() || !self.is_well_formed(pkt, &reth) {
            return None;
        }
        // All packets before this one are full.
        let skipped = ahead.checked_mul(1 << self.tx.mtu.shift())?;
        match self.rx.ongoing {
            Ongoing::Send => None,
            Ongoing::Write => {
                let running = self.selective.as_ref()?.running;
                let offset = self.rx.received.checked_add(skipped)?;
                let goes_on = reth.va == running.va.wrapping_add(skipped.into())
                    && reth.rkey == running.rkey
                    && offset.checked_add(reth.len) == Some(self.rx.write_len);
                goes_on.then_some((self.rx.grant, offset))
            }
            Ongoing::Nothing => {
                let len = reth.len.checked_add(skipped)?;
                if len > params::MESSAGE_LEN_MAX {
                    return None;
                }
                self.check_permitted(Operation::Write).ok()?;
                let va = Va::new(reth.va.value().wrapping_sub(skipped.into()));
                let whole = Reth { va, len, ..reth };
                let grant = self.check_key(cx, Operation::Write, &whole).ok()?;
                Some((grant, skipped))
            }
        }
    }

    /// Whether the lengths of a WRITE packet that is not the first agree with each other (S4).
    fn is_well_formed(&self, pkt: &Packet<'_>, reth: &Reth) -> bool {
        let (len, mtu) = (pkt.payload().len(), self.tx.mtu.bytes());
        let fits = if pkt.info().ends() {
            (1..=mtu).contains(&len) && reth.len as usize == len
        } else {
            len == mtu && reth.len as usize > len
        };
        fits && pkt.pad_ok()
    }

    /// Executes what is there in turn, until the next hole; `from` was expected before the packet
    /// that closed the last one.
    fn drain<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>, from: Psn) {
        let mut before = from;
        loop {
            let psn = self.rx.expected_psn;
            let Some(selective) = &mut self.selective else {
                return;
            };
            // PSNs that a READ took for its responses are no requests.
            let responses = before.distance_to(psn).unsigned_abs().saturating_sub(1);
            selective.reorder.drop_range(before.add(1), responses);
            if selective.reorder.is_empty() || !self.tx.state.receives() {
                return;
            }
            before = psn;
            let executed = match selective.reorder.take(psn) {
                Kept::Nothing => return,
                Kept::Placed {
                    head_len,
                    payload_len,
                } => self.finish_placed(cx, psn, head_len.into(), payload_len.into()),
                Kept::Stored { slot, len } => self.step_stored(cx, slot, len.into()),
            };
            if !executed {
                return;
            }
        }
    }

    /// The ordinary steps for a packet that was stored.
    fn step_stored<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        slot: u16,
        len: usize,
    ) -> bool {
        let Some(selective) = &mut self.selective else {
            return false;
        };
        let first = selective.reorder.slot_start(slot);
        // Lent out while the steps run, which do not look at it.
        let slots = core::mem::take(&mut selective.reorder.slots);
        let executed = match Packet::parse(slots.get(first..first + len).unwrap_or_default()) {
            Ok(pkt) => {
                let done = self.selective_step(cx, &pkt);
                let executed = done.is_ok();
                self.conclude(cx, &pkt, done);
                executed
            }
            Err(_) => false,
        };
        if let Some(selective) = &mut self.selective {
            selective.reorder.slots = slots;
            selective.reorder.release(slot);
        }
        executed
    }

    /// What is left to do for a packet whose payload is in its place.
    fn finish_placed<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        psn: Psn,
        head_len: usize,
        payload_len: usize,
    ) -> bool {
        let Some(head) = self.selective.as_ref().map(|s| *s.reorder.head(psn)) else {
            return false;
        };
        let Ok(pkt) = Packet::parse(head.get(..head_len).unwrap_or_default()) else {
            return false;
        };
        let done = self.step_placed(cx, &pkt, payload_len);
        let executed = done.is_ok();
        self.conclude(cx, &pkt, done);
        executed
    }

    fn step_placed<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
        payload_len: usize,
    ) -> Result<(), Reject> {
        let info = pkt.info();
        self.check_sequence(info, Operation::Write)?;
        self.check_permitted(Operation::Write)?;
        self.check_resources(cx, info, Operation::Write)?;
        self.check_goes_on(pkt, payload_len)?;
        // At most the rest of the message, as was just compared.
        self.rx.received += u32::try_from(payload_len).unwrap_or(0);
        self.note_running(pkt, payload_len);
        if info.ends() {
            self.rx.ongoing = Ongoing::Nothing;
            if info.has_imm() {
                let len = self.rx.write_len;
                self.complete_receive(cx.sink, pkt, WcOpcode::RecvRdmaWithImm, len);
            }
        }
        self.rx.rnr_sent = false;
        self.acknowledge(pkt, Operation::Write);
        Ok(())
    }

    /// A SACK is owed, behind NAKs. A peer that has not shown that it knows of them is told of a gap
    /// as any other is: by one NAK, upon which a selective requester shows itself by a probe.
    fn owe_sack(&mut self, urgent: bool) {
        if self.selective.as_ref().is_some_and(|s| !s.peer_agrees) {
            return;
        }
        if let Some(selective) = &mut self.selective
            && matches!(self.rx.debt, Debt::Nothing | Debt::Ack(_) | Debt::Sack)
            && self.tx.state.receives()
        {
            selective.reorder.urgent |= urgent;
            self.rx.debt = Debt::Sack;
        }
    }

    /// Whether a SACK goes out before the READ responses that are owed. The answer to a probe does
    /// not: it says that they have been sent.
    #[inline(never)]
    pub(in crate::qp) fn sack_goes_first(&self) -> bool {
        self.selective.as_ref().is_some_and(|s| s.reorder.urgent)
    }

    #[inline(never)]
    pub(in crate::qp) fn write_sack(&mut self, frame: &mut [u8]) -> Option<usize> {
        let expected = self.rx.expected_psn;
        let answers_probe = !self.replay.is_pending();
        let reorder = &mut self.selective.as_mut()?.reorder;
        let probe = reorder.probe.filter(|_| answers_probe);
        let cause = match probe {
            Some(id) => SackCause::Probe(id),
            None => reorder.cause(expected),
        };
        let seth = reorder.sack(expected, cause);
        let emit = Emit {
            opcode: Opcode::ExtSack,
            psn: seth.cack_psn,
            ack_req: false,
            solicited: false,
            payload_len: 0,
        };
        let mut out = self.template.as_mut()?.start(frame, &emit)?;
        out.seth(&seth);
        let len = out.finish();
        self.counters.rare().sacks_out += 1;
        if probe.is_some() {
            reorder.probe = None;
        }
        reorder.urgent = reorder.has_news(expected);
        let more = reorder.urgent || reorder.probe.is_some();
        self.rx.debt = if more { Debt::Sack } else { Debt::Nothing };
        Some(len)
    }

    /// After a NAK was paid: what is ahead has still to be told.
    #[inline(never)]
    pub(in crate::qp) fn owe_news(&mut self) {
        let expected = self.rx.expected_psn;
        let reorder = self.selective.as_ref().map(|s| &s.reorder);
        if reorder.is_some_and(|r| r.has_news(expected) || r.probe.is_some()) {
            self.owe_sack(true);
        }
    }
}
