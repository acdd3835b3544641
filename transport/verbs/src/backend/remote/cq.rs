//! Completion queues of the daemon, and the channels they notify.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xroce_abi::completion;
use xroce_api::Notify;
use xroce_api::Request;
use xroce_proto::wc::{Completion, Cq};
use xroce_shm::{Arm, ArmWord, Consumer};

use super::gate::Gate;

/// A ring, and the word that arms it.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) entries: Consumer,
    pub(super) arm: ArmWord,
}

#[derive(Debug)]
struct State {
    /// After a resize, the old ring comes first.
    rings: VecDeque<Ring>,
    /// What was made here when the daemon was gone.
    flushed: VecDeque<Completion>,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct RemoteCq {
    pub(super) cq: Cq,
    state: Mutex<State>,
    /// Armed, and its event not taken.
    armed: AtomicBool,
}

/// Something in a ring that cannot be; the daemon is not to be trusted any more.
pub(super) type Nonsense = String;

impl RemoteCq {
    pub(super) fn new(cq: Cq, ring: Ring) -> Self {
        Self {
            cq,
            state: Mutex::new(State {
                rings: VecDeque::from([ring]),
                flushed: VecDeque::new(),
            }),
            armed: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes completions out, telling `each` of every one; `dead` is asked for what is to be
    /// flushed when nothing is left.
    pub(super) fn poll(
        &self,
        out: &mut [Completion],
        mut each: impl FnMut(&Completion),
        dead: impl FnOnce(&mut VecDeque<Completion>),
    ) -> Result<usize, Nonsense> {
        let mut state = self.state();
        let State { rings, flushed } = &mut *state;
        let mut found = 0;
        let mut entry = [0; completion::LEN];
        for place in out.iter_mut() {
            if !next(rings, &mut entry)? {
                break;
            }
            let wc = completion::decode(&entry).map_err(|e| e.to_string())?;
            each(&wc);
            *place = wc;
            found += 1;
        }
        if let Some(ring) = rings.front_mut() {
            ring.entries.release();
        }
        if found == 0 {
            dead(flushed);
            for (place, wc) in out
                .iter_mut()
                .zip(std::iter::from_fn(|| flushed.pop_front()))
            {
                *place = wc;
                found += 1;
            }
        }
        Ok(found)
    }

    /// Asks for a notification; whether completions are there already.
    pub(super) fn arm(&self, notify: Notify) -> Result<bool, Nonsense> {
        let mut state = self.state();
        let what = match notify {
            Notify::Any => Arm::Any,
            Notify::Solicited => Arm::Solicited,
        };
        if let Some(ring) = state.rings.back() {
            ring.arm.arm(what);
        }
        // After the word: between the two it would look as if the event had come.
        self.armed.store(true, Ordering::Release);
        let mut waiting = !state.flushed.is_empty();
        for ring in &mut state.rings {
            waiting |= ring.entries.available().map_err(|e| e.to_string())? != 0;
        }
        Ok(waiting)
    }

    /// Goes on in another ring when the ones before are empty.
    pub(super) fn resize(&self, ring: Ring) {
        let mut state = self.state();
        if self.armed.load(Ordering::Acquire) {
            // For more than was asked for, if that was solicited: a needless event is harmless.
            ring.arm.arm(Arm::Any);
        }
        state.rings.push_back(ring);
    }

    /// Whether the notification that was asked for has come; then it is taken.
    fn take_event(&self, broken: bool) -> bool {
        if !self.armed.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.state();
        // Completions that came to a new ring before it was armed notify of themselves.
        let resized = state.rings.len() > 1;
        let unread = resized
            && state
                .rings
                .back_mut()
                .is_some_and(|ring| ring.entries.available().is_ok_and(|n| n != 0));
        let fired = state.rings.back().is_none_or(|ring| !ring.arm.is_armed());
        (fired || unread || broken) && self.armed.swap(false, Ordering::AcqRel)
    }
}

/// The next completion; behind a resize there is another ring, once the first is empty.
fn next(rings: &mut VecDeque<Ring>, entry: &mut [u8; completion::LEN]) -> Result<bool, Nonsense> {
    while let Some(ring) = rings.front_mut() {
        if ring.entries.fetch(entry).map_err(|e| e.to_string())? {
            return Ok(true);
        }
        if rings.len() == 1 {
            break;
        }
        rings.pop_front();
    }
    Ok(false)
}

/// A completion channel: a pipe that the daemon writes a byte to for every event.
#[derive(Debug)]
pub(crate) struct RemoteChannel {
    pub(super) number: u32,
    pipe: OwnedFd,
    gate: Arc<Gate>,
    cqs: Mutex<VecDeque<Arc<RemoteCq>>>,
}

impl Drop for RemoteChannel {
    fn drop(&mut self) {
        let channel = self.number;
        let ended = self.gate.end_of_life(&Request::DestroyChannel { channel });
        if let Err(error) = ended {
            tracing::warn!(%error, "a completion channel was not destroyed");
        }
    }
}

impl RemoteChannel {
    pub(super) fn new(number: u32, pipe: OwnedFd, gate: Arc<Gate>) -> Self {
        Self {
            number,
            pipe,
            gate,
            cqs: Mutex::default(),
        }
    }

    fn cqs(&self) -> MutexGuard<'_, VecDeque<Arc<RemoteCq>>> {
        self.cqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, cq: &Arc<RemoteCq>) {
        self.cqs().push_back(Arc::clone(cq));
    }

    pub(super) fn remove(&self, cq: Cq) {
        self.cqs().retain(|other| other.cq != cq);
    }

    /// The next notification.
    pub(super) fn take(&self, broken: bool) -> Option<Cq> {
        let mut cqs = self.cqs();
        if let Some(cq) = next_event(&mut cqs, broken) {
            // The byte of this one. If it has not come yet it will, and wake for nothing.
            let _ = rustix::io::read(&self.pipe, &mut [0u8; 1]);
            return Some(cq);
        }
        // Bytes that nothing belongs to.
        let mut bytes = [0u8; 64];
        while rustix::io::read(&self.pipe, &mut bytes).is_ok_and(|n| n == bytes.len()) {}
        next_event(&mut cqs, broken)
    }
}

/// Whoever had an event is last next time.
fn next_event(cqs: &mut VecDeque<Arc<RemoteCq>>, broken: bool) -> Option<Cq> {
    let at = cqs.iter().position(|cq| cq.take_event(broken))?;
    let cq = cqs.get(at)?.cq;
    cqs.rotate_left(at + 1);
    Some(cq)
}

impl AsFd for RemoteChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
