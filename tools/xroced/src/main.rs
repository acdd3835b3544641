//! The `xroced` command: the daemon of `xroce-daemon` with flags, a file, signals and metrics.
//!
//! An error is one line on standard error and a non-zero exit status: 1 for a failure, 2 for wrong
//! flags.
#![forbid(unsafe_code)]

mod check;
mod log;
mod metrics;
mod options;
mod plan;
mod service;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use options::Cli;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Where the output is closed, the exit status still tells.
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    let done = if cli.check {
        check::run(&cli, &mut std::io::stdout().lock())
    } else {
        service::run(&cli).map(|()| true)
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            let text = format!("{e:#}");
            let line: Vec<&str> = text.lines().map(str::trim).collect();
            let _ = writeln!(std::io::stderr(), "xroced: {}", line.join(" "));
            ExitCode::FAILURE
        }
    }
}
