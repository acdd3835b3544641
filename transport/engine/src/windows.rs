//! Memory windows: keys for a part of a region that are given and taken without registering
//! (K6).
//!
//! A window shares the key space of regions: while bound it is an entry of its own in the same
//! table, so that the data path knows no difference. Type 1 is bound by call and usable through
//! every QP of its PD; type 2 (2B) is bound by work request and usable through that QP only, until
//! it is invalidated.
//!
//! A window has a slot of its own. A type 2 window is bound there, because the program makes its
//! keys out of the one it was given. Each bind of a type 1 window takes a slot of the free ones
//! instead, so that its keys, too, come back as late as they can.

use xroce_api::{Mw, MwId, MwType, RegError};
use xroce_proto::memory::{Access, Bind, BindError, KeyError, Pd};
use xroce_wire::newtypes::{Qpn, RKey};

use crate::mr_table::{Kind, MrTable, SAME_KEY};

/// What a window may grant.
const RIGHTS: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::ZERO_BASED);

/// A window, bound or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    life: u32,
    pd: Pd,
    mw_type: MwType,
    /// What it is bound to.
    bound: Option<Bound>,
}

/// Where a bound window is.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// Slot of the region.
    region: u32,
    /// Slot of its key: its own, or the one this bind took.
    at: u32,
}

impl MrTable {
    pub(crate) fn alloc_window(&mut self, pd: Pd, mw_type: MwType) -> Result<Mw, RegError> {
        let index = self.claim_slot()?;
        let slot = &mut self.slots[index as usize];
        slot.renew(index);
        slot.window = Some(Box::new(Window {
            life: slot.generation,
            pd,
            mw_type,
            bound: None,
        }));
        Ok(Mw {
            id: MwId {
                index,
                life: slot.generation,
            },
            rkey: RKey::new(slot.key),
        })
    }

    fn window(&mut self, index: u32) -> Option<&mut Window> {
        self.slots.get_mut(index as usize)?.window.as_deref_mut()
    }

    fn find_window(&mut self, id: MwId) -> Result<Window, BindError> {
        let window = self.window(id.index).filter(|w| w.life == id.life);
        window.copied().ok_or(BindError::NoWindow)
    }

    /// Unbinds a window if it is bound, and forgets it.
    pub(crate) fn dealloc_window(&mut self, id: MwId) -> Result<(), BindError> {
        self.find_window(id)?;
        self.unbind(id.index);
        self.slots[id.index as usize].window = None;
        self.free.give(id.index);
        Ok(())
    }

    /// Whatever was granted through this window is worth nothing from now on.
    fn unbind(&mut self, own: u32) {
        let bound = self.window(own).and_then(|w| w.bound.take());
        let Some(Bound { region, at }) = bound else {
            return;
        };
        self.slots[at as usize].entry = None;
        if at != own {
            self.free.give(at);
        }
        if let Some(entry) = &mut self.slots[region as usize].entry
            && let Kind::Region { windows } = &mut entry.kind
        {
            *windows = windows.saturating_sub(1);
        }
    }

    /// Binds a window of type 1, bound or not, and returns its new key. A length of zero only
    /// unbinds.
    pub(crate) fn bind_type1(&mut self, id: MwId, bind: &Bind) -> Result<RKey, BindError> {
        let window = self.find_window(id)?;
        if window.mw_type != MwType::Type1 {
            return Err(BindError::Type);
        }
        if bind.len != 0 {
            self.check_bind(window.pd, bind)?;
        }
        self.unbind(id.index);
        let at = match bind.len {
            0 => id.index,
            _ => self.claim_slot().unwrap_or(id.index),
        };
        let slot = &mut self.slots[at as usize];
        slot.renew(at);
        let rkey = RKey::new(slot.key);
        if bind.len != 0 {
            self.enter(id.index, rkey, bind, Kind::Window1);
        }
        Ok(rkey)
    }

    /// BIND_MW of a QP of `pd`.
    pub(crate) fn bind_type2(
        &mut self,
        pd: Pd,
        qpn: Qpn,
        rkey: RKey,
        bind: &Bind,
    ) -> Result<(), BindError> {
        let own = rkey.value() >> 8;
        let Some(&mut window) = self.window(own) else {
            return Err(self.no_window(rkey));
        };
        if window.mw_type != MwType::Type2 {
            return Err(BindError::Type);
        }
        if window.bound.is_some() {
            return Err(BindError::Bound);
        }
        if window.pd != pd {
            return Err(BindError::Pd);
        }
        self.check_bind(pd, bind)?;
        self.enter(own, rkey, bind, Kind::Window2(qpn));
        Ok(())
    }

    /// Why a slot without a window cannot be bound: its key may be that of a type 1 window.
    fn no_window(&self, rkey: RKey) -> BindError {
        let slot = self.slots.get((rkey.value() >> 8) as usize);
        match slot.and_then(|slot| slot.entry.as_ref()) {
            Some(entry) if entry.kind == Kind::Window1 => BindError::Type,
            _ => BindError::NoWindow,
        }
    }

    /// The rules for the region behind a window (K6).
    fn check_bind(&mut self, pd: Pd, bind: &Bind) -> Result<(), BindError> {
        let excess = bind.access - RIGHTS;
        if !excess.is_empty() {
            return Err(BindError::Access(excess));
        }
        let slot = self.slots.get_mut((bind.lkey.value() >> 8) as usize);
        let entry = slot.and_then(|slot| slot.region_mut(bind.lkey));
        let entry = entry.ok_or(BindError::NoRegion)?;
        if entry.pd != pd {
            return Err(BindError::Pd);
        }
        let written = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let mut need = Access::MW_BIND;
        need.set(Access::LOCAL_WRITE, bind.access.intersects(written));
        if !entry.access.contains(need) {
            return Err(BindError::Rights);
        }
        if bind.len == 0 || entry.locate(bind.va, bind.len).is_err() {
            return Err(BindError::Range);
        }
        Ok(())
    }

    /// Makes a checked bind of the window at slot `own` true.
    fn enter(&mut self, own: u32, rkey: RKey, bind: &Bind, kind: Kind) {
        let (at, region) = (rkey.value() >> 8, bind.lkey.value() >> 8);
        let Some(entry) = self.slots[region as usize].region_mut(bind.lkey) else {
            return;
        };
        let Ok(within) = entry.locate(bind.va, bind.len) else {
            return;
        };
        if let Kind::Region { windows } = &mut entry.kind {
            *windows += 1;
        }
        let va = if bind.access.contains(Access::ZERO_BASED) {
            0
        } else {
            bind.va.value()
        };
        let mut bound = entry.window(within, va, bind.len);
        bound.access = bind.access;
        bound.kind = kind;
        let slot = &mut self.slots[at as usize];
        slot.generation = slot.generation.wrapping_add(SAME_KEY);
        slot.key = rkey.value();
        slot.entry = Some(bound);
        if let Some(window) = self.window(own) {
            window.bound = Some(Bound { region, at });
        }
    }

    /// LOCAL_INV or SEND with invalidate of a key that is a window's: only of type 2, only through
    /// the QP that bound it. `None` if the key is not one of a window.
    pub(crate) fn invalidate_window(
        &mut self,
        pd: Pd,
        qpn: Qpn,
        rkey: RKey,
    ) -> Option<Result<(), KeyError>> {
        let index = rkey.value() >> 8;
        let slot = self.slots.get(index as usize)?;
        let checked = match &slot.entry {
            Some(entry) => match entry.kind {
                Kind::Region { .. } | Kind::Invalidated => return None,
                _ if slot.key != rkey.value() => Err(KeyError::Unknown),
                _ if entry.pd != pd => Err(KeyError::Pd),
                Kind::Window2(bound_by) if bound_by == qpn => Ok(()),
                Kind::Window2(_) => Err(KeyError::Unknown),
                Kind::Window1 => Err(KeyError::Rights),
            },
            None if slot.window.is_some() => Err(KeyError::Unknown),
            None => return None,
        };
        if checked.is_ok() {
            self.unbind(index);
        }
        Some(checked)
    }
}

#[cfg(test)]
mod tests;
