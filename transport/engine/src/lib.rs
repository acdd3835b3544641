//! The poll-mode data plane. One [`Engine`] owns its queue pairs, memory regions and completion
//! queues on one thread, and one port; [`Engine::poll_once`] runs everything to completion:
//! timers, transmit burst, flush, receive burst; where a timer is due, the receive burst comes first.
//!
//! Time is handed in: [`xroce_api::clock::now`] is the one place that reads this clock, the simulator
//! has its own.
#![forbid(unsafe_code)]

mod cq;
mod datagram;
mod engine;
mod events;
mod handles;
mod icrc;
mod late;
mod leave;
mod limits;
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
mod timers;
mod tx;
mod windows;

pub use engine::{Engine, EngineConfig};
pub use late::{LateReceives, Receives};
pub use notify::{CnpScope, NotifyConfig};
pub use poll_mode::Poller;
pub use sched::{CLASSES_MAX, TrafficClasses, Trust};
pub use xroce_api::{PollMode, clock};

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
