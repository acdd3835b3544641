//! What a device does, as plain calls on handles: the seam below the types.
//!
//! Handles are those of [`xroce_api`]. Every call takes `&self` and may come from any thread.
//! Completions are notified and events announced by descriptors that can be polled.

#[cfg(feature = "inproc")]
mod doze;
#[cfg(feature = "inproc")]
mod driver;
#[cfg(feature = "inproc")]
pub(crate) mod inproc;
#[cfg(feature = "inproc")]
mod post;
#[cfg(feature = "daemon")]
pub(crate) mod remote;
mod signal;
mod table;

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Duration;

#[cfg(feature = "inproc")]
use xroce_api::EngineError;
use xroce_api::message::Limits;
#[allow(clippy::wildcard_imports, reason = "what the table of verbs names")]
use xroce_api::types::*;
use xroce_api::{AsyncEvent, Notify, Work};
use xroce_proto::time::Instant;
use xroce_proto::wc::Completion;
use xroce_wire::newtypes::PathMtu;

#[cfg(feature = "inproc")]
pub(crate) use driver::Driver;
pub(crate) use signal::Signal;
pub(crate) use table::Verbs;

use crate::batch::{BadWr, RecvRecords, SendRecords};
use crate::channel::Channel;
use crate::error::VerbsError;

/// What never changes about a device.
#[derive(Clone, Debug)]
pub(crate) struct Fixed {
    /// Name of the port.
    pub(crate) name: String,
    /// Below the frames is Ethernet, not a UDP socket.
    pub(crate) ethernet: bool,
    /// IP MTU of the link.
    pub(crate) link_mtu: usize,
    /// Largest path MTU the link carries.
    pub(crate) path_mtu: PathMtu,
    /// What the daemon lets this process have, if there is one.
    pub(crate) limits: Option<Limits>,
}

/// How the call that waits gets the engine to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    not(feature = "inproc"),
    allow(dead_code, reason = "a device of the daemon moves by itself")
)]
pub(crate) enum Motion {
    /// A thread polls it.
    Thread,
    /// Whoever waits polls it.
    Caller,
    /// The program polls it, at times of its own.
    Manual,
}

/// A device that is open: its verbs, and what costs too much to go by a message.
pub(crate) trait Backend: Verbs + Debug + Send + Sync {
    fn fixed(&self) -> &Fixed;
    fn motion(&self) -> Motion;

    // Moving.
    fn poll(&self, now: Instant) -> Result<Work, VerbsError>;
    fn next_deadline(&self) -> Option<Instant>;
    fn stop(&self);

    // Events.
    fn poll_event(&self) -> Result<Option<AsyncEvent>, VerbsError>;
    /// Sleeps until there may be an event or `timeout` is over, and has the engine move meanwhile.
    fn wait_event(&self, timeout: Duration) -> Result<(), VerbsError>;
    /// Readable while there are events.
    fn event_fd(&self) -> BorrowedFd<'_>;
    /// The next notification, or `None` after `timeout`; has the engine move meanwhile.
    fn wait_channel(&self, on: &Channel, timeout: Duration) -> Result<Option<Cq>, VerbsError>;

    // Completions.
    fn poll_cq(&self, cq: Cq, out: &mut [Completion]) -> Result<usize, VerbsError>;
    fn arm_cq(&self, cq: Cq, notify: Notify) -> Result<bool, VerbsError>;

    // Posts. They are told the number of the context.
    fn post_send(&self, context: u32, qpn: Qpn, batch: &SendRecords) -> Result<(), BadWr>;
    fn post_recv(&self, context: u32, qpn: Qpn, batch: &RecvRecords) -> Result<(), BadWr>;
    fn post_srq_recv(&self, context: u32, srq: Srq, batch: &RecvRecords) -> Result<(), BadWr>;
    fn sends_posted(&self, qpn: Qpn) -> u32;
}

#[cfg(feature = "inproc")]
pub(crate) fn no_qp(qpn: Qpn) -> VerbsError {
    EngineError::NoQp(qpn).into()
}
