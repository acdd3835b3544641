//! The result of a run: a table for people, JSON for programs, Markdown for the documentation.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;

/// Markers in docs/interop.md between which the table stands.
const MARKS: [&str; 2] = ["<!-- table: begin -->", "<!-- table: end -->"];

/// One scenario on one kernel.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// What was tried.
    pub scenario: String,
    /// Who started.
    pub direction: &'static str,
    /// Kernel release of the peer.
    pub kernel: String,
    /// IP version, and whether tagged.
    pub network: &'static str,
    /// Path MTU in bytes.
    pub path_mtu: usize,
    /// Whether all was as it must be.
    pub passed: bool,
    /// Why not.
    pub error: Option<String>,
    /// Request packets sent again by xroce and by rxe, as seen on the cable.
    pub retransmitted: (u64, u64),
    /// A figure worth showing.
    pub figure: String,
    /// What else there is to say.
    pub notes: Vec<String>,
    /// Attempts in which the peer failed by a fault of its own; a later one passed.
    pub peer_faults: Vec<String>,
    /// RoCE packets in the capture.
    pub packets: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Which run of this scenario it was, from 1.
    pub repetition: u32,
    /// Its captures, as far as they were kept.
    pub pcaps: Vec<String>,
}

impl Row {
    fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().map(String::as_str)
    }

    fn peer_faults(&self) -> impl Iterator<Item = &str> {
        self.peer_faults.iter().map(String::as_str)
    }
}

/// All of them and where they were run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// "emulated" or "virtualised".
    pub machine: String,
    /// RoCE packets whose ICRC was checked independently, and that tshark saw.
    pub packets_checked: u64,
    /// The scenarios.
    pub rows: Vec<Row>,
}

impl Report {
    /// Scenarios that did not pass.
    pub(crate) fn failures(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| !row.passed)
    }

    /// What scenarios said beside their figures.
    pub(crate) fn notes(&self) -> impl Iterator<Item = (&Row, &str)> {
        let notes = |row| Row::notes(row).map(move |note| (row, note));
        self.rows.iter().flat_map(notes)
    }

    /// Attempts in which the peer failed by a fault of its own.
    pub(crate) fn peer_faults(&self) -> impl Iterator<Item = (&Row, &str)> {
        let of = |row| Row::peer_faults(row).map(move |fault| (row, fault));
        self.rows.iter().flat_map(of)
    }

    /// For the terminal.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "scenario",
            "direction",
            "kernel",
            "IP",
            "MTU",
            "result",
            "resent x/r",
            "figure",
        ]);
        for row in &self.rows {
            table.add_row([
                row.scenario.clone(),
                row.direction.to_owned(),
                short(&row.kernel),
                row.network.to_owned(),
                row.path_mtu.to_string(),
                if row.passed { "ok" } else { "FAILED" }.to_owned(),
                format!("{}/{}", row.retransmitted.0, row.retransmitted.1),
                row.figure.clone(),
            ]);
        }
        table.to_string()
    }

    /// Writes report.json, report.md into `dir`.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        fs::write(dir.join("report.json"), json + "\n").context("report.json")?;
        let mut text = String::from("# xroce against rdma_rxe\n\n");
        text += &self.markdown();
        for (row, note) in self.notes() {
            writeln!(text, "\n{}: {note}", short(&row.kernel))?;
        }
        for (row, fault) in self.peer_faults() {
            writeln!(
                text,
                "\n{}: {}, {}: peer fault: {fault} ({})",
                short(&row.kernel),
                row.scenario,
                row.direction,
                row.pcaps.join(", ")
            )?;
        }
        for row in self.failures() {
            writeln!(
                text,
                "\n## Failed: {}, {}, {}, {} B, {}\n\n{}\n\nCaptures: {}",
                row.scenario,
                row.direction,
                row.network,
                row.path_mtu,
                row.kernel,
                row.error.as_deref().unwrap_or("no reason given"),
                row.pcaps.join(", "),
            )?;
        }
        fs::write(dir.join("report.md"), text).context("report.md")
    }

    /// One line a scenario, the kernels side by side.
    fn markdown(&self) -> String {
        let mut kernels: Vec<&str> = Vec::new();
        let mut keys: Vec<(&str, &str, &str, usize)> = Vec::new();
        for row in &self.rows {
            if !kernels.contains(&row.kernel.as_str()) {
                kernels.push(&row.kernel);
            }
            let key = key(row);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let mut text = format!(
            "{} scenarios on {} ({}), {} failed, {} attempts repeated for a fault of the peer; {} RoCE \
             packets checked by tshark and by an independent ICRC.\n\n",
            self.rows.len(),
            kernels.join(" and "),
            self.machine,
            self.failures().count(),
            self.peer_faults().count(),
            self.packets_checked
        );
        text += "| scenario | direction | IP | path MTU |";
        for kernel in &kernels {
            text += &format!(" {} | resent x/r | figure |", short(kernel));
        }
        text += "\n|---|---|---|---|";
        text += &"---|---|---|".repeat(kernels.len());
        text += "\n";
        for key in keys {
            text += &format!("| {} | {} | {} | {} |", key.0, key.1, key.2, key.3);
            for kernel in &kernels {
                let rows = self.rows.iter();
                let runs: Vec<&Row> = rows
                    .filter(|row| self::key(row) == key && row.kernel == *kernel)
                    .collect();
                // Of several runs, one that failed.
                let shown = runs.iter().find(|row| !row.passed).or_else(|| runs.first());
                text += &match shown {
                    Some(row) => format!(
                        " {} | {}/{} | {} |",
                        result(&runs),
                        row.retransmitted.0,
                        row.retransmitted.1,
                        row.figure
                    ),
                    None => " not run | | |".to_owned(),
                };
            }
            text += "\n";
        }
        text
    }

    /// Replaces the table between the marks of a document.
    pub(crate) fn update(&self, document: &Path) -> Result<()> {
        let name = document.display();
        let text = fs::read_to_string(document).with_context(|| name.to_string())?;
        let (Some(begin), Some(end)) = (text.find(MARKS[0]), text.find(MARKS[1])) else {
            bail!("{name} has no lines {:?} and {:?}", MARKS[0], MARKS[1]);
        };
        let head = text.get(..begin + MARKS[0].len()).unwrap_or_default();
        let tail = text.get(end..).unwrap_or_default();
        let new = format!("{head}\n\n{}\n{tail}", self.markdown());
        fs::write(document, new).with_context(|| name.to_string())
    }
}

/// "ok", "FAILED", and of several runs how many.
fn result(runs: &[&Row]) -> String {
    let failed = runs.iter().filter(|row| !row.passed).count();
    match (failed, runs.len()) {
        (0, 1) => "ok".to_owned(),
        (_, 1) => "FAILED".to_owned(),
        (0, all) => format!("ok, {all} runs"),
        (_, all) => format!("FAILED {failed} of {all} runs"),
    }
}

fn key(row: &Row) -> (&str, &str, &str, usize) {
    (&row.scenario, row.direction, row.network, row.path_mtu)
}

/// "6.12.117" of "6.12.117+deb12-amd64".
fn short(kernel: &str) -> String {
    kernel.split(['+', '-']).next().unwrap_or(kernel).to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may panic")]
    use super::*;

    fn row(kernel: &str, passed: bool) -> Row {
        Row {
            scenario: "tool: ib_send_bw".to_owned(),
            direction: "both",
            kernel: kernel.to_owned(),
            network: "v4",
            path_mtu: 1024,
            passed,
            error: (!passed).then(|| "why".to_owned()),
            retransmitted: (1, 2),
            figure: "3 MB/s".to_owned(),
            notes: vec!["known".to_owned()],
            peer_faults: vec!["old ACK".to_owned()],
            packets: 7,
            seconds: 0.5,
            repetition: 1,
            pcaps: Vec::new(),
        }
    }

    #[test]
    fn the_document_keeps_what_is_around_the_table() {
        let report = Report {
            machine: "emulated".to_owned(),
            packets_checked: 14,
            rows: vec![
                row("6.1.0-57-amd64", true),
                row("6.12.117+deb12-amd64", false),
            ],
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("interop.md");
        fs::write(
            &path,
            format!("before\n{}\nold\n{}\nafter\n", MARKS[0], MARKS[1]),
        )
        .unwrap();
        report.update(&path).unwrap();
        report.update(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("before\n") && text.ends_with("\nafter\n"));
        assert!(!text.contains("old"));
        let line =
            "| tool: ib_send_bw | both | v4 | 1024 | ok | 1/2 | 3 MB/s | FAILED | 1/2 | 3 MB/s |";
        assert_eq!(text.matches(line).count(), 1, "{text}");
        report.write(dir.path()).unwrap();
        let report = fs::read_to_string(dir.path().join("report.md")).unwrap();
        assert!(report.contains("\nwhy\n") && report.contains("\n6.12.117: known\n"));
        assert!(report.contains("2 attempts repeated") && report.contains("peer fault: old ACK"));
    }
}
