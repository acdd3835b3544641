//! The client's half of a measurement: sets up, goes round by round, asks the server what it found.
//!
//! A bandwidth step is one or more rounds. In a round every queue pair keeps up to `depth`
//! messages outstanding until its share is done. With verification a round is short, all its
//! messages lie in buffers of their own, and between rounds, while no clock runs, both sides
//! compare what arrived and lay out the next. Without verification one round is measured, and
//! buffers are reused. Rounds before that warm up: they are like the others, and do not count.

use anyhow::Result;
use xroce_engine::clock;
use xroce_proto::time::Duration;

use crate::perf::device::Device;
use crate::perf::measure::flow::{Attributes, FULL_ACCESS};
use crate::perf::measure::latency::RoundTrips;
use crate::perf::measure::pattern::Pattern;
use crate::perf::measure::quantiles::histogram;
use crate::perf::measure::side::{Checked, Sent, Side};
use crate::perf::measure::step_barrier::StepBarrier;
use crate::perf::measure::usage::{Gauge, Usage};
use crate::perf::peer::conversation::{Conversation, unexpected};
use crate::perf::peer::message::{Message, SentData, SideCounters, check_qps, one_line};
use crate::perf::plan::{Limit, Plan, Round, Shape, Step, Test};

/// What a step found.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What this side sent, round trips in a latency test.
    pub sent: Sent,
    /// What the server sent (`--bidirectional`).
    pub reverse: Option<SentData>,
    /// Round trips in ns (latency).
    pub round_trips: Option<hdrhistogram::Histogram<u64>>,
    /// What was compared, at either side.
    pub checked: Checked,
    /// What this side counted, and the server.
    pub counters: [SideCounters; 2],
    /// What the threads of this side and of the server used.
    pub usage: [Usage; 2],
}

/// What the steps of a client have in common.
pub(crate) struct Bench<'p> {
    /// What to measure.
    pub plan: &'p Plan,
    /// Bytes of messages.
    pub pattern: Pattern,
    /// Of this thread.
    pub gauge: Gauge,
    /// Where the ports of a client wait for each other.
    pub barrier: &'p StepBarrier,
}

/// One step in progress.
struct Run<'t, 'a, 'p, D: Device> {
    talk: &'t mut Conversation<'a, D>,
    bench: &'t mut Bench<'p>,
    step: Step,
    /// Index of the step in the plan.
    index: u32,
    shape: Shape,
    limit: Limit,
    out: Outcome,
}

impl Bench<'_> {
    /// Sets up the queue pairs of step `index` on both sides and measures it.
    ///
    /// # Errors
    /// A queue pair or the conversation failed, or the user interrupts.
    pub(crate) fn step<D: Device>(
        &mut self,
        talk: &mut Conversation<'_, D>,
        index: u32,
        step: Step,
    ) -> Result<Outcome> {
        let mut run = Run {
            shape: self.plan.shape(step),
            limit: self.plan.limit(step),
            talk,
            bench: self,
            step,
            index,
            out: Outcome {
                sent: Sent::default(),
                reverse: None,
                round_trips: None,
                checked: Checked::default(),
                counters: [SideCounters::default(); 2],
                usage: [Usage::default(), Usage::default()],
            },
        };
        run.bench.gauge.reset();
        match step.test {
            Test::Bw | Test::Open => run.rounds()?,
            Test::Lat => run.latency()?,
        }
        let Outcome {
            counters, usage, ..
        } = &mut run.out;
        let ([own, _], [used, _]) = (counters, usage);
        *own = run.talk.flow.counters()?;
        *used = run.bench.gauge.usage();
        Ok(run.out)
    }
}

impl<D: Device> Run<'_, '_, '_, D> {
    /// Makes and connects the queue pairs; `side` has receives to post before that.
    fn connect(&mut self, side: Option<&mut Side>, first: Round) -> Result<()> {
        let flow = &mut self.talk.flow;
        flow.divide(self.shape);
        let qps = flow.start_step(self.shape, FULL_ACCESS)?;
        if let Some(side) = side {
            side.prepare(flow, &self.bench.pattern, 0, first)?;
        }
        self.talk.say(&Message::Start {
            step: self.index,
            qps: qps.clone(),
            round: first,
        })?;
        match self.talk.listen()? {
            Message::Ready { qps: theirs } => {
                check_qps(&theirs, self.shape.qps)?;
                let attributes = Attributes::for_size(self.step.size, self.bench.plan.repair);
                self.talk.flow.connect_step(&qps, &theirs, attributes)?;
            }
            other => return Err(unexpected(&other, "ready")),
        }
        // All ports measure at the same time.
        self.bench.barrier.pass(self.talk, self.index)
    }

    fn rounds(&mut self) -> Result<()> {
        let mut side = Side::new(self.bench.plan, self.index, self.step, true);
        let mut warm = Duration::ZERO;
        let first = self.next(&side, warm).unwrap_or_else(|| self.plain(true));
        let (mut round, mut number) = (Some(first), 0);
        self.connect(Some(&mut side), first)?;
        while let Some(this) = round {
            let start = clock::now();
            self.traffic(&mut side, this)?;
            if !this.counted {
                let spent = clock::now().since(start).as_nanos();
                warm = Duration::from_nanos(warm.as_nanos() + spent);
            }
            round = self.next(&side, warm);
            let theirs = self.sync(&mut side, number, round)?;
            side.settle(self.talk, &self.bench.pattern, theirs.as_deref())?;
            number += 1;
            if let Some(next) = round {
                let flow = &mut self.talk.flow;
                side.prepare(flow, &self.bench.pattern, number, next)?;
            }
        }
        self.out.sent = side.sent().clone();
        self.add_checks(std::mem::take(&mut side.checked));
        Ok(())
    }

    /// One round against the clock.
    fn traffic(&mut self, side: &mut Side, round: Round) -> Result<()> {
        self.talk.say(&Message::Go {})?;
        self.talk.flow.stay_awake(side.is_open());
        if round.counted {
            self.bench.gauge.start();
        }
        side.begin()?;
        let mut now = clock::now();
        while side.drive(&mut self.talk.flow, now)? {
            now = self.talk.turn()?;
            self.talk.expect_none("synced")?;
            side.pump(&mut self.talk.flow)?;
        }
        side.end_round();
        if round.counted {
            self.bench.gauge.stop();
        }
        self.talk.flow.stay_awake(false);
        Ok(())
    }

    /// What comes after the rounds so far: more to warm up, more to measure, or nothing.
    fn next(&self, side: &Side, warm: Duration) -> Option<Round> {
        let warmup = Duration::from_millis(self.bench.plan.warmup_millis);
        if side.sent().messages == 0 && warm < warmup {
            return Some(self.plain(false));
        }
        let sent = side.sent();
        let within = self.shape.round.map(u64::from);
        match self.limit {
            Limit::Messages(n) => {
                let left = n.saturating_sub(sent.messages / u64::from(self.shape.qps.max(1)));
                let messages = Some(within.map_or(left, |w| left.min(w)));
                (left > 0).then_some(Round {
                    counted: true,
                    messages,
                })
            }
            Limit::Millis(ms) => {
                let spent = Duration::from_nanos(sent.elapsed_ns);
                let more =
                    sent.elapsed_ns == 0 || (within.is_some() && spent < Duration::from_millis(ms));
                more.then_some(self.plain(true))
            }
        }
    }

    /// A round in full, or as long as time says.
    fn plain(&self, counted: bool) -> Round {
        Round {
            counted,
            messages: self.shape.round.map(u64::from),
        }
    }

    /// Tells the server that the round is over and hears its findings: what it has sent on each
    /// queue pair, if it sends.
    fn sync(
        &mut self,
        side: &mut Side,
        round: u64,
        next: Option<Round>,
    ) -> Result<Option<Vec<u64>>> {
        let messages = side.sent_in_round();
        self.say_sync(round, messages, next)?;
        let synced = loop {
            if let Some(message) = self.talk.take_message() {
                break message;
            }
            self.talk.turn()?;
            // The server may still be sending.
            side.pump(&mut self.talk.flow)?;
        };
        self.take_synced(synced)?;
        Ok(self.out.reverse.as_ref().map(|sent| sent.round.clone()))
    }

    fn say_sync(&mut self, round: u64, messages: Vec<u64>, next: Option<Round>) -> Result<()> {
        self.talk.say(&Message::Sync {
            round,
            messages,
            next,
        })
    }

    fn take_synced(&mut self, message: Message) -> Result<()> {
        let Message::Synced {
            verified,
            mismatches,
            first,
            counters,
            usage,
            sent,
        } = message
        else {
            return Err(unexpected(&message, "synced"));
        };
        let first = first.map(|f| format!("at the server, {}", one_line(&f)));
        self.add_checks(Checked {
            verified,
            mismatches,
            first,
        });
        let refusal = usage.refusal.as_deref().map(one_line);
        self.out.counters[1] = counters;
        self.out.usage[1] = Usage { refusal, ..usage };
        // Only a server that was asked to send has sent.
        self.out.reverse = sent.filter(|_| self.bench.plan.bidirectional);
        Ok(())
    }

    fn add_checks(&mut self, found: Checked) {
        let all = &mut self.out.checked;
        all.verified = all.verified.saturating_add(found.verified);
        all.mismatches = all.mismatches.saturating_add(found.mismatches);
        if all.first.is_none() {
            all.first = found.first;
        }
    }

    /// One message at a time.
    fn latency(&mut self) -> Result<()> {
        let round = Round {
            counted: true,
            messages: None,
        };
        self.connect(None, round)?;
        self.talk.say(&Message::Go {})?;
        self.bench.gauge.start();
        let mut trips = RoundTrips::new(self.step, self.index, self.bench.plan.verify);
        let mut histogram = histogram()?;
        let start = clock::now();
        let begin = trips.warm_up(self.talk, &self.bench.pattern, self.bench.plan, start)?;
        loop {
            match self.limit {
                Limit::Messages(limit) if histogram.len() >= limit => break,
                Limit::Millis(ms)
                    if !histogram.is_empty()
                        && clock::now().since(begin) >= Duration::from_millis(ms) =>
                {
                    break;
                }
                _ => {}
            }
            let ns = trips.one(self.talk, &self.bench.pattern)?;
            histogram.saturating_record(ns);
        }
        self.bench.gauge.stop();
        self.out.sent.messages = trips.count();
        self.out.sent.elapsed_ns = clock::now().since(start).as_nanos();
        self.out.round_trips = Some(histogram);
        self.say_sync(0, vec![trips.count()], None)?;
        let synced = self.talk.listen()?;
        self.take_synced(synced)?;
        self.add_checks(trips.checked());
        Ok(())
    }
}
