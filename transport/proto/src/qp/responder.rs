//! Responder: requests to memory operations and debts (S1 to S16).
//!
//! [`Qp::step`] is the order of checks of the specification, one function each; a refusal is one
//! of the kinds of [`Reject`]. Nothing is sent here: `debt.rs` says what is owed, and pays.

use xroce_wire::newtypes::Psn;
use xroce_wire::opcode::{OpcodeInfo, Operation, Position};
use xroce_wire::packet::Packet;
use xroce_wire::reth::Reth;
use xroce_wire::syndrome::NakCode;

use super::hot::{Debt, Ongoing};
use super::replay::{Asked, ReadJob, Repetition};
use super::shared::takes_receive;
use super::{Cx, Qp, QpState, atomic, sge};
use crate::memory::{Access, Grant, Memory};
use crate::params;
use crate::reject::{Reject, Why};
use crate::wc::{Event, Sink, WcFlags, WcOpcode, WcStatus};

pub(super) const INVALID_REQUEST: Reject =
    Reject::Fatal(NakCode::InvalidRequest, WcStatus::RemInvReqErr);
pub(super) const REMOTE_ACCESS: Reject =
    Reject::Fatal(NakCode::RemoteAccess, WcStatus::LocAccessErr);

impl Qp {
    #[inline(always)]
    pub(super) fn handle_request<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
    ) {
        if self.selective.is_some() {
            self.selective_request(cx, pkt);
            return;
        }
        // The checks of SEND alone, where the operation is known when they are compiled: every one
        // of them asks for it.
        let done = match pkt.info().operation {
            Operation::Send => self.step(cx, pkt, Operation::Send),
            operation => self.step_other(cx, pkt, operation),
        };
        self.conclude(cx, pkt, done);
    }

    /// Counts, or notes what the peer is owed, for a packet that was refused.
    #[inline(always)]
    pub(super) fn conclude<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
        done: Result<(), Reject>,
    ) {
        match done {
            Ok(()) => {}
            Err(Reject::Discard(why)) => match why {
                Why::OutOfSequence => self.counters.rare().out_of_sequence += 1,
                Why::Duplicate => {}
                _ => self.counters.rare().discards += 1,
            },
            Err(Reject::Sequence) => {
                self.counters.rare().out_of_sequence += 1;
                self.rx.nak_sent = true;
                self.owe_refusal(Debt::SequenceNak, pkt.psn());
            }
            Err(Reject::Rnr(timer)) => {
                self.rx.rnr_sent = true;
                self.owe_refusal(Debt::RnrNak(timer), pkt.psn());
            }
            Err(Reject::Fatal(code, status)) => self.refuse(cx, pkt, code, status),
        }
    }

    #[inline(never)]
    pub(super) fn step_other<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
        operation: Operation,
    ) -> Result<(), Reject> {
        self.step(cx, pkt, operation)
    }

    /// The checks in order (S3), then the operation, which is the packet's.
    #[inline(always)]
    fn step<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
        operation: Operation,
    ) -> Result<(), Reject> {
        let ahead = self.rx.expected_psn.distance_to(pkt.psn());
        if ahead < 0 {
            return self.duplicate(cx, pkt);
        }
        if ahead > 0 {
            return Err(self.gap(pkt.psn()));
        }
        self.rx.nak_sent = false;
        if self.tx.state == QpState::Rtr && !self.cold.comm_est {
            self.cold.comm_est = true;
            cx.sink.event(self.cold.qpn, Event::CommEst);
        }
        let info = pkt.info();
        self.check_sequence(info, operation)?;
        self.check_permitted(operation)?;
        self.check_resources(cx, info, operation)?;
        self.check_length(pkt, operation)?;
        let named = match operation {
            Operation::Write | Operation::ReadRequest => match pkt.reth() {
                Some(reth) if info.starts() => Some((reth, self.check_key(cx, operation, &reth)?)),
                _ => None,
            },
            _ => None,
        };
        self.execute(cx, named, pkt, operation)?;
        self.rx.rnr_sent = false;
        self.acknowledge(pkt, operation);
        Ok(())
    }

    /// One NAK per gap, and none while the peer waits for an RNR timer (S1, S6).
    #[cold]
    fn gap(&mut self, psn: Psn) -> Reject {
        if self.rx.nak_sent || self.rx.rnr_sent {
            self.note_dropped(psn);
            Reject::Discard(Why::OutOfSequence)
        } else {
            Reject::Sequence
        }
    }

    /// Inside a message only its Middle and Last, outside only First and Only (S2).
    #[inline(always)]
    pub(super) fn check_sequence(
        &self,
        info: &OpcodeInfo,
        operation: Operation,
    ) -> Result<(), Reject> {
        let ongoing = match operation {
            Operation::Send => Ongoing::Send,
            Operation::Write => Ongoing::Write,
            _ => Ongoing::Nothing,
        };
        let fits = if info.starts() {
            self.rx.ongoing == Ongoing::Nothing
        } else {
            self.rx.ongoing == ongoing
        };
        if fits { Ok(()) } else { Err(INVALID_REQUEST) }
    }

    /// What the QP allows at all; its rights give NAK invalid request, not access error (K4).
    #[inline(always)]
    pub(super) fn check_permitted(&self, operation: Operation) -> Result<(), Reject> {
        let access = self.cold.access;
        let allowed = match operation {
            Operation::Send => true,
            Operation::Write | Operation::AtomicWrite => access.contains(Access::REMOTE_WRITE),
            Operation::ReadRequest => access.contains(Access::REMOTE_READ),
            Operation::CmpSwap | Operation::FetchAdd => access.contains(Access::REMOTE_ATOMIC),
            // Which of the two rights it needs is in its header.
            Operation::Flush => true,
            _ => false,
        };
        if allowed {
            Ok(())
        } else {
            Err(INVALID_REQUEST)
        }
    }

    #[inline(always)]
    pub(super) fn check_resources<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        info: &OpcodeInfo,
        operation: Operation,
    ) -> Result<(), Reject> {
        if takes_receive(operation, info) && !self.has_receive(cx.sink) {
            return Err(Reject::Rnr(self.cold.min_rnr_timer));
        }
        if operation == Operation::Flush {
            return self.check_flush_room();
        }
        if atomic::has_response(operation) && !self.replay.has_room() {
            return Err(INVALID_REQUEST);
        }
        Ok(())
    }

    /// More FLUSHes than can be kept are no error. The NAK for this one leaves behind the answers
    /// that are owed, so that there is room when it comes again: sooner than after an RNR timer,
    /// and without the timeout that silence would cost. A selective peer repairs it by itself.
    #[cold]
    fn check_flush_room(&self) -> Result<(), Reject> {
        if self.replay.has_flush_room() {
            Ok(())
        } else if self.selective.is_some() {
            Err(Reject::Discard(Why::OutOfSequence))
        } else {
            Err(Reject::Sequence)
        }
    }

    /// Position, announced length and padding agree with the payload (S4).
    #[inline(always)]
    pub(super) fn check_length(
        &self,
        pkt: &Packet<'_>,
        operation: Operation,
    ) -> Result<(), Reject> {
        let info = pkt.info();
        let len = pkt.payload().len();
        let mtu = self.tx.mtu.bytes();
        let fits = match info.position {
            Position::First | Position::Middle => len == mtu,
            Position::Last => (1..=mtu).contains(&len),
            Position::Only => len <= mtu,
        };
        let padded = (len + usize::from(pkt.pad())).is_multiple_of(4) && pkt.pad() < 4;
        if !fits || !padded {
            return Err(INVALID_REQUEST);
        }
        match operation {
            Operation::Write => {
                let (total, received) = match pkt.reth() {
                    Some(reth) if info.starts() => (reth.len, 0),
                    _ => (self.rx.write_len, self.rx.received),
                };
                let rest = (total - received) as usize;
                let agrees = if info.ends() { rest == len } else { rest > len };
                if total > params::MESSAGE_LEN_MAX || !agrees {
                    return Err(INVALID_REQUEST);
                }
            }
            Operation::ReadRequest => {
                let total = pkt.reth().map_or(0, |r| r.len);
                let psns = self.tx.mtu.packets(total);
                if len != 0
                    || total > params::MESSAGE_LEN_MAX
                    || psns > params::OUTSTANDING_PSNS_MAX
                {
                    return Err(INVALID_REQUEST);
                }
            }
            Operation::Send => {}
            operation => return atomic::check_length(operation, pkt),
        }
        Ok(())
    }

    /// The whole range once, at the packet that names it; nothing for zero bytes (K3, K4).
    #[inline]
    pub(super) fn check_key<M: Memory, S: Sink>(
        &self,
        cx: &Cx<'_, M, S>,
        operation: Operation,
        reth: &Reth,
    ) -> Result<Grant, Reject> {
        let need = if operation == Operation::ReadRequest {
            Access::REMOTE_READ
        } else {
            Access::REMOTE_WRITE
        };
        self.grant_for(cx, reth, need).ok_or(REMOTE_ACCESS)
    }

    fn grant_for<M: Memory, S: Sink>(
        &self,
        cx: &Cx<'_, M, S>,
        reth: &Reth,
        need: Access,
    ) -> Option<Grant> {
        if reth.len == 0 {
            return Some(Grant::EMPTY);
        }
        let (pd, qpn) = (self.cold.init.pd, self.cold.qpn);
        cx.mem
            .check_remote(pd, qpn, reth.rkey, reth.va, reth.len, need)
            .ok()
    }

    #[inline(always)]
    pub(super) fn execute<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        named: Option<(Reth, Grant)>,
        pkt: &Packet<'_>,
        operation: Operation,
    ) -> Result<(), Reject> {
        match (operation, named) {
            (Operation::Send, _) => self.execute_send(cx, pkt),
            (Operation::Write, named) => self.execute_write(cx, named, pkt),
            (Operation::ReadRequest, Some((reth, grant))) => {
                self.accept_read(&reth, grant, pkt.psn());
                Ok(())
            }
            _ => self.execute_at_once(cx, pkt),
        }
    }

    #[inline(always)]
    fn execute_send<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
    ) -> Result<(), Reject> {
        let (info, payload) = (pkt.info(), pkt.payload());
        if info.starts() {
            self.rx.received = 0;
        }
        let received = self.rx.received;
        let (capacity, sges) = self.rq.front_room();
        let end = u64::from(received) + payload.len() as u64;
        if end > capacity {
            return Err(Reject::Fatal(NakCode::InvalidRequest, WcStatus::LocLenErr));
        }
        let pd = self.cold.init.pd;
        sge::scatter(cx, pd, sges, received.into(), payload)
            .map_err(|_| Reject::Fatal(NakCode::RemoteOperational, WcStatus::LocProtErr))?;
        // A capacity is below 2^37, but a message below 2^32: `end` counts what arrived.
        self.rx.received = u32::try_from(end)
            .map_err(|_| Reject::Fatal(NakCode::InvalidRequest, WcStatus::LocLenErr))?;
        if let Some(rkey) = pkt.ieth() {
            self.invalidate_remote(cx, rkey)?;
        }
        self.rx.ongoing = if info.ends() {
            Ongoing::Nothing
        } else {
            Ongoing::Send
        };
        if info.ends() {
            self.complete_receive(cx.sink, pkt, WcOpcode::Recv, self.rx.received);
        }
        Ok(())
    }

    #[inline(always)]
    fn execute_write<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        named: Option<(Reth, Grant)>,
        pkt: &Packet<'_>,
    ) -> Result<(), Reject> {
        let (info, payload) = (pkt.info(), pkt.payload());
        if let Some((reth, grant)) = named {
            self.counters.writes_in += 1;
            self.rx.grant = grant;
            self.rx.write_len = reth.len;
            self.rx.received = 0;
        }
        if !payload.is_empty() {
            cx.mem
                .write(&self.rx.grant, self.rx.received, payload)
                .map_err(|_| REMOTE_ACCESS)?;
        }
        // At most MESSAGE_LEN_MAX together: check_length compared it with the announced length.
        self.rx.received += u32::try_from(payload.len()).unwrap_or(0);
        self.rx.ongoing = if info.ends() {
            Ongoing::Nothing
        } else {
            Ongoing::Write
        };
        if info.ends() && info.has_imm() {
            self.complete_receive(cx.sink, pkt, WcOpcode::RecvRdmaWithImm, self.rx.write_len);
        }
        Ok(())
    }

    fn accept_read(&mut self, reth: &Reth, grant: Grant, psn: Psn) {
        self.counters.reads_in += 1;
        let mtu = self.tx.mtu;
        let job = ReadJob::new(reth.va, reth.rkey, reth.len, psn, mtu, grant);
        self.owe(job);
    }

    /// Leaves a request to be answered from the ring.
    pub(super) fn owe(&mut self, job: ReadJob) {
        self.note_read(job.first_psn.add(job.psns - 1));
        self.replay.push(job);
    }

    /// A request that is answered by a response of its own takes the PSNs up to this one.
    pub(super) fn note_read(&mut self, last: Psn) {
        self.rx.has_read = true;
        self.rx.last_read_psn = last;
    }

    #[inline(always)]
    pub(super) fn complete_receive(
        &mut self,
        sink: &mut impl Sink,
        pkt: &Packet<'_>,
        opcode: WcOpcode,
        byte_len: u32,
    ) {
        let Some(wr_id) = self.rq.retire() else {
            return;
        };
        let mut wc = self.completion(wr_id, WcStatus::Success, opcode);
        wc.byte_len = byte_len;
        if let Some(imm) = pkt.imm() {
            wc.imm = imm;
            wc.flags |= WcFlags::WITH_IMM;
        }
        if let Some(rkey) = pkt.ieth() {
            wc.imm = rkey.value().to_be_bytes();
            wc.flags |= WcFlags::WITH_INV;
        }
        wc.flags.set(WcFlags::SOLICITED, pkt.solicited());
        self.counters.recvs_completed += 1;
        sink.complete(self.cold.init.recv_cq, wc);
    }

    /// A SEND or WRITE seen before is acknowledged again and not executed; a READ is answered
    /// again from memory, an atomic from its stored result; anything else is dropped. Never a NAK
    /// (S12).
    fn duplicate<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
    ) -> Result<(), Reject> {
        self.counters.rare().duplicates += 1;
        self.forget_old_reads();
        let psn = pkt.psn();
        match pkt.info().operation {
            Operation::Send | Operation::Write => {
                // A re-ACK beyond a READ would tell the peer that its response was lost (R8).
                let passes_read = self.rx.has_read && !self.rx.last_read_psn.is_before(psn);
                let acked = if passes_read {
                    psn
                } else {
                    self.rx.expected_psn.sub(1)
                };
                self.owe_ack_again(acked);
                Ok(())
            }
            Operation::ReadRequest => {
                let Some(reth) = pkt.reth() else {
                    return Err(Reject::Discard(Why::Duplicate));
                };
                let asked = Asked {
                    psn,
                    va: reth.va,
                    rkey: reth.rkey,
                    len: reth.len,
                };
                let (pd, qpn, mem) = (self.cold.init.pd, self.cold.qpn, &*cx.mem);
                let repetition = self.replay.rewind(&asked, self.tx.mtu, |job| {
                    if job.len == 0 {
                        return Some(Grant::EMPTY);
                    }
                    mem.check_remote(pd, qpn, job.rkey, job.va, job.len, Access::REMOTE_READ)
                        .ok()
                });
                match repetition {
                    Repetition::Dropped => return Err(Reject::Discard(Why::Duplicate)),
                    Repetition::Whole => {}
                    Repetition::Part => self.withhold_ack_beyond(psn),
                }
                Ok(())
            }
            _ => self.repeat(pkt),
        }
    }
}
