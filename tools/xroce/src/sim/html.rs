//! The report of a run as one page: tables and plots, nothing loaded from anywhere.

use std::fmt::Write as _;

use xroce_bench_report::escape;
use xroce_fabric::{LinkSeries, Report};

use super::plot::{Axes, Curve, distribution, heat, lines};
use super::run::Pace;
use super::table::{line, short};

/// Curves of a plot, at most.
const CURVES: usize = 8;
/// Rows of a heat map, at most.
const ROWS: usize = 48;
/// Columns of a heat map, at most.
const COLUMNS: usize = 120;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:960px;margin:2em auto;\
padding:0 1em;color:#222}h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}table{border-collapse:\
collapse;font-variant-numeric:tabular-nums}td,th{padding:.25em .7em;border-bottom:1px solid #ddd;\
text-align:right}td:first-child,th:first-child{text-align:left}p.note{color:#666}svg{max-width:100%;\
height:auto}div.wide{overflow-x:auto}";

/// A whole page.
pub(crate) fn document(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><h1>{title}</h1>{body}</body></html>\n"
    )
}

/// A table; the first row is its head.
pub(crate) fn rows(rows: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=\"wide\"><table>");
    for (i, row) in rows.iter().enumerate() {
        let tag = if i == 0 { "th" } else { "td" };
        html.push_str("<tr>");
        for cell in row {
            // Writing to a string does not fail.
            let _ = write!(html, "<{tag}>{}</{tag}>", escape(cell));
        }
        html.push_str("</tr>");
    }
    html.push_str("</table></div>");
    html
}

fn part(title: &str, note: &str, content: &str) -> String {
    format!(
        "<h2>{}</h2><p class=\"note\">{}</p>{content}",
        escape(title),
        escape(note)
    )
}

/// The report of a run.
pub(crate) fn page(description: &str, report: &Report, pace: &Pace) -> String {
    let mut body = format!("<p>{}</p>", escape(description));
    let _ = write!(
        body,
        "<p class=\"note\">{}</p>",
        escape(&line(report, pace))
    );
    body.push_str(&part(
        "Flows",
        "FCT is flow completion time; slowdown is FCT over that of an empty network.",
        &groups(report),
    ));
    body.push_str(&part("Network", "", &network(report)));
    if report.series.interval_us > 0.0 {
        body.push_str(&part(
            "Rates",
            "Payload that arrived, of the flows with the most bytes.",
            &rates(report),
        ));
        body.push_str(&part(
            "Queues",
            "Most bytes in each interval, of the longest queues.",
            &queues(report),
        ));
    }
    let fct: Vec<f64> = report.flows.iter().filter_map(|f| f.fct_us).collect();
    if fct.len() > 1 {
        let axes = Axes {
            x: "FCT, µs",
            y: "share of flows",
        };
        body.push_str(&part("Flow completion times", "", &distribution(axes, fct)));
        let slowdown = report.flows.iter().filter_map(|f| f.slowdown).collect();
        let axes = Axes {
            x: "slowdown",
            y: "share of flows",
        };
        body.push_str(&part("Slowdown", "", &distribution(axes, slowdown)));
    }
    if report.series.interval_us > 0.0 {
        body.push_str(&part(
            "Utilisation of links",
            "White is idle, dark red is full. The busiest links.",
            &utilisation(report),
        ));
        body.push_str(&part(
            "Congestion of links",
            "Length of the queue; dark red is the longest of the run.",
            &congestion(report),
        ));
        body.push_str(&part(
            "Pauses",
            "Share of time that a priority of the link was paused.",
            &pauses(report),
        ));
    }
    body.push_str(&part(
        "Links",
        "The 40 with the longest queues.",
        &links(report),
    ));
    document(&report.name, &body)
}

fn groups(report: &Report) -> String {
    let head = [
        "",
        "ended",
        "of",
        "FCT mean µs",
        "p50",
        "p99",
        "slowdown mean",
        "p50",
        "p99",
        "goodput Gb/s",
        "Jain",
    ];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    let sizes = if report.sizes.len() > 1 {
        &report.sizes[..]
    } else {
        &[]
    };
    for g in report.groups.iter().chain(sizes) {
        let numbers = [
            g.fct_us.mean,
            g.fct_us.p50,
            g.fct_us.p99,
            g.slowdown.mean,
            g.slowdown.p50,
            g.slowdown.p99,
            g.goodput_gbps,
        ];
        let mut row = vec![g.name.clone(), g.completed.to_string(), g.flows.to_string()];
        row.extend(numbers.map(short));
        row.push(format!("{:.4}", g.jain));
        table.push(row);
    }
    rows(&table)
}

#[allow(clippy::cast_precision_loss, reason = "shown to people")]
fn network(report: &Report) -> String {
    let s = &report.summary;
    let c = &report.census;
    let kb = |b: u64| format!("{} KB", short(b as f64 / 1000.0));
    let pairs = [
        ("longest queue", s.worst_queue.clone()),
        (
            "its p50, p95, p99, most",
            [s.queue.p50, s.queue.p95, s.queue.p99, s.queue.max]
                .map(kb)
                .join(", "),
        ),
        ("most stored in a switch", kb(s.buffer_peak)),
        ("most headroom needed", kb(s.headroom_peak)),
        ("ECN marks", s.ecn_marks.to_string()),
        ("CNPs", s.cnps.to_string()),
        (
            "pauses",
            format!("{}, {} ms", s.pauses, short(s.paused_us / 1000.0)),
        ),
        ("frames sent", c.sent.to_string()),
        ("dropped for want of buffer", c.dropped_buffer.to_string()),
        ("of those lossless", c.dropped_lossless.to_string()),
        ("lost on links", c.dropped_wire.to_string()),
        (
            "lost in outages",
            (c.dropped_link_down + c.dropped_no_route).to_string(),
        ),
        ("retransmissions", s.retransmissions.to_string()),
        ("timeouts", s.timeouts.to_string()),
        ("flows that failed", s.failed.to_string()),
    ];
    let mut table = vec![vec![String::new(), String::new()]];
    table.extend(
        pairs
            .into_iter()
            .map(|(name, value)| vec![name.to_owned(), value]),
    );
    rows(&table)
}

#[allow(clippy::cast_precision_loss, reason = "samples")]
fn over_time(report: &Report, values: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    let interval = report.series.interval_us;
    values
        .enumerate()
        .map(|(i, v)| ((i + 1) as f64 * interval, v))
        .collect()
}

fn rates(report: &Report) -> String {
    let series = &report.series;
    let mut flows: Vec<_> = series.flows.iter().collect();
    flows.sort_by_key(|f| std::cmp::Reverse(f.received.last().copied().unwrap_or(0)));
    flows.truncate(CURVES);
    flows.sort_by_key(|f| f.flow);
    let curve = |f: &&xroce_fabric::FlowSeries| {
        let ends = report
            .flows
            .get(f.flow)
            .map(|r| format!("h{}→h{}", r.src, r.dst));
        Curve {
            name: format!("{} {}", f.flow, ends.unwrap_or_default()),
            points: over_time(
                report,
                series.rate_over_time(f).into_iter().map(|b| b / 1e9),
            ),
        }
    };
    let curves: Vec<Curve> = flows.iter().map(curve).collect();
    lines(
        Axes {
            x: "µs", y: "Gb/s"
        },
        &curves,
    )
}

/// Links by a measure, the largest first, without those where it is 0.
fn top(report: &Report, most: usize, measure: impl Fn(&LinkSeries) -> f64) -> Vec<&LinkSeries> {
    let mut links: Vec<(f64, &LinkSeries)> = report
        .series
        .links
        .iter()
        .map(|l| (measure(l), l))
        .collect();
    links.retain(|l| l.0 > 0.0);
    links.sort_by(|a, b| b.0.total_cmp(&a.0));
    links.into_iter().take(most).map(|l| l.1).collect()
}

#[allow(clippy::cast_precision_loss, reason = "shown to people")]
fn queues(report: &Report) -> String {
    let longest = |l: &LinkSeries| l.queue.iter().max().map_or(0.0, |q| *q as f64);
    let curve = |l: &&LinkSeries| Curve {
        name: l.link.clone(),
        points: over_time(report, l.queue.iter().map(|q| *q as f64 / 1000.0)),
    };
    let curves: Vec<Curve> = top(report, CURVES, longest).iter().map(curve).collect();
    lines(Axes { x: "µs", y: "KB" }, &curves)
}

/// Values in at most [`COLUMNS`] columns, the largest of each.
fn columns(values: &[f64]) -> Vec<f64> {
    let width = values.len().div_ceil(COLUMNS).max(1);
    let most = |part: &[f64]| part.iter().copied().fold(0.0, f64::max);
    // Two digits: cells that look alike become one.
    values
        .chunks(width)
        .map(|part| (most(part) * 100.0).round() / 100.0)
        .collect()
}

#[allow(clippy::cast_precision_loss, reason = "samples")]
fn map(report: &Report, measure: impl Fn(&LinkSeries) -> Vec<f64>, full: f64) -> String {
    let sum = |l: &LinkSeries| measure(l).iter().sum::<f64>();
    let mut links = top(report, ROWS, sum);
    links.sort_by(|a, b| a.link.cmp(&b.link));
    let of = |l: &&LinkSeries| (l.link.clone(), columns(&measure(l)));
    let rows: Vec<(String, Vec<f64>)> = links.iter().map(of).collect();
    let samples = report.series.links.first().map_or(0, |l| l.queue.len());
    heat(
        "µs",
        samples as f64 * report.series.interval_us,
        &rows,
        full,
    )
}

fn utilisation(report: &Report) -> String {
    map(report, |l| l.utilisation.clone(), 1.0)
}

#[allow(clippy::cast_precision_loss, reason = "bytes")]
fn congestion(report: &Report) -> String {
    let all = report.series.links.iter().flat_map(|l| l.queue.iter());
    let longest = all.max().map_or(1.0, |q| (*q).max(1) as f64);
    map(
        report,
        |l| l.queue.iter().map(|q| *q as f64 / longest).collect(),
        1.0,
    )
}

fn pauses(report: &Report) -> String {
    map(report, |l| l.paused.clone(), 1.0)
}

fn links(report: &Report) -> String {
    let head = [
        "",
        "rate Gb/s",
        "busy %",
        "queue mean B",
        "p95",
        "most",
        "marked",
        "dropped",
        "lost",
        "pauses",
        "paused µs",
    ];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    let mut links: Vec<_> = report.links.iter().collect();
    links.sort_by(|a, b| b.queue.max.cmp(&a.queue.max).then(a.link.cmp(&b.link)));
    for l in links.into_iter().take(40) {
        #[allow(clippy::cast_precision_loss, reason = "shown to people")]
        let rate = l.rate_bps as f64 / 1e9;
        table.push(vec![
            l.link.clone(),
            short(rate),
            short(l.utilisation * 100.0),
            short(l.queue.mean),
            l.queue.p95.to_string(),
            l.queue.max.to_string(),
            l.marked.to_string(),
            l.dropped.to_string(),
            (l.lost + l.down).to_string(),
            l.pauses.to_string(),
            short(l.paused_us),
        ]);
    }
    rows(&table)
}
