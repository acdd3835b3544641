//! Asynchronous events until somebody asks for them.

use std::collections::VecDeque;

use xroce_api::{AsyncEvent, Source};

/// Events kept; further ones are counted and lost.
pub(crate) const EVENTS_MAX: usize = 1024;

/// A bounded queue. The first events are kept: they tell what began it.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    events: VecDeque<AsyncEvent>,
    /// Events that found the queue full.
    pub(crate) lost: u64,
}

impl EventQueue {
    pub(crate) fn push(&mut self, event: AsyncEvent) {
        if self.events.len() >= EVENTS_MAX {
            self.lost += 1;
        } else {
            self.events.push_back(event);
        }
    }

    /// As [`EventQueue::push`], unless the same event waits already.
    pub(crate) fn push_once(&mut self, event: AsyncEvent) {
        if !self.events.contains(&event) {
            self.push(event);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Drops what is about an object that is destroyed: its handle will mean another one day.
    pub(crate) fn forget(&mut self, source: Source) {
        self.events.retain(|e| e.source != source);
    }

    /// Makes room beforehand, so that an event never allocates.
    pub(crate) fn reserve(&mut self) {
        self.events
            .reserve(EVENTS_MAX.saturating_sub(self.events.len()));
    }
}

#[cfg(test)]
mod tests {
    use xroce_proto::wc::Event;
    use xroce_wire::newtypes::Qpn;

    use super::*;

    #[test]
    fn a_full_queue_keeps_the_first_and_counts_the_rest() {
        let mut queue = EventQueue::default();
        let event = |n| AsyncEvent::qp(Qpn::new(n), Event::QpFatal);
        for n in (0..).take(EVENTS_MAX + 3) {
            queue.push(event(n));
        }
        assert_eq!(queue.lost, 3);
        queue.forget(Source::Qp(Qpn::new(1)));
        assert_eq!(queue.pop(), Some(event(0)));
        assert_eq!(queue.pop(), Some(event(2)));
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), EVENTS_MAX - 3);
        assert_eq!(queue.lost, 3);
    }

    #[test]
    fn numbers_are_those_of_verbs() {
        let numbers = [
            (Event::CqErr, 0),
            (Event::QpFatal, 1),
            (Event::QpReqErr, 2),
            (Event::QpAccessErr, 3),
            (Event::CommEst, 4),
            (Event::SqDrained, 5),
            (Event::DeviceFatal, 8),
            (Event::PortActive, 9),
            (Event::PortErr, 10),
            (Event::SrqErr, 14),
            (Event::SrqLimitReached, 15),
            (Event::QpLastWqeReached, 16),
            (Event::GidChange, 18),
        ];
        for (event, number) in numbers {
            assert_eq!(event as u8, number);
        }
    }
}
