//! Memory that other processes may write at any time, behind copies.
//!
//! A [`Region`] never gives out a reference to its bytes: they are copied in and out, so that no
//! Rust rule depends on what another process does. The one exception never leaves the crate: eight
//! bytes as an `AtomicU64`, which may be shared with whoever writes there. This crate holds the `unsafe` that takes.

mod region;

pub use region::{AtomicAtError, OutOfRange, Region};
