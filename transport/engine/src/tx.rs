//! The transmit phase: queue pairs take turns ([`crate::sched`] says who) until nobody wants, the budget is spent or
//! the port is full.

use xroce_net::datapath::{Datapath, TxMeta};
use xroce_proto::qp::{Cx, Look, Run};
use xroce_proto::time::Instant;

use crate::cq::CqTable;
use crate::engine::Core;
use crate::mr_table::MrTable;

/// Why a QP's turn ended.
enum Turn {
    /// It has nothing (more) to send now.
    Done(usize),
    /// Its quantum or the budget is spent.
    Again(usize),
    /// The port has no free frame.
    PortFull(usize),
}

/// What a turn has sent so far.
#[derive(Clone, Copy, Default)]
struct Sent {
    frames: usize,
    bytes: usize,
}

impl Sent {
    #[inline(always)]
    fn add(&mut self, len: usize) {
        self.frames += 1;
        self.bytes += len;
    }
}

/// Why a [`Run`] ended.
enum RunEnd {
    /// The queue pair has nothing (more) to send now.
    Done,
    /// What comes next is not for a run.
    Unusual,
    /// The quantum is spent.
    Quantum,
    /// The port has no free frame.
    PortFull,
}

impl Core {
    pub(crate) fn transmit<D: Datapath>(&mut self, port: &mut D, now: Instant) -> usize {
        let mut sent = 0;
        if !self.goodbyes.is_empty() {
            sent = self.say_goodbyes(port);
        }
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
        let mut cx = Cx {
            now,
            mem: &mut self.mem,
            sink: &mut self.cqs,
        };
        let mut done = Sent::default();
        while done.frames < quantum {
            if let Some(run) = entry.qp.run(now) {
                match follow(run, &mut cx, port, quantum, &mut done) {
                    RunEnd::Unusual => {}
                    RunEnd::Done => return (Turn::Done(done.frames), done.bytes),
                    RunEnd::PortFull => return (Turn::PortFull(done.frames), done.bytes),
                    RunEnd::Quantum => break,
                }
            }
            // A full port is no reason to stay listed.
            if done.frames == 0 && !entry.qp.wants_to_send(now) {
                return (Turn::Done(0), 0);
            }
            let Some(frame) = port.tx_begin() else {
                return (Turn::PortFull(done.frames), done.bytes);
            };
            let Some(transmit) = entry.qp.poll_transmit(&mut cx, frame) else {
                return (Turn::Done(done.frames), done.bytes);
            };
            let meta = TxMeta {
                dst: transmit.dst,
                tos: transmit.traffic_class,
            };
            port.tx_commit(&meta, transmit.len);
            done.add(transmit.len);
        }
        (Turn::Again(done.frames), done.bytes)
    }
}

/// Sends the packets of a run until it ends or `quantum` frames are sent altogether.
#[inline(always)]
fn follow<D: Datapath>(
    mut run: Run<'_>,
    cx: &mut Cx<'_, MrTable, CqTable>,
    port: &mut D,
    quantum: usize,
    done: &mut Sent,
) -> RunEnd {
    let (dst, tos) = run.path();
    let meta = TxMeta { dst, tos };
    while done.frames < quantum {
        let ahead = match run.look() {
            Look::Packet(ahead) => ahead,
            Look::Done => return RunEnd::Done,
            Look::Unusual => return RunEnd::Unusual,
        };
        let Some(frame) = port.tx_begin() else {
            return RunEnd::PortFull;
        };
        let Some(len) = run.write(cx, &ahead, frame) else {
            return RunEnd::Unusual;
        };
        port.tx_commit(&meta, len);
        done.add(len);
    }
    RunEnd::Quantum
}
