//! `xroce perf`: two processes, one at each end of a path, each with an engine of its own or attached
//! to the daemon ([`device`]).
//!
//! Queue pair numbers, PSNs, keys and addresses go over a TCP side channel ([`message`],
//! [`channel`]); the data goes over the device under test ([`flow`]). An engine of one's own ([`port`],
//! [`node`]) and the test run in one thread, as an application on a poll-mode stack does; several
//! ports are as many engines and threads ([`lane`], [`hall`]). The daemon moves its engine itself
//! ([`verbs_device`]).
//!
//! [`traffic`] is the client's half of a measurement, [`answer`] the server's; the messages themselves
//! are those of a [`side`], or of [`latency`]. [`pace`] says when messages of an open loop are due.

mod answer;
pub(crate) mod args;
pub(crate) mod channel;
pub(crate) mod client;
mod compat;
mod congestion;
pub(crate) mod device;
mod failed;
mod flow;
pub(crate) mod gate;
mod hall;
pub(crate) mod lane;
mod latency;
mod loopback;
pub(crate) mod message;
mod meter;
pub(crate) mod node;
pub(crate) mod pace;
mod parse;
mod pattern;
pub(crate) mod plan;
pub(crate) mod port;
mod ports;
mod posting;
mod quantiles;
pub(crate) mod raw;
pub(crate) mod report;
pub(crate) mod server;
pub(crate) mod show;
mod side;
mod stats;
pub(crate) mod talk;
mod traffic;
mod usage;
mod verbs_device;

use std::io::Write;

use anyhow::Result;

/// Runs a subcommand.
///
/// # Errors
/// One line that says what is wrong and what to do.
pub(crate) fn run(command: &args::PerfCommand, out: &mut dyn Write) -> Result<()> {
    crate::stop::install()?;
    if let Some(parent) = command.parent() {
        die_with(parent)?;
    }
    match command {
        args::PerfCommand::Server(args) => server::run(args, out),
        args::PerfCommand::Client(args) => client::run(args, out),
        args::PerfCommand::Raw(args) => raw::run(args, out),
        args::PerfCommand::Loopback(args) => loopback::run(args, out),
    }
}

/// Has the kernel end this process when its parent ends, however that ends.
fn die_with(parent: i32) -> Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have ended before the kernel knew.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) == Some(parent) {
        Ok(())
    } else {
        anyhow::bail!("process {parent}, which started this one, is gone")
    }
}
