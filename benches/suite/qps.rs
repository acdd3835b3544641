//! D11: one queue pair or ten thousand, a thousand of them at work; and what an idle one holds.

use std::collections::VecDeque;
use std::hint::black_box;

use xroce_engine::clock;
use xroce_net::datapath::Link;
use xroce_net::sim::LoopPort;
use xroce_proto::time::Duration;
use xroce_proto::wc::Completion;
use xroce_wire::newtypes::PathMtu;

use super::curves::{Curves, QPS};
use super::rows::{D11, D11_BYTES, D11_RINGS, D11_SINGLE};
use super::support::{Op, Pair, REAP, memory_ports};
use super::{Lab, counting};

/// Queue pairs of the curve.
const CONNECTED: [u32; 5] = [1, 10, 100, 1000, 10_000];
/// Of them active, at most.
const ACTIVE: usize = 1000;
/// Messages outstanding on a queue pair, of which the last is signaled; and the size of its queues.
const BURST: u32 = 16;
/// Messages outstanding when there is a single queue pair: the depth of D6.
const SINGLE: u32 = 128;
const SIZE: u32 = 64;
/// Of the completion queues: a completion for each message of each active queue pair, and those
/// of a burst of receives.
const CQ_DEPTH: u32 = 4096;
const MEMORY: usize = 1 << 16;

/// Two engines with so many connected queue pairs.
struct Many {
    pair: Pair<LoopPort>,
    /// Queue pairs with nothing outstanding, or with room for another burst.
    ready: VecDeque<usize>,
    active: usize,
}

impl Many {
    fn new(connected: u32) -> Self {
        // What one outstanding burst needs; a single queue pair has several.
        let depth = if connected == 1 { SINGLE } else { BURST };
        let mut pair = Pair::with(memory_ports(Link::Ethernet), CQ_DEPTH, MEMORY);
        for _ in 0..connected {
            pair.connect_of(PathMtu::Mtu1024, depth, 2 * depth);
        }
        let to = &mut pair.ends[1];
        for i in 0..to.qpns.len() {
            while to.post_recv(to.qpns[i], SIZE) {}
        }
        let active = pair.ends[0].qpns.len().min(ACTIVE);
        Self {
            pair,
            ready: VecDeque::with_capacity(ACTIVE.max(SINGLE as usize)),
            active,
        }
    }

    /// Messages a second when each active queue pair has at most `burst` outstanding; a single one
    /// has as many as it can.
    fn rate(&mut self, burst: u32, time: Duration) -> f64 {
        let turns = if self.active == 1 { SINGLE / burst } else { 1 };
        self.ready.clear();
        for _ in 0..turns {
            self.ready.extend(0..self.active);
        }
        let tokens = self.ready.len();
        let warm = clock::now() + Duration::from_nanos(time.as_nanos() / 10);
        let mut begin = None;
        let mut done = 0u64;
        loop {
            done += u64::from(burst) * self.turn(burst, true) as u64;
            let now = clock::now();
            match begin {
                None if now >= warm => (begin, done) = (Some(now), 0),
                Some(start) if now.since(start) >= time => {
                    let rate = done as f64 * 1e9 / now.since(start).as_nanos() as f64;
                    while self.ready.len() < tokens {
                        self.turn(burst, false);
                    }
                    return rate;
                }
                _ => {}
            }
        }
    }

    /// Posts bursts, polls both ends; how many bursts are completed.
    fn turn(&mut self, burst: u32, posts: bool) -> usize {
        // As many messages as the engine sends in one turn.
        const MESSAGES: u32 = 64;
        let [from, to] = &mut self.pair.ends;
        let op = to.target(Op::Send);
        let bursts = if posts { MESSAGES / burst } else { 0 };
        for _ in 0..bursts {
            let Some(i) = self.ready.pop_front() else {
                break;
            };
            for n in 1..=burst {
                let posted = from.post(from.qpns[i], i as u64, op, SIZE, n == burst);
                assert!(posted, "there is room for a burst");
            }
        }
        let now = clock::now();
        from.engine.poll_once(now).expect("the port works");
        to.engine.poll_once(now).expect("the port works");
        let mut batch = [Completion::EMPTY; REAP];
        let done = from.reap(&mut batch);
        for wc in &batch[..done] {
            self.ready
                .push_back(usize::try_from(wc.wr_id).unwrap_or_default());
        }
        let n = to.reap(&mut batch);
        for wc in &batch[..n] {
            to.post_recv(wc.qpn, SIZE);
        }
        done
    }
}

/// All of them, connected once.
pub(crate) struct Scaling(Vec<(u32, Many)>);

impl Scaling {
    pub(crate) fn new() -> Self {
        Self::of(&CONNECTED)
    }

    fn of(connected: &[u32]) -> Self {
        Self(connected.iter().map(|&n| (n, Many::new(n))).collect())
    }

    /// One round; forwards and backwards in turn.
    pub(crate) fn round(&mut self, lab: &mut Lab) {
        let time = lab.options.part(0.15);
        for (burst, name, kind) in [
            (BURST, "16 outstanding on each", &D11),
            (1, "one outstanding on each", &D11_SINGLE),
        ] {
            let mut rates = Vec::new();
            let measure = |(n, many): &mut (u32, Many)| rates.push((*n, many.rate(burst, time)));
            if lab.round.is_multiple_of(2) {
                self.0.iter_mut().for_each(measure);
            } else {
                self.0.iter_mut().rev().for_each(measure);
            }
            let of = |n| rates.iter().find(|r| r.0 == n).map(|r| r.1);
            if let Some(ours) = of(CONNECTED[4]) {
                lab.table.add(kind, ours, of(1));
            }
            draw(&mut lab.curves, name, &rates);
        }
    }
}

fn draw(curves: &mut Curves, name: &str, rates: &[(u32, f64)]) {
    for &(n, rate) in rates {
        curves.add(QPS, name, false, n, rate);
    }
}

/// Bytes that `pairs` connected pairs of queue pairs hold on the heap, each.
fn held(pairs: usize, depth: u32) -> f64 {
    let mut pair = Pair::with(memory_ports(Link::Ethernet), CQ_DEPTH, MEMORY);
    let before = counting::held();
    for _ in 0..pairs {
        pair.connect_of(PathMtu::Mtu1024, depth, depth);
    }
    let bytes = counting::held() - before;
    // Without the list of the bench itself.
    let list: usize = pair.ends.iter().map(|e| size_of_val(&e.qpns[..])).sum();
    black_box(&pair);
    (bytes as f64 - list as f64) / (2 * pairs) as f64
}

/// What an idle queue pair holds: the tables it stands in included, its rings apart. They grow in
/// proportion to the depth, so that two depths tell what is left without any.
pub(crate) fn memory(lab: &mut Lab) {
    const PAIRS: usize = 8192;
    let (small, large) = (held(PAIRS, BURST), held(PAIRS, 2 * BURST));
    let rings = large - small;
    lab.table.add(&D11_BYTES, small - rings, None);
    lab.table.add(&D11_RINGS, rings, None);
    let note = format!("the object itself {} bytes", xroce_proto::qp::QP_SIZE);
    lab.table.note(&D11_BYTES, note);
}

#[cfg(test)]
mod tests {
    #![allow(
        dead_code,
        unused_imports,
        reason = "the bench itself is compiled as a test, but without its tests"
    )]
    use super::*;

    #[test]
    fn every_queue_pair_works_and_all_comes_to_rest() {
        for (connected, burst) in [(1, 1), (1, BURST), (30, 1), (30, BURST)] {
            let mut many = Many::new(connected);
            assert!(many.rate(burst, Duration::from_nanos(2_000_000)) > 0.0);
            assert!(many.rate(burst, Duration::from_nanos(2_000_000)) > 0.0);
            let end = &many.pair.ends[1];
            for &qpn in &end.qpns {
                let counters = end.engine.qp_counters(qpn).unwrap();
                assert!(counters.rx_packets > 0, "{connected} {burst} {counters:?}");
            }
        }
    }

    #[test]
    fn rings_are_most_of_a_deep_queue_pair() {
        let (small, large) = (held(64, 16), held(64, 1024));
        assert!(small > 1000.0 && large > 4.0 * small, "{small} {large}");
    }
}
