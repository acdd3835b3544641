//! What happens next: a radix heap of events by time.
//!
//! Virtual time never goes back, which a radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, 1990) makes
//! use of: an entry lies in a bucket by the highest bit in which its time differs from that of the
//! last one taken, and moves to a lower bucket at most 64 times. Events of one time come in the
//! order in which they were filed, so that a run is the same on every machine.

/// Events by time, first in first out among those of one time.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    /// Time of the last event taken.
    last: u64,
    buckets: [Vec<(u64, T)>; 65],
    /// Entries of the first bucket that were taken already.
    taken: usize,
    /// Which of the others have entries, as bits: bucket 1 is bit 0.
    filled: u64,
    /// For moving entries without allocating.
    scratch: Vec<(u64, T)>,
}

impl<T: Copy> EventQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            last: 0,
            buckets: std::array::from_fn(|_| Vec::new()),
            taken: 0,
            filled: 0,
            scratch: Vec::new(),
        }
    }

    /// Files an event; one in the past happens now.
    #[inline]
    pub(crate) fn push(&mut self, at: u64, event: T) {
        let at = at.max(self.last);
        let bucket = (64 - (at ^ self.last).leading_zeros()) as usize;
        if bucket > 0 {
            self.filled |= 1 << (bucket - 1);
        }
        self.buckets[bucket].push((at, event));
    }

    /// Takes the next event.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u64, T)> {
        if self.taken == self.buckets[0].len() {
            self.buckets[0].clear();
            self.taken = 0;
            if !self.refill() {
                return None;
            }
        }
        let next = self.buckets[0].get(self.taken).copied();
        self.taken += 1;
        next
    }

    /// Moves the entries of the lowest bucket to where they belong after its earliest.
    fn refill(&mut self) -> bool {
        if self.filled == 0 {
            return false;
        }
        let lowest = self.filled.trailing_zeros() as usize + 1;
        self.filled &= self.filled - 1;
        let mut moving = std::mem::take(&mut self.scratch);
        std::mem::swap(&mut moving, &mut self.buckets[lowest]);
        self.last = moving.iter().map(|e| e.0).min().unwrap_or(self.last);
        for (at, event) in moving.drain(..) {
            self.push(at, event);
        }
        // The larger of the two stays where it is needed.
        std::mem::swap(&mut moving, &mut self.buckets[lowest]);
        self.scratch = moving;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use xroce_net::sim::Rng;

    use super::*;

    #[test]
    fn as_a_binary_heap_with_sequence_numbers() {
        let mut rng = Rng::new(5);
        let mut queue = EventQueue::new();
        let mut naive = BinaryHeap::new();
        let mut now = 0;
        for seq in 0..200_000_u64 {
            let ahead = match rng.below(4) {
                0 => 0,
                1 => rng.below(100),
                2 => rng.below(1 << 20),
                _ => rng.below(1 << 40),
            };
            queue.push(now + ahead, seq);
            naive.push(Reverse((now + ahead, seq)));
            while rng.below(2) == 0 {
                let Some(Reverse(expected)) = naive.pop() else {
                    break;
                };
                assert_eq!(queue.pop(), Some(expected));
                now = expected.0;
            }
        }
        while let Some(Reverse(expected)) = naive.pop() {
            assert_eq!(queue.pop(), Some(expected));
        }
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn the_past_is_now() {
        let mut queue = EventQueue::new();
        queue.push(100, 'a');
        assert_eq!(queue.pop(), Some((100, 'a')));
        queue.push(7, 'b');
        queue.push(u64::MAX, 'c');
        assert_eq!(queue.pop(), Some((100, 'b')));
        assert_eq!(queue.pop(), Some((u64::MAX, 'c')));
    }
}
