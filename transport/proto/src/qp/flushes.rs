//! FLUSHes to be answered, and those that can be answered again.
//!
//! A FLUSH has no result to be kept: whoever asks for its answer again gets the same empty
//! response. It takes no responder resource either: rdma_rxe (Linux 6.12) does not count it
//! against `max_rd_atomic`, so that a burst of such a peer may have any number of them among its
//! READs and atomics. What is kept is its place in the order of answers.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use xroce_wire::newtypes::{Psn, RKey};

/// FLUSHes kept: as many as rdma_rxe has packets in flight. The one that comes when none of so many
/// has been answered is dropped, and asked for again behind their answers, when there is room.
const KEPT: usize = 128;

#[derive(Clone, Copy, Debug)]
struct Flush {
    psn: Psn,
    rkey: RKey,
    pending: bool,
}

/// The latest FLUSHes, in the order of their PSNs. Made for the first: most queue pairs are never
/// asked.
#[derive(Debug, Default)]
pub(super) struct Flushes(Option<Box<List>>);

#[derive(Debug)]
struct List {
    kept: VecDeque<Flush>,
    pending: u32,
    /// One that was answered had to make way for another.
    forgot: bool,
}

impl Flushes {
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    /// Forgets those that are answered, for good.
    pub(super) fn expire(&mut self) {
        if let Some(list) = &mut self.0 {
            list.kept.retain(|flush| flush.pending);
            list.forgot = false;
        }
    }

    /// How many are to be answered.
    #[inline]
    pub(super) fn pending(&self) -> u32 {
        self.0.as_ref().map_or(0, |list| list.pending)
    }

    /// Whether one more can be taken.
    pub(super) fn has_room(&self) -> bool {
        (self.pending() as usize) < KEPT
    }

    pub(super) fn has(&self, psn: Psn) -> bool {
        let list = self.0.as_ref();
        list.is_some_and(|list| list.kept.iter().any(|flush| flush.psn == psn))
    }

    /// One that was executed; there is room.
    pub(super) fn push(&mut self, psn: Psn, rkey: RKey) {
        let list = self.0.get_or_insert_with(|| {
            Box::new(List {
                kept: VecDeque::with_capacity(KEPT),
                pending: 0,
                forgot: false,
            })
        });
        list.make_way();
        let pending = true;
        list.kept.push_back(Flush { psn, rkey, pending });
        list.pending += 1;
    }

    /// Has one answered again that came before. `false` if it is not known, or was forgotten and
    /// its PSN is taken by another request.
    pub(super) fn repeat(&mut self, psn: Psn, rkey: RKey, taken: bool) -> bool {
        let list = self.0.as_mut();
        list.is_some_and(|list| list.repeat(psn, rkey, taken))
    }

    /// The one to be answered next.
    pub(super) fn first_pending(&self) -> Option<Psn> {
        let first = self.0.as_ref()?.kept.iter().find(|flush| flush.pending);
        first.map(|flush| flush.psn)
    }

    /// That one was answered.
    pub(super) fn advance(&mut self) {
        let Some(list) = &mut self.0 else { return };
        if let Some(flush) = list.kept.iter_mut().find(|flush| flush.pending) {
            flush.pending = false;
            list.pending -= 1;
        }
    }

    /// None from this PSN on is answered.
    pub(super) fn end_at(&mut self, psn: Psn) {
        let Some(list) = &mut self.0 else { return };
        for flush in &mut list.kept {
            if flush.pending && !flush.psn.is_before(psn) {
                flush.pending = false;
                list.pending -= 1;
            }
        }
    }
}

impl List {
    fn repeat(&mut self, psn: Psn, rkey: RKey, taken: bool) -> bool {
        let known = self.kept.iter_mut().rev().find(|flush| flush.psn == psn);
        if let Some(flush) = known {
            if flush.rkey != rkey {
                return false;
            }
            self.pending += u32::from(!flush.pending);
            flush.pending = true;
            return true;
        }
        if taken || !self.forgot || self.pending as usize == KEPT {
            return false;
        }
        // Nothing is told and nothing changes: an answer to what was none is a ghost to its peer.
        self.make_way();
        let later = |flush: &Flush| psn.is_before(flush.psn);
        let at = self.kept.iter().position(later);
        let at = at.unwrap_or(self.kept.len());
        let pending = true;
        self.kept.insert(at, Flush { psn, rkey, pending });
        self.pending += 1;
        true
    }

    fn make_way(&mut self) {
        if self.kept.len() == KEPT
            && let Some(oldest) = self.kept.iter().position(|flush| !flush.pending)
        {
            self.kept.remove(oldest);
            self.forgot = true;
        }
    }
}
