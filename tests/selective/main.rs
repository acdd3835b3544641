//! Selective retransmission between two production engines over the simulated network.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic, and its sizes are small"
)]

#[path = "../common/mod.rs"]
mod common;
mod stream;
mod tables;
