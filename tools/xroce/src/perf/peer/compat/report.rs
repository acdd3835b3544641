//! Results, in the columns that perftest prints, or as JSON.

use serde::Serialize;

use super::job::Job;
use super::latency::RoundTrips;
use super::line::{Line, Role};
use super::message::PeerReport;
use crate::perf::device::Device;
use crate::perf::measure::flow::{Flow, NaksReceived};
use crate::perf::peer::message::SideCounters;
use crate::perf::plan::{Op, Test};
use crate::perf::report::show;

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// All results of one conversation.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// Version of this format.
    pub schema: u32,
    /// Version of the program.
    pub version: &'static str,
    /// What the peer is.
    pub compat: String,
    /// Which side this is.
    pub role: Role,
    /// Operation.
    pub op: Op,
    /// Bandwidth or latency.
    pub test: Test,
    /// Whether both sides send.
    pub bidirectional: bool,
    /// RoCE address of this side.
    pub local: String,
    /// Name of this side's port.
    pub port: String,
    /// Address of the peer on the side channel.
    pub peer: String,
    /// Version of the peer.
    pub peer_version: Option<String>,
    /// Queue pairs.
    pub qps: u32,
    /// Payload bytes per packet.
    pub path_mtu: usize,
    /// One for each size.
    #[serde(rename = "results")]
    pub rows: Vec<Row>,
    /// What this side counted.
    pub counters: Counters,
}

/// What this side counted.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Counters {
    #[serde(flatten)]
    own: SideCounters,
    #[serde(flatten)]
    naks: NaksReceived,
}

/// Results of one size.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Row {
    /// Message size in bytes.
    pub size: u64,
    /// Messages on each queue pair; what the peer says, of all, if it alone has measured.
    pub iterations: u64,
    /// What this side measured.
    pub bandwidth: Option<PeerReport>,
    /// What this side measured.
    pub latency: Option<Latency>,
    /// What the peer says it measured.
    pub peer: Option<PeerReport>,
}

/// Results of a latency test in µs: half a round trip, of READ a whole one, as perftest counts.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Latency {
    /// Fastest.
    pub min_us: f64,
    /// Slowest.
    pub max_us: f64,
    /// Median.
    pub typical_us: f64,
    /// Mean.
    pub average_us: f64,
    /// Standard deviation.
    pub deviation_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Seconds from the first message to the last.
    pub seconds: f64,
}

impl Latency {
    /// The usual figures.
    #[allow(clippy::cast_precision_loss, reason = "shown with two digits")]
    pub(super) fn of(found: &RoundTrips, op: Op) -> Self {
        let h = &found.histogram;
        let part = if op == Op::Read { 1e3 } else { 2e3 };
        let us = |ns: u64| ns as f64 / part;
        Self {
            min_us: us(h.min()),
            max_us: us(h.max()),
            typical_us: us(h.value_at_quantile(0.5)),
            average_us: h.mean() / part,
            deviation_us: h.stdev() / part,
            p99_us: us(h.value_at_quantile(0.99)),
            p999_us: us(h.value_at_quantile(0.999)),
            seconds: found.elapsed_ns as f64 / 1e9,
        }
    }
}

impl Row {
    /// Nothing yet.
    pub(super) fn new(size: u32, iterations: u64) -> Self {
        Self {
            size: size.into(),
            iterations,
            bandwidth: None,
            latency: None,
            peer: None,
        }
    }

    /// What the peer alone has measured.
    pub(super) fn of_peer(report: PeerReport) -> Self {
        Self {
            size: report.size,
            iterations: report.iterations,
            bandwidth: None,
            latency: None,
            peer: Some(report),
        }
    }

    /// Whether this side measured anything.
    pub(super) fn is_of_use(&self) -> bool {
        self.bandwidth.is_some() || self.latency.is_some()
    }
}

impl Report {
    /// Without results.
    pub(super) fn new<D: Device>(job: &Job, role: Role, line: &Line, device: &D) -> Self {
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            compat: job.program.to_string(),
            role,
            op: job.op,
            test: job.test,
            bidirectional: job.bidirectional,
            local: device.local().to_string(),
            port: device.port_name().to_owned(),
            peer: line.peer().to_string(),
            peer_version: None,
            qps: job.qps,
            path_mtu: 0,
            rows: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Takes the counters.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn count<D: Device>(&mut self, flow: &mut Flow<'_, D>) -> anyhow::Result<()> {
        self.counters = Counters {
            own: flow.counters()?,
            naks: flow.naks_received(),
        };
        Ok(())
    }

    /// The table for people.
    pub(super) fn table(&self) -> String {
        let mut lines = vec![format!(
            "{} {} with {}, {} queue pairs, path MTU {}",
            self.op, self.test, self.peer, self.qps, self.path_mtu
        )];
        let head = match self.test {
            Test::Bw | Test::Open => show::BANDWIDTH_HEAD,
            Test::Lat => show::LATENCY_HEAD,
        };
        lines.push(head.to_owned());
        lines.extend(self.rows.iter().map(Row::line));
        let Counters { own, naks } = self.counters;
        lines.push(format!(
            " retransmissions {}, timeouts {}, RNR NAKs sent {} received {}, sequence NAKs sent {} received {}, ICRC errors {}",
            own.retransmissions,
            own.timeouts,
            own.rnr_naks,
            naks.rnr_naks_received,
            own.sequence_naks,
            naks.sequence_naks_received,
            own.icrc_errors
        ));
        lines.join("\n")
    }
}

impl Row {
    fn line(&self) -> String {
        if let Some(l) = self.latency {
            let times = [
                l.min_us,
                l.max_us,
                l.typical_us,
                l.average_us,
                l.deviation_us,
                l.p99_us,
                l.p999_us,
            ];
            return show::latency_line(self.size, self.iterations, times);
        }
        // Both directions together, as perftest shows them.
        let own = self.bandwidth.unwrap_or_default();
        let peer = self.peer.unwrap_or_default();
        let iterations = own.iterations.max(peer.iterations);
        let values = [
            own.peak_mib_per_s + peer.peak_mib_per_s,
            own.average_mib_per_s + peer.average_mib_per_s,
            own.mega_messages_per_s + peer.mega_messages_per_s,
        ];
        show::bandwidth_line(self.size, iterations, values)
    }
}
