//! Random workloads over a random network, seed by seed, checked against a model.
//!
//! `XROCE_SEEDS=n` runs n seeds of each kind (200 unless said, fewer of what takes long) from
//! `XROCE_FIRST_SEED` (0) on;
//! `XROCE_SEED=n` replays one and prints what it is made of. Everything follows from the seed.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that fails may panic and says what it did, and its sizes are small"
)]

mod churn;
mod closing;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod disagree;
mod duo;
mod keys;
mod laps;
mod modify;
mod quiet;
mod resources;
mod run;
mod step;
mod watch;

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use run::Totals;
use xroce_net::sim::Rng;

const SEEDS_DEFAULT: u64 = 240;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

/// Runs one seed, or all of them on all cores: so many unless a number is given. How many, and what
/// they consisted of.
fn run_seeds(
    what: &str,
    default: u64,
    run: impl Fn(u64, bool) -> Totals + Sync,
) -> Option<(u64, Totals)> {
    if let Some(seed) = number("XROCE_SEED") {
        run(seed, true);
        return None;
    }
    let seeds = number("XROCE_SEEDS").unwrap_or(default);
    let first = number("XROCE_FIRST_SEED").unwrap_or(0);
    let end = first + seeds;
    let next = AtomicU64::new(first);
    let worker = || {
        let mut totals = Totals::default();
        loop {
            // Pairs with nothing: only the number itself is shared.
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return totals;
            }
            totals += run(seed, false);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let totals = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let mut totals = Totals::default();
        for worker in workers {
            totals += worker.join().expect("a seed failed");
        }
        totals
    });
    // Not `println!`: the seeds are to be seen although the test passes.
    let line = format!("chaos: {what}: seeds {first}..{end}: {totals:?}");
    let _ = writeln!(std::io::stderr(), "{line}");
    Some((seeds, totals))
}

fn for_seeds(what: &str, run: impl Fn(u64, bool) -> Totals + Sync) {
    let Some((seeds, t)) = run_seeds(what, SEEDS_DEFAULT, run) else {
        return;
    };
    if seeds < SEEDS_DEFAULT {
        return;
    }
    if what.starts_with("selective") {
        let seen = [t.sacks, t.selective, t.tail_probes, t.placed_early];
        assert!(seen.iter().all(|&n| n > 1000), "too tame: {t:?}");
    } else if what == "churn" {
        assert!(
            t.deaths > seeds && t.messages > 50 * seeds,
            "too tame: {t:?}"
        );
    } else {
        let seen = [
            t.timeouts,
            t.seq_naks,
            t.implied_naks,
            t.rnr_naks,
            t.duplicates,
        ];
        assert!(seen.iter().all(|&n| n > 1000), "too tame: {t:?}");
    }
}

/// Kinds of which fewer seeds are run unless a number is given; `seen` is what happens in every seed,
/// or nearly.
fn for_few_seeds(
    what: &str,
    default: u64,
    seen: fn(&Totals) -> u64,
    run: impl Fn(u64, bool) -> Totals + Sync,
) {
    if let Some((seeds, totals)) = run_seeds(what, default, run) {
        assert!(seen(&totals) >= seeds, "too tame: {totals:?}");
    }
}

#[test]
fn random_workloads_over_a_random_network() {
    for_seeds("workloads", |seed, verbose| {
        run::run(seed, config::sound, verbose)
    });
}

#[test]
fn random_workloads_with_one_faulty_request() {
    for_seeds("faults", |seed, verbose| {
        run::run(seed, config::faulty, verbose)
    });
}

#[test]
fn random_workloads_with_selective_retransmission() {
    for_seeds("selective workloads", |seed, verbose| {
        let make = |rng: &mut Rng| config::selective(rng, config::sound);
        run::run(seed, make, verbose)
    });
}

#[test]
fn random_workloads_with_selective_retransmission_and_one_faulty_request() {
    for_seeds("selective faults", |seed, verbose| {
        let make = |rng: &mut Rng| config::selective(rng, config::faulty);
        run::run(seed, make, verbose)
    });
}

#[test]
fn random_objects_come_and_go() {
    for_seeds("churn", churn::run);
}

#[test]
fn paced_queue_pairs_on_a_network_that_loses_nothing() {
    let run = |seed, verbose| run::run(seed, quiet::paced, verbose);
    for_few_seeds("paced", 100, |t| t.messages, run);
}

#[test]
fn requests_that_are_overtaken_are_asked_for() {
    let run = |seed, verbose| run::run(seed, quiet::overtaken, verbose);
    for_few_seeds("overtaken", 100, |t| t.seq_naks, run);
}

#[test]
fn everything_comes_twice_and_late() {
    let run = |seed, verbose| run::run(seed, quiet::copied, verbose);
    for_few_seeds("copied", 30, |t| t.duplicates, run);
}

#[test]
fn attributes_are_modified_while_the_work_goes_on() {
    let run = |seed, verbose| run::run(seed, quiet::modified, verbose);
    for_few_seeds("modified", 100, |t| t.modifies, run);
}

#[test]
fn loss_in_step_is_no_worse_than_loss_by_chance() {
    for_few_seeds("step", 20, |t| t.retransmits, step::run);
}

#[test]
fn the_receiver_closes_at_the_earliest_moment() {
    for_few_seeds("closing", 200, |t| t.messages, closing::run);
}

#[test]
fn keys_are_taken_back_at_random() {
    for_few_seeds("keys", 100, |t| t.duplicates, keys::run);
}

#[test]
fn reads_atomics_and_flushes_fill_what_the_peer_accepts() {
    for_few_seeds("resources", 100, |t| t.messages, resources::run);
}

#[test]
fn the_two_ends_disagree_about_recovery() {
    for_few_seeds("disagreement", 100, |t| t.frames, disagree::run);
}

#[test]
fn a_lap_of_psns_later() {
    let run = |seed, verbose| laps::run(seed, laps::How::Jump, verbose);
    for_few_seeds("laps that are jumped over", 40, |t| t.messages, run);
}

/// Takes seconds for each seed, so only the long form has it: one of so many of its seeds.
#[cfg(not(debug_assertions))]
#[test]
fn a_lap_of_psns_later_packet_by_packet() {
    const ONE_IN: u64 = 250;
    let run = |seed: u64, verbose: bool| {
        if !verbose && !seed.is_multiple_of(ONE_IN) {
            return Totals::default();
        }
        laps::run(seed, laps::How::Packets, verbose)
    };
    run_seeds("laps", ONE_IN, run);
}
