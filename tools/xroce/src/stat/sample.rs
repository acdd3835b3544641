//! What a daemon has and has done at one time, and what that comes to between two.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use xroce_api::message::{DeviceReport, QpReport, Report, SessionReport};
use xroce_control::client::Client;
use xroce_engine::clock;
use xroce_proto::counters::Counters;
use xroce_proto::time::Instant;

/// Everything a daemon tells, without the session that asks.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub at: Instant,
    pub report: Report,
    pub sessions: Vec<SessionReport>,
    pub qps: Vec<QpReport>,
}

impl Sample {
    /// Asks for everything, all pages of it.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub(crate) fn take(client: &Client) -> Result<Self> {
        let own = client.welcome().session;
        let mut report = client.report()?;
        report.sessions = report.sessions.saturating_sub(1);
        let at = clock::now();
        let sessions = client.sessions();
        let sessions = sessions.filter(|s| !matches!(s, Ok(s) if s.session == own));
        let sessions = sessions.collect::<Result<_, _>>()?;
        let qps = client.qps().collect::<Result<_, _>>()?;
        Ok(Self {
            at,
            report,
            sessions,
            qps,
        })
    }

    fn device(&self, name: &str) -> Option<&DeviceReport> {
        self.report.devices.iter().find(|d| d.device == name)
    }
}

/// Two samples, or one: then everything is counted from the beginning.
#[derive(Debug)]
pub(crate) struct Span<'a> {
    pub now: &'a Sample,
    before: Option<&'a Sample>,
    /// Seconds between the two.
    pub seconds: Option<f64>,
    sessions: HashMap<u32, &'a SessionReport>,
    qps: HashMap<(u32, u32), &'a QpReport>,
}

/// What a device does, per second or in all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceRates {
    pub rx_packets: f64,
    pub tx_packets: f64,
    pub rx_bits: f64,
    pub tx_bits: f64,
    /// Completions given to processes.
    pub completions: f64,
    /// Shares, 0 to 1: of polls that found work, of time asleep, of a core.
    pub busy: f64,
    pub asleep: f64,
    pub core: f64,
}

impl DeviceRates {
    /// For people: packets and bits sent and received, completions, the three shares.
    pub(crate) fn cells(&self) -> [String; 8] {
        [
            si(self.tx_packets),
            si(self.rx_packets),
            si(self.tx_bits),
            si(self.rx_bits),
            si(self.completions),
            percent(self.busy),
            percent(self.asleep),
            percent(self.core),
        ]
    }
}

/// Whether a device can be used, for people.
pub(crate) fn state(device: &DeviceReport) -> &'static str {
    if device.up { "up" } else { "down" }
}

/// What a queue pair, or those of a session together, do: per second or in all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpRates {
    pub tx_packets: f64,
    pub rx_packets: f64,
    pub tx_bits: f64,
    pub rx_bits: f64,
    pub messages: f64,
    pub retransmits: f64,
    pub ce_marked: f64,
    /// Congestion notifications, in and out.
    pub cnps: f64,
    /// RNR NAKs, in and out.
    pub rnrs: f64,
}

/// What a session does beside that.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SessionRates {
    pub posted: f64,
    pub completed: f64,
    pub qps: QpRates,
    /// The longest of the round-trip times of its queue pairs at 50 and 99 %, ns.
    pub rtt: Option<[u64; 2]>,
}

#[allow(clippy::cast_precision_loss, reason = "shown to people")]
const fn float(n: u64) -> f64 {
    n as f64
}

fn key(qp: &QpReport) -> (u32, u32) {
    (qp.session, qp.qpn.value())
}

impl<'a> Span<'a> {
    pub(crate) fn new(now: &'a Sample, before: Option<&'a Sample>) -> Self {
        let seconds = before.map(|b| float(now.at.since(b.at).as_nanos()).max(1.0) / 1e9);
        let old = before.into_iter();
        Self {
            now,
            before,
            seconds,
            sessions: old
                .clone()
                .flat_map(|b| &b.sessions)
                .map(|s| (s.session, s))
                .collect(),
            qps: old.flat_map(|b| &b.qps).map(|q| (key(q), q)).collect(),
        }
    }

    /// "/s", or nothing.
    pub(crate) const fn per(&self) -> &'static str {
        if self.seconds.is_some() { "/s" } else { "" }
    }

    /// A count per second, or in all. One that fell is of another daemon than before.
    fn rate(&self, now: u64, before: u64) -> f64 {
        float(now.saturating_sub(before)) / self.seconds.unwrap_or(1.0)
    }

    pub(crate) fn device(&self, d: &DeviceReport) -> DeviceRates {
        let old = self.before.and_then(|b| b.device(&d.device));
        let delta = |get: fn(&DeviceReport) -> u64| get(d).saturating_sub(old.map_or(0, get));
        let rate = |get: fn(&DeviceReport) -> u64| self.rate(get(d), old.map_or(0, get));
        let share = |part: u64, all: u64| float(part) / float(all.max(1));
        let sessions = self.now.sessions.iter();
        let theirs = sessions.filter(|s| s.device.as_ref() == Some(&d.device));
        let alive = delta(|d| d.alive_ns);
        DeviceRates {
            rx_packets: rate(|d| d.stats.rx_frames),
            tx_packets: rate(|d| d.stats.tx_frames),
            rx_bits: rate(|d| d.stats.rx_bytes) * 8.0,
            tx_bits: rate(|d| d.stats.tx_bytes) * 8.0,
            completions: theirs.map(|s| self.completed(s)).sum(),
            busy: share(delta(|d| d.busy_polls), delta(|d| d.polls)),
            asleep: share(delta(|d| d.asleep_ns), alive),
            core: share(delta(|d| d.cpu_ns), alive),
        }
    }

    fn completed(&self, s: &SessionReport) -> f64 {
        let old = self.sessions.get(&s.session);
        self.rate(s.completed, old.map_or(0, |o| o.completed))
    }

    /// One counter of a queue pair.
    pub(crate) fn counter(&self, qp: &QpReport, get: impl Fn(&Counters) -> u64) -> f64 {
        let old = self.qps.get(&key(qp));
        self.rate(get(&qp.counters), old.map_or(0, |o| get(&o.counters)))
    }

    pub(crate) fn qp(&self, qp: &QpReport) -> QpRates {
        let rate = |get: fn(&Counters) -> u64| self.counter(qp, get);
        QpRates {
            tx_packets: rate(|c| c.tx_packets),
            rx_packets: rate(|c| c.rx_packets),
            tx_bits: rate(|c| c.tx_bytes) * 8.0,
            rx_bits: rate(|c| c.rx_bytes) * 8.0,
            messages: rate(|c| c.sends_completed + c.recvs_completed),
            retransmits: rate(|c| c.retransmits),
            ce_marked: rate(|c| c.ce_marked),
            cnps: rate(|c| c.cnps_in + c.cnps_out),
            rnrs: rate(|c| c.rnr_naks_in + c.rnr_naks_out),
        }
    }

    /// All sessions, in order.
    pub(crate) fn sessions(&self) -> Vec<(&'a SessionReport, SessionRates)> {
        let mut of: BTreeMap<u32, SessionRates> = BTreeMap::new();
        for qp in &self.now.qps {
            let to = of.entry(qp.session).or_default();
            to.qps.add(&self.qp(qp));
            if let Some([p50, _, p99, _]) = qp.rtt {
                let [old50, old99] = to.rtt.unwrap_or_default();
                to.rtt = Some([p50.max(old50), p99.max(old99)]);
            }
        }
        let each = self.now.sessions.iter().map(|s| {
            let old = self.sessions.get(&s.session);
            let mut rates = of.get(&s.session).copied().unwrap_or_default();
            rates.posted = self.rate(s.posted, old.map_or(0, |o| o.posted));
            rates.completed = self.completed(s);
            (s, rates)
        });
        each.collect()
    }
}

impl QpRates {
    fn add(&mut self, other: &Self) {
        let Self {
            tx_packets,
            rx_packets,
            tx_bits,
            rx_bits,
            messages,
            retransmits,
            ce_marked,
            cnps,
            rnrs,
        } = other;
        self.tx_packets += tx_packets;
        self.rx_packets += rx_packets;
        self.tx_bits += tx_bits;
        self.rx_bits += rx_bits;
        self.messages += messages;
        self.retransmits += retransmits;
        self.ce_marked += ce_marked;
        self.cnps += cnps;
        self.rnrs += rnrs;
    }
}

/// "9", "12.3k", "4.56M": three digits and what they are multiplied by.
pub(crate) fn si(value: f64) -> String {
    // A sum of nothing is -0.
    let mut value = value.abs();
    for unit in ["", "k", "M", "G", "T"] {
        if value < 999.5 || unit == "T" {
            return match value {
                v if unit.is_empty() && (v.fract() == 0.0 || v >= 100.0) => format!("{v:.0}"),
                v if v >= 99.95 => format!("{v:.0}{unit}"),
                v if v >= 9.995 => format!("{v:.1}{unit}"),
                v => format!("{v:.2}{unit}"),
            };
        }
        value /= 1000.0;
    }
    String::new()
}

/// Microseconds of a time in ns; "–" if there is none.
pub(crate) fn micros(ns: Option<u64>) -> String {
    ns.map_or_else(|| "–".to_owned(), |ns| format!("{:.1}", float(ns) / 1000.0))
}

/// "12 %".
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A daemon with a device, two sessions and three queue pairs; `n` multiplies all counts.
    pub(crate) fn sample(n: u64) -> Sample {
        let device = serde_json::json!({
            "device": "eth1", "port": "AF_XDP eth1 queue 0", "up": true, "gids": [],
            "engine": xroce_api::EngineStats::default(),
            "stats": {
                "rx_frames": 1000 * n, "rx_bytes": 4_000_000 * n, "tx_frames": 2000 * n,
                "tx_bytes": 8_000_000 * n, "rx_dropped": 0, "tx_dropped": 0, "tx_full": 0,
                "syscalls": n, "rx_fragmented": 0, "rx_other_queue": 0,
            },
            "polls": 100 * n, "busy_polls": 25 * n, "asleep_ns": 500_000_000 * n,
            "alive_ns": 1_000_000_000 * n, "cpu_ns": 400_000_000 * n,
        });
        let report = serde_json::json!({
            "release": "0.1.0", "devices": [device], "sessions": 2, "expelled": 3, "rss": 50_000_000,
        });
        let session = |number: u32, program: &str, device: Option<&str>| {
            serde_json::from_value(serde_json::json!({
                "session": number, "pid": 4000 + number, "uid": 1000, "program": program,
                "device": device, "objects": [2, 1, 0, 3, 0, 0], "bytes": 65536,
                "posted": 300 * n, "completed": 600 * n, "stalled": 1,
            }))
        };
        Sample {
            at: Instant::from_nanos(1_000_000_000 * n),
            report: serde_json::from_value(report).unwrap(),
            sessions: vec![
                session(1, "kv", Some("eth1")).unwrap(),
                session(7, "copy", Some("eth1")).unwrap(),
            ],
            qps: vec![qp(1, 17, n), qp(1, 18, 2 * n), qp(7, 19, 0)],
        }
    }

    fn qp(session: u32, qpn: u32, n: u64) -> QpReport {
        let counters = Counters {
            tx_packets: 1000 * n,
            rx_packets: 500 * n,
            tx_bytes: 4_000_000 * n,
            rx_bytes: 20_000 * n,
            sends_completed: 100 * n,
            recvs_completed: 10 * n,
            retransmits: 3 * n,
            ce_marked: 5 * n,
            cnps_in: n,
            cnps_out: 4 * n,
            rnr_naks_out: 2 * n,
            ..Counters::default()
        };
        let text = serde_json::json!({
            "session": session, "qpn": qpn, "qp_type": xroce_proto::qp::QpType::Rc,
            "state": xroce_proto::qp::QpState::Rts, "dest_qpn": 99, "peer": null,
            "counters": counters,
            "gauges": {
                "window": 64, "rate": 0, "in_flight": 7, "sends_posted": 8, "reads": 0,
                "srtt": null, "rttvar": 0, "ahead": 0,
            },
            "rtt": [u64::from(qpn) * 1000, 20_000, 30_000, 40_000],
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn rates_are_differences_by_time_and_totals_without_one() {
        let (before, now) = (sample(1), sample(3));
        let span = Span::new(&now, Some(&before));
        assert_eq!((span.seconds, span.per()), (Some(2.0), "/s"));
        let device = span.device(&now.report.devices[0]);
        assert_eq!((device.rx_packets, device.tx_bits), (1000.0, 64_000_000.0));
        assert_eq!((device.busy, device.asleep, device.core), (0.25, 0.5, 0.4));
        assert_eq!(device.completions, 1200.0);
        let sessions = span.sessions();
        let (kv, copy) = (&sessions[0], &sessions[1]);
        assert_eq!(
            (kv.0.session, kv.1.posted, kv.1.qps.tx_packets),
            (1, 300.0, 3000.0)
        );
        assert_eq!(kv.1.rtt, Some([18_000, 30_000]));
        assert_eq!((copy.1.completed, copy.1.qps.messages), (600.0, 0.0));

        let all = Span::new(&now, None);
        assert_eq!((all.seconds, all.per()), (None, ""));
        assert_eq!(all.qp(&now.qps[0]).cnps, 15.0);
        // Another daemon under the same numbers: it has counted less.
        let odd = Span::new(&before, Some(&now));
        assert_eq!(odd.qp(&before.qps[0]).tx_packets, 0.0);
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (7.0, "7"),
            (0.5, "0.50"),
            (999.0, "999"),
            (1234.0, "1.23k"),
            (98_760.0, "98.8k"),
            (999_999.0, "1.00M"),
            (1.5e9, "1.50G"),
            (2.5e16, "25000T"),
        ] {
            assert_eq!(si(value), text, "{value}");
        }
    }
}
