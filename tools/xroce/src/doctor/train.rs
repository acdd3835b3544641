//! Trains of probes: which packets, how fast; and what is counted of one.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::message::{ClassSeen, Heard, SEEN_MAX, Sent, SourceSeen};
use super::probe::{Arrival, PAYLOAD_MAX, PAYLOAD_MIN};
use crate::perf::peer::message::BadMessage;

/// Groups of a train, at most.
pub(crate) const GROUPS_MAX: usize = 64;
/// Packets of a train, at most.
pub(crate) const PACKETS_MAX: u32 = 20_000;
/// Packets per second of a train.
pub(crate) const RATES: (u32, u32) = (100, 50_000);
/// Seconds a train may take by its rate, at most.
const SECONDS_MAX: u32 = 4;

/// What carries a train.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Carrier {
    /// RoCEv2 packets, to UDP port 4791.
    Roce,
    /// Ordinary datagrams to another UDP port.
    OtherUdp,
}

/// Packets of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    /// Payload of each, in bytes.
    pub payload: u32,
    /// How many.
    pub count: u32,
}

/// A train.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Train {
    /// Its number within the run.
    pub number: u32,
    /// What carries it.
    pub carrier: Carrier,
    /// Its packets, in this order.
    pub groups: Vec<Group>,
    /// Packets per second.
    pub rate: u32,
    /// Traffic class of its packets: DSCP(6) ECN(2).
    pub class: u8,
}

impl Train {
    /// Checks what a peer wants to send or to be sent.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub(crate) fn check(self) -> Result<Self, BadMessage> {
        if self.groups.len() > GROUPS_MAX {
            return Err(BadMessage::field("number of groups", self.groups.len()));
        }
        let sizes = PAYLOAD_MIN..=PAYLOAD_MAX;
        if let Some(g) = self.groups.iter().find(|g| !sizes.contains(&g.payload)) {
            return Err(BadMessage::field("payload of a probe", g.payload));
        }
        if self.packets() > PACKETS_MAX {
            return Err(BadMessage::field("number of packets", self.packets()));
        }
        if !(RATES.0..=RATES.1).contains(&self.rate) {
            return Err(BadMessage::field("rate of probes", self.rate));
        }
        if self.packets() / self.rate > SECONDS_MAX {
            return Err(BadMessage::field("length of a train", self.packets()));
        }
        Ok(self)
    }

    /// How many packets it has.
    pub(crate) fn packets(&self) -> u32 {
        let counts = self.groups.iter().map(|g| g.count);
        counts.fold(0, u32::saturating_add)
    }

    /// Payloads of its packets, by their number.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = (u32, u32)> {
        let all = self
            .groups
            .iter()
            .flat_map(|g| (0..g.count).map(|_| g.payload));
        (0..).zip(all)
    }
}

/// Counts what comes of a train. Its packets may come in any order, often, or not at all.
#[derive(Debug)]
pub(crate) struct Tally {
    /// First number behind each group.
    ends: Vec<u32>,
    /// Which numbers have come.
    seen: Vec<bool>,
    /// Highest number that has come.
    highest: Option<u32>,
    heard: Heard,
}

impl Tally {
    /// Of a checked train.
    pub(crate) fn new(train: &Train, dscp_known: bool) -> Self {
        let mut end = 0;
        let add = |g: &Group| {
            end += g.count;
            end
        };
        Self {
            ends: train.groups.iter().map(add).collect(),
            seen: vec![false; train.packets() as usize],
            highest: None,
            heard: Heard {
                groups: vec![0; train.groups.len()],
                dscp_known,
                ..Heard::default()
            },
        }
    }

    /// Different packets that came so far.
    pub(crate) fn packets(&self) -> u32 {
        self.heard.packets()
    }

    /// A packet with this number came.
    pub(crate) fn note(&mut self, number: u32, arrival: &Arrival) {
        let Some(seen) = self.seen.get_mut(number as usize) else {
            return;
        };
        if std::mem::replace(seen, true) {
            self.heard.duplicates += 1;
            return;
        }
        let group = self.ends.iter().position(|&end| number < end);
        if let Some(n) = group.and_then(|g| self.heard.groups.get_mut(g)) {
            *n += 1;
        }
        match self.highest {
            Some(highest) if number < highest => {
                self.heard.reordered += 1;
                let places = highest - number;
                self.heard.displacement = self.heard.displacement.max(places);
            }
            _ => self.highest = Some(number),
        }
        self.note_source(arrival.src.ip(), arrival);
        self.note_class(arrival.class);
        self.heard.hop_limit = arrival.hop_limit;
    }

    fn note_source(&mut self, address: IpAddr, arrival: &Arrival) {
        let (port, wrong) = (arrival.src_port, u32::from(!arrival.icrc_ok));
        let sources = &mut self.heard.sources;
        let is_it = |s: &SourceSeen| (s.address, s.port) == (address, port);
        if let Some(seen) = sources.iter_mut().find(|s| is_it(s)) {
            seen.packets += 1;
            seen.icrc_wrong += wrong;
        } else if sources.len() < SEEN_MAX {
            sources.push(SourceSeen {
                address,
                port,
                packets: 1,
                icrc_wrong: wrong,
            });
        }
    }

    fn note_class(&mut self, class: u8) {
        let classes = &mut self.heard.classes;
        if let Some(seen) = classes.iter_mut().find(|c| c.class == class) {
            seen.packets += 1;
        } else if classes.len() < SEEN_MAX {
            classes.push(ClassSeen { class, packets: 1 });
        }
    }

    /// All of it, once it is known how much was sent.
    pub(crate) fn finish(mut self, sent: &Sent, dropped_here: u64) -> Heard {
        let mut gap = 0;
        for seen in self.seen.iter().take(sent.packets as usize) {
            if *seen {
                gap = 0;
                continue;
            }
            self.heard.gaps += u32::from(gap == 0);
            gap += 1;
            self.heard.longest_gap = self.heard.longest_gap.max(gap);
        }
        self.heard.dropped_here = dropped_here;
        self.heard
    }
}
