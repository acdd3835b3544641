//! Senders and one receiver around a hop, and one run of them.

use std::error::Error;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};

use xroce_engine::clock;
use xroce_net::xdp::hop::{Hop, PhantomQueue, QueueReport};
use xroce_net::xdp::{Mode, XdpPort};
use xroce_proto::cc::CongestionControl;
use xroce_proto::counters::Counters;
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::recovery::Reliability;
use xroce_proto::time::{Duration, Instant};
use xroce_proto::wc::{Completion, WcStatus};
use xroce_proto::wr::SendOp;
use xroce_testnet::{Netns, Star};
use xroce_wire::newtypes::{PathMtu, Qpn};

use crate::support::threads::two;
use crate::support::{End, Op, REAP, xdp};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of a message, and how many each sender has outstanding.
const MESSAGE: u32 = 16_384;
const DEPTH: u64 = 16;
/// Bytes in a packet.
const MTU: PathMtu = PathMtu::Mtu1024;
/// Receive chunks.
const RING: u32 = 2048;
/// ACK timeout 4.2 ms.
const TIMEOUT: u8 = 10;

/// What is tried.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) senders: usize,
    /// Of all senders.
    pub(crate) control: Option<CongestionControl>,
    pub(crate) reliability: Reliability,
    /// Towards the receiver.
    pub(crate) queue: PhantomQueue,
    /// Frames towards the senders (ACKs) dropped at random, in millionths.
    pub(crate) loss_back: u32,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Payload bits per second of each flow.
    pub(crate) goodput: Vec<f64>,
    /// Of all senders.
    pub(crate) senders: Counters,
    pub(crate) queue: QueueReport,
    /// Queue pairs that gave up, in words.
    pub(crate) failed: Vec<String>,
}

impl Run {
    pub(crate) fn total(&self) -> f64 {
        self.goodput.iter().sum()
    }

    /// Jain's index: 1 if all are equal, 1/n if one has everything.
    pub(crate) fn jain(&self) -> f64 {
        let squares: f64 = self.goodput.iter().map(|g| g * g).sum();
        if squares == 0.0 {
            return 0.0;
        }
        self.total() * self.total() / (self.goodput.len() as f64 * squares)
    }
}

/// The hosts and the hop.
pub(crate) struct Lab {
    // Dropped in this order: ports and program go before their interfaces.
    senders: Vec<End<XdpPort>>,
    receiver: End<XdpPort>,
    hop: Hop,
    _star: Star,
}

impl Lab {
    /// With so many senders at most.
    pub(crate) fn open(senders: u8) -> Outcome<Self> {
        let star = Star::new(senders + 1, 1500)?;
        let ports: Vec<String> = (0..star.leaves.len()).map(Star::port).collect();
        let hop = star.middle.run(|| Hop::open(&ports, Mode::Native))?;
        let mut ends = star.leaves.iter().map(end).collect::<Outcome<Vec<_>>>()?;
        let receiver = ends.remove(0);
        Ok(Self {
            senders: ends,
            receiver,
            hop,
            _star: star,
        })
    }

    /// Runs the senders for `time` after a third of it as warm-up.
    pub(crate) fn run(&mut self, trial: &Trial, time: Duration) -> Outcome<Run> {
        self.reset();
        let tune = |attr: QpAttr| match attr.state {
            Some(QpState::Rtr) => QpAttr {
                reliability: Some(trial.reliability),
                ..attr
            },
            Some(QpState::Rts) => QpAttr {
                congestion: trial.control.clone(),
                timeout: Some(TIMEOUT),
                retry_cnt: Some(7),
                ..attr
            },
            _ => attr,
        };
        for sender in self.senders.iter_mut().take(trial.senders) {
            let (from, to) = (sender.create_qp(), self.receiver.create_qp());
            sender.connect(from, &self.receiver.place, to, MTU, &tune);
            self.receiver.connect(to, &sender.place, from, MTU, &tune);
        }
        for port in 1..=trial.senders {
            let back = PhantomQueue {
                loss_ppm: trial.loss_back,
                ..PhantomQueue::default()
            };
            self.hop.set_queue(port, &back)?;
        }
        self.hop.set_queue(0, &trial.queue)?;
        let op = self.receiver.target(Op::Write);
        let done = AtomicBool::new(false);
        let (senders, receiver, hop) = (&mut self.senders, &mut self.receiver, &mut self.hop);
        let senders = &mut senders[..trial.senders];
        let (flows, ()) = two(
            || {
                let flows = send(senders, op, time, hop, &trial.queue);
                done.store(true, Ordering::Release);
                flows
            },
            || answer(receiver, &done),
        );
        let (goodput, failed, queue) = flows?;
        let mut counters = Counters::default();
        for end in senders {
            for &qpn in &end.qpns {
                counters += end.engine.qp_counters(qpn).unwrap_or_default();
            }
        }
        Ok(Run {
            goodput,
            senders: counters,
            queue,
            failed,
        })
    }

    fn reset(&mut self) {
        for end in self.senders.iter_mut().chain([&mut self.receiver]) {
            for qpn in end.qpns.drain(..) {
                // It exists: nobody else destroys it.
                let _ = end.engine.destroy_qp(qpn);
            }
            while end.engine.poll_cq(end.cq, &mut [Completion::EMPTY; REAP]) != 0 {}
        }
    }
}

fn end(ns: &Netns) -> Outcome<End<XdpPort>> {
    let (port, place) = xdp::open(ns, RING)?;
    Ok(End::new(port, place))
}

/// One sender's progress.
#[derive(Clone, Copy, Default)]
struct Progress {
    posted: u64,
    done: u64,
    /// Completed when the measurement began.
    before: u64,
    failed: bool,
}

type Flows = (Vec<f64>, Vec<String>, QueueReport);

/// All senders in turn, in this thread.
fn send(
    ends: &mut [End<XdpPort>],
    op: SendOp,
    time: Duration,
    hop: &mut Hop,
    queue: &PhantomQueue,
) -> Result<Flows, String> {
    let mut flows = vec![Progress::default(); ends.len()];
    let mut failed = Vec::new();
    let begin = clock::now() + Duration::from_nanos(time.as_nanos() / 3);
    let mut mark: Option<Instant> = None;
    loop {
        for (end, flow) in ends.iter_mut().zip(&mut flows) {
            step(end, flow, op, &mut failed)?;
        }
        let now = clock::now();
        match mark {
            None if now >= begin => {
                hop.set_queue(0, queue).map_err(|e| e.to_string())?;
                for flow in &mut flows {
                    flow.before = flow.done;
                }
                mark = Some(now);
            }
            Some(start) if now.since(start) >= time => {
                let seconds = now.since(start).as_nanos() as f64 / 1e9;
                let bits = |f: &Progress| (f.done - f.before) as f64 * f64::from(MESSAGE) * 8.0;
                let goodput = flows.iter().map(|f| bits(f) / seconds).collect();
                let report = hop.queue(0).map_err(|e| e.to_string())?;
                return Ok((goodput, failed, report));
            }
            _ => {}
        }
    }
}

fn step(
    end: &mut End<XdpPort>,
    flow: &mut Progress,
    op: SendOp,
    failed: &mut Vec<String>,
) -> Result<(), String> {
    let qpn: Qpn = end.qpns[0];
    while !flow.failed && flow.posted - flow.done < DEPTH {
        if !end.post(qpn, flow.posted, op, MESSAGE, true) {
            break;
        }
        flow.posted += 1;
    }
    let polled = end.engine.poll_once(clock::now());
    polled.map_err(|e| e.to_string())?;
    let mut batch = [Completion::EMPTY; REAP];
    let n = end.engine.poll_cq(end.cq, &mut batch);
    for wc in &batch[..n] {
        if wc.status == WcStatus::Success {
            flow.done += 1;
        } else if !flow.failed {
            flow.failed = true;
            let why = end.engine.failure(wc.qpn);
            failed.push(why.map_or_else(|| format!("{wc:?}"), |f| f.to_string()));
        }
    }
    Ok(())
}

fn answer(end: &mut End<XdpPort>, done: &AtomicBool) {
    while !done.load(Ordering::Acquire) {
        if end.engine.poll_once(clock::now()).is_err() {
            return;
        }
        spin_loop();
    }
}
