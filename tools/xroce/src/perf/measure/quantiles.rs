//! Times in a histogram, and the numbers that are shown of them.

use std::io::{self, Write};

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest time told apart, in ns; longer ones count as this long.
pub(crate) const LONGEST_NS: u64 = 60_000_000_000;
/// Lines of a written histogram each time the distance to 100 % halves.
const TICKS: u32 = 5;

/// A histogram of times in ns, with three digits.
///
/// # Errors
/// Its bounds are wrong, which they are not.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).map_err(|e| anyhow!("histogram: {e}"))
}

/// The usual quantiles of times, in ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quantiles {
    /// Times recorded.
    pub samples: u64,
    /// Shortest.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// 99.99th percentile.
    pub p9999_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Standard deviation.
    pub stdev_ns: u64,
}

impl Quantiles {
    /// Those of a histogram in ns.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "means of times below a minute"
    )]
    pub(crate) fn of(h: &Histogram<u64>) -> Self {
        Self {
            samples: h.len(),
            min_ns: h.min(),
            p50_ns: h.value_at_quantile(0.5),
            p90_ns: h.value_at_quantile(0.9),
            p99_ns: h.value_at_quantile(0.99),
            p999_ns: h.value_at_quantile(0.999),
            p9999_ns: h.value_at_quantile(0.9999),
            max_ns: h.max(),
            mean_ns: h.mean() as u64,
            stdev_ns: h.stdev() as u64,
        }
    }
}

/// Writes the distribution as HdrHistogram's tools do and read: µs, percentile, count so far and
/// 1/(1-percentile). A few hundred lines at most, however many times there are.
///
/// # Errors
/// It cannot be written.
#[allow(
    clippy::cast_precision_loss,
    reason = "written with a few digits, as the format has them"
)]
pub(crate) fn write(h: &Histogram<u64>, title: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "#[{title}, values in usec]")?;
    writeln!(
        out,
        "       Value     Percentile TotalCount 1/(1-Percentile)\n"
    )?;
    let mut sum = 0;
    for v in h.iter_quantiles(TICKS) {
        sum += v.count_since_last_iteration();
        let (value, quantile) = (v.value_iterated_to() as f64 / 1e3, v.quantile_iterated_to());
        if quantile < 1.0 {
            let inverse = 1.0 / (1.0 - quantile);
            writeln!(out, "{value:12.3} {quantile:14.12} {sum:10} {inverse:14.2}")?;
        } else {
            writeln!(out, "{value:12.3} {quantile:14.12} {sum:10}            inf")?;
        }
    }
    let micros = |ns: f64| ns / 1e3;
    writeln!(
        out,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]",
        micros(h.mean()),
        micros(h.stdev())
    )?;
    writeln!(
        out,
        "#[Max     = {:12.3}, Total count    = {:12}]",
        micros(h.max() as f64),
        h.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_times() {
        let mut h = histogram().unwrap();
        for ns in 1..=100_000 {
            h.record(ns).unwrap();
        }
        let q = Quantiles::of(&h);
        assert_eq!((q.samples, q.min_ns), (100_000, 1));
        let close = |got: u64, want: u64| got.abs_diff(want) * 500 <= want;
        for (got, want) in [
            (q.p50_ns, 50_000),
            (q.p90_ns, 90_000),
            (q.p99_ns, 99_000),
            (q.p999_ns, 99_900),
            (q.p9999_ns, 99_990),
            (q.max_ns, 100_000),
            (q.mean_ns, 50_000),
            (q.stdev_ns, 28_867),
        ] {
            assert!(close(got, want), "{got} is not about {want}");
        }
    }

    #[test]
    fn a_written_histogram_is_short_and_complete() {
        let mut h = histogram().unwrap();
        for n in 0..1_000_000_u64 {
            h.record(1_000 + n * 59_999).unwrap();
        }
        let mut out = Vec::new();
        write(&h, "SEND of 64 B", &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("#[SEND of 64 B, values in usec]\n       Value     Percentile TotalCount 1/(1-Percentile)\n\n"));
        assert!(text.lines().count() < 300, "{}", text.lines().count());
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(3)
            .filter(|l| !l.starts_with('#'))
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert!(rows.iter().all(|r| r.len() == 4));
        let last = rows.last().unwrap();
        assert_eq!(last[1..], ["1.000000000000", "1000000", "inf"]);
        assert!(text.trim_end().ends_with("Total count    =      1000000]"));
    }
}
