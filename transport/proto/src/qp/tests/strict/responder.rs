//! The responder, asked by a requester whose packets are copied and overtaken, whose keys are taken
//! back, whose PSNs go round, and whose peer closes as early as it can.

use alloc::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use xroce_wire::syndrome::NakCode;

use super::super::*;
use super::asker::{Ask, Asker, Kind, Next, RECEIVES, WORDS, WRITES};
use super::{Dice, cases};
use crate::recovery::{Reliability, SelectiveParams};
use Kind::{Add, Flush, Read, Send, SendInv, Store, Swap, Write};

/// Bytes of a receive, and how many places there are for them.
const ROOM: u64 = 1536;
const PLACES: u64 = 8;
const LAP: u64 = 1 << 24;

/// What the requester's side does in turn.
#[derive(Clone, Debug)]
enum Step {
    Ask(Kind, u32, bool),
    /// It is done with the key, and takes it back with its SEND, or the owner does when it has
    /// received it; so many empty SENDs follow before there is a key again.
    TakeBack {
        by_peer: bool,
        empty: u8,
    },
    /// As many empty WRITEs as it takes to come round to an earlier PSN.
    Lap,
}

#[derive(Clone, Debug)]
struct Plan {
    first: u32,
    limit: u8,
    flush_is_free: bool,
    selective: bool,
    /// One packet in so many is copied, and is late; 0: none.
    copied: u64,
    late: u64,
    /// How often a copy of something old comes.
    old: u64,
    /// Packets that arrive for one that leaves, about.
    burst: u64,
    /// It closes when so many receives have completed.
    close: Option<usize>,
    seed: u64,
}

/// What has to be true before a request is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    Nothing,
    /// All before it is done.
    AllDone,
    /// That, and there is a key again.
    NewKey,
    /// That, and the PSNs have gone round.
    Lap,
}

struct Conversation {
    t: Bench,
    asker: Asker,
    plan: Plan,
    before: Vec<Before>,
    /// Requests whose SEND makes the owner take the key back.
    revokes: BTreeSet<usize>,
    /// SENDs in their order, and how many were received.
    sends: Vec<usize>,
    received: usize,
    dice: Dice,
    /// On the way: how many may overtake it.
    link: VecDeque<(u64, P)>,
    /// Places of packets that asked for an ACK and arrived; the last one that is owed one.
    asked: BTreeSet<u64>,
    owed: Option<u64>,
    /// Places of packets that were dropped and not told.
    untold: Vec<u64>,
    /// The same, told or not, and whether the expected PSN was named in a NAK.
    dropped: BTreeSet<u64>,
    told: bool,
    /// Repetitions owed.
    repeats: BTreeSet<usize>,
    closed: bool,
    /// What memory must be in the end.
    memory: Vec<u8>,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        6 => Just(Send),
        6 => Just(Write),
        6 => Just(Read),
        4 => prop::sample::select(&[Swap, Add, Store, Flush][..]),
    ];
    let len = prop_oneof![1 => Just(0u32), 3 => 1..64u32, 3 => 200..1500u32];
    let take_back = (any::<bool>(), 0..3u8);
    prop_oneof![
        20 => (kind, len, any::<bool>()).prop_map(|(kind, len, asks)| Step::Ask(kind, len, asks)),
        2 => take_back.prop_map(|(by_peer, empty)| Step::TakeBack { by_peer, empty }),
        1 => Just(Step::Lap),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let once_in = || prop::sample::select(&[0u64, 2, 4, 16][..]);
    (
        (
            0xff_ff80..=0xff_ffffu32,
            1..=6u8,
            any::<bool>(),
            prop::bool::weighted(0.25),
        ),
        (
            once_in(),
            once_in(),
            once_in(),
            prop::sample::select(&[1u64, 2, 8][..]),
        ),
        (prop::option::weighted(0.3, 1..6usize), any::<u64>()),
    )
        .prop_map(|(attrs, (copied, late, old, burst), (close, seed))| Plan {
            first: attrs.0,
            limit: attrs.1,
            flush_is_free: attrs.2,
            selective: attrs.3,
            copied,
            late,
            old,
            burst,
            close,
            seed,
        })
}

impl Conversation {
    fn new(plan: &Plan, steps: &[Step]) -> Self {
        let mut setup = Setup::default();
        let first = Psn::new(plan.first);
        setup.access = Access::all();
        setup.rtr = QpAttr::rtr(path(), PathMtu::Mtu256, PEER, first);
        setup.rtr.max_dest_rd_atomic = Some(plan.limit);
        if plan.selective {
            setup.rtr.reliability = Some(Reliability::Selective(SelectiveParams::default()));
        }
        let mut t = setup.build();
        t.mem.access = Access::all();
        if plan.selective {
            selective::introduce(&mut t, plan.first);
        }
        let asker = Asker::new(plan.first, Vec::new(), plan.limit.into(), &t.mem.bytes);
        let mut new = Self {
            memory: t.mem.bytes.clone(),
            t,
            asker: if plan.flush_is_free {
                asker.flush_is_free()
            } else {
                asker
            },
            plan: plan.clone(),
            before: Vec::new(),
            revokes: BTreeSet::new(),
            sends: Vec::new(),
            received: 0,
            dice: Dice::new(plan.seed),
            link: VecDeque::new(),
            asked: BTreeSet::new(),
            owed: None,
            untold: Vec::new(),
            dropped: BTreeSet::new(),
            told: false,
            repeats: BTreeSet::new(),
            closed: false,
        };
        for step in steps {
            new.prepare(step);
        }
        if let Some(last) = new.asker.asks.last_mut() {
            last.asks = true;
        }
        for n in 0..PLACES {
            new.post_receive(n);
        }
        new
    }

    fn post_receive(&mut self, n: u64) {
        let sges = [sge(RECEIVES + n % PLACES * ROOM, ROOM as u32)];
        let wr = RecvWr {
            wr_id: n,
            sges: &sges,
        };
        self.t.qp.post_recv(&wr, &mut self.t.log).unwrap();
    }

    /// Turns a step into requests, and works out what they do.
    fn prepare(&mut self, step: &Step) {
        match *step {
            Step::Ask(kind, len, asks) => self.ask(kind, len, asks, Before::Nothing),
            Step::Lap => self.ask(Read, 700, true, Before::Lap),
            Step::TakeBack { by_peer, empty } => {
                let kind = if by_peer { SendInv } else { Send };
                if !by_peer {
                    self.revokes.insert(self.asker.asks.len());
                }
                self.ask(kind, 8, true, Before::AllDone);
                for _ in 0..empty {
                    self.ask(Send, 0, true, Before::Nothing);
                }
                self.ask(Read, 100, true, Before::NewKey);
            }
        }
    }

    fn ask(&mut self, kind: Kind, len: u32, asks: bool, before: Before) {
        let nth = self.asker.asks.len() as u64;
        if before != Before::Nothing
            && let Some(last) = self.asker.asks.last_mut()
        {
            last.asks = true;
        }
        let (at, len) = match kind {
            Swap | Add | Store => (WORDS + nth % 4 * 8, 0),
            Flush => (WRITES, 0),
            Read => (nth * 391 % (WRITES - 1500), len),
            Write => (WRITES + nth * 577 % (RECEIVES - WRITES - 1500), len),
            Send | SendInv => (0, len),
        };
        let bytes: Vec<u8> = match kind {
            Store => (nth * 0x0101).to_ne_bytes().to_vec(),
            _ => (0..len)
                .map(|i| (u64::from(i) * 3 + nth * 5) as u8)
                .collect(),
        };
        let operand = nth * 0x0001_0001 + 1;
        let word = at as usize..at as usize + 8;
        let original = u64::from_ne_bytes(self.memory[word.clone()].try_into().unwrap());
        match kind {
            Swap => self.memory[word].copy_from_slice(&operand.to_ne_bytes()),
            Add => {
                let sum = original.wrapping_add(operand);
                self.memory[word].copy_from_slice(&sum.to_ne_bytes());
            }
            Write | Store => {
                let at = at as usize;
                self.memory[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Send | SendInv => self.sends.push(nth as usize),
            Read | Flush => {}
        }
        self.before.push(before);
        self.asker.asks.push(Ask {
            kind,
            at,
            len,
            bytes,
            operand,
            original,
            asks,
            begin: 0,
        });
    }

    /// To the end.
    fn run(mut self) {
        let mut turns = 0;
        while !self.asker.is_done() && !self.closed {
            turns += 1;
            assert!(turns < 100_000, "it never ends");
            if self.dice.once_in(self.plan.burst + 1) && self.answer() {
                continue;
            }
            if self.dice.once_in(20) {
                self.pay_all();
            }
            if self.plan.old != 0 && self.dice.once_in(self.plan.old * 4) {
                self.copy_something_old();
            }
            if self.dice.once_in(2) && self.ask_next() || self.deliver() || self.ask_next() {
                continue;
            }
            self.pay_all();
            if !self.asker.is_done() && !self.closed && !self.ask_next() {
                // Nothing is under way and nothing came: a timeout.
                self.asker.goes_back();
            }
        }
        if self.closed {
            return;
        }
        while self.deliver() {}
        if self.closed {
            return;
        }
        self.pay_all();
        assert_eq!(self.received, self.sends.len());
        let end = RECEIVES as usize;
        assert!(
            self.t.mem.bytes[..end] == self.memory[..end],
            "not what was written"
        );
        let words = WORDS as usize;
        assert_eq!(
            self.t.mem.bytes[words..words + 32],
            self.memory[words..words + 32]
        );
        let once = |ask: &&Ask| matches!(ask.kind, Swap | Add | Store);
        let atomics = self
            .asker
            .asks
            .iter()
            .filter(|a| once(a) && a.kind != Store);
        let stores = self.asker.asks.iter().filter(|a| a.kind == Store);
        assert_eq!(
            self.t.mem.atomics as usize,
            atomics.count() + stores.count()
        );
    }

    /// The next packet of the requester sets out.
    fn ask_next(&mut self) -> bool {
        let hold = match self.before.get(self.asker.made) {
            None | Some(Before::Nothing) => false,
            Some(before) => !self.is_ready(*before),
        };
        let Next::Packet(packet) = self.asker.sends(hold) else {
            return false;
        };
        let late = self.plan.late;
        for _ in 0..=u64::from(self.plan.copied != 0 && self.dice.once_in(self.plan.copied)) {
            let is_late = late != 0 && self.dice.once_in(late);
            let places = if is_late { 1 + self.dice.below(3) } else { 0 };
            self.link.push_back((places, packet.clone()));
        }
        true
    }

    fn is_ready(&mut self, before: Before) -> bool {
        if !self.asker.is_quiet() {
            return false;
        }
        match before {
            Before::Nothing | Before::AllDone => true,
            Before::NewKey => {
                self.t.mem.alive = true;
                true
            }
            Before::Lap => {
                if !self.link.is_empty() {
                    return false;
                }
                self.pay_all();
                self.go_round();
                true
            }
        }
    }

    /// PSNs go on to one that was used a lap ago, as by empty WRITEs, of which a responder keeps
    /// nothing but how many they were.
    fn go_round(&mut self) {
        let old = self.asker.remembered();
        let here = self.asker.oldest();
        let ahead = match old.get(self.dice.below(old.len() as u64) as usize) {
            None => self.dice.below(LAP),
            Some(&nth) => {
                let ask = &self.asker.asks[nth];
                let back = here - (ask.begin + self.dice.below(ask.psns()));
                (LAP * 8 - back) % LAP
            }
        };
        // Once, also where a copy would be half of all PSNs away.
        if ahead != 0 {
            self.before[self.asker.made] = Before::AllDone;
            self.asker.skip(ahead);
            let rx = &mut self.t.qp.rx;
            rx.expected_psn = rx.expected_psn.add(ahead as u32);
        }
    }

    fn deliver(&mut self) -> bool {
        let Some((late, packet)) = self.link.pop_front() else {
            return false;
        };
        if late != 0 {
            let at = self.link.len().min(late as usize);
            self.link.insert(at, (0, packet));
            return true;
        }
        self.feed(packet);
        true
    }

    /// A copy of a request that was made at any time within half of all PSNs.
    fn copy_something_old(&mut self) {
        let here = self.asker.oldest();
        let is_near = |&n: &usize| here < self.asker.asks[n].begin + LAP / 2 - (1 << 12);
        let near: Vec<usize> = (0..self.asker.done).filter(is_near).collect();
        let Some(&nth) = near.get(self.dice.below(near.len() as u64) as usize) else {
            return;
        };
        let index = self.dice.below(self.asker.asks[nth].psns());
        let packet = self.asker.copy(nth, index);
        self.feed(packet);
    }

    /// A packet arrives.
    fn feed(&mut self, packet: P) {
        if self.closed {
            return;
        }
        let expected = self.t.qp.expected_psn();
        let distance = expected.distance_to(Psn::new(packet.psn));
        let memory = (distance != 0).then(|| self.t.mem.bytes.clone());
        let (asks, place) = (packet.ack_req, self.asker.place(Psn::new(packet.psn)));
        self.t.rx(packet);
        let state = self.t.qp.state();
        assert_eq!(state, QpState::Rts, "{:?}", self.t.qp.failure());
        let now = self.asker.place(self.t.qp.expected_psn());
        if distance < 0 {
            assert_eq!(self.t.qp.expected_psn(), expected, "executed again");
            assert!(self.t.log.recvs.is_empty(), "a copy completes a receive");
            self.note_copy(place, asks);
        } else if asks && (distance == 0 || self.plan.selective) {
            self.asked.insert(place);
        }
        if distance > 0 && !self.plan.selective {
            self.dropped.insert(place);
            if !self.told {
                self.untold.push(place);
            }
        }
        if let Some(memory) = memory {
            assert!(self.t.mem.bytes == memory, "memory changed out of turn");
        }
        if self.t.qp.expected_psn() != expected {
            self.told = false;
            self.dropped.retain(|&dropped| dropped >= now);
            self.untold.retain(|&dropped| dropped >= now);
            let later = self.asked.split_off(&now);
            let executed = core::mem::replace(&mut self.asked, later);
            self.owed = self.owed.max(executed.last().copied());
        }
        self.check_receives();
    }

    fn note_copy(&mut self, place: u64, asks: bool) {
        let made = &self.asker.asks[..self.asker.made];
        let nth = made.partition_point(|ask| ask.begin <= place) - 1;
        let ask = &self.asker.asks[nth];
        if !ask.has_response() {
            self.owed = if asks {
                self.owed.max(Some(place))
            } else {
                self.owed
            };
        } else if self.asker.remembered().contains(&nth)
            && (self.t.mem.alive || ask.kind != Read || !ask.needs_key())
        {
            self.repeats.insert(nth);
        }
    }

    /// What was received is next, and whole.
    fn check_receives(&mut self) {
        for wc in core::mem::take(&mut self.t.log.recvs) {
            assert_eq!(wc.status, WcStatus::Success);
            let nth = self.sends[self.received];
            let sent = &self.asker.asks[nth];
            let at = (RECEIVES + wc.wr_id % PLACES * ROOM) as usize;
            let got = &self.t.mem.bytes[at..at + wc.byte_len as usize];
            assert!(
                got == &sent.bytes[..],
                "receive {} is not what was sent",
                wc.wr_id
            );
            self.received += 1;
            self.post_receive(self.received as u64 + PLACES - 1);
            if self.revokes.contains(&nth) {
                self.t.mem.alive = false;
            }
            if !self.t.mem.alive {
                let asks = &self.asker.asks;
                self.repeats
                    .retain(|&n| asks[n].kind != Read || !asks[n].needs_key());
            }
            if self.plan.close == Some(self.received) {
                self.close(nth);
                return;
            }
        }
    }

    /// It closes: what completed must have been acknowledged by what leaves until now, up to a READ
    /// that is not answered any more.
    fn close(&mut self, nth: usize) {
        self.closed = true;
        let attr = QpAttr::state(QpState::Err);
        self.t.qp.modify(&attr, &mut self.t.log).unwrap();
        while let Some(frame) = self.t.tx_frame() {
            self.asker.hears(&Packet::parse(&frame).unwrap());
        }
        let unanswered = self.asker.asks.get(self.asker.done);
        let is_acknowledged = self.asker.done > nth || !self.asker.asks[nth].asks;
        let ends_before = unanswered.is_some_and(|ask| ask.kind == Read);
        assert!(
            is_acknowledged || ends_before,
            "received and never acknowledged"
        );
    }

    /// A packet of the responder leaves, and arrives.
    fn answer(&mut self) -> bool {
        let Some(frame) = self.t.tx_frame() else {
            return false;
        };
        let pkt = Packet::parse(&frame).unwrap();
        let place = self.asker.place(pkt.psn());
        let mut before = place + 1;
        if let Some(Syndrome::Nak(code)) = pkt.aeth().map(|a| a.syndrome) {
            before = place;
            assert_eq!(code, NakCode::PsnSequence, "refused: {}", text(&pkt));
            assert_eq!(pkt.psn(), self.t.qp.expected_psn());
            assert!(
                !self.dropped.is_empty(),
                "nothing is missing: {}",
                text(&pkt)
            );
            self.told = true;
            self.untold.retain(|&dropped| dropped < place);
        }
        self.owed = self.owed.filter(|&owed| owed >= before);
        if pkt
            .aeth()
            .is_none_or(|_| pkt.opcode() != Opcode::RcAcknowledge)
        {
            let asks = &self.asker.asks;
            self.repeats
                .retain(|&n| asks[n].begin + asks[n].psns() - 1 != place);
        }
        self.asker.hears(&pkt);
        true
    }

    /// All that is owed is paid, and then nothing is missing.
    fn pay_all(&mut self) {
        while self.answer() {}
        if self.closed {
            return;
        }
        assert_eq!(self.owed, None, "executed and not acknowledged");
        assert!(
            self.untold.is_empty(),
            "dropped and not told: {:?}",
            self.untold
        );
        let remembered = self.asker.remembered();
        self.repeats.retain(|n| remembered.contains(n));
        assert!(
            self.repeats.is_empty(),
            "not answered again: {:?}",
            self.repeats
        );
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn what_is_executed_is_acknowledged_and_copies_do_nothing(
        plan in plan(),
        steps in prop::collection::vec(step(), 1..25),
    ) {
        Conversation::new(&plan, &steps).run();
    }
}
