//! What the daemon answers.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use xroce_engine::EngineStats;
use xroce_net::datapath::PortStats;
use xroce_proto::counters::Counters;
use xroce_proto::qp::{Gauges, QpState, QpType};
use xroce_proto::wc::{Cq, Srq};
use xroce_wire::newtypes::{Gid, PathMtu, Qpn};

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
}

/// The answer is no; nothing changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
pub struct Farewell {
    /// For people.
    pub text: String,
}

/// Who answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields, default)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
