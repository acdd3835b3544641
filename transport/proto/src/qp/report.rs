//! What a QP says when it dies: facts. What they usually mean is for whoever knows what happened
//! below it, the engine.

use core::fmt;

use serde::{Deserialize, Serialize};
use xroce_wire::newtypes::{Gid, Psn, Qpn, RKey, Va};
use xroce_wire::opcode::Operation;
use xroce_wire::syndrome::{NakCode, RnrTimer, Syndrome};

use super::{Arrival, Qp};
use crate::counters::Counters;
use crate::memory::KeyError;
use crate::time::Instant;
use crate::wc::WcStatus;

/// The last response a QP has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LastSeen {
    /// When; `None` if nothing ever came back.
    pub at: Option<Instant>,
    /// Its PSN.
    pub psn: Psn,
    /// Its syndrome, where it had one.
    pub syndrome: Option<Syndrome>,
}

/// The request that a QP failed with: its own one, or the peer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// What it asks for.
    pub operation: Operation,
    /// PSN of its first packet, or of the packet refused.
    pub psn: Psn,
    /// Key, where it names memory.
    pub rkey: Option<RKey>,
    /// Address, where it names memory.
    pub va: Va,
    /// Bytes.
    pub len: u32,
}

/// Why a responder refused a request for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// The key, or what it gives access to.
    Key(KeyError),
    /// The memory went away, or cannot be used so, after the key was found good.
    MemoryGone,
    /// The access flags of the QP do not allow this operation.
    NotAllowed,
    /// A packet that does not continue what came before it.
    Sequence,
    /// More READs and atomics at once than `max_dest_rd_atomic`.
    TooManyReads(u8),
    /// Longer than the receive it falls on, which has so many bytes.
    TooLong {
        /// Bytes of the receive.
        capacity: u64,
    },
    /// Lengths, padding or alignment that cannot be.
    Malformed,
    /// The own receive buffer cannot be written.
    OwnBuffer,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(error) => write!(f, "{error}"),
            Self::MemoryGone => f.write_str("the memory was taken away or its key invalidated"),
            Self::NotAllowed => {
                f.write_str("the access flags of this queue pair do not allow this operation")
            }
            Self::Sequence => f.write_str("the packet does not continue the one before it"),
            Self::TooManyReads(limit) => {
                write!(
                    f,
                    "more READs and atomics at once than max_dest_rd_atomic, {limit}"
                )
            }
            Self::TooLong { capacity } => {
                write!(f, "longer than the posted receive of {capacity} bytes")
            }
            Self::Malformed => f.write_str(
                "lengths or alignment that cannot be: do both sides use the same path MTU?",
            ),
            Self::OwnBuffer => f.write_str("the posted receive buffer cannot be written"),
        }
    }
}

/// Why a QP went to ERR by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailureReport {
    /// Own number.
    pub qpn: Qpn,
    /// Number of the peer.
    pub dest_qpn: Qpn,
    /// Own address.
    pub local: Gid,
    /// Address of the peer.
    pub peer: Gid,
    /// When.
    pub at: Instant,
    /// Status of the work request that failed.
    pub status: WcStatus,
    /// Its `wr_id`; `None` when no work request was involved.
    pub wr_id: Option<u64>,
    /// The request it failed with.
    pub request: Option<Request>,
    /// Of a responder: why it refused that.
    pub refusal: Option<Refusal>,
    /// Last PSN sent.
    pub last_psn_sent: Psn,
    /// Last PSN acknowledged.
    pub last_psn_acked: Psn,
    /// PSN this side expected next.
    pub expected_psn: Psn,
    /// Path MTU, bytes.
    pub path_mtu: u32,
    /// Payload of the oldest packet not acknowledged or, of a READ, of the response to it, bytes;
    /// 0: nothing was outstanding.
    pub lost_payload: u32,
    /// Largest payload among the packets that were timed, and so arrived, bytes.
    pub largest_acked: u32,
    /// Hop limit of packets sent.
    pub hop_limit: u8,
    /// Retries configured.
    pub retry_cnt: u8,
    /// RNR retries configured.
    pub rnr_retry: u8,
    /// The last response seen.
    pub last_seen: LastSeen,
    /// The last packet that came on another path than this QP's.
    pub stray: Option<Arrival>,
    /// Whether the peer's request was at fault (responder side) or the own one.
    pub by_responder: bool,
    /// All counters at that time.
    pub counters: Counters,
}

/// A NAK in words.
const fn words(code: NakCode) -> &'static str {
    match code {
        NakCode::PsnSequence => "NAK, sequence error",
        NakCode::InvalidRequest => "NAK, invalid request",
        NakCode::RemoteAccess => "NAK, remote access error",
        NakCode::RemoteOperational => "NAK, remote operational error",
        NakCode::InvalidRdRequest => "NAK, invalid RD request",
    }
}

struct Said(Option<Syndrome>);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("READ response"),
            Some(Syndrome::Ack { .. }) => f.write_str("ACK"),
            Some(Syndrome::RnrNak { timer }) => {
                write!(f, "RNR NAK, wait {} µs", RnrTimer::nanos(timer) / 1000)
            }
            Some(Syndrome::Nak(code)) => f.write_str(words(code)),
            Some(Syndrome::Reserved(byte)) => write!(f, "reserved syndrome {byte:#04x}"),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.operation {
            Operation::Send => "SEND",
            Operation::Write => "RDMA WRITE",
            Operation::ReadRequest => "RDMA READ",
            Operation::CmpSwap => "compare and swap",
            Operation::FetchAdd => "fetch and add",
            Operation::Flush => "FLUSH",
            Operation::AtomicWrite => "ATOMIC WRITE",
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Cnp
            | Operation::Sack
            | Operation::Probe => "packet",
        };
        write!(
            f,
            "{name} of {} bytes at PSN {:#x}",
            self.len,
            self.psn.value()
        )?;
        if let Some(rkey) = self.rkey {
            let (key, va) = (rkey.value(), self.va.value());
            write!(f, ", R_Key {key:#010x}, address {va:#x}")?;
        }
        Ok(())
    }
}

impl Qp {
    /// What is known when a work request fails, or a request of the peer is refused.
    pub(super) fn failure_report(
        &self,
        at: Instant,
        status: WcStatus,
        wr_id: Option<u64>,
        request: Option<Request>,
        refusal: Option<Refusal>,
    ) -> FailureReport {
        let lost = self
            .tx
            .is_outstanding()
            .then(|| self.sq.find(self.tx.una_psn));
        let lost_payload = lost.flatten().map_or(0, |index| {
            let wqe = self.sq.wqe(index);
            let packet = wqe.first_psn.distance_to(self.tx.una_psn).unsigned_abs();
            self.payload_at(wqe, packet)
        });
        FailureReport {
            qpn: self.cold.qpn,
            dest_qpn: self.cold.dest_qpn,
            local: self.cold.av.src,
            peer: self.cold.av.dst,
            at,
            status,
            wr_id,
            request,
            refusal,
            last_psn_sent: self.tx.max_psn.sub(1),
            last_psn_acked: self.tx.una_psn.sub(1),
            expected_psn: self.rx.expected_psn,
            path_mtu: 1 << self.tx.mtu.shift(),
            lost_payload,
            largest_acked: self.cold.largest_acked,
            hop_limit: self.cold.av.hop_limit,
            retry_cnt: self.cold.retry_cnt,
            rnr_retry: self.cold.rnr_retry,
            last_seen: self.cold.last_seen,
            stray: self.cold.stray.as_deref().copied(),
            by_responder: refusal.is_some(),
            counters: self.counters.all(),
        }
    }
}

/// Several lines, without a newline at the end.
impl fmt::Display for FailureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counters;
        write!(
            f,
            "QP {:#x} ({}) to QP {:#x} ({}): {:?}",
            self.qpn.value(),
            self.local,
            self.dest_qpn.value(),
            self.peer,
            self.status
        )?;
        if let Some(wr_id) = self.wr_id {
            write!(f, " on work request {wr_id}")?;
        }
        if self.by_responder {
            f.write_str(" caused by a request of the peer")?;
        }
        if let Some(request) = &self.request {
            write!(f, "\n  request: {request}")?;
        }
        if let Some(refusal) = &self.refusal {
            write!(f, "\n  refused: {refusal}")?;
        }
        write!(
            f,
            "\n  sent up to PSN {:#x}, acknowledged up to {:#x}, expecting {:#x}",
            self.last_psn_sent.value(),
            self.last_psn_acked.value(),
            self.expected_psn.value(),
        )?;
        write!(
            f,
            "\n  {} packets sent again, {} timeouts (retry_cnt {}), {} sequence NAKs, {} RNR NAKs \
             (rnr_retry {})",
            c.retransmits, c.timeouts, self.retry_cnt, c.seq_naks_in, c.rnr_naks_in, self.rnr_retry,
        )?;
        match self.last_seen.at {
            None => f.write_str("\n  nothing ever came back")?,
            Some(at) => {
                let ago = self.at.since(at).as_nanos() / 1_000;
                let (said, psn) = (Said(self.last_seen.syndrome), self.last_seen.psn.value());
                write!(f, "\n  last response {ago} µs before: {said}, PSN {psn:#x}")?;
            }
        }
        if let Some(stray) = &self.stray {
            write!(
                f,
                "\n  {} packets on another path, the last from {} to {}",
                c.wrong_path, stray.src, stray.dst
            )?;
            if stray.vid != 0 {
                write!(f, " in VLAN {}", stray.vid)?;
            }
        }
        Ok(())
    }
}
