//! Multicast: every attached QP with the right Q_Key gets a copy (UD7).

use xroce_api::EngineError;
use xroce_net::datapath::Link;
use xroce_net::neigh::multicast_mac;
use xroce_proto::qp::QpType;
use xroce_proto::wr::SendOp;
use xroce_wire::frame::Frame;
use xroce_wire::newtypes::{Gid, Qpn};
use xroce_wire::packet::Packet;

use crate::common::{Setup, World, gid};
use crate::{QKEY, capture, datagram, ud_qp};

const MS: u64 = 1_000_000;

/// Sends one datagram of the first host to a group.
fn send_to(world: &mut World, from: Qpn, group: Gid, data: &[u8]) {
    let mut path = world.hosts[0].path_to(&world.hosts[1]);
    path.dst = group;
    path.dst_mac = multicast_mac(group.ip()).unwrap();
    let host = &mut world.hosts[0];
    host.region.write_at(0, data).unwrap();
    let ah = host.engine.create_ah(host.pd, &path).unwrap();
    let sge = host.sge(0, data.len() as u32);
    // Whatever number is asked for, the group's is sent (case 10).
    datagram(host, from, (ah, Qpn::new(0x55), QKEY), SendOp::Send, &[sge]).unwrap();
    world.idle(MS);
    world.hosts[0].completions();
}

/// Rules UD3, UD7.
#[test]
fn case_9_all_attached_get_it() {
    for (link, ips, group) in [
        (Link::Ethernet, ["192.0.2.1", "192.0.2.2"], "224.1.2.3"),
        (Link::Ethernet, ["2001:db8::1", "2001:db8::2"], "ff0e::77"),
        (Link::Udp, ["192.0.2.1", "192.0.2.2"], "224.1.2.3"),
        (Link::Udp, ["2001:db8::1", "2001:db8::2"], "ff0e::77"),
    ] {
        let setup = Setup {
            link,
            ips,
            ..Setup::default()
        };
        let mut world = setup.build();
        let group = gid(group);
        let from = ud_qp(&mut world, 0, QKEY);
        let members = [0, 1].map(|_| ud_qp(&mut world, 1, QKEY));
        let other_key = ud_qp(&mut world, 1, QKEY + 1);
        let outside = ud_qp(&mut world, 1, QKEY);
        let frames = capture(&world, world.link.there);
        let host = &mut world.hosts[1];
        for qpn in [members[0], members[1], other_key] {
            host.engine.attach_mcast(qpn, group).unwrap();
        }
        for (i, qpn) in [members[0], members[1], other_key, outside]
            .into_iter()
            .enumerate()
        {
            for n in 0..4 {
                let at = (i as u64 * 4 + n) * 256;
                host.post_recv(qpn, at, &[host.sge(at, 256)]);
            }
        }
        send_to(&mut world, from, group, b"hello");
        let received = world.hosts[1].completions();
        let to: Vec<_> = received.iter().map(|wc| wc.qpn).collect();
        assert_eq!(to, members, "{link:?}");
        for wc in &received {
            assert_eq!((wc.byte_len, wc.src_qp), (45, from));
            let all = world.hosts[1].bytes(wc.wr_id, 45);
            assert_eq!(all[40..], *b"hello");
            // The destination in the header is the group, by which the GID is found (UD3).
            let dst = group.bytes();
            let tail = if group.v4().is_some() {
                &dst[12..]
            } else {
                &dst[..]
            };
            assert!(all[..40].ends_with(tail));
        }
        let counters = world.hosts[1].engine.qp_counters(other_key).unwrap();
        assert_eq!(counters.qkey_violations, 1);
        if link == Link::Ethernet {
            let frames = frames.borrow();
            let f = Frame::parse_ethernet(&frames[0]).unwrap();
            assert_eq!(f.dst_mac(), multicast_mac(group.ip()));
            let pkt = Packet::parse(f.transport()).unwrap();
            assert_eq!(pkt.dest_qp(), Qpn::MULTICAST);
        }
        leave_one_by_one(&mut world, from, group, members);
    }
}

fn leave_one_by_one(world: &mut World, from: Qpn, group: Gid, members: [Qpn; 2]) {
    let receivers = |world: &mut World| -> Vec<Qpn> {
        send_to(world, from, group, b"more");
        let received = world.hosts[1].completions();
        received.iter().map(|wc| wc.qpn).collect()
    };
    let engine = &mut world.hosts[1].engine;
    engine.detach_mcast(members[0], group).unwrap();
    assert_eq!(
        engine.detach_mcast(members[0], group),
        Err(EngineError::NotAttached {
            qpn: members[0],
            group
        })
    );
    assert_eq!(receivers(world), [members[1]]);
    // A destroyed QP is in no group, and neither is the one that takes its place.
    world.hosts[1].engine.destroy_qp(members[1]).unwrap();
    let heir = ud_qp(world, 1, QKEY);
    let host = &mut world.hosts[1];
    host.post_recv(heir, 0, &[host.sge(0, 256)]);
    assert_eq!(receivers(world), []);
}

#[test]
fn a_group_nobody_is_in_is_nobody() {
    let mut world = Setup::default().build();
    let from = ud_qp(&mut world, 0, QKEY);
    let to = ud_qp(&mut world, 1, QKEY);
    let host = &mut world.hosts[1];
    host.post_recv(to, 0, &[host.sge(0, 256)]);
    host.engine.attach_mcast(to, gid("224.0.0.9")).unwrap();
    send_to(&mut world, from, gid("224.0.0.8"), b"x");
    assert_eq!(world.hosts[1].completions(), []);
    assert_eq!(world.hosts[1].engine.stats().unknown_qp, 1);
}

#[test]
fn only_datagram_qps_join_and_only_groups() {
    let mut world = Setup::default().build();
    let ud = ud_qp(&mut world, 0, QKEY);
    let rc = world.create_qp(0, |_| {});
    let engine = &mut world.hosts[0].engine;
    let group = gid("224.0.0.9");
    let refused = engine.attach_mcast(rc, group);
    assert_eq!(refused, Err(EngineError::NotUd(QpType::Rc)));
    for no_group in ["192.0.2.1", "2001:db8::1", "255.255.255.255"] {
        let no_group = gid(no_group);
        let refused = engine.attach_mcast(ud, no_group);
        assert_eq!(refused, Err(EngineError::NoGroup(no_group)));
    }
    engine.attach_mcast(ud, group).unwrap();
    // Twice is once.
    engine.attach_mcast(ud, group).unwrap();
    engine.detach_mcast(ud, group).unwrap();
    assert!(engine.detach_mcast(ud, group).is_err());
}
