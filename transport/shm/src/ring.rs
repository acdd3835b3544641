//! A queue of fixed-size entries from one process to another.
//!
//! One side writes entries and the producer index, the other reads entries and writes the consumer
//! index. Both indices run freely over `u32`; an entry's slot is its index modulo the capacity.
//! Neither side reads the geometry, nor its own index, from the shared memory: what the other side
//! writes there can cost it the queue ([`RingCorrupt`]) or hand it odd entries, never an access
//! outside the ring. Entries are copied out once and judged afterwards.
//!
//! # Layout
//! From the ring's offset, a multiple of 64, in bytes:
//!
//! | at | what |
//! |---|---|
//! | 0 | producer index, `u32` |
//! | 128 | consumer index, `u32` |
//! | 256 | [`PARK_AT`]: whether the consumer sleeps ([`crate::ParkWord`]), `u32` |
//! | 260 | [`ARM_AT`]: what the consumer wants to be told ([`crate::ArmWord`]), `u32` |
//! | 384 | entries |
//!
//! 128 bytes apart and not 64: the prefetcher of x86 fetches lines in pairs, and would let the two
//! sides take each other's index line away.
//!
//! Memory of a new ring is zero: both indices start there. A ring is not restarted; a queue that
//! starts anew gets a new one.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::region::{OutOfRange, Region};
use crate::words::{Shared, Word};

/// Offset of the producer index from the start of the ring.
const PRODUCER_AT: u64 = 0;
/// Offset of the consumer index.
const CONSUMER_AT: u64 = 128;
/// Offset of the word for [`crate::ParkWord`] from the start of the ring.
pub const PARK_AT: u64 = 256;
/// Offset of the word for [`crate::ArmWord`] from the start of the ring.
pub const ARM_AT: u64 = 260;
/// Offset of the first entry.
const ENTRIES_AT: u64 = 384;
/// What a ring's offset is a multiple of.
pub const RING_ALIGN: u64 = 64;
/// Size of the smallest entry, in bytes.
pub const ENTRY_MIN: u32 = 16;
/// Size of the largest entry, in bytes.
pub const ENTRY_MAX: u32 = 256;
/// Most entries of a ring.
pub const CAPACITY_MAX: u32 = 1 << 20;

const _: () = assert!(CONSUMER_AT - PRODUCER_AT >= 128 && PARK_AT - CONSUMER_AT >= 128);
const _: () = assert!(ENTRIES_AT - PARK_AT >= 128 && ENTRIES_AT.is_multiple_of(RING_ALIGN));

/// A ring that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingLayoutError {
    /// The size of an entry.
    #[error("entries of {0} bytes: a multiple of 8 from {ENTRY_MIN} to {ENTRY_MAX} can be")]
    EntrySize(u32),
    /// The number of entries.
    #[error("{0} entries: a power of two up to {CAPACITY_MAX} can be")]
    Capacity(u32),
    /// The place in the region.
    #[error("a ring at offset {0}, which is not a multiple of {RING_ALIGN}")]
    Misaligned(u64),
    /// The address of the region: entries are atomic words of eight bytes.
    #[error(
        "a ring in memory at {0:#x}, which is not a multiple of 8: Region::anonymous is aligned"
    )]
    Address(u64),
    /// The ring reaches past the end of the region.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

/// The other side's index cannot be: it goes backwards, claims more entries than the ring has, or
/// frees entries that were never published. The ring is of no more use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the {whose} index is {theirs} while ours is {ours}, in a ring of {capacity} entries")]
pub struct RingCorrupt {
    /// Whose index was read: `producer` or `consumer`.
    pub whose: &'static str,
    /// What was read.
    pub theirs: u32,
    /// This side's own index, from its private memory.
    pub ours: u32,
    /// Entries of the ring.
    pub capacity: u32,
}

/// An entry that was not moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// See [`RingCorrupt`].
    #[error(transparent)]
    Corrupt(#[from] RingCorrupt),
    /// The buffer does not have the size of an entry.
    #[error("{len} bytes for an entry of {entry_size}")]
    EntrySize {
        /// Bytes of the buffer.
        len: usize,
        /// Bytes of an entry.
        entry_size: usize,
    },
}

/// Size and number of the entries of a ring, agreed on outside the shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    entry_size: u32,
    capacity: u32,
}

impl Geometry {
    /// `capacity` entries of `entry_size` bytes.
    ///
    /// # Errors
    /// `entry_size` is no multiple of 8 from [`ENTRY_MIN`] to [`ENTRY_MAX`], or `capacity` no power
    /// of two up to [`CAPACITY_MAX`].
    pub const fn new(entry_size: u32, capacity: u32) -> Result<Self, RingLayoutError> {
        if !entry_size.is_multiple_of(8) || entry_size < ENTRY_MIN || entry_size > ENTRY_MAX {
            return Err(RingLayoutError::EntrySize(entry_size));
        }
        if !capacity.is_power_of_two() || capacity > CAPACITY_MAX {
            return Err(RingLayoutError::Capacity(capacity));
        }
        Ok(Self {
            entry_size,
            capacity,
        })
    }

    /// Bytes of an entry.
    #[must_use]
    pub const fn entry_size(self) -> u32 {
        self.entry_size
    }

    /// Number of entries.
    #[must_use]
    pub const fn capacity(self) -> u32 {
        self.capacity
    }

    /// Bytes of a ring, a multiple of 128: rings may lie back to back.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        (ENTRIES_AT + self.entry_size as u64 * self.capacity as u64).next_multiple_of(128)
    }
}

/// Where the protocol below keeps its indices and entries.
pub(crate) trait Memory {
    type Index: Word<u32>;
    fn producer(&self) -> &Self::Index;
    fn consumer(&self) -> &Self::Index;
    /// Copies an entry in. `index` runs freely.
    fn write(&self, index: u32, entry: &[u8]);
    /// Copies an entry out.
    fn read(&self, index: u32, entry: &mut [u8]);
}

/// The writing side. Always `seen <= published <= tail <= seen + capacity`, modulo 2^32.
#[derive(Debug)]
pub(crate) struct Writer<M> {
    memory: M,
    capacity: u32,
    /// Index of the next entry to write.
    tail: u32,
    /// What the producer index says.
    published: u32,
    /// The consumer index when last read.
    seen: u32,
}

impl<M: Memory> Writer<M> {
    pub(crate) fn new(memory: M, capacity: u32) -> Self {
        Self {
            memory,
            capacity,
            tail: 0,
            published: 0,
            seen: 0,
        }
    }

    /// Entries that can be written, by the consumer index as it is now.
    pub(crate) fn space(&mut self) -> Result<u32, RingCorrupt> {
        // Pairs with the release store in `Reader::release`: the slots were read before.
        let theirs = self.memory.consumer().load(Ordering::Acquire);
        // It goes on from where it was seen, and at most to what is published. So what is written
        // and not consumed never is more than the ring holds.
        if theirs.wrapping_sub(self.seen) > self.published.wrapping_sub(self.seen) {
            return Err(RingCorrupt {
                whose: "consumer",
                theirs,
                ours: self.published,
                capacity: self.capacity,
            });
        }
        self.seen = theirs;
        Ok(self.capacity - self.tail.wrapping_sub(theirs))
    }

    /// Entries that can be written, `wanted` of them or all there is room for; the consumer index
    /// is read only if the last look at it says too few.
    #[inline]
    pub(crate) fn room(&mut self, wanted: u32) -> Result<u32, RingCorrupt> {
        let known = self.capacity - self.tail.wrapping_sub(self.seen);
        if known >= wanted {
            return Ok(wanted);
        }
        Ok(self.space()?.min(wanted))
    }

    #[inline]
    pub(crate) fn stage(&mut self, entry: &[u8]) -> Result<bool, RingCorrupt> {
        // The other side's line is read only when the last look at it says full.
        if self.tail.wrapping_sub(self.seen) == self.capacity && self.space()? == 0 {
            return Ok(false);
        }
        self.memory.write(self.tail, entry);
        self.tail = self.tail.wrapping_add(1);
        Ok(true)
    }

    #[inline]
    pub(crate) fn publish(&mut self) -> u32 {
        let staged = self.tail.wrapping_sub(self.published);
        if staged != 0 {
            // Pairs with the acquire load in `Reader::available`: the entries are there.
            self.memory.producer().store(self.tail, Ordering::Release);
            self.published = self.tail;
        }
        staged
    }
}

/// The reading side. Always `released <= head <= seen <= released + capacity`, modulo 2^32.
#[derive(Debug)]
pub(crate) struct Reader<M> {
    memory: M,
    capacity: u32,
    /// Index of the next entry to read.
    head: u32,
    /// What the consumer index says.
    released: u32,
    /// The producer index when last read.
    seen: u32,
}

impl<M: Memory> Reader<M> {
    pub(crate) fn new(memory: M, capacity: u32) -> Self {
        Self {
            memory,
            capacity,
            head: 0,
            released: 0,
            seen: 0,
        }
    }

    /// Entries that can be read, by the producer index as it is now.
    pub(crate) fn available(&mut self) -> Result<u32, RingCorrupt> {
        // Pairs with the release store in `Writer::publish`: the entries are there.
        let theirs = self.memory.producer().load(Ordering::Acquire);
        // It goes on from where it was seen, and at most until the ring is full of what is not
        // released.
        let known = self.seen.wrapping_sub(self.released);
        if theirs.wrapping_sub(self.seen) > self.capacity - known {
            return Err(RingCorrupt {
                whose: "producer",
                theirs,
                ours: self.head,
                capacity: self.capacity,
            });
        }
        self.seen = theirs;
        Ok(theirs.wrapping_sub(self.head))
    }

    #[inline]
    pub(crate) fn fetch(&mut self, entry: &mut [u8]) -> Result<bool, RingCorrupt> {
        // The other side's line is read only when the last look at it says empty.
        if self.head == self.seen && self.available()? == 0 {
            return Ok(false);
        }
        self.memory.read(self.head, entry);
        self.head = self.head.wrapping_add(1);
        Ok(true)
    }

    #[inline]
    pub(crate) fn release(&mut self) -> u32 {
        let kept = self.head.wrapping_sub(self.released);
        if kept != 0 {
            // Pairs with the acquire load in `Writer::space`: the slots have been read.
            self.memory.consumer().store(self.head, Ordering::Release);
            self.released = self.head;
        }
        kept
    }
}

/// A ring in a region, checked when made.
///
/// Entries are moved as relaxed atomic words of eight bytes: the other process may write while this
/// one reads, each word is fetched once, and no compiler may fetch it a second time after it was
/// judged.
#[derive(Debug)]
struct InRegion {
    producer: Shared<AtomicU32>,
    consumer: Shared<AtomicU32>,
    entries: NonNull<AtomicU64>,
    /// Eight-byte words of an entry.
    words: usize,
    mask: u32,
    /// Keeps the mapping.
    _region: Region,
}

// SAFETY: `entries` points into the mapping that `_region` keeps, and is only used as atomics.
unsafe impl Send for InRegion {}
// SAFETY: as above.
unsafe impl Sync for InRegion {}

impl InRegion {
    fn new(region: &Region, offset: u64, geometry: Geometry) -> Result<Self, RingLayoutError> {
        if !offset.is_multiple_of(RING_ALIGN) {
            return Err(RingLayoutError::Misaligned(offset));
        }
        let len = usize::try_from(geometry.bytes()).unwrap_or(usize::MAX);
        // All of the ring; so the offsets below cannot overflow and lie inside.
        region.pointer(offset, len)?;
        let word = |at| {
            Shared::new(region, offset + at).map_err(|_| RingLayoutError::Misaligned(offset + at))
        };
        let entries = region.pointer(offset + ENTRIES_AT, len - 384)?;
        let entries = entries.cast::<AtomicU64>();
        if !entries.is_aligned() {
            return Err(RingLayoutError::Address(region.address()));
        }
        Ok(Self {
            producer: word(PRODUCER_AT)?,
            consumer: word(CONSUMER_AT)?,
            entries,
            words: geometry.entry_size as usize / 8,
            mask: geometry.capacity - 1,
            _region: region.clone(),
        })
    }

    fn check(&self, len: usize) -> Result<(), RingError> {
        let entry_size = self.words * 8;
        if len == entry_size {
            Ok(())
        } else {
            Err(RingError::EntrySize { len, entry_size })
        }
    }

    /// Word `word` of the entry at `index`, if an entry has so many.
    #[inline]
    fn cell(&self, index: u32, word: usize) -> Option<&AtomicU64> {
        if word >= self.words {
            return None;
        }
        let at = (index & self.mask) as usize * self.words + word;
        // SAFETY: `index & mask` is below the capacity and `word` below the words of an entry, so
        // `at` is a word of the entries, which `new` proved inside the mapping.
        let at = unsafe { self.entries.add(at) };
        // SAFETY: inside the mapping, which lives as long as `self`; aligned, because
        // the first entry is and all are multiples of 8 long. An atomic of any bits, whoever writes there.
        Some(unsafe { at.as_ref() })
    }
}

impl Memory for InRegion {
    type Index = Shared<AtomicU32>;

    fn producer(&self) -> &Self::Index {
        &self.producer
    }

    fn consumer(&self) -> &Self::Index {
        &self.consumer
    }

    #[inline]
    fn write(&self, index: u32, entry: &[u8]) {
        let (words, _) = entry.as_chunks::<8>();
        for (n, word) in words.iter().enumerate() {
            if let Some(cell) = self.cell(index, n) {
                // Ordered by the release store of the index.
                cell.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn read(&self, index: u32, entry: &mut [u8]) {
        let (words, _) = entry.as_chunks_mut::<8>();
        for (n, word) in words.iter_mut().enumerate() {
            if let Some(cell) = self.cell(index, n) {
                // Ordered by the acquire load of the index.
                *word = cell.load(Ordering::Relaxed).to_ne_bytes();
            }
        }
    }
}

/// The side that writes entries.
///
/// Entries are staged and published: one store of the index for all that were staged. After
/// [`Self::publish`] the consumer may have to be woken, see [`crate::ParkWord`].
#[derive(Debug)]
pub struct Producer {
    writer: Writer<InRegion>,
}

impl Producer {
    /// The producer of the ring of `geometry` at `offset`, whose memory is zero.
    ///
    /// # Errors
    /// [`RingLayoutError`].
    pub fn new(region: &Region, offset: u64, geometry: Geometry) -> Result<Self, RingLayoutError> {
        let memory = InRegion::new(region, offset, geometry)?;
        let writer = Writer::new(memory, geometry.capacity);
        Ok(Self { writer })
    }

    /// Entries that can be staged, by what the consumer says now.
    ///
    /// # Errors
    /// [`RingCorrupt`].
    pub fn space(&mut self) -> Result<u32, RingCorrupt> {
        self.writer.space()
    }

    /// How many of `wanted` entries can be staged. Looks at what the consumer says only if the last
    /// look does not tell.
    ///
    /// # Errors
    /// [`RingCorrupt`].
    #[inline]
    pub fn room(&mut self, wanted: u32) -> Result<u32, RingCorrupt> {
        self.writer.room(wanted)
    }

    /// Writes an entry without showing it to the consumer; false if the ring is full.
    ///
    /// # Errors
    /// [`RingError`]; nothing was written.
    #[inline]
    pub fn stage(&mut self, entry: &[u8]) -> Result<bool, RingError> {
        self.writer.memory.check(entry.len())?;
        Ok(self.writer.stage(entry)?)
    }

    /// Shows the consumer what was staged; how many entries that were.
    #[inline]
    pub fn publish(&mut self) -> u32 {
        self.writer.publish()
    }

    /// Stages one entry and publishes all that are staged; false if the ring is full.
    ///
    /// # Errors
    /// [`RingError`]; nothing was written or published.
    #[inline]
    pub fn push(&mut self, entry: &[u8]) -> Result<bool, RingError> {
        let staged = self.stage(entry)?;
        self.publish();
        Ok(staged)
    }
}

/// The side that reads entries.
///
/// Entries are fetched and released: one store of the index for all that were fetched.
#[derive(Debug)]
pub struct Consumer {
    reader: Reader<InRegion>,
}

impl Consumer {
    /// The consumer of the ring of `geometry` at `offset`, whose memory is zero.
    ///
    /// # Errors
    /// [`RingLayoutError`].
    pub fn new(region: &Region, offset: u64, geometry: Geometry) -> Result<Self, RingLayoutError> {
        let memory = InRegion::new(region, offset, geometry)?;
        let reader = Reader::new(memory, geometry.capacity);
        Ok(Self { reader })
    }

    /// Entries that can be fetched, by what the producer says now. The look before sleeping.
    ///
    /// # Errors
    /// [`RingCorrupt`].
    pub fn available(&mut self) -> Result<u32, RingCorrupt> {
        self.reader.available()
    }

    /// Copies the next entry to `entry` and keeps its slot; false if there is none.
    ///
    /// # Errors
    /// [`RingError`]; `entry` is as before.
    #[inline]
    pub fn fetch(&mut self, entry: &mut [u8]) -> Result<bool, RingError> {
        self.reader.memory.check(entry.len())?;
        Ok(self.reader.fetch(entry)?)
    }

    /// Gives the slots of what was fetched back to the producer; how many that were.
    #[inline]
    pub fn release(&mut self) -> u32 {
        self.reader.release()
    }

    /// Fetches one entry and releases all that are fetched; false if there is none.
    ///
    /// # Errors
    /// [`RingError`]; `entry` is as before, nothing was released.
    #[inline]
    pub fn take(&mut self, entry: &mut [u8]) -> Result<bool, RingError> {
        let fetched = self.fetch(entry)?;
        self.release();
        Ok(fetched)
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
