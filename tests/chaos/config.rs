//! What a seed stands for.

use xroce_engine::{CnpScope, EngineConfig, NotifyConfig, TrafficClasses};
use xroce_net::datapath::Link;
use xroce_net::sim::{Impairment, Rng};
use xroce_proto::cc::{CongestionControl, Fixed, Rate};
use xroce_proto::recovery::{AdaptiveParams, Reliability, SelectiveParams};
use xroce_proto::time::Duration;
use xroce_wire::newtypes::{PathMtu, VlanTci};

use crate::common::script::{Fate, Fault, Limits};

/// One pair of QPs and the work on it, both directions.
#[derive(Clone, Debug)]
pub(crate) struct PairConfig {
    pub(crate) mtu: PathMtu,
    pub(crate) psns: [u32; 2],
    pub(crate) window: u32,
    pub(crate) rate: Rate,
    /// Name of the congestion control.
    pub(crate) control: &'static str,
    /// It has the parameters of its kind, so that marks take it to its floor.
    pub(crate) to_the_floor: bool,
    /// How much may be in flight is not watched: it changes, or nothing here bounds it.
    pub(crate) unwatched: bool,
    pub(crate) rate_limit: Rate,
    pub(crate) retry_cnt: u8,
    pub(crate) dscp: u8,
    pub(crate) timeout: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) max_rd_atomic: [u8; 2],
    pub(crate) limits: [Limits; 2],
    pub(crate) fates: [Fate; 2],
    pub(crate) reliability: Reliability,
}

/// What a network that loses nothing, or nothing for good, leaves no reason for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Strict {
    /// Anything may be repeated.
    No,
    /// No timeout.
    NoTimeout,
    /// No timeout and nothing sent again, but what found no receive.
    NothingAgain,
}

/// A whole run.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) link: Link,
    pub(crate) ips: [&'static str; 2],
    pub(crate) vlan: Option<VlanTci>,
    pub(crate) tx_ring: usize,
    pub(crate) engine: EngineConfig,
    pub(crate) wires: [Impairment; 2],
    /// When all impairments end, ns.
    pub(crate) calm_after: u64,
    /// How often a send queue is drained and goes on.
    pub(crate) drain_ppm: u32,
    /// How often an attribute of a queue pair is modified.
    pub(crate) modify_ppm: u32,
    pub(crate) strict: Strict,
    /// Virtual time the run may take at all, ns.
    pub(crate) limit_ns: u64,
    /// Wire, start, end in ns.
    pub(crate) blackholes: Vec<(usize, u64, u64)>,
    pub(crate) pairs: Vec<PairConfig>,
}

/// Virtual time a run may take at all, unless it is known to be slow.
const LIMIT_NS: u64 = 5_000_000_000;

/// Everything may happen to frames, nothing is wrong with the work.
pub(crate) fn sound(rng: &mut Rng) -> Config {
    let wires = [wire(rng, true), wire(rng, true)];
    let mut config = frame(rng, wires);
    if rng.below(4) == 0 {
        for _ in 0..=rng.below(3) {
            // Two timeouts at most: the other retries are for the loss that goes on.
            let shortest = config.pairs.iter().map(|p| p.timeout).min().unwrap_or(5);
            let from = rng.below(config.calm_after);
            let len = rng.below(2 * (4096 << shortest));
            config.blackholes.push((rng.index(2), from, from + len));
        }
    }
    config
}

/// One request of the first pair cannot succeed. Its answer must not get lost: the peer is in
/// error then and would not repeat it.
pub(crate) fn faulty(rng: &mut Rng) -> Config {
    let direction = rng.index(2);
    let mut wires = [wire(rng, true), wire(rng, true)];
    let back = &mut wires[1 - direction];
    *back = Impairment {
        loss_ppm: 0,
        corrupt_ppm: 0,
        reorder_ppm: 0,
        queue_bytes: 0,
        ..*back
    };
    let mut config = frame(rng, wires);
    let pair = &mut config.pairs[0];
    let fault = Fault::ALL[rng.index(Fault::ALL.len())];
    let at = rng.index(pair.limits[direction].ops);
    pair.fates[direction] = Fate::Faulty(at, fault);
    pair.fates[1 - direction] = Fate::Broken;
    let limits = &mut pair.limits[direction];
    limits.writes = !matches!(fault, Fault::QpWrite | Fault::QpAtomicWrite);
    limits.reads = fault != Fault::QpRead;
    limits.atomics = fault != Fault::QpAtomic;
    limits.flushes = fault != Fault::QpFlush;
    config
}

pub(crate) fn frame(rng: &mut Rng, wires: [Impairment; 2]) -> Config {
    let pairs = 1 + rng.below(4);
    let shared: u64 = wires.iter().map(|w| delay(w, pairs)).sum();
    let ips = [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]];
    Config {
        link: pick(rng, &[Link::Ethernet, Link::Ethernet, Link::Udp]),
        ips: ips[rng.index(2)],
        tx_ring: pick(rng, &[1, 3, 20, 256]),
        drain_ppm: pick(rng, &[0, 0, 1_000, 20_000]),
        modify_ppm: 0,
        strict: Strict::No,
        limit_ns: LIMIT_NS,
        vlan: (rng.below(4) == 0).then(|| VlanTci::new(0x6000 | 100)),
        engine: EngineConfig {
            rx_budget: pick(rng, &[1, 2, 16, 64]),
            tx_budget: pick(rng, &[1, 3, 16, 64]),
            quantum: pick(rng, &[1, 2, 16]),
            classes: classes(rng),
            notify: NotifyConfig {
                min_time_between_cnps: Duration::from_micros(pick(rng, &[0, 4, 50])),
                scope: pick(rng, &[CnpScope::Qp, CnpScope::Destination, CnpScope::Port]),
                ..NotifyConfig::default()
            },
        },
        wires,
        calm_after: 1_000_000 + rng.below(30_000_000),
        blackholes: Vec::new(),
        pairs: (0..pairs).map(|_| pair(rng, shared)).collect(),
    }
}

pub(crate) fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.index(of.len())]
}

/// One class, or eight of random weight.
fn classes(rng: &mut Rng) -> TrafficClasses {
    let mut classes = TrafficClasses::by_class_selector();
    classes.weights = [0; 8].map(|_: u16| pick(rng, &[0, 1, 1, 7]));
    if rng.below(2) == 0 {
        classes = TrafficClasses::default();
    }
    classes
}

/// Bytes of a full queue where it has a limit.
const QUEUE_BYTES: [u64; 3] = [0, 40_000, 150_000];

pub(crate) fn wire(rng: &mut Rng, lossy: bool) -> Impairment {
    let mut up_to = |max: u32| match rng.below(3) {
        0 => 0,
        1 => u32::try_from(rng.below(u64::from(max) / 5)).unwrap(),
        _ => u32::try_from(rng.below(max.into())).unwrap(),
    };
    let five = if lossy { 50_000 } else { 0 };
    let chances = [up_to(five), up_to(five), up_to(50_000), up_to(50_000)];
    let ce_ppm = up_to(50_000);
    Impairment {
        delay_ns: pick(rng, &[0, 500, 2_000, 20_000]),
        jitter_ns: pick(rng, &[0, 0, 1_000, 10_000]),
        rate_bps: pick(rng, &[0, 2_000_000_000, 10_000_000_000, 100_000_000_000]),
        queue_bytes: pick(rng, &QUEUE_BYTES),
        loss_ppm: chances[0],
        corrupt_ppm: chances[1],
        duplicate_ppm: chances[2],
        duplicate_delay_ns: pick(rng, &[0, 5_000, 50_000]),
        reorder_ppm: chances[3],
        reorder_positions: pick(rng, &[0, 1, 3, 20]),
        reorder_delay_ns: pick(rng, &[5_000, 50_000]),
        ce_ppm,
        ..Impairment::default()
    }
}

/// Longest time a packet can be on its way, ns: queue, wire, and being held back.
fn delay(w: &Impairment, pairs: u64) -> u64 {
    // Windows are cut to 64 KB per QP and direction on a wire with a rate.
    let in_flight = pairs * 2 * 66_000;
    let queue = if w.queue_bytes == 0 {
        in_flight
    } else {
        w.queue_bytes.min(in_flight)
    };
    let ms_per_bit = (queue * 8 * 1_000_000_000).checked_div(w.rate_bps);
    w.delay_ns + w.jitter_ns + w.reorder_delay_ns + ms_per_bit.unwrap_or(0)
}

fn psn(rng: &mut Rng) -> u32 {
    let n = if rng.below(2) == 0 {
        rng.below(1 << 24)
    } else {
        (1 << 24) - 1 - rng.below(100)
    };
    u32::try_from(n).unwrap()
}

fn pair(rng: &mut Rng, round_trip: u64) -> PairConfig {
    let mtu = PathMtu::ALL[rng.index(PathMtu::ALL.len())];
    let in_64k = u32::try_from(65_536 / mtu.bytes()).unwrap();
    let window = pick(rng, &[1, 2, 3, 4, 8, 16, 64, 256]).min(in_64k);
    let fitting = (5..=12).find(|t| 4096 << t > round_trip).unwrap_or(12);
    PairConfig {
        mtu,
        psns: [psn(rng), psn(rng)],
        window,
        rate: Rate::bits_per_second(pick(rng, &[0, 0, 0, 1_000_000_000, 20_000_000_000])),
        control: pick(
            rng,
            &["fixed", "fixed", "dcqcn", "dcqcn-mlx5", "swift", "nscc"],
        ),
        to_the_floor: false,
        unwatched: false,
        rate_limit: Rate::UNLIMITED,
        retry_cnt: 7,
        dscp: pick(rng, &[0, 8, 26, 46]),
        timeout: fitting.max(5 + u8::try_from(rng.below(4)).unwrap()),
        rnr_timer: 1 + u8::try_from(rng.below(8)).unwrap(),
        max_rd_atomic: [0, 1].map(|_| pick(rng, &[1, 1, 2, 4, 16])),
        limits: [0, 1].map(|_| limits(rng, mtu)),
        fates: [Fate::Sound; 2],
        reliability: Reliability::GoBackN,
    }
}

/// The same work, but most pairs have agreed to selective retransmission, and frames are overtaken
/// by up to 64 others.
pub(crate) fn selective(rng: &mut Rng, make: fn(&mut Rng) -> Config) -> Config {
    let mut config = make(rng);
    for wire in &mut config.wires {
        if wire.reorder_ppm != 0 && rng.below(2) == 0 {
            wire.reorder_positions = 64;
        }
    }
    for pair in &mut config.pairs {
        if rng.below(2) == 0 {
            // Much in flight, so that much arrives ahead of what is lost.
            pair.window = u32::try_from(65_536 / pair.mtu.bytes()).unwrap();
            pair.control = pick(rng, &[pair.control, "fixed"]);
        }
        pair.reliability = match rng.below(20) {
            0 => Reliability::GoBackN,
            1 => Reliability::Adaptive(AdaptiveParams::default()),
            _ => Reliability::Selective(selective_params(rng)),
        };
    }
    config
}

pub(crate) fn selective_params(rng: &mut Rng) -> SelectiveParams {
    let range = pick(rng, &[128, 256, 1024, 4096]);
    SelectiveParams {
        range,
        window: pick(rng, &[1, 8, 30, 128, 128, 128]),
        tolerance: pick(rng, &[1, 3, 64, 64]),
        store: pick(rng, &[1, 4, 64, 128]),
        rto_low: Duration::from_micros(pick(rng, &[100, 100, 20])),
        rto_high: Duration::from_micros(pick(rng, &[320, 320, 50])),
    }
}

fn limits(rng: &mut Rng, mtu: PathMtu) -> Limits {
    // Packets, not bytes, cost time here.
    let max_len = (mtu.bytes() as u64 * 40).min(65_536);
    Limits {
        mtu,
        ops: 5 + rng.index(150),
        max_len: u32::try_from(max_len).unwrap(),
        send_wr: pick(rng, &[1, 2, 5, 16, 64]),
        recv_wr: pick(rng, &[1, 2, 5, 16, 64]),
        send_sge: pick(rng, &[1, 2, 4]),
        recv_sge: pick(rng, &[1, 2, 4]),
        inline: pick(rng, &[0, 64, 512]),
        late_ppm: pick(rng, &[0, 0, 50_000, 300_000]),
        late_ns: pick(rng, &[100_000, 2_000_000, 20_000_000]),
        pause_ppm: pick(rng, &[0, 0, 50_000, 300_000]),
        pause_ns: pick(rng, &[10_000, 500_000]),
        writes: true,
        reads: true,
        atomics: true,
        atomic_writes: true,
        flushes: true,
    }
}

impl PairConfig {
    /// Packets in flight, at most. NSCC's window is one of bytes, in which small packets are many.
    pub(crate) fn most_in_flight(&self) -> u32 {
        if self.unwatched {
            1 << 22
        } else if self.control == "nscc" {
            512
        } else {
            self.window
        }
    }

    /// Whatever governs it, the window stays: the timeout is made for it.
    pub(crate) fn congestion(&self) -> CongestionControl {
        let line = Rate::bits_per_second(10_000_000_000);
        let window = u64::from(self.window);
        if self.to_the_floor && self.control != "fixed" {
            return CongestionControl::by_name(self.control, line, &[]).unwrap();
        }
        let bytes = window * self.mtu.bytes() as u64;
        // What NSCC makes of this round-trip time is two thirds of the window.
        let base_rtt = (bytes * 8 / 10 * 2 / 3).max(100);
        let params: &[(&str, u64)] = match self.control {
            "fixed" => return CongestionControl::Fixed(Fixed::new(self.rate, self.window)),
            "swift" => &[("max_cwnd", window)],
            "nscc" => &[("base_rtt", base_rtt)],
            // Soon at line rate again, or the work takes seconds.
            _ => &[
                ("window", window),
                ("rpg_min_rate", 100),
                ("rpg_ai_rate", 400),
            ],
        };
        CongestionControl::by_name(self.control, line, params).unwrap()
    }
}
