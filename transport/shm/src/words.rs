//! Atomic words that a protocol between two processes works on.
//!
//! The protocols (ring, doorbell, dirty set) are written over [`Word`], so that the very same code
//! runs on shared memory and under loom, which tries every interleaving (`models.rs`).

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::region::{AtomicAtError, Region};

/// One atomic integer, wherever it lies.
pub(crate) trait Word<V> {
    fn load(&self, order: Ordering) -> V;
    fn store(&self, value: V, order: Ordering);
    fn swap(&self, value: V, order: Ordering) -> V;
    fn fetch_or(&self, bits: V, order: Ordering) -> V;
    /// A sequentially consistent fence: what this thread stored before is seen by others before
    /// this thread's later loads are done, if those others fence likewise.
    fn fence(&self);
}

/// A word of a [`Region`], checked when made: later accesses check nothing.
#[derive(Debug)]
pub(crate) struct Shared<A> {
    at: NonNull<A>,
    /// Keeps the mapping.
    _region: Region,
}

// SAFETY: `at` points into the mapping that `_region` keeps, and is only used as an atomic.
unsafe impl<A: Sync> Send for Shared<A> {}
// SAFETY: as above.
unsafe impl<A: Sync> Sync for Shared<A> {}

/// An atomic of which any bits are a value.
pub(crate) trait Atomic {}
impl Atomic for AtomicU32 {}
impl Atomic for AtomicU64 {}

impl<A: Atomic> Shared<A> {
    /// The word at `offset`.
    pub(crate) fn new(region: &Region, offset: u64) -> Result<Self, AtomicAtError> {
        let at = region.pointer(offset, size_of::<A>())?.cast::<A>();
        if !at.is_aligned() {
            return Err(AtomicAtError::Misaligned(offset));
        }
        Ok(Self {
            at,
            _region: region.clone(),
        })
    }

    #[inline]
    fn get(&self) -> &A {
        // SAFETY: checked in `new`: aligned, inside the mapping, which lives as long as `self`.
        // The reference is to an atomic of which any bits are a value; whoever else writes here
        // does what another thread could do.
        unsafe { self.at.as_ref() }
    }
}

macro_rules! word {
    ($value:ty, $atomic:ty) => {
        impl Word<$value> for Shared<$atomic> {
            #[inline]
            fn load(&self, order: Ordering) -> $value {
                self.get().load(order)
            }
            #[inline]
            fn store(&self, value: $value, order: Ordering) {
                self.get().store(value, order);
            }
            #[inline]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.get().swap(value, order)
            }
            #[inline]
            fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                self.get().fetch_or(bits, order)
            }
            #[inline]
            fn fence(&self) {
                // Pairs with the fence of the other side of the protocol.
                fence(Ordering::SeqCst);
            }
        }
    };
}
word!(u32, AtomicU32);
word!(u64, AtomicU64);
