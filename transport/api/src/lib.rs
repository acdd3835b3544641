//! The vocabulary of a device: the verbs, and the handles, attributes, events, statistics and errors
//! that they take and give.
//!
//! Every side speaks it: the engine that carries verbs out, the daemon that passes them on, the
//! client of either. Nothing here depends on an engine, a socket or a network interface.
#![forbid(unsafe_code)]

pub mod clock;
mod error;
mod event;
mod failure;
mod icmp;
pub mod limits;
pub mod message;
mod object;
mod poll_mode;
mod stats;
mod verbs;

pub use error::{DeregError, EngineError, ObjectError, RegError};
pub use event::{AsyncEvent, Source};
pub use failure::{Cause, Failure, FailureFacts};
pub use icmp::{IcmpError, IcmpReason, IcmpSeen};
pub use object::{Ah, GidEntry, Mr, Mw, MwId, MwType, Notify, REGIONS_MAX, Range, Rereg, UdDest};
pub use poll_mode::PollMode;
pub use stats::{EngineStats, PORT_TABLE, PortStats, Work};
pub use verbs::Request;

/// Where the daemon listens unless told otherwise.
pub const SOCKET_DEFAULT: &str = "/run/xroce/xroced.sock";

/// Every type that the table of verbs names, for who expands it.
pub mod types {
    pub use xroce_proto::counters::Counters;
    pub use xroce_proto::memory::{Access, Bind, Pd};
    pub use xroce_proto::qp::{QpAttr, QpInfo, QpInit};
    pub use xroce_proto::srq::SrqAttr;
    pub use xroce_proto::wc::{Cq, Srq};
    pub use xroce_wire::newtypes::{Gid, LKey, PKey, Qpn, RKey};
    pub use xroce_wire::path::AhAttr;

    pub use crate::failure::Failure;
    pub use crate::message::{
        Capacity, CaptureMade, CaptureSpec, CaptureStats, CqMade, Memory, Path, QpMade, SrqMade,
    };
    pub use crate::object::{Ah, GidEntry, Mr, Mw, MwId, MwType, Range, Rereg};
    pub use crate::stats::{EngineStats, PortStats};
}

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
