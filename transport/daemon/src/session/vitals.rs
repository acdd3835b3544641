//! What reports say of a process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use xroce_api::message::SessionReport;

use super::objects::Objects;

/// Who a process is, and what it has. Everything but the first three is for people to read.
#[derive(Debug)]
pub(crate) struct Vitals {
    pub(crate) session: u32,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    program: OnceLock<String>,
    device: OnceLock<String>,
    objects: [AtomicU32; 6],
    bytes: AtomicU64,
    posted: AtomicU64,
    completed: AtomicU64,
    stalled: AtomicU32,
}

impl Vitals {
    pub(crate) fn new(session: u32, pid: u32, uid: u32) -> Self {
        Self {
            session,
            pid,
            uid,
            program: OnceLock::new(),
            device: OnceLock::new(),
            objects: Default::default(),
            bytes: AtomicU64::new(0),
            posted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            stalled: AtomicU32::new(0),
        }
    }

    pub(crate) fn call(&self, program: String) {
        let _ = self.program.set(program);
    }

    pub(crate) fn opened(&self, device: &str) {
        let _ = self.device.set(device.to_owned());
    }

    pub(crate) fn has_device(&self) -> bool {
        self.device.get().is_some()
    }

    pub(crate) fn program(&self) -> &str {
        self.program.get().map_or("", String::as_str)
    }

    pub(super) fn count(&self, objects: &Objects) {
        let counts = objects.counts();
        for (to, count) in self.objects.iter().zip(counts) {
            to.store(count, Ordering::Relaxed);
        }
        self.bytes.store(objects.bytes(), Ordering::Relaxed);
    }

    /// By the engine's thread.
    pub(crate) fn note(&self, posted: u64, completed: u64, stalled: u32) {
        self.posted.store(posted, Ordering::Relaxed);
        self.completed.store(completed, Ordering::Relaxed);
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    pub(crate) fn report(&self) -> SessionReport {
        let objects = self.objects.each_ref().map(|n| n.load(Ordering::Relaxed));
        SessionReport {
            session: self.session,
            pid: self.pid,
            uid: self.uid,
            program: self.program().to_owned(),
            device: self.device.get().cloned(),
            objects,
            bytes: self.bytes.load(Ordering::Relaxed),
            posted: self.posted.load(Ordering::Relaxed),
            completed: self.completed.load(Ordering::Relaxed),
            stalled: self.stalled.load(Ordering::Relaxed),
        }
    }
}
