//! What a queue pair says when it dies: each way of dying, and the cause that comes first.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic, and its sizes are small"
)]

#[path = "common/mod.rs"]
mod common;

use common::{ALL_ACCESS, Setup, World, gid};
use xroce_api::IcmpReason as Reason;
use xroce_api::{AsyncEvent, Cause, Failure, GidEntry, IcmpError};
use xroce_net::addressing::PathEvent;
use xroce_net::sim::Verdict;
use xroce_proto::memory::{Access, KeyError};
use xroce_proto::qp::report::Refusal;
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::wc::{Event, WcStatus};
use xroce_proto::wr::SendOp;
use xroce_wire::newtypes::{PathMtu, Qpn, RKey, VlanTci};

const SECOND: u64 = 1_000_000_000;
const MTU: PathMtu = PathMtu::Mtu4096;

fn pair_with(tune: impl Fn(usize, &mut QpAttr)) -> (World, [Qpn; 2]) {
    let mut world = Setup::default().build();
    let qpns = [0, 1].map(|host| world.create_qp(host, |_| {}));
    world.bring_up(qpns, MTU, [1, 1], |host, attr| {
        if attr.state == Some(QpState::Rts) {
            attr.timeout = Some(8);
        }
        tune(host, attr);
    });
    (world, qpns)
}

fn pair() -> (World, [Qpn; 2]) {
    pair_with(|_, _| {})
}

fn write(world: &mut World, qpn: Qpn, len: u32) {
    let [left, right] = &mut world.hosts;
    let (va, rkey) = (right.va(0), right.mr.rkey);
    left.post_send(qpn, 5, SendOp::Write { va, rkey }, &[left.sge(0, len)]);
}

/// Runs until the first host's QP has failed. Its text names every cause in order, and its plain
/// form the same.
fn died(world: &mut World, qpn: Qpn) -> Failure {
    let dead = world.run(SECOND, |w| w.hosts[0].engine.failure(qpn).is_some());
    assert!(dead);
    let failure = world.hosts[0].engine.failure(qpn).unwrap();
    let text = failure.to_string();
    let facts = failure.facts();
    let mut at = 0;
    for (n, cause) in (1..).zip(&facts.likely_causes) {
        let found = text[at..].find(&format!("{n}. {cause}"));
        at += found.unwrap_or_else(|| panic!("{cause} is not in order in:\n{text}"));
    }
    let json = serde_json::to_value(&facts).unwrap();
    assert_eq!(json["status"], format!("{:?}", failure.report.status));
    assert_eq!(
        json["counters"]["timeouts"],
        failure.report.counters.timeouts
    );
    failure
}

fn first(failure: &Failure) -> Cause {
    *failure.likely_causes().first().unwrap()
}

#[test]
fn a_peer_that_never_was() {
    let (mut world, [a, _]) = pair();
    world.net.add_blackhole(world.link.there, 0, u64::MAX);
    write(&mut world, a, 64);
    let failure = died(&mut world, a);
    assert_eq!(failure.report.status, WcStatus::RetryExcErr);
    assert_eq!(
        failure.likely_causes(),
        [Cause::NoPeer, Cause::Firewall, Cause::Nat]
    );
    assert!(failure.to_string().contains("nothing ever came back"));
    assert_eq!(failure.facts().silent_ns, None);
}

#[test]
fn a_wrong_number_of_the_peer() {
    let (mut world, [a, _]) = pair_with(|host, attr| {
        if host == 0 && attr.dest_qpn.is_some() {
            attr.dest_qpn = Some(Qpn::new(0x123));
        }
    });
    write(&mut world, a, 64);
    let failure = died(&mut world, a);
    assert_eq!(first(&failure), Cause::NoPeer);
    assert!(failure.to_string().contains("to QP 0x123"), "{failure}");
    assert_eq!(world.hosts[1].engine.stats().unknown_qp, 8);
}

#[test]
fn a_peer_that_stops() {
    let (mut world, [a, _]) = pair();
    for _ in 0..3 {
        write(&mut world, a, 4096);
        world.idle(1_000_000);
    }
    let now = world.net.now();
    world.net.add_blackhole(world.link.back, now, u64::MAX);
    write(&mut world, a, 4096);
    let failure = died(&mut world, a);
    assert_eq!(failure.likely_causes(), [Cause::PeerStopped, Cause::Loss]);
    assert!(failure.to_string().contains("ACK, PSN 0x3"), "{failure}");
    assert_eq!(failure.facts().last_response_psn, Some(3));
    assert_eq!(failure.facts().last_psn_acked, 3);
    assert_eq!(failure.facts().last_psn_sent, 4);
}

#[test]
fn only_large_packets_vanish() {
    // In either direction: of WRITEs the requests, of READs the responses.
    for read in [false, true] {
        let (mut world, [a, _]) = pair();
        for wire in [world.link.there, world.link.back] {
            world.net.set_filter(wire, |frame| match frame.len() {
                ..1600 => Verdict::Pass,
                _ => Verdict::Drop,
            });
        }
        for len in [64, 1024] {
            write(&mut world, a, len);
            world.idle(1_000_000);
        }
        if read {
            let [left, right] = &mut world.hosts;
            let (va, rkey) = (right.va(0), right.mr.rkey);
            left.post_send(a, 6, SendOp::Read { va, rkey }, &[left.sge(0, 9000)]);
        } else {
            write(&mut world, a, 9000);
        }
        let failure = died(&mut world, a);
        let path_mtu = Cause::PathMtu {
            path_mtu: 4096,
            link: None,
        };
        assert_eq!(first(&failure), path_mtu, "{failure}");
        let report = failure.report;
        assert_eq!((report.lost_payload, report.largest_acked), (4096, 1024));
        assert!(
            failure.to_string().contains("use a smaller path MTU"),
            "{failure}"
        );
    }
}

fn icmp(world: &mut World, reason: Reason, dest_qpn: Option<Qpn>) {
    world.hosts[0].engine.apply(&PathEvent::Icmp(IcmpError {
        from: [192, 0, 2, 254].into(),
        src: [192, 0, 2, 1].into(),
        dst: [192, 0, 2, 2].into(),
        src_port: common::SRC_PORT,
        dest_qpn,
        reason,
    }));
}

#[test]
fn what_a_router_says_comes_first() {
    for (reason, words) in [
        (Reason::TooLong { mtu: 1500 }, "use path MTU 1024 or less"),
        (Reason::PortUnreachable, "nobody takes UDP port 4791"),
        (Reason::Prohibited, "forbidden by a filter"),
        (Reason::HopLimit, "the hop limit of 64 is used up"),
        (Reason::Unreachable { code: 1 }, "unreachable (code 1)"),
    ] {
        let (mut world, [a, b]) = pair();
        world.net.add_blackhole(world.link.there, 0, u64::MAX);
        write(&mut world, a, 4096);
        // With the peer's number, without one, and about packets of another queue pair.
        icmp(&mut world, reason, Some(b));
        icmp(&mut world, reason, None);
        icmp(&mut world, reason, Some(Qpn::new(0x777)));
        assert_eq!(world.hosts[0].engine.qp_state(a), Some(QpState::Rts));
        let failure = died(&mut world, a);
        assert_eq!(failure.icmp.count, 2);
        let text = first(&failure).to_string();
        assert!(text.contains(words), "{text}");
        assert_eq!(world.hosts[0].engine.stats().icmp_errors, 3);
    }
}

fn entry(ip: &str) -> GidEntry {
    GidEntry {
        gid: gid(ip),
        ifindex: 1,
        ifname: "sim".to_owned(),
        mac: xroce_wire::newtypes::MacAddr::default(),
        vlan: None,
        link_local: false,
    }
}

#[test]
fn an_address_that_went_and_a_link_that_is_down() {
    let (mut world, [a, _]) = pair();
    write(&mut world, a, 64);
    world.idle(1_000_000);
    let engine = &mut world.hosts[0].engine;
    for event in [
        PathEvent::GidRemoved(3, entry("192.0.2.9")),
        PathEvent::GidRemoved(0, entry("192.0.2.1")),
    ] {
        engine.apply(&event);
    }
    assert_eq!(engine.orphans().collect::<Vec<_>>(), [a]);
    engine.apply(&PathEvent::GidAdded(0, entry("192.0.2.1")));
    assert_eq!(engine.orphans().count(), 0, "it came back");
    engine.apply(&PathEvent::GidRemoved(0, entry("192.0.2.1")));
    engine.apply(&PathEvent::PortDown);
    for event in [
        Event::CommEst,
        Event::GidChange,
        Event::GidChange,
        Event::GidChange,
        Event::GidChange,
        Event::PortErr,
    ] {
        if event != Event::CommEst {
            assert_eq!(engine.poll_event(), Some(AsyncEvent::port(event)));
        }
    }
    world.net.add_blackhole(world.link.there, 0, u64::MAX);
    write(&mut world, a, 64);
    let failure = died(&mut world, a);
    let causes = failure.likely_causes();
    assert_eq!(
        causes[..2],
        [Cause::AddressGone(gid("192.0.2.1")), Cause::LinkDown]
    );
    world.hosts[0].engine.apply(&PathEvent::PortUp);
    let event = world.hosts[0].engine.poll_event();
    assert!(event.is_some());
}

#[test]
fn case_11_a_peer_in_another_vlan_is_not_heard() {
    for (ours, theirs) in [(Some(100), Some(101)), (Some(100), None), (None, Some(100))] {
        let (mut world, [a, b]) = pair_with(|host, attr| {
            if let Some(av) = &mut attr.av {
                let vid = if host == 0 { ours } else { theirs };
                av.vlan = vid.map(|vid| VlanTci::tagged(vid, 3));
            }
        });
        write(&mut world, a, 64);
        let failure = died(&mut world, a);
        assert!(failure.report.last_seen.at.is_none());
        let refused = world.hosts[1].engine.qp_counters(b).unwrap();
        assert_eq!((refused.wrong_path, refused.rx_packets), (8, 0));
    }
    // The same VLAN with other priorities, and a tag that is nothing but a priority.
    for (ours, theirs) in [
        (Some(VlanTci::tagged(100, 3)), Some(VlanTci::tagged(100, 5))),
        (Some(VlanTci::tagged(0, 3)), None),
    ] {
        let (mut world, [a, _]) = pair_with(|host, attr| {
            if let Some(av) = &mut attr.av {
                av.vlan = if host == 0 { ours } else { theirs };
            }
        });
        write(&mut world, a, 64);
        world.idle(SECOND);
        assert_eq!(world.hosts[0].completions()[0].status, WcStatus::Success);
    }
}

#[test]
fn behind_a_socket_the_tags_are_the_kernels() {
    let setup = Setup {
        link: xroce_net::datapath::Link::Udp,
        vlan: Some(VlanTci::tagged(100, 3)),
        ..Setup::default()
    };
    let mut world = setup.build();
    let [a, _] = world.connect(MTU, [1, 1], |_| {}, |_| {});
    write(&mut world, a, 64);
    world.idle(SECOND);
    assert_eq!(world.hosts[0].completions()[0].status, WcStatus::Success);
}

#[test]
fn answers_on_another_path() {
    let (mut world, [a, _]) = pair_with(|host, attr| {
        if let (0, Some(av)) = (host, &mut attr.av) {
            // We were told another address than the peer sends from, which it has as well.
            av.dst = gid("192.0.2.200");
        }
    });
    // So our packets are not for it either; its own are not for us.
    let [left, right] = &mut world.hosts;
    let (va, rkey) = (left.va(0), left.mr.rkey);
    let b = world_qpn(right);
    right.post_send(b, 1, SendOp::Write { va, rkey }, &[right.sge(0, 8)]);
    write(&mut world, a, 64);
    let failure = died(&mut world, a);
    assert!(failure.report.counters.wrong_path > 0);
    let causes = failure.likely_causes();
    let other = |c: &Cause| matches!(c, Cause::OtherPath(from) if from.src == gid("192.0.2.2"));
    assert!(causes.iter().any(other), "{causes:?}");
    assert!(
        failure
            .to_string()
            .contains("on another path, the last from 192.0.2.2")
    );
}

/// The only QP of a host is its first one.
fn world_qpn(_: &common::Host) -> Qpn {
    Qpn::new(17)
}

#[test]
fn receives_that_never_come() {
    let (mut world, [a, _]) = pair_with(|_, attr| {
        if attr.state == Some(QpState::Rts) {
            attr.rnr_retry = Some(2);
        }
    });
    let left = &mut world.hosts[0];
    left.post_send(a, 1, SendOp::Send, &[left.sge(0, 8)]);
    let failure = died(&mut world, a);
    assert_eq!(failure.report.status, WcStatus::RnrRetryExcErr);
    assert_eq!(failure.likely_causes(), [Cause::NoReceives]);
    let text = failure.to_string();
    assert!(text.contains("3 RNR NAKs (rnr_retry 2)"), "{text}");
    assert!(
        text.contains("last response") && text.contains("RNR NAK, wait"),
        "{text}"
    );
}

#[test]
fn a_refused_key_is_named_on_both_sides() {
    let (mut world, [a, b]) = pair();
    let right = &mut world.hosts[1];
    let (_, small) = right.carve(64, ALL_ACCESS);
    let (_, read_only) = right.carve(64, Access::REMOTE_READ | Access::LOCAL_WRITE);
    let mut qpns = [a, b];
    for (rkey, va, error) in [
        (RKey::new(0xdead_be01), small.va, KeyError::Unknown),
        (small.rkey, small.va.wrapping_add(60), KeyError::Range),
        (read_only.rkey, read_only.va, KeyError::Rights),
    ] {
        let left = &mut world.hosts[0];
        left.post_send(qpns[0], 1, SendOp::Write { va, rkey }, &[left.sge(0, 8)]);
        let failure = died(&mut world, qpns[0]);
        assert_eq!(failure.likely_causes(), [Cause::BadKey, Cause::BadRange]);
        let key = format!("R_Key {:#010x}, address {:#x}", rkey.value(), va.value());
        let text = failure.to_string();
        assert!(
            text.contains(&key) && text.contains("RDMA WRITE of 8 bytes"),
            "{text}"
        );
        assert!(text.contains("NAK, remote access error"), "{text}");
        // The responder knows exactly.
        let theirs = world.hosts[1].engine.failure(qpns[1]).unwrap();
        assert!(theirs.report.by_responder);
        assert_eq!(theirs.report.refusal, Some(Refusal::Key(error)));
        let text = theirs.to_string();
        assert!(
            text.contains(&key) && text.contains(&error.to_string()),
            "{text}"
        );
        assert_eq!(theirs.facts().rkey, Some(rkey.value()));
        qpns = [0, 1].map(|host| world.create_qp(host, |_| {}));
        world.bring_up(qpns, MTU, [1, 1], |_, _| {});
    }
}

#[test]
fn a_responder_says_what_was_wrong() {
    // Longer than the receive.
    let (mut world, [a, b]) = pair();
    let [left, right] = &mut world.hosts;
    right.post_recv(b, 3, &[right.sge(0, 16)]);
    left.post_send(a, 1, SendOp::Send, &[left.sge(0, 17)]);
    let failure = died(&mut world, a);
    assert!(failure.likely_causes().contains(&Cause::SendTooLong));
    let theirs = world.hosts[1].engine.failure(b).unwrap();
    assert_eq!(
        theirs.report.refusal,
        Some(Refusal::TooLong { capacity: 16 })
    );
    let text = theirs.to_string();
    assert!(
        text.contains("longer than the posted receive of 16 bytes"),
        "{text}"
    );
    // Not allowed by the queue pair.
    let (mut world, [a, b]) = pair_with(|host, attr| {
        if host == 1 && attr.state == Some(QpState::Init) {
            attr.access = Some(Access::LOCAL_WRITE);
        }
    });
    write(&mut world, a, 8);
    assert_eq!(first(&died(&mut world, a)), Cause::NotAllowed);
    let theirs = world.hosts[1].engine.failure(b).unwrap();
    assert_eq!(theirs.report.refusal, Some(Refusal::NotAllowed));
}
