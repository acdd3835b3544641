//! `xroce demo`: two software RNICs in two processes exchange verified SEND, WRITE and READ.
//!
//! With the privileges for it each process sits in a network namespace of its own, the two joined
//! by a veth pair, and uses AF_XDP. Otherwise the same job runs over UDP sockets on loopback.
//! Programs and namespaces are gone at the end, however it comes: the guards of [`child`] and
//! of `xroce-testnet` remove them, a killed demo takes its programs along (they die with their
//! parent), and the next run removes the namespaces of a killed one.

mod ceiling;
mod child;
mod daemon;
pub(crate) mod guest;
mod stage;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::perf::report::show;
use crate::perf::report::{Report, rate};
use crate::stop;
use child::{Child, Line};
use stage::Stage;

/// Message sizes in bytes: 2 B to 1 MB.
const SIZES: [u32; 11] = [
    2, 8, 32, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576,
];
/// Operations, each with a bandwidth test at every size.
const OPERATIONS: [&str; 3] = ["send", "write", "read"];
/// Latency is measured up to this size, in bytes.
const LATENCY_MAX: u32 = 4096;
/// A program that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Show two software RNICs exchanging verified SEND, WRITE and READ
#[derive(Args, Clone, Debug)]
pub(crate) struct DemoArgs {
    /// How frames come and go [default: xdp if that is possible here, else udp]
    #[arg(long, value_enum)]
    pub backend: Option<crate::perf::args::Backend>,
    /// Seconds per bandwidth measurement, of which there are 33
    #[arg(long, default_value_t = 0.5, value_name = "S", value_parser = parse_seconds)]
    pub seconds: f64,
    /// Two daemons with three processes each, which do every operation, instead of the measurements
    #[arg(long, conflicts_with = "seconds")]
    pub daemon: bool,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// One line that says what is wrong.
pub(crate) fn run(args: &DemoArgs, out: &mut dyn Write) -> Result<()> {
    stop::install()?;
    let stage = Stage::set(args.backend)?;
    note(&stage.describe());
    if args.daemon {
        return daemon::run(&stage, args.json, out);
    }
    let report = exchange(&stage, args.seconds)?;
    let raw = ceiling::compare(&stage, report.path_mtu, args.seconds)?;
    if args.json {
        let all = serde_json::json!({ "report": report, "raw": raw });
        writeln!(out, "{all}")?;
    } else {
        writeln!(out, "{}", summary(&report))?;
        for ratio in raw {
            writeln!(out, "{ratio}")?;
        }
    }
    match report.mismatches() {
        0 => Ok(()),
        n => bail!("{n} messages were not what was sent"),
    }
}

/// The whole exchange: every operation and size, verified.
fn exchange(stage: &Stage, seconds: f64) -> Result<Report> {
    let sizes = SIZES.map(|s| s.to_string()).join(",");
    let small = LATENCY_MAX.to_string();
    let latency = (seconds / 2.5).max(0.001).to_string();
    let seconds = seconds.to_string();
    let args = [
        ["--op", &OPERATIONS.join(",")],
        ["--test", "bw,lat"],
        ["--sizes", &sizes],
        ["--latency-max-size", &small],
        ["--latency-seconds", &latency],
        ["--seconds", &seconds],
    ];
    let progress = Progress::new();
    let mut words = args.concat();
    words.push("--verify");
    let report = measure(stage, &words, &|step| progress.step(step));
    progress.finish();
    report
}

/// Runs a server and a client that measures what `args` say, returns what they found.
fn measure(stage: &Stage, args: &[&str], progress: &dyn Fn(&str)) -> Result<Report> {
    let mut server = Child::spawn("server", stage.server())?;
    let port = server_port(&mut server)?;
    let mut command = stage.client(port);
    command.args(args).args(["--json", "--progress-json"]);
    let mut client = Child::spawn("client", command)?;
    let report = match follow(&mut client, progress) {
        Ok(report) => report,
        Err(e) if e.is::<stop::Interrupted>() => return Err(e),
        // The server may know better why.
        Err(e) => {
            let said = server.end();
            return Err(if said.is_empty() {
                e
            } else {
                anyhow!("{e:#}; the server: {said}")
            });
        }
    };
    server.finish(PATIENCE)?;
    Ok(report)
}

/// Hears from the server on which TCP port it listens.
fn server_port(server: &mut Child) -> Result<u16> {
    loop {
        match server.next(PATIENCE)? {
            Line::Out(line) => {
                let digits = line.strip_prefix("listening on TCP port ").unwrap_or(&line);
                let digits = digits.split(',').next().unwrap_or_default();
                return digits
                    .parse()
                    .with_context(|| format!("the server said: {line}"));
            }
            Line::Err(_) => {}
            Line::End => {
                server.finish(PATIENCE)?;
                bail!("the server ended without a word");
            }
        }
    }
}

fn follow(client: &mut Child, progress: &dyn Fn(&str)) -> Result<Report> {
    let mut json = String::new();
    loop {
        match client.next(PATIENCE)? {
            Line::Out(line) => json.push_str(&line),
            Line::Err(line) => {
                if let Ok(step) = serde_json::from_str::<serde_json::Value>(&line)
                    && let Some(text) = step.get("line").and_then(|l| l.as_str())
                {
                    progress(text);
                }
            }
            Line::End => break,
        }
    }
    let ended = client.finish(PATIENCE);
    match serde_json::from_str::<Report>(&json) {
        // A client that found mismatches fails, but its report says more.
        Ok(report) if ended.is_ok() || report.mismatches() > 0 => Ok(report),
        Ok(_) | Err(_) => {
            ended?;
            bail!("the client ended without a report")
        }
    }
}

/// The final table with what belongs around it.
fn summary(report: &Report) -> String {
    let verified: u64 = report.results.iter().map(|r| r.verified).sum();
    let retransmissions: u64 = report.results.iter().map(|r| r.total.retransmissions).sum();
    let icrc: u64 = report.results.iter().map(|r| r.total.icrc_errors).sum();
    format!(
        "client {} ({}), server {} ({}), path MTU {}\n{}\n\
         {} messages compared byte by byte, {} wrong; {retransmissions} retransmissions, \
         {icrc} ICRC errors. Latency is the whole round trip.",
        report.client,
        report.client_port,
        report.server,
        report.server_port,
        report.path_mtu,
        show::table(report, false),
        rate_of(verified),
        report.mismatches(),
    )
}

#[allow(clippy::cast_precision_loss, reason = "shown, not computed with")]
fn rate_of(n: u64) -> String {
    rate(n as f64)
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.001..=60.0).contains(s));
    seconds.ok_or_else(|| "between 0.001 and 60 seconds".to_owned())
}

/// A line for people that is not a result.
fn note(text: &str) {
    // Standard error may be closed; the results go to standard output.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A bar on a terminal, a line for each step elsewhere.
struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    seen: std::cell::Cell<u64>,
}

impl Progress {
    fn new() -> Self {
        let small = SIZES.iter().filter(|&&s| s <= LATENCY_MAX).count();
        let total = (OPERATIONS.len() * (SIZES.len() + small)) as u64;
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            if let Ok(style) =
                ProgressStyle::with_template("[{elapsed_precise}] {bar:30} {pos}/{len}  {msg}")
            {
                bar.set_style(style);
            }
            bar
        });
        Self {
            bar,
            total,
            seen: std::cell::Cell::new(0),
        }
    }

    fn step(&self, text: &str) {
        self.seen.set(self.seen.get() + 1);
        match &self.bar {
            Some(bar) => {
                bar.set_message(text.to_owned());
                bar.inc(1);
            }
            None => note(&format!("{:>3}/{}  {text}", self.seen.get(), self.total)),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
