//! Lives of objects, what is refused and why, errors of completions and events.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::time::Duration;

use common::{ALL, World};
use xroce_proto::wr::PostError;
use xroce_verbs::{
    Access, ConnectAttr, Endpoint, Event, InUse, Notify, PKey, PathMtu, PortState, Psn, QpAttr,
    QpState, Qpn, Rc, RecvBatch, Region, Reliability, Rereg, SelectiveParams, SendBatch,
    SliceError, Type1, VerbsError, WcStatus, WrError,
};

#[test]
fn objects_may_be_dropped_in_any_order() {
    let World { net, hosts } = World::new();
    let [host, _other] = hosts;
    let qp = host.qp::<Rc>().create().unwrap();
    let window = host.pd.alloc_mw::<Type1>().unwrap();
    let common::Host {
        context,
        pd,
        cq,
        mr,
        ..
    } = host;
    drop((context, pd, cq));
    let qp = qp.init(ALL).unwrap();
    assert_eq!(qp.state().unwrap(), QpState::Init);
    drop(mr);
    drop(window);
    qp.destroy();
    drop(net);
}

#[test]
fn a_refusal_names_the_users_and_gives_the_object_back() {
    let World { hosts, .. } = World::new();
    let [host, _] = hosts;
    let qp = host.qp::<Rc>().create().unwrap();
    let refused = host.pd.dealloc().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "still in use by 1 queue pair, 1 memory region: destroy these first"
    );
    let pd = refused.object;
    let refused = host.cq.destroy().unwrap_err();
    let VerbsError::InUse(users) = *refused.error else {
        panic!("{refused}")
    };
    let twice = InUse {
        qps: 2,
        ..InUse::default()
    };
    assert_eq!(users, twice, "to send and to receive");
    drop(qp);
    refused.object.destroy().unwrap();
    host.mr.dereg().unwrap();
    pd.dealloc().unwrap();
}

#[test]
fn a_region_with_a_bound_window_stays_until_it_is_unbound() {
    let world = World::new();
    let pd = &world.hosts[0].pd;
    let mr = pd.alloc_mr(64, ALL).unwrap();
    let mut window = pd.alloc_mw::<Type1>().unwrap();
    window
        .bind(mr.slice(..).unwrap(), Access::REMOTE_READ)
        .unwrap();
    let kept = mr.dereg().unwrap_err();
    assert!(kept.to_string().contains("1 memory windows are bound"));
    let mut mr = kept.object;
    let change = Rereg {
        access: Some(Access::LOCAL_WRITE),
        ..Rereg::default()
    };
    assert!(mr.rereg(&change).is_err());
    window
        .bind(mr.slice(0..0).unwrap(), Access::empty())
        .unwrap();
    mr.dereg().unwrap();
    // Dropped in the other order: the region goes when the window does.
    let mr = pd.alloc_mr(64, ALL).unwrap();
    window
        .bind(mr.slice(..).unwrap(), ALL & Access::REMOTE_READ)
        .unwrap();
    drop(mr);
    drop(window);
}

#[test]
fn a_region_is_registered_anew_under_other_keys() {
    let world = World::new();
    let pd = &world.hosts[0].pd;
    let mut mr = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    assert!(mr.remote().is_none());
    let old = mr.lkey();
    let other = Region::anonymous(4096).unwrap();
    other.write_at(100, b"other").unwrap();
    let elsewhere = world.hosts[0].context.alloc_pd().unwrap();
    let change = Rereg {
        pd: Some(&elsewhere),
        access: Some(Access::REMOTE_READ),
        memory: Some((&other, 100..200)),
    };
    mr.rereg(&change).unwrap();
    assert_ne!(mr.lkey(), old);
    assert_eq!((mr.len(), mr.access()), (100, Access::REMOTE_READ));
    assert_eq!(mr.remote().unwrap().len(), 100);
    let mut bytes = [0; 5];
    mr.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"other");
    assert!(
        elsewhere
            .dealloc()
            .unwrap_err()
            .to_string()
            .contains("1 memory region")
    );
    let foreign = world.hosts[1].context.alloc_pd().unwrap();
    let change = Rereg {
        pd: Some(&foreign),
        ..Rereg::default()
    };
    let refused = mr.rereg(&change).unwrap_err().to_string();
    assert!(refused.contains("another context"), "{refused}");
}

#[test]
fn ranges_are_checked_where_they_are_made() {
    let world = World::new();
    let mr = &world.hosts[0].mr;
    let size = mr.len();
    let outside = SliceError::Range {
        start: size - 1,
        end: size + 1,
        size,
    };
    assert_eq!(mr.slice(size - 1..size + 1).unwrap_err(), outside);
    assert_eq!(mr.slice(..).unwrap().len(), 1 << 16);
    assert!(mr.slice(size..).unwrap().is_empty());
    #[allow(clippy::reversed_empty_ranges, reason = "that is the point")]
    let reversed = mr.slice(5..3);
    assert!(reversed.is_err());
    assert!(mr.slice(u64::MAX..).is_err());
    assert!(mr.slice(..=u64::MAX).is_err());
    assert!(matches!(mr.word(4), Err(SliceError::Misaligned { .. })));
    assert!(mr.word(size - 4).is_err());
    assert!(mr.write(size, &[0]).is_err());
    assert!(mr.read(u64::MAX, &mut [0; 8]).is_err());
    assert_eq!(mr.fetch_add(8, 2).unwrap(), 0);
    assert_eq!(mr.compare_swap(8, 2, 9).unwrap(), 2);
    assert!(mr.fetch_add(1, 2).is_err());
    let remote = mr.remote().unwrap();
    assert!(remote.slice(1..size + 1).is_err());
    assert!(remote.word(12).is_err());
    let empty = world.hosts[0].pd.alloc_mr(0, ALL).unwrap_err();
    assert!(empty.to_string().contains("0 bytes"), "{empty}");
    let rights = world.hosts[0].pd.alloc_mr(8, Access::REMOTE_WRITE);
    assert!(rights.unwrap_err().to_string().contains("need LOCAL_WRITE"));
}

#[test]
fn a_batch_is_posted_up_to_the_request_that_is_wrong() {
    let mut world = World::new();
    let [a, _b] = world.rc();
    let there = world.hosts[1].mr.remote().unwrap();
    let near = &world.hosts[0];
    let mut batch = SendBatch::new();
    batch.write(1, there).inline(b"good");
    batch.write(2, there).inline(&[1; 65]);
    batch.write(3, there).inline(b"late");
    let bad = a.post(&batch).unwrap_err();
    assert_eq!((bad.index, bad.wr_id), (1, 2));
    let too_long = PostError::InlineTooLong { given: 65, max: 64 };
    assert_eq!(*bad.error, WrError::Post(too_long));
    assert_eq!(
        bad.to_string(),
        "work request 1 of the batch (wr_id 0x2): 65 inline bytes, the queue pair was created for \
         64"
    );
    assert_eq!(a.sends_posted(), 1);
    batch.clear();
    let sge = || near.mr.slice(0..1).unwrap();
    batch
        .write(4, there)
        .sge(sge())
        .sge(sge())
        .sge(sge())
        .sge(sge())
        .sge(sge());
    let many = *a.post(&batch).unwrap_err().error;
    assert_eq!(
        many,
        WrError::Post(PostError::TooManySges { given: 5, max: 4 })
    );
    batch.clear();
    batch.write(5, there.slice(0..8).unwrap()).inline(&[0; 9]);
    let room = *a.post(&batch).unwrap_err().error;
    assert_eq!(room, WrError::RemoteRoom { given: 9, room: 8 });
    world.run();
    assert_eq!(world.hosts[0].completions().len(), 1);
    assert_eq!(world.hosts[1].bytes(0, 4), b"good");
}

#[test]
fn objects_of_two_contexts_do_not_mix() {
    let world = World::new();
    let [a, _b] = world.rc();
    let [near, far] = &world.hosts;
    let there = far.mr.remote().unwrap();
    let mut batch = SendBatch::new();
    batch.write(1, there).sge(far.mr.slice(0..8).unwrap());
    let refused = *a.post(&batch).unwrap_err().error;
    assert_eq!(refused, WrError::OtherContext);
    let mut receive = RecvBatch::new();
    receive.recv(1).sge(near.mr.slice(0..1).unwrap());
    receive
        .recv(2)
        .sge(near.mr.slice(0..1).unwrap())
        .sge(far.mr.slice(0..1).unwrap());
    let refused = a.post_recv(&receive).unwrap_err();
    assert_eq!((refused.index, *refused.error), (1, WrError::OtherContext));
    let refused = near.pd.qp::<Rc>(&near.cq, &far.cq).create().unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("completion queue belongs to another context")
    );
    let mut window = near.pd.alloc_mw::<Type1>().unwrap();
    assert!(window.bind(far.mr.slice(..).unwrap(), ALL).is_err());
    let channel = far.context.create_channel().unwrap();
    assert!(near.context.create_cq_on(4, &channel).is_err());
}

#[test]
fn a_dead_queue_pair_says_why() {
    let mut world = World::new();
    let [a, b] = world.rc();
    let far = &world.hosts[1];
    let gone = {
        let mr = far.pd.alloc_mr(64, ALL).unwrap();
        mr.remote().unwrap()
    };
    let mut batch = SendBatch::new();
    batch.write(1, gone).inline(b"x");
    batch.write(2, far.mr.remote().unwrap()).inline(b"y");
    a.post(&batch).unwrap();
    world.run();
    let [near, far] = &world.hosts;
    let done = near.completions();
    let error = done[0].ok().unwrap_err();
    assert_eq!((error.wr_id, error.status), (1, WcStatus::RemAccessErr));
    assert!(
        error.to_string().contains("does not grant this access"),
        "{error}"
    );
    assert_eq!(done[1].ok().unwrap_err().status, WcStatus::WrFlushErr);
    assert_eq!(a.state().unwrap(), QpState::Err);
    let failure = a.failure().unwrap();
    assert_eq!(failure.report.wr_id, Some(1));
    assert!(failure.to_string().contains("R_Key"), "{failure}");
    let events: Vec<_> = std::iter::from_fn(|| far.context.poll_event().unwrap()).collect();
    let access = events.iter().find(|e| e.event == Event::QpAccessErr);
    assert!(b.is_source_of(access.unwrap()));
    assert!(b.failure().unwrap().report.by_responder);
    // From RESET on it lives again.
    let [a, b] = [a, b].map(|qp| qp.reset().unwrap().init(ALL).unwrap());
    assert!(a.failure().is_none());
    let [a, _b] = common::connect_rc([a, b], &ConnectAttr::default());
    batch.clear();
    batch
        .write(3, world.hosts[1].mr.remote().unwrap())
        .inline(b"z");
    a.post(&batch).unwrap();
    world.run();
    assert_eq!(world.hosts[0].completions()[0].ok().unwrap().wr_id, 3);
    assert!(a.counters().unwrap().tx_packets > 0);
}

#[test]
fn sends_are_drained_and_resumed() {
    let mut world = World::new();
    let [a, _b] = world.rc();
    let there = world.hosts[1].mr.remote().unwrap();
    let mut batch = SendBatch::new();
    batch.write(1, there).inline(b"one");
    a.post(&batch).unwrap();
    world.settle();
    a.drain().unwrap();
    a.post(&batch).unwrap();
    world.run();
    assert_eq!(world.hosts[0].completions().len(), 1);
    let event = world.hosts[0].context.poll_event().unwrap().unwrap();
    assert_eq!(event.event, Event::SqDrained);
    assert_eq!(a.state().unwrap(), QpState::Sqd);
    a.resume().unwrap();
    world.run();
    assert_eq!(world.hosts[0].completions().len(), 1);
    let info = a.query().unwrap();
    assert_eq!((info.init.max_send_wr, info.attr.timeout), (64, Some(14)));
    assert!(matches!(
        a.modify(&QpAttr::state(QpState::Reset)),
        Err(VerbsError::StateGiven)
    ));
    let change = QpAttr {
        access: Some(Access::REMOTE_READ),
        ..QpAttr::default()
    };
    a.modify(&change).unwrap();
    assert_eq!(a.query().unwrap().attr.access, Some(Access::REMOTE_READ));
    a.fail().unwrap();
    a.post(&batch).unwrap();
    let flushed = world.hosts[0].completions();
    assert_eq!(flushed[0].status, WcStatus::WrFlushErr);
    assert!(a.failure().is_none(), "the program wanted it");
}

#[test]
fn a_connect_that_is_refused_leaves_the_queue_pair_in_init() {
    let world = World::new();
    let [a, b] = world.init::<Rc>();
    let peer = b.endpoint().unwrap();
    for (attr, peer, words) in [
        (
            ConnectAttr::default(),
            Endpoint::new(
                "192.0.2.77".parse::<std::net::IpAddr>().unwrap().into(),
                peer.qpn,
                peer.psn,
            ),
            "192.0.2.77",
        ),
        (
            ConnectAttr {
                retry_cnt: 8,
                ..ConnectAttr::default()
            },
            peer.clone(),
            "retry_cnt is 8",
        ),
        (
            ConnectAttr {
                sgid_index: 3,
                ..ConnectAttr::default()
            },
            peer.clone(),
            "index 3",
        ),
    ] {
        let qp = world.hosts[0]
            .qp::<Rc>()
            .create()
            .unwrap()
            .init(ALL)
            .unwrap();
        let refused = qp.connect(&peer, &attr).unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
        assert_eq!(refused.object.state().unwrap(), QpState::Init);
        refused
            .object
            .connect(&b.endpoint().unwrap(), &ConnectAttr::default())
            .unwrap();
    }
    assert!(a.endpoint_at(9).is_err());
    let narrow = ConnectAttr {
        path_mtu: Some(PathMtu::Mtu256),
        ..ConnectAttr::default()
    };
    let a = a.connect(&peer, &narrow).unwrap();
    assert_eq!(a.query().unwrap().attr.path_mtu, Some(PathMtu::Mtu256));
    let psn = world.hosts[0].qp::<Rc>().psn(Psn::new(9)).create().unwrap();
    assert_eq!(psn.init(ALL).unwrap().endpoint().unwrap().psn, Psn::new(9));
}

#[test]
fn completion_queues_notify_resize_and_overrun() {
    let mut world = World::new();
    let near = &world.hosts[0];
    let channel = near.context.create_channel().unwrap();
    let one = near.context.create_cq_on(2, &channel).unwrap();
    let other = near.context.create_cq_on(8, &channel).unwrap();
    let qp = near
        .pd
        .qp::<Rc>(&one, &other)
        .create()
        .unwrap()
        .init(ALL)
        .unwrap();
    let peer = world.hosts[1]
        .qp::<Rc>()
        .create()
        .unwrap()
        .init(ALL)
        .unwrap();
    let [a, _b] = common::connect_rc([qp, peer], &ConnectAttr::default());
    assert!(!one.arm(Notify::Any).unwrap());
    let manual = channel.wait(&[&one], Duration::ZERO).unwrap_err();
    assert!(matches!(manual, VerbsError::Manual));
    let there = world.hosts[1].mr.remote().unwrap();
    let mut batch = SendBatch::new();
    batch.write(1, there).inline(b"1");
    a.post(&batch).unwrap();
    world.run();
    let told = channel.wait(&[&other, &one], Duration::ZERO).unwrap();
    assert_eq!(told, Some(1));
    assert!(one.arm(Notify::Solicited).unwrap(), "one is there already");
    assert!(one.resize(0).is_err());
    one.resize(3).unwrap();
    assert_eq!(one.depth(), 3);
    for _ in 0..3 {
        a.post(&batch).unwrap();
    }
    world.run();
    let near = &world.hosts[0];
    let events: Vec<_> = std::iter::from_fn(|| near.context.poll_event().unwrap()).collect();
    assert_eq!(events[0].event, Event::CqErr);
    assert!(one.is_source_of(&events[0]) && !other.is_source_of(&events[0]));
    assert!(a.is_source_of(&events[1]) && events[1].event == Event::QpFatal);
    assert_eq!(a.state().unwrap(), QpState::Err);
    assert_eq!(near.context.stats().0.cq_overflows, 1);
    assert!(near.context.create_cq(1 << 23).is_err());
}

#[test]
fn case_128_a_device_reports_messages_that_every_queue_pair_takes() {
    let world = World::new();
    let context = &world.hosts[0].context;
    let longest = (1 << 31) - 256;
    assert_eq!(context.query_device().max_msg, longest);
    assert_eq!(context.query_port().max_msg_sz, longest);
}

#[test]
fn device_and_port_tell_their_limits() {
    let world = World::new();
    let context = &world.hosts[0].context;
    let device = context.query_device();
    assert_eq!((device.max_inline, device.max_sge), (512, 32));
    assert_eq!(device.name, context.name());
    let port = context.query_port();
    assert_eq!(
        (port.state, port.active_mtu),
        (PortState::Active, PathMtu::Mtu4096)
    );
    assert_eq!(port.gid_tbl_len, 1);
    assert_eq!(context.gid(0), Some(common::gid(0)));
    assert_eq!(context.gid(1), None);
    assert_eq!(context.pkey(0), Some(PKey::DEFAULT));
    context.set_pkey(0, PKey::new(0x8005)).unwrap();
    assert_eq!(context.pkey(0), Some(PKey::new(0x8005)));
    assert!(context.set_pkey(1, PKey::DEFAULT).is_err());
    let too_much = world.hosts[0]
        .qp::<Rc>()
        .max_inline(513)
        .create()
        .unwrap_err();
    assert!(too_much.to_string().contains("513, it must be 0 to 512"));
    assert_ne!(world.rc()[0].qpn(), Qpn::new(0));
}

#[test]
fn a_device_that_breaks_says_so_to_everybody() {
    let world = World::new();
    let [a, _b] = world.rc();
    let host = &world.hosts[0];
    host.unplug();
    let first = host
        .context
        .poll_at(xroce_verbs::Instant::from_nanos(0))
        .unwrap_err();
    assert!(first.to_string().contains("unplugged"), "{first}");
    assert!(host.cq.poll_one().is_err());
    assert!(host.cq.wait(Duration::ZERO).is_ok(), "woken, to look");
    assert!(host.context.poll_event().is_err());
    assert!(host.context.alloc_pd().is_err());
    assert_eq!(host.context.query_port().state, PortState::Down);
    let mut batch = SendBatch::new();
    batch.send(1);
    let refused = *a.post(&batch).unwrap_err().error;
    assert!(matches!(refused, WrError::Device { .. }), "{refused}");
}

/// Both want it: over the smaller range. One does not: neither end sends an extension packet, and
/// the one that would has adaptive timeouts.
#[test]
fn losses_are_repaired_selectively_if_both_sides_would() {
    let selective = |range| {
        Reliability::Selective(SelectiveParams {
            range,
            window: 128,
            store: 128,
            ..SelectiveParams::default()
        })
    };
    for (wanted, agreed) in [
        ([selective(1024), selective(256)], true),
        ([selective(1024), Reliability::GoBackN], false),
        ([Reliability::GoBackN, selective(512)], false),
    ] {
        let mut world = World::new();
        let [a, b] = [0, 1].map(|n| {
            let builder = world.hosts[n].qp::<Rc>();
            let qp = builder.reliability(wanted[n]).create().unwrap();
            qp.init(ALL).unwrap()
        });
        let [a, b] = common::connect_rc([a, b], &ConnectAttr::default());
        for (qp, wanted) in [&a, &b].into_iter().zip(wanted) {
            let has = qp.query().unwrap().attr.reliability.unwrap();
            match has {
                Reliability::Selective(params) => assert!(agreed && params.range == 256),
                Reliability::Adaptive(_) => {
                    assert!(!agreed && wanted != Reliability::GoBackN);
                }
                _ => assert!(!agreed && wanted == Reliability::GoBackN),
            }
        }
        let mut batch = SendBatch::new();
        batch
            .write(3, world.hosts[1].mr.remote().unwrap())
            .inline(b"z");
        a.post(&batch).unwrap();
        world.run();
        assert_eq!(world.hosts[0].completions()[0].ok().unwrap().wr_id, 3);
    }
}
