//! What travels with a request to the daemon and with its answer.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use xroce_proto::counters::Counters;
use xroce_proto::qp::{Gauges, QpState, QpType};
use xroce_proto::wc::{Cq, Srq};
use xroce_wire::newtypes::{Gid, PathMtu, Qpn, Va};
use xroce_wire::path::{AhAttr, Flow};

use crate::stats::{EngineStats, PortStats};

/// A part of a memfd that comes with the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PieceOf {
    /// Where it begins in the file, bytes; whole pages.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
}

/// Memory to register: parts of memfds, one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
pub struct Across {
    /// Address of its first byte in the process.
    pub address: Va,
    /// Why it cannot, for people.
    pub why: String,
}

/// Where packets of a queue pair go. The daemon resolves it, so that no process can make up
/// addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Path {
    /// The peer and how to reach it.
    pub attr: AhAttr,
    /// For the UDP source port.
    pub flow: Flow,
}

/// What kind of no it is, for who maps it to an `errno`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// A value that cannot be (`EINVAL`).
    Invalid,
    /// No such object, or not one of this process (`ENOENT`).
    NotFound,
    /// Others use it (`EBUSY`).
    Busy,
    /// A limit of the daemon or of this process is reached (`ENOMEM`).
    Limit,
    /// Not permitted to this process (`EPERM`).
    Denied,
    /// The peer cannot be reached (`EHOSTUNREACH`).
    Unreachable,
    /// The device is broken (`EIO`).
    Device,
    /// This daemon is older than the request (`EOPNOTSUPP`).
    Unsupported,
    /// A reason that this side is too old to know (`EIO`); the text tells.
    #[serde(other)]
    Other,
}

impl Reason {
    /// The same as an `errno` of Linux.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Denied => 1,
            Self::NotFound => 2,
            Self::Device | Self::Other => 5,
            Self::Limit => 12,
            Self::Busy => 16,
            Self::Invalid => 22,
            Self::Unsupported => 95,
            Self::Unreachable => 113,
        }
    }
}

/// The answer is no; nothing changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
#[error("{text}")]
pub struct Refusal {
    /// What kind.
    pub reason: Reason,
    /// For people.
    pub text: String,
}

impl Refusal {
    /// A no of a kind, with its words.
    #[must_use]
    pub fn new(reason: Reason, text: impl ToString) -> Self {
        let text = text.to_string();
        Self { reason, text }
    }
}

/// Why the daemon hangs up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Farewell {
    /// For people.
    pub text: String,
}

/// Who answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// Release of the daemon.
    pub release: String,
    /// Number of this session.
    pub session: u32,
    /// Names of the devices.
    pub devices: Vec<String>,
}

/// A device, and where things are in the memory of the session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// Name of the device.
    pub device: String,
    /// Name of its port.
    pub port: String,
    /// Below the frames is Ethernet, not a UDP socket.
    pub ethernet: bool,
    /// IP MTU of the link.
    pub link_mtu: usize,
    /// Largest path MTU the link carries.
    pub path_mtu: PathMtu,
    /// Limits of this process.
    pub limits: Limits,
}

/// What one process may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Queue pairs.
    pub qps: u32,
    /// Work requests of a queue.
    pub queue_depth: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Entries of a completion queue.
    pub cq_depth: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Memory windows.
    pub mws: u32,
    /// Address handles.
    pub ahs: u32,
    /// Bytes of registered memory.
    pub bytes: u64,
    /// Bytes that its queues take in the daemon.
    pub queue_bytes: u64,
    /// Work requests taken from it before others have their turn.
    pub wqes_per_poll: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            qps: 16_384,
            queue_depth: 16_384,
            cqs: 16_384,
            cq_depth: 1 << 18,
            srqs: 1024,
            mrs: 1 << 18,
            mws: 1 << 16,
            ahs: 1 << 16,
            bytes: 1 << 40,
            queue_bytes: 1 << 32,
            wqes_per_poll: 64,
        }
    }
}

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CqMade {
    /// Its handle.
    pub cq: Cq,
    /// Its ring.
    pub ring: Capacity,
}

/// Entries of a ring, a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Capacity(pub u32);

/// A shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SrqMade {
    /// Its handle.
    pub srq: Srq,
    /// What it is called in the set of queues with news.
    pub number: u32,
    /// Its ring.
    pub ring: Capacity,
}

/// A queue pair. The ring of receives lies behind that of sends; with a shared receive queue there
/// is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QpMade {
    /// Its number.
    pub qpn: Qpn,
    /// What it is called in the set of queues with news.
    pub number: u32,
    /// Its ring of sends.
    pub send: Capacity,
    /// Its ring of receives.
    pub recv: Option<Capacity>,
}

/// A process that is attached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionReport {
    /// Number.
    pub session: u32,
    /// Process.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Name it gave itself.
    pub program: String,
    /// Name of the device it uses.
    pub device: Option<String>,
    /// Objects: queue pairs, completion queues, shared receive queues, regions, windows, address
    /// handles.
    pub objects: [u32; 6],
    /// Bytes registered.
    pub bytes: u64,
    /// Work requests it posted.
    pub posted: u64,
    /// Completions it was given.
    pub completed: u64,
    /// Completion queues whose ring is full because it does not poll.
    pub stalled: u32,
}

/// A queue pair in a report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QpReport {
    /// Session that has it.
    pub session: u32,
    /// Number.
    pub qpn: Qpn,
    /// Service.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// The peer's number.
    pub dest_qpn: Option<Qpn>,
    /// The peer's address.
    pub peer: Option<Gid>,
    /// What it has counted.
    pub counters: Counters,
    /// What is true of it now.
    pub gauges: Gauges,
    /// Round-trip times at the 50th, 90th, 99th percentile and the longest, ns; `None` before the
    /// first.
    pub rtt: Option<[u64; 4]>,
}

/// A device in a report.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Name.
    pub device: String,
    /// Name of its port.
    pub port: String,
    /// Whether it can be used.
    pub up: bool,
    /// Addresses.
    pub gids: Vec<(u32, Gid)>,
    /// Counters of the engine.
    pub engine: EngineStats,
    /// Counters of the port.
    pub stats: PortStats,
    /// Polls of the engine, those that found work, and nanoseconds asleep, since it began.
    pub polls: u64,
    /// Polls that found work.
    pub busy_polls: u64,
    /// Nanoseconds asleep.
    pub asleep_ns: u64,
    /// Nanoseconds since it began.
    pub alive_ns: u64,
    /// CPU time of its thread, ns.
    pub cpu_ns: u64,
}

/// What the daemon has and does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Release.
    pub release: String,
    /// Devices.
    pub devices: Vec<DeviceReport>,
    /// Processes attached.
    pub sessions: u32,
    /// Sessions that were closed for cause since the daemon began.
    pub expelled: u64,
    /// Resident memory of the daemon, bytes.
    pub rss: u64,
}

/// A part of a listing, in order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Page<T> {
    /// What is in it.
    pub items: Vec<T>,
    /// There is more behind the last.
    pub more: bool,
}

impl<T> Page<T> {
    /// The first `most` of `items`.
    #[must_use]
    pub fn of(mut items: Vec<T>, most: usize) -> Self {
        let more = items.len() > most;
        items.truncate(most);
        Self { items, more }
    }
}

/// Bytes kept of a captured frame, at most; the longest frame of a port is shorter.
pub const SNAPLEN_MAX: u32 = 1 << 16;

/// The way of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}

/// Which frames are captured, and how much of them. What is not set lets everything pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// Only packets that this queue pair sends or receives, be it here or at the peer.
    pub qp: Option<Qpn>,
    /// Only packets from or to this address.
    pub peer: Option<Gid>,
    /// Only packets of one way.
    pub direction: Option<Direction>,
    /// Only what has to do with losses and errors: NAKs, RNR NAKs, selective acknowledgements,
    /// congestion notifications, requests that were sent before, and what is no RoCE packet.
    pub errors: bool,
    /// Every how many-th frame that passes the filters is captured; 1: each. 0 is refused.
    pub sample: u32,
    /// Bytes kept of a frame, from 1 to [`SNAPLEN_MAX`].
    pub snaplen: u32,
    /// Entries of the ring, from 512 to the largest ring; rounded up to a power of two.
    pub entries: u32,
}

impl Default for CaptureSpec {
    /// Everything, whole, in a ring of 16 MiB.
    fn default() -> Self {
        Self {
            qp: None,
            peer: None,
            direction: None,
            errors: false,
            sample: 1,
            snaplen: SNAPLEN_MAX,
            entries: 1 << 16,
        }
    }
}

/// A capture has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CaptureMade {
    /// Its ring.
    pub ring: Capacity,
    /// Frames begin with an Ethernet header; otherwise with the BTH, and records say what the
    /// socket told.
    pub ethernet: bool,
}

/// What a capture has counted. Every frame that passed is in exactly one of the others.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CaptureStats {
    /// Frames that passed the device.
    pub seen: u64,
    /// Frames that the filters left out.
    pub filtered: u64,
    /// Frames that the sampling left out.
    pub unsampled: u64,
    /// Frames in the ring, whole or cut.
    pub captured: u64,
    /// Frames for which the ring had no room.
    pub dropped: u64,
    /// The ring is of no more use, and why: its reader wrote into it what cannot be. Frames that
    /// pass afterwards are among the dropped ones.
    pub broken: Option<String>,
}
