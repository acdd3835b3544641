//! Time as the driver tells it: nanoseconds since an origin of its choice.

use core::ops::{Add, AddAssign, Sub};
use serde::{Deserialize, Serialize};

/// A point in time, ns since the driver's origin.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default, Serialize, Deserialize,
)]
pub struct Instant(u64);

/// A span of time, ns.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default, Serialize, Deserialize,
)]
pub struct Duration(u64);

impl Instant {
    /// Later than every real instant; stands for "no deadline" in the hot structures.
    pub const NEVER: Self = Self(u64::MAX);

    /// From ns since the origin.
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Ns since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time since `earlier`, zero if that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }

    /// `None` for [`Instant::NEVER`].
    #[must_use]
    pub const fn deadline(self) -> Option<Self> {
        if self.0 == u64::MAX { None } else { Some(self) }
    }
}

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// Longer than every real span: what it is added to is [`Instant::NEVER`].
    pub const MAX: Self = Self(u64::MAX);

    /// From ns.
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// From µs.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(us * 1_000)
    }

    /// From ms.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// In ns.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(d.0))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}
