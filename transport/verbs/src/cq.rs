//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use xroce_api::{AsyncEvent, Notify, Source};
use xroce_proto::wc::{Completion, Cq as Handle};

use crate::channel::{Channel, CompChannel};
use crate::context::Shared;
use crate::error::{Refused, VerbsError};
use crate::uses::{Used, Uses};

/// What a completion queue is, for all that use it.
#[derive(Debug)]
pub(crate) struct CqInner {
    pub(crate) context: Arc<Shared>,
    pub(crate) handle: Handle,
    channel: Channel,
    /// The channel gets notifications of others too.
    common: bool,
    depth: AtomicU32,
    uses: Uses,
}

impl Used for CqInner {
    fn uses(&self) -> &Uses {
        &self.uses
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        if let Err(error) = self.context.backend().destroy_cq(self.handle) {
            tracing::warn!(%error, "a completion queue was not destroyed");
        }
    }
}

/// A completion queue (`ibv_cq`).
///
/// What completes on a queue pair waits here until it is polled. A queue that is full when
/// something completes is overrun: its queue pairs go to ERR, and
/// [`Event::CqErr`](crate::Event::CqErr) is reported. Make it as deep as everything that can be
/// posted to its queue pairs at once.
#[derive(Debug)]
pub struct Cq {
    pub(crate) inner: Arc<CqInner>,
}

impl Cq {
    pub(crate) fn create(
        context: &Arc<Shared>,
        depth: u32,
        on: Option<&CompChannel>,
    ) -> Result<Self, VerbsError> {
        let channel = match on {
            Some(on) if !Arc::ptr_eq(&on.context, context) => {
                return Err(VerbsError::OtherContext("completion channel"));
            }
            Some(on) => on.channel.clone(),
            None => context.backend().create_channel()?,
        };
        let handle = context.backend().create_cq(depth, &channel)?;
        Ok(Self {
            inner: Arc::new(CqInner {
                context: Arc::clone(context),
                handle,
                channel,
                common: on.is_some(),
                depth: AtomicU32::new(depth),
                uses: Uses::default(),
            }),
        })
    }

    pub(crate) fn is(&self, handle: Handle) -> bool {
        self.inner.handle == handle
    }

    /// Takes completions out, oldest first, and returns how many (`ibv_poll_cq`). Never waits.
    ///
    /// # Errors
    /// The device is broken and nothing is left to take.
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, VerbsError> {
        self.inner.context.backend().poll_cq(self.inner.handle, out)
    }

    /// Takes the oldest completion out, if there is one.
    ///
    /// # Errors
    /// See [`Cq::poll`].
    pub fn poll_one(&self) -> Result<Option<Completion>, VerbsError> {
        let mut one = [Completion::EMPTY];
        let found = self.poll(&mut one)?;
        Ok((found != 0).then_some(one[0]))
    }

    /// Asks for one notification of the next completion that counts (`ibv_req_notify_cq`).
    /// `true`: completions are here already and notify of nothing, so poll before waiting.
    ///
    /// # Errors
    /// The device is broken.
    pub fn arm(&self, notify: Notify) -> Result<bool, VerbsError> {
        let backend = self.inner.context.backend();
        backend.arm_cq(self.inner.handle, notify)
    }

    /// Waits for a notification that was asked for with [`Cq::arm`]; `false` when `timeout` is
    /// over. A queue on a [`CompChannel`] is waited for there: here the answer is `false` at once.
    ///
    /// # Errors
    /// The device is broken, or the context is driven by hand and nothing is there.
    pub fn wait(&self, timeout: Duration) -> Result<bool, VerbsError> {
        if self.inner.common {
            return Ok(false);
        }
        let notified = self.inner.channel.wait(&self.inner.context, timeout)?;
        Ok(notified.is_some())
    }

    /// The next completion, waited for up to `timeout`: polls, arms, polls again, sleeps.
    ///
    /// # Errors
    /// See [`Cq::wait`].
    pub fn next(&self, timeout: Duration) -> Result<Option<Completion>, VerbsError> {
        if let Some(wc) = self.poll_one()? {
            return Ok(Some(wc));
        }
        let end = self.inner.context.deadline(timeout);
        loop {
            if self.arm(Notify::Any)?
                && let Some(wc) = self.poll_one()?
            {
                return Ok(Some(wc));
            }
            let woken = self.wait(self.inner.context.left(end))?;
            let found = self.poll_one()?;
            if found.is_some() || !woken {
                return Ok(found);
            }
        }
    }

    /// Completions it holds at most.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.inner.depth.load(Ordering::Relaxed)
    }

    /// Changes the depth (`ibv_resize_cq`); what is queued stays.
    ///
    /// # Errors
    /// Out of range, or less than what is queued.
    pub fn resize(&self, depth: u32) -> Result<(), VerbsError> {
        let backend = self.inner.context.backend();
        backend.resize_cq(self.inner.handle, depth)?;
        self.inner.depth.store(depth, Ordering::Relaxed);
        Ok(())
    }

    /// Whether an event is about this queue.
    #[must_use]
    pub fn is_source_of(&self, event: &AsyncEvent) -> bool {
        event.source == Source::Cq(self.inner.handle)
    }

    /// Destroys it, with completions nobody took (`ibv_destroy_cq`).
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
