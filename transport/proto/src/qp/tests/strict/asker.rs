//! A requester, plain and obvious: go-back-N over a network that overtakes and copies.
//!
//! It keeps every request it ever made. A response must be the next one it waits for, or one it
//! has had: the way back neither loses nor reorders.

use xroce_wire::opcode::Operation;

use super::super::*;

/// Path MTU of these conversations.
pub(super) const PMTU: usize = 256;
/// Bench memory: READs, which nothing changes; WRITEs; receives; words.
pub(super) const WRITES: u64 = 0x4000;
pub(super) const RECEIVES: u64 = 0xc000;
pub(super) const WORDS: u64 = 0xf000;
/// Places in the order of requests, which do not wrap: the first PSN has this one.
const START: u64 = 1 << 24;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Send,
    /// SEND that takes the key back.
    SendInv,
    Write,
    Read,
    Swap,
    Add,
    Store,
    Flush,
}
use Kind::{Add, Flush, Read, Send, SendInv, Store, Swap, Write};

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) kind: Kind,
    /// Place in memory, from its start, and length.
    pub(super) at: u64,
    pub(super) len: u32,
    /// What it carries; operands of atomics.
    pub(super) bytes: Vec<u8>,
    pub(super) operand: u64,
    /// What an atomic finds.
    pub(super) original: u64,
    /// Asks for an ACK at its end.
    pub(super) asks: bool,
    /// Its place: where it begins.
    pub(super) begin: u64,
}

impl Ask {
    /// PSNs it takes.
    pub(super) fn psns(&self) -> u64 {
        (self.len as usize).div_ceil(PMTU).max(1) as u64
    }

    pub(super) fn has_response(&self) -> bool {
        !matches!(self.kind, Send | SendInv | Write)
    }

    /// Whether it needs the key of the memory.
    pub(super) fn needs_key(&self) -> bool {
        self.len != 0 || matches!(self.kind, Swap | Add | Store | Flush)
    }

    /// The request packet for one of its PSNs; of a READ: for all from it on.
    fn packet(&self, psn: u32, index: u64) -> P {
        let (first, last) = (index == 0, index + 1 == self.psns());
        let opcode = match (self.kind, first, last) {
            (Send, true, true) => Opcode::RcSendOnly,
            (Send, true, false) => Opcode::RcSendFirst,
            (Send, false, true) => Opcode::RcSendLast,
            (Send, false, false) => Opcode::RcSendMiddle,
            (SendInv, ..) => Opcode::RcSendOnlyInvalidate,
            (Write, true, true) => Opcode::RcWriteOnly,
            (Write, true, false) => Opcode::RcWriteFirst,
            (Write, false, true) => Opcode::RcWriteLast,
            (Write, false, false) => Opcode::RcWriteMiddle,
            (Read, ..) => Opcode::RcReadRequest,
            (Swap, ..) => Opcode::RcCmpSwap,
            (Add, ..) => Opcode::RcFetchAdd,
            (Store, ..) => Opcode::RcAtomicWrite,
            (Flush, ..) => Opcode::RcFlush,
        };
        let skip = index as usize * PMTU;
        let va = BASE + self.at;
        let packet = p(opcode, psn);
        let packet = match self.kind {
            Read => packet.reth(va + skip as u64, KEY, self.len - skip as u32),
            Swap => packet.atomic(va, KEY, self.operand, self.original),
            Add => packet.atomic(va, KEY, self.operand, 0),
            Store => packet.reth(va, KEY, 8).bytes(&self.bytes),
            Flush => packet.reth(va, KEY, 64).feth(1, 0),
            Write => packet.reth(va, KEY, self.len).bytes(self.part(skip)),
            SendInv => packet.inv(KEY).bytes(self.part(skip)),
            Send => packet.bytes(self.part(skip)),
        };
        let ask = self.has_response() || last && self.asks;
        if ask { packet.a() } else { packet }
    }

    fn part(&self, skip: usize) -> &[u8] {
        &self.bytes[skip..self.bytes.len().min(skip + PMTU)]
    }
}

/// The requester.
pub(super) struct Asker {
    /// PSN of the very first request.
    first: u32,
    pub(super) asks: Vec<Ask>,
    /// Requests made so far: those that were sent once.
    pub(super) made: usize,
    /// Requests that are done, and responses of the next one that are.
    pub(super) done: usize,
    had: u64,
    /// The next packet: of this request, this one of its PSNs.
    next: (usize, u64),
    /// Where the next request begins.
    end: u64,
    /// READs, atomics and the like at once.
    limit: usize,
    /// FLUSH is not counted, as rxe has it.
    flush_is_free: bool,
    /// What memory held at first: what READs return.
    memory: Vec<u8>,
}

/// What is asked before it leaves.
pub(super) enum Next {
    Packet(P),
    /// It waits for responses.
    Waits,
    /// All have been sent.
    Nothing,
}

impl Asker {
    pub(super) fn new(first: u32, asks: Vec<Ask>, limit: usize, memory: &[u8]) -> Self {
        Self {
            first,
            asks,
            made: 0,
            done: 0,
            had: 0,
            next: (0, 0),
            end: START,
            limit,
            flush_is_free: false,
            memory: memory.to_vec(),
        }
    }

    pub(super) fn flush_is_free(mut self) -> Self {
        self.flush_is_free = true;
        self
    }

    pub(super) fn psn(&self, at: u64) -> Psn {
        Psn::new(((u64::from(self.first) + at - START) & 0xff_ffff) as u32)
    }

    /// Where the oldest PSN not acknowledged is.
    pub(super) fn oldest(&self) -> u64 {
        match self.asks.get(self.done).filter(|_| self.done < self.made) {
            Some(ask) => ask.begin + self.had,
            None => self.end,
        }
    }

    /// The place of a PSN near the oldest one.
    pub(super) fn place(&self, psn: Psn) -> u64 {
        let oldest = self.oldest();
        oldest.wrapping_add_signed(self.psn(oldest).distance_to(psn).into())
    }

    /// Which request a place belongs to.
    fn ask_at(&self, place: u64) -> Option<usize> {
        let made = &self.asks[..self.made];
        let nth = made
            .partition_point(|ask| ask.begin <= place)
            .checked_sub(1)?;
        (place < made[nth].begin + made[nth].psns()).then_some(nth)
    }

    pub(super) fn is_done(&self) -> bool {
        self.done == self.asks.len()
    }

    /// Nothing is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.done == self.made
    }

    /// The next PSNs are skipped: as after so many requests that left nothing behind.
    pub(super) fn skip(&mut self, psns: u64) {
        assert!(self.is_quiet());
        self.end += psns;
    }

    /// Sends the next packet, if it may; `hold`: no new request.
    pub(super) fn sends(&mut self, hold: bool) -> Next {
        let (nth, index) = self.next;
        let Some(ask) = self.asks.get(nth) else {
            return Next::Nothing;
        };
        let fresh = nth == self.made;
        if fresh {
            let counts =
                |ask: &&Ask| ask.has_response() && !(self.flush_is_free && ask.kind == Flush);
            let under_way = self.asks[self.done..self.made]
                .iter()
                .filter(counts)
                .count();
            if hold || counts(&ask) && under_way >= self.limit {
                return Next::Waits;
            }
            self.asks[nth].begin = self.end;
            self.end += self.asks[nth].psns();
            self.made += 1;
        }
        let ask = &self.asks[nth];
        let packet = ask.packet(self.psn(ask.begin + index).value(), index);
        let is_last = ask.has_response() || index + 1 == ask.psns();
        self.next = if is_last {
            (nth + 1, 0)
        } else {
            (nth, index + 1)
        };
        Next::Packet(packet)
    }

    /// Goes back to the oldest packet that is not acknowledged.
    pub(super) fn goes_back(&mut self) {
        self.next = (self.done, self.had);
    }

    /// Everything before this place was executed. What has a response must have had it, unless
    /// it was a SACK that said so.
    fn executed_before(&mut self, place: u64, by_sack: bool) {
        while self.done < self.made {
            let ask = &self.asks[self.done];
            if ask.begin >= place || by_sack && ask.has_response() {
                return;
            }
            assert!(
                !ask.has_response(),
                "passed the response of {}: {ask:?}",
                self.done
            );
            let end = ask.begin + ask.psns();
            if place < end {
                self.had = self.had.max(place - ask.begin);
                return;
            }
            (self.done, self.had) = (self.done + 1, 0);
        }
    }

    /// A response: in its order, and with the right content.
    pub(super) fn hears(&mut self, pkt: &Packet<'_>) {
        let place = self.place(pkt.psn());
        if pkt.seth().is_some() {
            self.executed_before(place.wrapping_add(1), true);
            self.skip_what_is_done();
            return;
        }
        assert!(place < self.end, "a PSN that was never sent: {}", text(pkt));
        if pkt.info().operation == Operation::Acknowledge {
            match pkt.aeth().unwrap().syndrome {
                Syndrome::Ack { .. } => self.executed_before(place + 1, false),
                Syndrome::Nak(xroce_wire::syndrome::NakCode::PsnSequence) => {
                    let before = self.oldest();
                    self.executed_before(place, false);
                    if place >= before {
                        self.goes_back();
                    }
                }
                _ => panic!("refused: {}", text(pkt)),
            }
            self.skip_what_is_done();
            return;
        }
        let nth = self.ask_at(place).expect("a response to nothing");
        let index = place - self.asks[nth].begin;
        self.check_content(pkt, &self.asks[nth], index);
        if place >= self.oldest() {
            self.executed_before(self.asks[nth].begin, false);
            assert_eq!(place, self.oldest(), "not in order: {}", text(pkt));
            let whole = index + 1 == self.asks[nth].psns();
            (self.done, self.had) = if whole {
                (nth + 1, 0)
            } else {
                (nth, index + 1)
            };
        }
        self.skip_what_is_done();
    }

    fn skip_what_is_done(&mut self) {
        if self.next < (self.done, self.had) {
            self.goes_back();
        }
    }

    fn check_content(&self, pkt: &Packet<'_>, ask: &Ask, index: u64) {
        let skip = index as usize * PMTU;
        match ask.kind {
            Read => {
                let end = (ask.len as usize).min(skip + PMTU);
                let at = ask.at as usize;
                let same = pkt.payload() == &self.memory[at + skip..at + end];
                assert!(same, "not what is there: {} for {ask:?}", text(pkt));
            }
            Swap | Add => {
                let original = pkt.atomic_ack().map(|a| a.original);
                assert_eq!(original, Some(ask.original), "{}", text(pkt));
            }
            Store | Flush => {
                assert_eq!(pkt.opcode(), Opcode::RcReadResponseOnly);
                assert!(pkt.payload().is_empty());
            }
            _ => panic!("{} for {ask:?}", text(pkt)),
        }
    }

    /// Requests with a response that the peer has been asked for last, and is to remember.
    pub(super) fn remembered(&self) -> Vec<usize> {
        let all = (0..self.made).filter(|&i| self.asks[i].has_response());
        let mut all: Vec<usize> = all.collect();
        all.drain(..all.len().saturating_sub(self.limit));
        all
    }

    /// A packet of a request that was made, as a copy of it; `from` as for a READ asked for again.
    pub(super) fn copy(&self, nth: usize, index: u64) -> P {
        let ask = &self.asks[nth];
        let index = if ask.has_response() && ask.kind != Read {
            0
        } else {
            index % ask.psns()
        };
        ask.packet(self.psn(ask.begin + index).value(), index)
    }
}
