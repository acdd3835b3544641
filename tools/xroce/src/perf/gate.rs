//! Where the ports of one client wait for each other: all measure the same step at the same time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Result;

use super::device::Device;
use super::talk::Talk;

/// Another port of this client has failed, and says why.
#[derive(Debug, thiserror::Error)]
#[error("another port of the client failed")]
pub(crate) struct OtherFailed;

/// A gate that opens for a step when all ports have come.
#[derive(Debug)]
pub(crate) struct Gate {
    ports: u64,
    /// Ports that have come, to all steps together.
    come: AtomicU64,
    failed: AtomicBool,
}

impl Gate {
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
    /// A port failed, or as [`Talk::turn`].
    pub(crate) fn pass<D: Device>(&self, talk: &mut Talk<'_, D>, step: u32) -> Result<()> {
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
        let gate = Gate::new(2);
        let come = || gate.come.fetch_add(1, Ordering::SeqCst);
        come();
        assert!(!gate.is_open(0).unwrap());
        come();
        assert!(gate.is_open(0).unwrap() && !gate.is_open(1).unwrap());
        // The faster of the two is already at the next step.
        come();
        assert!(gate.is_open(0).unwrap() && !gate.is_open(1).unwrap());
        gate.fail();
        assert!(gate.is_open(0).is_err());
    }
}
