//! Swift: a window governed by delay.
//!
//! Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter",
//! SIGCOMM 2020. The round-trip time is held against a target; below it the window grows by `ai`
//! packets per round trip, above it shrinks once per round trip in proportion to the excess. The
//! target grows as the window shrinks, so that many flows share a bottleneck fairly
//! (flow scaling). Below one packet the window becomes a pace: one packet every `rtt / window`.

use super::{AckSample, Congestion, CongestionController, Rate};
use crate::time::{Duration, Instant};

/// One packet, in the unit of the window.
const PACKET: u64 = 1 << 16;
/// Unit of `beta`, `max_mdf` and the bounds of flow scaling.
const MILLI: u64 = 1000;

crate::params! {
    /// Parameters of Swift.
    pub struct SwiftParams of "swift" {
        /// Delay of a path without hops that is aimed at.
        pub base_target: "ns", 100, 10_000_000;
        /// Added to the target for each hop.
        pub hop_scale: "ns", 0, 1_000_000;
        /// Hops of the path.
        pub hops: "", 0, 32;
        /// Largest addition of flow scaling to the target; 0: none.
        pub fs_range: "ns", 0, 10_000_000;
        /// Window at and below which the whole of it is added, thousandths of a packet.
        pub fs_min_cwnd: "/1000", 1, 100_000;
        /// Window from which nothing is added, thousandths of a packet.
        pub fs_max_cwnd: "/1000", 2, 10_000_000;
        /// Growth per round trip, thousandths of a packet.
        pub ai: "/1000", 1, 100_000;
        /// Strength of the decrease.
        pub beta: "/1000", 1, 1000;
        /// Largest decrease at once.
        pub max_mdf: "/1000", 1, 999;
        /// Smallest window, thousandths of a packet.
        pub min_cwnd: "/1000", 1, 1000;
        /// Largest window, packets.
        pub max_cwnd: "packets", 1, 8192;
    }
}

impl SwiftParams {
    /// As the htsim model has it, for a base round trip of 20 µs.
    pub const DEFAULT: Self = Self {
        base_target: 20_000,
        hop_scale: 3_053,
        hops: 0,
        fs_range: 100_000,
        fs_min_cwnd: 100,
        fs_max_cwnd: 100_000,
        ai: 1000,
        beta: 800,
        max_mdf: 500,
        min_cwnd: 10,
        max_cwnd: 1024,
    };
}

/// One flow's window.
#[derive(Clone, Copy, Debug)]
pub struct Swift {
    params: SwiftParams,
    /// In units of 1 / [`PACKET`].
    window: u64,
    /// The last round-trip time, ns; 0 before the first.
    rtt: u64,
    decreased_at: Option<Instant>,
    /// Bytes of the largest packet sent, for the pace below one packet.
    packet_bytes: u64,
    /// Flow scaling: `scale / sqrt(window) - offset`, ns.
    scale: u64,
    offset: u64,
}

impl Swift {
    /// A flow that starts with a window of `window` packets; parameters out of their range are
    /// brought into it.
    #[must_use]
    pub fn new(params: SwiftParams, window: u32) -> Self {
        let mut flow = Self {
            params,
            window: u64::from(window) * PACKET,
            rtt: 0,
            decreased_at: None,
            packet_bytes: 64,
            scale: 0,
            offset: 0,
        };
        flow.retune(params);
        flow
    }

    /// Other parameters from now on; the window goes on from where it is.
    pub fn retune(&mut self, params: SwiftParams) {
        let mut params = params.clamped();
        params.fs_max_cwnd = params.fs_max_cwnd.max(params.fs_min_cwnd + 1);
        self.params = params;
        // 1 / sqrt of both bounds, in units of 2^-16.
        let (steep, flat) = (
            inverse_root(milli(params.fs_min_cwnd)),
            inverse_root(milli(params.fs_max_cwnd)),
        );
        let span = steep.saturating_sub(flat).max(1);
        self.scale = params.fs_range * PACKET / span;
        self.offset = self.scale * flat / PACKET;
        self.bound();
    }

    fn bound(&mut self) {
        let max = self.params.max_cwnd * PACKET;
        self.window = self.window.clamp(milli(self.params.min_cwnd), max);
    }

    /// Its parameters.
    #[must_use]
    pub const fn params(&self) -> &SwiftParams {
        &self.params
    }

    /// The window in units of 1/65536 packet.
    #[must_use]
    pub const fn window(&self) -> u64 {
        self.window
    }

    /// The round-trip time aimed at, ns.
    #[must_use]
    pub fn target(&self) -> u64 {
        let params = &self.params;
        let flow = (self.scale * inverse_root(self.window) / PACKET).saturating_sub(self.offset);
        params.base_target + params.hops * params.hop_scale + flow.min(params.fs_range)
    }

    fn grow(&mut self, packets: u64) {
        let ai = milli(self.params.ai) * packets;
        self.window += if self.window >= PACKET {
            ai * PACKET / self.window
        } else {
            ai
        };
    }

    /// Shrinks to `keep` thousandths, once per round trip.
    fn shrink(&mut self, now: Instant, keep: u64) {
        let rtt = Duration::from_nanos(self.rtt);
        if self.decreased_at.is_some_and(|at| now.since(at) < rtt) {
            return;
        }
        self.decreased_at = Some(now);
        let least = MILLI - self.params.max_mdf;
        self.window = self.window * keep.max(least) / MILLI;
    }
}

/// Thousandths of a packet in units of the window.
const fn milli(thousandths: u64) -> u64 {
    thousandths * PACKET / MILLI
}

/// `1 / sqrt(window)` in units of 2^-16.
fn inverse_root(window: u64) -> u64 {
    // sqrt(w / 2^16) = sqrt(w · 2^16) / 2^16
    let root = (window.max(1) << 16).isqrt().max(1);
    (1 << 32) / root
}

impl CongestionController for Swift {
    #[inline]
    fn on_sent(&mut self, _now: Instant, bytes: usize) {
        self.packet_bytes = self.packet_bytes.max(bytes as u64);
    }

    fn on_ack(&mut self, ack: &AckSample) {
        if let Some(rtt) = ack.rtt {
            self.rtt = rtt.as_nanos();
        }
        if self.rtt == 0 {
            return;
        }
        let target = self.target();
        if self.rtt < target {
            self.grow(ack.acked_packets.into());
        } else if ack.rtt.is_some() {
            let excess = (self.rtt - target) * self.params.beta / self.rtt;
            self.shrink(ack.now, MILLI - excess.min(MILLI));
        }
        self.bound();
    }

    fn on_congestion(&mut self, now: Instant, what: Congestion) {
        match what {
            Congestion::SequenceNak => self.shrink(now, 0),
            Congestion::Timeout => {
                self.decreased_at = None;
                self.shrink(now, 0);
            }
        }
        self.bound();
    }

    fn on_cnp(&mut self, _now: Instant) -> bool {
        false
    }

    fn on_timer(&mut self, _now: Instant) {}

    fn next_timer(&self) -> Instant {
        Instant::NEVER
    }

    /// A pace below one packet, none above: there the window holds.
    #[inline]
    fn rate(&self) -> Rate {
        if self.window >= PACKET || self.rtt == 0 {
            return Rate::UNLIMITED;
        }
        let bits = u128::from(self.packet_bytes * 8 * self.window) * 1_000_000_000;
        let rate = bits / u128::from(PACKET * self.rtt);
        Rate::bits_per_second(u64::try_from(rate).unwrap_or(u64::MAX).max(1))
    }

    #[inline]
    fn window_psns(&self) -> u32 {
        // At most max_cwnd, 8192.
        u32::try_from(self.window / PACKET).unwrap_or(1).max(1)
    }

    fn wants_ecn(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(at_us: u64, packets: u32, rtt_us: u64) -> AckSample {
        AckSample {
            now: Instant::from_nanos(at_us * 1000),
            acked_packets: packets,
            rtt: Some(Duration::from_micros(rtt_us)),
            ecn_marked: false,
        }
    }

    #[test]
    fn grows_by_ai_per_round_trip_below_the_target() {
        let mut flow = Swift::new(SwiftParams::DEFAULT, 10);
        let before = flow.window();
        for _ in 0..10 {
            flow.on_ack(&ack(0, 1, 10));
        }
        // Ten packets acknowledged of a window of ten: one round trip.
        let grown = flow.window() - before;
        assert!((PACKET * 9 / 10..=PACKET).contains(&grown), "{grown}");
    }

    #[test]
    fn shrinks_once_per_round_trip_in_proportion_to_the_excess() {
        let mut flow = Swift::new(SwiftParams::DEFAULT, 100);
        let target = flow.target();
        assert_eq!(target, 20_000, "no flow scaling at 100 packets");
        flow.on_ack(&ack(1000, 1, 40));
        // 1 - 0.8 · (40 - 20) / 40 = 0.6
        assert_eq!(flow.window(), 100 * PACKET * 6 / 10);
        flow.on_ack(&ack(1010, 1, 400));
        assert_eq!(flow.window(), 60 * PACKET, "within the same round trip");
        flow.on_ack(&ack(1500, 1, 400));
        // 1 - 0.8 · 0.95, but never below one half.
        assert!(flow.window() >= 30 * PACKET, "max_mdf");
    }

    #[test]
    fn flow_scaling_reaches_its_range_at_small_windows() {
        let mut flow = Swift::new(SwiftParams::DEFAULT, 1);
        let at_one = flow.target();
        flow.window = milli(100);
        let small = flow.target();
        // a / sqrt(w) + b with a = 100 µs / (1/sqrt 0.1 - 1/sqrt 100), b = -a / 10.
        assert!((118_000..=120_000).contains(&small), "{small}");
        assert!((48_000..=50_000).contains(&at_one), "{at_one}");
    }

    #[test]
    fn below_one_packet_the_window_is_a_pace() {
        let mut flow = Swift::new(SwiftParams::DEFAULT, 1);
        flow.on_sent(Instant::from_nanos(0), 4000);
        flow.on_ack(&ack(0, 1, 100));
        flow.window = PACKET / 2;
        assert_eq!(flow.window_psns(), 1);
        // Half a packet of 32000 bits per 100 µs.
        assert_eq!(flow.rate(), Rate::bits_per_second(160_000_000));
    }
}
