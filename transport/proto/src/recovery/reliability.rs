//! Which recovery a queue pair uses, and its parameters.

use crate::time::Duration;
use serde::{Deserialize, Serialize};

/// How losses are repaired. An attribute of the transition to RTR, the same at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reliability {
    /// Everything from the lost packet on again: what every peer understands.
    #[default]
    GoBackN,
    /// Go-back-N whose ACK timeout follows the measured round trip. Nothing of it shows on the
    /// wire: for any peer.
    Adaptive(AdaptiveParams),
    /// Only what is lost again, with extension packets: only for a peer of this stack that was
    /// given the same.
    Selective(SelectiveParams),
}

/// Parameters of [`Reliability::Adaptive`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AdaptiveParams {
    /// Shortest ACK timeout. Must cover what the peer adds to the round trip by handling packets
    /// late; 1 ms unless given. The longest is the timeout attribute.
    pub floor: Duration,
}

impl Default for AdaptiveParams {
    fn default() -> Self {
        Self {
            floor: Duration::from_millis(1),
        }
    }
}

/// Parameters of [`Reliability::Selective`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SelectiveParams {
    /// PSNs from the oldest unacknowledged to the newest, at most, and what the responder takes
    /// ahead of what it expects: a power of two, 128 ..= 16384; 1024 unless given. Costs 53 bytes
    /// per PSN at the requester, 50 at the responder.
    pub range: u32,
    /// Request packets in flight, at most: sent and neither reported as received nor deemed lost.
    /// Meant to be a bandwidth-delay product; the window of congestion control holds as well.
    /// 256 unless given.
    pub window: u32,
    /// Packets that may overtake one before it is deemed lost; 64 unless given.
    pub tolerance: u32,
    /// Packets the responder keeps that it can neither execute nor place yet, at most; 256 unless
    /// given. Each costs a path MTU and 51 bytes.
    pub store: u32,
    /// Shortest timeout with fewer than [`SelectiveParams::FEW`] packets in flight, 100 µs unless
    /// given (IRN's RTO_low). A timeout is never longer than the timeout attribute, unless that is
    /// shorter than what is measured.
    pub rto_low: Duration,
    /// Shortest timeout otherwise, 320 µs unless given (IRN's RTO_high).
    pub rto_high: Duration,
}

impl SelectiveParams {
    /// Fewest and most PSNs of a range.
    pub const RANGE: (u32, u32) = (128, 1 << 14);
    /// Packets in flight below which losing all of them is likely enough not to wait long.
    pub const FEW: u32 = 3;

    /// Whether there may be such a range.
    #[must_use]
    pub const fn is_range(range: u32) -> bool {
        let (least, most) = Self::RANGE;
        range >= least && range <= most && range.is_power_of_two()
    }

    /// With a range of `most` at most, as when the peer has no more.
    #[must_use]
    pub fn within(self, most: u32) -> Self {
        let range = self.range.min(most);
        Self {
            range,
            window: self.window.min(range),
            tolerance: self.tolerance.min(range),
            store: self.store.min(range),
            ..self
        }
    }
}

impl Default for SelectiveParams {
    fn default() -> Self {
        Self {
            range: 1024,
            window: 256,
            tolerance: 64,
            store: 256,
            rto_low: Duration::from_micros(100),
            rto_high: Duration::from_micros(320),
        }
    }
}
