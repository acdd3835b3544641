//! What is logged, and how: to standard error, and another filter at any time.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::Handle;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// What may be changed while it runs.
#[derive(Debug)]
pub(crate) struct Log(Handle<EnvFilter, Registry>);

/// A filter: of the user, of `RUST_LOG`, or information and above.
///
/// # Errors
/// It is none.
pub(crate) fn filter(given: Option<&str>) -> Result<EnvFilter> {
    let variable = std::env::var("RUST_LOG").ok();
    let text = given.or(variable.as_deref()).unwrap_or("info");
    let filter = EnvFilter::try_new(text);
    filter.with_context(|| {
        format!("--log {text:?}: give error, warn, info, debug or trace, or such as xroce_net=debug,info")
    })
}

impl Log {
    /// Begins to log.
    ///
    /// # Errors
    /// See [`filter`].
    pub(crate) fn start(given: Option<&str>) -> Result<Self> {
        let (layer, handle) = reload::Layer::new(filter(given)?);
        let lines = fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        let registry = tracing_subscriber::registry().with(layer);
        // The journal has its own time.
        let started = if std::env::var_os("JOURNAL_STREAM").is_some() {
            registry.with(lines.without_time()).try_init()
        } else {
            registry.with(lines).try_init()
        };
        started.context("starting to log")?;
        Ok(Self(handle))
    }

    /// Another filter from now on.
    ///
    /// # Errors
    /// See [`filter`]; the old one stays.
    pub(crate) fn set(&self, given: Option<&str>) -> Result<()> {
        self.0
            .reload(filter(given)?)
            .context("changing what is logged")
    }
}
