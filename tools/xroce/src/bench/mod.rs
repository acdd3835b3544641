//! `xroce bench`: the files that `make bench` leaves, shown again and held against each other.
//!
//! Measuring is done by `benches/suite`, which needs both ends in its hands; here is what can be
//! done with a run afterwards, on any machine.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use xroce_bench_report::{Comparison, Run, compare};

/// What to do with runs.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum BenchCommand {
    /// Print what changed from one run of the benches to another, row by row
    Compare(CompareArgs),
    /// Show a run of the benches again: Markdown, or a page with its plots
    Report(ReportArgs),
}

/// Two runs
#[derive(Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    /// JSON of the earlier run
    pub before: PathBuf,
    /// JSON of the later run
    pub after: PathBuf,
    /// Fail with status 1 if a row is worse by more than so many percent and outside the spread
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub fail_over: Option<f64>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// A run
#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    /// JSON of the run
    pub run: PathBuf,
    /// Write to this file, .html or .md, instead of Markdown to standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(v) if (0.0..=1000.0).contains(&v) => Ok(v),
        _ => Err(String::from("a percentage is a number from 0 to 1000")),
    }
}

/// Runs a subcommand.
///
/// # Errors
/// One line that names the file, the field and what is wrong with it; or the rows that got worse.
pub(crate) fn run(command: &BenchCommand, out: &mut dyn Write) -> Result<()> {
    match command {
        BenchCommand::Compare(args) => compare_runs(args, out),
        BenchCommand::Report(args) => report(args, out),
    }
}

fn compare_runs(args: &CompareArgs, out: &mut dyn Write) -> Result<()> {
    let comparison = compare(&Run::read(&args.before)?, &Run::read(&args.after)?);
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &comparison)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", comparison.markdown())?;
    }
    args.fail_over.map_or(Ok(()), |p| judge(&comparison, p))
}

/// An error if a row got worse by more than `percent`.
fn judge(comparison: &Comparison, percent: f64) -> Result<()> {
    let worse: Vec<String> = comparison
        .worse_by(percent)
        .map(|d| {
            let by = -d.gain_percent.unwrap_or_default();
            format!("{} by {by:.1} %", d.key)
        })
        .collect();
    if !worse.is_empty() {
        bail!(
            "worse by more than {percent} %, outside the spread: {}",
            worse.join(", ")
        );
    }
    Ok(())
}

fn report(args: &ReportArgs, out: &mut dyn Write) -> Result<()> {
    let run = Run::read(&args.run)?;
    let Some(path) = &args.output else {
        return Ok(write!(out, "{}", run.markdown())?);
    };
    let text = match path.extension().and_then(|e| e.to_str()) {
        Some("html" | "htm") => run.html(),
        Some("md") => run.markdown(),
        _ => bail!(
            "{}: the name says what to write: .html or .md",
            path.display()
        ),
    };
    write_file(path, &text)?;
    Ok(writeln!(out, "written: {}", path.display())?)
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
