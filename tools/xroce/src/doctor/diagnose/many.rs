//! What happens to a few of many packets: loss, reordering, duplication.
//!
//! A train to which something happened is repeated. What happens once in three trains, to a few
//! packets, is told and is no fault: a busy host does that.

use super::super::facts::Trial;
use super::super::report::{Check, Fault, Finding, State};
use super::{OneWay, Why, percent};

/// Above this share, in thousandths, RDMA suffers: go-back-N sends a whole window again for each.
const SUFFERS: u64 = 1;
/// An accident that befell more of one train than this share, in thousandths, is worth a warning.
const GRAVE: u64 = 5;

/// How often something happened.
struct Counted {
    /// Packets it happened to.
    packets: u64,
    /// Of so many.
    of: u64,
    /// Trains it happened in.
    trains: usize,
    /// Whether it is a fault, and how bad.
    state: State,
}

fn count(trials: &[Trial], what: impl Fn(&Trial) -> u32) -> Counted {
    let each: Vec<(u64, u64)> = trials
        .iter()
        .map(|t| (u64::from(what(t)), u64::from(t.sent.packets)))
        .collect();
    let (packets, of) = each
        .iter()
        .fold((0, 0), |(packets, of), (n, m)| (packets + n, of + m));
    let trains = each.iter().filter(|(n, _)| *n > 0).count();
    let state = match trains {
        0 => State::Ok,
        1 if each.iter().any(|(n, of)| n * 1000 > of * GRAVE) => State::Warning,
        1 => State::Ok,
        _ if packets * 1000 >= of * SUFFERS => State::Problem,
        _ => State::Warning,
    };
    Counted {
        packets,
        of,
        trains,
        state,
    }
}

/// Whether losses come in bursts. The mean gap of independent losses with probability p is 1/(1 - p);
/// half as long again is none.
fn is_bursty(lost: &Counted, gaps: u64) -> bool {
    2 * lost.packets * lost.of.saturating_sub(lost.packets) > 3 * gaps * lost.of
}

impl OneWay<'_> {
    fn counted(&self, what: impl Fn(&Trial) -> u32, words: &str) -> (Counted, String) {
        let c = count(&self.d.many, what);
        let mut measured = format!("{} of {} packets {words}", c.packets, c.of);
        if c.packets > 0 {
            let (trains, all) = (c.trains, self.d.many.len());
            let share = percent(c.packets, c.of);
            measured += &format!(" ({share}, in {trains} of {all} trains)");
        }
        (c, measured)
    }

    /// Losses on the way, apart from those of the receiving host.
    pub(super) fn loss(&self, out: &mut Vec<Finding>) {
        let check = Check::Loss;
        let dropped = |t: &Trial| u32::try_from(t.heard.dropped_here).unwrap_or(u32::MAX);
        let (local, drops) = self.counted(dropped, "dropped by the receiving host itself");
        let (c, mut measured) = self.counted(Trial::lost, "lost");
        let gaps: u64 = self.d.many.iter().map(|t| u64::from(t.heard.gaps)).sum();
        let longest = self.d.many.iter().map(|t| t.heard.longest_gap).max();
        let longest = longest.unwrap_or(0);
        if c.packets > 0 {
            measured += &format!(", in {gaps} gaps of up to {longest}");
        }
        if local.packets > 0 {
            measured += &format!("; {drops}");
        }
        if c.state != State::Ok {
            let cause = if is_bursty(&c, gaps) {
                "in bursts: a queue on the way overflows because PFC or ECN do not hold the \
                 senders back, or a link goes up and down"
            } else {
                "one by one: a cable, optics or a switch port with bit errors, or a policer"
            };
            let why = Why {
                fault: Fault::Loss,
                cause: cause.to_owned(),
                remedy: "look at the error and discard counters of every port on the way (FCS \
                         errors, symbol errors, buffer discards), at ethtool -S of both hosts, and \
                         at the PFC configuration of the RoCE class"
                    .to_owned(),
            };
            out.push(self.wrong(check, c.state, measured, why));
        } else if local.trains > 1 {
            let why = Why {
                fault: Fault::ReceiverDrops,
                cause: "the receiving host is too slow or too busy for its own queue, which has \
                        nothing to do with the path"
                    .to_owned(),
                remedy: "free a core for the receiver (--core), and raise the rings or \
                         net.core.rmem_max"
                    .to_owned(),
            };
            out.push(self.wrong(check, State::Warning, measured, why));
        } else {
            out.push(self.fine(check, measured));
        }
    }

    /// Packets that overtake each other.
    pub(super) fn order(&self, out: &mut Vec<Finding>) {
        let check = Check::Order;
        let (c, mut measured) = self.counted(|t| t.heard.reordered, "came too late");
        let places = self.d.many.iter().map(|t| t.heard.displacement).max();
        if c.packets > 0 {
            let places = places.unwrap_or(0);
            measured += &format!(", by {places} places at most");
        }
        if c.state == State::Ok {
            out.push(self.fine(check, measured));
            return;
        }
        let why = Why {
            fault: Fault::Reordering,
            cause: "packets of one flow take several ways: load balancing by packet instead of by \
                    flow (packet spraying, adaptive routing, round-robin bonding), or a parallel \
                    middlebox"
                .to_owned(),
            remedy:
                "balance by flow (ECMP and LAG hash over addresses and UDP source port), or use \
                     adapters that take packets out of order; go-back-N treats each as a loss"
                    .to_owned(),
        };
        out.push(self.wrong(check, c.state, measured, why));
    }

    /// Packets that come twice.
    pub(super) fn duplicates(&self, out: &mut Vec<Finding>) {
        let check = Check::Duplicates;
        let (c, measured) = self.counted(|t| t.heard.duplicates, "came again");
        if c.state == State::Ok {
            out.push(self.fine(check, measured));
            return;
        }
        let why = Why {
            fault: Fault::Duplication,
            cause: "a mirror port or a loop feeds packets back, or a bond sends them twice"
                .to_owned(),
            remedy: "look for mirror sessions that end in this network, for loops (spanning tree) \
                     and for a bond in broadcast mode"
                .to_owned(),
        };
        out.push(self.wrong(check, State::Warning, measured, why));
    }
}
