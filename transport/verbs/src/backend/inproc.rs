//! The backend that is an engine in this process.
//!
//! One lock around the engine. It is held for one call or one poll, never while sleeping: the
//! thread that polls sleeps on the descriptors of the port and of a [`Bell`](super::doze::Bell)
//! that posts ring. A thread that polls without pause would keep everybody else out of an unfair
//! lock, so callers that could not get in at once are counted and it steps aside for them.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use xroce_api::clock;
#[allow(clippy::wildcard_imports, reason = "what the table of verbs names")]
use xroce_api::types::*;
use xroce_api::{AsyncEvent, EngineError, Notify, ObjectError, Work};
use xroce_engine::{Engine, EngineConfig};
use xroce_net::addressing::Addressing;
use xroce_net::datapath::{Datapath, Link};
use xroce_proto::time::Instant;
use xroce_proto::wc::Completion;
use xroce_wire::newtypes::PathMtu;
use xroce_wire::path::{AddressVector, Flow};

use super::doze::Bell;
use super::post::post_one;
use super::{Backend, Fixed, Motion, Signal, Verbs, no_qp};
use crate::batch::{BadWr, RecvRecords, SendRecords, WrError};
use crate::channel::{Channel, LocalChannel};
use crate::error::VerbsError;

/// Tries to get the lock before it is slept for.
const SPINS: u32 = 200;
/// Times the polling thread looks whether somebody still waits for the lock.
const GIVE_WAY: u32 = 400;
/// Addresses, link and ICMP errors are looked at so often, ns.
const LOOK_NS: u64 = 100_000_000;

/// What the lock protects.
pub(super) struct State<D: Datapath> {
    pub(super) engine: Engine<D>,
    channels: HashMap<Cq, Arc<LocalChannel>>,
    /// Regions that nobody owns any more and that windows are bound to.
    orphans: Vec<LKey>,
}

/// An engine, and what lets several threads use it.
pub(crate) struct InProc<D: Datapath> {
    fixed: Fixed,
    motion: Motion,
    /// Readable when the port has something. Before `state`, to be closed before the port.
    pub(super) readiness: Option<OwnedFd>,
    state: Mutex<State<D>>,
    /// Callers that did not get the lock at once.
    wanted: AtomicU32,
    addressing: Mutex<Addressing>,
    /// When `addressing` was last asked what happened, ns.
    looked: AtomicU64,
    events: Signal,
    pub(super) bell: Bell,
    pub(super) stopped: AtomicBool,
    broken: OnceLock<String>,
}

impl<D: Datapath> fmt::Debug for InProc<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InProc").field(&self.fixed.name).finish()
    }
}

impl<D: Datapath> InProc<D> {
    pub(crate) fn new(port: D, addressing: Addressing, motion: Motion) -> Result<Self, VerbsError> {
        let caps = port.caps();
        let fixed = Fixed {
            name: caps.name.clone(),
            ethernet: caps.link == Link::Ethernet,
            link_mtu: caps.mtu,
            path_mtu: PathMtu::for_link_mtu(caps.mtu).unwrap_or(PathMtu::Mtu256),
            limits: None,
        };
        let failed = VerbsError::system("making descriptors to wait for");
        let readiness = port.readiness().map(|fd| fd.try_clone_to_owned());
        let made = readiness
            .transpose()
            .and_then(|fd| Ok((fd, Signal::new()?, Bell::new()?)));
        let (readiness, events, bell) = made.map_err(failed)?;
        let mut engine = Engine::new(port, EngineConfig::default());
        engine.set_gids(addressing.gids());
        let state = State {
            engine,
            channels: HashMap::new(),
            orphans: Vec::new(),
        };
        Ok(Self {
            fixed,
            motion,
            readiness,
            state: Mutex::new(state),
            wanted: AtomicU32::new(0),
            addressing: Mutex::new(addressing),
            looked: AtomicU64::new(0),
            events,
            bell,
            stopped: AtomicBool::new(false),
            broken: OnceLock::new(),
        })
    }

    /// The lock, for everybody but the polling thread.
    pub(super) fn lock(&self) -> MutexGuard<'_, State<D>> {
        if let Some(state) = self.try_lock() {
            return state;
        }
        self.wanted.fetch_add(1, Ordering::AcqRel);
        let state = self.lock_slowly();
        self.wanted.fetch_sub(1, Ordering::AcqRel);
        state
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, State<D>>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            // A panic elsewhere is reported there; commands are whole or not done at all.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[cold]
    fn lock_slowly(&self) -> MutexGuard<'_, State<D>> {
        for _ in 0..SPINS {
            if let Some(state) = self.try_lock() {
                return state;
            }
            std::hint::spin_loop();
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps aside for callers that wait for the lock, for a while.
    pub(super) fn give_way(&self) {
        for n in 0..GIVE_WAY {
            if self.wanted.load(Ordering::Acquire) == 0 {
                return;
            }
            if n < GIVE_WAY / 2 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// One poll of the engine, and word to whoever waits for what it found.
    pub(super) fn turn(&self, now: Instant) -> Result<Work, VerbsError> {
        self.check_alive()?;
        if now
            .as_nanos()
            .saturating_sub(self.looked.load(Ordering::Relaxed))
            >= LOOK_NS
        {
            self.look_around(now);
        }
        let mut state = self.lock();
        let polled = state.engine.poll_once(now);
        self.settle(&mut state);
        polled.map_err(|e| self.lose(&state, &e.to_string()))
    }

    /// What happened to addresses and link, and what ICMP said.
    #[cold]
    fn look_around(&self, now: Instant) {
        // Somebody resolves a neighbour, which may take seconds: another time.
        let Ok(mut addressing) = self.addressing.try_lock() else {
            return;
        };
        self.looked.store(now.as_nanos(), Ordering::Relaxed);
        let mut happened = Vec::new();
        if let Err(error) = addressing.poll(&mut |event| happened.push(event)) {
            tracing::warn!(%error, "the kernel does not tell what happens to addresses");
        }
        drop(addressing);
        if happened.is_empty() {
            return;
        }
        let mut state = self.lock();
        for event in &happened {
            state.engine.apply(event);
        }
        self.settle(&mut state);
    }

    /// Hands notifications on and says that there are events.
    fn settle(&self, state: &mut State<D>) {
        if state.engine.has_notification() {
            while let Some(cq) = state.engine.poll_notification() {
                if let Some(channel) = state.channels.get(&cq) {
                    channel.push(cq);
                }
            }
        }
        if state.engine.has_event() && !self.events.is_up() {
            self.events.raise();
        }
    }

    /// Runs a command that changes something, then rings for the thread that polls.
    pub(super) fn command<R>(&self, run: impl FnOnce(&mut State<D>) -> R) -> R {
        let mut state = self.lock();
        let result = run(&mut state);
        self.settle(&mut state);
        drop(state);
        self.bell.ring();
        result
    }

    fn engine<R>(
        &self,
        run: impl FnOnce(&mut Engine<D>) -> Result<R, EngineError>,
    ) -> Result<R, VerbsError> {
        self.check_alive()?;
        Ok(self.command(|state| run(&mut state.engine))?)
    }

    pub(super) fn check_alive(&self) -> Result<(), VerbsError> {
        match self.broken.get() {
            None => Ok(()),
            Some(reason) => Err(self.broken(reason)),
        }
    }

    pub(super) fn check_postable(&self, first: Option<u64>) -> Result<(), BadWr> {
        let Some(reason) = self.broken.get() else {
            return Ok(());
        };
        let error = WrError::Device {
            device: self.fixed.name.clone(),
            reason: reason.clone(),
        };
        Err(BadWr::new(0, first.unwrap_or(0), error))
    }

    fn broken(&self, reason: &str) -> VerbsError {
        VerbsError::Device {
            device: self.fixed.name.clone(),
            reason: reason.to_owned(),
        }
    }

    /// The port is broken: everybody who waits hears of it.
    #[cold]
    fn lose(&self, state: &State<D>, reason: &str) -> VerbsError {
        let reason = self.broken.get_or_init(|| reason.to_owned());
        tracing::error!(device = self.fixed.name, reason, "device broken");
        self.events.raise();
        for channel in state.channels.values() {
            channel.wake();
        }
        self.broken(reason)
    }

    fn reap_orphans(state: &mut State<D>) {
        let State {
            engine, orphans, ..
        } = state;
        orphans.retain(|&lkey| {
            let refused = engine.dereg_mr(lkey);
            matches!(refused, Err(EngineError::Object(ObjectError::Dereg(_))))
        });
    }

    fn addressing(&self) -> MutexGuard<'_, Addressing> {
        let locked = self.addressing.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Datapath> InProc<D> {
    /// Sleeps until `signal` is up or `timeout` is over, and has the engine move meanwhile.
    fn wait(&self, signal: &Signal, timeout: Duration) -> Result<bool, VerbsError> {
        match self.motion {
            Motion::Thread => self.wait_for(signal, timeout),
            Motion::Caller => self.wait_polling(signal, timeout),
            Motion::Manual if signal.is_up() => Ok(true),
            Motion::Manual => Err(VerbsError::Manual),
        }
    }

    fn resolve(&self, attr: &AhAttr, flow: Flow) -> Result<AddressVector, VerbsError> {
        Ok(self.addressing().resolve(attr, flow)?)
    }
}

impl<D: Datapath + Send> Verbs for InProc<D> {
    fn gids(&self) -> Result<Vec<(u32, GidEntry)>, VerbsError> {
        let addressing = self.addressing();
        let entries = addressing.gids().iter();
        Ok(entries.map(|(n, entry)| (n, entry.clone())).collect())
    }

    fn is_up(&self) -> Result<bool, VerbsError> {
        Ok(self.broken.get().is_none() && self.addressing().is_up())
    }

    fn pkey(&self, index: u16) -> Result<Option<PKey>, VerbsError> {
        Ok(self.lock().engine.pkey(index))
    }

    fn set_pkey(&self, index: u16, pkey: PKey) -> Result<(), VerbsError> {
        self.engine(|engine| engine.set_pkey(index, pkey))
    }

    fn stats(&self) -> Result<(EngineStats, PortStats), VerbsError> {
        let mut state = self.lock();
        Ok((state.engine.stats(), state.engine.port_stats()))
    }

    fn alloc_pd(&self) -> Result<Pd, VerbsError> {
        self.engine(|engine| Ok(engine.alloc_pd()))
    }

    fn reg_mr(&self, pd: Pd, range: &Range<'_>, access: Access) -> Result<Mr, VerbsError> {
        self.engine(|engine| engine.reg_mr_at(pd, range, access))
    }

    fn rereg_mr(&self, lkey: LKey, change: &Rereg<'_>) -> Result<Mr, VerbsError> {
        self.engine(|engine| engine.rereg_mr(lkey, change))
    }

    fn dereg_mr(&self, lkey: LKey) -> Result<(), VerbsError> {
        self.engine(|engine| engine.dereg_mr(lkey))
    }

    fn abandon_mr(&self, lkey: LKey) -> Result<(), VerbsError> {
        self.command(|state| {
            state.orphans.push(lkey);
            Self::reap_orphans(state);
        });
        Ok(())
    }

    fn alloc_mw(&self, pd: Pd, mw_type: MwType) -> Result<Mw, VerbsError> {
        self.engine(|engine| engine.alloc_mw(pd, mw_type))
    }

    fn dealloc_mw(&self, mw: MwId) -> Result<(), VerbsError> {
        let freed = self.engine(|engine| engine.dealloc_mw(mw));
        self.command(Self::reap_orphans);
        freed
    }

    fn bind_mw(&self, mw: MwId, bind: Bind) -> Result<RKey, VerbsError> {
        let bound = self.engine(|engine| engine.bind_mw(mw, &bind));
        self.command(Self::reap_orphans);
        bound
    }

    fn create_channel(&self) -> Result<Channel, VerbsError> {
        let made = LocalChannel::new().map(Arc::new);
        let made = made.map_err(VerbsError::system("making a completion channel"))?;
        Ok(Channel::Local(made))
    }

    fn create_cq(&self, depth: u32, channel: &Channel) -> Result<Cq, VerbsError> {
        self.check_alive()?;
        let channel = channel.local()?;
        self.command(|state| {
            let cq = state.engine.create_cq(depth)?;
            state.channels.insert(cq, Arc::clone(channel));
            Ok(cq)
        })
    }

    fn resize_cq(&self, cq: Cq, depth: u32) -> Result<(), VerbsError> {
        self.engine(|engine| engine.resize_cq(cq, depth))
    }

    fn destroy_cq(&self, cq: Cq) -> Result<(), VerbsError> {
        self.command(|state| {
            state.engine.destroy_cq(cq)?;
            if let Some(channel) = state.channels.remove(&cq) {
                channel.forget(cq);
            }
            Ok(())
        })
    }

    fn create_srq(&self, pd: Pd, attr: &SrqAttr) -> Result<Srq, VerbsError> {
        self.engine(|engine| engine.create_srq(pd, attr))
    }

    fn modify_srq(
        &self,
        srq: Srq,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), VerbsError> {
        self.engine(|engine| engine.modify_srq(srq, max_wr, limit))
    }

    fn query_srq(&self, srq: Srq) -> Result<(SrqAttr, u32), VerbsError> {
        let state = self.lock();
        let found = state.engine.query_srq(srq).zip(state.engine.srq_len(srq));
        Ok(found.ok_or(EngineError::Object(ObjectError::NoSrq(srq)))?)
    }

    fn destroy_srq(&self, srq: Srq) -> Result<(), VerbsError> {
        Ok(self.command(|state| state.engine.destroy_srq(srq))?)
    }

    fn create_qp(&self, init: &QpInit) -> Result<Qpn, VerbsError> {
        self.engine(|engine| engine.create_qp(init))
    }

    fn modify_qp(
        &self,
        qpn: Qpn,
        mut attr: Box<QpAttr>,
        path: Option<Path>,
    ) -> Result<(), VerbsError> {
        if let Some(Path { attr: to, flow }) = path {
            attr.av = Some(self.resolve(&to, flow)?);
        }
        self.engine(|engine| engine.modify_qp(qpn, &attr))
    }

    fn query_qp(&self, qpn: Qpn) -> Result<QpInfo, VerbsError> {
        let info = self.lock().engine.query_qp(qpn);
        info.ok_or_else(|| no_qp(qpn))
    }

    fn destroy_qp(&self, qpn: Qpn) -> Result<(), VerbsError> {
        Ok(self.command(|state| state.engine.destroy_qp(qpn))?)
    }

    fn counters(&self, qpn: Qpn) -> Result<Counters, VerbsError> {
        let counters = self.lock().engine.qp_counters(qpn);
        counters.ok_or_else(|| no_qp(qpn))
    }

    fn failure(&self, qpn: Qpn) -> Result<Option<Failure>, VerbsError> {
        Ok(self.lock().engine.failure(qpn))
    }

    fn attach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), VerbsError> {
        self.engine(|engine| engine.attach_mcast(qpn, group))
    }

    fn detach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), VerbsError> {
        self.engine(|engine| engine.detach_mcast(qpn, group))
    }

    fn create_ah(&self, pd: Pd, attr: &AhAttr) -> Result<Ah, VerbsError> {
        let av = self.resolve(attr, Flow::Datagrams)?;
        self.engine(|engine| engine.create_ah(pd, &av))
    }

    fn destroy_ah(&self, ah: Ah) -> Result<(), VerbsError> {
        Ok(self.command(|state| state.engine.destroy_ah(ah))?)
    }
}

impl<D: Datapath + Send> Backend for InProc<D> {
    fn fixed(&self) -> &Fixed {
        &self.fixed
    }

    fn motion(&self) -> Motion {
        self.motion
    }

    fn poll(&self, now: Instant) -> Result<Work, VerbsError> {
        self.turn(now)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.lock().engine.next_deadline()
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.bell.ring();
    }

    fn poll_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        let mut state = self.lock();
        let event = state.engine.poll_event();
        if event.is_none() {
            self.check_alive()?;
        }
        if !state.engine.has_event() && self.broken.get().is_none() {
            self.events.lower();
        }
        Ok(event)
    }

    fn wait_event(&self, timeout: Duration) -> Result<(), VerbsError> {
        self.wait(&self.events, timeout).map(drop)
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn wait_channel(&self, on: &Channel, timeout: Duration) -> Result<Option<Cq>, VerbsError> {
        let channel = on.local()?;
        if let Some(cq) = channel.take() {
            return Ok(Some(cq));
        }
        self.wait(channel.signal(), timeout)?;
        Ok(channel.take())
    }

    fn poll_cq(&self, cq: Cq, out: &mut [Completion]) -> Result<usize, VerbsError> {
        let found = self.lock().engine.poll_cq(cq, out);
        if found == 0 {
            self.check_alive()?;
        }
        Ok(found)
    }

    fn arm_cq(&self, cq: Cq, notify: Notify) -> Result<bool, VerbsError> {
        self.engine(|engine| engine.req_notify_cq(cq, notify))
    }

    fn post_send(&self, context: u32, qpn: Qpn, batch: &SendRecords) -> Result<(), BadWr> {
        self.check_postable(batch.records.first().map(|r| r.wr_id))?;
        self.command(|state| {
            for (index, record) in batch.records.iter().enumerate() {
                let posted = post_one(&mut state.engine, context, qpn, batch, record);
                posted.map_err(|error| BadWr::new(index, record.wr_id, error))?;
            }
            Ok(())
        })
    }

    fn post_recv(&self, context: u32, qpn: Qpn, batch: &RecvRecords) -> Result<(), BadWr> {
        self.post_recvs(context, batch, |engine, wr| engine.post_recv(qpn, wr))
    }

    fn post_srq_recv(&self, context: u32, srq: Srq, batch: &RecvRecords) -> Result<(), BadWr> {
        self.post_recvs(context, batch, |engine, wr| engine.post_srq_recv(srq, wr))
    }

    fn sends_posted(&self, qpn: Qpn) -> u32 {
        self.lock().engine.sends_posted(qpn).unwrap_or(0)
    }
}

/// The time by the engine's clock.
pub(super) fn now() -> Instant {
    clock::now()
}
