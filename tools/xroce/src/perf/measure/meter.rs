//! Rates over time: the average, and the best stretch.

use xroce_proto::time::Instant;

/// When how many messages were completed.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    messages: u64,
}

/// Measures rates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    start: Mark,
    /// Start of the stretch that is being measured.
    mark: Mark,
    last: Mark,
    /// Messages of a stretch.
    stretch: u64,
    /// Messages a second of the best stretch.
    peak: f64,
}

impl Meter {
    /// Starts the clock. A peak lasts for at least `stretch` messages.
    pub(crate) fn new(at: Instant, stretch: u64) -> Self {
        let start = Mark { at, messages: 0 };
        Self {
            start,
            mark: start,
            last: start,
            stretch,
            peak: 0.0,
        }
    }

    /// So many messages are completed by now.
    #[inline]
    pub(crate) fn see(&mut self, at: Instant, messages: u64) {
        self.last = Mark { at, messages };
        if messages - self.mark.messages >= self.stretch {
            self.peak = self.peak.max(rate(self.mark, self.last));
            self.mark = self.last;
        }
    }

    /// Messages a second up to the last look.
    pub(crate) fn average(&self) -> f64 {
        rate(self.start, self.last)
    }

    /// Messages a second of the best stretch, at least the average.
    pub(crate) fn peak(&self) -> f64 {
        self.peak.max(self.average())
    }
}

/// Messages a second between two marks.
#[allow(
    clippy::cast_precision_loss,
    reason = "rates are shown with a few digits"
)]
fn rate(from: Mark, to: Mark) -> f64 {
    let seconds = to.at.since(from.at).as_nanos() as f64 / 1e9;
    (to.messages - from.messages) as f64 / seconds.max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_stretch_is_the_peak() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut meter = Meter::new(at(0), 100);
        // 100, then 50 that are no stretch of their own, then 150 more, each in 100 ms.
        for (ms, messages) in [(100, 100), (200, 150), (300, 300)] {
            meter.see(at(ms), messages);
        }
        assert!((meter.average() - 1_000.0).abs() < 1e-6);
        // 200 in the last 200 ms are no more than 1000/s; so the first stretch is as good.
        assert!((meter.peak() - 1_000.0).abs() < 1e-6);
        meter.see(at(350), 450);
        assert!((meter.peak() - 3_000.0).abs() < 1e-6);
    }
}
