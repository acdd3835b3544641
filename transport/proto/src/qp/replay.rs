//! Responder resources: what is being answered, and can be answered again.
//!
//! A ring of `max_dest_rd_atomic` entries, each the PSN range and memory range of one READ, or the
//! result of one atomic. A duplicate finds its entry and rewinds it (S9, S12); a new request takes
//! over the oldest entry, and if that is still being answered the peer has exceeded its limit
//! (S11, `CASES.md` 33).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;

use xroce_wire::newtypes::{PathMtu, Psn, RKey, Va};
use xroce_wire::opcode::Operation;

use super::report::Request;
use crate::memory::Grant;

/// How an entry is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// By READ responses made from memory, each time anew.
    Read,
    /// By what the eight bytes held when this atomic was executed, once and for all.
    Atomic(Operation, u64),
    /// By an empty READ response: ATOMIC WRITE and FLUSH, executed once.
    Empty(Operation),
}

/// One READ, atomic, ATOMIC WRITE or FLUSH that was accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadJob {
    answer: Answer,
    pub(super) va: Va,
    pub(super) rkey: RKey,
    pub(super) len: u32,
    pub(super) first_psn: Psn,
    pub(super) psns: u32,
    pub(super) grant: Grant,
    /// Index of the next response to send, and where the current (re)request started and ends.
    next: u32,
    start: u32,
    end: u32,
    /// Byte of the message at which the current (re)request ends.
    end_byte: u32,
    /// Answered to the end at least once: what is pending now is a repetition.
    answered: bool,
}

impl ReadJob {
    pub(super) fn new(
        va: Va,
        rkey: RKey,
        len: u32,
        first_psn: Psn,
        mtu: PathMtu,
        grant: Grant,
    ) -> Self {
        let psns = mtu.packets(len);
        Self {
            answer: Answer::Read,
            va,
            rkey,
            len,
            first_psn,
            psns,
            grant,
            next: 0,
            start: 0,
            end: psns,
            end_byte: len,
            answered: false,
        }
    }

    /// What was executed at once and is answered by one packet without a message.
    pub(super) fn executed(answer: Answer, va: Va, rkey: RKey, psn: Psn) -> Self {
        Self {
            answer,
            ..Self::new(va, rkey, 0, psn, PathMtu::Mtu256, Grant::EMPTY)
        }
    }

    fn is_pending(&self) -> bool {
        self.next != self.end
    }
}

/// The next response to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Response {
    pub(super) answer: Answer,
    pub(super) psn: Psn,
    pub(super) is_first: bool,
    pub(super) is_last: bool,
    pub(super) grant: Grant,
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// Ring of [`ReadJob`]s.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// Made for the first request: most queue pairs of many are never asked.
    jobs: Box<[Option<ReadJob>]>,
    limit: u8,
    /// Slot the next request goes to: the oldest.
    next_slot: usize,
    pending: u32,
    /// Parts asked for again, of a queue pair that keeps them apart; they are answered first.
    repeats: VecDeque<ReadJob>,
}

/// Parts of READs asked for again that wait for their answer, at most; more are dropped as if
/// their requests had got lost.
const REPEATS_MAX: usize = 64;

impl Replay {
    pub(super) fn new(max_dest_rd_atomic: u8) -> Self {
        Self {
            jobs: Box::default(),
            limit: max_dest_rd_atomic,
            next_slot: 0,
            pending: 0,
            repeats: VecDeque::new(),
        }
    }

    /// From now on a part that is asked for again does not change what is being answered: several
    /// parts of one READ may be asked for at once.
    pub(super) fn keep_repeats(&mut self) {
        self.repeats.reserve_exact(REPEATS_MAX);
    }

    /// Owes nothing any more.
    pub(super) fn clear(&mut self) {
        self.jobs.fill(None);
        self.pending = 0;
        self.repeats.clear();
    }

    /// Whether responses are owed.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.pending != 0
    }

    /// Whether the oldest entry is free to be taken over. So is one whose answer is only being
    /// repeated: a peer within its limit starts a new READ when it has the answer to the oldest,
    /// and what asked for the repetition was late or a copy.
    pub(super) fn has_room(&self) -> bool {
        match self.jobs.get(self.next_slot) {
            None => self.limit != 0,
            Some(slot) => slot.is_none_or(|job| job.answered),
        }
    }

    /// READs and atomics at once, at most.
    pub(super) fn limit(&self) -> u8 {
        self.limit
    }

    /// Takes over the oldest entry; [`Replay::has_room`] was asked before.
    pub(super) fn push(&mut self, job: ReadJob) {
        if self.jobs.is_empty() {
            self.jobs = vec![None; self.limit.into()].into();
        }
        if let Some(slot) = self.jobs.get_mut(self.next_slot) {
            if !slot.replace(job).is_some_and(|old| old.is_pending()) {
                self.pending += 1;
            }
            self.next_slot = (self.next_slot + 1) % self.jobs.len();
        }
    }

    /// Rewinds the entry a duplicate READ belongs to. `false` if none covers the range asked for:
    /// the duplicate must then be dropped.
    pub(super) fn rewind(
        &mut self,
        psn: Psn,
        va: Va,
        rkey: RKey,
        len: u32,
        mtu: PathMtu,
        recheck: impl FnOnce(&ReadJob) -> Option<Grant>,
    ) -> bool {
        let Some(job) = self
            .jobs
            .iter_mut()
            .flatten()
            .find(|job| job.answer == Answer::Read && psn.is_within(job.first_psn, job.psns))
        else {
            return false;
        };
        let index = job.first_psn.distance_to(psn).unsigned_abs();
        let skipped = index << mtu.shift();
        let same_range = job.va.wrapping_add(skipped.into()) == va
            && job.rkey == rkey
            && skipped <= job.len
            && len <= job.len - skipped
            && (len != 0 || job.len == 0);
        if !same_range {
            return false;
        }
        // The memory may have changed hands since: the key is checked again (CASES.md 22).
        let Some(grant) = recheck(job) else {
            return false;
        };
        let mut again = ReadJob {
            grant,
            start: index,
            next: index,
            end: index + mtu.packets(len),
            end_byte: skipped + len,
            ..*job
        };
        if self.repeats.capacity() != 0 {
            if job.is_pending() && again.end > job.next {
                // The rest comes anyway, and must: a new request takes over this entry when it
                // has been answered.
                again.end = job.next.max(index);
                again.end_byte = again.end << mtu.shift();
            }
            let room = self.repeats.len() < REPEATS_MAX;
            if room && again.is_pending() {
                self.repeats.push_back(again);
                self.pending += 1;
            }
            return room;
        }
        if !job.is_pending() {
            self.pending += 1;
        }
        *job = again;
        true
    }

    /// Has the stored result of a duplicate atomic, ATOMIC WRITE or FLUSH sent again. `false` if
    /// it is not known: the duplicate must then be dropped. The address is looked at only where
    /// the answer tells what was there: rxe sends the other two again with address 0.
    pub(super) fn repeat(&mut self, psn: Psn, va: Va, rkey: RKey, operation: Operation) -> bool {
        let same = |job: &&mut ReadJob| {
            let (executed, there) = match job.answer {
                Answer::Read => return false,
                Answer::Atomic(executed, _) => (executed, job.va == va),
                Answer::Empty(executed) => (executed, true),
            };
            there && (job.first_psn, job.rkey, executed) == (psn, rkey, operation)
        };
        let Some(job) = self.jobs.iter_mut().flatten().find(same) else {
            return false;
        };
        if !job.is_pending() {
            self.pending += 1;
            job.next = 0;
        }
        true
    }

    /// The next response of the oldest pending entry, without taking it.
    pub(super) fn front(&self, mtu: PathMtu) -> Option<Response> {
        if self.pending == 0 {
            return None;
        }
        let job = self.oldest_job()?;
        let offset = job.next << mtu.shift();
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a path MTU is at most 4096"
        )]
        let len = (job.end_byte - offset).min(mtu.bytes() as u32);
        Some(Response {
            answer: job.answer,
            psn: job.first_psn.add(job.next),
            is_first: job.next == job.start,
            is_last: job.next + 1 == job.end,
            grant: job.grant,
            offset,
            len,
        })
    }

    /// What the oldest pending entry answers.
    pub(super) fn front_request(&self) -> Option<Request> {
        let job = self.oldest_job()?;
        Some(Request {
            operation: Operation::ReadRequest,
            psn: job.first_psn,
            rkey: Some(job.rkey),
            va: job.va,
            len: job.len,
        })
    }

    /// The response of [`Replay::front`] was sent.
    pub(super) fn advance(&mut self) {
        if let Some(again) = self.repeats.front_mut() {
            again.next += 1;
            if !again.is_pending() {
                self.repeats.pop_front();
                self.pending -= 1;
            }
            return;
        }
        let Some(slot) = self.oldest_pending() else {
            return;
        };
        if let Some(job) = &mut self.jobs[slot] {
            job.next += 1;
            if !job.is_pending() {
                job.answered = true;
                self.pending -= 1;
            }
        }
    }

    fn oldest_job(&self) -> Option<&ReadJob> {
        match self.repeats.front() {
            Some(again) => Some(again),
            None => self.jobs[self.oldest_pending()?].as_ref(),
        }
    }

    fn oldest_pending(&self) -> Option<usize> {
        let n = self.jobs.len();
        (0..n)
            .map(|i| (self.next_slot + i) % n)
            .find(|&slot| self.jobs[slot].is_some_and(|job| job.is_pending()))
    }
}
