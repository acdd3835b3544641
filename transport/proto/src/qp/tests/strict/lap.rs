//! A whole lap of PSNs: what a responder remembers of the last one.

use super::super::*;

/// Every PSN once, by requests that leave nothing behind; then READs and atomics again where they
/// were. Debug builds take the steps between in one.
#[test]
fn after_a_lap_of_psns_the_newest_answers() {
    let whole = !cfg!(debug_assertions) || super::std::env::var_os("XROCE_LAP").is_some();
    let mut setup = Setup::default();
    setup.access |= Access::REMOTE_ATOMIC;
    let mut t = setup.build();
    t.mem.access |= Access::REMOTE_ATOMIC;
    t.rx(p(Opcode::RcReadRequest, 0x100).reth(BASE, KEY, 16 * MTU as u32));
    t.rx(p(Opcode::RcFetchAdd, 0x110).atomic(BASE, KEY, 1, 0));
    assert_eq!(t.tx().len(), 17);
    let mut psn = Psn::new(0x111);
    if !whole {
        psn = Psn::new(0x100);
        t.qp.rx.expected_psn = psn;
    }
    while psn != Psn::new(0x108) {
        t.rx(p(Opcode::RcWriteOnly, psn.value()).reth(0, 0, 0));
        psn = psn.add(1);
    }
    t.tx();
    let read = || p(Opcode::RcReadRequest, 0x108).reth(BASE + 64, KEY, 8 * MTU as u32);
    let add = || p(Opcode::RcFetchAdd, 0x110).atomic(BASE, KEY, 1, 0);
    t.rx(read());
    t.rx(add());
    let first = t.tx();
    assert_eq!(first.len(), 9);
    t.rx(read());
    t.rx(add());
    let msn = |s: &String| s.split(" msn=").next().unwrap_or_default().to_string();
    let bare = |all: &[String]| all.iter().map(msn).collect::<Vec<_>>();
    assert_eq!(bare(&t.tx()), bare(&first));
    assert_eq!(t.mem.atomics, 2);
}
