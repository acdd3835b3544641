//! Regions by key.
use super::*;

const PD: Pd = Pd(1);

fn range(region: &Region, offset: u64, len: u64) -> Range<'_> {
    Range {
        region,
        offset,
        len,
    }
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
    assert_eq!(table.deregister(mr.lkey), Ok(()));
    let unknown = Err(DeregError::Unknown(mr.lkey));
    assert_eq!(table.deregister(mr.lkey), unknown);
    assert_eq!(table.read(&grant, 0, &mut [0]), Err(Revoked));
    let again = Region::anonymous(1000).unwrap();
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
