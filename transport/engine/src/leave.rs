//! What a queue pair still owes its peer when it ends.
//!
//! [`Engine::poll_once`](crate::Engine::poll_once) transmits before it receives, so a program has
//! its completion before the ACK has left, and may well destroy the queue pair right then. What the
//! program knows to be done, the peer has to hear of as well: else it repeats its request until it
//! gives up.

use std::collections::VecDeque;

use xroce_net::datapath::{Datapath, TxMeta};
use xroce_proto::qp::Cx;

use crate::engine::{Core, Engine};

/// Frames a queue pair sends when it ends, READ responses among them, at most: 1 MB at path MTU
/// 4096, the time of a few polls. What is executed is told all the same, up to the first READ that
/// is not answered.
const LAST_WORDS_MAX: usize = 256;
/// Frames that found the port full and wait for it, of all queue pairs that are gone, at most. With
/// more the last ones are lost, as on a network.
const GOODBYES_MAX: usize = 4096;
/// Longest frame that answers without data: VLAN, IPv6, UDP, BTH, AETH, atomic, ICRC are 98.
const GOODBYE_LEN: usize = 128;

/// A frame of a queue pair that is gone.
#[derive(Debug)]
struct Goodbye {
    meta: TxMeta,
    frame: Box<[u8]>,
}

/// Frames of queue pairs that are gone, which the port had no room for.
#[derive(Debug, Default)]
pub(crate) struct Goodbyes(VecDeque<Goodbye>);

impl Goodbyes {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<D: Datapath> Engine<D> {
    /// Pays what a queue pair owes that is about to go to ERR, to RESET or away. `forgets`: it will
    /// not know of it afterwards, so what the port does not take now is kept here.
    #[cold]
    pub(crate) fn take_leave(&mut self, index: u32, forgets: bool) {
        let Self { port, core, .. } = self;
        let Some(entry) = core.qps.get_mut(index).filter(|e| e.qp.owes()) else {
            return;
        };
        let mut cx = Cx {
            now: core.now,
            mem: &mut core.mem,
            sink: &mut core.cqs,
        };
        for _ in 0..LAST_WORDS_MAX {
            let Some(frame) = port.tx_begin() else { break };
            let Some(transmit) = entry.qp.poll_last_words(&mut cx, frame) else {
                break;
            };
            let (dst, tos) = (transmit.dst, transmit.traffic_class);
            port.tx_commit(&TxMeta { dst, tos }, transmit.len);
        }
        if forgets {
            entry.qp.end_reads();
            let mut frame = [0; GOODBYE_LEN];
            while core.goodbyes.0.len() < GOODBYES_MAX
                && let Some(transmit) = entry.qp.poll_last_words(&mut cx, &mut frame)
            {
                let (dst, tos) = (transmit.dst, transmit.traffic_class);
                core.goodbyes.0.push_back(Goodbye {
                    meta: TxMeta { dst, tos },
                    frame: frame[..transmit.len].into(),
                });
            }
        }
        // This may have been the last call. A port that is broken says so in the next poll.
        let _ = port.tx_flush();
    }
}

impl Core {
    /// Sends what queue pairs that are gone have left, as far as the port takes it.
    #[cold]
    pub(crate) fn say_goodbyes<D: Datapath>(&mut self, port: &mut D) -> usize {
        let mut sent = 0;
        while let Some(Goodbye { meta, frame }) = self.goodbyes.0.front() {
            let Some(room) = port.tx_begin() else { break };
            if let Some(room) = room.get_mut(..frame.len()) {
                room.copy_from_slice(frame);
                port.tx_commit(meta, frame.len());
                sent += 1;
            }
            self.goodbyes.0.pop_front();
        }
        sent
    }
}
