//! One engine in each of two threads, pinned to two cores, both polling without pause.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, ScopedJoinHandle};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};
use xroce_engine::clock;
use xroce_net::datapath::Datapath;
use xroce_proto::time::{Duration, Instant};
use xroce_proto::wc::{Completion, WcOpcode};
use xroce_proto::wr::SendOp;
use xroce_wire::newtypes::PathMtu;

use super::{End, Op, Pair, REAP};

/// Allocations of the calling thread so far, if somebody counts them.
pub type AllocationCount = fn() -> u64;

/// Messages that one end sends as fast as it can.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub op: Op,
    pub size: u32,
    pub mtu: PathMtu,
    /// Messages posted and not completed.
    pub depth: u64,
}

/// What came of it.
#[derive(Clone, Copy, Default, Debug)]
pub struct Flow {
    pub messages: u64,
    pub seconds: f64,
    /// Packets sent again, warm-up included.
    pub retransmits: u64,
    /// Made by both threads after the warm-up.
    pub allocations: u64,
    /// What the sending and the receiving thread did with their time, warm-up included.
    pub used: [Used; 2],
}

/// What a thread did with its time.
#[derive(Clone, Copy, Default, Debug)]
pub struct Used {
    /// Between start and end, whether it ran or not.
    pub all_ns: u64,
    /// In its own code.
    pub user_ns: u64,
    /// In the kernel: its system calls, and interrupts that came upon it.
    pub kernel_ns: u64,
}

impl Used {
    /// So far, of the calling thread.
    fn now() -> Self {
        let ns = |t: TimeVal| u64::try_from(t.num_microseconds()).unwrap_or(0) * 1000;
        let usage = getrusage(UsageWho::RUSAGE_THREAD).ok();
        Self {
            all_ns: clock::now().as_nanos(),
            user_ns: usage.map_or(0, |u| ns(u.user_time())),
            kernel_ns: usage.map_or(0, |u| ns(u.system_time())),
        }
    }

    /// By the calling thread in `body`.
    fn by<T>(body: impl FnOnce() -> T) -> (T, Self) {
        let before = Self::now();
        let value = body();
        let now = Self::now();
        let used = Self {
            all_ns: now.all_ns - before.all_ns,
            user_ns: now.user_ns - before.user_ns,
            kernel_ns: now.kernel_ns - before.kernel_ns,
        };
        (value, used)
    }
}

impl Flow {
    pub fn messages_per_second(&self) -> f64 {
        self.messages as f64 / self.seconds
    }
}

/// Phases of a measurement, told by the sender to the receiver.
const WARM_UP: u8 = 0;
const MEASURED: u8 = 1;
const DRAINING: u8 = 2;
const DONE: u8 = 3;

/// Tells the other thread to stop, also when this one panics.
struct Finish<'a>(&'a AtomicU8);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.store(DONE, Ordering::Release);
    }
}

/// Runs `a` and `b` at the same time, on the first and the second core.
pub fn two<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    fn join<T>(handle: ScopedJoinHandle<'_, T>) -> T {
        handle
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
    thread::scope(|scope| {
        let b = scope.spawn(|| {
            pin(1);
            b()
        });
        let a = scope.spawn(|| {
            pin(0);
            a()
        });
        (join(a), join(b))
    })
}

/// With a single core both threads share it.
fn pin(index: usize) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = cores.get(index) {
        core_affinity::set_for_current(*core);
    }
}

/// Sends `load` one way for `time`, after a tenth of it as warm-up, on a new pair of queue pairs.
pub fn flood<D: Datapath + Send>(
    pair: &mut Pair<D>,
    load: Load,
    time: Duration,
    allocated: AllocationCount,
) -> Flow {
    pair.disconnect();
    pair.connect(load.mtu);
    let [from, to] = &mut pair.ends;
    let op = to.target(load.op);
    let phase = AtomicU8::new(WARM_UP);
    let ((mut flow, sending), (at_receiver, receiving)) = two(
        || Used::by(|| send(from, op, load, time, &phase, allocated)),
        || Used::by(|| receive(to, load, &phase, allocated)),
    );
    flow.allocations += at_receiver;
    flow.used = [sending, receiving];
    let counters = pair.ends[0].engine.qp_counters(pair.ends[0].qpns[0]);
    flow.retransmits = counters.map_or(0, |c| c.retransmits);
    flow
}

fn send<D: Datapath>(
    end: &mut End<D>,
    op: SendOp,
    load: Load,
    time: Duration,
    phase: &AtomicU8,
    allocated: AllocationCount,
) -> Flow {
    let _finish = Finish(phase);
    let qpn = end.qpns[0];
    // A completion for every message would cost as much as a small message itself.
    let interval = (load.depth / 4).clamp(1, 16);
    let mut batch = [Completion::EMPTY; REAP];
    let (mut posted, mut done) = (0, 0);
    let mut now = clock::now();
    let begin = now + Duration::from_nanos(time.as_nanos() / 10);
    let end_at = begin + time;
    let mut mark: Option<(Instant, u64, u64)> = None;
    let mut flow = None;
    while flow.is_none() || done < posted {
        while posted - done < load.depth && (flow.is_none() || !posted.is_multiple_of(interval)) {
            let signaled = (posted + 1).is_multiple_of(interval);
            if !end.post(qpn, posted, op, load.size, signaled) {
                break;
            }
            posted += 1;
        }
        end.engine.poll_once(now).expect("the port works");
        let n = end.reap(&mut batch);
        if let Some(last) = batch[..n].last() {
            // Sends complete in order: this one stands for all before it.
            done = last.wr_id + 1;
        }
        now = clock::now();
        match mark {
            None if now >= begin => {
                mark = Some((now, done, allocated()));
                phase.store(MEASURED, Ordering::Release);
            }
            Some((start, before, allocations)) if flow.is_none() && now >= end_at => {
                flow = Some(Flow {
                    messages: done - before,
                    seconds: now.since(start).as_nanos() as f64 / 1e9,
                    retransmits: 0,
                    allocations: allocated() - allocations,
                    used: [Used::default(); 2],
                });
                phase.store(DRAINING, Ordering::Release);
            }
            _ => {}
        }
    }
    flow.unwrap_or_default()
}

/// Answers until the sender is done. Returns the allocations of the measured time.
fn receive<D: Datapath>(
    end: &mut End<D>,
    load: Load,
    phase: &AtomicU8,
    allocated: AllocationCount,
) -> u64 {
    let qpn = end.qpns[0];
    while load.op == Op::Send && end.post_recv(qpn, load.size) {}
    let mut batch = [Completion::EMPTY; REAP];
    let (mut seen, mut before, mut allocations) = (WARM_UP, 0, 0);
    loop {
        end.engine.poll_once(clock::now()).expect("the port works");
        let n = end.reap(&mut batch);
        for _ in 0..n {
            end.post_recv(qpn, load.size);
        }
        let is = phase.load(Ordering::Acquire);
        if is != seen {
            match is {
                MEASURED => before = allocated(),
                DRAINING => allocations = allocated() - before,
                _ if seen == MEASURED => return allocated() - before,
                _ => return allocations,
            }
            seen = is;
        }
        if n == 0 {
            spin_loop();
        }
    }
}

/// SENDs of `size` bytes there and back, one at a time. Returns the round trips in ns, sorted.
pub fn ping_pong<D: Datapath + Send>(pair: &mut Pair<D>, size: u32, time: Duration) -> Vec<u64> {
    pair.disconnect();
    pair.connect(PathMtu::Mtu1024);
    let [a, b] = &mut pair.ends;
    let phase = AtomicU8::new(WARM_UP);
    let (mut round_trips, ()) = two(
        || ping(a, size, time, &phase),
        || while !pong(b, size, &phase) {},
    );
    round_trips.sort_unstable();
    round_trips
}

fn ping<D: Datapath>(end: &mut End<D>, size: u32, time: Duration, phase: &AtomicU8) -> Vec<u64> {
    let _finish = Finish(phase);
    let qpn = end.qpns[0];
    let mut round_trips = Vec::with_capacity(1 << 20);
    let begin = clock::now();
    let mut now = begin;
    while now.since(begin) < time {
        end.post_recv(qpn, size);
        let start = clock::now();
        assert!(end.post(qpn, 0, SendOp::Send, size, false));
        now = start;
        while received(end, now) == 0 {
            now = clock::now();
        }
        now = clock::now();
        round_trips.push(now.since(start).as_nanos());
    }
    round_trips
}

/// Answers what has come; true when there will be no more.
fn pong<D: Datapath>(end: &mut End<D>, size: u32, phase: &AtomicU8) -> bool {
    let qpn = end.qpns[0];
    while end.post_recv(qpn, size) {}
    for _ in 0..received(end, clock::now()) {
        end.post(qpn, 0, SendOp::Send, size, false);
    }
    phase.load(Ordering::Acquire) == DONE
}

/// One poll; how many SENDs have arrived.
fn received<D: Datapath>(end: &mut End<D>, now: Instant) -> usize {
    end.engine.poll_once(now).expect("the port works");
    let mut batch = [Completion::EMPTY; REAP];
    let n = end.reap(&mut batch);
    batch[..n]
        .iter()
        .filter(|wc| wc.opcode == WcOpcode::Recv)
        .count()
}
