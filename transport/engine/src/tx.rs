//! The transmit phase: queue pairs take turns ([`crate::sched`] says who) until nobody wants, the budget is spent or
//! the port is full.

use xroce_net::datapath::{Datapath, TxMeta};
use xroce_proto::qp::Cx;
use xroce_proto::time::Instant;

use crate::engine::Core;

/// Why a QP's turn ended.
enum Turn {
    /// It has nothing (more) to send now.
    Done(usize),
    /// Its quantum or the budget is spent.
    Again(usize),
    /// The port has no free frame.
    PortFull(usize),
}

impl Core {
    pub(crate) fn transmit<D: Datapath>(&mut self, port: &mut D, now: Instant) -> usize {
        let mut sent = 0;
        while sent < self.config.tx_budget {
            let Some((class, index)) = self.schedule.pop() else {
                break;
            };
            let quantum = self.config.quantum.min(self.config.tx_budget - sent);
            let (turn, bytes) = self.turn(port, now, index, quantum);
            self.schedule.charge(class, bytes);
            match turn {
                Turn::Done(n) => {
                    sent += n;
                    if let Some(entry) = self.qps.get_mut(index) {
                        entry.active = false;
                    }
                    self.rearm(index);
                }
                Turn::Again(n) => {
                    sent += n;
                    self.schedule.push_back(class, index);
                    self.rearm(index);
                }
                Turn::PortFull(n) => {
                    sent += n;
                    // Who has sent something had a turn, however short: on a port that stays full
                    // it would have the next one as well, and the others none.
                    if n == 0 {
                        self.schedule.push_front(class, index);
                    } else {
                        self.schedule.push_back(class, index);
                    }
                    self.rearm(index);
                    break;
                }
            }
        }
        sent
    }

    #[inline]
    fn turn<D: Datapath>(
        &mut self,
        port: &mut D,
        now: Instant,
        index: u32,
        quantum: usize,
    ) -> (Turn, usize) {
        let Some(entry) = self.qps.get_mut(index) else {
            return (Turn::Done(0), 0);
        };
        // A full port is no reason to stay listed.
        if !entry.qp.wants_to_send(now) {
            return (Turn::Done(0), 0);
        }
        let mut bytes = 0;
        let mut cx = Cx {
            now,
            mem: &mut self.mem,
            sink: &mut self.cqs,
        };
        for sent in 0..quantum {
            let Some(frame) = port.tx_begin() else {
                return (Turn::PortFull(sent), bytes);
            };
            let Some(transmit) = entry.qp.poll_transmit(&mut cx, frame) else {
                return (Turn::Done(sent), bytes);
            };
            bytes += transmit.len;
            let meta = TxMeta {
                dst: transmit.dst,
                tos: transmit.traffic_class,
            };
            port.tx_commit(&meta, transmit.len);
        }
        (Turn::Again(quantum), bytes)
    }
}
