//! Runs a program between two ends and says what came of it.

use std::time::Duration;

use anyhow::Result;
use xroce_wire::newtypes::PathMtu;

use super::program::{Fault, Job, Key, Kind, PRIVATE, Part, Program, REGION, SLOT, SLOTS, Work};
use crate::clock;
use crate::ends::{
    AhId, Bind, Connect, CqId, Destination, End, FlushRange, Mr, Op, Piece, QpId, QpSpec, Recv,
    Send, Service, Tuning, Wc, access,
};
use crate::fabric::Route;

/// Start PSNs, both about to wrap.
const PSNS: [u32; 2] = [0x00ff_fff0, 0x00ff_fff8];
/// `wr_id` of a receive has this bit.
pub(super) const RECV_BIT: u64 = 1 << 20;
/// Q_Key of datagrams.
const QKEY: u32 = 0x1111_1111;
/// Longest wait for a completion that must come.
const WAIT: Duration = Duration::from_secs(8);
/// ACK timeout codes without and with losses: 1.1 s, which a slow machine keeps, and 67 ms.
const TIMEOUTS: [u8; 2] = [18, 14];
/// Wait for receives of a queue pair that has failed.
const FAILED: Duration = Duration::from_millis(400);
/// Wait for an unreliable WRITE to arrive on a slow machine.
const ARRIVAL: Duration = Duration::from_millis(100);
/// Wait for what should not come.
const SILENCE: Duration = Duration::from_millis(10);

/// A completion, with what is valid in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// Number of the work request; a receive has that of the one that should take it.
    pub at: u64,
    /// `ibv_wc_status`.
    pub status: u32,
    /// Opcode, of successes.
    pub opcode: u32,
    /// Length, of receives, READs and atomics.
    pub len: u32,
    /// Immediate data, of receives.
    pub imm: Option<u32>,
    /// Whether the key taken back is the one that should be, of receives.
    pub inv: Option<bool>,
}

/// What came of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Outcome {
    /// Completions of sends, by end.
    pub sends: [Vec<Seen>; 2],
    /// Completions of receives, by end.
    pub recvs: [Vec<Seen>; 2],
    /// Hashes of slots, by end; the last one is that of the small region.
    pub memory: [Vec<u64>; 2],
    /// States of the queue pairs.
    pub states: [String; 2],
}

/// Longest time the specification lets pass before a requester sends again: 4 T.
pub(super) fn patience(lossy: bool) -> Duration {
    Duration::from_nanos((4096 * 4) << TIMEOUTS[usize::from(lossy)])
}

/// A completion that must come did not.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("end {end}: work request {number} did not complete")]
pub(super) struct NotDone {
    /// Who posted it.
    pub end: usize,
    /// Which one.
    pub number: u64,
}

/// What one end has.
struct Side {
    region: Mr,
    private: Mr,
    send_cq: CqId,
    recv_cq: CqId,
    qp: QpId,
    qpn: u32,
    ah: Option<AhId>,
}

/// A program while it runs.
struct Run<'p> {
    program: &'p Program,
    sides: [Side; 2],
    /// Keys of windows, by number.
    windows: Vec<u32>,
    outcome: Outcome,
    /// Receives posted and not completed.
    posted: [u32; 2],
    /// A send failed: with this status.
    failed: Option<u32>,
}

/// Seed of the contents of an end.
pub(super) fn seed(end: usize) -> u64 {
    0xd1f + 2 * end as u64
}

/// Runs a program. An end that does not answer, or completions that do not come, are errors.
pub(super) fn run(
    ends: &mut [&mut dyn End; 2],
    program: &Program,
    newer: bool,
    lossy: bool,
) -> Result<Outcome> {
    ends[0].reset()?;
    ends[1].reset()?;
    let mut rights = access::ATOMIC | access::MW_BIND;
    if newer {
        rights |= access::FLUSH_GLOBAL;
    }
    let sides = [
        set_up(&mut *ends[0], program, rights, 0)?,
        set_up(&mut *ends[1], program, rights, 1)?,
    ];
    let empty = || [Vec::new(), Vec::new()];
    let mut run = Run {
        program,
        sides,
        windows: Vec::new(),
        outcome: Outcome {
            sends: empty(),
            recvs: empty(),
            memory: [Vec::new(), Vec::new()],
            states: [String::new(), String::new()],
        },
        posted: [0; 2],
        failed: None,
    };
    run.connect(ends, lossy)?;
    let mut number = 0;
    for phase in &program.phases {
        run.phase(ends, phase, number)?;
        number += phase.len() as u64;
        if run.failed.is_some() {
            break;
        }
    }
    run.conclude(ends)?;
    Ok(run.outcome)
}

fn set_up(end: &mut dyn End, program: &Program, rights: u32, at: usize) -> Result<Side> {
    let region = end.mr(REGION, rights)?;
    let private = end.mr(PRIVATE, access::LOCAL_WRITE)?;
    end.fill(region.id, 0, REGION, seed(at))?;
    end.fill(private.id, 0, PRIVATE, seed(at))?;
    let (send_cq, recv_cq) = (end.cq(64)?, end.cq(64)?);
    let spec = QpSpec {
        service: match program.kind {
            Kind::Connected(service) => service,
            Kind::Ud => Service::Rc,
        },
        send_cq,
        recv_cq,
        depth: 32,
        sges: 4,
        srq: None,
    };
    let own = if at == 0 {
        rights & !access::MW_BIND
    } else {
        program.access
    };
    let (qp, qpn) = match program.kind {
        Kind::Connected(_) => end.qp(&spec, own)?,
        Kind::Ud => end.datagram_qp(&spec, QKEY)?,
    };
    let ah = match program.kind {
        Kind::Connected(_) => None,
        Kind::Ud => Some(end.ah(Route::V4, None)?),
    };
    Ok(Side {
        region,
        private,
        send_cq,
        recv_cq,
        qp,
        qpn,
        ah,
    })
}

impl Run<'_> {
    fn connect(&self, ends: &mut [&mut dyn End; 2], lossy: bool) -> Result<()> {
        let Kind::Connected(service) = self.program.kind else {
            return Ok(());
        };
        let short = self.program.fault == Some(Fault::NoReceive);
        let tuning = Tuning {
            timeout: TIMEOUTS[usize::from(lossy)],
            retry: 6,
            rnr_retry: if short { 1 } else { 7 },
            reads: 4,
            ..Tuning::default()
        };
        let mtu = PathMtu::from_bytes(self.program.mtu as usize).unwrap_or(PathMtu::Mtu1024);
        for at in [1, 0] {
            let to = Connect {
                route: Route::V4,
                mtu,
                dest_qpn: self.sides[1 - at].qpn,
                sq_psn: PSNS[at],
                rq_psn: PSNS[1 - at],
                tuning,
                service,
            };
            ends[at].connect(self.sides[at].qp, &to)?;
        }
        Ok(())
    }

    /// Posts a phase and waits for it.
    fn phase(&mut self, ends: &mut [&mut dyn End; 2], work: &[Work], first: u64) -> Result<()> {
        let mut expected = [0_u32; 2];
        for (number, w) in (first..).zip(work) {
            if let Some(parts) = &w.recv {
                let to = 1 - w.by;
                let recv = Recv {
                    wr: RECV_BIT | number,
                    pieces: self.pieces(to, parts),
                    count: 1,
                    stride: 0,
                };
                ends[to].recv(self.sides[to].qp, &recv)?;
                self.posted[to] += 1;
                expected[to] += 1;
            }
        }
        for end in ends.iter_mut() {
            end.settle()?;
        }
        let mut last = [None; 2];
        let mut signaled = [0_u32; 2];
        for (number, w) in (first..).zip(work) {
            self.post(ends, w, number)?;
            signaled[w.by] += u32::from(w.signaled);
            last[w.by] = Some(number);
        }
        for end in ends.iter_mut() {
            end.settle()?;
        }
        for at in 0..2 {
            if let Some(last) = last[at] {
                self.reap(&mut *ends[at], at, signaled[at], last)?;
            }
        }
        if self.failed.is_none() {
            for at in 0..2 {
                self.receive(&mut *ends[at], at, expected[at], WAIT)?;
            }
        }
        Ok(())
    }

    fn pieces(&self, end: usize, parts: &[Part]) -> Vec<Piece> {
        let piece = |part: &Part| Piece {
            mr: self.sides[end].region.id,
            off: part.off,
            len: part.len,
        };
        parts.iter().map(piece).collect()
    }

    fn post(&mut self, ends: &mut [&mut dyn End; 2], w: &Work, number: u64) -> Result<()> {
        let (own, other) = (&self.sides[w.by], &self.sides[1 - w.by]);
        let op = match w.job {
            Job::Op(op) => op,
            Job::Bind(n) => {
                let mw = ends[w.by].mw(true)?;
                let bind = Bind {
                    wr: number,
                    mr: own.region.id,
                    off: 0,
                    len: REGION,
                    access: access::REMOTE_WRITE | access::REMOTE_READ,
                };
                let bound = ends[w.by].bind(own.qp, mw, &bind)?;
                self.windows.resize(self.windows.len().max(n + 1), 0);
                self.windows[n] = bound.rkey;
                return Ok(());
            }
        };
        let (base, key) = match w.key {
            Key::Region => (other.region.va, other.region.rkey),
            Key::Private => (other.private.va, other.private.rkey),
            Key::Wrong => (other.region.va, other.region.rkey ^ 0x0001_5500),
            Key::Window(n) => {
                let key = self.windows.get(n).copied().unwrap_or(0);
                (other.region.va, key)
            }
        };
        let to = own.ah.map(|ah| Destination {
            ah,
            qpn: other.qpn,
            qkey: QKEY,
        });
        let send = Send {
            signaled: w.signaled,
            imm: w.imm,
            va: base + w.remote,
            rkey: key,
            pieces: self.pieces(w.by, &w.parts),
            to,
            operands: w.operands,
            inv: key,
            fence: w.fence,
            flush: FlushRange {
                len: w.flush,
                persistent: false,
                whole: false,
            },
            ..Send::new(number, op)
        };
        ends[w.by].send(own.qp, &send)
    }

    /// Takes completions of sends up to that of `last`.
    fn reap(&mut self, end: &mut dyn End, at: usize, signaled: u32, last: u64) -> Result<()> {
        let cq = self.sides[at].send_cq;
        let until = clock::now() + WAIT;
        let mut got = 0;
        loop {
            let min = signaled.saturating_sub(got).max(1);
            let batch = end.poll(cq, min, 64, WAIT)?;
            for wc in &batch {
                got += 1;
                if wc.status != 0 {
                    self.failed = self.failed.or(Some(wc.status));
                }
                self.outcome.sends[at].push(seen_send(wc));
            }
            if batch.iter().any(|wc| wc.wr == last) {
                return Ok(());
            }
            if batch.is_empty() || clock::now() > until {
                return Err(NotDone {
                    end: at,
                    number: last,
                }
                .into());
            }
        }
    }

    /// Takes up to `count` completions of receives.
    fn receive(
        &mut self,
        end: &mut dyn End,
        at: usize,
        count: u32,
        timeout: Duration,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let batch = end.poll(self.sides[at].recv_cq, count, 64, timeout)?;
        for wc in &batch {
            self.posted[at] = self.posted[at].saturating_sub(1);
            let seen = self.seen_recv(wc);
            self.outcome.recvs[at].push(seen);
        }
        Ok(())
    }

    fn seen_recv(&self, wc: &Wc) -> Seen {
        let at = wc.wr & !RECV_BIT;
        if wc.status != 0 {
            return failed(at, wc.status);
        }
        let wanted = usize::try_from(at)
            .ok()
            .and_then(|n| self.program.work().nth(n))
            .and_then(|w| match w.key {
                Key::Window(n) => self.windows.get(n).copied(),
                _ => None,
            });
        Seen {
            at,
            status: 0,
            opcode: wc.opcode,
            len: wc.len,
            imm: wc.imm,
            inv: wc.inv.map(|key| Some(key) == wanted),
        }
    }

    /// What is there at the end: late completions, memory, states.
    fn conclude(&mut self, ends: &mut [&mut dyn End; 2]) -> Result<()> {
        if let Some(status) = self.failed {
            // After a NAK the responder has failed as well and gives all receives back.
            let wait = if matches!(status, 9..=12) {
                FAILED
            } else {
                SILENCE
            };
            self.receive(&mut *ends[1], 1, self.posted[1], wait)?;
        } else if self.program.fault.is_some() {
            self.receive(&mut *ends[1], 1, self.posted[1], FAILED)?;
        }
        // A datagram has the addresses of both ends in front.
        let skip = if self.program.kind == Kind::Ud { 40 } else { 0 };
        // UC tells nobody when a WRITE has arrived.
        let wait = if self.program.kind == Kind::Connected(Service::Uc) {
            ARRIVAL
        } else {
            Duration::ZERO
        };
        for (at, end) in ends.iter_mut().enumerate() {
            let side = &self.sides[at];
            let late = end.poll(side.send_cq, 1, 8, wait)?;
            self.outcome.sends[at].extend(late.iter().map(seen_send));
            let mut ranges: Vec<_> = (0..SLOTS)
                .map(|n| (side.region.id, n * SLOT + skip, SLOT - skip))
                .collect();
            ranges.push((side.private.id, 0, PRIVATE));
            self.outcome.memory[at] = end.hashes(&ranges)?;
            self.outcome.states[at] = end.state(side.qp)?;
        }
        Ok(())
    }
}

fn failed(at: u64, status: u32) -> Seen {
    Seen {
        at,
        status,
        opcode: 0,
        len: 0,
        imm: None,
        inv: None,
    }
}

fn seen_send(wc: &Wc) -> Seen {
    if wc.status != 0 {
        return failed(wc.wr, wc.status);
    }
    // READ, compare and swap, fetch and add.
    let shows_len = matches!(wc.opcode, 2..=4);
    Seen {
        opcode: wc.opcode,
        len: if shows_len { wc.len } else { 0 },
        ..failed(wc.wr, 0)
    }
}

/// Whether a work request receives into, or writes, a slot of the other end.
pub(super) fn receives_into(work: &Work, slot: u64) -> bool {
    let parts = work.recv.iter().flatten();
    let takes = matches!(work.job, Job::Op(op) if op != Op::WriteImm);
    takes
        && parts.filter(|p| p.len > 0).any(|p| {
            let end = (p.off + u64::from(p.len) - 1).min(REGION - 1);
            (p.off / SLOT..=end / SLOT).contains(&slot)
        })
}
