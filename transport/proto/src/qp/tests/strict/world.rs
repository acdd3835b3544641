//! A queue pair, a plain responder and a network between them, in virtual time.

use alloc::collections::VecDeque;

use super::super::*;
use super::Dice;
use super::peer::{Habit, Peer};
use super::work::{Expected, Wqe};
use crate::cc::{CongestionControl, Fixed, Rate};
use crate::counters::Counters;
use crate::pacer::Pacer;
use crate::qp::Look;
use crate::recovery::{AdaptiveParams, Reliability, SelectiveParams};

/// Bytes on the wire around a frame below a socket: what the pacer counts.
const AROUND: u64 = 24 + 42;
/// A conversation that takes longer than this has come to a halt.
const LONGEST: Duration = Duration::from_millis(4_000_000);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Repair {
    GoBackN,
    Adaptive,
    Selective,
}

/// What limits the requester besides its rate limit.
#[derive(Clone, Debug)]
pub(super) enum Control {
    Window(u32),
    Named(&'static str, &'static [(&'static str, u64)]),
}

/// Which packets of the requester get lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lose {
    Nothing,
    /// Every so many by count.
    Step(u64),
    /// One in so many at random.
    Random(u64),
}

/// All that a conversation depends on.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) mtu: PathMtu,
    pub(super) first: u32,
    pub(super) timeout: u8,
    pub(super) retry: u8,
    pub(super) max_reads: u8,
    /// Mb/s; 0: no limit.
    pub(super) rate: u64,
    pub(super) control: Control,
    pub(super) repair: Repair,
    pub(super) habit: Habit,
    /// What a selective peer tells as its range, in turn.
    pub(super) ranges: Vec<u8>,
    /// Mb/s of the link to the peer, which keeps what waits; 0: no limit.
    pub(super) link: u64,
    /// One way, and what it varies by, ns.
    pub(super) delay: u64,
    pub(super) jitter: u64,
    /// How long the peer takes to answer, ns.
    pub(super) late: u64,
    pub(super) lose: Lose,
    /// After so many packets others have their turn for so many ns.
    pub(super) turn: u64,
    pub(super) gap: u64,
    /// Asked for runs, as by the engine.
    pub(super) runs: bool,
    /// Congestion notifications, one every so many ns; 0: none.
    pub(super) cnps: u64,
    pub(super) seed: u64,
}

impl Plan {
    pub(super) fn plain() -> Self {
        Self {
            mtu: PathMtu::Mtu1024,
            first: 0x100,
            timeout: 14,
            retry: 7,
            max_reads: 16,
            rate: 0,
            control: Control::Window(256),
            repair: Repair::GoBackN,
            habit: Habit::WhatAsks,
            ranges: Vec::new(),
            link: 0,
            delay: 5_000,
            jitter: 0,
            late: 0,
            lose: Lose::Nothing,
            turn: u64::MAX,
            gap: 0,
            runs: false,
            cnps: 0,
            seed: 1,
        }
    }

    fn bench(&self) -> Bench {
        let mut setup = Setup::default();
        let first = Psn::new(self.first);
        setup.rtr = QpAttr::rtr(path(), self.mtu, PEER, Psn::new(0x100));
        setup.rtr.reliability = match self.repair {
            Repair::GoBackN => None,
            Repair::Adaptive => Some(Reliability::Adaptive(AdaptiveParams::default())),
            Repair::Selective => Some(Reliability::Selective(SelectiveParams::default())),
        };
        setup.rts = QpAttr::rts(first);
        setup.rts.timeout = Some(self.timeout);
        setup.rts.retry_cnt = Some(self.retry);
        setup.rts.max_rd_atomic = Some(self.max_reads);
        setup.rts.rate_limit = Some(Rate::bits_per_second(self.rate * 1_000_000));
        let line = Rate::bits_per_second(10_000_000_000);
        setup.rts.congestion = Some(match self.control {
            Control::Window(n) => CongestionControl::Fixed(Fixed::new(Rate::UNLIMITED, n)),
            Control::Named(name, params) => CongestionControl::by_name(name, line, params).unwrap(),
        });
        setup.build()
    }

    /// The longest round trip there can be, ns.
    pub(super) fn round_trip(&self) -> u64 {
        2 * (self.delay + self.jitter) + self.late
    }
}

/// How it went.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) took: Duration,
    /// Packets of the requester, and the bytes they took on the wire.
    pub(super) packets: u64,
    pub(super) wire: u64,
    /// PSNs that were used.
    pub(super) psns: u64,
    /// Packets that carried a PSN that had been sent before.
    pub(super) again: u64,
    /// Pauses of its turns, together.
    pub(super) pauses: u64,
    pub(super) counters: Counters,
}

pub(super) struct World<'a> {
    pub(super) t: Bench,
    pub(super) peer: Peer,
    expected: Expected,
    plan: &'a Plan,
    start: Instant,
    dice: Dice,
    out: VecDeque<(Instant, Vec<u8>)>,
    back: VecDeque<(Instant, P)>,
    /// The queue pair has its next turn then.
    next_turn: Instant,
    next_cnp: Instant,
    /// One past the highest PSN sent.
    highest: Psn,
    completed: usize,
    outcome: Outcome,
}

/// Runs a conversation to its end, which is success.
pub(super) fn run(plan: &Plan, work: &[Wqe]) -> Outcome {
    let mut world = World::new(plan);
    let mut work = work.iter().enumerate();
    let mut next = work.next();
    let mut due = world.t.now;
    for _ in 0..3_000_000 {
        while let Some((n, wqe)) = next.filter(|(_, wqe)| due + nanos(wqe.pause) <= world.t.now) {
            world.expected.post(&mut world.t, n as u64, wqe);
            due += nanos(wqe.pause);
            next = work.next();
        }
        world.send();
        world.never_stands_still();
        if next.is_none() && world.t.qp.sends_posted() == 0 {
            return world.finish();
        }
        let post = next.map_or(Instant::NEVER, |(_, wqe)| due + nanos(wqe.pause));
        world.pass(post);
    }
    panic!("it never ends");
}

/// What has arrived by now.
fn due<T>(way: &mut VecDeque<(Instant, T)>, now: Instant) -> Option<(Instant, T)> {
    let is_due = way.front().is_some_and(|&(at, _)| at <= now);
    if is_due { way.pop_front() } else { None }
}

fn nanos(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan) -> Self {
        let t = plan.bench();
        let first = Psn::new(plan.first);
        let mut peer = Peer::new(first, plan.mtu, plan.habit);
        if plan.repair == Repair::Selective {
            peer = peer.selective(&plan.ranges);
        }
        let cnps = plan.cnps != 0;
        Self {
            next_cnp: if cnps { t.now } else { Instant::NEVER },
            start: t.now,
            next_turn: t.now,
            t,
            peer,
            expected: Expected::new(),
            plan,
            dice: Dice::new(plan.seed),
            out: VecDeque::new(),
            back: VecDeque::new(),
            highest: first,
            completed: 0,
            outcome: Outcome {
                took: Duration::ZERO,
                packets: 0,
                wire: 0,
                psns: 0,
                again: 0,
                pauses: 0,
                counters: Counters::default(),
            },
        }
    }

    /// A turn of the queue pair.
    fn send(&mut self) {
        if self.t.now < self.next_turn {
            return;
        }
        let mut n = 0;
        while n < self.plan.turn {
            let Some(frame) = self.next_frame() else {
                return;
            };
            n += 1;
            self.note(&frame);
            self.outcome.packets += 1;
            if !self.is_lost() {
                let bits = (frame.len() as u64 + AROUND) * 8;
                let takes = (bits * 1000).checked_div(self.plan.link).unwrap_or(0);
                let at = self.arrival_after(self.out.back().map(|&(at, _)| at), 0);
                self.out.push_back((at + nanos(takes), frame));
            }
        }
        self.next_turn = self.t.now + nanos(self.plan.gap);
        self.outcome.pauses += self.plan.gap;
    }

    fn next_frame(&mut self) -> Option<Vec<u8>> {
        if !self.plan.runs {
            return self.t.tx_frame();
        }
        let t = &mut self.t;
        let mut frame = [0; 5000];
        let mut cx = Cx {
            now: t.now,
            mem: &mut t.mem,
            sink: &mut t.log,
        };
        if let Some(mut run) = t.qp.run(t.now)
            && let Look::Packet(ahead) = run.look()
            && let Some(len) = run.write(&mut cx, &ahead, &mut frame)
        {
            return Some(frame[..len].to_vec());
        }
        t.tx_frame()
    }

    fn is_lost(&mut self) -> bool {
        match self.plan.lose {
            Lose::Nothing => false,
            Lose::Step(n) => self.outcome.packets.is_multiple_of(n),
            Lose::Random(n) => self.dice.once_in(n),
        }
    }

    /// When a packet arrives that leaves `late` from now: never before the one ahead of it.
    fn arrival_after(&mut self, ahead: Option<Instant>, late: u64) -> Instant {
        let way = self.plan.delay + self.dice.below(self.plan.jitter + 1);
        (self.t.now + nanos(late + way)).max(ahead.unwrap_or_default())
    }

    /// Keeps the books: the rate is kept, and what is sent again.
    fn note(&mut self, frame: &[u8]) {
        let now = self.t.now.since(self.start).as_nanos() + Pacer::BURST.as_nanos();
        if self.plan.rate != 0 {
            let takes = u128::from(self.outcome.wire) * 8 * 1000 / u128::from(self.plan.rate);
            assert!(takes <= u128::from(now) + 2, "faster than its rate");
        }
        self.outcome.wire += frame.len() as u64 + AROUND;
        let pkt = Packet::parse(frame).unwrap();
        if pkt.peth().is_some() {
            return;
        }
        let mut psns = 1;
        if let (Opcode::RcReadRequest, Some(reth)) = (pkt.opcode(), pkt.reth()) {
            psns = self.plan.mtu.packets(reth.len);
        }
        let end = pkt.psn().add(psns);
        if pkt.psn().is_before(self.highest) {
            self.outcome.again += 1;
        } else {
            assert_eq!(pkt.psn(), self.highest, "a PSN was left out");
            self.outcome.psns += u64::from(psns);
            self.highest = end;
        }
    }

    /// As long as there is work, something will happen by itself.
    fn never_stands_still(&self) {
        let qp = &self.t.qp;
        if qp.sends_posted() == 0 || qp.wants_to_send(self.t.now) || qp.poll_timeout().is_some() {
            return;
        }
        // Without a timeout what is asked for is on its way.
        let flies = self.plan.timeout == 0 && !(self.out.is_empty() && self.back.is_empty());
        assert!(flies, "it stands still, with {:?}", qp.gauges());
    }

    /// Goes on to what happens next.
    fn pass(&mut self, post: Instant) {
        let now = self.t.now;
        let turn = match self.t.qp.wants_to_send(now) {
            true => self.next_turn,
            false => Instant::NEVER,
        };
        let timer = self
            .t
            .qp
            .poll_timeout()
            .filter(|&at| at > now || turn == Instant::NEVER);
        let front = |at: Option<&Instant>| at.copied().unwrap_or(Instant::NEVER);
        let at = [
            post,
            turn,
            timer.unwrap_or(Instant::NEVER),
            self.next_cnp,
            front(self.out.front().map(|(at, _)| at)),
            front(self.back.front().map(|(at, _)| at)),
        ];
        let at = at.into_iter().min().unwrap_or(now).max(now);
        assert!(at.since(self.start) < LONGEST, "it never ends");
        self.t.now = at;
        while let Some((_, frame)) = due(&mut self.out, at) {
            for answer in self.peer.takes(&frame) {
                let at = self.arrival_after(self.back.back().map(|&(at, _)| at), self.plan.late);
                self.back.push_back((at, answer));
            }
        }
        while let Some((_, answer)) = due(&mut self.back, at) {
            self.t.rx(answer);
            self.check_completions();
        }
        if self.next_cnp <= at {
            self.t.qp.handle_cnp(at, &arrival());
            let done = self.t.qp.counters().cnps_in >= 300;
            let next = at + nanos(self.plan.cnps);
            self.next_cnp = if done { Instant::NEVER } else { next };
        }
        if self.t.qp.poll_timeout().is_some_and(|due| due <= at) {
            self.t.cx(|qp, cx| qp.handle_timeout(cx));
            self.check_completions();
        }
    }

    /// All succeed, in order, and have what they asked for.
    fn check_completions(&mut self) {
        for (wr_id, status) in self.t.sent() {
            assert_eq!(status, WcStatus::Success, "work request {wr_id}");
            self.expected
                .check_completion(&self.t, self.completed, wr_id);
            self.completed += 1;
        }
    }

    fn finish(mut self) -> Outcome {
        self.check_completions();
        assert_eq!(self.completed, self.expected.completes.len());
        let same = self.peer.delivered == self.expected.delivered;
        assert!(same, "the peer did not receive what was sent");
        let same = self.peer.memory == self.expected.memory;
        assert!(same, "the peer's memory is not what was written");
        assert_eq!(self.t.qp.state(), QpState::Rts);
        self.outcome.took = self.t.now - self.start;
        self.outcome.counters = self.t.qp.counters();
        self.outcome
    }
}
