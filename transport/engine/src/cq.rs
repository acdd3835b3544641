//! Completion queues and asynchronous events: where the core's completions end up.

use std::collections::VecDeque;

use xroce_proto::wc::{Completion, Cq, Event, Sink};
use xroce_wire::newtypes::Qpn;

/// Events kept until polled; the oldest go first when nobody polls.
const EVENTS_MAX: usize = 1024;

/// A bounded queue of completions.
#[derive(Debug)]
struct Queue {
    ring: VecDeque<Completion>,
    depth: usize,
    overflowed: bool,
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
        let depth = depth as usize;
        self.queues.push(Queue {
            ring: VecDeque::with_capacity(depth),
            depth,
            overflowed: false,
        });
        self.events
            .reserve(EVENTS_MAX.saturating_sub(self.events.capacity()));
        Some(handle)
    }

    pub(crate) fn exists(&self, cq: Cq) -> bool {
        (cq.0 as usize) < self.queues.len()
    }

    pub(crate) fn poll(&mut self, cq: Cq, out: &mut [Completion]) -> usize {
        let Some(queue) = self.queues.get_mut(cq.0 as usize) else {
            return 0;
        };
        let n = out.len().min(queue.ring.len());
        for (to, from) in out.iter_mut().zip(queue.ring.drain(..n)) {
            *to = from;
        }
        n
    }

    pub(crate) fn poll_event(&mut self) -> Option<(Qpn, Event)> {
        self.events.pop_front()
    }

    pub(crate) fn take_overflow(&mut self) -> Option<Cq> {
        self.overflows.pop()
    }
}

impl Sink for CqTable {
    #[inline]
    fn complete(&mut self, cq: Cq, wc: Completion) {
        let Some(queue) = self.queues.get_mut(cq.0 as usize) else {
            return;
        };
        if queue.ring.len() < queue.depth {
            queue.ring.push_back(wc);
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
