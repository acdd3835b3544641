//! One engine with its port, and the queue pairs and memory of one conversation on it.
//!
//! The only module of `perf` that calls the engine. Everything runs in the calling thread: the
//! engine moves when [`Flow::turn`] is called, and only then.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

use anyhow::{Context, Result, anyhow, bail};
use xroce_engine::{Engine, EngineConfig};
use xroce_net::datapath::Datapath;
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::time::Instant;
use xroce_proto::wc::{Completion, Cq, WcStatus};
use xroce_proto::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_shm::region::Region;
use xroce_wire::newtypes::{PathMtu, Psn, Qpn};
use xroce_wire::path::AddressVector;

use super::args::Poll;
use super::message::{MemoryData, QpData, RemoteMemory, RemoteQp, SideCounters};
use super::plan::{Op, Plan, Shape};

/// Completions taken from the queue at once.
const REAP: usize = 64;

/// `wr_id` of a receive has this bit.
const RECV_BIT: u64 = 1 << 63;
/// Position of the index of the queue pair in a `wr_id`; the message number is below.
const QP_SHIFT: u32 = 44;

/// One engine with its port.
pub(crate) struct Node<D: Datapath> {
    engine: Engine<D>,
    pd: Pd,
    local: IpAddr,
}

impl<D: Datapath> Node<D> {
    /// An engine on `port`, which has the address `local`.
    pub(crate) fn new(port: D, local: IpAddr, poll: Poll) -> Result<Self> {
        let mut engine = Engine::new(port, EngineConfig::default());
        let pd = engine.alloc_pd();
        Ok(Self { engine, pd, local })
    }

    /// RoCE address of this side.
    pub(crate) fn local(&self) -> IpAddr {
        self.local
    }

    /// IP MTU of the link in bytes.
    pub(crate) fn link_mtu(&self) -> usize {
        self.engine.port().caps().mtu
    }

    /// Name of the port, for messages to people.
    pub(crate) fn port_name(&self) -> &str {
        &self.engine.port().caps().name
    }
}

/// Half of the memory of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Area {
    /// Where messages start: the source of SEND, WRITE, and READ.
    Source,
    /// Where messages end.
    Target,
}

/// A slot of message memory; the same on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// Which half.
    pub area: Area,
    /// Index of the queue pair.
    pub qp: u32,
    /// Number of the message, from which the slot follows.
    pub n: u64,
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
pub(crate) struct Flow<'n, D: Datapath> {
    node: &'n mut Node<D>,
    region: Region,
    mr: Mr,
    /// Bytes of one area of one queue pair.
    area: u64,
    remote: Option<(RemoteMemory, PathMtu, AddressVector)>,
    step: Option<StepQueues>,
    idle: Idle,
}

/// What one step uses.
struct StepQueues {
    cq: Cq,
    qps: Vec<Qpn>,
    shape: Shape,
    icrc_errors_before: u64,
}

impl<'n, D: Datapath> Flow<'n, D> {
    /// Registers the memory that `plan` needs.
    ///
    /// # Errors
    /// There is not so much memory.
    pub(crate) fn new(node: &'n mut Node<D>, plan: &Plan, poll: Poll) -> Result<Self> {
        let area = plan.bytes_per_qp() / 2;
        let bytes = 2 * area * u64::from(plan.qps);
        let len = usize::try_from(bytes).context("buffers larger than the address space")?;
        let region = Region::anonymous(len)
            .with_context(|| format!("cannot get {} MiB of memory", bytes >> 20))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = node.engine.reg_mr(node.pd, region.clone(), access)?;
        Ok(Self { node, region, mr, area, remote: None, step: None, idle: Idle::new(poll) })
    }

    /// What the peer needs to know to access the memory.
    pub(crate) fn memory(&self) -> MemoryData {
        MemoryData { va: self.mr.va.value(), len: self.mr.len, rkey: self.mr.rkey.value() }
    }

    /// Says where the peer is; before the first step.
    pub(crate) fn set_remote(&mut self, memory: RemoteMemory, mtu: PathMtu, av: AddressVector) {
        self.remote = Some((memory, mtu, av));
    }
