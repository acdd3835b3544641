//! Work completions and where they go.

use core::fmt;

use bitflags::bitflags;
use serde::{Deserialize, Serialize};
use xroce_wire::newtypes::{Qpn, RKey};

use crate::qp::RecvQueue;

/// Status of a work completion, with the values of `ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum WcStatus {
    /// `IBV_WC_SUCCESS`.
    Success = 0,
    /// `IBV_WC_LOC_LEN_ERR`: a SEND was longer than the receive buffer.
    LocLenErr = 1,
    /// `IBV_WC_LOC_QP_OP_ERR`: the work request is inconsistent with the QP.
    LocQpOpErr = 2,
    /// `IBV_WC_LOC_PROT_ERR`: a local SGE failed its key check.
    LocProtErr = 4,
    /// `IBV_WC_WR_FLUSH_ERR`: the QP was in, or went to, the error state.
    WrFlushErr = 5,
    /// `IBV_WC_MW_BIND_ERR`.
    MwBindErr = 6,
    /// `IBV_WC_BAD_RESP_ERR`: the peer answered something the request cannot have.
    BadRespErr = 7,
    /// `IBV_WC_LOC_ACCESS_ERR`.
    LocAccessErr = 8,
    /// `IBV_WC_REM_INV_REQ_ERR`: NAK invalid request.
    RemInvReqErr = 9,
    /// `IBV_WC_REM_ACCESS_ERR`: NAK remote access error.
    RemAccessErr = 10,
    /// `IBV_WC_REM_OP_ERR`: NAK remote operational error.
    RemOpErr = 11,
    /// `IBV_WC_RETRY_EXC_ERR`: no answer, retries used up.
    RetryExcErr = 12,
    /// `IBV_WC_RNR_RETRY_EXC_ERR`: the receiver was never ready.
    RnrRetryExcErr = 13,
    /// `IBV_WC_FATAL_ERR`.
    FatalErr = 19,
    /// `IBV_WC_GENERAL_ERR`.
    GeneralErr = 21,
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocLenErr => "the message is longer than the receive buffer",
            Self::LocQpOpErr => "the queue pair cannot do this",
            Self::LocProtErr => "a local key, range or right is wrong",
            Self::WrFlushErr => {
                "flushed: the queue pair is in error, an earlier completion says why"
            }
            Self::MwBindErr => "the memory window cannot be bound so",
            Self::BadRespErr => "the peer answered what the request cannot have",
            Self::LocAccessErr => "the own memory could not be used",
            Self::RemInvReqErr => "the peer does not take this request",
            Self::RemAccessErr => "the peer does not grant this access to its memory",
            Self::RemOpErr => "the peer could not carry it out",
            Self::RetryExcErr => "no answer from the peer, retries are used up",
            Self::RnrRetryExcErr => "the peer had no receive posted, retries are used up",
            Self::FatalErr => "the device failed",
            Self::GeneralErr => "failed",
        })
    }
}

/// What completed, with the values of `ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum WcOpcode {
    /// SEND, with or without immediate.
    Send = 0,
    /// RDMA WRITE, with or without immediate.
    RdmaWrite = 1,
    /// RDMA READ.
    RdmaRead = 2,
    /// Compare and swap.
    CompSwap = 3,
    /// Fetch and add.
    FetchAdd = 4,
    /// A memory window was bound.
    BindMw = 5,
    /// LOCAL_INV.
    LocalInv = 6,
    /// FLUSH.
    Flush = 8,
    /// ATOMIC WRITE.
    AtomicWrite = 9,
    /// A receive filled by a SEND.
    Recv = 128,
    /// A receive taken by an RDMA WRITE with immediate.
    RecvRdmaWithImm = 129,
}

bitflags! {
    /// Flags of a work completion: those of `ibv_wc_flags`, and two of our own above them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WcFlags: u8 {
        /// The first 40 bytes of the buffer are a network header (UD).
        const GRH = 1;
        /// `imm` is valid.
        const WITH_IMM = 1 << 1;
        /// The message took a key back: [`Completion::invalidated`].
        const WITH_INV = 1 << 3;
        /// The message carried the solicited event bit.
        const SOLICITED = 1 << 6;
    }
}

/// A work completion. In an error only `wr_id`, `status` and `qpn` are valid (C1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// From the work request.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Which optional fields are valid.
    pub flags: WcFlags,
    /// Bytes received, written by WRITE with immediate, or read; of a datagram with the 40 bytes in
    /// front of it.
    pub byte_len: u32,
    /// The QP it belongs to.
    pub qpn: Qpn,
    /// Immediate data, valid with [`WcFlags::WITH_IMM`]; with [`WcFlags::WITH_INV`] the key taken
    /// back, as on the wire (`ibv_wc` has a union there).
    pub imm: [u8; 4],
    /// QP that sent a datagram, valid in receives of UD.
    pub src_qp: Qpn,
}

impl Completion {
    /// Filler for an array to be polled into: stands for nothing that completed.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: WcStatus::GeneralErr,
        opcode: WcOpcode::Send,
        flags: WcFlags::empty(),
        byte_len: 0,
        qpn: Qpn::new(0),
        imm: [0; 4],
        src_qp: Qpn::new(0),
    };

    /// Itself if it is one of success.
    ///
    /// # Errors
    /// What failed, with what the status means.
    pub const fn ok(&self) -> Result<&Self, WcError> {
        match self.status {
            WcStatus::Success => Ok(self),
            status => Err(WcError {
                wr_id: self.wr_id,
                qpn: self.qpn,
                status,
            }),
        }
    }

    /// The R_Key that the message took back, if it did.
    #[must_use]
    pub fn invalidated(&self) -> Option<RKey> {
        self.flags
            .contains(WcFlags::WITH_INV)
            .then(|| RKey::new(u32::from_be_bytes(self.imm)))
    }
}

/// A work request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("work request {wr_id:#x} of queue pair {:#x}: {status}", .qpn.value())]
pub struct WcError {
    /// From the work request.
    pub wr_id: u64,
    /// Its queue pair.
    pub qpn: Qpn,
    /// What happened.
    pub status: WcStatus,
}

/// Completion queue handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Cq(pub u32);

impl Cq {
    /// Place of the queue in a table: low, and the same as that of the queue that had the place
    /// before. What is there has to be compared with the whole handle.
    #[inline]
    #[must_use]
    pub const fn slot(self) -> usize {
        (self.0 & 0x000f_ffff) as usize
    }
}

/// Shared receive queue handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Srq(pub u32);

/// Asynchronous events, with the values of `ibv_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum Event {
    /// `IBV_EVENT_CQ_ERR`: a CQ overflowed.
    CqErr = 0,
    /// `IBV_EVENT_QP_FATAL`: the QP is in error for a reason that no completion tells. A work
    /// request that fails is a completion and no event.
    QpFatal = 1,
    /// `IBV_EVENT_QP_REQ_ERR`: the peer sent an invalid request.
    QpReqErr = 2,
    /// `IBV_EVENT_QP_ACCESS_ERR`: the peer tried to use memory it may not.
    QpAccessErr = 3,
    /// `IBV_EVENT_COMM_EST`: first packet in RTR.
    CommEst = 4,
    /// `IBV_EVENT_SQ_DRAINED`: SQD has finished what was running.
    SqDrained = 5,
    /// `IBV_EVENT_DEVICE_FATAL`: the device, or the process that has it, is gone; what was posted
    /// completes as flushed. Its source is the port.
    DeviceFatal = 8,
    /// `IBV_EVENT_PORT_ACTIVE`: the link is up again.
    PortActive = 9,
    /// `IBV_EVENT_PORT_ERR`: the link is down.
    PortErr = 10,
    /// `IBV_EVENT_SRQ_ERR`: the SRQ cannot be used any more. Nothing here can break one, so it is
    /// never reported; the number is kept for whoever maps events.
    SrqErr = 14,
    /// `IBV_EVENT_SRQ_LIMIT_REACHED`: the SRQ holds less than its limit, which is now 0 (K7).
    SrqLimitReached = 15,
    /// `IBV_EVENT_QP_LAST_WQE_REACHED`: the QP is in error and takes nothing from its SRQ any more
    /// (C5).
    QpLastWqeReached = 16,
    /// `IBV_EVENT_GID_CHANGE`: an address of the port came or went.
    GidChange = 18,
}

/// Where the core delivers completions and events.
pub trait Sink {
    /// Appends a completion to `cq`. A full queue is the sink's to notice and report: it must not
    /// lose the fact silently (C7).
    fn complete(&mut self, cq: Cq, wc: Completion);

    /// Reports an asynchronous event of a QP.
    fn event(&mut self, qpn: Qpn, event: Event);

    /// Moves the oldest receive of `srq` into the queue of a QP
    /// ([`SharedReceiveQueue::take_into`](crate::srq::SharedReceiveQueue::take_into)) and reports
    /// a limit reached by it; `false` if there is none. Only asked for QPs that have an SRQ.
    fn take_shared(&mut self, srq: Srq, into: &mut RecvQueue) -> bool {
        let _ = (srq, into);
        false
    }
}
