//! What the responder owes its peer, and how it pays.
//!
//! Answers to READs, atomics, ATOMIC WRITE and FLUSH are in [`super::replay`] and leave in the
//! order of the requests. Behind them is one debt more, an ACK or a NAK: both acknowledge all
//! before their PSN, so that one is enough. Which it is, and what ends it, is a table in
//! `docs/protocol.md`.

use xroce_wire::aeth::Aeth;
use xroce_wire::newtypes::{Msn, Psn};
use xroce_wire::opcode::{Opcode, Operation, Position, Service};
use xroce_wire::packet::Packet;
use xroce_wire::syndrome::{NakCode, Syndrome};
use xroce_wire::template::Emit;

use super::hot::{Debt, Ongoing};
use super::replay::{Answer, Unanswered};
use super::{Cx, Qp, QpType, Transmit, atomic};
use crate::memory::Memory;
use crate::wc::Sink;

/// What is owed.
impl Qp {
    /// Moves the expected PSN on and notes what the peer is owed (S7).
    #[inline(always)]
    pub(super) fn acknowledge(&mut self, pkt: &Packet<'_>, operation: Operation) {
        let (info, psn) = (pkt.info(), pkt.psn());
        if info.ends() {
            self.rx.msn = self.rx.msn.next();
        }
        if atomic::has_response(operation) {
            self.rx.expected_psn = self.rx.last_read_psn.add(1);
            match self.rx.debt {
                Debt::SequenceNak | Debt::RnrNak(_) => {
                    self.rx.ack_behind = false;
                    self.move_nak(false);
                }
                // The response acknowledges all before it (R6).
                _ => self.rx.debt = Debt::Nothing,
            }
            return;
        }
        self.rx.expected_psn = psn.add(1);
        match self.rx.debt {
            Debt::Nothing if !pkt.ack_req() => {}
            Debt::Nothing | Debt::Ack(_) => self.rx.debt = Debt::Ack(psn),
            _ => self.move_nak(pkt.ack_req()),
        }
    }

    /// The expected packet came while something else than an ACK was owed. A NAK stands as long as
    /// a packet is missing that was sent, as one that was dropped shows, and is then at the new
    /// expected PSN. One beyond all that was ever sent would be a ghost, and with it what it
    /// acknowledges.
    #[cold]
    fn move_nak(&mut self, asked: bool) {
        let expected = self.rx.expected_psn;
        match self.rx.debt {
            Debt::SequenceNak | Debt::RnrNak(_) => {
                self.rx.ack_behind |= asked;
                if !self.rx.dropped_to.is_before(expected) {
                    self.rx.debt = Debt::SequenceNak;
                    self.rx.nak_sent = true;
                } else if self.rx.ack_behind {
                    self.rx.debt = Debt::Ack(expected.sub(1));
                } else {
                    self.rx.debt = Debt::Nothing;
                }
            }
            Debt::Sack if asked => self.rx.debt = Debt::Ack(expected.sub(1)),
            _ => {}
        }
    }

    /// The packet with this PSN was dropped, and the peer has to be told by this NAK.
    #[cold]
    pub(super) fn owe_refusal(&mut self, nak: Debt, dropped: Psn) {
        match self.rx.debt {
            Debt::SequenceNak | Debt::RnrNak(_) => self.note_dropped(dropped),
            owed => {
                self.rx.ack_behind = matches!(owed, Debt::Ack(_) | Debt::Sack);
                self.rx.dropped_to = dropped;
            }
        }
        self.rx.debt = nak;
    }

    /// Another packet was dropped, of which the NAK that is owed will tell.
    pub(super) fn note_dropped(&mut self, psn: Psn) {
        if self.rx.dropped_to.is_before(psn) {
            self.rx.dropped_to = psn;
        }
    }

    /// A duplicate asks for its ACK.
    pub(super) fn owe_ack_again(&mut self, acked: Psn) {
        match self.rx.debt {
            Debt::Nothing => self.rx.debt = Debt::Ack(acked),
            Debt::Ack(owed) if owed.is_before(acked) => self.rx.debt = Debt::Ack(acked),
            Debt::SequenceNak | Debt::RnrNak(_) => self.rx.ack_behind = true,
            Debt::Ack(_) | Debt::Sack | Debt::FatalNak(..) => {}
        }
    }

    /// A part of a READ is answered again from `psn` on, and nothing behind it: the ACK of a request
    /// behind it would tell the peer that a response got lost (R8). That request comes again.
    #[cold]
    pub(super) fn withhold_ack_beyond(&mut self, psn: Psn) {
        if let Debt::Ack(owed) = self.rx.debt
            && psn.is_before(owed)
        {
            self.rx.debt = Debt::Nothing;
        }
    }

    /// From now on no READ is answered, as before the queue pair ends: what it reads belongs to its
    /// owner again. What is owed otherwise stays, up to the first READ that was not answered.
    pub fn end_reads(&mut self) {
        if self.rx.debt == Debt::Sack {
            // What is ahead is forgotten. What was executed is not.
            let any = self.rx.msn != Msn::new(0) || self.rx.ongoing != Ongoing::Nothing;
            self.rx.debt = if any {
                Debt::Ack(self.rx.expected_psn.sub(1))
            } else {
                Debt::Nothing
            };
        }
        if let Some(Unanswered { psn, acked_before }) = self.replay.end_reads() {
            // An ACK of what came before was left to the response that does not come now.
            self.rx.debt = if acked_before {
                Debt::Nothing
            } else {
                Debt::Ack(psn.sub(1))
            };
        }
    }

    /// Forgets the latest READ, and those before it, once it lies more than half a lap of PSNs back:
    /// it would seem to lie ahead, and soon to be a new one. A peer has fewer PSNs than that
    /// unacknowledged, so that it is noticed in time where ACKs are sent.
    #[inline]
    pub(super) fn forget_old_reads(&mut self) {
        if self.rx.has_read && !self.rx.last_read_psn.is_before(self.rx.expected_psn) {
            self.forget_reads();
        }
    }

    #[cold]
    fn forget_reads(&mut self) {
        self.rx.has_read = false;
        self.replay.expire();
    }
}

/// How it is paid.
impl Qp {
    /// Pays one debt: a READ response, else the ACK or NAK owed (S8: in request order).
    #[inline]
    pub(super) fn poll_response<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<usize> {
        if self.rx.debt == Debt::Sack && self.sack_goes_first() {
            return self.write_sack(frame);
        }
        while self.replay.is_pending() {
            match self.write_read_response(cx, frame) {
                Ok(len) => {
                    self.on_data_sent(cx.now, len?);
                    return len;
                }
                // Nobody may be waiting for it: a duplicate is never answered by a NAK (S12).
                Err(_) if self.replay.drop_repetition() => {}
                // The memory went away in the middle of the answer (case 26).
                Err(psn) => self.refuse_read(cx, psn),
            }
        }
        self.pay_debt(frame)
    }

    /// Whether the peer is owed anything: an answer, an ACK or a NAK.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.replay.is_pending() || self.rx.debt != Debt::Nothing
    }

    /// Writes what the peer is still owed into `frame`, for a driver that is about to end the queue
    /// pair or to take it back to RESET. Nothing completes, and no request is sent. READ responses
    /// are as long as the path MTU; without them ([`Qp::end_reads`]) 128 bytes are enough.
    pub fn poll_last_words<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        if self.tx.qp_type != QpType::Rc {
            return None;
        }
        let len = self.last_word(cx, frame)?;
        self.counters.tx_packets += 1;
        Some(Transmit {
            len,
            dst: self.cold.av.dst,
            traffic_class: self.cold.traffic_class,
        })
    }

    fn last_word<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<usize> {
        while self.replay.is_pending() {
            if !self.may_pass(cx.now) {
                // There is no time to keep to a rate. Of what is no data there is little.
                self.end_reads();
                if !self.replay.is_pending() {
                    break;
                }
            }
            match self.write_read_response(cx, frame) {
                Ok(len) => {
                    self.on_data_sent(cx.now, len?);
                    return len;
                }
                Err(_) if self.replay.drop_repetition() => {}
                Err(_) => self.end_reads(),
            }
        }
        self.pay_debt(frame)
    }

    /// Writes the ACK, NAK or SACK that is owed.
    #[inline]
    fn pay_debt(&mut self, frame: &mut [u8]) -> Option<usize> {
        let (psn, syndrome) = match self.rx.debt {
            Debt::Nothing => return None,
            Debt::Ack(psn) => (psn, Syndrome::ACK),
            Debt::SequenceNak => (self.rx.expected_psn, Syndrome::Nak(NakCode::PsnSequence)),
            Debt::RnrNak(timer) => (self.rx.expected_psn, Syndrome::RnrNak { timer }),
            Debt::Sack => return self.write_sack(frame),
            Debt::FatalNak(code, psn) => (psn, Syndrome::Nak(code)),
        };
        let len = self.write_acknowledge(frame, psn, syndrome)?;
        match self.rx.debt {
            Debt::Nothing | Debt::Ack(_) | Debt::Sack => self.counters.acks_out += 1,
            Debt::SequenceNak => self.counters.rare().seq_naks_out += 1,
            Debt::RnrNak(_) => self.counters.rare().rnr_naks_out += 1,
            Debt::FatalNak(code, _) => self.count_fatal_nak(code),
        }
        self.rx.debt = Debt::Nothing;
        self.forget_old_reads();
        if self.selective.is_some() {
            self.owe_news();
        }
        Some(len)
    }

    #[inline]
    fn write_acknowledge(
        &mut self,
        frame: &mut [u8],
        psn: Psn,
        syndrome: Syndrome,
    ) -> Option<usize> {
        let emit = Emit {
            opcode: Opcode::RcAcknowledge,
            psn,
            ack_req: false,
            solicited: false,
            payload_len: 0,
        };
        let mut out = self.template.as_mut()?.start(frame, &emit)?;
        out.aeth(&Aeth {
            syndrome,
            msn: self.rx.msn,
        });
        Some(out.finish())
    }

    /// Writes the next READ response; `Err` names the PSN whose memory is gone.
    fn write_read_response<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Result<Option<usize>, Psn> {
        let Some(response) = self.replay.front(self.tx.mtu) else {
            return Ok(None);
        };
        if let Answer::Atomic(_, original) = response.answer {
            return Ok(self.write_atomic_ack(frame, response.psn, original));
        }
        let position = Position::of(response.is_first, response.is_last);
        let (Some(opcode), Some(template)) = (
            Opcode::read_response(Service::Rc, position),
            self.template.as_mut(),
        ) else {
            return Ok(None);
        };
        let emit = Emit {
            opcode,
            psn: response.psn,
            ack_req: false,
            solicited: false,
            payload_len: response.len as usize,
        };
        let Some(mut out) = template.start(frame, &emit) else {
            return Ok(None);
        };
        if position != Position::Middle {
            out.aeth(&Aeth {
                syndrome: Syndrome::ACK,
                msn: self.rx.msn,
            });
        }
        if response.len != 0 {
            cx.mem
                .read(&response.grant, response.offset, out.payload_mut())
                .map_err(|_| response.psn)?;
        }
        let len = out.finish();
        self.counters.tx_bytes += u64::from(response.len);
        self.replay.advance();
        Ok(Some(len))
    }
}
