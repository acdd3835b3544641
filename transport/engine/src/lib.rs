//! The poll-mode data plane. One [`Engine`] owns its queue pairs, memory regions and completion
//! queues on one thread, and one port; [`Engine::poll_once`] runs everything to completion:
//! timers, transmit burst, flush, receive burst.
//!
//! Time is handed in: [`clock::now`] is the one place that reads a clock, the simulator has its
//! own.
#![forbid(unsafe_code)]

pub mod clock;
mod cq;
mod datagram;
mod engine;
mod events;
mod failure;
mod handles;
mod icrc;
mod late;
mod leave;
pub mod limits;
mod mcast;
mod mr_table;
mod notify;
mod objects;
mod paths;
mod poll_mode;
mod qp_table;
mod reuse;
mod rx;
mod sched;
mod stats;
mod timers;
mod tx;
mod windows;

pub use cq::Notify;
pub use datagram::{Ah, UdDest};
pub use engine::{Engine, EngineConfig, EngineError, Work};
pub use events::{AsyncEvent, Source};
pub use failure::{Cause, Failure, FailureFacts};
pub use late::{LateReceives, Receives};
pub use mr_table::{DeregError, Mr, Range, RegError, Rereg};
pub use notify::{CnpScope, NotifyConfig};
pub use objects::ObjectError;
pub use paths::IcmpSeen;
pub use poll_mode::{PollMode, Poller};
pub use sched::{CLASSES_MAX, TrafficClasses, Trust};
pub use stats::{EngineStats, PORT_TABLE};
pub use windows::{Mw, MwId, MwType};
