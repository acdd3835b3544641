//! The ratios of `docs/performance.md`: each of ours measured in turn with its ceiling or its
//! peer, several rounds. Prints a Markdown table; the same and all samples as JSON go to
//! `target/bench`. No timing is asserted.
//!
//! `cargo bench --bench link -- [--rounds N] [--seconds S] [--only D1,D4]`, as root for AF_XDP. With
//! `--alone` without the peers, for a profiler.
#![allow(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench talks, in figures for people"
)]

mod callgrind;
#[path = "../../tests/counting/mod.rs"]
mod counting;
mod iperf;
mod kernel;
mod machine;
mod options;
#[cfg(feature = "xdp")]
mod raw;
mod rows;
#[path = "../support/mod.rs"]
mod support;
mod udp;
#[cfg(feature = "xdp")]
mod xdp;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use options::{Options, USAGE};
use rows::{D6, D6_INSTRUCTIONS, D7, D7_CC, D10, Kind, Table};
use support::core::{ByteRate, MessageRate, messages};
use support::threads::Flow;
use support::{Op, Pace, Pair};
use udp::UdpLink;
use xroce_net::datapath::Link;
use xroce_wire::newtypes::PathMtu;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// A run in progress.
pub(crate) struct Lab {
    pub(crate) options: Options,
    pub(crate) table: Table,
    pub(crate) round: usize,
}

impl Lab {
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

/// What a reader of the row has to know, and the flow's share in D10.
pub(crate) fn note_flow(table: &mut Table, kind: &Kind, backend: &str, flow: &Flow) {
    table.resent(kind, flow.retransmits);
    let per_message = flow.allocations as f64 / flow.messages.max(1) as f64;
    table.add(&D10, per_message, None);
    table.note(&D10, backend);
}

fn main() -> ExitCode {
    let options = match Options::parse(env::args()) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(count) = options.messages {
        messages(count);
        return ExitCode::SUCCESS;
    }
    let mut facts = machine::facts();
    let mut lab = Lab {
        options,
        table: Table::new(),
        round: 0,
    };
    run(&mut lab, &mut facts);
    let markdown = lab.table.markdown(&facts);
    println!("{markdown}");
    match save(&markdown, &lab.table.json(&facts).to_string()) {
        Ok(to) => {
            eprintln!("written: {to}.md, {to}.json");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("cannot write the results: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Writes both reports, returns their common path.
fn save(markdown: &str, json: &str) -> Outcome<String> {
    // Cargo gives `target/tmp`.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    fs::create_dir_all(&target)?;
    let to = target.join("link");
    fs::write(to.with_extension("md"), markdown)?;
    fs::write(to.with_extension("json"), json)?;
    Ok(to.display().to_string())
}

fn run(lab: &mut Lab, facts: &mut Vec<(&'static str, String)>) {
    #[cfg(feature = "xdp")]
    let mut xdp = open(lab, &xdp::XdpLink::ROWS, xdp::XdpLink::open);
    #[cfg(feature = "xdp")]
    if let Some(link) = &xdp {
        facts.push(("AF_XDP", link.name().to_owned()));
    }
    let mut udp = open(lab, &UdpLink::ROWS, UdpLink::open);
    if let Some(link) = &udp {
        facts.push(("UDP and TCP", link.name.to_owned()));
    }
    let rounds = format!("{}, {} s each", lab.options.rounds, lab.options.seconds);
    facts.push(("rounds", rounds));
    let mut core = lab.options.wants(&[D6.id]).then(MessageRate::new);
    let mut bytes = lab.options.wants(&[D7.id, D7_CC.id]).then(ByteRate::new);
    for round in 0..lab.options.rounds {
        eprintln!("round {} of {}", round + 1, lab.options.rounds);
        lab.round = round;
        #[cfg(feature = "xdp")]
        attempt(lab, &xdp::XdpLink::ROWS, &mut xdp, xdp::XdpLink::round);
        attempt(lab, &UdpLink::ROWS, &mut udp, UdpLink::round);
        if let Some(core) = &mut core {
            lab.table.add(&D6, core.measure(), None);
        }
        if let Some(bytes) = &mut bytes {
            in_memory(lab, bytes);
        }
    }
    if lab.options.wants(&[D6_INSTRUCTIONS.id]) {
        match callgrind::per_message() {
            Ok(n) => lab.table.add(&D6_INSTRUCTIONS, n, None),
            Err(why) => lab.table.note(&D6_INSTRUCTIONS, why),
        }
    }
    if lab.options.wants(&[D10.id]) {
        allocations_in_memory(lab);
    }
}

/// One round of D7, and with pacing.
fn in_memory(lab: &mut Lab, bytes: &mut ByteRate) {
    let with = |pace| move |bytes: &mut ByteRate| bytes.measure(pace);
    if lab.options.wants(&[D7.id]) {
        let (ours, bare) = lab.measure(bytes, with(Pace::Fixed), ByteRate::copy_and_crc);
        lab.table.add(&D7, ours, bare);
    }
    if lab.options.wants(&[D7_CC.id]) {
        let (paced, plain) = lab.measure(bytes, with(Pace::Dcqcn), with(Pace::Fixed));
        lab.table.add(&D7_CC, paced, plain);
    }
}

/// Opens a link if one of its rows is wanted; why not, if not.
fn open<L>(lab: &mut Lab, rows: &[&Kind], open: impl FnOnce() -> Outcome<L>) -> Option<L> {
    let wanted: Vec<&&Kind> = rows.iter().filter(|k| lab.options.wants(&[k.id])).collect();
    if wanted.is_empty() {
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
        for kind in rows.iter().filter(|k| lab.options.wants(&[k.id])) {
            lab.table.note(kind, why.to_string());
        }
        *link = None;
    }
}

/// D10 for all operations; the other links add theirs with each measurement.
fn allocations_in_memory(lab: &mut Lab) {
    const COUNT: usize = 20_000;
    let mut pair = Pair::in_memory(Link::Ethernet, PathMtu::Mtu4096, 1);
    for (op, size) in [(Op::Send, 64), (Op::Write, 8192), (Op::Read, 8192)] {
        pair.stream(op, size, COUNT);
        let before = counting::asked();
        pair.stream(op, size, COUNT);
        let asked = counting::asked() - before;
        lab.table.add(&D10, asked as f64 / COUNT as f64, None);
    }
    lab.table.note(&D10, "in memory");
}
