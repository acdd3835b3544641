//! Stories of the objects around queue pairs: shared receives, completion queues that notify,
//! memory windows, regions that change, partitions.

use xroce_api::{AsyncEvent, EngineError, MwType, Notify, ObjectError, Rereg};
use xroce_proto::memory::{Access, Bind};
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::srq::SrqAttr;
use xroce_proto::wc::{Cq, Event, Srq, WcStatus};
use xroce_proto::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_wire::newtypes::{PKey, Psn, Qpn, RKey, Va};
use xroce_wire::opcode::Opcode;

use crate::common::{ALL_ACCESS, World};
use crate::{MIDDLE, MTU, SECOND, calm, exchange, fast, finish, ids, lose, ok, pair};

const SRQ: SrqAttr = SrqAttr {
    max_wr: 64,
    max_sge: 4,
    limit: 0,
};

/// Three pairs whose second QPs share the receives of one SRQ.
fn shared() -> (World, [[Qpn; 2]; 3], Srq) {
    let mut world = calm().build();
    let pd = world.hosts[1].pd;
    let srq = world.hosts[1].engine.create_srq(pd, &SRQ).unwrap();
    let pairs = [0, 1, 2].map(|i| {
        let left = world.create_qp(0, |_| {});
        let right = world.create_qp(1, |init| init.srq = Some(srq));
        world.bring_up([left, right], MTU, [i * 1000, i * 77], |_, attr| fast(attr));
        [left, right]
    });
    (world, pairs, srq)
}

fn post_srq(world: &mut World, srq: Srq, wr_id: u64, len: u32) {
    let host = &mut world.hosts[1];
    let sges = [host.sge(MIDDLE + wr_id * 0x1000, len)];
    let wr = RecvWr { wr_id, sges: &sges };
    host.engine.post_srq_recv(srq, &wr).unwrap();
}

fn send(world: &mut World, qpn: Qpn, wr_id: u64, len: u32) {
    let host = &mut world.hosts[0];
    let sge = host.sge(0, len);
    host.post_send(qpn, wr_id, SendOp::Send, &[sge]);
}

#[test]
fn k7_three_queue_pairs_take_from_one_srq_in_order() {
    let (mut world, pairs, srq) = shared();
    for id in 0..30 {
        post_srq(&mut world, srq, id, 0x1000);
    }
    let mut expected = Vec::new();
    for round in 0..10 {
        for (i, [left, right]) in pairs.into_iter().enumerate() {
            let id = round * 3 + i as u64;
            send(&mut world, left, id, 10 + id as u32);
            world.idle(20_000);
            expected.push((id, right, 10 + id as u32));
        }
    }
    let got = world.hosts[1].completions();
    let got: Vec<_> = got.iter().map(|c| (c.wr_id, c.qpn, c.byte_len)).collect();
    assert_eq!(got, expected);
    assert_eq!(world.hosts[1].engine.srq_len(srq), Some(0));
}

#[test]
fn an_empty_srq_holds_senders_back_until_there_is_one() {
    let (mut world, pairs, srq) = shared();
    for (id, [left, _]) in (0..).zip(pairs) {
        send(&mut world, left, id, 3000);
    }
    world.idle(SECOND / 1000);
    assert!(world.hosts[0].completions().is_empty());
    for id in 0..3 {
        post_srq(&mut world, srq, id, 0x1000);
    }
    let (sent, received) = finish(&mut world, 3, 3, SECOND);
    assert!(
        sent.iter()
            .chain(&received)
            .all(|c| c.status == WcStatus::Success)
    );
    let counters = world.hosts[1].engine.qp_counters(pairs[0][1]).unwrap();
    assert!(counters.rnr_naks_out > 0);
}

#[test]
fn the_limit_event_comes_once_per_arming() {
    let (mut world, [[left, _], ..], srq) = shared();
    for id in 0..5 {
        post_srq(&mut world, srq, id, 64);
    }
    let reached = Some(AsyncEvent::srq(srq, Event::SrqLimitReached));
    let engine = &mut world.hosts[1].engine;
    engine.modify_srq(srq, None, Some(3)).unwrap();
    assert_eq!(engine.poll_event(), None);
    for (id, event) in [(0, None), (1, None), (2, reached), (3, None)] {
        send(&mut world, left, id, 8);
        world.idle(100_000);
        assert_eq!(world.hosts[1].engine.poll_event(), event, "{id}");
    }
    let engine = &mut world.hosts[1].engine;
    assert_eq!(engine.query_srq(srq).unwrap().limit, 0);
    // Armed above what is left: due at once.
    engine.modify_srq(srq, None, Some(2)).unwrap();
    assert_eq!(engine.poll_event(), reached);
    assert!(engine.modify_srq(srq, Some(64), Some(65)).is_err());
}

#[test]
fn c4_c5_one_queue_pair_fails_and_the_others_go_on() {
    let (mut world, pairs, srq) = shared();
    for id in 0..3 {
        post_srq(&mut world, srq, id, 0x1000);
    }
    // The third takes a receive and never gets the rest of its message.
    let last = pairs[2];
    lose(&world, world.link.there, 1000, |pkt| {
        pkt.opcode() == Opcode::RcSendLast
    });
    send(&mut world, last[0], 9, 0x1000);
    world.idle(20_000);
    let engine = &mut world.hosts[1].engine;
    assert_eq!(engine.srq_len(srq), Some(2));
    engine
        .modify_qp(last[1], &QpAttr::state(QpState::Err))
        .unwrap();
    assert_eq!(engine.srq_len(srq), Some(2), "only what was taken");
    let flushed = ids(&world.hosts[1].completions());
    assert_eq!(flushed, [(0, WcStatus::WrFlushErr)]);
    let engine = &mut world.hosts[1].engine;
    let event = AsyncEvent::qp(last[1], Event::QpLastWqeReached);
    assert_eq!(engine.poll_event(), Some(event));
    assert_eq!(engine.poll_event(), None);
    assert!(matches!(
        engine.destroy_srq(srq),
        Err(EngineError::Object(ObjectError::Busy { users: 3 }))
    ));
    for [_, right] in pairs {
        engine.destroy_qp(right).unwrap();
    }
    engine.destroy_srq(srq).unwrap();
    assert_eq!(engine.query_srq(srq), None);
    let gone = engine.post_srq_recv(
        srq,
        &RecvWr {
            wr_id: 1,
            sges: &[],
        },
    );
    assert_eq!(gone, Err(ObjectError::NoSrq(srq).into()));
}

#[test]
fn a_queue_pair_must_fit_its_srq() {
    let (mut world, [[_, right], ..], srq) = shared();
    let host = &mut world.hosts[1];
    let mut init = host.engine.query_qp(right).unwrap().init;
    init.max_recv_sge = 1;
    assert!(matches!(
        host.engine.create_qp(&init),
        Err(EngineError::Object(ObjectError::SrqSge {
            given: 1,
            needed: 4
        }))
    ));
    init.srq = Some(Srq(99));
    assert_eq!(
        host.engine.create_qp(&init),
        Err(ObjectError::NoSrq(Srq(99)).into())
    );
    let wr = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    assert!(host.engine.post_recv(right, &wr).is_err());
    host.engine.post_srq_recv(srq, &wr).unwrap();
}

#[test]
fn c8_a_completion_queue_notifies_of_what_was_asked() {
    let (mut world, [a, b]) = pair();
    let cq = world.hosts[1].cq;
    let send = |world: &mut World, wr_id, flags| {
        let [left, right] = &mut world.hosts;
        right.post_recv(b, wr_id, &[right.sge(MIDDLE, 64)]);
        let wr = SendWr {
            wr_id,
            op: SendOp::Send,
            flags,
            data: Data::Sges(&[left.sge(0, 8)]),
        };
        left.engine.post_send(a, &wr).unwrap();
        world.idle(100_000);
        world.hosts[1].engine.poll_notification()
    };
    let arm = |world: &mut World, notify| {
        let engine = &mut world.hosts[1].engine;
        engine.req_notify_cq(cq, notify).unwrap()
    };
    let plain = SendFlags::SIGNALED;
    let solicited = plain | SendFlags::SOLICITED;
    assert_eq!(send(&mut world, 1, solicited), None, "not armed");
    assert!(arm(&mut world, Notify::Solicited), "there is one to poll");
    assert_eq!(send(&mut world, 2, plain), None);
    assert_eq!(send(&mut world, 3, solicited), Some(cq));
    assert_eq!(send(&mut world, 4, solicited), None, "once");
    arm(&mut world, Notify::Any);
    assert_eq!(send(&mut world, 5, plain), Some(cq));
    // Any error completion counts as solicited.
    world.hosts[1].completions();
    assert!(!arm(&mut world, Notify::Solicited));
    let host = &mut world.hosts[1];
    host.post_recv(b, 6, &[host.sge(MIDDLE, 64)]);
    host.engine
        .modify_qp(b, &QpAttr::state(QpState::Err))
        .unwrap();
    assert_eq!(host.engine.poll_notification(), Some(cq));
    assert_eq!(ids(&host.completions()), [(6, WcStatus::WrFlushErr)]);
}

#[test]
fn a_completion_queue_in_use_is_resized_but_not_destroyed() {
    let (mut world, [a, b]) = pair();
    let cq = world.hosts[0].cq;
    for id in 0..20 {
        let [left, right] = &mut world.hosts;
        let (va, rkey) = (right.va(0), right.mr.rkey);
        left.post_send(a, id, SendOp::Write { va, rkey }, &[left.sge(0, 2000)]);
    }
    let mut seen = Vec::new();
    for depth in [4096, 64, 21, 20, 500] {
        world.idle(1500);
        let host = &mut world.hosts[0];
        host.engine.resize_cq(cq, depth).unwrap();
        let mut one = [xroce_proto::wc::Completion::EMPTY];
        let n = host.engine.poll_cq(cq, &mut one);
        seen.extend(ids(&one[..n]));
    }
    world.idle(SECOND);
    seen.extend(ids(&world.hosts[0].completions()));
    assert_eq!(seen, ok(&(0..20).collect::<Vec<_>>()));
    let engine = &mut world.hosts[0].engine;
    assert!(engine.resize_cq(cq, 0).is_err());
    assert_eq!(
        engine.destroy_cq(cq),
        Err(ObjectError::Busy { users: 2 }.into())
    );
    engine.destroy_qp(a).unwrap();
    engine.destroy_cq(cq).unwrap();
    assert_eq!(engine.destroy_cq(cq), Err(EngineError::NoCq(cq)));
    assert_eq!(
        engine.req_notify_cq(Cq(7), Notify::Any),
        Err(EngineError::NoCq(Cq(7)))
    );
    assert_eq!(world.hosts[1].engine.qp_state(b), Some(QpState::Rts));
}

/// A window of the second host over 1000 bytes of its own region, for this QP.
fn window(world: &mut World, qpn: Qpn, access: Access) -> RKey {
    let host = &mut world.hosts[1];
    let all = ALL_ACCESS | Access::MW_BIND;
    let mr = host.engine.reg_mr(host.pd, &host.region, all).unwrap();
    let mw = host.engine.alloc_mw(host.pd, MwType::Type2).unwrap();
    let op = SendOp::BindMw {
        rkey: mw.rkey,
        bind: Bind {
            lkey: mr.lkey,
            va: mr.va.wrapping_add(MIDDLE),
            len: 1000,
            access,
        },
    };
    host.post_send(qpn, 70, op, &[]);
    world.settle();
    mw.rkey
}

#[test]
fn k6_a_window_is_reached_through_the_queue_pair_that_bound_it_and_no_other() {
    let (mut world, [a, b]) = pair();
    let [a2, b2] = world.connect(MTU, [5, 6], |_| {}, fast);
    let rkey = window(&mut world, b, Access::REMOTE_WRITE | Access::ZERO_BASED);
    assert_eq!(ids(&world.hosts[1].completions()), ok(&[70]));
    let write = |world: &mut World, qpn, va, len| {
        let host = &mut world.hosts[0];
        let op = SendOp::Write {
            va: Va::new(va),
            rkey,
        };
        host.post_send(qpn, 1, op, &[host.sge(0, len)]);
        let (sent, _) = finish(world, 1, 0, SECOND);
        sent[0].status
    };
    world.hosts[0].region.write_at(0, &[7; 1000]).unwrap();
    assert_eq!(write(&mut world, a, 0, 1000), WcStatus::Success);
    assert_eq!(world.hosts[1].bytes(MIDDLE, 1000), [7; 1000]);
    // Through another QP, and beyond its end.
    assert_eq!(write(&mut world, a2, 0, 1000), WcStatus::RemAccessErr);
    assert_eq!(write(&mut world, a, 1, 1000), WcStatus::RemAccessErr);
    for qpn in [b2, b] {
        let event = AsyncEvent::qp(qpn, Event::QpAccessErr);
        assert_eq!(world.hosts[1].engine.poll_event(), Some(event));
    }
}

#[test]
fn case_84_a_bind_that_breaks_a_rule_ends_its_queue_pair() {
    let (mut world, [_, b]) = pair();
    window(&mut world, b, Access::REMOTE_READ | Access::MW_BIND);
    let done = ids(&world.hosts[1].completions());
    assert_eq!(done, [(70, WcStatus::MwBindErr)]);
    assert_eq!(world.hosts[1].engine.qp_state(b), Some(QpState::Err));
}

#[test]
fn case_82_a_region_with_a_window_is_not_deregistered() {
    let (mut world, _) = pair();
    let host = &mut world.hosts[1];
    let all = ALL_ACCESS | Access::MW_BIND;
    let mr = host.engine.reg_mr(host.pd, &host.region, all).unwrap();
    let mw = host.engine.alloc_mw(host.pd, MwType::Type1).unwrap();
    let bind = Bind {
        lkey: mr.lkey,
        va: mr.va,
        len: 10,
        access: Access::REMOTE_READ,
    };
    host.engine.bind_mw(mw.id, &bind).unwrap();
    let refused = host.engine.dereg_mr(mr.lkey).unwrap_err();
    assert!(
        refused.to_string().contains("1 memory windows"),
        "{refused}"
    );
    host.engine.dealloc_mw(mw.id).unwrap();
    host.engine.dereg_mr(mr.lkey).unwrap();
    assert_eq!(
        host.engine.dereg_mr(mr.lkey),
        Err(EngineError::NoMr(mr.lkey))
    );
}

#[test]
fn a_region_reregistered_in_the_middle_of_a_read_ends_it() {
    let (mut world, [a, b]) = pair();
    let host = &mut world.hosts[1];
    let (at, mr) = host.carve(1 << 20, ALL_ACCESS);
    let _ = at;
    let left = &mut world.hosts[0];
    let op = SendOp::Read {
        va: mr.va,
        rkey: mr.rkey,
    };
    left.post_send(a, 1, op, &[left.sge(MIDDLE, 1 << 20)]);
    world.idle(20_000);
    let engine = &mut world.hosts[1].engine;
    let new = engine.rereg_mr(mr.lkey, &Rereg::default()).unwrap();
    assert_ne!(new.rkey, mr.rkey);
    let (sent, _) = finish(&mut world, 1, 0, SECOND);
    assert_eq!(sent[0].status, WcStatus::RemAccessErr);
    let event = AsyncEvent::qp(b, Event::QpAccessErr);
    assert_eq!(world.hosts[1].engine.poll_event(), Some(event));
    assert_eq!(world.hosts[1].engine.poll_event(), None);
}

/// Rules K1, K4.
#[test]
fn case_85_keys_work_in_their_own_protection_domain_only() {
    for remote in [false, true] {
        let (mut world, [a, _]) = pair();
        let host = &mut world.hosts[usize::from(remote)];
        let other = host.engine.alloc_pd();
        let mr = host.engine.reg_mr(other, &host.region, ALL_ACCESS).unwrap();
        let [left, right] = &mut world.hosts;
        let mut own = left.sge(0, 8);
        let mut rkey = right.mr.rkey;
        if remote {
            rkey = mr.rkey;
        } else {
            own = Sge {
                lkey: mr.lkey,
                ..own
            };
        }
        let va = right.va(0);
        left.post_send(a, 1, SendOp::Write { va, rkey }, &[own]);
        let (sent, _) = finish(&mut world, 1, 0, SECOND);
        let status = if remote {
            WcStatus::RemAccessErr
        } else {
            WcStatus::LocProtErr
        };
        assert_eq!(ids(&sent), [(1, status)]);
    }
}

/// Rule W23.
#[test]
fn case_51_only_members_of_one_partition_talk() {
    let (mut world, qpns) = pair();
    let set = |world: &mut World, keys: [u16; 2]| {
        for (host, key) in world.hosts.iter_mut().zip(keys) {
            host.engine.set_pkey(0, PKey::new(key)).unwrap();
        }
    };
    set(&mut world, [0x8123, 0x0123]);
    exchange(&mut world, qpns, 3000, SECOND);
    set(&mut world, [0x0123, 0x0123]);
    let host = &mut world.hosts[0];
    host.post_send(qpns[0], 1, SendOp::Send, &[host.sge(0, 8)]);
    let (sent, _) = finish(&mut world, 1, 0, SECOND);
    assert_eq!(ids(&sent), [(1, WcStatus::RetryExcErr)]);
    let right = &mut world.hosts[1].engine;
    assert_eq!(right.qp_counters(qpns[1]).unwrap().rnr_naks_out, 0);
    assert_eq!(right.pkey(0), Some(PKey::new(0x0123)));
    assert_eq!(right.pkey(1), None);
    assert!(right.set_pkey(1, PKey::DEFAULT).is_err());
    assert!(right.set_pkey(0, PKey::new(0x8000)).is_err());
    // A QP made later has the table's key as well.
    set(&mut world, [0x8001, 0x8001]);
    let fresh = world.connect(MTU, [1, 1], |_| {}, fast);
    assert_eq!(
        world.hosts[0].engine.query_qp(fresh[0]).unwrap().attr.pkey,
        PKey::new(0x8001)
    );
    exchange(&mut world, fresh, 3000, SECOND);
}

#[test]
fn case_28_err_in_the_middle_of_a_message_completes_each_receive_once() {
    for delay in (0..12_000).step_by(500) {
        let (mut world, [a, b]) = pair();
        for id in 0..200 {
            let host = &mut world.hosts[1];
            host.post_recv(b, id, &[host.sge(MIDDLE, 0x1000)]);
        }
        let host = &mut world.hosts[0];
        host.post_send(a, 1, SendOp::Send, &[host.sge(0, 0x1000)]);
        world.idle(delay);
        let engine = &mut world.hosts[1].engine;
        engine.modify_qp(b, &QpAttr::state(QpState::Err)).unwrap();
        world.idle(SECOND);
        let done = world.hosts[1].completions();
        assert!(
            done.iter().map(|c| c.wr_id).eq(0..200),
            "each once, in order"
        );
        let good = done.iter().filter(|c| c.status == WcStatus::Success);
        assert!(good.count() <= 1, "after {delay} ns");
        assert!(done[1..].iter().all(|c| c.status == WcStatus::WrFlushErr));
    }
}

#[test]
fn events_of_a_destroyed_queue_pair_are_gone_with_it() {
    let (mut world, [a, b]) = pair();
    let host = &mut world.hosts[0];
    let (va, rkey) = (Va::new(0), RKey::new(0xbad));
    host.post_send(a, 1, SendOp::Write { va, rkey }, &[host.sge(0, 8)]);
    finish(&mut world, 1, 0, SECOND);
    let engine = &mut world.hosts[1].engine;
    engine.destroy_qp(b).unwrap();
    assert_eq!(engine.poll_event(), None);
    let engine = &mut world.hosts[0].engine;
    assert_eq!(
        engine.poll_event(),
        None,
        "case 123: the completion says it"
    );
    assert_eq!(engine.stats().events_lost, 0);
    let rts = engine.query_qp(a).unwrap();
    assert_eq!(rts.attr.state, Some(QpState::Err));
    assert_eq!(rts.attr.rq_psn, Some(Psn::new(0x1000)));
}
