//! Counts over a whole capture.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde::Serialize;
use xroce_wire::newtypes::{Gid, Qpn};
use xroce_wire::opcode::Opcode;

use super::flow::{Counts, Flow, refuses, sent};
use super::packet::{Icrc, Roce};
use super::psns::{Psns, Sighting};
use super::view::address;

/// Flows between two hosts among which the other direction of one is looked for, and packets it is
/// looked for with.
const TRIES: usize = 64;

/// What tells flows apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    src: Gid,
    dst: Gid,
    dest_qp: Qpn,
    /// Only datagrams say where they come from.
    src_qp: Option<Qpn>,
}

/// Counts so far.
#[derive(Debug, Default)]
pub(super) struct Summary {
    packets: u64,
    roce: u64,
    icrc_errors: u64,
    icrc_unknown: u64,
    damaged: u64,
    /// By opcode byte.
    opcodes: BTreeMap<u8, u64>,
    /// In order of appearance.
    flows: Vec<Entry>,
    index: HashMap<Key, usize>,
    /// Flows with responses or requests of a connection, from one host to another.
    between: HashMap<(Gid, Gid), Vec<usize>>,
    /// When a host last refused or missed a request of another.
    refused: HashMap<(Gid, Gid), u64>,
    /// What each QP sent as datagrams: it numbers those to all its peers in one sequence.
    datagrams: HashMap<(Gid, Qpn), Psns>,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    flow: Flow,
    /// The other direction of the same connection, once it is known. Only PSNs tell.
    peer: Option<usize>,
    /// How often the other direction was looked for.
    tries: usize,
    /// When it last refused or missed a request of its peer.
    refused_ns: Option<u64>,
}

#[derive(Debug, Serialize)]
struct SummaryView {
    packets: u64,
    roce_packets: u64,
    icrc_errors: u64,
    icrc_unknown: u64,
    damaged: u64,
    opcodes: Vec<OpcodeView>,
    connections: Vec<ConnectionView>,
}

#[derive(Debug, Serialize)]
struct OpcodeView {
    opcode: u8,
    opcode_name: &'static str,
    packets: u64,
}

#[derive(Debug, Serialize)]
struct ConnectionView {
    src: String,
    dst: String,
    dest_qp: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_qp: Option<u32>,
    packets: u64,
    psn_gaps: u64,
    psn_missing: u64,
    overtaken: u64,
    /// Places; RFC 4737, section 4.2.
    max_overtaken_by: u64,
    duplicates: u64,
    retransmissions: u64,
    naks: u64,
    rnrs: u64,
    cnps: u64,
}

impl Summary {
    /// A packet of any kind.
    pub(super) fn any(&mut self) {
        self.packets += 1;
    }

    /// A packet that could not be read.
    pub(super) fn broken(&mut self) {
        self.damaged += 1;
    }

    /// A RoCE packet.
    pub(super) fn roce(&mut self, ts_ns: u64, roce: &Roce<'_>) {
        self.roce += 1;
        let (f, p) = (&roce.frame, &roce.packet);
        *self.opcodes.entry(p.opcode() as u8).or_default() += 1;
        match roce.icrc {
            Icrc::Ok => {}
            Icrc::Unknown => self.icrc_unknown += 1,
            Icrc::Bad => {
                // The receiver drops it, and nothing in it can be relied on, not even the QP.
                self.icrc_errors += 1;
                return;
            }
        }
        let key = Key {
            src: f.src(),
            dst: f.dst(),
            dest_qp: p.dest_qp(),
            src_qp: p.deth().map(|h| h.src_qp),
        };
        let at = *self.index.entry(key).or_insert_with(|| {
            self.flows.push(Entry {
                key,
                flow: Flow::default(),
                peer: None,
                tries: 0,
                refused_ns: None,
            });
            let at = self.flows.len() - 1;
            if key.src_qp.is_none() {
                self.between.entry((key.src, key.dst)).or_default().push(at);
            }
            at
        });
        if let Some(src_qp) = key.src_qp {
            self.datagram((key.src, src_qp), at, roce);
        }
        let refused = self.refused_ns(at);
        let Some(entry) = self.flows.get_mut(at) else {
            return;
        };
        let anew = entry.flow.packet(ts_ns, roce, refused);
        if refuses(roce) {
            entry.refused_ns = Some(ts_ns);
            self.refused.insert((key.src, key.dst), ts_ns);
        }
        if anew {
            self.part(at);
        }
        if p.info().is_response() {
            self.pair(at, roce);
        }
        self.tell(at);
    }

    /// When the other side of a flow last refused or missed a request, or any QP of that host if
    /// the other side is not known.
    fn refused_ns(&self, at: usize) -> Option<u64> {
        let entry = self.flows.get(at)?;
        match entry.peer.and_then(|peer| self.flows.get(peer)) {
            Some(peer) => peer.refused_ns,
            None => self.refused.get(&(entry.key.dst, entry.key.src)).copied(),
        }
    }

    /// A datagram of a QP, in flow `at`.
    fn datagram(&mut self, from: (Gid, Qpn), at: usize, roce: &Roce<'_>) {
        let psns = self.datagrams.entry(from).or_default();
        let sighting = psns.see(&sent(roce, at), 0);
        if let Some(entry) = self.flows.get_mut(at) {
            let counts = &mut entry.flow.counts;
            match sighting {
                Sighting::Anew => {}
                Sighting::First(places) => counts.late(places),
                Sighting::Again => counts.duplicates += 1,
            }
        }
        for hole in psns.given_up() {
            if let Some(entry) = self.flows.get_mut(hole.owner) {
                entry.flow.counts.lost(hole.len());
            }
        }
    }

    /// A new connection: the other direction may be another one.
    fn part(&mut self, at: usize) {
        let peer = self.flows.get(at).and_then(|entry| entry.peer);
        for i in [Some(at), peer].into_iter().flatten() {
            if let Some(entry) = self.flows.get_mut(i) {
                entry.peer = None;
                entry.tries = 0;
            }
        }
    }

    /// Looks for the flow whose requests flow `at` answers: the only one between the same hosts
    /// that sent what this response names.
    fn pair(&mut self, at: usize, roce: &Roce<'_>) {
        let Some(entry) = self.flows.get_mut(at) else {
            return;
        };
        let hosts = (entry.key.dst, entry.key.src);
        let Some(candidates) = self.between.get(&hosts) else {
            return;
        };
        if entry.peer.is_some() || entry.tries == TRIES || candidates.len() > TRIES {
            return;
        }
        entry.tries += 1;
        let fits = |i: &usize| {
            let free = |e: &&Entry| e.peer.is_none() && e.flow.may_be_answered_by(roce);
            self.flows.get(*i).is_some_and(|e| free(&e))
        };
        let mut fitting = candidates.iter().copied().filter(fits);
        let (Some(peer), None) = (fitting.next(), fitting.next()) else {
            return;
        };
        for (one, other) in [(at, peer), (peer, at)] {
            if let Some(entry) = self.flows.get_mut(one) {
                entry.peer = Some(other);
            }
        }
    }

    /// Both directions learn from each other.
    fn tell(&mut self, at: usize) {
        let Some(peer) = self.flows.get(at).and_then(|entry| entry.peer) else {
            return;
        };
        if let Ok([one, other]) = self.flows.get_disjoint_mut([at, peer]) {
            one.flow.tell(&mut other.flow);
            other.flow.tell(&mut one.flow);
        }
    }

    /// Each flow with its counts up to here.
    fn totals(&self) -> Vec<(&Key, Counts)> {
        let flows = self.flows.iter();
        let mut all: Vec<(&Key, Counts)> = flows.map(|e| (&e.key, e.flow.totals())).collect();
        for hole in self.datagrams.values().flat_map(Psns::holes) {
            if let Some((_, counts)) = all.get_mut(hole.owner) {
                counts.lost(hole.len());
            }
        }
        all
    }

    fn opcodes(&self) -> impl Iterator<Item = OpcodeView> {
        self.opcodes.iter().map(|(&opcode, &packets)| OpcodeView {
            opcode,
            opcode_name: Opcode::from_u8(opcode).map_or("?", |info| info.opcode.name()),
            packets,
        })
    }

    /// One JSON object.
    pub(super) fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let connections = self.totals().into_iter().map(|(key, c)| ConnectionView {
            src: address(key.src),
            dst: address(key.dst),
            dest_qp: key.dest_qp.value(),
            src_qp: key.src_qp.map(Qpn::value),
            packets: c.packets,
            psn_gaps: c.psn_gaps,
            psn_missing: c.psn_missing,
            overtaken: c.overtaken,
            max_overtaken_by: c.max_overtaken_by,
            duplicates: c.duplicates,
            retransmissions: c.retransmissions,
            naks: c.naks,
            rnrs: c.rnrs,
            cnps: c.cnps,
        });
        let view = SummaryView {
            packets: self.packets,
            roce_packets: self.roce,
            icrc_errors: self.icrc_errors,
            icrc_unknown: self.icrc_unknown,
            damaged: self.damaged,
            opcodes: self.opcodes().collect(),
            connections: connections.collect(),
        };
        serde_json::to_writer(&mut *out, &view)?;
        writeln!(out)
    }

    /// Tables for people.
    pub(super) fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "packets {}, RoCE {}", self.packets, self.roce)?;
        write!(out, ", ICRC errors {}", self.icrc_errors)?;
        if self.icrc_unknown > 0 {
            write!(out, ", ICRC unknown (truncated) {}", self.icrc_unknown)?;
        }
        if self.damaged > 0 {
            write!(out, ", damaged {}", self.damaged)?;
        }
        writeln!(out)?;
        if self.flows.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        let rows = self
            .opcodes()
            .map(|o| vec![o.opcode_name.to_owned(), o.packets.to_string()]);
        table(out, &["opcode", "packets"], &rows.collect::<Vec<_>>())?;
        writeln!(out)?;
        let head = [
            "connection",
            "packets",
            "PSN gaps",
            "missing",
            "overtaken",
            "by at most",
            "duplicates",
            "retransmissions",
            "NAKs",
            "RNRs",
            "CNPs",
        ];
        let rows = self.totals().into_iter().map(|(key, c)| row(key, &c));
        table(out, &head, &rows.collect::<Vec<_>>())
    }
}

fn row(key: &Key, c: &Counts) -> Vec<String> {
    let mut name = format!("{} -> {}", address(key.src), address(key.dst));
    if let Some(src_qp) = key.src_qp {
        name += &format!(" qp {:#08x} ->", src_qp.value());
    }
    name += &format!(" qp {:#08x}", key.dest_qp.value());
    let numbers = [
        c.packets,
        c.psn_gaps,
        c.psn_missing,
        c.overtaken,
        c.max_overtaken_by,
        c.duplicates,
        c.retransmissions,
        c.naks,
        c.rnrs,
        c.cnps,
    ];
    std::iter::once(name)
        .chain(numbers.iter().map(u64::to_string))
        .collect()
}

/// The first column to the left, numbers to the right.
fn table(out: &mut dyn Write, head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    let all = || std::iter::once(&head).chain(rows);
    let width = |column: usize| all().filter_map(|r| r.get(column)).map(String::len).max();
    let widths: Vec<usize> = (0..head.len()).map(|c| width(c).unwrap_or(0)).collect();
    for row in all() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if column == 0 {
                write!(out, "{cell:<width$}")?;
            } else {
                write!(out, "  {cell:>width$}")?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}
