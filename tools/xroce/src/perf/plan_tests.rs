//! Plans: what is expanded, and what is refused.

use super::*;

fn plan() -> Plan {
    Plan {
        ops: vec![Op::Send, Op::Write, Op::Read],
        tests: vec![Test::Bw, Test::Lat],
        sizes: vec![2, 4096, 1 << 20],
        qps: vec![2],
        depths: vec![64],
        rates: Vec::new(),
        arrivals: Arrivals::Fixed,
        seed: 0,
        warmup_millis: 50,
        bidirectional: false,
        bw_limit: Limit::Millis(500),
        lat_limit: Limit::Messages(1000),
        verify: true,
        lat_max_size: 4096,
        repair: Repair::GoBackN,
    }
}

fn open_plan() -> Plan {
    Plan {
        tests: vec![Test::Open],
        rates: vec![1_000, 2_000],
        verify: false,
        ..plan()
    }
}

#[test]
fn sizes_parse() {
    assert_eq!(parse_size("64"), Ok(64));
    assert_eq!(parse_size("64k"), Ok(65536));
    assert_eq!(parse_size("1 MB"), Ok(1 << 20));
    assert!(parse_size("").is_err());
    assert!(parse_size("0").is_err());
    assert!(parse_size("-1").is_err());
    assert!(parse_size("65m").is_err());
    assert!(parse_size("99999999999999999999m").is_err());
}

#[test]
fn a_good_plan_passes_and_skips_large_latency_steps() {
    let plan = plan();
    plan.check().unwrap();
    assert_eq!(plan.steps().count(), 3 * (3 + 2));
    let first = plan.steps().next().unwrap();
    let want = Step {
        op: Op::Send,
        test: Test::Bw,
        size: 2,
        qps: 2,
        depth: 64,
        rate: None,
    };
    assert_eq!(first, want);
    assert!(!plan.is_swept());
}

#[test]
fn lists_are_combined_and_latency_is_measured_once() {
    let plan = Plan {
        ops: vec![Op::Write],
        sizes: vec![2, 4096],
        qps: vec![1, 4],
        depths: vec![1, 16, 64],
        ..plan()
    };
    plan.check().unwrap();
    assert!(plan.is_swept());
    let of = |size, test| -> Vec<(u32, u32)> {
        let steps = plan.steps().filter(|s| s.size == size && s.test == test);
        steps.map(|s| (s.qps, s.depth)).collect()
    };
    let all = [(1, 1), (1, 16), (1, 64), (4, 1), (4, 16), (4, 64)];
    for size in [2, 4096] {
        assert_eq!(of(size, Test::Bw), all);
        assert_eq!(of(size, Test::Lat), [(1, 1)]);
    }
    assert_eq!(plan.steps().count(), 2 * (6 + 1));
}

#[test]
fn an_open_loop_is_run_at_every_rate() {
    let plan = Plan {
        ops: vec![Op::Read],
        sizes: vec![64],
        depths: vec![8, 16],
        ..open_plan()
    };
    plan.check().unwrap();
    let steps: Vec<_> = plan.steps().map(|s| (s.depth, s.rate)).collect();
    let want = [(8, 1_000), (8, 2_000), (16, 1_000), (16, 2_000)];
    assert_eq!(steps, want.map(|(depth, rate)| (depth, Some(rate))));
    // Without rates no step has one.
    assert!(self::plan().steps().all(|s| s.rate.is_none()));
}

#[test]
fn the_time_of_a_plan_is_known_if_it_ends_by_time() {
    let timed = Plan {
        lat_limit: Limit::Millis(100),
        ..plan()
    };
    assert_eq!(timed.estimate(), (9 * 550 + 6 * 150, true));
    assert_eq!(plan().estimate(), (9 * 550 + 6 * 50, false));
}

#[test]
fn every_field_is_bounded() {
    let bad: [fn(&mut Plan); 21] = [
        |p| p.ops.clear(),
        |p| p.ops = vec![Op::Send; 4],
        |p| p.tests.clear(),
        |p| p.tests = vec![Test::Bw, Test::Open],
        |p| p.sizes.clear(),
        |p| p.sizes = vec![2; 65],
        |p| p.sizes = vec![0],
        |p| p.sizes = vec![u32::MAX],
        |p| p.qps.clear(),
        |p| p.qps = vec![0],
        |p| p.qps = vec![1, u32::MAX],
        |p| p.qps = vec![1; 33],
        |p| p.depths.clear(),
        |p| p.depths = vec![0],
        |p| p.depths = vec![u32::MAX],
        |p| p.depths = vec![1; 33],
        |p| p.rates = vec![1],
        |p| p.bw_limit = Limit::Millis(u64::MAX),
        |p| p.warmup_millis = 60_001,
        // 3 operations, 64 sizes, 32 × 32 combinations.
        |p| (p.sizes, p.qps, p.depths) = (vec![2; 64], vec![1; 32], vec![1; 32]),
        |p| p.lat_limit = Limit::Messages(0),
    ];
    for (i, spoil) in bad.iter().enumerate() {
        let mut p = plan();
        spoil(&mut p);
        assert!(p.check().is_err(), "case {i}");
    }
    let bad_open: [fn(&mut Plan); 5] = [
        |p| p.rates.clear(),
        |p| p.rates = vec![0],
        |p| p.rates = vec![MAX_RATE + 1],
        |p| p.rates = vec![1; 33],
        |p| p.verify = true,
    ];
    open_plan().check().unwrap();
    for (i, spoil) in bad_open.iter().enumerate() {
        let mut p = open_plan();
        spoil(&mut p);
        assert!(p.check().is_err(), "open loop, case {i}");
    }
    let mut p = plan();
    (p.qps, p.sizes) = (vec![MAX_QPS], vec![MAX_SIZE]);
    assert!(matches!(p.check(), Err(PlanError::Memory { .. })));
    let mut p = plan();
    (p.tests, p.sizes) = (vec![Test::Lat], vec![1 << 20]);
    assert!(matches!(p.check(), Err(PlanError::Empty { .. })));
}

#[test]
fn few_queue_pairs_with_large_buffers_and_many_with_small_ones_fit_together() {
    let p = Plan {
        qps: vec![1, MAX_QPS],
        sizes: vec![2, 64 << 10],
        ..plan()
    };
    p.check().unwrap();
}

#[test]
fn shapes_hold_what_is_outstanding() {
    for verify in [false, true] {
        let plan = Plan {
            verify,
            qps: vec![1, 2, 77],
            depths: vec![1, 1024],
            ..plan()
        };
        for step in plan.steps() {
            let s = plan.shape(step);
            assert!(s.stride >= step.size && s.stride.is_multiple_of(SLOT_ALIGN));
            assert!(s.memory() <= plan.memory());
            assert!(s.offset(u64::MAX) + u64::from(s.stride) <= s.area());
            assert!(s.receives >= s.depth);
            if let Some(round) = s.round {
                // Verified messages must not share a slot within a round.
                assert!(round <= s.slots && s.depth <= s.slots);
            }
        }
    }
}
