//! A network that loses nothing and is far faster than the timeout: nothing is sent twice, no
//! timer fires, and the time it takes is that of the rate and a few round trips.

use proptest::prelude::*;

use super::super::*;
use super::peer::Habit;
use super::work::{Kind, Wqe, wqe};
use super::world::{Control, Lose, Plan, Repair, run};
use super::{Dice, cases};

const MTUS: [PathMtu; 5] = [
    PathMtu::Mtu256,
    PathMtu::Mtu512,
    PathMtu::Mtu1024,
    PathMtu::Mtu2048,
    PathMtu::Mtu4096,
];

const HABITS: [Habit; 3] = [Habit::WhatAsks, Habit::NeverAgain, Habit::Everything];

/// What a selective peer tells as its range; mostly nothing.
const RANGES: [&[u8]; 5] = [&[], &[], &[1], &[8], &[1, 3, 2]];

/// Largest windows of Swift.
const SWIFTS: [&[(&str, u64)]; 5] = [
    &[("max_cwnd", 8)],
    &[("max_cwnd", 16)],
    &[("max_cwnd", 30)],
    &[("max_cwnd", 64)],
    &[],
];

fn control() -> impl Strategy<Value = Control> {
    prop_oneof![
        4 => prop::sample::select(&[1u32, 2, 3, 4, 7, 16, 31, 32, 33, 64, 100, 255, 256][..])
            .prop_map(Control::Window),
        1 => Just(Control::Named("dcqcn-mlx5", &[])),
        1 => Just(Control::Named("swift", &[])),
        1 => Just(Control::Named("swift", &[("max_cwnd", 30)])),
        1 => Just(Control::Named("nscc", &[])),
    ]
}

fn repair() -> impl Strategy<Value = Repair> {
    let all = [Repair::GoBackN, Repair::Adaptive, Repair::Selective];
    prop_oneof![1 => Just(Repair::GoBackN), 2 => prop::sample::select(all.to_vec())]
}

/// The network: one way, what it varies by, how late the peer answers, the pace of turns.
fn network(plan: &mut Plan, dice: &mut Dice) {
    plan.delay = 500 + dice.below(9_500);
    plan.jitter = if dice.once_in(2) {
        dice.below(10_000)
    } else {
        0
    };
    plan.late = match dice.below(3) {
        0 => dice.below(20_000),
        // Within the timeout, as the recovery has it.
        1 => match (plan.repair, plan.timeout) {
            (Repair::Selective, _) => dice.below(20_000),
            (Repair::Adaptive, _) => dice.below(300_000),
            (Repair::GoBackN, 0) => dice.below(100_000_000),
            (Repair::GoBackN, code) => (4096 << code) * 3 / 4,
        },
        _ => 0,
    };
    if dice.once_in(2) {
        plan.turn = [1, 4, 16, 64][dice.below(4) as usize];
        plan.gap = dice.below(30_000);
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    let timeout = prop_oneof![1 => Just(0u8), 4 => 8..=18u8, 2 => Just(8u8)];
    let rate = prop_oneof![
        3 => Just(0u64),
        3 => prop::sample::select(&[1, 2, 3, 5, 10, 20, 100, 500, 1_000, 10_000][..]),
    ];
    let ranges = prop::sample::select(&RANGES[..]);
    (
        (
            prop::sample::select(&MTUS[..]),
            timeout,
            0..=7u8,
            1..=16u8,
            rate,
        ),
        (
            control(),
            repair(),
            prop::sample::select(&HABITS[..]),
            ranges,
        ),
        (
            any::<bool>(),
            prop_oneof![2 => Just(0u64), 1 => 5_000..100_000u64],
        ),
        any::<u64>(),
    )
        .prop_map(|(attrs, ways, (runs, cnps), seed)| {
            let (mtu, timeout, retry, max_reads, rate) = attrs;
            let (control, repair, habit, ranges) = ways;
            let mut dice = Dice::new(seed);
            let mut plan = Plan {
                mtu,
                // At the wrap, or shortly before.
                first: 0xff_ffff - dice.below(300) as u32,
                timeout,
                retry,
                max_reads,
                rate,
                control,
                repair,
                habit,
                ranges: ranges.to_vec(),
                runs,
                cnps,
                seed,
                ..Plan::plain()
            };
            network(&mut plan, &mut dice);
            plan
        })
}

/// Round trips the work may take when nothing but the window and the order of things holds it up.
fn rounds(plan: &Plan, work: &[Wqe], psns: u64) -> Option<u64> {
    let Control::Window(window) = plan.control else {
        return None;
    };
    if plan.repair == Repair::Selective && !plan.ranges.is_empty() {
        return None;
    }
    let reads = work.iter().filter(|wqe| wqe.takes_rd_atomic()).count() as u64;
    Some(psns / u64::from(window) + 2 * reads + work.len() as u64 + 4)
}

fn check(plan: &Plan, work: &[Wqe]) {
    let outcome = run(plan, work);
    assert_eq!(plan.lose, Lose::Nothing);
    let counters = &outcome.counters;
    assert_eq!(counters.timeouts, 0, "timeouts: {outcome:?}");
    assert_eq!(counters.retries, 0, "retries: {outcome:?}");
    // A window that shrinks below what is in flight has one packet sent again to ask for an ACK.
    let asked_again = match plan.control {
        Control::Window(_) => 0,
        Control::Named(..) => counters.retransmits_solicit,
    };
    assert_eq!(outcome.again, asked_again, "sent again: {outcome:?}");
    assert_eq!(counters.retransmits, asked_again);
    assert_eq!(counters.ghost_responses, 0);
    let Some(rounds) = rounds(plan, work, outcome.psns) else {
        return;
    };
    let sending = match plan.rate {
        0 => 0,
        mbps => outcome.wire * 8 * 1000 / mbps,
    };
    let pauses = outcome.pauses + work.iter().map(|wqe| wqe.pause).sum::<u64>();
    let most = sending + rounds * plan.round_trip() + pauses;
    let took = outcome.took.as_nanos();
    assert!(took <= most, "{took} ns and not {most}: {outcome:?}");
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn nothing_is_sent_twice_where_nothing_is_lost(
        plan in plan(),
        work in prop::collection::vec(wqe(), 1..12),
    ) {
        check(&plan, &work);
    }

    /// A selective peer takes fewer PSNs ahead than a READ has, now and then or always.
    #[test]
    fn a_smaller_range_of_the_peer_stops_nothing(
        plan in plan(),
        ranges in prop::collection::vec(1..5u8, 1..4),
        work in prop::collection::vec(wqe(), 1..8),
        reads in prop::collection::vec((0..8usize, 20_000..48_000u32), 1..4),
    ) {
        let repair = Repair::Selective;
        let (mtu, late) = (PathMtu::Mtu256, plan.late.min(20_000));
        let plan = Plan { repair, ranges, mtu, late, cnps: 0, ..plan };
        let mut work = work;
        for (at, len) in reads {
            let read = Wqe { kind: Kind::Read, lens: vec![len], ..Wqe::write(0) };
            work.insert(at.min(work.len()), read);
        }
        check(&plan, &work);
    }

    /// A window that follows the delay, which comes and goes.
    #[test]
    fn a_window_that_shrinks_leaves_nothing_behind(
        plan in plan(),
        most in prop::sample::select(&SWIFTS[..]),
        (turn, gap) in (1..40u64, 0..60_000u64),
        late in 0..150_000u64,
        work in prop::collection::vec((wqe(), 0..150_000u64), 2..12),
    ) {
        let late = if plan.repair == Repair::Selective { late / 8 } else { late };
        let control = Control::Named("swift", most);
        let timeout = plan.timeout.max(10);
        let plan = Plan { control, turn, gap, late, timeout, rate: 0, cnps: 0, ..plan };
        let spread = |(wqe, pause)| Wqe { pause, ..wqe };
        let work: Vec<Wqe> = work.into_iter().map(spread).collect();
        check(&plan, &work);
    }

    /// Congestion notifications until it is as slow as can be, and then work.
    #[test]
    fn notifications_slow_down_and_no_more(
        plan in plan(),
        cnps in 5_000..20_000u64,
        work in prop::collection::vec(wqe(), 1..8),
    ) {
        let control = Control::Named("dcqcn-mlx5", &[]);
        let plan = Plan { control, cnps, rate: 0, ..plan };
        let mut work = work;
        work[0].pause = 100 * cnps;
        check(&plan, &work);
    }
}
