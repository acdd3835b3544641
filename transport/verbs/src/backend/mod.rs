//! What a device does, as plain calls on handles: the seam below the types.
//!
//! Handles are those of [`xroce_engine`]. Every call takes `&self` and may come from any thread.
//! Completions are notified and events announced by descriptors that can be polled.

mod doze;
mod driver;
pub(crate) mod inproc;
mod post;
pub(crate) mod remote;
mod signal;

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use xroce_control::reply::Limits;
use xroce_engine::{
    Ah, AsyncEvent, EngineError, EngineStats, Failure, Mr, Mw, MwId, MwType, Notify, Range, Rereg,
    Work,
};
use xroce_net::datapath::PortStats;
use xroce_net::gids::GidEntry;
use xroce_proto::counters::Counters;
use xroce_proto::memory::{Access, Bind, Pd};
use xroce_proto::qp::{QpAttr, QpInfo, QpInit};
use xroce_proto::srq::SrqAttr;
use xroce_proto::time::Instant;
use xroce_proto::wc::{Completion, Cq, Srq};
use xroce_wire::newtypes::{Gid, LKey, PKey, PathMtu, Qpn, RKey};
use xroce_wire::path::{AhAttr, Flow};

pub(crate) use driver::Driver;
pub(crate) use signal::Signal;

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
pub(crate) enum Motion {
    /// A thread polls it.
    Thread,
    /// Whoever waits polls it.
    Caller,
    /// The program polls it, at times of its own.
    Manual,
}

/// A device that is open.
pub(crate) trait Backend: Debug + Send + Sync {
    fn fixed(&self) -> &Fixed;
    fn motion(&self) -> Motion;

    // Moving.
    fn poll(&self, now: Instant) -> Result<Work, VerbsError>;
    fn next_deadline(&self) -> Option<Instant>;
    fn stop(&self);

    // The port.
    fn gids(&self) -> Vec<(u32, GidEntry)>;
    fn is_up(&self) -> bool;
    fn pkey(&self, index: u16) -> Option<PKey>;
    fn set_pkey(&self, index: u16, pkey: PKey) -> Result<(), VerbsError>;
    fn stats(&self) -> (EngineStats, PortStats);

    // Events.
    fn poll_event(&self) -> Result<Option<AsyncEvent>, VerbsError>;
    /// Sleeps until there may be an event or `timeout` is over, and has the engine move meanwhile.
    fn wait_event(&self, timeout: Duration) -> Result<(), VerbsError>;
    /// Readable while there are events.
    fn event_fd(&self) -> BorrowedFd<'_>;

    // Protection domains, memory.
    fn alloc_pd(&self) -> Result<Pd, VerbsError>;
    fn reg_mr(&self, pd: Pd, range: &Range<'_>, access: Access) -> Result<Mr, VerbsError>;
    fn rereg_mr(&self, lkey: LKey, change: &Rereg<'_>) -> Result<Mr, VerbsError>;
    fn dereg_mr(&self, lkey: LKey) -> Result<(), VerbsError>;
    /// Deregisters it as soon as no window is bound to it.
    fn abandon_mr(&self, lkey: LKey);
    fn alloc_mw(&self, pd: Pd, mw_type: MwType) -> Result<Mw, VerbsError>;
    fn dealloc_mw(&self, mw: MwId) -> Result<(), VerbsError>;
    fn bind_mw(&self, mw: MwId, bind: &Bind) -> Result<RKey, VerbsError>;

    // Completion queues. A channel gets their notifications.
    fn create_channel(&self) -> Result<Channel, VerbsError>;
    /// The next notification, or `None` after `timeout`; has the engine move meanwhile.
    fn wait_channel(&self, on: &Channel, timeout: Duration) -> Result<Option<Cq>, VerbsError>;
    fn create_cq(&self, depth: u32, channel: &Channel) -> Result<Cq, VerbsError>;
    fn resize_cq(&self, cq: Cq, depth: u32) -> Result<(), VerbsError>;
    fn destroy_cq(&self, cq: Cq) -> Result<(), VerbsError>;
    fn poll_cq(&self, cq: Cq, out: &mut [Completion]) -> Result<usize, VerbsError>;
    fn arm_cq(&self, cq: Cq, notify: Notify) -> Result<bool, VerbsError>;

    // Shared receive queues. To posts, the number of the context is told.
    fn create_srq(&self, pd: Pd, attr: &SrqAttr) -> Result<Srq, VerbsError>;
    fn modify_srq(
        &self,
        srq: Srq,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), VerbsError>;
    /// Attributes and receives posted.
    fn query_srq(&self, srq: Srq) -> Option<(SrqAttr, u32)>;
    fn destroy_srq(&self, srq: Srq) -> Result<(), VerbsError>;
    fn post_srq_recv(&self, context: u32, srq: Srq, batch: &RecvRecords) -> Result<(), BadWr>;

    // Queue pairs.
    fn create_qp(&self, init: &QpInit) -> Result<Qpn, VerbsError>;
    /// With a path, the device resolves it to the address vector of `attr`.
    fn modify_qp(
        &self,
        qpn: Qpn,
        attr: &QpAttr,
        path: Option<&(AhAttr, Flow)>,
    ) -> Result<(), VerbsError>;
    fn query_qp(&self, qpn: Qpn) -> Result<QpInfo, VerbsError>;
    fn destroy_qp(&self, qpn: Qpn) -> Result<(), VerbsError>;
    fn post_send(&self, context: u32, qpn: Qpn, batch: &SendRecords) -> Result<(), BadWr>;
    fn post_recv(&self, context: u32, qpn: Qpn, batch: &RecvRecords) -> Result<(), BadWr>;
    fn sends_posted(&self, qpn: Qpn) -> u32;
    fn counters(&self, qpn: Qpn) -> Result<Counters, VerbsError>;
    fn failure(&self, qpn: Qpn) -> Option<Failure>;
    fn attach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), VerbsError>;
    fn detach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), VerbsError>;

    // Address handles.
    fn create_ah(&self, pd: Pd, attr: &AhAttr) -> Result<Ah, VerbsError>;
    fn destroy_ah(&self, ah: Ah) -> Result<(), VerbsError>;
}

pub(crate) fn no_qp(qpn: Qpn) -> VerbsError {
    EngineError::NoQp(qpn).into()
}
