//! Seeds whose networks lose nothing, so that whatever is repeated is repeated for no reason, and
//! those that deliver too much.

use xroce_net::sim::{Impairment, Rng};
use xroce_proto::cc::Rate;
use xroce_proto::recovery::{AdaptiveParams, Reliability};

use crate::common::script::Limits;
use crate::config::{
    Config, PairConfig, Strict, frame, pick, selective, selective_params, sound, wire,
};

/// A wire that does nothing but take a little time and mark.
fn quiet(rng: &mut Rng, marks: &[u32]) -> Impairment {
    Impairment {
        ce_ppm: pick(rng, marks),
        ..Impairment::delay(pick(rng, &[500, 1_000, 2_000]))
    }
}

/// Receives are there before what takes them, and the requester never pauses by itself.
fn always_ready(pair: &mut PairConfig, ops: usize) {
    for limits in &mut pair.limits {
        limits.ops = limits.ops.min(ops);
        limits.late_ppm = 0;
        limits.pause_ppm = 0;
        limits.recv_wr = limits.send_wr;
        // All receives fit into the inbox, where ranges are found by guessing.
        limits.max_len = limits.max_len.min(40_000 / limits.recv_wr);
    }
}

/// Whether a peer that waits for answers at this rate must not lose patience: those of READs and
/// atomics are data, paced like it.
pub(crate) fn is_patient(pair: &PairConfig, rate: Rate) -> bool {
    let waits = match pair.reliability {
        Reliability::Selective(params) => params.rto_low.as_nanos(),
        Reliability::Adaptive(params) => params.floor.as_nanos(),
        _ => 4096 << pair.timeout,
    };
    let bits = (pair.mtu.bytes() as u64 + 128) * 8;
    let slowest = [rate, pair.rate].map(Rate::as_bits_per_second);
    let slowest = slowest.into_iter().filter(|&bps| bps != 0).min();
    slowest.is_none_or(|bps| bits * 1_000_000_000 / bps <= waits / 8)
}

/// Queue pairs paced by a limit or by marks, with any timeout and any number of retries: where
/// nothing is lost no timer has a reason to fire.
pub(crate) fn paced(rng: &mut Rng) -> Config {
    let marks = [0, 0, 10_000, 300_000, 1_000_000];
    let wires = [quiet(rng, &marks), quiet(rng, &marks)];
    let mut config = frame(rng, wires);
    config.strict = Strict::NothingAgain;
    config.limit_ns = 4_000_000_000_000;
    config.calm_after = config.limit_ns;
    for pair in &mut config.pairs {
        always_ready(pair, 30);
        pair.unwatched = true;
        pair.to_the_floor = rng.below(2) == 0;
        if rng.below(3) != 0 {
            let mbps = pick(rng, &[1, 2, 3, 5, 10, 20, 100, 500, 1_000, 10_000]);
            pair.rate_limit = Rate::bits_per_second(mbps * 1_000_000);
        }
        pair.timeout = 8 + u8::try_from(rng.below(11)).unwrap();
        pair.retry_cnt = u8::try_from(rng.below(8)).unwrap();
        pair.reliability = match rng.below(5) {
            0 => Reliability::Adaptive(AdaptiveParams::default()),
            1 => Reliability::Selective(selective_params(rng)),
            _ => Reliability::GoBackN,
        };
        // Marks bring DCQCN down to its floor: 100 Mb/s in these runs, or what mlx5 calls the floor
        // of a 10 Gb/s port.
        let floor = match (pair.control, pair.to_the_floor) {
            ("fixed", _) => pair.rate_limit,
            (_, true) => Rate::bits_per_second(1_000_000),
            (_, false) => Rate::bits_per_second(100_000_000),
        };
        let slowest = floor.min(pair.rate_limit);
        // A responder that paces its own requests as well may keep an answer waiting.
        if is_patient(pair, slowest) && rng.below(2) == 0 {
            pair.limits[rng.index(2)].ops = 0;
        } else {
            pair.limits.iter_mut().for_each(Limits::leave_out_answers);
        }
    }
    config
}

/// Now and then a request is overtaken by a few others, and nothing is lost: a NAK for the gap, and
/// no silence. What is sent again is not overtaken as well: of a gap in it no NAK says anything,
/// because there is one for each missing packet.
pub(crate) fn overtaken(rng: &mut Rng) -> Config {
    let there = Impairment {
        reorder_ppm: pick(rng, &[10_000, 100_000, 1_000_000]),
        reorder_positions: pick(rng, &[1, 1, 2, 5]),
        reorder_delay_ns: pick(rng, &[1_000, 20_000]),
        reorder_apart_ns: 2_000_000,
        ..quiet(rng, &[0])
    };
    let mut config = frame(rng, [there, Impairment::delay(1_000)]);
    config.strict = Strict::NoTimeout;
    config.limit_ns = 400_000_000_000;
    config.calm_after = config.limit_ns;
    for pair in &mut config.pairs {
        always_ready(pair, 150);
        for limits in &mut pair.limits {
            limits.pause_ppm = pick(rng, &[50_000, 500_000]);
            limits.pause_ns = 1_000_000;
        }
        pair.timeout = 10 + u8::try_from(rng.below(5)).unwrap();
        // Only what the first host asks is overtaken, and no answer to the second.
        pair.limits[1].ops = 0;
        pair.control = "fixed";
    }
    config
}

/// Every frame comes twice, the copy up to milliseconds late, and some once more long after.
pub(crate) fn copied(rng: &mut Rng) -> Config {
    let mut copies = |rough: bool| Impairment {
        duplicate_ppm: pick(rng, &[1_000_000, 1_000_000, 500_000]),
        duplicate_delay_ns: pick(rng, &[0, 20_000, 500_000, 5_000_000]),
        late_copy_ppm: pick(rng, &[0, 20_000, 1_000_000]),
        late_copy_delay_ns: pick(rng, &[1_000_000, 12_000_000]),
        loss_ppm: if rough { pick(rng, &[0, 10_000]) } else { 0 },
        rate_bps: pick(rng, &[1_000_000_000, 10_000_000_000]),
        ..Impairment::delay(1_000)
    };
    let wires = [copies(true), copies(true)];
    let mut config = if rng.below(2) == 0 {
        frame(rng, wires)
    } else {
        selective(rng, |rng| {
            let wires = [wire(rng, true), wire(rng, true)];
            frame(rng, wires)
        })
    };
    config.wires = wires;
    for pair in &mut config.pairs {
        // Copies of all that is in flight may stand in the way of an answer.
        pair.timeout = pair.timeout.max(10);
        for limits in &mut pair.limits {
            limits.ops = limits.ops.min(60);
        }
    }
    config
}

/// Attributes are modified while the work goes on: to what they are, and to something else.
pub(crate) fn modified(rng: &mut Rng) -> Config {
    let is_quiet = rng.below(2) == 0;
    let mut config = if is_quiet {
        let wires = [quiet(rng, &[0, 0, 10_000]), quiet(rng, &[0, 0, 10_000])];
        let mut config = frame(rng, wires);
        config.strict = Strict::NothingAgain;
        config
    } else if rng.below(2) == 0 {
        sound(rng)
    } else {
        selective(rng, sound)
    };
    config.modify_ppm = pick(rng, &[20_000, 100_000, 300_000]);
    config.drain_ppm = pick(rng, &[20_000, 100_000]);
    for pair in &mut config.pairs {
        pair.unwatched = true;
        pair.timeout = pair.timeout.max(9);
        if is_quiet {
            always_ready(pair, 60);
        }
        for limits in &mut pair.limits {
            limits.ops = limits.ops.min(100);
            limits.atomics = rng.below(4) != 0;
            limits.flushes = rng.below(4) != 0;
        }
        if rng.below(2) == 0 {
            // Then rates may be as low as they like.
            pair.limits.iter_mut().for_each(Limits::leave_out_answers);
        }
    }
    config
}
