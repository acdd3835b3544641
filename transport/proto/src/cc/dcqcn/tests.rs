//! The arithmetic of DCQCN (CC5 to CC8), and what the hardware's variant does differently.

use alloc::vec::Vec;

use super::*;

const LINE: Rate = Rate::bits_per_second(40_000_000_000);
const GBPS: u64 = 1_000_000_000;

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

fn rates(flow: &Dcqcn, now: Instant) -> (u64, u64) {
    let (current, target, _) = flow.state(now);
    (current / MBPS, target / MBPS)
}

fn alpha(flow: &Dcqcn, now: Instant) -> f64 {
    let (_, _, alpha) = flow.state(now);
    f64::from(u32::try_from(alpha).unwrap()) / f64::from(1_u32 << 30)
}

/// Rule CC8.
#[test]
fn without_notifications_the_link_limits() {
    let mut flow = Dcqcn::new(DcqcnParams::PAPER, LINE);
    flow.on_sent(at(0), 100_000_000);
    flow.on_timer(at(1_000_000));
    assert_eq!(flow.rate(), Rate::UNLIMITED);
    assert_eq!(flow.next_timer(), Instant::NEVER);
}

/// Rules CC5, CC7.
#[test]
fn case_88_the_cut_is_by_the_alpha_of_before() {
    let mut flow = Dcqcn::new(DcqcnParams::PAPER, LINE);
    assert!(flow.on_cnp(at(0)));
    assert_eq!(rates(&flow, at(0)), (20_000, 40_000));
    assert!((alpha(&flow, at(0)) - 1.0).abs() < 1e-6, "1 - g + g");
    // Five fast steps to the target, 55 µs (not ns) apart, then additive.
    let mut seen = Vec::new();
    for n in 1..=7 {
        flow.on_timer(at(55 * n - 1));
        let before = rates(&flow, at(0)).0;
        flow.on_timer(at(55 * n));
        seen.push((before, rates(&flow, at(0)).0));
    }
    let after: Vec<u64> = seen.iter().map(|s| s.1).collect();
    assert_eq!(
        after,
        [30_000, 35_000, 37_500, 38_750, 39_375, 39_687, 39_843]
    );
    assert!(seen.windows(2).all(|w| w[1].0 == w[0].1), "only when due");
}

/// Rule CC7.
#[test]
fn the_target_moves_on_after_fast_recovery() {
    let mut flow = Dcqcn::new(DcqcnParams::PAPER, LINE);
    flow.on_cnp(at(0));
    flow.on_cnp(at(10));
    // Twice cut with alpha 1: 40, 20, 10.
    assert_eq!(rates(&flow, at(10)), (10_000, 20_000));
    let mut targets = Vec::new();
    for n in 1..=7 {
        flow.on_timer(at(10 + 55 * n));
        targets.push(rates(&flow, at(0)).1);
    }
    assert_eq!(
        targets,
        [20_000, 20_000, 20_000, 20_000, 20_000, 20_040, 20_080]
    );
}

/// Rule CC7.
#[test]
fn hyper_increase_needs_both_counters_beyond_the_threshold() {
    let mut params = DcqcnParams::PAPER;
    params.rpg_byte_reset = 1000;
    let mut flow = Dcqcn::new(params, LINE);
    flow.on_cnp(at(0));
    flow.on_cnp(at(0));
    for n in 1..=6 {
        flow.on_timer(at(55 * n));
        flow.on_sent(at(55 * n), 1000);
    }
    // Fast until one of them has counted five: the fifth by bytes is additive, and both sixths.
    assert_eq!(rates(&flow, at(0)).1, 20_120);
    // min(6, 6) - 5 = 1
    flow.on_timer(at(55 * 7));
    assert_eq!(rates(&flow, at(0)).1, 20_520);
    flow.on_sent(at(55 * 7), 1000);
    assert_eq!(rates(&flow, at(0)).1, 20_920, "min(7, 6) - 5");
    flow.on_timer(at(55 * 8));
    assert_eq!(rates(&flow, at(0)).1, 21_720, "min(7, 7) - 5");
}

/// Rule CC6.
#[test]
fn alpha_halves_in_177_periods() {
    let mut flow = Dcqcn::new(DcqcnParams::PAPER, LINE);
    flow.on_cnp(at(0));
    let expected = |n: i32| (1.0_f64 - 1.0 / 256.0).powi(n);
    for n in [1, 10, 176, 177, 1000] {
        let now = at(55 * u64::try_from(n).unwrap());
        assert!((alpha(&flow, now) - expected(n)).abs() < 1e-5, "{n}");
    }
    assert!(alpha(&flow, at(55 * 177)) > 0.5 && alpha(&flow, at(55 * 178)) < 0.5);
    // A notification in the middle of a period starts a new one.
    flow.on_cnp(at(80));
    let raised = expected(1) * (1.0 - 1.0 / 256.0) + 1.0 / 256.0;
    assert!((alpha(&flow, at(80)) - raised).abs() < 1e-6);
    assert!((alpha(&flow, at(80 + 54)) - raised).abs() < 1e-6);
    assert!((alpha(&flow, at(80 + 55)) - raised * 255.0 / 256.0).abs() < 1e-6);
}

#[test]
fn the_rate_comes_back_to_the_link_and_the_timer_stops() {
    let mut flow = Dcqcn::new(DcqcnParams::PAPER, LINE);
    flow.on_cnp(at(0));
    for n in 1..2000 {
        flow.on_timer(at(55 * n));
    }
    assert_eq!(flow.rate(), Rate::UNLIMITED);
    assert_eq!(flow.next_timer(), Instant::NEVER);
    assert_eq!(rates(&flow, at(0)), (40_000, 40_000));
}

#[test]
fn a_late_poll_counts_the_steps_it_missed() {
    let (mut late, mut early) = (
        Dcqcn::new(DcqcnParams::PAPER, LINE),
        Dcqcn::new(DcqcnParams::PAPER, LINE),
    );
    late.on_cnp(at(0));
    early.on_cnp(at(0));
    for us in 1..=500 {
        early.on_timer(at(us));
    }
    late.on_timer(at(500));
    assert_eq!(late.state(at(500)), early.state(at(500)));
    assert_eq!(late.next_timer(), early.next_timer());
}

/// Rule CC8.
#[test]
fn never_below_the_lowest_rate() {
    for params in [DcqcnParams::PAPER, DcqcnParams::MLX5, DcqcnParams::STRAWMAN] {
        let mut flow = Dcqcn::new(params, LINE);
        for n in 0..10_000 {
            flow.on_cnp(at(4 * n));
            let (current, target, _) = flow.state(at(4 * n));
            assert!(current >= params.rpg_min_rate * MBPS);
            assert!(target >= current && target <= 40 * GBPS);
        }
        assert_eq!(rates(&flow, at(40_000)).0, params.rpg_min_rate);
    }
}

/// Rule CC9.
#[test]
fn mlx5_cuts_once_per_monitor_period() {
    let mut flow = Dcqcn::new(DcqcnParams::MLX5, LINE);
    flow.on_cnp(at(100));
    assert_eq!(rates(&flow, at(100)), (40_000, 40_000), "not yet");
    assert_eq!(flow.next_timer(), at(104));
    for us in 101..104 {
        flow.on_cnp(at(us));
    }
    flow.on_timer(at(104));
    let once = rates(&flow, at(104)).0;
    // Alpha stays near 1 with a mark in each period.
    assert!((20_000..20_200).contains(&once), "{once}");
    assert_eq!(rates(&flow, at(104)).1, 40_000, "the target is not clamped");
    // The next one counts from the same grid.
    flow.on_cnp(at(109));
    assert_eq!(flow.next_timer(), at(112));
}

/// Rule CC9.
#[test]
fn mlx5_clamps_the_target_after_an_increase_by_time() {
    let mut flow = Dcqcn::new(DcqcnParams::MLX5, LINE);
    flow.on_cnp(at(0));
    flow.on_timer(at(4));
    let cut = rates(&flow, at(4)).0;
    flow.on_timer(at(4 + 300));
    let risen = rates(&flow, at(304));
    assert_eq!(risen, ((cut + 40_000) / 2, 40_000));
    flow.on_cnp(at(305));
    flow.on_timer(at(310));
    assert_eq!(rates(&flow, at(310)).1, risen.0, "clamped");
    // Threshold 1: one fast step, one additive, then hyper.
    let mut targets = Vec::new();
    for n in 1..=4 {
        flow.on_timer(at(308 + 300 * n));
        targets.push(rates(&flow, at(0)).1 - risen.0);
    }
    assert_eq!(targets, [0, 5, 55, 105]);
}

/// Rule CC9.
#[test]
fn mlx5_alpha_moves_every_microsecond() {
    let mut flow = Dcqcn::new(DcqcnParams::MLX5, LINE);
    flow.on_cnp(at(0));
    let keep = 1019.0 / 1024.0;
    assert!((alpha(&flow, at(0)) - 1023.0 / 1024.0).abs() < 1e-6);
    let quiet = 1023.0 / 1024.0 * f64::powi(keep, 200);
    assert!((alpha(&flow, at(200)) - quiet).abs() < 1e-5);
    flow.on_cnp(at(200));
    let marked = quiet * keep + 5.0 / 1024.0;
    assert!((alpha(&flow, at(201)) - marked).abs() < 1e-5);
}

#[test]
fn retuned_while_it_runs() {
    let mut flow = Dcqcn::new(DcqcnParams::PAPER, LINE);
    flow.on_cnp(at(0));
    let mut params = DcqcnParams::PAPER;
    params.set("rpg_ai_rate", 400).unwrap();
    params.set("rpg_max_rate", 10_000).unwrap();
    flow.retune(params, LINE);
    assert_eq!(rates(&flow, at(1)), (10_000, 10_000));
    let mut free = Dcqcn::new(DcqcnParams::PAPER, LINE);
    free.retune(params, LINE);
    assert_eq!(free.rate(), Rate::bits_per_second(10 * GBPS));
}

#[test]
fn parameters_have_names_and_limits() {
    let mut params = DcqcnParams::MLX5;
    let say = |e: crate::cc::TuneError| alloc::string::ToString::to_string(&e);
    assert_eq!(
        say(params.set("dce_tcp_g", 1024).unwrap_err()),
        "dce_tcp_g is 1024/1024, it must be 1 to 1023/1024"
    );
    let unknown = say(params.set("rpg_gdd", 11).unwrap_err());
    assert!(unknown.contains("rpg_gd,"), "{unknown}");
    assert_eq!(params, DcqcnParams::MLX5);
    for of in [DcqcnParams::MLX5, DcqcnParams::PAPER, DcqcnParams::STRAWMAN] {
        of.validate().unwrap();
    }
}
