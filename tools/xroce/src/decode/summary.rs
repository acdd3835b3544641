//! Counts over a whole capture.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde::Serialize;
use xroce_wire::newtypes::{Gid, Qpn};
use xroce_wire::opcode::Opcode;

use super::flow::{Counts, Flow};
use super::packet::{Icrc, Roce};
use super::view::address;

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
    flows: Vec<(Key, Flow)>,
    index: HashMap<Key, usize>,
    /// When a host last refused a request of another.
    refused: HashMap<(Gid, Gid), u64>,
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
            self.flows.push((key, Flow::default()));
            self.flows.len() - 1
        });
        let refused = self.refused.get(&(key.dst, key.src)).copied();
        let Some((_, flow)) = self.flows.get_mut(at) else {
            return;
        };
        let before = flow.counts.naks + flow.counts.rnrs;
        flow.packet(ts_ns, roce, refused);
        if flow.counts.naks + flow.counts.rnrs > before {
            self.refused.insert((key.src, key.dst), ts_ns);
        }
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
        let connections = self.flows.iter().map(|(key, flow)| {
            let c = flow.counts;
            ConnectionView {
                src: address(key.src),
                dst: address(key.dst),
                dest_qp: key.dest_qp.value(),
                src_qp: key.src_qp.map(Qpn::value),
                packets: c.packets,
                psn_gaps: c.psn_gaps,
                psn_missing: c.psn_missing,
                duplicates: c.duplicates,
                retransmissions: c.retransmissions,
                naks: c.naks,
                rnrs: c.rnrs,
                cnps: c.cnps,
            }
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
            "duplicates",
            "retransmissions",
            "NAKs",
            "RNRs",
            "CNPs",
        ];
        let rows = self.flows.iter().map(|(key, flow)| row(key, &flow.counts));
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
