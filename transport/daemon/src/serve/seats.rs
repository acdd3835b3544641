//! Completions from the engine into the rings of processes.
//!
//! Every completion queue of the engine is armed at all times, so the engine names the ones with
//! news. Completions for which the ring has no room stay in the engine's queue, which overflows in
//! the end as any completion queue does: to the harm of the process that does not poll, and of
//! nobody else.

use std::sync::Arc;

use xroce_abi::completion;
use xroce_api::Notify;
use xroce_engine::Engine;
use xroce_net::datapath::Datapath;
use xroce_proto::wc::{Completion, Cq, WcFlags, WcOpcode, WcStatus};
use xroce_shm::{ArmWord, Producer};

use super::client::ClientId;
use crate::bell::Bell;

/// Completions moved at a time.
const BATCH: u32 = 32;

/// A completion queue of a process.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) client: ClientId,
    pub(crate) cq: Cq,
    pub(crate) ring: Producer,
    pub(crate) arm: ArmWord,
    pub(crate) bell: Arc<Bell>,
    /// It is among those that wait for room.
    pub(crate) stalled: bool,
}

/// What moving completions came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) count: u32,
    /// More wait for room in the ring.
    pub(crate) stalled: bool,
    /// There were receives among them.
    pub(crate) received: bool,
}

impl Seat {
    /// Moves what there is and fits.
    pub(crate) fn pump<D: Datapath>(&mut self, engine: &mut Engine<D>) -> Result<Moved, String> {
        let mut moved = Moved {
            count: 0,
            stalled: false,
            received: false,
        };
        let mut solicited = false;
        let mut batch = [Completion::EMPTY; BATCH as usize];
        loop {
            let wrong = |e: &dyn std::fmt::Display| format!("completion queue {}: {e}", self.cq.0);
            let room = self.ring.room(BATCH).map_err(|e| wrong(&e))? as usize;
            let Some(room) = batch.get_mut(..room) else {
                break;
            };
            let found = engine.poll_cq(self.cq, room);
            for wc in room.iter().take(found) {
                let staged = self.ring.stage(&completion::encode(wc));
                staged.map_err(|e| wrong(&e))?;
                moved.received |= matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
                solicited |=
                    wc.flags.contains(WcFlags::SOLICITED) || wc.status != WcStatus::Success;
            }
            moved.count += u32::try_from(found).unwrap_or(0);
            if found == BATCH as usize {
                self.ring.publish();
                continue;
            }
            // Armed again; true if something came since, or had no room.
            let waiting = engine.req_notify_cq(self.cq, Notify::Any).unwrap_or(false);
            moved.stalled = waiting && found == room.len();
            if !waiting || moved.stalled {
                break;
            }
        }
        self.ring.publish();
        if moved.count != 0 && self.arm.must_notify(solicited) {
            self.bell.ring();
        }
        Ok(moved)
    }
}
