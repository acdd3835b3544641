//! Messages of the side channel: what two `xroce perf` tell each other over TCP.
//!
//! On the wire: magic (4 bytes), version (u16), reserved zero (u16), length (u32), all big-endian,
//! then that many bytes of JSON. Nothing a peer says is trusted: the length is checked before a
//! byte of the body is kept, JSON with unknown fields is refused, and every number is checked by
//! the method that turns it into one of our types.
//!
//! ```text
//! client                                server
//! Hello{plan, gid, mtu, lane}  ->
//!                              <-       Accept{gid, mtu} | Abort{reason}
//! Connect{path_mtu, memory}    ->
//!                              <-       Connected{memory}
//! per step: Start{step, QPs}   ->       makes queue pairs, buffers, receives
//!                              <-       Ready{QPs}
//!   per round: Go              ->       starts the clock; sends too, if both sides do
//!           (RDMA traffic)
//!           Sync{round, ...}   ->       finishes what it sends, compares, prepares the next round
//!                              <-       Synced{mismatches, counters, what it sent}
//! Bye                          ->
//! ```
//! Every step has queue pairs of its own: nothing of one measurement lingers in the next. With
//! several ports each pair of ports has a conversation of its own, with the same `group`.
//! Either side may send `Abort` at any time, and sends `Heartbeat` when it has nothing to say.

use std::marker::PhantomData;
use std::net::IpAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xroce_wire::newtypes::{Gid, PathMtu, Psn, Qpn, RKey, Va};

use crate::perf::measure::pace::Paced;
use crate::perf::measure::usage::Usage;
use crate::perf::plan::{Plan, Round};

/// First bytes of every message.
pub(crate) const MAGIC: [u8; 4] = *b"XRPF";
/// Version of the exchange; both sides must have the same.
pub(crate) const VERSION: u16 = 3;
/// Bytes before the JSON.
pub(crate) const HEADER_LEN: usize = 12;
/// Longest JSON, in bytes: 256 queue pairs take about 10 KB.
pub(crate) const MAX_BODY: usize = 64 << 10;
/// Most ports of one client.
pub(crate) const MAX_PORTS: u32 = 64;
/// Longest text of a peer that is shown, in characters.
const MAX_TEXT: usize = 1_000;

/// The messages of one kind of conversation: what a channel carries.
pub(crate) trait Language: Serialize + DeserializeOwned {
    /// First bytes of every message.
    const MAGIC: [u8; 4];
    /// Version of the exchange; both sides must have the same.
    const VERSION: u16;
    /// Who speaks it, for messages to people.
    const PROGRAM: &'static str;

    /// Name for error messages.
    fn name(&self) -> &'static str;

    /// Says that this side is still there.
    fn heartbeat() -> Self;

    /// Says that this side cannot go on; the reason is made to fit.
    fn abort(reason: &str) -> Self;

    /// What it means to the channel.
    fn meaning(self) -> Meaning<Self>;
}

/// What a message means to the channel that carries it.
#[derive(Debug)]
pub(crate) enum Meaning<M> {
    /// The peer is still there.
    Heartbeat,
    /// The peer gave up, with its reason.
    Abort(String),
    /// For whoever uses the channel.
    Other(M),
}

/// One message.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    /// First word of the client.
    Hello {
        /// What to measure.
        plan: Plan,
        /// RoCE address of the client.
        gid: IpAddr,
        /// IP MTU of the client's link in bytes.
        link_mtu: u32,
        /// Name of the client's port, for messages to people.
        port: String,
        /// Which of the client's ports this is.
        lane: Lane,
    },
    /// The server will do it.
    Accept {
        /// RoCE address of the server.
        gid: IpAddr,
        /// IP MTU of the server's link in bytes.
        link_mtu: u32,
        /// Name of the server's port, for messages to people.
        port: String,
    },
    /// What the path carries and what the server may access.
    Connect {
        /// Payload bytes per packet.
        path_mtu: u32,
        /// The client's memory region.
        memory: MemoryData,
    },
    /// What the client may access.
    Connected {
        /// The server's memory region.
        memory: MemoryData,
    },
    /// The next step begins.
    Start {
        /// Index in the plan's steps.
        step: u32,
        /// The client's queue pairs.
        qps: Vec<QpData>,
        /// The first round.
        round: Round,
    },
    /// The server is prepared.
    Ready {
        /// The server's queue pairs, in the same order.
        qps: Vec<QpData>,
    },
    /// The client is connected, has posted its receives, and sends from now on.
    Go {},
    /// A round has ended: all messages of the client are completed.
    Sync {
        /// Number of the round within the step.
        round: u64,
        /// Messages sent on each queue pair in this round.
        messages: Vec<u64>,
        /// The next round; `None` if the step is over.
        next: Option<Round>,
    },
    /// The server's findings.
    Synced {
        /// Messages the server compared.
        verified: u64,
        /// Messages that were not what the client sent.
        mismatches: u64,
        /// The first of them, in words.
        first: Option<String>,
        /// What the server counted in this step so far.
        counters: SideCounters,
        /// What its thread used in the rounds that count.
        usage: Usage,
        /// What it sent itself.
        sent: Option<SentData>,
    },
    /// Still here. Braces: serde would let a variant without them have unknown fields.
    Heartbeat {},
    /// The client has finished.
    Bye {},
    /// It cannot go on.
    Abort {
        /// In words.
        reason: String,
    },
}

impl Language for Message {
    const MAGIC: [u8; 4] = MAGIC;
    const VERSION: u16 = VERSION;
    const PROGRAM: &'static str = "xroce perf";

    fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Accept { .. } => "accept",
            Self::Connect { .. } => "connect",
            Self::Connected { .. } => "connected",
            Self::Start { .. } => "start",
            Self::Ready { .. } => "ready",
            Self::Go {} => "go",
            Self::Sync { .. } => "sync",
            Self::Synced { .. } => "synced",
            Self::Heartbeat {} => "heartbeat",
            Self::Bye {} => "bye",
            Self::Abort { .. } => "abort",
        }
    }

    fn heartbeat() -> Self {
        Self::Heartbeat {}
    }

    fn abort(reason: &str) -> Self {
        Self::Abort {
            reason: one_line(reason),
        }
    }

    fn meaning(self) -> Meaning<Self> {
        match self {
            Self::Heartbeat {} => Meaning::Heartbeat,
            Self::Abort { reason } => Meaning::Abort(reason),
            other => Meaning::Other(other),
        }
    }
}

/// One of the ports of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lane {
    /// The same for all ports of one client, and of no other.
    pub group: u64,
    /// Which port.
    pub index: u32,
    /// Of how many.
    pub count: u32,
}

impl Lane {
    /// The only port of a client.
    pub(crate) const ONLY: Self = Self {
        group: 0,
        index: 0,
        count: 1,
    };

    /// Checks every field; this side has so many `ports`.
    ///
    /// # Errors
    /// There cannot be such a port, or this side has none for it.
    pub(crate) fn check(self, ports: u32) -> Result<(), BadMessage> {
        if !(1..=MAX_PORTS).contains(&self.count) || self.index >= self.count {
            let value = format!("{} of {}", self.index, self.count);
            return Err(BadMessage::field("port number", value));
        }
        if self.count > ports {
            return Err(BadMessage::Ports {
                theirs: self.count,
                ours: ports,
            });
        }
        Ok(())
    }
}

/// What the server sent, over the rounds of a step that count.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SentData {
    /// Messages on each queue pair in this round.
    pub round: Vec<u64>,
    /// Messages in all.
    pub messages: u64,
    /// Time in which they were completed, in ns.
    pub elapsed_ns: u64,
    /// Messages a second of the best stretch.
    pub peak_per_s: u64,
    /// What an open loop found.
    pub paced: Option<Paced>,
}

/// Counters of one side over one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SideCounters {
    /// Request packets sent again.
    pub retransmissions: u64,
    /// ACK timeouts.
    pub timeouts: u64,
    /// RNR NAKs sent.
    pub rnr_naks: u64,
    /// Sequence NAKs sent.
    pub sequence_naks: u64,
    /// Packets dropped for their ICRC.
    pub icrc_errors: u64,
    /// Frames that found no room in the receive ring or socket buffer.
    pub frames_dropped: u64,
}

impl SideCounters {
    /// The sum of both sides.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            retransmissions: self.retransmissions.saturating_add(other.retransmissions),
            timeouts: self.timeouts.saturating_add(other.timeouts),
            rnr_naks: self.rnr_naks.saturating_add(other.rnr_naks),
            sequence_naks: self.sequence_naks.saturating_add(other.sequence_naks),
            icrc_errors: self.icrc_errors.saturating_add(other.icrc_errors),
            frames_dropped: self.frames_dropped.saturating_add(other.frames_dropped),
        }
    }
}

/// One queue pair, as it travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QpData {
    /// Queue pair number.
    pub qpn: u32,
    /// First PSN it will send.
    pub psn: u32,
}

/// A memory region of one side, as it travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemoryData {
    /// Start address.
    pub va: u64,
    /// Bytes.
    pub len: u64,
    /// Key.
    pub rkey: u32,
}

/// A memory region of the peer, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteMemory {
    /// Start address; adding any offset of the plan does not overflow.
    pub va: Va,
    /// Key.
    pub rkey: RKey,
}

/// A queue pair of the peer, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteQp {
    /// Its number.
    pub qpn: Qpn,
    /// First PSN it will send.
    pub psn: Psn,
}

/// What a peer said cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BadMessage {
    /// The first bytes are not ours.
    #[error("the peer is not {program}: it sent {sent}")]
    Magic {
        /// Who was expected.
        program: &'static str,
        /// How its first message starts.
        sent: String,
    },
    /// Another version of the exchange.
    #[error(
        "the peer speaks version {theirs} of the exchange, this is version {ours}: use the same xroce on both sides"
    )]
    Version {
        /// What its header says.
        theirs: u16,
        /// What this side speaks.
        ours: u16,
    },
    /// Reserved bits.
    #[error("the peer set reserved bits in a message header")]
    Reserved,
    /// Too long to be a message.
    #[error("the peer announced a message of {0} bytes, the limit is {MAX_BODY}")]
    Length(u32),
    /// Not JSON, or not one of our messages.
    #[error("the peer sent a message that cannot be understood: {0}")]
    Json(String),
    /// More ports than this side has.
    #[error(
        "the client has {theirs} ports, this server {ours}: give both sides as many with --dev, \
         --queues or --local"
    )]
    Ports {
        /// Ports of the client.
        theirs: u32,
        /// Ports of this side.
        ours: u32,
    },
    /// A field that cannot be.
    #[error("the peer sent an impossible {field}: {value}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it said.
        value: String,
    },
}

impl BadMessage {
    /// A field that cannot be, with a value that fits on a line.
    pub(crate) fn field(field: &'static str, value: impl ToString) -> Self {
        Self::Field {
            field,
            value: one_line(&value.to_string()),
        }
    }
}

impl MemoryData {
    /// Checks every field; `bytes` is what the plan asks for.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub(crate) fn check(&self, bytes: u64) -> Result<RemoteMemory, BadMessage> {
        if self.len < bytes {
            return Err(BadMessage::field("length of memory", self.len));
        }
        if self.va.checked_add(self.len).is_none() {
            return Err(BadMessage::field(
                "address of memory",
                format!("{:#x}", self.va),
            ));
        }
        Ok(RemoteMemory {
            va: Va::new(self.va),
            rkey: RKey::new(self.rkey),
        })
    }
}

/// Checks the queue pairs of a peer; `count` is what the step asks for.
///
/// # Errors
/// The first field that is out of range.
pub(crate) fn check_qps(qps: &[QpData], count: u32) -> Result<Vec<RemoteQp>, BadMessage> {
    if qps.len() != count as usize {
        return Err(BadMessage::field("number of queue pairs", qps.len()));
    }
    let check = |qp: &QpData| {
        // 0 and 1 are the management QPs, 0xffffff is multicast.
        if !(2..0x00ff_ffff).contains(&qp.qpn) {
            return Err(BadMessage::field(
                "queue pair number",
                format!("{:#x}", qp.qpn),
            ));
        }
        if qp.psn > 0x00ff_ffff {
            return Err(BadMessage::field(
                "packet sequence number",
                format!("{:#x}", qp.psn),
            ));
        }
        Ok(RemoteQp {
            qpn: Qpn::new(qp.qpn),
            psn: Psn::new(qp.psn),
        })
    };
    qps.iter().map(check).collect()
}

/// Checks a path MTU.
///
/// # Errors
/// It is not one of the five.
pub(crate) fn check_path_mtu(bytes: u32) -> Result<PathMtu, BadMessage> {
    PathMtu::from_bytes(bytes as usize).ok_or_else(|| BadMessage::field("path MTU", bytes))
}

/// Checks the RoCE address of a peer against ours.
///
/// # Errors
/// It cannot be sent to from here.
pub(crate) fn check_gid(theirs: IpAddr, ours: IpAddr) -> Result<Gid, BadMessage> {
    let theirs = theirs.to_canonical();
    let bad = theirs.is_unspecified()
        || theirs.is_multicast()
        || matches!(theirs, IpAddr::V4(v4) if v4.is_broadcast());
    if bad || theirs.is_ipv4() != ours.to_canonical().is_ipv4() {
        return Err(BadMessage::field(
            "RoCE address",
            format!("{theirs} (this side is {ours})"),
        ));
    }
    Ok(Gid::from(theirs))
}

/// Makes a text of a peer fit for one line of a terminal: control characters become spaces, the
/// length is bounded.
pub(crate) fn one_line(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(MAX_TEXT).collect::<String>().trim().to_owned()
}

/// Encodes a message.
///
/// # Errors
/// The message is too long, which no message of ours is.
pub(crate) fn encode<M: Language>(message: &M) -> Result<Vec<u8>, BadMessage> {
    let body = serde_json::to_vec(message).map_err(|e| BadMessage::Json(e.to_string()))?;
    let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
    if body.len() > MAX_BODY {
        return Err(BadMessage::Length(len));
    }
    let mut out = Vec::with_capacity(HEADER_LEN + body.len());
    out.extend_from_slice(&M::MAGIC);
    out.extend_from_slice(&M::VERSION.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&body);
    Ok(out)
}

/// Bytes received and not yet understood.
#[derive(Debug)]
pub(crate) struct Decoder<M> {
    buf: Vec<u8>,
    language: PhantomData<M>,
}

impl<M> Default for Decoder<M> {
    fn default() -> Self {
        Self {
            buf: Vec::new(),
            language: PhantomData,
        }
    }
}

impl<M: Language> Decoder<M> {
    /// Appends what was received.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    /// Whether part of a message is waiting for the rest.
    pub(crate) fn is_midway(&self) -> bool {
        !self.buf.is_empty()
    }

    /// The next whole message, or `None` until more is fed. Refuses a bad header as soon as the
    /// bytes that show it are there.
    ///
    /// # Errors
    /// The bytes are not a message; the decoder is of no more use.
    pub(crate) fn next(&mut self) -> Result<Option<M>, BadMessage> {
        let seen = self.buf.len().min(M::MAGIC.len());
        if self.buf.get(..seen) != M::MAGIC.get(..seen) {
            let start: Vec<u8> = self.buf.iter().copied().take(16).collect();
            return Err(BadMessage::Magic {
                program: M::PROGRAM,
                sent: format!("\"{}\"", start.escape_ascii()),
            });
        }
        let Some(header) = self.buf.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let [_, _, _, _, v0, v1, r0, r1, l0, l1, l2, l3] = *header;
        let version = u16::from_be_bytes([v0, v1]);
        if version != M::VERSION {
            return Err(BadMessage::Version {
                theirs: version,
                ours: M::VERSION,
            });
        }
        if (r0, r1) != (0, 0) {
            return Err(BadMessage::Reserved);
        }
        let len = u32::from_be_bytes([l0, l1, l2, l3]);
        if len as usize > MAX_BODY {
            return Err(BadMessage::Length(len));
        }
        let end = HEADER_LEN + len as usize;
        let Some(body) = self.buf.get(HEADER_LEN..end) else {
            return Ok(None);
        };
        let message =
            serde_json::from_slice(body).map_err(|e| BadMessage::Json(one_line(&e.to_string())))?;
        self.buf.drain(..end);
        Ok(Some(message))
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
