//! Request packets that came before their turn: which, where they wait, and what has been said
//! about them.
//!
//! Everything is made when the queue pair becomes selective; nothing grows later. What cannot be
//! kept was not received.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use xroce_wire::ext::{SACK_BITS, SackCause, Seth};
use xroce_wire::newtypes::Psn;
use xroce_wire::packet::Packet;

use crate::recovery::{RingBits, SelectiveParams};

/// Bytes of the headers of a WRITE packet whose payload is in its place: BTH 12, METH 4, RETH 16,
/// immediate 4, pad 3, ICRC 4.
pub(super) const HEAD: usize = 43;

/// What is kept of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Kept {
    #[default]
    Nothing,
    /// The headers; so many bytes of payload are in their place.
    Placed { head_len: u8, payload_len: u16 },
    /// All of it, so many bytes in this slot.
    Stored { slot: u16, len: u16 },
}

/// The packets ahead of the expected PSN.
#[derive(Debug)]
pub(super) struct Reorder {
    /// PSNs ahead that are taken.
    range: u32,
    received: RingBits,
    /// Those of them that a SACK has told of.
    reported: RingBits,
    kept: Box<[Kept]>,
    heads: Box<[[u8; HEAD]]>,
    /// Whole packets, and the slots that are free.
    pub(super) slots: Box<[u8]>,
    slot_len: usize,
    free: Vec<u16>,
    /// Packets ahead.
    count: u32,
    /// Highest PSN ahead, valid with `count`.
    highest: Psn,
    /// The packet that came last, and whether it had come before.
    last: (Psn, bool),
    /// A SACK is owed for more than a probe.
    pub(super) urgent: bool,
    /// Probe to be answered behind all READ responses.
    pub(super) probe: Option<u16>,
}

impl Reorder {
    /// `payload_max` is the path MTU.
    pub(super) fn new(params: &SelectiveParams, payload_max: usize) -> Self {
        let slot_len = Packet::kept_len(payload_max);
        // Checked when the attribute was: at most the range.
        let slots = u16::try_from(params.store).unwrap_or(u16::MAX);
        Self {
            range: params.range,
            received: RingBits::new(params.range),
            reported: RingBits::new(params.range),
            kept: vec![Kept::Nothing; params.range as usize].into(),
            heads: vec![[0; HEAD]; params.range as usize].into(),
            slots: vec![0; usize::from(slots) * slot_len].into(),
            slot_len,
            free: (0..slots).collect(),
            count: 0,
            highest: Psn::default(),
            last: (Psn::default(), false),
            urgent: false,
            probe: None,
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.received.clear_all();
        self.reported.clear_all();
        self.kept.fill(Kept::Nothing);
        self.free.clear();
        let slots = self.slots.len() / self.slot_len;
        // As many as were made.
        self.free
            .extend(0..u16::try_from(slots).unwrap_or(u16::MAX));
        self.count = 0;
        self.urgent = false;
        self.probe = None;
    }

    fn index(&self, psn: Psn) -> usize {
        psn.value() as usize & (self.kept.len() - 1)
    }

    pub(super) fn range(&self) -> u32 {
        self.range
    }

    /// Whether nothing is ahead.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Packets ahead.
    pub(super) fn len(&self) -> u32 {
        self.count
    }

    pub(super) fn has(&self, psn: Psn) -> bool {
        self.received.get(psn.value())
    }

    /// Notes the packet that came last, for the next SACK.
    pub(super) fn came(&mut self, psn: Psn, again: bool) {
        if again {
            // Its sender does not know.
            self.reported.clear(psn.value());
        }
        self.last = (psn, again);
    }

    /// Keeps the headers of a packet whose payload is in its place.
    pub(super) fn keep_head(&mut self, pkt: &Packet<'_>) -> bool {
        let index = self.index(pkt.psn());
        let Some(head_len) = pkt.keep_head(&mut self.heads[index]) else {
            return false;
        };
        // Both are small: a head, and a payload of at most the path MTU.
        let head_len = u8::try_from(head_len).unwrap_or(0);
        let payload_len = u16::try_from(pkt.payload().len()).unwrap_or(0);
        self.note(
            pkt.psn(),
            Kept::Placed {
                head_len,
                payload_len,
            },
        );
        true
    }

    /// Keeps a whole packet; `false` if there is no room.
    pub(super) fn store(&mut self, pkt: &Packet<'_>) -> bool {
        let Some(&slot) = self.free.last() else {
            return false;
        };
        let first = usize::from(slot) * self.slot_len;
        let Some(len) = pkt.keep(&mut self.slots[first..first + self.slot_len]) else {
            return false;
        };
        self.free.pop();
        // A slot is shorter than 64 KB.
        let len = u16::try_from(len).unwrap_or(0);
        self.note(pkt.psn(), Kept::Stored { slot, len });
        true
    }

    fn note(&mut self, psn: Psn, kept: Kept) {
        let index = self.index(psn);
        self.kept[index] = kept;
        self.received.set(psn.value());
        if self.count == 0 || self.highest.is_before(psn) {
            self.highest = psn;
        }
        self.count += 1;
    }

    /// Takes out what is kept of a packet; a slot stays in use until [`Reorder::release`].
    pub(super) fn take(&mut self, psn: Psn) -> Kept {
        let index = self.index(psn);
        let kept = core::mem::take(&mut self.kept[index]);
        if kept != Kept::Nothing {
            self.received.clear(psn.value());
            self.reported.clear(psn.value());
            self.count -= 1;
        }
        kept
    }

    pub(super) fn head(&self, psn: Psn) -> &[u8; HEAD] {
        &self.heads[self.index(psn)]
    }

    /// Where the bytes of a slot are.
    pub(super) fn slot_start(&self, slot: u16) -> usize {
        usize::from(slot) * self.slot_len
    }

    pub(super) fn release(&mut self, slot: u16) {
        if self.free.len() < self.free.capacity() {
            self.free.push(slot);
        }
    }

    /// Throws away what is kept of `count` PSNs: they turned out to be no requests.
    pub(super) fn drop_range(&mut self, first: Psn, count: u32) {
        if self.is_empty() {
            return;
        }
        for i in 0..count.min(self.range) {
            if let Kept::Stored { slot, .. } = self.take(first.add(i)) {
                self.release(slot);
            }
        }
    }

    /// How far ahead of `expected` the first packet is that no SACK has told of.
    fn first_unreported(&self, expected: Psn, top: u32) -> Option<u32> {
        let mut done = 0;
        while done <= top {
            let from = expected.add(done).value();
            let bits = self.received.window(from) & !self.reported.window(from);
            if bits != 0 {
                let found = done + bits.trailing_zeros();
                return (found <= top).then_some(found);
            }
            done += SACK_BITS;
        }
        None
    }

    /// Whether there is more to tell than has been told.
    pub(super) fn has_news(&self, expected: Psn) -> bool {
        self.count != 0
            && self
                .first_unreported(expected, self.top(expected))
                .is_some()
    }

    /// How far ahead of `expected` the highest packet is.
    fn top(&self, expected: Psn) -> u32 {
        expected.distance_to(self.highest).unsigned_abs()
    }

    /// The SACK that says most: its bitmap ends at the highest packet, unless something below has
    /// not been told of yet. Then it begins there, and the rest follows.
    pub(super) fn sack(&mut self, expected: Psn, cause: SackCause) -> Seth {
        let (mut ahead, mut bitmap) = (0, 0);
        if self.count != 0 {
            let top = self.top(expected);
            let lowest = self.first_unreported(expected, top).unwrap_or(top);
            ahead = lowest.min(top.saturating_sub(SACK_BITS - 1));
            bitmap = self.received.window(expected.add(ahead).value());
            if top - ahead < SACK_BITS - 1 {
                // Bits beyond are those of PSNs a turn of the ring before.
                bitmap &= (1 << (top - ahead + 1)) - 1;
            }
            let mut rest = bitmap;
            while rest != 0 {
                let psn = expected.add(ahead + rest.trailing_zeros());
                self.reported.set(psn.value());
                rest &= rest - 1;
            }
        }
        Seth {
            cause,
            cack_psn: expected.sub(1),
            // At most 16384 / 128.
            mpr: u8::try_from(self.range / xroce_wire::ext::MPR_UNIT).unwrap_or(u8::MAX),
            // At most the range, behind the cumulative PSN.
            sack_offset: i16::try_from(ahead + 1).unwrap_or(i16::MAX),
            bitmap,
        }
    }

    /// What the next SACK is for.
    pub(super) fn cause(&self, expected: Psn) -> SackCause {
        let (psn, again) = self.last;
        let offset = expected.sub(1).distance_to(psn);
        let offset = offset.clamp(i16::MIN.into(), i16::MAX.into());
        SackCause::Packet {
            // Just clamped.
            offset: i16::try_from(offset).unwrap_or(0),
            again,
        }
    }

    /// All is told anew: a probe asks when what was told may have got lost.
    pub(super) fn tell_again(&mut self) {
        self.reported.clear_all();
    }
}
