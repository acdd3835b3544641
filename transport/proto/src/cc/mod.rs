//! Congestion control: events in, an allowance out; chosen per QP, dispatched by enum.
//!
//! An algorithm sees bytes, times and marks, never PSNs or work requests; the pacer and the
//! requester combine its allowance with the window of loss recovery.

mod fixed;

pub use fixed::Fixed;

use crate::time::{Duration, Instant};

/// A sending rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rate {
    /// Bits per second on the wire, 0 for no limit.
    bits_per_second: u64,
}

impl Rate {
    /// As fast as the link takes it.
    pub const UNLIMITED: Self = Self { bits_per_second: 0 };

    /// A rate in bits per second; 0 is [`Rate::UNLIMITED`].
    #[must_use]
    pub const fn bits_per_second(bits_per_second: u64) -> Self {
        Self { bits_per_second }
    }

    /// In bits per second, 0 for no limit.
    #[must_use]
    pub const fn as_bits_per_second(self) -> u64 {
        self.bits_per_second
    }

    /// Whether there is a limit at all.
    #[must_use]
    pub const fn is_limited(self) -> bool {
        self.bits_per_second != 0
    }

    /// Serialisation time of `bytes`, `None` without limit.
    #[must_use]
    pub const fn time_for(self, bytes: usize) -> Option<Duration> {
        if self.bits_per_second == 0 {
            return None;
        }
        Some(Duration::from_nanos(
            (bytes as u64 * 8_000_000_000).div_ceil(self.bits_per_second),
        ))
    }
}

/// What an ACK taught us.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// When it arrived.
    pub now: Instant,
    /// Packets it newly acknowledged.
    pub acked_packets: u32,
    /// Whether it, or the data it covers, was marked.
    pub ecn_marked: bool,
}

/// A sign of congestion or loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Congestion {
    /// A sequence NAK or an implied one.
    SequenceNak,
    /// An ACK timeout.
    Timeout,
}

/// What an algorithm has to answer.
pub trait CongestionController {
    /// A packet of `bytes` left.
    fn on_sent(&mut self, now: Instant, bytes: usize);
    /// Progress was acknowledged.
    fn on_ack(&mut self, ack: &AckSample);
    /// Congestion or loss was noticed.
    fn on_congestion(&mut self, now: Instant, what: Congestion);
    /// A congestion notification for this QP arrived; `false` if the algorithm does not react to
    /// them.
    fn on_cnp(&mut self, now: Instant) -> bool;
    /// Rate at which the QP may send now.
    fn rate(&self) -> Rate;
    /// Packets that may be in flight now.
    fn window_psns(&self) -> u32;
}

/// The algorithms, as one value without box or vtable.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CongestionControl {
    /// A fixed rate and window.
    Fixed(Fixed),
}

macro_rules! dispatch {
    ($self:expr, $cc:ident => $call:expr) => {
        match $self {
            Self::Fixed($cc) => $call,
        }
    };
}

impl CongestionController for CongestionControl {
    #[inline]
    fn on_sent(&mut self, now: Instant, bytes: usize) {
        dispatch!(self, cc => cc.on_sent(now, bytes));
    }

    #[inline]
    fn on_ack(&mut self, ack: &AckSample) {
        dispatch!(self, cc => cc.on_ack(ack));
    }

    fn on_congestion(&mut self, now: Instant, what: Congestion) {
        dispatch!(self, cc => cc.on_congestion(now, what));
    }

    fn on_cnp(&mut self, now: Instant) -> bool {
        dispatch!(self, cc => cc.on_cnp(now))
    }

    #[inline]
    fn rate(&self) -> Rate {
        dispatch!(self, cc => cc.rate())
    }

    #[inline]
    fn window_psns(&self) -> u32 {
        dispatch!(self, cc => cc.window_psns())
    }
}
