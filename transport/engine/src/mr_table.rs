//! Memory regions by key: the check behind every access of the data path.
//!
//! A key is an index in its upper 24 bits and a changing byte below: a stale key misses. L_Key
//! and R_Key are the same number; a region without remote rights has R_Key 0.

use std::sync::atomic::{Ordering, fence};

use xroce_api::{DeregError, Mr, REGIONS_MAX, Range, RegError, Rereg};
use xroce_proto::memory::{
    Access, AtomicError, AtomicOp, Bind, BindError, Grant, KeyError, Memory, Pd, Revoked,
};
use xroce_proto::wr::Sge;
use xroce_shm::{AtomicAtError, Region};
use xroce_wire::icrc::Head;
use xroce_wire::newtypes::{LKey, Qpn, RKey, Va};

use crate::reuse::FreeSlots;
use crate::windows::Window;

/// A slot is used again when so many others are free. One region registered again and again has
/// `(REUSE_FLOOR + 1) * 256` keys, two million. An empty slot is below 100 bytes with its place in
/// the list of the free, the floor below 0.8 MB.
pub(crate) const REUSE_FLOOR: usize = 1 << 13;
/// What is added to the generation of a slot to end its grants without changing the next key.
pub(crate) const SAME_KEY: u32 = 1 << 8;

/// What a key stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A region, with so many windows bound to it.
    Region { windows: u32 },
    /// A region whose keys were taken back: it only waits to be deregistered.
    Invalidated,
    /// A bound window of type 1: usable through any QP of its PD.
    Window1,
    /// A bound window of type 2B: usable through the QP that bound it, and no other.
    Window2(Qpn),
}

/// Memory that a key gives access to.
#[derive(Debug)]
pub(crate) struct Entry {
    region: Region,
    /// Where in `region` it starts.
    pub(crate) offset: u64,
    /// Where its addresses start, if somebody chose.
    iova: Option<Va>,
    pub(crate) va: u64,
    pub(crate) len: u64,
    pub(crate) pd: Pd,
    pub(crate) access: Access,
    pub(crate) kind: Kind,
}

impl Entry {
    /// Whether the peer may do anything here, so that there is an R_Key.
    fn has_rkey(&self) -> bool {
        let remote = Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        self.access.intersects(remote)
    }

    /// The same memory, seen through a window.
    pub(crate) fn window(&self, within: u64, va: u64, len: u64) -> Self {
        Self {
            region: self.region.clone(),
            offset: self.offset + within,
            va,
            len,
            ..*self
        }
    }

    /// Where `va .. va + len` starts in this memory, if it is inside.
    #[inline(always)]
    pub(crate) fn locate(&self, va: Va, len: u64) -> Result<u64, KeyError> {
        let within = va.value().checked_sub(self.va).ok_or(KeyError::Range)?;
        let end = within.checked_add(len).ok_or(KeyError::Range)?;
        if end > self.len {
            return Err(KeyError::Range);
        }
        Ok(within)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Changes with every registration and bind, so that old grants are known as such. Its low
    /// byte changes with the keys made here and with nothing else, so that all 256 come by.
    pub(crate) generation: u32,
    /// The key, while there is an entry.
    pub(crate) key: u32,
    pub(crate) entry: Option<Entry>,
    /// The window that lives here, bound or not.
    pub(crate) window: Option<Box<Window>>,
}

impl Slot {
    /// A new generation and its key; never the key that was here last, whoever chose that.
    pub(crate) fn renew(&mut self, index: u32) {
        let last = self.key;
        for _ in 0..2 {
            self.generation = self.generation.wrapping_add(1);
            self.key = index << 8 | (self.generation & 0xff);
            if self.key != last {
                break;
            }
        }
    }

    /// The region here, if its key is this one.
    pub(crate) fn region_mut(&mut self, key: LKey) -> Option<&mut Entry> {
        let entry = self.entry.as_mut()?;
        let is_region = matches!(entry.kind, Kind::Region { .. } | Kind::Invalidated);
        (is_region && self.key == key.value()).then_some(entry)
    }
}

/// All regions and windows of an engine.
#[derive(Debug, Default)]
pub(crate) struct MrTable {
    pub(crate) slots: Vec<Slot>,
    pub(crate) free: FreeSlots<REUSE_FLOOR>,
}

const _: () = assert!(size_of::<Slot>() + size_of::<u32>() <= 100);

impl Entry {
    /// What a key of this memory gives access to.
    fn of(range: &Range<'_>, pd: Pd, access: Access) -> Result<Self, RegError> {
        let Range {
            region,
            offset,
            len,
            iova,
        } = *range;
        let size = region.len() as u64;
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(RegError::Range { offset, len, size });
        }
        if let Some(iova) = iova.filter(|iova| iova.checked_add(len).is_none()) {
            return Err(RegError::Iova { iova, len });
        }
        let mut entry = Self {
            region: region.clone(),
            offset,
            iova,
            va: 0,
            len,
            pd,
            access: Access::empty(),
            kind: Kind::Region { windows: 0 },
        };
        entry.set_access(access)?;
        Ok(entry)
    }

    /// Rights of a region, and with them where its addresses start.
    fn set_access(&mut self, access: Access) -> Result<(), RegError> {
        if !access.is_registrable() {
            return Err(RegError::Access(access));
        }
        if access.contains(Access::FLUSH_PERSISTENT) {
            return Err(RegError::Persistent(access));
        }
        self.access = access;
        self.va = match self.iova {
            _ if access.contains(Access::ZERO_BASED) => 0,
            Some(iova) => iova.value(),
            None => self.region.address() + self.offset,
        };
        Ok(())
    }
}

impl MrTable {
    pub(crate) fn register(
        &mut self,
        pd: Pd,
        range: &Range<'_>,
        access: Access,
    ) -> Result<Mr, RegError> {
        let entry = Entry::of(range, pd, access)?;
        let index = self.claim_slot()?;
        Ok(self.install(index, entry))
    }

    /// Puts a region into a slot under a new key.
    fn install(&mut self, index: u32, entry: Entry) -> Mr {
        let slot = &mut self.slots[index as usize];
        slot.renew(index);
        let rkey = if entry.has_rkey() { slot.key } else { 0 };
        let mr = Mr {
            lkey: LKey::new(slot.key),
            rkey: RKey::new(rkey),
            va: Va::new(entry.va),
            len: entry.len,
        };
        slot.entry = Some(entry);
        mr
    }

    /// Changes rights, PD or memory of a region. Old keys and grants are worth nothing from now
    /// on, as after a deregistration.
    pub(crate) fn reregister(&mut self, key: LKey, change: &Rereg<'_>) -> Result<Mr, DeregError> {
        let old = self.idle_region(key)?;
        let pd = change.pd.unwrap_or(old.pd);
        let access = change.access.unwrap_or(old.access);
        let entry = match &change.range {
            Some(range) => Entry::of(range, pd, access)?,
            None => {
                let range = Range {
                    region: &old.region,
                    offset: old.offset,
                    len: old.len,
                    iova: old.iova,
                };
                Entry::of(&range, pd, access)?
            }
        };
        let old = key.value() >> 8;
        // Another slot, so that the old keys stay unused; with none left its own has to do.
        let Ok(index) = self.claim_slot() else {
            return Ok(self.install(old, entry));
        };
        self.slots[old as usize].entry = None;
        self.free.give(old);
        Ok(self.install(index, entry))
    }

    /// Index 0 stays unused, so that key 0 never names a region.
    pub(crate) fn claim_slot(&mut self) -> Result<u32, RegError> {
        if self.slots.is_empty() {
            self.slots.push(Slot::default());
        }
        if let Some(index) = self.free.take(self.slots.len(), REGIONS_MAX) {
            return Ok(index);
        }
        if self.slots.len() >= REGIONS_MAX {
            return Err(RegError::Full);
        }
        self.slots.push(Slot::default());
        self.free.reserve(self.slots.len());
        u32::try_from(self.slots.len() - 1).map_err(|_| RegError::Full)
    }

    /// The region of this key, if no window is bound to it.
    fn idle_region(&mut self, key: LKey) -> Result<&mut Entry, DeregError> {
        let slot = self.slots.get_mut((key.value() >> 8) as usize);
        let entry = slot.and_then(|slot| slot.region_mut(key));
        let entry = entry.ok_or(DeregError::Unknown(key))?;
        match entry.kind {
            Kind::Region { windows: 0 } | Kind::Invalidated => Ok(entry),
            Kind::Region { windows } => Err(DeregError::Windows(windows)),
            _ => Err(DeregError::Unknown(key)),
        }
    }

    /// Takes a region back; grants given for it are worth nothing from now on.
    pub(crate) fn deregister(&mut self, key: LKey) -> Result<(), DeregError> {
        self.idle_region(key)?;
        let index = key.value() >> 8;
        self.slots[index as usize].entry = None;
        self.free.give(index);
        Ok(())
    }

    /// Takes the keys of a region back, if it is meant for that, has an R_Key (case 81) and
    /// no window is bound to it (case 82).
    fn invalidate_region(&mut self, pd: Pd, key: RKey) -> Result<(), KeyError> {
        let slot = self.slots.get_mut((key.value() >> 8) as usize);
        let slot = slot.ok_or(KeyError::Unknown)?;
        let entry = slot.region_mut(LKey::new(key.value()));
        let entry = entry.ok_or(KeyError::Unknown)?;
        let Kind::Region { windows } = entry.kind else {
            return Err(KeyError::Unknown);
        };
        if entry.pd != pd {
            return Err(KeyError::Pd);
        }
        if !entry.access.contains(Access::INVALIDATE) || !entry.has_rkey() || windows != 0 {
            return Err(KeyError::Rights);
        }
        entry.kind = Kind::Invalidated;
        // No window can be bound to it any more, and grants are of the past.
        entry.access = Access::empty();
        slot.generation = slot.generation.wrapping_add(SAME_KEY);
        Ok(())
    }

    /// Every check of K4; `usable` says whether keys of this kind may be used so. Gives where in
    /// the memory of the entry the range starts.
    #[inline(always)]
    fn find(
        &self,
        pd: Pd,
        key: u32,
        (va, len): (Va, u32),
        need: Access,
        usable: impl Fn(Kind) -> bool,
    ) -> Result<(&Slot, &Entry, u64), KeyError> {
        let slot = self.slots.get((key >> 8) as usize);
        let slot = slot.ok_or(KeyError::Unknown)?;
        let entry = slot.entry.as_ref().ok_or(KeyError::Unknown)?;
        if slot.key != key || !usable(entry.kind) {
            return Err(KeyError::Unknown);
        }
        if entry.pd != pd {
            return Err(KeyError::Pd);
        }
        if !entry.access.contains(need) {
            return Err(KeyError::Rights);
        }
        let within = entry.locate(va, len.into())?;
        Ok((slot, entry, within))
    }

    #[inline(always)]
    fn check(
        &self,
        pd: Pd,
        key: u32,
        range: (Va, u32),
        need: Access,
        usable: impl Fn(Kind) -> bool,
    ) -> Result<Grant, KeyError> {
        let (slot, entry, within) = self.find(pd, key, range, need, usable)?;
        let at = entry.offset + within;
        Ok(Grant::issue(key >> 8, slot.generation, at, range.1))
    }

    /// The region of an SGE and where in it `len` bytes at `offset` of the SGE are.
    #[inline(always)]
    fn piece(
        &self,
        pd: Pd,
        sge: &Sge,
        offset: u32,
        len: usize,
        need: Access,
    ) -> Result<(&Region, u64), KeyError> {
        let range = (sge.va, sge.len);
        let (_, entry, within) = self.find(pd, sge.lkey.value(), range, need, is_region)?;
        if u64::from(offset) + len as u64 > u64::from(sge.len) {
            return Err(KeyError::Range);
        }
        Ok((&entry.region, entry.offset + within + u64::from(offset)))
    }

    /// The region behind a grant and the offset in it, if both still hold.
    #[inline(always)]
    fn resolve(&self, grant: &Grant, offset: u32, len: usize) -> Result<(&Region, u64), Revoked> {
        let slot = self.slots.get(grant.region() as usize).ok_or(Revoked)?;
        let entry = slot.entry.as_ref().ok_or(Revoked)?;
        let inside = slot.generation == grant.generation()
            && u64::from(offset) + len as u64 <= u64::from(grant.len());
        if !inside {
            return Err(Revoked);
        }
        Ok((&entry.region, grant.offset() + u64::from(offset)))
    }
}

impl Memory for MrTable {
    #[inline(always)]
    fn check_local(
        &self,
        pd: Pd,
        key: LKey,
        va: Va,
        len: u32,
        need: Access,
    ) -> Result<Grant, KeyError> {
        self.check(pd, key.value(), (va, len), need, is_region)
    }

    #[inline]
    fn check_remote(
        &self,
        pd: Pd,
        qpn: Qpn,
        key: RKey,
        va: Va,
        len: u32,
        need: Access,
    ) -> Result<Grant, KeyError> {
        let through = |kind| match kind {
            Kind::Region { .. } | Kind::Window1 => true,
            Kind::Window2(bound_by) => bound_by == qpn,
            Kind::Invalidated => false,
        };
        self.check(pd, key.value(), (va, len), need, through)
    }

    fn bind_window(&mut self, pd: Pd, qpn: Qpn, rkey: RKey, bind: &Bind) -> Result<(), BindError> {
        self.bind_type2(pd, qpn, rkey, bind)
    }

    fn invalidate(&mut self, key: RKey, qpn: Qpn, pd: Pd) -> Result<(), KeyError> {
        match self.invalidate_window(pd, qpn, key) {
            Some(done) => done,
            None => self.invalidate_region(pd, key),
        }
    }

    fn atomic(&mut self, grant: &Grant, op: AtomicOp) -> Result<u64, AtomicError> {
        let (region, at) = self.resolve(grant, 0, size_of::<u64>())?;
        let done = match op {
            AtomicOp::CompareSwap { compare, swap } => region.compare_swap_at(at, compare, swap),
            AtomicOp::FetchAdd(add) => region.fetch_add_at(at, add),
            AtomicOp::Store(value) => region.swap_at(at, value),
        };
        done.map_err(|error| match error {
            AtomicAtError::OutOfRange(_) => Revoked.into(),
            AtomicAtError::Misaligned(_) => AtomicError::Misaligned,
        })
    }

    fn flush(
        &mut self,
        pd: Pd,
        qpn: Qpn,
        key: RKey,
        range: Option<(Va, u32)>,
        need: Access,
    ) -> Result<(), KeyError> {
        let slot = self.slots.get((key.value() >> 8) as usize);
        let start = slot.and_then(|slot| slot.entry.as_ref()).map(|e| e.va);
        let (va, len) = range.unwrap_or_else(|| (Va::new(start.unwrap_or(0)), 0));
        self.check_remote(pd, qpn, key, va, len, need)?;
        // The copies are done; nothing of them may become visible after what follows.
        fence(Ordering::SeqCst);
        Ok(())
    }

    #[inline(always)]
    fn read(&self, grant: &Grant, offset: u32, dst: &mut [u8]) -> Result<(), Revoked> {
        let (region, at) = self.resolve(grant, offset, dst.len())?;
        region.read_at(at, dst).map_err(|_| Revoked)
    }

    #[inline(always)]
    fn write(&mut self, grant: &Grant, offset: u32, src: &[u8]) -> Result<(), Revoked> {
        let (region, at) = self.resolve(grant, offset, src.len())?;
        region.write_at(at, src).map_err(|_| Revoked)
    }

    #[inline(always)]
    fn gather(
        &self,
        pd: Pd,
        sge: &Sge,
        offset: u32,
        dst: &mut [u8],
        head: &Head,
    ) -> Result<u32, KeyError> {
        let (region, at) = self.piece(pd, sge, offset, dst.len(), Access::empty())?;
        region
            .read_joined(at, dst, head.blocks())
            .map_err(|_| KeyError::Unknown)
    }

    #[inline(always)]
    fn scatter(&mut self, pd: Pd, sge: &Sge, offset: u32, src: &[u8]) -> Result<(), KeyError> {
        let (region, at) = self.piece(pd, sge, offset, src.len(), Access::LOCAL_WRITE)?;
        region.write_at(at, src).map_err(|_| KeyError::Unknown)
    }
}

/// Local keys are those of regions.
#[inline(always)]
fn is_region(kind: Kind) -> bool {
    matches!(kind, Kind::Region { .. })
}

#[cfg(test)]
mod tests;
