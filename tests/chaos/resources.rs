//! A requester that counts as `rdma_rxe` does: READs and atomics up to what the peer accepts, and
//! FLUSHes besides, in bursts.

use std::collections::VecDeque;

use xroce_net::sim::{Impairment, Rng};
use xroce_proto::qp::QpState;
use xroce_proto::wc::WcStatus;
use xroce_proto::wr::{Placement, SendOp};

use crate::common::pattern;
use crate::config::pick;
use crate::duo::{Duo, DuoConfig};
use crate::run::{Black, Totals};

/// Bytes at the start of both hosts' memory that READs read; behind them the word of the atomics.
const POOL: u64 = 64 << 10;
const WORD: u64 = POOL;
/// Where answers land, a place for each.
const LANDING: u64 = 128 << 10;
const PLACE: u64 = 17 << 10;
/// FLUSHes under way besides.
const FLUSHES_MAX: usize = 8;

/// Virtual time in which it must be over, ns.
const LIMIT_NS: u64 = 60_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read(u32),
    FetchAdd,
    AtomicWrite,
    Flush,
    Write(u32),
}

#[derive(Clone, Debug)]
struct Config {
    duo: DuoConfig,
    ops: Vec<Kind>,
}

fn config(rng: &mut Rng) -> Config {
    let rough = rng.below(2);
    let mut wire = || Impairment {
        rate_bps: pick(rng, &[0, 1_000_000_000, 10_000_000_000]),
        loss_ppm: u32::try_from(rough * rng.below(30_000)).unwrap(),
        reorder_ppm: u32::try_from(rough * rng.below(30_000)).unwrap(),
        reorder_positions: 3,
        reorder_delay_ns: 10_000,
        duplicate_ppm: u32::try_from(rough * rng.below(100_000)).unwrap(),
        duplicate_delay_ns: pick(rng, &[0, 20_000]),
        ..Impairment::delay(pick(rng, &[0, 1_000, 10_000]))
    };
    let wires = [wire(), wire()];
    let mut duo = DuoConfig::new(rng, wires);
    let accepts = pick(rng, &[1, 2, 3, 4, 8]);
    // What it holds itself to is counted here.
    duo.reads = [128, accepts];
    let most = 1 + rng.below(16 * 1024);
    let ops = (0..20 + rng.below(80)).map(|_| {
        let len = u32::try_from(rng.below(most)).unwrap();
        match rng.below(7) {
            0 | 1 => Kind::Read(len),
            2 => Kind::FetchAdd,
            3 => Kind::AtomicWrite,
            4 | 5 => Kind::Flush,
            _ => Kind::Write(len),
        }
    });
    Config {
        ops: ops.collect(),
        duo,
    }
}

pub(crate) fn run(seed: u64, verbose: bool) -> Totals {
    let mut rng = Rng::new(seed);
    let config = config(&mut rng);
    if verbose {
        eprintln!("seed {seed}: {config:#?}");
    }
    let mut duo = Duo::new(seed, &config.duo, &mut rng);
    let black = Black {
        seed,
        config,
        watch: duo.watch.clone(),
    };
    let config = &black.config;
    let mut work = Work::new(seed, &duo, config.duo.reads[1], &mut rng);
    work.drive(&mut duo, &config.ops);
    work.check_end(&duo);
    duo.totals()
}

/// What a request must have brought.
struct Expected {
    kind: Kind,
    data: Vec<u8>,
}

/// Requests of the first host and what must come of them.
pub(crate) struct Work {
    /// READs and atomics under way at most.
    accepts: u8,
    pool: Vec<u8>,
    /// What the requests posted so far make of the word.
    word: u64,
    rng: Rng,
    posted: usize,
    done: usize,
    open: VecDeque<Expected>,
}

impl Work {
    /// Fills the memory of both hosts.
    pub(crate) fn new(seed: u64, duo: &Duo, accepts: u8, rng: &mut Rng) -> Self {
        let pool = pattern(seed, POOL as usize);
        for host in &duo.world.hosts {
            host.region.write_at(0, &pool).unwrap();
            host.region.write_at(WORD, &[0; 8]).unwrap();
        }
        Self {
            accepts,
            pool,
            word: 0,
            rng: rng.fork(),
            posted: 0,
            done: 0,
            open: VecDeque::new(),
        }
    }

    /// Posts these requests as there is room for them, until all are done.
    pub(crate) fn drive(&mut self, duo: &mut Duo, ops: &[Kind]) {
        let mut ops = ops.iter();
        let mut next = ops.next();
        let until = duo.world.net.now() + LIMIT_NS;
        while next.is_some() || !self.open.is_empty() {
            while let Some(&kind) = next
                && self.has_room(kind)
            {
                let data = self.post(duo, kind);
                self.open.push_back(Expected { kind, data });
                self.posted += 1;
                duo.wake(0);
                next = ops.next();
            }
            assert!(
                duo.world.net.now() < until && !duo.is_stuck(),
                "{} of {} done\n{}",
                self.done,
                self.posted,
                duo.failures()
            );
            let (host, completions) = duo.turn();
            for wc in completions {
                let Expected { kind, data } = self.open.pop_front().unwrap();
                assert_eq!(host, 0);
                assert_eq!(wc.wr_id as usize, self.done, "out of order: {wc:?}");
                assert_eq!(
                    wc.status,
                    WcStatus::Success,
                    "{kind:?} {wc:?}\n{}",
                    duo.failures()
                );
                let real = duo.world.hosts[0].bytes(place(self.done), data.len());
                assert!(real == data, "wrong data of {kind:?} {wc:?}");
                self.done += 1;
            }
        }
    }

    pub(crate) fn check_end(&self, duo: &Duo) {
        let real = duo.world.hosts[1].bytes(WORD, 8);
        assert_eq!(real, self.word.to_ne_bytes(), "the word of the atomics");
        for host in [0, 1] {
            let state = duo.world.hosts[host].engine.qp_state(duo.qpns[host]);
            assert_eq!(state, Some(QpState::Rts), "{}", duo.failures());
        }
    }

    /// Whether the peer has a place for one more.
    fn has_room(&self, kind: Kind) -> bool {
        let count = |is: fn(Kind) -> bool| self.open.iter().filter(|e| is(e.kind)).count();
        let counted: fn(Kind) -> bool =
            |kind| matches!(kind, Kind::Read(_) | Kind::FetchAdd | Kind::AtomicWrite);
        if counted(kind) {
            return count(counted) < self.accepts.into();
        }
        self.open.len() < 100
            && (kind != Kind::Flush || count(|kind| kind == Kind::Flush) < FLUSHES_MAX)
    }

    /// Posts a request; returns what lands at its place.
    fn post(&mut self, duo: &mut Duo, kind: Kind) -> Vec<u8> {
        let (n, rng) = (self.posted, &mut self.rng);
        let [left, right] = &mut duo.world.hosts;
        let rkey = right.mr.rkey;
        let at = place(n);
        let mut data = Vec::new();
        let (op, sge) = match kind {
            Kind::Read(len) => {
                let from = rng.below(POOL - u64::from(len));
                data = self.pool[from as usize..][..len as usize].to_vec();
                let va = right.va(from);
                (SendOp::Read { va, rkey }, left.sge(at, len))
            }
            Kind::FetchAdd => {
                let add = rng.below(1 << 60);
                data = self.word.to_ne_bytes().to_vec();
                self.word = self.word.wrapping_add(add);
                let va = right.va(WORD);
                (SendOp::FetchAdd { va, rkey, add }, left.sge(at, 8))
            }
            Kind::AtomicWrite => {
                let from = 8 * rng.below(POOL / 8 - 1);
                let new = &self.pool[from as usize..][..8];
                self.word = u64::from_ne_bytes(new.try_into().unwrap());
                let va = right.va(WORD);
                (SendOp::AtomicWrite { va, rkey }, left.sge(from, 8))
            }
            Kind::Flush => {
                let op = SendOp::Flush {
                    va: right.va(0),
                    rkey,
                    len: 4096,
                    placement: Placement::GLOBAL,
                    whole_region: rng.below(2) == 0,
                };
                left.post_send(duo.qpns[0], n as u64, op, &[]);
                return data;
            }
            Kind::Write(len) => {
                let va = right.va(LANDING);
                (SendOp::Write { va, rkey }, left.sge(0, len))
            }
        };
        left.post_send(duo.qpns[0], n as u64, op, &[sge]);
        data
    }
}

fn place(n: usize) -> u64 {
    LANDING + PLACE * (n as u64 % 128)
}
