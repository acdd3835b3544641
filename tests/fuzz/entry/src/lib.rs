//! What the fuzz targets of `tests/fuzz` do with the bytes they get: plain functions, so that
//! `tests/fuzz_corpus.rs` can play the committed corpora to them without libFuzzer.
//!
//! Each either returns or panics with what did not hold. Nothing depends on anything but the
//! bytes.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a panic is how a finding is reported"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "offsets and lengths of small regions"
)]

mod bytes;
mod calls;
mod engines;
mod frame;
mod port;

pub use calls::calls;
pub use engines::engines;
pub use frame::frame;
