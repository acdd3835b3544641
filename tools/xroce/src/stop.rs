//! Ctrl-C, SIGTERM and SIGHUP set a flag; every loop looks at it.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// The user has had enough.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Installs the handler; later signals only set the flag again.
///
/// # Errors
/// The handler thread cannot be started.
pub(crate) fn install() -> anyhow::Result<()> {
    // Relaxed: a lone flag, nothing is published with it.
    ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed))
        .map_err(|e| anyhow::anyhow!("cannot catch Ctrl-C: {e}"))
}

/// Whether a signal has come.
pub(crate) fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// An error if a signal has come, for `?`.
///
/// # Errors
/// [`Interrupted`].
pub(crate) fn check() -> Result<(), Interrupted> {
    if requested() {
        Err(Interrupted)
    } else {
        Ok(())
    }
}
