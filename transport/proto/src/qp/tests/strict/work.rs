//! Work requests at random, and what is to become of them.

use proptest::prelude::*;

use super::super::*;
use super::peer::{Delivered, WORDS, WRITES, remote_memory};

/// Local memory: messages are gathered from the first part, READs and atomics go to the rest, each
/// to a place of its own.
const SOURCE: u32 = 0x4000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    Swap,
    Add,
    Store,
    Flush,
}
use Kind::{Add, Flush, Read, Send, SendImm, SendInv, Store, Swap, Write, WriteImm};

/// A work request; what an operation has no use for means nothing.
#[derive(Clone, Debug)]
pub(super) struct Wqe {
    pub(super) kind: Kind,
    /// Bytes of each SGE.
    pub(super) lens: Vec<u32>,
    /// Copied when it is posted.
    pub(super) inline: bool,
    pub(super) fence: bool,
    pub(super) signaled: bool,
    /// Posted so long after the one before it, ns.
    pub(super) pause: u64,
    /// Chooses places and values.
    pub(super) pick: u16,
}

/// Most bytes of a message.
fn lens(most: u32) -> impl Strategy<Value = Vec<u32>> {
    let len = prop_oneof![
        2 => Just(0u32),
        6 => 1..64u32,
        6 => 200..5000u32.min(most),
        2 => 5000.min(most)..=most,
    ];
    prop_oneof![
        4 => len.clone().prop_map(|len| vec![len]),
        1 => prop::collection::vec(len.prop_map(|len| len / 4), 2..=4),
    ]
}

pub(super) fn wqe() -> impl Strategy<Value = Wqe> {
    let kind = prop_oneof![
        8 => prop::sample::select(&[Send, SendImm, SendInv][..]),
        8 => prop::sample::select(&[Write, WriteImm][..]),
        4 => Just(Read),
        2 => prop::sample::select(&[Swap, Add, Store, Flush][..]),
    ];
    let pause = prop_oneof![6 => Just(0u64), 1 => 0..20_000u64, 1 => 0..3_000_000u64];
    let rare = || prop::bool::weighted(0.1);
    (
        kind,
        lens(60 * 1024),
        rare(),
        rare(),
        rare(),
        pause,
        any::<u16>(),
    )
        .prop_map(|(kind, lens, inline, fence, quiet, pause, pick)| Wqe {
            kind,
            lens,
            inline,
            fence,
            signaled: !quiet,
            pause,
            pick,
        })
}

/// What is longer than the source is several pieces.
fn pieces(len: u32) -> Vec<u32> {
    if len <= SOURCE {
        return vec![len];
    }
    let quarter = len / 4;
    vec![quarter, quarter, quarter, len - 3 * quarter]
}

impl Wqe {
    /// A WRITE of so many bytes, as plain as can be.
    pub(super) fn write(len: u32) -> Self {
        Self {
            kind: Write,
            lens: vec![len / 4; 4],
            inline: false,
            fence: false,
            signaled: true,
            pause: 0,
            pick: 0,
        }
    }

    fn len(&self) -> u32 {
        self.lens.iter().sum()
    }

    pub(super) fn takes_rd_atomic(&self) -> bool {
        matches!(self.kind, Read | Swap | Add | Store | Flush)
    }
}

/// What is expected, kept up to date with every work request that is posted.
pub(super) struct Expected {
    pub(super) memory: Vec<u8>,
    pub(super) delivered: Vec<Delivered>,
    /// `wr_id`s that complete, in order.
    pub(super) completes: Vec<u64>,
    /// Where the result of a READ or atomic goes, and what it is; by `wr_id`.
    pub(super) results: Vec<(u64, usize, Vec<u8>)>,
    next_result: usize,
}

impl Expected {
    pub(super) fn new() -> Self {
        Self {
            memory: remote_memory(),
            delivered: Vec::new(),
            completes: Vec::new(),
            results: Vec::new(),
            next_result: SOURCE as usize,
        }
    }

    /// Posts a work request, and works out what it does.
    pub(super) fn post(&mut self, t: &mut Bench, wr_id: u64, wqe: &Wqe) {
        let to_results = matches!(wqe.kind, Read | Swap | Add);
        let mut sges = Vec::new();
        for (i, &len) in self.lens(wqe).iter().enumerate() {
            let at = if to_results {
                self.next_result as u64
            } else {
                let spread = u64::from(SOURCE.saturating_sub(len)) + 1;
                (u64::from(wqe.pick) * 31 * (i as u64 + 1)) % spread
            };
            sges.push(sge(at, len));
            self.next_result += if to_results { len as usize } else { 0 };
        }
        let mut bytes = Vec::new();
        for sge in &sges {
            let at = (sge.va.value() - BASE) as usize;
            bytes.extend_from_slice(&t.mem.bytes[at..at + sge.len as usize]);
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, wqe.signaled);
        flags.set(SendFlags::FENCE, wqe.fence);
        let (first, op) = (sges.first().copied(), self.act(wqe, &bytes));
        if let (true, Some(first)) = (to_results, first) {
            let at = (first.va.value() - BASE) as usize;
            let is = self.result(wqe, &op, bytes.len());
            self.results.push((wr_id, at, is));
        }
        let parts = [&bytes[..]];
        let inlined = wqe.inline && !to_results && wqe.kind != Flush && bytes.len() <= 64;
        let data = match inlined {
            true => Data::Inline(&parts),
            false => Data::Sges(&sges),
        };
        let wr = SendWr {
            wr_id,
            op,
            flags,
            data,
        };
        t.qp.post_send(&wr, &mut t.log).unwrap();
        self.apply(&op);
        if wqe.signaled {
            self.completes.push(wr_id);
        }
    }

    /// The SGEs it gets: eight bytes for atomics, none for FLUSH; a READ never more than there is
    /// room for.
    fn lens(&self, wqe: &Wqe) -> Vec<u32> {
        let room = SIZE.saturating_sub(self.next_result + 8 * 64);
        match wqe.kind {
            Swap | Add | Store => vec![8],
            Flush => Vec::new(),
            Read => {
                let mut left = room as u32;
                let fit = |&len: &u32| {
                    let len = len.min(left);
                    left -= len;
                    len
                };
                wqe.lens.iter().map(fit).collect()
            }
            _ => wqe.lens.iter().flat_map(|&len| pieces(len)).collect(),
        }
    }

    fn act(&mut self, wqe: &Wqe, bytes: &[u8]) -> SendOp {
        let rkey = RKey::new(0x77);
        let n = u64::from(wqe.pick);
        let word = Va::new(WORDS + n % 4 * 8);
        let place = Va::new(WRITES + n % (WORDS - WRITES - u64::from(wqe.len()) + 1));
        let len = bytes.len();
        let value = n * 0x0001_0203_0405 + 1;
        let mut put = |at: u64| {
            let at = at as usize;
            self.memory[at..at + len].copy_from_slice(bytes);
        };
        match wqe.kind {
            Write | WriteImm => put(place.value()),
            Store => put(word.value()),
            _ => {}
        }
        let send = |imm, inv| Delivered::Send(bytes.to_vec(), imm, inv);
        match wqe.kind {
            Send => self.delivered.push(send(false, None)),
            SendImm => self.delivered.push(send(true, None)),
            SendInv => self.delivered.push(send(false, Some(n as u32))),
            WriteImm => self.delivered.push(Delivered::Imm(len as u32)),
            _ => {}
        }
        match wqe.kind {
            Send => SendOp::Send,
            SendImm => SendOp::SendImm([1, 2, 3, 4]),
            SendInv => SendOp::SendInv {
                rkey: RKey::new(n as u32),
            },
            Write => SendOp::Write { va: place, rkey },
            WriteImm => SendOp::WriteImm {
                va: place,
                rkey,
                imm: [4, 3, 2, 1],
            },
            Read => SendOp::Read {
                va: Va::new(n % 0x1_0000),
                rkey,
            },
            Swap => SendOp::CompareSwap {
                va: word,
                rkey,
                compare: self.word(word),
                swap: value,
            },
            Add => SendOp::FetchAdd {
                va: word,
                rkey,
                add: value,
            },
            Store => SendOp::AtomicWrite { va: word, rkey },
            Flush => SendOp::Flush {
                va: place,
                rkey,
                len: 64,
                placement: crate::wr::Placement::GLOBAL,
                whole_region: n.is_multiple_of(2),
            },
        }
    }

    fn word(&self, va: Va) -> u64 {
        let at = va.value() as usize;
        u64::from_ne_bytes(self.memory[at..at + 8].try_into().unwrap())
    }

    /// What comes back for it.
    fn result(&self, wqe: &Wqe, op: &SendOp, len: usize) -> Vec<u8> {
        match *op {
            SendOp::Read { va, .. } => {
                let at = va.value() as usize;
                self.memory[at..at + len].to_vec()
            }
            SendOp::CompareSwap { va, .. } | SendOp::FetchAdd { va, .. } => {
                self.word(va).to_ne_bytes().to_vec()
            }
            _ => unreachable!("{wqe:?}"),
        }
    }

    /// What an atomic leaves.
    fn apply(&mut self, op: &SendOp) {
        let (va, new) = match *op {
            SendOp::CompareSwap { va, swap, .. } => (va, swap),
            SendOp::FetchAdd { va, add, .. } => (va, self.word(va).wrapping_add(add)),
            _ => return,
        };
        let at = va.value() as usize;
        self.memory[at..at + 8].copy_from_slice(&new.to_ne_bytes());
    }

    /// A completion came: it is the next one, and its result is there.
    pub(super) fn check_completion(&self, t: &Bench, nth: usize, wr_id: u64) {
        assert_eq!(Some(&wr_id), self.completes.get(nth), "out of order");
        let result = self.results.iter().find(|(id, ..)| *id == wr_id);
        if let Some((_, at, bytes)) = result {
            let got = &t.mem.bytes[*at..*at + bytes.len()];
            assert!(got == &bytes[..], "work request {wr_id}: not what is there");
        }
    }
}
