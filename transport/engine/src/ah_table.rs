//! Address handles by number: a slot index in the low bits and a generation above, so that the
//! number of a destroyed handle misses the one that took its place.

use xroce_proto::qp::AddressHandle;

/// Handle of an address, `ibv_ah`. Means nothing in another engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ah(u32);

const INDEX_BITS: u32 = 16;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// Address handles of an engine, at most (rxe: 32767).
pub(crate) const AHS_MAX: usize = 1 << INDEX_BITS;

#[derive(Debug)]
struct Slot {
    generation: u32,
    handle: Option<Box<AddressHandle>>,
}

/// All address handles of an engine.
#[derive(Debug, Default)]
pub(crate) struct AhTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl AhTable {
    /// `None` when all numbers are taken.
    pub(crate) fn create(&mut self, handle: AddressHandle) -> Option<Ah> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() >= AHS_MAX => return None,
            None => {
                self.slots.push(Slot {
                    generation: 0,
                    handle: None,
                });
                u32::try_from(self.slots.len() - 1).ok()?
            }
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.handle = Some(Box::new(handle));
        Some(Ah(slot.generation << INDEX_BITS | index))
    }

    #[inline]
    pub(crate) fn get(&self, ah: Ah) -> Option<&AddressHandle> {
        let slot = self.slots.get((ah.0 & INDEX_MASK) as usize)?;
        if slot.generation != ah.0 >> INDEX_BITS {
            return None;
        }
        slot.handle.as_deref()
    }

    /// Whether it existed.
    pub(crate) fn destroy(&mut self, ah: Ah) -> bool {
        let index = ah.0 & INDEX_MASK;
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return false;
        };
        if slot.generation != ah.0 >> INDEX_BITS || slot.handle.take().is_none() {
            return false;
        }
        slot.generation = (slot.generation + 1) & INDEX_MASK;
        self.free.push(index);
        true
    }
}
