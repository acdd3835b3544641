//! Round-trip times of a QP: one packet in flight is timed, and only if it was sent once (Karn).
//!
//! Timed are packets that ask for an ACK, so that the peer's waiting for more does not count. A
//! READ is timed to its first response.

use xroce_wire::newtypes::Psn;

use crate::time::{Duration, Instant};

/// Steps of the smallest times, ns.
const STEP_SHIFT: u32 = 6;
/// Buckets per power of two: a value is known to one eighth.
const SUB_SHIFT: u32 = 3;
const SUB: usize = 1 << SUB_SHIFT;
/// The largest time told from larger ones is 2^36 ns, 68 s.
const MAX_SHIFT: u32 = 36;

/// Buckets of a [`Histogram`].
pub const BUCKETS: usize = SUB * (MAX_SHIFT - STEP_SHIFT - SUB_SHIFT + 1) as usize;

/// A log-linear histogram of times: steps of 64 ns up to 512 ns, then eight per power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u32; BUCKETS],
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Histogram {
    /// Of no times.
    pub const EMPTY: Self = Self {
        buckets: [0; BUCKETS],
        count: 0,
        sum_ns: 0,
        max_ns: 0,
    };

    /// Adds a time.
    pub fn record(&mut self, time: Duration) {
        let ns = time.as_nanos();
        if let Some(bucket) = self.buckets.get_mut(bucket_of(ns)) {
            *bucket = bucket.saturating_add(1);
        }
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all times of another.
    pub fn merge(&mut self, other: &Self) {
        for (into, from) in self.buckets.iter_mut().zip(other.buckets) {
            *into = into.saturating_add(from);
        }
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many times were added.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The longest.
    #[must_use]
    pub const fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// The mean; `None` if there is nothing.
    #[must_use]
    pub const fn mean(&self) -> Option<Duration> {
        match self.sum_ns.checked_div(self.count) {
            Some(ns) => Some(Duration::from_nanos(ns)),
            None => None,
        }
    }

    /// The time that `per_mille` of 1000 do not exceed, up to the width of a bucket; `None` if
    /// there is nothing.
    #[must_use]
    pub fn quantile(&self, per_mille: u32) -> Option<Duration> {
        let wanted = (self.count * u64::from(per_mille.min(1000))).div_ceil(1000);
        let mut seen = 0;
        let found = self.buckets().find(|(_, n)| {
            seen += u64::from(*n);
            *n != 0 && seen >= wanted
        });
        found.map(|(below, _)| Duration::from_nanos(below.as_nanos().min(self.max_ns)))
    }

    /// All buckets: the time below which its values are, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u32)> {
        self.buckets
            .iter()
            .enumerate()
            .map(|(i, &n)| (Duration::from_nanos(end_of(i)), n))
    }
}

/// Bucket of a time in ns.
fn bucket_of(ns: u64) -> usize {
    let steps = ns >> STEP_SHIFT;
    let bits = u64::BITS - steps.leading_zeros();
    let Some(octave) = bits.checked_sub(SUB_SHIFT + 1) else {
        // Below SUB.
        return usize::try_from(steps).unwrap_or(0);
    };
    let sub = (steps >> octave) as usize & (SUB - 1);
    let index = (octave as usize + 1) * SUB + sub;
    index.min(BUCKETS - 1)
}

/// The first time in ns that is beyond a bucket.
const fn end_of(index: usize) -> u64 {
    let (octave, sub) = (index / SUB, (index % SUB) as u64);
    let steps = if octave == 0 {
        sub + 1
    } else {
        (SUB as u64 + sub + 1) << (octave - 1)
    };
    steps << STEP_SHIFT
}

/// Smoothed round-trip time and how far samples stray from it, as in RFC 6298.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RttEstimator {
    /// Eight times the smoothed time, ns; 0: no sample.
    srtt8: u64,
    /// Four times the mean deviation, ns.
    rttvar4: u64,
}

impl RttEstimator {
    /// Takes a sample in.
    pub fn sample(&mut self, time: Duration) {
        // A sample of nothing is one, and the longest keep sums far from overflow.
        let ns = time.as_nanos().clamp(1, 1 << 40);
        if self.srtt8 == 0 {
            (self.srtt8, self.rttvar4) = (ns * 8, ns * 2);
            return;
        }
        let deviation = ns.abs_diff(self.srtt8 / 8);
        self.rttvar4 = self.rttvar4 - self.rttvar4 / 4 + deviation;
        self.srtt8 = self.srtt8 - self.srtt8 / 8 + ns;
    }

    /// The smoothed time; `None` without samples.
    #[must_use]
    pub const fn srtt(&self) -> Option<Duration> {
        if self.srtt8 == 0 {
            None
        } else {
            Some(Duration::from_nanos(self.srtt8 / 8))
        }
    }

    /// The mean deviation, zero without samples.
    #[must_use]
    pub const fn rttvar(&self) -> Duration {
        Duration::from_nanos(self.rttvar4 / 4)
    }

    /// What almost no round trip exceeds: the smoothed time and four deviations; `None` without
    /// samples.
    #[must_use]
    pub const fn longest(&self) -> Option<Duration> {
        match self.srtt() {
            Some(srtt) => Some(Duration::from_nanos(srtt.as_nanos() + self.rttvar4)),
            None => None,
        }
    }
}

/// The packet that is timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    /// When it left; `NEVER`: none is.
    pub(crate) sent: Instant,
    pub(crate) psn: Psn,
    /// Its payload or, of a READ, that of the first response, bytes.
    pub(crate) payload: u32,
}

impl Timed {
    pub(crate) const NONE: Self = Self {
        sent: Instant::NEVER,
        psn: Psn::new(0),
        payload: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for &ns in times {
            histogram.record(Duration::from_nanos(ns));
        }
        histogram
    }

    #[test]
    fn every_time_is_in_the_bucket_that_ends_behind_it() {
        let mut before = 0;
        for index in 0..BUCKETS {
            let end = end_of(index);
            assert!(end > before);
            assert_eq!(bucket_of(before), index);
            assert_eq!(bucket_of(end - 1), index);
            // One eighth at most, beyond the first steps.
            assert!(end - before <= (before / 8).max(64), "{before} to {end}");
            before = end;
        }
        assert_eq!(before, 1 << MAX_SHIFT);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn the_estimate_follows_the_samples() {
        let mut rtt = RttEstimator::default();
        assert_eq!((rtt.srtt(), rtt.longest()), (None, None));
        rtt.sample(Duration::from_nanos(10_000));
        assert_eq!(rtt.srtt(), Some(Duration::from_nanos(10_000)));
        assert_eq!(rtt.rttvar(), Duration::from_nanos(5_000));
        assert_eq!(rtt.longest(), Some(Duration::from_nanos(30_000)));
        rtt.sample(Duration::from_nanos(18_000));
        assert_eq!(rtt.srtt(), Some(Duration::from_nanos(11_000)));
        assert_eq!(rtt.rttvar(), Duration::from_nanos(5_750));
        for _ in 0..100 {
            rtt.sample(Duration::from_nanos(20_000));
        }
        let srtt = rtt.srtt().map_or(0, Duration::as_nanos);
        assert!((19_990..=20_000).contains(&srtt), "{srtt}");
        assert!(rtt.rttvar().as_nanos() < 100, "{rtt:?}");
        rtt.sample(Duration::from_nanos(u64::MAX));
        rtt.sample(Duration::ZERO);
        assert!(rtt.longest().is_some());
    }

    #[test]
    fn quantiles_and_mean() {
        assert_eq!(of(&[]).quantile(500), None);
        assert_eq!(of(&[]).mean(), None);
        let some = of(&[10_000, 10_000, 10_000, 1_000_000]);
        let us = |t: Option<Duration>| t.map(|t| t.as_nanos() / 1000);
        assert_eq!(us(some.quantile(500)), Some(10));
        assert_eq!(us(some.quantile(999)), Some(1000));
        assert_eq!(some.quantile(1000), Some(some.max()));
        assert_eq!(us(some.mean()), Some(257));
        let mut both = of(&[10_000]);
        both.merge(&some);
        assert_eq!(both.count(), 5);
        assert_eq!(both.buckets().map(|(_, n)| u64::from(n)).sum::<u64>(), 5);
    }
}
