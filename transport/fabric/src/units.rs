//! Times, rates and sizes: exact integers inside, "10 us", "40G" and "200KB" in a scenario.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A point in virtual time, or a span of it, in picoseconds: a bit takes 2.5 ps at 400 Gb/s.
///
/// Good for 213 days.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The start of a simulation, or no time at all.
    pub const ZERO: Self = Self(0);
    /// Longer than any simulation.
    pub const MAX: Self = Self(u64::MAX);

    /// From ps.
    #[must_use]
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// From ns, at most `u64::MAX` ps.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(1000))
    }

    /// From µs.
    #[must_use]
    pub const fn from_us(us: u64) -> Self {
        Self(us.saturating_mul(1_000_000))
    }

    /// From ms.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000_000))
    }

    /// In ps.
    #[must_use]
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// In whole ns: the clock of an engine.
    #[must_use]
    pub const fn ns(self) -> u64 {
        self.0 / 1000
    }

    /// In seconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "for rates and reports")]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// In µs, with fraction.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "for reports")]
    pub fn us(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Time since `earlier`, zero if that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Time {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Time {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.since(other)
    }
}

/// Bits per second, never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BitRate(u64);

impl BitRate {
    /// Largest rate, 100 Tb/s.
    pub const MAX: Self = Self(100_000_000_000_000);

    /// From bits per second, brought into 1 ..= [`BitRate::MAX`].
    #[must_use]
    pub const fn from_bps(bps: u64) -> Self {
        match bps {
            0 => Self(1),
            b if b > Self::MAX.0 => Self::MAX,
            b => Self(b),
        }
    }

    /// From Gb/s.
    #[must_use]
    pub const fn from_gbps(gbps: u64) -> Self {
        Self::from_bps(gbps.saturating_mul(1_000_000_000))
    }

    /// In bits per second.
    #[must_use]
    pub const fn bps(self) -> u64 {
        self.0
    }

    /// Time that `bytes` take, rounded up to a ps; exact at all usual rates.
    #[must_use]
    pub const fn time_for(self, bytes: u64) -> Time {
        match bytes.checked_mul(8_000_000_000_000) {
            Some(scaled) => Time(scaled.div_ceil(self.0)),
            // More than 2.3 MB at once.
            None => {
                let ps = (bytes as u128 * 8_000_000_000_000).div_ceil(self.0 as u128);
                Time(if ps > u64::MAX as u128 {
                    u64::MAX
                } else {
                    #[allow(clippy::cast_possible_truncation, reason = "just compared")]
                    {
                        ps as u64
                    }
                })
            }
        }
    }

    /// Bytes that go through in `time`, rounded up.
    #[must_use]
    pub fn bytes_in(self, time: Time) -> u64 {
        let bytes = (u128::from(self.0) * u128::from(time.0)).div_ceil(8_000_000_000_000);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Bytes(pub u64);

/// Why a quantity is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("\"{given}\" is no {what}: write {example}")]
pub struct QuantityError {
    given: String,
    what: &'static str,
    example: &'static str,
}

/// `factor` by unit, the larger value of the unit first in each family.
type Units = &'static [(&'static str, u64)];

const TIME_UNITS: Units = &[
    ("s", 1_000_000_000_000),
    ("ms", 1_000_000_000),
    ("us", 1_000_000),
    ("µs", 1_000_000),
    ("ns", 1000),
    ("ps", 1),
];
const TIME_EXAMPLE: &str = "a number and s, ms, us, ns or ps, such as \"10us\"";

const RATE_UNITS: Units = &[
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1000),
    ("Tbps", 1_000_000_000_000),
    ("Gbps", 1_000_000_000),
    ("Mbps", 1_000_000),
    ("kbps", 1000),
    ("bps", 1),
];
const RATE_EXAMPLE: &str = "a number and T, G, M or k, such as \"40G\", more than 0 and up to 100T";

const BYTE_UNITS: Units = &[
    ("B", 1),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];
const BYTE_EXAMPLE: &str = "a number of bytes, or one and KB, MB, GB, KiB, MiB or GiB, such as \
                            \"200KB\"";

/// `12.5us` with the factor of `us`, exactly or not at all.
fn scaled(text: &str, units: Units) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let unit = unit.trim();
    if unit.is_empty() && number.bytes().all(|b| b == b'0') && !number.is_empty() {
        return Some(0);
    }
    let &(_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.replace('_', "");
    let (whole, fraction) = (digits(whole), digits(fraction));
    if whole.len() > 20 || fraction.len() > 12 || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let number = |part: &str| match part {
        "" => Some(0),
        part => part.parse::<u128>().ok(),
    };
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let total = number(&whole)?.checked_mul(scale)? + number(&fraction)?;
    u64::try_from(total.checked_mul(u128::from(factor))? / scale).ok()
}

fn quantity(
    text: &str,
    units: Units,
    what: &'static str,
    example: &'static str,
) -> Result<u64, QuantityError> {
    scaled(text, units).ok_or_else(|| QuantityError {
        given: text.chars().take(40).collect(),
        what,
        example,
    })
}

impl std::str::FromStr for Time {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        quantity(text, TIME_UNITS, "time", TIME_EXAMPLE).map(Self)
    }
}

impl std::str::FromStr for BitRate {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let bps = quantity(text, RATE_UNITS, "rate", RATE_EXAMPLE)?;
        if (1..=Self::MAX.0).contains(&bps) {
            return Ok(Self(bps));
        }
        Err(QuantityError {
            given: text.chars().take(40).collect(),
            what: "rate",
            example: RATE_EXAMPLE,
        })
    }
}

impl std::str::FromStr for Bytes {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let plain = text.trim();
        if !plain.is_empty() && plain.bytes().all(|b| b.is_ascii_digit()) {
            return quantity(&format!("{plain}B"), BYTE_UNITS, "size", BYTE_EXAMPLE).map(Self);
        }
        quantity(text, BYTE_UNITS, "size", BYTE_EXAMPLE).map(Self)
    }
}

/// Takes the text form of a quantity, and a bare number as text.
struct Quantity<T> {
    example: &'static str,
    kind: std::marker::PhantomData<T>,
}

impl<T> Visitor<'_> for Quantity<T>
where
    T: std::str::FromStr<Err = QuantityError>,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.example)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }
}

macro_rules! quantity_serde {
    ($($T:ident, $example:ident;)+) => {$(
        impl<'de> Deserialize<'de> for $T {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(Quantity { example: $example, kind: std::marker::PhantomData })
            }
        }
    )+};
}

quantity_serde! {
    Time, TIME_EXAMPLE;
    BitRate, RATE_EXAMPLE;
    Bytes, BYTE_EXAMPLE;
}

/// In reports times are ns with fraction, and rates and sizes plain numbers.
impl Serialize for Time {
    #[allow(clippy::cast_precision_loss, reason = "for reports")]
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(self.0 as f64 / 1000.0)
    }
}

impl Serialize for BitRate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.0)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.0)
    }
}

/// A value with the largest unit that leaves at least 1.
#[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
fn show(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fit = units.iter().find(|(_, factor)| value >= *factor);
    match (fit, units.last()) {
        (Some((name, factor)), _) if value.is_multiple_of(*factor) => {
            write!(f, "{} {name}", value / factor)
        }
        (Some((name, factor)), _) => write!(f, "{:.3} {name}", value as f64 / *factor as f64),
        (None, Some((name, _))) => write!(f, "{value} {name}"),
        (None, None) => write!(f, "{value}"),
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            ("s", 1_000_000_000_000),
            ("ms", 1_000_000_000),
            ("µs", 1_000_000),
            ("ns", 1000),
            ("ps", 1),
        ];
        show(f, self.0, &units)
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            ("Tb/s", 1_000_000_000_000),
            ("Gb/s", 1_000_000_000),
            ("Mb/s", 1_000_000),
            ("kb/s", 1000),
            ("b/s", 1),
        ];
        show(f, self.0, &units)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            ("TB", 1_000_000_000_000),
            ("GB", 1_000_000_000),
            ("MB", 1_000_000),
            ("KB", 1000),
            ("B", 1),
        ];
        show(f, self.0, &units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_exact() {
        let time = |s: &str| s.parse::<Time>().map(Time::ps);
        assert_eq!(time("10us"), Ok(10_000_000));
        assert_eq!(time("1.5 ms"), Ok(1_500_000_000));
        assert_eq!(time("0.001ns"), Ok(1));
        assert_eq!(time("0"), Ok(0));
        assert_eq!(
            "40G".parse::<BitRate>().map(BitRate::bps),
            Ok(40_000_000_000)
        );
        assert_eq!(
            "2.5 Gbps".parse::<BitRate>().map(BitRate::bps),
            Ok(2_500_000_000)
        );
        assert_eq!("200KB".parse(), Ok(Bytes(200_000)));
        assert_eq!("1MiB".parse(), Ok(Bytes(1 << 20)));
        assert_eq!("77".parse(), Ok(Bytes(77)));
    }

    #[test]
    fn what_is_none_says_what_to_write() {
        for text in [
            "",
            "10",
            "us",
            "1.2.3us",
            "-4us",
            "10 parsecs",
            "99999999999999999s",
            "é",
        ] {
            let error = text.parse::<Time>().unwrap_err().to_string();
            assert!(error.contains("10us"), "{error}");
        }
        assert!("0".parse::<BitRate>().is_err());
        assert!("0G".parse::<BitRate>().is_err());
        assert!("101T".parse::<BitRate>().is_err());
        assert!("4 KBytes".parse::<Bytes>().is_err());
    }

    #[test]
    fn serialisation_times_are_exact_where_they_can_be() {
        // 1082 bytes and 24 around them: 8848 bits.
        assert_eq!(BitRate::from_gbps(40).time_for(1106).ps(), 221_200);
        assert_eq!(BitRate::from_gbps(400).time_for(84).ps(), 1680);
        // Rounded up elsewhere, and no overflow for a terabyte.
        assert_eq!(BitRate::from_bps(3).time_for(1).ps(), 2_666_666_666_667);
        assert_eq!(
            BitRate::from_gbps(1).time_for(1 << 40).ns(),
            8_796_093_022_208
        );
        assert_eq!(BitRate::from_gbps(40).bytes_in(Time::from_us(1)), 5000);
    }

    #[test]
    fn they_are_shown_with_a_fitting_unit() {
        assert_eq!(Time::from_ns(1500).to_string(), "1.500 µs");
        assert_eq!(Time::ZERO.to_string(), "0 ps");
        assert_eq!(BitRate::from_gbps(40).to_string(), "40 Gb/s");
        assert_eq!(Bytes(1234).to_string(), "1.234 KB");
    }
}
