//! Doorbells: waking who sleeps, without a system call while nobody does.
//!
//! A side that is about to sleep says so in a word of the shared memory, looks once more for work,
//! and only then sleeps on a descriptor. The other side publishes work, looks at the word, and
//! writes the descriptor only if the word asks for it. Each has a fence between its store and its
//! load, so at least one of the two sees the other's store: either the sleeper finds the work or
//! the other side finds the word.
//!
//! The words are hints. One process may write anything there, and so keep the other from being
//! woken by it or wake it for nothing: that costs time, never correctness. A word is therefore
//! shared by two processes only; a daemon has one with each client, or one client could let the
//! doorbells of others be missed.
//!
//! Several threads may ring the same word; the descriptors are the caller's affair.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::region::{AtomicAtError, Region};
use crate::words::{Shared, Word};

/// Nobody sleeps, nothing is armed.
const QUIET: u32 = 0;
/// The sleeper wants a kick.
const KICK: u32 = 1;
/// Armed for solicited completions and errors.
const SOLICITED: u32 = 1;
/// Armed for any completion.
const ANY: u32 = 2;

/// See [`ParkWord`].
#[derive(Debug)]
pub(crate) struct Park<W>(pub(crate) W);

impl<W: Word<u32>> Park<W> {
    pub(crate) fn park(&self) {
        // Ordered before the look for work by the fence, which pairs with the one in `must_kick`.
        self.0.store(KICK, Ordering::Relaxed);
        self.0.fence();
    }

    #[inline]
    pub(crate) fn unpark(&self) {
        // A hint; whoever still sees the old value kicks for nothing.
        self.0.store(QUIET, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn must_kick(&self) -> bool {
        // Orders the publication before the load; pairs with the fence in `park`.
        self.0.fence();
        // Relaxed: the fence orders it. The load first, so that the line stays shared by both
        // sides' caches while nobody sleeps. The swap lets one of several threads kick.
        self.0.load(Ordering::Relaxed) != QUIET && self.0.swap(QUIET, Ordering::Relaxed) != QUIET
    }
}

/// A word with which a sleeper asks to be woken: 0 awake, anything else wants a kick.
///
/// The sleeper: [`Self::park`], look for work; if there is some, [`Self::unpark`], else wait for
/// the descriptor, then [`Self::unpark`]. What the descriptor counts is read after the wait, or
/// before `park`; read between the look and the wait it would take a kick away.
///
/// The other side: publish, then [`Self::must_kick`]; if true, write the descriptor.
#[derive(Debug)]
pub struct ParkWord {
    park: Park<Shared<AtomicU32>>,
}

impl ParkWord {
    /// The word at `offset`, a multiple of 4: of a ring at `offset + PARK_AT`
    /// ([`crate::PARK_AT`]).
    ///
    /// # Errors
    /// [`AtomicAtError`].
    pub fn new(region: &Region, offset: u64) -> Result<Self, AtomicAtError> {
        let park = Park(Shared::new(region, offset)?);
        Ok(Self { park })
    }

    /// Asks for a kick. Look for work afterwards, and do not sleep if there is some.
    pub fn park(&self) {
        self.park.park();
    }

    /// Asks for no kick any more; one may still come.
    #[inline]
    pub fn unpark(&self) {
        self.park.unpark();
    }

    /// After publishing: whether the caller has to write the sleeper's descriptor. The answer is
    /// true once for each [`Self::park`].
    #[inline]
    #[must_use]
    pub fn must_kick(&self) -> bool {
        self.park.must_kick()
    }
}

/// What a completion queue is armed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    /// The next completion that is solicited or an error.
    Solicited,
    /// The next completion.
    Any,
}

/// See [`ArmWord`].
#[derive(Debug)]
pub(crate) struct ArmState<W>(pub(crate) W);

impl<W: Word<u32>> ArmState<W> {
    pub(crate) fn arm(&self, arm: Arm) {
        let bit = match arm {
            Arm::Solicited => SOLICITED,
            Arm::Any => ANY,
        };
        // An OR: to arm for solicited completions does not take back what was armed for any.
        // Relaxed: ordered before the look at the queue by the fence, which pairs with the one in
        // `must_notify`.
        self.0.fetch_or(bit, Ordering::Relaxed);
        self.0.fence();
    }

    pub(crate) fn is_armed(&self) -> bool {
        // Acquire: who sees that it was taken away may look for what was published before.
        self.0.load(Ordering::Acquire) & (SOLICITED | ANY) != 0
    }

    #[inline]
    pub(crate) fn must_notify(&self, solicited: bool) -> bool {
        // Orders the publication before the load; pairs with the fence in `arm`.
        self.0.fence();
        let due = if solicited { SOLICITED | ANY } else { ANY };
        // Relaxed: the fence orders it.
        if self.0.load(Ordering::Relaxed) & due == 0 {
            return false;
        }
        // Whoever takes an arming away notifies, even if it was armed anew for less meanwhile: a
        // needless event is harmless, a lost one is not. Relaxed: as above.
        self.0.swap(QUIET, Ordering::Relaxed) != QUIET
    }
}

/// The word with which the reader of a completion queue asks for one event: 0 not armed, bit 0 for
/// solicited completions and errors, bit 1 for any completion; other bits mean nothing.
///
/// The reader: [`Self::arm`], then poll the queue once more, as verbs have it; an event comes for
/// what is published after that poll. The writer: publish a batch, then [`Self::must_notify`]; if
/// true, write the event's descriptor.
#[derive(Debug)]
pub struct ArmWord {
    arm: ArmState<Shared<AtomicU32>>,
}

impl ArmWord {
    /// The word at `offset`, a multiple of 4: of a ring at `offset + ARM_AT` ([`crate::ARM_AT`]).
    ///
    /// # Errors
    /// [`AtomicAtError`].
    pub fn new(region: &Region, offset: u64) -> Result<Self, AtomicAtError> {
        let arm = ArmState(Shared::new(region, offset)?);
        Ok(Self { arm })
    }

    /// Asks for one event. Armed for any completion already, it stays so.
    pub fn arm(&self, arm: Arm) {
        self.arm.arm(arm);
    }

    /// After publishing a batch: whether an event is due. `solicited`: the batch has a solicited
    /// completion or an error. If true the queue is no longer armed.
    #[inline]
    #[must_use]
    pub fn must_notify(&self, solicited: bool) -> bool {
        self.arm.must_notify(solicited)
    }

    /// Whether it still is armed: once it was, and is not, an event has come or is on its way.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.arm.is_armed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kick_for_each_time_parked() {
        let region = Region::for_tests(8);
        let word = ParkWord::new(&region, 4).unwrap();
        assert!(!word.must_kick());
        word.park();
        assert!(word.must_kick());
        assert!(!word.must_kick());
        word.park();
        word.unpark();
        assert!(!word.must_kick());
        // Whatever is written there is one kick.
        region.write_at(4, &[0xff; 4]).unwrap();
        assert!(word.must_kick());
        assert!(!word.must_kick());
    }

    #[test]
    fn an_event_comes_for_what_was_armed() {
        let region = Region::for_tests(8);
        let word = ArmWord::new(&region, 0).unwrap();
        assert!(!word.must_notify(true));
        word.arm(Arm::Solicited);
        assert!(!word.must_notify(false));
        assert!(word.must_notify(true));
        assert!(!word.must_notify(true));
        word.arm(Arm::Any);
        // Not taken back to solicited.
        word.arm(Arm::Solicited);
        assert!(word.must_notify(false));
        assert!(!word.must_notify(true));
        region.write_at(0, &[0xfc, 0xff, 0xff, 0xff]).unwrap();
        assert!(!word.must_notify(true));
    }

    #[test]
    fn a_word_is_aligned_and_inside() {
        let region = Region::for_tests(8);
        let refused = ParkWord::new(&region, 2).unwrap_err();
        assert_eq!(refused, AtomicAtError::Misaligned(2));
        assert!(ArmWord::new(&region, 8).is_err());
    }
}
