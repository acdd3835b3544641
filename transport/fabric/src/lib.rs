//! A data-centre fabric in one thread: production engines at every host, modelled NICs, links and
//! switches between them, under a virtual clock.
//!
//! What is real: the engine and the protocol core, byte for byte, with their frames, ICRCs, timers
//! and congestion control. What is modelled: NIC queues, serialisation and propagation in
//! picoseconds, switch buffers with dynamic thresholds, ECN marking, PFC, priorities, ECMP, loss,
//! reordering and outages. `docs/simulator.md` says what is left out.
//!
//! A run is a function of its [`Setup`]: no clock is read and all chance comes from
//! [`Setup::seed`].
//!
//! ```
//! use xroce_fabric::{BitRate, Flow, Setup, Simulation, Speed, Time, Topology};
//! let edge = Speed { rate: BitRate::from_gbps(40), delay: Time::from_us(1) };
//! let mut setup = Setup::new(Topology::star(3, edge));
//! setup.flows = vec![Flow::write(0, 2, 1_000_000), Flow::write(1, 2, 1_000_000)];
//! let report = Simulation::new(setup)?.run();
//! assert_eq!(report.summary.completed, 2);
//! assert!(report.census.is_conserved());
//! # Ok::<(), xroce_fabric::SetupError>(())
//! ```
#![forbid(unsafe_code)]

mod buffer;
mod egress;
mod events;
mod flow;
mod frame;
mod host;
mod ideal;
mod lane;
mod metrics;
mod net;
mod nic;
mod red;
mod report;
mod route;
pub mod scenario;
mod setup;
mod sim;
mod topology;
mod traffic;
mod units;

pub use buffer::{BufferConfig, Sharing, Xoff, headroom};
pub use egress::{Order, Weights};
pub use flow::{Class, Flow, Op, Recovery, Transport};
pub use frame::{DscpMap, PRIORITIES};
pub use host::HostConfig;
pub use lane::{Impairment, LaneStats, Node};
pub use metrics::{FlowSeries, LinkSeries, SAMPLES_MAX, Series, jain, quantile};
pub use net::{Balance, Census, HOPS_MAX, NoBuffer, SwitchConfig};
pub use nic::{NicConfig, NicPort};
pub use red::{MarkAt, Red};
pub use report::{
    FlowReport, GroupReport, LinkReport, QueueReport, Report, SCHEMA, Spread, Summary,
};
pub use setup::{Change, Fault, Setup, SetupError};
pub use sim::Simulation;
pub use topology::{HOSTS_MAX, Link, PORTS_MAX, Speed, Topology};
pub use units::{BitRate, Bytes, QuantityError, Time};

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
