//! The `xroce` command.
//!
//! An error is one line on standard error and a non-zero exit status: 1 for a failure, 2 for
//! wrong arguments, 130 after Ctrl-C.
#![forbid(unsafe_code)]

mod bench;
mod capture;
mod decode;
mod demo;
mod doctor;
#[cfg(feature = "xdp")]
mod hop;
mod perf;
mod sim;
mod stat;
mod stop;
mod top;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A software RDMA NIC: RoCEv2 over AF_XDP or UDP sockets.
#[derive(Parser, Debug)]
#[command(name = "xroce", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one, for the life of the process"
)]
enum Command {
    /// Measure bandwidth and latency of RC SEND, RDMA WRITE and RDMA READ between two processes
    #[command(subcommand)]
    Perf(perf::args::PerfCommand),
    /// Show runs of the benches again, and what changed from one to another
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Find out what is wrong with the path between two hosts, in words
    Doctor(doctor::DoctorArgs),
    /// Show two software RNICs exchanging verified SEND, WRITE and READ
    Demo(demo::DemoArgs),
    /// One process of the daemon demo
    #[command(hide = true)]
    DemoGuest(demo::guest::GuestArgs),
    /// Capture what a device of the daemon sends and receives
    Capture(capture::CaptureArgs),
    /// Print the RoCE packets of a capture file
    Decode(decode::DecodeArgs),
    /// Join interfaces by a bottleneck in the kernel that marks, drops and loses
    #[cfg(feature = "xdp")]
    Hop(hop::HopArgs),
    /// Run the protocol engine at every host of a simulated data-centre fabric
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Print what the daemon has and does: devices, processes, queue pairs, and their rates
    Stat(stat::StatArgs),
    /// Show it live, as `top` does
    Top(top::TopArgs),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    // Line buffered, and locked once: rows of `decode` come by the million.
    let mut out = std::io::stdout().lock();
    let result = match &cli.command {
        Command::Perf(command) => perf::run(command, &mut out),
        Command::Bench(command) => bench::run(command, &mut out),
        Command::Doctor(args) => doctor::run(args, &mut out),
        Command::Demo(args) => demo::run(args, &mut out),
        Command::DemoGuest(args) => demo::guest::run(args, &mut out),
        Command::Capture(args) => capture::run(args, &mut out),
        Command::Decode(args) => decode::run(args, &mut out),
        #[cfg(feature = "xdp")]
        Command::Hop(args) => hop::run(args, &mut out),
        Command::Sim(command) => sim::run(command, &mut out),
        Command::Stat(args) => stat::run(args, &mut out),
        Command::Top(args) => top::run(args, &mut out),
    };
    let result = result.and_then(|()| Ok(out.flush()?));
    let Err(e) = result else {
        return ExitCode::SUCCESS;
    };
    if e.downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    {
        // `xroce … | head`: the reader has what it wanted.
        return ExitCode::SUCCESS;
    }
    let interrupted = e.chain().any(|cause| cause.is::<stop::Interrupted>());
    complain(&format!("{e:#}"));
    if interrupted {
        ExitCode::from(130)
    } else {
        ExitCode::FAILURE
    }
}

/// What clap found wrong, in one line; help and version in full.
fn usage(e: &clap::Error) -> ExitCode {
    if !e.use_stderr() {
        // Help that nobody reads is no failure.
        let _ = e.print();
        return ExitCode::SUCCESS;
    }
    if e.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = e.print();
        return ExitCode::from(2);
    }
    // The first paragraph is what is wrong; usage and hints follow.
    let text = e.render().to_string();
    let what = text.split("\n\n").next().unwrap_or(&text);
    let words: Vec<&str> = what
        .trim_start_matches("error:")
        .split_whitespace()
        .collect();
    complain(&format!("{} (see \"xroce help\")", words.join(" ")));
    ExitCode::from(2)
}

/// One line on standard error.
fn complain(text: &str) {
    let line = text
        .split('\n')
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(" ");
    // Where standard error is closed, the exit status still tells.
    let _ = writeln!(std::io::stderr(), "xroce: {line}");
}
