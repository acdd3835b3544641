//! A second DCQCN, written from the description alone (CC5 to CC9) and as plainly as possible:
//! floating point, one step per microsecond, nothing lazy. Both are given the same random
//! notifications and bytes, and must agree all the way.

use proptest::prelude::*;

use super::*;

const LINE_MBPS: f64 = 40_000.0;

/// Rates in Mb/s.
struct Model {
    p: DcqcnParams,
    rc: f64,
    rt: f64,
    alpha: f64,
    started: bool,
    // µs counters
    alpha_clock: u64,
    increase_clock: u64,
    monitor_clock: u64,
    // flags of the hardware's variant
    flag_alpha: bool,
    flag_cut: bool,
    t: u64,
    bc: u64,
    bytes: u64,
}

impl Model {
    fn new(p: DcqcnParams) -> Self {
        Self {
            p,
            rc: LINE_MBPS,
            rt: LINE_MBPS,
            alpha: 0.0,
            started: false,
            alpha_clock: 0,
            increase_clock: 0,
            monitor_clock: 0,
            flag_alpha: false,
            flag_cut: false,
            t: 0,
            bc: 0,
            bytes: 0,
        }
    }

    fn g(&self) -> f64 {
        1.0 - self.p.dce_tcp_g as f64 / 1024.0
    }

    fn reduce(&mut self, clamp: bool) {
        if clamp {
            self.rt = self.rc;
        }
        let div = f64::from(1 << (self.p.rpg_gd - 10));
        let cut = self.rc * (1.0 - self.alpha / div);
        self.rc = cut
            .max(self.rc * self.p.rpg_min_dec_fac as f64 / 100.0)
            .max(self.p.rpg_min_rate as f64);
        (self.t, self.bc, self.bytes, self.increase_clock) = (0, 0, 0, 0);
    }

    fn raise(&mut self, by_time: bool) {
        let f = self.p.rpg_threshold;
        let (a, b) = if self.p.rpg_byte_reset == 0 {
            (self.t, self.t)
        } else {
            (self.t.max(self.bc), self.t.min(self.bc))
        };
        if a < f {
            // fast recovery: only halfway to the target
        } else if b > f {
            let i = if self.p.mlx5 == 1 { 1 } else { b - f };
            self.rt += (i * self.p.rpg_hai_rate) as f64;
        } else {
            self.rt += self.p.rpg_ai_rate as f64;
        }
        self.rt = self.rt.min(LINE_MBPS);
        self.rc = (self.rc + self.rt) / 2.0;
        if by_time {
            self.t += 1;
        } else {
            self.bc += 1;
        }
    }

    fn cnp(&mut self) {
        let first = !self.started;
        if first {
            self.started = true;
            self.alpha = self.p.initial_alpha_value as f64 / 1024.0;
            (self.alpha_clock, self.monitor_clock) = (0, 0);
        }
        if self.p.mlx5 == 1 {
            self.flag_cut = true;
            self.flag_alpha |= !first;
            return;
        }
        self.reduce(true);
        self.alpha = (1.0 - self.g()) * self.alpha + self.g();
        self.alpha_clock = 0;
    }

    /// One microsecond.
    fn tick(&mut self) {
        if !self.started {
            return;
        }
        self.alpha_clock += 1;
        if self.alpha_clock == self.p.dce_tcp_rtt {
            self.alpha_clock = 0;
            self.alpha *= 1.0 - self.g();
            if self.flag_alpha {
                self.alpha += self.g();
                self.flag_alpha = false;
            }
        }
        let at_line = self.rc >= LINE_MBPS * (1.0 - 1e-9);
        self.monitor_clock += 1;
        let mut was_cut = false;
        if self.p.mlx5 == 1 && self.monitor_clock == self.p.rate_reduce_monitor_period {
            self.monitor_clock = 0;
            if self.flag_cut {
                self.flag_cut = false;
                was_cut = true;
                let risen = self.t > 0 && self.p.clamp_tgt_rate_after_time_inc == 1;
                self.reduce(self.p.clamp_tgt_rate == 1 || risen);
            }
        }
        if !was_cut && !at_line {
            self.increase_clock += 1;
            if self.increase_clock == self.p.rpg_time_reset {
                self.increase_clock = 0;
                self.raise(true);
            }
        }
    }

    fn sent(&mut self, n: u64) {
        let at_line = self.rc >= LINE_MBPS * (1.0 - 1e-9);
        if !self.started || at_line || self.p.rpg_byte_reset == 0 {
            return;
        }
        self.bytes += n;
        if self.bytes >= self.p.rpg_byte_reset {
            self.bytes -= self.p.rpg_byte_reset;
            self.raise(false);
        }
    }
}

/// What happens in a microsecond: a notification in `cnp_in`, so many bytes.
fn agree(params: DcqcnParams, what: &[(u8, u16)]) -> Result<(), TestCaseError> {
    let line = Rate::bits_per_second(40_000_000_000);
    let mut flow = Dcqcn::new(params, line);
    let mut model = Model::new(params);
    let mut us = 0;
    for &(wait, bytes) in what {
        for _ in 0..=wait {
            us += 1;
            model.tick();
        }
        let now = Instant::from_nanos(us * 1000);
        flow.on_timer(now);
        if bytes % 3 == 0 {
            model.cnp();
            flow.on_cnp(now);
        }
        model.sent(bytes.into());
        flow.on_sent(now, bytes.into());
        let (current, target, alpha) = flow.state(now);
        let pairs = [
            (current as f64 / 1e6, model.rc),
            (target as f64 / 1e6, model.rt),
            (alpha as f64 / ONE as f64 * 1000.0, model.alpha * 1000.0),
        ];
        for (n, (ours, theirs)) in pairs.into_iter().enumerate() {
            prop_assert!(
                (ours - theirs).abs() <= 0.01 + theirs * 1e-5,
                "{}: {ours} {theirs} at {us} µs",
                ["RC", "RT", "alpha"][n]
            );
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_independent_model_agrees_paper(
        what in prop::collection::vec((any::<u8>(), any::<u16>()), 1..200),
    ) {
        let small = DcqcnParams { rpg_byte_reset: 150_000, ..DcqcnParams::PAPER };
        for params in [DcqcnParams::PAPER, DcqcnParams::STRAWMAN, small] {
            agree(params, &what)?;
        }
    }

    #[test]
    fn the_independent_model_agrees_mlx5(
        what in prop::collection::vec((any::<u8>(), any::<u16>()), 1..200),
    ) {
        let quick = DcqcnParams { rpg_time_reset: 7, rpg_threshold: 3, ..DcqcnParams::MLX5 };
        let clamped = DcqcnParams { clamp_tgt_rate: 1, ..quick };
        let gentle = DcqcnParams { rpg_gd: 12, rpg_min_dec_fac: 80, ..quick };
        for params in [DcqcnParams::MLX5, quick, clamped, gentle] {
            agree(params, &what)?;
        }
    }
}
