//! Why a daemon does not run.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a daemon could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// Nothing to serve.
    #[error("no device is configured: give an interface or an address")]
    NoDevice,
    /// Two devices of one name.
    #[error("two devices are called {0:?}")]
    TwoDevices(String),
    /// Another daemon listens there.
    #[error("another daemon listens at {}: stop it, or choose another socket", .0.display())]
    Taken(PathBuf),
    /// The socket could not be made.
    #[error("the socket {}: {source}", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A device could not be opened.
    #[error("device {device}: {source}")]
    Device {
        /// Its name.
        device: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl DaemonError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
