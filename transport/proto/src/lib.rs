//! The RoCEv2 transport core, sans-IO.
//!
//! Nothing here reads a clock, a socket or a random number. A driver (the engine, the simulator,
//! a test) owns [`qp::Qp`]s and calls
//!
//! * [`qp::Qp::post_send`], [`qp::Qp::post_recv`], [`qp::Qp::modify`]: commands,
//! * [`qp::Qp::handle_packet`], [`qp::Qp::handle_timeout`]: input from network and time,
//! * [`qp::Qp::poll_transmit`], [`qp::Qp::poll_timeout`]: output,
//!
//! with `now`, the memory and the completion sink lent through [`qp::Cx`]. Receipt never sends:
//! it records debts that the next `poll_transmit` pays, so a burst of requests costs one ACK.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cc;
pub mod counters;
pub mod memory;
pub mod pacer;
pub mod params;
pub mod qp;
pub mod recovery;
pub mod reject;
pub mod rtt;
pub mod srq;
pub mod time;
pub mod wc;
pub mod wr;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
