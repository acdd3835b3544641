//! Memory that other processes may write at any time, behind copies.
//!
//! A [`Region`] never gives out a reference to its bytes: they are copied in and out, so that no
//! Rust rule depends on what another process does. This crate holds the `unsafe` that takes.

mod region;

pub use region::{OutOfRange, Region};
