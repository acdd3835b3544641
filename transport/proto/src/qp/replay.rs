//! Responder resources: what is being answered, and can be answered again.
//!
//! A ring of `max_dest_rd_atomic` entries, each the PSN range and memory range of one READ, or the
//! result of one atomic. A duplicate finds its entry and rewinds it (S9, S12); a new request takes
//! over the oldest entry. If the peer has as many unanswered requests as its limit allows, another
//! one exceeds it (S11, case 33). FLUSHes are kept apart and count for nothing
//! ([`super::flushes`]).
//!
//! Responses sent before are only repeated: nobody may be waiting for them, and their memory may
//! have been taken back with good reason. Only what was never sent is owed.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;

use xroce_wire::newtypes::{PathMtu, Psn, RKey, Va};
use xroce_wire::opcode::Operation;

use super::flushes::Flushes;
use super::report::Request;
use crate::memory::Grant;

mod repeat;

pub(super) use repeat::{Asked, Repetition};

/// How an entry is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// By READ responses made from memory, each time anew.
    Read,
    /// By what the eight bytes held when this atomic was executed, once and for all.
    Atomic(Operation, u64),
    /// By an empty READ response: ATOMIC WRITE, executed once, and FLUSH.
    Empty(Operation),
}

/// One READ, atomic or ATOMIC WRITE that was accepted.
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
    /// Responses that have left at least once: those before this index are only repeated.
    sent: u32,
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
            sent: 0,
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

    /// Whether every response has left at least once.
    fn is_answered(&self) -> bool {
        self.sent == self.psns
    }

    /// Leaves out the responses that were sent before. What never was stays owed.
    fn skip_repetition(&mut self) {
        if self.is_answered() {
            self.next = self.end;
        } else {
            (self.next, self.end, self.end_byte) = (self.sent, self.psns, self.len);
        }
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
    next_slot: u8,
    /// Slot of the oldest entry that is to be answered.
    first_pending: Option<u8>,
    pending: u32,
    /// Parts asked for again, of a queue pair that keeps them apart; they are answered first.
    repeats: VecDeque<ReadJob>,
    flushes: Flushes,
    /// Made at the first repetition: most queue pairs of many never see one.
    asked: Option<Box<repeat::AskedOrder>>,
}

/// Whose response is next.
#[derive(Clone, Copy)]
enum Turn {
    Repeat,
    Job(usize),
    Flush,
}

/// The first READ of which nothing or not all has been sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unanswered {
    pub(super) psn: Psn,
    /// A response that was sent, or is yet to be, acknowledges all before it.
    pub(super) acked_before: bool,
}

impl Replay {
    /// READs and atomics at once, at most, from now on. What was accepted stays, and can be
    /// answered again as before: a ring that is too long does no harm.
    pub(super) fn set_limit(&mut self, max_dest_rd_atomic: u8) {
        self.limit = max_dest_rd_atomic;
        let (made, wanted) = (self.jobs.len(), usize::from(max_dest_rd_atomic));
        if made == 0 || wanted <= made {
            return;
        }
        self.jobs.rotate_left(self.oldest());
        let mut jobs = core::mem::take(&mut self.jobs).into_vec();
        jobs.resize(wanted, None);
        self.jobs = jobs.into();
        // Less than the new limit.
        self.next_slot = u8::try_from(made).unwrap_or(0);
        self.find_first_pending();
    }

    /// From now on a part that is asked for again does not change what is being answered: several
    /// parts of one READ may be asked for at once.
    pub(super) fn keep_repeats(&mut self) {
        self.repeats.reserve_exact(repeat::REPEATS_MAX);
    }

    /// Owes nothing any more.
    pub(super) fn clear(&mut self) {
        self.jobs.fill(None);
        self.first_pending = None;
        self.pending = 0;
        self.repeats.clear();
        self.flushes.clear();
        self.asked = None;
    }

    /// All entries are of a lap of PSNs ago, or nearly: nothing of them can come again.
    pub(super) fn expire(&mut self) {
        for slot in &mut self.jobs {
            if slot.is_some_and(|job| !job.is_pending()) {
                *slot = None;
            }
        }
        self.flushes.expire();
        self.asked = None;
    }

    /// Whether responses are owed.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.pending != 0
    }

    /// Whether one more is within the limit. An entry whose answer is only being repeated is free
    /// to be taken over: a peer within its limit starts a new READ when it has the answer to the
    /// oldest, and what asked for the repetition was late or a copy.
    pub(super) fn has_room(&self) -> bool {
        let limit = usize::from(self.limit);
        if self.jobs.is_empty() || limit == 0 {
            return limit != 0;
        }
        // The oldest of as many as the limit. They are answered in order.
        let at = self.oldest() + self.jobs.len() - limit;
        let slot = self.jobs.get(at % self.jobs.len());
        slot.is_none_or(|slot| slot.is_none_or(|job| job.is_answered()))
    }

    /// Whether one more FLUSH can be kept.
    pub(super) fn has_flush_room(&self) -> bool {
        self.flushes.has_room()
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
        if let Some(asked) = &mut self.asked {
            asked.notes_new(job.first_psn);
        }
        let taken = self.next_slot;
        if let Some(slot) = self.jobs.get_mut(usize::from(taken)) {
            if !slot.replace(job).is_some_and(|old| old.is_pending()) {
                self.pending += 1;
            }
            let next = usize::from(taken) + 1;
            // There are as many slots as some limit.
            self.next_slot = if next < self.jobs.len() { taken + 1 } else { 0 };
            match self.first_pending {
                None => self.first_pending = Some(taken),
                Some(first) if first == taken => self.find_first_pending(),
                Some(_) => {}
            }
        }
    }

    /// A FLUSH was executed and is to be answered; [`Replay::has_flush_room`] was asked before.
    pub(super) fn push_flush(&mut self, psn: Psn, rkey: RKey) {
        self.flushes.push(psn, rkey);
        self.pending += 1;
    }

    fn oldest(&self) -> usize {
        self.next_slot.into()
    }

    /// The newest entry that covers a PSN: older ones are of the lap before.
    fn newest_with(&self, psn: Psn) -> Option<usize> {
        let n = self.jobs.len();
        (1..=n)
            .map(|back| (self.oldest() + n - back) % n)
            .find(|&slot| self.jobs[slot].is_some_and(|job| psn.is_within(job.first_psn, job.psns)))
    }

    /// The next response of the oldest pending entry, without taking it.
    pub(super) fn front(&self, mtu: PathMtu) -> Option<Response> {
        if self.pending == 0 {
            return None;
        }
        let turn = self.turn()?;
        let Some(job) = self.job_of(turn) else {
            return Some(Response {
                answer: Answer::Empty(Operation::Flush),
                psn: self.flushes.first_pending()?,
                is_first: true,
                is_last: true,
                grant: Grant::EMPTY,
                offset: 0,
                len: 0,
            });
        };
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
        let job = self.job_of(self.turn()?)?;
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
        match self.turn() {
            Some(Turn::Repeat) => {
                if let Some(again) = self.repeats.front_mut() {
                    again.next += 1;
                    if !again.is_pending() {
                        self.repeats.pop_front();
                        self.pending -= 1;
                    }
                }
            }
            Some(Turn::Job(slot)) => {
                if let Some(job) = &mut self.jobs[slot] {
                    job.next += 1;
                    job.sent = job.sent.max(job.next);
                    if !job.is_pending() {
                        self.pending -= 1;
                        self.pass_over(slot);
                    }
                }
            }
            Some(Turn::Flush) => {
                self.flushes.advance();
                self.pending -= 1;
            }
            None => {}
        }
    }

    /// The memory of the response of [`Replay::front`] is gone. If that response was sent before,
    /// what is only repeated is given up; `false` if it is owed.
    #[cold]
    pub(super) fn drop_repetition(&mut self) -> bool {
        match self.turn() {
            Some(Turn::Repeat) => {
                self.repeats.pop_front();
                self.pending -= 1;
                true
            }
            Some(Turn::Job(slot)) => {
                let Some(job) = self.jobs[slot].as_mut().filter(|job| job.next < job.sent) else {
                    return false;
                };
                job.skip_repetition();
                if !job.is_pending() {
                    self.pending -= 1;
                    self.pass_over(slot);
                }
                true
            }
            _ => false,
        }
    }

    /// No READ is answered from now on, and so nothing behind the first one that was not: the peer
    /// would take it for a sign that responses got lost (R8). Gives that READ.
    #[cold]
    pub(super) fn end_reads(&mut self) -> Option<Unanswered> {
        self.repeats.clear();
        for job in self.jobs.iter_mut().flatten() {
            if job.answer == Answer::Read {
                job.skip_repetition();
            }
        }
        let unanswered = self.first_unanswered();
        if let Some(Unanswered { psn, .. }) = unanswered {
            for job in self.jobs.iter_mut().flatten() {
                if !job.first_psn.is_before(psn) {
                    job.next = job.end;
                }
            }
            self.flushes.end_at(psn);
        }
        self.count_pending();
        unanswered
    }

    fn first_unanswered(&self) -> Option<Unanswered> {
        let slot = self.oldest_pending(|job| job.answer == Answer::Read)?;
        let job = self.jobs[slot].as_ref()?;
        let before = job.first_psn.sub(1);
        let acked_before =
            job.sent != 0 || self.newest_with(before).is_some() || self.flushes.has(before);
        Some(Unanswered {
            psn: job.first_psn,
            acked_before,
        })
    }

    fn job_of(&self, turn: Turn) -> Option<&ReadJob> {
        match turn {
            Turn::Repeat => self.repeats.front(),
            Turn::Job(slot) => self.jobs[slot].as_ref(),
            Turn::Flush => None,
        }
    }

    /// Answers leave in the order of the requests (S8), which is that of PSNs.
    #[inline]
    fn turn(&self) -> Option<Turn> {
        if !self.repeats.is_empty() {
            return Some(Turn::Repeat);
        }
        let slot = self.first_pending.map(usize::from);
        if self.flushes.pending() == 0 {
            return slot.map(Turn::Job);
        }
        let flush = self.flushes.first_pending()?;
        let first =
            slot.filter(|&slot| self.jobs[slot].is_some_and(|job| job.first_psn.is_before(flush)));
        Some(first.map_or(Turn::Flush, Turn::Job))
    }

    /// After a change of what is pending in any number of entries.
    #[cold]
    fn count_pending(&mut self) {
        let pending = |job: &&ReadJob| job.is_pending();
        let jobs = self.jobs.iter().flatten().filter(pending).count();
        // At most 255 entries.
        self.pending = u32::try_from(jobs).unwrap_or(0) + self.flushes.pending();
        self.find_first_pending();
    }

    /// After any change of what is pending that is not the end of the oldest.
    fn find_first_pending(&mut self) {
        let slot = self.oldest_pending(|_| true);
        // There are at most 255 slots.
        self.first_pending = slot.and_then(|slot| u8::try_from(slot).ok());
    }

    /// The oldest pending entry has been answered: the next one is among those that are newer.
    #[inline]
    fn pass_over(&mut self, slot: usize) {
        let newest = self.oldest().checked_sub(1).unwrap_or(self.jobs.len() - 1);
        let mut at = slot;
        self.first_pending = None;
        while at != newest {
            at = if at + 1 < self.jobs.len() { at + 1 } else { 0 };
            if self.jobs[at].is_some_and(|job| job.is_pending()) {
                self.first_pending = u8::try_from(at).ok();
                return;
            }
        }
    }

    fn oldest_pending(&self, counts: impl Fn(&ReadJob) -> bool) -> Option<usize> {
        let n = self.jobs.len();
        (0..n)
            .map(|i| (self.oldest() + i) % n)
            .find(|&slot| self.jobs[slot].is_some_and(|job| job.is_pending() && counts(&job)))
    }
}
