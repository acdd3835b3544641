//! The backend that is an engine in another process, the daemon.
//!
//! Posting and polling touch memory that both share and make no system call while the daemon is
//! awake; everything else is a question to the daemon. What can be refused at once is refused here
//! (`PostRules`); the daemon checks again, since it does not believe this side.
//!
//! When the daemon dies, or closes the session, what was posted and not completed is flushed, the
//! event [`Event::DeviceFatal`] comes, and everybody who waits wakes.

mod calls;
mod cq;
mod gate;
mod queue;
mod session;

use std::collections::HashMap;
use std::hash::Hash;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use xroce_abi::event;
use xroce_api::Request;
use xroce_api::clock;
use xroce_api::message::{Opened, Welcome};
use xroce_api::{Ah, AsyncEvent, Source};
use xroce_control::layout;
use xroce_control::socket;
use xroce_proto::memory::Pd;
use xroce_proto::time::Instant;
use xroce_proto::wc::{Completion, Cq, Event, Srq};
use xroce_shm::{Consumer, Piece, Region};
use xroce_wire::newtypes::Qpn;

use super::Fixed;
use crate::error::VerbsError;
pub(crate) use cq::RemoteChannel;
use cq::RemoteCq;
use gate::Gate;
use queue::{RemoteQp, RemoteSrq};
use session::Session;

/// Objects by handle.
type Table<K, V> = RwLock<HashMap<K, V>>;

fn read<K, V>(table: &Table<K, V>) -> RwLockReadGuard<'_, HashMap<K, V>> {
    table.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<K, V>(table: &Table<K, V>) -> RwLockWriteGuard<'_, HashMap<K, V>> {
    table.write().unwrap_or_else(PoisonError::into_inner)
}

fn find<K: Eq + Hash, V: Clone>(table: &Table<K, V>, key: &K) -> Option<V> {
    read(table).get(key).cloned()
}

/// Which queue pairs complete where.
#[derive(Debug)]
struct QpSeat {
    qp: Arc<RemoteQp>,
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
}

/// A device of the daemon.
#[derive(Debug)]
pub(crate) struct Remote {
    fixed: Fixed,
    gate: Arc<Gate>,
    session: Arc<Session>,
    watch: Mutex<Option<JoinHandle<()>>>,
    events: Mutex<Consumer>,
    event_pipe: OwnedFd,
    /// The end was told as an event.
    end_told: AtomicBool,
    qps: Table<Qpn, Arc<QpSeat>>,
    /// Counts what is taken out of `qps`, so that a remembered entry is known to be old.
    qps_gone: AtomicU64,
    cqs: Table<Cq, (Arc<RemoteCq>, Arc<RemoteChannel>)>,
    srqs: Table<Srq, Arc<RemoteSrq>>,
    ahs: Table<Ah, Pd>,
}

/// What a reply brought is not what it should be.
fn odd(gate: &Gate, what: impl std::fmt::Display) -> VerbsError {
    gate.lose(format!("the daemon answered something odd: {what}"))
}

/// Maps the memory of a ring that came with a reply.
fn map(gate: &Gate, fds: Vec<OwnedFd>, len: u64) -> Result<Region, VerbsError> {
    let [fd] = <[OwnedFd; 1]>::try_from(fds).map_err(|fds| odd(gate, fds.len()))?;
    let piece = Piece { fd, offset: 0, len };
    Region::from_pieces(vec![piece]).map_err(|e| odd(gate, e))
}

impl Remote {
    /// Attaches to the daemon that listens at `path` and opens a device of it.
    pub(crate) fn attach(path: &FilePath, device: Option<&str>) -> Result<Self, VerbsError> {
        let socket = socket::connect_to(path).map_err(|source| VerbsError::Attach {
            socket: path.to_owned(),
            source,
        })?;
        let gate = Arc::new(Gate::new(socket)?);
        let program = std::env::args_os().next().unwrap_or_default();
        let program = FilePath::new(&program).file_name().unwrap_or_default();
        let program = program.to_string_lossy().chars().take(64).collect();
        let _: Welcome = gate.call(&Request::Hello { program })?;
        let device = device.map(str::to_owned);
        let (opened, fds): (Opened, _) = gate.call_with(&Request::Open { device }, &[])?;
        gate.call_device(&opened.device);
        let came = <[OwnedFd; 3]>::try_from(fds).map_err(|fds| odd(&gate, fds.len()))?;
        let [file, kick, event_pipe] = came;
        let bytes = layout::session_bytes().map_err(|e| odd(&gate, e))?;
        let memory = map(&gate, vec![file], bytes)?;
        let session = Session::new(&memory, kick, Arc::clone(&gate)).map_err(|e| odd(&gate, e))?;
        let geometry = layout::events().map_err(|e| odd(&gate, e))?;
        let events = Consumer::new(&memory, layout::EVENTS, geometry);
        let events = Mutex::new(events.map_err(|e| odd(&gate, e))?);
        let watch = Mutex::new(Some(gate::start_watch(&gate)?));
        let fixed = Fixed {
            name: format!("{} (daemon: {})", opened.device, opened.port),
            ethernet: opened.ethernet,
            link_mtu: opened.link_mtu,
            path_mtu: opened.path_mtu,
            limits: Some(opened.limits),
        };
        Ok(Self {
            fixed,
            gate,
            session: Arc::new(session),
            watch,
            events,
            event_pipe,
            end_told: AtomicBool::new(false),
            qps: Table::default(),
            qps_gone: AtomicU64::new(0),
            cqs: Table::default(),
            srqs: Table::default(),
            ahs: Table::default(),
        })
    }

    fn events(&self) -> MutexGuard<'_, Consumer> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next event in the ring.
    fn next_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        let mut entry = [0; event::LEN];
        let taken = self.events().take(&mut entry);
        if !taken.map_err(|e| odd(&self.gate, e))? {
            return Ok(None);
        }
        let (source, event) = event::decode(&entry).map_err(|e| odd(&self.gate, e))?;
        let source = match source {
            event::Source::Port => Source::Port,
            event::Source::Qp(qpn) => Source::Qp(qpn),
            event::Source::Cq(cq) => Source::Cq(cq),
            event::Source::Srq(srq) => Source::Srq(srq),
        };
        if event == Event::DeviceFatal {
            self.end_told.store(true, Ordering::Release);
        }
        Ok(Some(AsyncEvent { source, event }))
    }

    /// Takes what has rung for events. Look for events afterwards: one that comes meanwhile is there
    /// before it rings.
    fn quiet_events(&self) {
        let mut bytes = [0u8; 64];
        while rustix::io::read(&self.event_pipe, &mut bytes).is_ok_and(|n| n == bytes.len()) {}
    }

    /// The next event, and at the very end that it is the end.
    fn take_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        if let Some(event) = self.next_event()? {
            return Ok(Some(event));
        }
        self.quiet_events();
        if let Some(event) = self.next_event()? {
            return Ok(Some(event));
        }
        if self.gate.is_broken() && !self.end_told.swap(true, Ordering::AcqRel) {
            return Ok(Some(AsyncEvent::port(Event::DeviceFatal)));
        }
        self.gate.check_alive().map(|()| None)
    }

    /// Sleeps until `fd` is readable, the daemon is gone, or it is `end`; false: it is.
    fn sleep(&self, fd: &impl AsFd, end: Option<Instant>) -> Result<bool, VerbsError> {
        let left = end.map(|end| end.since(clock::now()).as_nanos());
        if left == Some(0) {
            return Ok(false);
        }
        let timeout = left.and_then(|ns| Timespec::try_from(Duration::from_nanos(ns)).ok());
        let gone = self.gate.gone_fd();
        let mut fds = [
            PollFd::new(fd, PollFlags::IN),
            PollFd::from_borrowed_fd(gone, PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(true),
            Err(e) => Err(VerbsError::system("poll")(e.into())),
        }
    }

    /// Completions of a queue.
    fn take_completions(&self, cq: Cq, out: &mut [Completion]) -> Result<usize, VerbsError> {
        let Some((queue, _)) = find(&self.cqs, &cq) else {
            return self.gate.check_alive().map(|()| 0);
        };
        let mut last: Option<Arc<QpSeat>> = None;
        let gone = self.qps_gone.load(Ordering::Acquire);
        let each = |wc: &Completion| {
            let known = last.as_ref().filter(|seat| seat.qp.qpn == wc.qpn);
            let known = known.filter(|_| self.qps_gone.load(Ordering::Relaxed) == gone);
            let seat = match known {
                Some(seat) => Some(Arc::clone(seat)),
                None => find(&self.qps, &wc.qpn),
            };
            if let Some(seat) = &seat {
                seat.qp.retire(wc);
            }
            last = seat;
        };
        let found = queue.poll(out, each, |flushed| {
            if self.gate.is_broken() {
                for seat in read(&self.qps).values() {
                    let (sends, recvs) = (seat.send_cq == cq, seat.recv_cq == cq);
                    seat.qp.flush(sends, recvs, &mut |wc| flushed.push_back(wc));
                }
            }
        });
        let found = found.map_err(|nonsense| odd(&self.gate, nonsense))?;
        if found == 0 {
            self.gate.check_alive()?;
        }
        Ok(found)
    }
}

/// `None`: never.
fn end_of(timeout: Duration) -> Option<Instant> {
    let ns = u64::try_from(timeout.as_nanos()).ok()?;
    let end = clock::now().as_nanos().checked_add(ns)?;
    Some(Instant::from_nanos(end))
}
