//! Memory regions by key: the check behind every access of the data path.
//!
//! A key is an index in its upper 24 bits and a changing byte below: a stale key misses. L_Key
//! and R_Key are the same number; a region without remote rights has R_Key 0.

use xroce_proto::memory::{Access, Grant, KeyError, Memory, Pd, Revoked};
use xroce_shm::Region;
use xroce_wire::newtypes::{LKey, Qpn, RKey, Va};

/// Regions, at most: the index has 24 bits.
const REGIONS_MAX: usize = 1 << 24;

/// A registered memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mr {
    /// Key for own work requests.
    pub lkey: LKey,
    /// Key for the peer; 0 without remote rights.
    pub rkey: RKey,
    /// Address of the first byte, in the address space of both keys.
    pub va: Va,
    /// Bytes.
    pub len: u64,
}

/// Why a region cannot be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegError {
    /// The range is empty or not inside the region.
    #[error("{len} bytes at offset {offset} are not inside a region of {size} bytes")]
    Range {
        /// Offset given.
        offset: u64,
        /// Length given.
        len: u64,
        /// Size of the region.
        size: u64,
    },
    /// Remote write or atomic without local write (K2).
    #[error("access {0:?} is not possible: remote write and atomic need LOCAL_WRITE")]
    Access(Access),
    /// No such protection domain.
    #[error("protection domain {0:?} does not exist")]
    Pd(Pd),
    /// All indices are taken.
    #[error("{REGIONS_MAX} memory regions are registered, the limit")]
    Full,
}

#[derive(Debug)]
struct Entry {
    region: Region,
    /// Where in `region` it starts.
    offset: u64,
    va: u64,
    len: u64,
    pd: Pd,
    access: Access,
}

#[derive(Debug, Default)]
struct Slot {
    /// Counts registrations; its low byte is the low byte of the key.
    generation: u32,
    entry: Option<Entry>,
}

/// All regions of an engine.
#[derive(Debug, Default)]
pub(crate) struct MrTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl MrTable {
    pub(crate) fn register(
        &mut self,
        pd: Pd,
        region: &Region,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr, RegError> {
        let size = region.len() as u64;
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(RegError::Range { offset, len, size });
        }
        if !access.is_registrable() {
            return Err(RegError::Access(access));
        }
        let va = if access.contains(Access::ZERO_BASED) {
            0
        } else {
            region.address() + offset
        };
        let index = self.claim_slot()?;
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.entry = Some(Entry {
            region: region.clone(),
            offset,
            va,
            len,
            pd,
            access,
        });
        let key = index << 8 | (slot.generation & 0xff);
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let rkey = if access.intersects(remote) { key } else { 0 };
        Ok(Mr {
            lkey: LKey::new(key),
            rkey: RKey::new(rkey),
            va: Va::new(va),
            len,
        })
    }

    /// Index 0 stays unused, so that key 0 never names a region.
    fn claim_slot(&mut self) -> Result<u32, RegError> {
        if self.slots.is_empty() {
            self.slots.push(Slot::default());
        }
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        if self.slots.len() >= REGIONS_MAX {
            return Err(RegError::Full);
        }
        self.slots.push(Slot::default());
        self.free.reserve(1);
        u32::try_from(self.slots.len() - 1).map_err(|_| RegError::Full)
    }

    /// Takes a region back; grants given for it are worth nothing from now on.
    pub(crate) fn deregister(&mut self, key: LKey) -> bool {
        let index = key.value() >> 8;
        match self.slots.get_mut(index as usize) {
            Some(slot) if slot.entry.is_some() && slot.generation & 0xff == key.value() & 0xff => {
                slot.entry = None;
                self.free.push(index);
                true
            }
            _ => false,
        }
    }

    #[inline(always)]
    fn check(&self, pd: Pd, key: u32, va: Va, len: u32, need: Access) -> Result<Grant, KeyError> {
        let index = key >> 8;
        let slot = self.slots.get(index as usize).ok_or(KeyError::Unknown)?;
        let entry = slot.entry.as_ref().ok_or(KeyError::Unknown)?;
        if slot.generation & 0xff != key & 0xff {
            return Err(KeyError::Unknown);
        }
        if entry.pd != pd {
            return Err(KeyError::Pd);
        }
        if !entry.access.contains(need) {
            return Err(KeyError::Rights);
        }
        let within = va.value().checked_sub(entry.va).ok_or(KeyError::Range)?;
        let end = within.checked_add(u64::from(len)).ok_or(KeyError::Range)?;
        if end > entry.len {
            return Err(KeyError::Range);
        }
        Ok(Grant::issue(
            index,
            slot.generation,
            entry.offset + within,
            len,
        ))
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
        self.check(pd, key.value(), va, len, need)
    }

    #[inline]
    fn check_remote(
        &self,
        pd: Pd,
        _qpn: Qpn,
        key: RKey,
        va: Va,
        len: u32,
        need: Access,
    ) -> Result<Grant, KeyError> {
        self.check(pd, key.value(), va, len, need)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: Pd = Pd(1);

    fn table() -> (MrTable, Mr) {
        let mut table = MrTable::default();
        let region = Region::anonymous(1000).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = table.register(PD, &region, 100, 500, access).unwrap();
        (table, mr)
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        let (table, mr) = table();
        let check = |va, len| {
            table.check_remote(
                PD,
                Qpn::new(2),
                mr.rkey,
                Va::new(va),
                len,
                Access::REMOTE_WRITE,
            )
        };
        let va = mr.va.value();
        assert!(check(va, 500).is_ok());
        assert!(check(va + 500, 0).is_ok());
        for (va, len) in [
            (va, 501),
            (va - 1, 1),
            (va + 500, 1),
            (u64::MAX - 3, 8),
            (u64::MAX, u32::MAX),
            (0, u32::MAX),
        ] {
            assert_eq!(check(va, len), Err(KeyError::Range), "{va:#x} {len}");
        }
    }

    #[test]
    fn keys_rights_and_domains() {
        let (table, mr) = table();
        let check = |pd, key, need| table.check_local(pd, key, mr.va, 1, need);
        assert_eq!(check(Pd(2), mr.lkey, Access::empty()), Err(KeyError::Pd));
        assert_eq!(
            check(PD, mr.lkey, Access::REMOTE_READ),
            Err(KeyError::Rights)
        );
        for key in [0, mr.lkey.value() ^ 1, mr.lkey.value() + 0x100, u32::MAX] {
            assert_eq!(
                check(PD, LKey::new(key), Access::empty()),
                Err(KeyError::Unknown)
            );
        }
    }

    #[test]
    fn a_grant_dies_with_its_region() {
        let (mut table, mr) = table();
        let grant = table
            .check_local(PD, mr.lkey, mr.va, 10, Access::LOCAL_WRITE)
            .unwrap();
        table.write(&grant, 0, b"0123456789").unwrap();
        assert_eq!(table.write(&grant, 1, b"0123456789"), Err(Revoked));
        assert!(table.deregister(mr.lkey));
        assert!(!table.deregister(mr.lkey));
        assert_eq!(table.read(&grant, 0, &mut [0]), Err(Revoked));
        let again = Region::anonymous(1000).unwrap();
        let mr2 = table
            .register(PD, &again, 0, 1000, Access::LOCAL_WRITE)
            .unwrap();
        assert_eq!(
            mr2.lkey.value() >> 8,
            mr.lkey.value() >> 8,
            "the slot is used again"
        );
        assert_ne!(mr2.lkey, mr.lkey);
        assert_eq!(mr2.rkey, RKey::new(0));
        assert_eq!(table.read(&grant, 0, &mut [0]), Err(Revoked));
    }

    #[test]
    fn what_cannot_be_registered() {
        let mut table = MrTable::default();
        let region = Region::anonymous(100).unwrap();
        let mut reg = |offset, len, access| table.register(PD, &region, offset, len, access);
        assert!(matches!(
            reg(0, 101, Access::empty()),
            Err(RegError::Range { .. })
        ));
        assert!(matches!(
            reg(0, 0, Access::empty()),
            Err(RegError::Range { .. })
        ));
        assert!(matches!(
            reg(u64::MAX, 2, Access::empty()),
            Err(RegError::Range { .. })
        ));
        assert!(matches!(
            reg(0, 1, Access::REMOTE_WRITE),
            Err(RegError::Access(_))
        ));
        let zero_based = reg(10, 5, Access::ZERO_BASED).unwrap();
        assert_eq!(zero_based.va, Va::new(0));
    }
}
