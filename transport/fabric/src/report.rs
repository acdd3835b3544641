//! What came out of a run.

use serde::Serialize;
use xroce_proto::counters::Counters;

use crate::ideal;
use crate::lane::{Lane, Node};
use crate::metrics::{Series, jain, quantile};
use crate::net::Census;
use crate::sim::Simulation;
use crate::units::Time;

/// Version of the JSON form; counts incompatible changes.
pub const SCHEMA: u32 = 1;

/// A distribution of times or ratios.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    #[allow(clippy::cast_precision_loss, reason = "counts of flows")]
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            mean: values.iter().sum::<f64>() / values.len().max(1) as f64,
            p50: quantile(&values, 0.5),
            p99: quantile(&values, 0.99),
            max: values.last().copied().unwrap_or(0.0),
        }
    }
}

/// One flow.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FlowReport {
    /// Index of its group.
    pub group: u32,
    /// Host the data was at.
    pub src: u32,
    /// Host it went to.
    pub dst: u32,
    /// Its length.
    pub bytes: u64,
    /// Bytes that arrived.
    pub received: u64,
    /// When it began, µs; `None` if it never did.
    pub start_us: Option<f64>,
    /// Until the sender (of a READ the receiver) knew that all has arrived, µs; `None` if it had
    /// not by the end.
    pub fct_us: Option<f64>,
    /// The same on an empty network, at least, µs.
    pub ideal_us: f64,
    /// `fct_us / ideal_us`.
    pub slowdown: Option<f64>,
    /// Payload over the time it was active, Gb/s.
    pub goodput_gbps: f64,
    /// What went wrong, if something did.
    pub error: Option<String>,
    /// Request packets sent again.
    pub retransmissions: u64,
    /// ACK timeouts.
    pub timeouts: u64,
    /// Congestion notifications that reached its sender.
    pub cnps: u64,
    /// Its packets that arrived marked.
    pub ce_marked: u64,
}

/// Bytes that waited in a queue, weighted by time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct QueueReport {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Most.
    pub max: u64,
}

/// One direction of a link that carried something.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LinkReport {
    /// "from→to".
    pub link: String,
    /// Rate at the end, bits per second.
    pub rate_bps: u64,
    /// Share of the time that it was busy.
    pub utilisation: f64,
    /// Frames sent.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Its queue.
    pub queue: QueueReport,
    /// Frames marked CE.
    pub marked: u64,
    /// Frames dropped for want of buffer.
    pub dropped: u64,
    /// Frames lost at random.
    pub lost: u64,
    /// Frames lost in an outage.
    pub down: u64,
    /// Frames that were overtaken.
    pub reordered: u64,
    /// Times a priority was paused.
    pub pauses: u64,
    /// How long, µs, over all priorities.
    pub paused_us: f64,
}

/// Flows of a group, or of a range of lengths.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct GroupReport {
    /// Name of the workload, or the range.
    pub name: String,
    /// Flows.
    pub flows: usize,
    /// Those that ended well.
    pub completed: usize,
    /// Flow completion time, µs.
    pub fct_us: Spread,
    /// Flow completion time over that of an empty network.
    pub slowdown: Spread,
    /// Payload of all over the time between the first start and the last end, Gb/s.
    pub goodput_gbps: f64,
    /// Jain's index of the rates of the flows.
    pub jain: f64,
    /// From the first start to the last end, µs.
    pub span_us: f64,
}

/// The run in a few numbers.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Summary {
    /// Flows.
    pub flows: usize,
    /// Those that ended well.
    pub completed: usize,
    /// Those whose queue pair broke.
    pub failed: usize,
    /// Flow completion time, µs.
    pub fct_us: Spread,
    /// Flow completion time over that of an empty network.
    pub slowdown: Spread,
    /// Payload over the time between the first start and the last end, Gb/s.
    pub goodput_gbps: f64,
    /// Jain's index of the rates of the flows.
    pub jain: f64,
    /// The switch port with the largest 95th percentile.
    pub worst_queue: String,
    /// Its queue.
    pub queue: QueueReport,
    /// Frames marked CE by switches.
    pub ecn_marks: u64,
    /// Congestion notifications received.
    pub cnps: u64,
    /// Times a priority of a link was paused.
    pub pauses: u64,
    /// How long, µs, over all.
    pub paused_us: f64,
    /// Frames lost, whatever the reason.
    pub drops: u64,
    /// Request packets sent again.
    pub retransmissions: u64,
    /// ACK timeouts.
    pub timeouts: u64,
    /// Most bytes of headroom that a port and priority needed.
    pub headroom_peak: u64,
    /// Most bytes that a switch stored.
    pub buffer_peak: u64,
}

/// Everything.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name of the scenario.
    pub name: String,
    /// Seed.
    pub seed: u64,
    /// Virtual time at the end, µs.
    pub end_us: f64,
    /// Why it ended.
    pub ended: String,
    /// Frames enqueued, dequeued and arrived, at hops and hosts.
    pub packet_events: u64,
    /// Events handled, timers and samples included.
    pub events: u64,
    /// Polls of engines.
    pub polls: u64,
    /// Frame buffers made.
    pub frames_made: u64,
    /// In a few numbers.
    pub summary: Summary,
    /// By workload.
    pub groups: Vec<GroupReport>,
    /// By length of flow.
    pub sizes: Vec<GroupReport>,
    /// What became of all frames.
    pub census: Census,
    /// Counters of all queue pairs.
    pub counters: std::collections::BTreeMap<&'static str, u64>,
    /// Whether what arrived was what was sent.
    pub contents_right: bool,
    /// Links that carried something.
    pub links: Vec<LinkReport>,
    /// Flows.
    pub flows: Vec<FlowReport>,
    /// Samples.
    pub series: Series,
}

/// Upper ends of the ranges of lengths in [`Report::sizes`].
const SIZES: [(u64, &str); 5] = [
    (1_000, "up to 1 KB"),
    (10_000, "up to 10 KB"),
    (100_000, "up to 100 KB"),
    (1_000_000, "up to 1 MB"),
    (u64::MAX, "over 1 MB"),
];

impl Report {
    pub(crate) fn new(sim: &Simulation) -> Self {
        let flows: Vec<FlowReport> = (0..sim.traffic.flows.len()).map(|i| flow(sim, i)).collect();
        let links = links(sim);
        let counters = sim.counters();
        let series = series(sim);
        let census = sim.net.census();
        let name = |g: usize| {
            sim.groups
                .get(g)
                .cloned()
                .unwrap_or_else(|| format!("group {g}"))
        };
        let last_group = flows
            .iter()
            .map(|f| f.group as usize + 1)
            .max()
            .unwrap_or(0);
        let groups = (0..last_group)
            .map(|g| group(name(g), flows.iter().filter(|f| f.group as usize == g)))
            .collect();
        Self {
            schema: SCHEMA,
            name: String::new(),
            seed: sim.seed,
            end_us: sim.net.now.us(),
            ended: ended(sim),
            packet_events: sim.net.packet_events,
            events: sim.events(),
            polls: sim.polls,
            frames_made: sim.net.pool.made,
            summary: summary(sim, &flows, &counters, &census),
            groups,
            sizes: sizes(&flows),
            census,
            counters: Counters::TABLE
                .iter()
                .map(|c| (c.name, (c.get)(&counters)))
                .collect(),
            contents_right: sim.memory.is_right(),
            links,
            flows,
            series,
        }
    }
}

fn ended(sim: &Simulation) -> String {
    match &sim.traffic.refused {
        Some(refused) => format!("an engine refused: {refused}"),
        None if sim.stuck => "an engine finds work for ever".to_owned(),
        None if sim.traffic.open == 0 => "all flows have ended".to_owned(),
        None => "the time is over".to_owned(),
    }
}

#[allow(clippy::cast_precision_loss, reason = "rates and ratios")]
fn flow(sim: &Simulation, i: usize) -> FlowReport {
    let (spec, progress) = (&sim.traffic.flows[i], &sim.traffic.progress[i]);
    let (received, tally) = sim.flow_tally(i);
    let ideal = ideal::completion_time(sim, spec);
    let ended = progress.ended.filter(|_| progress.failed.is_none());
    let fct = progress
        .started
        .zip(ended)
        .map(|(start, end)| end.since(start));
    let last = progress.ended.unwrap_or(sim.net.now);
    let active = progress
        .started
        .map_or(Time::ZERO, |start| last.since(start));
    let gbps = received as f64 * 8.0 / active.seconds().max(1e-12) / 1e9;
    FlowReport {
        group: spec.group,
        src: spec.src,
        dst: spec.dst,
        bytes: spec.bytes,
        received,
        start_us: progress.started.map(Time::us),
        fct_us: fct.map(Time::us),
        ideal_us: ideal.us(),
        slowdown: fct.map(|fct| fct.us() / ideal.us()),
        goodput_gbps: if active > Time::ZERO { gbps } else { 0.0 },
        error: progress.failed.map(|status| status.to_string()),
        retransmissions: tally.retransmits,
        timeouts: tally.timeouts,
        cnps: tally.cnps,
        ce_marked: tally.ce,
    }
}

#[allow(clippy::cast_precision_loss, reason = "rates and ratios")]
fn group<'a>(name: String, flows: impl Iterator<Item = &'a FlowReport> + Clone) -> GroupReport {
    let started = flows.clone().filter(|f| f.start_us.is_some());
    let first = started
        .clone()
        .filter_map(|f| f.start_us)
        .fold(f64::INFINITY, f64::min);
    let end = |f: &FlowReport| match (f.start_us, f.fct_us) {
        (Some(start), Some(fct)) => start + fct,
        // Still running: until its rate says.
        (Some(start), None) if f.goodput_gbps > 0.0 => {
            start + f.received as f64 * 8.0 / f.goodput_gbps / 1e3
        }
        (start, _) => start.unwrap_or(0.0),
    };
    let last = started.clone().map(end).fold(0.0, f64::max);
    let span = if last > first { last - first } else { 0.0 };
    let bits = flows.clone().map(|f| f.received as f64 * 8.0).sum::<f64>();
    let rates: Vec<f64> = started.map(|f| f.goodput_gbps).collect();
    GroupReport {
        name,
        flows: flows.clone().count(),
        completed: flows.clone().filter(|f| f.fct_us.is_some()).count(),
        fct_us: Spread::of(flows.clone().filter_map(|f| f.fct_us).collect()),
        slowdown: Spread::of(flows.filter_map(|f| f.slowdown).collect()),
        goodput_gbps: if span > 0.0 { bits / span / 1e3 } else { 0.0 },
        jain: jain(&rates),
        span_us: span,
    }
}

fn sizes(flows: &[FlowReport]) -> Vec<GroupReport> {
    let mut above = None;
    let mut all = Vec::new();
    for (most, name) in SIZES {
        let inside = |f: &&FlowReport| f.bytes <= most && above.is_none_or(|a| f.bytes > a);
        let of = group(name.to_owned(), flows.iter().filter(inside));
        if of.flows > 0 {
            all.push(of);
        }
        above = Some(most);
    }
    all
}

fn summary(
    sim: &Simulation,
    flows: &[FlowReport],
    counters: &Counters,
    census: &Census,
) -> Summary {
    let all = group(String::new(), flows.iter());
    let worst = sim
        .net
        .lanes
        .iter()
        .filter(|l| matches!(l.from, Node::Switch(_)))
        .max_by(|a, b| {
            let rank = |l: &Lane| (l.depth.quantile(0.95), l.stats.queue_max);
            // The first of equals.
            rank(a).cmp(&rank(b)).then(std::cmp::Ordering::Greater)
        });
    let lanes = || sim.net.lanes.iter();
    let now = sim.net.now;
    let buffers = || sim.net.switches.iter().map(|s| &s.buffer);
    Summary {
        flows: all.flows,
        completed: all.completed,
        failed: flows.iter().filter(|f| f.error.is_some()).count(),
        fct_us: all.fct_us,
        slowdown: all.slowdown,
        goodput_gbps: all.goodput_gbps,
        jain: all.jain,
        worst_queue: worst.map(|l| name(sim, l)).unwrap_or_default(),
        queue: worst.map(queue).unwrap_or_default(),
        ecn_marks: lanes().map(|l| l.stats.marked).sum(),
        cnps: counters.cnps_in,
        pauses: lanes().map(|l| l.stats.pauses).sum(),
        paused_us: lanes().map(|l| l.paused_time(now).us()).sum(),
        drops: census.lost(),
        retransmissions: counters.retransmits,
        timeouts: counters.timeouts,
        headroom_peak: buffers().map(|b| b.headroom_peak).max().unwrap_or(0),
        buffer_peak: buffers().map(|b| b.peak).max().unwrap_or(0),
    }
}

fn name(sim: &Simulation, lane: &Lane) -> String {
    let of = |node| sim.topology.name(node);
    format!("{}→{}", of(lane.from), of(lane.to))
}

fn queue(lane: &Lane) -> QueueReport {
    QueueReport {
        mean: lane.depth.mean().round(),
        p50: lane.depth.quantile(0.5),
        p95: lane.depth.quantile(0.95),
        p99: lane.depth.quantile(0.99),
        max: lane.stats.queue_max,
    }
}

fn links(sim: &Simulation) -> Vec<LinkReport> {
    let now = sim.net.now;
    let measured = now.since(sim.warmup).seconds().max(1e-12);
    let report = |lane: &Lane| {
        let stats = &lane.stats;
        LinkReport {
            link: name(sim, lane),
            rate_bps: lane.rate.bps(),
            utilisation: (stats.busy.seconds() / measured).min(1.0),
            frames: stats.frames,
            bytes: stats.bytes,
            queue: queue(lane),
            marked: stats.marked,
            dropped: stats.dropped,
            lost: stats.lost,
            down: stats.down,
            reordered: stats.reordered,
            pauses: stats.pauses,
            paused_us: lane.paused_time(now).us(),
        }
    };
    let carried = |l: &&Lane| l.stats.frames + l.stats.dropped + l.stats.down + l.stats.pauses > 0;
    sim.net.lanes.iter().filter(carried).map(report).collect()
}

fn series(sim: &Simulation) -> Series {
    let mut series = sim.recorder.series.clone();
    for (link, &lane) in series.links.iter_mut().zip(sim.recorder.lanes()) {
        link.link = name(sim, &sim.net.lanes[lane]);
    }
    if series.interval_us == 0.0 {
        series.links.clear();
    }
    series
}
