//! The two ends of a connection behind one interface, so that each scenario is written once and
//! run in both directions.

mod pattern;
mod rxe;
mod work;
mod xroce;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use xroce_wire::newtypes::{Gid, PathMtu};

use crate::fabric::Route;

pub(crate) use pattern::{fnv1a, pattern_byte};
pub(crate) use rxe::{Rxe, gid_index, wait_for_port};
pub(crate) use work::{
    Bind, Bound, Destination, FlushRange, Happened, MULTICAST_QPN, Op, Piece, Recv, Send, Subject,
    Wc,
};
pub(crate) use xroce::{LoopPair, Looped, Xroce, loop_ends};

/// A registered region of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MrId(pub u32);

/// A completion queue of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CqId(pub u32);

/// A queue pair of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QpId(pub u32);

/// A shared receive queue of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SrqId(pub u32);

/// A memory window of an end, and its key before it is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mw {
    /// At its own end.
    pub id: u32,
    /// Good for nothing yet.
    pub rkey: u32,
}

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
    /// Remote write.
    pub(crate) const REMOTE_WRITE: u32 = 2;
    /// Remote read.
    pub(crate) const REMOTE_READ: u32 = 4;
    /// All of these and remote atomic.
    pub(crate) const ATOMIC: u32 = 15;
    /// Windows may be bound.
    pub(crate) const MW_BIND: u32 = 16;
    /// FLUSH to global visibility.
    pub(crate) const FLUSH_GLOBAL: u32 = 1 << 8;
    /// A bit of xroce alone: the key may be taken back. rxe has no such regions for users.
    pub(crate) const INVALIDATE: u32 = 1 << 30;
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
    /// Where receives come from, if not from a queue of its own.
    pub srq: Option<SrqId>,
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
    /// Whether the timeout of xroce follows the round trip.
    pub adaptive: bool,
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
            adaptive: false,
        }
    }
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

    /// Does what it has put off.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// Posts sends.
    fn send(&mut self, qp: QpId, send: &Send) -> Result<()>;

    /// Posts receives.
    fn recv(&mut self, qp: QpId, recv: &Recv) -> Result<()>;

    /// Waits until `min` completions came or the time is over; takes `max` at most.
    fn poll(&mut self, cq: CqId, min: u32, max: u32, timeout: Duration) -> Result<Vec<Wc>>;

    /// A shared receive queue.
    fn srq(&mut self, depth: u32, sges: u8) -> Result<SrqId>;

    /// Posts receives to it.
    fn srq_recv(&mut self, srq: SrqId, recv: &Recv) -> Result<()>;

    /// Arms its event: fewer receives left than this.
    fn srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<()>;

    /// Asynchronous events so far, or the first ones within a time.
    fn events(&mut self, timeout: Duration) -> Result<Vec<Happened>>;

    /// A memory window of type 1, or 2B.
    fn mw(&mut self, type2: bool) -> Result<Mw>;

    /// Binds one: type 1 as the end does it, type 2 by a work request.
    fn bind(&mut self, qp: QpId, mw: Mw, bind: &Bind) -> Result<Bound>;

    /// Frees one.
    fn free_mw(&mut self, mw: Mw) -> Result<()>;

    /// "rts", "err" and so on.
    fn state(&mut self, qp: QpId) -> Result<String>;

    /// Hashes of ranges: region, offset, length.
    fn hashes(&mut self, ranges: &[(MrId, u64, u64)]) -> Result<Vec<u64>> {
        let one = |&(mr, off, len): &_| self.hash(mr, off, len);
        ranges.iter().map(one).collect()
    }

    /// Counters by the names of rxe's `hw_counters`, sums of all queue pairs since the start.
    fn counters(&mut self) -> Result<BTreeMap<String, u64>>;

    /// Why a queue pair failed, as far as this end tells.
    fn failure(&mut self, qp: QpId) -> Result<Option<String>>;
}
