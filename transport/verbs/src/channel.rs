//! Completion channels: where notifications of completion queues are waited for.

#[cfg(feature = "inproc")]
use std::collections::VecDeque;
#[cfg(feature = "inproc")]
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
#[cfg(feature = "inproc")]
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xroce_proto::wc::Cq as Handle;

#[cfg(feature = "inproc")]
use crate::backend::Signal;
#[cfg(feature = "daemon")]
use crate::backend::remote::RemoteChannel;
use crate::context::{Context, Shared};
use crate::cq::Cq;
use crate::error::VerbsError;

#[cfg(feature = "inproc")]
/// Notifications not taken, and a descriptor that is readable while there are some.
#[derive(Debug)]
pub(crate) struct LocalChannel {
    queue: Mutex<VecDeque<Handle>>,
    signal: Signal,
}

#[cfg(feature = "inproc")]
impl LocalChannel {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Mutex::default(),
            signal: Signal::new()?,
        })
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Handle>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, cq: Handle) {
        let mut queue = self.queue();
        queue.push_back(cq);
        self.signal.raise();
    }

    /// Ends waits without a notification, from now on.
    pub(crate) fn wake(&self) {
        let _queue = self.queue();
        self.signal.raise();
    }

    pub(crate) fn take(&self) -> Option<Handle> {
        let mut queue = self.queue();
        let first = queue.pop_front()?;
        if queue.is_empty() {
            self.signal.lower();
        }
        Some(first)
    }

    pub(crate) fn forget(&self, cq: Handle) {
        let mut queue = self.queue();
        queue.retain(|&queued| queued != cq);
        if queue.is_empty() {
            self.signal.lower();
        }
    }

    pub(crate) const fn signal(&self) -> &Signal {
        &self.signal
    }
}

/// Where notifications are waited for.
#[derive(Clone, Debug)]
pub(crate) enum Channel {
    /// Of an engine in this process.
    #[cfg(feature = "inproc")]
    Local(Arc<LocalChannel>),
    /// Of one in another.
    #[cfg(feature = "daemon")]
    Remote(Arc<RemoteChannel>),
}

impl Channel {
    /// As one of an engine in this process.
    #[cfg(feature = "inproc")]
    pub(crate) fn local(&self) -> Result<&Arc<LocalChannel>, VerbsError> {
        match self {
            Self::Local(channel) => Ok(channel),
            #[cfg(feature = "daemon")]
            Self::Remote(_) => Err(VerbsError::OtherContext("completion channel")),
        }
    }

    /// As one of the daemon.
    #[cfg(feature = "daemon")]
    pub(crate) fn remote(&self) -> Result<&Arc<RemoteChannel>, VerbsError> {
        match self {
            #[cfg(feature = "inproc")]
            Self::Local(_) => Err(VerbsError::OtherContext("completion channel")),
            Self::Remote(channel) => Ok(channel),
        }
    }

    /// The next notification, or `None` after `timeout`.
    pub(crate) fn wait(
        &self,
        context: &Shared,
        timeout: Duration,
    ) -> Result<Option<Handle>, VerbsError> {
        context.backend().wait_channel(self, timeout)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            #[cfg(feature = "inproc")]
            Self::Local(channel) => channel.signal.as_fd(),
            #[cfg(feature = "daemon")]
            Self::Remote(channel) => channel.as_fd(),
        }
    }
}

/// A completion channel (`ibv_comp_channel`): one place to wait for several completion queues,
/// made with [`Context::create_cq_on`].
///
/// Its descriptor ([`AsFd`]) is readable while there is a notification, for programs that poll
/// others too. On a context that the caller drives, something has to poll the context as well.
#[derive(Debug)]
pub struct CompChannel {
    pub(crate) context: Arc<Shared>,
    pub(crate) channel: Channel,
}

impl CompChannel {
    pub(crate) fn new(context: &Context) -> Result<Self, VerbsError> {
        let context = Arc::clone(context.shared());
        let channel = context.backend().create_channel()?;
        Ok(Self { context, channel })
    }

    /// Waits for the next notification and says which of `cqs` it is of, by position
    /// (`ibv_get_cq_event`); `None` when `timeout` is over, or it is of none of them.
    ///
    /// # Errors
    /// The device is broken, or the context is driven by hand and nothing is there.
    pub fn wait(&self, cqs: &[&Cq], timeout: Duration) -> Result<Option<usize>, VerbsError> {
        let Some(handle) = self.channel.wait(&self.context, timeout)? else {
            return Ok(None);
        };
        Ok(cqs.iter().position(|cq| cq.is(handle)))
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
