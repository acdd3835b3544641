//! Queue pairs: the service and how far it has come are part of the type.

mod builder;
mod connect;
mod types;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use xroce_api::{AsyncEvent, Failure, Source};
use xroce_proto::counters::Counters;
use xroce_proto::qp::{QpAttr, QpInfo, QpState};
use xroce_proto::recovery::Reliability;
use xroce_wire::newtypes::{Gid, Psn, Qpn};

pub use builder::QpBuilder;
pub use connect::ConnectAttr;
pub use types::{Connected, Init, Posts, Rc, Ready, Reset, Service, State, Uc, Ud};

use crate::batch::{BadWr, RecvBatch, SendBatch};
use crate::context::Shared;
use crate::cq::CqInner;
use crate::error::{Refused, VerbsError};
use crate::pd::PdInner;
use crate::srq::SrqInner;
use crate::uses::Held;

/// What a queue pair is; destroyed before what it is made of is released.
#[derive(Debug)]
struct QpInner {
    pd: Held<PdInner>,
    qpn: Qpn,
    /// First PSN it sends.
    psn: Psn,
    /// What it was made with; selective only if the peer would too.
    reliability: Reliability,
    #[allow(dead_code, reason = "kept alive")]
    parts: Parts,
}

/// What else it is made of.
#[derive(Debug)]
#[allow(dead_code, reason = "kept alive")]
struct Parts {
    send_cq: Held<CqInner>,
    recv_cq: Held<CqInner>,
    srq: Option<Held<SrqInner>>,
}

impl QpInner {
    fn shared(&self) -> &Arc<Shared> {
        &self.pd.context
    }

    fn modify(&self, attr: &QpAttr) -> Result<(), VerbsError> {
        self.shared()
            .backend()
            .modify_qp(self.qpn, Box::new(attr.clone()), None)
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        if let Err(error) = self.shared().backend().destroy_qp(self.qpn) {
            tracing::warn!(%error, "a queue pair was not destroyed");
        }
    }
}

/// A queue pair (`ibv_qp`) of service `S`, as far as the program has brought it: [`Reset`],
/// [`Init`], [`Ready`]. An error takes it to ERR whatever its type says: see [`Qp::state`].
///
/// When it is dropped, what it has posted vanishes without completion.
pub struct Qp<S: Service, T: State = Ready> {
    inner: Box<QpInner>,
    types: PhantomData<(S, T)>,
}

impl<S: Service, T: State> fmt::Debug for Qp<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Qp");
        shown.field("service", &S::TYPE);
        shown.field("qpn", &self.inner.qpn).finish_non_exhaustive()
    }
}

/// In any state.
impl<S: Service, T: State> Qp<S, T> {
    fn of(inner: Box<QpInner>) -> Self {
        Self {
            inner,
            types: PhantomData,
        }
    }

    fn into_state<U: State>(self) -> Qp<S, U> {
        Qp::of(self.inner)
    }

    fn step<U: State>(self, attr: &QpAttr) -> Result<Qp<S, U>, Refused<Self>> {
        match self.inner.modify(attr) {
            Ok(()) => Ok(self.into_state()),
            Err(error) => Err(Refused::new(self, error)),
        }
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.inner.qpn
    }

    /// State it is in now (`ibv_qp_state`).
    ///
    /// # Errors
    /// The device is broken.
    pub fn state(&self) -> Result<QpState, VerbsError> {
        let info = self.query()?;
        Ok(info.attr.state.unwrap_or(QpState::Reset))
    }

    /// State, attributes and capacities (`ibv_query_qp`).
    ///
    /// # Errors
    /// The device is broken.
    pub fn query(&self) -> Result<QpInfo, VerbsError> {
        self.inner.shared().backend().query_qp(self.inner.qpn)
    }

    /// What it has counted.
    ///
    /// # Errors
    /// The device is broken.
    pub fn counters(&self) -> Result<Counters, VerbsError> {
        self.inner.shared().backend().counters(self.inner.qpn)
    }

    /// Why it went to ERR by itself: what was sent and acknowledged last, what came back, and what
    /// that usually means. `None` while it works, and if the program took it there.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.inner
            .shared()
            .backend()
            .failure(self.inner.qpn)
            .ok()
            .flatten()
    }

    /// Sends posted and not completed.
    #[must_use]
    pub fn sends_posted(&self) -> u32 {
        self.inner.shared().backend().sends_posted(self.inner.qpn)
    }

    /// Whether an event is about this queue pair.
    #[must_use]
    pub fn is_source_of(&self, event: &AsyncEvent) -> bool {
        event.source == Source::Qp(self.inner.qpn)
    }

    /// Changes attributes within the state it is in (`ibv_modify_qp`), all or none.
    ///
    /// # Errors
    /// An attribute that this state does not take or a value out of range; or a state is given,
    /// which has calls of its own.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), VerbsError> {
        if attr.state.is_some() {
            return Err(VerbsError::StateGiven);
        }
        self.inner.modify(attr)
    }

    /// Back to RESET: what was posted vanishes without completion.
    ///
    /// # Errors
    /// The device is broken.
    pub fn reset(self) -> Result<Qp<S, Reset>, Refused<Self>> {
        self.step(&QpAttr::state(QpState::Reset))
    }

    /// Destroys it; what was posted vanishes without completion (`ibv_destroy_qp`).
    pub fn destroy(self) {
        drop(self);
    }
}

/// From INIT on.
impl<S: Service, T: Posts> Qp<S, T> {
    /// Posts receives (`ibv_post_recv`).
    ///
    /// # Errors
    /// The first that was refused; those before it are posted.
    pub fn post_recv(&self, batch: &RecvBatch) -> Result<(), BadWr> {
        let shared = self.inner.shared();
        let backend = shared.backend();
        backend.post_recv(shared.number, self.inner.qpn, batch.records())
    }

    /// To ERR: all that is posted, or will be, completes as flushed.
    ///
    /// # Errors
    /// The device is broken.
    pub fn fail(&self) -> Result<(), VerbsError> {
        self.inner.modify(&QpAttr::state(QpState::Err))
    }
}

/// Sending.
impl<S: Service> Qp<S, Ready> {
    /// Posts a batch with one doorbell (`ibv_post_send`).
    ///
    /// # Errors
    /// The first request that was refused; those before it are posted.
    pub fn post(&self, batch: &SendBatch<S>) -> Result<(), BadWr> {
        let shared = self.inner.shared();
        let backend = shared.backend();
        backend.post_send(shared.number, self.inner.qpn, batch.records())
    }

    /// To SQD: finishes what is on its way, starts nothing new, and then reports
    /// [`Event::SqDrained`](crate::Event::SqDrained). Receiving goes on.
    ///
    /// # Errors
    /// It is not in RTS.
    pub fn drain(&self) -> Result<(), VerbsError> {
        self.inner.modify(&QpAttr {
            en_sqd_async_notify: Some(true),
            ..QpAttr::state(QpState::Sqd)
        })
    }

    /// Back to RTS from SQD, or from SQE, where an unreliable queue pair is after a send of its
    /// own failed.
    ///
    /// # Errors
    /// It is in neither.
    pub fn resume(&self) -> Result<(), VerbsError> {
        self.inner.modify(&QpAttr::state(QpState::Rts))
    }
}

impl Qp<Ud, Ready> {
    /// Receives what is sent to a group with its Q_Key (`ibv_attach_mcast`).
    ///
    /// # Errors
    /// Not the address of a group, a limit is reached, or the port cannot receive for groups: UDP
    /// cannot.
    pub fn attach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        let backend = self.inner.shared().backend();
        backend.attach_mcast(self.inner.qpn, group)
    }

    /// The reverse (`ibv_detach_mcast`).
    ///
    /// # Errors
    /// It is not attached.
    pub fn detach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        let backend = self.inner.shared().backend();
        backend.detach_mcast(self.inner.qpn, group)
    }
}
