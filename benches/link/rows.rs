//! The rows of the targets: what is measured against what, and what came out.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::support::spread::Spread;

/// Unit of both figures of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    PacketsPerSecond,
    MessagesPerSecond,
    GigabitsPerSecond,
    GigabytesPerSecond,
    Nanoseconds,
    Instructions,
    Allocations,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::PacketsPerSecond => "k packets/s",
            Self::MessagesPerSecond => "M messages/s",
            Self::GigabitsPerSecond => "Gb/s",
            Self::GigabytesPerSecond => "GB/s",
            Self::Nanoseconds => "µs",
            Self::Instructions => "instructions/message",
            Self::Allocations => "allocations/message",
        }
    }

    /// A figure in base units (1/s, bit/s, byte/s, ns), as a number for people.
    fn show(self, v: f64) -> String {
        match self {
            Self::PacketsPerSecond => format!("{:.0}", v / 1e3),
            Self::MessagesPerSecond => format!("{:.2}", v / 1e6),
            Self::GigabitsPerSecond => format!("{:.1}", v / 1e9),
            Self::GigabytesPerSecond => format!("{:.2}", v / 1e9),
            Self::Nanoseconds => format!("{:.2}", v / 1e3),
            Self::Instructions => format!("{v:.0}"),
            Self::Allocations => format!("{v}"),
        }
    }
}

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// The ratio to the peer at least this.
    Ratio(f64),
    /// The ratio to the peer at most this.
    RatioBelow(f64),
    /// The figure itself at least this, in base units.
    Figure(f64),
    /// The figure itself at most this.
    FigureBelow(f64),
    /// Nothing: for information.
    None,
}

/// A row of the report.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    pub(crate) peer: &'static str,
    pub(crate) unit: Unit,
    pub(crate) goal: Goal,
}

macro_rules! rows {
    ($($name:ident: $id:literal, $what:literal, $peer:literal, $unit:ident, $goal:expr;)*) => {
        $(pub(crate) static $name: Kind = Kind {
            id: $id, what: $what, peer: $peer, unit: Unit::$unit, goal: $goal,
        };)*
        /// All rows in order.
        pub(crate) static ALL: &[&Kind] = &[$(&$name),*];
    };
}

rows! {
    D1: "D1", "RC SEND 64 B, AF_XDP, one way", "raw AF_XDP, 122 B frames",
        PacketsPerSecond, Goal::Ratio(0.9);
    D2_1024: "D2", "RC WRITE 64 KB, path MTU 1024, AF_XDP", "raw AF_XDP, 1082 B frames",
        PacketsPerSecond, Goal::Ratio(0.9);
    D2_4096: "D2", "RC WRITE 64 KB, path MTU 4096, AF_XDP", "raw AF_XDP, 4154 B frames",
        PacketsPerSecond, Goal::Ratio(0.9);
    D3_P50: "D3", "RC SEND 2 B round trip, AF_XDP, p50", "raw AF_XDP, 62 B frames",
        Nanoseconds, Goal::RatioBelow(1.2);
    D3_P99: "D3", "RC SEND 2 B round trip, AF_XDP, p99", "raw AF_XDP, 62 B frames",
        Nanoseconds, Goal::RatioBelow(1.5);
    D4: "D4", "RC WRITE 1 MB, path MTU 4096, UDP", "iperf3 TCP",
        GigabitsPerSecond, Goal::Ratio(2.0);
    D4_PLAIN: "D4", "RC WRITE 1 MB, path MTU 4096, UDP", "iperf3 TCP, TSO, GSO and GRO off",
        GigabitsPerSecond, Goal::None;
    D5: "D5", "RC SEND 64 B, UDP, one way", "sendmmsg/recvmmsg of 64 B",
        PacketsPerSecond, Goal::Ratio(4.0);
    D6: "D6", "SEND 64 B, two engines in one thread", "",
        MessagesPerSecond, Goal::Figure(4e6);
    D6_INSTRUCTIONS: "D6", "SEND 64 B, both ends together, by callgrind", "",
        Instructions, Goal::FigureBelow(600.0);
    D7: "D7", "WRITE 1 MB, path MTU 4096, two engines in one thread", "2 copies + 2 CRC-32 alone",
        GigabytesPerSecond, Goal::Ratio(0.6);
    D1_CC: "D1+CC", "the same as D1 with DCQCN, every packet paced", "the same without",
        PacketsPerSecond, Goal::Ratio(0.95);
    D2_CC: "D2+CC", "the same as D2 (4096) with DCQCN, every packet paced", "the same without",
        PacketsPerSecond, Goal::Ratio(0.95);
    D7_CC: "D7+CC", "the same as D7 with DCQCN, every packet paced", "the same without",
        GigabytesPerSecond, Goal::Ratio(0.95);
    D10: "D10", "allocations after warm-up, both ends", "",
        Allocations, Goal::FigureBelow(0.0);
}

/// What was measured for one row.
#[derive(Debug, Default)]
struct Samples {
    ours: Vec<f64>,
    peer: Vec<f64>,
    /// Packets sent again, all rounds together.
    resent: u64,
    notes: Vec<String>,
}

/// All rows and what was measured.
#[derive(Debug)]
pub(crate) struct Table {
    samples: Vec<Samples>,
}

/// As JSON.
fn json_of(s: Spread) -> Value {
    json!({"median": s.median, "min": s.min, "max": s.max})
}

impl Samples {
    fn ratio(&self) -> Option<Spread> {
        Spread::of(self.ours.iter().zip(&self.peer).map(|(o, p)| o / p))
    }
}

impl Kind {
    fn met(&self, s: &Samples) -> Option<bool> {
        let ours = Spread::of(s.ours.iter().copied()).map(|s| s.median);
        let ratio = s.ratio().map(|s| s.median);
        match self.goal {
            Goal::Ratio(least) => ratio.map(|r| r >= least),
            Goal::RatioBelow(most) => ratio.map(|r| r <= most),
            Goal::Figure(least) => ours.map(|o| o >= least),
            Goal::FigureBelow(most) => ours.map(|o| o <= most),
            Goal::None => None,
        }
    }

    fn goal(&self) -> String {
        match self.goal {
            Goal::Ratio(least) => format!("≥ {least:.2}×"),
            Goal::RatioBelow(most) => format!("≤ {most:.2}×"),
            Goal::Figure(least) => format!("≥ {}", self.unit.show(least)),
            Goal::FigureBelow(most) => format!("≤ {}", self.unit.show(most)),
            Goal::None => String::from("–"),
        }
    }
}

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            samples: ALL.iter().map(|_| Samples::default()).collect(),
        }
    }

    fn of(&mut self, kind: &Kind) -> Option<&mut Samples> {
        let at = ALL.iter().position(|k| std::ptr::eq(*k, kind))?;
        self.samples.get_mut(at)
    }

    /// One measurement, in base units; of a peer only if there is one.
    pub(crate) fn add(&mut self, kind: &Kind, ours: f64, peer: Option<f64>) {
        if let Some(s) = self.of(kind) {
            s.ours.push(ours);
            s.peer.extend(peer);
        }
    }

    /// Packets that were lost and sent again: the figure is not what the link can do.
    pub(crate) fn resent(&mut self, kind: &Kind, packets: u64) {
        if let Some(s) = self.of(kind) {
            s.resent += packets;
        }
    }

    /// Something a reader has to know, once.
    pub(crate) fn note(&mut self, kind: &Kind, note: impl Into<String>) {
        let note = note.into();
        if let Some(s) = self.of(kind)
            && !s.notes.contains(&note)
        {
            s.notes.push(note);
        }
    }

    fn rows(&self) -> impl Iterator<Item = (&'static Kind, &Samples)> {
        let touched = |s: &Samples| !(s.ours.is_empty() && s.notes.is_empty());
        ALL.iter()
            .copied()
            .zip(&self.samples)
            .filter(move |(_, s)| touched(s))
    }

    /// Markdown.
    pub(crate) fn markdown(&self, facts: &[(&str, String)]) -> String {
        let mut out = String::new();
        for (name, value) in facts {
            let _ = writeln!(out, "- {name}: {value}");
        }
        out += "\n| | measure | xroce | against | its figure | ratio | target | met |\n";
        out += "|---|---|---|---|---|---|---|---|\n";
        let dash = || String::from("–");
        for (kind, s) in self.rows() {
            let unit = kind.unit;
            let figure = |v: &[f64]| {
                Spread::of(v.iter().copied()).map_or_else(dash, |s| s.show(|v| unit.show(v)))
            };
            let ratio = s
                .ratio()
                .map_or_else(dash, |r| r.show(|v| format!("{v:.2}")));
            let met = match kind.met(s) {
                Some(true) => "yes",
                Some(false) => "no",
                None => "–",
            };
            let mut notes = String::new();
            if s.resent != 0 {
                let _ = write!(notes, "; {} packets sent again", s.resent);
            }
            for note in &s.notes {
                let _ = write!(notes, "; {note}");
            }
            let _ = writeln!(
                out,
                "| {} | {}, {}{notes} | {} | {} | {} | {ratio} | {} | {met} |",
                kind.id,
                kind.what,
                unit.name(),
                figure(&s.ours),
                if kind.peer.is_empty() {
                    "–"
                } else {
                    kind.peer
                },
                figure(&s.peer),
                kind.goal(),
            );
        }
        out
    }

    /// The same with every sample, in base units (1/s, bit/s, byte/s, ns).
    pub(crate) fn json(&self, facts: &[(&str, String)]) -> Value {
        let facts: serde_json::Map<String, Value> = facts
            .iter()
            .map(|(k, v)| ((*k).to_owned(), json!(v)))
            .collect();
        let rows: Vec<Value> = self
            .rows()
            .map(|(kind, s)| {
                json!({
                    "id": kind.id,
                    "measure": kind.what,
                    "against": kind.peer,
                    "unit": format!("{:?}", kind.unit),
                    "ours": s.ours,
                    "peer": s.peer,
                    "ours_spread": Spread::of(s.ours.iter().copied()).map(json_of),
                    "peer_spread": Spread::of(s.peer.iter().copied()).map(json_of),
                    "ratio": s.ratio().map(json_of),
                    "target": kind.goal(),
                    "met": kind.met(s),
                    "packets_sent_again": s.resent,
                    "notes": s.notes,
                })
            })
            .collect();
        json!({"schema": 1, "machine": facts, "rows": rows})
    }
}
