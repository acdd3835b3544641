//! Errors of every call but those on batches ([`crate::BadWr`]).

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;
use xroce_engine::EngineError;
use xroce_net::addressing::AddressError;
use xroce_net::udp::UdpError;

use crate::endpoint::EndpointError;
use crate::mr::SliceError;
use crate::uses::InUse;

/// Why a call was refused; nothing changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The engine refused it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The device does not work any more; nothing that needs it will.
    #[error("device {device} is broken: {reason}; open it again")]
    Device {
        /// Its name.
        device: String,
        /// What it said.
        reason: String,
    },
    /// Others are made of the object.
    #[error("still in use by {0}: destroy these first")]
    InUse(InUse),
    /// Objects of two contexts in one call.
    #[error("the {0} belongs to another context")]
    OtherContext(&'static str),
    /// A range outside a memory region.
    #[error(transparent)]
    Slice(#[from] SliceError),
    /// A size of a region that cannot be.
    #[error("a memory region of {given} bytes, it must have 1 to {max}")]
    RegionSize {
        /// Bytes asked for.
        given: u64,
        /// Most possible.
        max: u64,
    },
    /// The way to the peer is not known.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The peer's endpoint cannot be used for this.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A UDP device could not be opened.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// An AF_XDP device could not be opened.
    #[cfg(feature = "xdp")]
    #[error(transparent)]
    Xdp(#[from] xroce_net::xdp::XdpError),
    /// No daemon could be attached to.
    #[error("no xroce daemon at {}: {source}; is xroced running, and may this user open its socket?", socket.display())]
    Attach {
        /// Where it was looked for.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The daemon refused it.
    #[error(transparent)]
    Daemon(#[from] xroce_control::reply::Refusal),
    /// A request that cannot be put to the daemon.
    #[error("asking the daemon: {0}")]
    Control(xroce_control::socket::MessageError),
    /// Memory that another process cannot get at.
    #[error(transparent)]
    Adopt(#[from] xroce_shm::AdoptError),
    /// Built without AF_XDP.
    #[cfg(not(feature = "xdp"))]
    #[error(
        "built without AF_XDP: install clang, libelf-dev, zlib1g-dev and m4 and build with the \
         feature xdp, or use a UDP device"
    )]
    NoXdp,
    /// A modify that would change the state behind the type's back.
    #[error("modify cannot change the state: use init, connect, drain, resume, fail or reset")]
    StateGiven,
    /// Waiting on a context whose time the caller keeps.
    #[error("this context is driven by hand: call Context::poll_at and poll the completion queue")]
    Manual,
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl VerbsError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// A refusal of a call that takes an object: the object, as it was, and the reason.
pub struct Refused<T> {
    /// The object.
    pub object: T,
    /// Why.
    pub error: Box<VerbsError>,
}

impl<T> Refused<T> {
    pub(crate) fn new(object: T, error: impl Into<VerbsError>) -> Self {
        Self {
            object,
            error: Box::new(error.into()),
        }
    }
}

impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Refused").field(&self.error).finish()
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for Refused<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// The reason alone, for who does not want the object back.
impl<T> From<Refused<T>> for VerbsError {
    fn from(refused: Refused<T>) -> Self {
        *refused.error
    }
}
