//! Queue pairs by number.
//!
//! A QPN is a slot index in its low 18 bits and a generation above: packets for a destroyed QP
//! miss the one that took its place.

use xroce_proto::qp::{CreateError, QP_SIZE, Qp, QpInit};
use xroce_proto::time::Instant;
use xroce_wire::newtypes::{Gid, Qpn};
use xroce_wire::template::Lower;

use crate::paths::IcmpSeen;

const INDEX_BITS: u32 = 18;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const GENERATIONS: u32 = 1 << (24 - INDEX_BITS);
/// QPNs 0 ..= 16 are special or by custom unused (rxe starts at 17).
const FIRST_INDEX: u32 = 17;

/// Queue pairs, at most.
pub(crate) const QPS_MAX: u32 = INDEX_MASK - FIRST_INDEX + 1;

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
    free: Vec<u32>,
}

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
        let slot = &mut self.slots[index as usize];
        let qpn = Qpn::new(slot.generation << INDEX_BITS | (index + FIRST_INDEX));
        let qp = Qp::new(qpn, init, lower)?;
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

    fn claim_slot(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let index = u32::try_from(self.slots.len()).ok()?;
        if index + FIRST_INDEX > INDEX_MASK {
            return None;
        }
        self.slots.push(Slot {
            generation: 0,
            qpn: NOBODY,
            entry: None,
        });
        Some(index)
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

    /// Removes a QP; its number is not used again for 63 lives of the slot.
    pub(crate) fn destroy(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && slot.entry.take().is_some()
        {
            slot.qpn = NOBODY;
            slot.generation = (slot.generation + 1) % GENERATIONS;
            // The oldest free slot is used last, to keep numbers fresh as long as possible.
            self.free.insert(0, index);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
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

    #[test]
    fn case_46_a_number_comes_back_after_all_others_of_its_slot() {
        let mut table = QpTable::default();
        let mut init = QpInit::rc(Pd(1), Cq(0), Cq(0));
        (init.max_send_wr, init.max_recv_wr) = (1, 1);
        let mut seen = HashSet::new();
        for _ in 0..GENERATIONS {
            let qpn = table.create(init, Lower::Udp).unwrap().unwrap();
            assert!(seen.insert(qpn), "{qpn:?} comes back early");
            let index = table.find(qpn).unwrap();
            assert_eq!(index, 0, "the slot is used again");
            table.destroy(index);
            assert!(seen.iter().all(|&old| table.find(old).is_none()));
        }
        let qpn = table.create(init, Lower::Udp).unwrap().unwrap();
        assert!(!seen.insert(qpn));
        // Numbers that are special never name one.
        for special in [0, 1, 0xff_ffff] {
            assert_eq!(table.find(Qpn::new(special)), None);
        }
    }
}
