//! The one place that reads the clock that timers and rates go by. Nobody can set it.

use std::sync::OnceLock;

use xroce_proto::time::Instant;

/// Monotonic time since the first call in this process.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
#[must_use]
pub fn now() -> Instant {
    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
    let origin = ORIGIN.get_or_init(std::time::Instant::now);
    Instant::from_nanos(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX - 1))
}
