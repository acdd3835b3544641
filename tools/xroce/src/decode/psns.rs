//! Which PSNs of one sequence were seen.
//!
//! What is kept are the *holes*, runs of PSNs that were passed and not seen, so that memory grows
//! with what is out of order and not with the capture. PSNs become positions that do not wrap.

use std::collections::VecDeque;

use xroce_wire::newtypes::Psn;

/// PSNs behind the newest that are still told apart. No requester has that many outstanding, so a
/// jump further than this, either way, is a new connection on the same QP number.
pub(super) const WINDOW: u32 = 1 << 16;
/// Holes remembered; with more, the oldest is given up.
const HOLES: usize = 4096;
/// A READ may reserve more PSNs than the window. The window begins before it as long as this holds
/// all, which is half of what a PSN can tell apart.
const LONGEST: u64 = 1 << 22;
/// Positions begin here, so that there is room in front of the first.
const BASE: u64 = 1 << 32;

/// A run of PSNs that were passed and not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hole {
    start: u64,
    end: u64,
    /// Which first sighting passed it first, from 0.
    passed: u64,
    /// Who sent the packet that passed it.
    pub(super) owner: usize,
    /// In front of the first packet of the capture: nobody knows what was sent there.
    early: bool,
    /// The message of the packet before goes on in here.
    pub(super) goes_on: bool,
    /// The message of the packet behind comes from in here.
    pub(super) comes_from: bool,
}

impl Hole {
    pub(super) const fn len(&self) -> u64 {
        self.end - self.start
    }

    /// First PSN not seen.
    pub(super) fn psn(&self) -> Psn {
        psn_at(self.start)
    }
}

/// What is seen of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) psn: Psn,
    /// PSNs it takes, at least 1: a READ request those of its responses.
    pub(super) cost: u32,
    /// The PSN behind belongs to the same message.
    pub(super) goes_on: bool,
    /// The PSN before belongs to the same message.
    pub(super) comes_from: bool,
    /// Who sent it.
    pub(super) owner: usize,
}

/// How a packet relates to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sighting {
    /// The first of a sequence.
    Anew,
    /// Its PSN was not seen before. Late by so many places, 0 in order: the reordering extent of
    /// RFC 4737, section 4.2, which is its place among first sightings less that of the first with
    /// a higher PSN.
    First(u64),
    /// Its PSN was seen before.
    Again,
}

/// PSNs seen of one sequence.
#[derive(Clone, Debug, Default)]
pub(super) struct Psns {
    /// One beyond the highest position seen; 0 if none was.
    next: u64,
    /// Positions before this are not told apart.
    floor: u64,
    /// The last run reserved that is longer than the window.
    long: Option<(u64, u64)>,
    /// In the order of positions.
    holes: VecDeque<Hole>,
    /// Packets with a PSN not seen before.
    firsts: u64,
    /// The message of the highest packet goes on.
    goes_on: bool,
    /// Holes that left the window and were not taken yet.
    given_up: Vec<Hole>,
}

/// Positions have the PSN in their low 24 bits.
#[allow(
    clippy::cast_possible_truncation,
    reason = "`Psn::new` takes the low 24 bits"
)]
const fn psn_at(position: u64) -> Psn {
    Psn::new(position as u32)
}

impl Psns {
    /// Takes a packet into account. `slack` is how much more than known its predecessors may have
    /// reserved.
    pub(super) fn see(&mut self, sent: &Sent, slack: u32) -> Sighting {
        let Some(at) = self.position(sent.psn, slack) else {
            self.begin(sent);
            return Sighting::Anew;
        };
        let nth = self.firsts;
        let sighting = if at >= self.next {
            if at > self.next {
                self.holes.push_back(Hole {
                    start: self.next,
                    end: at,
                    passed: nth,
                    owner: sent.owner,
                    early: false,
                    goes_on: self.goes_on,
                    comes_from: sent.comes_from,
                });
            }
            Sighting::First(0)
        } else {
            self.hole_at(at)
                .map_or(Sighting::Again, |h| Sighting::First(nth - h.passed))
        };
        if sighting != Sighting::Again {
            self.firsts += 1;
        }
        self.take(at, sent);
        sighting
    }

    /// Reserves PSNs that a packet seen before turns out to take.
    pub(super) fn reserve(&mut self, psn: Psn, cost: u32) {
        let sent = Sent {
            psn,
            cost,
            ..Sent::default()
        };
        if let Some(at) = self.position(psn, 0) {
            self.take(at, &sent);
        }
    }

    /// Whether anything was seen.
    pub(super) const fn has_begun(&self) -> bool {
        self.next > 0
    }

    /// Whether a PSN was seen or reserved.
    pub(super) fn has(&self, psn: Psn) -> bool {
        self.position(psn, 0)
            .is_some_and(|at| at < self.next && self.hole_at(at).is_none())
    }

    /// How many of `n` PSNs from `psn` on were seen or reserved.
    pub(super) fn seen_of(&self, psn: Psn, n: u32) -> u64 {
        let Some(start) = self.position(psn, 0) else {
            return 0;
        };
        let end = (start + u64::from(n)).min(self.next);
        let overlap = |h: &Hole| h.end.min(end).saturating_sub(h.start.max(start));
        let unseen: u64 = self.holes.iter().map(overlap).sum();
        end.saturating_sub(start).saturating_sub(unseen)
    }

    /// Runs of PSNs that were not seen, of those still remembered.
    pub(super) fn holes(&self) -> impl Iterator<Item = &Hole> {
        self.holes.iter().filter(|h| !h.early)
    }

    /// Runs of PSNs that were not seen and are not looked for any more, each once.
    pub(super) fn given_up(&mut self) -> impl Iterator<Item = Hole> {
        self.given_up.drain(..)
    }

    /// Where a PSN lies; `None` if too far away.
    fn position(&self, psn: Psn, slack: u32) -> Option<u64> {
        if self.next == 0 {
            return None;
        }
        let distance = psn_at(self.next).distance_to(psn);
        let at = self.next.checked_add_signed(distance.into())?;
        let ahead = distance <= 0 || distance.unsigned_abs() <= WINDOW.saturating_add(slack);
        (at >= self.floor && ahead).then_some(at)
    }

    fn hole_at(&self, at: u64) -> Option<&Hole> {
        let i = self.holes.partition_point(|h| h.end <= at);
        self.holes.get(i).filter(|h| h.start <= at)
    }

    /// A new sequence.
    fn begin(&mut self, sent: &Sent) {
        let lost = self.holes.drain(..).filter(|h| !h.early);
        self.given_up.extend(lost);
        let at = BASE + u64::from(sent.psn.value());
        self.floor = at - u64::from(WINDOW);
        self.next = at;
        self.long = None;
        self.firsts = 1;
        self.holes.push_back(Hole {
            start: self.floor,
            end: at,
            passed: 0,
            owner: sent.owner,
            early: true,
            goes_on: false,
            comes_from: sent.comes_from,
        });
        self.take(at, sent);
    }

    /// Marks what a packet takes, and forgets what is too old.
    fn take(&mut self, at: u64, sent: &Sent) {
        let end = at + u64::from(sent.cost);
        self.fill(at, end, sent);
        if end > self.next {
            self.next = end;
            self.goes_on = sent.goes_on;
        }
        if sent.cost > WINDOW {
            let start = self.long.map_or(at, |(start, _)| start.min(at));
            let start = start.max(end.saturating_sub(LONGEST)).min(at);
            self.long = Some((start, end.max(self.next)));
        }
        let window = u64::from(WINDOW);
        if self.long.is_some_and(|(_, end)| self.next > end + window) {
            self.long = None;
        }
        let oldest = self.long.map_or(self.next, |(start, _)| start);
        self.floor = self.floor.max(oldest.saturating_sub(window));
        while let Some(hole) = self.holes.front().copied()
            && (hole.end <= self.floor || self.holes.len() > HOLES)
        {
            self.holes.pop_front();
            if !hole.early {
                self.given_up.push(hole);
            }
        }
    }

    /// Takes positions out of the holes.
    fn fill(&mut self, start: u64, end: u64, sent: &Sent) {
        let mut i = self.holes.partition_point(|h| h.end <= start);
        while let Some(hole) = self.holes.get(i).copied()
            && hole.start < end
        {
            self.holes.remove(i);
            if hole.start < start {
                let left = Hole {
                    end: start,
                    comes_from: sent.comes_from,
                    ..hole
                };
                self.holes.insert(i, left);
                i += 1;
            }
            if end < hole.end {
                let right = Hole {
                    start: end,
                    goes_on: sent.goes_on,
                    ..hole
                };
                self.holes.insert(i, right);
                return;
            }
        }
    }
}
