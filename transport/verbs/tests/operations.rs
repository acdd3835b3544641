//! Every operation of every service, over the simulated network.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use common::{ALL, World, gid};
use xroce_net::sim::Impairment;
use xroce_verbs::{
    Access, AhAttr, Event, GRH_BYTES, Gid, Placement, QKey, Qp, Qpn, Rc, RecvBatch, SendBatch,
    SrqInfo, Type1, Type2, Ud, WcFlags, WcOpcode, WcStatus,
};

fn recv(qp: &Qp<Rc>, wr_id: u64, world: &World, range: std::ops::Range<u64>) {
    let mut batch = RecvBatch::new();
    batch
        .recv(wr_id)
        .sge(world.hosts[1].mr.slice(range).unwrap());
    qp.post_recv(&batch).unwrap();
}

#[test]
fn a_batch_of_every_reliable_operation() {
    let mut world = World::new();
    let [a, b] = world.rc();
    let [near, far] = &world.hosts;
    near.mr.write(0, b"sent").unwrap();
    near.mr.write(64, &77u64.to_ne_bytes()).unwrap();
    far.mr.write(200, b"readable").unwrap();
    far.mr.write(256, &5u64.to_ne_bytes()).unwrap();
    for n in 0..3 {
        recv(&b, 100 + n, &world, n * 16..n * 16 + 16);
    }
    let there = far.mr.remote().unwrap();
    let word = |at| there.word(at).unwrap();
    let mut batch = SendBatch::new();
    batch.send(1).sge(near.mr.slice(0..4).unwrap()).solicited();
    batch
        .send_imm(2, *b"imm!")
        .inline(b"in")
        .inline(b"line")
        .unsignaled();
    batch
        .write(3, there.slice(128..).unwrap())
        .sge(near.mr.slice(0..2).unwrap())
        .sge(near.mr.slice(2..4).unwrap());
    batch.write_imm(4, there.slice(140..150).unwrap(), [9; 4]);
    batch
        .read(5, there.slice(200..208).unwrap())
        .sge(near.mr.slice(512..520).unwrap());
    batch.fetch_add(6, word(256), 3, near.mr.word(520).unwrap());
    batch
        .compare_swap(7, word(256), 8, 21, near.mr.word(528).unwrap())
        .fence();
    batch.atomic_write(8, word(264), near.mr.word(64).unwrap());
    batch.flush(9, there.slice(128..272).unwrap(), Placement::GLOBAL);
    batch.flush_region(10, there.rkey(), Placement::GLOBAL);
    assert_eq!(batch.len(), 10);
    a.post(&batch).unwrap();
    world.run();
    let [near, far] = &world.hosts;
    let done: Vec<_> = near.completions();
    let ids: Vec<u64> = done.iter().map(|wc| wc.ok().unwrap().wr_id).collect();
    assert_eq!(ids, [1, 3, 4, 5, 6, 7, 8, 9, 10], "2 is unsignaled");
    assert_eq!(done[7].opcode, WcOpcode::Flush);
    assert_eq!(near.bytes(512, 8), b"readable");
    assert_eq!(near.bytes(520, 8), 5u64.to_ne_bytes());
    assert_eq!(near.bytes(528, 8), 8u64.to_ne_bytes());
    let got = far.completions();
    let what: Vec<_> = got.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(what, [(100, 4), (101, 6), (102, 0)]);
    assert!(got[0].flags.contains(WcFlags::SOLICITED));
    assert_eq!(got[1].imm, *b"imm!");
    assert_eq!(got[2].opcode, WcOpcode::RecvRdmaWithImm);
    assert_eq!(far.bytes(0, 4), b"sent");
    assert_eq!(far.bytes(16, 6), b"inline");
    assert_eq!(far.bytes(128, 4), b"sent");
    assert_eq!(far.bytes(256, 8), 21u64.to_ne_bytes());
    assert_eq!(far.bytes(264, 8), 77u64.to_ne_bytes());
}

#[test]
fn a_batch_can_be_posted_again_and_emptied() {
    let mut world = World::with(Impairment {
        loss_ppm: 50_000,
        ..Impairment::delay(1000)
    });
    let [a, _b] = world.rc();
    let there = world.hosts[1].mr.remote().unwrap();
    let mut batch = SendBatch::new();
    batch.write(1, there).inline(b"once");
    a.post(&batch).unwrap();
    a.post(&batch).unwrap();
    batch.clear();
    assert!(batch.is_empty());
    batch.write(2, there).inline(b"more");
    a.post(&batch).unwrap();
    world.run();
    let ids: Vec<_> = world.hosts[0].completions();
    let ids: Vec<_> = ids.iter().map(|wc| wc.ok().unwrap().wr_id).collect();
    assert_eq!(ids, [1, 1, 2]);
    assert_eq!(world.hosts[1].bytes(0, 4), b"more");
}

#[test]
fn windows_of_both_types_are_bound_used_and_taken_back() {
    let mut world = World::new();
    let [a, b] = world.rc();
    let far = &world.hosts[1];
    let mut one = far.pd.alloc_mw::<Type1>().unwrap();
    let two = far.pd.alloc_mw::<Type2>().unwrap();
    let rights = Access::REMOTE_WRITE | Access::ZERO_BASED;
    let by_call = one.bind(far.mr.slice(64..80).unwrap(), rights).unwrap();
    assert_eq!((by_call.va().value(), by_call.len()), (0, 16));
    let part = || far.mr.slice(96..112).unwrap();
    let mut bind = SendBatch::new();
    bind.bind(50, &two, 7, part(), Access::REMOTE_WRITE);
    b.post(&bind).unwrap();
    let by_request = two.remote(7, part(), Access::REMOTE_WRITE);
    let mut batch = SendBatch::new();
    batch.write(1, by_call.slice(4..8).unwrap()).inline(b"one!");
    batch.write(2, by_request).inline(b"two!");
    a.post(&batch).unwrap();
    world.run();
    let [near_done, far_done] = [near_ids(&world, 0), near_ids(&world, 1)];
    assert_eq!((near_done, far_done), (vec![1, 2], vec![50]));
    assert_eq!(world.hosts[1].bytes(68, 4), b"one!");
    assert_eq!(world.hosts[1].bytes(96, 4), b"two!");
    // The peer takes the key back; afterwards it is worth nothing.
    recv(&b, 60, &world, 0..16);
    batch.clear();
    batch.send_inv(3, two.key(7)).inline(b"bye");
    batch.write(4, by_request).inline(b"late");
    a.post(&batch).unwrap();
    world.run();
    let [near, far] = &world.hosts;
    let got = far.completions();
    assert_eq!(got[0].invalidated(), Some(two.key(7)));
    let done = near.completions();
    assert_eq!(done[0].status, WcStatus::Success);
    assert_eq!(done[1].status, WcStatus::RemAccessErr);
    assert_eq!(far.bytes(96, 4), b"two!");
}

fn near_ids(world: &World, host: usize) -> Vec<u64> {
    let done = world.hosts[host].completions();
    done.iter().map(|wc| wc.ok().unwrap().wr_id).collect()
}

#[test]
fn a_region_meant_for_it_is_invalidated_by_its_owner() {
    let mut world = World::new();
    let [a, _b] = world.rc();
    let near = &world.hosts[0];
    let fast = near.pd.alloc_mr(64, ALL | Access::INVALIDATE).unwrap();
    let mut batch = SendBatch::new();
    batch.local_inv(1, fast.rkey());
    a.post(&batch).unwrap();
    world.run();
    let done = world.hosts[0].completions();
    assert_eq!(done[0].ok().unwrap().opcode, WcOpcode::LocalInv);
    fast.dereg().unwrap();
}

#[test]
fn unreliable_connections_send_and_write() {
    let mut world = World::new();
    let [a, b] = world.uc();
    let [near, far] = &world.hosts;
    let mut receive = RecvBatch::new();
    receive.recv(9).sge(far.mr.slice(0..64).unwrap());
    receive.recv(10);
    b.post_recv(&receive).unwrap();
    let there = far.mr.remote().unwrap();
    let mut batch = SendBatch::new();
    batch.send(1).inline(b"uc").solicited();
    batch
        .write(2, there.slice(100..).unwrap())
        .sge(near.mr.slice(0..3000).unwrap());
    batch
        .write_imm(3, there.slice(90..94).unwrap(), [1; 4])
        .inline(b"wimm");
    a.post(&batch).unwrap();
    world.run();
    assert_eq!(near_ids(&world, 0), [1, 2, 3]);
    assert_eq!(near_ids(&world, 1), [9, 10]);
    assert_eq!(world.hosts[1].bytes(0, 2), b"uc");
    assert_eq!(world.hosts[1].bytes(90, 4), b"wimm");
}

const QKEY: QKey = QKey::new(0x1234);

fn ud(world: &World, host: usize) -> Qp<Ud> {
    let qp = world.hosts[host].qp::<Ud>().create().unwrap();
    qp.init(QKEY).unwrap().activate().unwrap()
}

#[test]
fn datagrams_go_to_a_queue_pair_or_a_group() {
    let mut world = World::new();
    let [a, b] = [0, 1].map(|n| ud(&world, n));
    let group = Gid::from("239.1.2.3".parse::<std::net::IpAddr>().unwrap());
    b.attach_mcast(group).unwrap();
    let [near, far] = &world.hosts;
    let mut receive = RecvBatch::new();
    receive.recv(1).sge(far.mr.slice(0..64).unwrap());
    receive.recv(2).sge(far.mr.slice(64..128).unwrap());
    b.post_recv(&receive).unwrap();
    let ah = near.pd.create_ah(&AhAttr::to(gid(1))).unwrap();
    let all = near.pd.create_ah(&AhAttr::to(group)).unwrap();
    assert_eq!((ah.dgid(), all.dgid()), (gid(1), group));
    let mut batch = SendBatch::new();
    batch.send_to(7, ah.to(b.qpn(), QKEY)).inline(b"to you");
    batch
        .send_imm_to(8, all.to(Qpn::MULTICAST, QKEY), *b"four")
        .inline(b"to all");
    a.post(&batch).unwrap();
    // Posted with them: nothing needs the handles any more.
    drop((ah, all));
    world.run();
    assert_eq!(near_ids(&world, 0), [7, 8]);
    let far = &world.hosts[1];
    let got = far.completions();
    assert_eq!(got.len(), 2);
    for (wc, text, at) in [(got[0], b"to you", 0), (got[1], b"to all", 64)] {
        assert_eq!((wc.byte_len, wc.src_qp), (GRH_BYTES + 6, a.qpn()));
        assert!(wc.flags.contains(WcFlags::GRH));
        assert_eq!(far.bytes(at + u64::from(GRH_BYTES), 6), text);
    }
    assert_eq!(got[1].imm, *b"four");
    b.detach_mcast(group).unwrap();
    let again = b.detach_mcast(group).unwrap_err().to_string();
    assert!(again.contains("is not attached to 239.1.2.3"), "{again}");
}

#[test]
fn two_queue_pairs_take_from_one_shared_queue() {
    let mut world = World::new();
    let far = &world.hosts[1];
    let info = SrqInfo {
        limit: 2,
        ..SrqInfo::default()
    };
    let srq = far.pd.create_srq(&info).unwrap();
    let mut receive = RecvBatch::new();
    for n in 0..3 {
        receive.recv(n).sge(far.mr.slice(n * 8..n * 8 + 8).unwrap());
    }
    srq.post(&receive).unwrap();
    assert_eq!(srq.query().unwrap(), (info, 3));
    let pairs = [(); 2].map(|()| {
        let a = world.hosts[0].qp::<Rc>().create().unwrap();
        let b = far.qp::<Rc>().srq(&srq).create().unwrap();
        let pair = [a.init(ALL).unwrap(), b.init(ALL).unwrap()];
        common::connect_rc(pair, &xroce_verbs::ConnectAttr::default())
    });
    for (n, [a, _]) in (0u8..).zip(&pairs) {
        let mut batch = SendBatch::new();
        batch.send(0).inline(&[n]);
        a.post(&batch).unwrap();
    }
    let refused = pairs[0][1].post_recv(&receive).unwrap_err().to_string();
    assert!(refused.contains("shared receive queue"), "{refused}");
    world.run();
    let far = &world.hosts[1];
    assert_eq!(far.completions().len(), 2);
    let event = far.context.poll_event().unwrap();
    let mut events: Vec<_> = event.into_iter().collect();
    events.extend(std::iter::from_fn(|| far.context.poll_event().unwrap()));
    let limit = events.iter().find(|e| e.event == Event::SrqLimitReached);
    assert!(srq.is_source_of(limit.unwrap()), "{events:?}");
    assert_eq!(srq.query().unwrap().0.limit, 0);
    let kept = srq.destroy().unwrap_err();
    assert_eq!(
        kept.to_string(),
        "still in use by 2 queue pairs: destroy these first"
    );
    drop(pairs);
    kept.object.resize(64).unwrap();
    kept.object.arm_limit(5).unwrap();
    let event = far.context.poll_event().unwrap().unwrap();
    assert_eq!(event.event, Event::SrqLimitReached);
    kept.object.destroy().unwrap();
}
