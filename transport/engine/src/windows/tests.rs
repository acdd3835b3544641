//! Windows and re-registration, one by one and against a slow model.

use proptest::prelude::*;
use xroce_api::{DeregError, Mr, MwId, MwType, Range, Rereg};
use xroce_proto::memory::{Memory, Revoked};
use xroce_shm::Region;
use xroce_wire::newtypes::{LKey, Va};

use super::*;
use crate::mr_table::REUSE_FLOOR;

const PD: Pd = Pd(1);
const OTHER: Pd = Pd(2);
const QP: Qpn = Qpn::new(0x11);
const STRANGER: Qpn = Qpn::new(0x12);
const RW: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn register(table: &mut MrTable, pd: Pd, access: Access) -> Mr {
    let region = Region::anonymous(1000).unwrap();
    let range = Range {
        region: &region,
        offset: 100,
        len: 500,
        iova: None,
    };
    table.register(pd, &range, access).unwrap()
}

fn setup() -> (MrTable, Mr) {
    let mut table = MrTable::default();
    let mr = register(&mut table, PD, Access::LOCAL_WRITE | Access::MW_BIND);
    (table, mr)
}

fn bind(mr: &Mr, offset: u64, len: u64, access: Access) -> Bind {
    Bind {
        lkey: mr.lkey,
        va: mr.va.wrapping_add(offset),
        len,
        access,
    }
}

fn remote(table: &MrTable, qpn: Qpn, key: RKey, va: Va, len: u32) -> Result<(), KeyError> {
    let need = Access::REMOTE_WRITE;
    table.check_remote(PD, qpn, key, va, len, need).map(|_| ())
}

#[test]
fn k6_type_1_is_for_every_qp_of_its_domain_and_only_its_range() {
    let (mut table, mr) = setup();
    let mw = table.alloc_window(PD, MwType::Type1).unwrap();
    let unbound = remote(&table, QP, mw.rkey, mr.va, 1);
    assert_eq!(unbound, Err(KeyError::Unknown));
    let rkey = table.bind_type1(mw.id, &bind(&mr, 50, 100, RW)).unwrap();
    let va = mr.va.wrapping_add(50);
    for qpn in [QP, STRANGER] {
        assert_eq!(remote(&table, qpn, rkey, va, 100), Ok(()));
        assert_eq!(remote(&table, qpn, rkey, va, 101), Err(KeyError::Range));
        assert_eq!(remote(&table, qpn, rkey, mr.va, 1), Err(KeyError::Range));
        // An end beyond the address space (case 24).
        let top = Va::new(u64::MAX - 3);
        assert_eq!(remote(&table, qpn, rkey, top, 8), Err(KeyError::Range));
    }
    let other_pd = table.check_remote(OTHER, QP, rkey, va, 1, RW);
    assert_eq!(other_pd, Err(KeyError::Pd));
    // A window is no local key.
    let local = table.check_local(PD, LKey::new(rkey.value()), va, 1, Access::empty());
    assert_eq!(local, Err(KeyError::Unknown));
    // The region itself gives the peer nothing.
    let region = RKey::new(mr.lkey.value());
    assert_eq!(remote(&table, QP, region, va, 1), Err(KeyError::Rights));
}

#[test]
fn k6_binding_again_changes_the_key_and_ends_what_runs() {
    let (mut table, mr) = setup();
    let mw = table.alloc_window(PD, MwType::Type1).unwrap();
    let first = table.bind_type1(mw.id, &bind(&mr, 0, 100, RW)).unwrap();
    let grant = table.check_remote(PD, QP, first, mr.va, 4, RW).unwrap();
    table.write(&grant, 0, b"abcd").unwrap();
    let second = table.bind_type1(mw.id, &bind(&mr, 0, 100, RW)).unwrap();
    assert_ne!(first, second);
    assert_eq!(table.write(&grant, 0, b"abcd"), Err(Revoked));
    assert_eq!(remote(&table, QP, first, mr.va, 4), Err(KeyError::Unknown));
    assert_eq!(remote(&table, QP, second, mr.va, 4), Ok(()));
    // A length of zero only unbinds.
    let third = table.bind_type1(mw.id, &bind(&mr, 0, 0, RW)).unwrap();
    for key in [second, third] {
        assert_eq!(remote(&table, QP, key, mr.va, 4), Err(KeyError::Unknown));
    }
    assert_eq!(table.deregister(mr.lkey), Ok(()));
}

#[test]
fn k6_type_2_is_for_the_qp_that_bound_it_until_invalidated() {
    let (mut table, mr) = setup();
    let mw = table.alloc_window(PD, MwType::Type2).unwrap();
    let rkey = RKey::new(mw.rkey.value() & !0xff | 0x5a);
    let whole = bind(&mr, 0, 500, RW);
    assert_eq!(table.bind_type1(mw.id, &whole), Err(BindError::Type));
    table.bind_window(PD, QP, rkey, &whole).unwrap();
    assert_eq!(remote(&table, QP, rkey, mr.va, 500), Ok(()));
    let stranger = remote(&table, STRANGER, rkey, mr.va, 1);
    assert_eq!(stranger, Err(KeyError::Unknown));
    let again = table.bind_window(PD, QP, rkey, &whole);
    assert_eq!(again, Err(BindError::Bound));
    let grant = table.check_remote(PD, QP, rkey, mr.va, 4, RW).unwrap();
    // Only that QP, and only under the right key, takes it back.
    let old_key = table.invalidate(mw.rkey, QP, PD);
    assert_eq!(old_key, Err(KeyError::Unknown));
    let stranger = table.invalidate(rkey, STRANGER, PD);
    assert_eq!(stranger, Err(KeyError::Unknown));
    assert_eq!(table.invalidate(rkey, QP, OTHER), Err(KeyError::Pd));
    assert_eq!(table.invalidate(rkey, QP, PD), Ok(()));
    assert_eq!(table.invalidate(rkey, QP, PD), Err(KeyError::Unknown));
    assert_eq!(table.read(&grant, 0, &mut [0]), Err(Revoked));
    // Free again, for another QP and under another key; the old grant stays dead.
    let next = RKey::new(rkey.value() ^ 1);
    table.bind_window(PD, STRANGER, next, &whole).unwrap();
    assert_eq!(remote(&table, QP, next, mr.va, 1), Err(KeyError::Unknown));
    assert_eq!(remote(&table, STRANGER, next, mr.va, 1), Ok(()));
    assert_eq!(table.read(&grant, 0, &mut [0]), Err(Revoked));
}

#[test]
fn k6_type_1_and_regions_are_not_invalidated() {
    let (mut table, mr) = setup();
    let mw = table.alloc_window(PD, MwType::Type1).unwrap();
    let rkey = table.bind_type1(mw.id, &bind(&mr, 0, 10, RW)).unwrap();
    assert_eq!(table.invalidate(rkey, QP, PD), Err(KeyError::Rights));
    assert_eq!(remote(&table, QP, rkey, mr.va, 1), Ok(()));
    let region = RKey::new(mr.lkey.value());
    assert!(table.invalidate(region, QP, PD).is_err());
}

#[test]
fn case_127_keys_of_windows_return_as_late_as_they_can() {
    let (mut table, mr) = setup();
    let mw = table.alloc_window(PD, MwType::Type1).unwrap();
    let whole = bind(&mr, 0, 500, RW);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..66_000 {
        let rkey = table.bind_type1(mw.id, &whole).unwrap();
        assert!(seen.insert(rkey), "{rkey:?} comes back early");
    }
    table.dealloc_window(mw.id).unwrap();
    assert_eq!(table.deregister(mr.lkey), Ok(()), "no bind is left");
    // Those that are allocated and freed without ever being bound, or bound under the key given.
    let mr = register(&mut table, PD, Access::LOCAL_WRITE | Access::MW_BIND);
    let whole = bind(&mr, 0, 500, RW);
    for n in 0..66_000 {
        let mw = table.alloc_window(PD, MwType::Type2).unwrap();
        assert!(seen.insert(mw.rkey), "{mw:?} comes back early");
        if n % 2 == 0 {
            table.bind_window(PD, QP, mw.rkey, &whole).unwrap();
        }
        table.dealloc_window(mw.id).unwrap();
    }
    assert!(table.slots.len() <= REUSE_FLOOR + 5);
}

#[test]
fn a_bound_type_1_window_is_not_bound_by_work_request() {
    let (mut table, mr) = setup();
    let mw = table.alloc_window(PD, MwType::Type1).unwrap();
    let whole = bind(&mr, 0, 500, RW);
    let rkey = table.bind_type1(mw.id, &whole).unwrap();
    for key in [mw.rkey, rkey] {
        assert_eq!(table.bind_window(PD, QP, key, &whole), Err(BindError::Type));
    }
    let region = RKey::new(mr.lkey.value());
    let no_window = table.bind_window(PD, QP, region, &whole);
    assert_eq!(no_window, Err(BindError::NoWindow));
}

/// Rule K6.
#[test]
fn case_82_a_region_with_windows_stays() {
    let (mut table, mr) = setup();
    let windows = [MwType::Type1, MwType::Type2].map(|t| table.alloc_window(PD, t).unwrap());
    let part = bind(&mr, 0, 10, RW);
    table.bind_type1(windows[0].id, &part).unwrap();
    let rkey = windows[1].rkey;
    table.bind_window(PD, QP, rkey, &part).unwrap();
    assert_eq!(table.deregister(mr.lkey), Err(DeregError::Windows(2)));
    let rereg = table.reregister(mr.lkey, &Rereg::default());
    assert_eq!(rereg, Err(DeregError::Windows(2)));
    table.invalidate(rkey, QP, PD).unwrap();
    assert_eq!(table.deregister(mr.lkey), Err(DeregError::Windows(1)));
    table.dealloc_window(windows[0].id).unwrap();
    assert_eq!(table.deregister(mr.lkey), Ok(()));
    let gone = table.dealloc_window(windows[0].id);
    assert_eq!(gone, Err(BindError::NoWindow));
    // A region that takes the slot over is not the window.
    let heir = register(&mut table, PD, Access::LOCAL_WRITE);
    let gone = table.dealloc_window(windows[0].id);
    assert_eq!(gone, Err(BindError::NoWindow));
    assert_eq!(table.deregister(heir.lkey), Ok(()));
}

/// Rule K6.
#[test]
fn case_84_rights_domains_and_ranges_of_a_bind() {
    let (mut table, mr) = setup();
    let read_only = register(&mut table, PD, Access::MW_BIND);
    let no_bind = register(&mut table, PD, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let elsewhere = register(&mut table, OTHER, Access::LOCAL_WRITE | Access::MW_BIND);
    let mw = table.alloc_window(PD, MwType::Type2).unwrap();
    let mut try_bind = |pd, bind| table.bind_window(pd, QP, mw.rkey, &bind);
    let read = Access::REMOTE_READ;
    for (pd, bind, error) in [
        (OTHER, bind(&mr, 0, 1, RW), BindError::Pd),
        (PD, bind(&elsewhere, 0, 1, RW), BindError::Pd),
        (PD, bind(&read_only, 0, 1, RW), BindError::Rights),
        (
            PD,
            bind(&read_only, 0, 1, Access::REMOTE_ATOMIC),
            BindError::Rights,
        ),
        (PD, bind(&no_bind, 0, 1, read), BindError::Rights),
        (PD, bind(&mr, 0, 0, RW), BindError::Range),
        (PD, bind(&mr, 0, 501, RW), BindError::Range),
        (PD, bind(&mr, 500, 1, RW), BindError::Range),
        (PD, bind(&mr, u64::MAX, 1, RW), BindError::Range),
        (PD, bind(&mr, 1, u64::MAX, RW), BindError::Range),
        (
            PD,
            bind(&mr, 0, 1, RW | Access::MW_BIND),
            BindError::Access(Access::MW_BIND),
        ),
    ] {
        assert_eq!(try_bind(pd, bind), Err(error), "{bind:?}");
    }
    let mut bad_key = bind(&mr, 0, 1, RW);
    bad_key.lkey = LKey::new(mr.lkey.value() ^ 1);
    assert_eq!(try_bind(PD, bad_key), Err(BindError::NoRegion));
    // A window over a window is none.
    bad_key.lkey = LKey::new(mw.rkey.value());
    assert_eq!(try_bind(PD, bad_key), Err(BindError::NoRegion));
    // Reading needs no right to write locally.
    assert_eq!(try_bind(PD, bind(&read_only, 0, 500, read)), Ok(()));
    let no_window = table.bind_window(PD, QP, RKey::new(mr.lkey.value()), &bind(&mr, 0, 1, RW));
    assert_eq!(no_window, Err(BindError::NoWindow));
    let nowhere = table.bind_window(PD, QP, RKey::new(u32::MAX), &bind(&mr, 0, 1, RW));
    assert_eq!(nowhere, Err(BindError::NoWindow));
}

#[test]
fn zero_based_windows_count_from_their_start() {
    let (mut table, mr) = setup();
    let mw = table.alloc_window(PD, MwType::Type1).unwrap();
    let zero = RW | Access::ZERO_BASED;
    let rkey = table.bind_type1(mw.id, &bind(&mr, 50, 8, zero)).unwrap();
    let grant = table.check_remote(PD, QP, rkey, Va::new(0), 8, RW).unwrap();
    table.write(&grant, 0, b"windowed").unwrap();
    assert_eq!(
        remote(&table, QP, rkey, Va::new(1), 8),
        Err(KeyError::Range)
    );
    let at = mr.va.wrapping_add(50);
    let grant = table
        .check_local(PD, mr.lkey, at, 8, Access::empty())
        .unwrap();
    let mut seen = [0; 8];
    table.read(&grant, 0, &mut seen).unwrap();
    assert_eq!(&seen, b"windowed");
}

#[test]
fn a_reregistered_region_has_new_keys_and_old_grants_are_dead() {
    let mut table = MrTable::default();
    let mr = register(&mut table, PD, Access::LOCAL_WRITE | RW);
    let grant = table.check_remote(PD, QP, mr.rkey, mr.va, 8, RW).unwrap();
    let change = Rereg {
        access: Some(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::ZERO_BASED),
        ..Rereg::default()
    };
    let new = table.reregister(mr.lkey, &change).unwrap();
    assert_eq!((new.va, new.len), (Va::new(0), 500));
    assert_ne!(new.rkey, mr.rkey);
    assert_eq!(table.read(&grant, 0, &mut [0]), Err(Revoked));
    let check = |pd, key, va, need| table.check_remote(pd, QP, key, va, 8, need).map(|_| ());
    let read = Access::REMOTE_READ;
    assert_eq!(check(PD, mr.rkey, mr.va, read), Err(KeyError::Unknown));
    assert_eq!(check(PD, new.rkey, Va::new(492), read), Ok(()));
    assert_eq!(
        check(PD, new.rkey, Va::new(493), read),
        Err(KeyError::Range)
    );
    assert_eq!(check(PD, new.rkey, Va::new(0), RW), Err(KeyError::Rights));
    let moved = Rereg {
        pd: Some(OTHER),
        ..Rereg::default()
    };
    let last = table.reregister(new.lkey, &moved).unwrap();
    let wrong = table.check_remote(PD, QP, last.rkey, last.va, 1, read);
    assert_eq!(wrong, Err(KeyError::Pd));
    let right = table.check_remote(OTHER, QP, last.rkey, last.va, 1, read);
    assert!(right.is_ok());
    // What is refused changes nothing, not even the key.
    let bad = Rereg {
        access: Some(Access::REMOTE_WRITE),
        ..Rereg::default()
    };
    assert!(table.reregister(last.lkey, &bad).is_err());
    let right = table.check_remote(OTHER, QP, last.rkey, last.va, 1, read);
    assert!(right.is_ok());
    let unknown = Err(DeregError::Unknown(mr.lkey));
    assert_eq!(table.reregister(mr.lkey, &moved), unknown);
}

/// Something the model knows a key of.
#[derive(Clone, Copy, Debug)]
struct Known {
    key: u32,
    va: u64,
    len: u64,
    pd: Pd,
    access: Access,
    /// Of a window: its handle, its region in the list, and the QP it is bound to.
    window: Option<(MwId, usize, Option<Qpn>)>,
    alive: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Register(u32),
    Rereg(usize, u32),
    Dereg(usize),
    Bind1(usize, u64, u64, u32),
    Bind2(usize, u64, u64, u32),
    Invalidate(usize, bool),
    Dealloc(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let n = || 0usize..12;
    prop_oneof![
        2 => any::<u32>().prop_map(Op::Register),
        1 => (n(), any::<u32>()).prop_map(|(i, a)| Op::Rereg(i, a)),
        1 => n().prop_map(Op::Dereg),
        2 => (n(), 0u64..510, 0u64..510, any::<u32>()).prop_map(|(i, o, l, a)| Op::Bind1(i, o, l, a)),
        2 => (n(), 0u64..510, 0u64..510, any::<u32>()).prop_map(|(i, o, l, a)| Op::Bind2(i, o, l, a)),
        2 => (n(), any::<bool>()).prop_map(|(i, own)| Op::Invalidate(i, own)),
        1 => n().prop_map(Op::Dealloc),
    ]
}

/// Every key there ever was, in a list, with the rules written out once more.
#[derive(Default)]
struct Model {
    table: MrTable,
    known: Vec<Known>,
}

impl Model {
    fn windows_of(&self, region: usize) -> usize {
        let bound = |k: &&Known| k.alive && k.window.is_some_and(|(_, of, _)| of == region);
        self.known.iter().filter(bound).count()
    }

    fn learn(&mut self, mr: &Mr, pd: Pd, access: Access) {
        self.known.push(Known {
            key: mr.lkey.value(),
            va: mr.va.value(),
            len: mr.len,
            pd,
            access,
            window: None,
            alive: true,
        });
    }

    fn pick(&self, i: usize) -> Option<(usize, Known)> {
        let i = i.checked_rem(self.known.len())?;
        Some((i, self.known[i]))
    }

    fn bind(&mut self, i: usize, offset: u64, len: u64, access: u32, mw_type: MwType) {
        let Some((i, region)) = self.pick(i) else {
            return;
        };
        let access = Access::from_bits_truncate(access) & RIGHTS;
        let bind = Bind {
            lkey: LKey::new(region.key),
            va: Va::new(region.va.wrapping_add(offset)),
            len,
            access,
        };
        let write = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let may = region.alive
            && region.window.is_none()
            && region.pd == PD
            && region.access.contains(Access::MW_BIND)
            && (!write || region.access.contains(Access::LOCAL_WRITE))
            && len > 0
            && offset + len <= region.len;
        let mw = self.table.alloc_window(PD, mw_type).unwrap();
        let (bound, qpn) = match mw_type {
            MwType::Type1 if len == 0 => return,
            MwType::Type1 => (self.table.bind_type1(mw.id, &bind), None),
            MwType::Type2 => {
                let done = self.table.bind_window(PD, QP, mw.rkey, &bind);
                (done.map(|()| mw.rkey), Some(QP))
            }
        };
        assert_eq!(bound.is_ok(), may, "{bind:?} of {region:?}");
        let Ok(rkey) = bound else {
            self.table.dealloc_window(mw.id).unwrap();
            return;
        };
        let zero = access.contains(Access::ZERO_BASED);
        self.known.push(Known {
            key: rkey.value(),
            va: if zero { 0 } else { bind.va.value() },
            len,
            pd: PD,
            access,
            window: Some((mw.id, i, qpn)),
            alive: true,
        });
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Register(bits) => {
                let access = Access::from_bits_truncate(bits & 0x3f);
                let pd = if bits >> 9 & 3 == 0 { OTHER } else { PD };
                if access.is_registrable() {
                    let mr = register(&mut self.table, pd, access);
                    self.learn(&mr, pd, access);
                }
            }
            Op::Rereg(i, bits) => {
                let Some((i, old)) = self.pick(i) else { return };
                let access = Access::from_bits_truncate(bits & 0x3f);
                let change = Rereg {
                    access: Some(access),
                    ..Rereg::default()
                };
                let idle = old.alive && old.window.is_none() && self.windows_of(i) == 0;
                let new = self.table.reregister(LKey::new(old.key), &change);
                assert_eq!(new.is_ok(), idle && access.is_registrable());
                if let Ok(mr) = new {
                    self.known[i].alive = false;
                    self.learn(&mr, old.pd, access);
                }
            }
            Op::Dereg(i) => {
                let Some((i, old)) = self.pick(i) else { return };
                let idle = old.alive && old.window.is_none() && self.windows_of(i) == 0;
                let gone = self.table.deregister(LKey::new(old.key));
                assert_eq!(gone.is_ok(), idle);
                self.known[i].alive &= !idle;
            }
            Op::Bind1(i, o, l, a) => self.bind(i, o, l, a, MwType::Type1),
            Op::Bind2(i, o, l, a) => self.bind(i, o, l, a, MwType::Type2),
            Op::Invalidate(i, own) => {
                let Some((i, old)) = self.pick(i) else { return };
                let qpn = if own { QP } else { STRANGER };
                let may = old.alive && own && matches!(old.window, Some((_, _, Some(_))));
                let done = self.table.invalidate(RKey::new(old.key), qpn, PD);
                assert_eq!(done.is_ok(), may);
                self.known[i].alive &= !may;
            }
            Op::Dealloc(i) => {
                let Some((i, old)) = self.pick(i) else { return };
                if let Some((id, ..)) = old.window {
                    let done = self.table.dealloc_window(id);
                    if old.alive {
                        assert_eq!(done, Ok(()));
                    }
                    self.known[i].alive = false;
                }
            }
        }
    }

    /// Every key ever given is worth what the list says, and no more.
    fn check(&self) {
        for k in &self.known {
            for (qpn, pd, need) in [
                (QP, PD, Access::REMOTE_READ),
                (STRANGER, PD, Access::REMOTE_WRITE),
                (QP, OTHER, Access::REMOTE_ATOMIC),
            ] {
                for (at, len) in [(0, 1), (0, k.len + 1), (k.len - 1, 1), (k.len, 1)] {
                    let va = Va::new(k.va.wrapping_add(at));
                    let key = RKey::new(k.key);
                    let got = self.table.check_remote(
                        pd,
                        qpn,
                        key,
                        va,
                        u32::try_from(len).unwrap(),
                        need,
                    );
                    let mine = !matches!(k.window, Some((_, _, Some(by))) if by != qpn);
                    let may = k.alive
                        && mine
                        && k.pd == pd
                        && k.access.contains(need)
                        && at + len <= k.len;
                    assert_eq!(got.is_ok(), may, "{k:?} {qpn:?} {pd:?} {need:?} {at} {len}");
                }
            }
            let va = Va::new(k.va);
            let key = LKey::new(k.key);
            let local = self.table.check_local(PD, key, va, 1, Access::empty());
            let may = k.alive && k.window.is_none() && k.pd == PD;
            assert_eq!(local.is_ok(), may, "{k:?}");
        }
    }
}

proptest! {
    #[test]
    fn regions_and_windows_are_their_model(ops in proptest::collection::vec(op(), 1..60)) {
        let mut model = Model::default();
        for op in &ops {
            model.apply(op);
            model.check();
        }
    }
}
