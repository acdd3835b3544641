//! What stands in the rings that a process and the daemon share.
//!
//! * [`send`], [`recv`]: work requests, of one or more entries of [`ENTRY`] bytes; written by the
//!   process, read by the daemon.
//! * [`completion`], [`event`]: the other way.
//!
//! Both sides are on one machine: integers are in its byte order. Nothing here is a pointer, and
//! nothing read is believed: decoding takes any bytes and gives a value or an error that says which
//! byte was wrong. Keys, addresses and numbers in them are for the tables of the daemon to look up.
//! Bytes without meaning must be 0, so that they can be given one.
#![forbid(unsafe_code)]

pub mod completion;
pub mod event;
mod field;
pub mod recv;
pub mod send;

use thiserror::Error;

/// Bytes of an entry of a work queue.
pub const ENTRY: usize = 64;
/// SGEs of a work request, at most.
pub const SGES_MAX: usize = 32;
/// Inline bytes of a work request, at most.
pub const INLINE_MAX: usize = 512;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum BadEntry {
    /// A code that stands for nothing.
    #[error("{what} {value}: there is no such")]
    Code {
        /// Which field.
        what: &'static str,
        /// What was there.
        value: u32,
    },
    /// Something without meaning was not 0.
    #[error("{what} is {value:#x}, it must be 0 here")]
    Reserved {
        /// Which field.
        what: &'static str,
        /// What was there.
        value: u64,
    },
    /// More than there may be.
    #[error("{what} {given}, the limit is {limit}")]
    Limit {
        /// Which field.
        what: &'static str,
        /// What was there.
        given: usize,
        /// The limit.
        limit: usize,
    },
    /// The number of entries is not what the contents take.
    #[error("a work request of {given} entries whose contents take {needed}")]
    Entries {
        /// As it says.
        given: usize,
        /// What its SGEs or bytes take.
        needed: usize,
    },
    /// Fewer bytes than announced.
    #[error("{given} bytes where {needed} are needed")]
    Short {
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        needed: usize,
    },
}

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
