//! What hosts send each other.

use xroce_proto::cc::{CongestionControl, Rate};
use xroce_proto::qp::QpAttr;
use xroce_proto::recovery::{Reliability, SelectiveParams};
use xroce_proto::wc::WcStatus;
use xroce_wire::newtypes::{PathMtu, Qpn};

use crate::units::Time;

/// How a flow moves its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Op {
    /// RDMA WRITE; the receiver is not told.
    #[default]
    Write,
    /// RDMA WRITE with immediate data: what follows can begin when the data has arrived.
    WriteImm,
    /// SEND, with a receive posted for every message.
    Send,
    /// RDMA READ by the receiver.
    Read,
}

impl Op {
    /// Whether the receiver learns that a message has come.
    pub(crate) const fn notifies(self) -> bool {
        matches!(self, Self::WriteImm | Self::Send)
    }
}

/// One flow: some bytes from one host to another over a queue pair.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Host the data is at.
    pub src: u32,
    /// Host it goes to.
    pub dst: u32,
    /// Bytes, more than [`Transport::message_bytes`] in several messages.
    pub bytes: u64,
    /// When it begins, at the earliest.
    pub start: Time,
    /// Operation.
    pub op: Op,
    /// Index of its class in [`Setup::classes`](crate::Setup::classes).
    pub class: usize,
    /// Flows with the same number share a queue pair, and take turns in the order of their starts;
    /// they must have the same hosts, class and direction. `None`: one of its own.
    pub channel: Option<u32>,
    /// Flows that must have arrived before it begins, by index.
    pub after: Vec<u32>,
    /// Its own congestion control, instead of that of [`Transport`].
    pub congestion: Option<CongestionControl>,
    /// Upper limit of its rate.
    pub rate_limit: Option<Rate>,
    /// For reports: which workload it belongs to.
    pub group: u32,
}

impl Flow {
    /// An RDMA WRITE of the first class at time 0.
    #[must_use]
    pub const fn write(src: u32, dst: u32, bytes: u64) -> Self {
        Self {
            src,
            dst,
            bytes,
            start: Time::ZERO,
            op: Op::Write,
            class: 0,
            channel: None,
            after: Vec::new(),
            congestion: None,
            rate_limit: None,
            group: 0,
        }
    }

    /// The host whose queue pair posts the work requests, and the other.
    pub(crate) const fn requester_responder(&self) -> (u32, u32) {
        match self.op {
            Op::Read => (self.dst, self.src),
            _ => (self.src, self.dst),
        }
    }
}

/// How packets of a class are marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// DSCP of data, 0 ..= 63.
    pub dscp: u8,
    /// DSCP of acknowledgements, 0 ..= 63.
    pub ack_dscp: u8,
    /// Whether data is ECN-capable: ECT(0).
    pub ecn: bool,
    /// Priority in a VLAN tag, 0 ..= 7; without, packets have no tag and DSCP decides.
    pub pcp: Option<u8>,
}

impl Default for Class {
    /// DSCP 26 for data and acknowledgements, which is priority 3; ECN-capable; no tag.
    fn default() -> Self {
        Self {
            dscp: 26,
            ack_dscp: 26,
            ecn: true,
            pcp: None,
        }
    }
}

/// How losses are repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Recovery {
    /// Everything from the first lost packet on is sent again.
    #[default]
    GoBackN,
    /// Only what is lost is sent again.
    Selective,
}

impl Recovery {
    /// The one place where it becomes an attribute of a queue pair.
    pub(crate) fn apply(self, rtr: &mut QpAttr) {
        match self {
            // What a queue pair does unless told otherwise.
            Self::GoBackN => {}
            Self::Selective => {
                rtr.reliability = Some(Reliability::Selective(SelectiveParams::default()));
            }
        }
    }

    /// Whether packets out of sequence are thrown away.
    pub(crate) const fn discards_out_of_sequence(self) -> bool {
        match self {
            Self::GoBackN => true,
            Self::Selective => false,
        }
    }
}

/// What all queue pairs have in common.
#[derive(Clone, Debug)]
pub struct Transport {
    /// Payload bytes of a packet.
    pub path_mtu: PathMtu,
    /// ACK timeout code, 0 ..= 31: 4.096 µs · 2^code, 0 for none.
    pub timeout: u8,
    /// Retries, 0 ..= 7.
    pub retry_cnt: u8,
    /// Bytes of a message, at most; a longer flow is several. 1 ..= 64 MiB: hosts share memory of
    /// this size.
    pub message_bytes: u64,
    /// Messages of a queue pair that are posted at once, 1 ..= 1024.
    pub depth: u32,
    /// Repair of losses.
    pub recovery: Recovery,
    /// Congestion control, as every queue pair begins with it.
    pub congestion: CongestionControl,
}

impl Default for Transport {
    /// Path MTU 1024, timeout 4.2 ms (code 10), 7 retries, 16 messages of 256 KiB, go-back-N, no
    /// congestion control.
    fn default() -> Self {
        Self {
            path_mtu: PathMtu::Mtu1024,
            timeout: 10,
            retry_cnt: 7,
            message_bytes: 256 << 10,
            depth: 16,
            recovery: Recovery::default(),
            congestion: CongestionControl::Fixed(xroce_proto::cc::Fixed::default()),
        }
    }
}

/// What counts for the report of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) received: u64,
    pub(crate) retransmits: u64,
    pub(crate) timeouts: u64,
    pub(crate) cnps: u64,
    pub(crate) ce: u64,
}

impl Tally {
    /// What came since `base`.
    pub(crate) fn since(self, base: Self) -> Self {
        Self {
            received: self.received.saturating_sub(base.received),
            retransmits: self.retransmits.saturating_sub(base.retransmits),
            timeouts: self.timeouts.saturating_sub(base.timeouts),
            cnps: self.cnps.saturating_sub(base.cnps),
            ce: self.ce.saturating_sub(base.ce),
        }
    }
}

/// How far a flow is.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    /// Flows that have yet to arrive before it begins.
    pub(crate) waits_for: u32,
    pub(crate) dependents: Vec<u32>,
    pub(crate) channel: u32,
    /// When it could begin.
    pub(crate) started: Option<Time>,
    /// When the requester had its last completion.
    pub(crate) ended: Option<Time>,
    pub(crate) failed: Option<WcStatus>,
    /// Whether dependents have been told.
    pub(crate) arrived: bool,
    pub(crate) posted: u64,
    pub(crate) completed: u64,
    pub(crate) received: u64,
    /// Counters of the queue pair when it began.
    pub(crate) base: Tally,
    /// What it made of them.
    pub(crate) tally: Tally,
}

/// A queue pair at each of two hosts.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) requester: u32,
    pub(crate) responder: u32,
    /// Numbers of both, while they exist.
    pub(crate) qpns: Option<[Qpn; 2]>,
    /// Flows with messages to be posted, in order.
    pub(crate) waiting: std::collections::VecDeque<u32>,
    /// Messages posted and not complete.
    pub(crate) outstanding: u32,
    /// Flows that have not ended.
    pub(crate) users: u32,
    pub(crate) failed: bool,
}
