//! The server's half of a measurement: receives, answers and compares.

use anyhow::{Result, bail};
use xroce_engine::clock;
use xroce_net::datapath::Datapath;
use xroce_proto::time::Duration;

use super::flow::{Area, Attributes, Done, FULL_ACCESS};
use super::message::{Message, QpData};
use super::pattern::{MessageId, Pattern};
use super::plan::{Op, Plan, Shape, Step, Test};
use super::talk::{Talk, unexpected};
use super::traffic::flag;

/// Acknowledged messages are here already; this long they may take to show up all the same.
const STRAGGLERS: Duration = Duration::from_millis(2_000);

/// One step in progress.
pub(crate) struct Answer<'t, 'a, D: Datapath> {
    talk: &'t mut Talk<'a, D>,
    pattern: &'t Pattern,
    step: Step,
    /// Index of the step in the plan.
    index: u32,
    shape: Shape,
    verify: bool,
    round: u64,
    /// Messages received on each queue pair in this round (SEND).
    received: Vec<u64>,
    /// Receives posted on each queue pair in this round.
    posted: Vec<u64>,
    /// Messages answered (latency).
    answered: u64,
    /// Messages that wait for their answer (latency).
    owed: u64,
    /// Answers that the client has not acknowledged: where acknowledgements are lost, it asks again
    /// before the last answer is complete.
    unsettled: u64,
    verified: u64,
    mismatches: u64,
    first: Option<String>,
    done: Vec<Done>,
    buffer: Vec<u8>,
}

impl<'t, 'a, D: Datapath> Answer<'t, 'a, D> {
    /// Does what the client's `start` message asks for, to the end of the step.
    ///
    /// # Errors
    /// A queue pair or the conversation failed, or the user interrupts.
    pub(crate) fn step(
        talk: &'t mut Talk<'a, D>,
        pattern: &'t Pattern,
        plan: &Plan,
        (index, step): (u32, Step),
        theirs: &[QpData],
        messages: Option<u64>,
    ) -> Result<()> {
        let shape = plan.shape(step);
        let per_qp = vec![0; shape.qps as usize];
        let mut answer = Self {
            talk,
            pattern,
            step,
            index,
            shape,
            verify: plan.verify,
            round: 0,
            received: per_qp.clone(),
            posted: per_qp,
            answered: 0,
            owed: 0,
            unsettled: 0,
            verified: 0,
            mismatches: 0,
            first: None,
            done: Vec::with_capacity(64),
            buffer: vec![0; step.size as usize],
        };
        let qps = answer.talk.flow.start_step(shape, FULL_ACCESS)?;
        answer.prepare(messages)?;
        let attributes = Attributes::for_size(step.size, plan.repair);
        answer.talk.flow.connect_step(&qps, theirs, attributes)?;
        answer.talk.say(&Message::Ready { qps })?;
        while answer.round()? {}
        Ok(())
    }

    /// Lays out buffers and receives for a round of so many messages.
    fn prepare(&mut self, messages: Option<u64>) -> Result<()> {
        let within = self.shape.round.map(u64::from);
        if let (Some(n), Some(limit)) = (messages, within)
            && n > limit
        {
            bail!("the client announced a round of {n} messages, the plan says {limit}");
        }
        self.received.fill(0);
        self.posted.fill(0);
        let messages = messages.or(within).unwrap_or(u64::MAX);
        for qp in 0..self.shape.qps {
            match self.step.op {
                Op::Read if self.verify || self.step.test == Test::Lat => {
                    for n in 0..messages.min(self.shape.slots.into()) {
                        let bytes = self.pattern.of(self.id(qp, n), self.step.size);
                        self.talk.flow.fill(Area::Source, qp, n, bytes);
                    }
                }
                Op::Send => {
                    for _ in 0..messages.min(self.shape.receives.into()) {
                        self.post_recv(qp)?;
                    }
                }
                Op::Read | Op::Write => {}
            }
        }
        if self.step.test == Test::Lat && self.step.op == Op::Write {
            self.talk
                .flow
                .fill(Area::Target, 0, 0, &vec![0; self.step.size as usize]);
        }
        Ok(())
    }

    fn post_recv(&mut self, qp: u32) -> Result<()> {
        if let Some(posted) = self.posted.get_mut(qp as usize) {
            self.talk.flow.post_recv(qp, *posted, self.step.size)?;
            *posted += 1;
        }
        Ok(())
    }

    fn id(&self, qp: u32, n: u64) -> MessageId {
        MessageId {
            step: self.index,
            round: self.round,
            qp,
            n,
        }
    }

    /// Everything up to the client's `sync`, and the reply to it. Whether another round follows.
    fn round(&mut self) -> Result<bool> {
        let (round, messages, next) = loop {
            match self.talk.take_message() {
                None => self.turn()?,
                Some(Message::Sync {
                    round,
                    messages,
                    next,
                }) => break (round, messages, next),
                Some(other) => return Err(unexpected(&other, "sync")),
            }
        };
        if round != self.round || messages.len() != self.shape.qps as usize {
            bail!(
                "the client ended round {round} while round {} was running",
                self.round
            );
        }
        if self.step.op == Op::Send && self.step.test == Test::Bw {
            self.await_stragglers(&messages)?;
        }
        if let Some(limit) = self.shape.round {
            self.compare(&messages, limit.into())?;
        }
        if next.is_some() {
            self.round += 1;
            self.prepare(next)?;
        }
        let counters = self.talk.flow.counters();
        self.talk.say(&Message::Synced {
            verified: std::mem::take(&mut self.verified),
            mismatches: std::mem::take(&mut self.mismatches),
            first: self.first.take(),
            counters,
        })?;
        Ok(next.is_some())
    }

    /// One turn of the engine and what it brought.
    fn turn(&mut self) -> Result<()> {
        self.talk.turn()?;
        self.talk.flow.reap(&mut self.done)?;
        let mut done = std::mem::take(&mut self.done);
        for d in done.drain(..) {
            if d.received {
                self.take_receive(d)?;
            } else {
                self.unsettled = self.unsettled.saturating_sub(1);
            }
        }
        self.done = done;
        if self.step.test == Test::Lat && self.step.op == Op::Write {
            let want = flag(self.answered);
            if self.talk.flow.last_byte(Area::Target, 0, 0, self.step.size) == want {
                self.owed = 1;
            }
        }
        // The send queue takes one more than are outstanding at the client.
        while self.owed > 0 && self.unsettled <= u64::from(self.shape.depth) {
            self.owed -= 1;
            self.pong()?;
        }
        Ok(())
    }

    fn take_receive(&mut self, d: Done) -> Result<()> {
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
        match (self.step.test, self.shape.round) {
            // The next message must find a receive as soon as the answer has left.
            (Test::Lat, _) => {
                self.post_recv(d.qp)?;
                self.owed += 1;
                Ok(())
            }
            (Test::Bw, None) => self.post_recv(d.qp),
            (Test::Bw, Some(_)) => Ok(()),
        }
    }

    /// Sends a message back from where it arrived. It is copied first and compared while the
    /// answer travels: the client may send the next one into the same place as soon as it has
    /// the answer.
    fn pong(&mut self) -> Result<()> {
        let (size, n) = (self.step.size, self.answered);
        if self.verify {
            self.talk.flow.read(Area::Target, 0, 0, &mut self.buffer);
        }
        self.talk.flow.post(self.step, Area::Target, 0, n, true)?;
        self.unsettled += 1;
        self.talk.flow.turn(clock::now())?;
        if self.verify {
            let end = if self.step.op == Op::Write {
                size as usize - 1
            } else {
                size as usize
            };
            let got = self.buffer.get(..end).unwrap_or_default();
            let miss = self.pattern.mismatch(self.id(0, n), got);
            self.note(miss.map(|m| m.to_string()));
        }
        self.answered += 1;
        Ok(())
    }

    fn await_stragglers(&mut self, messages: &[u64]) -> Result<()> {
        let deadline = clock::now() + STRAGGLERS;
        while self
            .received
            .iter()
            .zip(messages)
            .any(|(got, sent)| got < sent)
        {
            self.turn()?;
            if clock::now() >= deadline {
                bail!(
                    "the client had {} messages acknowledged, only {} arrived",
                    messages.iter().fold(0, |a: u64, m| a.saturating_add(*m)),
                    self.received.iter().sum::<u64>()
                );
            }
        }
        Ok(())
    }

    /// Compares what the round left in the target area (SEND, WRITE).
    fn compare(&mut self, messages: &[u64], limit: u64) -> Result<()> {
        if let Some(n) = messages.iter().find(|&&n| n > limit) {
            bail!("the client sent {n} messages in a round, the plan says {limit}");
        }
        if self.step.op == Op::Read {
            return Ok(());
        }
        for (qp, &count) in (0..).zip(messages) {
            for n in 0..count {
                self.talk.flow.read(Area::Target, qp, n, &mut self.buffer);
                let miss = self.pattern.mismatch(self.id(qp, n), &self.buffer);
                self.note(miss.map(|m| m.to_string()));
            }
        }
        Ok(())
    }

    fn note(&mut self, miss: Option<String>) {
        self.verified += 1;
        if miss.is_some() {
            self.mismatches += 1;
            if self.first.is_none() {
                self.first = miss;
            }
        }
    }
}
