//! Waiting: for a signal, and for work of the engine.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use xroce_net::datapath::Datapath;
use xroce_proto::time::Instant;

use super::Signal;
use super::inproc::{InProc, now};
use crate::error::VerbsError;

/// Longest sleep of whoever polls the engine: a port has things to look after (a device that is
/// gone, a queue below that was full) that wake nobody.
const SLEEP_MAX: Duration = Duration::from_millis(2);
/// The same for a port without a descriptor.
const BLIND_SLEEP: Duration = Duration::from_micros(100);
/// Longest wait for a signal at a time: whether the device still works is looked at in between.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Wakes the thread that polls, if it sleeps.
#[derive(Debug)]
pub(crate) struct Bell {
    signal: Signal,
    asleep: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            signal: Signal::new()?,
            asleep: AtomicBool::new(false),
        })
    }

    /// To be called after the lock was given back: whoever is about to sleep has said so under
    /// the lock.
    #[inline]
    pub(super) fn ring(&self) {
        if self.asleep.load(Ordering::Acquire) {
            self.signal.raise();
        }
    }
}

impl<D: Datapath> InProc<D> {
    /// Sleeps until the port has something, somebody rings, `also` is up, a timer is due, or
    /// `longest` is over. Returns at once if there is something to do.
    pub(super) fn doze(&self, also: Option<&Signal>, longest: Duration) -> Result<(), VerbsError> {
        let mut state = self.lock();
        // Lets the port look after itself, and tells whether something came meanwhile.
        let waited = state.engine.wait(Duration::ZERO);
        waited.map_err(VerbsError::system("waiting for the port"))?;
        let mut timeout = longest.min(if self.readiness.is_some() {
            SLEEP_MAX
        } else {
            BLIND_SLEEP
        });
        if let Some(deadline) = state.engine.next_deadline() {
            let left = deadline.since(now()).as_nanos();
            timeout = timeout.min(Duration::from_nanos(left));
        }
        // Under the lock: who posts afterwards sees it and rings.
        self.bell.asleep.store(true, Ordering::Release);
        drop(state);
        let mut fds = vec![self.bell.signal.as_fd()];
        fds.extend(self.readiness.as_ref().map(AsFd::as_fd));
        fds.extend(also.map(AsFd::as_fd));
        let slept = sleep(&fds, timeout);
        self.bell.asleep.store(false, Ordering::Release);
        self.bell.signal.lower();
        slept.map_err(VerbsError::system("poll"))
    }

    /// Waits for a signal while a thread moves the engine.
    pub(super) fn wait_for(&self, signal: &Signal, timeout: Duration) -> Result<bool, VerbsError> {
        let end = end_of(timeout);
        loop {
            if signal.is_up() {
                return Ok(true);
            }
            self.check_alive()?;
            let left = left_of(end);
            if left.is_zero() {
                return Ok(false);
            }
            let slept = sleep(&[signal.as_fd()], left.min(WAIT_MAX));
            slept.map_err(VerbsError::system("poll"))?;
        }
    }

    /// Waits for a signal and moves the engine meanwhile.
    pub(super) fn wait_polling(
        &self,
        signal: &Signal,
        timeout: Duration,
    ) -> Result<bool, VerbsError> {
        let end = end_of(timeout);
        loop {
            if signal.is_up() {
                return Ok(true);
            }
            if !self.turn(now())?.is_idle() {
                continue;
            }
            let left = left_of(end);
            if left.is_zero() {
                return Ok(signal.is_up());
            }
            self.doze(Some(signal), left)?;
        }
    }
}

/// `None`: never.
fn end_of(timeout: Duration) -> Option<Instant> {
    let ns = u64::try_from(timeout.as_nanos()).ok()?;
    let end = now().as_nanos().checked_add(ns)?;
    Some(Instant::from_nanos(end))
}

fn left_of(end: Option<Instant>) -> Duration {
    end.map_or(Duration::MAX, |end| {
        Duration::from_nanos(end.since(now()).as_nanos())
    })
}

/// Until one of them is readable or `timeout` is over.
fn sleep(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(timeout).ok();
    let one = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds: Vec<PollFd<'_>> = fds.iter().copied().map(one).collect();
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
