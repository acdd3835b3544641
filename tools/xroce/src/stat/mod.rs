//! `xroce stat`: what the daemon has and does.

pub(crate) mod sample;
pub(crate) mod shown;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use xroce_control::SOCKET_DEFAULT;
use xroce_control::client::Client;

use crate::stop;
use sample::{Sample, Span};

/// A signal is looked for so often.
const NAP: Duration = Duration::from_millis(50);
/// Longest time between two samples, s.
const INTERVAL_MAX: f64 = 3600.0;

/// `xroce stat`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Root and the user of the daemon see everything, others see their own processes. Rates are those of \
--interval; with --interval 0 everything is counted from its beginning.")]
pub(crate) struct StatArgs {
    /// The daemon's socket
    #[arg(long, default_value = SOCKET_DEFAULT, value_name = "PATH")]
    pub socket: PathBuf,
    /// Time over which rates are taken; 0: no rates, but totals
    #[arg(long, default_value = "1", value_parser = interval, value_name = "SECONDS")]
    pub interval: Duration,
    /// Show this session only
    #[arg(long, value_name = "N")]
    pub session: Option<u32>,
    /// Print every counter that is not zero, too
    #[arg(long)]
    pub counters: bool,
    /// Print one JSON object with everything instead
    #[arg(long)]
    pub json: bool,
}

/// A time in seconds that can be waited for.
pub(crate) fn interval(text: &str) -> Result<Duration> {
    let seconds: f64 = text
        .parse()
        .with_context(|| format!("\"{text}\" is not a number of seconds"))?;
    ensure!(
        (0.0..=INTERVAL_MAX).contains(&seconds),
        "{text} s: give 0 to {INTERVAL_MAX} s"
    );
    Ok(Duration::from_secs_f64(seconds))
}

/// Connects to a daemon.
pub(crate) fn connect(socket: &Path, name: &str) -> Result<Client> {
    Ok(Client::connect(socket, name)?)
}

/// Prints what the daemon has and does.
///
/// # Errors
/// No daemon, or it does not answer.
pub(crate) fn run(args: &StatArgs, out: &mut dyn Write) -> Result<()> {
    let client = connect(&args.socket, "xroce stat")?;
    let first = take(&client, args.session)?;
    let second = if args.interval.is_zero() {
        None
    } else {
        stop::install()?;
        rest(args.interval)?;
        Some(take(&client, args.session)?)
    };
    let span = match &second {
        Some(second) => Span::new(second, Some(&first)),
        None => Span::new(&first, None),
    };
    if args.json {
        writeln!(out, "{}", shown::json(&span))?;
    } else {
        writeln!(out, "{}", shown::text(&span, args.counters))?;
    }
    Ok(())
}

fn take(client: &Client, session: Option<u32>) -> Result<Sample> {
    let mut sample = Sample::take(client)?;
    if let Some(wanted) = session {
        sample.sessions.retain(|s| s.session == wanted);
        sample.qps.retain(|qp| qp.session == wanted);
        ensure!(
            !sample.sessions.is_empty(),
            "there is no session {wanted} (any more), or it is another user's"
        );
    }
    Ok(sample)
}

/// Waits, unless the user interrupts.
pub(crate) fn rest(time: Duration) -> Result<()> {
    let mut left = time;
    while !left.is_zero() {
        stop::check()?;
        let nap = left.min(NAP);
        std::thread::sleep(nap);
        left -= nap;
    }
    Ok(())
}
