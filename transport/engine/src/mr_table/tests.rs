//! Regions by key.
use super::*;
use xroce_api::{DeregError, Mr, Range, RegError, Rereg};

const PD: Pd = Pd(1);

fn range(region: &Region, offset: u64, len: u64) -> Range<'_> {
    Range {
        region,
        offset,
        len,
        iova: None,
    }
}

fn register(
    table: &mut MrTable,
    region: &Region,
    offset: u64,
    len: u64,
    access: Access,
) -> Result<Mr, RegError> {
    table.register(PD, &range(region, offset, len), access)
}

fn table() -> (MrTable, Mr) {
    let mut table = MrTable::default();
    let region = Region::anonymous(1000).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = table
        .register(PD, &range(&region, 100, 500), access)
        .unwrap();
    (table, mr)
}

/// Rule K4.
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

/// Rules K1, K4.
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
    assert_eq!(table.deregister(mr.lkey), Ok(()));
    let unknown = Err(DeregError::Unknown(mr.lkey));
    assert_eq!(table.deregister(mr.lkey), unknown);
    assert_eq!(table.read(&grant, 0, &mut [0]), Err(Revoked));
    let again = Region::anonymous(1000).unwrap();
    for _ in 0..REUSE_FLOOR {
        let other = register(&mut table, &again, 0, 1000, Access::empty()).unwrap();
        assert_eq!(table.deregister(other.lkey), Ok(()));
    }
    let mr2 = table
        .register(PD, &range(&again, 0, 1000), Access::LOCAL_WRITE)
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

/// Rule K2.
#[test]
fn what_cannot_be_registered() {
    let mut table = MrTable::default();
    let region = Region::anonymous(100).unwrap();
    let mut reg = |offset, len, access| table.register(PD, &range(&region, offset, len), access);
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

#[test]
fn an_invalidated_key_is_worth_nothing() {
    let mut table = MrTable::default();
    let region = Region::anonymous(1000).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::INVALIDATE;
    let mr = register(&mut table, &region, 0, 1000, access).unwrap();
    let grant = table
        .check_local(PD, mr.lkey, mr.va, 10, Access::LOCAL_WRITE)
        .unwrap();
    let mut take = |pd, key| table.invalidate(key, Qpn::new(2), pd);
    let other = RKey::new(mr.rkey.value() ^ 1);
    assert_eq!(take(Pd(2), mr.rkey), Err(KeyError::Pd));
    assert_eq!(take(PD, other), Err(KeyError::Unknown));
    assert_eq!(take(PD, mr.rkey), Ok(()));
    assert_eq!(take(PD, mr.rkey), Err(KeyError::Unknown), "it is gone");
    let unknown = Err(KeyError::Unknown);
    let need = Access::empty();
    assert_eq!(table.check_local(PD, mr.lkey, mr.va, 1, need), unknown);
    let remote = table.check_remote(PD, Qpn::new(2), mr.rkey, mr.va, 1, need);
    assert_eq!(remote, unknown);
    assert_eq!(table.read(&grant, 0, &mut [0]), Err(Revoked));
    assert_eq!(table.write(&grant, 0, &[0]), Err(Revoked));
    assert_eq!(
        table.deregister(mr.lkey),
        Ok(()),
        "its place is taken until then"
    );
}

/// Rule K6.
#[test]
fn case_81_only_what_allows_it_is_invalidated() {
    let mut table = MrTable::default();
    let region = Region::anonymous(1000).unwrap();
    let rights = Err(KeyError::Rights);
    for access in [
        Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        // A region without remote rights has no R_Key, and its L_Key is none.
        Access::LOCAL_WRITE | Access::INVALIDATE,
    ] {
        let mr = register(&mut table, &region, 0, 1000, access).unwrap();
        let key = RKey::new(mr.lkey.value());
        assert_eq!(table.invalidate(key, Qpn::new(2), PD), rights);
    }
}

#[test]
fn atomics_need_eight_aligned_bytes() {
    let mut table = MrTable::default();
    let region = Region::anonymous(1000).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::ZERO_BASED;
    // Addresses count from 0 here, the memory from 4.
    let mr = register(&mut table, &region, 4, 100, access).unwrap();
    let mut at = |va, len| {
        let need = Access::REMOTE_ATOMIC;
        let grant = table.check_remote(PD, Qpn::new(2), mr.rkey, Va::new(va), len, need);
        table.atomic(&grant.unwrap(), AtomicOp::FetchAdd(3))
    };
    assert_eq!(at(4, 8), Ok(0));
    assert_eq!(at(4, 8), Ok(3));
    assert_eq!(at(8, 8), Err(AtomicError::Misaligned));
    assert_eq!(at(4, 7), Err(Revoked.into()));
    let mut bytes = [0; 8];
    region.read_at(8, &mut bytes).unwrap();
    assert_eq!(bytes, 6u64.to_ne_bytes());
}

/// Rule S19.
#[test]
fn flush_checks_the_range_or_the_region() {
    let mut table = MrTable::default();
    let region = Region::anonymous(1000).unwrap();
    let mr = register(&mut table, &region, 0, 100, Access::FLUSH_GLOBAL).unwrap();
    let mut flush = |key, range, need| table.flush(PD, Qpn::new(2), key, range, need);
    let need = Access::FLUSH_GLOBAL;
    assert_eq!(flush(mr.rkey, Some((mr.va, 100)), need), Ok(()));
    assert_eq!(flush(mr.rkey, None, need), Ok(()));
    let long = Some((mr.va, 101));
    assert_eq!(flush(mr.rkey, long, need), Err(KeyError::Range));
    let both = need | Access::FLUSH_PERSISTENT;
    assert_eq!(flush(mr.rkey, None, both), Err(KeyError::Rights));
    let unknown = RKey::new(mr.rkey.value() ^ 1);
    assert_eq!(flush(unknown, None, need), Err(KeyError::Unknown));
    let persistent = register(&mut table, &region, 0, 1, Access::FLUSH_PERSISTENT);
    assert!(matches!(persistent, Err(RegError::Persistent(_))));
}

#[test]
fn case_127_a_key_returns_as_late_as_it_can() {
    let mut table = MrTable::default();
    let region = Region::anonymous(1000).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::INVALIDATE;
    let mut life = |taken_back: bool| {
        let mr = register(&mut table, &region, 0, 1000, access).unwrap();
        if taken_back {
            assert_eq!(table.invalidate(mr.rkey, Qpn::new(2), PD), Ok(()));
        }
        assert_eq!(table.deregister(mr.lkey), Ok(()));
        mr.lkey
    };
    let first = life(false);
    let returns = (1..).find(|&n| life(n % 2 == 0) == first);
    assert_eq!(returns, Some((REUSE_FLOOR + 1) << 8));
}

#[test]
fn case_127_so_does_a_key_that_is_registered_anew() {
    let mut table = MrTable::default();
    let region = Region::anonymous(1000).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut mr = register(&mut table, &region, 0, 1000, access).unwrap();
    let mut seen = std::collections::HashSet::from([mr.lkey]);
    for _ in 0..66_000 {
        mr = table.reregister(mr.lkey, &Rereg::default()).unwrap();
        assert!(seen.insert(mr.lkey), "{mr:?} comes back early");
    }
    assert_eq!(table.slots.len(), REUSE_FLOOR + 3, "0, and one in use");
}
