//! The network itself: events in virtual time, links, switches. Knows nothing of engines.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::rc::Rc;

use super::frame::{Frame, Pool};
use super::impair::{self, Impairment};
use super::rng::Rng;
use super::switch::{Switch, Targets};
use super::wire::{End, Fate, Held, Verdict, Wire};
use super::{MAX_HOPS, TapEvent, WireId};
use crate::datapath::Link;

/// A frame will come out of a wire. Ordered by time, then by the order of scheduling.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Event {
    at: u64,
    seq: u64,
    slot: u32,
    generation: u32,
}

/// A place for a frame in flight. The generation tells a stale event from a live one: a held
/// frame has two events, of which the first to come takes it.
#[derive(Debug, Default)]
struct Slot {
    frame: Option<(usize, Frame)>,
    generation: u32,
}

/// A port as the network sees it: a receive ring and the wire that leads away.
#[derive(Debug)]
pub(super) struct Nic {
    pub(super) rx: VecDeque<Frame>,
    pub(super) rx_ring: usize,
    pub(super) max_frame: usize,
    pub(super) rx_dropped: u64,
    pub(super) uplink: Option<usize>,
    pub(super) open: bool,
    /// Waits for room in the uplink's queue.
    pub(super) blocked: bool,
}

impl Nic {
    pub(super) fn new(max_frame: usize, rx_ring: usize) -> Self {
        Self {
            rx: VecDeque::with_capacity(rx_ring.min(1024)),
            rx_ring,
            max_frame,
            rx_dropped: 0,
            uplink: None,
            open: true,
            blocked: false,
        }
    }

    /// Its owner is gone.
    pub(super) fn close(&mut self) {
        self.open = false;
        self.blocked = false;
        self.rx.clear();
    }
}

pub(super) type Tap = Box<dyn FnMut(&TapEvent<'_>)>;

/// The whole network.
pub(super) struct Net {
    /// Shared with the handles: closures run while the network is busy and may read it.
    clock: Rc<Cell<u64>>,
    pub(super) pool: Pool,
    pub(super) rng: Rng,
    pub(super) nics: Vec<Nic>,
    pub(super) wires: Vec<Wire>,
    pub(super) switches: Vec<Switch>,
    pub(super) tap: Option<Tap>,
    events: BinaryHeap<Reverse<Event>>,
    seq: u64,
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    processed: u64,
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net")
            .field("nics", &self.nics.len())
            .field("wires", &self.wires)
            .field("events", &self.events.len())
            .finish_non_exhaustive()
    }
}

impl Net {
    pub(super) fn new(seed: u64, link: Link, clock: Rc<Cell<u64>>) -> Self {
        Self {
            clock,
            pool: Pool::new(link),
            rng: Rng::new(seed),
            nics: Vec::new(),
            wires: Vec::new(),
            switches: Vec::new(),
            tap: None,
            events: BinaryHeap::new(),
            seq: 0,
            slots: Vec::new(),
            free_slots: Vec::new(),
            processed: 0,
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.get()
    }

    /// Moves the clock forward, never back.
    fn set_now(&self, t: u64) {
        self.clock.set(self.clock.get().max(t));
    }

    /// Handles every event not later than `t`, then it is `t`.
    pub(super) fn advance_to(&mut self, t: u64) {
        while self.step(t) {}
        self.set_now(t);
    }

    /// Frame arrivals handled so far.
    pub(super) fn processed(&self) -> u64 {
        self.processed
    }

    /// When something happens next: an arrival, or room for a port that was refused a frame.
    pub(super) fn next_event(&mut self) -> Option<u64> {
        let arrival = loop {
            match self.events.peek() {
                Some(Reverse(e)) if self.is_stale(e) => drop(self.events.pop()),
                Some(Reverse(e)) => break Some(e.at),
                None => break None,
            }
        };
        // Room there has been for a while is no event any more: the port was not asked again.
        let now = self.now();
        let room = self
            .nics
            .iter()
            .filter(|n| n.blocked)
            .filter_map(|n| self.wires.get(n.uplink?)?.head_departs())
            .filter(|&at| at > now)
            .min();
        arrival.into_iter().chain(room).min()
    }

    fn is_stale(&self, e: &Event) -> bool {
        self.slots
            .get(e.slot as usize)
            .is_none_or(|s| s.generation != e.generation)
    }

    /// Handles the next event not later than `until`; whether there was one.
    fn step(&mut self, until: u64) -> bool {
        let Some(&Reverse(event)) = self.events.peek() else {
            return false;
        };
        if event.at > until {
            return false;
        }
        self.events.pop();
        if let Some((wire, frame)) = self.take_slot(event.slot, event.generation) {
            self.set_now(event.at);
            self.processed += 1;
            self.deliver(wire, frame);
        }
        true
    }

    /// Gives a frame to a wire.
    pub(super) fn transmit(&mut self, wire: usize, mut frame: Frame) {
        let now = self.now();
        self.trace(wire, Fate::Sent, &frame);
        let Some(w) = self.wires.get_mut(wire) else {
            return self.pool.give(frame);
        };
        w.stats.sent += 1;
        w.stats.sent_bytes += frame.len() as u64;
        if w.is_clean(now) {
            self.processed += 1;
            return self.deliver(wire, frame);
        }
        let verdict = match &mut w.filter {
            Some(filter) => filter(frame.bytes_mut()),
            None => Verdict::Pass,
        };
        if verdict == Verdict::Drop {
            return self.discard(wire, Fate::Filtered, frame);
        }
        let imp = w.imp();
        let queued = w.queued_bytes(now);
        if imp.queue_bytes != 0 && queued + frame.len() as u64 > imp.queue_bytes {
            return self.discard(wire, Fate::QueueFull, frame);
        }
        let ps = imp.serialise_ps(frame.len(), self.pool.link());
        let departs = w.serialise(now, frame.len(), ps);
        if w.in_blackhole(now) {
            return self.discard(wire, Fate::Blackholed, frame);
        }
        if w.is_lost_by_count() || self.rng.chance_ppm(imp.loss_ppm) {
            return self.discard(wire, Fate::Lost, frame);
        }
        let red_ppm = imp.red.map_or(0, |r| r.mark_ppm(queued));
        self.touch(wire, &imp, verdict, red_ppm, &mut frame);
        self.propagate(wire, &imp, verdict, departs, frame);
    }

    /// The impairments that change bytes.
    fn touch(
        &mut self,
        wire: usize,
        imp: &Impairment,
        verdict: Verdict,
        red_ppm: u32,
        f: &mut Frame,
    ) {
        let link = self.pool.link();
        let Some(w) = self.wires.get_mut(wire) else {
            return;
        };
        // Both draws happen in any case: the sequence of chances must not depend on the bytes.
        let by_depth = self.rng.chance_ppm(red_ppm);
        let by_chance = self.rng.chance_ppm(imp.ce_ppm);
        if (by_depth || by_chance) && impair::mark_ce(f, link) {
            w.stats.marked += 1;
        }
        if verdict == Verdict::Corrupt || self.rng.chance_ppm(imp.corrupt_ppm) {
            w.stats.corrupted += 1;
            if impair::corrupt(f, &mut self.rng) {
                w.stats.truncated += 1;
            }
        }
    }

    /// Decides when the frame and its copy come out.
    fn propagate(
        &mut self,
        wire: usize,
        imp: &Impairment,
        verdict: Verdict,
        departs: u64,
        frame: Frame,
    ) {
        let jitter = if imp.jitter_ns == 0 {
            0
        } else {
            self.rng.below(imp.jitter_ns + 1)
        };
        let natural = departs.saturating_add(imp.delay_ns).saturating_add(jitter);
        if self.rng.chance_ppm(imp.late_copy_ppm) {
            let copy = self.pool.copy(&frame);
            self.count(wire, |s| &mut s.duplicated);
            // Scheduled even without a delay: it comes behind the original.
            self.schedule(natural.saturating_add(imp.late_copy_delay_ns), wire, copy);
        }
        if verdict == Verdict::Duplicate || self.rng.chance_ppm(imp.duplicate_ppm) {
            let copy = self.pool.copy(&frame);
            let late = self.rng.below(imp.duplicate_delay_ns.saturating_add(1));
            self.count(wire, |s| &mut s.duplicated);
            // The original first: with no extra delay the copy is right behind it.
            self.place(wire, imp, verdict, natural, frame);
            self.arrive(natural.saturating_add(late), wire, copy);
        } else {
            self.place(wire, imp, verdict, natural, frame);
        }
    }

    fn place(
        &mut self,
        wire: usize,
        imp: &Impairment,
        verdict: Verdict,
        natural: u64,
        frame: Frame,
    ) {
        if let Verdict::Hold(ns) = verdict {
            self.count(wire, |s| &mut s.reordered);
            self.schedule(natural.saturating_add(ns), wire, frame);
        } else if self.rng.chance_ppm(imp.reorder_ppm) && self.may_hold(wire) {
            self.count(wire, |s| &mut s.reordered);
            self.hold(wire, imp, natural, frame);
        } else {
            let Some(w) = self.wires.get_mut(wire) else {
                return self.pool.give(frame);
            };
            let at = w.in_order(natural);
            self.arrive(at, wire, frame);
            self.release_held(wire, at);
        }
    }

    fn may_hold(&mut self, wire: usize) -> bool {
        let now = self.now();
        self.wires.get_mut(wire).is_some_and(|w| w.may_hold(now))
    }

    fn hold(&mut self, wire: usize, imp: &Impairment, natural: u64, frame: Frame) {
        let extra = match imp.reorder_positions {
            // Without positions the time is drawn; with them it is only the upper bound.
            0 => 1 + self.rng.below(imp.hold_ns()),
            _ => imp.hold_ns(),
        };
        let (slot, generation) = self.schedule(natural.saturating_add(extra), wire, frame);
        if imp.reorder_positions > 0 {
            let left = 1 + self.rng.below(u64::from(imp.reorder_positions));
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            if let Some(w) = self.wires.get_mut(wire) {
                w.held.push(Held {
                    slot,
                    generation,
                    left,
                });
            }
        }
    }

    /// One more frame in order arrives at `at`: held ones whose count is up come right after it.
    fn release_held(&mut self, wire: usize, at: u64) {
        let Some(mut w) = self.wires.get_mut(wire) else {
            return;
        };
        let mut i = 0;
        while let Some(h) = w.held.get_mut(i) {
            let gone = self
                .slots
                .get(h.slot as usize)
                .is_none_or(|s| s.generation != h.generation);
            h.left -= u32::from(!gone);
            if gone || h.left == 0 {
                let h = w.held.remove(i);
                if !gone {
                    self.arrive_held(at, wire, h);
                }
                let Some(again) = self.wires.get_mut(wire) else {
                    return;
                };
                w = again;
            } else {
                i += 1;
            }
        }
    }

    fn arrive_held(&mut self, at: u64, wire: usize, h: Held) {
        if at <= self.now() {
            if let Some((_, frame)) = self.take_slot(h.slot, h.generation) {
                self.processed += 1;
                self.deliver(wire, frame);
            }
        } else {
            self.push_event(at, h.slot, h.generation);
        }
    }

    /// Lets a frame come out at `at`: at once if that is now, so that a wire without delay needs
    /// no turn of the crank.
    fn arrive(&mut self, at: u64, wire: usize, frame: Frame) {
        if at <= self.now() {
            self.processed += 1;
            self.deliver(wire, frame);
        } else {
            self.schedule(at, wire, frame);
        }
    }

    fn push_event(&mut self, at: u64, slot: u32, generation: u32) {
        self.seq += 1;
        self.events.push(Reverse(Event {
            at,
            seq: self.seq,
            slot,
            generation,
        }));
    }

    fn schedule(&mut self, at: u64, wire: usize, frame: Frame) -> (u32, u32) {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            // Kept as large as the slots, so that giving one back never allocates.
            self.free_slots.reserve(self.slots.len());
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let mut generation = 0;
        if let Some(s) = self.slots.get_mut(slot as usize) {
            s.frame = Some((wire, frame));
            generation = s.generation;
        }
        self.push_event(at, slot, generation);
        (slot, generation)
    }

    fn take_slot(&mut self, slot: u32, generation: u32) -> Option<(usize, Frame)> {
        let s = self
            .slots
            .get_mut(slot as usize)
            .filter(|s| s.generation == generation)?;
        s.generation = s.generation.wrapping_add(1);
        self.free_slots.push(slot);
        s.frame.take()
    }

    /// A frame comes out of a wire.
    fn deliver(&mut self, wire: usize, mut frame: Frame) {
        let Some(to) = self.wires.get(wire).map(|w| w.to) else {
            return self.pool.give(frame);
        };
        match to {
            End::Port(port) => self.receive(wire, port, frame),
            End::Switch { switch, port } => {
                if frame.hops >= MAX_HOPS {
                    return self.discard(wire, Fate::Looped, frame);
                }
                frame.hops += 1;
                self.delivered(wire, &frame);
                self.forward(switch, port, frame);
            }
        }
    }

    fn receive(&mut self, wire: usize, port: usize, frame: Frame) {
        let Some(nic) = self.nics.get_mut(port) else {
            return self.pool.give(frame);
        };
        let refused = if frame.len() > nic.max_frame {
            Some(Fate::TooLong)
        } else if !nic.open || nic.rx.len() >= nic.rx_ring {
            Some(Fate::RingFull)
        } else {
            None
        };
        if let Some(fate) = refused {
            nic.rx_dropped += 1;
            return self.discard(wire, fate, frame);
        }
        self.delivered(wire, &frame);
        if let Some(nic) = self.nics.get_mut(port) {
            nic.rx.push_back(frame);
        }
    }

    fn delivered(&mut self, wire: usize, frame: &Frame) {
        self.count(wire, |s| &mut s.delivered);
        self.trace(wire, Fate::Delivered, frame);
    }

    fn forward(&mut self, switch: usize, port: usize, frame: Frame) {
        let link = self.pool.link();
        let Some(s) = self.switches.get_mut(switch) else {
            return self.pool.give(frame);
        };
        match s.targets(link, port, &frame) {
            Targets::One(out) => {
                let wire = s.out(out);
                match wire {
                    Some(wire) => self.transmit(wire, frame),
                    None => self.pool.give(frame),
                }
            }
            Targets::Flood => self.flood(switch, port, frame),
            Targets::Nowhere => self.pool.give(frame),
        }
    }

    fn flood(&mut self, switch: usize, from: usize, frame: Frame) {
        let mut out = 0;
        while let Some(wire) = self.switches.get(switch).map(|s| s.outs.get(out).copied()) {
            let Some(wire) = wire else { break };
            if out != from {
                let copy = self.pool.copy(&frame);
                self.transmit(wire, copy);
            }
            out += 1;
        }
        self.pool.give(frame);
    }

    fn discard(&mut self, wire: usize, fate: Fate, frame: Frame) {
        self.trace(wire, fate, &frame);
        self.count(wire, |s| match fate {
            Fate::Lost => &mut s.lost,
            Fate::Blackholed => &mut s.blackholed,
            Fate::QueueFull => &mut s.queue_full,
            Fate::Filtered => &mut s.filtered,
            _ => &mut s.refused,
        });
        self.pool.give(frame);
    }

    fn count(&mut self, wire: usize, which: impl FnOnce(&mut super::WireStats) -> &mut u64) {
        if let Some(w) = self.wires.get_mut(wire) {
            *which(&mut w.stats) += 1;
        }
    }

    fn trace(&mut self, wire: usize, fate: Fate, frame: &Frame) {
        if let Some(tap) = &mut self.tap {
            let tos = frame.meta.tos;
            let now = self.clock.get();
            tap(&TapEvent {
                now,
                wire: WireId(wire),
                fate,
                tos,
                frame: frame.bytes(),
            });
        }
    }
}
