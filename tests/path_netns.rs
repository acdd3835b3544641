//! Paths over a real kernel's network: through a router, in a VLAN, and what is told when one
//! breaks. Needs root and AF_XDP; prints why it is skipped otherwise.
#![cfg(feature = "xdp")]
#![allow(clippy::unwrap_used, reason = "a test: what fails, fails it")]

mod common;

use common::netns_end::{End, LIMIT, both, exchange, write, xdp};
use xroce_api::{AsyncEvent, Cause};
use xroce_engine::clock;
use xroce_net::addressing::{Addressing, PathEvent};
use xroce_net::datapath::Datapath;
use xroce_net::udp::{UdpConfig, UdpPort};
use xroce_net::xdp::XdpPort;
use xroce_proto::qp::QpState;
use xroce_proto::wc::{Event, WcStatus};
use xroce_testnet::{IFNAME, Netns, NetnsPair, skip};
use xroce_wire::newtypes::PathMtu;
use xroce_wire::path::AhAttr;

const IP_MTU: u32 = 4200;

/// Two hosts with a router between them: 10.1.0.1 and 10.2.0.1, the router is .254 of both.
struct Routed {
    left: Netns,
    router: Netns,
    right: Netns,
}

impl Routed {
    fn or_skip() -> Option<Self> {
        let made = || {
            Ok::<_, String>(Self {
                left: Netns::alone(1)?,
                router: Netns::alone(254)?,
                right: Netns::alone(1)?,
            })
        };
        let net = match made() {
            Ok(net) => net,
            Err(why) => {
                skip(&why);
                return None;
            }
        };
        let router = &net.router;
        for (n, ns, port) in [(1, &net.left, "left"), (2, &net.right, "right")] {
            let end = format!("mtu {IP_MTU} netns {}", ns.name());
            let far = format!("{IFNAME} {end}");
            let link = format!("link add {port} mtu {IP_MTU} type veth peer name {far}");
            router.ip_cmd(&link).unwrap();
            for (of, ifname, host) in [(router, port, 254), (ns, IFNAME, 1)] {
                of.ip_cmd(&format!("link set {ifname} up")).unwrap();
                of.ip_cmd(&format!("addr add 10.{n}.0.{host}/24 dev {ifname}"))
                    .unwrap();
            }
            ns.ip_cmd(&format!("route add default via 10.{n}.0.254"))
                .unwrap();
        }
        router.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        Some(net)
    }

    fn ends(&self) -> [End<'_, XdpPort>; 2] {
        [&self.left, &self.right].map(|ns| xdp(ns, IFNAME, None))
    }
}

#[test]
fn netns_case_15_through_a_router_with_the_default_hop_limit_and_not_with_1() {
    let Some(net) = Routed::or_skip() else { return };
    let [mut left, mut right] = net.ends();
    both(&mut left, &mut right, PathMtu::Mtu4096, |_, _| {});
    exchange(&mut left, &mut right, 100_000);
    exchange(&mut right, &mut left, 100_000);
    drop((left, right));
    let tune = |_: usize, attr: &mut AhAttr| attr.hop_limit = 1;
    let [mut left, mut right] = net.ends();
    both(&mut left, &mut right, PathMtu::Mtu1024, tune);
    write(&mut left, &right, 1, 64);
    let failure = left.dies(&mut right);
    assert!(failure.icmp.count > 0, "{failure}");
    assert_eq!(
        failure.likely_causes().first(),
        Some(&Cause::HopLimit(1)),
        "{failure}"
    );
}

#[test]
fn netns_a_router_says_that_packets_are_too_long_and_which_path_mtu_fits() {
    let Some(net) = Routed::or_skip() else { return };
    net.router.ip_cmd("link set right mtu 1300").unwrap();
    let [mut left, mut right] = net.ends();
    both(&mut left, &mut right, PathMtu::Mtu4096, |_, _| {});
    exchange(&mut left, &mut right, 64);
    write(&mut left, &right, 2, 4096);
    let failure = left.dies(&mut right);
    let cause = Cause::PathMtu {
        path_mtu: 4096,
        link: Some(1300),
    };
    assert_eq!(failure.likely_causes().first(), Some(&cause), "{failure}");
    let text = failure.to_string();
    assert!(text.contains("use path MTU 1024 or less"), "{text}");
    assert!(
        text.contains("10.1.0.254 about packets to 10.2.0.1"),
        "{text}"
    );
}

#[test]
fn netns_a_router_says_that_there_is_no_way() {
    let Some(net) = Routed::or_skip() else { return };
    let tune = |i: usize, attr: &mut AhAttr| {
        if i == 0 {
            attr.dgid = xroce_wire::newtypes::Gid::from_v4([10, 9, 0, 1]);
        }
    };
    let [mut left, mut right] = net.ends();
    both(&mut left, &mut right, PathMtu::Mtu1024, tune);
    write(&mut left, &right, 1, 64);
    let failure = left.dies(&mut right);
    let first = failure.likely_causes().first().copied();
    assert!(matches!(first, Some(Cause::Undeliverable(_))), "{failure}");
}

#[test]
fn netns_case_11_in_a_vlan_with_a_priority_of_each_side() {
    let Some(net) = NetnsPair::or_skip(IP_MTU, 1) else {
        return;
    };
    let end = |ns, tag| xdp(ns, IFNAME, Some(tag));
    let tune = |i: usize, attr: &mut AhAttr| attr.sl = if i == 0 { 3 } else { 5 };
    let ends = [end(&net.a, 100), end(&net.b, 100)];
    let [mut a, mut b] = ends;
    both(&mut a, &mut b, PathMtu::Mtu1024, tune);
    exchange(&mut a, &mut b, 10_000);
    exchange(&mut b, &mut a, 10_000);
    drop((a, b));
    // Frames of another VLAN reach the port, and nobody behind it.
    let ends = [end(&net.a, 100), end(&net.b, 101)];
    let [mut a, mut b] = ends;
    both(&mut a, &mut b, PathMtu::Mtu1024, tune);
    write(&mut a, &b, 1, 64);
    a.dies(&mut b);
    let refused = b.host.engine.qp_counters(b.qpn).unwrap();
    assert!(
        refused.wrong_path >= 4 && refused.rx_packets == 0,
        "{refused:?}"
    );
}

/// 64 WRITEs at a time until the address of `a` is gone.
fn lose_address<D: Datapath>(a: &mut End<'_, D>, b: &mut End<'_, D>) {
    const POSTED: u64 = 64;
    let gid = a.host.gid;
    exchange(a, b, 64);
    let address = gid.ip().to_canonical();
    let gone = format!("addr del {address}/24 dev {IFNAME}");
    a.ns.ip_cmd(&gone).unwrap();
    for id in 0..POSTED {
        write(a, b, id, 5000);
    }
    let end = clock::now() + LIMIT;
    let mut done = Vec::new();
    while done.len() < 64 {
        assert!(clock::now() < end, "{}", done.len());
        if a.host.engine.stats().gid_changes == 0 {
            a.look();
        }
        a.turn();
        b.turn();
        done.extend(a.host.completions());
    }
    // Each work request completes once and in order; when the QP is in ERR, all others flush.
    let failed = done.iter().position(|wc| wc.status != WcStatus::Success);
    for (n, wc) in (0..).zip(&done) {
        assert_eq!(wc.wr_id, n);
        let status = match failed {
            Some(at) if n == at as u64 => WcStatus::RetryExcErr,
            Some(at) if n > at as u64 => WcStatus::WrFlushErr,
            _ => WcStatus::Success,
        };
        assert_eq!(wc.status, status, "{n}");
    }
    let engine = &mut a.host.engine;
    assert_eq!(engine.orphans().collect::<Vec<_>>(), [a.qpn]);
    let events: Vec<_> = std::iter::from_fn(|| engine.poll_event()).collect();
    assert!(
        events.contains(&AsyncEvent::port(Event::GidChange)),
        "{events:?}"
    );
    if failed.is_some() {
        assert_eq!(engine.qp_state(a.qpn), Some(QpState::Err));
        let failure = engine.failure(a.qpn).unwrap();
        let first = failure.likely_causes().first().copied();
        assert_eq!(first, Some(Cause::AddressGone(gid)), "{failure}");
    }
}

#[test]
fn netns_case_62_an_address_removed_while_sending() {
    let Some(net) = NetnsPair::or_skip(IP_MTU, 1) else {
        return;
    };
    let ends = [&net.a, &net.b].map(|ns| xdp(ns, IFNAME, None));
    let [mut a, mut b] = ends;
    both(&mut a, &mut b, PathMtu::Mtu1024, |_, _| {});
    lose_address(&mut a, &mut b);
    assert!(
        a.host.engine.failure(a.qpn).is_some(),
        "answers are not taken any more"
    );
    drop((a, b));
    let Some(net) = NetnsPair::or_skip(IP_MTU, 1) else {
        return;
    };
    let ends = [&net.a, &net.b].map(|ns| {
        let (port, addressing) = ns.run(|| {
            let port = UdpPort::bind(ns.ip(false), &UdpConfig::default()).unwrap();
            let gid = ns.ip(false).into();
            let addressing = Addressing::udp(gid, 0, port.src_port()).unwrap();
            (port, addressing)
        });
        End::new(ns, port, addressing)
    });
    let [mut a, mut b] = ends;
    both(&mut a, &mut b, PathMtu::Mtu1024, |_, _| {});
    lose_address(&mut a, &mut b);
    // It comes back.
    let back = format!("addr add {}/24 dev {IFNAME}", net.a.v4);
    net.a.ip_cmd(&back).unwrap();
    let end = clock::now() + LIMIT;
    while a.host.engine.orphans().count() != 0 {
        assert!(clock::now() < end);
        a.look();
    }
    let mut events = Vec::new();
    a.addressing.poll(&mut |event| events.push(event)).unwrap();
    assert!(!events.contains(&PathEvent::PortDown));
}
