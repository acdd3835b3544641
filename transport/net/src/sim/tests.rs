//! One behaviour of the network per test. Seeds are fixed; a failing assertion prints what it saw.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;

use super::*;
use crate::datapath::{Datapath, Rx, TxMeta};

const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn send(port: &mut impl Datapath, bytes: &[u8]) -> bool {
    send_to(port, Gid::default(), 0, bytes)
}

fn send_to(port: &mut impl Datapath, dst: Gid, tos: u8, bytes: &[u8]) -> bool {
    let Some(room) = port.tx_begin() else {
        return false;
    };
    room[..bytes.len()].copy_from_slice(bytes);
    port.tx_commit(&TxMeta { dst, tos }, bytes.len());
    port.tx_flush().unwrap();
    true
}

fn recv(port: &mut impl Datapath) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    port.rx_burst(usize::MAX, &mut |rx| match rx {
        Rx::Ethernet(b) | Rx::Udp(_, b) => got.push(b.to_vec()),
    })
    .unwrap();
    got
}

fn run(net: &SimNet) {
    while let Some(at) = net.next_event() {
        net.advance_to(at);
    }
}

/// An Ethernet frame whose payload starts with a number.
fn frame(dst: [u8; 6], src: [u8; 6], n: u32, len: usize) -> Vec<u8> {
    let mut f = [dst.as_slice(), &src, &[0x88, 0xb5], &n.to_be_bytes()].concat();
    f.resize(len.max(18), 0x5a);
    f
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().unwrap())
}

/// Sends `n` numbered frames, `gap` ns apart, and returns the numbers in order of arrival.
fn burst(imp: Impairment, n: u32, gap: u64) -> (Vec<u32>, WireStats) {
    let net = SimNet::new(1);
    let cfg = PortConfig {
        tx_ring: usize::MAX >> 40,
        rx_ring: usize::MAX,
        ..PortConfig::numbered(0)
    };
    let (mut a, mut b) = (net.port(&cfg), net.port(&cfg));
    let link = net.connect(&a, &b, imp, Impairment::default());
    for i in 0..n {
        net.advance_to(u64::from(i) * gap);
        assert!(send(&mut a, &frame(MAC_B, MAC_A, i, 100)));
    }
    run(&net);
    (
        recv(&mut b).iter().map(|f| number(f)).collect(),
        net.wire_stats(link.there),
    )
}

#[test]
fn delay_and_serialisation_are_exact() {
    // 1226 + 24 bytes at 1 Gb/s are 10 us; the second frame waits for the first.
    let net = SimNet::new(1);
    let imp = Impairment {
        rate_bps: 1_000_000_000,
        ..Impairment::delay(5_000)
    };
    let (mut a, mut b) = net.pair(imp, Impairment::default());
    send(&mut a, &frame(MAC_B, MAC_A, 0, 1226));
    send(&mut a, &frame(MAC_B, MAC_A, 1, 1226));
    assert_eq!(net.next_event(), Some(15_000));
    net.advance_to(14_999);
    assert!(recv(&mut b).is_empty());
    net.advance_to(15_000);
    assert_eq!(recv(&mut b).len(), 1);
    assert_eq!(net.next_event(), Some(25_000));
    net.advance_to(1_000_000);
    assert_eq!(
        (recv(&mut b).len(), net.next_event(), net.now()),
        (1, None, 1_000_000)
    );
    net.advance_to(3);
    assert_eq!(net.now(), 1_000_000);
}

#[test]
fn rate_does_not_round_small_frames() {
    // 84 bytes on the wire at 100 Gb/s are 6.72 ns: 10 000 of them must take 67 200 ns.
    let net = SimNet::new(1);
    let cfg = PortConfig {
        tx_ring: 20_000,
        rx_ring: 20_000,
        ..PortConfig::numbered(0)
    };
    let (mut a, b) = (net.port(&cfg), net.port(&cfg));
    let imp = Impairment {
        rate_bps: 100_000_000_000,
        ..Impairment::default()
    };
    net.connect(&a, &b, imp, Impairment::default());
    for i in 0..10_000 {
        send(&mut a, &frame(MAC_B, MAC_A, i, 60));
    }
    run(&net);
    assert_eq!(net.now(), 67_200);
}

#[test]
fn same_seed_same_trace() {
    let trace = |seed: u64| {
        let net = SimNet::new(seed);
        let imp = Impairment {
            jitter_ns: 3_000,
            loss_ppm: 50_000,
            duplicate_ppm: 50_000,
            duplicate_delay_ns: 20_000,
            reorder_ppm: 50_000,
            reorder_positions: 5,
            corrupt_ppm: 50_000,
            ..Impairment::delay(1_000)
        };
        let (mut a, mut b) = net.pair(imp, imp);
        let log = Rc::new(RefCell::new(String::new()));
        let out = Rc::clone(&log);
        net.set_tap(move |e| {
            let sum: u64 = e.frame.iter().map(|&b| u64::from(b)).sum();
            writeln!(
                out.borrow_mut(),
                "{} {:?} {:?} {sum}",
                e.now,
                e.wire,
                e.fate
            )
            .unwrap();
        });
        for i in 0..2_000 {
            net.advance_to(net.now() + 100);
            send(&mut a, &frame(MAC_B, MAC_A, i, 200));
            send(&mut b, &frame(MAC_A, MAC_B, i, 300));
            recv(&mut a);
            recv(&mut b);
        }
        run(&net);
        net.clear_tap();
        Rc::into_inner(log).unwrap().into_inner()
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
    assert!(trace(7).lines().count() > 7_000);
}

#[test]
fn loss_and_duplication_keep_their_rate() {
    let (got, stats) = burst(
        Impairment {
            loss_ppm: 10_000,
            ..Impairment::default()
        },
        100_000,
        0,
    );
    assert!((900..1100).contains(&stats.lost), "{stats:?}");
    assert_eq!(got.len() as u64, 100_000 - stats.lost);
    assert!(got.is_sorted());

    let (got, stats) = burst(
        Impairment {
            duplicate_ppm: 10_000,
            ..Impairment::default()
        },
        100_000,
        0,
    );
    assert!((900..1100).contains(&stats.duplicated), "{stats:?}");
    assert_eq!(got.len() as u64, 100_000 + stats.duplicated);
    assert!(
        got.is_sorted(),
        "without extra delay a copy is right behind the original"
    );
}

#[test]
fn loss_by_count_takes_every_nth() {
    let imp = Impairment {
        loss_every: 16,
        ..Impairment::default()
    };
    let (got, stats) = burst(imp, 1_600, 10);
    assert_eq!(stats.lost, 100);
    let every_other: Vec<_> = (0..1_600).filter(|n| n % 16 != 15).collect();
    assert_eq!(got, every_other);
}

#[test]
fn a_late_copy_comes_exactly_so_late() {
    let imp = Impairment {
        duplicate_ppm: 1_000_000,
        late_copy_ppm: 1_000_000,
        late_copy_delay_ns: 12_000_000,
        ..Impairment::delay(1_000)
    };
    let net = SimNet::new(1);
    let (mut a, mut b) = net.pair(imp, Impairment::default());
    send(&mut a, &frame(MAC_B, MAC_A, 0, 100));
    net.advance_to(12_000_999);
    assert_eq!(recv(&mut b).len(), 2, "the original and its copy");
    net.advance_to(12_001_000);
    assert_eq!(recv(&mut b).len(), 1);
    assert_eq!(net.next_event(), None);
}

#[test]
fn jitter_alone_never_reorders() {
    let (got, _) = burst(
        Impairment {
            jitter_ns: 10_000,
            ..Impairment::delay(100)
        },
        10_000,
        50,
    );
    assert_eq!(got, (0..10_000).collect::<Vec<_>>());
}

#[test]
fn reordering_by_positions_is_bounded() {
    let imp = Impairment {
        reorder_ppm: 100_000,
        reorder_positions: 64,
        ..Impairment::delay(1_000)
    };
    let (got, stats) = burst(imp, 20_000, 10);
    assert!((1_800..2_200).contains(&stats.reordered), "{stats:?}");
    assert_eq!(got.len(), 20_000);
    // How many frames sent later arrived before each one: never more than the positions, plus
    // those held ones that were let go at the same moment.
    let mut furthest = 0;
    for (i, &n) in got.iter().enumerate() {
        let overtaken_by = got[..i].iter().rev().take(300).filter(|&&m| m > n).count();
        furthest = furthest.max(overtaken_by);
    }
    assert!((55..=80).contains(&furthest), "{furthest}");
}

#[test]
fn held_frames_may_be_kept_apart() {
    let imp = Impairment {
        reorder_ppm: 1_000_000,
        reorder_positions: 1,
        reorder_apart_ns: 1_000,
        ..Impairment::delay(1_000)
    };
    let (got, stats) = burst(imp, 1_000, 10);
    assert_eq!(stats.reordered, 10, "one in a hundred frames");
    assert_eq!(got[..4], [1, 0, 2, 3]);
    assert_eq!(got[98..104], [98, 99, 101, 100, 102, 103]);
}

#[test]
fn a_held_last_frame_is_let_go_by_time() {
    let imp = Impairment {
        reorder_ppm: 1_000_000,
        reorder_positions: 3,
        reorder_delay_ns: 500,
        ..Impairment::delay(1_000)
    };
    let net = SimNet::new(1);
    let (mut a, mut b) = net.pair(imp, Impairment::default());
    send(&mut a, &frame(MAC_B, MAC_A, 0, 100));
    assert_eq!(net.next_event(), Some(1_500));
    run(&net);
    assert_eq!(recv(&mut b).len(), 1);
}

#[test]
fn reordering_by_time_only() {
    let imp = Impairment {
        reorder_ppm: 100_000,
        reorder_delay_ns: 5_000,
        ..Impairment::delay(1_000)
    };
    let (got, stats) = burst(imp, 10_000, 100);
    assert_eq!(got.len(), 10_000);
    assert!(!got.is_sorted() && stats.reordered > 900, "{stats:?}");
}

#[test]
fn queue_drops_its_tail_and_the_ring_pushes_back() {
    // 1 Gb/s, a queue of 10 frames: the eleventh of a burst is lost.
    let net = SimNet::new(1);
    let imp = Impairment {
        rate_bps: 1_000_000_000,
        queue_bytes: 1_000,
        ..Impairment::default()
    };
    let (mut a, mut b) = net.pair(imp, Impairment::default());
    for i in 0..20 {
        send(&mut a, &frame(MAC_B, MAC_A, i, 100));
    }
    run(&net);
    let got: Vec<u32> = recv(&mut b).iter().map(|f| number(f)).collect();
    assert_eq!(got, (0..10).collect::<Vec<_>>());

    // The same wire with a ring of 4 and no queue limit: nothing is lost, tx_begin says no.
    let net = SimNet::new(1);
    let cfg = PortConfig {
        tx_ring: 4,
        ..PortConfig::numbered(0)
    };
    let (mut a, b) = (net.port(&cfg), net.port(&PortConfig::numbered(1)));
    let imp = Impairment {
        rate_bps: 1_000_000_000,
        ..Impairment::delay(50_000)
    };
    let link = net.connect(&a, &b, imp, Impairment::default());
    let mut sent = 0;
    while send(&mut a, &frame(MAC_B, MAC_A, sent, 101)) {
        sent += 1;
    }
    assert_eq!((sent, a.stats().tx_full), (4, 1));
    // (101 + 24) bytes are 1 us: the ring has room long before the first frame arrives.
    assert_eq!(net.next_event(), Some(1_000));
    assert_eq!(net.queue_bytes(link.there), 404);
    net.advance_to(1_000);
    assert!(send(&mut a, &frame(MAC_B, MAC_A, sent, 101)));
    assert_eq!(net.wire_stats(link.there).queue_peak_bytes, 404);
    // Refused once more, then its owner has nothing to send: the room is told of once.
    assert!(!send(&mut a, &frame(MAC_B, MAC_A, sent, 101)));
    assert_eq!(net.next_event(), Some(2_000));
    net.advance_to(2_000);
    assert_eq!(net.next_event(), Some(51_000), "the first frame arrives");
    run(&net);
    assert_eq!(net.next_event(), None);
}

#[test]
fn blackhole_filter_and_change_while_running() {
    let net = SimNet::new(1);
    let (mut a, mut b) = (
        net.port(&PortConfig::numbered(0)),
        net.port(&PortConfig::numbered(1)),
    );
    let link = net.connect(&a, &b, Impairment::default(), Impairment::default());
    net.add_blackhole(link.there, 1_000, 2_000);
    for i in 0..30 {
        net.advance_to(u64::from(i) * 100);
        send(&mut a, &frame(MAC_B, MAC_A, i, 100));
    }
    let got: Vec<u32> = recv(&mut b).iter().map(|f| number(f)).collect();
    assert_eq!(got, (0..10).chain(20..30).collect::<Vec<_>>());

    // A filter that reads the clock: what a test that drops one chosen packet looks like.
    let clock = net.clone();
    net.set_filter(link.there, move |f| match number(f) {
        1 if clock.now() > 0 => Verdict::Drop,
        2 => Verdict::Duplicate,
        3 => Verdict::Hold(1_000),
        4 => Verdict::Corrupt,
        5 => {
            f[14..18].copy_from_slice(&99u32.to_be_bytes());
            Verdict::Pass
        }
        _ => Verdict::Pass,
    });
    for i in 0..7 {
        send(&mut a, &frame(MAC_B, MAC_A, i, 100));
    }
    run(&net);
    let got: Vec<Vec<u8>> = recv(&mut b);
    let four = frame(MAC_B, MAC_A, 4, 100);
    assert_ne!(got[3], four);
    let numbers: Vec<u32> = got.iter().map(|f| f.get(..18).map_or(4, number)).collect();
    assert_eq!([&numbers[..3], &numbers[4..]].concat(), [0, 2, 2, 99, 6, 3]);
    net.clear_filter(link.there);

    net.set_impairment(link.there, Impairment::delay(77));
    assert_eq!(net.impairment(link.there).delay_ns, 77);
    let now = net.now();
    send(&mut a, &frame(MAC_B, MAC_A, 0, 100));
    assert_eq!(net.next_event(), Some(now + 77));
    // Back to a perfect wire: the next frame must not overtake the one in flight.
    net.set_impairment(link.there, Impairment::default());
    send(&mut a, &frame(MAC_B, MAC_A, 1, 100));
    assert!(recv(&mut b).is_empty());
    run(&net);
    assert_eq!(
        recv(&mut b).iter().map(|f| number(f)).collect::<Vec<_>>(),
        [0, 1]
    );
}

#[test]
fn corruption_flips_or_cuts_and_a_crc_finds_it() {
    let net = SimNet::new(3);
    let imp = Impairment {
        corrupt_ppm: 1_000_000,
        ..Impairment::default()
    };
    let (mut a, mut b) = (
        net.port(&PortConfig::numbered(0)),
        net.port(&PortConfig::numbered(1)),
    );
    let link = net.connect(&a, &b, imp, Impairment::default());
    let sent = frame(MAC_B, MAC_A, 1, 1000);
    let mut cut = 0;
    for _ in 0..4_000 {
        send(&mut a, &sent);
        let got = recv(&mut b).remove(0);
        if got.len() < sent.len() {
            cut += 1;
            assert_eq!(got, sent[..got.len()]);
        } else {
            let flipped: u32 = got
                .iter()
                .zip(&sent)
                .map(|(x, y)| (x ^ y).count_ones())
                .sum();
            assert!((1..=3).contains(&flipped), "{flipped}");
        }
    }
    assert!((190..310).contains(&cut), "{cut}");
    assert_eq!(net.wire_stats(link.there).truncated, cut);
    send(&mut a, &[]);
    assert_eq!(recv(&mut b), [Vec::<u8>::new()]);
}

fn ipv4_checksum(header: &[u8]) -> u16 {
    let sum: u32 = header
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from(sum).unwrap()
}

#[test]
fn ce_marks_ecn_capable_packets_and_mends_the_checksum() {
    let mut rng = Rng::new(9);
    let net = SimNet::new(3);
    let imp = Impairment {
        ce_ppm: 1_000_000,
        ..Impairment::default()
    };
    let (mut a, mut b) = net.pair(imp, imp);
    for round in 0..2_000 {
        let (tagged, v6, ecn) = (round & 1 == 1, round & 2 == 2, (round >> 2) & 3);
        let mut f = frame(MAC_B, MAC_A, 0, 18)[..12].to_vec();
        if tagged {
            f.extend([0x81, 0, 0, 5]);
        }
        let l3 = f.len() + 2;
        let dscp = u8::try_from(rng.below(64)).unwrap() << 2;
        let tos = dscp | u8::try_from(ecn).unwrap();
        if v6 {
            f.extend([0x86, 0xdd, 0x60 | tos >> 4, tos << 4]);
            f.extend((0..60).map(|_| u8::try_from(rng.below(256)).unwrap()));
        } else {
            f.extend([8, 0, 0x45, tos]);
            f.extend((0..60).map(|_| u8::try_from(rng.below(256)).unwrap()));
            f[l3 + 10..l3 + 12].fill(0);
            let sum = ipv4_checksum(&f[l3..l3 + 20]);
            f[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        send(&mut a, &f);
        let got = recv(&mut b).remove(0);
        let marked = if ecn == 0 { tos } else { tos | 3 };
        if v6 {
            assert_eq!(got[l3] << 4 | got[l3 + 1] >> 4, marked);
        } else {
            assert_eq!(got[l3 + 1], marked);
            assert_eq!(ipv4_checksum(&got[l3..l3 + 20]), 0, "round {round}");
        }
        // Nothing else changed.
        let skip = if v6 { l3..l3 + 2 } else { l3 + 1..l3 + 12 };
        assert_eq!(got[..skip.start], f[..skip.start]);
        assert_eq!(got[skip.end..], f[skip.end..]);
    }
    // Too short for a header, or not IP: left alone.
    for junk in [
        &[0u8; 0][..],
        &[0; 13],
        &[8, 0],
        &frame(MAC_B, MAC_A, 0, 40),
    ] {
        send(&mut a, junk);
        assert_eq!(recv(&mut b), [junk]);
    }
}

#[test]
fn red_marks_by_queue_depth() {
    let red = Red {
        min_bytes: 1_000,
        max_bytes: 2_000,
        max_ppm: 100_000,
    };
    assert_eq!(
        [999, 1_000, 1_500, 1_999, 2_000].map(|q| red.mark_ppm(q)),
        [0, 0, 50_000, 99_900, 1_000_000]
    );
    let net = SimNet::with_link(1, Link::Udp);
    let imp = Impairment {
        rate_bps: 1_000_000,
        red: Some(red),
        ..Impairment::default()
    };
    let (mut a, mut b) = net.pair(imp, Impairment::default());
    let dst = Gid::from_v4([10, 0, 0, 2]);
    for _ in 0..30 {
        send_to(&mut a, dst, 2, &[0; 100]);
    }
    run(&net);
    let mut tos = Vec::new();
    b.rx_burst(100, &mut |rx| {
        if let Rx::Udp(meta, _) = rx {
            assert_eq!(
                (meta.src, meta.dst, meta.src_port),
                (Gid::from_v4([10, 0, 0, 1]), dst, 4791)
            );
            tos.push(meta.tos);
        }
    })
    .unwrap();
    assert!(
        tos[..11].iter().all(|&t| t == 2) && tos[20..].iter().all(|&t| t == 3),
        "{tos:?}"
    );
}

#[test]
fn switch_learns_and_floods() {
    let net = SimNet::new(1);
    let sw = [net.switch(), net.switch()];
    let clean = Impairment::default();
    net.trunk(sw[0], sw[1], Impairment::delay(10), Impairment::delay(10));
    let mut ports: Vec<SimPort> = (0..4).map(|i| net.port(&PortConfig::numbered(i))).collect();
    for (i, p) in ports.iter().enumerate() {
        net.attach(p, sw[i / 2], clean, clean);
    }
    let mac = |i: usize| [2, 0, 0, 0, 0, u8::try_from(i).unwrap()];
    let heard = |net: &SimNet, ports: &mut [SimPort]| -> Vec<usize> {
        run(net);
        ports.iter_mut().map(|p| recv(p).len()).collect()
    };
    send(&mut ports[0], &frame(mac(3), mac(0), 1, 60));
    assert_eq!(heard(&net, &mut ports), [0, 1, 1, 1], "unknown: flooded");
    send(&mut ports[3], &frame(mac(0), mac(3), 1, 60));
    assert_eq!(heard(&net, &mut ports), [1, 0, 0, 0], "learnt on the way");
    send(&mut ports[0], &frame(mac(3), mac(0), 1, 60));
    assert_eq!(heard(&net, &mut ports), [0, 0, 0, 1]);
    send(&mut ports[1], &frame([0xff; 6], mac(1), 1, 60));
    assert_eq!(heard(&net, &mut ports), [1, 0, 1, 1], "broadcast");
    send(&mut ports[1], &[0; 5]);
    assert_eq!(heard(&net, &mut ports), [0; 4], "no address, no way");
}

#[test]
fn a_ring_of_switches_comes_to_an_end() {
    let net = SimNet::new(1);
    let sw = [net.switch(), net.switch(), net.switch()];
    for i in 0..3 {
        net.trunk(
            sw[i],
            sw[(i + 1) % 3],
            Impairment::default(),
            Impairment::delay(1),
        );
    }
    let (mut a, mut b) = (
        net.port(&PortConfig::numbered(0)),
        net.port(&PortConfig::numbered(1)),
    );
    net.attach(&a, sw[0], Impairment::default(), Impairment::default());
    net.attach(&b, sw[1], Impairment::default(), Impairment::default());
    send(&mut a, &frame(MAC_B, MAC_A, 1, 60));
    run(&net);
    assert!(!recv(&mut b).is_empty());

    // A route decides in place of the table: port 2 of switch 0 is host a, 0 leads to switch 1.
    net.set_route(sw[0], |from, _| Some(if from == 2 { 0 } else { 2 }));
    net.set_station(sw[1], MacAddr::new(MAC_B), WireId(9));
    send(&mut a, &frame(MAC_B, MAC_A, 2, 60));
    run(&net);
    assert_eq!(recv(&mut b).len(), 1);
}

#[test]
fn rings_and_lengths_have_limits() {
    let net = SimNet::new(1);
    let mut a = net.port(&PortConfig::numbered(0));
    let mut b = net.port(&PortConfig {
        rx_ring: 3,
        mtu: 1500,
        ..PortConfig::numbered(1)
    });
    let link = net.connect(&a, &b, Impairment::default(), Impairment::default());
    send(&mut a, &[0; 1519]);
    assert_eq!((recv(&mut b).len(), b.stats().rx_dropped), (0, 1));
    for _ in 0..5 {
        send(&mut a, &[0; 1518]);
    }
    assert!(b.has_rx());
    assert_eq!((recv(&mut b).len(), b.stats().rx_dropped), (3, 3));
    assert_eq!(net.wire_stats(link.there).refused, 3);
    drop(b);
    send(&mut a, &[0; 100]);
    assert_eq!(net.wire_stats(link.there).refused, 4);
    let mut lonely = net.port(&PortConfig::numbered(2));
    send(&mut lonely, &[0; 100]);
    assert_eq!(lonely.stats().tx_dropped, 1);
}

#[test]
fn budget_is_kept_and_nothing_goes_before_flush() {
    let (mut a, mut b) = SimNet::direct();
    for i in 0..10 {
        let bytes = frame(MAC_B, MAC_A, i, 100);
        a.tx_begin().unwrap()[..100].copy_from_slice(&bytes);
        a.tx_commit(
            &TxMeta {
                dst: Gid::default(),
                tos: 0,
            },
            100,
        );
    }
    assert_eq!(recv(&mut b).len(), 0);
    a.tx_flush().unwrap();
    let mut seen = Vec::new();
    let n = b
        .rx_burst(4, &mut |rx| {
            if let Rx::Ethernet(f) = rx {
                seen.push(number(f))
            }
        })
        .unwrap();
    assert_eq!((n, seen), (4, vec![0, 1, 2, 3]));
    assert_eq!(recv(&mut b).len(), 6);
    let (sa, sb) = (a.stats(), b.stats());
    assert_eq!(
        (sa.tx_frames, sa.tx_bytes, sb.rx_frames, sb.rx_bytes),
        (10, 1000, 10, 1000)
    );
    // A lent frame that is not committed is given back: the same one is lent again.
    let first = a.tx_begin().unwrap().as_ptr();
    assert_eq!(a.tx_begin().unwrap().as_ptr(), first);
    assert_eq!(
        (first as usize + 54) % 64,
        0,
        "payload of a Middle packet on a cache line"
    );
}

#[test]
fn buffers_are_reused() {
    let net = SimNet::new(5);
    let imp = Impairment {
        duplicate_ppm: 100_000,
        loss_ppm: 100_000,
        reorder_ppm: 100_000,
        reorder_positions: 4,
        ..Impairment::delay(1_000)
    };
    let (mut a, mut b) = net.pair(imp, imp);
    net.reserve(100);
    let made = net.buffers_made();
    for i in 0..20_000 {
        send(&mut a, &frame(MAC_B, MAC_A, i, 100));
        net.advance_to(net.now() + 100);
        recv(&mut b);
    }
    assert_eq!(net.buffers_made(), made);
    assert!(net.events_processed() > 18_000);
}

#[test]
fn loop_pair_is_a_bounded_wire() {
    for link in [Link::Ethernet, Link::Udp] {
        let (mut a, mut b) = loop_pair(&LoopConfig {
            link,
            depth: 8,
            ..LoopConfig::default()
        });
        let dst = Gid::from_v4([10, 0, 0, 2]);
        for round in 0..5u32 {
            let mut sent = 0;
            while send_to(
                &mut a,
                dst,
                2,
                &frame(MAC_B, MAC_A, round * 100 + sent, 100),
            ) {
                sent += 1;
            }
            assert_eq!(sent, 8);
            let mut seen = Vec::new();
            b.rx_burst(100, &mut |rx| match rx {
                Rx::Ethernet(f) => seen.push(number(f)),
                Rx::Udp(meta, f) => {
                    assert_eq!((meta.src, meta.tos), (Gid::from_v4([10, 0, 0, 1]), 2));
                    seen.push(number(f));
                }
            })
            .unwrap();
            assert_eq!(seen, (round * 100..round * 100 + 8).collect::<Vec<_>>());
        }
        assert!(send(&mut b, &[1; 60]));
        assert_eq!(recv(&mut a), [[1; 60]]);
        assert_eq!(a.stats().tx_full, 5);
    }
}
