//! A run as Markdown.

use std::fmt::Write as _;

use crate::{Met, Row, Run, Spread, Unit, verdict};

/// Text of a cell or a line.
pub(crate) fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        // What would end the cell or begin a tag.
        if matches!(c, '|' | '<') {
            safe.push('\\');
        }
        safe.push(c);
    }
    safe
}

/// The cells of a row, all but its first two.
pub(crate) fn figures(row: &Row) -> [String; 6] {
    let dash = || String::from("–");
    let figure = |s: Option<Spread>, unit: Unit| s.map_or_else(dash, |s| s.show(|v| unit.show(v)));
    let against = if row.against.is_empty() {
        dash()
    } else {
        row.against.clone()
    };
    [
        figure(row.ours(), row.unit),
        against,
        figure(row.peer(), row.unit),
        row.ratio()
            .map_or_else(dash, |r| r.show(|v| format!("{v:.2}"))),
        row.target(),
        match row.met() {
            Met::Yes if row.is_close() => "yes, close",
            Met::Yes => "yes",
            Met::No if row.is_close() => "no, close",
            Met::No => "no",
            Met::NoGoal => "–",
            Met::NotMeasured => "not measured",
        }
        .to_owned(),
    ]
}

/// "12 min", "40 s".
pub(crate) fn time(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}

impl Run {
    /// One line of when, where and how.
    #[must_use]
    pub fn circumstances(&self) -> String {
        let mut parts = vec![self.started.get(..10).unwrap_or(&self.started).to_owned()];
        if !self.commit.is_empty() {
            parts.push(self.commit.clone());
        }
        if let Some(kernel) = self.machine.fact("kernel") {
            parts.push(format!("Linux {kernel}"));
        }
        if let Some(cpu) = self.machine.fact("CPU") {
            parts.push(format!("{} cores {cpu}", self.machine.cores));
        }
        parts.push(format!(
            "rounds: {} of {} s, median and spread",
            self.rounds, self.seconds
        ));
        if let Some(others) = Spread::of(self.machine.others.iter().copied()) {
            let percent = |share: f64| format!("{:.0} %", share * 100.0);
            parts.push(format!("other programs: {}", others.show(percent)));
        }
        parts.join("; ")
    }

    /// The table of all rows.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::from(
            "| | measure | xroce | against | its figure | ratio | target | met |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for row in &self.rows {
            let mut measure = format!("{}, {}", row.measure, row.unit.name());
            for remark in row.remarks() {
                let _ = write!(measure, "; {remark}");
            }
            let cells = figures(row).map(|cell| safe(&cell));
            let _ = writeln!(
                out,
                "| {} | {} | {} |",
                safe(&row.id),
                safe(&measure),
                cells.join(" | ")
            );
        }
        out
    }

    /// For a document: circumstances, verdict, table.
    #[must_use]
    pub fn section(&self) -> String {
        let mut out = format!("{}.\n\n", safe(&self.circumstances()));
        for (title, sentences) in verdict(self).parts() {
            let _ = writeln!(out, "* **{title}**");
            for sentence in sentences {
                let _ = writeln!(out, "  * {}", safe(sentence));
            }
        }
        let _ = write!(out, "\n{}", self.table());
        out
    }

    /// All of it: what [`Run::section`] has, the facts, and where the work goes.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = format!("# Benches of xroce\n\n{}\n## Machine\n\n", self.section());
        for fact in &self.machine.facts {
            let _ = writeln!(out, "- {}: {}", safe(&fact.name), safe(&fact.value));
        }
        let _ = writeln!(out, "- the run took: {}", time(self.took));
        if !self.bars.is_empty() {
            out += "\n## Where the work goes\n\n";
        }
        for bar in &self.bars {
            let parts = bar
                .parts
                .iter()
                .map(|p| format!("{} {:.1} %", p.name, p.share * 100.0));
            let parts = parts.collect::<Vec<_>>().join(", ");
            let line = format!("{}, {}: {parts}", bar.name, bar.of);
            let _ = writeln!(out, "- {}", safe(&line));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::run;

    #[test]
    fn the_table() {
        let table = run().table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines[2..],
            [
                "| D1 | SEND of D1, k packets/s | 90 (90–91) | raw frames | 100 | 0.90 (0.90–0.91) \
                 | ≥ 0.90× | yes, close |",
                "| D2 | SEND of D2-4096, k packets/s | 82 (80–84) | raw frames | 100 | 0.82 \
                 (0.80–0.84) | ≥ 0.90× | no |",
                "| D8 | SEND of D8-send, k packets/s; needs root | – | raw frames | – | – \
                 | ≥ 3.00× | not measured |",
            ]
        );
    }

    #[test]
    fn every_row_has_the_cells_of_the_head_whatever_stands_in_it() {
        let mut run = run();
        run.rows[0].measure = String::from("a | b <script>");
        run.rows[1].notes.push(String::from("| | |"));
        for line in run.table().lines() {
            let bare = line.replace("\\|", "");
            assert_eq!(bare.matches('|').count(), 9, "{line}");
        }
        assert!(!run.markdown().contains(" <script>"));
    }

    #[test]
    fn the_whole_names_the_machine_and_the_work() {
        let text = run().markdown();
        for words in [
            "2026-03-01; 0123abc; Linux 6.18 \\<smp> \\| \"x\"; 2 cores some; rounds: 3 of 1 s",
            "* **Targets**\n  * 1 of 2",
            "- CPU: some",
            "- the run took: 62 s",
            "- WRITE of 64 KB over AF_XDP, CPU time: kernel 88.0 %, xroce 12.0 %",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
    }
}
