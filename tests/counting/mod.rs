//! The system's allocator, counting what each thread asks for. Whatever includes this file gets it
//! as its global allocator.
#![allow(dead_code, reason = "each includer uses its own part")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more, and nobody reads it.
    let _ = ASKED.try_with(|n| n.set(n.get() + 1));
}

/// `more` bytes, of which `less` are given back.
fn hold(more: usize, less: usize) {
    // A layout has at most `isize::MAX` bytes.
    let change = more.cast_signed() - less.cast_signed();
    let _ = HELD.try_with(|n| n.set(n.get() + change));
}

// SAFETY: every call is passed on unchanged to `System`, which keeps the contract of the trait;
// counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        hold(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        hold(0, layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        hold(new_size, layout.size());
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Allocations of this thread so far.
pub(crate) fn asked() -> u64 {
    ASKED.with(Cell::get)
}

/// Bytes that this thread allocated, less those that it freed.
pub(crate) fn held() -> isize {
    HELD.with(Cell::get)
}

/// Allocations of this thread while `body` runs.
pub(crate) fn allocations(body: impl FnOnce()) -> u64 {
    let before = asked();
    body();
    asked() - before
}
