//! Completion queues and asynchronous events: where the core's completions end up.

use std::collections::VecDeque;

use xroce_proto::wc::{Completion, Cq, Event, Sink};
use xroce_wire::newtypes::Qpn;

/// Events kept until polled; the oldest go first when nobody polls.
const EVENTS_MAX: usize = 1024;

/// A bounded queue of completions: a ring of free-running indices, allocated when it is made.
#[derive(Debug)]
struct Queue {
    /// Grows to its capacity in the first lap, so that pages never reached are never touched.
    ring: Vec<Completion>,
    /// Slots less one; their number is a power of two.
    mask: u32,
    head: u32,
    tail: u32,
    depth: u32,
    overflowed: bool,
}

impl Queue {
    fn new(depth: u32) -> Self {
        let slots = depth.next_power_of_two();
        Self {
            ring: Vec::with_capacity(slots as usize),
            mask: slots - 1,
            head: 0,
            tail: 0,
            depth,
            overflowed: false,
        }
    }

    #[inline]
    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// False if it is full.
    #[inline(always)]
    fn push(&mut self, wc: Completion) -> bool {
        if self.len() >= self.depth {
            return false;
        }
        let slot = (self.tail & self.mask) as usize;
        match self.ring.get_mut(slot) {
            Some(place) => *place = wc,
            None => self.ring.push(wc),
        }
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Moves the oldest into `out`, as many as fit. Returns how many.
    #[inline]
    fn pop(&mut self, out: &mut [Completion]) -> usize {
        let n = out.len().min(self.len() as usize);
        for to in out.iter_mut().take(n) {
            if let Some(from) = self.ring.get((self.head & self.mask) as usize) {
                *to = *from;
            }
            self.head = self.head.wrapping_add(1);
        }
        n
    }
}

/// All CQs of an engine.
#[derive(Debug, Default)]
pub(crate) struct CqTable {
    queues: Vec<Queue>,
    events: VecDeque<(Qpn, Event)>,
    /// CQs that overflowed since last asked; their QPs must go to ERR (C7).
    overflows: Vec<Cq>,
    pub(crate) overflow_count: u64,
}

impl CqTable {
    pub(crate) fn create(&mut self, depth: u32) -> Option<Cq> {
        let handle = Cq(u32::try_from(self.queues.len()).ok()?);
        self.queues.push(Queue::new(depth));
        self.events
            .reserve(EVENTS_MAX.saturating_sub(self.events.capacity()));
        Some(handle)
    }

    pub(crate) fn exists(&self, cq: Cq) -> bool {
        (cq.0 as usize) < self.queues.len()
    }

    #[inline]
    pub(crate) fn poll(&mut self, cq: Cq, out: &mut [Completion]) -> usize {
        match self.queues.get_mut(cq.0 as usize) {
            Some(queue) => queue.pop(out),
            None => 0,
        }
    }

    pub(crate) fn poll_event(&mut self) -> Option<(Qpn, Event)> {
        self.events.pop_front()
    }

    pub(crate) fn take_overflow(&mut self) -> Option<Cq> {
        self.overflows.pop()
    }
}

impl Sink for CqTable {
    #[inline(always)]
    fn complete(&mut self, cq: Cq, wc: Completion) {
        let Some(queue) = self.queues.get_mut(cq.0 as usize) else {
            return;
        };
        if queue.push(wc) {
            return;
        }
        self.overflow_count += 1;
        if !queue.overflowed {
            queue.overflowed = true;
            self.overflows.push(cq);
        }
    }

    fn event(&mut self, qpn: Qpn, event: Event) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back((qpn, event));
    }
}
