//! What is answered again: repetitions of READs, whole and in parts, and of results.

use xroce_wire::newtypes::{PathMtu, Psn, RKey, Va};
use xroce_wire::opcode::Operation;

use super::{Answer, ReadJob, Replay};
use crate::memory::Grant;

/// Parts of READs asked for again that wait for their answer, at most; more are dropped as if
/// their requests had got lost.
pub(super) const REPEATS_MAX: usize = 64;

/// What a duplicate READ has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Repetition {
    /// Nothing: no entry covers the range that it asks for, or it comes by itself.
    Dropped,
    /// It is answered again, up to its end.
    Whole,
    /// A part of it is answered. Nothing behind that part is owed until it is asked for.
    Part,
}

/// What a requester has done with, as far as what it asks for tells.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AskedOrder {
    /// The PSN with which the latest READ, or repetition of one, began.
    latest: Option<Psn>,
    /// The requester has everything before this PSN.
    done_before: Option<Psn>,
}

impl AskedOrder {
    /// A READ is asked for the first time.
    pub(super) fn notes_new(&mut self, psn: Psn) {
        self.latest = Some(psn);
    }

    /// A READ is asked for again from `psn` on; `in_the_middle`: not from its start. `false` if that
    /// is a late copy.
    fn notes(&mut self, psn: Psn, in_the_middle: bool) -> bool {
        if self.done_before.is_some_and(|done| psn.is_before(done)) {
            return false;
        }
        // It waits for a PSN in the middle of a READ, and for one that it goes back to.
        let goes_back = self.latest.is_some_and(|latest| psn.is_before(latest));
        if in_the_middle || goes_back {
            self.done_before = Some(psn);
        }
        self.latest = Some(psn);
        true
    }
}

/// The range for which a duplicate READ asks.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Asked {
    pub(in super::super) psn: Psn,
    pub(in super::super) va: Va,
    pub(in super::super) rkey: RKey,
    pub(in super::super) len: u32,
}

impl ReadJob {
    /// Index of the response with which a duplicate begins, if this READ covers what it asks for.
    fn index_of(&self, asked: &Asked, mtu: PathMtu) -> Option<u32> {
        let index = self.first_psn.distance_to(asked.psn).unsigned_abs();
        let skipped = index << mtu.shift();
        let is_covered = self.answer == Answer::Read
            && self.va.wrapping_add(skipped.into()) == asked.va
            && self.rkey == asked.rkey
            && skipped <= self.len
            && asked.len <= self.len - skipped
            && (asked.len != 0 || self.len == 0);
        is_covered.then_some(index)
    }
}

impl Replay {
    /// Rewinds the entry a duplicate READ belongs to.
    ///
    /// A requester that goes back and asks for a part asks for all behind that part later. So the
    /// part is all that is answered: what is sent beyond it would be thrown away. A part that such
    /// a requester has done with is a late copy and stops nothing.
    pub(in super::super) fn rewind(
        &mut self,
        asked: &Asked,
        mtu: PathMtu,
        recheck: impl FnOnce(&ReadJob) -> Option<Grant>,
    ) -> Repetition {
        let Some(slot) = self.newest_with(asked.psn) else {
            return Repetition::Dropped;
        };
        let Some(job) = &mut self.jobs[slot] else {
            return Repetition::Dropped;
        };
        let Some(index) = job.index_of(asked, mtu) else {
            return Repetition::Dropped;
        };
        let psns = mtu.packets(asked.len);
        let end_byte = (index << mtu.shift()) + asked.len;
        if index > job.sent {
            // It comes by itself, and who asks for it cannot know that.
            return Repetition::Dropped;
        }
        // The memory may have changed hands since: the key is checked again (case 22).
        let Some(grant) = recheck(job) else {
            if job.is_answered() || job.is_pending() {
                return Repetition::Dropped;
            }
            // What was never sent and is asked for now is owed: its memory is missed when it leaves.
            job.skip_repetition();
            self.count_pending();
            return Repetition::Whole;
        };
        let again = ReadJob {
            grant,
            start: index,
            next: index,
            end: index + psns,
            end_byte,
            ..*job
        };
        if self.repeats.capacity() != 0 {
            return self.keep_apart(slot, again, mtu);
        }
        self.go_back(slot, asked.psn, again)
    }

    /// A part for a selective requester, besides what is being answered.
    fn keep_apart(&mut self, slot: usize, mut again: ReadJob, mtu: PathMtu) -> Repetition {
        if let Some(job) = self.jobs[slot].filter(|job| job.is_pending() && again.end > job.next) {
            // The rest comes anyway, and must: a new request takes over this entry when it has
            // been answered.
            again.end = job.next.max(again.start);
            again.end_byte = again.end << mtu.shift();
        }
        if self.repeats.len() == REPEATS_MAX {
            return Repetition::Dropped;
        }
        if again.is_pending() {
            self.repeats.push_back(again);
            self.pending += 1;
        }
        Repetition::Whole
    }

    /// A requester went back and asks from `psn` on: this is answered from now on.
    fn go_back(&mut self, slot: usize, psn: Psn, mut again: ReadJob) -> Repetition {
        let is_part = again.end != again.psns;
        let order = self.asked.get_or_insert_default();
        let is_copy = !order.notes(psn, again.start != 0);
        if is_copy && !again.is_answered() {
            // What was never sent is owed.
            (again.end, again.end_byte) = (again.psns, again.len);
        }
        let repetition = if is_part && !is_copy {
            self.pause_behind(psn);
            Repetition::Part
        } else {
            Repetition::Whole
        };
        self.jobs[slot] = Some(again);
        self.count_pending();
        repetition
    }

    /// Who asks for a part of a READ asks for the rest, and all behind it, once more: until then
    /// nothing of it is answered.
    #[cold]
    fn pause_behind(&mut self, psn: Psn) {
        for job in self.jobs.iter_mut().flatten() {
            if psn.is_before(job.first_psn) {
                job.next = job.end;
            }
        }
        self.flushes.end_at(psn);
    }

    /// Has the stored result of a duplicate atomic or ATOMIC WRITE sent again, or a FLUSH answered
    /// again. `false` if it is not known: the duplicate must then be dropped. The address is looked
    /// at only where the answer tells what was there: rxe sends the other two again with address 0.
    pub(in super::super) fn repeat(
        &mut self,
        psn: Psn,
        va: Va,
        rkey: RKey,
        operation: Operation,
    ) -> bool {
        let slot = self.newest_with(psn);
        if operation == Operation::Flush {
            return self.repeat_flush(psn, rkey, slot.is_some());
        }
        let Some(job) = slot.and_then(|slot| self.jobs[slot].as_mut()) else {
            return false;
        };
        let (executed, there) = match job.answer {
            Answer::Atomic(executed, _) => (executed, job.va == va),
            Answer::Empty(executed) => (executed, true),
            // An atomic of this lap would have an entry that is newer.
            Answer::Read => return false,
        };
        if !there || (job.rkey, executed) != (rkey, operation) {
            return false;
        }
        if !job.is_pending() {
            self.pending += 1;
            job.next = 0;
            self.find_first_pending();
        }
        true
    }

    fn repeat_flush(&mut self, psn: Psn, rkey: RKey, taken: bool) -> bool {
        let before = self.flushes.pending();
        let known = self.flushes.repeat(psn, rkey, taken);
        self.pending += self.flushes.pending() - before;
        known
    }
}
