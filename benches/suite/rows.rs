//! The rows of the targets: what is measured against what, and what came out.

use xroce_bench_report::{Goal, Row, Sample, Unit};

/// A row of the report.
#[derive(Debug)]
pub(crate) struct Kind {
    /// By which runs are compared.
    pub(crate) key: &'static str,
    /// The target it belongs to.
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    pub(crate) peer: &'static str,
    pub(crate) unit: Unit,
    pub(crate) goal: Goal,
}

macro_rules! rows {
    ($($name:ident: $key:literal, $id:literal, $what:literal, $peer:literal, $unit:ident, $goal:expr;)*) => {
        $(pub(crate) static $name: Kind = Kind {
            key: $key, id: $id, what: $what, peer: $peer, unit: Unit::$unit, goal: $goal,
        };)*
        /// All rows in order.
        pub(crate) static ALL: &[&Kind] = &[$(&$name),*];
    };
}

rows! {
    D1: "D1", "D1", "RC SEND 64 B, AF_XDP, one way", "raw AF_XDP, 122 B frames",
        PacketsPerSecond, Goal::RatioAtLeast(0.9);
    D2_1024: "D2-1024", "D2", "RC WRITE 64 KB, path MTU 1024, AF_XDP", "raw AF_XDP, 1082 B frames",
        PacketsPerSecond, Goal::RatioAtLeast(0.9);
    D2_4096: "D2-4096", "D2", "RC WRITE 64 KB, path MTU 4096, AF_XDP", "raw AF_XDP, 4154 B frames",
        PacketsPerSecond, Goal::RatioAtLeast(0.9);
    D3_P50: "D3-p50", "D3", "RC SEND 2 B round trip, AF_XDP, p50", "raw AF_XDP, 62 B frames",
        Nanoseconds, Goal::RatioAtMost(1.2);
    D3_P99: "D3-p99", "D3", "RC SEND 2 B round trip, AF_XDP, p99", "raw AF_XDP, 62 B frames",
        Nanoseconds, Goal::RatioAtMost(1.5);
    D4: "D4", "D4", "RC WRITE 1 MB, path MTU 4096, UDP", "iperf3 TCP",
        BitsPerSecond, Goal::RatioAtLeast(2.0);
    D4_PLAIN: "D4-plain", "D4", "RC WRITE 1 MB, path MTU 4096, UDP", "iperf3 TCP, TSO, GSO and GRO off",
        BitsPerSecond, Goal::Nothing;
    D5: "D5", "D5", "RC SEND 64 B, UDP, one way", "sendmmsg/recvmmsg of 64 B",
        PacketsPerSecond, Goal::RatioAtLeast(4.0);
    D6: "D6", "D6", "SEND 64 B, two engines in one thread", "",
        MessagesPerSecond, Goal::AtLeast(4e6);
    D6_INSTRUCTIONS: "D6-instructions", "D6", "SEND 64 B, both ends together, by callgrind", "",
        Instructions, Goal::AtMost(600.0);
    D7: "D7", "D7", "WRITE 1 MB, path MTU 4096, two engines in one thread", "2 copies + 2 CRC-32 alone",
        BytesPerSecond, Goal::RatioAtLeast(0.6);
    D1_CC: "D1+CC", "D1+CC", "the same as D1 with DCQCN, every packet paced", "the same without",
        PacketsPerSecond, Goal::RatioAtLeast(0.95);
    D2_CC: "D2+CC", "D2+CC", "the same as D2 (4096) with DCQCN, every packet paced", "the same without",
        PacketsPerSecond, Goal::RatioAtLeast(0.95);
    D7_CC: "D7+CC", "D7+CC", "the same as D7 with DCQCN, every packet paced", "the same without",
        BytesPerSecond, Goal::RatioAtLeast(0.95);
    D8_SEND_64: "D8-send-64", "D8", "SEND 64 B between two virtual machines, AF_XDP", "rdma_rxe",
        SlowMessagesPerSecond, Goal::RatioAtLeast(3.0);
    D8_WRITE_64: "D8-write-64", "D8", "WRITE 64 B between two virtual machines, AF_XDP", "rdma_rxe",
        SlowMessagesPerSecond, Goal::RatioAtLeast(3.0);
    D8_READ_64: "D8-read-64", "D8", "READ 64 B between two virtual machines, AF_XDP", "rdma_rxe",
        SlowMessagesPerSecond, Goal::RatioAtLeast(3.0);
    D8_SEND_1M: "D8-send-1m", "D8", "SEND 1 MB between two virtual machines, AF_XDP", "rdma_rxe",
        BytesPerSecond, Goal::RatioAtLeast(2.0);
    D8_WRITE_1M: "D8-write-1m", "D8", "WRITE 1 MB between two virtual machines, AF_XDP", "rdma_rxe",
        BytesPerSecond, Goal::RatioAtLeast(2.0);
    D8_READ_1M: "D8-read-1m", "D8", "READ 1 MB between two virtual machines, AF_XDP", "rdma_rxe",
        BytesPerSecond, Goal::RatioAtLeast(2.0);
    D9_XDP: "D9-xdp", "D9", "ICRC of a 4 KB packet alone, one end",
        "time of the packet in WRITE 64 KB, AF_XDP", Nanoseconds, Goal::RatioAtMost(0.25);
    D9_UDP: "D9-udp", "D9", "ICRC of a 4 KB packet alone, one end",
        "time of the packet in WRITE 1 MB, UDP", Nanoseconds, Goal::RatioAtMost(0.25);
    D9_MEMORY: "D9-memory", "D9", "ICRC of a 4 KB packet alone, both ends",
        "time of the packet at both ends, in memory (D7)", Nanoseconds, Goal::RatioAtMost(0.25);
    D9_INSTRUCTIONS: "D9-instructions", "D9", "ICRC, WRITE 4 KB in memory, both ends, by callgrind",
        "all instructions", Instructions, Goal::Nothing;
    D10: "D10", "D10", "allocations after warm-up, both ends", "",
        Allocations, Goal::AtMost(0.0);
    D11: "D11", "D11", "SEND 64 B, 1000 of 10 000 connected QPs active, two engines in one thread",
        "1 QP", MessagesPerSecond, Goal::RatioAtLeast(0.8);
    D11_SINGLE: "D11-single", "D11", "the same, one message outstanding on each QP", "1 QP",
        MessagesPerSecond, Goal::Nothing;
    D11_BYTES: "D11-bytes", "D11", "heap of an idle connected QP without its rings", "",
        Bytes, Goal::AtMost(1024.0);
    D11_RINGS: "D11-rings", "D11", "its rings, 16 sends and 16 receives of one SGE", "",
        Bytes, Goal::Nothing;
}

/// All rows and what was measured.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new() -> Self {
        let empty = |kind: &&Kind| Row {
            key: kind.key.to_owned(),
            id: kind.id.to_owned(),
            measure: kind.what.to_owned(),
            against: kind.peer.to_owned(),
            unit: kind.unit,
            goal: kind.goal,
            samples: Vec::new(),
            packets_sent_again: 0,
            notes: Vec::new(),
        };
        Self {
            rows: ALL.iter().map(empty).collect(),
        }
    }

    fn of(&mut self, kind: &Kind) -> Option<&mut Row> {
        self.rows.iter_mut().find(|r| r.key == kind.key)
    }

    /// One measurement, in base units; of a peer only if there is one.
    pub(crate) fn add(&mut self, kind: &Kind, ours: f64, peer: Option<f64>) {
        if let Some(row) = self.of(kind) {
            row.samples.push(Sample { ours, peer });
        }
    }

    /// Packets that were lost and sent again: the figure is not what the link can do.
    pub(crate) fn resent(&mut self, kind: &Kind, packets: u64) {
        if let Some(row) = self.of(kind) {
            row.packets_sent_again += packets;
        }
    }

    /// Something a reader has to know, once.
    pub(crate) fn note(&mut self, kind: &Kind, note: impl Into<String>) {
        let note = one_line(&note.into());
        if let Some(row) = self.of(kind)
            && !row.notes.contains(&note)
        {
            row.notes.push(note);
        }
    }

    /// The rows that were asked for, with figures or with the reason why there are none.
    pub(crate) fn into_rows(self) -> Vec<Row> {
        let touched = |row: &Row| !(row.samples.is_empty() && row.notes.is_empty());
        self.rows.into_iter().filter(touched).collect()
    }
}

/// What programs say on several lines or in colours, on one.
pub(crate) fn one_line(text: &str) -> String {
    let plain = text.replace(|c: char| c.is_control(), " ");
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(
        dead_code,
        unused_imports,
        reason = "the bench itself is compiled as a test, but without its tests"
    )]
    use super::*;

    #[test]
    fn keys_are_unique_and_what_was_not_touched_is_left_out() {
        let mut keys: Vec<&str> = ALL.iter().map(|k| k.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), ALL.len());
        for id in 1..=11 {
            let id = format!("D{id}");
            assert!(ALL.iter().any(|k| k.id == id), "{id} has no row");
        }
        let mut table = Table::new();
        table.add(&D6, 5e6, None);
        table.note(&D8_READ_64, "needs\nroot");
        table.note(&D8_READ_64, "needs root");
        let rows = table.into_rows();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1].notes, ["needs root"]);
    }
}
