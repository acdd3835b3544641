//! Keys taken back as storage does it: the target's memory is read or written, then a SEND takes the
//! key back, or tells the target, which deregisters it. What the network repeats then finds no key,
//! and nobody may die of that, or touch the memory again.

use std::collections::{BTreeMap, VecDeque};

use xroce_api::Mr;
use xroce_net::sim::{Impairment, Rng};
use xroce_proto::memory::Access;
use xroce_proto::qp::QpState;
use xroce_proto::wc::{Completion, WcFlags, WcStatus};
use xroce_proto::wr::{Data, SendFlags, SendOp, SendWr, Sge};

use crate::common::pattern;
use crate::config::pick;
use crate::duo::{Duo, DuoConfig};
use crate::run::{Black, Totals};

/// Bytes of memory of one exchange, on each side; a gap is between any two.
const SLOT: u64 = 66 << 10;
const LEN_MAX: u64 = 64 << 10;
/// Where slots begin; before are the bytes SENDs carry.
const SLOTS: u64 = 4 << 10;

/// Virtual time in which it must be over, ns.
const LIMIT_NS: u64 = 60_000_000_000;

/// What is done to the target's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    Write,
    FetchAdd,
}

/// One exchange.
#[derive(Clone, Copy, Debug)]
struct Io {
    kind: Kind,
    len: u32,
    /// The SEND takes the key back; else the target deregisters when it has the SEND.
    invalidates: bool,
    /// The SEND is posted at once, behind a fence; else when the requester has the completion.
    at_once: bool,
}

#[derive(Clone, Debug)]
struct Config {
    duo: DuoConfig,
    ios: Vec<Io>,
    /// Exchanges at a time.
    depth: usize,
}

fn config(rng: &mut Rng) -> Config {
    let mut wire = || Impairment {
        rate_bps: pick(rng, &[0, 1_000_000_000, 10_000_000_000]),
        duplicate_ppm: pick(rng, &[20_000, 300_000, 1_000_000]),
        duplicate_delay_ns: pick(rng, &[0, 20_000, 1_000_000, 12_000_000]),
        late_copy_ppm: pick(rng, &[0, 0, 100_000]),
        late_copy_delay_ns: 12_000_000,
        loss_ppm: pick(rng, &[0, 0, 5_000]),
        reorder_ppm: pick(rng, &[0, 0, 20_000]),
        reorder_positions: 3,
        reorder_delay_ns: 10_000,
        ..Impairment::delay(pick(rng, &[0, 1_000, 10_000]))
    };
    let wires = [wire(), wire()];
    let duo = DuoConfig::new(rng, wires);
    let packets = pick(rng, &[1, 4, 16, 64]);
    let most = (packets * duo.mtu.bytes() as u64).min(LEN_MAX);
    let ios = (0..8 + rng.below(24)).map(|_| {
        let kind = pick(rng, &[Kind::Read, Kind::Read, Kind::Write, Kind::FetchAdd]);
        let len = match kind {
            Kind::FetchAdd => 8,
            _ => 1 + u32::try_from(rng.below(most)).unwrap(),
        };
        Io {
            kind,
            len,
            invalidates: rng.below(2) == 0,
            at_once: rng.below(3) == 0,
        }
    });
    Config {
        ios: ios.collect(),
        depth: pick(rng, &[1, 2, 8]),
        duo,
    }
}

/// What is known of an exchange under way.
struct Running {
    /// Local region of the requester, remote one of the target.
    mrs: [Mr; 2],
    /// What the target's memory held, and holds in the end.
    before: Vec<u8>,
    after: Vec<u8>,
    /// The request, its SEND, and the receive are complete.
    done: [bool; 3],
}

struct Exchange<'a> {
    duo: &'a mut Duo,
    config: &'a Config,
    running: BTreeMap<usize, Running>,
    /// Exchanges whose SEND is under way, in order.
    told: VecDeque<usize>,
    started: usize,
    seed: u64,
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
    let mut exchange = Exchange {
        duo: &mut duo,
        config: &black.config,
        running: BTreeMap::new(),
        told: VecDeque::new(),
        started: 0,
        seed,
    };
    exchange.drive();
    // Copies that are still under way find nothing either.
    duo.world.idle(30_000_000);
    for host in [0, 1] {
        let state = duo.world.hosts[host].engine.qp_state(duo.qpns[host]);
        assert_eq!(state, Some(QpState::Rts), "{}", duo.failures());
        for n in 0..black.config.ios.len() {
            check_left_alone(&duo, host, n, black.config.ios[n].len as usize);
        }
    }
    duo.totals()
}

/// What an application writes over memory whose keys are gone.
fn mine(host: usize, n: usize, len: usize) -> Vec<u8> {
    pattern(1000 + 2 * n as u64 + host as u64, len)
}

fn check_left_alone(duo: &Duo, host: usize, n: usize, len: usize) {
    let real = duo.world.hosts[host].bytes(slot(n), len);
    assert!(
        real == mine(host, n, len),
        "memory {n} of host {host} was touched without a key"
    );
}

/// Each exchange has memory of its own.
fn slot(n: usize) -> u64 {
    SLOTS + SLOT * n as u64
}

impl Exchange<'_> {
    fn drive(&mut self) {
        loop {
            while self.started < self.config.ios.len() && self.running.len() < self.config.depth {
                self.start();
            }
            if self.running.is_empty() {
                return;
            }
            assert!(
                self.duo.world.net.now() < LIMIT_NS && !self.duo.is_stuck(),
                "{} of {} running\n{}",
                self.running.len(),
                self.started,
                self.duo.failures()
            );
            let (host, done) = self.duo.turn();
            for wc in done {
                assert_eq!(
                    wc.status,
                    WcStatus::Success,
                    "host {host}: {wc:?}\n{}",
                    self.duo.failures()
                );
                self.completed(host, &wc);
            }
        }
    }

    fn start(&mut self) {
        let n = self.started;
        let io = self.config.ios[n];
        self.started += 1;
        let len = io.len as usize;
        let before = pattern(self.seed ^ n as u64, len);
        let given = pattern(!self.seed ^ n as u64, len);
        let after = match io.kind {
            Kind::Read => before.clone(),
            Kind::Write => given.clone(),
            Kind::FetchAdd => {
                let old = u64::from_ne_bytes(before[..].try_into().unwrap());
                old.wrapping_add(1).to_ne_bytes().to_vec()
            }
        };
        let [left, right] = &mut self.duo.world.hosts;
        right.region.write_at(slot(n), &before).unwrap();
        left.region.write_at(slot(n), &given).unwrap();
        let remote = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::INVALIDATE;
        let mrs = [(left, Access::LOCAL_WRITE), (right, remote)].map(|(host, access)| {
            host.engine
                .reg_mr_range(host.pd, &host.region, slot(n), io.len.into(), access)
                .unwrap()
        });
        let [left, right] = &mut self.duo.world.hosts;
        right.post_recv(self.duo.qpns[1], n as u64, &[right.sge(0, 64)]);
        let (va, rkey) = (mrs[1].va, mrs[1].rkey);
        let op = match io.kind {
            Kind::Read => SendOp::Read { va, rkey },
            Kind::Write => SendOp::Write { va, rkey },
            Kind::FetchAdd => SendOp::FetchAdd { va, rkey, add: 1 },
        };
        let sge = Sge {
            lkey: mrs[0].lkey,
            va: mrs[0].va,
            len: io.len,
        };
        left.post_send(self.duo.qpns[0], 2 * n as u64, op, &[sge]);
        let running = Running {
            mrs,
            before,
            after,
            done: [false; 3],
        };
        self.running.insert(n, running);
        if io.at_once {
            self.tell(n);
        }
        self.duo.wake(0);
    }

    /// The SEND at the end of an exchange.
    fn tell(&mut self, n: usize) {
        let rkey = self.running[&n].mrs[1].rkey;
        let host = &mut self.duo.world.hosts[0];
        let op = if self.config.ios[n].invalidates {
            SendOp::SendInv { rkey }
        } else {
            SendOp::Send
        };
        let sges = [host.sge(0, 40)];
        let wr = SendWr {
            wr_id: 2 * n as u64 + 1,
            op,
            flags: SendFlags::SIGNALED | SendFlags::FENCE,
            data: Data::Sges(&sges),
        };
        host.engine.post_send(self.duo.qpns[0], &wr).unwrap();
        self.told.push_back(n);
        self.duo.wake(0);
    }

    fn completed(&mut self, host: usize, wc: &Completion) {
        let (n, what) = match host {
            0 => ((wc.wr_id / 2) as usize, (wc.wr_id % 2) as usize),
            _ => (self.told.pop_front().unwrap(), 2),
        };
        let io = self.config.ios[n];
        let running = self.running.get_mut(&n).unwrap();
        assert!(!running.done[what], "twice: {wc:?}");
        running.done[what] = true;
        let (len, at) = (io.len as usize, slot(n));
        let hosts = &mut self.duo.world.hosts;
        match what {
            0 => {
                let expected = match io.kind {
                    Kind::Read | Kind::FetchAdd => &running.before,
                    Kind::Write => &running.after,
                };
                assert!(hosts[0].bytes(at, len) == *expected, "wrong data: {wc:?}");
                // The requester's own key goes too, and the memory is another's.
                hosts[0].engine.dereg_mr(running.mrs[0].lkey).unwrap();
                hosts[0].region.write_at(at, &mine(0, n, len)).unwrap();
            }
            2 => {
                assert_eq!(wc.flags.contains(WcFlags::WITH_INV), io.invalidates);
                assert!(hosts[1].bytes(at, len) == running.after, "wrong data");
                hosts[1].engine.dereg_mr(running.mrs[1].lkey).unwrap();
                hosts[1].region.write_at(at, &mine(1, n, len)).unwrap();
            }
            _ => {}
        }
        let is_over = running.done == [true; 3];
        if what == 0 && !io.at_once {
            self.tell(n);
        }
        if is_over {
            self.running.remove(&n);
        }
    }
}
