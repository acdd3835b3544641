//! Measuring: queue pairs and memory of a conversation ([`flow`]), the traffic on them, its times and its
//! cost.
//!
//! [`traffic`] is the client's half of a measurement, [`answer`] the server's; the messages themselves
//! are those of a [`side`], or of [`latency`]. [`pace`] says when messages of an open loop are due.

pub(crate) mod answer;
pub(crate) mod flow;
pub(crate) mod latency;
pub(crate) mod meter;
pub(crate) mod pace;
pub(crate) mod pattern;
pub(crate) mod posting;
pub(crate) mod quantiles;
pub(crate) mod side;
pub(crate) mod step_barrier;
pub(crate) mod traffic;
pub(crate) mod usage;
