//! How many PSNs a READ request reserves for its responses, which depends on the path MTU.
//!
//! A capture does not tell the path MTU. It is learned from First and Middle packets, which are
//! that long, or from a READ repeated from its middle. Until then a READ reserves what it takes at
//! least, and the rest later.

use std::collections::VecDeque;

use xroce_wire::newtypes::{Psn, Va};
use xroce_wire::opcode::{Operation, Position};

use super::packet::Roce;
use super::psns::Psns;

/// Path MTUs there are.
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];
/// READs that wait for the path MTU. With more of them it is guessed.
const OPEN: usize = 64;

/// A READ request whose PSNs are not known, since the path MTU is not.
#[derive(Clone, Copy, Debug)]
struct Open {
    psn: Psn,
    va: Va,
    len: u32,
}

impl Open {
    fn cost(&self, mtu: u32) -> u32 {
        cost(self.len, mtu)
    }
}

fn cost(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}

/// What is known of a path MTU, and the READs that wait for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    mtu: Option<u32>,
    guessed: bool,
    /// Longest payload seen.
    longest: u32,
    open: VecDeque<Open>,
}

impl Reads {
    /// First and Middle packets are as long as the path MTU, others not longer.
    pub(super) fn learn(&mut self, roce: &Roce<'_>) {
        let info = roce.packet.info();
        let len = u32::try_from(roce.packet.payload().len()).unwrap_or(0);
        self.longest = self.longest.max(len);
        let full = matches!(info.position, Position::First | Position::Middle);
        if full && MTUS.contains(&len) {
            self.know(len);
        }
    }

    fn know(&mut self, mtu: u32) {
        if self.guessed || self.mtu.is_none() {
            self.mtu = Some(mtu);
            self.guessed = false;
        }
    }

    /// The path MTU, unless it is unknown or a guess.
    pub(super) const fn mtu(&self) -> Option<u32> {
        if self.guessed { None } else { self.mtu }
    }

    /// From the other direction of the connection.
    pub(super) fn told(&mut self, mtu: Option<u32>) {
        if let Some(mtu) = mtu {
            self.know(mtu);
        }
    }

    /// PSNs that the packet takes as far as known, and whether it takes no more.
    pub(super) fn cost(&self, roce: &Roce<'_>) -> (u32, bool) {
        let p = &roce.packet;
        match p.reth() {
            Some(reth) if p.info().operation == Operation::ReadRequest => match self.mtu {
                Some(mtu) => (cost(reth.len, mtu), true),
                None => {
                    let least = cost(reth.len, MTUS[4]);
                    (least, least == cost(reth.len, self.shortest()))
                }
            },
            _ => (1, true),
        }
    }

    /// Shortest path MTU that fits what was seen.
    fn shortest(&self) -> u32 {
        let fits = |m: &u32| *m >= self.longest;
        MTUS.into_iter().find(fits).unwrap_or(MTUS[4])
    }

    /// PSNs that the READs that wait may take beyond those known.
    pub(super) fn slack(&self) -> u32 {
        let shortest = self.shortest();
        let most = |r: &Open| r.cost(shortest) - r.cost(MTUS[4]);
        self.open.iter().map(most).max().unwrap_or(0)
    }

    /// A READ request whose cost is not known.
    pub(super) fn wait(&mut self, roce: &Roce<'_>, requests: &Psns) {
        let p = &roce.packet;
        if let Some(reth) = p.reth() {
            let (psn, va, len) = (p.psn(), reth.va, reth.len);
            self.open.push_back(Open { psn, va, len });
        }
        if self.open.len() > OPEN {
            self.mtu = Some(self.guess(requests));
            self.guessed = true;
        }
    }

    /// A READ of the rest of one that waits tells the path MTU: so many bytes in so many PSNs.
    pub(super) fn compare(&mut self, roce: &Roce<'_>) {
        let p = &roce.packet;
        let read = p.info().operation == Operation::ReadRequest;
        let (Some(reth), true, None) = (p.reth(), read, self.mtu) else {
            return;
        };
        let mtu = self.open.iter().rev().find_map(|r| {
            let done = reth.va.value().wrapping_sub(r.va.value());
            let tail = done > 0 && done.checked_add(reth.len.into()) == Some(r.len.into());
            let packets = u64::from(u32::try_from(r.psn.distance_to(p.psn())).ok()?);
            MTUS.into_iter()
                .find(|m| tail && done == packets * u64::from(*m))
        });
        self.told(mtu);
    }

    /// READs that wait no longer, each with its PSNs.
    pub(super) fn settled(&mut self) -> impl Iterator<Item = (Psn, u32)> {
        let mtu = self.mtu;
        let n = if mtu.is_some() { self.open.len() } else { 0 };
        self.open
            .drain(..n)
            .map(move |r| (r.psn, r.cost(mtu.unwrap_or(MTUS[4]))))
    }

    /// A new connection: nothing waits any more.
    pub(super) fn forget(&mut self) {
        self.open.clear();
    }

    /// All READs that wait, with PSNs that rest on a guess if there is nothing better.
    pub(super) fn settle(&mut self, requests: &Psns) -> impl Iterator<Item = (Psn, u32)> {
        if self.mtu.is_none() && !self.open.is_empty() {
            self.mtu = Some(self.guess(requests));
        }
        self.settled()
    }

    /// The path MTU that leaves the fewest PSNs missing, of those that reserve none which another
    /// packet took.
    fn guess(&self, requests: &Psns) -> u32 {
        let shortest = self.shortest();
        let badness = |mtu: u32| {
            let mut after = requests.clone();
            let mut taken = 0;
            for r in &self.open {
                let least = r.cost(MTUS[4]);
                let more = r.cost(mtu) - least;
                taken += requests.seen_of(r.psn.add(least), more);
                after.reserve(r.psn, r.cost(mtu));
            }
            let missing: u64 = after.holes().map(super::psns::Hole::len).sum();
            (taken, missing)
        };
        let mtus = MTUS.into_iter().filter(|m| *m >= shortest).rev();
        mtus.min_by_key(|m| badness(*m)).unwrap_or(MTUS[4])
    }
}
