//! Descriptors that wake a process, and what it cannot do with them.
//!
//! A process may do to a descriptor it was given whatever the kernel allows: read it empty, fill
//! it, make it blocking. None of this may hold the engine up.
//!
//! * To wake a process: a pipe. It has the reading end, and so another open file than the engine
//!   writes to; a full pipe is readable, which is all that matters.
//! * To be woken by one: an eventfd that the engine never reads. It is watched edge-triggered, and
//!   every write is an edge.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};

/// The end that wakes a process.
#[derive(Debug)]
pub(crate) struct Bell {
    pipe: OwnedFd,
}

impl Bell {
    /// The bell, and the end that the process waits for.
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        let (theirs, pipe) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Self { pipe }, theirs))
    }

    /// Wakes the process.
    #[cold]
    pub(crate) fn ring(&self) {
        // A pipe that is full, or that nobody has the other end of, wakes as well as it can.
        let _ = rustix::io::write(&self.pipe, &[1]);
    }
}

/// What a process wakes the engine with.
pub(crate) fn kick() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
