//! Median and limits of a few measurements.

use serde::Serialize;

/// Of at least one value.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    /// The middle one; of two in the middle, what is between them.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    /// `None` without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut v: Vec<f64> = values.into_iter().collect();
        v.sort_by(f64::total_cmp);
        let upper = *v.get(v.len() / 2)?;
        let lower = *v.get((v.len() - 1) / 2)?;
        Some(Self {
            median: f64::midpoint(lower, upper),
            min: *v.first()?,
            max: *v.last()?,
        })
    }

    /// "median (min–max)", or one figure if they read the same.
    pub fn show(self, each: impl Fn(f64) -> String) -> String {
        let (low, high) = (each(self.min), each(self.max));
        if low == high {
            low
        } else {
            format!("{} ({low}–{high})", each(self.median))
        }
    }

    /// Whether the two have a value in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.min <= other.max && other.min <= self.max
    }

    /// From the least to the most, as a share of the median; 0 if that is 0.
    #[must_use]
    pub fn width(self) -> f64 {
        if self.median == 0.0 {
            0.0
        } else {
            (self.max - self.min) / self.median
        }
    }

    /// Whether `value` is among what was measured.
    #[must_use]
    pub fn contains(self, value: f64) -> bool {
        (self.min..=self.max).contains(&value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_limits() {
        assert_eq!(Spread::of([]), None);
        let one = Spread::of([7.0]).unwrap();
        assert_eq!((one.median, one.min, one.max), (7.0, 7.0, 7.0));
        let odd = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        let even = Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((even.median, even.min, even.max), (2.5, 1.0, 4.0));
        assert!((even.width() - 1.2).abs() < 1e-9);
        assert_eq!(Spread::of([0.0]).unwrap().width(), 0.0);
    }

    #[test]
    fn shown_with_its_limits_unless_they_read_the_same() {
        let show = |v: &[f64]| {
            let spread = Spread::of(v.iter().copied()).unwrap();
            spread.show(|v| format!("{v:.1}"))
        };
        assert_eq!(show(&[1.0, 2.0, 3.0]), "2.0 (1.0–3.0)");
        assert_eq!(show(&[1.01, 1.02]), "1.0");
    }

    #[test]
    fn overlapping() {
        let of = |a, b| Spread::of([a, b]).unwrap();
        assert!(of(1.0, 2.0).overlaps(of(2.0, 3.0)));
        assert!(of(1.0, 9.0).overlaps(of(2.0, 3.0)));
        assert!(!of(1.0, 2.0).overlaps(of(2.1, 3.0)));
        assert!(of(1.0, 2.0).contains(1.5) && !of(1.0, 2.0).contains(2.5));
    }
}
