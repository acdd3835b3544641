//! What a run means, in sentences: for who runs it once and wants to know how their link does.

use crate::{Bar, Goal, Met, Row, Run, Spread};

/// A spread wider than this share of the median is worth a word.
const WIDE: f64 = 0.3;
/// Other programs on so much of the cores, too.
pub(crate) const BUSY: f64 = 0.05;
/// And a host that keeps so much for other machines.
const STOLEN: f64 = 0.02;
/// Rounds, for a median to mean something.
const ROUNDS: u32 = 3;

/// In the order in which they should be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Which targets are met and which are not.
    pub outcome: Vec<String>,
    /// What the time goes into where they are not.
    pub bottleneck: Vec<String>,
    /// How far the figures can be trusted.
    pub trust: Vec<String>,
}

impl Verdict {
    /// The three, each with its heading.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, &[String]); 3] {
        [
            ("Targets", &self.outcome),
            ("What bounds it", &self.bottleneck),
            ("How far to trust it", &self.trust),
        ]
    }
}

/// What `run` means.
#[must_use]
pub fn verdict(run: &Run) -> Verdict {
    Verdict {
        outcome: outcome(run),
        bottleneck: bottleneck(run),
        trust: trust(run),
    }
}

fn with(run: &Run, met: Met) -> Vec<&Row> {
    run.rows.iter().filter(|r| r.met() == met).collect()
}

fn list(items: impl IntoIterator<Item = String>) -> String {
    items.into_iter().collect::<Vec<_>>().join(", ")
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// "D2-4096 0.87× (wanted ≥ 0.90×)".
fn missed(row: &Row) -> String {
    let figure = row
        .judged()
        .map_or_else(String::new, |(s, _)| match row.goal {
            Goal::RatioAtLeast(_) | Goal::RatioAtMost(_) => format!(" {:.2}×", s.median),
            _ => format!(" {}", row.unit.show(s.median)),
        });
    format!("{}{figure} (wanted {})", row.key, row.target())
}

fn outcome(run: &Run) -> Vec<String> {
    let (yes, no) = (with(run, Met::Yes), with(run, Met::No));
    let mut said = vec![format!(
        "{} of {} targets that were measured are met.",
        yes.len(),
        yes.len() + no.len()
    )];
    if !no.is_empty() {
        said.push(format!("Missed: {}.", list(no.iter().map(|r| missed(r)))));
    }
    let close = |r: &&&Row| r.is_close();
    let near = list(yes.iter().chain(&no).filter(close).map(|r| r.key.clone()));
    if !near.is_empty() {
        said.push(format!(
            "Close: {near}. The target is within what was measured; another run may fall on the \
             other side."
        ));
    }
    let absent = with(run, Met::NotMeasured);
    if !absent.is_empty() {
        // Rows that lack for the same reason are named together.
        let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
        for row in absent {
            let why = if row.notes.is_empty() {
                String::from("not asked for, or without its peer")
            } else {
                row.notes.join("; ")
            };
            match reasons.iter_mut().find(|r| r.0 == why) {
                Some(reason) => reason.1.push(&row.key),
                None => reasons.push((why, vec![&row.key])),
            }
        }
        let each = reasons
            .into_iter()
            .map(|(why, keys)| format!("{} ({why})", keys.join(", ")));
        said.push(format!("Not measured: {}.", list(each)));
    }
    said
}

/// "D2-4096, sending end: kernel 88 %, xroce 12 % of the time."
fn largest(bar: &Bar) -> Option<String> {
    let mut parts: Vec<_> = bar.parts.iter().filter(|p| p.share >= 0.01).collect();
    parts.sort_by(|a, b| b.share.total_cmp(&a.share));
    let parts = parts.iter().take(4);
    let shares = list(parts.map(|p| format!("{} {}", p.name, percent(p.share))));
    (!shares.is_empty()).then(|| format!("{}: {shares} of the {}.", bar.name, bar.of))
}

fn bottleneck(run: &Run) -> Vec<String> {
    let no = with(run, Met::No);
    let mut said = Vec::new();
    for row in &no {
        if let (Goal::RatioAtLeast(goal), Some(ratio)) = (row.goal, row.ratio())
            && goal <= 1.0
            && ratio.median > 0.0
        {
            said.push(format!(
                "{}: each takes {} more time than {}; the target leaves {}.",
                row.key,
                percent(1.0 / ratio.median - 1.0),
                row.against,
                percent(1.0 / goal - 1.0)
            ));
        }
    }
    let explains = |bar: &&Bar| no.iter().any(|row| bar.rows.contains(&row.key));
    said.extend(run.bars.iter().filter(explains).filter_map(largest));
    if said.is_empty() {
        // Nothing missed, or nothing known about it: then what is known.
        said.extend(run.bars.iter().filter_map(largest));
    }
    if said.is_empty() {
        said.push(String::from("Nothing was measured that says."));
    }
    said
}

fn trust(run: &Run) -> Vec<String> {
    let mut doubts = doubts(run);
    let word = match doubts.len() {
        0 => "Well: rounds enough, spreads narrow, the machine quiet.",
        1 | 2 => "With care:",
        _ => "Little, for a judgement; the ratios still hold better than the figures:",
    };
    doubts.insert(0, word.to_owned());
    let machine = &run.machine;
    if machine.cores == machine.threads {
        doubts.push(format!(
            "Cores: {} for {} busy threads; whatever else runs, the kernel's threads included, \
             takes from one of the two ends.",
            machine.cores, machine.threads
        ));
    }
    doubts
}

/// What speaks against the figures.
fn doubts(run: &Run) -> Vec<String> {
    let machine = &run.machine;
    let mut said = Vec::new();
    if !run.complete {
        said.push(String::from(
            "This is not a whole run: rows, peers or time were left out.",
        ));
    }
    if run.rounds < ROUNDS {
        said.push(format!(
            "Rounds: {}; a median needs {ROUNDS} at least.",
            run.rounds
        ));
    }
    if machine.cores < machine.threads {
        said.push(format!(
            "Cores: {} for {} busy threads; both ends take turns, and a latency is that of the \
             scheduler.",
            machine.cores, machine.threads
        ));
    }
    let wide = list(run.rows.iter().filter_map(|row| {
        let (figure, _) = row.judged()?;
        let wide = figure.width() > WIDE;
        wide.then(|| format!("{} {}", row.key, percent(figure.width())))
    }));
    if !wide.is_empty() {
        said.push(format!(
            "From least to most is more than {} of the median in: {wide}.",
            percent(WIDE)
        ));
    }
    let heavy = |values: &[f64], limit| {
        Spread::of(values.iter().copied()).filter(|s| s.median > limit || s.max > 4.0 * limit)
    };
    if let Some(others) = heavy(&machine.others, BUSY) {
        said.push(format!(
            "Other programs kept the cores busy between the rounds: {}.",
            others.show(percent)
        ));
    }
    if let Some(stolen) = heavy(&machine.stolen, STOLEN) {
        said.push(format!(
            "The host of this virtual machine kept back {} of its time.",
            stolen.show(percent)
        ));
    }
    let lossy = run.rows.iter().filter(|r| r.packets_sent_again != 0);
    let lossy = list(lossy.map(|r| format!("{} {}", r.key, r.packets_sent_again)));
    if !lossy.is_empty() {
        said.push(format!(
            "Packets were lost and sent again in: {lossy}. A receiver that loses its core for a \
             moment is the usual reason."
        ));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    #[test]
    fn a_run_in_words() {
        let said = verdict(&run());
        assert_eq!(
            said.outcome,
            [
                "1 of 2 targets that were measured are met.",
                "Missed: D2-4096 0.82× (wanted ≥ 0.90×).",
                "Close: D1. The target is within what was measured; another run may fall on the \
                 other side.",
                "Not measured: D8-send (needs root).",
            ]
        );
        assert_eq!(
            said.bottleneck,
            [
                "D2-4096: each takes 22 % more time than raw frames; the target leaves 11 %.",
                "WRITE of 64 KB over AF_XDP: kernel 88 %, xroce 12 % of the CPU time.",
            ]
        );
        assert!(said.trust[0].starts_with("Well"), "{:?}", said.trust);
        assert!(said.trust[1].starts_with("Cores: 2 for 2"));
    }

    #[test]
    fn doubts_are_told() {
        let mut run = run();
        run.machine.cores = 1;
        run.machine.others = vec![0.1, 0.5, 0.2];
        run.machine.stolen = vec![0.5; 3];
        run.rounds = 1;
        run.complete = false;
        run.rows[0].samples[0].ours = 10e3;
        run.rows[0].packets_sent_again = 7;
        let trust = verdict(&run).trust.join("\n");
        for words in [
            "Little",
            "not a whole run",
            "Rounds: 1",
            "Cores: 1 for 2 busy threads",
            "D1 90 %",
            "20 % (10 %–50 %)",
            "kept back 50 %",
            "sent again in: D1 7",
        ] {
            assert!(trust.contains(words), "{words}: {trust}");
        }
    }

    #[test]
    fn a_run_of_nothing_has_words_too() {
        let mut run = run();
        run.rows.clear();
        run.bars.clear();
        let said = verdict(&run);
        assert_eq!(said.outcome, ["0 of 0 targets that were measured are met."]);
        assert_eq!(said.bottleneck, ["Nothing was measured that says."]);
    }
}
