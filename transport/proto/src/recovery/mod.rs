//! Loss recovery: what a NAK, a lost response or a timeout makes the requester send again.
//!
//! Recovery sees PSNs and never rates; congestion control sees rates and never PSNs.

mod go_back_n;
mod reliability;
mod ring_bits;
mod scoreboard;
mod send_order;

pub use go_back_n::{GoBackN, NO_BURST_LIMIT};
pub use reliability::{AdaptiveParams, Reliability, SelectiveParams};
pub(crate) use ring_bits::RingBits;
pub(crate) use scoreboard::{LossRule, Scoreboard, State};
pub(crate) use send_order::Order;

use alloc::boxed::Box;

use xroce_wire::newtypes::Psn;

/// What hints at a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossSignal {
    /// The responder asked for this PSN (sequence NAK).
    SequenceNak(Psn),
    /// A later response arrived while this PSN's is missing.
    ImpliedNak(Psn),
    /// Nothing came; this is the oldest unacknowledged PSN.
    Timeout(Psn),
}

/// The recoveries, as one value without box or vtable.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LossRecovery {
    /// Resend everything from the lost packet on: all that standard peers understand. Made at the
    /// first loss: most queue pairs of many never have one.
    GoBackN(Option<Box<GoBackN>>),
}

impl LossRecovery {
    /// PSN to resume sending from, or `None` if this signal has been acted upon already. `window`:
    /// packets that congestion control lets be in flight.
    pub fn on_loss(&mut self, signal: LossSignal, window: u32) -> Option<Psn> {
        match self {
            Self::GoBackN(r) => r.get_or_insert_default().on_loss(signal, window),
        }
    }

    /// The oldest unacknowledged PSN moved on to `una`.
    #[inline]
    pub fn on_progress(&mut self, una: Psn, window: u32) {
        match self {
            Self::GoBackN(Some(r)) => r.on_progress(una, window),
            Self::GoBackN(None) => {}
        }
    }

    /// What was about to be sent again arrived after all, up to `una`, the next to be sent again:
    /// what comes until then was sent before, and shows no other loss.
    pub fn on_late_arrival(&mut self, una: Psn) {
        match self {
            Self::GoBackN(Some(r)) => r.on_late_arrival(una),
            Self::GoBackN(None) => {}
        }
    }

    /// The oldest unacknowledged PSN has arrived, though the peer could not take it.
    pub fn on_arrival(&mut self) {
        match self {
            Self::GoBackN(Some(r)) => r.on_arrival(),
            Self::GoBackN(None) => {}
        }
    }

    /// Packets that may be in flight, at most, while losses come in step with what is sent: the
    /// logarithm to base 2; [`NO_BURST_LIMIT`] otherwise.
    #[inline]
    #[must_use]
    pub fn burst_shift(&self) -> u8 {
        match self {
            Self::GoBackN(Some(r)) => r.burst_shift(),
            Self::GoBackN(None) => NO_BURST_LIMIT,
        }
    }
}

/// READs whose responses get lost in step.
impl LossRecovery {
    fn go_back_n(&self) -> Option<&GoBackN> {
        match self {
            Self::GoBackN(state) => state.as_deref(),
        }
    }

    /// Whether the last packets of windows got lost more often than by chance.
    #[must_use]
    pub fn is_end_lost_in_step(&self) -> bool {
        self.go_back_n().is_some_and(GoBackN::is_end_lost_in_step)
    }

    /// Whether a response from beyond `psn` has told that the one at `psn` got lost.
    #[must_use]
    pub fn has_answer_beyond(&self, psn: Psn) -> bool {
        self.go_back_n().is_some_and(|r| r.has_answer_beyond(psn))
    }

    /// A READ that ends before this PSN was asked for again in parts.
    pub fn on_parts(&mut self, end: Psn) {
        match self {
            Self::GoBackN(Some(r)) => r.on_parts(end),
            Self::GoBackN(None) => {}
        }
    }

    /// Whether the response at `psn` may belong to a part of a READ.
    #[must_use]
    pub fn is_in_parts(&self, psn: Psn) -> bool {
        self.go_back_n().is_some_and(|r| r.is_in_parts(psn))
    }
}

impl Default for LossRecovery {
    fn default() -> Self {
        Self::GoBackN(None)
    }
}
