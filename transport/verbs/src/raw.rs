//! The same devices without the types: plain calls on handles, as a library with the C interface of
//! verbs, or a program that makes what a file says, needs them.
//!
//! Nothing is kept alive and nothing destroyed here: who creates an object destroys it, and what
//! still uses it makes the device refuse. The rules of verbs are checked when calls are made instead
//! of when programs are compiled.

use std::sync::Arc;

#[allow(clippy::wildcard_imports, reason = "what the table of verbs names")]
use xroce_api::types::*;
use xroce_api::{AsyncEvent, Notify, UdDest};
use xroce_proto::wc::Completion;
use xroce_proto::wr::{RecvWr, SendWr};

pub use xroce_api::Ah;

use crate::backend::Backend;
use crate::batch::{BadWr, RecvRecords, SendRecords};
use crate::channel::{Channel, CompChannel};
use crate::context::{Context, Shared};
use crate::error::VerbsError;

/// A device that is open, by plain calls.
#[derive(Clone, Debug)]
pub struct RawDevice {
    shared: Arc<Shared>,
    /// Gets the notifications of queues made without a channel.
    channel: Channel,
}

/// Sends, to be posted together; can be cleared and filled again without allocating.
#[derive(Clone, Debug, Default)]
pub struct RawSends {
    records: SendRecords,
}

impl RawSends {
    /// Adds one; a datagram says where to.
    pub fn push(&mut self, wr: &SendWr<'_>, to: Option<&UdDest>) {
        self.records.push(wr, to);
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.records.clear();
    }
}

/// Receives, to be posted together; can be cleared and filled again without allocating.
#[derive(Clone, Debug, Default)]
pub struct RawRecvs {
    records: RecvRecords,
}

impl RawRecvs {
    /// Adds one.
    pub fn push(&mut self, wr: &RecvWr<'_>) {
        self.records.push(wr);
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.records.clear();
    }
}

/// Every call is that of verbs whose name is in its description, and fails as that does.
impl RawDevice {
    /// The device of a context.
    ///
    /// # Errors
    /// The device is broken.
    pub fn of(context: &Context) -> Result<Self, VerbsError> {
        let shared = Arc::clone(context.shared());
        let channel = shared.backend().create_channel()?;
        Ok(Self { shared, channel })
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        self.shared.backend()
    }

    /// `ibv_reg_mr_iova`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn reg_mr(&self, pd: Pd, range: &Range<'_>, access: Access) -> Result<Mr, VerbsError> {
        self.backend().reg_mr(pd, range, access)
    }

    /// `ibv_rereg_mr`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn rereg_mr(&self, lkey: LKey, change: &Rereg<'_>) -> Result<Mr, VerbsError> {
        self.backend().rereg_mr(lkey, change)
    }

    /// `ibv_create_cq`; with a channel, notifications go there.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn create_cq(&self, depth: u32, on: Option<&CompChannel>) -> Result<Cq, VerbsError> {
        let channel = match on {
            Some(on) if !Arc::ptr_eq(&on.context, &self.shared) => {
                return Err(VerbsError::OtherContext("completion channel"));
            }
            Some(on) => &on.channel,
            None => &self.channel,
        };
        self.backend().create_cq(depth, channel)
    }

    /// `ibv_resize_cq`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn resize_cq(&self, cq: Cq, depth: u32) -> Result<(), VerbsError> {
        self.backend().resize_cq(cq, depth)
    }

    /// `ibv_poll_cq`.
    ///
    /// # Errors
    /// The device is broken and nothing is left to take.
    pub fn poll_cq(&self, cq: Cq, out: &mut [Completion]) -> Result<usize, VerbsError> {
        self.backend().poll_cq(cq, out)
    }

    /// `ibv_req_notify_cq`; whether completions are there already.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn arm_cq(&self, cq: Cq, notify: Notify) -> Result<bool, VerbsError> {
        self.backend().arm_cq(cq, notify)
    }

    /// `ibv_create_srq`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn create_srq(&self, pd: Pd, attr: &SrqAttr) -> Result<Srq, VerbsError> {
        self.backend().create_srq(pd, attr)
    }

    /// `ibv_post_srq_recv`.
    ///
    /// # Errors
    /// The first that was refused; those before it are posted.
    pub fn post_srq_recv(&self, srq: Srq, recvs: &RawRecvs) -> Result<(), BadWr> {
        let context = self.shared.number;
        self.backend().post_srq_recv(context, srq, &recvs.records)
    }

    /// `ibv_create_qp`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn create_qp(&self, init: &QpInit) -> Result<Qpn, VerbsError> {
        self.backend().create_qp(init)
    }

    /// `ibv_post_send`.
    ///
    /// # Errors
    /// The first that was refused; those before it are posted.
    pub fn post_send(&self, qpn: Qpn, sends: &RawSends) -> Result<(), BadWr> {
        let context = self.shared.number;
        self.backend().post_send(context, qpn, &sends.records)
    }

    /// `ibv_post_recv`.
    ///
    /// # Errors
    /// The first that was refused; those before it are posted.
    pub fn post_recv(&self, qpn: Qpn, recvs: &RawRecvs) -> Result<(), BadWr> {
        let context = self.shared.number;
        self.backend().post_recv(context, qpn, &recvs.records)
    }

    /// `ibv_create_ah`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn create_ah(&self, pd: Pd, attr: &AhAttr) -> Result<Ah, VerbsError> {
        self.backend().create_ah(pd, attr)
    }

    /// The oldest asynchronous event, if there is one.
    ///
    /// # Errors
    /// The device is broken and nothing is left to take.
    pub fn poll_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        self.backend().poll_event()
    }
}
