//! A responder, plain and obvious: go-back-N as the specification has it, or selective.
//!
//! It executes requests in the order of PSNs and shares nothing with the responder of this crate.
//! What it acknowledges is as little as [`Habit`] says.

use alloc::collections::BTreeMap;

use xroce_wire::opcode::Operation;

use super::super::*;

/// Bytes of its memory, which begins at address 0. READs ask for the first half, which nothing
/// changes; WRITEs go to the third quarter, and eight-byte words are at the start of the last.
pub(super) const REMOTE: usize = 0x4_0000;
pub(super) const WRITES: u64 = 0x2_0000;
pub(super) const WORDS: u64 = 0x3_0000;

/// When it says something without having to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Habit {
    /// It acknowledges what asks, and what comes again.
    WhatAsks,
    /// It acknowledges what asks, once: a SEND or WRITE that comes again gets no answer.
    NeverAgain,
    /// It acknowledges every packet.
    Everything,
}

/// A message that it received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Delivered {
    /// SEND, with immediate data or a key to take back.
    Send(Vec<u8>, bool, Option<u32>),
    /// The immediate data of a WRITE, of which so many bytes were written.
    Imm(u32),
}

/// The responder.
pub(super) struct Peer {
    pub(super) memory: Vec<u8>,
    pub(super) delivered: Vec<Delivered>,
    /// The next PSN it executes.
    pub(super) expected: Psn,
    /// Requests that had been executed before.
    pub(super) repeats: u32,
    mtu: usize,
    habit: Habit,
    /// The message under way: its bytes if a SEND, its place and length if a WRITE.
    bytes: Vec<u8>,
    place: (usize, u32),
    /// The gap before the expected PSN was told.
    told: bool,
    /// Answers to what is executed once, by PSN.
    once: BTreeMap<u32, P>,
    /// There if selective: packets ahead, by PSN.
    ahead: Option<BTreeMap<u32, Vec<u8>>>,
    /// What its SACKs tell as their range, in turn; 0: nothing.
    ranges: Vec<u8>,
    sacks: usize,
}

pub(super) fn remote_memory() -> Vec<u8> {
    (0..REMOTE).map(|i| (i * 13 + (i >> 7)) as u8).collect()
}

impl Peer {
    pub(super) fn new(first: Psn, mtu: PathMtu, habit: Habit) -> Self {
        Self {
            memory: remote_memory(),
            delivered: Vec::new(),
            expected: first,
            repeats: 0,
            mtu: mtu.bytes(),
            habit,
            bytes: Vec::new(),
            place: (0, 0),
            told: false,
            once: BTreeMap::new(),
            ahead: None,
            ranges: Vec::new(),
            sacks: 0,
        }
    }

    pub(super) fn selective(mut self, ranges: &[u8]) -> Self {
        self.ahead = Some(BTreeMap::new());
        self.ranges = ranges.to_vec();
        self
    }

    /// A packet arrives; what it answers at once.
    pub(super) fn takes(&mut self, frame: &[u8]) -> Vec<P> {
        let pkt = Packet::parse(frame).unwrap();
        if let Some(probe) = pkt.peth() {
            return vec![self.sack(self.expected, SackCause::Probe(probe.probe_id))];
        }
        let distance = self.expected.distance_to(pkt.psn());
        if distance < 0 {
            return self.takes_again(&pkt);
        }
        if distance > 0 {
            return self.takes_ahead(&pkt, frame, distance);
        }
        let mut answers = self.executes(&pkt);
        while let Some(next) = self.kept(self.expected) {
            answers.extend(self.executes(&Packet::parse(&next).unwrap()));
        }
        answers
    }

    fn kept(&mut self, psn: Psn) -> Option<Vec<u8>> {
        self.ahead.as_mut()?.remove(&psn.value())
    }

    /// What was executed before: answered again, not executed.
    fn takes_again(&mut self, pkt: &Packet<'_>) -> Vec<P> {
        self.repeats += 1;
        match pkt.info().operation {
            Operation::Send | Operation::Write => match self.habit {
                Habit::NeverAgain => Vec::new(),
                _ => vec![self.acknowledges(pkt.psn())],
            },
            Operation::ReadRequest => self.reads(pkt),
            _ => self
                .once
                .get(&pkt.psn().value())
                .cloned()
                .into_iter()
                .collect(),
        }
    }

    fn takes_ahead(&mut self, pkt: &Packet<'_>, frame: &[u8], distance: i32) -> Vec<P> {
        if let Some(ahead) = &mut self.ahead {
            assert!(distance < 1024, "beyond the range agreed upon");
            ahead.insert(pkt.psn().value(), frame.to_vec());
            return vec![self.acknowledges(pkt.psn())];
        }
        if core::mem::replace(&mut self.told, true) {
            return Vec::new();
        }
        vec![nak(self.expected.value(), 0x60)]
    }

    fn executes(&mut self, pkt: &Packet<'_>) -> Vec<P> {
        let (psn, info) = (pkt.psn(), pkt.info());
        self.told = false;
        self.expected = psn.add(1);
        match info.operation {
            Operation::Send => self.receives(pkt),
            Operation::Write => self.writes(pkt),
            Operation::ReadRequest => {
                let answers = self.reads(pkt);
                self.expected = psn.add(answers.len() as u32);
                return answers;
            }
            _ => {
                let answer = self.does_once(pkt);
                self.once.insert(psn.value(), answer.clone());
                return vec![answer];
            }
        }
        if pkt.ack_req() || self.habit == Habit::Everything {
            return vec![self.acknowledges(psn)];
        }
        Vec::new()
    }

    fn receives(&mut self, pkt: &Packet<'_>) {
        let info = pkt.info();
        if info.starts() {
            self.bytes.clear();
        }
        self.bytes.extend_from_slice(pkt.payload());
        if info.ends() {
            let bytes = core::mem::take(&mut self.bytes);
            let inv = pkt.ieth().map(|key| key.value());
            self.delivered
                .push(Delivered::Send(bytes, pkt.imm().is_some(), inv));
        }
    }

    fn writes(&mut self, pkt: &Packet<'_>) {
        let (info, len) = (pkt.info(), pkt.payload().len());
        if let Some(reth) = pkt.reth() {
            // Of an extension packet it is the place of this packet.
            let before = if info.starts() { 0 } else { self.place.1 };
            let whole = if info.starts() { reth.len } else { before };
            self.place = (reth.va.value() as usize, whole);
        }
        let at = self.place.0;
        self.memory[at..at + len].copy_from_slice(pkt.payload());
        self.place.0 += len;
        if info.ends() && pkt.imm().is_some() {
            self.delivered.push(Delivered::Imm(self.place.1));
        }
    }

    /// The responses to a READ, from its memory.
    fn reads(&self, pkt: &Packet<'_>) -> Vec<P> {
        let reth = pkt.reth().unwrap();
        let at = reth.va.value() as usize;
        let bytes = &self.memory[at..at + reth.len as usize];
        let parts: Vec<&[u8]> = match bytes.len() {
            0 => vec![bytes],
            _ => bytes.chunks(self.mtu).collect(),
        };
        let opcode = |i: usize| match (i == 0, i + 1 == parts.len()) {
            (true, true) => Opcode::RcReadResponseOnly,
            (true, false) => Opcode::RcReadResponseFirst,
            (false, false) => Opcode::RcReadResponseMiddle,
            (false, true) => Opcode::RcReadResponseLast,
        };
        let answer = |(i, part): (usize, &&[u8])| {
            response(opcode(i), pkt.psn().add(i as u32).value(), 0).bytes(part)
        };
        parts.iter().enumerate().map(answer).collect()
    }

    /// Atomics, ATOMIC WRITE, FLUSH.
    fn does_once(&mut self, pkt: &Packet<'_>) -> P {
        let psn = pkt.psn().value();
        let Some(atomic) = pkt.atomic() else {
            if pkt.info().operation == Operation::AtomicWrite {
                let at = pkt.reth().unwrap().va.value() as usize;
                self.memory[at..at + 8].copy_from_slice(pkt.payload());
            }
            return response(Opcode::RcReadResponseOnly, psn, 0);
        };
        let at = atomic.va.value() as usize;
        let old = u64::from_ne_bytes(self.memory[at..at + 8].try_into().unwrap());
        let new = match pkt.info().operation {
            Operation::FetchAdd => old.wrapping_add(atomic.swap_add),
            _ if old == atomic.compare => atomic.swap_add,
            _ => old,
        };
        self.memory[at..at + 8].copy_from_slice(&new.to_ne_bytes());
        P {
            original: old,
            aeth: Some(Syndrome::ACK),
            ..p(Opcode::RcAtomicAcknowledge, psn)
        }
    }

    /// All that was executed; selective: what is ahead too.
    fn acknowledges(&mut self, psn: Psn) -> P {
        let last = self.expected.sub(1);
        match &self.ahead {
            None => ack(last.value()),
            Some(ahead) if ahead.is_empty() && self.ranges.is_empty() => ack(last.value()),
            Some(_) => {
                let offset = last.distance_to(psn) as i16;
                let again = false;
                self.sack(psn, SackCause::Packet { offset, again })
            }
        }
    }

    fn sack(&mut self, psn: Psn, cause: SackCause) -> P {
        let cack_psn = self.expected.sub(1);
        // The 64 PSNs that end with the one at hand.
        let back = self.expected.distance_to(psn).clamp(0, 63);
        let base = if psn.is_before(self.expected) {
            self.expected
        } else {
            psn.sub(back.unsigned_abs())
        };
        let ahead = self.ahead.get_or_insert_default();
        let bit = |n: u32| u64::from(ahead.contains_key(&base.add(n).value())) << n;
        let bitmap = (0..64).map(bit).sum();
        let turn = self.sacks % self.ranges.len().max(1);
        self.sacks += 1;
        let mut sack = p(Opcode::ExtSack, cack_psn.value());
        sack.seth = Seth {
            cause,
            cack_psn,
            mpr: self.ranges.get(turn).copied().unwrap_or(0),
            sack_offset: cack_psn.distance_to(base) as i16,
            bitmap,
        };
        sack
    }
}
