//! Results: one row for each operation and size, as a table or as JSON.
//!
//! The JSON is one object with stable names; [`SCHEMA`] counts incompatible changes.

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::message::SideCounters;
use super::plan::{Op, Shape, Step, Test, size_name};
use super::stats::Stats;
use super::traffic::Outcome;

/// Version of the JSON.
pub(crate) const SCHEMA: u32 = 1;

/// All results of one client.
#[derive(Clone, Debug, Serialize, serde::Deserialize)]
pub(crate) struct Report {
    /// Version of this format.
    pub schema: u32,
    /// Version of the program.
    pub version: String,
    /// Port of the client.
    pub client_port: String,
    /// Port of the server.
    pub server_port: String,
    /// RoCE address of the client.
    pub client: String,
    /// RoCE address of the server.
    pub server: String,
    /// Payload bytes per packet.
    pub path_mtu: u32,
    /// Whether every message was compared with what was sent.
    pub verify: bool,
    /// One for each operation and size.
    pub results: Vec<Row>,
    /// Every counter of the client, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
}

/// Results of one operation at one size.
#[derive(Clone, Debug, Serialize, serde::Deserialize)]
pub(crate) struct Row {
    /// Operation.
    pub op: Op,
    /// Message size in bytes.
    pub size: u32,
    /// Bandwidth test, if there was one.
    pub bandwidth: Option<Bandwidth>,
    /// Latency test, if there was one.
    pub latency: Option<Latency>,
    /// Messages compared with what was sent, at either side.
    pub verified: u64,
    /// Messages that differed.
    pub mismatches: u64,
    /// The first difference, in words.
    pub first_mismatch: Option<String>,
    /// Both sides together.
    pub total: SideCounters,
    /// The client's part.
    pub client: SideCounters,
    /// The server's part.
    pub server: SideCounters,
}

/// Results of a bandwidth test.
#[derive(Clone, Copy, Debug, Serialize, serde::Deserialize)]
pub(crate) struct Bandwidth {
    /// Queue pairs.
    pub qps: u32,
    /// Messages outstanding on each.
    pub depth: u32,
    /// Messages completed.
    pub messages: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Messages a second.
    pub messages_per_s: f64,
    /// Payload in 10^9 bits a second.
    pub gbit_per_s: f64,
}

/// Results of a latency test: whole round trips, in ns.
#[derive(Clone, Copy, Debug, Serialize, serde::Deserialize)]
pub(crate) struct Latency {
    /// Round trips recorded.
    pub samples: u64,
    /// Fastest.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Slowest.
    pub max_ns: u64,
}

impl Latency {
    /// The usual quantiles of a histogram in ns.
    pub(crate) fn of(h: &Histogram<u64>) -> Self {
        Self {
            samples: h.len(),
            min_ns: h.min(),
            p50_ns: h.value_at_quantile(0.5),
            p99_ns: h.value_at_quantile(0.99),
            p999_ns: h.value_at_quantile(0.999),
            max_ns: h.max(),
        }
    }
}

impl Report {
    /// Adds the outcome of a step: to the row of its operation and size if there is one.
    pub(crate) fn add(&mut self, step: Step, shape: Shape, out: &Outcome, client: SideCounters) {
        let is_same = |r: &Row| r.op == step.op && r.size == step.size;
        if !self.results.last().is_some_and(is_same) {
            self.results.push(Row::new(step));
        }
        if let Some(row) = self.results.last_mut() {
            row.add(step, shape, out, client);
        }
    }

    /// Messages that were not what was sent, over all rows.
    pub(crate) fn mismatches(&self) -> u64 {
        self.results
            .iter()
            .fold(0, |sum, r| sum.saturating_add(r.mismatches))
    }

    /// The table for people.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        let mut head = vec!["operation", "size", "messages/s", "Gb/s"];
        let latency = self.results.iter().any(|r| r.latency.is_some());
        if latency {
            head.extend(["p50 µs", "p99 µs", "p99.9 µs"]);
        }
        head.extend(["retransm.", "ICRC err."]);
        if self.verify {
            head.extend(["verified", "wrong"]);
        }
        table.set_header(head);
        for row in &self.results {
            table.add_row(row.cells(latency, self.verify));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }
}

impl Row {
    fn new(step: Step) -> Self {
        Self {
            op: step.op,
            size: step.size,
            bandwidth: None,
            latency: None,
            verified: 0,
            mismatches: 0,
            first_mismatch: None,
            total: SideCounters::default(),
            client: SideCounters::default(),
            server: SideCounters::default(),
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "rates are shown with four digits"
    )]
    fn add(&mut self, step: Step, shape: Shape, out: &Outcome, client: SideCounters) {
        let seconds = (out.elapsed.as_nanos() as f64 / 1e9).max(1e-9);
        match (step.test, &out.round_trips) {
            (Test::Bw, _) => {
                let messages_per_s = out.messages as f64 / seconds;
                self.bandwidth = Some(Bandwidth {
                    qps: shape.qps,
                    depth: shape.depth,
                    messages: out.messages,
                    seconds,
                    messages_per_s,
                    gbit_per_s: messages_per_s * f64::from(step.size) * 8.0 / 1e9,
                });
            }
            (Test::Lat, round_trips) => self.latency = round_trips.as_ref().map(Latency::of),
        }
        self.verified = self.verified.saturating_add(out.verified);
        self.mismatches = self.mismatches.saturating_add(out.mismatches);
        if self.first_mismatch.is_none() {
            self.first_mismatch.clone_from(&out.first_mismatch);
        }
        self.client = self.client.plus(client);
        self.server = self.server.plus(out.server);
        self.total = self.client.plus(self.server);
    }

    fn cells(&self, latency: bool, verify: bool) -> Vec<String> {
        let none = || "–".to_owned();
        let mut cells = vec![self.op.to_string(), size_name(self.size)];
        match &self.bandwidth {
            Some(b) => cells.extend([rate(b.messages_per_s), format!("{:.3}", b.gbit_per_s)]),
            None => cells.extend([none(), none()]),
        }
        if latency {
            match &self.latency {
                Some(l) => cells.extend([l.p50_ns, l.p99_ns, l.p999_ns].map(micros)),
                None => cells.extend([none(), none(), none()]),
            }
        }
        cells.push(self.total.retransmissions.to_string());
        cells.push(self.total.icrc_errors.to_string());
        if verify {
            cells.push(self.verified.to_string());
            cells.push(self.mismatches.to_string());
        }
        cells
    }

    /// What one test found, in one line for people, while more is to come.
    pub(crate) fn line(&self, test: Test) -> String {
        let found = match (test, &self.bandwidth, &self.latency) {
            (Test::Bw, Some(b), _) => {
                format!(
                    "{} messages/s, {:.3} Gb/s",
                    rate(b.messages_per_s),
                    b.gbit_per_s
                )
            }
            (Test::Lat, _, Some(l)) => {
                format!(
                    "round trip p50 {} µs, p99 {} µs",
                    micros(l.p50_ns),
                    micros(l.p99_ns)
                )
            }
            _ => "nothing".to_owned(),
        };
        format!(
            "{:5} {:>6}  {found}",
            self.op.to_string(),
            size_name(self.size)
        )
    }
}

/// "1 234 567": thin groups, since a rate has up to eight digits.
pub(crate) fn rate(per_s: f64) -> String {
    let digits = format!("{per_s:.0}");
    let mut out = String::with_capacity(digits.len() + 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

fn micros(ns: u64) -> String {
    format!("{}.{:02}", ns / 1000, ns % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xroce_proto::time::Duration;

    fn report() -> Report {
        let mut r = Report {
            schema: SCHEMA,
            version: "0".to_owned(),
            client_port: "UDP".to_owned(),
            server_port: "UDP".to_owned(),
            client: "127.0.0.2".to_owned(),
            server: "127.0.0.1".to_owned(),
            path_mtu: 4096,
            verify: true,
            results: Vec::new(),
            stats: None,
        };
        let shape = Shape {
            qps: 1,
            depth: 64,
            receives: 64,
            slots: 64,
            stride: 64,
            round: Some(64),
        };
        let mut h = Histogram::new(3).unwrap();
        h.record(5_250).unwrap();
        for test in [Test::Bw, Test::Lat] {
            let out = Outcome {
                messages: 1_000_000,
                elapsed: Duration::from_millis(1_000),
                round_trips: (test == Test::Lat).then(|| h.clone()),
                verified: 10,
                mismatches: 0,
                first_mismatch: None,
                server: SideCounters {
                    retransmissions: 1,
                    ..SideCounters::default()
                },
            };
            let client = SideCounters {
                retransmissions: 2,
                ..SideCounters::default()
            };
            r.add(
                Step {
                    op: Op::Send,
                    test,
                    size: 64,
                },
                shape,
                &out,
                client,
            );
        }
        r
    }

    #[test]
    fn both_tests_of_a_size_share_a_row() {
        let r = report();
        assert_eq!(r.results.len(), 1);
        let row = &r.results[0];
        assert!((row.bandwidth.unwrap().gbit_per_s - 0.512).abs() < 1e-9);
        assert_eq!(row.latency.unwrap().p50_ns / 10, 525);
        assert_eq!((row.total.retransmissions, row.verified), (6, 20));
        let table = r.table();
        assert!(
            table.contains("1 000 000") && table.contains("5.25"),
            "{table}"
        );
        assert_eq!(
            row.line(Test::Bw),
            "SEND    64 B  1 000 000 messages/s, 0.512 Gb/s"
        );
        assert!(
            row.line(Test::Lat).contains("p50 5.25 µs"),
            "{}",
            row.line(Test::Lat)
        );
    }

    #[test]
    fn json_names_are_stable() {
        let v = serde_json::to_value(report()).unwrap();
        let row = &v["results"][0];
        assert_eq!(v["schema"], 1);
        assert_eq!(row["op"], "send");
        assert_eq!(row["bandwidth"]["messages"], 1_000_000);
        assert_eq!(row["total"]["retransmissions"], 6);
        for name in ["p50_ns", "p99_ns", "p999_ns", "min_ns", "max_ns", "samples"] {
            assert!(row["latency"][name].is_u64(), "{name}");
        }
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(rate(0.0), "0");
        assert_eq!(rate(999.4), "999");
        assert_eq!(rate(1234.0), "1 234");
        assert_eq!(rate(12_345_678.0), "12 345 678");
        assert_eq!(micros(5_259), "5.25");
        assert_eq!(micros(99), "0.09");
    }
}
