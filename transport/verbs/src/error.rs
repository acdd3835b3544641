//! Errors of every call but those on batches ([`crate::BadWr`]).

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;
use xroce_api::EngineError;
use xroce_api::message::Reason;
#[cfg(feature = "inproc")]
use xroce_net::addressing::AddressError;
#[cfg(feature = "inproc")]
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
    #[cfg(feature = "inproc")]
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The peer's endpoint cannot be used for this.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A UDP device could not be opened.
    #[cfg(feature = "inproc")]
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
    #[cfg(feature = "daemon")]
    #[error(transparent)]
    Daemon(#[from] xroce_api::message::Refusal),
    /// A request that cannot be put to the daemon.
    #[cfg(feature = "daemon")]
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
    /// Built without what the device needs.
    #[error("built without {what}: build xroce-verbs with the feature {feature}")]
    NotBuilt {
        /// What is missing.
        what: &'static str,
        /// The feature that has it.
        feature: &'static str,
    },
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
    /// Of what kind the refusal is: the same for a device in this process and one of the daemon.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Engine(error) => error.reason(),
            #[cfg(feature = "daemon")]
            Self::Daemon(refusal) => refusal.reason,
            #[cfg(feature = "inproc")]
            Self::Address(AddressError::Neigh(_) | AddressError::NoNeighbour(_)) => {
                Reason::Unreachable
            }
            Self::InUse(_) => Reason::Busy,
            Self::Device { .. } | Self::Attach { .. } | Self::System { .. } => Reason::Device,
            Self::NotBuilt { .. } => Reason::Unsupported,
            _ => Reason::Invalid,
        }
    }

    /// The `errno` of Linux that a verb of libibverbs would return: that of the system, if it
    /// refused, or the one of [`VerbsError::reason`].
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Attach { source, .. } | Self::System { source, .. } => source
                .raw_os_error()
                .unwrap_or_else(|| self.reason().errno()),
            _ => self.reason().errno(),
        }
    }

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
