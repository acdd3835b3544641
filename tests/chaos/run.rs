//! One seed: build, drive, check.

use std::cell::RefCell;
use std::fmt::Debug;
use std::ops::AddAssign;
use std::process::Command;
use std::rc::Rc;

use xroce_api::{AsyncEvent, Source};
use xroce_net::sim::{Impairment, Rng};
use xroce_proto::memory::Access;
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::wc::Event;
use xroce_wire::newtypes::{Psn, Qpn};
use xroce_wire::syndrome::RnrTimer;

use crate::common::lane::{Lane, pools};
use crate::common::model::Model;
use crate::common::script::{Fate, Fault};
use crate::common::{ALL_ACCESS, Setup, World};
use crate::config::{Config, PairConfig, Strict};
use crate::modify::Modifier;
use crate::watch::{Flow, Watch};

/// Bytes of each host's region: pool, and three areas for each of eight lanes.
const MEMORY: usize = (96 << 10) + 12 * (161 << 10);

/// Virtual time in which everything must be done once the network is calm, ns.
const LIVENESS_NS: u64 = 400_000_000;

/// Longest time between two looks at the work, ns.
const LOOK_NS: u64 = 50_000_000;

/// Says everything about a run that fails.
pub(crate) struct Black<C: Debug> {
    pub(crate) seed: u64,
    pub(crate) config: C,
    pub(crate) watch: Rc<RefCell<Watch>>,
}

impl<C: Debug> Drop for Black<C> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let commit = Command::new("git").args(["rev-parse", "HEAD"]).output();
        let commit = commit.map_or_else(
            |_| "unknown".into(),
            |o| String::from_utf8_lossy(&o.stdout).trim().to_owned(),
        );
        eprintln!("{:#?}", self.config);
        if let Ok(watch) = self.watch.try_borrow() {
            eprintln!("last frames:\n{}", watch.trace.text());
        }
        eprintln!(
            "XROCE_SEED={} at commit {commit} (or later) failed",
            self.seed
        );
    }
}

/// What a run consisted of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) messages: u64,
    pub(crate) frames: u64,
    pub(crate) retransmits: u64,
    pub(crate) timeouts: u64,
    pub(crate) seq_naks: u64,
    pub(crate) implied_naks: u64,
    pub(crate) rnr_naks: u64,
    pub(crate) duplicates: u64,
    pub(crate) icrc_errors: u64,
    pub(crate) deaths: u64,
    pub(crate) selective: u64,
    pub(crate) sacks: u64,
    pub(crate) tail_probes: u64,
    pub(crate) placed_early: u64,
    pub(crate) spurious: u64,
    pub(crate) modifies: u64,
    pub(crate) events: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, more: Self) {
        self.messages += more.messages;
        self.frames += more.frames;
        self.retransmits += more.retransmits;
        self.timeouts += more.timeouts;
        self.seq_naks += more.seq_naks;
        self.implied_naks += more.implied_naks;
        self.rnr_naks += more.rnr_naks;
        self.duplicates += more.duplicates;
        self.icrc_errors += more.icrc_errors;
        self.deaths += more.deaths;
        self.selective += more.selective;
        self.sacks += more.sacks;
        self.tail_probes += more.tail_probes;
        self.placed_early += more.placed_early;
        self.spurious += more.spurious;
        self.modifies += more.modifies;
        self.events += more.events;
    }
}

/// Runs a seed to its end or panics.
pub(crate) fn run(seed: u64, make: impl Fn(&mut Rng) -> Config, verbose: bool) -> Totals {
    let mut rng = Rng::new(seed);
    let config = make(&mut rng);
    if verbose {
        eprintln!("seed {seed}: {config:#?}");
    }
    let setup = Setup {
        seed,
        wires: config.wires,
        link: config.link,
        ips: config.ips,
        vlan: config.vlan,
        tx_ring: config.tx_ring,
        memory: MEMORY,
        engine: config.engine,
    };
    let mut world = setup.build();
    for &(wire, from, to) in &config.blackholes {
        let wire = [world.link.there, world.link.back][wire];
        world.net.add_blackhole(wire, from, to);
    }
    let pools = pools(&mut world);
    let mut lanes = Vec::new();
    let mut flows = Vec::new();
    for pair in &config.pairs {
        let qpns = connect(&mut world, pair);
        for from in [0, 1] {
            let qpns = [qpns[from], qpns[1 - from]];
            let fate = pair.fates[from];
            lanes.push(Lane::new(
                &mut world,
                pools,
                from,
                qpns,
                pair.limits[from],
                fate,
                &mut rng,
            ));
            flows.push(Flow {
                from,
                qpns,
                mtu: pair.mtu,
                window: pair.most_in_flight(),
                reliability: pair.reliability,
                next: Psn::new(pair.psns[from]),
                una: Psn::new(pair.psns[from]),
                msn: 0,
            });
        }
    }
    let watch = Watch::install(&world, config.link, flows);
    let mut run = Run {
        model: Model::new(&world, seed),
        world,
        lanes,
        events: Vec::new(),
        draining: Vec::new(),
        modifier: Modifier::new(seed),
        rng: rng.fork(),
        black: Black {
            seed,
            config,
            watch,
        },
    };
    run.drive();
    run.check_end();
    run.model.check(&run.world);
    if verbose {
        run.summary();
    }
    run.totals()
}

fn connect(world: &mut World, pair: &PairConfig) -> [Qpn; 2] {
    let qpns = [0, 1].map(|host| {
        world.create_qp(host, |init| {
            init.max_send_wr = pair.limits[host].send_wr;
            init.max_send_sge = pair.limits[host].send_sge;
            init.max_inline = pair.limits[host].inline;
            init.max_recv_wr = pair.limits[1 - host].recv_wr;
            init.max_recv_sge = pair.limits[1 - host].recv_sge;
        })
    });
    world.bring_up(qpns, pair.mtu, pair.psns, |host, attr| {
        if let Some(access) = &mut attr.access {
            *access = ALL_ACCESS;
            match pair.fates[1 - host] {
                Fate::Faulty(_, Fault::QpWrite | Fault::QpAtomicWrite) => {
                    access.remove(Access::REMOTE_WRITE);
                }
                Fate::Faulty(_, Fault::QpAtomic) => access.remove(Access::REMOTE_ATOMIC),
                Fate::Faulty(_, Fault::QpFlush) => access.remove(Access::FLUSH_GLOBAL),
                Fate::Faulty(_, Fault::QpRead) => access.remove(Access::REMOTE_READ),
                _ => {}
            }
        }
        if let Some(av) = &mut attr.av {
            av.traffic_class = pair.dscp << 2 | 2;
        }
        if attr.state == Some(QpState::Rtr) {
            attr.max_dest_rd_atomic = Some(pair.max_rd_atomic[1 - host]);
            attr.min_rnr_timer = RnrTimer::new(pair.rnr_timer);
            attr.reliability = Some(pair.reliability);
        }
        if attr.state == Some(QpState::Rts) {
            attr.max_rd_atomic = Some(pair.max_rd_atomic[host]);
            attr.timeout = Some(pair.timeout);
            attr.retry_cnt = Some(pair.retry_cnt);
            attr.rnr_retry = Some(7);
            attr.congestion = Some(pair.congestion());
            attr.rate_limit = pair.rate_limit.is_limited().then_some(pair.rate_limit);
        }
    });
    qpns
}

struct Run {
    world: World,
    model: Model,
    lanes: Vec<Lane>,
    events: Vec<(usize, Qpn, Event)>,
    /// Host, QP, and when it goes on.
    draining: Vec<(usize, Qpn, u64)>,
    rng: Rng,
    black: Black<Config>,
    modifier: Modifier,
}

impl Run {
    fn drive(&mut self) {
        let calm_after = self.black.config.calm_after;
        let mut deadline = self.black.config.limit_ns;
        let mut calm = false;
        loop {
            self.world.settle();
            self.collect();
            if self.lanes.iter().all(Lane::is_done) {
                return;
            }
            let now = self.world.net.now();
            assert!(now < deadline, "not done in time:\n{}", self.progress());
            if !calm && now >= calm_after {
                calm = true;
                deadline = now + LIVENESS_NS;
                for (i, wire) in [self.world.link.there, self.world.link.back]
                    .into_iter()
                    .enumerate()
                {
                    let imp = Impairment {
                        rate_bps: self.black.config.wires[i].rate_bps,
                        ..Impairment::delay(1000)
                    };
                    self.world.net.set_impairment(wire, imp);
                }
            }
            // LOCAL_INV may complete with nothing on any wire, and is then found by looking.
            let mut wake = (!calm).then_some(calm_after.min(now + LOOK_NS));
            wake = wake.into_iter().chain(self.drain(calm)).min();
            let config = &self.black.config;
            let at = self
                .modifier
                .turn(&mut self.world, &self.lanes, config, calm);
            wake = wake.into_iter().chain(at).min();
            for lane in &mut self.lanes {
                let at = lane.pump(&mut self.world, &mut self.model, calm);
                wake = wake.into_iter().chain(at).min();
            }
            // What is posted in ERR completes at once, and LOCAL_INV in its turn, with nothing on
            // any wire.
            let goes_on = self.collect() || self.world.step(wake) || self.collect();
            assert!(goes_on, "nothing will ever happen:\n{}", self.progress());
        }
    }

    /// Takes send queues to SQD and back; until when the next one stays there.
    fn drain(&mut self, calm: bool) -> Option<u64> {
        let now = self.world.net.now();
        let mut all = std::mem::take(&mut self.draining);
        all.retain(|&(host, qpn, until)| {
            if now < until && !calm {
                return true;
            }
            let attr = QpAttr::state(QpState::Rts);
            self.world.hosts[host].engine.modify_qp(qpn, &attr).unwrap();
            false
        });
        self.draining = all;
        if !calm && self.rng.chance_ppm(self.black.config.drain_ppm) {
            let lane = &self.lanes[self.rng.index(self.lanes.len())];
            let (host, qpn) = (lane.from, lane.qpns[0]);
            let engine = &mut self.world.hosts[host].engine;
            if lane.fate == Fate::Sound && engine.qp_state(qpn) == Some(QpState::Rts) {
                let attr = QpAttr::state(QpState::Sqd);
                engine.modify_qp(qpn, &attr).unwrap();
                let until = now + self.rng.below(300_000);
                self.draining.push((host, qpn, until));
            }
        }
        self.draining.iter().map(|&(.., until)| until).min()
    }

    /// Hands completions to their lanes, then checks what is done; whether there were any.
    fn collect(&mut self) -> bool {
        let mut any = false;
        for host in [0, 1] {
            for wc in self.world.hosts[host].completions() {
                let model = &mut self.model;
                let taken = self
                    .lanes
                    .iter_mut()
                    .any(|lane| lane.completed(host, &wc, model));
                assert!(taken, "{wc:?} belongs to nobody");
                any = true;
            }
            while let Some(AsyncEvent { source, event }) =
                self.world.hosts[host].engine.poll_event()
            {
                let Source::Qp(qpn) = source else {
                    panic!("{event:?} of {source:?}");
                };
                self.events.push((host, qpn, event));
            }
        }
        for lane in &mut self.lanes {
            // Also those that say nothing when they are done.
            any |= lane.retire(&mut self.world, &mut self.model);
        }
        // Nobody tells the peer of a local error: what it would find out by timeout is told here.
        for lane in &self.lanes {
            let peer = lane.qpns[1];
            let other = &mut self.world.hosts[1 - lane.from].engine;
            if matches!(lane.fate, Fate::Faulty(_, fault) if fault.is_local())
                && lane.has_failed()
                && other.qp_state(peer) != Some(QpState::Err)
            {
                other.modify_qp(peer, &QpAttr::state(QpState::Err)).unwrap();
            }
        }
        any
    }

    fn progress(&self) -> String {
        let lines: Vec<String> = self
            .lanes
            .iter()
            .map(|lane| {
                let engine = &self.world.hosts[lane.from].engine;
                let why = engine.failure(lane.qpns[0]).map(|f| format!(" ({f})"));
                lane.progress() + &why.unwrap_or_default()
            })
            .collect();
        lines.join("\n")
    }

    fn check_end(&mut self) {
        self.check_events();
        self.drain(true);
        for lane in &self.lanes {
            let engine = &self.world.hosts[lane.from].engine;
            let peer = &self.world.hosts[1 - lane.from].engine;
            let counters = engine.qp_counters(lane.qpns[0]).unwrap();
            let peer_counters = peer.qp_counters(lane.qpns[1]).unwrap();
            let state = engine.qp_state(lane.qpns[0]);
            if lane.fate != Fate::Sound {
                assert_eq!(state, Some(QpState::Err));
                continue;
            }
            assert_eq!(state, Some(QpState::Rts));
            let (sends, recvs) = lane.totals();
            assert_eq!(counters.sends_completed, sends, "{counters:?}");
            assert_eq!(peer_counters.recvs_completed, recvs, "{peer_counters:?}");
            let strict = self.black.config.strict;
            if strict != Strict::No {
                assert_eq!(counters.timeouts, 0, "for no reason: {counters:?}");
            }
            if strict == Strict::NothingAgain && counters.rnr_naks_in == 0 {
                // SQD asks what it waits for by sending the last packet again.
                let again = counters.retransmits - counters.retransmits_solicit;
                assert_eq!(again, 0, "for no reason: {counters:?}");
            }
        }
        // Stragglers arrive, lazy timers are asked once more, then all is quiet for ever.
        self.world.idle(100_000_000);
        self.collect();
        // Only now: a notification may have been owed when the work was done.
        for lane in &self.lanes {
            let engine = &self.world.hosts[lane.from].engine;
            let c = engine.qp_counters(lane.qpns[0]).unwrap();
            assert_eq!(c.ce_marked, c.cnps_out + c.cnps_suppressed);
            assert_eq!(c.cnps_in, c.cnps_handled + c.cnps_ignored);
        }
        for host in &mut self.world.hosts {
            assert_eq!(host.engine.next_deadline(), None, "a timer is armed");
            let stats = host.engine.stats();
            let port = host.engine.port_stats();
            assert_eq!(stats.rx_frames, port.rx_frames);
            let sum = stats.delivered
                + stats.bad_frames
                + stats.bad_packets
                + stats.icrc_errors
                + stats.unknown_qp;
            assert_eq!(stats.rx_frames, sum, "{stats:?}");
            assert_eq!(stats.cq_overflows, 0);
        }
        for host in [0, 1] {
            let engine = &self.world.hosts[host].engine;
            let on_host = self.lanes.iter().filter(|lane| lane.from == host);
            let accepted: u64 = on_host
                .filter_map(|lane| engine.qp_counters(lane.qpns[0]))
                .map(|c| c.rx_packets + c.discards + c.cnps_in)
                .sum();
            assert_eq!(engine.stats().delivered, accepted);
        }
        assert_eq!(self.world.net.next_event(), None);
    }

    /// No event without a fault, the right ones with it.
    fn check_events(&self) {
        let mut expected = Vec::new();
        for lane in &self.lanes {
            let Fate::Faulty(_, fault) = lane.fate else {
                continue;
            };
            let mtu = self.black.config.pairs[0].mtu.bytes();
            let single = lane.fault_len() as usize <= mtu;
            if !fault.is_local() && fault.receive_status(single).is_none() {
                let event = if fault.is_right_of_qp() {
                    Event::QpReqErr
                } else {
                    Event::QpAccessErr
                };
                expected.push((1 - lane.from, lane.qpns[1], event));
            }
        }
        let key = |e: &(usize, Qpn, Event)| e.0;
        let mut seen = self.events.clone();
        seen.sort_by_key(key);
        expected.sort_by_key(key);
        assert_eq!(seen, expected);
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals {
            modifies: self.modifier.accepted,
            ..Totals::default()
        };
        for lane in &self.lanes {
            let engine = &self.world.hosts[lane.from].engine;
            let counters = engine.qp_counters(lane.qpns[0]).unwrap();
            totals += Totals {
                messages: counters.sends_completed,
                retransmits: counters.retransmits,
                timeouts: counters.timeouts,
                seq_naks: counters.seq_naks_in,
                implied_naks: counters.implied_naks,
                rnr_naks: counters.rnr_naks_in,
                duplicates: counters.duplicates,
                selective: counters.retransmits_selective,
                sacks: counters.sacks_in,
                tail_probes: counters.tail_probes,
                placed_early: counters.placed_early,
                spurious: counters.spurious_retransmits,
                ..Totals::default()
            };
        }
        for host in &self.world.hosts {
            let stats = host.engine.stats();
            totals.frames += stats.rx_frames;
            totals.icrc_errors += stats.icrc_errors;
        }
        totals
    }

    fn summary(&self) {
        for lane in &self.lanes {
            let engine = &self.world.hosts[lane.from].engine;
            let counters = engine.qp_counters(lane.qpns[0]);
            eprintln!("{}\n  {counters:?}", lane.progress());
        }
        let now = self.world.net.now() as f64 / 1e6;
        eprintln!(
            "{:?}\nall done at {now} ms",
            self.world.net.wire_stats(self.world.link.there)
        );
    }
}
