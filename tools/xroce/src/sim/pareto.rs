//! What runs are judged by, and which of them no other beats.

use clap::ValueEnum;
use serde::Serialize;
use xroce_fabric::Summary;

/// A number to be made small or large.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum Objective {
    /// Mean flow completion time, µs, small
    FctMean,
    /// Its median
    FctP50,
    /// Its 99th percentile
    FctP99,
    /// Mean slowdown, small
    SlowdownMean,
    /// Its median
    SlowdownP50,
    /// Its 99th percentile
    SlowdownP99,
    /// Payload of all flows, Gb/s, large
    Goodput,
    /// Jain's index of fairness, large
    Jain,
    /// 95th percentile of the longest queue, bytes, small
    QueueP95,
    /// Its longest
    QueueMax,
    /// Frames lost, small
    Drops,
    /// Packets sent again, small
    Retransmissions,
    /// Times a priority was paused, small
    Pauses,
    /// How long, µs, small
    PausedUs,
}

impl Objective {
    /// As on the command line.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map(|v| v.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether more is better.
    pub(crate) const fn is_large(self) -> bool {
        matches!(self, Self::Goodput | Self::Jain)
    }

    /// Its value in a run.
    #[allow(clippy::cast_precision_loss, reason = "counts")]
    pub(crate) fn of(self, s: &Summary) -> f64 {
        match self {
            Self::FctMean => s.fct_us.mean,
            Self::FctP50 => s.fct_us.p50,
            Self::FctP99 => s.fct_us.p99,
            Self::SlowdownMean => s.slowdown.mean,
            Self::SlowdownP50 => s.slowdown.p50,
            Self::SlowdownP99 => s.slowdown.p99,
            Self::Goodput => s.goodput_gbps,
            Self::Jain => s.jain,
            Self::QueueP95 => s.queue.p95 as f64,
            Self::QueueMax => s.queue.max as f64,
            Self::Drops => s.drops as f64,
            Self::Retransmissions => s.retransmissions as f64,
            Self::Pauses => s.pauses as f64,
            Self::PausedUs => s.paused_us,
        }
    }
}

/// Which rows no other row beats: as good in everything and better in something.
pub(crate) fn front(objectives: &[Objective], rows: &[Vec<f64>]) -> Vec<bool> {
    let cost = |row: &[f64]| -> Vec<f64> {
        let sign = |(o, v): (&Objective, &f64)| if o.is_large() { -v } else { *v };
        objectives.iter().zip(row).map(sign).collect()
    };
    let costs: Vec<Vec<f64>> = rows.iter().map(|r| cost(r)).collect();
    let beats = |a: &[f64], b: &[f64]| {
        let pairs = || a.iter().zip(b);
        pairs().all(|(x, y)| x <= y) && pairs().any(|(x, y)| x < y)
    };
    let is_best = |row: &Vec<f64>| !costs.iter().any(|other| beats(other, row));
    costs.iter().map(is_best).collect()
}
