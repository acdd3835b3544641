//! UC and UD between two engines: stories over the simulated network, recorded traffic of
//! rdma_rxe played to an engine, and random work over a bad network.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic, and its sizes are small"
)]

#[path = "../captured/mod.rs"]
mod captured;
mod chaos;
#[path = "../common/mod.rs"]
mod common;
mod groups;
mod late;
mod replay;
mod uc;
mod ud;

use std::cell::RefCell;
use std::rc::Rc;

use common::{ALL_ACCESS, Host, World};
use xroce_api::{Ah, EngineError, UdDest};
use xroce_net::datapath::Datapath;
use xroce_net::sim::{Verdict, WireId};
use xroce_proto::qp::{QpAttr, QpState, QpType};
use xroce_proto::wr::{Data, SendFlags, SendOp, SendWr, Sge};
use xroce_wire::frame::Frame;
use xroce_wire::newtypes::{PathMtu, Psn, QKey, Qpn};
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;

pub(crate) const QKEY: u32 = 0x1111_1111;

/// Takes a UC QP of a host to RTS.
pub(crate) fn raise_uc<D: Datapath>(
    host: &mut Host<D>,
    qpn: Qpn,
    path: AddressVector,
    mtu: PathMtu,
    peer: Qpn,
    [own, theirs]: [u32; 2],
) {
    let steps = [
        QpAttr::init(ALL_ACCESS),
        QpAttr::rtr_uc(path, mtu, peer, Psn::new(theirs)),
        QpAttr::rts_unreliable(Psn::new(own)),
    ];
    for attr in steps {
        host.engine.modify_qp(qpn, &attr).unwrap();
    }
}

/// A connected pair of UC QPs.
pub(crate) fn connect_uc(world: &mut World, mtu: PathMtu, psns: [u32; 2]) -> [Qpn; 2] {
    let qpns = [0, 1].map(|i| world.create_qp(i, |init| init.qp_type = QpType::Uc));
    for i in [0, 1] {
        let path = world.hosts[i].path_to(&world.hosts[1 - i]);
        let psns = [psns[i], psns[1 - i]];
        raise_uc(&mut world.hosts[i], qpns[i], path, mtu, qpns[1 - i], psns);
    }
    qpns
}

/// Takes a UD QP of a host to RTS.
pub(crate) fn raise_ud<D: Datapath>(host: &mut Host<D>, qpn: Qpn, qkey: u32) {
    let steps = [
        QpAttr::init_ud(QKey::new(qkey)),
        QpAttr::state(QpState::Rtr),
        QpAttr::rts_unreliable(Psn::new(0)),
    ];
    for attr in steps {
        host.engine.modify_qp(qpn, &attr).unwrap();
    }
}

/// A UD QP in RTS.
pub(crate) fn ud_qp(world: &mut World, host: usize, qkey: u32) -> Qpn {
    let qpn = world.create_qp(host, |init| init.qp_type = QpType::Ud);
    raise_ud(&mut world.hosts[host], qpn, qkey);
    qpn
}

/// An address handle of a host for the other one.
pub(crate) fn handle(world: &mut World, from: usize) -> Ah {
    let path = world.hosts[from].path_to(&world.hosts[1 - from]);
    let host = &mut world.hosts[from];
    host.engine.create_ah(host.pd, &path).unwrap()
}

pub(crate) fn datagram(
    host: &mut Host,
    qpn: Qpn,
    (ah, to, qkey): (Ah, Qpn, u32),
    op: SendOp,
    sges: &[Sge],
) -> Result<(), EngineError> {
    let wr = SendWr {
        wr_id: 0,
        op,
        flags: SendFlags::SIGNALED,
        data: Data::Sges(sges),
    };
    let to = UdDest {
        ah,
        qpn: to,
        qkey: QKey::new(qkey),
    };
    host.engine.post_datagram(qpn, &wr, &to)
}

/// Loses the packets on a wire that `which` picks.
pub(crate) fn lose(world: &World, wire: WireId, which: impl Fn(&Packet<'_>) -> bool + 'static) {
    world.net.set_filter(wire, move |frame| {
        let frame = Frame::parse_ethernet(frame).unwrap();
        match Packet::parse(frame.transport()) {
            Ok(pkt) if which(&pkt) => Verdict::Drop,
            _ => Verdict::Pass,
        }
    });
}

/// Keeps a copy of every frame sent on a wire.
pub(crate) fn capture(world: &World, wire: WireId) -> Rc<RefCell<Vec<Vec<u8>>>> {
    let frames = Rc::new(RefCell::new(Vec::new()));
    let copies = Rc::clone(&frames);
    world.net.set_filter(wire, move |frame| {
        copies.borrow_mut().push(frame.to_vec());
        Verdict::Pass
    });
    frames
}
