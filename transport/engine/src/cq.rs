//! Completion queues, their notifications, and what else the core's sink needs: where its
//! completions and events end up and where shared receives come from.
//!
//! # Notification
//!
//! As `ibv_req_notify_cq`: armed once, the next completion that counts disarms the queue and
//! leaves one notification for [`CqTable::poll_notification`]. A completion that came before the
//! arming fires nothing; arming says whether there is one, and who arms has to poll once more
//! before sleeping. For solicited-only, solicited completions and all errors count (C8).

use std::collections::VecDeque;

use xroce_api::{AsyncEvent, Notify, Source};
use xroce_proto::qp::RecvQueue;
use xroce_proto::srq::{SharedReceiveQueue, Take};
use xroce_proto::wc::{Completion, Cq, Event, Sink, Srq, WcFlags, WcStatus};
use xroce_wire::newtypes::Qpn;

use crate::events::EventQueue;
use crate::handles::{Handles, Kept};

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
    /// Since its last overrun every queue pair of it is in ERR or RESET.
    ended: bool,
    armed: Option<Notify>,
    /// Notifications fired and not taken.
    fired: u32,
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
            ended: false,
            armed: None,
            fired: 0,
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

    /// Another size; what is queued stays, in order. False if it does not fit.
    fn resize(&mut self, depth: u32) -> bool {
        if self.len() > depth {
            return false;
        }
        let mut ring = Vec::with_capacity(depth.next_power_of_two() as usize);
        let queued = (0..self.len()).map(|i| self.head.wrapping_add(i) & self.mask);
        ring.extend(queued.filter_map(|slot| self.ring.get(slot as usize)));
        self.head = 0;
        self.tail = u32::try_from(ring.len()).unwrap_or(0);
        self.mask = depth.next_power_of_two() - 1;
        self.ring = ring;
        self.depth = depth;
        true
    }

    /// Whether this completion is one that was waited for.
    fn takes_arming(&mut self, wc: &Completion) -> bool {
        let counts = match self.armed {
            None => false,
            Some(Notify::Any) => true,
            Some(Notify::Solicited) => {
                wc.flags.contains(WcFlags::SOLICITED) || wc.status != WcStatus::Success
            }
        };
        if counts {
            self.armed = None;
            self.fired += 1;
        }
        counts
    }
}

/// Why a CQ was not resized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resize {
    Unknown,
    /// So many completions are queued.
    TooSmall(u32),
}

/// All CQs and SRQs of an engine, and its events.
#[derive(Debug, Default)]
pub(crate) struct CqTable {
    queues: Handles<Queue>,
    pub(crate) srqs: Handles<SharedReceiveQueue>,
    pub(crate) events: EventQueue,
    /// CQs with notifications not taken, each once.
    fired: VecDeque<Cq>,
    /// CQs that lost a completion since last asked, each once; their QPs must go to ERR (C7).
    overflows: Vec<Cq>,
    pub(crate) overflow_count: u64,
}

impl CqTable {
    pub(crate) fn create(&mut self, depth: u32) -> Option<Cq> {
        let handle = Cq(self.queues.insert(Queue::new(depth))?);
        self.events.reserve();
        let room = self.queues.len();
        self.fired.reserve(room.saturating_sub(self.fired.len()));
        self.overflows
            .reserve(room.saturating_sub(self.overflows.len()));
        Some(handle)
    }

    pub(crate) fn destroy(&mut self, cq: Cq) -> Result<(), Kept> {
        self.queues.remove(cq.0)?;
        self.events.forget(Source::Cq(cq));
        self.fired.retain(|&c| c != cq);
        self.overflows.retain(|&c| c != cq);
        Ok(())
    }

    pub(crate) fn resize(&mut self, cq: Cq, depth: u32) -> Result<(), Resize> {
        let queue = self.queues.get_mut(cq.0).ok_or(Resize::Unknown)?;
        if queue.resize(depth) {
            Ok(())
        } else {
            Err(Resize::TooSmall(queue.len()))
        }
    }

    pub(crate) fn exists(&self, cq: Cq) -> bool {
        self.queues.get(cq.0).is_some()
    }

    pub(crate) fn add_users(&mut self, cq: Cq, more: i32) {
        self.queues.add_users(cq.0, more);
    }

    #[inline]
    pub(crate) fn poll(&mut self, cq: Cq, out: &mut [Completion]) -> usize {
        match self.queues.get_mut(cq.0) {
            Some(queue) => queue.pop(out),
            None => 0,
        }
    }

    /// Arms a CQ; whether completions are there already. Solicited-only does not weaken an
    /// arming for any.
    pub(crate) fn arm(&mut self, cq: Cq, notify: Notify) -> Option<bool> {
        let queue = self.queues.get_mut(cq.0)?;
        if queue.armed != Some(Notify::Any) {
            queue.armed = Some(notify);
        }
        Some(queue.len() != 0)
    }

    /// The oldest notification not yet taken.
    pub(crate) fn poll_notification(&mut self) -> Option<Cq> {
        let cq = self.fired.pop_front()?;
        if let Some(queue) = self.queues.get_mut(cq.0) {
            queue.fired = queue.fired.saturating_sub(1);
            if queue.fired != 0 {
                self.fired.push_back(cq);
            }
        }
        Some(cq)
    }

    pub(crate) fn has_notification(&self) -> bool {
        !self.fired.is_empty()
    }

    /// A completion is lost.
    #[cold]
    #[inline(never)]
    fn note_overflow(&mut self, cq: Cq) {
        self.overflow_count += 1;
        if !self.overflows.contains(&cq) {
            self.overflows.push(cq);
        }
    }

    pub(crate) fn take_overflow(&mut self) -> Option<Cq> {
        self.overflows.pop()
    }

    /// Every QP of this CQ is about to go to ERR. False if they all did before, and none has left
    /// it since: whoever posts to a QP in ERR makes nobody look at all the others.
    pub(crate) fn end(&mut self, cq: Cq) -> bool {
        let queue = self.queues.get_mut(cq.0);
        queue.is_some_and(|queue| !std::mem::replace(&mut queue.ended, true))
    }

    /// A QP of this CQ may have left ERR or RESET.
    pub(crate) fn revive(&mut self, cq: Cq) {
        if let Some(queue) = self.queues.get_mut(cq.0) {
            queue.ended = false;
        }
    }
}

impl Sink for CqTable {
    #[inline(always)]
    fn complete(&mut self, cq: Cq, wc: Completion) {
        let Some(queue) = self.queues.get_mut(cq.0) else {
            return;
        };
        if queue.push(wc) {
            // Many armings may fire before one is taken, yet the CQ is listed once.
            if queue.armed.is_some() && queue.takes_arming(&wc) && queue.fired == 1 {
                self.fired.push_back(cq);
            }
            return;
        }
        self.note_overflow(cq);
    }

    fn event(&mut self, qpn: Qpn, event: Event) {
        self.events.push(AsyncEvent::qp(qpn, event));
    }

    #[inline]
    fn take_shared(&mut self, srq: Srq, into: &mut RecvQueue) -> bool {
        let Some(queue) = self.srqs.get_mut(srq.0) else {
            return false;
        };
        match queue.take_into(into) {
            Take::Empty => return false,
            Take::Taken => {}
            Take::TakenLimitReached => {
                self.events
                    .push(AsyncEvent::srq(srq, Event::SrqLimitReached));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
