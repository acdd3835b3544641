//! What a process and the daemon say to each other over their socket.
//!
//! A socket of kind SEQPACKET carries whole messages with the descriptors that belong to them
//! ([`socket`]). The process asks ([`xroce_api::Request`]), the daemon answers each request once and in order
//! ([`xroce_api::message`]), and says why before it hangs up. Work requests and completions are not said here:
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
//! Neither side believes the other: lengths and counts are compared with what really came, and
//! whatever is refused says which value it was.
//!
//! # Versions
//! A program keeps the library that it has loaded, and a daemon is restarted beside it: either side
//! may be the newer one. The version in the header changes when the header, the rings or the meaning
//! of a field change; both sides must then be of one release, and the older says so. Everything else
//! only adds:
//!
//! * A new field has a default, and a side that does not know a field ignores it.
//! * A request that the daemon does not know is refused as
//!   [`Unsupported`](xroce_api::message::Reason::Unsupported), and the session goes on.
//! * A reason that a client does not know is [`Other`](xroce_api::message::Reason::Other), with its
//!   text.
//! * What has been in a message stays there with its name and type. `golden/` has a sample of each
//!   message of each version, and a test reads and writes them.
#![forbid(unsafe_code)]

pub mod capture;
pub mod client;
pub mod layout;
pub mod socket;

pub use xroce_api::SOCKET_DEFAULT;

/// Version of everything in this crate and of what stands in the rings.
pub const VERSION: u16 = 1;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
