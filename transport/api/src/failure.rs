//! Why a QP died, with what only the engine knows, and what that usually means.

use std::fmt;

use serde::{Deserialize, Serialize};
use xroce_proto::counters::Counters;
use xroce_proto::qp::Arrival;
use xroce_proto::qp::report::FailureReport;
use xroce_proto::wc::WcStatus;
use xroce_wire::newtypes::{Gid, PathMtu};

use crate::icmp::{IcmpError, IcmpReason, IcmpSeen};

/// A failed QP: its own report, and what was seen below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The queue pair's own report.
    pub report: FailureReport,
    /// Packets for this QP that failed the ICRC check.
    pub icrc_errors: u64,
    /// Packets from the peer's address, for whatever QP, that failed it.
    pub icrc_from_peer: u64,
    /// Where the last packet for this QP that failed it came from.
    pub icrc_last_from: Option<Gid>,
    /// ICMP errors about packets of this QP.
    pub icmp: IcmpSeen,
    /// The address of this QP is not the port's any more.
    pub address_gone: bool,
    /// The link is down.
    pub link_down: bool,
    /// Packets for queue pairs that do not exist, since the engine started.
    pub unknown_qp: u64,
}

/// What may have happened. In words: [`fmt::Display`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The own address was removed.
    AddressGone(Gid),
    /// The link is down.
    LinkDown,
    /// Packets are larger than a link on the way carries.
    PathMtu {
        /// Path MTU of the QP, bytes.
        path_mtu: u32,
        /// IP MTU a router named, bytes.
        link: Option<u32>,
    },
    /// Packets use up their hop limit.
    HopLimit(u8),
    /// A router or the peer's host says that it cannot deliver them.
    Undeliverable(IcmpError),
    /// What comes back fails the ICRC check: changed, or rewritten by a NAT.
    Rewritten {
        /// Where it came from.
        from: Option<Gid>,
        /// The peer.
        peer: Gid,
    },
    /// The peer's packets come on another path.
    OtherPath(Arrival),
    /// No such QP at the peer, or not ready yet.
    NoPeer,
    /// Something on the way drops RoCE packets.
    Firewall,
    /// Something rewrites addresses or ports of what is sent, so that the peer drops it.
    Nat,
    /// The peer stopped.
    PeerStopped,
    /// More loss than retries allow for.
    Loss,
    /// The peer posts no receives.
    NoReceives,
    /// The key named is not good at the peer.
    BadKey,
    /// The range named is not inside the peer's region, or lacks the right.
    BadRange,
    /// The peer's QP does not allow the operation.
    NotAllowed,
    /// A SEND was longer than the peer's receive.
    SendTooLong,
    /// The two sides have different path MTUs.
    DifferentMtus,
    /// The peer cannot access its own buffer.
    PeerBuffer,
    /// A local key is wrong.
    LocalKey,
    /// The peer answers what the request cannot have.
    BadAnswer,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::AddressGone(gid) => {
                return write!(f, "the address {gid} was removed from this host");
            }
            Self::LinkDown => "the link of this port is down",
            Self::PathMtu { path_mtu, link } => return path_mtu_words(f, *path_mtu, *link),
            Self::HopLimit(limit) => {
                return write!(
                    f,
                    "the hop limit of {limit} is used up on the way: a routing loop, or too small \
                     a limit"
                );
            }
            Self::Undeliverable(error) => return write!(f, "{error}"),
            Self::Rewritten { from, peer } => return rewritten_words(f, *from, *peer),
            Self::OtherPath(stray) => {
                return write!(
                    f,
                    "packets come from {} to {} in VLAN {} instead: the peer uses another address \
                     or VLAN than the one it gave",
                    stray.src, stray.dst, stray.vid
                );
            }
            Self::NoPeer => {
                "the peer is down, or has no such queue pair in RTR or RTS: compare the queue pair \
                 numbers and addresses that both sides use"
            }
            Self::Firewall => "a firewall drops UDP port 4791",
            Self::Nat => {
                "something on the way rewrites addresses or ports (NAT), so that the peer's ICRC \
                 check fails: look at its ICRC errors"
            }
            Self::PeerStopped => {
                "the peer stopped: its process ended, its queue pair went to ERR or a link failed"
            }
            Self::Loss => "heavier loss than retry_cnt and timeout allow for",
            Self::NoReceives => {
                "the peer posts no receives, or too few or too slowly for rnr_retry"
            }
            Self::BadKey => "the R_Key is wrong, invalidated or of another protection domain",
            Self::BadRange => {
                "the address range is not inside the peer's memory region, or the region lacks the \
                 right"
            }
            Self::NotAllowed => {
                "the peer's queue pair does not allow this operation (access flags, READ limit)"
            }
            Self::SendTooLong => "the SEND was longer than the peer's receive buffer",
            Self::DifferentMtus => "the two sides use different path MTUs",
            Self::PeerBuffer => "the peer could not access its own receive buffer",
            Self::LocalKey => {
                "a local key is wrong, deregistered, of another protection domain or lacks the right"
            }
            Self::BadAnswer => "the peer answered what the request cannot have",
        };
        f.write_str(text)
    }
}

fn rewritten_words(f: &mut fmt::Formatter<'_>, from: Option<Gid>, peer: Gid) -> fmt::Result {
    f.write_str("packets that come back fail the ICRC check")?;
    match from.filter(|from| *from != peer) {
        Some(from) => write!(
            f,
            ", and come from {from} instead of {peer}: something rewrites addresses (NAT), which \
             RoCE does not survive"
        ),
        None => f.write_str(
            ": something on the way corrupts them, or rewrites addresses or ports (NAT)",
        ),
    }
}

fn path_mtu_words(f: &mut fmt::Formatter<'_>, path_mtu: u32, link: Option<u32>) -> fmt::Result {
    write!(f, "path MTU {path_mtu} is larger than the way carries")?;
    let fitting = match link {
        Some(mtu) => {
            write!(f, ": a router says that a link has an IP MTU of {mtu}")?;
            PathMtu::for_link_mtu(mtu as usize)
        }
        None => {
            f.write_str(": smaller packets arrived, larger ones did not")?;
            None
        }
    };
    match fitting {
        Some(fitting) => write!(f, "; use path MTU {} or less", fitting.bytes()),
        None => f.write_str("; use a smaller path MTU or raise the MTU of the links"),
    }
}

impl Failure {
    /// What probably happened, most likely first.
    #[must_use]
    pub fn likely_causes(&self) -> Vec<Cause> {
        if self.report.by_responder {
            // What was refused and why is known.
            return Vec::new();
        }
        match self.report.status {
            WcStatus::RetryExcErr => self.silence(),
            WcStatus::RnrRetryExcErr => vec![Cause::NoReceives],
            WcStatus::RemAccessErr => vec![Cause::BadKey, Cause::BadRange],
            WcStatus::RemInvReqErr => {
                vec![Cause::NotAllowed, Cause::SendTooLong, Cause::DifferentMtus]
            }
            WcStatus::RemOpErr => vec![Cause::PeerBuffer],
            WcStatus::LocProtErr => vec![Cause::LocalKey],
            WcStatus::BadRespErr => vec![Cause::BadAnswer],
            _ => Vec::new(),
        }
    }

    /// Why there was no answer: what is certain, then what is likely.
    fn silence(&self) -> Vec<Cause> {
        let report = &self.report;
        let mut causes = Vec::new();
        if self.address_gone {
            causes.push(Cause::AddressGone(report.local));
        }
        if self.link_down {
            causes.push(Cause::LinkDown);
        }
        causes.extend(self.told());
        let arrived = report.last_seen.at.is_some();
        let path_mtu = Cause::PathMtu {
            path_mtu: report.path_mtu,
            link: None,
        };
        let told_mtu = self.icmp.mtu.is_some();
        // What fits where smaller ones fit: only a larger one tells something.
        if arrived && report.lost_payload > report.largest_acked.max(SMALL) && !told_mtu {
            causes.push(path_mtu);
        }
        if self.icrc_errors != 0 || self.icrc_from_peer != 0 {
            causes.push(Cause::Rewritten {
                from: self.icrc_last_from,
                peer: report.peer,
            });
        }
        causes.extend(report.stray.map(Cause::OtherPath));
        if arrived {
            causes.extend([Cause::PeerStopped, Cause::Loss]);
        } else {
            causes.extend([Cause::NoPeer, Cause::Firewall]);
            if report.lost_payload > SMALL && !told_mtu {
                causes.push(path_mtu);
            }
            causes.push(Cause::Nat);
        }
        causes
    }

    /// What an ICMP message says.
    fn told(&self) -> Option<Cause> {
        let error = self.icmp.last?;
        let path_mtu = self.report.path_mtu;
        Some(match (self.icmp.mtu, error.reason) {
            (Some(mtu), _) => Cause::PathMtu {
                path_mtu,
                link: Some(mtu),
            },
            (None, IcmpReason::TooLong { .. }) => Cause::PathMtu {
                path_mtu,
                link: None,
            },
            (None, IcmpReason::HopLimit) => Cause::HopLimit(self.report.hop_limit),
            _ => Cause::Undeliverable(error),
        })
    }

    /// The same for tools: numbers and words under stable names.
    #[must_use]
    pub fn facts(&self) -> FailureFacts {
        let report = &self.report;
        let counters = Counters::TABLE
            .iter()
            .map(|info| (info.name, (info.get)(&report.counters)));
        FailureFacts {
            qpn: report.qpn.value(),
            dest_qpn: report.dest_qpn.value(),
            local: report.local.to_string(),
            peer: report.peer.to_string(),
            status: format!("{:?}", report.status),
            wr_id: report.wr_id,
            by_responder: report.by_responder,
            request: report.request.map(|request| request.to_string()),
            rkey: report.request.and_then(|r| r.rkey).map(|k| k.value()),
            refusal: report.refusal.map(|refusal| refusal.to_string()),
            last_psn_sent: report.last_psn_sent.value(),
            last_psn_acked: report.last_psn_acked.value(),
            expected_psn: report.expected_psn.value(),
            path_mtu: report.path_mtu,
            retry_cnt: report.retry_cnt,
            rnr_retry: report.rnr_retry,
            silent_ns: report.last_seen.at.map(|at| report.at.since(at).as_nanos()),
            last_response_psn: report.last_seen.at.map(|_| report.last_seen.psn.value()),
            last_syndrome: report.last_seen.syndrome.map(|s| format!("{s:?}")),
            icrc_errors: self.icrc_errors,
            icrc_from_peer: self.icrc_from_peer,
            icrc_last_from: self.icrc_last_from.map(|gid| gid.to_string()),
            icmp_errors: self.icmp.count,
            icmp_last: self.icmp.last.map(|error| error.to_string()),
            address_gone: self.address_gone,
            link_down: self.link_down,
            unknown_qp: self.unknown_qp,
            likely_causes: self.likely_causes().iter().map(Cause::to_string).collect(),
            counters: counters.collect(),
        }
    }
}

/// Payloads up to this many bytes pass every link IPv6 may use (RFC 8200: 1280).
const SMALL: u32 = 1024;

/// A [`Failure`] as plain numbers and words, for JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[allow(
    missing_docs,
    reason = "named after the fields of Failure and FailureReport"
)]
pub struct FailureFacts {
    pub qpn: u32,
    pub dest_qpn: u32,
    pub local: String,
    pub peer: String,
    pub status: String,
    pub wr_id: Option<u64>,
    pub by_responder: bool,
    pub request: Option<String>,
    pub rkey: Option<u32>,
    pub refusal: Option<String>,
    pub last_psn_sent: u32,
    pub last_psn_acked: u32,
    pub expected_psn: u32,
    pub path_mtu: u32,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    /// Since the last response, ns; none if nothing ever came back.
    pub silent_ns: Option<u64>,
    pub last_response_psn: Option<u32>,
    pub last_syndrome: Option<String>,
    pub icrc_errors: u64,
    pub icrc_from_peer: u64,
    pub icrc_last_from: Option<String>,
    pub icmp_errors: u64,
    pub icmp_last: Option<String>,
    pub address_gone: bool,
    pub link_down: bool,
    pub unknown_qp: u64,
    /// Most likely first.
    pub likely_causes: Vec<String>,
    pub counters: std::collections::BTreeMap<&'static str, u64>,
}

/// Several lines, without a newline at the end.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report.fmt(f)?;
        if self.icrc_errors != 0 || self.icrc_from_peer != 0 {
            write!(
                f,
                "\n  {} packets for this queue pair failed the ICRC check, {} from its peer's address",
                self.icrc_errors, self.icrc_from_peer
            )?;
        }
        if let Some(error) = &self.icmp.last {
            write!(f, "\n  ICMP errors: {}, the last: {error}", self.icmp.count)?;
        }
        if self.unknown_qp != 0 {
            write!(
                f,
                "\n  {} packets came for queue pairs that do not exist",
                self.unknown_qp
            )?;
        }
        for (n, cause) in (1..).zip(self.likely_causes()) {
            let lead = if n == 1 { "likely:" } else { "       " };
            write!(f, "\n  {lead} {n}. {cause}")?;
        }
        Ok(())
    }
}
