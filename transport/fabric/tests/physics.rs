//! What can be worked out by hand, held against production engines over the fabric.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a test that fails may panic"
)]

use xroce_fabric::{
    Balance, BitRate, Change, Class, Fault, Flow, Impairment, MarkAt, Op, Order, Red, Report,
    Setup, Sharing, Simulation, Speed, Time, Topology, Weights, Xoff, headroom,
};

fn speed(gbps: u64, delay_ns: u64) -> Speed {
    Speed {
        rate: BitRate::from_gbps(gbps),
        delay: Time::from_ns(delay_ns),
    }
}

fn run(topology: Topology, flows: Vec<Flow>, tune: impl FnOnce(&mut Setup)) -> Report {
    let mut setup = Setup::new(topology);
    setup.flows = flows;
    tune(&mut setup);
    let report = Simulation::new(setup).unwrap().run();
    assert!(report.census.is_conserved(), "{:?}", report.census);
    assert!(report.contents_right);
    report
}

/// Frame of a WRITE of one packet, and of an ACK: Ethernet 14, IPv4 20, UDP 8, BTH 12, RETH 16 or
/// AETH 4, ICRC 4; and 24 around each on the wire.
const WRITE_WIRE: u64 = 74 + 24;
const ACK_WIRE: u64 = 62 + 24;

#[test]
fn one_packet_takes_exactly_what_links_and_delays_add_up_to() {
    let (edge, middle) = (speed(40, 700), speed(100, 1300));
    let shapes = [
        (Topology::star(2, edge), vec![edge, edge], 1),
        (
            Topology::dumbbell(1, edge, middle),
            vec![edge, middle, edge],
            1,
        ),
        (
            Topology::leaf_spine(2, 2, 1, edge, middle),
            vec![edge, middle, middle, edge],
            1,
        ),
        (
            Topology::fat_tree(4, edge, middle),
            vec![edge, middle, middle, middle, middle, edge],
            15,
        ),
    ];
    for (topology, hops, dst) in shapes {
        for bytes in [4, 256, 1024] {
            let report = run(topology.clone(), vec![Flow::write(0, dst, bytes)], |_| {});
            let there: u64 = hops
                .iter()
                .map(|h| (WRITE_WIRE + bytes) * 8_000_000_000_000 / h.rate.bps() + h.delay.ps())
                .sum();
            let back: u64 = hops
                .iter()
                .map(|h| ACK_WIRE * 8_000_000_000_000 / h.rate.bps() + h.delay.ps())
                .sum();
            let fct = report.flows[0].fct_us.unwrap();
            assert_eq!(
                fct,
                Time::from_ps(there + back).us(),
                "{bytes} over {} links",
                hops.len()
            );
            assert_eq!(report.flows[0].slowdown, Some(1.0));
        }
    }
}

#[test]
fn one_flow_has_the_line_but_for_its_headers() {
    for (op, extra) in [
        (Op::Write, 16.0),
        (Op::Send, 0.0),
        (Op::Read, 8.0),
        (Op::WriteImm, 20.0),
    ] {
        let flow = Flow {
            op,
            ..Flow::write(0, 1, 8 << 20)
        };
        let report = run(Topology::star(2, speed(40, 500)), vec![flow], |_| {});
        let messages = 32.0;
        // 1024 packets of 82 bytes of headers each, and what a message has besides.
        let wire = f64::from(8 << 20) + 8192.0 * 82.0 + messages * extra;
        let share = f64::from(8 << 20) / wire;
        let got = report.flows[0].goodput_gbps / 40.0;
        assert!(
            (share - got) / share < 0.005 && got <= share,
            "{op:?}: {got} of {share}"
        );
        assert_eq!(
            (report.summary.drops, report.summary.retransmissions),
            (0, 0)
        );
        assert!(
            report.flows[0].slowdown.unwrap() < 1.01,
            "{:?}",
            report.flows[0]
        );
    }
}

#[test]
fn flows_over_one_bottleneck_share_it() {
    let flows = (0..4).map(|i| Flow::write(i, i + 4, 4 << 20)).collect();
    let topology = Topology::dumbbell(4, speed(40, 500), speed(40, 500));
    let report = run(topology, flows, |_| {});
    assert!(report.summary.jain > 0.999, "{}", report.summary.jain);
    assert!(report.summary.goodput_gbps > 0.98 * 40.0 * 1024.0 / 1106.0);
    let bottleneck = report
        .links
        .iter()
        .find(|l| l.link == "left→right")
        .unwrap();
    assert!(bottleneck.utilisation > 0.98, "{bottleneck:?}");
    assert_eq!(report.summary.worst_queue, "left→right");
}

#[test]
fn queue_pairs_of_one_host_take_turns() {
    let flows = (0..8).map(|_| Flow::write(0, 1, 1 << 20)).collect();
    let report = run(Topology::star(2, speed(40, 500)), flows, |_| {});
    assert!(report.summary.jain > 0.999, "{}", report.summary.jain);
    // The NIC's own queue stays short: work waits in the engine.
    let uplink = report.links.iter().find(|l| l.link == "h0→s0").unwrap();
    assert!(uplink.queue.max <= 8 * 1098, "{uplink:?}");
}

/// N:1 at full rate, without congestion control.
fn incast(senders: u32, bytes: u64, tune: impl FnOnce(&mut Setup)) -> Report {
    let flows = (1..=senders).map(|i| Flow::write(i, 0, bytes)).collect();
    run(Topology::star(senders + 1, speed(40, 1000)), flows, tune)
}

fn lossless(setup: &mut Setup, headroom: Option<u64>) {
    let buffer = &mut setup.switch.buffer;
    buffer.lossless = 1 << 3;
    buffer.xoff = Xoff::Static(20_000);
    buffer.xon_offset = 3000;
    buffer.headroom = headroom;
}

#[test]
fn headroom_as_computed_loses_nothing_and_less_does() {
    let frame = 4218;
    let enough = headroom(BitRate::from_gbps(40), Time::from_us(1), frame);
    let report = incast(8, 1 << 20, |s| lossless(s, None));
    assert_eq!(
        (report.summary.drops, report.summary.retransmissions),
        (0, 0)
    );
    assert!(report.summary.pauses > 8 && report.summary.paused_us > 10.0);
    let peak = report.summary.headroom_peak;
    assert!(peak <= enough, "{peak} of {enough}");
    // Frames are of 1082 bytes: what they need is less, and with much less some are lost.
    let needed = headroom(BitRate::from_gbps(40), Time::from_us(1), 1082);
    assert!(
        peak + 2 * 1082 >= needed - 1082 && peak <= needed,
        "{peak} of {needed}"
    );
    let report = incast(8, 1 << 20, |s| lossless(s, Some(needed / 2)));
    assert!(report.census.dropped_lossless > 0);
    assert_eq!(report.summary.completed, 8);
}

#[test]
fn buffers_of_ports_lose_nothing_with_headroom_and_leave_other_ports_alone() {
    let frame = 4218;
    let needed = headroom(BitRate::from_gbps(40), Time::from_us(1), frame);
    let port = |s: &mut Setup| {
        let buffer = &mut s.switch.buffer;
        buffer.sharing = Sharing::Port;
        // A threshold of 20 000 bytes for each port.
        buffer.total = 20_000 + needed;
        buffer.xoff = Xoff::Static(u64::MAX);
        buffer.xon_offset = 0;
        s.switch.order = Order::Ingress;
    };
    let report = incast(8, 1 << 20, |s| {
        port(s);
        s.switch.buffer.lossless = 1 << 3;
    });
    assert_eq!(
        (report.summary.drops, report.summary.retransmissions),
        (0, 0)
    );
    assert!(report.summary.pauses > 8 && report.summary.headroom_peak > 0);
    assert!(report.summary.headroom_peak <= needed);
    assert!(report.summary.jain > 0.999, "{}", report.summary.jain);
    // All eight ports fill their own.
    let queue = report.summary.queue.max;
    assert!(
        queue > 8 * 20_000 - 8 * frame && queue < 8 * (20_000 + needed),
        "{queue}"
    );
    let report = incast(8, 1 << 20, |s| {
        port(s);
        s.switch.buffer.lossless = 1 << 3;
        s.switch.buffer.headroom = Some(needed / 4);
    });
    assert!(report.census.dropped_lossless > 0);
    // Without PFC all of it is filled, and then dropped from.
    let report = incast(8, 1 << 20, port);
    assert!(report.summary.drops > 0 && report.summary.completed == 8);
    assert!(report.summary.queue.max <= 8 * (20_000 + needed));
}

#[test]
fn without_pfc_the_tail_is_dropped_and_go_back_n_repairs_it() {
    let report = incast(8, 1 << 20, |s| s.switch.buffer.queue_limit = 50_000);
    assert!(report.summary.drops > 0 && report.summary.retransmissions > 0);
    assert_eq!((report.summary.completed, report.summary.pauses), (8, 0));
    assert!(report.summary.queue.max <= 50_000);
    let dropped: u64 = report.links.iter().map(|l| l.dropped).sum();
    assert_eq!(dropped, report.census.dropped_buffer);
}

#[test]
fn pauses_hold_up_flows_that_go_elsewhere() {
    // Two senders into one receiver fill the port between the switches; a third flow crosses it
    // too, to an idle host, and suffers: head-of-line blocking.
    let mut t = Topology::dumbbell(3, speed(40, 1000), speed(40, 1000));
    t.links[3].rate = BitRate::from_gbps(10);
    let victim = Flow::write(2, 5, 1 << 20);
    let alone = run(t.clone(), vec![victim.clone()], |s| lossless(s, None));
    let flows = vec![
        Flow::write(0, 3, 4 << 20),
        Flow::write(1, 3, 4 << 20),
        victim,
    ];
    let report = run(t, flows, |s| lossless(s, None));
    assert_eq!(report.summary.drops, 0);
    let (before, after) = (
        alone.flows[0].fct_us.unwrap(),
        report.flows[2].fct_us.unwrap(),
    );
    assert!(after > 4.0 * before, "{before} µs alone, {after} µs");
    let middle = report
        .links
        .iter()
        .find(|l| l.link == "left→right")
        .unwrap();
    assert!(middle.pauses > 10 && middle.paused_us > 100.0, "{middle:?}");
}

#[test]
fn a_storm_of_pauses_stops_its_priority_and_no_other() {
    let mut other = Flow::write(2, 0, 1 << 20);
    other.class = 1;
    let flows = vec![Flow::write(1, 0, 1 << 20), other];
    let storm = |at, on| Fault {
        at: Time::from_us(at),
        link: 0,
        change: Change::Storm {
            from_a: true,
            priority: 3,
            on,
        },
    };
    let report = run(Topology::star(3, speed(40, 1000)), flows, |s| {
        lossless(s, None);
        s.classes.push(Class {
            dscp: 8,
            ack_dscp: 8,
            ..Class::default()
        });
        s.faults = vec![storm(10, true), storm(2010, false)];
    });
    let fct = |i: usize| report.flows[i].fct_us.unwrap();
    assert!(
        fct(0) > 2000.0 && fct(1) < 500.0,
        "{} and {} µs",
        fct(0),
        fct(1)
    );
    assert_eq!(report.summary.drops, 0);
    let paused = report.links.iter().find(|l| l.link == "s0→h0").unwrap();
    assert!((paused.paused_us - 2000.0).abs() < 1.0, "{paused:?}");
}

#[test]
fn marks_are_made_on_long_queues_only_and_only_on_those_that_can_tell() {
    let red = Red {
        kmin: 5000,
        kmax: 200_000,
        pmax_ppm: 10_000,
        at: MarkAt::Dequeue,
        priorities: 0xff,
    };
    for at in [MarkAt::Dequeue, MarkAt::Enqueue] {
        let report = incast(4, 1 << 20, |s| s.switch.red = Some(Red { at, ..red }));
        assert!(report.summary.ecn_marks > 100, "{at:?}");
        assert_eq!(
            report.counters["ce_marked"], report.summary.ecn_marks,
            "all arrive"
        );
        let report = incast(1, 1 << 20, |s| s.switch.red = Some(Red { at, ..red }));
        assert_eq!(report.summary.ecn_marks, 0);
        let report = incast(4, 1 << 20, |s| {
            s.switch.red = Some(Red { at, ..red });
            s.classes[0].ecn = false;
        });
        assert_eq!(report.summary.ecn_marks, 0);
    }
}

#[test]
fn equal_ways_are_used_alike() {
    let topology = || Topology::leaf_spine(2, 4, 8, speed(40, 500), speed(40, 500));
    let flows = |n: u32| -> Vec<Flow> {
        (0..n)
            .map(|i| Flow::write(i % 8, 8 + (i / 8) % 8, 40_000))
            .collect()
    };
    let shares = |report: &Report| -> Vec<f64> {
        let up = report
            .links
            .iter()
            .filter(|l| l.link.starts_with("leaf0→spine"));
        let bytes: Vec<f64> = up.map(|l| l.bytes as f64).collect();
        let sum: f64 = bytes.iter().sum();
        bytes.iter().map(|b| b / sum).collect()
    };
    let report = run(topology(), flows(512), |s| {
        s.switch.buffer.total = 100_000_000
    });
    let by_flow = shares(&report);
    assert_eq!(by_flow.len(), 4);
    // 512 flows over 4 ways: 128 ± 5 standard deviations.
    assert!(
        by_flow.iter().all(|s| (s - 0.25).abs() < 0.1),
        "{by_flow:?}"
    );
    assert_eq!(report.counters["out_of_sequence"], 0, "flows stay in order");
    for balance in [Balance::Spray, Balance::Adaptive] {
        // One flow alone uses all ways.
        let report = run(topology(), vec![Flow::write(0, 8, 1 << 20)], |s| {
            s.switch.balance = balance
        });
        let by_packet = shares(&report);
        let used = by_packet.iter().filter(|s| **s > 0.0).count();
        assert!(used == 4 || balance == Balance::Adaptive, "{by_packet:?}");
    }
}

#[test]
fn priorities_have_their_weights() {
    let mut slow = Flow::write(1, 0, 4 << 20);
    slow.class = 1;
    let flows = vec![Flow::write(2, 0, 4 << 20), slow];
    let report = run(Topology::star(3, speed(40, 500)), flows, |s| {
        s.switch.weights = Weights::new([1, 1, 1, 3, 1, 1, 0, 0]);
        s.classes.push(Class {
            dscp: 8,
            ack_dscp: 48,
            ..Class::default()
        });
        s.classes[0].ack_dscp = 48;
        s.sample = Time::from_us(50);
        // Windows that keep both queues filled.
        let wide = xroce_proto::cc::Fixed::new(xroce_proto::cc::Rate::UNLIMITED, 2000);
        s.transport.congestion = xroce_proto::cc::CongestionControl::Fixed(wide);
    });
    let rates = report.series.rates(Time::from_us(200), Time::from_us(800));
    assert!((rates[0] / rates[1] - 3.0).abs() < 0.1, "{rates:?}");
}

#[test]
fn a_link_that_fails_is_gone_around_and_comes_back() {
    let topology = Topology::leaf_spine(2, 2, 2, speed(40, 500), speed(40, 500));
    // Links of leaf0: two hosts, then spine0 and spine1.
    let fault = |at, change| Fault {
        at: Time::from_us(at),
        link: 2,
        change,
    };
    let flows: Vec<Flow> = (0..16)
        .map(|i| Flow::write(i % 2, 2 + i / 2 % 2, 2 << 20))
        .collect();
    let report = run(topology, flows, |s| {
        s.faults = vec![fault(500, Change::Down), fault(3000, Change::Up)];
        s.switch.reroute = Time::from_us(100);
        s.transport.timeout = 6;
        s.sample = Time::from_us(100);
    });
    assert_eq!((report.summary.completed, report.summary.failed), (16, 0));
    assert!(report.census.dropped_link_down > 0 && report.summary.retransmissions > 0);
    let link = report
        .series
        .links
        .iter()
        .find(|l| l.link == "leaf0→spine0")
        .unwrap();
    assert!(link.utilisation[3] > 0.1, "before: {:?}", link.utilisation);
    assert!(link.utilisation[8..28].iter().all(|u| *u == 0.0), "down");
    assert!(link.utilisation[31..].iter().any(|u| *u > 0.1), "again");
}

#[test]
fn loss_and_a_slower_link_are_felt() {
    let wire = |there, rate, loss_ppm| Fault {
        at: Time::ZERO,
        link: 0,
        change: Change::Wire {
            there,
            back: false,
            rate,
            impairment: Impairment {
                loss_ppm,
                ..Impairment::default()
            },
        },
    };
    let star = || Topology::star(2, speed(100, 500));
    let flow = || vec![Flow::write(0, 1, 4 << 20)];
    let slow = run(star(), flow(), |s| {
        s.faults = vec![wire(true, Some(BitRate::from_gbps(10)), 0)];
    });
    let expected = 10.0 * 1024.0 / 1106.0;
    assert!(
        (slow.summary.goodput_gbps - expected).abs() < 0.1,
        "{}",
        slow.summary.goodput_gbps
    );
    let lossy = run(star(), flow(), |s| {
        s.faults = vec![wire(true, None, 10_000)]
    });
    assert!(lossy.census.dropped_wire > 10 && lossy.summary.retransmissions > 10);
    assert_eq!(lossy.summary.completed, 1);
}

#[test]
fn steps_wait_for_each_other() {
    let step = |src, dst, after: Vec<u32>| Flow {
        op: Op::WriteImm,
        after,
        ..Flow::write(src, dst, 100_000)
    };
    let flows = vec![
        step(0, 1, vec![]),
        step(1, 2, vec![0]),
        step(2, 0, vec![0, 1]),
    ];
    let report = run(Topology::star(3, speed(40, 500)), flows, |_| {});
    let start = |i: usize| report.flows[i].start_us.unwrap();
    let end = |i: usize| start(i) + report.flows[i].fct_us.unwrap();
    // A step begins when the data has arrived, a little before its sender knows.
    for i in [1, 2] {
        let early = end(i - 1) - start(i);
        assert!((0.5..1.5).contains(&early), "step {i}: {early} µs");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_does_not() {
    let report = |seed| {
        let flows = (0..40)
            .map(|i| Flow::write(i % 8, 8 + i * 7 % 8, 200_000))
            .collect();
        let topology = Topology::leaf_spine(2, 4, 8, speed(40, 500), speed(40, 500));
        let report = run(topology, flows, |s| {
            s.seed = seed;
            s.switch.balance = Balance::Spray;
            s.switch.red = Some(Red {
                kmin: 5000,
                kmax: 50_000,
                pmax_ppm: 100_000,
                at: MarkAt::Dequeue,
                priorities: 0xff,
            });
            s.sample = Time::from_us(20);
        });
        serde_json::to_string(&report).unwrap()
    };
    assert_eq!(report(7), report(7));
    assert_ne!(report(7), report(8));
}
