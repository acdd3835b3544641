//! A row: ours beside what it is measured against, and what is wanted.

use serde::{Deserialize, Serialize};

use crate::{Spread, Unit};

/// What is wanted.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Ours is at least so many times the other.
    RatioAtLeast(f64),
    /// Ours is at most so many times the other.
    RatioAtMost(f64),
    /// Ours is at least this, in base units.
    AtLeast(f64),
    /// Ours is at most this, in base units.
    AtMost(f64),
    /// Nothing: for information.
    Nothing,
}

/// Whether a row is as wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    /// The median is.
    Yes,
    /// The median is not.
    No,
    /// Nothing is wanted.
    NoGoal,
    /// There is nothing to judge.
    NotMeasured,
}

/// Both figures of one round, in base units.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Ours.
    pub ours: f64,
    /// Of the ceiling or peer, measured right before or after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<f64>,
}

/// A row of the report.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name over all times, by which two runs are compared: "D2-4096".
    pub key: String,
    /// The target it belongs to: "D2".
    pub id: String,
    /// What was measured.
    pub measure: String,
    /// The ceiling or peer; empty if there is none.
    #[serde(default)]
    pub against: String,
    /// Of both figures.
    pub unit: Unit,
    /// What is wanted.
    pub goal: Goal,
    /// One for each round.
    pub samples: Vec<Sample>,
    /// Packets lost and sent again, all rounds together: then it is not what the link can do.
    #[serde(default)]
    pub packets_sent_again: u64,
    /// What a reader has to know; why there are no samples.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Row {
    /// Ours.
    #[must_use]
    pub fn ours(&self) -> Option<Spread> {
        Spread::of(self.samples.iter().map(|s| s.ours))
    }

    /// The other figure.
    #[must_use]
    pub fn peer(&self) -> Option<Spread> {
        Spread::of(self.samples.iter().filter_map(|s| s.peer))
    }

    /// Ours by the other, of the same round each. A ratio with nothing is none.
    #[must_use]
    pub fn ratio(&self) -> Option<Spread> {
        let ratio = |s: &Sample| s.peer.filter(|&p| p > 0.0).map(|p| s.ours / p);
        Spread::of(self.samples.iter().filter_map(ratio))
    }

    /// The figure that the goal is about, and its limit.
    #[must_use]
    pub fn judged(&self) -> Option<(Spread, f64)> {
        match self.goal {
            Goal::RatioAtLeast(limit) | Goal::RatioAtMost(limit) => Some((self.ratio()?, limit)),
            Goal::AtLeast(limit) | Goal::AtMost(limit) => Some((self.ours()?, limit)),
            Goal::Nothing => None,
        }
    }

    /// Whether the median is as wanted.
    #[must_use]
    pub fn met(&self) -> Met {
        let Some((figure, limit)) = self.judged() else {
            return if self.goal == Goal::Nothing && !self.samples.is_empty() {
                Met::NoGoal
            } else {
                Met::NotMeasured
            };
        };
        let is = match self.goal {
            Goal::RatioAtLeast(_) | Goal::AtLeast(_) => figure.median >= limit,
            Goal::RatioAtMost(_) | Goal::AtMost(_) => figure.median <= limit,
            Goal::Nothing => return Met::NoGoal,
        };
        if is { Met::Yes } else { Met::No }
    }

    /// Whether the goal is among what was measured: another run may fall on the other side.
    #[must_use]
    pub fn is_close(&self) -> bool {
        self.judged()
            .is_some_and(|(figure, limit)| figure.min < figure.max && figure.contains(limit))
    }

    /// "≥ 0.90×".
    #[must_use]
    pub fn target(&self) -> String {
        match self.goal {
            Goal::RatioAtLeast(least) => format!("≥ {least:.2}×"),
            Goal::RatioAtMost(most) => format!("≤ {most:.2}×"),
            Goal::AtLeast(least) => format!("≥ {}", self.unit.show(least)),
            Goal::AtMost(most) => format!("≤ {}", self.unit.show(most)),
            Goal::Nothing => String::from("–"),
        }
    }

    /// What is compared between two runs: the ratio if there is one, since it does not depend on
    /// how fast the machine was that day; else ours. And whether less is better.
    #[must_use]
    pub fn compared(&self) -> Option<(Spread, bool)> {
        let less = self.unit.less_is_better();
        self.ratio().or_else(|| self.ours()).map(|s| (s, less))
    }

    /// All that there is to know beside the figures.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let again = self.packets_sent_again;
        let lost = (again != 0).then(|| format!("{again} packets sent again"));
        lost.into_iter().chain(self.notes.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::row;

    #[test]
    fn goals() {
        let samples = [(9.0, 10.0), (8.0, 10.0), (10.0, 10.0)];
        for (goal, met) in [
            (Goal::RatioAtLeast(0.9), Met::Yes),
            (Goal::RatioAtLeast(0.91), Met::No),
            (Goal::RatioAtMost(0.9), Met::Yes),
            (Goal::RatioAtMost(0.8), Met::No),
            (Goal::AtLeast(9.0), Met::Yes),
            (Goal::AtLeast(9.5), Met::No),
            (Goal::AtMost(9.0), Met::Yes),
            (Goal::AtMost(8.0), Met::No),
            (Goal::Nothing, Met::NoGoal),
        ] {
            assert_eq!(row("A", goal, &samples).met(), met, "{goal:?}");
            assert_eq!(row("A", goal, &[]).met(), Met::NotMeasured);
        }
        assert!(row("A", Goal::RatioAtLeast(0.9), &samples).is_close());
        assert!(!row("A", Goal::RatioAtLeast(0.5), &samples).is_close());
    }

    #[test]
    fn a_ratio_is_of_the_same_round_and_never_with_nothing() {
        let mut row = row("A", Goal::RatioAtLeast(1.0), &[(1.0, 0.0), (2.0, 1.0)]);
        row.samples.push(Sample {
            ours: 9.0,
            peer: None,
        });
        let ratio = row.ratio().unwrap();
        assert_eq!((ratio.min, ratio.max), (2.0, 2.0));
        assert_eq!(row.ours().unwrap().max, 9.0);
    }
}
