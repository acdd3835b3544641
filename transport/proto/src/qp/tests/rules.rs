//! The rules of posting without a queue pair are those of the queue pair.

use proptest::prelude::*;

use super::*;
use crate::qp::rules::PostRules;
use crate::qp::{AddressHandle, Destination};
use crate::wr::Placement;

fn op() -> impl Strategy<Value = SendOp> {
    let (va, rkey) = (Va::new(BASE), RKey::new(KEY));
    let bind = Bind {
        lkey: LKey::new(1),
        va,
        len: 8,
        access: Access::REMOTE_READ,
    };
    let at = (0..3u64).prop_map(move |n| va.wrapping_add(n * 4));
    prop_oneof![
        Just(SendOp::Send),
        Just(SendOp::SendImm([1; 4])),
        Just(SendOp::Write { va, rkey }),
        Just(SendOp::WriteImm {
            va,
            rkey,
            imm: [2; 4]
        }),
        Just(SendOp::Read { va, rkey }),
        Just(SendOp::SendInv { rkey }),
        Just(SendOp::LocalInv { rkey }),
        Just(SendOp::BindMw { rkey, bind }),
        at.clone()
            .prop_map(move |va| SendOp::FetchAdd { va, rkey, add: 1 }),
        at.clone().prop_map(move |va| SendOp::CompareSwap {
            va,
            rkey,
            compare: 1,
            swap: 2
        }),
        at.prop_map(move |va| SendOp::AtomicWrite { va, rkey }),
        (0..4u8).prop_map(move |bits| SendOp::Flush {
            va,
            rkey,
            len: 9,
            placement: Placement::from_bits_truncate(bits),
            whole_region: bits == 2,
        }),
    ]
}

/// Local memory: how many SGEs or inline parts, of how many bytes.
fn data() -> impl Strategy<Value = (bool, usize, u32)> {
    let len = prop_oneof![
        Just(0),
        Just(4),
        Just(8),
        Just(40),
        Just(1024),
        Just(1025),
        Just(1 << 30),
        Just(u32::MAX)
    ];
    (any::<bool>(), 0..7usize, len)
}

#[derive(Clone, Debug)]
enum Step {
    Send(SendOp, (bool, usize, u32), bool),
    Recv(usize),
    Modify(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (op(), data(), any::<bool>()).prop_map(|(op, data, to)| Step::Send(op, data, to)),
        2 => (0..7usize).prop_map(Step::Recv),
        1 => (0..7usize).prop_map(Step::Modify),
    ]
}

fn changes(qp_type: QpType) -> Vec<QpAttr> {
    let states = [QpState::Reset, QpState::Sqd, QpState::Rts].map(QpAttr::state);
    let mut all = match qp_type {
        QpType::Rc => {
            let mut few = QpAttr::rts(Psn::new(0x100));
            few.max_rd_atomic = Some(0);
            let access = Access::LOCAL_WRITE;
            vec![
                QpAttr::init(access),
                QpAttr::rtr(path(), PathMtu::Mtu1024, PEER, Psn::new(0x100)),
                few,
                QpAttr::rts(Psn::new(0x100)),
            ]
        }
        QpType::Ud => vec![
            QpAttr::init_ud(QKey::new(QKEY)),
            QpAttr::state(QpState::Rtr),
            QpAttr::rts_unreliable(Psn::new(0)),
            QpAttr::state(QpState::Err),
        ],
        _ => vec![
            QpAttr::init(Access::REMOTE_WRITE),
            QpAttr::rtr_uc(path(), PathMtu::Mtu1024, PEER, Psn::new(0x100)),
            QpAttr::rts_unreliable(Psn::new(0)),
            QpAttr::state(QpState::Err),
        ],
    };
    all.extend(states);
    all
}

struct Pair {
    qp: Qp,
    rules: PostRules,
    log: Log,
    recvs: u32,
}

impl Pair {
    fn modify(&mut self, attr: &QpAttr) {
        if self.qp.modify(attr, &mut self.log).is_ok() {
            self.rules.note(attr);
            // In ERR they are flushed.
            if matches!(attr.state, Some(QpState::Reset | QpState::Err)) {
                self.recvs = 0;
            }
        }
    }

    fn send(&mut self, op: SendOp, (inline, parts, len): (bool, usize, u32), to: bool) {
        let sge = Sge {
            lkey: LKey::new(KEY),
            va: Va::new(BASE),
            len,
        };
        let sges = vec![sge; parts];
        let bytes = vec![0; len.min(600) as usize];
        let pieces = vec![&bytes[..]; parts];
        let wr = SendWr {
            wr_id: 1,
            op,
            flags: SendFlags::SIGNALED,
            data: if inline {
                Data::Inline(&pieces)
            } else {
                Data::Sges(&sges)
            },
        };
        let said = self.rules.check_send(&wr, to, self.qp.sends_posted());
        let posted = if to {
            let ah = AddressHandle::new(Lower::Udp, &path(), PD).unwrap();
            let to = Destination {
                ah: &ah,
                qpn: PEER,
                qkey: QKey::new(QKEY),
            };
            self.qp.post_datagram(&wr, &to, &mut self.log)
        } else {
            self.qp.post_send(&wr, &mut self.log)
        };
        assert_eq!(said, posted, "{wr:?}");
    }

    fn recv(&mut self, parts: usize) {
        let sges = vec![Sge::default(); parts];
        let wr = RecvWr {
            wr_id: 2,
            sges: &sges,
        };
        let said = self.rules.check_recv(&wr, self.recvs);
        assert_eq!(said, self.qp.post_recv(&wr, &mut self.log));
        // In ERR it is flushed at once.
        let stays = self.qp.state() != QpState::Err;
        self.recvs += u32::from(said.is_ok() && stays);
    }
}

proptest! {
    #[test]
    fn rules_and_queue_pair_agree(
        qp_type in prop_oneof![Just(QpType::Rc), Just(QpType::Uc), Just(QpType::Ud)],
        shared in any::<bool>(),
        ready in any::<bool>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let init = QpInit {
            qp_type,
            srq: shared.then_some(Srq(3)),
            max_send_wr: 8,
            max_recv_wr: 4,
            max_send_sge: 3,
            max_recv_sge: 2,
            ..QpInit::rc(PD, SEND_CQ, RECV_CQ)
        };
        let mut qp = Qp::new(OWN, init, Lower::Udp).unwrap();
        qp.set_port_mtu(PathMtu::Mtu1024);
        let rules = PostRules::new(&init, PathMtu::Mtu1024);
        let mut pair = Pair { qp, rules, log: Log::default(), recvs: 0 };
        let changes = changes(qp_type);
        if ready {
            for attr in &changes[..3] {
                pair.modify(attr);
            }
        }
        for step in steps {
            match step {
                Step::Send(op, data, to) => pair.send(op, data, to),
                Step::Recv(parts) => pair.recv(parts),
                Step::Modify(n) => pair.modify(&changes[n % changes.len()]),
            }
        }
    }
}
