//! The queue pairs and the memory of one conversation.

mod counted;

use std::hash::{BuildHasher, Hasher, RandomState};

use anyhow::{Context, Result, anyhow, bail};
use xroce_api::{EngineStats, Mr, PollMode, PortStats};
use xroce_proto::counters::Counters;
use xroce_proto::memory::Access;
use xroce_proto::params::RD_ATOMIC_MAX;
use xroce_proto::qp::{QpAttr, QpInit, QpState};
use xroce_proto::rtt::Histogram;
use xroce_proto::time::{Duration, Instant};
use xroce_proto::wc::{Completion, Cq, WcStatus};
use xroce_proto::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_shm::Region;
use xroce_wire::newtypes::{PathMtu, Psn, Qpn, RKey, Va};
use xroce_wire::syndrome::RnrTimer;

use crate::perf::args::Poll;
use crate::perf::device::Device;
use crate::perf::device::node::REAP;
use crate::perf::peer::message::{MemoryData, QpData, RemoteMemory, RemoteQp, check_qps};
use crate::perf::plan::{Op, Plan, Repair, Shape, Step};
use crate::perf::report::failed::QpFailed;

pub(crate) use counted::NaksReceived;

/// `wr_id` of a receive has this bit.
const RECV_BIT: u64 = 1 << 63;
/// Position of the index of the queue pair in a `wr_id`; the message number is below.
const QP_SHIFT: u32 = 48;

/// Bytes that READs of one queue pair ask for at a time, if they are many: half a receive ring.
const READ_BYTES: u32 = 1 << 20;

/// Without work for so long, a core that is to be shared is offered to others.
const SPIN: Duration = Duration::from_micros(5);
/// A peer without a receive is to wait 0.64 ms.
const RNR_TIMER: u8 = 12;

/// What a peer of our own may do with our memory.
pub(crate) const FULL_ACCESS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

/// Half of the memory of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Area {
    /// Where messages start: the source of SEND, WRITE and READ.
    Source,
    /// Where messages end.
    Target,
}

/// A finished work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// Index of the queue pair.
    pub qp: u32,
    /// Number given when it was posted.
    pub n: u64,
    /// Whether it was a receive.
    pub received: bool,
    /// Bytes, of a receive.
    pub len: u32,
}

/// The queue pairs and the memory of one conversation. Dropping it frees them.
pub(crate) struct Flow<'n, D: Device> {
    device: &'n mut D,
    region: Region,
    mr: Mr,
    /// Bytes of one area of one queue pair.
    area: u64,
    remote: Option<Remote<D::Path>>,
    /// All of the peer's memory, if it is laid out as ours.
    peer_memory: Option<RemoteMemory>,
    cq: Option<Cq>,
    qps: Vec<Qpn>,
    shape: Shape,
    /// What engine and port had counted when the conversation began, and the step.
    at_first: (EngineStats, PortStats),
    at_start: (EngineStats, PortStats),
    poll: Poll,
    /// Whether the core is offered to others without sleeping, and when there was work last.
    offers: bool,
    worked: Instant,
    /// What the queue pairs of steps that are over counted.
    past: Counters,
    /// Their round-trip times, if the device hands them out.
    rtt: Option<Histogram>,
    /// Packets accepted so far, and when that was looked at.
    accepted: (u64, Instant),
}

/// Where the peer is.
#[derive(Debug)]
struct Remote<P> {
    /// Of each queue pair.
    areas: Vec<RemoteAreas>,
    path_mtu: PathMtu,
    path: P,
}

/// Memory of the peer that belongs to one queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RemoteAreas {
    /// Where READs start.
    pub source: Va,
    /// Where WRITEs end.
    pub target: Va,
    /// Key of both.
    pub rkey: RKey,
}

/// Attributes of queue pairs that the peer has a say in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Attributes {
    /// READs of the peer answered at a time.
    pub reads_in: u8,
    /// READs of this side outstanding at a time.
    pub reads_out: u8,
    /// RNR retries; 7 is for ever.
    pub rnr_retry: u8,
    /// Whether this side sends; otherwise its queue pairs stay in RTR.
    pub sends: bool,
    /// How losses are repaired; never selectively unless the peer does too.
    pub repair: Repair,
}

impl Attributes {
    /// For messages of `size` bytes: as many READs as there can be, and of large ones so many that
    /// their answers fit into the rings of this side.
    pub(crate) fn for_size(size: u32, repair: Repair) -> Self {
        let fitting = READ_BYTES / size.max(1);
        let most = u32::from(RD_ATOMIC_MAX);
        Self {
            reads_in: RD_ATOMIC_MAX,
            reads_out: u8::try_from(fitting.clamp(16, most)).unwrap_or(RD_ATOMIC_MAX),
            rnr_retry: 6,
            sends: true,
            repair,
        }
    }
}

impl<'n, D: Device> Flow<'n, D> {
    /// Registers the memory that `plan` needs.
    ///
    /// # Errors
    /// There is not so much memory.
    pub(crate) fn new(device: &'n mut D, plan: &Plan, poll: Poll) -> Result<Self> {
        Self::with_bytes(device, plan.memory(), poll)
    }

    /// Registers two areas of so many bytes for each of so many queue pairs.
    ///
    /// # Errors
    /// There is not so much memory.
    pub(crate) fn with_memory(device: &'n mut D, area: u64, qps: u32, poll: Poll) -> Result<Self> {
        let mut flow = Self::with_bytes(device, 2 * area * u64::from(qps), poll)?;
        flow.area = area;
        Ok(flow)
    }

    fn with_bytes(device: &'n mut D, bytes: u64, poll: Poll) -> Result<Self> {
        let len = usize::try_from(bytes).context("buffers larger than the address space")?;
        let region = Region::anonymous(len)
            .with_context(|| format!("cannot get {} MiB of memory for buffers", bytes >> 20))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = device.reg_mr(&region, access)?;
        device.set_poll(poll.into());
        let at_first = device.stats()?;
        Ok(Self {
            device,
            region,
            mr,
            area: 0,
            remote: None,
            peer_memory: None,
            cq: None,
            qps: Vec::new(),
            shape: Shape {
                qps: 0,
                depth: 0,
                receives: 0,
                slots: 1,
                stride: 1,
                round: None,
            },
            at_first,
            at_start: at_first,
            poll,
            offers: false,
            worked: Instant::from_nanos(0),
            past: Counters::default(),
            rtt: None,
            accepted: (0, Instant::from_nanos(0)),
        })
    }

    /// What the peer needs to know to access the memory.
    pub(crate) fn memory(&self) -> MemoryData {
        MemoryData {
            va: self.mr.va.value(),
            len: self.mr.len,
            rkey: self.mr.rkey.value(),
        }
    }

    /// Says where a peer is whose memory is laid out as ours; before the first step.
    pub(crate) fn set_remote(&mut self, memory: RemoteMemory, mtu: PathMtu, path: D::Path) {
        self.set_peer(Vec::new(), mtu, path);
        self.peer_memory = Some(memory);
    }

    /// Divides the memory into the areas that a step needs, at both sides.
    pub(crate) fn divide(&mut self, shape: Shape) {
        self.area = shape.area();
        if let (Some(remote), Some(memory)) = (&mut self.remote, self.peer_memory) {
            let areas = (0..u64::from(shape.qps)).map(|qp| {
                let at = qp * 2 * self.area;
                RemoteAreas {
                    source: memory.va.wrapping_add(at),
                    target: memory.va.wrapping_add(at + self.area),
                    rkey: memory.rkey,
                }
            });
            remote.areas = areas.collect();
        }
    }

    /// Whether to stay awake from now on, whatever the command line says: who has to act at a time
    /// cannot sleep until a packet comes. A core that is to be shared is still offered to others.
    pub(crate) fn stay_awake(&mut self, awake: bool) {
        let mode = if awake {
            PollMode::Busy
        } else {
            self.poll.into()
        };
        self.device.set_poll(mode);
        self.offers = awake && self.poll == Poll::Adaptive;
    }

    /// Says where the peer is, and its memory for each queue pair; before connecting.
    pub(crate) fn set_peer(&mut self, areas: Vec<RemoteAreas>, mtu: PathMtu, path: D::Path) {
        self.remote = Some(Remote {
            areas,
            path_mtu: mtu,
            path,
        });
    }

    /// The device.
    pub(crate) fn device(&self) -> &D {
        self.device
    }

    /// Address of an area, for a peer that is told each one.
    pub(crate) fn address(&self, area: Area, qp: u32) -> u64 {
        self.mr.va.wrapping_add(self.offset(area, qp, 0)).value()
    }

    /// Makes the queue pairs of a step, in INIT: receives may be posted. The peer may do with the
    /// memory what `access` says.
    ///
    /// # Errors
    /// The engine refuses.
    pub(crate) fn start_step(&mut self, shape: Shape, access: Access) -> Result<Vec<QpData>> {
        self.end_step();
        self.shape = shape;
        let (sends, receives) = (shape.depth + 1, shape.receives + 1);
        let cq = self.device.cq(shape.qps * (sends + receives))?;
        self.cq = Some(cq);
        let init = QpInit {
            max_send_wr: sends,
            max_recv_wr: receives,
            ..QpInit::rc(self.device.pd(), cq, cq)
        };
        for _ in 0..shape.qps {
            let qpn = self.device.create_qp(&init)?;
            self.qps.push(qpn);
            self.device.modify_qp(qpn, &QpAttr::init(access))?;
        }
        self.at_start = self.device.stats()?;
        // Unguessable, so that packets of an earlier connection do not fit by chance.
        let random = RandomState::new();
        let psn = |qpn: Qpn| {
            let mut hasher = random.build_hasher();
            hasher.write_u32(qpn.value());
            u32::try_from(hasher.finish() & 0x00ff_ffff).unwrap_or(0)
        };
        Ok(self
            .qps
            .iter()
            .map(|&q| QpData {
                qpn: q.value(),
                psn: psn(q),
            })
            .collect())
    }

    /// Connects the queue pairs of the step with those of the peer.
    ///
    /// # Errors
    /// The peer's numbers are impossible, or the engine refuses.
    pub(crate) fn connect_step(
        &mut self,
        own: &[QpData],
        theirs: &[QpData],
        attributes: Attributes,
    ) -> Result<()> {
        let theirs: Vec<RemoteQp> = check_qps(theirs, self.shape.qps)?;
        let Some(remote) = &self.remote else {
            bail!("no peer yet")
        };
        for ((&qpn, own), theirs) in self.qps.iter().zip(own).zip(&theirs) {
            let rtr = QpAttr {
                path_mtu: Some(remote.path_mtu),
                dest_qpn: Some(theirs.qpn),
                rq_psn: Some(theirs.psn),
                max_dest_rd_atomic: Some(attributes.reads_in),
                min_rnr_timer: RnrTimer::new(RNR_TIMER),
                reliability: Some(attributes.repair.into()),
                ..QpAttr::state(QpState::Rtr)
            };
            self.device.connect_qp(qpn, theirs.qpn, remote.path, rtr)?;
            if attributes.sends {
                let rts = QpAttr {
                    max_rd_atomic: Some(attributes.reads_out),
                    rnr_retry: Some(attributes.rnr_retry),
                    ..QpAttr::rts(Psn::new(own.psn))
                };
                let rts = self.device.congestion().apply(rts);
                self.device.modify_qp(qpn, &rts)?;
            }
        }
        // Receives that were posted are there before the peer hears of the queue pairs.
        self.device.ring()
    }

    /// Destroys the queue pairs of the step.
    pub(crate) fn end_step(&mut self) {
        for qpn in self.qps.drain(..) {
            if let Some(c) = self.device.counters(qpn) {
                self.past += c;
            }
            if let Some(rtt) = self.device.rtt(qpn) {
                self.rtt.get_or_insert_default().merge(rtt);
            }
            self.device.destroy_qp(qpn);
        }
    }

    /// Has the device move once; in adaptive mode sleeps a little if there was nothing to do.
    ///
    /// # Errors
    /// The device failed.
    #[inline]
    pub(crate) fn turn(&mut self, now: Instant) -> Result<()> {
        if self.device.turn(now)? {
            self.worked = now;
        } else if self.offers && now.since(self.worked) >= SPIN {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Shows the device what was posted, where somebody is told of it before the next turn.
    ///
    /// # Errors
    /// The device refuses it.
    pub(crate) fn ring(&mut self) -> Result<()> {
        self.device.ring()
    }

    fn offset(&self, area: Area, qp: u32, n: u64) -> u64 {
        let half = if area == Area::Source { 0 } else { self.area };
        u64::from(qp) * 2 * self.area + half + self.shape.offset(n)
    }

    fn sge(&self, area: Area, qp: u32, n: u64, len: u32) -> Sge {
        let va = self.mr.va.wrapping_add(self.offset(area, qp, n));
        Sge {
            lkey: self.mr.lkey,
            va,
            len,
        }
    }

    /// Posts message `n` of `step` on queue pair `qp`, from (READ: to) the slot of `area`.
    ///
    /// # Errors
    /// The queue pair has failed, or a limit of this program is wrong.
    #[inline]
    pub(crate) fn post(
        &mut self,
        step: Step,
        area: Area,
        qp: u32,
        n: u64,
        signaled: bool,
    ) -> Result<()> {
        let (Some(&qpn), Some(remote)) = (self.qps.get(qp as usize), &self.remote) else {
            bail!("no queue pair {qp}");
        };
        let Some(&RemoteAreas {
            source,
            target,
            rkey,
        }) = remote.areas.get(qp as usize)
        else {
            bail!("no memory of the peer for queue pair {qp}");
        };
        let at = |area: Va| area.wrapping_add(self.shape.offset(n));
        let op = match step.op {
            Op::Send => SendOp::Send,
            Op::Write => SendOp::Write {
                va: at(target),
                rkey,
            },
            Op::Read => SendOp::Read {
                va: at(source),
                rkey,
            },
        };
        let flags = if signaled {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let sges = [self.sge(area, qp, n, step.size)];
        let wr_id = u64::from(qp) << QP_SHIFT | n;
        let wr = SendWr {
            wr_id,
            op,
            flags,
            data: Data::Sges(&sges),
        };
        self.device
            .post_send(qpn, &wr)
            .map_err(|e| self.explain(qpn, e))
    }

    /// Posts a receive for message `n` on queue pair `qp`, into the target area.
    ///
    /// # Errors
    /// As [`Flow::post`].
    #[inline]
    pub(crate) fn post_recv(&mut self, qp: u32, n: u64, size: u32) -> Result<()> {
        let Some(&qpn) = self.qps.get(qp as usize) else {
            bail!("no queue pair {qp}")
        };
        let sges = [self.sge(Area::Target, qp, n, size)];
        let wr = RecvWr {
            wr_id: RECV_BIT | u64::from(qp) << QP_SHIFT | n,
            sges: &sges,
        };
        self.device
            .post_recv(qpn, &wr)
            .map_err(|e| self.explain(qpn, e))
    }

    /// Appends what has completed to `done`.
    ///
    /// # Errors
    /// A work request failed; the error says why.
    #[inline]
    pub(crate) fn reap(&mut self, done: &mut Vec<Done>) -> Result<()> {
        let Some(cq) = self.cq else { return Ok(()) };
        loop {
            let mut batch = [Completion::EMPTY; REAP];
            let n = self.device.poll_cq(cq, &mut batch)?;
            for wc in batch.iter().take(n) {
                if wc.status != WcStatus::Success {
                    return Err(self.failed(wc));
                }
                done.push(Done {
                    qp: u32::try_from(wc.wr_id >> QP_SHIFT & 0x7fff).unwrap_or(u32::MAX),
                    n: wc.wr_id & ((1 << QP_SHIFT) - 1),
                    received: wc.wr_id & RECV_BIT != 0,
                    len: wc.byte_len,
                });
            }
            if n < REAP {
                return Ok(());
            }
        }
    }

    /// Messages from now on lie in so many slots, so many bytes apart. They fit into an area.
    pub(crate) fn use_slots(&mut self, slots: u32, stride: u32) {
        (self.shape.slots, self.shape.stride) = (slots, stride);
    }

    /// Writes the last byte of message 0 of `size` bytes on queue pair 0.
    #[inline]
    pub(crate) fn set_last_byte(&mut self, area: Area, size: u32, byte: u8) {
        let at = self.offset(area, 0, 0) + u64::from(size.saturating_sub(1));
        let inside = self.region.write_at(at, &[byte]);
        debug_assert!(inside.is_ok(), "slot outside the region");
    }

    /// Writes a message into its slot.
    pub(crate) fn fill(&mut self, area: Area, qp: u32, n: u64, bytes: &[u8]) {
        let inside = self.region.write_at(self.offset(area, qp, n), bytes);
        debug_assert!(inside.is_ok(), "slot outside the region");
    }

    /// Reads a message out of its slot.
    pub(crate) fn read(&self, area: Area, qp: u32, n: u64, bytes: &mut [u8]) {
        let inside = self.region.read_at(self.offset(area, qp, n), bytes);
        debug_assert!(inside.is_ok(), "slot outside the region");
    }

    /// The last byte of a message of `size` bytes.
    #[inline]
    pub(crate) fn last_byte(&self, area: Area, qp: u32, n: u64, size: u32) -> u8 {
        let at = self.offset(area, qp, n) + u64::from(size.saturating_sub(1));
        let mut byte = [0];
        let inside = self.region.read_at(at, &mut byte);
        debug_assert!(inside.is_ok(), "slot outside the region");
        byte[0]
    }

    /// What happened to the first queue pair that has failed, if one has: a responder fails
    /// without a completion.
    #[cold]
    pub(crate) fn failure(&self) -> Option<anyhow::Error> {
        let failures = self
            .qps
            .iter()
            .find_map(|&qpn| self.device.failure(qpn).ok().flatten());
        failures.map(|failure| QpFailed::new(failure).into())
    }

    #[cold]
    fn failed(&self, wc: &Completion) -> anyhow::Error {
        self.explain(wc.qpn, anyhow!("work completion {:?}", wc.status))
    }

    /// The device's explanation of what happened to a queue pair or to itself, or else `fallback`.
    #[cold]
    fn explain(&self, qpn: Qpn, fallback: anyhow::Error) -> anyhow::Error {
        match self.device.failure(qpn) {
            Ok(Some(failure)) => QpFailed::new(failure).into(),
            Err(broken) => broken,
            Ok(None) => fallback.context(format!("queue pair {:#x}", qpn.value())),
        }
    }
}

impl<D: Device> Drop for Flow<'_, D> {
    fn drop(&mut self) {
        self.end_step();
        self.device.dereg_mr(self.mr.lkey);
    }
}
