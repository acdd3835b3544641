//! A snapshot in the format of OpenMetrics, from the tables of counters.

use std::fmt::{Error, Write};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use xroce_api::message::{DeviceReport, SessionReport};
use xroce_api::{EngineStats, PORT_TABLE};
use xroce_daemon::{DeviceTotals, Totals};
use xroce_proto::counters::Counters;
use xroce_proto::qp::QpState;
use xroce_proto::rtt::Histogram;

use super::Snapshot;

/// Sessions shown one by one; with more, the rest are in the sums of their devices only. Each is
/// some hundred lines of every scrape.
const SESSIONS_SHOWN: usize = 256;
/// Kinds of objects, in the order of [`SessionReport::objects`].
const KINDS: [&str; 6] = ["qp", "cq", "srq", "mr", "mw", "ah"];
/// Quantiles of round-trip times that a session is shown with.
const QUANTILES: [(&str, u32); 3] = [("0.5", 500), ("0.9", 900), ("0.99", 990)];

type Labels = Vec<(&'static str, String)>;

/// The page.
pub(super) fn of(snapshot: Snapshot) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    let mut page = String::new();
    if prometheus_client::encoding::text::encode(&mut page, &registry).is_err() {
        // A string takes everything; for the type only.
        let _ = page.write_str("# EOF\n");
    }
    page
}

fn counters<'a, N: prometheus_client::encoding::EncodeCounterValue>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (&'a Labels, N)>,
) -> Result<(), Error> {
    let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in values {
        let mut one = metric.encode_family(labels)?;
        one.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

fn gauges<N: prometheus_client::encoding::EncodeGaugeValue>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels, N)>,
) -> Result<(), Error> {
    let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        metric.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

fn with(labels: &Labels, name: &'static str, value: &str) -> Labels {
    let mut all = labels.clone();
    all.push((name, value.to_owned()));
    all
}

#[allow(clippy::cast_precision_loss, reason = "metrics are floating point")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A count as a gauge has it.
fn signed(n: impl TryInto<i64>) -> i64 {
    n.try_into().unwrap_or(i64::MAX)
}

fn lower(state: QpState) -> String {
    format!("{state:?}").to_lowercase()
}

/// A device with everything about it.
struct Device<'a> {
    labels: Labels,
    report: &'a DeviceReport,
    totals: Option<&'a DeviceTotals>,
    stalled: u64,
}

/// A session likewise.
struct Session<'a> {
    labels: Labels,
    report: &'a SessionReport,
    totals: Option<&'a Totals>,
}

impl Snapshot {
    fn devices<'a>(&'a self) -> Vec<Device<'a>> {
        let of = |report: &'a DeviceReport| {
            let device = &report.device;
            let theirs = |s: &&SessionReport| s.device.as_ref() == Some(device);
            let stalled = self.sessions.iter().filter(theirs);
            Device {
                labels: vec![("device", device.clone())],
                report,
                totals: self.totals.iter().find(|t| t.device == *device),
                stalled: stalled.map(|s| u64::from(s.stalled)).sum(),
            }
        };
        self.report.devices.iter().map(of).collect()
    }

    fn shown(&self) -> Vec<Session<'_>> {
        let totals = |session| self.totals.iter().find_map(|d| d.sessions.get(session));
        let of = |report: &'_ SessionReport| -> Labels {
            vec![
                ("session", report.session.to_string()),
                ("device", report.device.clone().unwrap_or_default()),
                ("pid", report.pid.to_string()),
                ("uid", report.uid.to_string()),
                ("program", report.program.clone()),
            ]
        };
        let first = self.sessions.iter().take(SESSIONS_SHOWN);
        first
            .map(|report| Session {
                labels: of(report),
                report,
                totals: totals(&report.session),
            })
            .collect()
    }

    fn daemon(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let none = Labels::new();
        let report = &self.report;
        let release = vec![("release", report.release.clone())];
        let help = "Always 1; which release it is";
        gauges(to, "xroce_build", help, [(release, 1i64)])?;
        let mut gauge = |name, help, n| gauges(to, name, help, [(none.clone(), n)]);
        let help = "Processes attached";
        gauge("xroce_sessions", help, i64::from(report.sessions))?;
        let unlisted = self.sessions.len().saturating_sub(SESSIONS_SHOWN);
        let help = "Sessions that are too many to be shown one by one";
        gauge("xroce_sessions_unlisted", help, signed(unlisted))?;
        let help = "Resident memory of the daemon";
        gauge("xroce_resident_memory_bytes", help, signed(report.rss))?;
        let help = "Sessions closed for cause, by a broken device or at the end";
        counters(
            to,
            "xroce_sessions_expelled",
            help,
            [(&none, report.expelled)],
        )
    }

    fn utilisation(to: &mut DescriptorEncoder<'_>, devices: &[Device<'_>]) -> Result<(), Error> {
        let up = |d: &Device<'_>| (d.labels.clone(), i64::from(d.report.up));
        let info = |d: &Device<'_>| (with(&d.labels, "port", &d.report.port), 1i64);
        let help = "Always 1; what is below the device";
        gauges(to, "xroce_device", help, devices.iter().map(info))?;
        let help = "Whether the device can be used";
        gauges(to, "xroce_device_up", help, devices.iter().map(up))?;
        let stalled = |d: &Device<'_>| (d.labels.clone(), signed(d.stalled));
        let help = "Completion queues whose process does not poll, so that completions wait";
        gauges(
            to,
            "xroce_device_stalled_cqs",
            help,
            devices.iter().map(stalled),
        )?;
        let mut count = |name, help, get: fn(&DeviceReport) -> u64| {
            counters(
                to,
                name,
                help,
                devices.iter().map(|d| (&d.labels, get(d.report))),
            )
        };
        count("xroce_engine_polls", "Turns of the engine", |r| r.polls)?;
        let help = "Turns of the engine that found work";
        count("xroce_engine_busy_polls", help, |r| r.busy_polls)?;
        let mut time = |name, help, get: fn(&DeviceReport) -> u64| {
            let values = devices.iter().map(|d| (&d.labels, seconds(get(d.report))));
            counters(to, name, help, values)
        };
        let help = "Time the engine slept for lack of work";
        time("xroce_engine_asleep_seconds", help, |r| r.asleep_ns)?;
        let help = "Time since the engine began";
        time("xroce_engine_alive_seconds", help, |r| r.alive_ns)?;
        time("xroce_engine_cpu_seconds", "CPU time of its thread", |r| {
            r.cpu_ns
        })
    }

    fn tables(to: &mut DescriptorEncoder<'_>, devices: &[Device<'_>]) -> Result<(), Error> {
        for info in EngineStats::TABLE {
            let values = devices
                .iter()
                .map(|d| (&d.labels, (info.get)(&d.report.engine)));
            let name = format!("xroce_engine_{}", info.name);
            counters(to, &name, plain(info.meaning), values)?;
        }
        for info in PORT_TABLE {
            let values = devices
                .iter()
                .map(|d| (&d.labels, (info.get)(&d.report.stats)));
            let name = format!("xroce_port_{}", info.name);
            counters(to, &name, plain(info.meaning), values)?;
        }
        for info in Counters::TABLE {
            let totals = devices
                .iter()
                .filter_map(|d| Some((&d.labels, &d.totals?.all)));
            let values = totals.map(|(labels, t)| (labels, (info.get)(&t.counters)));
            let name = format!("xroce_qp_{}", info.name);
            counters(to, &name, plain(info.meaning), values)?;
        }
        Ok(())
    }

    fn queue_pairs(to: &mut DescriptorEncoder<'_>, devices: &[Device<'_>]) -> Result<(), Error> {
        let of = |d: &Device<'_>| {
            let labels = d.labels.clone();
            d.totals
                .map(|t| states(&labels, &t.all))
                .unwrap_or_default()
        };
        let help = "Queue pairs there are, by state";
        gauges(to, "xroce_qps", help, devices.iter().flat_map(of))?;
        let help = "Round-trip times of packets";
        let kind = MetricType::Histogram;
        let mut metric = to.encode_descriptor("xroce_rtt_seconds", help, None, kind)?;
        for device in devices {
            let Some(totals) = device.totals else {
                continue;
            };
            let (sum, count, buckets) = histogram(&totals.all.rtt);
            let mut one = metric.encode_family(&device.labels)?;
            one.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    fn sessions(to: &mut DescriptorEncoder<'_>, shown: &[Session<'_>]) -> Result<(), Error> {
        let mut gauge = |name, help, get: fn(&SessionReport) -> i64| {
            let values = shown.iter().map(|s| (s.labels.clone(), get(s.report)));
            gauges(to, name, help, values)
        };
        let help = "Completion queues that the process does not poll, so that completions wait";
        gauge("xroce_session_stalled_cqs", help, |s| i64::from(s.stalled))?;
        let help = "Memory registered by the process";
        gauge("xroce_session_registered_bytes", help, |s| signed(s.bytes))?;
        let objects = |s: &Session<'_>| {
            let of = |(kind, n): (&str, u32)| (with(&s.labels, "kind", kind), i64::from(n));
            KINDS
                .into_iter()
                .zip(s.report.objects)
                .map(of)
                .collect::<Vec<_>>()
        };
        let help = "Objects of the process";
        gauges(
            to,
            "xroce_session_objects",
            help,
            shown.iter().flat_map(objects),
        )?;
        let of = |s: &Session<'_>| s.totals.map(|t| states(&s.labels, t)).unwrap_or_default();
        let help = "Queue pairs of the process, by state";
        gauges(to, "xroce_session_qps", help, shown.iter().flat_map(of))?;
        let rtt = |s: &Session<'_>| {
            s.totals
                .map(|t| rtts(&s.labels, &t.rtt))
                .unwrap_or_default()
        };
        let help = "Round-trip times of the process' packets since it attached";
        gauges(
            to,
            "xroce_session_rtt_seconds",
            help,
            shown.iter().flat_map(rtt),
        )?;
        let posted = shown.iter().map(|s| (&s.labels, s.report.posted));
        counters(to, "xroce_session_posted", "Work requests posted", posted)?;
        let completed = shown.iter().map(|s| (&s.labels, s.report.completed));
        counters(
            to,
            "xroce_session_completed",
            "Completions given to the process",
            completed,
        )?;
        for info in Counters::TABLE {
            let totals = shown.iter().filter_map(|s| Some((&s.labels, s.totals?)));
            let values = totals.map(|(labels, t)| (labels, (info.get)(&t.counters)));
            let name = format!("xroce_session_{}", info.name);
            counters(to, &name, plain(info.meaning), values)?;
        }
        Ok(())
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.daemon(&mut to)?;
        let devices = self.devices();
        Self::utilisation(&mut to, &devices)?;
        Self::tables(&mut to, &devices)?;
        Self::queue_pairs(&mut to, &devices)?;
        Self::sessions(&mut to, &self.shown())
    }
}

/// A documentation comment as one line.
fn plain(meaning: &str) -> &str {
    meaning.trim().trim_end_matches('.')
}

fn states(labels: &Labels, totals: &Totals) -> Vec<(Labels, i64)> {
    let each = QpState::ALL.into_iter().zip(totals.states);
    each.map(|(state, n)| (with(labels, "state", &lower(state)), i64::from(n)))
        .collect()
}

fn rtts(labels: &Labels, rtt: &Histogram) -> Vec<(Labels, f64)> {
    let of = |(name, per_mille): (&str, u32)| {
        let time = rtt.quantile(per_mille)?.as_nanos();
        Some((with(labels, "quantile", name), seconds(time)))
    };
    QUANTILES.into_iter().filter_map(of).collect()
}

/// Sum, count and buckets of powers of two: the finer ones would be hundreds of lines.
fn histogram(rtt: &Histogram) -> (f64, u64, Vec<(f64, u64)>) {
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    let mut below = 0;
    for (end, n) in rtt.buckets() {
        below += u64::from(n);
        if end.as_nanos().is_power_of_two() && end.as_nanos() >= 1 << 9 {
            buckets.push((seconds(end.as_nanos()), below));
            below = 0;
        }
    }
    // The rest.
    let counted: u64 = buckets.iter().map(|(_, n)| n).sum();
    buckets.push((f64::INFINITY, rtt.count().saturating_sub(counted)));
    let mean = rtt.mean().map_or(0, |m| m.as_nanos());
    #[allow(clippy::cast_precision_loss, reason = "metrics are floating point")]
    let sum = seconds(mean) * rtt.count() as f64;
    (sum, rtt.count(), buckets)
}
