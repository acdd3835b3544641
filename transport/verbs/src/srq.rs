//! Shared receive queues.

use std::sync::Arc;

use xroce_api::{AsyncEvent, Source};
use xroce_proto::srq::SrqAttr;
use xroce_proto::wc::Srq as Handle;

use crate::batch::{BadWr, RecvBatch};
use crate::context::Shared;
use crate::error::{Refused, VerbsError};
use crate::pd::PdInner;
use crate::uses::{Held, Used, User, Uses};

/// Capacities of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqInfo {
    /// Receives that may be posted at once, 1 ..= 2^20.
    pub max_wr: u32,
    /// SGEs per receive, 1 ..= 32; every queue pair on it has the same.
    pub max_sge: u8,
    /// [`Event::SrqLimitReached`](crate::Event::SrqLimitReached) is reported once when fewer
    /// receives than this are left; 0: never.
    pub limit: u32,
}

impl Default for SrqInfo {
    /// 128 receives of one SGE, no limit.
    fn default() -> Self {
        Self {
            max_wr: 128,
            max_sge: 1,
            limit: 0,
        }
    }
}

/// What a shared receive queue is, for all that use it.
#[derive(Debug)]
pub(crate) struct SrqInner {
    pd: Held<PdInner>,
    pub(crate) handle: Handle,
    pub(crate) max_sge: u8,
    uses: Uses,
}

impl SrqInner {
    pub(crate) fn context(&self) -> &Arc<Shared> {
        &self.pd.context
    }
}

impl Used for SrqInner {
    fn uses(&self) -> &Uses {
        &self.uses
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        if let Err(error) = self.context().backend().destroy_srq(self.handle) {
            tracing::warn!(%error, "a shared receive queue was not destroyed");
        }
    }
}

/// A shared receive queue (`ibv_srq`): receives that any of several queue pairs takes.
#[derive(Debug)]
pub struct Srq {
    pub(crate) inner: Arc<SrqInner>,
}

impl Srq {
    pub(crate) fn create(pd: &Arc<PdInner>, info: &SrqInfo) -> Result<Self, VerbsError> {
        let attr = SrqAttr {
            max_wr: info.max_wr,
            max_sge: info.max_sge,
            limit: info.limit,
        };
        let handle = pd.context.backend().create_srq(pd.handle, &attr)?;
        Ok(Self {
            inner: Arc::new(SrqInner {
                pd: Held::new(pd, User::Srq),
                handle,
                max_sge: info.max_sge,
                uses: Uses::default(),
            }),
        })
    }

    fn shared(&self) -> &Shared {
        self.inner.context()
    }

    /// Posts receives (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// The first that was refused; those before it are posted.
    pub fn post(&self, batch: &RecvBatch) -> Result<(), BadWr> {
        let shared = self.shared();
        let backend = shared.backend();
        backend.post_srq_recv(shared.number, self.inner.handle, batch.records())
    }

    /// Capacities, the limit that is armed (0: none), and how many receives are posted
    /// (`ibv_query_srq`).
    ///
    /// # Errors
    /// The device is broken.
    pub fn query(&self) -> Result<(SrqInfo, u32), VerbsError> {
        let handle = self.inner.handle;
        let (attr, posted) = self.shared().backend().query_srq(handle)?;
        let info = SrqInfo {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            limit: attr.limit,
        };
        Ok((info, posted))
    }

    /// Changes how many receives it holds, keeping those posted (`IBV_SRQ_MAX_WR`).
    ///
    /// # Errors
    /// Out of range, or fewer than are posted or than the limit.
    pub fn resize(&self, max_wr: u32) -> Result<(), VerbsError> {
        let backend = self.shared().backend();
        backend.modify_srq(self.inner.handle, Some(max_wr), None)
    }

    /// Arms the limit (`IBV_SRQ_LIMIT`). If fewer receives are posted already, it is reported now.
    ///
    /// # Errors
    /// More than the queue holds.
    pub fn arm_limit(&self, limit: u32) -> Result<(), VerbsError> {
        let backend = self.shared().backend();
        backend.modify_srq(self.inner.handle, None, Some(limit))
    }

    /// Whether an event is about this queue.
    #[must_use]
    pub fn is_source_of(&self, event: &AsyncEvent) -> bool {
        event.source == Source::Srq(self.inner.handle)
    }

    /// Destroys it; receives nobody took vanish without completion (`ibv_destroy_srq`).
    ///
    /// # Errors
    /// Queue pairs use it.
    pub fn destroy(self) -> Result<(), Refused<Self>> {
        let uses = self.inner.uses.now();
        if uses.is_empty() {
            return Ok(());
        }
        Err(Refused::new(self, VerbsError::InUse(uses)))
    }
}
