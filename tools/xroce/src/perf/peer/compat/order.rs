//! Where the two sides of a perftest program wait for each other, by operation and test.
//!
//! They wait by exchanging the key of queue pair 0 once more, "hs" below. Each test has its own
//! habits; this is the table of perftest 4.5 (which calls itself 6.06).

use super::job::Job;
use crate::perf::plan::{Op, Test};

/// Where the sides wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Order {
    /// hs before the keys are told.
    pub early: bool,
    /// After connecting: hs before the keys are told again; otherwise after.
    pub zero_first: bool,
    /// hs before the messages of each size.
    pub before: bool,
    /// hs after the messages of each size.
    pub after: bool,
    /// Reports after each size.
    pub report_each: bool,
    /// Those before that hs.
    pub report_first: bool,
    /// hs and the client's report after the last size, which its server has been waiting for.
    pub report_last: bool,
    /// hs to close, and "done".
    pub close: bool,
}

impl Order {
    /// The order of `job`.
    pub(super) fn of(job: &Job) -> Self {
        let both = job.bidirectional;
        match (job.op, job.test) {
            // No open loop: it is never asked for.
            (Op::Send, Test::Bw | Test::Open) => Self {
                early: false,
                zero_first: true,
                before: true,
                after: job.all,
                report_each: both,
                report_first: true,
                report_last: false,
                close: true,
            },
            (Op::Write | Op::Read, Test::Bw | Test::Open) => Self {
                early: false,
                zero_first: false,
                before: both,
                after: both && job.all,
                report_each: both,
                report_first: false,
                report_last: !both,
                close: true,
            },
            (op, Test::Lat) => Self {
                early: op != Op::Send,
                zero_first: op == Op::Send,
                before: op == Op::Send,
                after: false,
                report_each: false,
                report_first: false,
                report_last: false,
                close: op != Op::Write,
            },
        }
    }
}
