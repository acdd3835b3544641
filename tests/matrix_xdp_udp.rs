//! Every path MTU, IPv4 and IPv6, AF_XDP and UDP: SEND, WRITE and READ both ways over a veth pair
//! between two network namespaces, content compared.
//!
//! Needs root; prints why it is skipped otherwise. The UDP half also runs on loopback, without
//! privileges.

#![allow(clippy::unwrap_used, reason = "a test: what fails, fails it")]

mod common;

use common::{ALL_ACCESS, Host, pattern};
use xroce_engine::clock;
use xroce_net::datapath::Datapath;
#[cfg(feature = "xdp")]
use xroce_net::neigh;
use xroce_net::udp::{UdpConfig, UdpPort};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::time::Duration;
use xroce_proto::wc::{Completion, WcStatus};
use xroce_proto::wr::SendOp;
use xroce_testnet::{Netns, NetnsPair};
use xroce_wire::newtypes::{MacAddr, PathMtu, Psn, Qpn};

const MEMORY: usize = 1 << 20;
/// Where SENDs and READs land; WRITEs land at 0, sources are in the upper half.
const SEND_AT: u64 = 1 << 17;
const READ_AT: u64 = 1 << 18;
const SOURCE_AT: u64 = 1 << 19;
/// No message on an idle veth takes this long.
const LIMIT: Duration = Duration::from_millis(20_000);
const IP_MTU: u32 = 4200;

/// A connected pair; the source port is what the backend sends from.
fn connect<D: Datapath>(hosts: &mut [Host<D>; 2], mtu: PathMtu, src_port: u16) -> [Qpn; 2] {
    let qpns = [0, 1].map(|i| {
        let host = &mut hosts[i];
        host.engine
            .create_qp(&QpInit::rc(host.pd, host.cq, host.cq))
            .unwrap()
    });
    for i in [0, 1] {
        let mut path = hosts[i].path_to(&hosts[1 - i]);
        path.src_port = src_port;
        let engine = &mut hosts[i].engine;
        engine
            .modify_qp(qpns[i], &QpAttr::init(ALL_ACCESS))
            .unwrap();
        let rtr = QpAttr::rtr(path, mtu, qpns[1 - i], Psn::new(0xff_fff0));
        engine.modify_qp(qpns[i], &rtr).unwrap();
        engine
            .modify_qp(qpns[i], &QpAttr::rts(Psn::new(0xff_fff0)))
            .unwrap();
    }
    qpns
}

/// Polls both ends until `done`.
fn run<D: Datapath>(hosts: &mut [Host<D>; 2], mut done: impl FnMut(&mut [Host<D>; 2]) -> bool) {
    let end = clock::now() + LIMIT;
    while !done(hosts) {
        let now = clock::now();
        assert!(
            now < end,
            "no progress: {:?}",
            hosts.each_ref().map(|h| h.engine.stats())
        );
        for host in hosts.iter_mut() {
            host.engine.poll_once(now).unwrap();
        }
    }
}

/// One SEND, WRITE and READ of `len` bytes from host `i` to the other, compared.
fn exchange<D: Datapath>(hosts: &mut [Host<D>; 2], qpns: [Qpn; 2], i: usize, len: usize) {
    let data = pattern(len as u64 + 1, len);
    let peer = 1 - i;
    let n = u32::try_from(len).unwrap();
    hosts[i].region.write_at(SOURCE_AT, &data).unwrap();
    let landing = hosts[peer].sge(SEND_AT, n);
    hosts[peer].post_recv(qpns[peer], 9, &[landing]);
    let (va, rkey) = (hosts[peer].va(0), hosts[peer].mr.rkey);
    let source = hosts[i].sge(SOURCE_AT, n);
    let back = hosts[i].sge(READ_AT, n);
    hosts[i].post_send(qpns[i], 1, SendOp::Send, &[source]);
    hosts[i].post_send(qpns[i], 2, SendOp::Write { va, rkey }, &[source]);
    hosts[i].post_send(qpns[i], 3, SendOp::Read { va, rkey }, &[back]);
    let mut seen: [Vec<Completion>; 2] = Default::default();
    run(hosts, |hosts| {
        for (seen, host) in seen.iter_mut().zip(hosts.iter_mut()) {
            seen.extend(host.completions());
        }
        seen[i].len() == 3 && seen[peer].len() == 1
    });
    for wc in seen.iter().flatten() {
        assert_eq!(
            wc.status,
            WcStatus::Success,
            "{:?}",
            hosts[i].engine.failure(qpns[i])
        );
    }
    assert!(
        hosts[peer].bytes(SEND_AT, len) == data,
        "SEND of {len} bytes"
    );
    assert!(hosts[peer].bytes(0, len) == data, "WRITE of {len} bytes");
    assert!(hosts[i].bytes(READ_AT, len) == data, "READ of {len} bytes");
}

/// All path MTUs, sizes around each, both ways.
fn all_path_mtus<D: Datapath>(hosts: &mut [Host<D>; 2], src_port: u16) {
    for mtu in PathMtu::ALL {
        let qpns = connect(hosts, mtu, src_port);
        let pmtu = mtu.bytes();
        for len in [0, 1, 33, pmtu - 1, pmtu, pmtu + 1, 3 * pmtu + 5, 65_536] {
            for i in [0, 1] {
                exchange(hosts, qpns, i, len);
            }
        }
        for (host, qpn) in hosts.iter_mut().zip(qpns) {
            let stats = host.engine.stats();
            assert_eq!((stats.icrc_errors, stats.bad_packets), (0, 0), "{stats:?}");
            host.engine.destroy_qp(qpn).unwrap();
        }
    }
}

fn host<D: Datapath>(port: D, ns: &Netns, v6: bool, mac: MacAddr) -> Host<D> {
    let mut host = Host::new(port, &ns.ip(v6).to_string(), 0, MEMORY);
    host.mac = mac;
    host
}

#[cfg(feature = "xdp")]
fn mac_of(ns: &Netns) -> MacAddr {
    ns.run(|| neigh::interface(ns.ifname()).unwrap().mac)
}

fn udp_matrix(v6: bool) {
    let Some(net) = NetnsPair::or_skip(IP_MTU, 1) else {
        return;
    };
    let mut hosts = [&net.a, &net.b].map(|ns| {
        let port = ns.run(|| UdpPort::bind(ns.ip(v6), &UdpConfig::default()).unwrap());
        host(port, ns, v6, MacAddr::default())
    });
    let src_port = hosts[0].engine.port_mut().src_port();
    all_path_mtus(&mut hosts, src_port);
}

#[test]
fn udp_over_veth_ipv4() {
    udp_matrix(false);
}

#[test]
fn udp_over_veth_ipv6() {
    udp_matrix(true);
}

#[test]
fn udp_over_loopback_without_privileges() {
    let ips = ["127.0.0.1", "127.0.0.2"];
    // Another program may own the port of RoCE here: any will do between the two of us.
    let cfg = UdpConfig {
        port: 14_791,
        ..UdpConfig::default()
    };
    let mut hosts = ips.map(|ip| {
        let port = UdpPort::bind(ip.parse().unwrap(), &cfg).unwrap();
        Host::new(port, ip, 0, MEMORY)
    });
    let qpns = connect(&mut hosts, PathMtu::Mtu4096, cfg.port);
    for len in [0, 33, 65_536] {
        exchange(&mut hosts, qpns, 0, len);
        exchange(&mut hosts, qpns, 1, len);
    }
}

#[cfg(feature = "xdp")]
mod xdp {
    use super::*;
    use xroce_api::EngineError;
    use xroce_net::xdp::{Mode, XdpConfig, XdpPort};

    fn xdp_matrix(v6: bool, mode: Mode) {
        let Some(net) = NetnsPair::or_skip(IP_MTU, 1) else {
            return;
        };
        let open = |ns: &Netns| {
            let config = XdpConfig {
                mode,
                ..XdpConfig::new(ns.ifname())
            };
            ns.run(|| XdpPort::open(&config).unwrap())
        };
        let mut hosts = [&net.a, &net.b].map(|ns| host(open(ns), ns, v6, mac_of(ns)));
        all_path_mtus(&mut hosts, 0xc123);
        // The kernel's own traffic goes on meanwhile.
        net.a.ping(net.b.ip(v6)).unwrap();
    }

    #[test]
    fn xdp_over_veth_ipv4() {
        xdp_matrix(false, Mode::Native);
    }

    #[test]
    fn xdp_over_veth_ipv6() {
        xdp_matrix(true, Mode::Native);
    }

    #[test]
    fn xdp_over_veth_generic_mode() {
        xdp_matrix(false, Mode::Generic);
    }

    #[test]
    fn a_path_mtu_the_link_cannot_carry_is_refused_with_both_numbers() {
        let Some(net) = NetnsPair::or_skip(1500, 1) else {
            return;
        };
        let port = net
            .a
            .run(|| XdpPort::open(&XdpConfig::new(net.a.ifname())).unwrap());
        let mut end = host(port, &net.a, false, mac_of(&net.a));
        let qpn = end
            .engine
            .create_qp(&QpInit::rc(end.pd, end.cq, end.cq))
            .unwrap();
        end.engine
            .modify_qp(qpn, &QpAttr::init(ALL_ACCESS))
            .unwrap();
        let mut path = end.path_to(&end);
        path.dst = net.b.ip(false).into();
        let rtr = QpAttr::rtr(path, PathMtu::Mtu2048, Qpn::new(0x11), Psn::new(0));
        let refused = end.engine.modify_qp(qpn, &rtr).unwrap_err();
        assert!(matches!(refused, EngineError::PathMtu { .. }));
        let said = refused.to_string();
        assert!(said.contains("2048") && said.contains("1500"), "{said}");
    }
}
