//! Results as a table for people, as CSV, in perftest's columns; and histograms.

use std::fmt::Write as _;
use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};

use crate::perf::client_port::{PortReport, StepReport};
use crate::perf::measure::quantiles::{self, Quantiles};
use crate::perf::plan::{Op, size_name};
use crate::perf::report::{Bandwidth, Cost, Report, Row, micros, paced, rate, trips};

/// Head of perftest's bandwidth tests.
pub(crate) const BANDWIDTH_HEAD: &str =
    " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]";
/// Head of perftest's latency tests.
pub(crate) const LATENCY_HEAD: &str = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
     t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] ";

/// The names of the columns of CSV.
const CSV_HEAD: &str = "op,test,size,qps,depth,ports,path_mtu,offered_per_s,messages,seconds,\
messages_per_s,peak_messages_per_s,gbit_per_s,reverse_messages_per_s,reverse_gbit_per_s,\
sum_messages_per_s,sum_gbit_per_s,samples,min_ns,p50_ns,p90_ns,p99_ns,p999_ns,p9999_ns,max_ns,\
mean_ns,stdev_ns,behind_p50_ns,behind_p99_ns,behind_max_ns,unsent,retransmissions,timeouts,\
rnr_naks,sequence_naks,icrc_errors,verified,mismatches,client_cpu_ns_per_message,\
server_cpu_ns_per_message,client_instructions_per_message,server_instructions_per_message,\
client_cycles_per_message,server_cycles_per_message,client_cache_misses_per_message,\
server_cache_misses_per_message";

/// Everything for people: who, the table, what is to be known about it.
pub(crate) fn people(report: &Report) -> String {
    let mut text = String::new();
    let pair = |text: &mut String, ends: [&str; 4], mtu: u32| {
        let [client, client_port, server, server_port] = ends;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{client} ({client_port}) -> {server} ({server_port}), path MTU {mtu}"
        );
    };
    if report.ports.is_empty() {
        let r = report;
        let ends = [&*r.client, &r.client_port, &r.server, &r.server_port];
        pair(&mut text, ends, r.path_mtu);
    }
    for p in &report.ports {
        let ends = [&*p.client, &p.client_port, &p.server, &p.server_port];
        pair(&mut text, ends, p.path_mtu);
    }
    text.push_str(&table(report, true));
    for note in notes(report) {
        let _ = write!(text, "\n{note}");
    }
    if let Some(stats) = &report.stats {
        let _ = write!(text, "\n{}", stats.table());
    }
    text
}

fn sum(report: &Report, of: impl Fn(&Row) -> u64) -> u64 {
    let add = |sum: u64, row| sum.saturating_add(of(row));
    report.results.iter().fold(0, add)
}

/// What the numbers of a table mean, where that is not plain.
fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    if report.results.iter().any(|r| r.open.is_some()) {
        notes.push(
            "Open loop: latency is from when a message was due to its acknowledgement (READ: its \
             data)."
                .to_owned(),
        );
    }
    for (side, dropped) in [
        ("client", sum(report, |r| r.client.frames_dropped)),
        ("server", sum(report, |r| r.server.frames_dropped)),
    ] {
        if dropped != 0 {
            notes.push(format!(
                "{dropped} frames found no room in the receive ring of the {side} and had to be \
                 sent again: give it a larger one (--ring 4096 there), or less --depth or --qps"
            ));
        }
    }
    let cpu = report
        .results
        .iter()
        .find_map(|r| r.cpu.as_ref().or(r.latency_cpu.as_ref()));
    if let Some(cpu) = cpu {
        let mut refusals: Vec<(&str, &str)> = Vec::new();
        for (side, cost) in [("client", &cpu.client), ("server", &cpu.server)] {
            if let Some(why) = &cost.refusal {
                refusals.push((side, why));
            }
        }
        match refusals.as_slice() {
            [(_, a), (_, b)] if a == b => {
                notes.push(format!("instructions, cycles, cache misses: {a}"));
            }
            some => notes.extend(some.iter().map(|(side, why)| {
                format!("instructions, cycles, cache misses of the {side}: {why}")
            })),
        }
    }
    notes
}

/// Which columns a table has.
#[derive(Clone, Copy)]
struct Columns {
    swept: bool,
    open: bool,
    latency: bool,
    both: bool,
    cpu: bool,
    events: bool,
    verify: bool,
}

/// The table for people; with what messages cost if `cpu`.
pub(crate) fn table(report: &Report, cpu: bool) -> String {
    let any = |f: fn(&Row) -> bool| report.results.iter().any(f);
    let one = report.results.first().map(|r| (r.qps, r.depth));
    let columns = Columns {
        swept: report.results.iter().any(|r| Some((r.qps, r.depth)) != one),
        open: any(|r| r.open.is_some()),
        latency: any(|r| r.latency.is_some() || r.open.is_some()),
        both: report.bidirectional,
        cpu,
        events: cpu && any(has_events),
        verify: report.verify,
    };
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(columns.head());
    for row in &report.results {
        table.add_row(columns.cells(row));
        for (n, port) in row.ports.iter().enumerate() {
            if let Some(b) = &port.bandwidth {
                table.add_row(columns.port_cells(n, b, port.reverse.as_ref()));
            }
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn has_events(row: &Row) -> bool {
    let counts = |c: &Cost| c.instructions_per_message.is_some();
    row.cpu
        .as_ref()
        .is_some_and(|c| counts(&c.client) || counts(&c.server))
}

impl Columns {
    fn head(self) -> Vec<&'static str> {
        let mut head = vec!["operation", "size"];
        head.extend(self.swept.then_some(["QPs", "depth"]).into_iter().flatten());
        head.extend(self.open.then_some("offered/s"));
        head.extend(["messages/s", "Gb/s"]);
        head.extend(
            self.both
                .then_some(["back Gb/s", "sum Gb/s"])
                .into_iter()
                .flatten(),
        );
        if self.latency {
            head.extend(["p50 µs", "p99 µs", "p99.9 µs"]);
        }
        if self.open {
            head.extend(["p99.99 µs", "max µs", "behind µs", "unsent"]);
        }
        if self.cpu {
            head.extend(["CPU ns client", "server"]);
        }
        if self.events {
            head.extend(["instr. client", "server"]);
        }
        head.extend(["retransm.", "ICRC err."]);
        if self.verify {
            head.extend(["verified", "wrong"]);
        }
        head
    }

    fn cells(self, row: &Row) -> Vec<String> {
        let none = || "–".to_owned();
        let mut cells = vec![row.op.to_string(), size_name(row.size)];
        if self.swept {
            cells.extend([row.qps.to_string(), row.depth.to_string()]);
        }
        if self.open {
            let offered = row.open.map(|o| o.offered_per_s.to_string());
            cells.push(offered.unwrap_or_else(none));
        }
        match &row.bandwidth {
            Some(b) => cells.extend([rate(b.messages_per_s), gigabits(b.gbit_per_s)]),
            None => cells.extend([none(), none()]),
        }
        if self.both {
            let back = row.reverse.map(|r| gigabits(r.bandwidth.gbit_per_s));
            let sum = row.sum.map(|s| gigabits(s.gbit_per_s));
            cells.extend([back.unwrap_or_else(none), sum.unwrap_or_else(none)]);
        }
        if self.latency {
            let of = |l: &Quantiles| [l.p50_ns, l.p99_ns, l.p999_ns].map(micros);
            let found = row.open.map(|o| o.found.latency).or(row.latency);
            cells.extend(found.as_ref().map_or_else(|| [none(), none(), none()], of));
        }
        if self.open {
            cells.extend(row.open.map_or_else(
                || [none(), none(), none(), none()],
                |o| {
                    let l = o.found.latency;
                    let [tail, max] = [l.p9999_ns, l.max_ns].map(micros);
                    let behind = micros(o.found.behind.max_ns);
                    [tail, max, behind, o.found.unsent.to_string()]
                },
            ));
        }
        let cpu = row.cpu.as_ref().or(row.latency_cpu.as_ref());
        for (wanted, of) in [
            (
                self.cpu,
                (|c: &Cost| Some(c.ns_per_message)) as fn(&Cost) -> Option<f64>,
            ),
            (self.events, |c| c.instructions_per_message),
        ] {
            if wanted {
                let sides = [cpu.map(|c| &c.client), cpu.map(|c| &c.server)];
                let shown = sides.map(|c| c.and_then(of).map_or_else(none, rate));
                cells.extend(shown);
            }
        }
        cells.push(row.total.retransmissions.to_string());
        cells.push(row.total.icrc_errors.to_string());
        if self.verify {
            cells.push(row.verified.to_string());
            cells.push(row.mismatches.to_string());
        }
        cells
    }

    /// The rates of one of several ports.
    fn port_cells(self, port: usize, b: &Bandwidth, back: Option<&Bandwidth>) -> Vec<String> {
        let mut cells = vec![format!("  port {port}"), String::new()];
        if self.swept {
            cells.extend([String::new(), String::new()]);
        }
        if self.open {
            cells.push(String::new());
        }
        cells.extend([rate(b.messages_per_s), gigabits(b.gbit_per_s)]);
        if let (true, Some(back)) = (self.both, back) {
            cells.push(gigabits(back.gbit_per_s));
        }
        cells
    }
}

fn gigabits(gbit_per_s: f64) -> String {
    format!("{gbit_per_s:.3}")
}

/// A line with names, and one for each test of each row.
pub(crate) fn csv(report: &Report) -> String {
    let mut lines = vec![CSV_HEAD.to_owned()];
    for row in &report.results {
        if row.bandwidth.is_some() {
            let test = if row.open.is_some() { "open" } else { "bw" };
            lines.push(csv_line(report, row, test));
        }
        if row.latency.is_some() {
            lines.push(csv_line(report, row, "lat"));
        }
    }
    lines.join("\n")
}

fn csv_line(report: &Report, row: &Row, test: &str) -> String {
    let is_lat = test == "lat";
    let rates = row.bandwidth.filter(|_| !is_lat);
    let back = row.reverse.filter(|_| !is_lat).map(|r| r.bandwidth);
    let sum = row.sum.filter(|_| !is_lat);
    let open = row.open.filter(|_| !is_lat);
    let times = if is_lat {
        row.latency
    } else {
        open.map(|o| o.found.latency)
    };
    let behind = open.map(|o| o.found.behind);
    let cpu = if is_lat { &row.latency_cpu } else { &row.cpu };
    let cost = |of: fn(&Cost) -> Option<f64>| {
        [
            cpu.as_ref().map(|c| &c.client),
            cpu.as_ref().map(|c| &c.server),
        ]
        .map(|c| float(c.and_then(of)))
    };
    // Latency has one queue pair and one message at a time.
    let (qps, depth) = if is_lat { (1, 1) } else { (row.qps, row.depth) };
    let mut cells = vec![
        row.op.to_string().to_lowercase(),
        test.to_owned(),
        row.size.to_string(),
        qps.to_string(),
        depth.to_string(),
        report.ports.len().max(1).to_string(),
        report.path_mtu.to_string(),
        whole(open.map(|o| o.offered_per_s)),
        whole(rates.map(|b| b.messages)),
        float(rates.map(|b| b.seconds)),
        float(rates.map(|b| b.messages_per_s)),
        float(rates.map(|b| b.peak_messages_per_s)),
        float(rates.map(|b| b.gbit_per_s)),
        float(back.map(|b| b.messages_per_s)),
        float(back.map(|b| b.gbit_per_s)),
        float(sum.map(|b| b.messages_per_s)),
        float(sum.map(|b| b.gbit_per_s)),
    ];
    cells.extend(csv_times(times));
    cells.extend([
        whole(behind.map(|b| b.p50_ns)),
        whole(behind.map(|b| b.p99_ns)),
        whole(behind.map(|b| b.max_ns)),
        whole(open.map(|o| o.found.unsent)),
    ]);
    let t = row.total;
    let counts = [t.retransmissions, t.timeouts, t.rnr_naks, t.sequence_naks];
    let counts = counts
        .into_iter()
        .chain([t.icrc_errors, row.verified, row.mismatches]);
    cells.extend(counts.map(|n| n.to_string()));
    for of in [
        (|c: &Cost| Some(c.ns_per_message)) as fn(&Cost) -> Option<f64>,
        |c| c.instructions_per_message,
        |c| c.cycles_per_message,
        |c| c.cache_misses_per_message,
    ] {
        cells.extend(cost(of));
    }
    cells.join(",")
}

fn csv_times(times: Option<Quantiles>) -> [String; 10] {
    let of: [fn(Quantiles) -> u64; 10] = [
        |q| q.samples,
        |q| q.min_ns,
        |q| q.p50_ns,
        |q| q.p90_ns,
        |q| q.p99_ns,
        |q| q.p999_ns,
        |q| q.p9999_ns,
        |q| q.max_ns,
        |q| q.mean_ns,
        |q| q.stdev_ns,
    ];
    of.map(|f| whole(times.map(f)))
}

fn whole(n: Option<u64>) -> String {
    n.map_or_else(String::new, |n| n.to_string())
}

fn float(x: Option<f64>) -> String {
    x.map_or_else(String::new, |x| format!("{x:.6}"))
}

/// The columns of perftest: MB are 2^20 bytes, and the latency of SEND and WRITE is half a round
/// trip.
pub(crate) fn perftest(report: &Report) -> String {
    let mut lines = Vec::new();
    let bandwidth = report
        .results
        .iter()
        .filter_map(|r| r.bandwidth.map(|b| (r, b)));
    for (row, b) in bandwidth {
        if lines.is_empty() {
            lines.push(BANDWIDTH_HEAD.to_owned());
        }
        // Both directions together, as perftest shows them.
        let back = row.reverse.map(|r| r.bandwidth);
        let both = |of: fn(&Bandwidth) -> f64| of(&b) + back.as_ref().map_or(0.0, of);
        let mib = |per_s: f64| per_s * f64::from(row.size) / f64::from(1 << 20);
        let average = both(|b| b.messages_per_s);
        lines.push(bandwidth_line(
            row.size.into(),
            b.messages,
            [
                mib(both(|b| b.peak_messages_per_s)),
                mib(average),
                average / 1e6,
            ],
        ));
    }
    let mut with_head = false;
    for (row, l) in report
        .results
        .iter()
        .filter_map(|r| r.latency.map(|l| (r, l)))
    {
        if !with_head {
            lines.push(LATENCY_HEAD.to_owned());
            with_head = true;
        }
        let half = if row.op == Op::Read { 1.0 } else { 0.5 };
        let times = [
            l.min_ns, l.max_ns, l.p50_ns, l.mean_ns, l.stdev_ns, l.p99_ns, l.p999_ns,
        ];
        #[allow(clippy::cast_precision_loss, reason = "shown with two digits")]
        let times = times.map(|ns| ns as f64 / 1e3 * half);
        lines.push(latency_line(row.size.into(), l.samples, times));
    }
    lines.join("\n")
}

/// A line below [`BANDWIDTH_HEAD`]: peak and average in MB/s, messages in millions a second.
pub(crate) fn bandwidth_line(size: u64, iterations: u64, values: [f64; 3]) -> String {
    let [peak, average, rate] = values;
    format!(
        " {size:<7}    {iterations:<10}       {peak:<7.2}            {average:<7.2}\t\t   {rate:<7.6}"
    )
}

/// A line below [`LATENCY_HEAD`]: minimum, maximum, median, mean, deviation and both percentiles, in
/// µs.
pub(crate) fn latency_line(size: u64, iterations: u64, times: [f64; 7]) -> String {
    let [min, max, typical, average, deviation, p99, p999] = times;
    format!(
        " {size:<7} {iterations}          {min:<7.2}        {max:<7.2}      {typical:<7.2}  \t       \
         {average:<7.2}     \t{deviation:<7.2}\t\t{p99:<7.2} \t\t{p999:<7.2}"
    )
}

/// The distributions of all latency tests and open loops, one after another.
///
/// # Errors
/// They cannot be written.
pub(crate) fn histograms(ports: &[PortReport], out: &mut dyn Write) -> io::Result<()> {
    let steps = ports.first().map_or(0, |l| l.steps.len());
    for n in 0..steps {
        let all: Vec<&StepReport> = ports.iter().filter_map(|l| l.steps.get(n)).collect();
        let Some(step) = all.first().map(|one| one.step) else {
            continue;
        };
        let found = trips(&all).or_else(|| paced(&all).map(|f| f.latency));
        if let Some(h) = found {
            quantiles::write(&h, &step.to_string(), out)?;
        }
    }
    out.flush()
}
