//! Samples over time, and the few formulas of reports.

use serde::Serialize;

use crate::lane::Node;
use crate::net::Net;
use crate::sim::Simulation;
use crate::units::Time;

/// Samples of a run, at most; later ones are not taken.
pub const SAMPLES_MAX: usize = 20_000;

/// Jain's index of fairness, (Σx)² / (n·Σx²): 1 if all are alike, 1/n if one has everything. 1 for
/// none.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "counts of flows")]
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    if squares == 0.0 {
        return 1.0;
    }
    sum * sum / (shares.len() as f64 * squares)
}

/// The smallest of `sorted` that a share of them does not exceed (nearest rank); 0 for none.
#[must_use]
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank within the slice"
)]
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let i = rank.clamp(1, sorted.len().max(1)) - 1;
    sorted.get(i).copied().unwrap_or(0.0)
}

/// One direction of a link over time.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct LinkSeries {
    /// "from→to".
    pub link: String,
    /// Share of the interval that it was busy, 0 to 1.
    pub utilisation: Vec<f64>,
    /// Most bytes that waited for it in the interval.
    pub queue: Vec<u64>,
    /// Frames marked CE in the interval.
    pub marked: Vec<u64>,
    /// Share of the interval that some priority was paused, 0 to 1.
    pub paused: Vec<f64>,
}

/// One flow over time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct FlowSeries {
    /// Index.
    pub flow: usize,
    /// Bytes that had arrived at the end of each interval.
    pub received: Vec<u64>,
}

/// Samples at fixed intervals.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Series {
    /// Time between samples, µs; 0 if none were taken.
    pub interval_us: f64,
    /// Links.
    pub links: Vec<LinkSeries>,
    /// Flows, the first ones.
    pub flows: Vec<FlowSeries>,
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of samples, and rates"
)]
impl Series {
    /// Mean rate of each sampled flow between two points in time, bits per second of payload.
    #[must_use]
    pub fn rates(&self, from: Time, to: Time) -> Vec<f64> {
        let interval = self.interval_us;
        let index = |t: Time| {
            if interval > 0.0 {
                (t.us() / interval).round() as usize
            } else {
                0
            }
        };
        let rate = |flow: &FlowSeries| {
            // A run that ends at the time of a sample ends before it.
            let last = index(to).min(flow.received.len());
            let first = index(from).min(last);
            let at = |i: usize| match i.checked_sub(1) {
                Some(i) => flow.received.get(i).copied().unwrap_or(0),
                None => 0,
            };
            let bits = (at(last) - at(first)) as f64 * 8.0;
            let span = (last - first) as f64 * interval;
            if span > 0.0 { bits * 1e6 / span } else { 0.0 }
        };
        self.flows.iter().map(rate).collect()
    }

    /// Rate of one sampled flow in each interval, bits per second of payload.
    #[must_use]
    pub fn rate_over_time(&self, flow: &FlowSeries) -> Vec<f64> {
        let mut before = 0;
        let step = |&now: &u64| {
            let bits = (now - std::mem::replace(&mut before, now)) as f64 * 8.0;
            bits * 1e6 / self.interval_us
        };
        flow.received.iter().map(step).collect()
    }
}

/// What a lane had counted at the last sample.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    busy: Time,
    marked: u64,
    paused: Time,
}

/// Takes the samples.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) interval: Time,
    lanes: Vec<usize>,
    last: Vec<Last>,
    pub(crate) series: Series,
    flows: usize,
}

impl Recorder {
    pub(crate) fn new(net: &Net, interval: Time, links: usize, flows: usize) -> Self {
        let mut lanes: Vec<usize> = (0..net.lanes.len()).collect();
        // Egress ports of switches first: that is where queues are.
        lanes.sort_by_key(|&i| matches!(net.lanes[i].from, Node::Host(_)));
        lanes.truncate(links);
        Self {
            interval,
            last: vec![Last::default(); lanes.len()],
            series: Series {
                interval_us: interval.us(),
                links: vec![LinkSeries::default(); lanes.len()],
                flows: Vec::new(),
            },
            lanes,
            flows,
        }
    }

    /// Counters of lanes are 0 again.
    pub(crate) fn start_over(&mut self) {
        self.last.fill(Last::default());
    }

    /// Closes the accounts of all queues.
    pub(crate) fn finish(&mut self, net: &mut Net) {
        let now = net.now;
        for lane in &mut net.lanes {
            lane.settle(now);
        }
    }

    /// The lanes in the series, in its order.
    pub(crate) fn lanes(&self) -> &[usize] {
        &self.lanes
    }
}

#[allow(clippy::cast_precision_loss, reason = "shares of an interval")]
fn share(part: Time, of: Time) -> f64 {
    // Six digits: what a picture shows, and short in JSON.
    (part.ps() as f64 / of.ps().max(1) as f64 * 1e6).round() / 1e6
}

impl Simulation {
    pub(crate) fn take_sample(&mut self) {
        let now = self.net.now;
        let recorder = &mut self.recorder;
        let taken = recorder.series.links.first().map_or(0, |l| l.queue.len());
        if taken >= SAMPLES_MAX {
            return;
        }
        let each = recorder.lanes.iter().zip(&mut recorder.last);
        for ((&i, last), series) in each.zip(&mut recorder.series.links) {
            let lane = &mut self.net.lanes[i];
            let paused = lane.paused_time(now);
            let stats = &lane.stats;
            series
                .utilisation
                .push(share(stats.busy.since(last.busy), recorder.interval));
            series.marked.push(stats.marked.saturating_sub(last.marked));
            series
                .paused
                .push(share(paused.since(last.paused), recorder.interval));
            *last = Last {
                busy: stats.busy,
                marked: stats.marked,
                paused,
            };
            series.queue.push(lane.take_recent_max());
        }
        for flow in 0..self.traffic.flows.len().min(self.recorder.flows) {
            let (received, _) = self.flow_tally(flow);
            let series = &mut self.recorder.series.flows;
            if series.len() <= flow {
                series.push(FlowSeries {
                    flow,
                    received: vec![0; taken],
                });
            }
            // Counters may be off by a short packet; what has arrived does not vanish.
            let before = series[flow].received.last().copied().unwrap_or(0);
            series[flow].received.push(received.max(before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[]), 1.0);
        // (1 + 3)² / (2 · 10).
        assert!((jain(&[1.0, 3.0]) - 0.8).abs() < 1e-12);
    }

    #[test]
    fn quantiles_by_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            [0.0, 0.5, 0.99, 1.0].map(|q| quantile(&hundred, q)),
            [1.0, 50.0, 99.0, 100.0]
        );
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[7.0], 0.01), 7.0);
    }

    #[test]
    fn rates_between_samples() {
        let series = Series {
            interval_us: 10.0,
            links: Vec::new(),
            flows: vec![FlowSeries {
                flow: 0,
                received: vec![1000, 3000, 3000],
            }],
        };
        let rates = |from, to| series.rates(Time::from_us(from), Time::from_us(to))[0];
        // 3000 bytes in 20 µs, 2000 in 10, none after.
        assert_eq!(
            (rates(0, 20), rates(10, 20), rates(20, 30)),
            (1.2e9, 1.6e9, 0.0)
        );
        // What was not sampled does not count.
        assert_eq!((rates(10, 50), rates(40, 50)), (0.8e9, 0.0));
        assert_eq!(series.rate_over_time(&series.flows[0]), [0.8e9, 1.6e9, 0.0]);
    }
}
