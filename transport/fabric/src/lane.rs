//! One direction of a link: the egress port at its start, the wire, and what the wire does to
//! frames.

use std::collections::VecDeque;

use hdrhistogram::Histogram;
use xroce_net::sim::Rng;

use crate::egress::{Egress, Order, Weights};
use crate::frame::{Frame, PRIORITIES};
use crate::units::{BitRate, Time};

/// What a direction of a link does to frames besides carrying them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Impairment {
    /// Frames lost at random, parts per million.
    pub loss_ppm: u32,
    /// Frames held back so that others overtake them, parts per million.
    pub reorder_ppm: u32,
    /// A held frame goes on after 1 ..= this many others were sent behind it (uniform), 0 is as 1.
    /// Those that are held as well count, so no frame is overtaken by more or overtakes more.
    pub reorder_positions: u32,
    /// Added to the propagation delay.
    pub extra_delay: Time,
}

/// A held frame goes on after this time if nothing overtakes it.
pub(crate) const HOLD_MAX: Time = Time::from_us(100);

/// One end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Node {
    /// A host by number.
    Host(u32),
    /// A switch by number.
    Switch(u32),
}

/// Counters of one direction of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneStats {
    /// Frames sent.
    pub frames: u64,
    /// Their bytes, without preamble, FCS and gap.
    pub bytes: u64,
    /// Time the link was occupied.
    pub busy: Time,
    /// Frames marked CE by the switch at its start.
    pub marked: u64,
    /// Frames that found no room in the buffer of that switch.
    pub dropped: u64,
    /// Frames lost on the wire.
    pub lost: u64,
    /// Frames lost because the link was down.
    pub down: u64,
    /// Frames that others overtook.
    pub reordered: u64,
    /// Times a priority was paused by the other end.
    pub pauses: u64,
    /// How long, over all priorities.
    pub paused: Time,
    /// Most bytes that waited.
    pub queue_max: u64,
}

#[derive(Debug)]
struct Held {
    frame: Frame,
    /// Frames that have yet to be sent behind it.
    left: u32,
    until: u64,
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) from: Node,
    pub(crate) to: Node,
    /// Number of this link among the ports of the switch at either end.
    pub(crate) from_port: u16,
    pub(crate) to_port: u16,
    pub(crate) rate: BitRate,
    pub(crate) delay: Time,
    pub(crate) impairment: Impairment,
    pub(crate) up: bool,
    pub(crate) busy: bool,
    /// Counts outages, so that a pause sent before one has no effect after it.
    pub(crate) epoch: u8,
    pub(crate) egress: Egress,
    /// Pauses and resumptions to be sent: they overtake all frames.
    pub(crate) control: VecDeque<(u8, bool)>,
    pub(crate) rng: Rng,
    pub(crate) stats: LaneStats,
    pub(crate) depth: Depth,
    pipe: VecDeque<(u64, Frame)>,
    held: Vec<Held>,
    paused_since: [Time; PRIORITIES],
    /// Most bytes that waited since the last sample.
    recent_max: u64,
}

/// Lengths of a queue, weighted by how long they lasted.
#[derive(Debug)]
pub(crate) struct Depth {
    /// Made when something first waits.
    histogram: Option<Box<Histogram<u64>>>,
    since: Time,
}

impl Depth {
    fn new() -> Self {
        Self {
            histogram: None,
            since: Time::ZERO,
        }
    }

    /// The queue held `bytes` until `now`.
    #[inline]
    fn held(&mut self, bytes: u64, now: Time) {
        if self.histogram.is_none() {
            // Two digits; grows by itself.
            self.histogram = Histogram::new(2).ok().map(Box::new);
        }
        let lasted = now.since(self.since).ps();
        if let Some(histogram) = &mut self.histogram
            && lasted > 0
        {
            // Cannot fail: it grows.
            let _ = histogram.record_n(bytes, lasted);
            self.since = now;
        }
    }

    /// Starts again.
    pub(crate) fn clear(&mut self, now: Time) {
        self.histogram = None;
        self.since = now;
    }

    /// Bytes below which the queue was for this share of the time since `start`.
    pub(crate) fn quantile(&self, share: f64) -> u64 {
        self.histogram
            .as_ref()
            .map_or(0, |h| h.value_at_quantile(share))
    }

    /// Mean bytes.
    pub(crate) fn mean(&self) -> f64 {
        self.histogram.as_ref().map_or(0.0, |h| h.mean())
    }
}

/// Where a new lane goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) from: Node,
    pub(crate) to: Node,
    pub(crate) from_port: u16,
    pub(crate) to_port: u16,
}

impl Lane {
    pub(crate) fn new(
        ends: Ends,
        rate: BitRate,
        delay: Time,
        (weights, order): (Weights, Order),
        rng: Rng,
    ) -> Self {
        Self {
            from: ends.from,
            to: ends.to,
            from_port: ends.from_port,
            to_port: ends.to_port,
            rate,
            delay,
            impairment: Impairment::default(),
            up: true,
            busy: false,
            epoch: 0,
            egress: Egress::new(weights, order),
            control: VecDeque::new(),
            rng,
            stats: LaneStats::default(),
            depth: Depth::new(),
            pipe: VecDeque::new(),
            held: Vec::new(),
            paused_since: [Time::ZERO; PRIORITIES],
            recent_max: 0,
        }
    }

    #[inline]
    pub(crate) fn enqueue(&mut self, frame: Frame, now: Time) {
        self.depth.held(self.egress.bytes(), now);
        self.egress.push(frame);
        self.recent_max = self.recent_max.max(self.egress.bytes());
        self.stats.queue_max = self.stats.queue_max.max(self.egress.bytes());
    }

    /// Most bytes that waited since this was last asked.
    pub(crate) fn take_recent_max(&mut self) -> u64 {
        std::mem::replace(&mut self.recent_max, self.egress.bytes())
    }

    #[inline]
    pub(crate) fn dequeue(&mut self, now: Time) -> Option<Frame> {
        let before = self.egress.bytes();
        let frame = self.egress.pop()?;
        self.depth.held(before, now);
        Some(frame)
    }

    /// A frame of a queue that will not be sent.
    pub(crate) fn pop_any(&mut self, now: Time) -> Option<Frame> {
        let before = self.egress.bytes();
        let frame = self.egress.pop_any()?;
        self.depth.held(before, now);
        Some(frame)
    }

    /// Accounts for how long the queue has been as it is.
    pub(crate) fn settle(&mut self, now: Time) {
        if self.depth.histogram.is_some() {
            self.depth.held(self.egress.bytes(), now);
        }
    }

    pub(crate) fn set_paused(&mut self, priority: u8, paused: bool, now: Time) {
        if !self.egress.set_paused(priority, paused) {
            return;
        }
        let since = &mut self.paused_since[usize::from(priority) % PRIORITIES];
        if paused {
            self.stats.pauses += 1;
            *since = now;
        } else {
            self.stats.paused += now.since(*since);
        }
    }

    /// How long priorities were paused, those that still are included.
    pub(crate) fn paused_time(&self, now: Time) -> Time {
        let open = (0..PRIORITIES).filter(|&p| self.egress.is_paused(p));
        open.fold(self.stats.paused, |sum, p| {
            sum + now.since(self.paused_since[p])
        })
    }

    /// Counts from now on only.
    pub(crate) fn start_over(&mut self, now: Time) {
        self.stats = LaneStats {
            queue_max: self.egress.bytes(),
            ..LaneStats::default()
        };
        self.paused_since = [now; PRIORITIES];
        self.depth.clear(now);
    }

    /// A frame that would arrive at `at` is on the wire; `arrival` is told when frames come out of
    /// it. Gives back a frame that got lost.
    pub(crate) fn launch(
        &mut self,
        frame: Frame,
        at: u64,
        arrival: &mut impl FnMut(u64),
    ) -> Option<Frame> {
        let wire = self.impairment;
        if self.rng.chance_ppm(wire.loss_ppm) {
            self.stats.lost += 1;
            return Some(frame);
        }
        let at = at + wire.extra_delay.ps();
        if self.rng.chance_ppm(wire.reorder_ppm) {
            self.stats.reordered += 1;
            let positions = wire.reorder_positions.max(1);
            let left = 1 + u32::try_from(self.rng.below(u64::from(positions))).unwrap_or(0);
            let until = at + HOLD_MAX.ps();
            self.count_down(at, arrival);
            self.held.push(Held { frame, left, until });
            arrival(until);
            return None;
        }
        let at = self.enter(frame, at);
        arrival(at);
        if !self.held.is_empty() {
            self.count_down(at, arrival);
        }
        None
    }

    /// Puts a frame behind those on the wire: a shorter delay than before overtakes nothing.
    fn enter(&mut self, frame: Frame, at: u64) -> u64 {
        let at = self.pipe.back().map_or(at, |(last, _)| at.max(*last));
        self.pipe.push_back((at, frame));
        at
    }

    /// One more frame was sent behind those that are held, in its turn or to be held itself.
    fn count_down(&mut self, at: u64, arrival: &mut impl FnMut(u64)) {
        for held in &mut self.held {
            held.left -= 1;
        }
        while let Some(i) = self.held.iter().position(|h| h.left == 0) {
            let held = self.held.remove(i);
            arrival(self.enter(held.frame, at));
        }
    }

    /// The next frame that has arrived by `now`.
    #[inline]
    pub(crate) fn arrived(&mut self, now: u64) -> Option<Frame> {
        if self.pipe.front().is_some_and(|(at, _)| *at <= now) {
            return self.pipe.pop_front().map(|(_, frame)| frame);
        }
        let i = self.held.iter().position(|h| h.until <= now)?;
        Some(self.held.remove(i).frame)
    }

    /// Frames on the wire.
    pub(crate) fn on_the_wire(&self) -> usize {
        self.pipe.len() + self.held.len()
    }

    /// The link goes down: what was on the wire is given back, to be forgotten.
    pub(crate) fn cut(&mut self, now: Time) -> Vec<Frame> {
        self.up = false;
        self.epoch = self.epoch.wrapping_add(1);
        self.control.clear();
        for priority in 0..8 {
            self.set_paused(priority, false, now);
        }
        let held = self.held.drain(..).map(|h| h.frame);
        let lost: Vec<Frame> = self.pipe.drain(..).map(|(_, f)| f).chain(held).collect();
        self.stats.down += lost.len() as u64;
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(impairment: Impairment) -> Lane {
        let ends = Ends {
            from: Node::Host(0),
            to: Node::Host(1),
            from_port: 0,
            to_port: 0,
        };
        let (rate, delay) = (BitRate::from_gbps(40), Time::from_us(1));
        let queues = (Weights::default(), Order::Arrival);
        let mut lane = Lane::new(ends, rate, delay, queues, Rng::new(3));
        lane.impairment = impairment;
        lane
    }

    /// Order in which frames 0, 1, 2 … sent 1 µs apart come out.
    fn order(lane: &mut Lane, n: u64) -> Vec<u64> {
        let mut last = 0;
        for i in 0..n {
            let mut frame = Frame::new(100);
            frame.tag_mut().hash = i;
            lane.launch(frame, i * 1_000_000, &mut |at| last = last.max(at));
        }
        std::iter::from_fn(|| lane.arrived(last))
            .map(|f| f.tag().hash)
            .collect()
    }

    #[test]
    fn a_clean_wire_keeps_order_and_loses_nothing() {
        assert_eq!(
            order(&mut lane(Impairment::default()), 100),
            (0..100).collect::<Vec<_>>()
        );
    }

    #[test]
    fn no_frame_is_displaced_by_more_than_asked_for() {
        for (reorder_ppm, positions) in [(50_000, 64), (100_000, 8), (500_000, 16), (1_000_000, 5)]
        {
            let impairment = Impairment {
                reorder_ppm,
                reorder_positions: positions,
                ..Impairment::default()
            };
            let mut wire = lane(impairment);
            let got = order(&mut wire, 20_000);
            assert_eq!(got, order(&mut lane(impairment), 20_000), "the same seed");
            let mut sorted = got.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..20_000).collect::<Vec<_>>());
            let (late, early) = displaced(&got, u64::from(positions));
            assert!(
                late > 1 && late <= u64::from(positions),
                "overtaken by {late}"
            );
            assert!(
                early > 1 && early <= u64::from(positions),
                "overtook {early}"
            );
            assert!(wire.stats.reordered > 800);
        }
    }

    /// By how many a frame was overtaken, and how many one overtook, at most. Nothing was displaced
    /// by more than twice `reach` places.
    fn displaced(order: &[u64], reach: u64) -> (u64, u64) {
        let mut place = vec![0_u64; order.len()];
        for (at, &i) in (0..).zip(order) {
            place[usize::try_from(i).unwrap()] = at;
        }
        let (mut late, mut early) = (vec![0; order.len()], vec![0; order.len()]);
        for (i, &at) in place.iter().enumerate() {
            assert!(at.abs_diff(i as u64) <= 2 * reach);
            let near = usize::try_from(4 * reach).unwrap();
            for (j, &other) in place.iter().enumerate().skip(i + 1).take(near) {
                late[i] += u64::from(other < at);
                early[j] += u64::from(other < at);
            }
        }
        let most = |counts: Vec<u64>| counts.into_iter().max().unwrap_or(0);
        (most(late), most(early))
    }

    #[test]
    fn losses_are_as_frequent_as_asked_for() {
        let mut wire = lane(Impairment {
            loss_ppm: 10_000,
            ..Impairment::default()
        });
        let got = order(&mut wire, 100_000).len() as u64;
        assert_eq!(got + wire.stats.lost, 100_000);
        assert!(
            (850..1150).contains(&wire.stats.lost),
            "{}",
            wire.stats.lost
        );
    }

    #[test]
    fn queue_lengths_are_weighted_by_time() {
        let mut lane = lane(Impairment::default());
        let frame = || {
            let mut f = Frame::new(1000);
            f.set_len(1000);
            f
        };
        // Empty for 60 µs, 1000 bytes for 30, 2000 for 10.
        lane.enqueue(frame(), Time::from_us(60));
        lane.enqueue(frame(), Time::from_us(90));
        lane.settle(Time::from_us(100));
        let at = |q| lane.depth.quantile(q);
        assert_eq!((at(0.5), lane.stats.queue_max), (0, 2000));
        assert!(at(0.8).abs_diff(1000) < 10 && at(0.95).abs_diff(2000) < 20);
        assert!((lane.depth.mean() - 500.0).abs() < 10.0);
    }
}
