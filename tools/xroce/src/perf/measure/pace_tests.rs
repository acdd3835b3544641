//! Schedules, and a model of a sender that stalls.

use super::*;

const START: Instant = Instant::from_nanos(1_000_000_007);
const SECOND: End = End::After(Duration::from_millis(1_000));

fn at(ns: u64) -> Instant {
    START + Duration::from_nanos(ns)
}

#[test]
fn a_fixed_schedule_does_not_drift() {
    let all: Vec<u64> = Schedule::new(3, Arrivals::Fixed, 0, End::Messages(10)).collect();
    assert_eq!(all[..4], [0, 333_333_333, 666_666_666, 1_000_000_000]);
    assert_eq!(all[9], 3_000_000_000);
    // As many as the rate says, also where the distance is no whole number of ns.
    for rate in [1, 7, 999_999, 3_000_000] {
        let schedule = Schedule::new(rate, Arrivals::Fixed, 0, SECOND);
        assert_eq!(schedule.count() as u64, rate, "{rate}");
    }
}

#[test]
fn poisson_arrivals_follow_from_the_seed() {
    let times = |seed| -> Vec<u64> {
        Schedule::new(100_000, Arrivals::Poisson, seed, End::Messages(100_000)).collect()
    };
    let one = times(1);
    assert_eq!(one, times(1));
    assert_ne!(one, times(2));
    assert!(one.is_sorted());
    // Mean and standard deviation of the distances are both 10 µs; the bounds are 5 of their own
    // standard deviations away.
    let gaps: Vec<f64> = one.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
    let n = gaps.len() as f64;
    let mean = gaps.iter().sum::<f64>() / n;
    let deviation = (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / n).sqrt();
    assert!((mean - 10_000.0).abs() < 160.0, "{mean}");
    assert!((deviation - 10_000.0).abs() < 320.0, "{deviation}");
    // Many are close together: a fixed schedule in disguise has none.
    let close = gaps.iter().filter(|g| **g < 1_000.0).count() as f64 / n;
    assert!((close - 0.095).abs() < 0.005, "{close}");
}

/// Drives a pacer with a path that takes `service` ns per message, one clock tick of 100 ns at a
/// time; between `stall.0` and `stall.1` nothing moves at all: neither posts nor completions.
fn simulate(mut pacer: Pacer, depth: u64, service: u64, stall: (u64, u64), ticks: u64) -> Found {
    let (mut posted, mut completed) = (0, 0);
    let mut ready: std::collections::VecDeque<u64> = std::collections::VecDeque::new();
    for now in (0..ticks).map(|t| t * 100) {
        if (stall.0..stall.1).contains(&now) {
            continue;
        }
        while ready.front().is_some_and(|&t| t <= now) {
            ready.pop_front();
            pacer.complete(0, completed, at(now));
            completed += 1;
        }
        while !pacer.is_over(at(now)) && pacer.is_due(at(now)) && posted - completed < depth {
            pacer.post(0, posted, at(now));
            posted += 1;
            ready.push_back(now + service);
        }
    }
    assert_eq!(posted, completed, "all came back");
    pacer.found()
}

/// 100 000 messages a second for a second, each answered after 2 µs.
fn pacer(depth: u32, end: End) -> Pacer {
    let schedule = Schedule::new(100_000, Arrivals::Fixed, 0, end);
    Pacer::new(schedule, START, 1, depth).unwrap()
}

#[test]
fn without_a_stall_every_message_takes_what_it_takes() {
    let found = simulate(pacer(16, SECOND), 16, 2_000, (0, 0), 11_000_000);
    let numbers = found.numbers();
    assert_eq!((numbers.latency.samples, numbers.unsent), (100_000, 0));
    assert!(numbers.latency.max_ns.abs_diff(2_000) < 10, "{numbers:?}");
    assert!(numbers.behind.max_ns < 100, "{numbers:?}");
}

#[test]
fn a_stall_counts_for_every_message_that_was_due_meanwhile() {
    // 50 ms in which 5 000 messages are due, 5 % of all. A closed loop would have recorded one.
    let stall = (500_000_000, 550_000_000);
    let found = simulate(pacer(16, SECOND), 16, 2_000, stall, 11_000_000);
    assert_eq!(found.latency.len(), 100_000, "none is left out");
    // Those due in the stall waited for its rest: evenly spread over 0 to 50 ms, then as long as
    // it takes to send what has piled up at 16 per 2 µs.
    let slow = found.latency.count_between(1_000_000, LONGEST_NS_TEST);
    assert!((4_890..=5_000).contains(&slow), "{slow}");
    let numbers = found.numbers();
    assert!(numbers.latency.p90_ns < 2_100, "{numbers:?}");
    // Of the 5 000, the slowest 1 000 waited for 40 ms or more: 99 % of all messages lie below.
    assert!(
        (39_000_000..42_000_000).contains(&numbers.latency.p99_ns),
        "{numbers:?}"
    );
    assert!(
        (49_900_000..51_000_000).contains(&numbers.latency.max_ns),
        "{numbers:?}"
    );
    assert!(
        (49_900_000..51_000_000).contains(&numbers.behind.max_ns),
        "{numbers:?}"
    );
}

const LONGEST_NS_TEST: u64 = super::super::quantiles::LONGEST_NS;

#[test]
fn what_never_left_counts_with_the_time_it_waited() {
    // A path that takes 20 µs and one message at a time carries half of what is due.
    let found = simulate(pacer(1, SECOND), 1, 20_000, (0, 0), 11_000_000);
    let numbers = found.numbers();
    assert_eq!(numbers.latency.samples, 100_000, "none is left out");
    assert!((49_000..50_000).contains(&numbers.unsent), "{numbers:?}");
    // The sender falls behind by half a second in a second, and the last that left says so.
    assert!(
        (480_000_000..520_000_000).contains(&numbers.behind.max_ns),
        "{numbers:?}"
    );
}

#[test]
fn a_number_of_messages_is_sent_however_late() {
    let end = End::Messages(1_000);
    let found = simulate(pacer(1, end), 1, 20_000, (0, 0), 1_000_000);
    let numbers = found.numbers();
    assert_eq!((numbers.latency.samples, numbers.unsent), (1_000, 0));
    assert!(numbers.latency.max_ns > 9_000_000, "{numbers:?}");
}

#[test]
fn queue_pairs_do_not_mix_up_their_messages() {
    let schedule = Schedule::new(1_000_000, Arrivals::Fixed, 0, End::Messages(4));
    let mut pacer = Pacer::new(schedule, START, 2, 2).unwrap();
    // Due at 0, 1, 2 and 3 µs; completed at 100 µs in another order.
    for (i, (qp, n)) in (0..).zip([(0, 0), (1, 0), (1, 1), (0, 1)]) {
        assert_eq!(
            pacer.until_due(at(0)),
            Some(Duration::from_nanos(i * 1_000))
        );
        pacer.post(qp, n, at(10_000));
    }
    assert_eq!(pacer.until_due(at(0)), None);
    assert!(pacer.is_over(at(10_000)));
    for (qp, n, took) in [
        (1, 1, 98_000),
        (0, 0, 100_000),
        (0, 1, 97_000),
        (1, 0, 99_000),
    ] {
        let before = pacer.found().latency;
        pacer.complete(qp, n, at(100_000));
        let mut after = pacer.found().latency;
        after.subtract(&before).unwrap();
        assert!(
            after.max().abs_diff(took) < 100,
            "{qp} {n}: {}",
            after.max()
        );
    }
}

#[test]
fn a_hopeless_backlog_is_given_up_in_bounded_time() {
    let hour = End::After(Duration::from_millis(3_600_000));
    let schedule = Schedule::new(100_000_000, Arrivals::Fixed, 0, hour);
    let mut pacer = Pacer::new(schedule, START, 1, 1).unwrap();
    assert!(pacer.is_over(at(3_600_010_000_000)));
    assert_eq!(pacer.found().unsent, MAX_UNSENT);
}
