//! One direction of a link: queue, serialiser, and what is in flight.

use std::collections::VecDeque;
use std::fmt;

use super::impair::Impairment;

/// What a test's filter decides about a frame; see [`super::SimNet::set_filter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Goes on, subject to the link's impairment.
    Pass,
    /// Vanishes.
    Drop,
    /// Arrives twice.
    Duplicate,
    /// Arrives this many nanoseconds later than it would; later frames overtake it.
    Hold(u64),
    /// Is damaged as by [`Impairment::corrupt_ppm`].
    Corrupt,
}

/// What became of a frame, as a tap sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Given to the link (before anything happened to it).
    Sent,
    /// Came out at the far end.
    Delivered,
    /// Lost on the wire, by chance or by count.
    Lost,
    /// Sent during a blackhole.
    Blackholed,
    /// Did not fit into the queue.
    QueueFull,
    /// Dropped by the filter.
    Filtered,
    /// The receiving port's ring was full, or the port is gone.
    RingFull,
    /// Longer than the receiving port's MTU.
    TooLong,
    /// A switch sent it round in circles: more than [`super::MAX_HOPS`] links.
    Looped,
}

/// Counters of one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireStats {
    /// Frames given to it.
    pub sent: u64,
    /// Bytes given to it.
    pub sent_bytes: u64,
    /// Frames that came out, copies included.
    pub delivered: u64,
    /// Frames lost by chance or by count.
    pub lost: u64,
    /// Frames lost to a blackhole.
    pub blackholed: u64,
    /// Frames for which the queue had no room.
    pub queue_full: u64,
    /// Frames dropped by the filter.
    pub filtered: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames damaged, the cut ones included.
    pub corrupted: u64,
    /// Frames cut.
    pub truncated: u64,
    /// Frames marked CE.
    pub marked: u64,
    /// Frames refused at the far end (ring full, too long, looped).
    pub refused: u64,
    /// Most bytes that ever waited.
    pub queue_peak_bytes: u64,
}

/// Where a direction of a link ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Port(usize),
    Switch { switch: usize, port: usize },
}

/// A frame held back until `left` more have passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) left: u32,
}

pub(super) type Filter = Box<dyn FnMut(&mut [u8]) -> Verdict>;

/// One direction of a link.
pub(super) struct Wire {
    imp: Impairment,
    pub(super) to: End,
    pub(super) stats: WireStats,
    pub(super) filter: Option<Filter>,
    blackholes: Vec<(u64, u64)>,
    /// No impairment, filter or blackhole is set.
    plain: bool,
    pub(super) held: Vec<Held>,
    /// When the next frame may be held.
    hold_after: u64,
    /// When the serialiser is free, in picoseconds.
    busy_ps: u64,
    /// Frames not yet fully sent: departure in ns, bytes.
    queue: VecDeque<(u64, u64)>,
    queued_bytes: u64,
    /// Frames that came as far as to be lost by count, up to the next loss.
    passed: u32,
    /// Arrival of the last frame in order; no frame in order arrives before it.
    last_arrival: u64,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("imp", &self.imp)
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}

impl Wire {
    pub(super) fn new(to: End, imp: Impairment) -> Self {
        let mut wire = Self {
            imp,
            to,
            stats: WireStats::default(),
            filter: None,
            blackholes: Vec::new(),
            plain: false,
            held: Vec::new(),
            hold_after: 0,
            busy_ps: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            passed: 0,
            last_arrival: 0,
        };
        wire.refresh();
        wire
    }

    fn refresh(&mut self) {
        self.plain = self.imp == Impairment::default()
            && self.filter.is_none()
            && self.blackholes.is_empty();
    }

    pub(super) fn imp(&self) -> Impairment {
        self.imp
    }

    pub(super) fn set_imp(&mut self, imp: Impairment) {
        self.imp = imp;
        self.refresh();
    }

    pub(super) fn set_filter(&mut self, filter: Option<Filter>) {
        self.filter = filter;
        self.refresh();
    }

    pub(super) fn add_blackhole(&mut self, from: u64, to: u64) {
        self.blackholes.push((from, to));
        self.refresh();
    }

    /// Nothing can happen to a frame here but to arrive at once, behind all others.
    pub(super) fn is_clean(&self, now: u64) -> bool {
        self.plain && self.last_arrival <= now && self.held.is_empty()
    }

    pub(super) fn in_blackhole(&self, now: u64) -> bool {
        self.blackholes
            .iter()
            .any(|&(from, to)| (from..to).contains(&now))
    }

    /// Bytes still waiting or on their way out at `now`.
    pub(super) fn queued_bytes(&mut self, now: u64) -> u64 {
        self.drain(now);
        self.queued_bytes
    }

    /// Frames still waiting or on their way out at `now`.
    pub(super) fn queued_frames(&mut self, now: u64) -> usize {
        self.drain(now);
        self.queue.len()
    }

    /// When the frame at the head will have left.
    pub(super) fn head_departs(&self) -> Option<u64> {
        self.queue.front().map(|&(at, _)| at)
    }

    fn drain(&mut self, now: u64) {
        while let Some(&(at, bytes)) = self.queue.front() {
            if at > now {
                break;
            }
            self.queued_bytes -= bytes;
            self.queue.pop_front();
        }
    }

    /// Sends `len` bytes through the serialiser; when the last bit leaves.
    pub(super) fn serialise(&mut self, now: u64, len: usize, ps: u64) -> u64 {
        if ps == 0 {
            return now;
        }
        self.busy_ps = self
            .busy_ps
            .max(now.saturating_mul(1000))
            .saturating_add(ps);
        let departs = self.busy_ps.div_ceil(1000);
        self.queue.push_back((departs, len as u64));
        self.queued_bytes += len as u64;
        self.stats.queue_peak_bytes = self.stats.queue_peak_bytes.max(self.queued_bytes);
        departs
    }

    /// Whether this frame is the one of so many that is lost.
    pub(super) fn is_lost_by_count(&mut self) -> bool {
        if self.imp.loss_every == 0 {
            return false;
        }
        self.passed += 1;
        let lost = self.passed >= self.imp.loss_every;
        if lost {
            self.passed = 0;
        }
        lost
    }

    /// Whether a frame may be held now; then the next may be only later.
    pub(super) fn may_hold(&mut self, now: u64) -> bool {
        let may = now >= self.hold_after;
        if may {
            self.hold_after = now.saturating_add(self.imp.reorder_apart_ns);
        }
        may
    }

    /// The arrival of a frame that keeps its place in the order.
    pub(super) fn in_order(&mut self, at: u64) -> u64 {
        self.last_arrival = self.last_arrival.max(at);
        self.last_arrival
    }
}
