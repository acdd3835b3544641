//! The same devices without the types: plain calls on handles, as a library with the C interface of
//! verbs, or a program that makes what a file says, needs them.
//!
//! Nothing is kept alive and nothing destroyed here: who creates an object destroys it, and what
//! still uses it makes the device refuse. The rules of verbs are checked when calls are made instead
//! of when programs are compiled.

use std::sync::Arc;

use xroce_engine::{
    AsyncEvent, Failure, Mr, Mw, MwId, MwType, Notify, ObjectError, Range, Rereg, UdDest,
};
use xroce_proto::counters::Counters;
use xroce_proto::memory::{Access, Bind, Pd};
use xroce_proto::qp::{QpAttr, QpInfo, QpInit};
use xroce_proto::srq::SrqAttr;
use xroce_proto::wc::{Completion, Cq, Srq};
use xroce_proto::wr::{RecvWr, SendWr};
use xroce_wire::newtypes::{Gid, LKey, Qpn, RKey};
use xroce_wire::path::{AhAttr, Flow};

pub use xroce_engine::Ah;

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

    fn backend(&self) -> &dyn Backend {
        self.shared.backend()
    }

    /// `ibv_alloc_pd`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn alloc_pd(&self) -> Result<Pd, VerbsError> {
        self.backend().alloc_pd()
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

    /// `ibv_dereg_mr`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn dereg_mr(&self, lkey: LKey) -> Result<(), VerbsError> {
        self.backend().dereg_mr(lkey)
    }

    /// `ibv_alloc_mw`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn alloc_mw(&self, pd: Pd, mw_type: MwType) -> Result<Mw, VerbsError> {
        self.backend().alloc_mw(pd, mw_type)
    }

    /// `ibv_dealloc_mw`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn dealloc_mw(&self, mw: MwId) -> Result<(), VerbsError> {
        self.backend().dealloc_mw(mw)
    }

    /// `ibv_bind_mw`, of type 1; at once.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn bind_mw(&self, mw: MwId, bind: &Bind) -> Result<RKey, VerbsError> {
        self.backend().bind_mw(mw, bind)
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

    /// `ibv_destroy_cq`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn destroy_cq(&self, cq: Cq) -> Result<(), VerbsError> {
        self.backend().destroy_cq(cq)
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

    /// `ibv_modify_srq`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn modify_srq(
        &self,
        srq: Srq,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), VerbsError> {
        self.backend().modify_srq(srq, max_wr, limit)
    }

    /// `ibv_query_srq`, and how many receives are posted.
    ///
    /// # Errors
    /// It does not exist, or the device is broken.
    pub fn query_srq(&self, srq: Srq) -> Result<(SrqAttr, u32), VerbsError> {
        let found = self.backend().query_srq(srq);
        found.ok_or_else(|| VerbsError::Engine(ObjectError::NoSrq(srq).into()))
    }

    /// `ibv_destroy_srq`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn destroy_srq(&self, srq: Srq) -> Result<(), VerbsError> {
        self.backend().destroy_srq(srq)
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

    /// `ibv_modify_qp`; the address, if there is one, is resolved.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn modify_qp(
        &self,
        qpn: Qpn,
        attr: &QpAttr,
        path: Option<&(AhAttr, Flow)>,
    ) -> Result<(), VerbsError> {
        self.backend().modify_qp(qpn, attr, path)
    }

    /// `ibv_query_qp`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn query_qp(&self, qpn: Qpn) -> Result<QpInfo, VerbsError> {
        self.backend().query_qp(qpn)
    }

    /// `ibv_destroy_qp`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn destroy_qp(&self, qpn: Qpn) -> Result<(), VerbsError> {
        self.backend().destroy_qp(qpn)
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

    /// What a queue pair has counted.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn counters(&self, qpn: Qpn) -> Result<Counters, VerbsError> {
        self.backend().counters(qpn)
    }

    /// Why a queue pair failed by itself.
    #[must_use]
    pub fn failure(&self, qpn: Qpn) -> Option<Failure> {
        self.backend().failure(qpn)
    }

    /// `ibv_attach_mcast`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn attach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), VerbsError> {
        self.backend().attach_mcast(qpn, group)
    }

    /// `ibv_create_ah`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn create_ah(&self, pd: Pd, attr: &AhAttr) -> Result<Ah, VerbsError> {
        self.backend().create_ah(pd, attr)
    }

    /// `ibv_destroy_ah`.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn destroy_ah(&self, ah: Ah) -> Result<(), VerbsError> {
        self.backend().destroy_ah(ah)
    }

    /// The oldest asynchronous event, if there is one.
    ///
    /// # Errors
    /// The device is broken and nothing is left to take.
    pub fn poll_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        self.backend().poll_event()
    }
}
