//! Results: one row for each operation and size, and for each number of queue pairs, depth and rate
//! if there are several; all ports of the client together.
//!
//! The JSON is one object with stable names; [`SCHEMA`] counts incompatible changes. [`show`] has
//! the other forms.
//!
//! [`show`]: crate::perf::report::show

pub(crate) mod failed;
pub(crate) mod show;
pub(crate) mod stats;

use serde::{Deserialize, Serialize};
use xroce_api::FailureFacts;

use crate::perf::client_port::{PortReport, StepReport};
use crate::perf::measure::pace::{Arrivals, Found, Paced};
use crate::perf::measure::quantiles::Quantiles;
use crate::perf::measure::side::Sent;
use crate::perf::measure::usage::Usage;
use crate::perf::peer::message::{SentData, SideCounters};
use crate::perf::plan::{Op, Plan, Step, Test, size_name};
use crate::perf::report::failed::QpFailed;
use crate::perf::report::stats::Stats;

/// Version of the JSON.
pub(crate) const SCHEMA: u32 = 1;

/// All results of one client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Version of this format.
    pub schema: u32,
    /// Version of the program.
    pub version: String,
    /// Port of the client, the first if there are several.
    pub client_port: String,
    /// Port of the server.
    pub server_port: String,
    /// RoCE address of the client.
    pub client: String,
    /// RoCE address of the server.
    pub server: String,
    /// Payload bytes per packet.
    pub path_mtu: u32,
    /// Whether every message was compared with what was sent.
    pub verify: bool,
    /// Whether both sides sent.
    #[serde(default)]
    pub bidirectional: bool,
    /// Milliseconds before each measurement that do not count.
    #[serde(default)]
    pub warmup_ms: u64,
    /// How messages of open loops followed each other, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<ArrivalsOf>,
    /// Pairs of ports, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Ports>,
    /// One for each operation, size, and so on.
    pub results: Vec<Row>,
    /// Every counter of the client, of its first port, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
}

/// How messages of an open loop followed each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ArrivalsOf {
    /// In which way.
    pub kind: Arrivals,
    /// Where chance started: the client's first port had this seed, its server the next.
    pub seed: u64,
}

/// A port of the client with its port of the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ports {
    /// Port of the client.
    pub client_port: String,
    /// Port of the server.
    pub server_port: String,
    /// RoCE address of the client.
    pub client: String,
    /// RoCE address of the server.
    pub server: String,
    /// Payload bytes per packet.
    pub path_mtu: u32,
    /// Every counter of the client's port, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
}

/// Results of one operation at one size, one number of queue pairs, one depth and one rate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Operation.
    pub op: Op,
    /// Message size in bytes.
    pub size: u32,
    /// Queue pairs of each port.
    #[serde(default)]
    pub qps: u32,
    /// Messages outstanding on each.
    #[serde(default)]
    pub depth: u32,
    /// Bandwidth test, or what an open loop sent.
    pub bandwidth: Option<Bandwidth>,
    /// Latency test, if there was one.
    pub latency: Option<Quantiles>,
    /// Open loop, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<Open>,
    /// What the server sent meanwhile (`--bidirectional`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse: Option<Reverse>,
    /// Both directions together (`--bidirectional`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<Rates>,
    /// What a message of the bandwidth test or the open loop cost.
    #[serde(default)]
    pub cpu: Option<Cpu>,
    /// What a round trip of the latency test cost.
    #[serde(default)]
    pub latency_cpu: Option<Cpu>,
    /// Messages compared with what was sent, at either side.
    pub verified: u64,
    /// Messages that differed.
    pub mismatches: u64,
    /// The first difference, in words.
    pub first_mismatch: Option<String>,
    /// Both sides together.
    pub total: SideCounters,
    /// The client's part.
    pub client: SideCounters,
    /// The server's part.
    pub server: SideCounters,
    /// The same rates port by port, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRates>,
}

/// Results of a bandwidth test.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Bandwidth {
    /// Queue pairs.
    pub qps: u32,
    /// Messages outstanding on each; less than was asked for if messages are large.
    pub depth: u32,
    /// Messages completed.
    pub messages: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Messages a second.
    pub messages_per_s: f64,
    /// Messages a second of the best stretch.
    #[serde(default)]
    pub peak_messages_per_s: f64,
    /// Payload in 10^9 bits a second.
    pub gbit_per_s: f64,
}

/// What the server sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Reverse {
    /// As a bandwidth test.
    #[serde(flatten)]
    pub bandwidth: Bandwidth,
    /// As an open loop; of one port, since distributions cannot be added without their histograms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<Paced>,
}

/// Rates of both directions.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Rates {
    /// Messages a second.
    pub messages_per_s: f64,
    /// Payload in 10^9 bits a second.
    pub gbit_per_s: f64,
}

/// Results of an open loop.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Open {
    /// Messages a second that were due.
    pub offered_per_s: u64,
    /// What became of them. SEND and WRITE end with the acknowledgement, READ with its data.
    #[serde(flatten)]
    pub found: Paced,
}

/// What a message cost each side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cpu {
    /// The client's threads.
    pub client: Cost,
    /// The server's.
    pub server: Cost,
}

/// What a message cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// CPU time in ns.
    pub ns_per_message: f64,
    /// The part of it in the kernel.
    pub system_ns_per_message: f64,
    /// Instructions, where the machine counts them.
    pub instructions_per_message: Option<f64>,
    /// Cycles.
    pub cycles_per_message: Option<f64>,
    /// Misses of the last level of cache.
    pub cache_misses_per_message: Option<f64>,
    /// Whether those in the kernel are counted too.
    pub with_kernel: Option<bool>,
    /// Why they are not counted.
    pub refusal: Option<String>,
}

/// Rates of one port.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PortRates {
    /// What the client sent.
    pub bandwidth: Option<Bandwidth>,
    /// What the server sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse: Option<Bandwidth>,
    /// Latency test.
    pub latency: Option<Quantiles>,
}

/// A run that came to nothing.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Failed {
    /// Version of this format.
    pub schema: u32,
    /// Version of the program.
    pub version: &'static str,
    /// What went wrong, in words.
    pub error: String,
    /// What is known of the queue pair that failed, if one did.
    pub failure: Option<FailureFacts>,
}

impl Failed {
    /// What there is to say about an error.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let mut causes = error.chain();
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            error: format!("{error:#}"),
            failure: causes.find_map(|c| c.downcast_ref::<QpFailed>().map(QpFailed::facts)),
        }
    }
}

impl Report {
    /// The results of all ports; each has done the same steps.
    pub(crate) fn of(plan: &Plan, ports: &[PortReport]) -> Self {
        let text = |f: fn(&PortReport) -> &String| ports.first().map(f).cloned();
        let pair = |port: &PortReport| Ports {
            client_port: port.client_port.clone(),
            server_port: port.server_port.clone(),
            client: port.client.clone(),
            server: port.server.clone(),
            path_mtu: port.path_mtu,
            stats: port.stats.clone(),
        };
        let several = ports.len() > 1;
        let mut report = Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            client_port: text(|l| &l.client_port).unwrap_or_default(),
            server_port: text(|l| &l.server_port).unwrap_or_default(),
            client: text(|l| &l.client).unwrap_or_default(),
            server: text(|l| &l.server).unwrap_or_default(),
            path_mtu: ports.iter().map(|l| l.path_mtu).min().unwrap_or(0),
            verify: plan.verify,
            bidirectional: plan.bidirectional,
            warmup_ms: plan.warmup_millis,
            arrivals: (!plan.rates.is_empty()).then_some(ArrivalsOf {
                kind: plan.arrivals,
                seed: plan.seed,
            }),
            ports: ports.iter().filter(|_| several).map(pair).collect(),
            results: Vec::new(),
            stats: ports.first().and_then(|l| l.stats.clone()),
        };
        let steps = ports.iter().map(|l| l.steps.len()).min().unwrap_or(0);
        for n in 0..steps {
            let all: Vec<&StepReport> = ports.iter().filter_map(|l| l.steps.get(n)).collect();
            report.add(&all, plan.is_swept());
        }
        report
    }

    /// Adds a step, as all ports have found it: to the row of its operation and size, unless there
    /// are several of them.
    fn add(&mut self, all: &[&StepReport], is_swept: bool) {
        let Some(first) = all.first() else { return };
        let step = first.step;
        let is_same = |r: &Row| !is_swept && r.op == step.op && r.size == step.size;
        if !self.results.last().is_some_and(is_same) {
            self.results.push(Row::new(step));
        }
        if let Some(row) = self.results.last_mut() {
            row.add(all, step);
        }
    }

    /// Messages that were not what was sent, over all rows.
    pub(crate) fn mismatches(&self) -> u64 {
        self.results
            .iter()
            .fold(0, |sum, r| sum.saturating_add(r.mismatches))
    }
}

impl Row {
    fn new(step: Step) -> Self {
        Self {
            op: step.op,
            size: step.size,
            qps: step.qps,
            depth: step.depth,
            bandwidth: None,
            latency: None,
            open: None,
            reverse: None,
            sum: None,
            cpu: None,
            latency_cpu: None,
            verified: 0,
            mismatches: 0,
            first_mismatch: None,
            total: SideCounters::default(),
            client: SideCounters::default(),
            server: SideCounters::default(),
            ports: Vec::new(),
        }
    }

    fn add(&mut self, all: &[&StepReport], step: Step) {
        if step.test == Test::Lat {
            self.latency = trips(all).map(|h| Quantiles::of(&h));
            self.latency_cpu = Some(Cpu::of(all));
        } else {
            self.add_rates(all, step);
        }
        self.ports.resize(
            if all.len() > 1 { all.len() } else { 0 },
            PortRates {
                bandwidth: None,
                reverse: None,
                latency: None,
            },
        );
        for (port, one) in self.ports.iter_mut().zip(all) {
            match &one.outcome.round_trips {
                Some(h) => port.latency = Some(Quantiles::of(h)),
                None => {
                    port.bandwidth = Some(Bandwidth::of(one, &one.outcome.sent));
                    port.reverse = one
                        .outcome
                        .reverse
                        .as_ref()
                        .map(|r| Bandwidth::of_data(one, r));
                }
            }
        }
        for one in all {
            let checked = &one.outcome.checked;
            self.verified = self.verified.saturating_add(checked.verified);
            self.mismatches = self.mismatches.saturating_add(checked.mismatches);
            if self.first_mismatch.is_none() {
                self.first_mismatch.clone_from(&checked.first);
            }
            let [client, server] = one.outcome.counters;
            self.client = self.client.plus(client);
            self.server = self.server.plus(server);
        }
        self.total = self.client.plus(self.server);
    }

    fn add_rates(&mut self, all: &[&StepReport], step: Step) {
        (self.qps, self.depth) = (step.qps, step.depth);
        let forward = all.iter().map(|one| Bandwidth::of(one, &one.outcome.sent));
        self.bandwidth = forward.reduce(Bandwidth::plus);
        let reverse = |one: &&StepReport| {
            let data = one.outcome.reverse.as_ref()?;
            Some(Bandwidth::of_data(one, data))
        };
        let backward = all.iter().filter_map(reverse).reduce(Bandwidth::plus);
        self.reverse = backward.map(|bandwidth| Reverse {
            bandwidth,
            open: match all {
                [one] => one.outcome.reverse.as_ref().and_then(|r| r.paced),
                _ => None,
            },
        });
        self.sum = self.bandwidth.zip(backward).map(|(a, b)| Rates {
            messages_per_s: a.messages_per_s + b.messages_per_s,
            gbit_per_s: a.gbit_per_s + b.gbit_per_s,
        });
        let found = paced(all).map(|f| f.numbers());
        self.open = found.map(|found| Open {
            offered_per_s: all.iter().filter_map(|one| one.step.rate).sum(),
            found,
        });
        self.cpu = Some(Cpu::of(all));
    }

    /// What one test found, in one line for people, while more is to come.
    pub(crate) fn line(&self, test: Test) -> String {
        let found = match (test, &self.bandwidth, &self.latency, &self.open) {
            (Test::Bw, Some(b), ..) => {
                format!(
                    "{} messages/s, {:.3} Gb/s",
                    rate(b.messages_per_s),
                    b.gbit_per_s
                )
            }
            (Test::Lat, _, Some(l), _) => {
                format!(
                    "round trip p50 {} µs, p99 {} µs",
                    micros(l.p50_ns),
                    micros(l.p99_ns)
                )
            }
            (Test::Open, Some(b), _, Some(o)) => format!(
                "{} messages/s, p50 {} µs, p99 {} µs",
                rate(b.messages_per_s),
                micros(o.found.latency.p50_ns),
                micros(o.found.latency.p99_ns)
            ),
            _ => "nothing".to_owned(),
        };
        format!(
            "{:5} {:>6}  {found}",
            self.op.to_string(),
            size_name(self.size)
        )
    }
}

/// The round trips of all ports together.
pub(crate) fn trips(all: &[&StepReport]) -> Option<hdrhistogram::Histogram<u64>> {
    let each = all.iter().filter_map(|one| one.outcome.round_trips.clone());
    each.reduce(|mut sum, h| {
        // The same bounds: nothing can be out of range.
        let _ = sum.add(&h);
        sum
    })
}

/// What the open loops of all ports found together.
pub(crate) fn paced(all: &[&StepReport]) -> Option<Found> {
    let each = all.iter().filter_map(|one| one.outcome.sent.paced.clone());
    each.reduce(|mut sum, found| {
        sum.add(&found);
        sum
    })
}

#[allow(
    clippy::cast_precision_loss,
    reason = "rates are shown with four digits"
)]
impl Bandwidth {
    fn of(one: &StepReport, sent: &Sent) -> Self {
        let seconds = (sent.elapsed_ns as f64 / 1e9).max(1e-9);
        let messages_per_s = sent.messages as f64 / seconds;
        Self {
            qps: one.shape.qps,
            depth: one.shape.depth,
            messages: sent.messages,
            seconds,
            messages_per_s,
            peak_messages_per_s: sent.peak_per_s.max(messages_per_s),
            gbit_per_s: messages_per_s * f64::from(one.step.size) * 8.0 / 1e9,
        }
    }

    fn of_data(one: &StepReport, data: &SentData) -> Self {
        let sent = Sent {
            messages: data.messages,
            elapsed_ns: data.elapsed_ns,
            peak_per_s: data.peak_per_s as f64,
            paced: None,
        };
        Self::of(one, &sent)
    }

    /// With that of another port: all messages in the time of the slower one.
    fn plus(self, other: Self) -> Self {
        let seconds = self.seconds.max(other.seconds);
        let messages = self.messages.saturating_add(other.messages);
        let messages_per_s = messages as f64 / seconds;
        // Bytes are the same in all messages.
        let per_message = if self.messages_per_s > 0.0 {
            self.gbit_per_s / self.messages_per_s
        } else {
            0.0
        };
        Self {
            qps: self.qps + other.qps,
            depth: self.depth,
            messages,
            seconds,
            messages_per_s,
            peak_messages_per_s: self.peak_messages_per_s + other.peak_messages_per_s,
            gbit_per_s: messages_per_s * per_message,
        }
    }
}

impl Cpu {
    /// What a message cost, of either direction.
    #[allow(clippy::cast_precision_loss, reason = "shown with a few digits")]
    fn of(all: &[&StepReport]) -> Self {
        let [mut client, mut server] = [Usage::default(), Usage::default()];
        let mut messages: u64 = 0;
        for (n, one) in all.iter().enumerate() {
            let [own, theirs] = &one.outcome.usage;
            if n == 0 {
                (client, server) = (own.clone(), theirs.clone());
            } else {
                client.add(own);
                server.add(theirs);
            }
            let back = one.outcome.reverse.as_ref().map_or(0, |r| r.messages);
            messages = messages.saturating_add(one.outcome.sent.messages.saturating_add(back));
        }
        let messages = (messages as f64).max(1.0);
        Self {
            client: Cost::of(&client, messages),
            server: Cost::of(&server, messages),
        }
    }
}

impl Cost {
    #[allow(clippy::cast_precision_loss, reason = "shown with a few digits")]
    fn of(usage: &Usage, messages: f64) -> Self {
        let each = |n: u64| n as f64 / messages;
        Self {
            ns_per_message: each(usage.cpu_ns()),
            system_ns_per_message: each(usage.system_ns),
            instructions_per_message: usage.events.map(|e| each(e.instructions)),
            cycles_per_message: usage.events.map(|e| each(e.cycles)),
            cache_misses_per_message: usage.events.map(|e| each(e.cache_misses)),
            with_kernel: usage.events.map(|e| e.with_kernel),
            refusal: usage.refusal.clone(),
        }
    }
}

/// "1 234 567": thin groups, since a rate has up to eight digits.
pub(crate) fn rate(per_s: f64) -> String {
    let digits = format!("{per_s:.0}");
    let mut out = String::with_capacity(digits.len() + 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

/// A time in ns as µs with two digits.
pub(crate) fn micros(ns: u64) -> String {
    format!("{}.{:02}", ns / 1000, ns % 1000 / 10)
}

#[cfg(test)]
mod tests;
