//! Which slot of a table is used next: numbers come back as late as they can.
//!
//! A handle, a queue pair number or a key is a slot index with a few bits beside it that change
//! with every life of the slot. Whoever still holds an old one misses until both are the same
//! again, so a free slot waits: it is used again only when `FLOOR` others have been free for less
//! long, and until then the table grows. One object made again and again has `FLOOR + 1` slots
//! times the lives each can tell apart before a number returns.

use std::collections::VecDeque;

/// The free slots of a table, the one that has been free longest first.
#[derive(Debug, Default)]
pub(crate) struct FreeSlots<const FLOOR: usize> {
    waiting: VecDeque<u32>,
}

impl<const FLOOR: usize> FreeSlots<FLOOR> {
    /// The slot to use again. `None`: the table has to grow, as long as it has fewer than `max`
    /// slots; if it has all it can have, nothing is free.
    #[inline]
    pub(crate) fn take(&mut self, slots: usize, max: usize) -> Option<u32> {
        if self.waiting.len() > FLOOR || slots >= max {
            self.waiting.pop_front()
        } else {
            None
        }
    }

    /// A slot is free from now on. Never allocates, if [`FreeSlots::reserve`] knows the table.
    #[inline]
    pub(crate) fn give(&mut self, index: u32) {
        self.waiting.push_back(index);
    }

    /// Makes room for all the slots of the table.
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.waiting
            .reserve(slots.saturating_sub(self.waiting.len()));
    }

    /// How many are free.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots used by one object made `times` over, in a table of at most `max`.
    fn lives(times: usize, max: usize) -> Vec<u32> {
        let mut free = FreeSlots::<3>::default();
        let mut slots = 0;
        let life = |_| {
            let index = free.take(slots, max).unwrap_or_else(|| {
                slots += 1;
                u32::try_from(slots).unwrap() - 1
            });
            free.give(index);
            index
        };
        (0..times).map(life).collect()
    }

    #[test]
    fn case_127_the_oldest_is_used_when_enough_others_wait() {
        assert_eq!(lives(9, 100), [0, 1, 2, 3, 0, 1, 2, 3, 0]);
        // A table that cannot grow uses what it has, the oldest first.
        assert_eq!(lives(5, 2), [0, 1, 0, 1, 0]);
    }

    #[test]
    fn a_full_table_has_nothing() {
        let mut free = FreeSlots::<3>::default();
        assert_eq!(free.take(7, 7), None);
        free.give(5);
        assert_eq!(free.take(6, 7), None, "it may still grow");
        assert_eq!(free.take(7, 7), Some(5));
        assert_eq!(free.len(), 0);
    }
}
