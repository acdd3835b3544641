//! Addresses and ways as a real kernel has them.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use xroce_net::addressing::{Addressing, PathEvent};
use xroce_net::neigh::{self, NeighError};
use xroce_testnet::{IFNAME, Netns, NetnsPair, skip};
use xroce_wire::newtypes::{Gid, MacAddr, VlanTci};
use xroce_wire::path::{AhAttr, Flow};

fn mac_of(ifname: &str) -> MacAddr {
    neigh::interface(ifname).unwrap().mac
}

/// Polls until an event that `fits`, for five seconds.
fn wait(addressing: &mut Addressing, fits: impl Fn(&PathEvent) -> bool) {
    let mut seen = Vec::new();
    for _ in 0..500 {
        addressing.poll(&mut |event| seen.push(event)).unwrap();
        if seen.iter().any(&fits) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    unreachable!("{seen:#?}");
}

#[test]
fn netns_an_index_and_a_gid_become_headers_and_what_happens_is_told() {
    let Some(pair) = NetnsPair::or_skip(1500, 1) else {
        return;
    };
    let (here, there) = (&pair.a, &pair.b);
    let peer_mac = there.run(|| mac_of(IFNAME));
    here.run(|| {
        let mut addressing = Addressing::ethernet(IFNAME, Some(100)).unwrap();
        assert!(addressing.is_up() && addressing.hears_icmp());
        for v6 in [false, true] {
            let index = addressing.gids().find(here.ip(v6).into()).unwrap();
            let attr = AhAttr {
                sgid_index: index,
                sl: 3,
                ..AhAttr::to(there.ip(v6).into())
            };
            let av = addressing.resolve(&attr, Flow::Datagrams).unwrap();
            assert_eq!((av.src.ip(), av.dst.ip()), (here.ip(v6), there.ip(v6)));
            assert_eq!((av.src_mac, av.dst_mac), (mac_of(IFNAME), peer_mac));
            assert_eq!(av.vlan, Some(VlanTci::tagged(100, 3)));
        }
        let extra = Gid::from_v4([10, 77, 9, 9]);
        let is_it = |e: &xroce_api::GidEntry| e.gid == extra && e.vlan == Some(100);
        here.ip_cmd(&format!("addr add 10.77.9.9/24 dev {IFNAME}"))
            .unwrap();
        wait(
            &mut addressing,
            |e| matches!(e, PathEvent::GidAdded(_, entry) if is_it(entry)),
        );
        here.ip_cmd(&format!("addr del 10.77.9.9/24 dev {IFNAME}"))
            .unwrap();
        wait(
            &mut addressing,
            |e| matches!(e, PathEvent::GidRemoved(_, entry) if is_it(entry)),
        );
        there.ip_cmd(&format!("link set {IFNAME} down")).unwrap();
        wait(&mut addressing, |e| *e == PathEvent::PortDown);
        there.ip_cmd(&format!("link set {IFNAME} up")).unwrap();
        wait(&mut addressing, |e| *e == PathEvent::PortUp);
        here.ip_cmd(&format!("link del {IFNAME}")).unwrap();
        wait(&mut addressing, |e| {
            matches!(e, PathEvent::GidRemoved(0, _))
        });
        assert!(!addressing.is_up());
        assert_eq!(addressing.gids().iter().count(), 0);
    });
}

#[test]
fn netns_case_13_two_ports_of_one_host_reach_each_other_by_their_own_addresses() {
    let host = match Netns::alone(1) {
        Ok(host) => host,
        Err(why) => return skip(&why),
    };
    host.ip_cmd("link add left type veth peer name right")
        .unwrap();
    for (ifname, n) in [("left", 1), ("right", 2)] {
        host.ip_cmd(&format!("link set {ifname} up")).unwrap();
        host.ip_cmd(&format!("addr add fd99::{n}/64 dev {ifname} nodad"))
            .unwrap();
        host.ip_cmd(&format!("addr add 10.99.0.{n}/24 dev {ifname}"))
            .unwrap();
    }
    host.run(|| {
        for (from, to, other) in [
            ("fd99::1", "fd99::2", "right"),
            ("fd99::2", "fd99::1", "left"),
            ("10.99.0.1", "10.99.0.2", "right"),
        ] {
            let ifname = if other == "right" { "left" } else { "right" };
            let addressing = Addressing::ethernet(ifname, None).unwrap();
            let gid = |ip: &str| Gid::from(ip.parse::<IpAddr>().unwrap());
            let attr = AhAttr {
                sgid_index: addressing.gids().find(gid(from)).unwrap(),
                ..AhAttr::to(gid(to))
            };
            let av = addressing.resolve(&attr, Flow::Datagrams).unwrap();
            assert_eq!(av.src_mac, mac_of(ifname), "{from} to {to}");
            assert_eq!(av.dst_mac, mac_of(other), "{from} to {to}");
            // To itself there is no cable.
            let error = addressing
                .resolve(
                    &AhAttr {
                        dgid: gid(from),
                        ..attr
                    },
                    Flow::Datagrams,
                )
                .unwrap_err();
            let to_self = matches!(
                &error,
                xroce_net::addressing::AddressError::Neigh(NeighError::Local(_))
            );
            assert!(to_self, "{error}");
        }
    });
}

#[test]
fn netns_case_104_one_link_local_address_on_two_ports() {
    let host = match Netns::alone(1) {
        Ok(host) => host,
        Err(why) => return skip(&why),
    };
    // Two cables; on each the near end is fe80::1 and the far end, in a namespace of its own,
    // fe80::2.
    let fars = [0, 1].map(|n| {
        let far = Netns::alone(2).unwrap();
        let name = far.name().to_owned();
        host.ip_cmd(&format!(
            "link add near{n} type veth peer name far netns {name}"
        ))
        .unwrap();
        for (ns, ifname, address) in [(&host, format!("near{n}"), 1), (&far, "far".into(), 2)] {
            // No other link-local address: the one made of the MAC address is turned off.
            ns.run(|| {
                let file = format!("/proc/sys/net/ipv6/conf/{ifname}/addr_gen_mode");
                std::fs::write(file, "1").unwrap();
            });
            ns.ip_cmd(&format!("link set {ifname} up")).unwrap();
            ns.ip_cmd(&format!("addr add fe80::{address}/64 dev {ifname} nodad"))
                .unwrap();
        }
        far
    });
    let macs = [0, 1].map(|n: usize| fars[n].run(|| mac_of("far")));
    host.run(|| {
        let gid = |n| Gid::from(IpAddr::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, n)));
        for n in [0, 1] {
            let ifname = format!("near{n}");
            let addressing = Addressing::ethernet(&ifname, None).unwrap();
            assert_eq!(addressing.gids().iter().count(), 1);
            let entry = addressing.gids().get(0).unwrap();
            assert_eq!((entry.gid, &entry.ifname), (gid(1), &ifname));
            assert!(entry.link_local);
            let av = addressing.resolve(&AhAttr::to(gid(2)), Flow::Datagrams);
            let av = av.unwrap();
            assert_eq!((av.src_mac, av.dst_mac), (mac_of(&ifname), macs[n]));
            let scope = neigh::interface(&ifname).unwrap().index;
            let udp = Addressing::udp(gid(1), scope, 4791).unwrap();
            assert_eq!(udp.gids().get(0).unwrap().ifname, ifname);
        }
    });
}
