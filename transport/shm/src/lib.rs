//! Memory that other processes may write at any time, behind copies.
//!
//! A [`Region`] never gives out a reference to its bytes: they are copied in and out, so that no
//! Rust rule depends on what another process does. The one exception never leaves the crate: words
//! as atomics, which may be shared with whoever writes there. This crate holds the `unsafe` that
//! takes.
//!
//! Two processes that do not trust each other talk through rings ([`Producer`], [`Consumer`]),
//! doorbells ([`ParkWord`], [`ArmWord`]) and a set of queues to look at ([`DirtySet`]) in a region.
//! Memory that is to be read and written by another process comes from a memfd
//! ([`Region::from_client`]) or is turned into one where it lies ([`Region::share`]).

mod across;
mod adopt;
mod dirty;
mod import;
// loom tries every order of events; under Miri that takes for ever.
#[cfg(test)]
#[cfg(not(miri))]
mod models;
mod park;
mod region;
mod ring;
mod words;

pub use adopt::{AdoptError, Adopted, AdoptedPiece, Mapping};
pub use dirty::{DIRTY_BYTES, DIRTY_MAX, DirtySet, DirtySetError, NotInSet};
pub use import::{ImportError, Piece};
pub use park::{Arm, ArmWord, ParkWord};
pub use region::{AtomicAtError, OutOfRange, Region};
pub use ring::{
    ARM_AT, CAPACITY_MAX, Consumer, ENTRY_MAX, ENTRY_MIN, Geometry, PARK_AT, Producer, RING_ALIGN,
    RingCorrupt, RingError, RingLayoutError,
};

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
