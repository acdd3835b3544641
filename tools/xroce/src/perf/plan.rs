//! What to measure: operations, tests, sizes and limits, as the client decides them and the
//! server checks them.
//!
//! A plan arrives from an untrusted peer, so [`Plan::check`] bounds every field before anything
//! is allocated for it; the derived quantities below may then be computed without overflow.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use xroce_proto::recovery::{AdaptiveParams, Reliability, SelectiveParams};

use crate::perf::measure::pace::Arrivals;
use crate::perf::report::rate;

/// Largest message, in bytes.
pub(crate) const MAX_SIZE: u32 = 64 << 20;
/// Most sizes in one plan.
const MAX_SIZES: usize = 64;
/// Most depths, numbers of queue pairs and rates in one plan, of each.
const MAX_LIST: usize = 32;
/// Most measurements in one plan.
const MAX_STEPS: usize = 10_000;
/// Highest rate of an open loop, in messages a second.
pub(crate) const MAX_RATE: u64 = 100_000_000;
/// Longest warm-up, in milliseconds.
pub(crate) const MAX_WARMUP: u64 = 60_000;
/// Most queue pairs at a time.
pub(crate) const MAX_QPS: u32 = 256;
/// Most outstanding messages per queue pair.
pub(crate) const MAX_DEPTH: u32 = 1024;
/// Most receives kept posted per queue pair.
pub(crate) const MAX_RX_DEPTH: u32 = 16_384;
/// "All" sizes are so many powers of two from 2 B up: to 1 MB.
pub(crate) const OWN_SIZES: u32 = 20;
/// Most messages per queue pair and step.
pub(crate) const MAX_MESSAGES: u64 = 1 << 40;
/// Longest step, in milliseconds.
pub(crate) const MAX_MILLIS: u64 = 3_600_000;
/// Most buffer memory a plan may ask each side for, in bytes.
pub(crate) const MAX_MEMORY: u64 = 1 << 30;
/// Outstanding bytes of all queue pairs are capped here, in bytes: more than the product of rate and
/// round trip adds nothing but cache misses.
const WINDOW_BYTES: u32 = 4 << 20;
/// With verification, one round of messages of all queue pairs fills about this much, in bytes: long
/// against a round trip, short enough to stay in the cache.
const ROUND_BYTES: u32 = 4 << 20;
/// Most messages of one verified round per queue pair.
const ROUND_MESSAGES: u32 = 2048;
/// Without verification buffers are reused after this many bytes in all.
const REUSE_BYTES: u32 = 256 << 10;
/// Slots start at multiples of this, in bytes: one cache line.
const SLOT_ALIGN: u32 = 64;

/// An RC operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// RC SEND into posted receives.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::Read => "READ",
        })
    }
}

/// What is measured of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    /// Many messages outstanding: messages/s and Gb/s.
    Bw,
    /// One message at a time: the round trip of SEND and WRITE answered in kind, or of one READ.
    Lat,
    /// Messages at a rate, whatever becomes of those before: how long each takes from when it is
    /// due. Asked for by `--rate`.
    #[value(skip)]
    Open,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bw => "bandwidth",
            Self::Lat => "latency",
            Self::Open => "open loop",
        })
    }
}

/// How losses are repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Repair {
    /// All from the lost packet on again.
    #[default]
    GoBackN,
    /// The same, with timeouts that follow the round trip.
    Adaptive,
    /// Only what was lost again; both sides are xroce.
    Selective,
}

impl From<Repair> for Reliability {
    fn from(repair: Repair) -> Self {
        match repair {
            Repair::GoBackN => Self::GoBackN,
            Repair::Adaptive => Self::Adaptive(AdaptiveParams::default()),
            Repair::Selective => Self::Selective(SelectiveParams::default()),
        }
    }
}

/// When a step ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Limit {
    /// After so many messages per queue pair.
    Messages(u64),
    /// After so many milliseconds of measured time.
    Millis(u64),
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    /// Operation.
    pub op: Op,
    /// Bandwidth or latency.
    pub test: Test,
    /// Message size in bytes.
    pub size: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Outstanding messages per queue pair, as asked for.
    pub depth: u32,
    /// Messages a second of all queue pairs (open loop).
    pub rate: Option<u64>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of {}", self.op, self.test, size_name(self.size))?;
        if self.test != Test::Lat {
            let plural = if self.qps == 1 { "" } else { "s" };
            write!(f, ", {} queue pair{plural}, depth {}", self.qps, self.depth)?;
        }
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        match self.rate {
            Some(n) => write!(f, ", {} messages/s", rate(n as f64)),
            None => Ok(()),
        }
    }
}

/// One round of a step, as the client announces it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Round {
    /// Whether it is measured; otherwise it warms up.
    pub counted: bool,
    /// Messages on each queue pair; `None` if only time will tell.
    pub messages: Option<u64>,
}

/// The whole job of one client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// Operations, in this order.
    pub ops: Vec<Op>,
    /// Tests of each operation.
    pub tests: Vec<Test>,
    /// Message sizes in bytes.
    pub sizes: Vec<u32>,
    /// Queue pairs of bandwidth tests and open loops, one number after another.
    pub qps: Vec<u32>,
    /// Outstanding messages per queue pair in them.
    pub depths: Vec<u32>,
    /// Messages a second of open loops, all queue pairs together; empty without them.
    pub rates: Vec<u64>,
    /// How the messages of an open loop follow each other.
    pub arrivals: Arrivals,
    /// Where their chance starts.
    pub seed: u64,
    /// Milliseconds before each measurement that do not count.
    pub warmup_millis: u64,
    /// Whether the server sends too, in bandwidth tests and open loops.
    pub bidirectional: bool,
    /// End of a bandwidth step.
    pub bw_limit: Limit,
    /// End of a latency step.
    pub lat_limit: Limit,
    /// Whether every message is compared with what was sent.
    pub verify: bool,
    /// Latency steps only up to this size in bytes.
    pub lat_max_size: u32,
    /// How losses are repaired, on both sides.
    pub repair: Repair,
}

/// A plan that cannot be carried out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PlanError {
    /// A list is empty or too long.
    #[error("{what}: between 1 and {max} of them, not {got}")]
    Count {
        /// Which list.
        what: &'static str,
        /// Entries given.
        got: usize,
        /// Most entries.
        max: usize,
    },
    /// A number is out of range.
    #[error("{what} must be between {min} and {max}, not {got}")]
    Range {
        /// Which number.
        what: &'static str,
        /// The number.
        got: u64,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// Too much buffer memory.
    #[error(
        "{qps} queue pairs with messages of {size} need {mib} MiB of buffers, more than {max} MiB: \
         use fewer --qps, a smaller --depth or smaller --sizes",
        size = size_name(*size), max = MAX_MEMORY >> 20
    )]
    Memory {
        /// Queue pairs.
        qps: u32,
        /// Largest message in bytes.
        size: u32,
        /// Buffers in MiB.
        mib: u64,
    },
    /// Too many measurements.
    #[error("{got} measurements, more than {MAX_STEPS}: give shorter lists")]
    Steps {
        /// How many.
        got: usize,
    },
    /// Two things that do not go together.
    #[error("{0}")]
    Conflict(&'static str),
    /// Nothing is left to do.
    #[error("nothing to measure: latency tests end at {}, all --sizes are larger", size_name(*max))]
    Empty {
        /// Largest size of a latency test in bytes.
        max: u32,
    },
}

impl Plan {
    /// Checks every field against its limits.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        count("operations (--op)", self.ops.len(), 3)?;
        count("tests (--test)", self.tests.len(), 2)?;
        count("message sizes (--sizes)", self.sizes.len(), MAX_SIZES)?;
        for &size in &self.sizes {
            range("a message size", size, 1, MAX_SIZE)?;
        }
        count("numbers of queue pairs (--qps)", self.qps.len(), MAX_LIST)?;
        for &qps in &self.qps {
            range("--qps", qps, 1, MAX_QPS)?;
        }
        count("depths (--depth)", self.depths.len(), MAX_LIST)?;
        for &depth in &self.depths {
            range("--depth", depth, 1, MAX_DEPTH)?;
        }
        self.check_rates()?;
        range(
            "--warmup, in milliseconds,",
            self.warmup_millis,
            0,
            MAX_WARMUP,
        )?;
        for limit in [self.bw_limit, self.lat_limit] {
            match limit {
                Limit::Messages(n) => range("--messages", n, 1, MAX_MESSAGES)?,
                Limit::Millis(n) => range("--seconds, in milliseconds,", n, 1, MAX_MILLIS)?,
            }
        }
        match self.steps().count() {
            0 => {
                return Err(PlanError::Empty {
                    max: self.lat_max_size,
                });
            }
            1..=MAX_STEPS => {}
            got => return Err(PlanError::Steps { got }),
        }
        let largest = self.steps().max_by_key(|&s| self.shape(s).memory());
        match largest.map(|s| (s, self.shape(s).memory())) {
            Some((step, bytes)) if bytes > MAX_MEMORY => Err(PlanError::Memory {
                qps: step.qps,
                size: step.size,
                mib: bytes >> 20,
            }),
            _ => Ok(()),
        }
    }

    fn check_rates(&self) -> Result<(), PlanError> {
        if self.rates.is_empty() == self.tests.contains(&Test::Open) {
            return Err(PlanError::Conflict(
                "an open loop has a rate, and nothing else has",
            ));
        }
        if self.rates.is_empty() {
            return Ok(());
        }
        count("rates (--rate)", self.rates.len(), MAX_LIST)?;
        for &rate in &self.rates {
            range("--rate", rate, 1, MAX_RATE)?;
        }
        if self.verify {
            return Err(PlanError::Conflict(
                "--rate: messages of an open loop are not compared, since that would stop it: \
                 leave --verify away",
            ));
        }
        Ok(())
    }

    /// The measurements in order: by operation, then size, then test; of bandwidth tests and open
    /// loops, every number of queue pairs with every depth and rate.
    pub(crate) fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        self.ops.iter().flat_map(move |&op| {
            self.sizes.iter().flat_map(move |&size| {
                self.tests
                    .iter()
                    .filter(move |&&t| t != Test::Lat || size <= self.lat_max_size)
                    .flat_map(move |&test| self.steps_of(op, test, size))
            })
        })
    }

    fn steps_of(&self, op: Op, test: Test, size: u32) -> impl Iterator<Item = Step> + '_ {
        const ONE: &[u32] = &[1];
        let (qps, depths) = match test {
            Test::Lat => (ONE, ONE),
            Test::Bw | Test::Open => (self.qps.as_slice(), self.depths.as_slice()),
        };
        // An open loop has rates; for others there is one way to go.
        let rates = match test {
            Test::Open => self.rates.len(),
            Test::Bw | Test::Lat => 1,
        };
        qps.iter().flat_map(move |&qps| {
            depths.iter().flat_map(move |&depth| {
                (0..rates).map(move |n| Step {
                    op,
                    test,
                    size,
                    qps,
                    depth,
                    rate: self.rates.get(n).copied().filter(|_| test == Test::Open),
                })
            })
        })
    }

    /// Whether several steps differ in nothing but queue pairs, depth or rate.
    pub(crate) fn is_swept(&self) -> bool {
        self.qps.len() > 1 || self.depths.len() > 1 || self.rates.len() > 1
    }

    /// When a step ends.
    pub(crate) fn limit(&self, step: Step) -> Limit {
        match step.test {
            Test::Bw | Test::Open => self.bw_limit,
            Test::Lat => self.lat_limit,
        }
    }

    /// Milliseconds that all of it will take, as far as the plan tells, and whether it does.
    pub(crate) fn estimate(&self) -> (u64, bool) {
        let mut all = (0, true);
        for step in self.steps() {
            all.0 += self.warmup_millis;
            match self.limit(step) {
                Limit::Millis(ms) => all.0 += ms,
                Limit::Messages(_) => all.1 = false,
            }
        }
        all
    }

    /// How a step uses memory and queues.
    pub(crate) fn shape(&self, step: Step) -> Shape {
        let stride = step.size.max(1).next_multiple_of(SLOT_ALIGN);
        if step.test == Test::Lat {
            return Shape {
                qps: 1,
                depth: 1,
                receives: 2,
                slots: 1,
                stride,
                round: None,
            };
        }
        let share = |bytes: u32| bytes / step.qps.max(1) / stride;
        let depth = step.depth.min(share(WINDOW_BYTES).max(2));
        let (slots, round) = if self.verify {
            let slots = share(ROUND_BYTES).min(ROUND_MESSAGES).max(depth);
            (slots, Some(slots))
        } else {
            (depth.min(share(REUSE_BYTES).max(1)), None)
        };
        Shape {
            qps: step.qps,
            depth,
            // A round in full, or twice the depth: the sender goes on as soon as the
            // acknowledgement leaves, before the application has posted the next receive.
            receives: round.unwrap_or(2 * depth),
            slots,
            stride,
            round,
        }
    }

    /// Buffer bytes: the most any step uses.
    pub(crate) fn memory(&self) -> u64 {
        let all = self.steps().map(|s| self.shape(s).memory());
        all.max().unwrap_or(0)
    }
}

/// How a step uses the buffers of one queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// Queue pairs in use.
    pub qps: u32,
    /// Outstanding messages per queue pair.
    pub depth: u32,
    /// Receives kept posted per queue pair.
    pub receives: u32,
    /// Message buffers per queue pair, used in turn.
    pub slots: u32,
    /// Bytes from one buffer to the next.
    pub stride: u32,
    /// Messages per queue pair after which both sides stop and compare; `None` without
    /// verification.
    pub round: Option<u32>,
}

impl Shape {
    /// Bytes of all slots of one queue pair.
    pub(crate) fn area(self) -> u64 {
        u64::from(self.slots) * u64::from(self.stride)
    }

    /// Bytes of both areas of all queue pairs.
    pub(crate) fn memory(self) -> u64 {
        2 * self.area() * u64::from(self.qps)
    }

    /// Offset of the slot of message `n` in the area, in bytes.
    pub(crate) fn offset(self, n: u64) -> u64 {
        n % u64::from(self.slots) * u64::from(self.stride)
    }
}

/// "2 B", "64 KB", "1 MB" (powers of 1024).
pub(crate) fn size_name(bytes: u32) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KB", b >> 10),
        b => format!("{b} B"),
    }
}

/// Parses "64", "64k", "1m" (powers of 1024).
///
/// # Errors
/// A sentence for the user.
pub(crate) fn parse_size(text: &str) -> Result<u32, String> {
    let lower = text.trim().to_ascii_lowercase();
    let lower = lower.trim_end_matches('b').trim_end();
    let (digits, shift) = match lower.strip_suffix(['k', 'm']) {
        Some(rest) if lower.ends_with('k') => (rest, 10),
        Some(rest) => (rest, 20),
        None => (lower, 0),
    };
    let n: u64 = digits
        .trim_end()
        .parse()
        .map_err(|_| "a size is a number of bytes like 2, 4096, 64k or 1m".to_owned())?;
    n.checked_mul(1 << shift)
        .filter(|n| (1..=u64::from(MAX_SIZE)).contains(n))
        .and_then(|n| u32::try_from(n).ok())
        .ok_or_else(|| format!("a size is between 1 byte and {}", size_name(MAX_SIZE)))
}

fn count(what: &'static str, got: usize, max: usize) -> Result<(), PlanError> {
    if (1..=max).contains(&got) {
        Ok(())
    } else {
        Err(PlanError::Count { what, got, max })
    }
}

fn range<T: Into<u64>>(what: &'static str, got: T, min: T, max: T) -> Result<(), PlanError> {
    let (got, min, max) = (got.into(), min.into(), max.into());
    if (min..=max).contains(&got) {
        Ok(())
    } else {
        Err(PlanError::Range {
            what,
            got,
            min,
            max,
        })
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
