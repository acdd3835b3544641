//! After warm-up no backend allocates: neither per frame nor per burst.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../../tests/counting/mod.rs"]
mod counting;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use counting::allocations;
use xroce_net::datapath::{Datapath, Link, TxMeta};
use xroce_net::sim::{Impairment, LoopConfig, PortConfig, SimNet, loop_pair};
use xroce_net::udp::{UdpConfig, UdpPort};
use xroce_wire::newtypes::Gid;

/// Frames of several sizes from `a`, with all that an engine calls.
fn send(a: &mut impl Datapath, dst: Gid, n: usize) {
    for i in 0..n {
        let len = [84, 84, 84, 1040, 1040, 20][i / 5 % 6];
        if let Some(frame) = a.tx_begin() {
            frame[..len].fill(7);
            a.tx_commit(&TxMeta { dst, tos: 2 }, len);
        }
    }
    a.tx_flush().unwrap();
}

fn receive(b: &mut impl Datapath) -> usize {
    let mut count = 0;
    loop {
        let n = b
            .rx_burst(32, &mut |rx| {
                std::hint::black_box(rx);
            })
            .unwrap();
        count += n;
        if n == 0 {
            return count;
        }
    }
}

fn sim_traffic(net: &SimNet, a: &mut impl Datapath, b: &mut impl Datapath, rounds: usize) -> usize {
    let mut received = 0;
    for _ in 0..rounds {
        send(a, Gid::from_v4([10, 0, 0, 2]), 64);
        send(b, Gid::from_v4([10, 0, 0, 1]), 7);
        while let Some(at) = net.next_event() {
            net.advance_to(at);
            received += receive(b) + receive(a);
        }
        received += receive(b) + receive(a);
    }
    received
}

#[test]
fn simulated_network() {
    for link in [Link::Ethernet, Link::Udp] {
        let net = SimNet::with_link(1, link);
        let imp = Impairment {
            rate_bps: 40_000_000_000,
            jitter_ns: 500,
            loss_ppm: 20_000,
            duplicate_ppm: 20_000,
            duplicate_delay_ns: 5_000,
            reorder_ppm: 20_000,
            reorder_positions: 8,
            corrupt_ppm: 20_000,
            ce_ppm: 20_000,
            ..Impairment::delay(2_000)
        };
        let mut a = net.port(&PortConfig::numbered(0));
        let mut b = net.port(&PortConfig::numbered(1));
        let switch = net.switch();
        net.attach(&a, switch, imp, imp);
        net.attach(&b, switch, imp, imp);
        net.reserve(2_000);
        sim_traffic(&net, &mut a, &mut b, 2_000);
        let mut received = 0;
        let asked = allocations(|| received = sim_traffic(&net, &mut a, &mut b, 1_000));
        assert!(received > 50_000, "{received}");
        assert_eq!(asked, 0, "{link:?}: allocations for {received} frames");
    }
}

#[test]
fn loop_pair_and_perfect_wire() {
    let (mut a, mut b) = loop_pair(&LoopConfig::default());
    let (mut c, mut d) = SimNet::direct();
    let mut run = |rounds: usize| {
        for _ in 0..rounds {
            send(&mut a, Gid::default(), 64);
            send(&mut c, Gid::default(), 64);
            assert_eq!((receive(&mut b), receive(&mut d)), (64, 64));
        }
    };
    run(10);
    assert_eq!(allocations(|| run(1_000)), 0);
}

#[test]
fn udp() {
    let [hi, lo] = u16::try_from(std::process::id() % 65_536)
        .unwrap()
        .to_be_bytes();
    let v4 = |n| IpAddr::from(Ipv4Addr::new(127, 1 + hi % 254, lo, n));
    let bind = |ip, port| {
        UdpPort::bind(
            ip,
            &UdpConfig {
                port,
                ..UdpConfig::default()
            },
        )
        .unwrap()
    };
    let (mut a, mut b) = (bind(v4(250), 4791), bind(v4(251), 4791));
    // IPv6 to itself: ::1 is the only address.
    let port = 30_000 + u16::from_be_bytes([hi, lo]) % 10_000;
    let mut c = bind(Ipv6Addr::LOCALHOST.into(), port);
    let mut run = |rounds: usize| {
        let (to_b, to_c) = (b.gid(), c.gid());
        for _ in 0..rounds {
            send(&mut a, to_b, 64);
            send(&mut c, to_c, 64);
            b.wait(Some(Duration::from_millis(1))).unwrap();
            assert_eq!((receive(&mut b), receive(&mut c)), (64, 64));
        }
        assert_eq!(a.stats().tx_frames, b.stats().rx_frames);
    };
    run(10);
    assert_eq!(allocations(|| run(500)), 0);
}

#[cfg(feature = "xdp")]
#[test]
fn xdp() {
    use xroce_net::xdp::raw::{RawPath, frame};
    use xroce_net::xdp::{XdpConfig, XdpError, XdpPort};
    use xroce_testnet::{IFNAME, NetnsPair, skip};

    let Some(net) = NetnsPair::or_skip(4200, 1) else {
        return;
    };
    let (mut a, mut b) = match [&net.a, &net.b].map(|ns| ns.run(open)) {
        [Ok(a), Ok(b)] => (a, b),
        [Err(why), _] | [_, Err(why)] => return skip(&why.to_string()),
    };
    fn open() -> Result<XdpPort, XdpError> {
        XdpPort::open(&XdpConfig::new(IFNAME))
    }
    let path = RawPath {
        src_mac: net.a.run(mac),
        dst_mac: net.b.run(mac),
        src: Gid::from(net.a.ip(false)),
        dst: Gid::from(net.b.ip(false)),
        src_port: 0xc000,
    };
    fn mac() -> xroce_wire::newtypes::MacAddr {
        xroce_net::neigh::interface(IFNAME).unwrap().mac
    }
    // Frames of one and of two chunks.
    let frames = [84, 1082, 4170].map(|len| frame(&path, len).unwrap());
    let meta = TxMeta {
        dst: path.dst,
        tos: 0,
    };
    let mut run = |rounds: usize| {
        for round in 0..rounds {
            for i in 0..48 {
                let bytes = &frames[(round + i) % 3];
                a.tx_begin().unwrap()[..bytes.len()].copy_from_slice(bytes);
                a.tx_commit(&meta, bytes.len());
            }
            a.tx_flush().unwrap();
            b.wait(Some(Duration::from_millis(1))).unwrap();
            assert_eq!(receive(&mut b), 48);
        }
        assert_eq!(a.stats().tx_frames, b.stats().rx_frames);
    };
    run(10);
    assert_eq!(allocations(|| run(500)), 0);
}
