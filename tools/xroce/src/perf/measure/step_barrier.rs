//! Where the ports of one client wait for each other: all measure the same step at the same time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Result;

use crate::perf::device::Device;
use crate::perf::peer::conversation::Conversation;

/// Another port of this client has failed, and says why.
#[derive(Debug, thiserror::Error)]
#[error("another port of the client failed")]
pub(crate) struct OtherFailed;

/// A barrier that opens for a step when all ports have come.
#[derive(Debug)]
pub(crate) struct StepBarrier {
    ports: u64,
    /// Ports that have come, to all steps together.
    come: AtomicU64,
    failed: AtomicBool,
}

impl StepBarrier {
    /// For so many ports.
    pub(crate) fn new(ports: u64) -> Self {
        Self {
            ports,
            come: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }
    }

    /// One port will not come any more: those that wait give up.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }

    /// Waits until all ports have come to step `step`; the engine goes on meanwhile.
    ///
    /// # Errors
    /// A port failed, or as [`Conversation::turn`].
    pub(crate) fn pass<D: Device>(&self, talk: &mut Conversation<'_, D>, step: u32) -> Result<()> {
        self.come.fetch_add(1, Ordering::SeqCst);
        while !self.is_open(step)? {
            talk.turn()?;
        }
        Ok(())
    }

    fn is_open(&self, step: u32) -> Result<bool, OtherFailed> {
        if self.failed.load(Ordering::SeqCst) {
            return Err(OtherFailed);
        }
        Ok(self.come.load(Ordering::SeqCst) >= self.ports * (u64::from(step) + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_opens_when_all_have_come_and_never_after_a_failure() {
        let barrier = StepBarrier::new(2);
        let come = || barrier.come.fetch_add(1, Ordering::SeqCst);
        come();
        assert!(!barrier.is_open(0).unwrap());
        come();
        assert!(barrier.is_open(0).unwrap() && !barrier.is_open(1).unwrap());
        // The faster of the two is already at the next step.
        come();
        assert!(barrier.is_open(0).unwrap() && !barrier.is_open(1).unwrap());
        barrier.fail();
        assert!(barrier.is_open(0).is_err());
    }
}
