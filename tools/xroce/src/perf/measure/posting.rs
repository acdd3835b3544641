//! How messages are posted: as many as may be outstanding, and a few completions for all of them.

use anyhow::Result;

use crate::perf::device::Device;
use crate::perf::measure::flow::{Area, Flow};
use crate::perf::plan::{Op, Step};

/// Messages of one queue pair in one round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Posted so far.
    pub posted: u64,
    /// Completed so far.
    pub done: u64,
}

/// How the messages of a round are posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting {
    /// What.
    pub step: Step,
    /// Outstanding at most.
    pub depth: u64,
    /// One in so many is signalled: a completion for every message would cost as much as a small
    /// message itself.
    pub interval: u64,
    /// How many in all; `None` if only time will tell.
    pub target: Option<u64>,
}

impl Posting {
    /// Usual signalling for a depth.
    pub(crate) fn new(step: Step, depth: u32, target: Option<u64>) -> Self {
        let depth = u64::from(depth);
        Self {
            step,
            depth,
            interval: (depth / 4).clamp(1, 16),
            target,
        }
    }

    /// Posts on queue pair `qp` as much as may be outstanding. When it is `late`, goes on to the
    /// next signalled message only, so that all are known to have arrived. Whether any message is
    /// outstanding.
    ///
    /// # Errors
    /// As [`Flow::post`].
    pub(crate) fn fill<D: Device>(
        &self,
        flow: &mut Flow<'_, D>,
        qp: u32,
        p: &mut Progress,
        late: bool,
    ) -> Result<bool> {
        let area = local_area(self.step.op);
        while p.posted - p.done < self.depth {
            let over = late && p.posted.is_multiple_of(self.interval);
            if over || self.target == Some(p.posted) {
                break;
            }
            let last = self.target == Some(p.posted + 1);
            let signaled = last || (p.posted + 1).is_multiple_of(self.interval);
            flow.post(self.step, area, qp, p.posted, signaled)?;
            p.posted += 1;
        }
        Ok(p.posted > p.done)
    }
}

/// Where the messages of an operation lie at the side that posts it.
pub(crate) fn local_area(op: Op) -> Area {
    match op {
        Op::Read => Area::Target,
        Op::Send | Op::Write => Area::Source,
    }
}
