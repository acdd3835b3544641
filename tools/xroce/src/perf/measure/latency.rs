//! One message at a time: SEND and WRITE are answered in kind, READ answers itself.

use anyhow::Result;
use xroce_engine::clock;
use xroce_proto::time::{Duration, Instant};

use crate::perf::device::Device;
use crate::perf::measure::flow::{Area, Done};
use crate::perf::measure::pattern::{MessageId, Pattern};
use crate::perf::measure::posting::local_area;
use crate::perf::measure::side::Checked;
use crate::perf::peer::conversation::Conversation;
use crate::perf::plan::{Op, Plan, Step};

/// Round trips that are never recorded: caches and branch predictors are cold.
const WARM_UP: u64 = 64;

/// Round trips, from the client's side.
pub(crate) struct RoundTrips {
    step: Step,
    index: u32,
    verify: bool,
    n: u64,
    checked: Checked,
    done: Vec<Done>,
    buffer: Vec<u8>,
}

impl RoundTrips {
    /// None yet.
    pub(crate) fn new(step: Step, index: u32, verify: bool) -> Self {
        Self {
            step,
            index,
            verify,
            n: 0,
            checked: Checked::default(),
            done: Vec::with_capacity(64),
            buffer: vec![0; step.size as usize],
        }
    }

    /// So many so far.
    pub(crate) fn count(&self) -> u64 {
        self.n
    }

    /// What was compared.
    pub(crate) fn checked(self) -> Checked {
        self.checked
    }

    /// Those before the measurement. Returns when it begins.
    ///
    /// # Errors
    /// As [`RoundTrips::one`].
    pub(crate) fn warm_up<D: Device>(
        &mut self,
        talk: &mut Conversation<'_, D>,
        pattern: &Pattern,
        plan: &Plan,
        start: Instant,
    ) -> Result<Instant> {
        let warmup = Duration::from_millis(plan.warmup_millis);
        loop {
            let now = clock::now();
            if self.n >= WARM_UP && now.since(start) >= warmup {
                return Ok(now);
            }
            self.one(talk, pattern)?;
        }
    }

    /// Sends the next message, waits for the answer, compares it. Returns the ns in between.
    ///
    /// # Errors
    /// A queue pair or the conversation failed, or the user interrupts.
    pub(crate) fn one<D: Device>(
        &mut self,
        talk: &mut Conversation<'_, D>,
        pattern: &Pattern,
    ) -> Result<u64> {
        let (n, id, op) = (self.n, self.id(), self.step.op);
        self.n += 1;
        self.lay_out(talk, pattern, n)?;
        let (size, area) = (self.step.size, local_area(op));
        let start = clock::now();
        talk.flow.post(self.step, area, 0, n, true)?;
        let (mut sent, mut answered) = (false, false);
        let mut end = start;
        while !(sent && answered) {
            talk.turn()?;
            talk.flow.reap(&mut self.done)?;
            for d in self.done.drain(..) {
                sent |= !d.received;
                answered |= d.received || op == Op::Read;
            }
            if op == Op::Write && !answered {
                answered = talk.flow.last_byte(Area::Target, 0, 0, size) == flag(n);
            }
            if answered && end == start {
                end = clock::now();
            }
            talk.expect_none("synced")?;
        }
        if self.verify {
            self.compare_answer(talk, pattern, id);
        }
        Ok(end.since(start).as_nanos())
    }

    fn id(&self) -> MessageId {
        MessageId {
            step: self.index,
            round: 0,
            of_client: true,
            qp: 0,
            n: self.n,
        }
    }

    /// Writes message `n`, and posts a receive for its answer.
    fn lay_out<D: Device>(
        &mut self,
        talk: &mut Conversation<'_, D>,
        pattern: &Pattern,
        n: u64,
    ) -> Result<()> {
        let id = MessageId { n, ..self.id() };
        let flow = &mut talk.flow;
        self.buffer.copy_from_slice(pattern.of(id, self.step.size));
        match self.step.op {
            // What an earlier READ brought must not pass for what this one brings.
            Op::Read if self.verify => {
                self.buffer.fill(0);
                flow.fill(Area::Target, 0, 0, &self.buffer);
            }
            Op::Read => {}
            Op::Send => {
                flow.fill(Area::Source, 0, 0, &self.buffer);
                flow.post_recv(0, n, self.step.size)?;
            }
            Op::Write => {
                if let Some(last) = self.buffer.last_mut() {
                    *last = flag(n);
                }
                flow.fill(Area::Source, 0, 0, &self.buffer);
            }
        }
        Ok(())
    }

    /// Compares the answer of the server with what was sent, or what it was to be read from.
    fn compare_answer<D: Device>(
        &mut self,
        talk: &Conversation<'_, D>,
        pattern: &Pattern,
        id: MessageId,
    ) {
        // READ: the source lies still, it is message 0 all the time.
        let id = if self.step.op == Op::Read {
            MessageId { n: 0, ..id }
        } else {
            id
        };
        talk.flow.read(Area::Target, 0, 0, &mut self.buffer);
        let end = if self.step.op == Op::Write {
            self.buffer.len() - 1
        } else {
            self.buffer.len()
        };
        let got = self.buffer.get(..end);
        let miss = got.and_then(|b| pattern.mismatch(id, b));
        self.checked.note(miss);
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
