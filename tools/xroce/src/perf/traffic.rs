//! The client's half of a measurement: posts, counts, times and compares.
//!
//! A bandwidth step is one or more rounds. In a round every queue pair keeps up to `depth`
//! messages outstanding until its share is done. With verification a round is short, all its
//! messages lie in buffers of their own, and between rounds, while no clock runs, both sides
//! compare what arrived and lay out the next. Without verification there is a single round, and
//! buffers are reused.

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use xroce_engine::clock;
use xroce_net::datapath::Datapath;
use xroce_proto::time::Duration;

use super::flow::{Area, Attributes, Done, FULL_ACCESS, Flow};
use super::message::{Message, SideCounters};
use super::pattern::{MessageId, Mismatch, Pattern};
use super::plan::{Limit, Op, Plan, Repair, Shape, Step, Test};
use super::talk::{Talk, unexpected};

/// Round trips that are not recorded: caches and branch predictors are cold.
const WARM_UP: u64 = 64;

/// Longest round trip told apart, in ns; longer ones count as this long.
pub(crate) const LONGEST_NS: u64 = 60_000_000_000;

/// What a step found.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Messages completed.
    pub messages: u64,
    /// Time in which they were, without the pauses for comparison.
    pub elapsed: Duration,
    /// Round trips in ns (latency).
    pub round_trips: Option<Histogram<u64>>,
    /// Messages compared, at either side.
    pub verified: u64,
    /// Messages that differed.
    pub mismatches: u64,
    /// The first difference, in words.
    pub first_mismatch: Option<String>,
    /// What the server counted.
    pub server: SideCounters,
}

/// One step in progress.
pub(crate) struct Run<'t, 'a, D: Datapath> {
    talk: &'t mut Talk<'a, D>,
    pattern: &'t Pattern,
    step: Step,
    repair: Repair,
    /// Index of the step in the plan.
    index: u32,
    shape: Shape,
    limit: Limit,
    round: u64,
    out: Outcome,
    done: Vec<Done>,
    buffer: Vec<u8>,
}

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
    pub(crate) fn fill<D: Datapath>(
        &self,
        flow: &mut Flow<'_, D>,
        qp: u32,
        p: &mut Progress,
        late: bool,
    ) -> Result<bool> {
        let area = if self.step.op == Op::Read {
            Area::Target
        } else {
            Area::Source
        };
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

impl<'t, 'a, D: Datapath> Run<'t, 'a, D> {
    /// Sets up the queue pairs of step `index` on both sides and measures it.
    ///
    /// # Errors
    /// A queue pair or the conversation failed, or the user interrupts.
    pub(crate) fn step(
        talk: &'t mut Talk<'a, D>,
        pattern: &'t Pattern,
        plan: &Plan,
        index: u32,
        step: Step,
    ) -> Result<Outcome> {
        let shape = plan.shape(step);
        let limit = if step.test == Test::Bw {
            plan.bw_limit
        } else {
            plan.lat_limit
        };
        let mut run = Self {
            talk,
            pattern,
            step,
            repair: plan.repair,
            index,
            shape,
            limit,
            round: 0,
            out: Outcome {
                messages: 0,
                elapsed: Duration::ZERO,
                round_trips: None,
                verified: 0,
                mismatches: 0,
                first_mismatch: None,
                server: SideCounters::default(),
            },
            done: Vec::with_capacity(64),
            buffer: vec![0; step.size as usize],
        };
        run.connect()?;
        match step.test {
            Test::Bw => run.bandwidth()?,
            Test::Lat => run.latency(plan.verify)?,
        }
        Ok(run.out)
    }

    fn connect(&mut self) -> Result<()> {
        let qps = self.talk.flow.start_step(self.shape, FULL_ACCESS)?;
        let messages = self.round_len();
        self.talk.say(&Message::Start {
            step: self.index,
            qps: qps.clone(),
            messages,
        })?;
        match self.talk.listen()? {
            Message::Ready { qps: theirs } => {
                let attributes = Attributes::for_size(self.step.size, self.repair);
                self.talk.flow.connect_step(&qps, &theirs, attributes)
            }
            other => Err(unexpected(&other, "ready")),
        }
    }

    /// Messages per queue pair in the coming round, `None` if only time will tell.
    fn round_len(&self) -> Option<u64> {
        if self.step.test == Test::Lat {
            return None;
        }
        let left = match self.limit {
            Limit::Messages(n) => {
                Some(n.saturating_sub(self.out.messages / u64::from(self.shape.qps)))
            }
            Limit::Millis(_) => None,
        };
        match (left, self.shape.round) {
            (Some(left), Some(round)) => Some(left.min(round.into())),
            (Some(left), None) => Some(left),
            (None, round) => round.map(Into::into),
        }
    }

    fn bandwidth(&mut self) -> Result<()> {
        loop {
            let target = self.round_len();
            self.lay_out(target);
            let sent = self.bandwidth_round(target)?;
            self.out.messages += sent.iter().sum::<u64>();
            if self.shape.round.is_some() && self.step.op == Op::Read {
                self.compare_reads(&sent);
            }
            let next = match self.limit {
                Limit::Millis(ms) if self.out.elapsed < Duration::from_millis(ms) => {
                    self.shape.round.map(u64::from)
                }
                Limit::Millis(_) => None,
                Limit::Messages(_) => self.round_len().filter(|&n| n > 0),
            };
            self.sync(sent, next)?;
            if next.is_none() {
                return Ok(());
            }
            self.round += 1;
        }
    }

    /// Writes the messages of a verified round into their buffers.
    fn lay_out(&mut self, target: Option<u64>) {
        if self.shape.round.is_none() || self.step.op == Op::Read {
            return;
        }
        for qp in 0..self.shape.qps {
            for n in 0..target.unwrap_or(0) {
                let bytes = self.pattern.of(self.id(qp, n), self.step.size);
                self.talk.flow.fill(Area::Source, qp, n, bytes);
            }
        }
    }

    /// One round against the clock. Returns the messages of each queue pair.
    fn bandwidth_round(&mut self, target: Option<u64>) -> Result<Vec<u64>> {
        let mut all = vec![Progress::default(); self.shape.qps as usize];
        let posting = Posting::new(self.step, self.shape.depth, target);
        let start = clock::now();
        let deadline = match (self.limit, target) {
            (Limit::Millis(ms), None) => Some(start + Duration::from_millis(ms)),
            _ => None,
        };
        let mut now = start;
        loop {
            let late = deadline.is_some_and(|d| now >= d);
            let mut busy = false;
            for (qp, p) in (0..).zip(all.iter_mut()) {
                busy |= posting.fill(&mut self.talk.flow, qp, p, late)?;
            }
            if !busy {
                break;
            }
            now = self.talk.turn()?;
            self.talk.expect_none("synced")?;
            self.talk.flow.reap(&mut self.done)?;
            for d in self.done.drain(..) {
                if let Some(p) = all.get_mut(d.qp as usize) {
                    // A completion stands for all before it.
                    p.done = d.n + 1;
                }
            }
        }
        let spent = clock::now().since(start).as_nanos();
        self.out.elapsed = Duration::from_nanos(self.out.elapsed.as_nanos() + spent);
        Ok(all.iter().map(|p| p.done).collect())
    }

    fn compare_reads(&mut self, sent: &[u64]) {
        for (qp, &count) in (0..).zip(sent) {
            for n in 0..count {
                self.talk.flow.read(Area::Target, qp, n, &mut self.buffer);
                let miss = self.pattern.mismatch(self.id(qp, n), &self.buffer);
                self.note(miss);
            }
        }
    }

    fn note(&mut self, miss: Option<Mismatch>) {
        self.out.verified += 1;
        if let Some(miss) = miss {
            self.out.mismatches += 1;
            self.out
                .first_mismatch
                .get_or_insert_with(|| miss.to_string());
        }
    }

    fn id(&self, qp: u32, n: u64) -> MessageId {
        MessageId {
            step: self.index,
            round: self.round,
            qp,
            n,
        }
    }

    /// Tells the server that the round is over and hears its findings.
    fn sync(&mut self, messages: Vec<u64>, next: Option<u64>) -> Result<()> {
        self.talk.say(&Message::Sync {
            round: self.round,
            messages,
            next,
        })?;
        match self.talk.listen()? {
            Message::Synced {
                verified,
                mismatches,
                first,
                counters,
            } => {
                self.out.verified = self.out.verified.saturating_add(verified);
                self.out.mismatches = self.out.mismatches.saturating_add(mismatches);
                if self.out.first_mismatch.is_none() {
                    self.out.first_mismatch =
                        first.map(|f| format!("at the server, {}", super::message::one_line(&f)));
                }
                self.out.server = counters;
                Ok(())
            }
            other => Err(unexpected(&other, "synced")),
        }
    }

    /// One message at a time: SEND and WRITE are answered in kind, READ answers itself.
    fn latency(&mut self, verify: bool) -> Result<()> {
        let mut histogram = match Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3) {
            Ok(h) => h,
            Err(e) => bail!("histogram: {e}"),
        };
        let begin = clock::now();
        let mut n: u64 = 0;
        loop {
            let recorded = n.saturating_sub(WARM_UP);
            match self.limit {
                Limit::Messages(limit) if recorded >= limit => break,
                Limit::Millis(ms)
                    if recorded > 0 && clock::now().since(begin) >= Duration::from_millis(ms) =>
                {
                    break;
                }
                _ => {}
            }
            let ns = self.round_trip(n, verify)?;
            if n >= WARM_UP {
                histogram.saturating_record(ns);
            }
            n += 1;
        }
        self.out.elapsed = clock::now().since(begin);
        self.out.messages = n;
        self.out.round_trips = Some(histogram);
        self.sync(vec![n], None)
    }

    /// Sends message `n`, waits for the answer, compares it. Returns the ns in between.
    fn round_trip(&mut self, n: u64, verify: bool) -> Result<u64> {
        let (id, size, write) = (self.id(0, n), self.step.size, self.step.op == Op::Write);
        let mut buffer = std::mem::take(&mut self.buffer);
        let flow = &mut self.talk.flow;
        buffer.copy_from_slice(self.pattern.of(id, size));
        if write && let Some(last) = buffer.last_mut() {
            *last = flag(n);
        }
        match self.step.op {
            // What an earlier READ brought must not pass for what this one brings.
            Op::Read if verify => {
                buffer.fill(0);
                flow.fill(Area::Target, 0, 0, &buffer);
            }
            Op::Read => {}
            Op::Send => {
                flow.fill(Area::Source, 0, 0, &buffer);
                flow.post_recv(0, n, size)?;
            }
            Op::Write => flow.fill(Area::Source, 0, 0, &buffer),
        }
        let area = if self.step.op == Op::Read {
            Area::Target
        } else {
            Area::Source
        };
        let start = clock::now();
        flow.post(self.step, area, 0, n, true)?;
        let (mut sent, mut answered) = (false, false);
        let mut end = start;
        while !(sent && answered) {
            self.talk.turn()?;
            self.talk.flow.reap(&mut self.done)?;
            for d in self.done.drain(..) {
                sent |= !d.received;
                answered |= d.received || self.step.op == Op::Read;
            }
            if write && !answered {
                answered = self.talk.flow.last_byte(Area::Target, 0, 0, size) == flag(n);
            }
            if answered && end == start {
                end = clock::now();
            }
            self.talk.expect_none("synced")?;
        }
        if verify {
            self.compare_answer(id, &mut buffer);
        }
        self.buffer = buffer;
        Ok(end.since(start).as_nanos())
    }

    /// Compares the answer of the server with what was sent, or what it was to be read from.
    fn compare_answer(&mut self, id: MessageId, buffer: &mut [u8]) {
        // READ: the source lies still, it is message 0 all the time.
        let id = if self.step.op == Op::Read {
            MessageId { n: 0, ..id }
        } else {
            id
        };
        self.talk.flow.read(Area::Target, 0, 0, buffer);
        let end = if self.step.op == Op::Write {
            buffer.len() - 1
        } else {
            buffer.len()
        };
        let miss = buffer.get(..end).and_then(|b| self.pattern.mismatch(id, b));
        self.note(miss);
    }
}

/// The last byte of WRITE `n` in a latency test, which the other side waits for: never zero, and
/// never the one before.
pub(crate) fn flag(n: u64) -> u8 {
    u8::try_from(n % 255 + 1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::flag;

    #[test]
    fn flags_are_never_zero_and_never_repeat_at_once() {
        for n in 0..1000 {
            assert_ne!(flag(n), 0);
            assert_ne!(flag(n), flag(n + 1));
        }
        assert_eq!(flag(u64::MAX), 1);
    }
}
