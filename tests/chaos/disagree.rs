//! Two ends that were not told the same about recovery: whatever becomes of the work, it ends, and
//! somebody can say why.

use xroce_net::sim::{Impairment, Rng};
use xroce_proto::qp::QpState;
use xroce_proto::recovery::Reliability;
use xroce_proto::wc::WcStatus;
use xroce_proto::wr::SendOp;

use crate::config::pick;
use crate::duo::{Duo, DuoConfig, reliability, selective};
use crate::run::{Black, Totals};

/// Virtual time in which all must have ended, ns.
const LIMIT_NS: u64 = 20_000_000_000;

#[derive(Clone, Debug)]
struct Config {
    duo: DuoConfig,
    /// What kind, and how long.
    ops: Vec<(u8, u32)>,
}

fn config(rng: &mut Rng) -> Config {
    let wire = |rng: &mut Rng| Impairment {
        loss_ppm: pick(rng, &[0, 3_000, 30_000]),
        reorder_ppm: pick(rng, &[0, 30_000]),
        reorder_positions: 3,
        reorder_delay_ns: 10_000,
        duplicate_ppm: pick(rng, &[0, 30_000]),
        rate_bps: 10_000_000_000,
        ..Impairment::delay(1_000)
    };
    let wires = [wire(rng), wire(rng)];
    let mut duo = DuoConfig::new(rng, wires);
    duo.every = [0, 1].map(|_| pick(rng, &[1_000, 10_000]));
    duo.reliability = [0, 1].map(|_| match rng.below(2) {
        0 => reliability(rng),
        _ => selective(pick(rng, &[128, 256, 4096])),
    });
    // More packets than the smaller range, in one case of two.
    let packets = pick(rng, &[4, 60, 400, 1_000]);
    let most = (packets * duo.mtu.bytes() as u64).min(1 << 20);
    let ops = (0..4 + rng.below(5)).map(|_| {
        let len = most - rng.below(most / 2);
        (rng.below(4) as u8, u32::try_from(len).unwrap())
    });
    Config {
        ops: ops.collect(),
        duo,
    }
}

pub(crate) fn run(seed: u64, verbose: bool) -> Totals {
    let mut rng = Rng::new(seed);
    let config = config(&mut rng);
    if verbose {
        eprintln!("seed {seed}: {config:#?}");
    }
    let mut duo = Duo::new(seed, &config.duo, &mut rng);
    let black = Black {
        seed,
        config,
        watch: duo.watch.clone(),
    };
    let config = &black.config;
    let [a, b] = duo.qpns;
    for (n, &(kind, len)) in config.ops.iter().enumerate() {
        let [left, right] = &mut duo.world.hosts;
        let (va, rkey) = (right.va(0), right.mr.rkey);
        let sge = left.sge(1 << 20, len);
        let (op, sge) = match kind {
            0 => (SendOp::Send, sge),
            1 => (SendOp::Write { va, rkey }, sge),
            2 => (SendOp::Read { va, rkey }, sge),
            _ => {
                let add = 1;
                (SendOp::FetchAdd { va, rkey, add }, left.sge(0, 8))
            }
        };
        right.post_recv(b, n as u64, &[right.sge(1 << 20, 1 << 20)]);
        left.post_send(a, n as u64, op, &[sge]);
    }
    let mut done = Vec::new();
    while done.len() < config.ops.len() {
        assert!(
            duo.world.net.now() < LIMIT_NS && !duo.is_stuck(),
            "{} of {} ended\n{}",
            done.len(),
            config.ops.len(),
            duo.failures()
        );
        let (host, completions) = duo.turn();
        if host == 0 {
            done.extend(completions);
        }
    }
    let failed = done.iter().position(|wc| wc.status != WcStatus::Success);
    if let Some(first) = failed {
        assert_ne!(done[first].status, WcStatus::WrFlushErr, "no cause");
        let engine = &duo.world.hosts[0].engine;
        assert_eq!(engine.qp_state(a), Some(QpState::Err));
        assert!(engine.failure(a).is_some(), "nobody says why");
        assert!(
            !agree(config.duo.reliability),
            "{:?}\n{}",
            done[first],
            duo.failures()
        );
    }
    duo.totals()
}

/// Whether the two ends were told the same: then nothing may fail.
fn agree([left, right]: [Reliability; 2]) -> bool {
    left == right
}
