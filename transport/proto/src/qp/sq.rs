//! The send queue: posted work requests, with the PSNs they were given once started.
//!
//! A ring of free-running indices: `head` is the oldest uncompleted WQE, `tail` the next free
//! slot; WQEs before `started` own PSNs. Go-back-N needs nothing per packet: position, opcode
//! and addresses follow from a WQE and a PSN (rxe does the same).

use alloc::boxed::Box;
use alloc::vec;
use core::slice;

use bitflags::bitflags;
use xroce_wire::feth::Feth;
use xroce_wire::newtypes::{LKey, PathMtu, Psn, RKey, Va};
use xroce_wire::opcode::Operation;

use super::report::Request;
use super::{QpInit, atomic};
use crate::params;
use crate::wc::WcOpcode;
use crate::wr::{Data, PostError, SendFlags, SendOp, SendWr, Sge};

/// A posted send work request. 64 bytes: one line per WQE, and nothing beside it unless it has
/// several SGEs or inline bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Wqe {
    pub(super) wr_id: u64,
    /// Remote address of WRITE and READ.
    pub(super) va: Va,
    pub(super) rkey: RKey,
    /// Message length in bytes.
    pub(super) len: u32,
    /// PSN of the first packet, valid once started.
    pub(super) first_psn: Psn,
    /// PSNs the message takes, valid once started.
    pub(super) psns: u32,
    pub(super) imm: Option<[u8; 4]>,
    /// Of a FLUSH.
    pub(super) feth: Feth,
    pub(super) flags: SendFlags,
    pub(super) operation: Operation,
    pub(super) num_sge: u8,
    pub(super) traits: Traits,
    /// What it completes as.
    pub(super) wc_opcode: WcOpcode,
    /// The SGE, if it is the only one.
    only_sge: Sge,
}

const _: () = assert!(size_of::<Wqe>() == 64);

bitflags! {
    /// What the send path asks about a WQE, in one byte: a plain SEND or WRITE has none of them
    /// and is told by one comparison.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct Traits: u8 {
        /// Its bytes were taken when it was posted.
        const INLINE = 1;
        /// Nothing of it goes on the wire: BIND_MW, LOCAL_INV.
        const LOCAL = 1 << 1;
        /// A response of its own acknowledges it (R3, R6): READ, atomics, ATOMIC WRITE, FLUSH.
        const ANSWERED = 1 << 2;
        const READ = 1 << 3;
        const ATOMIC = 1 << 4;
        /// Takes the key in [`Wqe::rkey`] back: LOCAL_INV its own, SEND with invalidate the peer's.
        const INVALIDATE = 1 << 5;
        const FENCE = 1 << 6;
    }
}

/// Operands of an atomic.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Operands {
    pub(super) swap_add: u64,
    pub(super) compare: u64,
}

impl Wqe {
    /// For the report of a failure.
    pub(super) fn request(&self) -> Request {
        let names_memory =
            self.operation != Operation::Send || self.traits.contains(Traits::INVALIDATE);
        Request {
            operation: self.operation,
            psn: self.first_psn,
            rkey: names_memory.then_some(self.rkey),
            va: self.va,
            len: self.len,
        }
    }

    const EMPTY: Self = Self {
        wr_id: 0,
        va: Va::new(0),
        rkey: RKey::new(0),
        len: 0,
        first_psn: Psn::new(0),
        psns: 0,
        imm: None,
        feth: Feth {
            placement: 0,
            selectivity: 0,
        },
        flags: SendFlags::empty(),
        operation: Operation::Send,
        num_sge: 0,
        traits: Traits::empty(),
        wc_opcode: WcOpcode::Send,
        only_sge: NO_SGE,
    };

    #[inline]
    pub(super) fn is_read(&self) -> bool {
        self.traits.contains(Traits::READ)
    }

    /// Whether nothing of it goes on the wire.
    #[inline]
    pub(super) fn is_local(&self) -> bool {
        self.traits.contains(Traits::LOCAL)
    }

    #[inline]
    pub(super) fn is_atomic(&self) -> bool {
        self.traits.contains(Traits::ATOMIC)
    }

    /// Whether only a response of its own acknowledges it.
    #[inline]
    pub(super) fn has_response(&self) -> bool {
        self.traits.contains(Traits::ANSWERED)
    }

    /// Whether all bytes of the message are in one SGE.
    #[inline(always)]
    pub(super) fn is_one_piece(&self) -> bool {
        self.num_sge == 1
    }

    /// That SGE.
    #[inline(always)]
    pub(super) fn only_sge(&self) -> &[Sge] {
        slice::from_ref(&self.only_sge)
    }

    /// The SGE, if it is the only one, and where in it a byte of the message is.
    #[inline(always)]
    pub(super) fn piece(&self, offset: u64) -> Option<(&Sge, u32)> {
        if self.num_sge != 1 {
            return None;
        }
        Some((&self.only_sge, u32::try_from(offset).ok()?))
    }

    /// Makes it another operation than the plain one it was pushed as.
    pub(super) fn turn_into(&mut self, operation: Operation, wc_opcode: WcOpcode) {
        self.operation = operation;
        self.wc_opcode = wc_opcode;
        self.traits |= operation_traits(operation);
    }

    /// Whether its last packet carries the solicited event bit: only what takes a receive of the
    /// peer may (W19).
    #[inline]
    pub(super) fn is_solicited(&self) -> bool {
        self.flags.contains(SendFlags::SOLICITED)
            && (self.operation == Operation::Send || self.imm.is_some())
    }

    /// PSNs it takes. The length of a FLUSH is not that of a message.
    #[inline]
    pub(super) fn psns_at(&self, mtu: PathMtu) -> u32 {
        if self.operation == Operation::Flush {
            1
        } else {
            mtu.packets(self.len)
        }
    }
}

fn operation_traits(operation: Operation) -> Traits {
    let mut traits = Traits::empty();
    traits.set(Traits::ANSWERED, atomic::has_response(operation));
    traits.set(Traits::READ, operation == Operation::ReadRequest);
    let is_atomic = matches!(operation, Operation::CmpSwap | Operation::FetchAdd);
    traits.set(Traits::ATOMIC, is_atomic);
    traits
}

/// Ring of [`Wqe`]s with their SGEs and inline bytes beside it.
#[derive(Debug)]
pub(super) struct SendQueue {
    wqes: Box<[Wqe]>,
    /// Of work requests with several.
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    /// Of atomics; they do not fit beside an SGE.
    operands: Box<[Operands]>,
    depth: u32,
    max_sge: u8,
    max_inline: u32,
    pub(super) head: u32,
    pub(super) started: u32,
    pub(super) tail: u32,
}

impl SendQueue {
    pub(super) fn new(init: &QpInit) -> Self {
        let slots = init.max_send_wr.next_power_of_two() as usize;
        let max_sge = usize::from(init.max_send_sge);
        Self {
            wqes: vec![Wqe::EMPTY; slots].into(),
            sges: vec![Sge::default(); slots * max_sge].into(),
            inline: vec![0; slots * init.max_inline as usize].into(),
            operands: vec![Operands::default(); slots].into(),
            depth: init.max_send_wr,
            max_sge: init.max_send_sge,
            max_inline: init.max_inline,
            head: 0,
            started: 0,
            tail: 0,
        }
    }

    /// Work requests posted and not completed.
    pub(super) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        index as usize & (self.wqes.len() - 1)
    }

    #[inline]
    pub(super) fn wqe(&self, index: u32) -> &Wqe {
        &self.wqes[self.slot(index)]
    }

    #[inline]
    pub(super) fn wqe_mut(&mut self, index: u32) -> &mut Wqe {
        let slot = self.slot(index);
        &mut self.wqes[slot]
    }

    #[inline(always)]
    pub(super) fn sges(&self, index: u32) -> &[Sge] {
        let slot = self.slot(index);
        let wqe = &self.wqes[slot];
        if wqe.num_sge == 1 {
            return slice::from_ref(&wqe.only_sge);
        }
        let first = slot * usize::from(self.max_sge);
        &self.sges[first..first + usize::from(wqe.num_sge)]
    }

    /// Inline bytes `offset .. offset + len` of the message.
    #[inline]
    pub(super) fn inline(&self, index: u32, offset: usize, len: usize) -> &[u8] {
        let first = self.slot(index) * self.max_inline as usize + offset;
        &self.inline[first..first + len]
    }

    /// Takes a work request in, or leaves the queue as it was.
    #[inline]
    pub(super) fn push(&mut self, wr: &SendWr<'_>, mtu: PathMtu) -> Result<(), PostError> {
        if self.len() >= self.depth {
            return Err(PostError::QueueFull { depth: self.depth });
        }
        let none = (Va::new(0), RKey::new(0));
        let (operation, (va, rkey), imm) = match wr.op {
            SendOp::Send => (Operation::Send, none, None),
            SendOp::SendImm(imm) => (Operation::Send, none, Some(imm)),
            SendOp::Write { va, rkey } => (Operation::Write, (va, rkey), None),
            SendOp::WriteImm { va, rkey, imm } => (Operation::Write, (va, rkey), Some(imm)),
            SendOp::Read { va, rkey } => (Operation::ReadRequest, (va, rkey), None),
            SendOp::BindMw { rkey, bind } => return self.push_bind(wr, mtu, rkey, &bind),
            _ => return self.push_rare(wr, mtu),
        };
        let slot = self.slot(self.tail);
        let mut only_sge = NO_SGE;
        let (mut traits, wc_opcode) = match operation {
            Operation::ReadRequest => (READ, WcOpcode::RdmaRead),
            Operation::Write => (Traits::empty(), WcOpcode::RdmaWrite),
            _ => (Traits::empty(), WcOpcode::Send),
        };
        let (num_sge, len) = match wr.data {
            Data::Sges(&[sge]) => {
                only_sge = sge;
                (1, u64::from(sge.len))
            }
            Data::Sges(sges) => (self.store_sges(slot, sges)?, total(sges)),
            Data::Inline(_) if operation == Operation::ReadRequest => {
                return Err(PostError::InlineRead);
            }
            Data::Inline(parts) => {
                traits |= Traits::INLINE;
                (0, self.store_inline(slot, parts)?)
            }
        };
        traits.set(Traits::FENCE, wr.flags.contains(SendFlags::FENCE));
        let max = message_len_max(mtu);
        let len = match u32::try_from(len) {
            Ok(short) if len <= max => short,
            _ => return Err(PostError::MessageTooLong { given: len, max }),
        };
        self.wqes[slot] = Wqe {
            wr_id: wr.wr_id,
            va,
            rkey,
            len,
            imm,
            flags: wr.flags,
            operation,
            num_sge,
            traits,
            wc_opcode,
            only_sge,
            ..Wqe::EMPTY
        };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    fn store_sges(&mut self, slot: usize, sges: &[Sge]) -> Result<u8, PostError> {
        let num_sge = u8::try_from(sges.len()).unwrap_or(u8::MAX);
        if num_sge > self.max_sge {
            return Err(PostError::TooManySges {
                given: sges.len(),
                max: self.max_sge,
            });
        }
        let first = slot * usize::from(self.max_sge);
        self.sges[first..first + sges.len()].copy_from_slice(sges);
        Ok(num_sge)
    }

    fn store_inline(&mut self, slot: usize, parts: &[&[u8]]) -> Result<u64, PostError> {
        let given: u64 = parts.iter().map(|p| p.len() as u64).sum();
        if given > u64::from(self.max_inline) {
            return Err(PostError::InlineTooLong {
                given,
                max: self.max_inline,
            });
        }
        let mut at = slot * self.max_inline as usize;
        for part in parts {
            self.inline[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(given)
    }

    #[inline]
    pub(super) fn operands(&self, index: u32) -> Operands {
        self.operands[self.slot(index)]
    }

    /// The WQE pushed last, to be completed by what is rare.
    pub(super) fn last_mut(&mut self) -> (&mut Wqe, &mut Operands) {
        let slot = self.slot(self.tail.wrapping_sub(1));
        (&mut self.wqes[slot], &mut self.operands[slot])
    }

    /// Index of the started WQE that owns `psn`, if one does. They are in the order of their PSNs.
    pub(super) fn find(&self, psn: Psn) -> Option<u32> {
        // How many begin at or before it.
        let (mut low, mut high) = (0, self.started.wrapping_sub(self.head));
        while low < high {
            let middle = low + (high - low) / 2;
            let first = self.wqe(self.head.wrapping_add(middle)).first_psn;
            if psn.is_before(first) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let index = self.head.wrapping_add(low.checked_sub(1)?);
        let wqe = self.wqe(index);
        psn.is_within(wqe.first_psn, wqe.psns).then_some(index)
    }

    /// Forgets everything without completing it (RESET).
    pub(super) fn clear(&mut self) {
        self.head = 0;
        self.started = 0;
        self.tail = 0;
    }
}

/// What a READ is.
const READ: Traits = Traits::READ.union(Traits::ANSWERED);

/// Fills the place of an SGE that is not there.
pub(super) const NO_SGE: Sge = Sge {
    lkey: LKey::new(0),
    va: Va::new(0),
    len: 0,
};

/// Sum of lengths; cannot overflow: at most 32 SGEs of 32 bits.
pub(super) fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|s| u64::from(s.len)).sum()
}

/// Longest message at a path MTU: 2^31, and few enough packets for the PSN space.
pub(super) const fn message_len_max(mtu: PathMtu) -> u64 {
    let by_psns = (params::OUTSTANDING_PSNS_MAX as u64) << mtu.shift();
    if by_psns < params::MESSAGE_LEN_MAX as u64 {
        by_psns
    } else {
        params::MESSAGE_LEN_MAX as u64
    }
}
