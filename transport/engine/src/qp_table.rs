//! Queue pairs by number.
//!
//! A QPN is a slot index in its low 18 bits and a generation above: packets for a destroyed QP
//! miss the one that took its place.

use xroce_api::IcmpSeen;
use xroce_proto::qp::{CreateError, QP_SIZE, Qp, QpInit};
use xroce_proto::time::Instant;
use xroce_wire::newtypes::{Gid, Qpn};
use xroce_wire::template::Lower;

use crate::reuse::FreeSlots;

const INDEX_BITS: u32 = 18;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const GENERATIONS: u32 = 1 << (24 - INDEX_BITS);
/// QPNs 0 ..= 16 are special or by custom unused (rxe starts at 17).
const FIRST_INDEX: u32 = 17;

/// Queue pairs, at most.
pub(crate) const QPS_MAX: u32 = INDEX_MASK - FIRST_INDEX + 1;
/// A slot is used again when so many others are free. One queue pair made again and again has
/// `(REUSE_FLOOR + 1) * GENERATIONS` numbers, a million. An empty slot is 36 bytes: 16 here, 4 in
/// the list of the free, 16 in the timer wheel; the floor costs 0.6 MB, twice that at the moment
/// a vector has doubled.
const REUSE_FLOOR: usize = 1 << 14;

/// A slot of the table.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) qp: Qp,
    /// In the engine's list of QPs that may have something to send.
    pub(crate) active: bool,
    /// Its traffic class.
    pub(crate) class: u8,
    /// When it may send a congestion notification again.
    pub(crate) next_cnp: Instant,
    /// What went wrong on the way, once something has.
    trouble: Option<Box<Trouble>>,
    /// The address its packets come from is not there any more.
    pub(crate) address_gone: bool,
}

/// What an idle queue pair holds beside its rings (D11): 1 KB.
const _: () = assert!(size_of::<Entry>() - size_of::<Qp>() + QP_SIZE <= 1024);

/// What went wrong with packets of a QP.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Trouble {
    /// Packets for this QP whose ICRC was wrong.
    pub(crate) icrc_errors: u64,
    /// Where the last of them came from.
    pub(crate) icrc_last_from: Option<Gid>,
    /// What routers and hosts said about its packets.
    pub(crate) icmp: IcmpSeen,
}

impl Entry {
    /// Nothing, if nothing went wrong.
    pub(crate) fn trouble(&self) -> Trouble {
        self.trouble.as_deref().copied().unwrap_or_default()
    }

    /// To be written to.
    #[cold]
    pub(crate) fn trouble_mut(&mut self) -> &mut Trouble {
        self.trouble.get_or_insert_default()
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    /// Number of the QP that lives here; [`NOBODY`] if none does.
    qpn: u32,
    entry: Option<Box<Entry>>,
}

/// No QPN: they have 24 bits.
const NOBODY: u32 = u32::MAX;

/// All QPs of an engine.
#[derive(Debug, Default)]
pub(crate) struct QpTable {
    slots: Vec<Slot>,
    free: FreeSlots<REUSE_FLOOR>,
}

const _: () = assert!(size_of::<Slot>() == 16);

impl QpTable {
    /// Makes a QP; `None` when all numbers are taken.
    pub(crate) fn create(
        &mut self,
        init: QpInit,
        lower: Lower,
    ) -> Result<Option<Qpn>, CreateError> {
        init.validate()?;
        let Some(index) = self.claim_slot() else {
            return Ok(None);
        };
        let qpn = self.number(index);
        let qp = Qp::new(qpn, init, lower)?;
        let slot = &mut self.slots[index as usize];
        slot.qpn = qpn.value();
        slot.entry = Some(Box::new(Entry {
            qp,
            active: false,
            class: 0,
            next_cnp: Instant::default(),
            trouble: None,
            address_gone: false,
        }));
        Ok(Some(qpn))
    }

    /// Number of the QP that lives next in a slot.
    fn number(&self, index: u32) -> Qpn {
        let generation = self.slots[index as usize].generation;
        Qpn::new(generation << INDEX_BITS | (index + FIRST_INDEX))
    }

    fn claim_slot(&mut self) -> Option<u32> {
        if let Some(index) = self.free.take(self.slots.len(), QPS_MAX as usize) {
            return Some(index);
        }
        let index = u32::try_from(self.slots.len()).ok()?;
        if index >= QPS_MAX {
            return None;
        }
        self.slots.push(Slot {
            generation: 0,
            qpn: NOBODY,
            entry: None,
        });
        self.free.reserve(self.slots.len());
        Some(index)
    }

    /// Gives a slot back, to be used again under another number.
    fn release_slot(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.qpn = NOBODY;
        slot.generation = (slot.generation + 1) % GENERATIONS;
        self.free.give(index);
    }

    /// Slot of a QP that exists.
    #[inline]
    pub(crate) fn find(&self, qpn: Qpn) -> Option<u32> {
        // Special numbers wrap to beyond the table.
        let index = (qpn.value() & INDEX_MASK).wrapping_sub(FIRST_INDEX);
        let slot = self.slots.get(index as usize)?;
        (slot.qpn == qpn.value()).then_some(index)
    }

    /// A QP that exists, with its slot.
    #[inline]
    pub(crate) fn find_mut(&mut self, qpn: Qpn) -> Option<(u32, &mut Entry)> {
        let index = (qpn.value() & INDEX_MASK).wrapping_sub(FIRST_INDEX);
        let slot = self.slots.get_mut(index as usize)?;
        if slot.qpn != qpn.value() {
            return None;
        }
        Some((index, slot.entry.as_deref_mut()?))
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Entry> {
        self.slots.get(index as usize)?.entry.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Entry> {
        self.slots.get_mut(index as usize)?.entry.as_deref_mut()
    }

    /// Removes a QP; its number is not used again for as long as there are others.
    pub(crate) fn destroy(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && slot.entry.take().is_some()
        {
            self.release_slot(index);
        }
    }

    /// Slots, most of which may be empty: every index is below.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// QPs that exist.
    pub(crate) fn living(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.slots.iter_mut().filter_map(|s| s.entry.as_deref_mut())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Entry)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(i, s)| Some((u32::try_from(i).ok()?, s.entry.as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use xroce_proto::memory::Pd;
    use xroce_proto::wc::Cq;

    use super::*;

    fn create(table: &mut QpTable) -> Qpn {
        let mut init = QpInit::rc(Pd(1), Cq(0), Cq(0));
        (init.max_send_wr, init.max_recv_wr) = (1, 1);
        table.create(init, Lower::Udp).unwrap().unwrap()
    }

    #[test]
    fn case_46_no_old_number_names_the_new_queue_pair() {
        let mut table = QpTable::default();
        let mut seen = HashSet::new();
        for _ in 0..1000 {
            let qpn = create(&mut table);
            assert!(seen.insert(qpn), "{qpn:?} comes back early");
            let index = table.find(qpn).unwrap();
            table.destroy(index);
            assert!(seen.iter().all(|&old| table.find(old).is_none()));
        }
        assert_eq!(table.living(), 0);
        // Numbers that are special never name one.
        for special in [0, 1, 0xff_ffff] {
            assert_eq!(table.find(Qpn::new(special)), None);
        }
    }

    #[test]
    fn case_127_one_queue_pair_made_66_000_times_has_66_000_numbers() {
        let mut table = QpTable::default();
        let mut seen = HashSet::new();
        for _ in 0..66_000 {
            let qpn = create(&mut table);
            assert!(seen.insert(qpn), "{qpn:?} comes back early");
            let index = table.find(qpn).unwrap();
            table.destroy(index);
        }
    }

    /// Lives of one queue pair beside `others` before its first number returns.
    fn distance(others: u32) -> u32 {
        let mut table = QpTable::default();
        for _ in 0..others {
            table.claim_slot().unwrap();
        }
        let mut life = || {
            let index = table.claim_slot()?;
            let qpn = table.number(index);
            table.release_slot(index);
            Some(qpn)
        };
        let first = life().unwrap();
        let returns = (1..).find(|_| life() == Some(first));
        returns.unwrap()
    }

    #[test]
    fn case_127_numbers_return_as_late_as_they_can() {
        let floor = u32::try_from(REUSE_FLOOR).unwrap();
        assert_eq!(distance(0), (floor + 1) * GENERATIONS);
        // With almost all slots taken the rest has to do.
        assert_eq!(distance(QPS_MAX - 3), 3 * GENERATIONS);
        assert_eq!(distance(QPS_MAX - 1), GENERATIONS);
        let mut table = QpTable::default();
        assert!((0..QPS_MAX).all(|_| table.claim_slot().is_some()));
        assert_eq!(table.claim_slot(), None);
    }
}
