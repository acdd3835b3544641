//! What a process and the daemon say to each other over their socket.
//!
//! A socket of kind SEQPACKET carries whole messages with the descriptors that belong to them
//! ([`socket`]). The process asks ([`Request`]), the daemon answers each request once and in order
//! ([`reply`]), and says why before it hangs up. Work requests and completions are not said here:
//! they stand in rings ([`layout`], `xroce-abi`) whose memory a reply brings along, and so do
//! captured frames ([`capture`]).
//!
//! # A message
//! A header of 16 bytes, in the byte order of the machine both are on, and a body of JSON:
//!
//! ```text
//!  0  magic           u32: "xrce"
//!  4  version         u16
//!  6  kind            u16: 1 request, 2 reply, 3 refusal, 4 farewell
//!  8  bytes of body   u32, at most 65536
//! 12  descriptors     u32, at most 250
//! ```
//!
//! Neither side believes the other: lengths and counts are compared with what really came,
//! unknown fields, kinds and versions are refused, and whatever is refused says which value it was.
#![forbid(unsafe_code)]

pub mod capture;
pub mod client;
pub mod layout;
pub mod reply;
mod request;
pub mod socket;

pub use request::{Across, Memory, Path, PieceOf, Request};

/// Where the daemon listens unless told otherwise.
pub const SOCKET_DEFAULT: &str = "/run/xroce/xroced.sock";
/// Version of everything in this crate and of what stands in the rings.
pub const VERSION: u16 = 1;
