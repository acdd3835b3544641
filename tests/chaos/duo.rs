//! Two applications that look at their engines only now and then: what a look finds came in one
//! burst.

use std::cell::RefCell;
use std::rc::Rc;

use xroce_net::sim::{Impairment, Rng};
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::recovery::{AdaptiveParams, Reliability, SelectiveParams};
use xroce_proto::wc::Completion;
use xroce_wire::newtypes::{PathMtu, Psn, Qpn};

use crate::common::{Setup, World};
use crate::config::pick;
use crate::run::Totals;
use crate::watch::{Flow, Watch};

/// How the two queue pairs of a [`Duo`] are set up.
#[derive(Clone, Debug)]
pub(crate) struct DuoConfig {
    /// From the first host to the second, and back.
    pub(crate) wires: [Impairment; 2],
    pub(crate) mtu: PathMtu,
    pub(crate) psns: [u32; 2],
    pub(crate) timeout: u8,
    pub(crate) reliability: [Reliability; 2],
    /// READs and atomics the first host starts, and the second accepts.
    pub(crate) reads: [u8; 2],
    /// Longest time between two looks of each host, ns.
    pub(crate) every: [u64; 2],
}

impl DuoConfig {
    /// Random, over these wires.
    pub(crate) fn new(rng: &mut Rng, wires: [Impairment; 2]) -> Self {
        let reliability = reliability(rng);
        let near_the_wrap = |rng: &mut Rng| {
            let back = u32::try_from(rng.below(300)).unwrap();
            pick(rng, &[1, (1 << 24) - 1 - back])
        };
        Self {
            wires,
            mtu: PathMtu::ALL[rng.index(PathMtu::ALL.len())],
            psns: [near_the_wrap(rng), near_the_wrap(rng)],
            timeout: 10 + u8::try_from(rng.below(4)).unwrap(),
            reliability: [reliability; 2],
            reads: [16; 2],
            every: [0, 1].map(|_| pick(rng, &[1_000, 10_000, 100_000])),
        }
    }
}

/// Go-back-N in half of all cases.
pub(crate) fn reliability(rng: &mut Rng) -> Reliability {
    match rng.below(6) {
        0..=2 => Reliability::GoBackN,
        3 => Reliability::Adaptive(AdaptiveParams::default()),
        _ => selective(pick(rng, &[128, 1024, 4096])),
    }
}

/// Selective, with a range and what fits into it.
pub(crate) fn selective(range: u32) -> Reliability {
    Reliability::Selective(SelectiveParams {
        range,
        window: range.min(256),
        store: range.min(256),
        tolerance: range.min(64),
        ..SelectiveParams::default()
    })
}

/// Two hosts, a pair of queue pairs, and whose turn it is to look.
pub(crate) struct Duo {
    pub(crate) world: World,
    pub(crate) qpns: [Qpn; 2],
    pub(crate) watch: Rc<RefCell<Watch>>,
    every: [u64; 2],
    next: [u64; 2],
    was_idle: [bool; 2],
    rng: Rng,
}

impl Duo {
    pub(crate) fn new(seed: u64, config: &DuoConfig, rng: &mut Rng) -> Self {
        let setup = Setup {
            seed,
            wires: config.wires,
            ..Setup::default()
        };
        let mut world = setup.build();
        let qpns = [0, 1].map(|host| world.create_qp(host, |_| {}));
        let flow = |from: usize| Flow {
            from,
            qpns: [qpns[from], qpns[1 - from]],
            mtu: config.mtu,
            window: 512,
            reliability: config.reliability[from],
            next: Psn::default(),
            una: Psn::default(),
            msn: 0,
        };
        let watch = Watch::install(&world, setup.link, vec![flow(0), flow(1)]);
        let mut duo = Self {
            world,
            qpns,
            watch,
            every: config.every,
            next: [0; 2],
            was_idle: [false; 2],
            rng: rng.fork(),
        };
        duo.start(config, config.psns);
        duo
    }

    /// Takes both queue pairs from RESET to RTS.
    pub(crate) fn start(&mut self, config: &DuoConfig, psns: [u32; 2]) {
        self.world
            .bring_up(self.qpns, config.mtu, psns, |host, attr| {
                if attr.state == Some(QpState::Rtr) {
                    attr.reliability = Some(config.reliability[host]);
                    attr.max_dest_rd_atomic = Some(if host == 1 { config.reads[1] } else { 16 });
                }
                if attr.state == Some(QpState::Rts) {
                    attr.timeout = Some(config.timeout);
                    attr.rnr_retry = Some(7);
                    attr.max_rd_atomic = Some(if host == 0 { config.reads[0] } else { 16 });
                }
            });
        self.watch_from(psns.map(Psn::new));
    }

    /// What is watched begins anew with these PSNs.
    pub(crate) fn watch_from(&mut self, psns: [Psn; 2]) {
        let mut watch = self.watch.borrow_mut();
        for (flow, psn) in watch.flows.iter_mut().zip(psns) {
            (flow.next, flow.una, flow.msn) = (psn, psn, 0);
        }
        drop(watch);
        Watch::attach(&self.watch, &self.world);
    }

    /// Lets time pass up to the next look of a host; which one, and what completed there.
    pub(crate) fn turn(&mut self) -> (usize, Vec<Completion>) {
        let host = usize::from(self.next[1] < self.next[0]);
        // Time never stands still.
        let at = self.next[host].max(self.world.net.now() + 1);
        self.world.net.advance_to(at);
        let now = self.world.now();
        let engine = &mut self.world.hosts[host].engine;
        let mut is_idle = true;
        // An application looks at its CQ after any number of polls.
        for _ in 0..=self.rng.below(2) {
            is_idle &= engine.poll_once(now).unwrap().is_idle();
        }
        let done = self.world.hosts[host].completions();
        self.next[host] = at + 1 + self.rng.below(self.every[host]);
        self.was_idle[host] = is_idle && done.is_empty();
        if self.was_idle == [true; 2]
            && let Some(event) = self.world.next_event()
        {
            // Nobody has anything to do before. What comes then both look for.
            self.next = self.next.map(|next| next.max(event));
            self.was_idle = [false; 2];
        }
        (host, done)
    }

    /// Nothing will ever happen by itself.
    pub(crate) fn is_stuck(&self) -> bool {
        let mut hosts = self.world.hosts.iter();
        self.was_idle == [true; 2]
            && self.world.net.next_event().is_none()
            && hosts.all(|h| h.engine.next_deadline().is_none())
    }

    /// Something was posted at a host: it is looked at in its time.
    pub(crate) fn wake(&mut self, host: usize) {
        self.was_idle[host] = false;
        self.next[host] = self.next[host].min(self.world.net.now() + 1 + self.every[host]);
    }

    /// A modify to a state.
    pub(crate) fn take_to(&mut self, host: usize, state: QpState) {
        let attr = QpAttr::state(state);
        let qpn = self.qpns[host];
        self.world.hosts[host].engine.modify_qp(qpn, &attr).unwrap();
    }

    /// Why the queue pairs failed, for a test that does.
    pub(crate) fn failures(&self) -> String {
        let why = |host: usize| {
            let engine = &self.world.hosts[host].engine;
            let state = engine.qp_state(self.qpns[host]);
            let failure = engine.failure(self.qpns[host]).map(|f| f.to_string());
            format!("host {host}: {state:?} {failure:?}")
        };
        format!("{}\n{}", why(0), why(1))
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for (host, &qpn) in self.world.hosts.iter().zip(&self.qpns) {
            totals.frames += host.engine.stats().rx_frames;
            let Some(c) = host.engine.qp_counters(qpn) else {
                continue;
            };
            totals += Totals {
                messages: c.sends_completed,
                retransmits: c.retransmits,
                timeouts: c.timeouts,
                seq_naks: c.seq_naks_in,
                duplicates: c.duplicates,
                sacks: c.sacks_in,
                ..Totals::default()
            };
        }
        totals
    }
}
