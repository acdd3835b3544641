//! Work requests as the consumer posts them.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};
use xroce_wire::newtypes::{LKey, RKey, Va};

use crate::memory::Bind;

/// Scatter/gather element: `len` bytes at `va` of the region with `lkey`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// Key of the local region.
    pub lkey: LKey,
    /// Start address, in the region's address space.
    pub va: Va,
    /// Bytes; zero is allowed and its key is not checked (K3).
    pub len: u32,
}

/// What a send work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm([u8; 4]),
    /// RDMA WRITE.
    Write {
        /// Remote address.
        va: Va,
        /// Remote key.
        rkey: RKey,
    },
    /// RDMA WRITE with immediate data; takes a receive work request of the peer.
    WriteImm {
        /// Remote address.
        va: Va,
        /// Remote key.
        rkey: RKey,
        /// Immediate data.
        imm: [u8; 4],
    },
    /// RDMA READ.
    Read {
        /// Remote address.
        va: Va,
        /// Remote key.
        rkey: RKey,
    },
    /// SEND that takes the key of a region of the peer back, before the peer's receive completes.
    SendInv {
        /// R_Key of the peer to invalidate.
        rkey: RKey,
    },
    /// Compare and swap of eight bytes; what they held before goes to the SGEs, as an integer of
    /// this host.
    CompareSwap {
        /// Remote address, a multiple of 8.
        va: Va,
        /// Remote key.
        rkey: RKey,
        /// Swap only if this is there.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Fetch and add of eight bytes, wrapping; what they held before goes to the SGEs, as an
    /// integer of this host.
    FetchAdd {
        /// Remote address, a multiple of 8.
        va: Va,
        /// Remote key.
        rkey: RKey,
        /// Value to add.
        add: u64,
    },
    /// ATOMIC WRITE (IBTA 1.5): eight bytes that appear at once, in the order of memory.
    AtomicWrite {
        /// Remote address, a multiple of 8.
        va: Va,
        /// Remote key.
        rkey: RKey,
    },
    /// FLUSH (IBTA 1.5): completes when what was written before has been placed. No data.
    Flush {
        /// Remote address; not looked at for a whole region.
        va: Va,
        /// Remote key.
        rkey: RKey,
        /// Bytes of the range; not looked at for a whole region.
        len: u32,
        /// How far it must have got.
        placement: Placement,
        /// Flush the region of `rkey` instead of the range.
        whole_region: bool,
    },
    /// Binds a free memory window of type 2 to a part of a region, for use through this QP. No
    /// data, no packet.
    BindMw {
        /// The window's key from now on: its upper 24 bits name the window, the lower 8 are free.
        rkey: RKey,
        /// What the window shows.
        bind: Bind,
    },
    /// Takes an own key back, once all earlier work has completed (R4). No data, no packet.
    LocalInv {
        /// R_Key of the region or window.
        rkey: RKey,
    },
}

impl SendOp {
    /// Whether it counts against `max_rd_atomic`: the peer has a response of its own for it (R3).
    #[must_use]
    pub const fn takes_rd_atomic(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::CompareSwap { .. }
                | Self::FetchAdd { .. }
                | Self::AtomicWrite { .. }
                | Self::Flush { .. }
        )
    }
}

bitflags! {
    /// How far a FLUSH goes, with the bits of `ibv_placement_type` and of FETH.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Placement: u8 {
        /// Visible to everybody who reads the memory.
        const GLOBAL = 1;
        /// Safe from a loss of power.
        const PERSISTENT = 1 << 1;
    }
}

bitflags! {
    /// Flags of a send work request, with the bits of `ibv_send_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Wait until all earlier READs and atomics have completed (R4).
        const FENCE = 1;
        /// Report success too; errors are always reported (C2).
        const SIGNALED = 1 << 1;
        /// Fire a solicited-only notification at the peer.
        const SOLICITED = 1 << 2;
    }
}

/// The local side of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data<'a> {
    /// Registered memory, read when sent (or written by a READ).
    Sges(&'a [Sge]),
    /// Bytes copied now, gathered in order; the buffers are free when the post returns (C6).
    Inline(&'a [&'a [u8]]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How to do it.
    pub flags: SendFlags,
    /// With which bytes.
    pub data: Data<'a>,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where a SEND's data goes, in order.
    pub sges: &'a [Sge],
}

/// Why a work request was not accepted; the queue is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PostError {
    /// The queue holds its full depth.
    #[error("the queue is full ({depth} work requests); poll completions first")]
    QueueFull {
        /// Depth of the queue.
        depth: u32,
    },
    /// Sends need RTS (or SQD, SQE, ERR), receives INIT or later.
    #[error("work requests are not accepted in state {0:?}")]
    State(crate::qp::QpState),
    /// More SGEs than the QP was created for.
    #[error("{given} SGEs, the queue pair was created for {max}")]
    TooManySges {
        /// SGEs in the request.
        given: usize,
        /// Limit of the QP.
        max: u8,
    },
    /// More inline bytes than the QP was created for.
    #[error("{given} inline bytes, the queue pair was created for {max}")]
    InlineTooLong {
        /// Bytes in the request.
        given: u64,
        /// Limit of the QP.
        max: u32,
    },
    /// The message exceeds what the transport can carry.
    #[error("message of {given} bytes, the limit is {max} at this path MTU")]
    MessageTooLong {
        /// Bytes in the request.
        given: u64,
        /// Limit at the path MTU of the QP.
        max: u64,
    },
    /// A request that has no data.
    #[error("{given} bytes of local memory for a request without data")]
    NoData {
        /// Bytes in the request.
        given: u64,
    },
    /// The QP takes its receives from a shared receive queue.
    #[error("the queue pair takes its receives from a shared receive queue: post there")]
    HasSrq,
    /// The service of the QP has no such operation.
    #[error("a {0:?} queue pair cannot do this: Uc does SEND and RDMA WRITE, Ud does SEND")]
    Operation(crate::qp::QpType),
    /// A send on a UD QP must say where it goes: [`crate::qp::Qp::post_datagram`].
    #[error("a datagram needs a destination: address handle, QPN and Q_Key")]
    NoDestination,
    /// Only UD QPs take a destination with a send.
    #[error("{0:?} queue pairs are connected: a send has no destination of its own")]
    Connected(crate::qp::QpType),
    /// The address handle belongs to another protection domain than the QP.
    #[error("the address handle is in another protection domain than the queue pair")]
    AddressPd,
    /// A datagram is one packet (UD1).
    #[error("datagram of {given} bytes, one packet of this port carries {max}")]
    DatagramTooLong {
        /// Bytes in the request.
        given: u64,
        /// Limit of the port.
        max: usize,
    },
    /// What is written by the response, as by a READ, cannot be inline.
    #[error("READs and atomics cannot be inline")]
    InlineRead,
    /// READ, atomic or FLUSH while the QP allows none (`max_rd_atomic` 0).
    #[error("READs, atomics and FLUSH need max_rd_atomic of at least 1, it is 0")]
    NoRdAtomic,
    /// An atomic works on eight bytes.
    #[error("{given} bytes of local memory, an atomic takes exactly 8")]
    AtomicLen {
        /// Bytes in the request.
        given: u64,
    },
    /// The eight bytes of an atomic are aligned.
    #[error("remote address {:#x} of an atomic is not a multiple of 8", .0.value())]
    Misaligned(Va),
    /// A FLUSH that says not how far.
    #[error("a FLUSH needs a placement")]
    NoPlacement,
}
