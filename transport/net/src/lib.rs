//! How frames come and go: one trait, [`datapath::Datapath`], and the backends below it.
//!
//! * [`sim`]: in-memory network under a virtual clock (delay, loss, duplication, reordering,
//!   corruption, CE marks), deterministic by seed.
//! * [`udp`]: plain UDP socket, no privileges.
//! * [`xdp`] (feature `xdp`): AF_XDP with the program of `xroce-xdp-prog`.
//! * [`addressing`]: what all of the following is for: from a GID index and the peer's GID to the
//!   headers, and notice of what happens to them.
//! * [`gids`]: the GID table of a port, and notice of changes.
//! * [`icmp`]: what routers and hosts say about RoCE packets that did not arrive.
//! * [`neigh`]: addresses, routes and neighbours from the kernel's tables.

pub mod addressing;
pub mod datapath;
pub mod gids;
pub mod icmp;
#[cfg(feature = "xdp")]
mod membership;
pub mod neigh;
pub mod sim;
pub mod udp;
#[cfg(feature = "xdp")]
pub mod xdp;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
