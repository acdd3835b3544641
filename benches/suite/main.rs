//! Every row of the targets in one run (`docs/performance.md`): ours in turn with its ceiling or
//! its peer, several rounds. Table, page and all samples go to `target/bench`, the table also
//! into the documents that are named. No timing is asserted.
//!
//! `cargo bench --bench suite -- [options]`, as root for AF_XDP and the virtual machines of D8.
#![allow(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench talks, in figures for people"
)]

#[path = "../../tests/counting/mod.rs"]
mod counting;
mod cpu;
mod curves;
mod guests;
mod iperf;
mod kernel;
mod machine;
mod memory;
mod options;
mod plan;
mod profile;
mod progress;
mod qps;
#[cfg(feature = "xdp")]
mod raw;
mod rows;
mod sizes;
#[path = "../support/mod.rs"]
mod support;
mod udp;
#[cfg(feature = "xdp")]
mod xdp;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use cpu::Accounts;
use curves::Curves;
use memory::Memory;
use options::{Options, USAGE};
use progress::{Progress, about};
use rows::{D8_SEND_64, D10, Kind, Table};
use support::threads::Flow;
use udp::UdpLink;
use xroce_bench_report::{Bar, Machine, Run, SCHEMA, update};
use xroce_engine::clock;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// A run in progress.
pub(crate) struct Lab {
    pub(crate) options: Options,
    pub(crate) table: Table,
    pub(crate) curves: Curves,
    pub(crate) accounts: Accounts,
    pub(crate) bars: Vec<Bar>,
    pub(crate) progress: Progress,
    pub(crate) round: u32,
}

impl Lab {
    fn new(options: Options, seconds: f64) -> Self {
        Self {
            options,
            table: Table::new(),
            curves: Curves::default(),
            accounts: Accounts::default(),
            bars: Vec::new(),
            progress: Progress::new(seconds),
            round: 0,
        }
    }

    /// Measures ours and the peer, in odd rounds the peer first. Both get `on`.
    pub(crate) fn measure<T, A, B>(
        &self,
        on: &mut T,
        ours: impl FnOnce(&mut T) -> A,
        peer: impl FnOnce(&mut T) -> B,
    ) -> (A, Option<B>) {
        if self.options.alone {
            (ours(on), None)
        } else if self.round.is_multiple_of(2) {
            let a = ours(on);
            (a, Some(peer(on)))
        } else {
            let b = peer(on);
            (ours(on), Some(b))
        }
    }
}

/// What a reader of the row has to know, where its time went, and the flow's share in D10.
pub(crate) fn note_flow(lab: &mut Lab, kind: &'static Kind, backend: &str, flow: &Flow) {
    lab.accounts.book(kind, flow.used);
    lab.table.resent(kind, flow.retransmits);
    let per_message = flow.allocations as f64 / flow.messages.max(1) as f64;
    lab.table.add(&D10, per_message, None);
    lab.table.note(&D10, backend);
}

fn main() -> ExitCode {
    let options = match Options::parse(env::args()) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    if let Some((work, count)) = options.work {
        work.run(count);
        return ExitCode::SUCCESS;
    }
    let documents = options.documents.clone();
    let run = run(options);
    println!("{}", run.markdown());
    match save(&run) {
        Ok(to) => eprintln!("written: {}.html, .md and .json", to.display()),
        Err(e) => {
            eprintln!("cannot write the results: {e}");
            return ExitCode::FAILURE;
        }
    }
    match present(&run, &documents) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Replaces the table in the documents, unless they have a better one.
fn present(run: &Run, documents: &[PathBuf]) -> Outcome<()> {
    if documents.is_empty() {
        return Ok(());
    }
    if let Err(why) = run.is_presentable() {
        eprintln!("the documents keep the table they have: {why}");
        return Ok(());
    }
    for document in documents {
        // Cargo starts a bench in the folder of the package, from which they are named.
        update(document, &run.section())?;
        eprintln!("written: the table in {}", document.display());
    }
    Ok(())
}

/// Writes the reports, once under the time of the run, so that it can be compared later, once as
/// the latest. Returns the path of the latter without its ending.
fn save(run: &Run) -> Outcome<PathBuf> {
    // Cargo gives `target/tmp`.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    fs::create_dir_all(&target)?;
    let name = format!("run-{}.json", run.started.replace(':', ""));
    run.write(&target.join(name))?;
    let to = target.join("latest");
    run.write(&to.with_extension("json"))?;
    fs::write(to.with_extension("md"), run.markdown())?;
    fs::write(to.with_extension("html"), run.html())?;
    Ok(to)
}

/// Measures all that is asked for.
fn run(options: Options) -> Run {
    let begin = clock::now();
    let (round, once) = plan::estimate(&options);
    let (rounds, seconds) = (options.rounds, options.seconds);
    let total = round * f64::from(rounds) + once;
    eprintln!(
        "rounds: {rounds} of {seconds} s, about {} altogether; other programs should rest",
        about(total)
    );
    let mut run = Run {
        schema: SCHEMA,
        started: machine::date(),
        commit: machine::commit(),
        complete: options.is_complete(),
        rounds,
        seconds,
        took: 0.0,
        machine: Machine {
            facts: machine::facts(),
            cores: machine::cores(),
            threads: 2,
            others: Vec::new(),
            stolen: Vec::new(),
        },
        rows: Vec::new(),
        plots: Vec::new(),
        bars: Vec::new(),
    };
    let mut lab = Lab::new(options, total);
    measure_rounds(&mut lab, &mut run.machine, round);
    Memory::count(&mut lab);
    if lab.options.wants(D8_SEND_64.id) {
        lab.progress.part("D8, two virtual machines");
        guests::measure(&mut lab);
    }
    lab.progress.end();
    run.bars = lab.accounts.bars();
    run.bars.append(&mut lab.bars);
    run.rows = lab.table.into_rows();
    run.plots = lab.curves.plots();
    run.took = clock::now().since(begin).as_nanos() as f64 / 1e9;
    run
}

/// The rounds of everything that is measured in turns; what a round takes moves the bar.
fn measure_rounds(lab: &mut Lab, machine: &mut Machine, seconds: f64) {
    let mut fact = |name: &str, value: &str| machine.facts.push(machine::fact(name, value));
    #[cfg(feature = "xdp")]
    let mut xdp = open(lab, &xdp::XdpLink::ROWS, xdp::XdpLink::open);
    #[cfg(feature = "xdp")]
    if let Some(link) = &xdp {
        fact("AF_XDP", link.name());
    }
    #[cfg(not(feature = "xdp"))]
    without_xdp(lab);
    let mut udp = open(lab, &UdpLink::ROWS, UdpLink::open);
    if let Some(link) = &udp {
        fact("UDP and TCP", link.name);
    }
    let mut memory = Memory::open(lab);
    for round in 0..lab.options.rounds {
        lab.progress
            .part(&format!("round {} of {}", round + 1, lab.options.rounds));
        lab.round = round;
        machine.others.push(cpu::others());
        let host = cpu::Host::watch();
        #[cfg(feature = "xdp")]
        attempt(lab, &xdp::XdpLink::ROWS, &mut xdp, xdp::XdpLink::round);
        attempt(lab, &UdpLink::ROWS, &mut udp, UdpLink::round);
        memory.round(lab);
        machine.stolen.push(host.kept());
        lab.progress.over(seconds);
    }
}

/// The rows that a build without AF_XDP cannot have.
#[cfg(not(feature = "xdp"))]
fn without_xdp(lab: &mut Lab) {
    use rows::{D1, D1_CC, D2_1024, D2_4096, D2_CC, D3_P50, D3_P99, D9_XDP};
    let rows = [
        &D1, &D2_1024, &D2_4096, &D3_P50, &D3_P99, &D1_CC, &D2_CC, &D9_XDP,
    ];
    for kind in rows.iter().filter(|k| lab.options.wants(k.id)) {
        lab.table.note(kind, "built without AF_XDP");
    }
}

/// Opens a link if one of its rows is wanted; why not, if not.
fn open<L>(lab: &mut Lab, rows: &[&Kind], open: impl FnOnce() -> Outcome<L>) -> Option<L> {
    let wanted: Vec<&&Kind> = rows.iter().filter(|k| lab.options.wants(k.id)).collect();
    if wanted.is_empty() && !lab.options.wants(plan::SIZES) {
        return None;
    }
    match open() {
        Ok(link) => Some(link),
        Err(why) => {
            for kind in wanted {
                lab.table.note(kind, why.to_string());
            }
            None
        }
    }
}

/// One round on a link; one that fails is not tried again, and its rows say why.
fn attempt<L>(
    lab: &mut Lab,
    rows: &[&Kind],
    link: &mut Option<L>,
    round: impl FnOnce(&mut L, &mut Lab) -> Outcome<()>,
) {
    let Some(l) = link else { return };
    if let Err(why) = round(l, lab) {
        for kind in rows.iter().filter(|k| lab.options.wants(k.id)) {
            lab.table.note(kind, why.to_string());
        }
        *link = None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        dead_code,
        unused_imports,
        reason = "the bench itself is compiled as a test, but without its tests"
    )]
    use super::*;
    use xroce_bench_report::MARKS;

    #[test]
    fn a_run_of_one_row_leaves_a_file_and_the_documents_alone() {
        let args = "suite --only D10 --rounds 1 --seconds 0.01";
        let args = args.split_whitespace().map(str::to_owned);
        let mut run = run(Options::parse(args).unwrap());
        assert_eq!(run.rows.len(), 1, "{:?}", run.rows);
        assert_eq!(run.rows[0].ours().unwrap().max, 0.0);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.json");
        run.write(&file).unwrap();
        assert_eq!(Run::read(&file).unwrap(), run);

        let document = folder.path().join("a.md");
        let text = format!("{}\nold\n{}\n", MARKS[0], MARKS[1]);
        fs::write(&document, &text).unwrap();
        present(&run, std::slice::from_ref(&document)).unwrap();
        assert_eq!(fs::read_to_string(&document).unwrap(), text);
        run.complete = true;
        present(&run, std::slice::from_ref(&document)).unwrap();
        let new = fs::read_to_string(&document).unwrap();
        assert!(new.contains("| D10 |") && !new.contains("old"), "{new}");
    }
}
