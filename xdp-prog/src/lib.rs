//! The XDP programs, loaded, with their maps as typed calls.
//!
//! * [`RoceProgram`], `roce.bpf.c`: steers RoCEv2 frames to AF_XDP sockets.
//! * [`HopProgram`], `hop.bpf.c`: a switch whose ports mark and drop as a bottleneck does.
//!
//! Loading puts program and maps into the kernel; they live as long as the program here, an
//! attachment (`xroce_net::xdp`) or a socket refers to them.

mod hop;
mod roce;
mod skeletons;

pub use hop::{BUCKETS, HopProgram, MAX_PORTS, QueueConfig, QueueState};
pub use roce::{Counters, MAX_ADDRESSES, MAX_QUEUES, RoceProgram};

/// Names of the programs in the kernel, as `bpftool prog` and `ip link` show them.
pub const PROGRAM_NAMES: [&str; 2] = ["xroce_steer", "xroce_hop"];
