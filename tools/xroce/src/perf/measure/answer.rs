//! The server's half of a measurement: receives, answers, sends if both sides do, and compares.

use anyhow::{Result, bail};
use xroce_engine::clock;
use xroce_proto::time::Instant;

use crate::perf::device::Device;
use crate::perf::measure::flow::{Area, Attributes, Done, FULL_ACCESS};
use crate::perf::measure::latency::flag;
use crate::perf::measure::pattern::{MessageId, Pattern};
use crate::perf::measure::side::{Checked, Side};
use crate::perf::measure::usage::Gauge;
use crate::perf::peer::conversation::{Conversation, unexpected};
use crate::perf::peer::message::{Message, QpData, SentData};
use crate::perf::plan::{Op, Plan, Round, Shape, Step, Test};

/// What the client asks for in its `start` message.
pub(crate) struct Start {
    /// Which step, and its number in the plan.
    pub step: Step,
    /// Its number.
    pub index: u32,
    /// Queue pairs of the client.
    pub theirs: Vec<QpData>,
    /// The first round.
    pub first: Round,
}

/// Does what the client's `start` message asks for, to the end of the step.
///
/// # Errors
/// A queue pair or the conversation failed, or the user interrupts.
pub(crate) fn step<D: Device>(
    talk: &mut Conversation<'_, D>,
    pattern: &Pattern,
    plan: &Plan,
    gauge: &mut Gauge,
    start: &Start,
) -> Result<()> {
    let shape = plan.shape(start.step);
    talk.flow.divide(shape);
    let qps = talk.flow.start_step(shape, FULL_ACCESS)?;
    gauge.reset();
    let mut work = match start.step.test {
        Test::Bw | Test::Open => {
            Work::Side(Box::new(Side::new(plan, start.index, start.step, false)))
        }
        Test::Lat => Work::Pong(Pong::new(start, shape, plan.verify)),
    };
    work.prepare(talk, pattern, 0, start.first)?;
    let attributes = Attributes::for_size(start.step.size, plan.repair);
    talk.flow.connect_step(&qps, &start.theirs, attributes)?;
    talk.say(&Message::Ready { qps })?;
    let (mut number, mut round) = (0, start.first);
    while let Some(next) = one_round(talk, pattern, gauge, &mut work, (number, round))? {
        (number, round) = (number + 1, next);
    }
    Ok(())
}

/// Everything from the client's `go` to its `sync` and the reply to it. Returns the next round.
fn one_round<D: Device>(
    talk: &mut Conversation<'_, D>,
    pattern: &Pattern,
    gauge: &mut Gauge,
    work: &mut Work,
    (number, round): (u64, Round),
) -> Result<Option<Round>> {
    let messages = loop {
        match talk.take_message() {
            None => drop(work.turn(talk, pattern)?),
            Some(Message::Go {}) => break work.traffic(talk, pattern, gauge, round.counted)?,
            Some(other) => return Err(unexpected(&other, "go")),
        }
    };
    let Message::Sync {
        round: theirs,
        messages,
        next,
    } = messages
    else {
        return Err(unexpected(&messages, "sync"));
    };
    if theirs != number {
        bail!("the client ended round {theirs} while round {number} was running");
    }
    let sent = work.settle(talk, pattern, &messages)?;
    if let Some(next) = next {
        work.prepare(talk, pattern, number + 1, next)?;
    }
    let Checked {
        verified,
        mismatches,
        first,
    } = work.take_checked();
    let counters = talk.flow.counters()?;
    talk.say(&Message::Synced {
        verified,
        mismatches,
        first,
        counters,
        usage: gauge.usage(),
        sent,
    })?;
    Ok(next)
}

/// What the server does in a step.
enum Work {
    Side(Box<Side>),
    Pong(Pong),
}

impl Work {
    fn prepare<D: Device>(
        &mut self,
        talk: &mut Conversation<'_, D>,
        pattern: &Pattern,
        number: u64,
        round: Round,
    ) -> Result<()> {
        match self {
            Self::Side(side) => side.prepare(&mut talk.flow, pattern, number, round),
            Self::Pong(_) if number > 0 => bail!("a latency test has one round"),
            Self::Pong(pong) => pong.prepare(talk, pattern),
        }
    }

    /// One turn of the engine and what it brought. Returns the time.
    #[inline]
    fn turn<D: Device>(
        &mut self,
        talk: &mut Conversation<'_, D>,
        pattern: &Pattern,
    ) -> Result<Instant> {
        let now = talk.turn()?;
        match self {
            Self::Side(side) => side.pump(&mut talk.flow)?,
            Self::Pong(pong) => pong.pump(talk, pattern)?,
        }
        Ok(now)
    }

    /// From the client's `go` to the next message, which is returned; longer if this side has not
    /// finished what it sends.
    fn traffic<D: Device>(
        &mut self,
        talk: &mut Conversation<'_, D>,
        pattern: &Pattern,
        gauge: &mut Gauge,
        counted: bool,
    ) -> Result<Message> {
        if counted {
            gauge.start();
        }
        if let Self::Side(side) = self {
            side.begin()?;
            talk.flow.stay_awake(side.is_open() && side.is_sending());
        }
        let mut message = None;
        let mut now = clock::now();
        let message = loop {
            let busy = match self {
                Self::Side(side) => side.drive(&mut talk.flow, now)?,
                Self::Pong(_) => false,
            };
            if message.is_none() {
                message = talk.take_message();
            }
            match message {
                Some(message) if !busy => break message,
                other => message = other,
            }
            now = self.turn(talk, pattern)?;
        };
        if let Self::Side(side) = self {
            side.end_round();
        }
        if counted {
            gauge.stop();
        }
        talk.flow.stay_awake(false);
        Ok(message)
    }

    /// The client has sent so many messages: waits for them, compares, and says what this side
    /// sent.
    fn settle<D: Device>(
        &mut self,
        talk: &mut Conversation<'_, D>,
        pattern: &Pattern,
        messages: &[u64],
    ) -> Result<Option<SentData>> {
        match self {
            Self::Side(side) => {
                side.settle(talk, pattern, Some(messages))?;
                Ok(side.sent_data())
            }
            Self::Pong(_) => Ok(None),
        }
    }

    fn take_checked(&mut self) -> Checked {
        match self {
            Self::Side(side) => std::mem::take(&mut side.checked),
            Self::Pong(pong) => std::mem::take(&mut pong.checked),
        }
    }
}

/// Answers one message at a time.
struct Pong {
    step: Step,
    index: u32,
    shape: Shape,
    verify: bool,
    /// Receives posted.
    posted: u64,
    /// Messages answered.
    answered: u64,
    /// Messages that wait for their answer.
    owed: u64,
    /// Answers that the client has not acknowledged: where acknowledgements are lost, it asks again
    /// before the last answer is complete.
    unsettled: u64,
    checked: Checked,
    done: Vec<Done>,
    buffer: Vec<u8>,
}

impl Pong {
    fn new(start: &Start, shape: Shape, verify: bool) -> Self {
        Self {
            step: start.step,
            index: start.index,
            shape,
            verify,
            posted: 0,
            answered: 0,
            owed: 0,
            unsettled: 0,
            checked: Checked::default(),
            done: Vec::with_capacity(64),
            buffer: vec![0; start.step.size as usize],
        }
    }

    fn id(&self, n: u64) -> MessageId {
        MessageId {
            step: self.index,
            round: 0,
            of_client: true,
            qp: 0,
            n,
        }
    }

    fn prepare<D: Device>(
        &mut self,
        talk: &mut Conversation<'_, D>,
        pattern: &Pattern,
    ) -> Result<()> {
        let size = self.step.size;
        match self.step.op {
            Op::Read => {
                let bytes = pattern.of(self.id(0), size);
                talk.flow.fill(Area::Source, 0, 0, bytes);
            }
            Op::Send => {
                for _ in 0..self.shape.receives {
                    self.post_recv(talk)?;
                }
            }
            Op::Write => talk.flow.fill(Area::Target, 0, 0, &vec![0; size as usize]),
        }
        Ok(())
    }

    fn post_recv<D: Device>(&mut self, talk: &mut Conversation<'_, D>) -> Result<()> {
        talk.flow.post_recv(0, self.posted, self.step.size)?;
        self.posted += 1;
        Ok(())
    }

    fn pump<D: Device>(&mut self, talk: &mut Conversation<'_, D>, pattern: &Pattern) -> Result<()> {
        talk.flow.reap(&mut self.done)?;
        let mut done = std::mem::take(&mut self.done);
        for d in done.drain(..) {
            if d.received {
                self.take_receive(talk, d)?;
            } else {
                self.unsettled = self.unsettled.saturating_sub(1);
            }
        }
        self.done = done;
        if self.step.op == Op::Write {
            let want = flag(self.answered);
            if talk.flow.last_byte(Area::Target, 0, 0, self.step.size) == want {
                self.owed = 1;
            }
        }
        // The send queue takes one more than are outstanding at the client.
        while self.owed > 0 && self.unsettled <= u64::from(self.shape.depth) {
            self.owed -= 1;
            self.pong(talk, pattern)?;
        }
        Ok(())
    }

    fn take_receive<D: Device>(&mut self, talk: &mut Conversation<'_, D>, d: Done) -> Result<()> {
        if d.len != self.step.size {
            bail!(
                "a message of {} bytes arrived where {} were sent",
                d.len,
                self.step.size
            );
        }
        // The next message must find a receive as soon as the answer has left.
        self.post_recv(talk)?;
        self.owed += 1;
        Ok(())
    }

    /// Sends a message back from where it arrived. It is copied first and compared while the
    /// answer travels: the client may send the next one into the same place as soon as it has
    /// the answer.
    fn pong<D: Device>(&mut self, talk: &mut Conversation<'_, D>, pattern: &Pattern) -> Result<()> {
        let (size, n) = (self.step.size as usize, self.answered);
        if self.verify {
            talk.flow.read(Area::Target, 0, 0, &mut self.buffer);
        }
        talk.flow.post(self.step, Area::Target, 0, n, true)?;
        self.unsettled += 1;
        talk.flow.turn(clock::now())?;
        if self.verify {
            let end = match self.step.op {
                Op::Write => size - 1,
                Op::Send | Op::Read => size,
            };
            let got = self.buffer.get(..end).unwrap_or_default();
            let miss = pattern.mismatch(self.id(n), got);
            self.checked.note(miss);
        }
        self.answered += 1;
        Ok(())
    }
}
