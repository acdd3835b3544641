//! Go-back-N: one resend from the lost PSN per event; a repeated NAK changes nothing until there
//! is progress or a timeout (case 54: every extra NAK used to restart the whole window).
//!
//! A network that drops every n-th packet and a sender that repeats bursts of n packets stay in
//! step: the same PSN, or the one a few places on, is lost for ever. So the burst shrinks to eight
//! packets when a PSN is lost twice, or when losses keep coming at the same small distance; to half
//! of that when it happens again. It doubles when three bursts arrived without a loss between them.
//!
//! Losses that keep coming after less than a third of what is in flight cost several times what is
//! gained between them, in step or not: then a quarter is sent at once. And where the ACK timer
//! tells of a loss more often than chance would have it, the last packet of a window is lost in
//! step: then the burst has a limit, so that each packet asks for an ACK and its loss is noticed
//! after some round trips, for as long as 64 bursts.
//!
//! A small burst after a timeout that brings nothing at all is followed by one without limit: a
//! peer may have all of the small one, and acknowledge nothing that it has.

use xroce_wire::newtypes::Psn;

use super::LossSignal;

/// [`LossRecovery::burst_shift`] without a limit: more than any window.
///
/// [`LossRecovery::burst_shift`]: super::LossRecovery::burst_shift
pub const NO_BURST_LIMIT: u8 = 31;
/// [`GoBackN::shift`] after the first losses in step: eight packets, half of the shortest period
/// that has to be coped with.
const SMALL_BURST: u8 = 3;
/// Losses at the same distance after which they count as in step.
const ALIKE_MAX: u8 = 4;
/// Losses after less than a third of what is in flight, after which less is sent at once: each
/// costs several times what was gained since the one before.
const SHORT_MAX: u8 = 6;
/// Weight of a loss that only the ACK timer told. A loss that a NAK told takes 1 away.
const SILENT_LOSS: u8 = 8;
/// From this weight on, losses count as in step with the ends of windows.
const SILENCE_MAX: u8 = 16;
/// Bursts that have to arrive without a loss after losses in step with the ends of windows.
const MANY_BURSTS: u32 = 64;
/// Bursts that have to arrive without a loss before the burst doubles.
const BURSTS: u32 = 3;

/// State of go-back-N, from the first loss on.
#[derive(Clone, Copy, Debug)]
pub struct GoBackN {
    /// The PSN it last went back to.
    from: Psn,
    /// The same, or the one behind what arrived before it was sent again.
    again: Psn,
    /// The same or, if later, the PSN at which the burst last grew.
    grown: Psn,
    /// PSNs acknowledged between the last two losses.
    moved: i32,
    /// How much more that was than between the two before.
    drift: i32,
    /// Nothing has moved since it went back.
    at_loss: bool,
    /// There was a loss, so that `from` is one.
    lost_before: bool,
    /// The peer itself told of it.
    was_told: bool,
    /// Losses in a row that came as far from the one before as that from its own.
    alike: u8,
    /// Losses in a row that came after less than a third of what is in flight.
    short: u8,
    /// Weight of the losses that silence alone told.
    silence: u8,
    /// Three bursts without a loss are enough to be at ease again.
    forgets_soon: bool,
    /// The burst is 2 to the power of this, in packets.
    shift: u8,
    /// What `shift` shrinks to.
    small: u8,
    /// The burst is without limit for once: it shrinks again when something moves.
    for_once: bool,
    /// The latest PSN whose response got lost, as a response from beyond it told.
    answer_beyond: Option<Psn>,
    /// READs that were asked for in parts end before this PSN.
    parts_before: Option<Psn>,
}

impl Default for GoBackN {
    fn default() -> Self {
        Self {
            from: Psn::new(0),
            again: Psn::new(0),
            grown: Psn::new(0),
            moved: 0,
            drift: 0,
            at_loss: false,
            lost_before: false,
            was_told: false,
            alike: 0,
            short: 0,
            silence: 0,
            forgets_soon: true,
            shift: NO_BURST_LIMIT,
            small: SMALL_BURST,
            for_once: false,
            answer_beyond: None,
            parts_before: None,
        }
    }
}

impl GoBackN {
    pub(super) fn on_loss(&mut self, signal: LossSignal, window: u32) -> Option<Psn> {
        let (psn, forced) = match signal {
            LossSignal::SequenceNak(psn) | LossSignal::ImpliedNak(psn) => (psn, false),
            LossSignal::Timeout(psn) => (psn, true),
        };
        if !forced && self.at_loss && self.again == psn {
            return None;
        }
        if matches!(signal, LossSignal::ImpliedNak(_)) {
            self.answer_beyond = Some(psn);
        }
        let in_flight = window.min(self.burst());
        if self.is_in_step(psn, in_flight) {
            self.shrink(psn == self.from && !self.was_told);
        } else if self.short >= SHORT_MAX {
            self.short = 0;
            self.quarter(in_flight);
        } else if self.note_silence(forced && psn != self.from) && !self.is_limited() {
            // As much as now, but each packet asks, and what is lost at the end is missed soon.
            self.shift = u8::try_from(in_flight.max(1).ilog2()).unwrap_or(self.small);
            self.forgets_soon = false;
        }
        (self.from, self.again, self.grown) = (psn, psn, psn);
        (self.at_loss, self.lost_before, self.was_told) = (true, true, !forced);
        Some(psn)
    }

    /// Whether this loss is the same as the one before, or one of several at the same distance
    /// that is small against what may be in flight, or at one that grows or shrinks evenly. Losses
    /// at random are rarely alike.
    fn is_in_step(&mut self, psn: Psn, in_flight: u32) -> bool {
        if !self.lost_before {
            return false;
        }
        let moved = self.from.distance_to(psn);
        let drift = moved - self.moved;
        let is_even = drift.abs() <= 1 + moved.abs() / 16 || (drift - self.drift).abs() <= 1;
        let is_alike = moved.unsigned_abs() < in_flight / 2 && is_even;
        self.alike = if is_alike { self.alike + 1 } else { 0 };
        let is_short = moved.unsigned_abs() < in_flight / 3;
        self.short = if is_short { self.short + 1 } else { 0 };
        (self.moved, self.drift) = (moved, drift);
        moved == 0 || self.alike >= ALIKE_MAX
    }

    /// The oldest unacknowledged PSN is `una` now.
    #[inline]
    pub(super) fn on_progress(&mut self, una: Psn, window: u32) {
        self.at_loss = false;
        if self.for_once {
            (self.for_once, self.shift, self.grown) = (false, self.small, una);
        }
        if self.shift != NO_BURST_LIMIT {
            self.grow(una, window);
        }
    }

    pub(super) fn on_late_arrival(&mut self, una: Psn) {
        (self.again, self.at_loss) = (una, true);
    }

    pub(super) const fn is_end_lost_in_step(&self) -> bool {
        !self.forgets_soon
    }

    pub(super) fn has_answer_beyond(&self, psn: Psn) -> bool {
        self.answer_beyond == Some(psn)
    }

    pub(super) fn is_in_parts(&self, psn: Psn) -> bool {
        self.parts_before.is_some_and(|end| psn.is_before(end))
    }

    /// Parts of a later READ may still be on their way.
    pub(super) fn on_parts(&mut self, end: Psn) {
        if self.parts_before.is_none_or(|before| before.is_before(end)) {
            self.parts_before = Some(end);
        }
    }

    pub(super) fn on_arrival(&mut self) {
        (self.at_loss, self.lost_before) = (false, false);
    }

    #[cold]
    fn grow(&mut self, una: Psn, window: u32) {
        let bursts = if self.forgets_soon {
            BURSTS
        } else {
            MANY_BURSTS
        };
        if self.grown.distance_to(una).unsigned_abs() >= bursts << self.shift {
            self.grown = una;
            self.shift += 1;
            if 1 << self.shift >= window {
                (self.shift, self.small, self.forgets_soon) = (NO_BURST_LIMIT, SMALL_BURST, true);
            }
        }
    }

    /// Notes whether a loss was told by silence alone; whether that is so more often than the last
    /// packet of a window is lost by chance.
    fn note_silence(&mut self, silent: bool) -> bool {
        self.silence = if silent {
            (self.silence + SILENT_LOSS).min(2 * SILENCE_MAX)
        } else {
            self.silence.saturating_sub(1)
        };
        self.silence >= SILENCE_MAX
    }

    /// A quarter of what was in flight, and no less than a small burst.
    fn quarter(&mut self, in_flight: u32) {
        let shift = (in_flight.max(1).ilog2()).saturating_sub(2);
        self.shift = u8::try_from(shift).unwrap_or(self.small).max(self.small);
    }

    fn shrink(&mut self, nothing_came: bool) {
        self.alike = 0;
        let was_limited = self.is_limited();
        if was_limited {
            self.small = self.small.saturating_sub(1);
        }
        self.for_once = was_limited && nothing_came;
        self.shift = if self.for_once {
            NO_BURST_LIMIT
        } else {
            self.small
        };
    }

    const fn is_limited(&self) -> bool {
        self.shift != NO_BURST_LIMIT
    }

    #[inline]
    pub(super) const fn burst_shift(&self) -> u8 {
        self.shift
    }

    /// Packets that may be in flight, at most.
    const fn burst(&self) -> u32 {
        1 << self.shift
    }
}
