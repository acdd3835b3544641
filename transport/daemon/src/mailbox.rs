//! Commands from the threads that talk to processes to the one that has the engine.
//!
//! The engine belongs to its thread alone; who wants something of it sends a closure and waits for
//! what that returns. An engine without commands pays one load a turn.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc;

use crossbeam_queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};
use xroce_net::datapath::Datapath;

use crate::serve::Server;

type Command<D> = Box<dyn FnOnce(&mut Server<D>) + Send>;

/// The engine's thread has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gone;

/// Where commands wait, and what wakes the thread.
pub(crate) struct Mailbox<D: Datapath> {
    commands: SegQueue<Command<D>>,
    bell: OwnedFd,
    asleep: AtomicBool,
    /// Nobody will look any more.
    closed: AtomicBool,
}

impl<D: Datapath> fmt::Debug for Mailbox<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Mailbox");
        shown.field("waiting", &self.commands.len());
        shown.finish_non_exhaustive()
    }
}

impl<D: Datapath> Mailbox<D> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            commands: SegQueue::new(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            asleep: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    /// Has the engine's thread run `command` and waits for what it returns.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Server<D>) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.post(move |server| {
            let result = command(server);
            // Whoever asked waits for it.
            let _ = answer.send(result);
        });
        // Dropped with the command if the thread ends first.
        answered.recv().map_err(|_| Gone)
    }

    /// The same without waiting.
    pub(crate) fn post(&self, command: impl FnOnce(&mut Server<D>) + Send + 'static) {
        self.commands.push(Box::new(command));
        self.ring();
        if self.closed.load(Ordering::SeqCst) {
            while self.commands.pop().is_some() {}
        }
    }

    pub(crate) fn ring(&self) {
        // Either this sees that the thread sleeps, or the thread sees the command before it does.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            // Fails only if the counter is full, and then it is readable.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// The next command, for the engine's thread.
    pub(crate) fn take(&self) -> Option<Command<D>> {
        self.commands.pop()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Says that the thread is about to sleep; look for commands afterwards.
    pub(crate) fn lie_down(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn get_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }

    /// No command is run from now on; those that wait are told.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        while self.commands.pop().is_some() {}
    }
}

impl<D: Datapath> AsFd for Mailbox<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
