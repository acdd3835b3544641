//! What happened on a connection, as far as a capture shows it.
//!
//! A *flow* is one direction: all packets from `src` to `dst` with one destination QP (and one
//! source QP for datagrams, where DETH tells it). It holds the requests of the QP at `src` and its
//! responses to the requests of the peer; the two have PSN sequences of their own. What counts:
//!
//! * **First sighting**: a packet whose PSN was not seen before, whatever its order. Any other is a
//!   **repeat**. A READ request reserves the PSNs of its responses ([`super::reads`]); asking for
//!   some of them again is a repeat. Requests, and READ and atomic responses, are told apart.
//! * **Overtaken**: a first sighting behind a higher PSN, with the number of places it is late
//!   ([`Sighting::First`]). A packet lost in front of the capture and sent again looks the same.
//! * **Missing**: PSNs between others that were never seen, in so many **gaps**. Not those in front
//!   of the first packet of the capture. ACKs leave PSNs out, so of responses only those count that
//!   a READ or atomic of the peer waits for, if the capture shows it; if not, those that the First,
//!   Middle or Last packet next to them implies.
//! * **Duplicate**: a repeat with the same bytes (same ICRC, so over IPv4 also the same
//!   identification) as a packet of this flow less than [`DUPLICATE_NS`] ago, and nothing refused
//!   by the other side in between; any repeat of UC and UD, which send nothing twice. Also an ACK
//!   that acknowledges nothing new: a NAK acknowledges all before it, a READ or atomic response
//!   and a SACK what they name and all before (R6, R7).
//! * **Retransmission**: any other repeat.
//! * **NAK** and **RNR** count in the flow that carries them, i.e. that of the QP refusing.
//! * A jump of more than [`WINDOW`] PSNs either way is a new connection on the same QP number.
//!
//! Packets with a wrong ICRC are not looked at.

use std::collections::VecDeque;

use xroce_wire::newtypes::Psn;
use xroce_wire::opcode::{Operation, Position, Service};
use xroce_wire::syndrome::Syndrome;

use super::packet::{Icrc, Roce};
use super::psns::{Hole, Psns, Sent, Sighting, WINDOW};
use super::reads::Reads;

/// Two equal packets this close are one packet duplicated by the network: a requester waits longer
/// before it repeats on its own.
const DUPLICATE_NS: u64 = 1_000_000;
/// Packets remembered for comparison: at 10 Mpps these are 13 µs, enough for a copy that the
/// network makes.
const REMEMBERED: usize = 128;
/// Runs of responses remembered that the peer waits for. READs in a row are one run.
const AWAITED: usize = 4096;

/// Counts of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) packets: u64,
    pub(super) psn_gaps: u64,
    pub(super) psn_missing: u64,
    pub(super) overtaken: u64,
    /// Places that the packet overtaken most was late.
    pub(super) max_overtaken_by: u64,
    pub(super) duplicates: u64,
    pub(super) retransmissions: u64,
    pub(super) naks: u64,
    pub(super) rnrs: u64,
    pub(super) cnps: u64,
}

impl Counts {
    /// PSNs that were not seen.
    pub(super) const fn lost(&mut self, psns: u64) {
        if psns > 0 {
            self.psn_gaps += 1;
            self.psn_missing += psns;
        }
    }

    /// A packet that is no repeat.
    pub(super) fn late(&mut self, places: u64) {
        self.overtaken += u64::from(places > 0);
        self.max_overtaken_by = self.max_overtaken_by.max(places);
    }
}

/// A packet seen lately.
#[derive(Clone, Copy, Debug)]
struct Seen {
    psn: Psn,
    ts_ns: u64,
    /// `None` if the capture does not hold it.
    icrc: Option<[u8; 4]>,
    response: bool,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub(super) counts: Counts,
    requests: Psns,
    /// READ and atomic responses.
    responses: Psns,
    /// Highest PSN acknowledged to the peer.
    acked: Option<Psn>,
    reads: Reads,
    /// Runs of responses that requests of this flow wait for, and nobody was told of.
    asked: VecDeque<(Psn, u32)>,
    /// Runs of responses that the peer waits for.
    awaited: VecDeque<(Psn, u32)>,
    recent: VecDeque<Seen>,
}

impl Flow {
    /// Takes a packet into account. `refused_ns` is when the other side last refused or missed a
    /// request. Datagrams are judged by the sequence of the QP that sent them.
    /// Returns whether a new connection began on the same QP number.
    pub(super) fn packet(&mut self, ts_ns: u64, roce: &Roce<'_>, refused_ns: Option<u64>) -> bool {
        self.counts.packets += 1;
        let info = roce.packet.info();
        match info.service {
            Service::Cnp => self.counts.cnps += 1,
            Service::Ud => {}
            Service::Rc | Service::Uc | Service::Xrc | Service::Ext => {
                self.reads.learn(roce);
                let anew = if info.is_request {
                    self.request(ts_ns, roce, refused_ns)
                } else {
                    self.response(ts_ns, roce)
                };
                self.settle();
                return anew;
            }
        }
        false
    }

    fn request(&mut self, ts_ns: u64, roce: &Roce<'_>, refused_ns: Option<u64>) -> bool {
        let info = roce.packet.info();
        if info.operation == Operation::Probe {
            // It takes no PSN.
            return false;
        }
        let begun = self.requests.has_begun();
        self.reads.compare(roce);
        self.settle();
        let (cost, known) = self.reads.cost(roce);
        let sent = Sent {
            cost,
            ..sent(roce, 0)
        };
        let sighting = self.requests.see(&sent, self.reads.slack());
        if sighting == Sighting::Anew {
            self.reads.forget();
            self.asked.clear();
        }
        match sighting {
            Sighting::Anew => {}
            Sighting::First(places) => self.counts.late(places),
            Sighting::Again if info.service == Service::Uc => self.counts.duplicates += 1,
            Sighting::Again => self.repeated(ts_ns, roce, refused_ns),
        }
        for hole in self.requests.given_up() {
            self.counts.lost(hole.len());
        }
        self.remember(ts_ns, roce);
        if sighting != Sighting::Again {
            if !known {
                self.reads.wait(roce, &self.requests);
            } else if is_answered(info.operation) {
                push(&mut self.asked, (sent.psn, cost));
            }
        }
        begun && sighting == Sighting::Anew
    }

    /// READs whose cost has become known.
    fn settle(&mut self) {
        for (psn, cost) in self.reads.settled() {
            self.requests.reserve(psn, cost);
            push(&mut self.asked, (psn, cost));
        }
        for hole in self.requests.given_up() {
            self.counts.lost(hole.len());
        }
    }

    fn response(&mut self, ts_ns: u64, roce: &Roce<'_>) -> bool {
        let p = &roce.packet;
        let psn = p.psn();
        match p.aeth().map(|h| h.syndrome) {
            Some(Syndrome::RnrNak { .. }) => {
                self.counts.rnrs += 1;
                self.acknowledges(psn.sub(1));
                return false;
            }
            Some(Syndrome::Nak(_)) => {
                self.counts.naks += 1;
                self.acknowledges(psn.sub(1));
                return false;
            }
            Some(Syndrome::Reserved(_)) => {
                self.counts.naks += 1;
                return false;
            }
            Some(Syndrome::Ack { .. }) | None => {}
        }
        if let Some(seth) = p.seth() {
            self.acknowledges(seth.cack_psn);
            return false;
        }
        let news = self.acknowledges(psn);
        if p.info().operation == Operation::Acknowledge {
            self.counts.duplicates += u64::from(!news);
            return false;
        }
        let begun = self.responses.has_begun();
        let sighting = self.responses.see(&sent(roce, 0), 0);
        match sighting {
            Sighting::Anew => {}
            Sighting::First(places) => self.counts.late(places),
            Sighting::Again => self.repeated(ts_ns, roce, None),
        }
        for hole in self.responses.given_up() {
            self.counts.lost(unanswered(&self.awaited, &hole));
        }
        self.remember(ts_ns, roce);
        begun && sighting == Sighting::Anew
    }

    /// All up to `psn` is acknowledged. Whether that is news.
    fn acknowledges(&mut self, psn: Psn) -> bool {
        let ahead = self.acked.map(|acked| acked.distance_to(psn));
        let news = ahead.is_none_or(|d| d > 0 || d.unsigned_abs() > WINDOW);
        if news {
            self.acked = Some(psn);
        }
        news
    }

    /// Whether a response with this PSN may answer a request of this flow.
    pub(super) fn may_be_answered_by(&self, roce: &Roce<'_>) -> bool {
        let psn = roce.packet.psn();
        let known = |run: &(Psn, u32)| psn.is_within(run.0, run.1);
        let ack = roce.packet.info().operation == Operation::Acknowledge;
        self.requests.has(psn)
            && (ack || self.asked.iter().any(known) || self.reads.mtu().is_none())
    }

    /// Tells `peer`, the other direction of the same connection, what this one has found out.
    pub(super) fn tell(&mut self, peer: &mut Self) {
        for run in self.asked.drain(..) {
            push(&mut peer.awaited, run);
        }
        peer.reads.told(self.reads.mtu());
        peer.settle();
    }

    /// A packet seen before: a copy made by the network, or sent again?
    fn repeated(&mut self, ts_ns: u64, roce: &Roce<'_>, refused_ns: Option<u64>) {
        let icrc = fingerprint(roce);
        let copy = self.recent.iter().rev().any(|s| {
            s.psn == roce.packet.psn()
                && icrc.is_some()
                && s.icrc == icrc
                && s.response == roce.packet.info().is_response()
                && ts_ns.saturating_sub(s.ts_ns) < DUPLICATE_NS
                && refused_ns.is_none_or(|r| r < s.ts_ns)
        });
        if copy {
            self.counts.duplicates += 1;
        } else {
            self.counts.retransmissions += 1;
        }
    }

    fn remember(&mut self, ts_ns: u64, roce: &Roce<'_>) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(Seen {
            psn: roce.packet.psn(),
            ts_ns,
            icrc: fingerprint(roce),
            response: roce.packet.info().is_response(),
        });
    }

    /// Counts with what is missing up to here.
    pub(super) fn totals(&self) -> Counts {
        let mut counts = self.counts;
        let (mut reads, mut requests) = (self.reads.clone(), self.requests.clone());
        for (psn, cost) in reads.settle(&self.requests) {
            requests.reserve(psn, cost);
        }
        for hole in requests.holes() {
            counts.lost(hole.len());
        }
        for hole in self.responses.holes() {
            counts.lost(unanswered(&self.awaited, hole));
        }
        counts
    }
}

/// Whether a packet of a refusing or missing QP makes the other send again.
pub(super) fn refuses(roce: &Roce<'_>) -> bool {
    let syndrome = roce.packet.aeth().map(|h| h.syndrome);
    let nak = syndrome.is_some_and(|s| !matches!(s, Syndrome::Ack { .. }));
    nak || roce.packet.info().operation == Operation::Sack
}

/// What a packet other than a READ request takes.
pub(super) fn sent(roce: &Roce<'_>, owner: usize) -> Sent {
    let position = roce.packet.info().position;
    Sent {
        psn: roce.packet.psn(),
        cost: 1,
        goes_on: matches!(position, Position::First | Position::Middle),
        comes_from: matches!(position, Position::Middle | Position::Last),
        owner,
    }
}

/// Whether it is answered by responses of its own PSNs, rather than by any later ACK.
const fn is_answered(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::ReadRequest
            | Operation::CmpSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite
    )
}

/// Adds a run of PSNs, in their order, to the one before if it follows.
fn push(runs: &mut VecDeque<(Psn, u32)>, run: (Psn, u32)) {
    if let Some(last) = runs.back_mut()
        && last.0.add(last.1) == run.0
        && last.1.saturating_add(run.1) < WINDOW
    {
        last.1 += run.1;
        return;
    }
    // What is this old is of an earlier lap.
    let is_old = |old: &(Psn, u32)| old.0.distance_to(run.0).unsigned_abs() > 1 << 22;
    while runs.len() == AWAITED || runs.front().is_some_and(is_old) {
        runs.pop_front();
    }
    let behind = runs.iter().rev().take_while(|r| run.0.is_before(r.0));
    let at = runs.len() - behind.count();
    runs.insert(at, run);
}

/// How many responses of a hole are missing: those awaited, or else those that the packets next to
/// it imply.
fn unanswered(awaited: &VecDeque<(Psn, u32)>, hole: &Hole) -> u64 {
    let (start, len) = (hole.psn(), i64::try_from(hole.len()).unwrap_or(i64::MAX));
    let place = |run: &(Psn, u32)| {
        let from = i64::from(start.distance_to(run.0));
        (from, from + i64::from(run.1))
    };
    let first = awaited.partition_point(|run| place(run).1 <= 0);
    let runs = awaited.range(first..).map(place);
    let overlap = |(from, to): (i64, i64)| u64::try_from(to.min(len) - from.max(0)).unwrap_or(0);
    let known: u64 = runs.take_while(|r| r.0 < len).map(overlap).sum();
    match (hole.goes_on, hole.comes_from) {
        _ if known > 0 => known.min(hole.len()),
        (true, true) => hole.len(),
        (false, false) => 0,
        _ => 1,
    }
}

/// The ICRC received, as a fingerprint of the packet.
fn fingerprint(roce: &Roce<'_>) -> Option<[u8; 4]> {
    roce.frame
        .transport()
        .last_chunk()
        .copied()
        .filter(|_| roce.icrc != Icrc::Unknown)
}
