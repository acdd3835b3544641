//! How whoever drives an engine waits for work.

/// How a thread that drives an engine waits for work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollMode {
    /// Never sleeps: lowest latency, one core.
    Busy,
    /// Without work it offers its core to others, then sleeps in the port's `wait`: two engines
    /// share a core well.
    Adaptive,
}
