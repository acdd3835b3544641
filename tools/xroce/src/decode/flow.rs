//! What happened on a connection, as far as a capture shows it.
//!
//! A *flow* is one direction: all packets from `src` to `dst` with one destination QP (and one
//! source QP for datagrams, where DETH tells it). It holds the requests of the QP at `src` and its
//! responses to the requests of the peer; the two have PSN sequences of their own. How the numbers
//! come about:
//!
//! * **Requests** (RC, XRC, UC). The next new PSN is one beyond the highest so far; a READ request
//!   for n response packets reserves n PSNs, which the responses carry, so that the next request
//!   is n further. n depends on the path MTU, which is learned from First and Middle packets, or
//!   from the distance to the next request, or from a READ repeated from its middle.
//! * **PSN gap**: a request beyond the next new PSN, or a READ response Middle/Last that does not
//!   follow the one before. `psn_missing` adds up the PSNs left out. ACKs may leave PSNs out (they
//!   coalesce) and so may the First response of a READ.
//! * **Duplicate**: a packet sent once and seen twice, that is with a PSN passed before, the same
//!   bytes (same ICRC, so over IPv4 also the same identification) as a packet of this flow less
//!   than [`DUPLICATE_NS`] ago, and no NAK from the other side in between. Also a positive ACK that
//!   acknowledges nothing new.
//! * **Retransmission**: any other request, READ response or atomic response with a PSN passed
//!   before. A capture cannot tell a packet that was overtaken by others from one sent again: it
//!   counts here, too.
//! * **NAK** and **RNR** count in the flow that carries them, i.e. that of the QP refusing.
//! * A jump of more than [`NEW_CONNECTION`] PSNs either way is a new connection on the same QP number.
//!
//! PSNs of datagrams are not judged: a QP numbers those to all its peers in one sequence.
//! Packets with a wrong ICRC are not looked at.

use std::collections::VecDeque;

use xroce_wire::newtypes::{Psn, Va};
use xroce_wire::opcode::{Operation, Position, Service};
use xroce_wire::syndrome::Syndrome;

use super::packet::{Icrc, Roce};

/// Two equal packets this close are one packet duplicated by the network: a requester waits longer
/// before it repeats on its own.
const DUPLICATE_NS: u64 = 1_000_000;
/// Packets remembered for comparison: at 10 Mpps these are 13 µs, enough for a copy that the
/// network makes.
const REMEMBERED: usize = 128;
/// No requester has that many PSNs outstanding.
const NEW_CONNECTION: u32 = 1 << 16;
/// Path MTUs there are.
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// Counts of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) packets: u64,
    pub(super) psn_gaps: u64,
    pub(super) psn_missing: u64,
    pub(super) duplicates: u64,
    pub(super) retransmissions: u64,
    pub(super) naks: u64,
    pub(super) rnrs: u64,
    pub(super) cnps: u64,
}

/// A READ whose PSN cost is not known, since the path MTU is not.
#[derive(Clone, Copy, Debug)]
struct OpenRead {
    psn: Psn,
    va: Va,
    len: u32,
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
    /// Next new PSN of the requests.
    next_request: Option<Psn>,
    /// One beyond the highest PSN answered.
    next_response: Option<Psn>,
    mtu: Option<u32>,
    last_read: Option<OpenRead>,
    recent: VecDeque<Seen>,
}

/// Where a packet stands in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Next,
    /// Ahead, with this many PSNs left out.
    Ahead(u32),
    Passed,
    /// The first, or too far away to belong to the sequence.
    Anew,
}

fn place(next: Option<Psn>, psn: Psn) -> Place {
    let Some(next) = next else { return Place::Anew };
    let distance = next.distance_to(psn);
    match (distance, distance.unsigned_abs()) {
        (0, _) => Place::Next,
        (_, d) if d > NEW_CONNECTION => Place::Anew,
        (1.., d) => Place::Ahead(d),
        _ => Place::Passed,
    }
}

impl Flow {
    /// Takes a packet into account. `refused_ns` is when the other side last sent a NAK.
    pub(super) fn packet(&mut self, ts_ns: u64, roce: &Roce<'_>, refused_ns: Option<u64>) {
        self.counts.packets += 1;
        let info = roce.packet.info();
        let reliable = matches!(info.service, Service::Rc | Service::Uc | Service::Xrc);
        if info.operation == Operation::Cnp {
            self.counts.cnps += 1;
        } else if reliable && info.is_request {
            self.learn_mtu(roce);
            self.request(ts_ns, roce, refused_ns);
        } else if reliable {
            self.response(ts_ns, roce);
        }
    }

    fn request(&mut self, ts_ns: u64, roce: &Roce<'_>, refused_ns: Option<u64>) {
        let p = &roce.packet;
        let psn = p.psn();
        self.settle_read(roce);
        let place = place(self.next_request, psn);
        match place {
            Place::Passed => self.repeated(ts_ns, roce, refused_ns),
            Place::Ahead(missing) => self.gap(missing),
            Place::Next | Place::Anew => {}
        }
        self.remember(ts_ns, roce);
        if place == Place::Passed {
            return;
        }
        let read = p
            .reth()
            .filter(|_| p.info().operation == Operation::ReadRequest);
        let cost = match (read, self.mtu) {
            (Some(reth), Some(mtu)) => reth.len.div_ceil(mtu).max(1),
            // At least this; more is found out by `settle_read`.
            (Some(reth), None) => {
                self.last_read = Some(OpenRead {
                    psn,
                    va: reth.va,
                    len: reth.len,
                });
                reth.len.div_ceil(MTUS[4]).max(1)
            }
            (None, _) => 1,
        };
        if read.is_none() || self.mtu.is_some() {
            self.last_read = None;
        }
        self.next_request = Some(psn.add(cost));
    }

    /// First and Middle packets are as long as the path MTU.
    fn learn_mtu(&mut self, roce: &Roce<'_>) {
        let len = roce.packet.payload().len();
        let full = matches!(
            roce.packet.info().position,
            Position::First | Position::Middle
        );
        self.mtu = self
            .mtu
            .or_else(|| MTUS.into_iter().find(|m| full && *m as usize == len));
    }

    /// With a READ of unknown cost before: finds the path MTU that explains this request, or else
    /// the cost that leaves the smallest gap.
    fn settle_read(&mut self, roce: &Roce<'_>) {
        let (p, Some(read)) = (&roce.packet, self.last_read) else {
            return;
        };
        let Ok(ahead @ 1..) = u32::try_from(read.psn.distance_to(p.psn())) else {
            return;
        };
        let cost = |mtu: u32| read.len.div_ceil(mtu).max(1);
        // A READ repeated from its middle asks for the rest of the same range.
        let done = p.reth().and_then(|r| {
            let done = r.va.value().wrapping_sub(read.va.value());
            let tail = done > 0 && done.checked_add(u64::from(r.len)) == Some(u64::from(read.len));
            tail.then_some(done)
        });
        let explains = |mtu: &u32| match done {
            Some(done) => done == u64::from(ahead) * u64::from(*mtu),
            None => cost(*mtu) == ahead,
        };
        let mut fitting = MTUS.into_iter().filter(explains);
        let (first, another) = (fitting.next(), fitting.next());
        if another.is_none() {
            // A READ of few bytes fits several and teaches nothing.
            self.mtu = self.mtu.or(first);
        }
        let reserved = match self.mtu.or(first) {
            Some(mtu) => Some(cost(mtu)),
            None => MTUS.into_iter().map(cost).filter(|c| *c <= ahead).max(),
        };
        if let Some(reserved) = reserved {
            self.next_request = Some(read.psn.add(reserved));
            self.last_read = None;
        }
    }

    fn response(&mut self, ts_ns: u64, roce: &Roce<'_>) {
        let p = &roce.packet;
        let (psn, info) = (p.psn(), p.info());
        match p.aeth().map(|h| h.syndrome) {
            Some(Syndrome::RnrNak { .. }) => {
                self.counts.rnrs += 1;
                return;
            }
            Some(Syndrome::Nak(_) | Syndrome::Reserved(_)) => {
                self.counts.naks += 1;
                return;
            }
            Some(Syndrome::Ack { .. }) | None => {}
        }
        let place = place(self.next_response, psn);
        let follows = matches!(info.position, Position::Middle | Position::Last);
        match place {
            Place::Passed if info.operation == Operation::Acknowledge => {
                self.counts.duplicates += 1;
            }
            Place::Passed => self.repeated(ts_ns, roce, None),
            Place::Ahead(missing) if follows => self.gap(missing),
            Place::Ahead(_) | Place::Next | Place::Anew => {}
        }
        self.remember(ts_ns, roce);
        if place != Place::Passed {
            self.next_response = Some(psn.add(1));
        }
    }

    fn gap(&mut self, missing: u32) {
        self.counts.psn_gaps += 1;
        self.counts.psn_missing += u64::from(missing);
    }

    /// A packet whose PSN was passed: a copy made by the network, or sent again?
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
}

/// The ICRC received, as a fingerprint of the packet.
fn fingerprint(roce: &Roce<'_>) -> Option<[u8; 4]> {
    roce.frame
        .transport()
        .last_chunk()
        .copied()
        .filter(|_| roce.icrc != Icrc::Unknown)
}
