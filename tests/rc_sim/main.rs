//! Stories over the simulated network: production engines, real frames, one thing that goes wrong
//! per test. Rows are those of the collected cases.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic, and its sizes are small"
)]

mod atomics;
#[path = "../captured/mod.rs"]
mod captured;
mod carriage;
mod closing;
#[path = "../common/mod.rs"]
mod common;
mod congestion;
mod ending;
mod loss;
mod objects;
mod replayed;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use common::{Setup, World, pattern};
use xroce_net::sim::{Impairment, Verdict, WireId};
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::wc::{Completion, WcStatus};
use xroce_proto::wr::SendOp;
use xroce_wire::frame::Frame;
use xroce_wire::newtypes::{PathMtu, Qpn};
use xroce_wire::packet::Packet;

pub(crate) const MTU: PathMtu = PathMtu::Mtu1024;

/// ACK timeout of code 8, ns; every story that does not say otherwise has it.
pub(crate) const TIMEOUT_NS: u64 = 4096 << 8;

pub(crate) const SECOND: u64 = 1_000_000_000;

/// Data to send is at offset 0 of the requester, what it READs lands in the middle; the responder
/// is written at 0 and receives in the middle.
pub(crate) const MIDDLE: u64 = 1 << 21;

pub(crate) fn fast(attr: &mut QpAttr) {
    if attr.state == Some(QpState::Rts) {
        attr.timeout = Some(8);
    }
}

pub(crate) fn calm() -> Setup {
    let wire = Impairment {
        rate_bps: 100_000_000_000,
        ..Impairment::delay(1000)
    };
    Setup {
        wires: [wire; 2],
        ..Setup::default()
    }
}

/// A calm network with one connected pair.
pub(crate) fn pair() -> (World, [Qpn; 2]) {
    let mut world = calm().build();
    let qpns = world.connect(MTU, [0xff_fffe, 0x1000], |_| {}, fast);
    (world, qpns)
}

/// Parses what is on a wire, if it is RoCE.
pub(crate) fn with_packet<R>(frame: &[u8], f: impl FnOnce(&Packet<'_>) -> R) -> Option<R> {
    let frame = Frame::parse_ethernet(frame).ok()?;
    Packet::parse(frame.transport()).ok().map(|pkt| f(&pkt))
}

/// Loses the first `count` packets on a wire that `which` picks; says how many it has lost.
pub(crate) fn lose(
    world: &World,
    wire: WireId,
    count: u32,
    which: impl Fn(&Packet<'_>) -> bool + 'static,
) -> Rc<Cell<u32>> {
    let lost = Rc::new(Cell::new(0));
    let counter = Rc::clone(&lost);
    world.net.set_filter(wire, move |frame| {
        let hit = with_packet(frame, &which).unwrap_or(false);
        if hit && counter.get() < count {
            counter.set(counter.get() + 1);
            Verdict::Drop
        } else {
            Verdict::Pass
        }
    });
    lost
}

/// Keeps a copy of every frame sent on a wire, and lets it pass or not.
pub(crate) fn capture(world: &World, wire: WireId, pass: bool) -> Rc<RefCell<Vec<Vec<u8>>>> {
    let frames = Rc::new(RefCell::new(Vec::new()));
    let copies = Rc::clone(&frames);
    world.net.set_filter(wire, move |frame| {
        copies.borrow_mut().push(frame.to_vec());
        if pass { Verdict::Pass } else { Verdict::Drop }
    });
    frames
}

/// SEND, WRITE and READ of `len` bytes from the first host, checked at both ends, within `limit`
/// of virtual time, which is returned.
pub(crate) fn exchange(world: &mut World, [a, b]: [Qpn; 2], len: usize, limit: u64) -> u64 {
    let start = world.net.now();
    let data = pattern(start ^ len as u64, len);
    let [left, right] = &mut world.hosts;
    left.region.write_at(0, &data).unwrap();
    let whole = left.sge(0, len as u32);
    let (va, rkey) = (right.va(0), right.mr.rkey);
    right.post_recv(b, 1, &[right.sge(MIDDLE, len as u32)]);
    left.post_send(a, 2, SendOp::Send, &[whole]);
    left.post_send(a, 3, SendOp::Write { va, rkey }, &[whole]);
    left.post_send(
        a,
        4,
        SendOp::Read { va, rkey },
        &[left.sge(MIDDLE, len as u32)],
    );
    let (sent, received) = finish(world, 3, 1, limit);
    assert_eq!(ids(&sent), ok(&[2, 3, 4]));
    assert_eq!(ids(&received), ok(&[1]));
    assert_eq!(received[0].byte_len as usize, len);
    for (host, at) in [(1, MIDDLE), (1, 0), (0, MIDDLE)] {
        assert!(world.hosts[host].bytes(at, len) == data, "{len} at {host}");
    }
    world.net.now() - start
}

/// Runs until so many completions are there on both sides.
pub(crate) fn finish(
    world: &mut World,
    left: usize,
    right: usize,
    limit: u64,
) -> (Vec<Completion>, Vec<Completion>) {
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let done = world.run(limit, |w| {
        sent.extend(w.hosts[0].completions());
        received.extend(w.hosts[1].completions());
        sent.len() >= left && received.len() >= right
    });
    assert!(done, "{sent:#?} {received:#?}");
    (sent, received)
}

pub(crate) fn ids(all: &[Completion]) -> Vec<(u64, WcStatus)> {
    all.iter().map(|c| (c.wr_id, c.status)).collect()
}

pub(crate) fn ok(ids: &[u64]) -> Vec<(u64, WcStatus)> {
    ids.iter().map(|&id| (id, WcStatus::Success)).collect()
}
