//! The longest message at each path MTU, to the byte.

use super::*;
use crate::params::{MESSAGE_LEN_ANY_MTU, MESSAGE_LEN_MAX};
use crate::wr::PostError;

/// Longest message at a path MTU: RETH carries 2^31, and 2^23 − 1 PSNs may be outstanding.
fn limit(mtu: PathMtu) -> u32 {
    match mtu {
        PathMtu::Mtu256 => (1 << 31) - 256,
        _ => 1 << 31,
    }
}

fn rc(mtu: PathMtu) -> Setup {
    let mut setup = Setup::default();
    setup.rtr.path_mtu = Some(mtu);
    setup
}

fn uc(mtu: PathMtu) -> Setup {
    Setup {
        init: QpInit::uc(PD, SEND_CQ, RECV_CQ),
        rtr: QpAttr::rtr_uc(path(), mtu, PEER, Psn::new(0x100)),
        rts: QpAttr::rts_unreliable(Psn::new(0x100)),
        ..Setup::default()
    }
}

/// The longest message may be posted, in one piece and in two, and not a byte more.
fn check(t: &mut Bench, op: SendOp, max: u32) {
    let mut post = |sges: &[Sge]| {
        let wr = SendWr {
            wr_id: 1,
            op,
            flags: SendFlags::empty(),
            data: Data::Sges(sges),
        };
        t.qp.post_send(&wr, &mut t.log)
    };
    let longer = Err(PostError::MessageTooLong {
        given: u64::from(max) + 1,
        max: u64::from(max),
    });
    assert_eq!(post(&[sge(0, max)]), Ok(()), "{op:?}");
    assert_eq!(post(&[sge(0, max + 1)]), longer, "{op:?}");
    let parts = [sge(0, max - 1000), sge(0, 1000), sge(0, 1)];
    assert_eq!(post(&parts[..2]), Ok(()), "{op:?}");
    assert_eq!(post(&parts), longer, "{op:?}");
}

/// Rules W16, W18.
#[test]
fn case_128_the_longest_message_at_each_path_mtu() {
    let imm = [0; 4];
    let rkey = RKey::new(0x77);
    let va = Va::new(0);
    for mtu in PathMtu::ALL {
        for (mut setup, answered) in [(rc(mtu), true), (uc(mtu), false)] {
            setup.init.max_send_sge = 4;
            let mut ops = vec![
                SendOp::Send,
                SendOp::SendImm(imm),
                SendOp::Write { va, rkey },
                SendOp::WriteImm { va, rkey, imm },
            ];
            if answered {
                ops.push(SendOp::SendInv { rkey });
                ops.push(SendOp::Read { va, rkey });
            }
            let mut t = setup.build();
            for op in ops {
                check(&mut t, op, limit(mtu));
            }
        }
    }
}

#[test]
fn case_128_every_queue_pair_takes_what_devices_report() {
    let least = PathMtu::ALL.map(limit).into_iter().min();
    assert_eq!(least, Some(MESSAGE_LEN_ANY_MTU));
    let most = PathMtu::ALL.map(limit).into_iter().max();
    assert_eq!(most, Some(MESSAGE_LEN_MAX));
}
