//! Receives that were posted where the engine has not looked yet when their packet comes, as in the
//! ring of a process.

use xroce_engine::{LateReceives, Receives};
use xroce_proto::qp::QpType;
use xroce_proto::srq::SrqAttr;
use xroce_proto::wc::Srq;
use xroce_proto::wr::{RecvWr, SendOp, Sge};
use xroce_wire::newtypes::{PathMtu, Qpn};

use crate::common::{Setup, World};
use crate::{QKEY, connect_uc, datagram, handle, ud_qp};

/// Receives of one queue, as in a ring.
struct Ring {
    waiting: Vec<(u64, Sge)>,
    asked: Vec<(Qpn, Option<Srq>)>,
}

impl Ring {
    fn of(sges: &[Sge]) -> Self {
        Self {
            waiting: (10..).zip(sges.iter().copied()).collect(),
            asked: Vec::new(),
        }
    }
}

impl LateReceives for Ring {
    fn fetch(&mut self, posts: &mut Receives<'_>, qpn: Qpn, srq: Option<Srq>) {
        self.asked.push((qpn, srq));
        for (wr_id, sge) in self.waiting.drain(..) {
            let wr = RecvWr {
                wr_id,
                sges: &[sge],
            };
            match srq {
                Some(srq) => posts.post_srq_recv(srq, &wr).unwrap(),
                None => posts.post_recv(qpn, &wr).unwrap(),
            }
        }
    }
}

/// Until nothing happens any more; the second host polls with the ring.
fn run(world: &mut World, ring: &mut Ring) {
    for _ in 0..50 {
        let now = world.now();
        world.hosts[0].engine.poll_once(now).unwrap();
        world.hosts[1].engine.poll_with(now, ring).unwrap();
        world.net.advance_to(world.net.now() + 1000);
    }
}

fn received(world: &mut World) -> Vec<u64> {
    let found = world.hosts[1].completions();
    found.iter().map(|wc| wc.wr_id).collect()
}

#[test]
fn case_131_a_datagram_finds_the_receive_posted_before_it() {
    let mut world = Setup::default().build();
    let [a, b] = [0, 1].map(|i| ud_qp(&mut world, i, QKEY));
    let ah = handle(&mut world, 0);
    let sge = world.hosts[1].sge(0, 100);
    let mut ring = Ring::of(&[sge, sge]);
    let data = [world.hosts[0].sge(0, 8)];
    for _ in 0..2 {
        datagram(&mut world.hosts[0], a, (ah, b, QKEY), SendOp::Send, &data).unwrap();
    }
    run(&mut world, &mut ring);
    assert_eq!(received(&mut world), [10, 11]);
    assert_eq!(ring.asked, [(b, None)], "asked once, when none was there");
}

#[test]
fn case_131_so_does_a_message_of_uc_and_of_rc_without_retries() {
    for qp_type in [QpType::Uc, QpType::Rc] {
        let mut world = Setup::default().build();
        let [a, b] = match qp_type {
            QpType::Uc => connect_uc(&mut world, PathMtu::Mtu1024, [0, 0]),
            _ => world.connect(
                PathMtu::Mtu1024,
                [0, 0],
                |_| {},
                |attr| {
                    attr.rnr_retry = attr.rnr_retry.map(|_| 0);
                },
            ),
        };
        let sge = world.hosts[1].sge(0, 4096);
        let mut ring = Ring::of(&[sge]);
        let data = [world.hosts[0].sge(0, 3000)];
        world.hosts[0].post_send(a, 1, SendOp::Send, &data);
        run(&mut world, &mut ring);
        assert_eq!(received(&mut world), [10], "{qp_type:?}");
        assert_eq!(ring.asked, [(b, None)]);
        world.hosts[0].post_send(a, 2, SendOp::Send, &data);
        run(&mut world, &mut ring);
        assert_eq!(received(&mut world), [] as [u64; 0], "none is there");
        assert!(ring.asked.len() >= 2);
    }
}

#[test]
fn case_131_so_does_a_message_for_a_shared_receive_queue() {
    let mut world = Setup::default().build();
    let host = &mut world.hosts[1];
    let attr = SrqAttr {
        max_wr: 4,
        max_sge: 4,
        limit: 0,
    };
    let srq = host.engine.create_srq(host.pd, &attr).unwrap();
    let [a, b] = [
        world.create_qp(0, |_| {}),
        world.create_qp(1, |init| init.srq = Some(srq)),
    ];
    world.bring_up([a, b], PathMtu::Mtu1024, [0, 0], |_, attr| {
        attr.rnr_retry = attr.rnr_retry.map(|_| 0);
    });
    let sge = world.hosts[1].sge(0, 64);
    let mut ring = Ring::of(&[sge]);
    let data = [world.hosts[0].sge(0, 8)];
    world.hosts[0].post_send(a, 1, SendOp::SendImm([1; 4]), &data);
    run(&mut world, &mut ring);
    assert_eq!(received(&mut world), [10]);
    assert_eq!(ring.asked, [(b, Some(srq))]);
}
