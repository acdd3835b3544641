//! What a run does, and about how long that takes.

use super::options::Options;

/// Work that is asked for by one name.
struct Step {
    /// As `--only` has it.
    id: &'static str,
    /// In each round: so many times the length of a measurement, and so many seconds.
    round: (f64, f64),
    /// Once a run, seconds.
    once: f64,
}

const fn step(id: &'static str, round: (f64, f64), once: f64) -> Step {
    Step { id, round, once }
}

/// Warm-ups, and the pauses by which an end learns that the other has stopped, are included.
/// iperf3 measures whole seconds, twice.
const STEPS: [Step; 15] = [
    step("D1", (2.2, 0.2), 0.5),
    step("D2", (4.4, 0.4), 0.0),
    step("D3", (2.0, 0.2), 0.0),
    step("D4", (1.1, 3.0), 0.5),
    step("D5", (2.2, 0.1), 0.0),
    step("D6", (0.0, 0.1), 4.0),
    step("D7", (0.0, 0.2), 0.5),
    step("D1+CC", (2.2, 0.1), 0.0),
    step("D2+CC", (2.2, 0.1), 0.0),
    step("D7+CC", (0.0, 0.2), 0.0),
    step("D8", (0.0, 45.0), 45.0),
    step("D9", (2.4, 0.4), 4.0),
    step("D10", (0.0, 0.0), 0.2),
    step("D11", (2.0, 0.1), 4.0),
    step(SIZES, (11.0, 2.0), 0.5),
];

/// The curves by size.
pub(crate) const SIZES: &str = "SIZES";

/// Whether `--only` may have it.
pub(crate) fn is_known(id: &str) -> bool {
    STEPS.iter().any(|s| s.id == id)
}

/// Seconds that what is asked for takes: in each round, and besides.
pub(crate) fn estimate(options: &Options) -> (f64, f64) {
    let wanted = STEPS.iter().filter(|s| options.wants(s.id));
    wanted.fold((0.0, 0.0), |(rounds, once), s| {
        let (times, seconds) = s.round;
        // D8 has its own rounds, all at the end.
        if s.id == "D8" {
            return (rounds, once + s.once + seconds * f64::from(options.rounds));
        }
        let round = times * options.seconds + seconds;
        (rounds + round, once + s.once)
    })
}

#[cfg(test)]
mod tests {
    #![allow(
        dead_code,
        unused_imports,
        reason = "the bench itself is compiled as a test, but without its tests"
    )]
    use super::super::rows::ALL;
    use super::*;

    #[test]
    fn every_row_can_be_asked_for() {
        for kind in ALL {
            assert!(is_known(kind.id), "{}", kind.id);
        }
    }
}
