//! What is tried, and the tables of what came out.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use xroce_net::xdp::hop::PhantomQueue;
use xroce_proto::cc::{CongestionControl, Rate};
use xroce_proto::recovery::{AdaptiveParams, Reliability, SelectiveParams};
use xroce_proto::time::Duration;

use crate::lab::{Lab, Outcome, Run, Trial};
use xroce_bench_report::Spread;

/// Rate of the bottleneck and of each sender's link, bit/s.
const RATE: u64 = 1_000_000_000;
/// A share of the rate is payload: 1024 of 1024 and 58 + 16 of headers and 24 around, in 1106 bytes
/// with the RETH left out.
const PAYLOAD: f64 = 1024.0 / 1106.0;
const MILLION: f64 = 1e6;

/// The bottleneck.
const BOTTLENECK: PhantomQueue = PhantomQueue {
    rate: RATE,
    limit: 256_000,
    kmin: 16_000,
    kmax: 128_000,
    pmax_ppm: 100_000,
    loss_ppm: 0,
};

struct Options {
    rounds: usize,
    seconds: f64,
}

fn options(mut args: impl Iterator<Item = String>) -> Outcome<Options> {
    let mut options = Options {
        rounds: 5,
        seconds: 2.0,
    };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            // What cargo adds.
            "--bench" => {}
            "--rounds" => options.rounds = args.next().unwrap_or_default().parse()?,
            "--seconds" => options.seconds = args.next().unwrap_or_default().parse()?,
            _ => return Err(format!("{arg}: there are --rounds N and --seconds S").into()),
        }
    }
    if options.rounds == 0 || !(0.01..=3600.0).contains(&options.seconds) {
        return Err("at least one round of 0.01 to 3600 seconds".into());
    }
    Ok(options)
}

/// A line of a table, and its runs.
struct Row {
    name: String,
    trial: Trial,
    runs: Vec<Run>,
}

impl Row {
    fn new(name: impl Into<String>, trial: Trial) -> Self {
        Self {
            name: name.into(),
            trial,
            runs: Vec::new(),
        }
    }

    fn show(&self, what: impl Fn(&Run) -> f64, each: impl Fn(f64) -> String) -> String {
        Spread::of(self.runs.iter().map(what)).map_or_else(String::new, |s| s.show(each))
    }
}

/// Prints everything, writes it to `target/bench/hop.md`.
pub(crate) fn run(args: impl Iterator<Item = String>) -> Outcome<()> {
    let options = options(args)?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "options() has checked the range"
    )]
    let time = Duration::from_nanos((options.seconds * 1e9) as u64);
    let mut lab = Lab::open(8)?;
    let mut incast = incast_rows()?;
    let mut lossy = loss_rows();
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for row in incast.iter_mut().chain(&mut lossy) {
            let run = lab.run(&row.trial, time)?;
            for why in &run.failed {
                eprintln!("{}: {why}", row.name);
            }
            row.runs.push(run);
        }
    }
    let (rounds, seconds) = (options.rounds, options.seconds);
    let mut out = format!("{rounds} rounds of {seconds} s, median (spread).\n\n");
    out += &incast_table(&incast);
    out += "\n";
    out += &loss_table(&lossy);
    println!("{out}");
    // Cargo gives `target/tmp`.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    fs::create_dir_all(&target)?;
    fs::write(target.join("hop.md"), out)?;
    Ok(())
}

/// DCQCN for a link of 1 Gb/s: what the paper has for 40 Gb/s, with the steps of the rate reduced in
/// proportion and the byte counter too.
fn dcqcn() -> Outcome<CongestionControl> {
    let scaled = [
        ("rpg_ai_rate", 5),
        ("rpg_hai_rate", 20),
        ("rpg_min_rate", 5),
        ("rpg_byte_reset", 250_000),
    ];
    let line = Rate::bits_per_second(RATE);
    Ok(CongestionControl::by_name("dcqcn", line, &scaled)?)
}

fn incast_rows() -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for senders in [2, 8] {
        for (name, control) in [("off", None), ("DCQCN", Some(dcqcn()?))] {
            let trial = Trial {
                senders,
                control,
                reliability: Reliability::GoBackN,
                queue: BOTTLENECK,
                loss_back: 0,
            };
            rows.push(Row::new(format!("{senders}:1, {name}"), trial));
        }
    }
    Ok(rows)
}

fn incast_table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| incast | goodput, of the bottleneck's | Jain | queue p50, KB | p95 | max | dropped, % \
         | marked, % | CNPs | sent again, % |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    let arrived = |r: &Run| r.queue.frames + r.queue.overflowed + r.queue.lost;
    for row in rows {
        let kb = |v: f64| format!("{:.0}", v / 1e3);
        let two = |v: f64| format!("{v:.2}");
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.name,
            row.show(|r| r.total() / (RATE as f64 * PAYLOAD), two),
            row.show(Run::jain, |v| format!("{v:.3}")),
            row.show(|r| r.queue.percentile(50) as f64, kb),
            row.show(|r| r.queue.percentile(95) as f64, kb),
            row.show(|r| r.queue.deepest as f64, kb),
            row.show(|r| percent(r.queue.overflowed, arrived(r)), two),
            row.show(|r| percent(r.queue.marked, arrived(r)), two),
            row.show(|r| r.senders.cnps_handled as f64, |v| format!("{v:.0}")),
            row.show(
                |r| percent(r.senders.retransmits, r.senders.tx_packets),
                two
            ),
        );
    }
    out
}

fn loss_rows() -> Vec<Row> {
    let kinds = [
        ("go-back-N", Reliability::GoBackN),
        (
            "go-back-N, adaptive timeout",
            Reliability::Adaptive(AdaptiveParams::default()),
        ),
        (
            "selective",
            Reliability::Selective(SelectiveParams::default()),
        ),
    ];
    let mut rows = Vec::new();
    for loss_ppm in [0, 1_000, 10_000, 50_000] {
        for (name, reliability) in kinds {
            let trial = Trial {
                senders: 1,
                control: None,
                reliability,
                queue: PhantomQueue {
                    loss_ppm,
                    ..PhantomQueue::default()
                },
                loss_back: loss_ppm,
            };
            rows.push(Row::new(name, trial));
        }
    }
    rows
}

/// Each round against its own: go-back-N of the same loss, and the same way of repair without loss.
fn loss_table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| loss each way, % | repair | goodput, Gb/s | against go-back-N | against no loss | sent \
         again, % | timeouts |\n|---|---|---|---|---|---|---|\n",
    );
    let two = |v: f64| format!("{v:.2}");
    let kinds = 3;
    for (i, row) in rows.iter().enumerate() {
        let base = &rows[i - i % kinds];
        let clean = &rows[i % kinds];
        let against = |other: &Row| {
            let pairs = row.runs.iter().zip(&other.runs);
            Spread::of(pairs.map(|(a, b)| a.total() / b.total()))
                .map_or_else(String::new, |s| s.show(two))
        };
        let again = |r: &Run| 100.0 * r.senders.retransmits as f64 / r.senders.tx_packets as f64;
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} |",
            f64::from(row.trial.queue.loss_ppm) * 100.0 / MILLION,
            row.name,
            row.show(|r| r.total() / 1e9, two),
            against(base),
            against(clean),
            row.show(again, two),
            row.show(|r| r.senders.timeouts as f64, |v| format!("{v:.0}")),
        );
    }
    out
}
