//! Handles of objects that live in a slot: a stale one misses.
//!
//! A handle is a slot index in its low 20 bits and the number of lives the slot has had above,
//! modulo 4096.

use crate::reuse::FreeSlots;

const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
// `Cq::slot` is the index.
const _: () = assert!(xroce_proto::wc::Cq(u32::MAX).slot() == INDEX_MASK as usize);

/// Objects of a kind, at most.
pub(crate) const HANDLES_MAX: u32 = INDEX_MASK;

/// A slot is used again when so many others are free: one object made again and again has four
/// million handles. An empty slot of the largest kind is below 256 bytes, the floor 256 KB.
const REUSE_FLOOR: usize = 1 << 10;

/// No handle: the last index is never used.
const NOBODY: u32 = u32::MAX;

#[derive(Debug)]
struct Slot<T> {
    /// Handle of who lives here; [`NOBODY`] if no one does.
    handle: u32,
    /// Handle of the next to live here.
    next: u32,
    value: Option<T>,
}

/// Objects by handle, with how many queue pairs use each.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    slots: Vec<Slot<(T, u32)>>,
    free: FreeSlots<REUSE_FLOOR>,
}

/// Why an object was not removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    /// There is no such object.
    Unknown,
    /// So many queue pairs use it.
    Used(u32),
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: FreeSlots::default(),
        }
    }
}

impl<T> Handles<T> {
    /// `None` when all handles are taken.
    pub(crate) fn insert(&mut self, value: T) -> Option<u32> {
        let reused = self.free.take(self.slots.len(), HANDLES_MAX as usize);
        let index = match reused {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok()?;
                if index >= INDEX_MASK {
                    return None;
                }
                self.slots.push(Slot {
                    handle: NOBODY,
                    next: index,
                    value: None,
                });
                self.free.reserve(self.slots.len());
                index
            }
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.handle = slot.next;
        slot.value = Some((value, 0));
        Some(slot.handle)
    }

    /// Slots, most of which may be empty: every index is below.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn get(&self, handle: u32) -> Option<&T> {
        let slot = self.slots.get((handle & INDEX_MASK) as usize)?;
        if slot.handle != handle {
            return None;
        }
        slot.value.as_ref().map(|(value, _)| value)
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut((handle & INDEX_MASK) as usize)?;
        if slot.handle != handle {
            return None;
        }
        slot.value.as_mut().map(|(value, _)| value)
    }

    /// One more or one fewer queue pair uses it.
    pub(crate) fn add_users(&mut self, handle: u32, more: i32) {
        if let Some(slot) = self.slots.get_mut((handle & INDEX_MASK) as usize)
            && slot.handle == handle
            && let Some((_, users)) = &mut slot.value
        {
            *users = users.saturating_add_signed(more);
        }
    }

    /// Removes it if nobody uses it.
    pub(crate) fn remove(&mut self, handle: u32) -> Result<T, Kept> {
        let index = handle & INDEX_MASK;
        let slot = self.slots.get_mut(index as usize).ok_or(Kept::Unknown)?;
        if slot.handle != handle {
            return Err(Kept::Unknown);
        }
        match slot.value.take() {
            None => Err(Kept::Unknown),
            Some((value, 0)) => {
                slot.handle = NOBODY;
                slot.next = slot.next.wrapping_add(1 << INDEX_BITS);
                self.free.give(index);
                Ok(value)
            }
            Some((value, users)) => {
                slot.value = Some((value, users));
                Err(Kept::Used(users))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_misses_whoever_lives_there_now() {
        let mut handles = Handles::default();
        let first = handles.insert('a').unwrap();
        assert_eq!(handles.get(first), Some(&'a'));
        assert_eq!(handles.remove(first), Ok('a'));
        for _ in 0..REUSE_FLOOR {
            let other = handles.insert('c').unwrap();
            assert_eq!(handles.remove(other), Ok('c'));
        }
        let second = handles.insert('b').unwrap();
        assert_eq!(first & INDEX_MASK, second & INDEX_MASK, "the same slot");
        assert_ne!(first, second);
        assert_eq!(handles.get(first), None);
        assert_eq!(handles.get_mut(first), None);
        assert_eq!(handles.remove(first), Err(Kept::Unknown));
        assert_eq!(handles.get(second), Some(&'b'));
        assert_eq!(handles.get(u32::MAX), None);
    }

    #[test]
    fn case_127_a_handle_returns_as_late_as_it_can() {
        let mut handles = Handles::default();
        let mut life = || {
            let handle = handles.insert(()).unwrap();
            handles.remove(handle).unwrap();
            handle
        };
        let first = life();
        let returns = (1..).find(|_| life() == first);
        assert_eq!(returns, Some((REUSE_FLOOR + 1) << (32 - INDEX_BITS)));
        assert_eq!(handles.len(), REUSE_FLOOR + 1);
    }

    #[test]
    fn an_empty_slot_is_small() {
        use xroce_proto::qp::AddressHandle;
        use xroce_proto::srq::SharedReceiveQueue;
        assert!(size_of::<Slot<(SharedReceiveQueue, u32)>>() <= 256);
        assert!(size_of::<Slot<(AddressHandle, u32)>>() <= 256);
    }

    #[test]
    fn what_is_used_stays() {
        let mut handles = Handles::default();
        let it = handles.insert(5).unwrap();
        handles.add_users(it, 1);
        handles.add_users(it, 1);
        assert_eq!(handles.remove(it), Err(Kept::Used(2)));
        handles.add_users(it, -1);
        assert_eq!(handles.remove(it), Err(Kept::Used(1)));
        handles.add_users(it, -1);
        assert_eq!(handles.remove(it), Ok(5));
    }
}
