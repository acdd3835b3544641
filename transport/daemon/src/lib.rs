//! Engines that many processes share.
//!
//! The daemon owns the ports of its devices and runs an engine for each; processes attach by a
//! socket, get the memory of their rings by it, and from then on post and poll without a system call
//! while the engine is awake.
//!
//! # Threads
//! * One per device (`serve`): it has the engine and nothing else touches it. Commands reach it
//!   by a `mailbox`.
//! * One per process (`session`): it answers requests, knows what belongs to the process, counts
//!   it against the limits and destroys it in the end. What takes long (resolving a neighbour,
//!   mapping memory) holds nobody else up.
//! * One that accepts (`listener`).
//!
//! Between port and engine is a tap (`tap`), by which one process at a time may see what passes.
//!
//! # What a process can do
//! Anything, to itself. All it shares with the daemon is memory made for it alone; what it writes
//! there is copied out once and judged (`serve`'s `post`). What it asks for is looked up among
//! its own objects (`session`'s `objects`), memory it registers is mapped only if it cannot be
//! taken away again (`xroce-shm`), and addresses are resolved here, so that packets say who sent
//! them. A process that breaks a rule is closed with the reason; others do not notice.
#![forbid(unsafe_code)]

mod bell;
mod config;
mod device;
mod error;
mod listener;
mod mailbox;
mod report;
mod serve;
mod session;
mod tap;

pub use config::{Below, DaemonConfig, DeviceConfig};
pub use error::DaemonError;
pub use listener::{Daemon, DeviceTotals, Reloaded};
pub use serve::totals::Totals;
pub use xroce_api::message::Limits;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
