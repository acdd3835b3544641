//! The benches of `make bench`, without measuring: what they read and write, and that each part
//! that needs no link and no privilege runs. Times are not looked at.
#![allow(
    clippy::unwrap_used,
    reason = "a test that fails may panic, and what is not called is for the bench"
)]

#[allow(
    dead_code,
    missing_docs,
    reason = "the bench has its own main; what only that calls is not used here"
)]
#[path = "../benches/suite/main.rs"]
mod suite;
