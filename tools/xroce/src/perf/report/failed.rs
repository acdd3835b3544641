//! A queue pair that has failed, as an error.

use xroce_api::{Failure, FailureFacts};

/// A queue pair has failed, with all that is known about it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct QpFailed(Box<Failure>);

impl QpFailed {
    /// With what the engine knows.
    pub(crate) fn new(failure: Failure) -> Self {
        Self(failure.into())
    }

    /// The same for tools.
    pub(crate) fn facts(&self) -> FailureFacts {
        self.0.facts()
    }
}
