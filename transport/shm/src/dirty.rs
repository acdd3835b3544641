//! Which of many queues have new entries.
//!
//! Threads of the client mark the numbers of queues they published to, the daemon takes all marks
//! at once. Two levels: 64 words of 64 bits, and a summary with a bit for each word, so that a
//! drain looks only at words where something is.
//!
//! No mark is lost: a marker sets the bit in the word before the one in the summary, a drain takes
//! the summary before the words. So a drain that misses a bit has taken the summary before its bit
//! was set there, and the next drain finds it. A mark may be reported twice or for an empty queue.
//!
//! # Layout
//! From the set's offset, a multiple of 8 (64 is better), in bytes: the summary at 0, the words at
//! 128, 640 in all. 128 bytes apart for the reason given for the rings.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::region::{AtomicAtError, Region};
use crate::words::{Shared, Word};

/// Numbers a set can have: 0 to 4095.
pub const DIRTY_MAX: u32 = 4096;
/// Bytes of a set.
pub const DIRTY_BYTES: u64 = 640;
/// Offset of the words.
const WORDS_AT: u64 = 128;
/// Words, and bits of each.
const WORDS: u32 = 64;

const _: () = assert!(WORDS * WORDS == DIRTY_MAX && WORDS_AT + 8 * 64 == DIRTY_BYTES);

/// A number that a set does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("queue {number} is not below {limit}")]
pub struct NotInSet {
    /// The number.
    pub number: u32,
    /// The set has the numbers below.
    pub limit: u32,
}

/// A set that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirtySetError {
    /// More numbers than a set has.
    #[error("a set of {0} numbers: {DIRTY_MAX} can be")]
    Limit(u32),
    /// Outside the region or misaligned.
    #[error(transparent)]
    Place(#[from] AtomicAtError),
}

/// See [`DirtySet`].
#[derive(Debug)]
pub(crate) struct Marks<W> {
    pub(crate) summary: W,
    pub(crate) words: Box<[W]>,
    pub(crate) limit: u32,
}

impl<W: Word<u64>> Marks<W> {
    #[inline]
    pub(crate) fn mark(&self, number: u32) -> Result<(), NotInSet> {
        let refused = NotInSet {
            number,
            limit: self.limit,
        };
        let (word, bit) = (number / WORDS, number % WORDS);
        let place = self.words.get(word as usize);
        let place = place.filter(|_| number < self.limit).ok_or(refused)?;
        // Pairs with the acquire swap of the word in `drain`: the ring was published before.
        place.fetch_or(1 << bit, Ordering::Release);
        // Pairs with the acquire swap of the summary in `drain`: the word has the bit.
        self.summary.fetch_or(1 << word, Ordering::Release);
        Ok(())
    }

    pub(crate) fn drain(&self, mut each: impl FnMut(u32)) -> u32 {
        // A plain look first, so that nothing is written while nothing is marked. Relaxed: only
        // the swap below takes marks.
        if self.summary.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut calls = 0;
        // Pairs with the release of the summary in `mark`.
        let mut words = self.summary.swap(0, Ordering::Acquire);
        while words != 0 {
            let word = words.trailing_zeros();
            words &= words - 1;
            let Some(place) = self.words.get(word as usize) else {
                break;
            };
            // Pairs with the release of the word in `mark`.
            let mut bits = place.swap(0, Ordering::Acquire);
            while bits != 0 {
                let number = word * WORDS + bits.trailing_zeros();
                bits &= bits - 1;
                if number < self.limit {
                    calls += 1;
                    each(number);
                }
            }
        }
        calls
    }

    pub(crate) fn is_empty(&self) -> bool {
        // Pairs with the release of the summary in `mark`; the fence of a park comes before.
        self.summary.load(Ordering::Acquire) == 0
    }
}

/// A set of queue numbers in a region, for any number of markers and one drainer.
#[derive(Debug)]
pub struct DirtySet {
    marks: Marks<Shared<AtomicU64>>,
}

impl DirtySet {
    /// The set at `offset` of the numbers below `limit`, whose memory is zero.
    ///
    /// # Errors
    /// [`DirtySetError`].
    pub fn new(region: &Region, offset: u64, limit: u32) -> Result<Self, DirtySetError> {
        if limit > DIRTY_MAX {
            return Err(DirtySetError::Limit(limit));
        }
        // All of it; so the offsets below cannot overflow.
        region
            .pointer(offset, 640)
            .map_err(AtomicAtError::OutOfRange)?;
        let word = |n: u32| Shared::new(region, offset + WORDS_AT + 8 * u64::from(n));
        let words: Result<Box<[_]>, _> = (0..WORDS).map(word).collect();
        Ok(Self {
            marks: Marks {
                summary: Shared::new(region, offset)?,
                words: words?,
                limit,
            },
        })
    }

    /// Marks a queue, after its ring was published. Two atomic operations, no system call; the
    /// drainer may have to be woken afterwards, see [`crate::ParkWord`].
    ///
    /// # Errors
    /// [`NotInSet`]; nothing was marked.
    #[inline]
    pub fn mark(&self, number: u32) -> Result<(), NotInSet> {
        self.marks.mark(number)
    }

    /// Takes all marks and calls `each` with every number once, in rising order; how many calls.
    /// Whatever other processes write, that are at most `limit` calls, with numbers below `limit`,
    /// and 65 atomic operations.
    pub fn drain(&self, each: impl FnMut(u32)) -> u32 {
        self.marks.drain(each)
    }

    /// Whether a drain would find nothing. The look before sleeping.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(set: &DirtySet) -> Vec<u32> {
        let mut found = Vec::new();
        let calls = set.drain(|n| found.push(n));
        assert_eq!(calls as usize, found.len());
        found
    }

    #[test]
    fn a_drain_reports_each_marked_number_once() {
        let region = Region::for_tests(1024);
        let set = DirtySet::new(&region, 64, 4096).unwrap();
        assert!(set.is_empty() && drained(&set).is_empty());
        for n in [4095, 0, 63, 64, 63] {
            set.mark(n).unwrap();
        }
        assert!(!set.is_empty());
        assert_eq!(drained(&set), [0, 63, 64, 4095]);
        assert!(set.is_empty() && drained(&set).is_empty());
    }

    #[test]
    fn whatever_is_written_only_numbers_below_the_limit_come() {
        let region = Region::for_tests(640);
        let set = DirtySet::new(&region, 0, 100).unwrap();
        let (number, limit) = (100, 100);
        assert_eq!(set.mark(number), Err(NotInSet { number, limit }));
        assert!(set.mark(u32::MAX).is_err());
        region.write_at(0, &[0xff; 640]).unwrap();
        assert_eq!(drained(&set), (0..100).collect::<Vec<_>>());
        assert!(drained(&set).is_empty());
    }

    #[test]
    fn a_set_fits_or_is_refused() {
        let region = Region::for_tests(640);
        assert_eq!(
            DirtySet::new(&region, 0, 4097).unwrap_err(),
            DirtySetError::Limit(4097)
        );
        for offset in [4, 8, u64::MAX] {
            assert!(DirtySet::new(&region, offset, 1).is_err());
        }
    }

    #[test]
    fn marks_of_many_threads_all_arrive() {
        const ROUNDS: u32 = if cfg!(miri) { 50 } else { 20_000 };
        let region = Region::for_tests(640);
        let set = DirtySet::new(&region, 0, 4096).unwrap();
        let published: Vec<AtomicU64> = (0..4096).map(|_| AtomicU64::new(0)).collect();
        let taken = std::thread::scope(|scope| {
            let markers: Vec<_> = (0..3u32)
                .map(|thread| {
                    let (set, published) = (&set, &published);
                    scope.spawn(move || {
                        for n in 0..ROUNDS {
                            let number = (n * 7 + thread) % 4096;
                            published[number as usize].fetch_add(1, Ordering::Relaxed);
                            set.mark(number).unwrap();
                        }
                    })
                })
                .collect();
            let mut taken = 0;
            let mut take = |n: u32| taken += published[n as usize].swap(0, Ordering::Relaxed);
            while markers.iter().any(|m| !m.is_finished()) {
                set.drain(&mut take);
                std::thread::yield_now();
            }
            // Joined, not only finished: from then on all that they did is seen.
            for marker in markers {
                marker.join().unwrap();
            }
            set.drain(&mut take);
            taken
        });
        assert_eq!(taken, u64::from(3 * ROUNDS));
    }
}
