//! Random workloads over a random network, seed by seed, checked against a model.
//!
//! `XROCE_SEEDS=n` runs n seeds of each kind (200 unless said) from `XROCE_FIRST_SEED` (0) on;
//! `XROCE_SEED=n` replays one and prints what it is made of. Everything follows from the seed.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that fails may panic and says what it did, and its sizes are small"
)]

mod churn;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod run;
mod watch;

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use run::Totals;
use xroce_net::sim::Rng;

const SEEDS_DEFAULT: u64 = 200;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

/// Runs one seed, or all of them on all cores.
fn for_seeds(what: &str, run: impl Fn(u64, bool) -> Totals + Sync) {
    if let Some(seed) = number("XROCE_SEED") {
        run(seed, true);
        return;
    }
    let seeds = number("XROCE_SEEDS").unwrap_or(SEEDS_DEFAULT);
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
    if seeds >= SEEDS_DEFAULT && what.starts_with("selective") {
        let t = totals;
        let seen = [t.sacks, t.selective, t.tail_probes, t.placed_early];
        assert!(seen.iter().all(|&n| n > 1000), "too tame: {t:?}");
    } else if seeds >= SEEDS_DEFAULT && what == "churn" {
        assert!(
            totals.deaths > seeds && totals.messages > 50 * seeds,
            "too tame: {totals:?}"
        );
    } else if seeds >= SEEDS_DEFAULT {
        let t = totals;
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
