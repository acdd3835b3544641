//! Queue pairs and shared receive queues of the daemon: rings to post to, and what was posted.
//!
//! What is posted is remembered until its completion is polled. So a queue that is full is known at
//! once, and when the daemon dies, everything it had not completed is flushed here.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xroce_abi::{BadEntry, ENTRY, recv, send};
use xroce_api::clock;
use xroce_proto::qp::QpAttr;
use xroce_proto::qp::rules::{self, PostRules};
use xroce_proto::srq::SrqAttr;
use xroce_proto::time::Duration;
use xroce_proto::wc::{Completion, WcOpcode, WcStatus};
use xroce_proto::wr::{PostError, RecvWr, SendFlags, SendOp, SendWr};
use xroce_shm::Producer;
use xroce_wire::newtypes::Qpn;

use super::session::Doorbell;
use crate::batch::WrError;

/// A ring that the daemon does not empty for so long is one it does not look at any more.
const PATIENCE: Duration = Duration::from_millis(5_000);

/// A work request that is not completed.
#[derive(Clone, Copy, Debug)]
struct Posted {
    wr_id: u64,
    opcode: WcOpcode,
    signaled: bool,
}

/// One direction of a queue.
#[derive(Debug)]
pub(super) struct Side {
    ring: Producer,
    rules: PostRules,
    posted: VecDeque<Posted>,
}

impl Side {
    pub(super) fn new(ring: Producer, rules: PostRules) -> Self {
        Self {
            ring,
            rules,
            posted: VecDeque::new(),
        }
    }

    fn len(&self) -> u32 {
        u32::try_from(self.posted.len()).unwrap_or(u32::MAX)
    }
}

/// Writes a work request of several entries; waits while the daemon makes room.
fn put(ring: &mut Producer, bell: &Doorbell, bytes: &[u8]) -> Result<(), WrError> {
    let (entries, _) = bytes.as_chunks::<ENTRY>();
    let wanted = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    if ring.room(wanted).map_err(corrupt)? < wanted {
        wait_for_room(ring, bell, wanted)?;
    }
    for entry in entries {
        ring.stage(entry).map_err(corrupt)?;
    }
    Ok(())
}

/// Shows the daemon what there is and waits: its ring is shorter than its queue.
#[cold]
fn wait_for_room(ring: &mut Producer, bell: &Doorbell, wanted: u32) -> Result<(), WrError> {
    ring.publish();
    let end = clock::now() + PATIENCE;
    loop {
        bell.ring();
        if ring.room(wanted).map_err(corrupt)? >= wanted {
            return Ok(());
        }
        bell.check_alive()?;
        if clock::now() > end {
            let reason = format!(
                "the daemon has taken nothing for {} ns",
                PATIENCE.as_nanos()
            );
            return Err(bell.device_error(reason));
        }
        std::thread::yield_now();
    }
}

fn corrupt(error: impl std::fmt::Display) -> WrError {
    WrError::Device {
        device: "of the daemon".to_owned(),
        reason: error.to_string(),
    }
}

/// Cannot be: what was checked before fits.
fn unencodable(error: BadEntry) -> WrError {
    corrupt(error)
}

const fn opcode_of(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
        SendOp::Flush { .. } => WcOpcode::Flush,
        SendOp::BindMw { .. } => WcOpcode::BindMw,
        SendOp::LocalInv { .. } => WcOpcode::LocalInv,
        _ => WcOpcode::Send,
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct RemoteSrq {
    pub(super) bell: Doorbell,
    ring: Mutex<(Producer, SrqAttr)>,
    /// Posted and not completed.
    posted: AtomicU32,
}

impl RemoteSrq {
    pub(super) fn new(bell: Doorbell, ring: Producer, attr: SrqAttr) -> Self {
        Self {
            bell,
            ring: Mutex::new((ring, attr)),
            posted: AtomicU32::new(0),
        }
    }

    fn ring(&self) -> MutexGuard<'_, (Producer, SrqAttr)> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After a change that succeeded.
    pub(super) fn note(&self, max_wr: Option<u32>) {
        if let Some(max_wr) = max_wr {
            self.ring().1.max_wr = max_wr;
        }
    }

    /// Posts receives; how many, and why not the next.
    pub(super) fn post<'a>(
        &self,
        wrs: impl Iterator<Item = Result<RecvWr<'a>, WrError>>,
    ) -> Result<(), (usize, WrError)> {
        let mut locked = self.ring();
        let (ring, attr) = &mut *locked;
        let mut result = Ok(());
        let mut bytes = [0; recv::ENTRIES_MAX * ENTRY];
        for (n, wr) in wrs.enumerate() {
            let put = wr.and_then(|wr| {
                let posted = self.posted.load(Ordering::Relaxed);
                rules::check_recv(&wr, posted, attr.max_wr, attr.max_sge).map_err(WrError::Post)?;
                let entries = recv::encode(&wr, &mut bytes).map_err(unencodable)?;
                let bytes = bytes.get(..entries * ENTRY).unwrap_or(&[]);
                put(ring, &self.bell, bytes)
            });
            if let Err(error) = put {
                result = Err((n, error));
                break;
            }
            self.posted.fetch_add(1, Ordering::Relaxed);
        }
        ring.publish();
        drop(locked);
        self.bell.ring();
        result
    }

    fn retire(&self) {
        let less = |n: u32| Some(n.saturating_sub(1));
        let _ = self
            .posted
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct RemoteQp {
    pub(super) qpn: Qpn,
    bell: Doorbell,
    send: Mutex<Side>,
    recv: Mutex<Option<Side>>,
    srq: Option<Arc<RemoteSrq>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RemoteQp {
    pub(super) fn new(
        qpn: Qpn,
        bell: Doorbell,
        rules: PostRules,
        send: Producer,
        recv: Option<Producer>,
        srq: Option<Arc<RemoteSrq>>,
    ) -> Self {
        Self {
            qpn,
            bell,
            send: Mutex::new(Side::new(send, rules.clone())),
            recv: Mutex::new(recv.map(|ring| Side::new(ring, rules))),
            srq,
        }
    }

    /// After a modify that succeeded.
    pub(super) fn note(&self, attr: &QpAttr) {
        let reset = attr.state == Some(xroce_proto::qp::QpState::Reset);
        let change = |side: &mut Side| {
            side.rules.note(attr);
            if reset {
                side.posted.clear();
            }
        };
        change(&mut lock(&self.send));
        if let Some(side) = &mut *lock(&self.recv) {
            change(side);
        }
    }

    pub(super) fn sends_posted(&self) -> u32 {
        lock(&self.send).len()
    }

    /// Posts sends; how many, and why not the next.
    pub(super) fn post_send<'a>(
        &self,
        count: usize,
        mut each: impl FnMut(
            usize,
            &mut dyn FnMut(&SendWr<'_>, Option<&send::Destination>) -> Result<(), WrError>,
        ) -> Result<(), WrError>
        + 'a,
    ) -> Result<(), (usize, WrError)> {
        let mut side = lock(&self.send);
        let mut result = Ok(());
        let mut bytes = [0; send::LEN_MAX];
        for n in 0..count {
            let posted = each(n, &mut |wr, to| {
                self.put_send(&mut side, wr, to, &mut bytes)
            });
            if let Err(error) = posted {
                result = Err((n, error));
                break;
            }
        }
        side.ring.publish();
        drop(side);
        self.bell.ring();
        result
    }

    #[inline]
    fn put_send(
        &self,
        side: &mut Side,
        wr: &SendWr<'_>,
        to: Option<&send::Destination>,
        bytes: &mut [u8; send::LEN_MAX],
    ) -> Result<(), WrError> {
        let posted = side.len();
        let allowed = side.rules.check_send(wr, to.is_some(), posted);
        allowed.map_err(WrError::Post)?;
        let entries = send::encode(wr, to, bytes).map_err(unencodable)?;
        let bytes = bytes.get(..entries * ENTRY).unwrap_or(&[]);
        put(&mut side.ring, &self.bell, bytes)?;
        side.posted.push_back(Posted {
            wr_id: wr.wr_id,
            opcode: opcode_of(&wr.op),
            signaled: wr.flags.contains(SendFlags::SIGNALED),
        });
        Ok(())
    }

    /// Posts receives; how many, and why not the next.
    pub(super) fn post_recv<'a>(
        &self,
        wrs: impl Iterator<Item = Result<RecvWr<'a>, WrError>>,
    ) -> Result<(), (usize, WrError)> {
        let mut locked = lock(&self.recv);
        let Some(side) = &mut *locked else {
            return Err((0, WrError::Post(PostError::HasSrq)));
        };
        let mut result = Ok(());
        let mut bytes = [0; recv::ENTRIES_MAX * ENTRY];
        for (n, wr) in wrs.enumerate() {
            let put = wr.and_then(|wr| {
                let allowed = side.rules.check_recv(&wr, side.len());
                allowed.map_err(WrError::Post)?;
                let entries = recv::encode(&wr, &mut bytes).map_err(unencodable)?;
                let bytes = bytes.get(..entries * ENTRY).unwrap_or(&[]);
                put(&mut side.ring, &self.bell, bytes)?;
                Ok(wr.wr_id)
            });
            match put {
                Ok(wr_id) => side.posted.push_back(Posted {
                    wr_id,
                    opcode: WcOpcode::Recv,
                    signaled: true,
                }),
                Err(error) => {
                    result = Err((n, error));
                    break;
                }
            }
        }
        side.ring.publish();
        drop(locked);
        self.bell.ring();
        result
    }

    /// A completion was taken: what it stands for is not posted any more.
    pub(super) fn retire(&self, wc: &Completion) {
        if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
            match (&self.srq, &mut *lock(&self.recv)) {
                (Some(srq), _) => srq.retire(),
                (None, Some(side)) => drop(side.posted.pop_front()),
                (None, None) => {}
            }
            return;
        }
        // Completes all before it that asked for no completion. One that failed completes though
        // it did not ask.
        let failed = wc.status != WcStatus::Success;
        let mut side = lock(&self.send);
        while let Some(posted) = side.posted.pop_front() {
            if posted.signaled || (failed && posted.wr_id == wc.wr_id) {
                break;
            }
        }
    }

    /// What the daemon will never complete, as flushed.
    pub(super) fn flush(&self, sends: bool, recvs: bool, each: &mut impl FnMut(Completion)) {
        let mut all = |side: &mut Side| {
            for posted in side.posted.drain(..) {
                each(Completion {
                    wr_id: posted.wr_id,
                    status: WcStatus::WrFlushErr,
                    opcode: posted.opcode,
                    qpn: self.qpn,
                    ..Completion::EMPTY
                });
            }
        };
        if sends {
            all(&mut lock(&self.send));
        }
        if recvs && let Some(side) = &mut *lock(&self.recv) {
            all(side);
        }
    }
}
