//! `xroce sim`: scenarios on the simulated fabric of `xroce-fabric`, as a table, JSON and pages.
//!
//! The library knows no clock; how fast it ran is measured here.

mod edit;
mod html;
mod pareto;
mod plot;
mod run;
mod sweep;
mod sweep_page;
pub(crate) mod table;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::{Args, Subcommand};
use xroce_fabric::Setup;
use xroce_fabric::scenario::Scenario;

use crate::stop;
use edit::Assignment;

/// Largest scenario file, bytes.
const FILE_MAX: u64 = 16 << 20;

/// Where reports go unless told otherwise.
const REPORTS: &str = "report/sim";

/// What to do with scenarios.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum SimCommand {
    /// Run a scenario and print what came out
    Run(RunArgs),
    /// Run a scenario with many values of some keys, on all cores, and name the best ones
    Sweep(sweep::SweepArgs),
    /// Check a scenario and say what it would be
    Check(CheckArgs),
}

/// A scenario, and changes to it.
#[derive(Args, Clone, Debug)]
pub(crate) struct Source {
    /// Scenario, TOML
    pub scenario: PathBuf,
    /// Another value for a key, such as ecn.kmin=20KB or workload.0.incast.senders=8; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = Assignment::parse)]
    pub set: Vec<Assignment>,
    /// Another seed than the scenario's
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Run a scenario
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub source: Source,
    /// Write everything as JSON to this file, - for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report with its plots to this file [default: report/sim/NAME.html]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write no report
    #[arg(long, conflicts_with = "html")]
    pub no_html: bool,
    /// No progress bar
    #[arg(long, short)]
    pub quiet: bool,
}

/// Check a scenario
#[derive(Args, Clone, Debug)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub source: Source,
}

/// Runs a subcommand.
///
/// # Errors
/// One line that says what is wrong and what to do.
pub(crate) fn run(command: &SimCommand, out: &mut dyn Write) -> Result<()> {
    stop::install()?;
    match command {
        SimCommand::Run(args) => run::run(args, out),
        SimCommand::Sweep(args) => sweep::run(args, out),
        SimCommand::Check(args) => check(args, out),
    }
}

/// A text file that is not absurdly long.
fn read(path: &Path) -> Result<String> {
    let name = path.display();
    let about = fs::metadata(path).with_context(|| format!("cannot read {name}"))?;
    if about.len() > FILE_MAX {
        return Err(anyhow!(
            "{name} is {} bytes, a scenario has at most {FILE_MAX}",
            about.len()
        ));
    }
    fs::read_to_string(path).with_context(|| format!("cannot read {name}"))
}

/// A scenario from a file with changes, and the run it stands for.
fn load(source: &Source) -> Result<(Scenario, Setup)> {
    let text = read(&source.scenario)?;
    let file = source.scenario.display();
    let loaded = if source.set.is_empty() {
        Scenario::load(&text, source.seed).map_err(|e| anyhow!("{file}: {e}"))
    } else {
        edit::load(&text, &source.set, source.seed).map_err(|e| anyhow!("{file}: {e}"))
    };
    let (mut scenario, setup) = loaded?;
    if scenario.name.is_empty() {
        let stem = source.scenario.file_stem().unwrap_or_default();
        scenario.name = stem.to_string_lossy().into_owned();
    }
    Ok((scenario, setup))
}

/// Writes a file and the folders it is in.
fn write(path: &Path, content: &str) -> Result<()> {
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Where the report of a scenario goes: only letters, digits, - and _ of its name.
fn report_path(name: &str, suffix: &str) -> PathBuf {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    let name: String = name.chars().take(80).map(plain).collect();
    Path::new(REPORTS).join(format!("{name}{suffix}.html"))
}

fn check(args: &CheckArgs, out: &mut dyn Write) -> Result<()> {
    let (scenario, setup) = load(&args.source)?;
    let topology = &setup.topology;
    writeln!(
        out,
        "{}: {} hosts, {} switches, {} links; {} flows in {} workloads, {} faults; up to {}",
        scenario.name,
        topology.hosts.len(),
        topology.switches.len(),
        topology.links.len(),
        setup.flows.len(),
        setup.groups.len(),
        setup.faults.len(),
        setup.end,
    )?;
    Ok(())
}

#[cfg(test)]
mod scenario_tests;
#[cfg(test)]
mod tests;
