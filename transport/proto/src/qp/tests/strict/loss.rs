//! Requests that get lost: in step, every so many by count, and at random.

use proptest::prelude::*;

use super::super::*;
use super::cases;
use super::peer::Habit;
use super::work::{Wqe, wqe};
use super::world::{Control, Lose, Plan, Repair, run};

const REPAIRS: [Repair; 3] = [Repair::GoBackN, Repair::Adaptive, Repair::Selective];

/// What a selective peer tells as its range.
const RANGES: [&[u8]; 3] = [&[], &[1], &[8, 2]];

/// A stream of WRITEs over 10 Gb/s of which one packet in `n` is lost.
fn stream(n: u64, window: u32, repair: Repair, message: u32) -> (Plan, Vec<Wqe>) {
    let plan = Plan {
        mtu: PathMtu::Mtu256,
        timeout: 8,
        link: 10_000,
        control: Control::Window(window),
        repair,
        lose: Lose::Step(n),
        ..Plan::plain()
    };
    // Long enough that a timeout or two at the very end do not decide.
    let packets = (20 * n).clamp(6000, 8000) as u32;
    let messages = (packets * 256).div_ceil(message).clamp(1, 100);
    (plan, vec![Wqe::write(message); messages as usize])
}

/// The same with packets lost at random.
fn at_random(plan: &Plan, work: &[Wqe], n: u64) -> u64 {
    const RUNS: u64 = 3;
    let took = |seed| {
        let plan = Plan {
            lose: Lose::Random(n),
            seed,
            ..plan.clone()
        };
        run(&plan, work).took.as_nanos()
    };
    (1..=RUNS).map(|i| took(plan.seed + i)).sum::<u64>() / RUNS
}

/// Goodput of loss in step is at least half of that of loss at random; the very last packet may
/// get lost, which only a timeout tells, and then up to a window leaves once more.
fn check(plan: &Plan, work: &[Wqe], window: u32, n: u64) {
    let outcome = run(plan, work);
    let (took, random) = (outcome.took.as_nanos(), at_random(plan, work, n));
    // 256 bytes and 86 of headers at 10 Gb/s.
    let again = u64::from(window) * 274;
    let most = 2 * random + (4096 << plan.timeout) + again;
    assert!(took <= most, "{took} ns, random {random}: {outcome:?}");
}

/// Loss every `n` packets, or as many as the window has.
fn step() -> impl Strategy<Value = (u64, u32)> {
    let n = prop_oneof![Just(16u64), Just(64), 16..=256u64];
    let window = prop_oneof![2 => Just(256u32), 1 => Just(64), 1 => 8..256u32];
    (n, window, prop::bool::weighted(0.3)).prop_map(|(n, window, equal)| match equal {
        true => (u64::from(window).max(16), window),
        false => (n, window),
    })
}

/// Bytes of a message, whether the link is the limit or the queue pair keeps to its rate, and a
/// seed.
fn flow() -> impl Strategy<Value = (u32, u64, u64)> {
    let messages = prop::sample::select(&[16 * 1024u32, 64 * 1024][..]);
    let rates = prop::sample::select(&[0u64, 10_000][..]);
    (messages, rates, 0..1000u64)
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn loss_in_step_costs_no_more_than_twice_loss_at_random(
        (n, window) in step(),
        (message, rate, seed) in flow(),
        repair in prop::sample::select(&[Repair::GoBackN, Repair::Adaptive][..]),
    ) {
        let (plan, work) = stream(n, window, repair, message);
        check(&Plan { seed, rate, ..plan }, &work, window, n);
    }

    #[test]
    fn loss_in_step_costs_selective_repair_no_more_either(
        (n, window) in step(),
        (message, rate, seed) in flow(),
    ) {
        let (plan, work) = stream(n, window, Repair::Selective, message);
        check(&Plan { seed, rate, ..plan }, &work, window, n);
    }
}

#[test]
fn loss_in_step_with_the_window() {
    for n in [64, 128, 256] {
        for repair in [Repair::GoBackN, Repair::Adaptive] {
            let (plan, work) = stream(n, n as u32, repair, 64 * 1024);
            check(&plan, &work, n as u32, n);
        }
    }
}

proptest! {
    #![proptest_config(cases(60))]

    /// Any work, over a network that loses requests: it completes, once and in order.
    #[test]
    fn whatever_gets_lost_everything_completes(
        (n, in_step) in (16..=256u64, any::<bool>()),
        (timeout, first, seed) in (8..=12u8, 0xff_ff00..=0xff_ffffu32, any::<u64>()),
        repair in prop::sample::select(&REPAIRS[..]),
        habit in prop::sample::select(&[Habit::WhatAsks, Habit::NeverAgain][..]),
        window in prop::sample::select(&[1u32, 4, 33, 64, 256][..]),
        ranges in prop::sample::select(&RANGES[..]),
        (rate, max_reads) in (prop::sample::select(&[0u64, 10, 100, 10_000][..]), 1..=16u8),
        work in prop::collection::vec(wqe(), 1..10),
    ) {
        let plan = Plan {
            mtu: PathMtu::Mtu512,
            first,
            timeout,
            max_reads,
            rate,
            control: Control::Window(window),
            repair,
            habit,
            ranges: ranges.to_vec(),
            lose: if in_step { Lose::Step(n) } else { Lose::Random(n) },
            seed,
            ..Plan::plain()
        };
        run(&plan, &work);
    }
}
