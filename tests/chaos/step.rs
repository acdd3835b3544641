//! Loss in step: every n-th frame by count, whatever is sent again included. It must end, and be at
//! least half as fast as when as much is lost by chance.

use xroce_net::sim::{Impairment, Rng};
use xroce_proto::cc::{CongestionControl, Fixed, Rate};
use xroce_proto::qp::QpState;
use xroce_proto::recovery::{AdaptiveParams, Reliability};
use xroce_proto::wc::WcStatus;
use xroce_proto::wr::SendOp;
use xroce_wire::newtypes::PathMtu;

use crate::common::{Setup, World};
use crate::config::pick;
use crate::duo::selective;
use crate::run::Totals;

/// Virtual time in which a transfer must be over, ns.
const LIMIT_NS: u64 = 60_000_000_000;

#[derive(Clone, Debug)]
struct Config {
    /// Every so-many-th frame is lost, on either wire.
    every: [u32; 2],
    mtu: PathMtu,
    psns: [u32; 2],
    window: u32,
    timeout: u8,
    tx_ring: usize,
    reads: bool,
    message: u32,
    messages: u64,
    reliability: Reliability,
}

fn config(rng: &mut Rng) -> Config {
    let mut every = || {
        let any = 16 + u32::try_from(rng.below(241)).unwrap();
        pick(rng, &[16, 32, 64, 128, 256, any, any])
    };
    let (there, back) = (every(), every());
    let reads = rng.below(3) == 0;
    // Of few acknowledgements as many are lost in step, and then it is time that counts.
    let every = match (reads, rng.below(3)) {
        (false, 0) => [there, back],
        (false, _) => [there, 0],
        (true, _) => [0, back],
    };
    let mtu = pick(rng, &[PathMtu::Mtu256, PathMtu::Mtu1024, PathMtu::Mtu4096]);
    let packets = pick(rng, &[256, 1024]);
    let psn = u32::try_from(rng.below(1 << 24)).unwrap();
    Config {
        every,
        mtu,
        psns: [psn, (1 << 24) - 100],
        window: pick(rng, &[32, 128, 256, 256]),
        timeout: 8,
        tx_ring: pick(rng, &[16, 256]),
        reads,
        message: packets * u32::try_from(mtu.bytes()).unwrap(),
        messages: 2048 / u64::from(packets),
        reliability: match rng.below(4) {
            0 => Reliability::Adaptive(AdaptiveParams::default()),
            1 => selective(pick(rng, &[256, 4096])),
            _ => Reliability::GoBackN,
        },
    }
}

/// What a transfer took, ns.
struct Outcome {
    took: u64,
    totals: Totals,
}

/// A transfer with losses by count, or by chance at the same rate.
fn transfer(seed: u64, config: &Config, by_count: bool) -> Outcome {
    let wires = config.every.map(|every| Impairment {
        rate_bps: 10_000_000_000,
        loss_every: if by_count { every } else { 0 },
        loss_ppm: match every {
            0 => 0,
            _ if by_count => 0,
            every => 1_000_000 / every,
        },
        ..Impairment::delay(1_000)
    });
    let setup = Setup {
        seed,
        wires,
        tx_ring: config.tx_ring,
        memory: 6 << 20,
        ..Setup::default()
    };
    let mut world: World = setup.build();
    let qpns = [0, 1].map(|host| world.create_qp(host, |_| {}));
    world.bring_up(qpns, config.mtu, config.psns, |_, attr| {
        if attr.state == Some(QpState::Rtr) {
            attr.reliability = Some(config.reliability);
        }
        if attr.state == Some(QpState::Rts) {
            attr.timeout = Some(config.timeout);
            let fixed = Fixed::new(Rate::UNLIMITED, config.window);
            attr.congestion = Some(CongestionControl::Fixed(fixed));
        }
    });
    for n in 0..config.messages {
        let [left, right] = &mut world.hosts;
        let (va, rkey) = (right.va(0), right.mr.rkey);
        let op = if config.reads {
            SendOp::Read { va, rkey }
        } else {
            SendOp::Write { va, rkey }
        };
        let sge = left.sge(0, config.message);
        left.post_send(qpns[0], n, op, &[sge]);
    }
    let mut done = Vec::new();
    let is_over = world.run(LIMIT_NS, |world| {
        done.extend(world.hosts[0].completions());
        done.len() as u64 == config.messages
    });
    let how = if by_count { "count" } else { "chance" };
    let counters = world.hosts[0].engine.qp_counters(qpns[0]).unwrap();
    assert!(
        is_over,
        "by {how}: {} of {}: {counters:?}",
        done.len(),
        config.messages
    );
    for wc in &done {
        assert_eq!(wc.status, WcStatus::Success, "by {how}: {counters:?}");
    }
    Outcome {
        took: world.net.now(),
        totals: Totals {
            messages: config.messages,
            frames: world.hosts.iter().map(|h| h.engine.stats().rx_frames).sum(),
            retransmits: counters.retransmits,
            timeouts: counters.timeouts,
            seq_naks: counters.seq_naks_in,
            sacks: counters.sacks_in,
            ..Totals::default()
        },
    }
}

pub(crate) fn run(seed: u64, verbose: bool) -> Totals {
    let mut rng = Rng::new(seed);
    let config = config(&mut rng);
    if verbose {
        eprintln!("seed {seed}: {config:#?}");
    }
    let told = Told { seed, config };
    let by_count = transfer(seed, &told.config, true);
    let by_chance = [0, 1].map(|n| transfer(seed + n, &told.config, false));
    let slowest = by_chance.iter().map(|o| o.took).max().unwrap_or(0);
    // A loss at the very end costs a timeout, which chance may spare.
    let timeouts = 4 * (4096 << told.config.timeout);
    assert!(
        by_count.took <= 2 * slowest + timeouts,
        "{} µs by count, {slowest} ns by chance: {:?}",
        by_count.took / 1000,
        by_count.totals
    );
    by_count.totals
}

/// Says what failed.
struct Told {
    seed: u64,
    config: Config,
}

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:#?}\nXROCE_SEED={} failed", self.config, self.seed);
        }
    }
}
