//! Lengths of flows.

use serde::Deserialize;
use xroce_net::sim::Rng;

use super::error::{Problem, within};
use crate::units::Bytes;

/// Longest flow, bytes.
pub(crate) const BYTES_MAX: u64 = 1_000_000_000_000_000;

/// Where lengths come from.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sizes {
    /// Search: DCTCP (SIGCOMM 2010), as tabulated with pFabric (SIGCOMM 2013). Mean 1.7 MB.
    WebSearch,
    /// Data mining: VL2 (SIGCOMM 2009), as tabulated with pFabric. Mean 7.4 MB; half are one packet.
    DataMining,
    /// IRN (SIGCOMM 2018), section 4.1: half are 32 B to 1 KB, 15 % are 200 KB to 3 MB. The paper
    /// does not say what lies between; here the rest is there, and all three are uniform.
    Irn,
    /// Always the same.
    Fixed(Bytes),
    /// Uniform between two lengths.
    Uniform([Bytes; 2]),
    /// A table of lengths and the share of flows that are not longer, linear between.
    Cdf(Vec<(Bytes, f64)>),
}

/// Packets of 1460 bytes in the published tables.
const PACKET: u64 = 1460;

const WEB_SEARCH: [(u64, f64); 12] = [
    (1, 0.0),
    (6, 0.15),
    (13, 0.2),
    (19, 0.3),
    (33, 0.4),
    (53, 0.53),
    (133, 0.6),
    (667, 0.7),
    (1333, 0.8),
    (3333, 0.9),
    (6667, 0.97),
    (20_000, 1.0),
];

const DATA_MINING: [(u64, f64); 9] = [
    (1, 0.5),
    (2, 0.6),
    (3, 0.7),
    (7, 0.8),
    (267, 0.9),
    (2107, 0.95),
    (33_333, 0.98),
    (66_667, 0.99),
    (666_667, 1.0),
];

const IRN: [(u64, f64); 4] = [(32, 0.0), (1000, 0.5), (200_000, 0.85), (3_000_000, 1.0)];

/// A distribution to draw from.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Cdf(Vec<(f64, f64)>);

impl Sizes {
    /// # Errors
    /// A table that is none.
    #[allow(clippy::cast_precision_loss, reason = "lengths up to 10^15")]
    pub(crate) fn cdf(&self, path: &str) -> Result<Cdf, Problem> {
        let points: Vec<(f64, f64)> = match self {
            Self::WebSearch => packets(&WEB_SEARCH),
            Self::DataMining => packets(&DATA_MINING),
            Self::Irn => IRN.iter().map(|&(b, p)| (b as f64, p)).collect(),
            Self::Fixed(bytes) => {
                let bytes = within(path, bytes.0, (1, BYTES_MAX))? as f64;
                vec![(bytes, 1.0)]
            }
            Self::Uniform([least, most]) => {
                let least = within(path, least.0, (1, BYTES_MAX))?;
                let most = within(path, most.0, (least, BYTES_MAX))?;
                vec![(least as f64, 0.0), (most as f64, 1.0)]
            }
            Self::Cdf(points) => points.iter().map(|(b, p)| (b.0 as f64, *p)).collect(),
        };
        let rises = points
            .windows(2)
            .all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1);
        let inside = points.iter().all(|p| (0.0..=1.0).contains(&p.1));
        let ends = points
            .last()
            .is_some_and(|p| p.1 == 1.0 && p.0 <= BYTES_MAX as f64);
        let begins = points.first().is_some_and(|p| p.0 >= 1.0);
        if points.len() > 1000 || !(rises && inside && ends && begins) {
            let what = "a table needs 1 to 1000 rows of [bytes, share], both rising, from at least \
                        1 byte and to a share of exactly 1.0";
            return Err(Problem::at(path, what));
        }
        Ok(Cdf(points))
    }
}

#[allow(clippy::cast_precision_loss, reason = "lengths up to 10^9")]
fn packets(table: &[(u64, f64)]) -> Vec<(f64, f64)> {
    table
        .iter()
        .map(|&(n, p)| ((n * PACKET) as f64, p))
        .collect()
}

impl Cdf {
    /// Mean length, bytes.
    pub(crate) fn mean(&self) -> f64 {
        let first = self.0.first().map_or(0.0, |p| p.0 * p.1);
        let rest = self
            .0
            .windows(2)
            .map(|w| (w[1].1 - w[0].1) * f64::midpoint(w[0].0, w[1].0));
        first + rest.sum::<f64>()
    }

    /// A length.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "53 random bits; lengths are 1 to 10^15"
    )]
    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        let share = uniform(rng);
        let i = self.0.partition_point(|p| p.1 < share);
        let Some(&(bytes, upper)) = self.0.get(i) else {
            return 1;
        };
        let bytes = match i.checked_sub(1).and_then(|i| self.0.get(i)) {
            Some(&(from, lower)) if upper > lower => {
                from + (bytes - from) * (share - lower) / (upper - lower)
            }
            _ => bytes,
        };
        (bytes.round() as u64).max(1)
    }
}

/// Uniform in 0 .. 1.
#[allow(clippy::cast_precision_loss, reason = "53 random bits fit")]
pub(crate) fn uniform(rng: &mut Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_mean_of_the_table() {
        for (sizes, mean) in [
            (Sizes::WebSearch, 1.66e6),
            (Sizes::DataMining, 6.6e6),
            (Sizes::Irn, 275_433.0),
            (Sizes::Fixed(Bytes(777)), 777.0),
            (Sizes::Uniform([Bytes(100), Bytes(300)]), 200.0),
            (Sizes::Cdf(vec![(Bytes(10), 0.5), (Bytes(20), 1.0)]), 12.5),
        ] {
            let cdf = sizes.cdf("sizes").unwrap();
            assert!(
                (cdf.mean() / mean - 1.0).abs() < 0.1,
                "{sizes:?}: {}",
                cdf.mean()
            );
            let mut rng = Rng::new(9);
            let n = 200_000;
            let sum: u64 = (0..n).map(|_| cdf.draw(&mut rng)).sum();
            let drawn = sum as f64 / f64::from(n);
            assert!(
                (drawn / cdf.mean() - 1.0).abs() < 0.05,
                "{sizes:?}: {drawn}"
            );
        }
    }

    #[test]
    fn tables_that_are_none() {
        let row = |b, p| (Bytes(b), p);
        for rows in [
            vec![],
            vec![row(10, 0.5)],
            vec![row(0, 1.0)],
            vec![row(10, 0.7), row(20, 0.5), row(30, 1.0)],
            vec![row(20, 0.5), row(10, 1.0)],
            vec![row(10, f64::NAN), row(20, 1.0)],
            vec![row(10, -0.5), row(20, 1.0)],
        ] {
            assert!(Sizes::Cdf(rows.clone()).cdf("x").is_err(), "{rows:?}");
        }
        assert!(Sizes::Uniform([Bytes(5), Bytes(4)]).cdf("x").is_err());
    }
}
