//! Work requests, completions and events, the same for both ends.

use super::{AhId, MrId, QpId, SrqId};

/// Operation of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum Op {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// SEND that takes a key of the other end back.
    SendInv,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH.
    Flush,
    /// Takes an own key back.
    LocalInv,
}

impl Op {
    /// Those that move data.
    pub(crate) const ALL: [Self; 5] = [
        Self::Send,
        Self::SendImm,
        Self::Write,
        Self::WriteImm,
        Self::Read,
    ];

    /// Whether it names memory of the other end.
    pub(crate) fn is_remote(self) -> bool {
        !matches!(
            self,
            Self::Send | Self::SendImm | Self::SendInv | Self::LocalInv
        )
    }

    /// Whether it takes a receive of the other end.
    pub(crate) fn takes_recv(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImm | Self::SendInv | Self::WriteImm
        )
    }

    /// Whether it carries immediate data.
    pub(crate) fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    /// As in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND imm",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE imm",
            Self::Read => "READ",
            Self::CompareSwap => "compare and swap",
            Self::FetchAdd => "fetch and add",
            Self::SendInv => "SEND inv",
            Self::AtomicWrite => "ATOMIC WRITE",
            Self::Flush => "FLUSH",
            Self::LocalInv => "LOCAL_INV",
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Destination {
    /// Address handle.
    pub ah: AhId,
    /// Queue pair, 0xffffff for a group.
    pub qpn: u32,
    /// Q_Key.
    pub qkey: u32,
}

/// QPN of all groups.
pub(crate) const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// A piece of a region: offset and length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Region at the posting end.
    pub mr: MrId,
    /// Offset in it; beyond its end in scenarios about that.
    pub off: u64,
    /// Bytes.
    pub len: u32,
}

/// What a FLUSH is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlushRange {
    /// Bytes from the remote address.
    pub len: u32,
    /// To persistence, not only to visibility.
    pub persistent: bool,
    /// The whole region instead.
    pub whole: bool,
}

/// `count` send work requests: each next one has a `wr` one higher, pieces `stride` further, and
/// a remote address `stride` further.
#[derive(Clone, Debug)]
pub(crate) struct Send {
    /// Identifier of the first.
    pub wr: u64,
    /// What to do.
    pub op: Op,
    /// Report success.
    pub signaled: bool,
    /// Immediate data, for the operations that have it.
    pub imm: u32,
    /// Remote address, for WRITE and READ.
    pub va: u64,
    /// Remote key, for WRITE and READ.
    pub rkey: u32,
    /// Local data.
    pub pieces: Vec<Piece>,
    /// How many.
    pub count: u32,
    /// Distance of their data, in bytes.
    pub stride: u64,
    /// Of a datagram.
    pub to: Option<Destination>,
    /// Of an atomic: what to compare with, or add; what to store.
    pub operands: [u64; 2],
    /// Key to take back, for the operations that do.
    pub inv: u32,
    /// After all earlier READs and atomics.
    pub fence: bool,
    /// Of a FLUSH.
    pub flush: FlushRange,
}

impl Send {
    /// A signaled one without data.
    pub(crate) fn new(wr: u64, op: Op) -> Self {
        Self {
            wr,
            op,
            signaled: true,
            imm: 0,
            va: 0,
            rkey: 0,
            pieces: Vec::new(),
            count: 1,
            stride: 0,
            to: None,
            operands: [0; 2],
            inv: 0,
            fence: false,
            flush: FlushRange {
                len: 0,
                persistent: false,
                whole: false,
            },
        }
    }
}

/// What a memory window shall show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bind {
    /// Identifier of the work request, where there is one.
    pub wr: u64,
    /// Region.
    pub mr: MrId,
    /// First byte in it.
    pub off: u64,
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub access: u32,
}

/// A window bound, or with a work request posted that binds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bound {
    /// Its key from then on.
    pub rkey: u32,
    /// Whether a completion comes.
    pub completes: bool,
}

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    /// A queue pair.
    Qp(QpId),
    /// A shared receive queue.
    Srq(SrqId),
    /// Something else.
    Other,
}

/// An asynchronous event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Happened {
    /// `ibv_event_type`.
    pub event: u32,
    /// Of what.
    pub of: Subject,
}

/// `count` receive work requests, counted as [`Send`] is.
#[derive(Clone, Debug)]
pub(crate) struct Recv {
    /// Identifier of the first.
    pub wr: u64,
    /// Where the data goes.
    pub pieces: Vec<Piece>,
    /// How many.
    pub count: u32,
    /// Distance of their buffers, in bytes.
    pub stride: u64,
}

/// A work completion, with the numbers of libibverbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wc {
    /// Identifier.
    pub wr: u64,
    /// `ibv_wc_status`.
    pub status: u32,
    /// `ibv_wc_opcode`.
    pub opcode: u32,
    /// Bytes.
    pub len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Key that was taken back.
    pub inv: Option<u32>,
    /// Sender of a datagram, of which the first 40 bytes are a network header.
    pub datagram_from: Option<u32>,
}
