//! What the plots are made of, gathered over the rounds.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use xroce_bench_report::{Axis, Curve, Plot, Scale, Spread, Ticks};

/// Longest round trip that is told apart, in ns.
const LONGEST_NS: u64 = 60_000_000_000;

fn axis(name: &str, scale: Scale, ticks: Ticks) -> Axis {
    Axis {
        name: name.to_owned(),
        scale,
        ticks,
    }
}

/// Figures of one curve, by x.
#[derive(Debug)]
struct Samples {
    plot: &'static str,
    name: String,
    is_peer: bool,
    at: BTreeMap<u32, Vec<f64>>,
}

/// All that is drawn.
#[derive(Default, Debug)]
pub(crate) struct Curves {
    /// In the order in which they came up.
    curves: Vec<Samples>,
    latencies: Vec<(&'static str, bool, Histogram<u64>)>,
}

/// Sizes of messages over this.
pub(crate) const SIZES: [(&str, &str); 3] = [
    ("sizes-xdp", "AF_XDP"),
    ("sizes-udp", "UDP"),
    ("sizes-memory", "in memory"),
];
/// Numbers of queue pairs.
pub(crate) const QPS: &str = "qps";

impl Curves {
    /// A figure of one round.
    pub(crate) fn add(&mut self, plot: &'static str, name: &str, is_peer: bool, x: u32, y: f64) {
        let is = |c: &Samples| c.plot == plot && c.name == name;
        let at = self.curves.iter().position(is).unwrap_or_else(|| {
            self.curves.push(Samples {
                plot,
                name: name.to_owned(),
                is_peer,
                at: BTreeMap::new(),
            });
            self.curves.len() - 1
        });
        self.curves[at].at.entry(x).or_default().push(y);
    }

    /// Round trips of one round, in ns.
    pub(crate) fn latency(&mut self, name: &'static str, is_peer: bool, round_trips: &[u64]) {
        let at = self.latencies.iter().position(|l| l.0 == name);
        let at = at.unwrap_or_else(|| {
            // Three digits; the limits are constants that it takes.
            if let Ok(empty) = Histogram::new_with_max(LONGEST_NS, 3) {
                self.latencies.push((name, is_peer, empty));
            }
            self.latencies.len().saturating_sub(1)
        });
        if let Some((_, _, histogram)) = self.latencies.get_mut(at) {
            for &ns in round_trips {
                histogram.saturating_record(ns);
            }
        }
    }

    /// The curves of a plot, medians; y is multiplied by what `scale` says for x.
    fn of(&self, plot: &str, scale: impl Fn(f64) -> f64) -> Vec<Curve> {
        let curves = self.curves.iter().filter(|c| c.plot == plot);
        let curve = |c: &Samples| Curve {
            name: c.name.clone(),
            is_peer: c.is_peer,
            points: c
                .at
                .iter()
                .filter_map(|(x, y)| {
                    let median = Spread::of(y.iter().copied())?.median;
                    Some((f64::from(*x), median * scale(f64::from(*x))))
                })
                .collect(),
        };
        curves.map(curve).collect()
    }

    /// Everything, in the order of the report.
    pub(crate) fn plots(&self) -> Vec<Plot> {
        let mut plots = Vec::new();
        let note = "Medians of the rounds. One queue pair, one way, path MTU 4096; above it a \
                    message is several packets.";
        for (key, over) in SIZES {
            let size = || axis("size of a message", Scale::Log, Ticks::Bytes);
            plots.push(Plot {
                key: format!("{key}-rate"),
                title: format!("Message rate by size, {over}"),
                note: note.to_owned(),
                x: size(),
                y: axis("messages a second", Scale::Log, Ticks::Count),
                curves: self.of(key, |_| 1.0),
            });
            plots.push(Plot {
                key: format!("{key}-bandwidth"),
                title: format!("Bandwidth by size, {over}"),
                note: String::from("The same as payload."),
                x: size(),
                y: axis("Gb/s of payload", Scale::Linear, Ticks::Count),
                curves: self.of(key, |size| size * 8.0 / 1e9),
            });
        }
        plots.extend(self.distributions());
        plots.push(Plot {
            key: QPS.to_owned(),
            title: String::from("Scaling with queue pairs"),
            note: String::from(
                "SEND of 64 B in memory, two engines in one thread; up to 1000 of the connected \
                 queue pairs are active.",
            ),
            x: axis("connected queue pairs", Scale::Log, Ticks::Count),
            y: axis("messages a second", Scale::Linear, Ticks::Count),
            curves: self.of(QPS, |_| 1.0),
        });
        plots.retain(|p| p.curves.iter().any(|c| !c.points.is_empty()));
        plots
    }

    /// A curve for each distribution, `y` of the share that took no longer.
    fn latencies(&self, y: impl Fn(f64) -> f64) -> Vec<Curve> {
        let curve = |(name, is_peer, histogram): &(&'static str, bool, Histogram<u64>)| Curve {
            name: (*name).to_owned(),
            is_peer: *is_peer,
            points: histogram
                .iter_recorded()
                .map(|v| {
                    let us = v.value_iterated_to() as f64 / 1e3;
                    (us, y(v.percentile() / 100.0))
                })
                // What is left of a difference where nothing is left.
                .filter(|p| p.1 == 0.0 || p.1 > 1e-12)
                .collect(),
        };
        self.latencies.iter().map(curve).collect()
    }

    /// Most of the round trips, and the longest of them.
    fn distributions(&self) -> [Plot; 2] {
        let plot = |key: &str, title: &str, note: &str, scale, curves| Plot {
            key: key.to_owned(),
            title: title.to_owned(),
            note: note.to_owned(),
            x: axis("µs", Scale::Log, Ticks::Count),
            y: axis("share", scale, Ticks::Share),
            curves,
        };
        let note = "Share of the round trips that took no longer, all rounds together: SEND of 2 B \
                    there and back, both ends polling, and a raw frame of the same length.";
        let whole = self.latencies(|share| share);
        let tail = self.latencies(|share| 1.0 - share);
        [
            plot("latency", "Round trips", note, Scale::Linear, whole),
            plot(
                "latency-tail",
                "The longest round trips",
                "Share of them that took longer.",
                Scale::Log,
                tail,
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        dead_code,
        unused_imports,
        reason = "the bench itself is compiled as a test, but without its tests"
    )]
    use super::*;

    #[test]
    fn medians_by_size_and_what_was_not_measured_is_not_there() {
        let mut curves = Curves::default();
        for y in [3.0, 1.0, 2.0] {
            curves.add("sizes-udp", "SEND", false, 1000, y * 1e6);
        }
        curves.latency("raw", true, &[1000, 2000, 2000, 4000]);
        let plots = curves.plots();
        let keys: Vec<&str> = plots.iter().map(|p| p.key.as_str()).collect();
        let latency = ["latency", "latency-tail"];
        assert_eq!(keys[..2], ["sizes-udp-rate", "sizes-udp-bandwidth"]);
        assert_eq!(keys[2..], latency);
        assert_eq!(plots[0].curves[0].points, [(1000.0, 2e6)]);
        assert_eq!(plots[1].curves[0].points, [(1000.0, 16.0)]);
        let shares: Vec<f64> = plots[2].curves[0].points.iter().map(|p| p.1).collect();
        assert_eq!(shares, [0.25, 0.75, 1.0]);
    }
}
