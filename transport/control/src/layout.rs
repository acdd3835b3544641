//! Where things are in the memory that a process and the daemon share.
//!
//! The daemon makes all of it. What is made for one object is used for no other: it goes when the
//! object goes.
//!
//! * The session: a word whose zero means that the daemon is awake ([`PARK`]), a ring of events
//!   from the daemon ([`EVENTS`]), and sets of the queues with news ([`SETS`]).
//! * A completion queue: one ring ([`cq()`]).
//! * A queue pair: a ring of sends and, behind it, one of receives ([`work_ring`]).
//! * A shared receive queue: a ring of receives.

use thiserror::Error;
use xroce_abi::{ENTRY, completion, event, recv, send};
use xroce_shm::{
    CAPACITY_MAX, DIRTY_BYTES, DIRTY_MAX, DirtySet, DirtySetError, Geometry, Region,
    RingLayoutError,
};

use xroce_api::message::Capacity;

/// Offset of the word that says whether the daemon sleeps.
pub const PARK: u64 = 0;
/// Offset of the ring of events.
pub const EVENTS: u64 = 128;
/// Events that wait, at most.
pub const EVENTS_MAX: u32 = 1024;
/// Sets of queues.
pub const SETS: u32 = 16;
/// Queues of a session: queue pairs and shared receive queues.
pub const QUEUES_MAX: u32 = SETS * DIRTY_MAX;
/// Entries of a ring of work requests, at most. A queue may be deeper: who posts waits until the
/// daemon has taken some.
pub const RING_MAX: u32 = 1 << 14;

/// Bytes of an entry, as rings want it.
#[allow(clippy::cast_possible_truncation, reason = "a constant below 256")]
const fn entry(bytes: usize) -> u32 {
    assert!(bytes <= 256);
    bytes as u32
}

/// The ring of events.
///
/// # Errors
/// Never: for the type only.
pub const fn events() -> Result<Geometry, RingLayoutError> {
    Geometry::new(entry(event::LEN), EVENTS_MAX)
}

/// Offset of a set of queues.
///
/// # Errors
/// See [`events`].
pub fn set_at(set: u32) -> Result<u64, RingLayoutError> {
    Ok(EVENTS + events()?.bytes() + u64::from(set) * DIRTY_BYTES)
}

/// The sets of queues in the memory of a session.
///
/// # Errors
/// The memory is too short.
pub fn sets(session: &Region) -> Result<Vec<DirtySet>, SetsError> {
    let set = |n| Ok(DirtySet::new(session, set_at(n)?, DIRTY_MAX)?);
    (0..SETS).map(set).collect()
}

/// Memory that the sets of queues are not in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SetsError {
    /// See [`RingLayoutError`].
    #[error(transparent)]
    Layout(#[from] RingLayoutError),
    /// See [`DirtySetError`].
    #[error(transparent)]
    Set(#[from] DirtySetError),
}

/// Bytes of the memory of a session.
///
/// # Errors
/// See [`events`].
pub fn session_bytes() -> Result<u64, RingLayoutError> {
    set_at(SETS)
}

/// Where a queue is among the sets: which one, and its number there.
#[must_use]
pub const fn place(number: u32) -> (u32, u32) {
    (number / DIRTY_MAX, number % DIRTY_MAX)
}

/// The ring of a completion queue of so many completions.
#[must_use]
pub fn cq_capacity(depth: u32) -> Capacity {
    Capacity(depth.clamp(1, CAPACITY_MAX).next_power_of_two())
}

/// The ring of a completion queue.
///
/// # Errors
/// The capacity is no power of two, or too large.
pub const fn cq(capacity: Capacity) -> Result<Geometry, RingLayoutError> {
    Geometry::new(entry(completion::LEN), capacity.0)
}

/// A ring for so many work requests of so many entries each.
fn work(depth: u32, entries: usize, most: usize) -> Capacity {
    let entries = u32::try_from(entries).unwrap_or(u32::MAX);
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let wanted = depth.saturating_mul(entries).clamp(most, RING_MAX);
    Capacity(wanted.next_power_of_two())
}

/// The ring for `depth` sends of up to so many SGEs and inline bytes.
#[must_use]
pub fn send_capacity(depth: u32, sges: u8, inline: u32) -> Capacity {
    let entries = send::entries_of(usize::from(sges), inline as usize);
    work(depth, entries, send::ENTRIES_MAX)
}

/// The ring for `depth` receives of up to so many SGEs.
#[must_use]
pub fn recv_capacity(depth: u32, sges: u8) -> Capacity {
    work(depth, recv::entries(usize::from(sges)), recv::ENTRIES_MAX)
}

/// A ring of work requests.
///
/// # Errors
/// The capacity is no power of two, or too large.
pub const fn work_ring(capacity: Capacity) -> Result<Geometry, RingLayoutError> {
    Geometry::new(entry(ENTRY), capacity.0)
}
