//! NSCC: Ultra Ethernet's window from delay and marks.
//!
//! After the equations of the public uet-htsim model (UE specification §3.6.13 was not at hand).
//! Four cases, by whether a mark came (`ce`) and whether the queuing delay is at or above a target:
//!
//! | mark | delay | the window |
//! |---|---|---|
//! | no | below | grows in proportion to what is left to the target (fast if there is no queue at all) |
//! | no | above | grows a little, the same for all (fair increase) |
//! | yes | above | shrinks in proportion to the average excess, once per base round trip |
//! | yes | below | stays: another path would help, not another rate |
//!
//! All in bytes and ns. The gains are scaled to the network by its bandwidth-delay product
//! against that of the reference network, 100 Gb/s and 12 µs. Marks come as CNPs, and loss as a
//! NAK or a timeout; quick adaptation after loss takes the window down to what arrived in the last
//! round trip.

use super::{AckSample, Congestion, CongestionController, Rate};
use crate::time::{Duration, Instant};

/// Bandwidth-delay product and delay of the reference network.
const REFERENCE_BDP: u64 = 150_000;
const REFERENCE_RTT: u64 = 12_000;
/// Unit of the factors.
const MILLI: u64 = 1000;
/// Below this queuing delay there is no queue, ns.
const NO_QUEUE: u64 = 1000;
/// Weight of one sample in the average delay: 0.0125.
const AVERAGE_SHIFT: u64 = 80;

crate::params! {
    /// Parameters of NSCC.
    pub struct NsccParams of "nscc" {
        /// Round-trip time without queues; smaller ones that are measured replace it.
        pub base_rtt: "ns", 100, 100_000_000;
        /// Queuing delay aimed at; 0: the base round-trip time.
        pub target_delay: "ns", 0, 100_000_000;
        /// Fair increase.
        pub fi: "/1000", 0, 1_000_000;
        /// Factor of the fast increase where there is no queue.
        pub fi_scale: "/1000", 0, 100_000;
        /// Proportional increase.
        pub alpha: "/1000", 0, 1_000_000;
        /// Added every round trip.
        pub eta: "/1000", 0, 100_000;
        /// Strength of the decrease.
        pub gamma: "/1000", 1, 1000;
        /// What is left after one decrease, at least.
        pub max_md_jump: "/1000", 1, 1000;
        /// Bytes after which the increase is applied, packets.
        pub adjust_bytes_threshold: "packets", 1, 1024;
        /// Largest window, thousandths of the bandwidth-delay product.
        pub max_cwnd: "/1000", 100, 100_000;
        /// 1: no quick adaptation after loss.
        pub disable_qa: "", 0, 1;
        /// Quick adaptation if less than 2^-n of the largest window arrived in a round trip.
        pub qa_gate: "", 0, 16;
    }
}

impl NsccParams {
    /// The model's constants.
    pub const DEFAULT: Self = Self {
        base_rtt: 12_000,
        target_delay: 0,
        fi: 5000,
        fi_scale: 250,
        alpha: 4000,
        eta: 150,
        gamma: 800,
        max_md_jump: 500,
        adjust_bytes_threshold: 8,
        max_cwnd: 1500,
        disable_qa: 0,
        qa_gate: 3,
    };
}

/// One flow's window.
#[derive(Clone, Copy, Debug)]
pub struct Nscc {
    params: NsccParams,
    /// Bits per second of the link.
    line: u64,
    /// Smallest round-trip time seen or configured, ns.
    base_rtt: u64,
    /// Bytes.
    window: u64,
    /// Increase not yet applied, bytes².
    increase: u128,
    /// Average queuing delay, ns.
    average: u64,
    /// Last round-trip time, ns.
    rtt: u64,
    /// A notification came since the last ACK.
    marked: bool,
    /// A loss was noticed in this round trip.
    lost: bool,
    decreased_at: Option<Instant>,
    /// Bytes acknowledged since the increase was applied, and since `round_at`.
    since_adjust: u64,
    achieved: u64,
    /// Bytes acknowledged without any queue, in a row.
    unqueued: u64,
    round_at: Instant,
    /// Bytes of the largest packet sent.
    packet_bytes: u64,
}

impl Nscc {
    /// A flow on a link of this rate, which must not be 0; parameters out of their range are
    /// brought into it.
    #[must_use]
    pub fn new(params: NsccParams, line: Rate) -> Self {
        let mut flow = Self {
            params,
            line: line.as_bits_per_second().max(1),
            base_rtt: params.base_rtt,
            window: 0,
            increase: 0,
            average: 0,
            rtt: 0,
            marked: false,
            lost: false,
            decreased_at: None,
            since_adjust: 0,
            achieved: 0,
            unqueued: 0,
            round_at: Instant::from_nanos(0),
            packet_bytes: 256,
        };
        flow.retune(params);
        flow.window = flow.max_window();
        flow
    }

    /// Other parameters from now on; the window goes on from where it is.
    pub fn retune(&mut self, params: NsccParams) {
        let params = params.clamped();
        self.params = params;
        self.base_rtt = self.base_rtt.min(params.base_rtt);
        self.bound();
    }

    /// Rate of the link it was made for.
    #[must_use]
    pub const fn line(&self) -> Rate {
        Rate::bits_per_second(self.line)
    }

    /// Its parameters.
    #[must_use]
    pub const fn params(&self) -> &NsccParams {
        &self.params
    }

    /// The window in bytes.
    #[must_use]
    pub const fn window(&self) -> u64 {
        self.window
    }

    /// Bytes that fill the path once.
    fn bdp(&self) -> u64 {
        let bytes = u128::from(self.line) * u128::from(self.base_rtt) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
    }

    fn max_window(&self) -> u64 {
        (self.bdp() / MILLI * self.params.max_cwnd).max(self.packet_bytes)
    }

    fn target(&self) -> u64 {
        match self.params.target_delay {
            0 => self.base_rtt,
            ns => ns,
        }
    }

    fn bound(&mut self) {
        self.window = self.window.clamp(self.packet_bytes, self.max_window());
    }

    /// `factor` thousandths of a packet, scaled to the network.
    fn gain(&self, factor: u64) -> u128 {
        let scaled = u128::from(factor) * u128::from(self.packet_bytes) * u128::from(self.bdp());
        scaled / u128::from(REFERENCE_BDP * MILLI)
    }

    fn grow(&mut self, bytes: u64, delay: u64, target: u64) {
        if delay < NO_QUEUE {
            self.unqueued += bytes;
            if self.unqueued > self.window {
                let scale = u128::from(self.params.fi_scale) * u128::from(self.bdp());
                let fast = u128::from(bytes) * scale / u128::from(REFERENCE_BDP * MILLI);
                self.window = self
                    .window
                    .saturating_add(fast.try_into().unwrap_or(u64::MAX));
                return;
            }
        } else {
            self.unqueued = 0;
        }
        // alpha = 4 · MSS · a · b / target with b = target / 12 µs.
        let per_ns = self.gain(self.params.alpha) * u128::from(bytes);
        self.increase += per_ns * u128::from(target - delay) / u128::from(REFERENCE_RTT);
    }

    fn shrink(&mut self, now: Instant, target: u64) {
        let round = Duration::from_nanos(self.base_rtt);
        let early = self.decreased_at.is_some_and(|at| now.since(at) <= round);
        if early || self.average <= target {
            return;
        }
        self.decreased_at = Some(now);
        let excess = (self.average - target) * self.params.gamma / self.average;
        let keep = (MILLI - excess.min(MILLI)).max(self.params.max_md_jump);
        self.window = self.window * keep / MILLI;
    }

    /// Applies the increase that has gathered, and what a round trip brings.
    fn adjust(&mut self, now: Instant) {
        let round = Duration::from_nanos(self.base_rtt.max(self.rtt));
        let round_over = now.since(self.round_at) >= round;
        let due = self.since_adjust >= self.params.adjust_bytes_threshold * self.packet_bytes;
        if due || round_over {
            let more = self.increase / u128::from(self.window.max(1));
            let more = u64::try_from(more).unwrap_or(u64::MAX);
            self.window = self.window.saturating_add(more);
            self.increase = 0;
            self.since_adjust = 0;
        }
        if round_over {
            let eta = u64::try_from(self.gain(self.params.eta)).unwrap_or(u64::MAX);
            self.window = self.window.saturating_add(eta);
            let gate = self.max_window() >> self.params.qa_gate;
            if self.lost && self.params.disable_qa == 0 && self.achieved < gate {
                self.window = self.achieved.max(self.packet_bytes);
                self.increase = 0;
            }
            self.lost = false;
            self.achieved = 0;
            self.round_at = now;
        }
    }
}

impl CongestionController for Nscc {
    #[inline]
    fn on_sent(&mut self, _now: Instant, bytes: usize) {
        self.packet_bytes = self.packet_bytes.max(bytes as u64);
    }

    fn on_ack(&mut self, ack: &AckSample) {
        let bytes = u64::from(ack.acked_packets) * self.packet_bytes;
        self.achieved += bytes;
        self.since_adjust += bytes;
        if let Some(rtt) = ack.rtt {
            self.rtt = rtt.as_nanos();
            self.base_rtt = self.base_rtt.min(self.rtt).max(1);
        }
        if self.rtt == 0 {
            return;
        }
        let (delay, target) = (self.rtt - self.base_rtt, self.target());
        let marked = ack.ecn_marked || self.marked;
        if ack.rtt.is_some() {
            self.marked = false;
            // A delay without mark is not this network's queue: it counts as a quarter.
            let sample = if delay > target && !marked {
                self.base_rtt / 4
            } else {
                delay
            };
            self.average = (self.average * (AVERAGE_SHIFT - 1) + sample) / AVERAGE_SHIFT;
        }
        match (marked, delay < target) {
            (false, true) => self.grow(bytes, delay, target),
            (false, false) => self.increase += self.gain(self.params.fi) * u128::from(bytes),
            (true, false) => self.shrink(ack.now, target),
            (true, true) => {}
        }
        self.adjust(ack.now);
        self.bound();
    }

    fn on_congestion(&mut self, now: Instant, what: Congestion) {
        self.lost = true;
        let lost = match what {
            Congestion::SequenceNak => self.packet_bytes,
            Congestion::Timeout => self.window / 2,
        };
        self.window = self.window.saturating_sub(lost);
        self.decreased_at = Some(now);
        self.bound();
    }

    fn on_cnp(&mut self, _now: Instant) -> bool {
        self.marked = true;
        true
    }

    fn on_timer(&mut self, _now: Instant) {}

    fn next_timer(&self) -> Instant {
        Instant::NEVER
    }

    #[inline]
    fn rate(&self) -> Rate {
        Rate::UNLIMITED
    }

    #[inline]
    fn window_psns(&self) -> u32 {
        let packets = self.window / self.packet_bytes;
        u32::try_from(packets)
            .unwrap_or(u32::MAX)
            .clamp(1, crate::params::OUTSTANDING_PSNS_MAX)
    }

    fn wants_ecn(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Rate = Rate::bits_per_second(100_000_000_000);

    fn flow() -> Nscc {
        let mut flow = Nscc::new(NsccParams::DEFAULT, LINE);
        flow.on_sent(Instant::from_nanos(0), 4096);
        flow
    }

    fn ack(at_ns: u64, packets: u32, rtt_ns: u64, ecn_marked: bool) -> AckSample {
        AckSample {
            now: Instant::from_nanos(at_ns),
            acked_packets: packets,
            rtt: Some(Duration::from_nanos(rtt_ns)),
            ecn_marked,
        }
    }

    #[test]
    fn starts_with_one_and_a_half_of_what_fills_the_path() {
        assert_eq!(flow().window(), 225_000);
        assert_eq!(flow().window_psns(), 54);
    }

    #[test]
    fn grows_in_proportion_to_what_is_left_to_the_target() {
        let grown = |delay: u64| {
            let mut flow = flow();
            flow.window = 50_000;
            flow.round_at = Instant::from_nanos(0);
            for n in 0..8 {
                flow.on_ack(&ack(n * 300, 1, 12_000 + delay, false));
            }
            flow.window() - 50_000
        };
        let (near, far) = (grown(2_000), grown(8_000));
        // 4 · 4096 · 8 · 4096 · (12000 - delay) / 12000 / 50000
        assert_eq!((near, far), (8947, 3579));
    }

    #[test]
    fn a_mark_with_a_long_queue_shrinks_once_per_round_trip_and_a_mark_without_does_not() {
        let mut flow = flow();
        flow.average = 48_000;
        let before = flow.window();
        flow.on_ack(&ack(100_000, 1, 12_000 + 48_000, true));
        // 1 - 0.8 · (48 - 12) / 48 = 0.4, but never below one half.
        let after = flow.window();
        assert!(after <= before / 2 + 1000, "{after}");
        flow.on_ack(&ack(101_000, 1, 12_000 + 48_000, true));
        assert!(flow.window() >= after, "twice in one round trip");
        let still = flow.window();
        flow.on_ack(&ack(102_000, 1, 13_000, true));
        assert!(flow.window() >= still, "no queue: not this path's load");
    }

    #[test]
    fn after_a_loss_the_window_is_what_arrived() {
        let mut flow = flow();
        flow.on_congestion(Instant::from_nanos(1), Congestion::SequenceNak);
        flow.on_ack(&ack(100_000, 2, 14_000, false));
        assert_eq!(flow.window(), 8192);
    }
}
