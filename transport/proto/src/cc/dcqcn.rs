//! DCQCN, the reaction point: how a sender answers congestion notifications (CNPs).
//!
//! Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015; the second
//! variant is what mlx5 hardware does, as the simulator published with HPCC models it. Parameters
//! have mlx5's names (`/sys/kernel/debug/mlx5/*/cc_params`, `mlxconfig`).
//!
//! A flow sends at line rate until its first CNP. From then on it has a rate `RC`, a target `RT`
//! it climbs back to, and `alpha`, an estimate of how much of the traffic is marked:
//!
//! | | paper | mlx5 |
//! |---|---|---|
//! | cut | at each CNP | at the next tick of `rate_reduce_monitor_period` if a CNP came |
//! | the cut | `RT = RC`, `RC *= 1 - alpha / 2`, then alpha | `RC *= 1 - alpha / 2^(gd - 10)` |
//! | alpha | up with a CNP, down each `dce_tcp_rtt` without | up or down each `dce_tcp_rtt` |
//! | climb | timer and byte counter | timer (byte counter if set) |
//!
//! The climb: `threshold` steps halfway to `RT` (fast recovery), then `RT` moves on by `ai_rate`
//! (additive), and by `hai_rate` (hyper) when timer and byte counter are both beyond
//! `threshold`. A stage is compared before it is counted, so there are `threshold` fast steps:
//! with 40 Gb/s and alpha 1, a CNP gives 20, then 30, 35, 37.5, 38.75, 39.375 Gb/s.
//!
//! Alpha decays lazily, when it is next needed: a tick per microsecond and flow would cost more
//! than all packets.

use super::{AckSample, Congestion, CongestionController, Rate};
use crate::params::WINDOW_PSNS_DEFAULT;
use crate::time::{Duration, Instant};

/// `alpha` = 1.
const ONE: u64 = 1 << 30;
/// `dce_tcp_g`, `initial_alpha_value`: this much is 1.
const G_ONE: u64 = 1024;
const MBPS: u64 = 1_000_000;

crate::params! {
    /// Parameters of DCQCN.
    pub struct DcqcnParams of "dcqcn" {
        /// 1: notifications are acted upon at ticks, as mlx5 does; 0: at once, as the paper does.
        pub mlx5: "", 0, 1;
        /// 1: the target is set to the rate at every cut. The paper always does.
        pub clamp_tgt_rate: "", 0, 1;
        /// 1: the target is set to the rate at a cut that follows an increase by the timer.
        pub clamp_tgt_rate_after_time_inc: "", 0, 1;
        /// Time between increases without notification.
        pub rpg_time_reset: "µs", 1, 1_000_000;
        /// Bytes between increases without notification; 0: only time counts.
        pub rpg_byte_reset: "bytes", 0, 1 << 40;
        /// Steps of fast recovery.
        pub rpg_threshold: "", 1, 31;
        /// Additive increase of the target.
        pub rpg_ai_rate: "Mb/s", 1, 400_000;
        /// Hyper increase of the target.
        pub rpg_hai_rate: "Mb/s", 1, 400_000;
        /// Highest rate; 0: that of the link.
        pub rpg_max_rate: "Mb/s", 0, 800_000;
        /// Lowest rate.
        pub rpg_min_rate: "Mb/s", 1, 400_000;
        /// What is left of the rate after one cut, at least.
        pub rpg_min_dec_fac: "%", 1, 100;
        /// A cut takes alpha / 2^(gd - 10) of the rate.
        pub rpg_gd: "", 10, 15;
        /// Rate and target at the first notification; 0: as they are.
        pub rate_to_set_on_first_cnp: "Mb/s", 0, 800_000;
        /// What alpha keeps of its value in one period, of 1024; the rest is the gain g.
        pub dce_tcp_g: "/1024", 1, 1023;
        /// Period of alpha.
        pub dce_tcp_rtt: "µs", 1, 131_071;
        /// Time between two cuts at least (mlx5).
        pub rate_reduce_monitor_period: "µs", 1, 65_535;
        /// Alpha at the first notification, of 1024.
        pub initial_alpha_value: "/1024", 1, 1024;
        /// Packets in flight, at most; xroce's own, hardware has none.
        pub window: "packets", 1, 65_536;
    }
}

impl DcqcnParams {
    /// What the paper arrives at: g 1/256, alpha every 55 µs, increases every 55 µs and 10 MB,
    /// 40 Mb/s each.
    pub const PAPER: Self = Self {
        mlx5: 0,
        clamp_tgt_rate: 1,
        clamp_tgt_rate_after_time_inc: 1,
        rpg_time_reset: 55,
        rpg_byte_reset: 10_000_000,
        rpg_threshold: 5,
        rpg_ai_rate: 40,
        rpg_hai_rate: 400,
        rpg_max_rate: 0,
        rpg_min_rate: 40,
        rpg_min_dec_fac: 50,
        rpg_gd: 11,
        rate_to_set_on_first_cnp: 0,
        dce_tcp_g: 1020,
        dce_tcp_rtt: 55,
        rate_reduce_monitor_period: 4,
        initial_alpha_value: 1024,
        window: WINDOW_PSNS_DEFAULT as u64,
    };

    /// The parameters the paper starts from, those of QCN and DCTCP, and shows not to converge
    /// (with Kmin = Kmax = 40 KB and Pmax 1 at the switch).
    pub const STRAWMAN: Self = Self {
        rpg_time_reset: 1500,
        rpg_byte_reset: 150_000,
        dce_tcp_g: 960,
        ..Self::PAPER
    };

    /// mlx5's firmware, as `mlxconfig` shows them, but for `rpg_byte_reset`: 32767 there, in a
    /// unit that is doubted. Taken as bytes, a flow at 40 Gb/s would climb every 6.5 µs, so it is
    /// off here, as in the HPCC simulator.
    pub const MLX5: Self = Self {
        mlx5: 1,
        clamp_tgt_rate: 0,
        clamp_tgt_rate_after_time_inc: 1,
        rpg_time_reset: 300,
        rpg_byte_reset: 0,
        rpg_threshold: 1,
        rpg_ai_rate: 5,
        rpg_hai_rate: 50,
        rpg_max_rate: 0,
        rpg_min_rate: 1,
        rpg_min_dec_fac: 50,
        rpg_gd: 11,
        rate_to_set_on_first_cnp: 0,
        dce_tcp_g: 1019,
        dce_tcp_rtt: 1,
        rate_reduce_monitor_period: 4,
        initial_alpha_value: 1023,
        window: WINDOW_PSNS_DEFAULT as u64,
    };
}

/// One flow's reaction point.
#[derive(Clone, Copy, Debug)]
pub struct Dcqcn {
    params: DcqcnParams,
    /// Bits per second: of the link, and the highest and lowest allowed.
    line: u64,
    max: u64,
    min: u64,
    /// RC and RT, bits per second.
    current: u64,
    target: u64,
    /// In units of 1 / [`ONE`], as it was at `alpha_at`.
    alpha: u64,
    alpha_at: Instant,
    /// mlx5: a notification came since `alpha_at`.
    alpha_marked: bool,
    /// A notification has come: there is an alpha.
    notified: bool,
    /// mlx5: where the ticks of cuts are counted from, and when the next cut is due.
    first_cnp: Instant,
    cut_at: Instant,
    /// When the timer increases next; `NEVER` at the highest rate.
    increase_at: Instant,
    /// Increases by timer and by bytes since the last cut.
    time_stage: u32,
    byte_stage: u32,
    /// Bytes sent since the last increase by bytes.
    bytes: u64,
}

/// What makes the rate rise.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Time,
    Bytes,
}

impl Dcqcn {
    /// A flow on a link of this rate, which must not be 0; parameters out of their range are
    /// brought into it.
    #[must_use]
    pub fn new(params: DcqcnParams, line: Rate) -> Self {
        let mut flow = Self {
            params,
            line: line.as_bits_per_second().max(1),
            max: 0,
            min: 0,
            current: 0,
            target: 0,
            alpha: 0,
            alpha_at: Instant::NEVER,
            alpha_marked: false,
            notified: false,
            first_cnp: Instant::NEVER,
            cut_at: Instant::NEVER,
            increase_at: Instant::NEVER,
            time_stage: 0,
            byte_stage: 0,
            bytes: 0,
        };
        flow.limit(params);
        flow.current = flow.max;
        flow.target = flow.max;
        flow
    }

    fn limit(&mut self, params: DcqcnParams) {
        let params = params.clamped();
        self.params = params;
        self.max = match params.rpg_max_rate {
            0 => self.line,
            mbps => (mbps * MBPS).min(self.line),
        };
        self.min = (params.rpg_min_rate * MBPS).min(self.max);
    }

    /// Other parameters from now on; rate, target and alpha go on from where they are.
    pub fn retune(&mut self, params: DcqcnParams, line: Rate) {
        self.line = line.as_bits_per_second().max(1);
        let free = self.current == self.max;
        self.limit(params);
        self.current = if free { self.max } else { self.current };
        self.current = self.current.clamp(self.min, self.max);
        self.target = self.target.clamp(self.current, self.max);
    }

    /// Its parameters.
    #[must_use]
    pub const fn params(&self) -> &DcqcnParams {
        &self.params
    }

    /// Rate of the link it was made for.
    #[must_use]
    pub const fn line(&self) -> Rate {
        Rate::bits_per_second(self.line)
    }

    /// RC, RT in bits per second, and alpha in units of 2^-30.
    #[must_use]
    pub fn state(&self, now: Instant) -> (u64, u64, u64) {
        let mut at_now = *self;
        at_now.advance_alpha(now);
        (self.current, self.target, at_now.alpha)
    }

    fn gain(&self) -> u64 {
        (G_ONE - self.params.dce_tcp_g) * (ONE / G_ONE)
    }

    /// Alpha after the periods that have passed by `now`.
    fn advance_alpha(&mut self, now: Instant) {
        let period = self.params.dce_tcp_rtt * 1000;
        let periods = now.since(self.alpha_at).as_nanos() / period;
        if periods == 0 || !self.notified {
            return;
        }
        self.alpha = decay(self.alpha, self.params.dce_tcp_g, periods);
        if self.alpha_marked {
            // It belongs to the first of them.
            self.alpha += decay(self.gain(), self.params.dce_tcp_g, periods - 1);
            self.alpha_marked = false;
        }
        self.alpha_at += Duration::from_nanos(periods * period);
    }

    fn on_first_cnp(&mut self, now: Instant) {
        self.notified = true;
        self.alpha = self.params.initial_alpha_value * (ONE / G_ONE);
        self.alpha_at = now;
        self.first_cnp = now;
        if self.params.rate_to_set_on_first_cnp != 0 {
            let rate = self.params.rate_to_set_on_first_cnp * MBPS;
            self.current = rate.clamp(self.min, self.max);
            self.target = self.current;
        }
    }

    /// Takes the rate down at `at`.
    fn cut(&mut self, at: Instant) {
        let params = &self.params;
        let increased = params.clamp_tgt_rate_after_time_inc == 1 && self.time_stage > 0;
        // At the highest rate the target is that, whatever the flags say.
        if params.mlx5 == 0 || params.clamp_tgt_rate == 1 || increased {
            self.target = self.current;
        }
        let share = u128::from(self.current) * u128::from(self.alpha);
        let share = u64::try_from((share / u128::from(ONE)) >> (params.rpg_gd - 10));
        let least = self.current / 100 * params.rpg_min_dec_fac;
        let cut = self.current.saturating_sub(share.unwrap_or(u64::MAX));
        self.current = cut.max(least).max(self.min);
        self.time_stage = 0;
        self.byte_stage = 0;
        self.bytes = 0;
        self.increase_at = at + Duration::from_micros(params.rpg_time_reset);
    }

    /// One step up.
    fn increase(&mut self, by: By) {
        let threshold = u32::try_from(self.params.rpg_threshold).unwrap_or(u32::MAX);
        let (least, most) = if self.params.rpg_byte_reset == 0 {
            (self.time_stage, self.time_stage)
        } else {
            let (time, bytes) = (self.time_stage, self.byte_stage);
            (time.min(bytes), time.max(bytes))
        };
        let step = if most < threshold {
            0
        } else if least > threshold {
            let hyper = self.params.rpg_hai_rate * MBPS;
            if self.params.mlx5 == 1 {
                hyper
            } else {
                hyper * u64::from(least - threshold)
            }
        } else {
            self.params.rpg_ai_rate * MBPS
        };
        self.target = self.target.saturating_add(step).min(self.max);
        // Rounded up, so that it arrives.
        self.current = (self.target + self.current).div_ceil(2);
        match by {
            By::Time => self.time_stage = self.time_stage.saturating_add(1),
            By::Bytes => self.byte_stage = self.byte_stage.saturating_add(1),
        }
        if self.current >= self.max {
            self.increase_at = Instant::NEVER;
        }
    }

    /// The next tick of cuts behind `now`.
    fn cut_tick(&self, now: Instant) -> Instant {
        let period = self.params.rate_reduce_monitor_period * 1000;
        let ticks = now.since(self.first_cnp).as_nanos() / period + 1;
        self.first_cnp + Duration::from_nanos(ticks * period)
    }
}

/// `value` after so many periods, of each of which `keep` of 1024 is left.
fn decay(value: u64, keep: u64, periods: u64) -> u64 {
    // 2^-32 as the unit of the factor: by squaring, at most 64 rounds.
    let mut factor = keep << 22;
    let mut value = value << 2;
    let mut left = periods;
    while left != 0 && value != 0 {
        if left & 1 == 1 {
            value = scale(value, factor);
        }
        factor = scale(factor, factor);
        left >>= 1;
    }
    value >> 2
}

/// `a · b / 2^32`, rounded; both are at most 2^32.
fn scale(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b) + (1 << 31);
    u64::try_from(product >> 32).unwrap_or(u64::MAX)
}

impl CongestionController for Dcqcn {
    #[inline]
    fn on_sent(&mut self, _now: Instant, bytes: usize) {
        // At the highest rate there is nothing to climb to.
        if self.increase_at == Instant::NEVER || self.params.rpg_byte_reset == 0 {
            return;
        }
        self.bytes += bytes as u64;
        if self.bytes >= self.params.rpg_byte_reset {
            self.bytes -= self.params.rpg_byte_reset;
            self.increase(By::Bytes);
        }
    }

    #[inline]
    fn on_ack(&mut self, _ack: &AckSample) {}

    fn on_congestion(&mut self, _now: Instant, _what: Congestion) {}

    fn on_cnp(&mut self, now: Instant) -> bool {
        // What was due before comes before.
        self.on_timer(now);
        let first = !self.notified;
        if first {
            self.on_first_cnp(now);
        }
        self.advance_alpha(now);
        if self.params.mlx5 == 1 {
            // Alpha starts with the first.
            self.alpha_marked |= !first;
            if self.cut_at == Instant::NEVER {
                self.cut_at = self.cut_tick(now);
            }
            return true;
        }
        self.cut(now);
        // Only now: the cut is by the alpha of before.
        self.alpha = decay(self.alpha, self.params.dce_tcp_g, 1) + self.gain();
        self.alpha_at = now;
        true
    }

    fn on_timer(&mut self, now: Instant) {
        loop {
            let next = self.next_timer();
            if next > now {
                return;
            }
            if next == self.cut_at {
                self.cut_at = Instant::NEVER;
                self.advance_alpha(next);
                self.cut(next);
            } else {
                self.increase_at = next + Duration::from_micros(self.params.rpg_time_reset);
                self.increase(By::Time);
            }
        }
    }

    fn next_timer(&self) -> Instant {
        self.cut_at.min(self.increase_at)
    }

    /// Not limited at the rate of the link: the link does that.
    #[inline]
    fn rate(&self) -> Rate {
        if self.current >= self.line {
            Rate::UNLIMITED
        } else {
            Rate::bits_per_second(self.current)
        }
    }

    #[inline]
    fn window_psns(&self) -> u32 {
        // At most 65536.
        u32::try_from(self.params.window).unwrap_or(u32::MAX)
    }

    fn wants_ecn(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
#[allow(clippy::cast_precision_loss, reason = "a model in floating point")]
mod model;
