//! AF_XDP: frames straight from and to a queue of a network interface.
//!
//! * `link`: a program on an interface, held by a bpf_link so that the kernel detaches it when the
//!   process dies; `attach`: the one that steers to sockets, one per interface however many ports
//!   it has.
//! * [`hop`]: a switch that marks and drops as a bottleneck does.
//! * `memory`: the UMEM, one range of memory in chunks of 4096 bytes.
//! * `rx`, `tx`: two rings each; every chunk has exactly one owner at a time.
//! * `open`: from the configuration to memory and rings; `port`: [`XdpPort`], the backend;
//!   `assembly`: frames of several chunks as one slice.
//! * [`raw`]: the fastest possible loops on the same rings, the ceiling of a link.
//!
//! xsk-rs makes the UMEM, the socket and the rings; none of its types leave this module. Its
//! `FrameDesc` is `Copy`, so `rx` and `tx` keep descriptors private and hand out slices only.
//! All `unsafe` of this crate is in here.

mod assembly;
mod attach;
mod config;
mod error;
pub mod hop;
mod link;
mod memory;
mod open;
mod port;
pub mod raw;
mod rx;
mod tx;

pub use config::{Mode, XdpConfig};
pub use error::XdpError;
pub use port::XdpPort;
