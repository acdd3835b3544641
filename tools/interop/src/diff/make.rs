//! Makes programs from seeds.

use std::collections::BTreeSet;

use xroce_net::sim::Rng;

use super::play::seed;
use super::program::{
    Fault, Job, Key, Kind, PRIVATE, Part, Program, REGION, SLOT, SLOTS, Work, sign_last,
};
use crate::ends::{Op, Service, access, pattern_byte};

/// Network header in front of a datagram.
pub(super) const GRH: u32 = 40;

/// What a generator knows of the phase it is making.
struct Maker {
    rng: Rng,
    kind: Kind,
    mtu: u32,
    /// Operations that may be used.
    ops: Vec<Op>,
    /// Slots that unfinished READs and atomics read from, by the end that has them.
    read_from: [BTreeSet<u64>; 2],
    /// Slots that they write to.
    written_to: [BTreeSet<u64>; 2],
    /// Slots written to so in this phase, finished or not.
    touched: [BTreeSet<u64>; 2],
    /// Both ends work: each has half of the slots.
    both: bool,
    /// Windows of end 1 that are bound, by number; one more each time.
    windows: Vec<usize>,
    bound: usize,
    /// Windows bound in this phase: their keys are known in the next one.
    fresh: Vec<usize>,
    next_imm: u32,
}

/// The program of a seed. With `newer`, ATOMIC WRITE and FLUSH as well.
pub(super) fn program(seed: u64, kind: Kind, newer: bool, lossy: bool) -> Program {
    let mut rng = Rng::new(seed);
    let mtu = [256, 512, 1024][rng.index(3)];
    let faults = kind == Kind::Connected(Service::Rc);
    let fault = (faults && rng.below(5) < 2).then(|| Fault::ALL[rng.index(Fault::ALL.len())]);
    let both = fault.is_none() && rng.below(3) == 0;
    let mut maker = Maker {
        rng,
        kind,
        mtu,
        ops: operations(kind, fault, newer, lossy),
        read_from: [BTreeSet::new(), BTreeSet::new()],
        written_to: [BTreeSet::new(), BTreeSet::new()],
        touched: [BTreeSet::new(), BTreeSet::new()],
        both,
        windows: Vec::new(),
        bound: 0,
        fresh: Vec::new(),
        next_imm: 0x1000,
    };
    let mut phases = Vec::new();
    for _ in 0..1 + maker.rng.index(3) {
        phases.push(maker.phase());
    }
    if let Some(fault) = fault {
        maker.prepare(fault, &mut phases);
        phases.push(maker.last(fault));
    }
    let rights = if fault == Some(Fault::QpRight) {
        access::LOCAL_WRITE
    } else if newer {
        access::ATOMIC | access::FLUSH_GLOBAL
    } else {
        access::ATOMIC
    };
    Program {
        seed,
        kind,
        mtu,
        fault,
        access: rights,
        phases,
    }
}

fn operations(kind: Kind, fault: Option<Fault>, newer: bool, lossy: bool) -> Vec<Op> {
    let mut ops = vec![Op::Send, Op::SendImm];
    if kind == Kind::Ud || fault == Some(Fault::QpRight) {
        return ops;
    }
    ops.extend([Op::Write, Op::WriteImm]);
    if kind == Kind::Connected(Service::Uc) {
        return ops;
    }
    ops.extend([Op::Read, Op::CompareSwap, Op::FetchAdd, Op::SendInv]);
    // Sent again by rxe, both have the remote address 0.
    if newer && !lossy {
        ops.extend([Op::AtomicWrite, Op::Flush]);
    }
    ops
}

/// Slot of an offset.
fn slot(off: u64) -> u64 {
    off / SLOT
}

impl Maker {
    fn phase(&mut self) -> Vec<Work> {
        for end in 0..2 {
            self.read_from[end].clear();
            self.written_to[end].clear();
            self.touched[end].clear();
        }
        let fresh = std::mem::take(&mut self.fresh);
        self.windows.extend(fresh);
        let count = 1 + self.rng.index(6);
        let mut phase: Vec<Work> = (0..count).map(|_| self.good()).collect();
        if self.kind == Kind::Connected(Service::Rc)
            && self.ops.contains(&Op::SendInv)
            && self.rng.below(4) == 0
        {
            phase.push(self.bind());
        }
        sign_last(&mut phase);
        phase
    }

    /// Some slot that an end may use for its own work.
    fn slot(&mut self, by: usize) -> u64 {
        if self.both {
            by as u64 * (SLOTS / 2) + self.rng.below(SLOTS / 2)
        } else {
            self.rng.below(SLOTS)
        }
    }

    fn size(&mut self) -> u32 {
        let mtu = self.mtu;
        let largest = if self.kind == Kind::Ud {
            mtu
        } else {
            3 * mtu + 1
        };
        let fixed = [
            0,
            1,
            2,
            3,
            4,
            7,
            8,
            33,
            mtu - 1,
            mtu,
            mtu + 1,
            2 * mtu,
            3 * mtu + 1,
        ];
        let at = self.rng.index(fixed.len() + 3);
        let any = u32::try_from(self.rng.below(u64::from(largest) + 1)).unwrap_or(0);
        fixed.get(at).copied().unwrap_or(any).min(largest)
    }

    /// One to three parts of a range.
    fn parts(&mut self, off: u64, len: u32) -> Vec<Part> {
        if len == 0 && self.rng.below(2) == 0 {
            return Vec::new();
        }
        let mut cuts = vec![0, len];
        for _ in 0..self.rng.index(3) {
            cuts.push(u32::try_from(self.rng.below(u64::from(len) + 1)).unwrap_or(0));
        }
        cuts.sort_unstable();
        cuts.windows(2)
            .map(|pair| Part {
                off: off + u64::from(pair[0]),
                len: pair[1] - pair[0],
            })
            .collect()
    }

    fn imm(&mut self) -> u32 {
        self.next_imm += 1;
        self.next_imm
    }

    /// A work request that must succeed.
    fn good(&mut self) -> Work {
        let by = usize::from(self.both && self.rng.below(2) == 1);
        let mut op = self.ops[self.rng.index(self.ops.len())];
        let window = (by == 0 && !self.windows.is_empty())
            .then(|| self.windows[self.rng.index(self.windows.len())]);
        if op == Op::SendInv && window.is_none() {
            op = Op::Send;
        }
        let mut work = self.of(by, op);
        // Its eight bytes are taken when it is posted, or when it is sent: both are right.
        let source = |w: &Work| {
            w.parts
                .iter()
                .any(|p| self.touched[by].contains(&slot(p.off)))
        };
        if op == Op::AtomicWrite && source(&work) {
            work.job = Job::Op(Op::FetchAdd);
        }
        let mut work = self.careful(work);
        match (op, window) {
            (Op::SendInv, Some(n)) => {
                work.key = Key::Window(n);
                self.windows.retain(|w| *w != n);
            }
            (Op::Write | Op::Read, Some(n)) if self.rng.below(2) == 0 => {
                work.key = Key::Window(n);
            }
            _ => {}
        }
        work
    }

    /// A request of an operation, with everything at random.
    fn of(&mut self, by: usize, op: Op) -> Work {
        let eight = matches!(op, Op::CompareSwap | Op::FetchAdd | Op::AtomicWrite);
        let len = match op {
            _ if eight => 8,
            Op::Flush | Op::LocalInv => 0,
            _ => self.size(),
        };
        let local = self.slot(by) * SLOT;
        let skew = if eight { 0 } else { self.rng.below(8) };
        let parts = match op {
            Op::Flush => Vec::new(),
            _ if eight => vec![Part { off: local, len }],
            _ => self.parts(local + skew, len),
        };
        let remote = self.slot(by) * SLOT + if eight { 0 } else { self.rng.below(8) };
        let recv = op.takes_recv().then(|| self.receive(by, op, len));
        Work {
            by,
            job: Job::Op(op),
            parts,
            remote,
            key: Key::Region,
            imm: self.imm(),
            operands: [self.operand(by, remote), self.rng.next_u64()],
            signaled: self.rng.below(3) > 0,
            fence: self.rng.below(8) == 0 && !matches!(self.kind, Kind::Ud),
            flush: u32::try_from(self.rng.below(SLOT)).unwrap_or(0),
            recv,
            bad: false,
        }
    }

    /// What to compare with: what is there at first, or anything.
    fn operand(&mut self, by: usize, remote: u64) -> u64 {
        if self.rng.below(2) == 0 {
            return self.rng.next_u64();
        }
        let byte = |n: u64| pattern_byte(seed(1 - by), remote + n);
        u64::from_le_bytes(std::array::from_fn(|n| byte(n as u64)))
    }

    fn receive(&mut self, by: usize, op: Op, len: u32) -> Vec<Part> {
        if op == Op::WriteImm {
            return Vec::new();
        }
        let off = self.slot(by) * SLOT;
        let more = u32::try_from(self.rng.below(4)).unwrap_or(0) * 5;
        if self.kind == Kind::Ud {
            return vec![Part {
                off,
                len: len + GRH + more,
            }];
        }
        self.parts(off, len + more)
    }

    /// Puts a fence where the order would be open otherwise, and notes what is under way.
    fn careful(&mut self, mut work: Work) -> Work {
        let Job::Op(op) = work.job else { return work };
        let (own, other) = (work.by, 1 - work.by);
        let local: BTreeSet<u64> = work.parts.iter().map(|p| slot(p.off)).collect();
        let mut remote = BTreeSet::new();
        if op.is_remote() && op != Op::Flush {
            remote.insert(slot(work.remote));
        }
        let received: BTreeSet<u64> = work.recv.iter().flatten().map(|p| slot(p.off)).collect();
        let reads = matches!(op, Op::Read | Op::CompareSwap | Op::FetchAdd);
        let writes_there: BTreeSet<u64> = if op == Op::Read {
            received
        } else {
            &remote | &received
        };
        if !self.read_from[other].is_disjoint(&writes_there)
            || !self.written_to[own].is_disjoint(&local)
        {
            work.fence = true;
        }
        // What takes a key back must not overtake a READ through it.
        if op == Op::SendInv {
            work.fence = true;
        }
        if work.fence {
            self.read_from[other].clear();
            self.written_to[own].clear();
        }
        if reads {
            self.read_from[other].extend(remote);
            self.touched[own].extend(&local);
            self.written_to[own].extend(local);
        }
        work
    }

    /// End 1 binds a window to its region.
    fn bind(&mut self) -> Work {
        let number = self.bound;
        self.bound += 1;
        self.fresh.push(number);
        let mut work = self.of(1, Op::LocalInv);
        work.job = Job::Bind(number);
        work.signaled = true;
        work.fence = false;
        work.parts.clear();
        work
    }

    /// What a fault needs before it.
    fn prepare(&mut self, fault: Fault, phases: &mut Vec<Vec<Work>>) {
        if fault != Fault::Stale {
            return;
        }
        let bind = self.bind();
        let number = self.bound - 1;
        phases.push(vec![bind]);
        self.fresh.clear();
        let op = if self.rng.below(2) == 0 {
            Op::LocalInv
        } else {
            Op::SendInv
        };
        let by = usize::from(op == Op::LocalInv);
        let mut taker = self.of(by, op);
        taker.parts.truncate(if op == Op::LocalInv { 0 } else { 3 });
        taker.key = Key::Window(number);
        taker.signaled = true;
        phases.push(vec![taker]);
    }

    /// The phase with the fault: what is before it succeeds, what is behind it is flushed.
    fn last(&mut self, fault: Fault) -> Vec<Work> {
        let mut phase = self.phase();
        phase.retain(|w| matches!(w.job, Job::Op(_)));
        self.fresh.clear();
        // An error of its own can flush what is not acknowledged yet; a wait keeps them apart.
        let before = if fault == Fault::OwnData {
            0
        } else {
            self.rng.index(3)
        };
        phase.truncate(before);
        phase.push(self.bad(fault));
        // Between two rxe it runs out of retries, which takes its time.
        let behind = if fault == Fault::Invalidate {
            0
        } else {
            self.rng.index(3)
        };
        for _ in 0..behind {
            let mut work = self.good();
            work.key = Key::Region;
            if work.job == Job::Op(Op::SendInv) {
                work.job = Job::Op(Op::Send);
            }
            // Its receive would be taken by the request that shall find none.
            if fault == Fault::NoReceive {
                work.recv = None;
            }
            phase.push(work);
        }
        sign_last(&mut phase);
        phase
    }

    fn bad(&mut self, fault: Fault) -> Work {
        let pick = |rng: &mut Rng, list: &[Op]| list[rng.index(list.len())];
        let op = match fault {
            Fault::Key | Fault::Range | Fault::RegionRight => pick(
                &mut self.rng,
                &[Op::Write, Op::WriteImm, Op::Read, Op::FetchAdd],
            ),
            Fault::Stale => pick(&mut self.rng, &[Op::Write, Op::Read]),
            Fault::QpRight => pick(&mut self.rng, &[Op::Write, Op::Read, Op::CompareSwap]),
            Fault::TooLong | Fault::NoReceive | Fault::Buffer => {
                pick(&mut self.rng, &[Op::Send, Op::SendImm])
            }
            Fault::OwnData => pick(&mut self.rng, &[Op::Send, Op::Write]),
            Fault::Invalidate => Op::SendInv,
        };
        let mut work = self.of(0, op);
        // A request without data needs no key: there must be some.
        while work.len() < 8 {
            work = self.of(0, op);
        }
        work.fence = true;
        work.bad = true;
        match fault {
            Fault::Key => work.key = Key::Wrong,
            Fault::Invalidate => work.key = Key::Wrong,
            Fault::Range => work.remote = REGION - u64::from(work.len()) / 16 * 8,
            Fault::RegionRight => {
                work.key = Key::Private;
                work.remote %= PRIVATE / 8;
                work.remote &= !7;
            }
            Fault::Stale => {
                work.key = Key::Window(self.bound - 1);
            }
            Fault::QpRight => {}
            Fault::TooLong => {
                let len = u32::try_from(self.rng.below(work.len().into())).unwrap_or(0);
                let off = self.slot(0) * SLOT;
                work.recv = Some(self.parts(off, len));
            }
            Fault::NoReceive => work.recv = None,
            Fault::OwnData => work.parts = vec![beyond(work.len())],
            Fault::Buffer => work.recv = Some(vec![beyond(work.len() + 9)]),
        }
        work
    }
}

/// A part that ends beyond the region.
fn beyond(len: u32) -> Part {
    Part {
        off: REGION - 4,
        len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_program() {
        for seed in 0..200 {
            let kind = Kind::Connected(Service::Rc);
            let one = program(seed, kind, true, false);
            assert_eq!(one, program(seed, kind, true, false));
            assert!(one.len() > 0);
            assert_eq!(
                one.work().filter(|w| w.bad).count(),
                usize::from(one.fault.is_some())
            );
        }
    }

    #[test]
    fn what_is_good_stays_inside() {
        for seed in 0..500 {
            let kind = Kind::Connected(Service::Rc);
            for work in program(seed, kind, true, false).work().filter(|w| !w.bad) {
                let parts = work.parts.iter().chain(work.recv.iter().flatten());
                for part in parts {
                    assert!(part.off + u64::from(part.len) <= REGION, "{seed}: {work:?}");
                    assert!(
                        part.len == 0 || slot(part.off) == slot(part.off + u64::from(part.len) - 1)
                    );
                }
                assert!(work.remote + u64::from(work.len()) <= REGION);
            }
        }
    }
}
