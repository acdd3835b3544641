//! What a process asks.

use serde::{Deserialize, Serialize};
use xroce_engine::{Ah, MwId, MwType};
use xroce_proto::memory::{Access, Bind, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::srq::SrqAttr;
use xroce_proto::wc::{Cq, Srq};
use xroce_wire::newtypes::{Gid, LKey, PKey, Qpn, Va};
use xroce_wire::path::{AhAttr, Flow};

use crate::capture::CaptureSpec;

/// A part of a memfd that comes with the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PieceOf {
    /// Where it begins in the file, bytes; whole pages.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
}

/// Memory to register: parts of memfds, one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// The parts, of one descriptor each, in the order of the descriptors.
    pub pieces: Vec<PieceOf>,
    /// Where the memory begins in the first part, bytes.
    pub lead: u64,
    /// Bytes.
    pub len: u64,
    /// Address of its first byte under the keys.
    pub iova: Va,
    /// Instead of parts: the memory stays where it is, and is read and written by system calls.
    #[serde(default)]
    pub across: Option<Across>,
}

/// Memory that cannot be shared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Across {
    /// Address of its first byte in the process.
    pub address: Va,
    /// Why it cannot, for people.
    pub why: String,
}

/// Where packets of a queue pair go. The daemon resolves it, so that no process can make up
/// addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Path {
    /// The peer and how to reach it.
    pub attr: AhAttr,
    /// For the UDP source port.
    pub flow: Flow,
}

/// What a process asks, each answered by the type of [`crate::reply`] named there.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
#[non_exhaustive]
pub enum Request {
    /// The first request: who asks. Answered by [`Welcome`](crate::reply::Welcome).
    Hello {
        /// Name of the program, for people.
        program: String,
    },
    /// Uses a device, by its name; `None`: the first. Once. Answered by
    /// [`Opened`](crate::reply::Opened) with the memory of the session, the descriptor that rings
    /// for the daemon and the one that rings for events.
    Open {
        /// Name of the device.
        device: Option<String>,
    },

    /// Addresses of the port: `Vec<(u32, GidEntry)>`.
    Gids,
    /// Whether the port can be used: `bool`.
    Up,
    /// An entry of the P_Key table: `Option<PKey>`.
    PKey {
        /// Which.
        index: u16,
    },
    /// Changes an entry of the P_Key table, for all that use the device: `()`.
    SetPKey {
        /// Which.
        index: u16,
        /// To what.
        pkey: PKey,
    },
    /// Counters of engine and port: `(EngineStats, PortStats)`.
    Stats,

    /// A protection domain: `Pd`.
    AllocPd,
    /// Registers memory, whose descriptors come along: `Mr`.
    RegMr {
        /// Protection domain.
        pd: Pd,
        /// Rights.
        access: Access,
        /// The memory.
        memory: Memory,
    },
    /// Changes a region; descriptors come along with memory: `Mr`.
    ReregMr {
        /// The region.
        lkey: LKey,
        /// Another protection domain.
        pd: Option<Pd>,
        /// Other rights.
        access: Option<Access>,
        /// Other memory.
        memory: Option<Memory>,
    },
    /// Takes a region back: `()`.
    DeregMr {
        /// The region.
        lkey: LKey,
    },
    /// Takes a region back as soon as no window is bound to it: `()`.
    AbandonMr {
        /// The region.
        lkey: LKey,
    },
    /// A memory window: `Mw`.
    AllocMw {
        /// Protection domain.
        pd: Pd,
        /// Its type.
        mw_type: MwType,
    },
    /// Frees a window: `()`.
    DeallocMw {
        /// Which.
        mw: MwId,
    },
    /// Binds a window of type 1: `RKey`.
    BindMw {
        /// Which.
        mw: MwId,
        /// To what.
        bind: Bind,
    },

    /// A completion channel: `u32`, its number, with the descriptor that rings.
    CreateChannel,
    /// Its end: `()`.
    DestroyChannel {
        /// Which.
        channel: u32,
    },
    /// A completion queue: [`CqMade`](crate::reply::CqMade) with the memory of its ring.
    CreateCq {
        /// Completions it holds.
        depth: u32,
        /// Where its notifications go.
        channel: u32,
    },
    /// Another depth: [`Capacity`](crate::reply::Capacity) with the memory of a new ring. What is
    /// in the old one stays there and comes first.
    ResizeCq {
        /// Which.
        cq: Cq,
        /// Completions it is to hold.
        depth: u32,
    },
    /// Its end: `()`.
    DestroyCq {
        /// Which.
        cq: Cq,
    },

    /// A shared receive queue: [`SrqMade`](crate::reply::SrqMade) with the memory of its ring.
    CreateSrq {
        /// Protection domain.
        pd: Pd,
        /// Capacities.
        attr: SrqAttr,
    },
    /// Changes size or limit: `()`.
    ModifySrq {
        /// Which.
        srq: Srq,
        /// Receives it is to hold.
        max_wr: Option<u32>,
        /// Receives below which an event comes.
        limit: Option<u32>,
    },
    /// Capacities and receives posted: `(SrqAttr, u32)`.
    QuerySrq {
        /// Which.
        srq: Srq,
    },
    /// Its end: `()`.
    DestroySrq {
        /// Which.
        srq: Srq,
    },

    /// A queue pair: [`QpMade`](crate::reply::QpMade) with the memory of its rings.
    CreateQp {
        /// What it is made of.
        init: QpInit,
    },
    /// Changes state and attributes: `()`. A path goes beside the attributes.
    ModifyQp {
        /// Which.
        qpn: Qpn,
        /// The attributes.
        attr: Box<QpAttr>,
        /// Where its packets go.
        path: Option<Path>,
    },
    /// State and attributes: `QpInfo`.
    QueryQp {
        /// Which.
        qpn: Qpn,
    },
    /// What it has counted: `Counters`.
    Counters {
        /// Which.
        qpn: Qpn,
    },
    /// Why it failed: `Option<Failure>`.
    Failure {
        /// Which.
        qpn: Qpn,
    },
    /// Its end: `()`.
    DestroyQp {
        /// Which.
        qpn: Qpn,
    },
    /// Joins a group: `()`.
    AttachMcast {
        /// Which queue pair.
        qpn: Qpn,
        /// The group.
        group: Gid,
    },
    /// Leaves a group: `()`.
    DetachMcast {
        /// Which queue pair.
        qpn: Qpn,
        /// The group.
        group: Gid,
    },

    /// An address handle: `Ah`.
    CreateAh {
        /// Protection domain.
        pd: Pd,
        /// The address.
        attr: AhAttr,
    },
    /// Its end: `()`.
    DestroyAh {
        /// Which.
        ah: Ah,
    },

    /// Copies the frames of the device from now on, until [`Request::EndCapture`] or the end of the
    /// session: [`CaptureMade`](crate::capture::CaptureMade) with the memory of its ring and the
    /// descriptor that rings. Only for root and the user of the daemon, one at a time.
    Capture {
        /// Which frames, and how much of them.
        spec: CaptureSpec,
    },
    /// What the capture of this session has counted:
    /// [`CaptureStats`](crate::capture::CaptureStats).
    CaptureStats,
    /// Its end: the same, for the last time. What is in the ring stays there.
    EndCapture,

    /// What the daemon has and does: [`Report`](crate::reply::Report). This and the next two need no
    /// device. Who is neither root nor the user of the daemon sees only what is their own.
    Report,
    /// Processes by number, those behind this one:
    /// [`Page`](crate::reply::Page)`<`[`SessionReport`](crate::reply::SessionReport)`>`.
    Sessions {
        /// The last of the page before.
        after: Option<u32>,
    },
    /// Queue pairs by session and number, those behind this one:
    /// [`Page`](crate::reply::Page)`<`[`QpReport`](crate::reply::QpReport)`>`.
    Qps {
        /// The last of the page before.
        after: Option<(u32, Qpn)>,
    },
}
