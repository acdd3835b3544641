//! A program: work for two queue pairs in phases, made from a seed and small enough to read.
//!
//! Both ends have one region of [`SLOTS`] slots, and a small one without remote rights. Whatever
//! the specification leaves open is not generated: what an earlier READ or atomic still works on
//! is touched again with a fence only, and two ends that work at once have slots of their own.

use std::fmt::Write;

use crate::ends::{Op, Service};

/// Slots of the region.
pub(super) const SLOTS: u64 = 8;
/// Bytes of a slot: three packets of path MTU 1024, a byte, and the header of a datagram.
pub(super) const SLOT: u64 = 3_584;
/// Bytes of the region.
pub(super) const REGION: u64 = SLOTS * SLOT;
/// Bytes of the region without remote rights.
pub(super) const PRIVATE: u64 = 4_096;

/// What is wrong with one of the work requests, the last phase's first but for harmless ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) enum Fault {
    /// No region has the key.
    Key,
    /// The range ends beyond the region.
    Range,
    /// The region lacks the right.
    RegionRight,
    /// The queue pair lacks the right.
    QpRight,
    /// The SEND is longer than the receive.
    TooLong,
    /// There is no receive, and few tries.
    NoReceive,
    /// The requester's own data is not in its region.
    OwnData,
    /// The receive's buffer is not in the responder's region.
    Buffer,
    /// The window was taken back.
    Stale,
    /// The key to take back is that of nothing.
    Invalidate,
}

impl Fault {
    pub(super) const ALL: [Self; 10] = [
        Self::Key,
        Self::Range,
        Self::RegionRight,
        Self::QpRight,
        Self::TooLong,
        Self::NoReceive,
        Self::OwnData,
        Self::Buffer,
        Self::Stale,
        Self::Invalidate,
    ];
}

/// A part of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// Offset in the region.
    pub off: u64,
    /// Bytes.
    pub len: u32,
}

/// Which key a request names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    /// That of the region.
    Region,
    /// That of the region without rights.
    Private,
    /// None that there is.
    Wrong,
    /// That of the window bound in the bind of this number.
    Window(usize),
}

/// What a work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Job {
    /// Something on the wire, or LOCAL_INV.
    Op(Op),
    /// Binds a window to the whole region; the number of its key.
    Bind(usize),
}

/// One work request, and the receive that it takes.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Work {
    /// End that posts it.
    pub by: usize,
    /// What.
    pub job: Job,
    /// Own data.
    pub parts: Vec<Part>,
    /// Offset of the remote data.
    pub remote: u64,
    /// Remote key, or the one to take back.
    pub key: Key,
    /// Immediate data.
    pub imm: u32,
    /// Of atomics.
    pub operands: [u64; 2],
    /// Reports success.
    pub signaled: bool,
    /// Waits for READs and atomics.
    pub fence: bool,
    /// Bytes of a FLUSH.
    pub flush: u32,
    /// The receive it takes: none for those that take none, or where it is missing.
    pub recv: Option<Vec<Part>>,
    /// The one that must fail.
    pub bad: bool,
}

impl Work {
    /// Bytes of its message.
    pub(super) fn len(&self) -> u32 {
        self.parts.iter().map(|p| p.len).sum()
    }

    /// Window it needs, by number.
    fn needs(&self) -> Option<usize> {
        match self.key {
            Key::Window(n) => Some(n),
            _ => None,
        }
    }
}

/// Service of the queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Connected.
    Connected(Service),
    /// Datagrams.
    Ud,
}

/// A program.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Program {
    /// What it was made from.
    pub seed: u64,
    /// Service.
    pub kind: Kind,
    /// Path MTU, bytes.
    pub mtu: u32,
    /// What is wrong, if something is.
    pub fault: Option<Fault>,
    /// Rights of the queue pair at end 1.
    pub access: u32,
    /// Work between two waits for all completions.
    pub phases: Vec<Vec<Work>>,
}

impl Program {
    /// Work requests.
    pub(super) fn len(&self) -> usize {
        self.phases.iter().map(Vec::len).sum()
    }

    /// All work requests in the order in which they are posted.
    pub(super) fn work(&self) -> impl Iterator<Item = &Work> {
        self.phases.iter().flatten()
    }

    /// The same without one work request; `None` if others would make no sense then.
    pub(super) fn without(&self, at: usize) -> Option<Self> {
        let gone = self.work().nth(at)?;
        if let Job::Bind(n) = gone.job
            && self.work().any(|w| w.needs() == Some(n))
        {
            return None;
        }
        // A key that was taken back must not be used as if it were not.
        if matches!(gone.job, Job::Op(Op::SendInv | Op::LocalInv)) && self.has_stale(gone) {
            return None;
        }
        let mut less = self.clone();
        let mut left = at;
        for phase in &mut less.phases {
            if left < phase.len() {
                phase.remove(left);
                // What is waited for is the last one of each end.
                sign_last(phase);
                break;
            }
            left -= phase.len();
        }
        less.phases.retain(|phase| !phase.is_empty());
        if gone.bad {
            less.fault = None;
        }
        Some(less)
    }

    fn has_stale(&self, taker: &Work) -> bool {
        self.fault == Some(Fault::Stale) && self.work().any(|w| w.bad && w.key == taker.key)
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "seed {:#x}, {:?}, path MTU {}, fault {:?}, rights {:#x}\n",
            self.seed, self.kind, self.mtu, self.fault, self.access
        );
        for (number, phase) in self.phases.iter().enumerate() {
            for (n, work) in phase.iter().enumerate() {
                let what = match work.job {
                    Job::Op(op) => op.name().to_owned(),
                    Job::Bind(n) => format!("bind window {n}"),
                };
                let parts = |list: &[Part]| {
                    let texts: Vec<String> = list
                        .iter()
                        .map(|p| format!("{}+{}", p.off, p.len))
                        .collect();
                    texts.join(" ")
                };
                // Writing to a string does not fail.
                let _ = write!(text, "  {number}.{n} end {}: {what}", work.by);
                let _ = write!(text, " [{}]", parts(&work.parts));
                if matches!(work.job, Job::Op(op) if op.is_remote()) {
                    let _ = write!(text, " at {}", work.remote);
                }
                if work.key != Key::Region {
                    let _ = write!(text, " key {:?}", work.key);
                }
                if let Some(recv) = &work.recv {
                    let _ = write!(text, " into [{}]", parts(recv));
                }
                for (set, name) in [
                    (work.fence, " fence"),
                    (!work.signaled, " unsignaled"),
                    (work.bad, " BAD"),
                ] {
                    if set {
                        text += name;
                    }
                }
                text += "\n";
            }
        }
        text
    }
}

/// The last work request of each end reports success.
pub(super) fn sign_last(phase: &mut [Work]) {
    for end in 0..2 {
        if let Some(work) = phase.iter_mut().rev().find(|w| w.by == end) {
            work.signaled = true;
        }
    }
}
