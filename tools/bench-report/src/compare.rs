//! Two runs, row by row.

use std::fmt::Write as _;

use serde::Serialize;

use crate::markdown::safe;
use crate::verdict::BUSY;
use crate::{Row, Run, Spread};

/// Facts whose difference is worth a word: then another machine was measured.
const FACTS: [&str; 4] = ["kernel", "CPU", "AF_XDP", "UDP and TCP"];

/// What became of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Better, and the spreads have nothing in common.
    Better,
    /// Worse, and the spreads have nothing in common.
    Worse,
    /// The spreads overlap: nothing can be said.
    WithinSpread,
    /// One of the two has no figure, or they are of different things.
    NotComparable,
}

/// A row of the comparison.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Difference {
    /// The row's.
    pub key: String,
    /// What it measures.
    pub measure: String,
    /// Whether ratios are compared, which do not depend on how fast the machine was that day.
    pub is_ratio: bool,
    /// Both shown for people, with their spreads.
    pub shown: [String; 2],
    /// Both.
    #[serde(skip)]
    pub figures: Option<[Spread; 2]>,
    /// How much better the median became, in percent; below 0 it became worse.
    pub gain_percent: Option<f64>,
    /// What to make of it.
    pub change: Change,
    /// Why it cannot be compared.
    pub why: String,
}

/// Two runs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// When and where each was made.
    pub runs: [String; 2],
    /// What makes a comparison doubtful.
    pub cautions: Vec<String>,
    /// Rows of either run.
    pub differences: Vec<Difference>,
}

/// Compares `after` with `before`.
#[must_use]
pub fn compare(before: &Run, after: &Run) -> Comparison {
    let mut differences: Vec<Difference> = before
        .rows
        .iter()
        .map(|row| difference(Some(row), after.row(&row.key)))
        .collect();
    let is_new = |row: &&Row| before.row(&row.key).is_none();
    let new = after.rows.iter().filter(is_new);
    differences.extend(new.map(|row| difference(None, Some(row))));
    Comparison {
        runs: [before.circumstances(), after.circumstances()],
        cautions: cautions(before, after),
        differences,
    }
}

fn cautions(before: &Run, after: &Run) -> Vec<String> {
    let mut said = Vec::new();
    for name in FACTS {
        // A run of some rows only does not know all of them.
        let values = before.machine.fact(name).zip(after.machine.fact(name));
        if let Some((then, now)) = values.filter(|(then, now)| then != now) {
            said.push(format!("another {name}: {then}, now {now}"));
        }
    }
    if before.machine.cores != after.machine.cores {
        said.push(format!(
            "{} cores, now {}",
            before.machine.cores, after.machine.cores
        ));
    }
    for (name, run) in [("first", before), ("second", after)] {
        if run.rounds < 3 {
            said.push(format!(
                "rounds of the {name} run: {}; its spread says little",
                run.rounds
            ));
        }
        let others = Spread::of(run.machine.others.iter().copied());
        if let Some(others) = others.filter(|o| o.median > BUSY) {
            let percent = |share: f64| format!("{:.0} %", share * 100.0);
            said.push(format!(
                "other programs kept the cores busy in the {name} run: {}",
                others.show(percent)
            ));
        }
    }
    said
}

fn difference(before: Option<&Row>, after: Option<&Row>) -> Difference {
    let row = after.or(before);
    let text = |part: fn(&Row) -> &String| row.map(part).cloned().unwrap_or_default();
    let mut found = Difference {
        key: text(|r| &r.key),
        measure: text(|r| &r.measure),
        is_ratio: false,
        shown: [String::from("–"), String::from("–")],
        figures: None,
        gain_percent: None,
        change: Change::NotComparable,
        why: String::new(),
    };
    let alone = |row: &Row| {
        let figure = row.ratio().map(|s| s.show(|v| format!("{v:.2}×")));
        figure.or_else(|| Some(row.ours()?.show(|v| row.unit.show(v))))
    };
    let (before, after) = match (before, after) {
        (Some(before), Some(after)) => (before, after),
        (before, after) => {
            let lacking = if before.is_none() { "first" } else { "second" };
            found.why = format!("not in the {lacking} run");
            for (shown, row) in found.shown.iter_mut().zip([before, after]) {
                if let Some(figure) = row.and_then(alone) {
                    *shown = figure;
                }
            }
            return found;
        }
    };
    if before.unit != after.unit {
        found.why = String::from("of different units");
        return found;
    }
    let ratios = before.ratio().zip(after.ratio());
    found.is_ratio = ratios.is_some();
    let show = |s: Spread| {
        s.show(|v| match ratios {
            Some(_) => format!("{v:.2}×"),
            None => before.unit.show(v),
        })
    };
    let Some((then, now)) = ratios.or_else(|| before.ours().zip(after.ours())) else {
        let which = if before.samples.is_empty() {
            "first"
        } else {
            "second"
        };
        found.why = format!("no figures in the {which} run");
        return found;
    };
    found.shown = [show(then), show(now)];
    found.figures = Some([then, now]);
    let gain = gain(then.median, now.median, before.unit.less_is_better());
    found.gain_percent = Some(gain);
    found.change = if then.overlaps(now) {
        Change::WithinSpread
    } else if gain > 0.0 {
        Change::Better
    } else {
        Change::Worse
    };
    found
}

/// By how many percent `now` is better than `then`. From nothing to something there is no
/// percentage: then it is endless.
fn gain(then: f64, now: f64, less_is_better: bool) -> f64 {
    let more = if then == now {
        0.0
    } else if then == 0.0 {
        f64::INFINITY
    } else {
        (now / then - 1.0) * 100.0
    };
    if less_is_better { -more } else { more }
}

impl Comparison {
    /// Rows that are worse by more than so many percent, with spreads that do not overlap.
    pub fn worse_by(&self, percent: f64) -> impl Iterator<Item = &Difference> {
        self.differences.iter().filter(move |d| {
            d.change == Change::Worse && d.gain_percent.is_some_and(|g| g < -percent)
        })
    }

    /// As Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let [before, after] = &self.runs;
        let mut out = format!("- before: {}\n- after: {}\n", safe(before), safe(after));
        for caution in &self.cautions {
            let _ = writeln!(out, "- mind: {}", safe(caution));
        }
        out += "\n| | measure | before | after | change | |\n|---|---|---|---|---|---|\n";
        for d in &self.differences {
            let gain = d.gain_percent.map_or_else(String::new, |g| {
                if g.is_finite() {
                    format!("{g:+.1} %")
                } else {
                    String::from("from 0")
                }
            });
            let word = match d.change {
                Change::Better => "better",
                Change::Worse => "**worse**",
                Change::WithinSpread => "within the spread",
                Change::NotComparable => &d.why,
            };
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {gain} | {word} |",
                safe(&d.key),
                safe(&d.measure),
                d.shown[0],
                d.shown[1],
            );
        }
        out += "\nA gain is positive, whichever way the figure goes. Where a row has a ratio to a \
                peer of the same run, ratios are compared.\n";
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{row, run};
    use crate::{Goal, Unit};

    const GOAL: Goal = Goal::RatioAtLeast(0.9);

    fn of(before: &[(f64, f64)], after: &[(f64, f64)]) -> Difference {
        let (before, after) = (row("D1", GOAL, before), row("D1", GOAL, after));
        difference(Some(&before), Some(&after))
    }

    #[test]
    fn a_run_beside_itself() {
        let same = compare(&run(), &run());
        assert!(same.cautions.is_empty(), "{:?}", same.cautions);
        let changes: Vec<Change> = same.differences.iter().map(|d| d.change).collect();
        use Change::{NotComparable, WithinSpread};
        assert_eq!(changes, [WithinSpread, WithinSpread, NotComparable]);
        assert_eq!(same.worse_by(0.0).count(), 0);
    }

    #[test]
    fn ratios_and_not_figures_are_compared() {
        // Half as fast a day, for both.
        let d = of(&[(90.0, 100.0)], &[(45.0, 50.0)]);
        assert_eq!(
            (d.change, d.gain_percent),
            (Change::WithinSpread, Some(0.0))
        );
        let d = of(
            &[(90.0, 100.0), (80.0, 100.0)],
            &[(70.0, 100.0), (60.0, 100.0)],
        );
        assert_eq!(d.change, Change::Worse);
        assert!((d.gain_percent.unwrap() + 23.5).abs() < 0.1, "{d:?}");
        assert_eq!(d.shown[0], "0.85× (0.80×–0.90×)");
        let d = of(&[(90.0, 100.0), (70.0, 100.0)], &[(70.0, 100.0)]);
        assert_eq!(d.change, Change::WithinSpread);
        let d = of(&[(70.0, 100.0)], &[(90.0, 100.0)]);
        assert_eq!(d.change, Change::Better);
    }

    #[test]
    fn less_may_be_better() {
        let mut before = row("D10", Goal::AtMost(0.0), &[(0.0, 1.0)]);
        before.unit = Unit::Allocations;
        before.samples[0].peer = None;
        let mut after = before.clone();
        after.samples[0].ours = 0.5;
        let d = difference(Some(&before), Some(&after));
        assert_eq!((d.change, d.is_ratio), (Change::Worse, false));
        assert_eq!(d.gain_percent, Some(f64::NEG_INFINITY));
        let d = difference(Some(&after), Some(&before));
        assert_eq!((d.change, d.gain_percent), (Change::Better, Some(100.0)));
    }

    #[test]
    fn what_fails() {
        let mut after = run();
        for sample in &mut after.rows[0].samples {
            sample.ours *= 0.9;
        }
        let comparison = compare(&run(), &after);
        let worse: Vec<&str> = comparison.worse_by(5.0).map(|d| d.key.as_str()).collect();
        assert_eq!(worse, ["D1"]);
        assert_eq!(comparison.worse_by(15.0).count(), 0);
        assert!(comparison.markdown().contains("| -10.0 % | **worse** |"));
    }

    #[test]
    fn rows_that_are_not_in_both_and_other_machines_are_told() {
        let mut after = run();
        after.rows.remove(0);
        after.rows.push(row("D9", GOAL, &[(1.0, 2.0)]));
        after.rows[0].unit = Unit::Bytes;
        after.machine.facts[0].value = String::from("7.0");
        after.machine.cores = 64;
        after.rounds = 1;
        after.machine.others = vec![0.5];
        let text = compare(&run(), &after).markdown();
        for words in [
            "| 0.90× (0.90×–0.91×) | – |  | not in the second run |",
            "| – | 0.50× |  | not in the first run |",
            "mind: other programs kept the cores busy in the second run: 50 %",
            "of different units",
            "no figures in the first run",
            "mind: another kernel: 6.18 \\<smp> \\| \"x\", now 7.0",
            "mind: 2 cores, now 64",
            "mind: rounds of the second run: 1;",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
    }
}
