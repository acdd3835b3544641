//! A port that can be listened in to.
//!
//! Frames over AF_XDP pass by the kernel, and those of a UDP socket are seen by others without what
//! the daemon knows of them; so the daemon itself shows them. While nobody captures, a [`Tap`] hands
//! everything through: one branch for each burst received and each frame sent. While somebody does,
//! frames are copied to a ring that was made for the capture; one that is full, or that its reader
//! has spoiled, costs that reader frames and nobody else anything. Nothing is allocated, waited for
//! or locked here but by who begins and ends captures.

mod capture;
mod filter;
mod repeats;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use xroce_api::PortStats;
use xroce_net::datapath::{Caps, Datapath, Rx, TxMeta};
use xroce_wire::newtypes::{Gid, Qpn};

pub(crate) use capture::{Capture, Own, Who};
pub(crate) use filter::Connection;

/// A port, and who listens in.
#[derive(Debug)]
pub(crate) struct Tap<D> {
    port: D,
    capture: Option<Box<Capture>>,
}

impl<D: Datapath> Tap<D> {
    pub(crate) fn new(port: D) -> Self {
        let capture = None;
        Self { port, capture }
    }

    /// Begins a capture; if there is one, says whose, and gives the new one back to be dropped
    /// elsewhere.
    pub(crate) fn begin(&mut self, capture: Box<Capture>) -> Result<(), (Who, Box<Capture>)> {
        match &self.capture {
            Some(there) => Err((there.who, capture)),
            None => {
                self.capture = Some(capture);
                Ok(())
            }
        }
    }

    /// The capture of a session.
    pub(crate) fn of(&mut self, session: u32) -> Option<&mut Capture> {
        let capture = self.capture.as_deref_mut();
        capture.filter(|capture| capture.who.session == session)
    }

    /// Ends the capture of a session, and gives it away to be dropped elsewhere.
    pub(crate) fn end(&mut self, session: u32) -> Option<Box<Capture>> {
        self.of(session)?.show();
        self.capture.take()
    }

    /// Whether it matters to a capture what queue pairs are connected to.
    pub(crate) fn follows(&self) -> bool {
        self.capture.as_ref().is_some_and(|c| c.follows())
    }

    /// A queue pair of this device is connected to this now, or to nothing.
    pub(crate) fn connected(&mut self, local: Qpn, to: Option<Connection>) {
        if let Some(capture) = &mut self.capture {
            capture.connected(local, to);
        }
    }

    /// Kept out of the way of what is done while nobody captures.
    #[inline(never)]
    fn burst(&mut self, budget: usize, each: &mut impl FnMut(Rx<'_>)) -> io::Result<usize> {
        let Self { port, capture } = self;
        let Some(capture) = capture else {
            return Ok(0);
        };
        let came = port.rx_burst(budget, &mut |rx| {
            capture.received(&rx);
            each(rx);
        });
        capture.show();
        came
    }

    /// A frame that was lent from the capture, into one of the port.
    #[inline(never)]
    fn commit(&mut self, meta: &TxMeta, len: usize) {
        let Some(capture) = &mut self.capture else {
            return;
        };
        let frame = capture.lent(len);
        // There was one when this frame was lent, and it was given back.
        let Some(room) = self.port.tx_begin() else {
            debug_assert!(false, "a frame that was free is not");
            return;
        };
        let len = frame.len().min(room.len());
        if let (Some(to), Some(from)) = (room.get_mut(..len), frame.get(..len)) {
            to.copy_from_slice(from);
        }
        self.port.tx_commit(meta, len);
        capture.sent(meta, len);
    }
}

impl<D: Datapath> Datapath for Tap<D> {
    #[inline]
    fn caps(&self) -> &Caps {
        self.port.caps()
    }

    #[inline]
    fn rx_burst(&mut self, budget: usize, each: &mut impl FnMut(Rx<'_>)) -> io::Result<usize> {
        if self.capture.is_some() {
            return self.burst(budget, each);
        }
        self.port.rx_burst(budget, each)
    }

    /// With a capture, its own buffer: a committed frame of the port cannot be read any more, and
    /// what is in one before is not known yet.
    #[inline]
    fn tx_begin(&mut self) -> Option<&mut [u8]> {
        match &mut self.capture {
            None => self.port.tx_begin(),
            Some(capture) => {
                // Not committed, and so given back.
                self.port.tx_begin()?;
                Some(capture.lend())
            }
        }
    }

    #[inline]
    fn tx_commit(&mut self, meta: &TxMeta, len: usize) {
        if self.capture.as_ref().is_some_and(|c| c.has_lent()) {
            return self.commit(meta, len);
        }
        self.port.tx_commit(meta, len);
    }

    #[inline]
    fn tx_flush(&mut self) -> io::Result<()> {
        if let Some(capture) = &mut self.capture {
            capture.show();
        }
        self.port.tx_flush()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.port.wait(timeout)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.port.readiness()
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        self.port.join(group)
    }

    fn claim(&mut self, gid: Gid) {
        self.port.claim(gid);
    }

    fn release(&mut self, gid: Gid) {
        self.port.release(gid);
    }

    fn leave(&mut self, group: Gid) {
        self.port.leave(group);
    }

    fn stats(&mut self) -> PortStats {
        self.port.stats()
    }
}
