//! Median and limits of a few measurements.

/// Of at least one value.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` without values.
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut v: Vec<f64> = values.collect();
        v.sort_by(f64::total_cmp);
        Some(Self {
            median: *v.get(v.len() / 2)?,
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
}
