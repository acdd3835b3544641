//! What two `xroce doctor` tell each other over TCP, in the framing of
//! [`perf`](crate::perf::peer::message): magic, version, length, JSON.
//!
//! ```text
//! connects                              listens
//! Hello{run, end}              ->
//!                              <-       Hello{run, end}
//! Resolve                      ->
//!                              <-       Resolved{way}
//! there:  Expect{train}        ->
//!                              <-       Ready
//!         (frames)             ->
//!         Sent{sent}           ->
//!                              <-       Heard{heard}
//! back:   Send{train}          ->
//!                              <-       (frames)
//!                              <-       Sent{sent}
//! Measure                      ->
//!                              <-       Ready          then `xroce perf` on a second connection
//! Report{report}               ->
//!                              <-       Bye
//! ```
//! The side that connects decides what is sent; the other checks every number before it counts or
//! sends anything. Either may send `Abort` at any time.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use xroce_wire::newtypes::Gid;

use super::report::Report;
use super::train::Train;
use crate::perf::peer::message::{BadMessage, Language, Meaning, one_line};

/// Addresses of an end that are told, at most.
pub(crate) const ADDRESSES_MAX: usize = 32;
/// ICMP errors about one train that are told, at most.
pub(crate) const ICMP_MAX: usize = 4;
/// Entries of a list of what was seen in one train, at most.
pub(crate) const SEEN_MAX: usize = 8;

/// One message.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    /// First word of either side.
    Hello {
        /// Number of this run; the side that listens repeats it.
        run: u64,
        /// This side.
        end: End,
    },
    /// Find out how frames get to me.
    Resolve {},
    /// It did, or not.
    Resolved {
        /// How.
        way: Way,
    },
    /// Count what is about to come.
    Expect {
        /// What will come.
        train: Train,
    },
    /// It counts; or it is ready to measure.
    Ready {},
    /// All of the train is sent.
    Sent {
        /// What became of it at this side.
        sent: Sent,
    },
    /// All that came of the train.
    Heard {
        /// What came.
        heard: Box<Heard>,
    },
    /// Send this.
    Send {
        /// What to send.
        train: Train,
    },
    /// Measure bandwidth and latency: a second connection is about to come.
    Measure {},
    /// What is wrong, if anything.
    Report {
        /// The findings.
        report: Report,
    },
    /// Still here. Braces: serde would let a variant without them have unknown fields.
    Heartbeat {},
    /// It has finished.
    Bye {},
    /// It cannot go on.
    Abort {
        /// In words.
        reason: String,
    },
}

impl Language for Message {
    const MAGIC: [u8; 4] = *b"XRDR";
    const VERSION: u16 = 1;
    const PROGRAM: &'static str = "xroce doctor";

    fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Resolve {} => "resolve",
            Self::Resolved { .. } => "resolved",
            Self::Expect { .. } => "expect",
            Self::Ready {} => "ready",
            Self::Sent { .. } => "sent",
            Self::Heard { .. } => "heard",
            Self::Send { .. } => "send",
            Self::Measure {} => "measure",
            Self::Report { .. } => "report",
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

/// One end of the path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct End {
    /// Address that RoCE packets come from.
    pub gid: IpAddr,
    /// All addresses of the interface that could be.
    pub addresses: Vec<IpAddr>,
    /// Name of the port.
    pub port: String,
    /// Whether this side sees and writes Ethernet, IP and UDP headers itself.
    pub ethernet: bool,
    /// Whether the link is up.
    pub up: bool,
    /// IP MTU of the link in bytes.
    pub link_mtu: u32,
    /// Receive queues of the interface, 0 if that does not matter: a port takes one of them.
    pub queues: u32,
    /// Destination queue pair of probes to this side.
    pub qpn: u32,
    /// A UDP port other than that of RoCE where this side listens too.
    pub other_port: u16,
    /// Why the port cannot be used; then nothing else here counts.
    pub trouble: Option<String>,
}

impl End {
    /// An end that could not open its port.
    pub(crate) fn without_port(gid: IpAddr, trouble: &str) -> Self {
        Self {
            gid,
            addresses: Vec::new(),
            port: String::new(),
            ethernet: false,
            up: false,
            link_mtu: 0,
            queues: 0,
            qpn: 2,
            other_port: 0,
            trouble: Some(one_line(trouble)),
        }
    }

    /// Checks what a peer said about itself, and makes its texts fit a terminal.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub(crate) fn check(mut self) -> Result<Self, BadMessage> {
        if self.addresses.len() > ADDRESSES_MAX {
            return Err(BadMessage::field(
                "number of addresses",
                self.addresses.len(),
            ));
        }
        if !(2..0x00ff_ffff).contains(&self.qpn) {
            return Err(BadMessage::field("queue pair number", self.qpn));
        }
        self.gid = self.gid.to_canonical();
        let wrong = self.gid.is_unspecified() || self.gid.is_multicast();
        if wrong && self.trouble.is_none() {
            return Err(BadMessage::field("RoCE address", self.gid));
        }
        self.port = one_line(&self.port);
        self.trouble = self.trouble.map(|text| one_line(&text));
        Ok(self)
    }

    /// Its address as a GID.
    pub(crate) fn as_gid(&self) -> Gid {
        Gid::from(self.gid)
    }
}

/// How frames get to the peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Way {
    /// To this Ethernet address.
    Neighbour(String),
    /// The kernel will see to it.
    Kernel {},
    /// There is none, in words.
    None(String),
}

impl Way {
    /// The same with texts that fit a terminal.
    pub(crate) fn clean(self) -> Self {
        match self {
            Self::Neighbour(text) => Self::Neighbour(one_line(&text)),
            Self::None(text) => Self::None(one_line(&text)),
            Self::Kernel {} => self,
        }
    }
}

/// What became of a train where it was sent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sent {
    /// Packets handed to the kernel, a beginning of the train.
    pub packets: u32,
    /// Packets of these that the kernel refused.
    pub refused: u64,
    /// UDP source port of all of them.
    pub src_port: u16,
    /// TTL or hop limit of all of them, if this side writes it.
    pub hop_limit: Option<u8>,
    /// What routers said about them.
    pub icmp: Vec<String>,
}

impl Sent {
    /// Checks what a peer said about the train it was asked for.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub(crate) fn check(mut self, train: &Train) -> Result<Self, BadMessage> {
        if self.packets > train.packets() {
            return Err(BadMessage::field("number of packets", self.packets));
        }
        if self.icmp.len() > ICMP_MAX {
            return Err(BadMessage::field("number of ICMP errors", self.icmp.len()));
        }
        for text in &mut self.icmp {
            *text = one_line(text);
        }
        Ok(self)
    }
}

/// Packets that came from one address and port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceSeen {
    /// Source address.
    pub address: IpAddr,
    /// UDP source port.
    pub port: u16,
    /// Packets.
    pub packets: u32,
    /// Packets of these whose ICRC was wrong.
    pub icrc_wrong: u32,
}

/// Packets that came with one traffic class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClassSeen {
    /// DSCP(6) ECN(2).
    pub class: u8,
    /// Packets.
    pub packets: u32,
}

/// What came of a train.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Heard {
    /// Different packets that came, of each group.
    pub groups: Vec<u32>,
    /// Packets that came again.
    pub duplicates: u32,
    /// Packets that came after one sent behind them (RFC 4737).
    pub reordered: u32,
    /// By how many places, at most.
    pub displacement: u32,
    /// Gaps: runs of packets that did not come.
    pub gaps: u32,
    /// Packets of the longest.
    pub longest_gap: u32,
    /// By source; the first [`SEEN_MAX`] that appeared.
    pub sources: Vec<SourceSeen>,
    /// By traffic class; the first [`SEEN_MAX`] that appeared.
    pub classes: Vec<ClassSeen>,
    /// Whether DSCP is known too; a UDP socket tells ECN only.
    pub dscp_known: bool,
    /// TTL or hop limit of the last, if known.
    pub hop_limit: Option<u8>,
    /// Packets that this side's own ring or socket dropped meanwhile.
    pub dropped_here: u64,
}

impl Heard {
    /// Different packets that came.
    pub(crate) fn packets(&self) -> u32 {
        self.groups.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Packets whose ICRC was wrong.
    pub(crate) fn icrc_wrong(&self) -> u32 {
        let wrong = self.sources.iter().map(|s| s.icrc_wrong);
        wrong.fold(0, u32::saturating_add)
    }

    /// Checks what a peer says it counted of a train.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub(crate) fn check(self, train: &Train) -> Result<Self, BadMessage> {
        if self.groups.len() != train.groups.len() {
            return Err(BadMessage::field("number of groups", self.groups.len()));
        }
        let sizes = train.groups.iter().map(|g| g.count);
        if let Some((n, _)) = self.groups.iter().zip(sizes).find(|(n, size)| *n > size) {
            return Err(BadMessage::field("number of packets", n));
        }
        for seen in [self.sources.len(), self.classes.len()] {
            if seen > SEEN_MAX {
                return Err(BadMessage::field("number of entries", seen));
            }
        }
        Ok(self)
    }
}
