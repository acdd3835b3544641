//! One side of a bandwidth test or an open loop: the messages it sends, if it does, and those it
//! receives, if the other side sends. The client sends; with `--bidirectional` the server does so
//! too, by the same code.
//!
//! Where messages lie: those that a side sends start in its source area and end in the target area
//! of the other; those that it reads start in the source area of the other and end in its own
//! target area. So both directions share the memory without touching each other.

use anyhow::{Result, bail};
use xroce_engine::clock;
use xroce_proto::time::{Duration, Instant};

use crate::perf::device::Device;
use crate::perf::measure::flow::{Area, Done, Flow};
use crate::perf::measure::meter::Meter;
use crate::perf::measure::pace::{End, Found, Pacer, Schedule};
use crate::perf::measure::pattern::{MessageId, Pattern};
use crate::perf::measure::posting::{Posting, Progress, local_area};
use crate::perf::peer::conversation::Conversation;
use crate::perf::peer::message::SentData;
use crate::perf::plan::{Limit, MAX_MESSAGES, Op, Plan, Round, Shape, Step, Test};

/// Acknowledged messages are here already; this long they may take to show up all the same.
const STRAGGLERS: Duration = Duration::from_millis(2_000);
/// A peak lasts for at least so many rounds of what may be outstanding.
const STRETCH: u64 = 4;
/// Most messages posted before the engine is polled again (open loop).
const BURST: u32 = 64;

/// What was compared with what was sent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Checked {
    /// Messages compared.
    pub verified: u64,
    /// Messages that differed.
    pub mismatches: u64,
    /// The first of them, in words.
    pub first: Option<String>,
}

impl Checked {
    /// Counts a message; `miss` says how it differed.
    pub(crate) fn note(&mut self, miss: Option<impl ToString>) {
        self.verified += 1;
        if let Some(miss) = miss {
            self.mismatches += 1;
            self.first.get_or_insert_with(|| miss.to_string());
        }
    }
}

/// One side of a step.
pub(crate) struct Side {
    step: Step,
    /// Index of the step in the plan.
    index: u32,
    shape: Shape,
    is_client: bool,
    /// Whether this side sends, and whether it has to do with what the other sends.
    sends: bool,
    serves: bool,
    limit: Limit,
    warmup: Duration,
    schedule: (crate::perf::measure::pace::Arrivals, u64),
    /// Number of the round.
    number: u64,
    round: Round,
    traffic: Option<Traffic>,
    progress: Vec<Progress>,
    /// Receives posted and messages received in the step, and those before this round.
    posted: Vec<u64>,
    received: Vec<u64>,
    before: Vec<u64>,
    sent: Sent,
    /// What was compared since somebody last asked.
    pub checked: Checked,
    done: Vec<Done>,
    buffer: Vec<u8>,
}

/// What is being sent in a round.
struct Traffic {
    posting: Posting,
    start: Instant,
    /// Nothing is posted from then on (closed loop).
    deadline: Option<Instant>,
    pacer: Option<Pacer>,
    meter: Meter,
    completed: u64,
    /// Queue pair whose turn it is (open loop).
    turn: u32,
    end: Option<Instant>,
}

/// What a side has sent in the rounds that count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent {
    /// Messages completed.
    pub messages: u64,
    /// Time in which they were, without the pauses for comparison, in ns.
    pub elapsed_ns: u64,
    /// Messages a second of the best stretch.
    pub peak_per_s: f64,
    /// What an open loop found.
    pub paced: Option<Found>,
}

impl Side {
    /// Nothing has happened yet. The queue pairs of the step are those of the flow.
    pub(crate) fn new(plan: &Plan, index: u32, step: Step, is_client: bool) -> Self {
        let shape = plan.shape(step);
        let per_qp = vec![0; shape.qps as usize];
        // Both sides of an open loop draw their own chance.
        let seed = plan.seed.wrapping_add(u64::from(!is_client));
        Self {
            step,
            index,
            shape,
            is_client,
            sends: is_client || plan.bidirectional,
            serves: !is_client || plan.bidirectional,
            limit: plan.limit(step),
            warmup: Duration::from_millis(plan.warmup_millis),
            schedule: (plan.arrivals, seed),
            number: 0,
            round: Round {
                counted: false,
                messages: None,
            },
            traffic: None,
            progress: vec![Progress::default(); shape.qps as usize],
            posted: per_qp.clone(),
            received: per_qp.clone(),
            before: per_qp,
            sent: Sent::default(),
            checked: Checked::default(),
            done: Vec::with_capacity(64),
            buffer: vec![0; step.size as usize],
        }
    }

    /// Lays out buffers and receives for round `number`. Before that the other side sends nothing of
    /// it.
    ///
    /// # Errors
    /// The round cannot be, or the queue pairs have failed.
    pub(crate) fn prepare<D: Device>(
        &mut self,
        flow: &mut Flow<'_, D>,
        pattern: &Pattern,
        number: u64,
        round: Round,
    ) -> Result<()> {
        let limit = self.shape.round.map_or(MAX_MESSAGES, u64::from);
        if let Some(n) = round.messages.filter(|&n| n > limit) {
            bail!("a round of {n} messages was announced, the plan says {limit}");
        }
        (self.number, self.round) = (number, round);
        self.progress.fill(Progress::default());
        self.before.copy_from_slice(&self.received);
        let in_round = round.messages.unwrap_or(limit);
        for qp in 0..self.shape.qps {
            if self.shape.round.is_some() {
                for n in 0..in_round {
                    self.write_message(flow, pattern, qp, n);
                }
            }
            if self.serves && self.step.op == Op::Send {
                self.post_receives(flow, qp, in_round.min(self.shape.receives.into()))?;
            }
        }
        Ok(())
    }

    /// Writes message `n` of this side's into the source area: its own, or what the other side is
    /// going to read.
    fn write_message<D: Device>(&self, flow: &mut Flow<'_, D>, pattern: &Pattern, qp: u32, n: u64) {
        let reads = self.step.op == Op::Read;
        let (is_needed, of_client) = match reads {
            false => (self.sends, self.is_client),
            true => (self.serves, !self.is_client),
        };
        if is_needed {
            let bytes = pattern.of(self.id(qp, n, of_client), self.step.size);
            flow.fill(Area::Source, qp, n, bytes);
        }
    }

    fn id(&self, qp: u32, n: u64, of_client: bool) -> MessageId {
        MessageId {
            step: self.index,
            round: self.number,
            of_client,
            qp,
            n,
        }
    }

    /// Posts receives until there are `want`. With verification each message of a round has its
    /// place.
    fn post_receives<D: Device>(
        &mut self,
        flow: &mut Flow<'_, D>,
        qp: u32,
        want: u64,
    ) -> Result<()> {
        let at = qp as usize;
        let (Some(posted), Some(&received), Some(&before)) = (
            self.posted.get_mut(at),
            self.received.get(at),
            self.before.get(at),
        ) else {
            return Ok(());
        };
        while *posted - received < want {
            flow.post_recv(qp, *posted - before, self.step.size)?;
            *posted += 1;
        }
        Ok(())
    }

    /// Starts to send, if this side does.
    ///
    /// # Errors
    /// The other side announced a round that has no end.
    pub(crate) fn begin(&mut self) -> Result<()> {
        if !self.sends {
            return Ok(());
        }
        let start = clock::now();
        let time = match (self.round.messages, self.round.counted, self.limit) {
            (Some(_), _, _) => None,
            (None, false, _) => Some(self.warmup),
            (None, true, Limit::Millis(ms)) => Some(Duration::from_millis(ms)),
            (None, true, Limit::Messages(_)) => bail!("a round without an end was announced"),
        };
        let mut posting = Posting::new(self.step, self.shape.depth, self.round.messages);
        let pacer = match self.step.rate {
            None => None,
            Some(rate) => {
                // Each completion tells how long its message took.
                posting.interval = 1;
                let end = match (time, self.round.messages) {
                    (Some(time), _) => End::After(time),
                    (None, n) => {
                        End::Messages(n.unwrap_or(0).saturating_mul(self.shape.qps.into()))
                    }
                };
                let (arrivals, seed) = self.schedule;
                let schedule = Schedule::new(rate, arrivals, seed, end);
                Some(Pacer::new(
                    schedule,
                    start,
                    self.shape.qps,
                    self.shape.depth,
                )?)
            }
        };
        let outstanding = u64::from(self.shape.depth) * u64::from(self.shape.qps);
        self.traffic = Some(Traffic {
            posting,
            start,
            deadline: time.map(|t| start + t),
            pacer,
            meter: Meter::new(start, STRETCH * outstanding),
            completed: 0,
            turn: 0,
            end: None,
        });
        Ok(())
    }

    /// Posts what may or must be posted now. Whether any message is still outstanding or to come.
    ///
    /// # Errors
    /// As [`Flow::post`].
    #[inline]
    pub(crate) fn drive<D: Device>(
        &mut self,
        flow: &mut Flow<'_, D>,
        now: Instant,
    ) -> Result<bool> {
        let Some(t) = &mut self.traffic else {
            return Ok(false);
        };
        let busy = match &mut t.pacer {
            Some(pacer) => post_due(
                pacer,
                &t.posting,
                &mut t.turn,
                &mut self.progress,
                flow,
                now,
            )?,
            None => {
                let late = t.deadline.is_some_and(|d| now >= d);
                let mut busy = false;
                for (qp, p) in (0..).zip(self.progress.iter_mut()) {
                    busy |= t.posting.fill(flow, qp, p, late)?;
                }
                busy
            }
        };
        if !busy && t.end.is_none() {
            t.end = Some(clock::now());
        }
        Ok(busy)
    }

    /// Takes what has completed.
    ///
    /// # Errors
    /// A queue pair has failed, or a message is not what was announced.
    #[inline]
    pub(crate) fn pump<D: Device>(&mut self, flow: &mut Flow<'_, D>) -> Result<()> {
        flow.reap(&mut self.done)?;
        if self.done.is_empty() {
            return Ok(());
        }
        // A side that only receives has no use for the time.
        let now = self
            .traffic
            .as_ref()
            .map_or(Instant::from_nanos(0), |_| clock::now());
        let mut done = std::mem::take(&mut self.done);
        for d in done.drain(..) {
            if d.received {
                self.take_receive(flow, d)?;
            } else if let (Some(t), Some(p)) =
                (&mut self.traffic, self.progress.get_mut(d.qp as usize))
            {
                if let Some(pacer) = &mut t.pacer {
                    pacer.complete(d.qp, d.n, now);
                }
                // A completion stands for all before it.
                t.completed += d.n + 1 - p.done;
                p.done = d.n + 1;
            }
        }
        self.done = done;
        if let Some(t) = &mut self.traffic {
            t.meter.see(now, t.completed);
        }
        Ok(())
    }

    fn take_receive<D: Device>(&mut self, flow: &mut Flow<'_, D>, d: Done) -> Result<()> {
        if d.len != self.step.size {
            bail!(
                "a message of {} bytes arrived where {} were sent",
                d.len,
                self.step.size
            );
        }
        if let Some(received) = self.received.get_mut(d.qp as usize) {
            *received += 1;
        }
        match self.shape.round {
            None => self.post_receives(flow, d.qp, self.shape.receives.into()),
            Some(_) => Ok(()),
        }
    }

    /// Messages sent on each queue pair in this round.
    pub(crate) fn sent_in_round(&self) -> Vec<u64> {
        self.progress.iter().map(|p| p.done).collect()
    }

    /// What was sent counts, if the round does.
    pub(crate) fn end_round(&mut self) {
        let Some(t) = self.traffic.take() else { return };
        let end = t.end.unwrap_or_else(clock::now);
        if !self.round.counted {
            return;
        }
        self.sent.messages += t.completed;
        self.sent.elapsed_ns += end.since(t.start).as_nanos();
        self.sent.peak_per_s = self.sent.peak_per_s.max(t.meter.peak());
        if let Some(pacer) = &t.pacer {
            self.sent.paced = Some(pacer.found());
        }
    }

    /// What this side has sent in all rounds that count.
    pub(crate) fn sent(&self) -> &Sent {
        &self.sent
    }

    /// The same for the other side, with the messages of this round.
    pub(crate) fn sent_data(&self) -> Option<SentData> {
        if !self.sends {
            return None;
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "messages a second"
        )]
        Some(SentData {
            round: self.sent_in_round(),
            messages: self.sent.messages,
            elapsed_ns: self.sent.elapsed_ns,
            peak_per_s: self.sent.peak_per_s as u64,
            paced: self.sent.paced.as_ref().map(Found::numbers),
        })
    }

    /// The other side has sent so many messages on each queue pair in this round, and all of them
    /// are acknowledged: waits until they have shown up, and compares.
    ///
    /// # Errors
    /// They do not show up, or there cannot be so many.
    pub(crate) fn settle<D: Device>(
        &mut self,
        talk: &mut Conversation<'_, D>,
        pattern: &Pattern,
        theirs: Option<&[u64]>,
    ) -> Result<()> {
        if let Some(theirs) = theirs {
            self.check_counts(theirs)?;
            if self.step.op == Op::Send {
                self.await_stragglers(talk, theirs)?;
            }
        }
        if self.shape.round.is_none() {
            return Ok(());
        }
        // What ends in the target area: READs of this side, SENDs and WRITEs of the other.
        if self.step.op == Op::Read {
            if self.sends {
                self.compare(&talk.flow, pattern, &self.sent_in_round(), self.is_client);
            }
        } else if let Some(theirs) = theirs {
            self.compare(&talk.flow, pattern, theirs, !self.is_client);
        }
        Ok(())
    }

    fn check_counts(&self, theirs: &[u64]) -> Result<()> {
        if theirs.len() != self.shape.qps as usize {
            bail!(
                "the other side sent on {} queue pairs, there are {}",
                theirs.len(),
                self.shape.qps
            );
        }
        let limit = self.shape.round.map_or(u64::MAX, u64::from);
        match theirs.iter().find(|&&n| n > limit) {
            Some(n) => bail!("the other side sent {n} messages in a round, the plan says {limit}"),
            None => Ok(()),
        }
    }

    fn await_stragglers<D: Device>(
        &mut self,
        talk: &mut Conversation<'_, D>,
        theirs: &[u64],
    ) -> Result<()> {
        let deadline = clock::now() + STRAGGLERS;
        let is_missing = |s: &Self| {
            let arrived = s.received.iter().zip(&s.before).map(|(r, b)| r - b);
            arrived.zip(theirs).any(|(got, &sent)| got < sent)
        };
        while is_missing(self) {
            talk.turn()?;
            self.pump(&mut talk.flow)?;
            if clock::now() >= deadline {
                let arrived = self.received.iter().zip(&self.before).map(|(r, b)| r - b);
                bail!(
                    "the other side had {} messages acknowledged, only {} arrived",
                    theirs.iter().fold(0, |a: u64, m| a.saturating_add(*m)),
                    arrived.sum::<u64>()
                );
            }
        }
        Ok(())
    }

    fn compare<D: Device>(
        &mut self,
        flow: &Flow<'_, D>,
        pattern: &Pattern,
        counts: &[u64],
        of_client: bool,
    ) {
        let mut buffer = std::mem::take(&mut self.buffer);
        for (qp, &count) in (0..).zip(counts) {
            for n in 0..count {
                flow.read(Area::Target, qp, n, &mut buffer);
                let miss = pattern.mismatch(self.id(qp, n, of_client), &buffer);
                self.checked.note(miss);
            }
        }
        self.buffer = buffer;
    }

    /// Whether this side is sending.
    pub(crate) fn is_sending(&self) -> bool {
        self.traffic.is_some()
    }

    /// Whether the step is an open loop.
    pub(crate) fn is_open(&self) -> bool {
        self.step.test == Test::Open
    }
}

/// Posts what is due, on the queue pairs in turn. Where all are full it waits, and its time runs.
/// Whether any message is still outstanding or to come.
#[inline]
fn post_due<D: Device>(
    pacer: &mut Pacer,
    posting: &Posting,
    turn: &mut u32,
    progress: &mut [Progress],
    flow: &mut Flow<'_, D>,
    now: Instant,
) -> Result<bool> {
    let is_over = pacer.is_over(now);
    if !is_over {
        let qps = u32::try_from(progress.len()).unwrap_or(u32::MAX);
        let (mut full, mut burst) = (0, 0);
        let mut now = clock::now();
        while full < qps && burst < BURST && pacer.is_due(now) {
            let qp = *turn;
            *turn = (qp + 1) % qps;
            let Some(p) = progress
                .get_mut(qp as usize)
                .filter(|p| p.posted - p.done < posting.depth)
            else {
                full += 1;
                continue;
            };
            (full, burst) = (0, burst + 1);
            // The time it is handed over, not the time it has been.
            pacer.post(qp, p.posted, now);
            let area = local_area(posting.step.op);
            flow.post(posting.step, area, qp, p.posted, true)?;
            p.posted += 1;
            now = clock::now();
        }
    }
    let outstanding = progress.iter().any(|p| p.posted > p.done);
    Ok(outstanding || !is_over)
}
