//! Connections that come and go: objects made, changed and destroyed under traffic over a bad
//! network, and what must hold all the same.
//!
//! Queue pairs of all services share one SRQ and one CQ per host. The CQ is polled only when it
//! notifies, the SRQ filled only when its limit is reached: a lost wake-up or limit event is work
//! that never ends. A connection ends by a queue pair taken to ERR or RESET, or destroyed, by keys
//! taken back, or by a CQ too small; then both ends start a new life, with the same numbers after
//! a RESET and new ones else. Every message says which it is, so nothing of an old life can pass
//! for one of the new.

mod life;
mod message;

use std::collections::{BTreeMap, BTreeSet};

use xroce_api::{Ah, AsyncEvent, Notify, Source};
use xroce_engine::EngineConfig;
use xroce_net::datapath::Link;
use xroce_net::sim::{Impairment, Rng};
use xroce_proto::qp::{QpState, QpType};
use xroce_proto::srq::SrqAttr;
use xroce_proto::wc::{Completion, Event, Srq};
use xroce_proto::wr::RecvWr;
use xroce_wire::newtypes::{Gid, PKey, PathMtu};

pub(crate) use crate::common::ALL_ACCESS;
use crate::common::{Setup, World, pattern, rough_wire};
use crate::run::Totals;
use life::Life;
use message::Message;

/// Constant bytes at the start of each host's memory, read and sent from.
const POOL: u64 = 8 << 10;
/// A counter of each host that all add to.
const COUNTER: u64 = POOL;
/// Where buffers begin: each is used once in a run.
const BUFFERS: u64 = POOL + 64;
/// Bytes from one buffer to the next; what is between is canary.
const BUFFER: u64 = 1664;
/// Longest message: several packets at the smallest MTUs.
const LEN_MAX: u64 = 1600;
const BUFFERS_MAX: u64 = 900;
/// Bytes in front of a datagram.
const GRH: usize = 40;

const QKEY: u32 = 0x1111_1111;
const GROUP: [u8; 4] = [239, 7, 7, 7];
const SRQ_SIZE: u32 = 24;
const SRQ_LIMIT: u32 = 12;
const SRQ_SGE: u8 = 2;

/// Virtual time after which no more harm is done.
const CALM_AFTER: u64 = 6_000_000;
/// Within which all must be done then.
const LIVENESS: u64 = 400_000_000;

/// What a host has.
struct Side {
    srq: Srq,
    /// Receives posted so far; the number is the `wr_id`, and tells the buffer.
    posted: u64,
    /// Where the buffer of each receive is.
    buffers: Vec<u64>,
    /// Buffers handed out, receives and others.
    used: u64,
    received: BTreeSet<u64>,
    ah: Ah,
    /// An arming of the limit that has not been reported.
    limit_armed: bool,
    /// What each buffer must hold at the end, by offset.
    known: BTreeMap<u64, Vec<u8>>,
    /// Buffers of which nothing is known: a request was cut off.
    unsure: BTreeSet<u64>,
    /// What an area whose keys were taken back held then.
    sealed: BTreeMap<u64, Vec<u8>>,
    added: u64,
    adding: u64,
    olds: BTreeSet<u64>,
}

/// A whole run.
pub(crate) struct Churn {
    world: World,
    rng: Rng,
    mtu: PathMtu,
    in_order: bool,
    sides: Vec<Side>,
    /// Handle of the first host for the group.
    group_ah: Ah,
    lives: Vec<Life>,
    /// Index in `lives` of the present one of each connection.
    now: Vec<usize>,
    /// Message by number.
    messages: Vec<Message>,
    notified: BTreeSet<u32>,
    calm: bool,
    deaths: u64,
    /// When the partitions agree again, and the key of the second host until then.
    partition_until: u64,
}

/// The network of a seed.
fn wire(rng: &mut Rng, in_order: bool) -> Impairment {
    rough_wire(rng, in_order, [30_000, 20_000], [50_000, 20_000])
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.index(of.len())]
}

/// Runs a seed to its end or panics.
pub(crate) fn run(seed: u64, verbose: bool) -> Totals {
    struct Say(u64);
    impl Drop for Say {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("XROCE_SEED={} failed", self.0);
            }
        }
    }
    let _say = Say(seed);
    let mut churn = Churn::new(seed);
    churn.drive();
    churn.check_end();
    if verbose {
        eprintln!(
            "seed {seed}: {} messages, {} lives, {} ended early",
            churn.messages.len(),
            churn.lives.len(),
            churn.deaths
        );
    }
    churn.totals()
}

impl Churn {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let in_order = rng.below(2) == 0;
        let setup = Setup {
            seed,
            wires: [wire(&mut rng, in_order), wire(&mut rng, in_order)],
            link: pick(&mut rng, &[Link::Ethernet, Link::Udp]),
            tx_ring: pick(&mut rng, &[2, 8, 256]),
            engine: EngineConfig {
                rx_budget: pick(&mut rng, &[1, 16, 64]),
                tx_budget: pick(&mut rng, &[1, 3, 64]),
                quantum: pick(&mut rng, &[1, 16]),
                ..EngineConfig::default()
            },
            memory: usize::try_from(BUFFERS + BUFFERS_MAX * BUFFER).unwrap(),
            ..Setup::default()
        };
        let mut world = setup.build();
        let mut sides = Vec::new();
        for i in [0, 1] {
            let path = world.hosts[i].path_to(&world.hosts[1 - i]);
            let host = &mut world.hosts[i];
            host.region
                .write_at(0, &pattern(seed, host.region.len()))
                .unwrap();
            host.region.write_at(COUNTER, &[0; 8]).unwrap();
            let attr = SrqAttr {
                max_wr: SRQ_SIZE,
                max_sge: SRQ_SGE,
                limit: 0,
            };
            sides.push(Side {
                srq: host.engine.create_srq(host.pd, &attr).unwrap(),
                posted: 0,
                buffers: Vec::new(),
                used: 0,
                received: BTreeSet::new(),
                ah: host.engine.create_ah(host.pd, &path).unwrap(),
                limit_armed: false,
                known: BTreeMap::new(),
                unsure: BTreeSet::new(),
                sealed: BTreeMap::new(),
                added: 0,
                adding: 0,
                olds: BTreeSet::new(),
            });
        }
        let mut path = world.hosts[0].path_to(&world.hosts[1]);
        path.dst = Gid::from_v4(GROUP);
        path.dst_mac = xroce_wire::newtypes::MacAddr::new([1, 0, 0x5e, 7, 7, 7]);
        let pd = world.hosts[0].pd;
        let group_ah = world.hosts[0].engine.create_ah(pd, &path).unwrap();
        let mtu = pick(
            &mut rng,
            &[PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024],
        );
        let mut churn = Self {
            world,
            rng,
            mtu,
            in_order,
            sides,
            group_ah,
            lives: Vec::new(),
            now: Vec::new(),
            messages: Vec::new(),
            notified: BTreeSet::new(),
            calm: false,
            deaths: 0,
            partition_until: 0,
        };
        for i in [0, 1] {
            churn.fill(i);
            churn.arm(i);
        }
        let kinds = [
            QpType::Rc,
            QpType::Rc,
            QpType::Rc,
            QpType::Uc,
            QpType::Ud,
            QpType::Ud,
        ];
        for (at, kind) in kinds.into_iter().enumerate() {
            churn.now.push(at);
            churn.bear(at, kind, None);
        }
        churn
    }

    /// A buffer nobody has had.
    fn buffer(&mut self, i: usize) -> Option<u64> {
        let side = &mut self.sides[i];
        let at = BUFFERS + side.used * BUFFER;
        side.used += 1;
        (side.used <= BUFFERS_MAX).then_some(at)
    }

    /// Fills the SRQ and arms its limit, as a consumer does when the limit event comes.
    fn fill(&mut self, i: usize) {
        while self.world.hosts[i].engine.srq_len(self.sides[i].srq) < Some(SRQ_SIZE) {
            let Some(at) = self.buffer(i) else {
                break;
            };
            let host = &mut self.world.hosts[i];
            let cut = u32::try_from(self.rng.below(LEN_MAX + 1)).unwrap();
            let rest = u32::try_from(LEN_MAX).unwrap() + GRH as u32 - cut;
            let sges = [host.sge(at, cut), host.sge(at + u64::from(cut), rest)];
            let side = &mut self.sides[i];
            let wr = RecvWr {
                wr_id: side.posted,
                sges: &sges,
            };
            host.engine.post_srq_recv(side.srq, &wr).unwrap();
            side.buffers.push(at);
            side.posted += 1;
        }
        let (engine, side) = (&mut self.world.hosts[i].engine, &mut self.sides[i]);
        engine.modify_srq(side.srq, None, Some(SRQ_LIMIT)).unwrap();
        side.limit_armed = true;
    }

    fn arm(&mut self, i: usize) {
        let host = &mut self.world.hosts[i];
        let notify = if self.rng.below(4) == 0 {
            // Weaker first: the stronger one must win.
            host.engine
                .req_notify_cq(host.cq, Notify::Solicited)
                .unwrap();
            Notify::Any
        } else {
            Notify::Any
        };
        if host.engine.req_notify_cq(host.cq, notify).unwrap() {
            self.notified.insert(i as u32);
        }
    }

    fn drive(&mut self) {
        let mut deadline = u64::MAX;
        loop {
            self.world.settle();
            self.collect();
            let now = self.world.net.now();
            if !self.calm && now >= CALM_AFTER {
                self.calm = true;
                deadline = now + LIVENESS;
                self.come_to_rest();
            }
            if self.calm && self.is_done() {
                return;
            }
            assert!(now < deadline, "not done in time:\n{}", self.progress());
            if !self.calm {
                self.disturb();
                self.work();
            }
            let wake = (!self.calm).then(|| now + 1_000 + self.rng.below(40_000));
            // A bind completes with nothing on any wire.
            let goes_on = self.collect() || self.world.step(wake) || self.collect();
            assert!(goes_on, "nothing will ever happen:\n{}", self.progress());
        }
    }

    /// The network becomes good, and whoever was hurt starts a last time.
    fn come_to_rest(&mut self) {
        for wire in [self.world.link.there, self.world.link.back] {
            self.world.net.set_impairment(wire, Impairment::delay(1000));
        }
        self.partition(0);
        for at in 0..self.now.len() {
            if self.life(at).doomed {
                self.renew(at);
            }
        }
    }

    fn life(&self, at: usize) -> &Life {
        &self.lives[self.now[at]]
    }

    /// One thing that happens to the objects.
    fn disturb(&mut self) {
        let now = self.world.net.now();
        if self.partition_until != 0 && now >= self.partition_until {
            self.partition(0);
        }
        if self.rng.below(25) != 0 {
            return;
        }
        let at = self.rng.index(self.now.len());
        match self.rng.below(8) {
            0 => {
                // Shorter than the retries last.
                let until = now + self.rng.below(60_000);
                self.partition(until);
            }
            1 => self.resize(),
            2 => self.membership(at),
            _ if self.life(at).doomed => self.renew(at),
            _ => self.hurt(at),
        }
    }

    /// The second host leaves the partition until then; 0: comes back.
    fn partition(&mut self, until: u64) {
        self.partition_until = until;
        let key = if until == 0 {
            PKey::DEFAULT
        } else {
            PKey::new(0x8123)
        };
        self.world.hosts[1].engine.set_pkey(0, key).unwrap();
    }

    fn resize(&mut self) {
        let i = self.rng.index(2);
        let host = &mut self.world.hosts[i];
        let depth = 1024 + u32::try_from(self.rng.below(4096)).unwrap();
        host.engine.resize_cq(host.cq, depth).unwrap();
        // Sizes of the SRQ below what is in it are refused, the limit stays armed.
        let before = host.engine.query_srq(self.sides[i].srq);
        let len = host.engine.srq_len(self.sides[i].srq).unwrap();
        if len > 1 {
            let refused = host
                .engine
                .modify_srq(self.sides[i].srq, Some(len - 1), None);
            assert!(refused.is_err());
            assert_eq!(host.engine.query_srq(self.sides[i].srq), before);
        }
    }

    fn membership(&mut self, at: usize) {
        let (qpn, kind) = (self.life(at).qpns[1], self.life(at).kind);
        let engine = &mut self.world.hosts[1].engine;
        if engine.qp_state(qpn).is_none() {
            return;
        }
        let group = Gid::from_v4(GROUP);
        if kind != QpType::Ud {
            assert!(engine.attach_mcast(qpn, group).is_err());
        } else if self.rng.below(2) == 0 {
            engine.attach_mcast(qpn, group).unwrap();
            let life = self.now[at];
            self.lives[life].member = true;
        } else {
            let _ = engine.detach_mcast(qpn, group);
        }
    }

    /// Takes what there is to take; whether there was anything.
    fn collect(&mut self) -> bool {
        let mut any = false;
        for i in [0, 1] {
            // First, since they say which CQ has lost something.
            while let Some(event) = self.world.hosts[i].engine.poll_event() {
                self.event(i, event);
            }
            while let Some(cq) = self.world.hosts[i].engine.poll_notification() {
                assert_eq!(cq, self.world.hosts[i].cq, "nobody armed that one");
                self.notified.insert(i as u32);
            }
            // Only who was woken looks.
            while self.notified.remove(&(i as u32)) {
                for wc in self.world.hosts[i].completions() {
                    self.completed(i, &wc);
                    any = true;
                }
                self.arm(i);
            }
            any |= self.collect_small(i);
            self.check_srq(i);
        }
        any
    }

    /// CQs that are too small are looked at now and then; whether one had something.
    fn collect_small(&mut self, i: usize) -> bool {
        let mut any = false;
        for n in 0..self.lives.len() {
            let Some(cq) = self.lives[n].small_cq[i] else {
                continue;
            };
            if self.calm || self.rng.below(8) == 0 {
                let mut wcs = [Completion::EMPTY; 4];
                let got = self.world.hosts[i].engine.poll_cq(cq, &mut wcs);
                for wc in &wcs[..got] {
                    self.completed(i, wc);
                    any = true;
                }
            }
        }
        any
    }

    fn event(&mut self, i: usize, AsyncEvent { source, event }: AsyncEvent) {
        match source {
            Source::Port => panic!("{event:?} of the port"),
            Source::Srq(srq) => {
                assert_eq!((srq, event), (self.sides[i].srq, Event::SrqLimitReached));
                assert!(self.sides[i].limit_armed, "the limit was reported twice");
                self.sides[i].limit_armed = false;
                self.fill(i);
            }
            Source::Cq(cq) => {
                assert_eq!(event, Event::CqErr);
                let of = |l: &&mut Life| l.small_cq[i] == Some(cq);
                let life = self.lives.iter_mut().find(of);
                let life = life.expect("a CQ that is large enough overflowed");
                life.overflowed[i] = true;
                life.doom();
            }
            Source::Qp(qpn) => {
                let life = self
                    .lives
                    .iter()
                    .rev()
                    .find(|l| l.qpns[i] == qpn && !l.over);
                let life = life.unwrap_or_else(|| panic!("{event:?} of a QP that is gone"));
                let natural = matches!(event, Event::CommEst | Event::SqDrained);
                let engine = &self.world.hosts[i].engine;
                let why = engine.failure(qpn).map(|f| f.to_string());
                assert!(
                    life.doomed || natural,
                    "{event:?} of {qpn:?}, which is well: {why:?}, {:?}",
                    engine.qp_state(qpn)
                );
            }
        }
    }

    /// The limit is reported when it is reached, not before and not later.
    fn check_srq(&self, i: usize) {
        let (engine, side) = (&self.world.hosts[i].engine, &self.sides[i]);
        let limit = engine.query_srq(side.srq).unwrap().limit;
        let len = engine.srq_len(side.srq).unwrap();
        let out = side.used >= BUFFERS_MAX;
        if side.limit_armed && !out {
            assert_eq!(limit, SRQ_LIMIT);
            assert!(len >= SRQ_LIMIT, "{len} left and not reported");
        }
    }

    fn is_done(&self) -> bool {
        self.now.iter().all(|&n| self.lives[n].is_done())
    }

    fn progress(&self) -> String {
        let lines = self.now.iter().map(|&n| format!("{:?}", self.lives[n]));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn check_end(&mut self) {
        // Late packets arrive, lazy timers are asked once more, then all is quiet for ever.
        self.world.idle(100_000_000);
        self.collect();
        self.settle_targets();
        for (i, host) in self.world.hosts.iter_mut().enumerate() {
            assert_eq!(host.engine.next_deadline(), None, "a timer is armed");
            let stats = host.engine.stats();
            let sum = stats.delivered
                + stats.bad_frames
                + stats.bad_packets
                + stats.icrc_errors
                + stats.unknown_qp;
            assert_eq!(stats.rx_frames, sum, "{stats:?}");
            assert_eq!(stats.rx_frames, host.engine.port_stats().rx_frames);
            assert_eq!(stats.events_lost, 0);
            let side = &self.sides[i];
            let sum = host.bytes(COUNTER, 8);
            let sum = u64::from_ne_bytes(sum.try_into().unwrap());
            let sure = self.sides[1 - i].added;
            let most = self.sides[1 - i].adding;
            assert!(
                (sure..=most).contains(&sum),
                "{sum} added, {sure} to {most} asked for"
            );
            assert_eq!(side.olds.len() as u64, side.added, "each old value once");
        }
        for i in [0, 1] {
            self.check_memory(i);
        }
        for at in 0..self.now.len() {
            assert!(!self.life(at).doomed);
            let (qpns, kind) = (self.life(at).qpns, self.life(at).kind);
            for (i, qpn) in qpns.into_iter().enumerate() {
                let engine = &self.world.hosts[i].engine;
                assert_eq!(engine.qp_state(qpn), Some(QpState::Rts), "{kind:?}");
            }
        }
    }

    /// What is known is so, and what nothing was told to write was not written.
    fn check_memory(&self, i: usize) {
        let (host, side) = (&self.world.hosts[i], &self.sides[i]);
        let len = host.region.len();
        let mut want = pattern(self.world.net.seed(), len);
        let have = host.bytes(0, len);
        let mut copy = |at: u64, n: usize| {
            let range = at as usize..at as usize + n;
            want[range.clone()].copy_from_slice(&have[range]);
        };
        copy(COUNTER, 8);
        for &at in &side.unsure {
            copy(at, LEN_MAX as usize + GRH);
        }
        for (n, &at) in side.buffers.iter().enumerate() {
            let left = u64::from(host.engine.srq_len(side.srq).unwrap());
            // The header of a datagram is checked elsewhere, and the rest of what was received.
            if side.received.contains(&(n as u64)) {
                copy(at, LEN_MAX as usize + GRH);
            } else if (n as u64) < side.posted - left {
                // Taken by a QP that then died.
                copy(at, LEN_MAX as usize + GRH);
            }
        }
        for (&at, data) in side.known.iter().chain(&side.sealed) {
            want[at as usize..][..data.len()].copy_from_slice(data);
        }
        if let Some(first) = (0..len).find(|&n| want[n] != have[n]) {
            panic!("host {i}: byte {first:#x} is wrong");
        }
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals {
            messages: self.messages.iter().filter(|m| m.arrived != 0).count() as u64,
            deaths: self.deaths,
            ..Totals::default()
        };
        for host in &self.world.hosts {
            let stats = host.engine.stats();
            totals.frames += stats.rx_frames;
            totals.icrc_errors += stats.icrc_errors;
        }
        for life in self.now.iter().map(|&n| &self.lives[n]) {
            for (i, &qpn) in life.qpns.iter().enumerate() {
                let engine = &self.world.hosts[i].engine;
                let counters = engine.qp_counters(qpn).unwrap();
                totals.retransmits += counters.retransmits;
                totals.timeouts += counters.timeouts;
                totals.duplicates += counters.duplicates;
                totals.rnr_naks += counters.rnr_naks_in;
            }
        }
        totals
    }
}
