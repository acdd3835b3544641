//! What was measured: all that the diagnosis knows.

use std::net::IpAddr;

use super::message::{End, Heard, Sent, Way};
use super::probe::SHORTER_BY;
use super::train::Train;

/// Percentage of losses above which reliable connections take seconds for a message.
const HOPELESS: u64 = 5;

/// A train and what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// What was to be sent.
    pub train: Train,
    /// What was sent.
    pub sent: Sent,
    /// What came.
    pub heard: Heard,
}

impl Trial {
    /// Packets that left and did not come, less those that the receiving side itself dropped.
    pub(crate) fn lost(&self) -> u32 {
        let refused = u32::try_from(self.sent.refused).unwrap_or(u32::MAX);
        let left = self.sent.packets.saturating_sub(refused);
        let missing = left.saturating_sub(self.heard.packets());
        let dropped = u32::try_from(self.heard.dropped_here).unwrap_or(u32::MAX);
        missing.saturating_sub(dropped)
    }

    /// Whether nothing happened to it.
    pub(crate) fn is_clean(&self) -> bool {
        let heard = &self.heard;
        let odd = heard.reordered == 0 && heard.duplicates == 0 && heard.dropped_here == 0;
        odd && self.lost() == 0
    }

    /// Whether addresses or ports are not those it was sent with, from `gid`.
    pub(crate) fn is_translated(&self, gid: IpAddr) -> bool {
        let sent = (gid, self.sent.src_port);
        let sources = &self.heard.sources;
        sources.iter().any(|s| (s.address, s.port) != sent)
    }
}

/// One direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Direction {
    /// Datagrams to another UDP port.
    pub other: Option<Trial>,
    /// A few small packets to UDP port 4791.
    pub reach: Option<Trial>,
    /// Packets as long as those of each path MTU that the links carry.
    pub sizes: Option<Trial>,
    /// Where the sizes that vanish begin.
    pub edge: Option<Edge>,
    /// Many packets, until it is clear whether what happened to them happens again.
    pub many: Vec<Trial>,
}

impl Direction {
    /// Payload bytes of the largest path MTU whose packets arrive.
    pub(crate) fn path_mtu(&self) -> Option<u32> {
        let trial = self.sizes.as_ref()?;
        let groups = trial.train.groups.iter().zip(&trial.heard.groups);
        let passed = groups.filter(|(_, came)| **came > 0);
        passed.map(|(g, _)| g.payload - SHORTER_BY).max()
    }

    /// Whether any packet that `gid` sent came from another address or port.
    pub(crate) fn is_translated(&self, gid: IpAddr) -> bool {
        let roce = self.reach.iter().chain(&self.sizes).chain(&self.many);
        let mut all = roce.chain(&self.other);
        all.any(|t| t.is_translated(gid))
    }

    /// Whether all of many packets arrive in order.
    pub(crate) fn is_orderly(&self) -> bool {
        let orderly = |t: &Trial| t.lost() == 0 && t.heard.reordered == 0;
        self.many.iter().all(orderly)
    }

    /// Whether so much is lost that queue pairs would hardly get on.
    pub(crate) fn is_hopeless(&self) -> bool {
        let hopeless = |t: &Trial| u64::from(t.lost()) * 100 > u64::from(t.sent.packets) * HOPELESS;
        self.many.iter().any(hopeless)
    }

    /// Whether packets of `gid` arrive with its address and a right ICRC.
    pub(crate) fn is_intact(&self, gid: IpAddr) -> bool {
        let trial = self.many.last().or(self.reach.as_ref());
        trial.is_some_and(|t| {
            let came = t.heard.packets();
            came > 0 && !t.is_translated(gid) && t.heard.icrc_wrong() < came / 2
        })
    }
}

/// The longest packet that passes and the shortest one that does not, as IP lengths in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Edge {
    /// Passes.
    pub passes: u32,
    /// Vanishes.
    pub vanishes: u32,
}

/// What reliable connections did.
#[derive(Clone, Debug)]
pub(crate) enum Connected {
    /// They were measured.
    Measured(Rates),
    /// They failed, in words.
    Failed(String),
    /// They were not tried, for this reason.
    NotTried(&'static str),
}

/// Rates of RC WRITE from the side that connects to the other.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Rates {
    /// Payload bytes per packet.
    pub path_mtu: u32,
    /// Payload of large WRITEs in 10^9 bits per second.
    pub gbit_per_s: f64,
    /// Packets of all of them.
    pub packets: u64,
    /// Median of the round trip of a small WRITE and its answer, in ns.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Slowest.
    pub max_ns: u64,
    /// Round trips.
    pub round_trips: u64,
    /// Packets sent again, by both sides.
    pub retransmissions: u64,
    /// Gaps that the sides found in what they received.
    pub sequence_naks: u64,
    /// ACK timeouts of both sides.
    pub timeouts: u64,
    /// Packets dropped for their ICRC, by both sides.
    pub icrc_errors: u64,
    /// Messages that were not what was sent.
    pub wrong: u64,
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The side that connected.
    pub near: End,
    /// The side that listened.
    pub far: End,
    /// Whether the side channel runs between the same addresses, so that TCP gets through.
    pub tcp_passes: bool,
    /// How frames get from the near side to the far one; `None` if that was not tried.
    pub near_way: Option<Way>,
    /// The way back.
    pub far_way: Option<Way>,
    /// From the near side to the far one.
    pub there: Direction,
    /// The other direction.
    pub back: Direction,
    /// Reliable connections.
    pub connected: Connected,
}

impl Facts {
    /// Before anything was measured.
    pub(crate) fn new(near: End, far: End) -> Self {
        Self {
            near,
            far,
            tcp_passes: false,
            near_way: None,
            far_way: None,
            there: Direction::default(),
            back: Direction::default(),
            connected: Connected::NotTried("packets do not arrive intact in both directions"),
        }
    }

    /// Whether there is a pair of addresses to measure between.
    pub(crate) fn is_pair(&self) -> bool {
        let usable = self.near.trouble.is_none() && self.far.trouble.is_none();
        usable && self.near.gid.is_ipv4() == self.far.gid.is_ipv4() && self.same_scope()
    }

    /// Both addresses link-local, or neither.
    pub(crate) fn same_scope(&self) -> bool {
        super::is_link_local(self.near.gid) == super::is_link_local(self.far.gid)
    }
}
