//! A flag that can be waited for, alone or among other descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Up or down; its descriptor is readable while it is up.
#[derive(Debug)]
pub(crate) struct Signal {
    fd: OwnedFd,
    up: AtomicBool,
}

impl Signal {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            fd: eventfd(0, flags)?,
            up: AtomicBool::new(false),
        })
    }

    /// Up; costs a system call only if it was down.
    pub(crate) fn raise(&self) {
        // Pairs with the swap in `lower`: whoever lowers sees what was there before the raise.
        if !self.up.swap(true, Ordering::AcqRel) {
            // Fails only if the counter is full, and then the descriptor is readable.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Down. Look for what it stands for afterwards, or something raised in between is missed.
    #[cfg(feature = "inproc")]
    pub(crate) fn lower(&self) {
        // The descriptor first: a raise after it finds `up` and writes nothing, but is seen by
        // whoever looks after this call.
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        self.up.swap(false, Ordering::AcqRel);
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn readable(signal: &Signal) -> bool {
        let mut fds = [PollFd::new(signal, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_the_signal_is_up() {
        let signal = Signal::new().unwrap();
        assert!(!signal.is_up() && !readable(&signal));
        signal.raise();
        signal.raise();
        assert!(signal.is_up() && readable(&signal));
        signal.lower();
        assert!(!signal.is_up() && !readable(&signal));
        signal.raise();
        assert!(readable(&signal));
    }
}
