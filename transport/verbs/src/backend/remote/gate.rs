//! The socket to the daemon: requests and answers, and word that the daemon is gone.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use serde::de::DeserializeOwned;
use xroce_api::Request;
use xroce_api::message::Farewell;
use xroce_control::socket::{self, Answer, Kind, Message, MessageError};

use crate::backend::Signal;
use crate::error::VerbsError;

/// The socket, and what became of it.
pub(super) struct Gate {
    socket: OwnedFd,
    /// One request at a time.
    turn: Mutex<()>,
    device: OnceLock<String>,
    broken: OnceLock<String>,
    /// Up when the daemon is gone.
    gone: Signal,
    /// Up when the watcher is to end.
    end: Signal,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Gate");
        shown.field("broken", &self.broken.get());
        shown.finish_non_exhaustive()
    }
}

impl Gate {
    pub(super) fn new(socket: OwnedFd) -> Result<Self, VerbsError> {
        let signal = || Signal::new().map_err(VerbsError::system("making an eventfd"));
        Ok(Self {
            socket,
            turn: Mutex::new(()),
            device: OnceLock::new(),
            broken: OnceLock::new(),
            gone: signal()?,
            end: signal()?,
        })
    }

    /// What errors call the device.
    pub(super) fn call_device(&self, name: &str) {
        let _ = self.device.set(name.to_owned());
    }

    /// Readable when the daemon is gone.
    pub(super) fn gone_fd(&self) -> BorrowedFd<'_> {
        self.gone.as_fd()
    }

    #[inline]
    pub(super) fn is_broken(&self) -> bool {
        self.broken.get().is_some()
    }

    pub(super) fn reason(&self) -> Option<(String, String)> {
        let reason = self.broken.get()?.clone();
        let device = self.device.get().cloned();
        Some((device.unwrap_or_else(|| "of the daemon".to_owned()), reason))
    }

    pub(super) fn check_alive(&self) -> Result<(), VerbsError> {
        match self.reason() {
            None => Ok(()),
            Some((device, reason)) => Err(VerbsError::Device { device, reason }),
        }
    }

    /// Nothing goes any more, for this reason; only the first counts.
    pub(super) fn lose(&self, reason: String) -> VerbsError {
        let reason = self.broken.get_or_init(|| reason).clone();
        self.gone.raise();
        let device = self.device.get().cloned().unwrap_or_default();
        VerbsError::Device { device, reason }
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, and waits for the answer.
    pub(super) fn call<R: DeserializeOwned>(&self, request: &Request) -> Result<R, VerbsError> {
        self.call_with(request, &[]).map(|(answer, _)| answer)
    }

    /// Destroys something; that it went with the daemon is no error.
    pub(super) fn end_of_life(&self, request: &Request) -> Result<(), VerbsError> {
        match self.call(request) {
            Err(VerbsError::Device { .. }) => Ok(()),
            done => done,
        }
    }

    /// Asks with descriptors, in either direction.
    pub(super) fn call_with<R: DeserializeOwned>(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(R, Vec<OwnedFd>), VerbsError> {
        self.check_alive()?;
        // Held until the end of the daemon is noted: what it said is read once, and whoever comes
        // next finds a socket that is closed.
        let _turn = self.turn();
        let sent = socket::send(&self.socket, Kind::Request, request, fds);
        let answered = match sent {
            // Too long for a message: nothing was sent.
            Err(error @ (MessageError::TooLong { .. } | MessageError::Body(_))) => {
                return Err(VerbsError::Control(error));
            }
            // It may have said why.
            Err(MessageError::Closed) | Ok(()) => socket::receive(&self.socket, RecvFlags::empty()),
            Err(error) => Err(error),
        };
        match answered {
            Ok(message) => self.judge(message),
            Err(MessageError::Closed) => Err(self.lose(GONE.to_owned())),
            Err(error) => Err(self.lose(error.to_string())),
        }
    }

    fn judge<R: DeserializeOwned>(
        &self,
        message: Message,
    ) -> Result<(R, Vec<OwnedFd>), VerbsError> {
        match message.answer() {
            Ok(Answer::Reply(answer, fds)) => Ok((answer, fds)),
            Ok(Answer::Refused(refusal)) => Err(VerbsError::Daemon(refusal)),
            Ok(Answer::Farewell(farewell)) => Err(self.lose(farewell.text)),
            Err(error) => Err(self.lose(error.to_string())),
        }
    }

    /// The daemon hung up: notes what it said before, if anything.
    fn note_end(&self) {
        let _turn = self.turn();
        let _ = self.lose(self.last_words());
    }

    fn last_words(&self) -> String {
        while let Ok(message) = socket::receive(&self.socket, RecvFlags::DONTWAIT) {
            if message.kind == Kind::Farewell
                && let Ok(farewell) = message.body::<Farewell>()
            {
                return farewell.text;
            }
        }
        GONE.to_owned()
    }

    /// Until the daemon hangs up or this side has had enough.
    fn watch(&self) {
        loop {
            let mut fds = [
                PollFd::new(&self.socket, PollFlags::RDHUP),
                PollFd::new(&self.end, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            if self.end.is_up() {
                return;
            }
            let [socket, _] = fds;
            let hung_up = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
            if socket.revents().intersects(hung_up) {
                self.note_end();
                return;
            }
        }
    }

    pub(super) fn end(&self) {
        self.end.raise();
    }
}

/// What there is to say of a daemon that said nothing.
const GONE: &str = "the daemon is gone; it did not say why";

/// A thread that waits for the end of the daemon.
pub(super) fn start_watch(gate: &Arc<Gate>) -> Result<JoinHandle<()>, VerbsError> {
    let gate = Arc::clone(gate);
    let thread = Builder::new().name("xroce-watch".to_owned());
    let started = thread.spawn(move || gate.watch());
    started.map_err(VerbsError::system("starting a thread"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn whoever_notices_the_end_first_knows_why() {
        for _ in 0..200 {
            let flags = SocketFlags::CLOEXEC;
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
            let gate = Arc::new(Gate::new(ours).unwrap());
            let watch = start_watch(&gate).unwrap();
            let callers = [(); 2].map(|()| {
                let gate = Arc::clone(&gate);
                std::thread::spawn(move || gate.call::<bool>(&Request::Up).unwrap_err())
            });
            let text = "maintenance".to_owned();
            socket::send(&theirs, Kind::Farewell, &Farewell { text }, &[]).unwrap();
            drop(theirs);
            for caller in callers {
                let error = caller.join().unwrap().to_string();
                assert!(error.contains("maintenance"), "{error}");
            }
            watch.join().unwrap();
        }
    }
}
