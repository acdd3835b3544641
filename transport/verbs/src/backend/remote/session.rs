//! The memory of the session: how the daemon learns of posts.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use xroce_control::layout;
use xroce_shm::{DirtySet, ParkWord, Region};

use super::gate::Gate;
use crate::batch::WrError;

/// What all doorbells share.
#[derive(Debug)]
pub(super) struct Session {
    park: ParkWord,
    sets: Vec<DirtySet>,
    kick: OwnedFd,
    gate: Arc<Gate>,
}

type Unlaid = Box<dyn std::error::Error + Send + Sync>;

impl Session {
    pub(super) fn new(memory: &Region, kick: OwnedFd, gate: Arc<Gate>) -> Result<Self, Unlaid> {
        Ok(Self {
            park: ParkWord::new(memory, layout::PARK)?,
            sets: layout::sets(memory)?,
            kick,
            gate,
        })
    }
}

/// The doorbell of one queue.
#[derive(Clone, Debug)]
pub(super) struct Doorbell {
    session: Arc<Session>,
    set: u32,
    number: u32,
}

impl Doorbell {
    pub(super) fn new(session: &Arc<Session>, number: u32) -> Self {
        let (set, number) = layout::place(number);
        Self {
            session: Arc::clone(session),
            set,
            number,
        }
    }

    /// The queue has news. A system call only if the daemon sleeps.
    #[inline]
    pub(super) fn ring(&self) {
        if let Some(set) = self.session.sets.get(self.set as usize) {
            // The daemon gave a number that a set has; one that has not rings for nothing.
            let _ = set.mark(self.number);
        }
        if self.session.park.must_kick() {
            // Fails only if the counter is full, which wakes as well.
            let _ = rustix::io::write(&self.session.kick, &1u64.to_ne_bytes());
        }
    }

    pub(super) fn check_alive(&self) -> Result<(), WrError> {
        match self.session.gate.reason() {
            None => Ok(()),
            Some((device, reason)) => Err(WrError::Device { device, reason }),
        }
    }

    pub(super) fn device_error(&self, reason: String) -> WrError {
        let _ = self.session.gate.lose(reason.clone());
        let device = "of the daemon".to_owned();
        WrError::Device { device, reason }
    }
}
