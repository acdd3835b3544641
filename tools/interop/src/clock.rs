//! The clock of the runner, which waits for processes and machines; the engine under test has its
//! own.

use std::time::Instant;

/// Now.
#[allow(
    clippy::disallowed_methods,
    reason = "nothing of the protocol reads this clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
