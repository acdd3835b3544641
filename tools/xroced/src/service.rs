//! The life of the daemon: start, signals, reload, end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use xroce_daemon::Daemon;

use crate::log::Log;
use crate::metrics::Exporter;
use crate::options::Cli;
use crate::plan::Plan;

/// Serves until a signal says otherwise.
///
/// # Errors
/// It could not start; why, and what to do.
pub(crate) fn run(cli: &Cli) -> Result<()> {
    let plan = Plan::new(&cli.all()?)?;
    let log = Log::start(plan.log.as_deref())?;
    let hurry = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // Does nothing before the first has been seen; the second ends it at once.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&hurry))
            .context("catching signals")?;
    }
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("catching signals")?;
    raise_limits();
    // What it says has its causes in it.
    let daemon = Daemon::start(plan.daemon.clone()).map_err(|e| anyhow!("{e}"))?;
    let daemon = Arc::new(daemon);
    let exporter = plan
        .metrics
        .map(|at| Exporter::start(at, Arc::clone(&daemon)));
    let exporter = exporter.transpose()?;
    say_serving(&daemon, &plan);
    let mut running = plan;
    for signal in signals.forever() {
        if signal == SIGHUP {
            reload(cli, &daemon, &log, &mut running);
            continue;
        }
        hurry.store(true, Ordering::SeqCst);
        let name = if signal == SIGTERM {
            "SIGTERM"
        } else {
            "SIGINT"
        };
        tracing::info!(
            signal = name,
            drain_s = running.daemon.drain.as_secs(),
            sessions = daemon.sessions().len(),
            "stopping; the same signal again stops at once"
        );
        tell(&[NotifyState::Stopping]);
        break;
    }
    // The exporter has the daemon too.
    drop(exporter);
    if let Some(daemon) = Arc::into_inner(daemon) {
        daemon.stop("the daemon was stopped by its operator");
    }
    tracing::info!("stopped");
    Ok(())
}

fn say_serving(daemon: &Daemon, plan: &Plan) {
    let devices = daemon.devices().join(", ");
    let metrics = plan.metrics.map(|at| at.to_string());
    tracing::info!(
        release = env!("CARGO_PKG_VERSION"),
        devices,
        socket = %plan.daemon.socket.display(),
        mode = format!("{:04o}", plan.daemon.mode),
        metrics = metrics.as_deref().unwrap_or("none"),
        "serving"
    );
    tell(&[
        NotifyState::Ready,
        NotifyState::Status(&format!("serving {devices}")),
    ]);
}

/// To systemd, if it is there.
fn tell(what: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(what) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}

/// Reads the configuration again and takes over what can be; a wrong one changes nothing.
fn reload(cli: &Cli, daemon: &Daemon, log: &Log, running: &mut Plan) {
    let mut states = vec![NotifyState::Reloading];
    states.extend(NotifyState::monotonic_usec_now());
    tell(&states);
    match try_reload(cli, daemon, log, running) {
        Ok(()) => tracing::info!("reloaded"),
        Err(error) => tracing::error!(
            error = format!("{error:#}"),
            "not reloaded, everything stays as it was"
        ),
    }
    tell(&[NotifyState::Ready]);
}

fn try_reload(cli: &Cli, daemon: &Daemon, log: &Log, running: &mut Plan) -> Result<()> {
    let new = Plan::new(&cli.all()?)?;
    crate::log::filter(new.log.as_deref())?;
    let kept = daemon.reload(&new.daemon)?;
    log.set(new.log.as_deref())?;
    for (differs, what) in [
        (kept.other_socket, "socket"),
        (kept.other_devices, "devices, poll, core, ring-size"),
        (new.metrics != running.metrics, "metrics"),
    ] {
        if differs {
            tracing::warn!(
                what,
                "cannot be changed while running: restart xroced for it"
            );
        }
    }
    running.daemon.drain = new.daemon.drain;
    Ok(())
}

/// Every process takes a handful of descriptors, and the frames of AF_XDP are locked memory: as much
/// of both as the system gives.
fn raise_limits() {
    for (resource, what) in [
        (Resource::Nofile, "descriptors"),
        (Resource::Memlock, "locked memory"),
    ] {
        let had = getrlimit(resource);
        let wanted = Rlimit {
            current: had.maximum,
            maximum: had.maximum,
        };
        match setrlimit(resource, wanted) {
            Ok(()) => tracing::debug!(what, limit = had.maximum, "limit"),
            Err(error) => tracing::warn!(
                %error,
                what,
                limit = had.current,
                "the limit could not be raised: fewer processes or devices fit"
            ),
        }
    }
}
