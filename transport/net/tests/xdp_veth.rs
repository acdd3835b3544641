//! The AF_XDP backend over a veth pair between two network namespaces of its own.
//!
//! Needs root; without it each test prints why and returns, or fails if `XROCE_REQUIRE_XDP=1`.
#![cfg(feature = "xdp")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "helpers of tests"
)]

use std::env;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use libbpf_rs::{Xdp, XdpFlags};
use xroce_net::datapath::{Datapath, Rx, TxMeta};
use xroce_net::neigh;
use xroce_net::xdp::raw::{self, RawEnd, RawPath};
use xroce_net::xdp::{Mode, XdpConfig, XdpError, XdpPort};
use xroce_testnet::{IFNAME, Netns, NetnsPair, skip};
use xroce_wire::newtypes::Gid;
use xroce_xdp_prog::RoceProgram;

/// IP MTU of path MTU 4096.
const MTU: u32 = 4200;
/// Tells a re-run of this test binary which namespace to open a port in.
const CHILD: &str = "XROCE_TEST_CHILD_NETNS";

/// Two ports and what is around them; the ports are closed before the namespaces go.
struct Setup {
    a: XdpPort,
    b: XdpPort,
    net: NetnsPair,
}

impl Setup {
    fn new(mtu: u32, change: impl Fn(&mut XdpConfig) + Sync) -> Option<Self> {
        let net = NetnsPair::or_skip(mtu, 1)?;
        let a = open_or_skip(&net.a, &change)?;
        let b = open_or_skip(&net.b, &change)?;
        Some(Self { a, b, net })
    }

    fn path(&self, v6: bool) -> RawPath {
        path(&self.net.a, &self.net.b, v6)
    }
}

fn open(ns: &Netns, change: impl Fn(&mut XdpConfig) + Sync) -> Result<XdpPort, XdpError> {
    let mut config = XdpConfig::new(IFNAME);
    change(&mut config);
    ns.run(|| XdpPort::open(&config))
}

fn open_or_skip(ns: &Netns, change: impl Fn(&mut XdpConfig) + Sync) -> Option<XdpPort> {
    match open(ns, change) {
        Ok(port) => Some(port),
        Err(e @ (XdpError::Permission { .. } | XdpError::Unsupported)) => {
            skip(&e.to_string());
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn path(from: &Netns, to: &Netns, v6: bool) -> RawPath {
    let mac = |ns: &Netns| ns.run(|| neigh::interface(IFNAME)).unwrap().mac;
    RawPath {
        src_mac: mac(from),
        dst_mac: mac(to),
        src: Gid::from(from.ip(v6)),
        dst: Gid::from(to.ip(v6)),
        src_port: 0xc123,
    }
}

/// A frame of `len` bytes whose payload tells it from all others.
fn numbered(path: &RawPath, len: usize, number: usize) -> Vec<u8> {
    let mut frame = raw::frame(path, len).unwrap();
    let header = if path.src.v4().is_some() { 42 } else { 62 };
    for (at, byte) in frame[header..].iter_mut().enumerate() {
        *byte = (number * 31 + at * 7 + at / 251) as u8;
    }
    frame
}

fn meta(path: &RawPath) -> TxMeta {
    TxMeta {
        dst: path.dst,
        tos: 0,
    }
}

fn send(port: &mut XdpPort, path: &RawPath, frame: &[u8]) {
    port.tx_begin().expect("a free frame")[..frame.len()].copy_from_slice(frame);
    port.tx_commit(&meta(path), frame.len());
}

/// What arrives until `count` frames are there or 200 ms pass without one.
fn receive(port: &mut XdpPort, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut idle = 0;
    while frames.len() < count && idle < 20 {
        let got = port
            .rx_burst(16, &mut |rx| match rx {
                Rx::Ethernet(bytes) => frames.push(bytes.to_vec()),
                Rx::Udp(..) => panic!("not from an Ethernet port"),
            })
            .unwrap();
        if got == 0 {
            idle += 1;
            port.wait(Some(Duration::from_millis(10))).unwrap();
        } else {
            idle = 0;
        }
    }
    frames
}

/// Sends `sent` and expects exactly that at the other end.
#[track_caller]
fn expect(from: &mut XdpPort, to: &mut XdpPort, path: &RawPath, sent: &[Vec<u8>]) {
    for burst in sent.chunks(32) {
        for frame in burst {
            send(from, path, frame);
        }
        from.tx_flush().unwrap();
        let got = receive(to, burst.len());
        assert_eq!(
            got.len(),
            burst.len(),
            "frames lost: {:?} {:?}",
            from.stats(),
            to.stats()
        );
        for (got, sent) in got.iter().zip(burst) {
            assert_eq!(got.len(), sent.len());
            assert!(
                got == sent,
                "content of a frame of {} bytes differs",
                sent.len()
            );
        }
    }
}

fn lengths() -> Vec<usize> {
    // Around the limits: minimum, one chunk (3766), the kernel's own (3840), path MTU 4096, MTU.
    let mut lengths = vec![60, 61, 64, 122, 128, 1082, 1514, 2106];
    lengths.extend(3764..=3770);
    lengths.extend(3838..=3843);
    lengths.extend([4095, 4096, 4097, 4170, 4214]);
    lengths.extend((78..4214).step_by(97));
    lengths
}

fn both_ways(setup: &mut Setup, v6: bool) {
    let there = setup.path(v6);
    let back = path(&setup.net.b, &setup.net.a, v6);
    let frames = |path: &RawPath| -> Vec<Vec<u8>> {
        let fits = |len: &usize| !v6 || *len >= 78;
        lengths()
            .into_iter()
            .filter(fits)
            .enumerate()
            .map(|(n, l)| numbered(path, l, n))
            .collect()
    };
    // Several rounds: every chunk is used more than once.
    for _ in 0..8 {
        expect(&mut setup.a, &mut setup.b, &there, &frames(&there));
        expect(&mut setup.b, &mut setup.a, &back, &frames(&back));
    }
    let (a, b) = (setup.a.stats(), setup.b.stats());
    assert_eq!((a.tx_frames, a.tx_bytes), (b.rx_frames, b.rx_bytes));
    assert_eq!((b.tx_frames, b.tx_bytes), (a.rx_frames, a.rx_bytes));
    for stats in [a, b] {
        assert_eq!((stats.rx_dropped, stats.tx_dropped), (0, 0));
        assert!(stats.syscalls > 0);
    }
}

#[test]
fn frames_of_all_lengths_arrive_in_order_both_ways() {
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    assert_eq!(setup.a.caps().mtu, 4200);
    assert_eq!(setup.a.caps().max_frame, 4218);
    assert_eq!(setup.a.caps().name, "AF_XDP veth0 queue 0 (native, copy)");
    both_ways(&mut setup, false);
    both_ways(&mut setup, true);
}

#[test]
fn generic_mode_carries_the_same_frames() {
    let Some(mut setup) = Setup::new(MTU, |c| c.mode = Mode::Generic) else {
        return;
    };
    assert_eq!(setup.a.caps().name, "AF_XDP veth0 queue 0 (generic, copy)");
    both_ways(&mut setup, false);
}

#[test]
fn a_link_of_mtu_1500_needs_no_second_chunk() {
    let Some(mut setup) = Setup::new(1500, |_| {}) else {
        return;
    };
    assert_eq!((setup.a.caps().mtu, setup.a.caps().max_frame), (1500, 1518));
    let path = setup.path(false);
    let frames: Vec<_> = (60..1514)
        .step_by(31)
        .map(|l| numbered(&path, l, l))
        .collect();
    expect(&mut setup.a, &mut setup.b, &path, &frames);
}

#[test]
fn a_jumbo_link_carries_what_the_kernel_sends_too() {
    let Some(mut setup) = Setup::new(9000, |_| {}) else {
        return;
    };
    // Sending is limited to two chunks, more than any RoCE packet needs.
    assert_eq!((setup.a.caps().mtu, setup.a.caps().max_frame), (7514, 7532));
    let path = setup.path(false);
    let frames = [4170, 7531, 7532].map(|len| numbered(&path, len, len));
    expect(&mut setup.a, &mut setup.b, &path, &frames);
    let outbox = setup.net.a.run(|| UdpSocket::bind("10.77.0.1:0")).unwrap();
    let payload: Vec<u8> = (0..8972u32).map(|n| (n % 253) as u8).collect();
    outbox.send_to(&payload, "10.77.0.2:4791").unwrap();
    let got = receive(&mut setup.b, 1);
    assert_eq!(got[0].len(), 9014);
    assert!(got[0][42..] == payload);
}

#[test]
fn payload_of_a_lent_frame_is_aligned() {
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    let frame = setup.a.tx_begin().unwrap();
    assert_eq!(frame.len(), 4218);
    assert_eq!(frame[54..].as_ptr().addr() % 64, 0);
    let path = setup.path(false);
    send(&mut setup.a, &path, &numbered(&path, 1082, 0));
    setup.a.tx_flush().unwrap();
    setup.b.wait(Some(Duration::from_secs(1))).unwrap();
    let aligned = &mut |rx: Rx<'_>| {
        let Rx::Ethernet(bytes) = rx else {
            unreachable!()
        };
        assert_eq!(bytes[54..].as_ptr().addr() % 64, 0);
    };
    assert_eq!(setup.b.rx_burst(1, aligned).unwrap(), 1);
}

#[test]
fn what_is_not_ours_goes_to_the_kernel() {
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    // ARP, neighbour discovery and ICMP, while frames of ours go by.
    for v6 in [false, true] {
        setup.net.a.ping(setup.net.b.ip(v6)).unwrap();
        setup.net.b.ping(setup.net.a.ip(v6)).unwrap();
        let path = setup.path(v6);
        expect(
            &mut setup.a,
            &mut setup.b,
            &path,
            &[numbered(&path, 100, 1)],
        );
    }
    // UDP to another port, and RoCE to an address that is not claimed (another stack's).
    setup
        .net
        .b
        .ip_cmd("addr add 10.77.0.77/24 dev veth0")
        .unwrap();
    for (to, port) in [("10.77.0.2", 4790), ("10.77.0.77", 4791)] {
        let inbox = setup.net.b.run(|| UdpSocket::bind((to, port))).unwrap();
        inbox
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        let outbox = setup.net.a.run(|| UdpSocket::bind("10.77.0.1:0")).unwrap();
        outbox.send_to(b"hello", (to, port)).unwrap();
        assert_eq!(inbox.recv(&mut [0; 16]).unwrap(), 5);
    }
    assert!(receive(&mut setup.b, 1).is_empty());
    let seen = setup.b.program_counters().unwrap();
    assert_eq!((seen.redirected, seen.no_socket), (2, 0));
    assert!(seen.passed >= 6, "{seen:?}");
}

#[test]
fn frames_of_the_kernel_stack_reach_the_port() {
    // A peer on the UDP backend, as rdma_rxe would do: ordinary packets to port 4791.
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    for v6 in [false, true] {
        let outbox = setup
            .net
            .a
            .run(|| UdpSocket::bind((setup.net.a.ip(v6), 0)))
            .unwrap();
        for len in [1, 1000, 4096] {
            outbox
                .send_to(&vec![7; len], (setup.net.b.ip(v6), 4791))
                .unwrap();
            let got = receive(&mut setup.b, 1);
            let header = if v6 { 62 } else { 42 };
            assert_eq!(got[0].len(), header + len);
            assert!(got[0][header..].iter().all(|b| *b == 7));
        }
    }
}

#[test]
fn a_vlan_tag_is_seen_and_two_are_left_to_the_kernel() {
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    for v6 in [false, true] {
        let path = setup.path(v6);
        let tagged = |tags: &[u8], len: usize| {
            let mut frame = numbered(&path, len, 3);
            frame.splice(12..12, tags.iter().copied());
            frame
        };
        let one = [0x81, 0, 0x60, 100];
        let frames = [tagged(&one, 100), tagged(&one, 1082), tagged(&one, 4170)];
        expect(&mut setup.a, &mut setup.b, &path, &frames);
        let two = [0x81, 0, 0, 100, 0x81, 0, 0, 5];
        let outer = [0x88, 0xa8, 0, 100];
        for frame in [tagged(&two, 100), tagged(&outer, 100)] {
            send(&mut setup.a, &path, &frame);
        }
        setup.a.tx_flush().unwrap();
        assert!(receive(&mut setup.b, 1).is_empty());
    }
    assert_eq!(setup.b.program_counters().unwrap().redirected, 6);
}

#[test]
fn damaged_frames_are_left_to_the_kernel() {
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    let path = setup.path(false);
    let good = numbered(&path, 100, 0);
    let with = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        frame
    };
    let bad = [
        with(14, 0x46),      // IP options
        with(14, 0x65),      // version 6 in an IPv4 frame
        with(20, 0x20),      // more fragments
        with(21, 1),         // fragment offset
        with(23, 6),         // TCP
        with(33, 99),        // another address
        with(37, 0),         // another port
        good[..40].to_vec(), // cut inside UDP
        good[..20].to_vec(), // cut inside IP
        good[..14].to_vec(), // nothing behind Ethernet
    ];
    for frame in &bad {
        send(&mut setup.a, &path, frame);
    }
    setup.a.tx_flush().unwrap();
    assert!(receive(&mut setup.b, 1).is_empty());
    let seen = setup.b.program_counters().unwrap();
    assert_eq!((seen.redirected, seen.no_socket), (0, 0));
    // Don't fragment and the reserved bit are no fragments.
    expect(
        &mut setup.a,
        &mut setup.b,
        &path,
        &[with(20, 0x40), with(20, 0x80), good.clone()],
    );
}

/// A frame over IPv6 as a fragment; `offset` is that field of its header, with the bits below.
fn ipv6_fragment(frame: &[u8], offset: u16) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let [high, low] = offset.to_be_bytes();
    frame[20] = 44;
    let len = u16::from_be_bytes([frame[18], frame[19]]) + 8;
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame.splice(54..54, [17, 0, high, low, 1, 2, 3, 4]);
    frame
}

#[test]
fn netns_case_126_roce_in_fragments_is_counted_and_left_to_the_kernel() {
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    let mut fragmented = 0;
    for tagged in [false, true] {
        for v6 in [false, true] {
            let path = setup.path(v6);
            let good = numbered(&path, 200, 0);
            let patched = |edits: &[(usize, u8)]| {
                let mut frame = good.clone();
                for &(at, byte) in edits {
                    frame[at] = byte;
                }
                frame
            };
            let (whole, others) = if v6 {
                let first = ipv6_fragment(&good, 1);
                let (mut dns, mut to_another, mut tcp) =
                    (first.clone(), first.clone(), first.clone());
                (dns[65], to_another[53], tcp[54]) = (53, 99, 6);
                // The last fragment of a datagram looks like this too, without a port.
                let rest = ipv6_fragment(&good, 8 << 3);
                let cut = first[..60].to_vec();
                (first, vec![dns, to_another, tcp, rest, cut])
            } else {
                let rest = patched(&[(20, 0x20), (21, 8)]);
                let last = patched(&[(21, 8)]);
                let dns = patched(&[(20, 0x20), (37, 53)]);
                let to_another = patched(&[(20, 0x20), (33, 99)]);
                let tcp = patched(&[(20, 0x20), (23, 6)]);
                let cut = patched(&[(20, 0x20)])[..40].to_vec();
                (
                    patched(&[(20, 0x20)]),
                    vec![rest, last, dns, to_another, tcp, cut],
                )
            };
            let tag = |frame: &[u8]| {
                let mut frame = frame.to_vec();
                if tagged {
                    frame.splice(12..12, [0x81, 0, 0, 100]);
                }
                frame
            };
            for _ in 0..3 {
                send(&mut setup.a, &path, &tag(&whole));
                fragmented += 1;
            }
            for frame in &others {
                send(&mut setup.a, &path, &tag(frame));
            }
            setup.a.tx_flush().unwrap();
            assert!(receive(&mut setup.b, 1).is_empty());
            let seen = setup.b.program_counters().unwrap();
            assert_eq!((seen.redirected, seen.fragments), (0, fragmented));
            assert_eq!(setup.b.stats().rx_fragmented, fragmented);
        }
    }
    assert_eq!(setup.b.stats().rx_other_queue, 0);
}

#[test]
fn netns_case_126_datagrams_that_the_kernel_fragments_are_counted() {
    let Some(mut setup) = Setup::new(1500, |_| {}) else {
        return;
    };
    for v6 in [false, true] {
        let outbox = setup.net.a.run(|| UdpSocket::bind((setup.net.a.ip(v6), 0)));
        let to = (setup.net.b.ip(v6), 4791);
        for len in [100, 4000, 1400] {
            outbox.as_ref().unwrap().send_to(&vec![7; len], to).unwrap();
        }
        assert_eq!(receive(&mut setup.b, 2).len(), 2);
    }
    let stats = setup.b.stats();
    assert_eq!((stats.rx_fragmented, stats.rx_frames), (2, 4));
}

#[test]
fn two_queues_share_one_program() {
    let Some(net) = NetnsPair::or_skip(MTU, 2) else {
        return;
    };
    let port = |ns, queue| open_or_skip(ns, |c: &mut XdpConfig| c.queue = queue);
    let Some(mut a0) = port(&net.a, 0) else {
        return;
    };
    let mut a1 = port(&net.a, 1).unwrap();
    let mut b0 = port(&net.b, 0).unwrap();
    let mut b1 = port(&net.b, 1).unwrap();
    let path = path(&net.a, &net.b, false);
    for n in 0..8 {
        let frame = |k| numbered(&path, 500 + n, n * 2 + k);
        expect(&mut a0, &mut b0, &path, &[frame(0)]);
        expect(&mut a1, &mut b1, &path, &[frame(1)]);
    }
    assert_eq!((b0.stats().rx_frames, b1.stats().rx_frames), (8, 8));
    // Both see the same program.
    assert_eq!(b0.program_counters().unwrap().redirected, 16);
    assert_eq!(
        b1.program_counters().unwrap(),
        b0.program_counters().unwrap()
    );
    // One leaves, the other stays; frames for the queue that is gone go to the kernel.
    drop(b0);
    expect(&mut a1, &mut b1, &path, &[numbered(&path, 100, 1)]);
    send(&mut a0, &path, &numbered(&path, 100, 2));
    a0.tx_flush().unwrap();
    let seen = b1.program_counters().unwrap();
    assert_eq!((seen.redirected, seen.no_socket), (17, 1));
    assert_eq!(b1.stats().rx_other_queue, 1);
    // The queue can be taken again, in the same mode only.
    let other = open(&net.b, |c| c.mode = Mode::Generic);
    assert!(
        matches!(
            other,
            Err(XdpError::OtherMode {
                attached: "native",
                ..
            })
        ),
        "{other:?}"
    );
    let mut b0 = port(&net.b, 0).unwrap();
    expect(&mut a0, &mut b0, &path, &[numbered(&path, 100, 3)]);
    assert!(is_attached(&net.b));
    drop((b0, b1));
    assert!(!is_attached(&net.b));
}

#[test]
fn ports_of_one_interface_keep_their_addresses_apart() {
    let Some(net) = NetnsPair::or_skip(1500, 2) else {
        return;
    };
    let v4 = Gid::from(net.b.ip(false));
    let v6 = Gid::from(net.b.ip(true));
    let port = |queue, gids: &[Gid]| {
        open_or_skip(&net.b, |c: &mut XdpConfig| {
            c.queue = queue;
            c.addresses = gids.to_vec();
        })
    };
    let Some(mut first) = port(0, &[v4]) else {
        return;
    };
    let second = port(1, &[v4, v6, v6]).unwrap();
    let mut a = open(&net.a, |_| {}).unwrap();
    let paths = [path(&net.a, &net.b, false), path(&net.a, &net.b, true)];
    for path in &paths {
        expect(&mut a, &mut first, path, &[numbered(path, 100, 0)]);
    }
    // The IPv6 address goes with the only port that claimed it, the IPv4 address stays.
    drop(second);
    expect(
        &mut a,
        &mut first,
        &paths[0],
        &[numbered(&paths[0], 100, 0)],
    );
    send(&mut a, &paths[1], &numbered(&paths[1], 100, 0));
    a.tx_flush().unwrap();
    assert!(receive(&mut first, 1).is_empty());
}

#[test]
fn committed_frames_wait_for_the_flush_and_the_pool_comes_back() {
    let Some(mut setup) = Setup::new(MTU, |c| c.tx_frames = 16) else {
        return;
    };
    let path = setup.path(false);
    for round in 0..50 {
        let frames: Vec<_> = (0..16)
            .map(|n| numbered(&path, 4100 + n, n + round))
            .collect();
        for frame in &frames {
            send(&mut setup.a, &path, frame);
        }
        assert!(receive_now(&mut setup.b).is_empty());
        setup.a.tx_flush().unwrap();
        assert_eq!(receive(&mut setup.b, 16), frames);
    }
    // Without a flush the pool runs empty; asking for more makes the kernel send.
    let mut arrived = 0;
    for n in 0..40 {
        send(&mut setup.a, &path, &numbered(&path, 200, n));
        arrived += receive_now(&mut setup.b).len();
    }
    setup.a.tx_flush().unwrap();
    arrived += receive(&mut setup.b, 40 - arrived).len();
    assert_eq!(arrived, 40);
    assert_eq!(setup.a.stats().tx_full, 0);
    // A frame lent and not committed is lent again, and sends nothing.
    let first = setup.a.tx_begin().unwrap().as_ptr();
    assert_eq!(setup.a.tx_begin().unwrap().as_ptr(), first);
    setup.a.tx_flush().unwrap();
    assert!(receive(&mut setup.b, 1).is_empty());
}

fn receive_now(port: &mut XdpPort) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    port.rx_burst(64, &mut |rx| {
        if let Rx::Ethernet(bytes) = rx {
            frames.push(bytes.to_vec());
        }
    })
    .unwrap();
    frames
}

#[test]
fn a_slow_receiver_drops_and_recovers() {
    let Some(mut setup) = Setup::new(MTU, |c| c.ring_size = 64) else {
        return;
    };
    let path = setup.path(false);
    for n in 0..1000 {
        send(&mut setup.a, &path, &numbered(&path, 4170, n));
        setup.a.tx_flush().unwrap();
    }
    // 64 chunks hold 32 frames of two chunks; the rest is counted, none is damaged.
    let got = receive(&mut setup.b, 1000);
    assert_eq!(got.len(), 32);
    assert!(
        got.iter()
            .enumerate()
            .all(|(n, f)| *f == numbered(&path, 4170, n))
    );
    assert!(setup.b.stats().rx_dropped > 0);
    let frames: Vec<_> = (0..200).map(|n| numbered(&path, 60 + n * 20, n)).collect();
    for frame in &frames {
        expect(
            &mut setup.a,
            &mut setup.b,
            &path,
            std::slice::from_ref(frame),
        );
    }
}

#[test]
fn two_threads_at_full_rate_lose_no_chunk_and_damage_no_frame() {
    // Few chunks: the receiver gives them back while the kernel takes them.
    let Some(mut setup) = Setup::new(MTU, |c| c.ring_size = 64) else {
        return;
    };
    let path = setup.path(false);
    let (a, b) = (&mut setup.a, &mut setup.b);
    let frame = |n: u32| {
        let mut frame = numbered(&path, 200 + n as usize % 7 * 600, n as usize);
        frame[42..46].copy_from_slice(&n.to_be_bytes());
        frame
    };
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut next = 0;
            let mut got = 0;
            while next < 100_000 {
                let mut check = |rx: Rx<'_>| {
                    let Rx::Ethernet(bytes) = rx else {
                        unreachable!()
                    };
                    let n = u32::from_be_bytes(bytes[42..46].try_into().unwrap());
                    // Some may be dropped on the way, none comes out of turn.
                    assert!(n >= next && frame(n) == bytes, "frame {n} after {next}");
                    next = n + 1;
                    got += 1;
                };
                if b.rx_burst(8, &mut check).unwrap() == 0 {
                    b.wait(Some(Duration::from_millis(100))).unwrap();
                }
            }
            got
        });
        let mut n = 0;
        while !receiver.is_finished() {
            for _ in 0..8 {
                send(a, &path, &frame(n));
                n += 1;
            }
            a.tx_flush().unwrap();
        }
        assert!(receiver.join().unwrap() > 1000);
    });
    // All 64 chunks are still there.
    receive(b, usize::MAX);
    let burst: Vec<_> = (0..64).map(|n| numbered(&path, 100, n)).collect();
    for frame in &burst {
        send(a, &path, frame);
    }
    a.tx_flush().unwrap();
    assert_eq!(receive(b, 64), burst);
}

#[test]
fn a_frame_too_long_for_the_peer_is_counted() {
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    setup.net.b.ip_cmd("link set veth0 mtu 1500").unwrap();
    let path = setup.path(false);
    for n in 0..100 {
        send(
            &mut setup.a,
            &path,
            &numbered(&path, if n % 2 == 0 { 3000 } else { 1000 }, n),
        );
    }
    setup.a.tx_flush().unwrap();
    assert_eq!(receive(&mut setup.b, 100).len(), 50);
    assert_eq!(setup.a.stats().tx_dropped, 50);
    // All frames are back.
    assert!((0..256).all(|n| {
        let lent = setup.a.tx_begin().is_some();
        setup.a.tx_commit(&meta(&path), 60 + n % 2);
        lent
    }));
}

#[test]
fn waiting_ends_with_a_frame_or_with_the_timeout() {
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    setup.b.wait(Some(Duration::ZERO)).unwrap();
    setup.b.wait(Some(Duration::from_millis(5))).unwrap();
    let path = setup.path(false);
    let (mut a, mut b) = (setup.a, setup.b);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            b.wait(None).unwrap();
            receive_now(&mut b).len()
        });
        sleep(Duration::from_millis(30));
        send(&mut a, &path, &numbered(&path, 100, 0));
        a.tx_flush().unwrap();
        assert_eq!(waiter.join().unwrap(), 1);
    });
}

#[test]
fn an_interface_that_goes_down_is_an_error_until_it_is_up_again() {
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    let path = setup.path(false);
    setup.net.a.ip_cmd("link set veth0 down").unwrap();
    send(&mut setup.a, &path, &numbered(&path, 100, 0));
    let error = setup.a.tx_flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkDown, "{error}");
    assert!(error.to_string().contains("veth0"), "{error}");
    assert!(polls_until_error(&mut setup.a).is_some());
    setup.net.a.ip_cmd("link set veth0 up").unwrap();
    setup.a.tx_flush().unwrap();
    assert_eq!(receive(&mut setup.b, 1).len(), 1);
    expect(
        &mut setup.a,
        &mut setup.b,
        &path,
        &[numbered(&path, 4170, 1)],
    );
}

#[test]
fn an_interface_that_is_removed_is_an_error() {
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    let path = setup.path(false);
    setup.net.a.ip_cmd("link del veth0").unwrap();
    send(&mut setup.a, &path, &numbered(&path, 100, 0));
    assert_eq!(
        setup.a.tx_flush().unwrap_err().kind(),
        ErrorKind::NetworkDown
    );
    // The receiving side notices without sending, polling or waiting.
    assert_eq!(
        polls_until_error(&mut setup.b),
        Some(ErrorKind::NetworkDown)
    );
    assert_eq!(
        setup.b.wait(None).unwrap_err().kind(),
        ErrorKind::NetworkDown
    );
    // Frames still go somewhere and dropping does not hang.
    let _ = setup.b.tx_begin();
    let _ = setup.b.stats();
}

fn polls_until_error(port: &mut XdpPort) -> Option<ErrorKind> {
    (0..10_000).find_map(|_| port.rx_burst(1, &mut |_| {}).err().map(|e| e.kind()))
}

fn is_attached(ns: &Netns) -> bool {
    ns.ip_cmd("link show dev veth0").unwrap().contains("xdp")
}

#[test]
fn dropping_a_port_detaches_and_frees_the_queue() {
    let Some(net) = NetnsPair::or_skip(MTU, 1) else {
        return;
    };
    for mode in [Mode::Native, Mode::Generic, Mode::Auto, Mode::Auto] {
        let Some(port) = open_or_skip(&net.a, |c: &mut XdpConfig| c.mode = mode) else {
            return;
        };
        assert!(is_attached(&net.a));
        // The queue is taken as long as the port lives.
        if mode == Mode::Auto {
            let second = open(&net.a, |_| {});
            assert!(
                matches!(second, Err(XdpError::Busy { queue: 0, .. })),
                "{second:?}"
            );
        }
        drop(port);
        assert!(!is_attached(&net.a));
    }
}

/// Not a test of its own: what [`a_killed_process_leaves_nothing`] runs in another process.
#[test]
fn child_holds_a_port() {
    let Ok(netns) = env::var(CHILD) else { return };
    assert!(!netns.is_empty());
    let port = XdpPort::open(&XdpConfig::new(IFNAME)).unwrap();
    println!("\nopen");
    sleep(Duration::from_secs(60));
    drop(port);
}

#[test]
fn a_killed_process_leaves_nothing() {
    let Some(net) = NetnsPair::or_skip(MTU, 2) else {
        return;
    };
    let Some(port) = open_or_skip(&net.a, |_| {}) else {
        return;
    };
    drop(port);
    let mut child = Command::new("ip")
        .args(["netns", "exec", net.a.name()])
        .arg(env::current_exe().unwrap())
        .args(["--exact", "child_holds_a_port", "--nocapture"])
        .env(CHILD, net.a.name())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    assert!(out.lines().map_while(Result::ok).any(|line| line == "open"));
    assert!(is_attached(&net.a));
    // Its queue and its program are in the way, and the error says whose they are.
    let error = open(&net.a, |_| {}).unwrap_err();
    assert!(matches!(error, XdpError::Busy { .. }), "{error}");
    let error = open(&net.a, |c| c.queue = 1).unwrap_err();
    assert!(matches!(error, XdpError::Occupied { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("Another xroce process has the interface"),
        "{error}"
    );
    // SIGKILL: no destructor runs.
    child.kill().unwrap();
    child.wait().unwrap();
    let port = open(&net.a, |_| {}).unwrap();
    drop(port);
    assert!(!is_attached(&net.a));
}

#[test]
fn errors_say_what_to_do() {
    let Some(net) = NetnsPair::or_skip(MTU, 2) else {
        return;
    };
    if open_or_skip(&net.a, |_| {}).is_none() {
        return;
    }
    let say = |change: &(dyn Fn(&mut XdpConfig) + Sync)| {
        open(&net.a, change).expect_err("must fail").to_string()
    };
    let text = say(&|c| c.ifname = "eth7".to_owned());
    assert_eq!(
        text,
        "no network interface `eth7` here; there are: lo, veth0"
    );
    let text = say(&|c| c.queue = 2);
    assert_eq!(text, "veth0 has no queue 2: it has 2, numbered from 0");
    assert!(say(&|c| c.ring_size = 100).contains("power of two"));
    assert!(say(&|c| c.tx_frames = 1).contains("tx_frames"));
    net.a
        .ip_cmd("link add veth1 type veth peer name veth2")
        .unwrap();
    let text = say(&|c| c.ifname = "veth1".to_owned());
    assert_eq!(
        text,
        "interface veth1 is down; bring it up: ip link set dev veth1 up"
    );
    net.a.ip_cmd("link set veth1 up").unwrap();
    net.a.ip_cmd("addr flush dev veth1").unwrap();
    let text = say(&|c| c.ifname = "veth1".to_owned());
    assert!(text.starts_with("veth1 has no usable address"), "{text}");
    // A device without native XDP: refused if asked for, else generic.
    let lo = |mode| {
        move |c: &mut XdpConfig| {
            c.ifname = "lo".to_owned();
            c.mode = mode;
        }
    };
    let text = say(&lo(Mode::Native));
    assert!(
        text.contains("native mode") && text.contains("try generic mode"),
        "{text}"
    );
    let port = open(&net.a, lo(Mode::Auto)).unwrap();
    assert_eq!(port.caps().name, "AF_XDP lo queue 0 (generic, copy)");
}

#[test]
fn a_foreign_program_is_named_and_left_alone() {
    let Some(net) = NetnsPair::or_skip(MTU, 1) else {
        return;
    };
    if open_or_skip(&net.a, |_| {}).is_none() {
        return;
    }
    // Attached by netlink, as `ip link set xdp` does.
    let program = RoceProgram::load().unwrap();
    let index = net.a.run(|| neigh::interface(IFNAME)).unwrap().index;
    let index = index.try_into().unwrap();
    net.a
        .run(|| Xdp::new(program.fd()).attach(index, XdpFlags::NONE))
        .unwrap();
    for mode in [Mode::Auto, Mode::Native, Mode::Generic] {
        let error = open(&net.a, |c| c.mode = mode).unwrap_err();
        let XdpError::Occupied {
            program, remedy, ..
        } = &error
        else {
            panic!("{error}")
        };
        assert!(program.starts_with("`xroce_steer`, id "), "{error}");
        assert_eq!(remedy, "Remove it with: ip link set dev veth0 xdp off");
    }
    assert!(is_attached(&net.a));
    net.a.ip_cmd("link set dev veth0 xdp off").unwrap();
    open(&net.a, |_| {}).unwrap();
}

#[test]
fn raw_loops_count_what_they_move() {
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    let (there, back) = (setup.path(false), path(&setup.net.b, &setup.net.a, false));
    // A stand-in for a clock: a microsecond a call.
    let clock = std::cell::Cell::new(0);
    let now = || {
        clock.set(clock.get() + 1000);
        clock.get()
    };
    for len in [64, 1082, 4170] {
        let mut a = RawEnd::new(&mut setup.a, &there, len).unwrap();
        let mut b = RawEnd::new(&mut setup.b, &back, len).unwrap();
        let count = raw::one_thread(&mut a, &mut b, 32, 20_000, now).unwrap();
        assert!(count.frames >= 320, "{count:?}");
        assert_eq!(count.bytes, count.frames * len as u64);
        assert!(count.frames_per_second() > 0.0 && count.gigabits_per_second() > 0.0);
        assert_eq!(a.send(1).unwrap(), 1);
        assert_eq!(b.receive().unwrap().bytes, len as u64);
    }
    // What a prepared frame carries.
    RawEnd::new(&mut setup.a, &there, 4170)
        .unwrap()
        .send(3)
        .unwrap();
    let got = receive(&mut setup.b, 3);
    assert_eq!(got, vec![raw::frame(&there, 4170).unwrap(); 3]);
    assert!(RawEnd::new(&mut setup.a, &there, 4219).is_err());
    // Flood and sink, ping and echo, each end in a thread of its own.
    let tick = |step: u64| {
        let at = std::cell::Cell::new(0);
        move || {
            at.set(at.get() + step);
            at.get()
        }
    };
    let Setup { a, b, .. } = &mut setup;
    let mut a = RawEnd::new(a, &there, 128).unwrap();
    let mut b = RawEnd::new(b, &back, 128).unwrap();
    std::thread::scope(|scope| {
        let sink = scope.spawn(|| b.sink(1_000_000_000, 1 << 62, tick(1000)));
        let sent = a.flood(32, 1_000_000, tick(1000)).unwrap();
        let got = sink.join().unwrap().unwrap();
        assert!(
            got.frames > 0 && got.frames <= sent.frames,
            "{got:?} of {sent:?}"
        );
    });
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| b.echo(1_000_000_000, 1 << 62, tick(1000)));
        let mut answers = 0;
        // 10 ms of this clock are 10 000 looks at it, 640 000 polls: nothing is lost.
        let lost = a.ping(1_000_000, tick(1000), |_| answers += 1).unwrap();
        assert_eq!(lost, 0);
        assert_eq!(echo.join().unwrap().unwrap(), answers);
    });
}

#[test]
fn neighbours_are_resolved_through_the_kernel() {
    let Some(net) = NetnsPair::or_skip(MTU, 1) else {
        return;
    };
    let a = net.a.run(|| neigh::interface(IFNAME)).unwrap();
    let b = net.b.run(|| neigh::interface(IFNAME)).unwrap();
    let resolve = |src: IpAddr, dst: IpAddr, ms| {
        net.a
            .run(|| neigh::resolve(a.index, src, dst, ms))
            .map_err(|e| e.to_string())
    };
    for v6 in [false, true] {
        let (src, dst) = (net.a.ip(v6), net.b.ip(v6));
        assert_eq!(net.a.run(|| neigh::neighbour(a.index, dst)).unwrap(), None);
        assert_eq!(resolve(src, dst, 3000), Ok(b.mac));
        let known = net
            .a
            .run(|| neigh::neighbour(a.index, dst))
            .unwrap()
            .unwrap();
        assert_eq!(known.mac, Some(b.mac));
        assert_eq!(resolve(src, dst, 0), Ok(b.mac));
    }
    // Link-local, with the interface as the only hint.
    let link_local = |i: &neigh::Interface| {
        let mut found = i.addresses.iter().filter(|a| a.scope == neigh::Scope::Link);
        found.next().unwrap().ip
    };
    assert_eq!(resolve(link_local(&a), link_local(&b), 3000), Ok(b.mac));
    // Groups are computed, own addresses and strangers refused.
    let group = "224.1.2.3".parse().unwrap();
    assert_eq!(
        resolve(net.a.ip(false), group, 0).unwrap().to_string(),
        "01:00:5e:01:02:03"
    );
    let text = resolve(net.a.ip(false), net.a.ip(false), 0).unwrap_err();
    assert!(text.contains("is an address of this machine"), "{text}");
    let text = resolve(net.a.ip(false), [192, 0, 2, 1].into(), 0).unwrap_err();
    assert!(
        text.starts_with("no route to 192.0.2.1 from 10.77.0.1 through veth0"),
        "{text}"
    );
    let text = resolve([192, 0, 2, 9].into(), net.b.ip(false), 0).unwrap_err();
    assert!(
        text.contains("192.0.2.9 is not an address of this machine"),
        "{text}"
    );
    let text = resolve(net.a.ip(false), [10, 77, 0, 99].into(), 50).unwrap_err();
    assert!(
        text.starts_with("10.77.0.99 does not answer ARP on veth0"),
        "{text}"
    );
    let text = resolve(net.a.ip(true), "fd77::99".parse().unwrap(), 50).unwrap_err();
    assert!(
        text.starts_with("fd77::99 does not answer neighbour discovery"),
        "{text}"
    );
    // Behind a router: the gateway's address.
    net.a
        .ip_cmd("route add 198.51.100.0/24 via 10.77.0.2")
        .unwrap();
    let far: IpAddr = [198, 51, 100, 7].into();
    let route = net.a.run(|| neigh::route(far, None, None)).unwrap();
    assert_eq!(
        (route.next_hop, route.src),
        (net.b.ip(false), Some(net.a.ip(false)))
    );
    assert_eq!(resolve(net.a.ip(false), far, 3000), Ok(b.mac));
    net.a.ip_cmd("link set veth0 down").unwrap();
    let text = resolve(net.a.ip(false), net.b.ip(false), 0).unwrap_err();
    assert_eq!(
        text,
        "interface veth0 is down; bring it up: ip link set dev veth0 up"
    );
}

#[test]
fn interfaces_are_read_from_the_namespace_of_the_thread() {
    let Some(net) = NetnsPair::or_skip(MTU, 3) else {
        return;
    };
    let added = net
        .a
        .ip_cmd("link add link veth0 name veth0.42 type vlan id 42");
    // Not every kernel has VLAN devices.
    if let Err(why) = added {
        assert!(why.contains("Unknown device type"), "{why}");
    }
    let all = net.a.run(neigh::interfaces).unwrap();
    let veth = &all[1];
    assert_eq!((all[0].name.as_str(), veth.name.as_str()), ("lo", "veth0"));
    assert_eq!(
        (veth.mtu, veth.rx_queues, veth.tx_queues, veth.vlan),
        (4200, 3, 3, None)
    );
    assert!(veth.up && veth.running && !veth.no_arp && !veth.loopback);
    let v4 = &veth.addresses[0];
    assert_eq!((v4.ip, v4.prefix, v4.usable), (net.a.ip(false), 24, true));
    assert!(
        veth.addresses
            .iter()
            .any(|a| a.ip == net.a.ip(true) && a.usable)
    );
    if let Some(vlan) = all.get(2) {
        assert_eq!(vlan.name, "veth0.42");
        assert_eq!(
            vlan.vlan,
            Some(neigh::Vlan {
                parent: veth.index,
                vid: 42
            })
        );
        assert_eq!((vlan.mac, vlan.up), (veth.mac, false));
    }
}

#[test]
fn a_group_is_heard_from_join_to_leave() {
    let Some(mut setup) = Setup::new(MTU, |_| {}) else {
        return;
    };
    for (v6, group) in [(false, "239.77.1.2"), (true, "ff0e::7712")] {
        let ip: IpAddr = group.parse().unwrap();
        let group = Gid::from(ip);
        let mut path = setup.path(v6);
        path.dst = group;
        path.dst_mac = neigh::multicast_mac(ip).unwrap();
        let frame = numbered(&path, 200, 7);
        let ns = &setup.net.b;
        let port = &mut setup.b;
        let hears = |from: &mut XdpPort, to: &mut XdpPort| {
            send(from, &path, &frame);
            from.tx_flush().unwrap();
            receive(to, 1) == [frame.clone()]
        };
        assert!(!hears(&mut setup.a, port), "{ip} before");
        ns.run(|| port.join(group)).unwrap();
        assert!(hears(&mut setup.a, port), "{ip}");
        port.leave(group);
        assert!(!hears(&mut setup.a, port), "{ip} after");
        // And again.
        ns.run(|| port.join(group)).unwrap();
        assert!(hears(&mut setup.a, port), "{ip} again");
    }
}
