//! The two ends of a connection behind one interface, so that each scenario is written once and
//! run in both directions.

mod pattern;
mod rxe;
mod xroce;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use xroce_wire::newtypes::{Gid, PathMtu};

use crate::fabric::Route;

pub(crate) use pattern::{fnv1a, pattern_byte};
pub(crate) use rxe::{Rxe, gid_index, wait_for_port};
pub(crate) use xroce::Xroce;

/// A registered region of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MrId(pub u32);

/// A completion queue of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CqId(pub u32);

/// A queue pair of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QpId(pub u32);

/// What the other end needs to reach a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mr {
    /// At its own end.
    pub id: MrId,
    /// Address of the first byte.
    pub va: u64,
    /// Key for the other end.
    pub rkey: u32,
}

/// Access rights as `ibv_access_flags` numbers them.
pub(crate) mod access {
    /// Local write.
    pub(crate) const LOCAL_WRITE: u32 = 1;
    /// Local write, remote write (2) and remote read (4).
    pub(crate) const ALL: u32 = 7;
    /// The same and remote atomic.
    pub(crate) const ATOMIC: u32 = 15;
}

/// An address handle of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AhId(pub u32);

/// Service of a connected queue pair; datagrams have [`End::datagram_qp`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Service {
    /// Reliable.
    #[default]
    Rc,
    /// Unreliable.
    Uc,
}

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpSpec {
    /// Service, of a connected one.
    pub service: Service,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Sends and receives outstanding.
    pub depth: u32,
    /// SGEs of each.
    pub sges: u8,
}

/// What both ends agree on, and what one end decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connect {
    /// Which network.
    pub route: Route,
    /// Path MTU.
    pub mtu: PathMtu,
    /// The other end's queue pair.
    pub dest_qpn: u32,
    /// First PSN of this end.
    pub sq_psn: u32,
    /// First PSN of the other end.
    pub rq_psn: u32,
    /// Retry parameters.
    pub tuning: Tuning,
    /// Of both queue pairs.
    pub service: Service,
}

/// Retry parameters of a connection, as verbs numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tuning {
    /// Local ACK timeout: 4.096 µs · 2^timeout.
    pub timeout: u8,
    /// Retries after a timeout or a sequence error.
    pub retry: u8,
    /// Retries after RNR NAKs; 7: for ever.
    pub rnr_retry: u8,
    /// RNR timer asked of the other end.
    pub rnr_timer: u8,
    /// What the other end may do.
    pub access: u32,
    /// READs outstanding.
    pub reads: u8,
}

impl Default for Tuning {
    fn default() -> Self {
        // Timeout code 19 is 2.1 s: an emulated machine on a busy host takes its time, and a
        // timeout that comes too early is a resend that nothing called for.
        Self {
            timeout: 19,
            retry: 6,
            rnr_retry: 7,
            rnr_timer: 12,
            access: access::ALL,
            reads: 16,
        }
    }
}

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
        !matches!(self, Self::Send | Self::SendImm)
    }

    /// Whether it takes a receive of the other end.
    pub(crate) fn takes_recv(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
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
    /// Sender of a datagram, of which the first 40 bytes are a network header.
    pub datagram_from: Option<u32>,
}

/// An end of a connection.
pub(crate) trait End {
    /// "rxe" or "xroce".
    fn name(&self) -> &'static str;

    /// Destroys all objects.
    fn reset(&mut self) -> Result<()>;

    /// Address on a network.
    fn gid(&self, route: Route) -> Gid;

    /// A region of `len` zero bytes.
    fn mr(&mut self, len: u64, access: u32) -> Result<Mr>;

    /// Fills bytes with the pattern of `seed`.
    fn fill(&mut self, mr: MrId, off: u64, len: u64, seed: u64) -> Result<()>;

    /// FNV-1a of bytes.
    fn hash(&mut self, mr: MrId, off: u64, len: u64) -> Result<u64>;

    /// A completion queue.
    fn cq(&mut self, depth: u32) -> Result<CqId>;

    /// A queue pair in INIT, and its number.
    fn qp(&mut self, spec: &QpSpec, access: u32) -> Result<(QpId, u32)>;

    /// To RTR and RTS.
    fn connect(&mut self, qp: QpId, to: &Connect) -> Result<()>;

    /// A UD queue pair in RTS, and its number.
    fn datagram_qp(&mut self, spec: &QpSpec, qkey: u32) -> Result<(QpId, u32)>;

    /// A handle for the other end, or for a group on its network.
    fn ah(&mut self, route: Route, group: Option<Gid>) -> Result<AhId>;

    /// Makes a UD queue pair a member of a group.
    fn attach(&mut self, qp: QpId, group: Gid) -> Result<()>;

    /// Bytes of a region, few of them.
    fn peek(&mut self, mr: MrId, off: u64, len: u64) -> Result<Vec<u8>>;

    /// Posts sends.
    fn send(&mut self, qp: QpId, send: &Send) -> Result<()>;

    /// Posts receives.
    fn recv(&mut self, qp: QpId, recv: &Recv) -> Result<()>;

    /// Waits until `min` completions came or the time is over; takes `max` at most.
    fn poll(&mut self, cq: CqId, min: u32, max: u32, timeout: Duration) -> Result<Vec<Wc>>;

    /// Counters by the names of rxe's `hw_counters`, sums of all queue pairs since the start.
    fn counters(&mut self) -> Result<BTreeMap<String, u64>>;

    /// Why a queue pair failed, as far as this end tells.
    fn failure(&mut self, qp: QpId) -> Result<Option<String>>;
}
