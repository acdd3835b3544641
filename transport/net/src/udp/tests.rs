//! Ports over loopback, and over veth with a sniffer: what is on the wire, bit for bit.

use std::collections::HashSet;
use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU16, Ordering};

use socket2::{Domain, Protocol, Type};
use xroce_testnet::NetnsPair;
use xroce_wire::frame::Frame;
use xroce_wire::newtypes::{MacAddr, PKey, Psn, Qpn};
use xroce_wire::opcode::Opcode;
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;
use xroce_wire::template::{Emit, HeaderTemplate, Lower};

use super::*;

/// Two loopback addresses of this test alone, whatever else runs on the machine.
fn loopback_pair() -> [IpAddr; 2] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed) % 100;
    let [a, b] = u16::try_from(std::process::id() % 65_536)
        .unwrap()
        .to_be_bytes();
    // Not 127.0.x.x, which people use.
    [0, 100].map(|k| {
        let host = u8::try_from(1 + n + k).unwrap();
        Ipv4Addr::new(127, 1 + a % 254, b, host).into()
    })
}

fn bind_pair(cfg: &UdpConfig) -> [UdpPort; 2] {
    loopback_pair().map(|ip| UdpPort::bind(ip, cfg).unwrap())
}

fn template(src: &UdpPort, dst: Gid) -> HeaderTemplate {
    let av = AddressVector {
        src: src.gid(),
        dst,
        src_mac: MacAddr::default(),
        dst_mac: MacAddr::default(),
        vlan: None,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        src_port: src.src_port(),
    };
    HeaderTemplate::new(Lower::Udp, &av, Qpn::new(0x11), PKey::DEFAULT).unwrap()
}

/// Commits a SEND Only with this PSN and payload length; false when the port is full.
fn put(port: &mut UdpPort, dst: Gid, tos: u8, psn: u32, payload_len: usize) -> bool {
    let t = template(port, dst);
    let Some(frame) = port.tx_begin() else {
        return false;
    };
    let opcode = Opcode::RcSendOnly;
    let emit = Emit {
        opcode,
        psn: Psn::new(psn),
        ack_req: false,
        solicited: false,
        payload_len,
    };
    let mut packet = t.start(frame, &emit).unwrap();
    for (i, b) in packet.payload_mut().iter_mut().enumerate() {
        *b = content(psn, i);
    }
    let len = packet.finish();
    port.tx_commit(&TxMeta { dst, tos }, len);
    true
}

#[allow(clippy::cast_possible_truncation, reason = "a pattern of bytes")]
fn content(psn: u32, i: usize) -> u8 {
    (psn as usize * 31 + i * 7) as u8
}

/// A received packet, already checked: ICRC right, content as `put` wrote it.
#[derive(Debug, PartialEq, Eq, Clone)]
struct Got {
    src: Gid,
    psn: u32,
    len: usize,
    tos: u8,
}

fn check(frame: &Frame<'_>) -> Got {
    assert!(frame.icrc_ok(), "ICRC of {frame:?}");
    let packet = Packet::parse(frame.transport()).unwrap();
    let psn = packet.psn().value();
    let payload = packet.payload();
    assert!(
        payload
            .iter()
            .enumerate()
            .all(|(i, &b)| b == content(psn, i)),
        "psn {psn}"
    );
    Got {
        src: frame.src(),
        psn,
        len: payload.len(),
        tos: frame.tos(),
    }
}

/// Receives until `n` packets came, or nothing more does.
fn take(port: &mut UdpPort, n: usize, budget: usize) -> Vec<Got> {
    let mut got = Vec::new();
    let mut idle = 0;
    while got.len() < n && idle < 10 {
        let before = got.len();
        let burst = port
            .rx_burst(budget, &mut |rx| {
                let Rx::Udp(meta, bytes) = rx else {
                    panic!("not UDP")
                };
                got.push(check(&Frame::from_udp(&meta, bytes)));
            })
            .unwrap();
        assert_eq!(burst, got.len() - before);
        assert!(burst <= budget);
        if burst == 0 {
            idle += 1;
            port.wait(Some(Duration::from_millis(100))).unwrap();
        }
    }
    got
}

/// Small generator for mixed sizes (Knuth's MMIX constants).
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

#[test]
fn trains_of_mixed_sizes_keep_order_and_content() {
    for segmentation in [true, false] {
        let cfg = UdpConfig {
            segmentation,
            ..UdpConfig::default()
        };
        let [mut a, mut b] = bind_pair(&cfg);
        let mut rng = Lcg(7);
        let mut psn = 0;
        for round in 0..60 {
            let mut want = Vec::new();
            for _ in 0..1 + rng.below(12) {
                // Runs of one size, so that trains form; now and then one that is different.
                let len = [0, 1, 64, 256, 1024, 1024, 4096, 4096][rng.below(8)];
                for _ in 0..1 + rng.below(20) {
                    let len = if rng.below(10) == 0 {
                        rng.below(4097)
                    } else {
                        len
                    };
                    assert!(put(&mut a, b.gid(), 0, psn, len));
                    want.push((psn, len));
                    psn += 1;
                }
            }
            a.tx_flush().unwrap();
            let budget = [1, 3, 32, 1000][round % 4];
            let got: Vec<_> = take(&mut b, want.len(), budget)
                .iter()
                .map(|g| (g.psn, g.len))
                .collect();
            assert_eq!(got, want, "round {round} segmentation {segmentation}");
        }
        let (sa, sb) = (a.stats(), b.stats());
        assert_eq!((sa.tx_frames, sa.tx_bytes), (sb.rx_frames, sb.rx_bytes));
        assert_eq!((sa.tx_dropped, sb.rx_dropped), (0, 0));
        if segmentation {
            assert!(sa.syscalls * 2 < sa.tx_frames, "{sa:?}");
        }
    }
}

#[test]
fn several_destinations_in_one_burst() {
    let [mut a, mut b] = bind_pair(&UdpConfig::default());
    let [mut c, _d] = bind_pair(&UdpConfig::default());
    for psn in 0..300 {
        let dst = if psn / 7 % 2 == 0 { b.gid() } else { c.gid() };
        assert!(put(&mut a, dst, 0, psn, 1024));
    }
    a.tx_flush().unwrap();
    let to_b: Vec<u32> = take(&mut b, 152, 64).iter().map(|g| g.psn).collect();
    let to_c: Vec<u32> = take(&mut c, 148, 64).iter().map(|g| g.psn).collect();
    assert_eq!(
        to_b,
        (0..300).filter(|p| p / 7 % 2 == 0).collect::<Vec<_>>()
    );
    assert_eq!(
        to_c,
        (0..300).filter(|p| p / 7 % 2 == 1).collect::<Vec<_>>()
    );
}

#[test]
fn ipv6_loopback_and_ecn() {
    // ::1 is the only IPv6 address of every machine: the port sends to itself.
    let cfg = UdpConfig {
        port: 40_000 + u16::try_from(std::process::id() % 20_000).unwrap(),
        ..UdpConfig::default()
    };
    let mut port = UdpPort::bind(Ipv6Addr::LOCALHOST.into(), &cfg).unwrap();
    let own = port.gid();
    let tos = |psn: u32| [0x68, 0x69, 0x6a, 0x6b][psn as usize / 10 % 4];
    for psn in 0..100 {
        assert!(put(&mut port, own, tos(psn), psn, 100 + psn as usize / 30));
    }
    port.tx_flush().unwrap();
    let got = take(&mut port, 100, 64);
    assert_eq!(got.len(), 100);
    for (g, psn) in got.iter().zip(0..) {
        assert_eq!((g.psn, g.tos, g.src), (psn, tos(psn) & 3, own));
    }
    let [mut a, mut b] = bind_pair(&UdpConfig::default());
    for psn in 0..100 {
        assert!(put(&mut a, b.gid(), tos(psn), psn, 64));
    }
    a.tx_flush().unwrap();
    let got: Vec<u8> = take(&mut b, 100, 64).iter().map(|g| g.tos).collect();
    assert_eq!(got, (0..100).map(|p| tos(p) & 3).collect::<Vec<_>>());
}

#[test]
fn caps_name_the_port_and_tell_the_mtu() {
    let [a, _b] = bind_pair(&UdpConfig::default());
    let ip = a.gid().ip();
    assert_eq!(a.caps().link, Link::Udp);
    // Not every container lets lo keep its default.
    let lo = crate::neigh::interface("lo").unwrap();
    assert_eq!(a.caps().mtu, lo.mtu as usize);
    assert!(
        a.caps().name.starts_with(&format!("UDP lo {ip}:4791 (GSO")),
        "{}",
        a.caps().name
    );
    assert!(a.buffers().0 > 100_000 && a.buffers().1 > 100_000);
}

#[test]
fn opening_errors_say_what_to_do() {
    let [a, _b] = bind_pair(&UdpConfig::default());
    let ip = a.gid().ip();
    let again = UdpPort::bind(ip, &UdpConfig::default()).unwrap_err();
    assert!(matches!(again, UdpError::InUse(_)));
    assert!(
        again.to_string().contains("4791") && again.to_string().contains("in use"),
        "{again}"
    );
    let wild = UdpPort::bind(Ipv4Addr::UNSPECIFIED.into(), &UdpConfig::default()).unwrap_err();
    assert!(matches!(wild, UdpError::Wildcard(_)), "{wild}");
    // Documentation addresses (RFC 5737, RFC 3849), and a link-local one nobody has.
    for far in ["198.51.100.7", "2001:db8::7", "fe80::dead:beef:dead:beef"] {
        let far: IpAddr = far.parse().unwrap();
        let e = UdpPort::bind(far, &UdpConfig::default()).unwrap_err();
        assert!(matches!(e, UdpError::NotLocal(_)), "{e}");
        assert!(e.to_string().contains("ip -br address"));
    }
}

#[test]
fn port_unreachable_is_noticed_and_survived() {
    let [mut a, b] = bind_pair(&UdpConfig::default());
    let gone = b.gid();
    drop(b);
    for psn in 0..5 {
        assert!(put(&mut a, gone, 0, psn, 64));
        a.tx_flush().unwrap();
        a.wait(Some(Duration::from_millis(100))).unwrap();
        assert_eq!(a.rx_burst(64, &mut |_| ()).unwrap(), 0);
    }
    assert!(a.icmp_errors() >= 5, "{}", a.icmp_errors());
    assert_eq!(
        a.last_error(),
        Some(&SendTrouble::PortUnreachable {
            from: Some(gone.ip()),
            port: 4791
        })
    );
    assert!(
        a.last_error()
            .unwrap()
            .to_string()
            .contains("nothing listens on UDP port 4791")
    );
    // It goes on, and to others at once.
    let [mut c, _d] = bind_pair(&UdpConfig::default());
    assert!(put(&mut a, gone, 0, 0, 64));
    assert!(put(&mut a, c.gid(), 0, 1, 64));
    assert!(put(&mut a, gone, 0, 2, 64));
    assert!(put(&mut a, c.gid(), 0, 3, 64));
    a.tx_flush().unwrap();
    let got: Vec<u32> = take(&mut c, 2, 64).iter().map(|g| g.psn).collect();
    assert_eq!(got, [1, 3]);
    assert_eq!(a.stats().tx_dropped, 0);
    assert!(a.take_last_error().is_some() && a.last_error().is_none());
}

#[test]
fn wrong_family_is_dropped_and_told() {
    let [mut a, mut b] = bind_pair(&UdpConfig::default());
    let v6 = Gid::from(IpAddr::from(Ipv6Addr::LOCALHOST));
    a.tx_begin().unwrap()[..20].fill(0);
    a.tx_commit(&TxMeta { dst: v6, tos: 0 }, 20);
    assert!(put(&mut a, b.gid(), 0, 1, 64));
    a.tx_flush().unwrap();
    assert_eq!(take(&mut b, 1, 64).len(), 1);
    assert_eq!(a.stats().tx_dropped, 1);
    let told = a.last_error().unwrap().to_string();
    assert!(told.contains("one is IPv4, the other IPv6"), "{told}");
}

#[test]
fn without_kernel_segmentation_frames_go_singly() {
    for errno in [Errno::IO, Errno::INVAL] {
        let [mut a, mut b] = bind_pair(&UdpConfig::default());
        a.inject.extend([errno]);
        for psn in 0..20 {
            assert!(put(
                &mut a,
                b.gid(),
                0,
                psn,
                if psn == 19 { 30 } else { 500 }
            ));
        }
        a.tx_flush().unwrap();
        for psn in 20..40 {
            assert!(put(&mut a, b.gid(), 0, psn, 500));
        }
        a.tx_flush().unwrap();
        let got: Vec<u32> = take(&mut b, 40, 64).iter().map(|g| g.psn).collect();
        assert_eq!(got, (0..40).collect::<Vec<_>>());
        assert_eq!((a.stats().tx_dropped, a.stats().syscalls), (0, 41));
        assert!(format!("{:?}", a.trains).contains("max_segments: 1"));
    }
}

#[test]
fn a_full_socket_keeps_its_train() {
    for errno in [Errno::WOULDBLOCK, Errno::NOBUFS] {
        let [mut a, mut b] = bind_pair(&UdpConfig::default());
        a.inject.extend([errno, errno, errno]);
        for psn in 0..20 {
            assert!(put(&mut a, b.gid(), 0, psn, 1024));
        }
        // Another size: the train is complete, sending fails, this frame waits behind it.
        assert!(put(&mut a, b.gid(), 0, 20, 4096));
        assert!(!put(&mut a, b.gid(), 0, 21, 64), "blocked");
        a.wait(Some(Duration::from_millis(1))).unwrap();
        a.tx_flush().unwrap();
        assert!(!put(&mut a, b.gid(), 0, 21, 64), "blocked");
        assert_eq!(a.stats().tx_full, 2);
        a.tx_flush().unwrap();
        a.tx_flush().unwrap();
        assert!(put(&mut a, b.gid(), 0, 21, 64));
        a.tx_flush().unwrap();
        let got: Vec<u32> = take(&mut b, 22, 64).iter().map(|g| g.psn).collect();
        assert_eq!(got, (0..22).collect::<Vec<_>>(), "{errno}");
        assert_eq!((a.stats().tx_dropped, a.stats().tx_frames), (0, 22));
    }
    // Blocked in the middle of a train that goes frame by frame.
    let [mut a, mut b] = bind_pair(&UdpConfig::default());
    a.inject
        .extend([Errno::IO, Errno::WOULDBLOCK, Errno::NOBUFS]);
    for psn in 0..5 {
        assert!(put(&mut a, b.gid(), 0, psn, 100));
    }
    for _ in 0..3 {
        a.tx_flush().unwrap();
    }
    let got: Vec<u32> = take(&mut b, 5, 64).iter().map(|g| g.psn).collect();
    assert_eq!(got, (0..5).collect::<Vec<_>>());
}

#[test]
fn a_refused_train_is_counted() {
    let [mut a, mut b] = bind_pair(&UdpConfig::default());
    a.inject.extend([Errno::PERM; TRIES]);
    for psn in 0..20 {
        assert!(put(&mut a, b.gid(), 0, psn, 64));
    }
    a.tx_flush().unwrap();
    assert_eq!(a.stats().tx_dropped, 20);
    assert!(matches!(
        a.last_error(),
        Some(SendTrouble::Refused { errno: 1, .. })
    ));
    a.inject.extend([Errno::BADF; TRIES]);
    assert!(put(&mut a, b.gid(), 0, 20, 64));
    assert_eq!(a.tx_flush().unwrap_err().raw_os_error(), Some(9));
    a.inject.clear();
    assert!(put(&mut a, b.gid(), 0, 21, 64));
    a.tx_flush().unwrap();
    assert_eq!(
        take(&mut b, 1, 64)
            .iter()
            .map(|g| g.psn)
            .collect::<Vec<_>>(),
        [21]
    );
}

#[test]
fn a_bad_destination_does_not_end_segmentation() {
    let [mut a, mut b] = bind_pair(&UdpConfig::default());
    // From a loopback address to another machine: EINVAL.
    let far = Gid::from_v4([198, 51, 100, 7]);
    for psn in 0..10 {
        assert!(put(&mut a, far, 0, psn, 64));
    }
    for psn in 10..20 {
        assert!(put(&mut a, b.gid(), 0, psn, 64));
    }
    a.tx_flush().unwrap();
    let got: Vec<u32> = take(&mut b, 10, 64).iter().map(|g| g.psn).collect();
    assert_eq!(got, (10..20).collect::<Vec<_>>());
    let stats = a.stats();
    assert!(stats.tx_dropped == 10 && stats.syscalls < 20, "{stats:?}");
    assert!(matches!(a.last_error(), Some(SendTrouble::Refused { .. })));
}

#[test]
fn overflow_of_the_receive_buffer_is_counted() {
    let [mut a, _] = bind_pair(&UdpConfig::default());
    let ip = loopback_pair()[0];
    let mut b = UdpPort::bind(
        ip,
        &UdpConfig {
            buffer_bytes: 4096,
            ..UdpConfig::default()
        },
    )
    .unwrap();
    for psn in 0..500 {
        while !put(&mut a, b.gid(), 0, psn, 4096) {
            a.tx_flush().unwrap();
        }
    }
    a.tx_flush().unwrap();
    let got = take(&mut b, 500, 64).len() as u64;
    let dropped = b.stats().rx_dropped;
    // The kernel counts what it drops, a coalesced train as one.
    assert!(
        got < 500 && dropped > 0 && got + dropped <= 500,
        "{got} received, {dropped} dropped"
    );
    assert_eq!(a.stats().tx_dropped, 0);
}

#[test]
fn wait_ends_when_something_comes() {
    let [mut a, mut b] = bind_pair(&UdpConfig::default());
    b.wait(Some(Duration::from_millis(2))).unwrap();
    for psn in 0..2 {
        assert!(put(&mut a, b.gid(), 0, psn, 64));
    }
    a.tx_flush().unwrap();
    b.wait(None).unwrap();
    assert_eq!(b.rx_burst(1, &mut |_| ()).unwrap(), 1);
    // The second frame of the train has been received but not handed out: no sleep.
    b.wait(None).unwrap();
    assert_eq!(b.rx_burst(9, &mut |_| ()).unwrap(), 1);
}

/// Every frame that crosses the interfaces of the namespace `ns`, from now on.
fn sniffer() -> Socket {
    const ETH_P_ALL: u16 = 3;
    let socket = Socket::new(
        Domain::PACKET,
        Type::RAW,
        Some(Protocol::from(i32::from(ETH_P_ALL.to_be()))),
    )
    .unwrap();
    let _ = sockopt_rcvbuf(&socket);
    socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    socket
}

fn sockopt_rcvbuf(socket: &Socket) -> Result<(), Errno> {
    rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, 64 << 20)
}

/// What the sniffer saw of RoCE, in order: PSN, identification (IPv4), TOS.
fn sniffed(mut socket: Socket) -> Vec<(u32, Option<u16>, u8)> {
    let mut seen = Vec::new();
    let mut buffer = vec![0; 65_536 + 64];
    while let Ok(n) = socket.read(&mut buffer) {
        let bytes = &buffer[..n];
        let Ok(frame) = Frame::parse_ethernet(bytes) else {
            continue;
        };
        let got = check(&frame);
        let id = frame.src().v4().map(|_| {
            let flags = u16::from_be_bytes([bytes[20], bytes[21]]);
            assert_eq!(flags, 0x4000, "DF, no fragment");
            u16::from_be_bytes([bytes[18], bytes[19]])
        });
        seen.push((got.psn, id, got.tos));
    }
    seen
}

/// Single sends and trains as the kernel puts them on the wire: ICRC, DF, identification, DSCP.
#[test]
fn on_the_wire() {
    let Some(net) = NetnsPair::or_skip(4200, 1) else {
        return;
    };
    // The device cuts nothing: the kernel does, in front of it, and the sniffer sees packets.
    net.a.ip_cmd("link set veth0 gso_max_segs 1").unwrap();
    for (v6, segmentation) in [(false, true), (true, true), (false, false), (true, false)] {
        let cfg = UdpConfig {
            segmentation,
            ..UdpConfig::default()
        };
        let bind = |ip| UdpPort::bind(ip, &cfg).unwrap();
        let mut a = net.a.run(|| bind(net.a.ip(v6)));
        let (mut b, tap) = net.b.run(|| (bind(net.b.ip(v6)), sniffer()));
        assert_eq!((a.caps().mtu, b.caps().mtu), (4200, 4200));
        let mut want = Vec::new();
        let mut psn = 0;
        let trains: [(usize, usize, usize, u8); 8] = [
            (1, 0, 0, 0),
            (64, 64, 64, 0x6a),
            (15, 4096, 4096, 0x02),
            (15, 4096, 100, 0x68),
            (62, 1024, 1024, 0x6b),
            (2, 256, 3, 0),
            (64, 1, 1, 0),
            (1, 4096, 4096, 0x01),
        ];
        for (count, len, last, tos) in trains {
            for k in 0..count {
                let len = if k + 1 == count { last } else { len };
                assert!(put(&mut a, b.gid(), tos, psn, len));
                let id = if segmentation {
                    u16::try_from(k).unwrap()
                } else {
                    0
                };
                let id = (!v6).then_some(id);
                want.push((psn, id, tos));
                psn += 1;
            }
            a.tx_flush().unwrap();
        }
        let got = take(&mut b, want.len(), 64);
        assert_eq!(got.len(), want.len());
        assert!(
            got.iter()
                .zip(&want)
                .all(|(g, w)| g.psn == w.0 && g.tos == w.2 & 3)
        );
        assert_eq!(sniffed(tap), want, "v6 {v6} segmentation {segmentation}");
        assert_eq!(a.stats().tx_dropped, 0);
    }
}

/// Trains that cross the link whole and are taken apart by the receiver.
#[test]
fn whole_trains_over_veth() {
    let Some(net) = NetnsPair::or_skip(4200, 1) else {
        return;
    };
    for v6 in [false, true] {
        let bind = |ip| UdpPort::bind(ip, &UdpConfig::default()).unwrap();
        let mut a = net.a.run(|| bind(net.a.ip(v6)));
        let mut b = net.b.run(|| bind(net.b.ip(v6)));
        for psn in 0..640 {
            assert!(put(&mut a, b.gid(), 2, psn, 1000));
        }
        a.tx_flush().unwrap();
        let got: Vec<_> = take(&mut b, 640, 64)
            .iter()
            .map(|g| (g.psn, g.tos))
            .collect();
        assert_eq!(got, (0..640).map(|psn| (psn, 2)).collect::<Vec<_>>());
        let calls = b.stats().syscalls;
        assert!(calls < 40, "{calls} system calls for ten trains");
    }
}

/// A link slower than the sender: the socket's buffer fills and pushes back, nothing is lost.
#[test]
fn a_slow_link_pushes_back() {
    let Some(net) = NetnsPair::or_skip(4200, 1) else {
        return;
    };
    let tbf = "qdisc add dev veth0 root tbf rate 400mbit burst 64k limit 20m";
    let mut tc = net.a.command("tc");
    if !tc.args(tbf.split(' ')).status().is_ok_and(|s| s.success()) {
        xroce_testnet::skip("tc cannot make a slow link");
        return;
    }
    let cfg = UdpConfig {
        buffer_bytes: 150_000,
        ..UdpConfig::default()
    };
    let mut a = net.a.run(|| UdpPort::bind(net.a.ip(false), &cfg).unwrap());
    let mut b = net
        .b
        .run(|| UdpPort::bind(net.b.ip(false), &UdpConfig::default()).unwrap());
    let mut got = Vec::new();
    for psn in 0..2_000 {
        while !put(&mut a, b.gid(), 0, psn, 4096) {
            a.wait(Some(Duration::from_millis(100))).unwrap();
            a.tx_flush().unwrap();
            got.extend(take(&mut b, 1, 64).iter().map(|g| g.psn));
        }
    }
    while got.len() < 2_000 {
        a.tx_flush().unwrap();
        let more = take(&mut b, 1, 64);
        assert!(!more.is_empty(), "{} of 2000", got.len());
        got.extend(more.iter().map(|g| g.psn));
    }
    assert_eq!(got, (0..2_000).collect::<Vec<_>>());
    let stats = a.stats();
    assert!(stats.tx_full > 10 && stats.tx_dropped == 0, "{stats:?}");
}

#[test]
fn too_long_for_the_link() {
    let Some(net) = NetnsPair::or_skip(1500, 1) else {
        return;
    };
    for v6 in [false, true] {
        let bind = |ip| UdpPort::bind(ip, &UdpConfig::default()).unwrap();
        let mut a = net.a.run(|| bind(net.a.ip(v6)));
        let mut b = net.b.run(|| bind(net.b.ip(v6)));
        assert_eq!(a.caps().mtu, 1500);
        // A single one, then a train, then what fits.
        assert!(put(&mut a, b.gid(), 0, 0, 4096));
        a.tx_flush().unwrap();
        assert_eq!(a.stats().tx_dropped, 1);
        for psn in 1..4 {
            assert!(put(&mut a, b.gid(), 0, psn, 4096));
        }
        a.tx_flush().unwrap();
        assert_eq!(a.stats().tx_dropped, 4);
        let limit = if v6 { 1452 } else { 1472 };
        assert_eq!(
            a.take_last_error(),
            Some(SendTrouble::TooLong {
                len: 4112,
                limit,
                mtu: 1500
            }),
            "v6 {v6}"
        );
        for psn in 4..20 {
            assert!(put(&mut a, b.gid(), 0, psn, limit - 16));
        }
        a.tx_flush().unwrap();
        let got: Vec<u32> = take(&mut b, 16, 64).iter().map(|g| g.psn).collect();
        assert_eq!(got, (4..20).collect::<Vec<_>>());
        // One byte more than fits.
        assert!(put(&mut a, b.gid(), 0, 20, limit - 15));
        a.tx_flush().unwrap();
        assert_eq!(a.stats().tx_dropped, 5);
        assert_eq!(a.icmp_errors(), 0);
    }
}

#[test]
fn link_local_addresses() {
    let Some(net) = NetnsPair::or_skip(1500, 1) else {
        return;
    };
    let address = |ns: &xroce_testnet::Netns| {
        ns.run(|| {
            let device = crate::neigh::interface("veth0").unwrap();
            let local = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
            device.addresses.iter().map(|a| a.ip).find(local).unwrap()
        })
    };
    let bind = |ip| UdpPort::bind(ip, &UdpConfig::default()).unwrap();
    let mut a = net.a.run(|| bind(address(&net.a)));
    let mut b = net.b.run(|| bind(address(&net.b)));
    for psn in 0..3 {
        assert!(put(&mut a, b.gid(), 0, psn, 64));
    }
    a.tx_flush().unwrap();
    let from: HashSet<Gid> = take(&mut b, 3, 64).iter().map(|g| g.src).collect();
    assert_eq!(from, HashSet::from([a.gid()]));
}

#[test]
fn junk_is_handed_over_as_it_came() {
    let [mut a, mut b] = bind_pair(&UdpConfig::default());
    for len in [0, 1, 0, 3] {
        a.tx_begin().unwrap()[..len].fill(9);
        a.tx_commit(
            &TxMeta {
                dst: b.gid(),
                tos: 0,
            },
            len,
        );
    }
    a.tx_flush().unwrap();
    let mut got = Vec::new();
    while got.len() < 4 {
        b.wait(Some(Duration::from_secs(5))).unwrap();
        let n = b
            .rx_burst(64, &mut |rx| {
                if let Rx::Udp(_, bytes) = rx {
                    got.push(bytes.to_vec())
                }
            })
            .unwrap();
        assert!(n > 0);
    }
    assert_eq!(got, [vec![], vec![9], vec![], vec![9; 3]]);
}
