//! A device that is open, and what moves its engine.

use std::os::fd::BorrowedFd;
#[cfg(feature = "daemon")]
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
#[cfg(feature = "inproc")]
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use xroce_api::{EngineStats, GidEntry, PortStats, Work};
use xroce_api::{PollMode, clock};
#[cfg(feature = "inproc")]
use xroce_net::addressing::Addressing;
#[cfg(feature = "inproc")]
use xroce_net::datapath::Datapath;
use xroce_proto::time::Instant;
use xroce_wire::newtypes::{Gid, PKey};

pub use xroce_api::{AsyncEvent, Source};

#[cfg(feature = "inproc")]
use crate::backend::Driver;
#[cfg(feature = "inproc")]
use crate::backend::inproc::InProc;
#[cfg(feature = "daemon")]
use crate::backend::remote::Remote;
use crate::backend::{Backend, Motion};
use crate::channel::CompChannel;
use crate::cq::Cq;
use crate::device::{Device, DeviceAttr, PortAttr};
use crate::error::VerbsError;
use crate::pd::Pd;

/// Who polls the engine of a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drive {
    /// A thread that the context starts, and ends when the last object of the context is gone.
    Thread(PollMode),
    /// The program: by [`Context::poll`], and whenever it waits. Nothing moves in between, not
    /// even an answer to a peer's READ.
    Caller,
    /// The program, which also says what time it is ([`Context::poll_at`]); nothing can be waited
    /// for. For simulated networks.
    Manual,
}

impl Default for Drive {
    /// A thread that sleeps when there is nothing to do.
    fn default() -> Self {
        Self::Thread(PollMode::Adaptive)
    }
}

/// Numbers contexts, so that objects of two are not mixed up: their handles look alike.
static CONTEXTS: AtomicU32 = AtomicU32::new(1);

/// What all objects of a context share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) number: u32,
    backend: Arc<dyn Backend>,
    #[cfg(feature = "inproc")]
    driver: Mutex<Option<Driver>>,
}

impl Shared {
    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// When a wait that begins now ends; `None`: never.
    pub(crate) fn deadline(&self, timeout: Duration) -> Option<Instant> {
        if self.backend.motion() == Motion::Manual {
            // Nobody waits there.
            return None;
        }
        let ns = u64::try_from(timeout.as_nanos()).ok()?;
        let end = clock::now().as_nanos().checked_add(ns)?;
        Some(Instant::from_nanos(end))
    }

    pub(crate) fn left(&self, end: Option<Instant>) -> Duration {
        end.map_or(Duration::MAX, |end| {
            Duration::from_nanos(end.since(clock::now()).as_nanos())
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.backend.stop();
        #[cfg(feature = "inproc")]
        if let Some(driver) = self
            .driver
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            driver.join();
        }
    }
}

/// A device that is open (`ibv_context`). Clones are the same context.
#[derive(Clone, Debug)]
pub struct Context {
    shared: Arc<Shared>,
}

impl Context {
    /// Opens a device (`ibv_open_device`).
    ///
    /// # Errors
    /// There is no such interface or address here, it is taken, or rights are missing.
    pub fn open(device: &Device, drive: Drive) -> Result<Self, VerbsError> {
        device.open(drive)
    }

    #[cfg(feature = "inproc")]
    /// A context on a port of one's own: a simulated one, or anything that is a [`Datapath`].
    ///
    /// # Errors
    /// The system gives no descriptors or no thread.
    pub fn on_port<D: Datapath + Send + 'static>(
        port: D,
        addressing: Addressing,
        drive: Drive,
    ) -> Result<Self, VerbsError> {
        let motion = match drive {
            Drive::Thread(_) => Motion::Thread,
            Drive::Caller => Motion::Caller,
            Drive::Manual => Motion::Manual,
        };
        let engine = Arc::new(InProc::new(port, addressing, motion)?);
        let driver = match drive {
            Drive::Thread(mode) => {
                let started = Driver::start(Arc::clone(&engine), mode);
                Some(started.map_err(VerbsError::system("starting a thread"))?)
            }
            Drive::Caller | Drive::Manual => None,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                number: CONTEXTS.fetch_add(1, Ordering::Relaxed),
                backend: engine,
                driver: Mutex::new(driver),
            }),
        })
    }

    #[cfg(feature = "daemon")]
    /// A device of the daemon that listens at `socket`: the one of that name, or the first.
    ///
    /// # Errors
    /// Nobody listens there, the daemon does not let this process in, or has no such device.
    pub fn attach(socket: &Path, device: Option<&str>) -> Result<Self, VerbsError> {
        let backend = Arc::new(Remote::attach(socket, device)?);
        Ok(Self {
            shared: Arc::new(Shared {
                number: CONTEXTS.fetch_add(1, Ordering::Relaxed),
                backend,
                #[cfg(feature = "inproc")]
                driver: Mutex::new(None),
            }),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn backend(&self) -> &dyn Backend {
        self.shared.backend()
    }

    /// Moves the engine once: timers, sends, receives. Needed with [`Drive::Caller`], harmless
    /// beside a thread.
    ///
    /// # Errors
    /// The device is broken.
    pub fn poll(&self) -> Result<Work, VerbsError> {
        self.backend().poll(clock::now())
    }

    /// As [`Context::poll`], at a time the caller gives; for [`Drive::Manual`].
    ///
    /// # Errors
    /// The device is broken.
    pub fn poll_at(&self, now: Instant) -> Result<Work, VerbsError> {
        self.backend().poll(now)
    }

    /// When the engine has to be polled although nothing arrives.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.backend().next_deadline()
    }

    /// Name of the port: "UDP lo 127.0.0.1:4791 (GSO, GRO)".
    #[must_use]
    pub fn name(&self) -> &str {
        &self.backend().fixed().name
    }

    /// Limits of the device (`ibv_query_device`).
    #[must_use]
    pub fn query_device(&self) -> DeviceAttr {
        DeviceAttr::of(self.backend())
    }

    /// State of the port (`ibv_query_port`). A device has one.
    #[must_use]
    pub fn query_port(&self) -> PortAttr {
        PortAttr::of(self.backend())
    }

    /// The GID table, by index (`ibv_query_gid_table`); indices of addresses that went are missing.
    #[must_use]
    pub fn gids(&self) -> Vec<(u32, GidEntry)> {
        self.backend().gids().unwrap_or_default()
    }

    /// An address of the port (`ibv_query_gid`).
    #[must_use]
    pub fn gid(&self, index: u32) -> Option<Gid> {
        let gids = self.gids();
        let found = gids.into_iter().find(|(n, _)| *n == index);
        found.map(|(_, entry)| entry.gid)
    }

    /// An entry of the P_Key table; there is one (`ibv_query_pkey`).
    #[must_use]
    pub fn pkey(&self, index: u16) -> Option<PKey> {
        self.backend().pkey(index).ok().flatten()
    }

    /// Changes an entry of the P_Key table; all queue pairs follow at once.
    ///
    /// # Errors
    /// There is no such entry, or the key is of no partition.
    pub fn set_pkey(&self, index: u16, pkey: PKey) -> Result<(), VerbsError> {
        self.backend().set_pkey(index, pkey)
    }

    /// Counters of the engine and of its port.
    #[must_use]
    pub fn stats(&self) -> (EngineStats, PortStats) {
        self.backend().stats().unwrap_or_default()
    }

    /// A new protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// The device is broken.
    pub fn alloc_pd(&self) -> Result<Pd, VerbsError> {
        Pd::alloc(&self.shared)
    }

    /// A completion queue of `depth` entries, 1 ..= 2^22 (`ibv_create_cq`).
    ///
    /// # Errors
    /// The depth is out of range.
    pub fn create_cq(&self, depth: u32) -> Result<Cq, VerbsError> {
        Cq::create(&self.shared, depth, None)
    }

    /// A completion queue whose notifications go to a channel shared with others.
    ///
    /// # Errors
    /// The depth is out of range, or the channel is of another context.
    pub fn create_cq_on(&self, depth: u32, channel: &CompChannel) -> Result<Cq, VerbsError> {
        Cq::create(&self.shared, depth, Some(channel))
    }

    /// A completion channel for several queues (`ibv_create_comp_channel`).
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn create_channel(&self) -> Result<CompChannel, VerbsError> {
        CompChannel::new(self)
    }

    /// The oldest asynchronous event not yet taken.
    ///
    /// # Errors
    /// The device is broken and nothing is left to take.
    pub fn poll_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        self.backend().poll_event()
    }

    /// The next asynchronous event (`ibv_get_async_event`), or `None` after `timeout`.
    ///
    /// # Errors
    /// The device is broken, or the context is driven by hand and nothing is there.
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<AsyncEvent>, VerbsError> {
        if let Some(event) = self.poll_event()? {
            return Ok(Some(event));
        }
        let backend = self.backend();
        backend.wait_event(timeout)?;
        self.poll_event()
    }

    /// A descriptor that is readable while there are asynchronous events (`async_fd`).
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.backend().event_fd()
    }
}
