//! What a QP says when it dies: facts first, then what they usually mean.

use core::fmt;

use xroce_wire::newtypes::{Gid, Psn, Qpn};
use xroce_wire::syndrome::Syndrome;

use crate::counters::Counters;
use crate::time::Instant;
use crate::wc::WcStatus;

/// The last response a QP has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LastSeen {
    /// When; `None` if nothing ever came back.
    pub at: Option<Instant>,
    /// Its PSN.
    pub psn: Psn,
    /// Its syndrome, where it had one.
    pub syndrome: Option<Syndrome>,
}

/// Why a QP went to ERR by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailureReport {
    /// Own number.
    pub qpn: Qpn,
    /// Number of the peer.
    pub dest_qpn: Qpn,
    /// Address of the peer.
    pub peer: Gid,
    /// When.
    pub at: Instant,
    /// Status of the work request that failed.
    pub status: WcStatus,
    /// Its `wr_id`; `None` when no work request was involved.
    pub wr_id: Option<u64>,
    /// Last PSN sent.
    pub last_psn_sent: Psn,
    /// Last PSN acknowledged.
    pub last_psn_acked: Psn,
    /// PSN this side expected next.
    pub expected_psn: Psn,
    /// Retries configured.
    pub retry_cnt: u8,
    /// RNR retries configured.
    pub rnr_retry: u8,
    /// The last response seen.
    pub last_seen: LastSeen,
    /// Whether the peer's request was at fault (responder side) or the own one.
    pub by_responder: bool,
    /// All counters at that time.
    pub counters: Counters,
}

impl FailureReport {
    /// What the facts usually mean, most likely first.
    #[must_use]
    pub fn likely_causes(&self) -> &'static [&'static str] {
        match self.status {
            WcStatus::RetryExcErr if self.last_seen.at.is_none() => &[
                "the peer is down, its queue pair does not exist or is not in RTR yet",
                "a firewall drops UDP port 4791, or the addresses of the queue pairs do not match",
                "the path MTU is larger than a link on the way carries",
                "something on the way rewrites addresses or ports, so that the peer's ICRC check fails",
            ],
            WcStatus::RetryExcErr => &[
                "the peer stopped: its process ended, its queue pair went to ERR or the link failed",
                "heavier loss than retry_cnt and timeout allow for",
            ],
            WcStatus::RnrRetryExcErr => {
                &["the peer posts no receives, or too few, or too slowly for rnr_retry"]
            }
            WcStatus::RemAccessErr => &[
                "the R_Key is wrong, invalidated or of another protection domain",
                "the address range is not inside the peer's memory region, or it lacks the right",
            ],
            WcStatus::RemInvReqErr => &[
                "the peer's queue pair does not allow this operation (access flags, READ limit)",
                "a SEND was longer than the peer's receive buffer",
                "the two sides use different path MTUs",
            ],
            WcStatus::RemOpErr => &["the peer could not access its own receive buffer"],
            WcStatus::LocProtErr => &[
                "a local key is wrong, deregistered, of another protection domain or lacks the right",
            ],
            WcStatus::LocLenErr => &["the peer sent more than the receive buffer holds"],
            WcStatus::BadRespErr => &["the peer answered what the request cannot have"],
            _ => &[],
        }
    }
}

impl fmt::Display for FailureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "QP {:#x} to {} QP {:#x}: {:?}",
            self.qpn.value(),
            self.peer,
            self.dest_qpn.value(),
            self.status
        )?;
        if let Some(wr_id) = self.wr_id {
            write!(f, " on work request {wr_id}")?;
        }
        if self.by_responder {
            write!(
                f,
                " caused by a request of the peer at PSN {:#x}",
                self.expected_psn.value()
            )?;
        }
        write!(
            f,
            "; last PSN sent {:#x}, last acknowledged {:#x}, {} packets sent again, \
             {} timeouts (retry_cnt {}), {} RNR NAKs (rnr_retry {}), ",
            self.last_psn_sent.value(),
            self.last_psn_acked.value(),
            self.counters.retransmits,
            self.counters.timeouts,
            self.retry_cnt,
            self.counters.rnr_naks_in,
            self.rnr_retry,
        )?;
        match self.last_seen.at {
            None => f.write_str("nothing ever came back")?,
            Some(at) => {
                let ago = self.at.since(at).as_nanos() / 1_000;
                write!(
                    f,
                    "last response {ago} µs ago for PSN {:#x}",
                    self.last_seen.psn.value()
                )?;
                if let Some(syndrome) = self.last_seen.syndrome {
                    write!(f, " ({syndrome:?})")?;
                }
            }
        }
        let mut lead = ". Likely: ";
        for cause in self.likely_causes() {
            write!(f, "{lead}{cause}")?;
            lead = "; ";
        }
        Ok(())
    }
}
