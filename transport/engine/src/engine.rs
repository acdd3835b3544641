//! The engine: its tables, the commands on them, and the poll loop.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration as StdDuration;

use xroce_api::{AsyncEvent, EngineError, EngineStats, Failure, PortStats, Source, Work};
use xroce_net::datapath::{Caps, Datapath};
use xroce_proto::counters::Counters;
use xroce_proto::memory::Pd;
use xroce_proto::qp::{AddressHandle, Cx, Gauges, Qp, QpAttr, QpInit, QpState};
use xroce_proto::recovery::Reliability;
use xroce_proto::rtt::Histogram;
use xroce_proto::time::Instant;
use xroce_proto::wc::{Event, Sink};
use xroce_proto::wr::{RecvWr, SendWr};
use xroce_wire::newtypes::{Gid, PKey, PathMtu, Qpn};

use crate::cq::CqTable;
use crate::handles::Handles;
use crate::icrc::IcrcTable;
use crate::late::{Late, LateReceives};
use crate::leave::Goodbyes;
use crate::mcast::McastTable;
use crate::mr_table::MrTable;
use crate::notify::{Notifier, NotifyConfig};
use crate::paths::Paths;
use crate::qp_table::QpTable;
use crate::sched::{Schedule, TrafficClasses};
use crate::timers::Wheel;

/// Budgets of one poll.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Frames received per poll, at most.
    pub rx_budget: usize,
    /// Frames sent per poll, at most.
    pub tx_budget: usize,
    /// Frames one QP sends before the next has its turn.
    pub quantum: usize,
    /// How the port is shared.
    pub classes: TrafficClasses,
    /// How marks of congestion are answered.
    pub notify: NotifyConfig,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            rx_budget: 64,
            tx_budget: 64,
            quantum: 16,
            classes: TrafficClasses::default(),
            notify: NotifyConfig::default(),
        }
    }
}

/// Bytes a packet adds to its payload at most in RC: IPv6 40, UDP 8, BTH 12, RETH 16, ImmDt 4,
/// ICRC 4. Atomics have longer headers and no payload.
const RC_OVERHEAD: usize = 84;

/// What a self-contained WRITE packet adds to that.
const METH_LEN: usize = 4;

/// Everything but the port, so that both can be borrowed at once.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) qps: QpTable,
    pub(crate) mem: MrTable,
    pub(crate) cqs: CqTable,
    /// The one entry of the P_Key table.
    pub(crate) pkey: PKey,
    pub(crate) ahs: Handles<AddressHandle>,
    pub(crate) groups: McastTable,
    pub(crate) paths: Paths,
    pub(crate) icrc: IcrcTable,
    pub(crate) wheel: Wheel,
    /// QPs that may have something to send, each at most once.
    pub(crate) schedule: Schedule,
    pub(crate) notifier: Notifier,
    /// What queue pairs that are gone have left to send.
    pub(crate) goodbyes: Goodbyes,
    /// Of the latest poll.
    pub(crate) now: Instant,
    pub(crate) stats: EngineStats,
    pub(crate) config: EngineConfig,
}

/// One port, its queue pairs, and the thread that polls them.
#[derive(Debug)]
pub struct Engine<D: Datapath> {
    pub(crate) port: D,
    pub(crate) core: Core,
    pds: u32,
}

impl<D: Datapath> Engine<D> {
    /// An engine without queue pairs.
    #[must_use]
    pub fn new(port: D, config: EngineConfig) -> Self {
        let core = Core {
            qps: QpTable::default(),
            mem: MrTable::default(),
            cqs: CqTable::default(),
            pkey: PKey::DEFAULT,
            ahs: Handles::default(),
            groups: McastTable::default(),
            paths: Paths::default(),
            icrc: IcrcTable::default(),
            wheel: Wheel::new(),
            schedule: Schedule::new(&config.classes),
            notifier: Notifier::new(config.notify),
            goodbyes: Goodbyes::default(),
            now: Instant::default(),
            stats: EngineStats::default(),
            config,
        };
        Self { port, core, pds: 0 }
    }

    /// Timers, transmit, flush, receive: everything that can be done now without waiting.
    ///
    /// Transmit comes first, so that what was just posted leaves at once and what was received is
    /// in the caller's hands before its ACK is written: the answer of the caller and the ACK then
    /// leave together, in one system call instead of two. Only where a timer is due, receive comes
    /// before it: nobody may have polled for a while, and what the timer waits for may be there.
    ///
    /// # Errors
    /// The port is broken.
    pub fn poll_once(&mut self, now: Instant) -> io::Result<Work> {
        self.poll(now, None)
    }

    /// As [`Engine::poll_once`], with a place where receives may wait that were posted already.
    ///
    /// # Errors
    /// The port is broken.
    pub fn poll_with(&mut self, now: Instant, late: &mut dyn LateReceives) -> io::Result<Work> {
        self.poll(now, Some(late))
    }

    fn poll(&mut self, now: Instant, mut late: Late<'_>) -> io::Result<Work> {
        let Self { port, core, .. } = self;
        core.now = now;
        let budget = core.config.rx_budget;
        let (mut rx, mut timers) = (0, 0);
        let is_due = core.wheel.is_due(now);
        if is_due {
            rx = port.rx_burst(budget, &mut |rx| core.receive(now, rx, &mut late))?;
            timers = core.fire_timers(now);
        }
        let tx = core.transmit(port, now);
        port.tx_flush()?;
        if !is_due {
            rx = port.rx_burst(budget, &mut |rx| core.receive(now, rx, &mut late))?;
        }
        core.settle_overflows();
        Ok(Work { rx, tx, timers })
    }

    /// When [`Engine::poll_once`] has to be called although nothing arrives.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.core.schedule.is_empty() && self.core.goodbyes.is_empty() {
            self.core.wheel.next()
        } else {
            // Something is ready and only the port was full.
            Some(Instant::from_nanos(0))
        }
    }

    /// Sleeps until the port has something or `timeout` is over.
    ///
    /// # Errors
    /// The port is broken.
    pub fn wait(&mut self, timeout: StdDuration) -> io::Result<()> {
        self.port.wait(Some(timeout))
    }

    /// See [`Datapath::readiness`].
    pub fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.port.readiness()
    }

    /// What the port can do.
    pub fn caps(&self) -> &Caps {
        self.port.caps()
    }

    /// The port, for what only a concrete backend offers.
    pub fn port_mut(&mut self) -> &mut D {
        &mut self.port
    }

    /// A new protection domain.
    pub fn alloc_pd(&mut self) -> Pd {
        self.pds += 1;
        Pd(self.pds)
    }

    pub(crate) fn check_pd(&self, pd: Pd) -> Result<(), EngineError> {
        if (1..=self.pds).contains(&pd.0) {
            Ok(())
        } else {
            Err(EngineError::NoPd(pd))
        }
    }

    /// A queue pair in RESET.
    ///
    /// # Errors
    /// A capacity is out of range, the PD, a CQ or the SRQ does not exist, or no number is left.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, EngineError> {
        self.check_parts(init)?;
        let lower = self.lower();
        let port_mtu = PathMtu::for_link_mtu(self.port.caps().mtu).unwrap_or(PathMtu::Mtu256);
        let qpn = self
            .core
            .qps
            .create(*init, lower)?
            .ok_or(EngineError::QpsExhausted)?;
        self.core.count_users(init, 1);
        if let Some((_, entry)) = self.core.qps.find_mut(qpn) {
            entry.qp.set_port_mtu(port_mtu);
            entry.qp.set_cnp_class(self.core.notifier.class());
        }
        self.core.wheel.reserve(self.core.qps.len());
        self.core.schedule.reserve(self.core.qps.living());
        self.core.notifier.reserve(self.core.qps.living());
        Ok(qpn)
    }

    /// Changes state and attributes of a queue pair, or nothing at all. Before it goes to ERR or
    /// RESET the peer is told of all that was executed, in this call if the port has room.
    ///
    /// # Errors
    /// The first rule broken, or a path MTU the link cannot carry.
    pub fn modify_qp(&mut self, qpn: Qpn, attr: &QpAttr) -> Result<(), EngineError> {
        if let Some(mtu) = attr.path_mtu {
            let selective = matches!(attr.reliability, Some(Reliability::Selective(_)));
            let more = if selective { METH_LEN } else { 0 };
            self.check_path_mtu(mtu, RC_OVERHEAD + more)?;
        }
        let filled = self.with_pkey(attr);
        let attr = filled.as_ref().unwrap_or(attr);
        let index = self.core.qps.find(qpn).ok_or(EngineError::NoQp(qpn))?;
        let entry = self.core.qps.get_mut(index).ok_or(EngineError::NoQp(qpn))?;
        match attr.check(entry.qp.init().qp_type, entry.qp.state())? {
            QpState::Reset => self.take_leave(index, true),
            QpState::Err => self.take_leave(index, false),
            _ => {}
        }
        let entry = self.core.qps.get_mut(index).ok_or(EngineError::NoQp(qpn))?;
        entry.qp.modify(attr, &mut self.core.cqs)?;
        for cq in [entry.qp.init().send_cq, entry.qp.init().recv_cq] {
            self.core.cqs.revive(cq);
        }
        if let Some(av) = entry.qp.path() {
            let class = self.core.config.classes.of(av);
            if entry.class != class {
                entry.class = class;
                if entry.active {
                    self.core.schedule.remove(index);
                    self.core.schedule.push_back(class, index);
                }
            }
        }
        self.core.activate(index);
        Ok(())
    }

    fn check_path_mtu(&self, mtu: PathMtu, overhead: usize) -> Result<(), EngineError> {
        let caps = self.port.caps();
        let needed = mtu.bytes() + overhead;
        if needed <= caps.mtu {
            return Ok(());
        }
        Err(EngineError::PathMtu {
            path_mtu: mtu.bytes(),
            needed,
            link_mtu: caps.mtu,
            port: caps.name.clone(),
        })
    }

    /// Destroys a queue pair; what it had posted vanishes without completion, and so do events
    /// of it that nobody took. The peer is told of all that was executed.
    ///
    /// # Errors
    /// It does not exist.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), EngineError> {
        let index = self.core.qps.find(qpn).ok_or(EngineError::NoQp(qpn))?;
        self.take_leave(index, true);
        if let Some(entry) = self.core.qps.get(index) {
            let init = *entry.qp.init();
            self.core.count_users(&init, -1);
        }
        self.core.cqs.events.forget(Source::Qp(qpn));
        self.leave_all(index);
        self.core.wheel.disarm(index);
        self.core.schedule.remove(index);
        self.core.qps.destroy(index);
        Ok(())
    }

    /// Posts a send; it leaves in the next poll.
    ///
    /// # Errors
    /// See [`PostError`](xroce_proto::wr::PostError); nothing was posted then.
    #[inline]
    pub fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), EngineError> {
        let found = self.core.qps.find_mut(qpn);
        let (index, entry) = found.ok_or(EngineError::NoQp(qpn))?;
        entry.qp.post_send(wr, &mut self.core.cqs)?;
        self.core.schedule.enlist(entry, index);
        Ok(())
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// See [`PostError`](xroce_proto::wr::PostError); nothing was posted then.
    #[inline]
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), EngineError> {
        self.core.post_recv(qpn, wr)
    }

    pub(crate) fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        Some(&self.core.qps.get(self.core.qps.find(qpn)?)?.qp)
    }

    /// State of a queue pair.
    #[must_use]
    pub fn qp_state(&self, qpn: Qpn) -> Option<QpState> {
        Some(self.qp(qpn)?.state())
    }

    /// Counters of a queue pair.
    #[must_use]
    pub fn qp_counters(&self, qpn: Qpn) -> Option<Counters> {
        Some(self.qp(qpn)?.counters())
    }

    /// Round-trip times of a queue pair.
    #[must_use]
    pub fn qp_rtt(&self, qpn: Qpn) -> Option<&Histogram> {
        Some(self.qp(qpn)?.rtt())
    }

    /// Window, rate and what is under way on a queue pair.
    #[must_use]
    pub fn qp_gauges(&self, qpn: Qpn) -> Option<Gauges> {
        Some(self.qp(qpn)?.gauges())
    }

    /// Source addresses of packets that failed the ICRC check, and how many from each; the 16 with
    /// the most.
    pub fn icrc_failures(&self) -> impl Iterator<Item = (Gid, u64)> {
        self.core.icrc.iter()
    }

    /// Sends posted and not completed on a queue pair.
    #[must_use]
    pub fn sends_posted(&self, qpn: Qpn) -> Option<u32> {
        Some(self.qp(qpn)?.sends_posted())
    }

    /// Why a queue pair went to ERR by itself.
    #[must_use]
    pub fn failure(&self, qpn: Qpn) -> Option<Failure> {
        let entry = self.core.qps.get(self.core.qps.find(qpn)?)?;
        let report = *entry.qp.failure()?;
        let trouble = entry.trouble();
        Some(Failure {
            report,
            icrc_errors: trouble.icrc_errors,
            icrc_from_peer: self.core.icrc.from(report.peer),
            icrc_last_from: trouble.icrc_last_from,
            icmp: trouble.icmp,
            address_gone: entry.address_gone,
            link_down: self.core.paths.link_down,
            unknown_qp: self.core.stats.unknown_qp,
        })
    }

    /// Counters of the engine.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            cq_overflows: self.core.cqs.overflow_count,
            events_lost: self.core.cqs.events.lost,
            ..self.core.stats
        }
    }

    /// Counters of the port.
    pub fn port_stats(&mut self) -> PortStats {
        self.port.stats()
    }
}

impl Core {
    /// Lists a QP for the next transmit phase.
    #[inline]
    pub(crate) fn activate(&mut self, index: u32) {
        if let Some(entry) = self.qps.get_mut(index) {
            self.schedule.enlist(entry, index);
        }
    }

    /// Asks every QP whose deadline may have come.
    fn fire_timers(&mut self, now: Instant) -> usize {
        let mut fired = 0;
        while let Some(index) = self.wheel.pop_due(now) {
            let Some(entry) = self.qps.get_mut(index) else {
                continue;
            };
            if entry.qp.poll_timeout().is_some_and(|at| at <= now) {
                fired += 1;
                let mut cx = Cx {
                    now,
                    mem: &mut self.mem,
                    sink: &mut self.cqs,
                };
                entry.qp.handle_timeout(&mut cx);
                // Its turn to transmit files the next deadline. Filing it here would not end: a
                // QP that only waits for that turn (paced) still has the deadline that passed.
                self.activate(index);
            } else {
                self.rearm(index);
            }
        }
        fired
    }

    /// Files the QP's next deadline, if it has one.
    #[inline]
    pub(crate) fn rearm(&mut self, index: u32) {
        if let Some(entry) = self.qps.get(index)
            && let Some(at) = entry.qp.poll_timeout()
        {
            self.wheel.arm(index, at);
        }
    }

    /// A CQ that lost a completion takes its QPs with it, and says so (C7), whether it lost any
    /// before or not.
    fn settle_overflows(&mut self) {
        while let Some(cq) = self.cqs.take_overflow() {
            self.cqs.events.push_once(AsyncEvent::cq(cq, Event::CqErr));
            if !self.cqs.end(cq) {
                continue;
            }
            let hit: Vec<u32> = self
                .qps
                .iter()
                .filter(|(_, e)| e.qp.init().send_cq == cq || e.qp.init().recv_cq == cq)
                .map(|(i, _)| i)
                .collect();
            for index in hit {
                let Some(entry) = self.qps.get_mut(index) else {
                    continue;
                };
                if entry.qp.state() == QpState::Err {
                    continue;
                }
                // RESET cannot go to ERR, and has nothing to flush.
                let to_err = QpAttr::state(QpState::Err);
                if entry.qp.modify(&to_err, &mut self.cqs).is_ok() {
                    self.cqs.event(entry.qp.qpn(), Event::QpFatal);
                    // It may still owe an ACK.
                    self.schedule.enlist(entry, index);
                }
            }
        }
    }
}
