//! `xroce perf`: two processes, one at each end of a path, each with an engine of its own or attached
//! to the daemon ([`device`]).
//!
//! Queue pair numbers, PSNs, keys and addresses go over a TCP side channel ([`peer`]); the data goes over
//! the device under test. An engine of one's own and the test run in one thread, as an application on a
//! poll-mode stack does; several ports are as many engines and threads ([`client_port`],
//! [`server_ports`]). The daemon moves its engine itself.
//!
//! | | |
//! |---|---|
//! | [`peer`] | talks to the other side |
//! | [`device`] | what is measured, and how it is opened |
//! | [`measure`] | posts, polls, times and compares |
//! | [`report`] | what was found, for people and for tools |

pub(crate) mod args;
pub(crate) mod client;
pub(crate) mod client_port;
mod congestion;
pub(crate) mod device;
mod loopback;
pub(crate) mod measure;
mod parse;
pub(crate) mod peer;
pub(crate) mod plan;
pub(crate) mod raw;
pub(crate) mod report;
pub(crate) mod server;
mod server_ports;

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
