//! Metrics for Prometheus.
//!
//! A scrape is one look at the daemon ([`Snapshot`]): one report of each device, the sessions, and
//! sums over queue pairs, which the engine's thread makes a few at a time. Scrapes come one after
//! the other, connections are few and short ([`http`]).

mod http;
mod text;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xroce_api::message::{Report, SessionReport};
use xroce_daemon::{Daemon, DeviceTotals};

/// Connections served at once; others are told to come back.
const CONNECTIONS: usize = 8;
/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(200);

/// What the daemon did, as one scrape sees it.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub report: Report,
    pub sessions: Vec<SessionReport>,
    pub totals: Vec<DeviceTotals>,
}

impl Snapshot {
    fn of(daemon: &Daemon) -> Self {
        Self {
            report: daemon.report(),
            sessions: daemon.sessions(),
            totals: daemon.totals(),
        }
    }
}

/// Serves metrics until dropped.
#[derive(Debug)]
pub(crate) struct Exporter {
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Listens at `at`.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(crate) fn start(at: SocketAddr, daemon: Arc<Daemon>) -> Result<Self> {
        let listener = TcpListener::bind(at).and_then(|l| {
            l.set_nonblocking(true)?;
            Ok(l)
        });
        let listener = listener.with_context(|| format!("--metrics {at}"))?;
        let at = listener.local_addr().unwrap_or(at);
        tracing::info!(%at, "metrics");
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread = Builder::new().name("xroced-metrics".to_owned());
        let thread = thread.spawn(move || accept_all(&listener, &daemon, &stop));
        Ok(Self {
            stopping,
            thread: Some(thread.context("starting a thread")?),
        })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

fn accept_all(listener: &TcpListener, daemon: &Daemon, stop: &AtomicBool) {
    let open = AtomicUsize::new(0);
    // One scrape at a time, however many ask.
    let turn = Mutex::new(());
    let page = || {
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        text::of(Snapshot::of(daemon))
    };
    // Connections end by their deadline, so leaving the scope takes no longer than that.
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Acquire) {
            let mut fds = [PollFd::new(listener, PollFlags::IN)];
            let timeout = Timespec::try_from(LOOK).ok();
            if poll(&mut fds, timeout.as_ref()).is_err() {
                continue;
            }
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(error) => {
                    tracing::warn!(%error, "a scrape could not be accepted");
                    std::thread::sleep(LOOK);
                    continue;
                }
            };
            if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS {
                http::refuse(stream);
                open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let serve = || {
                http::serve(stream, page);
                open.fetch_sub(1, Ordering::Relaxed);
            };
            let thread = Builder::new().name("xroced-scrape".to_owned());
            if let Err(error) = thread.spawn_scoped(scope, serve) {
                tracing::warn!(%error, "no thread for a scrape");
                open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    });
}
