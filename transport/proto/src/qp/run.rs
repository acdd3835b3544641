//! Runs: the packets of plain SENDs and WRITEs, one behind the other.
//!
//! [`Qp::poll_transmit`] asks before every packet what may keep it from leaving: debts, resending,
//! RNR waits, the window, fences. In the usual state none of it does, and none of it can
//! change while a queue pair has its turn. A [`Run`] asks once; its packets look at their WQE
//! alone, and their headers are stamped from the last one's. Whatever it does not know, it leaves
//! to [`Qp::poll_transmit`], which is its slow twin: the packets are the same (`tests/run.rs`).

use xroce_wire::newtypes::Gid;
use xroce_wire::opcode::{Opcode, Operation};
use xroce_wire::reth::Reth;
use xroce_wire::template::{Emit, Stamp};

use super::hot::Debt;
use super::sq::Wqe;
use super::{Cx, Qp, QpState, QpType, sge};
use crate::memory::{Access, Memory};
use crate::time::Instant;
use crate::wc::Sink;

/// Opcodes of SEND by whether a packet begins and ends its message.
const SENDS: [[Opcode; 2]; 2] = [
    [Opcode::RcSendMiddle, Opcode::RcSendLast],
    [Opcode::RcSendFirst, Opcode::RcSendOnly],
];
/// The same of WRITE.
const WRITES: [[Opcode; 2]; 2] = [
    [Opcode::RcWriteMiddle, Opcode::RcWriteLast],
    [Opcode::RcWriteFirst, Opcode::RcWriteOnly],
];

/// What a run finds when it looks ahead.
#[derive(Clone, Copy, Debug)]
pub enum Look {
    /// A packet, to be written by [`Run::write`].
    Packet(Ahead),
    /// The queue pair has nothing (more) that may leave.
    Done,
    /// Something that [`Qp::poll_transmit`] knows how to do, or to wait with.
    Unusual,
}

/// The work request whose packet is next.
#[derive(Clone, Copy, Debug)]
pub struct Ahead(Wqe);

/// Packets of a queue pair in its usual state.
#[derive(Debug)]
pub struct Run<'q> {
    qp: &'q mut Qp,
    stamp: Option<Stamp>,
    /// Packets the window still lets out.
    room: u32,
    /// The time, if a pacer says what may leave at it.
    paced: Option<Instant>,
}

impl Wqe {
    /// Whether a run knows how to send it.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        self.traits.is_empty() && self.imm.is_none() && self.is_one_piece()
    }
}

impl Qp {
    /// A run, if nothing but work requests decides what leaves at the moment.
    #[inline]
    pub fn run(&mut self, now: Instant) -> Option<Run<'_>> {
        let tx = &self.tx;
        let usual = tx.qp_type == QpType::Rc
            && tx.state == QpState::Rts
            && !tx.poisoned
            && tx.next_psn == tx.max_psn
            && tx.rnr_until == Instant::NEVER
            && self.rx.debt == Debt::Nothing
            && !self.cnp_owed
            && !tx.solicit
            && self.selective.is_none()
            && !self.replay.is_pending();
        if !usual {
            return None;
        }
        let in_flight = tx.una_psn.distance_to(tx.next_psn).unsigned_abs();
        let room = self.window_psns().saturating_sub(in_flight);
        self.responded_last = false;
        self.ack_passed = false;
        // While it has its turn only its own bytes change its rate: none comes to be limited.
        let is_paced = self.rate().is_limited();
        Some(Run {
            qp: self,
            stamp: None,
            room,
            paced: is_paced.then_some(now),
        })
    }
}

impl Run<'_> {
    /// Where all its packets go, and their TOS or traffic class.
    #[inline]
    #[must_use]
    pub fn path(&self) -> (Gid, u8) {
        (self.qp.cold.av.dst, self.qp.cold.traffic_class)
    }

    /// What is next.
    #[inline(always)]
    #[must_use]
    pub fn look(&self) -> Look {
        let index = self.qp.tx.send_index;
        if index == self.qp.sq.tail || self.room == 0 {
            return Look::Done;
        }
        if let Some(now) = self.paced
            && self.qp.pacer.next() > now
        {
            return Look::Done;
        }
        let wqe = self.qp.sq.wqe(index);
        if wqe.is_plain() {
            Look::Packet(Ahead(*wqe))
        } else {
            Look::Unusual
        }
    }

    /// Writes the packet that [`Run::look`] has just found into `frame` and gives its length;
    /// `None` if [`Qp::poll_transmit`] has to see to it, as where memory is not accessible. Nothing
    /// has changed then.
    #[inline(always)]
    pub fn write<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        ahead: &Ahead,
        frame: &mut [u8],
    ) -> Option<usize> {
        let Ahead(wqe) = ahead;
        let qp = &*self.qp;
        let index = qp.tx.send_index;
        let is_fresh = index == qp.sq.started;
        let psns = if is_fresh {
            qp.tx.mtu.packets(wqe.len)
        } else {
            wqe.psns
        };
        // The only packet of a message is checked when it is gathered.
        if is_fresh && psns != 1 {
            let pd = qp.cold.init.pd;
            sge::check(cx, pd, wqe.only_sge(), Access::empty()).ok()?;
        }
        let packet = qp.tx.send_packet;
        let is_last = packet + 1 == psns;
        let ack_req = qp.wants_ack(index, is_last, false);
        let len = self.emit(cx, frame, wqe, packet, is_last, ack_req)?;
        let qp = &mut *self.qp;
        let psn = qp.tx.next_psn;
        if is_fresh {
            qp.give_psns(index, psns);
        }
        qp.on_request_sent(cx.now, is_last, 1, len, ack_req);
        if ack_req && qp.timed.sent == Instant::NEVER {
            qp.time_packet(cx.now, wqe, packet, psn);
        }
        qp.counters.tx_packets += 1;
        self.room -= 1;
        Some(len)
    }

    /// The packet itself.
    #[inline(always)]
    fn emit<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
        wqe: &Wqe,
        packet: u32,
        is_last: bool,
        ack_req: bool,
    ) -> Option<usize> {
        let qp = &mut *self.qp;
        let is_first = packet == 0;
        let opcodes = match wqe.operation {
            Operation::Send => &SENDS,
            Operation::Write => &WRITES,
            _ => return None,
        };
        let opcode = opcodes[usize::from(is_first)][usize::from(is_last)];
        let offset = packet << qp.tx.mtu.shift();
        let payload_len = ((wqe.len - offset) as usize).min(qp.tx.mtu.bytes());
        let emit = Emit {
            opcode,
            psn: qp.tx.next_psn,
            ack_req,
            solicited: is_last && wqe.is_solicited(),
            payload_len,
        };
        let stamp = match &self.stamp {
            Some(stamp) if stamp.fits(opcode, payload_len) => stamp,
            _ => {
                let fresh = qp.template.as_ref()?.stamp(opcode, payload_len)?;
                self.stamp.insert(fresh)
            }
        };
        let mut out = stamp.start(frame, &emit)?;
        if opcode.info().reth_offset().is_some() {
            out.reth(&Reth {
                va: wqe.va,
                rkey: wqe.rkey,
                len: wqe.len,
            });
        }
        let len = if payload_len == 0 {
            out.finish()
        } else {
            let head = out.head()?;
            let [sge] = wqe.only_sge() else { return None };
            let pd = qp.cold.init.pd;
            let register = cx
                .mem
                .gather(pd, sge, offset, out.payload_mut(), &head)
                .ok()?;
            out.finish_joined(register)
        };
        qp.counters.tx_bytes += payload_len as u64;
        Some(len)
    }
}
