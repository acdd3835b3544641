//! UD stories: address handles, the header in front, limits.

use etherparse::{Ipv4Header, Ipv6Header};
use xroce_api::EngineError;
use xroce_net::datapath::Link;
use xroce_net::sim::{PortConfig, SimNet};
use xroce_proto::wc::{WcFlags, WcStatus};
use xroce_proto::wr::{PostError, SendOp};
use xroce_wire::frame::Frame;
use xroce_wire::newtypes::{Gid, VlanTci};

use crate::common::{Host, Setup, pattern};
use crate::{QKEY, capture, datagram, handle, raise_ud, ud_qp};

const MS: u64 = 1_000_000;

fn v4(gid: Gid) -> [u8; 4] {
    gid.v4().unwrap()
}

#[test]
fn a_datagram_and_its_answer() {
    for (link, ips) in [
        (Link::Ethernet, ["192.0.2.1", "192.0.2.2"]),
        (Link::Ethernet, ["2001:db8::1", "2001:db8::2"]),
        (Link::Udp, ["192.0.2.1", "192.0.2.2"]),
        (Link::Udp, ["2001:db8::1", "2001:db8::2"]),
    ] {
        let setup = Setup {
            link,
            ips,
            ..Setup::default()
        };
        let mut world = setup.build();
        let [a, b] = [0, 1].map(|i| ud_qp(&mut world, i, QKEY));
        let ahs = [0, 1].map(|i| handle(&mut world, i));
        let data = pattern(1, 4096);
        let [left, right] = &mut world.hosts;
        left.region.write_at(0, &data).unwrap();
        let sges = [left.sge(0, 4000), left.sge(4000, 96)];
        right.post_recv(b, 1, &[right.sge(0, 40 + 4096)]);
        let op = SendOp::SendImm([1, 2, 3, 4]);
        datagram(left, a, (ahs[0], b, QKEY), op, &sges).unwrap();
        world.idle(MS);
        let [left, right] = &mut world.hosts;
        let sent = left.completions();
        assert_eq!((sent.len(), sent[0].status), (1, WcStatus::Success));
        let received = right.completions();
        assert_eq!(received.len(), 1, "{ips:?} on {link:?}");
        let wc = received[0];
        assert_eq!((wc.byte_len, wc.src_qp, wc.imm), (4136, a, [1, 2, 3, 4]));
        assert_eq!(wc.flags, WcFlags::GRH | WcFlags::WITH_IMM);
        assert!(right.bytes(40, 4096) == data);
        let grh = right.bytes(0, 40);
        if left.gid.v4().is_some() {
            let (ip, _) = Ipv4Header::from_slice(&grh[20..]).unwrap();
            assert_eq!(grh[..20], [0; 20]);
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            assert_eq!((ip.source, ip.destination), (v4(left.gid), v4(right.gid)));
            assert_eq!(ip.ihl(), 5);
        } else {
            let (ip, _) = Ipv6Header::from_slice(&grh).unwrap();
            assert_eq!(ip.next_header.0, 17);
            assert_eq!(ip.source, left.gid.bytes());
            assert_eq!(ip.destination, right.gid.bytes());
            assert_eq!((ip.traffic_class, ip.hop_limit), (2, 64));
        }
        // Back to whom it came from.
        left.post_recv(a, 2, &[left.sge(8192, 100)]);
        let sge = right.sge(40, 5);
        datagram(
            right,
            b,
            (ahs[1], wc.src_qp, 0x8000_0000),
            SendOp::Send,
            &[sge],
        )
        .unwrap();
        world.idle(MS);
        let received = world.hosts[0].completions();
        assert_eq!((received.len(), received[0].src_qp), (1, b));
        assert!(world.hosts[0].bytes(8192 + 40, 5) == data[..5]);
    }
}

#[test]
fn case_15_an_address_handle_decides_all_headers() {
    let setup = Setup {
        ips: ["2001:db8::1", "2001:db8::2"],
        ..Setup::default()
    };
    let mut world = setup.build();
    let [a, b] = [0, 1].map(|i| ud_qp(&mut world, i, QKEY));
    let mut path = world.hosts[0].path_to(&world.hosts[1]);
    path.hop_limit = 7;
    path.traffic_class = 0xb9;
    path.flow_label = 0x54321;
    path.vlan = Some(VlanTci::new(0x6064));
    path.src_port = 0xdead;
    let frames = capture(&world, world.link.there);
    let [left, _] = &mut world.hosts;
    let ah = left.engine.create_ah(left.pd, &path).unwrap();
    datagram(left, a, (ah, b, QKEY), SendOp::Send, &[]).unwrap();
    world.settle();
    let frames = frames.borrow();
    let f = Frame::parse_ethernet(&frames[0]).unwrap();
    assert!(f.icrc_ok());
    assert_eq!((f.hop_limit(), f.tos()), (Some(7), 0xb9));
    assert_eq!((f.flow_label(), f.vlan()), (0x54321, path.vlan));
    assert_eq!((f.src_port(), f.dst_mac()), (0xdead, Some(path.dst_mac)));
}

#[test]
fn case_46_a_destroyed_handle_is_gone_and_what_was_posted_goes() {
    let mut world = Setup::default().build();
    let [a, b] = [0, 1].map(|i| ud_qp(&mut world, i, QKEY));
    let ah = handle(&mut world, 0);
    let [left, right] = &mut world.hosts;
    right.post_recv(b, 1, &[right.sge(0, 100)]);
    datagram(left, a, (ah, b, QKEY), SendOp::Send, &[]).unwrap();
    left.engine.destroy_ah(ah).unwrap();
    assert_eq!(left.engine.destroy_ah(ah), Err(EngineError::NoAh(ah)));
    // Another takes its place and not its number.
    let mut path = left.path_to(right);
    path.hop_limit = 3;
    let other = left.engine.create_ah(left.pd, &path).unwrap();
    assert_ne!(ah, other);
    let refused = datagram(left, a, (ah, b, QKEY), SendOp::Send, &[]);
    assert_eq!(refused, Err(EngineError::NoAh(ah)));
    world.idle(MS);
    assert_eq!(world.hosts[1].completions().len(), 1);
    let [left, _] = &mut world.hosts;
    let foreign = left.engine.alloc_pd();
    let ah = left.engine.create_ah(foreign, &path).unwrap();
    let refused = datagram(left, a, (ah, b, QKEY), SendOp::Send, &[]);
    assert_eq!(refused, Err(EngineError::Post(PostError::AddressPd)));
    path.hop_limit = 0;
    assert!(left.engine.create_ah(left.pd, &path).is_err());
}

#[test]
fn the_limit_is_the_mtu_of_the_port() {
    let net = SimNet::new(1);
    let port = net.port(&PortConfig {
        mtu: 1500,
        ..PortConfig::numbered(0)
    });
    let mut host = Host::new(port, "192.0.2.1", 1, 1 << 16);
    let mut init = xroce_proto::qp::QpInit::ud(host.pd, host.cq, host.cq);
    init.max_send_sge = 2;
    let qpn = host.engine.create_qp(&init).unwrap();
    raise_ud(&mut host, qpn, QKEY);
    let path = host.path_to(&host);
    let ah = host.engine.create_ah(host.pd, &path).unwrap();
    let to = (ah, qpn, QKEY);
    let sge = host.sge(0, 1025);
    let e = datagram(&mut host, qpn, to, SendOp::Send, &[sge]).unwrap_err();
    assert_eq!(
        e.to_string(),
        "datagram of 1025 bytes, one packet of this port carries 1024"
    );
    let sge = host.sge(0, 1024);
    datagram(&mut host, qpn, to, SendOp::Send, &[sge]).unwrap();
}

#[test]
fn case_50_a_wrong_qkey_is_counted() {
    let mut world = Setup::default().build();
    let [a, b] = [0, 1].map(|i| ud_qp(&mut world, i, QKEY));
    let ah = handle(&mut world, 0);
    let [left, right] = &mut world.hosts;
    right.post_recv(b, 1, &[right.sge(0, 100)]);
    for qkey in [QKEY + 1, QKEY, 0x8000_0000] {
        datagram(left, a, (ah, b, qkey), SendOp::Send, &[]).unwrap();
    }
    world.idle(MS);
    assert_eq!(world.hosts[1].completions().len(), 1);
    let counters = world.hosts[1].engine.qp_counters(b).unwrap();
    assert_eq!((counters.qkey_violations, counters.no_receive), (1, 1));
}
