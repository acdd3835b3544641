//! `hop.bpf.c`: a learning switch with a phantom queue at each egress port.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Error, MapCore, MapFlags, MapHandle, Result};

use crate::skeletons::hop::HopSkelBuilder;

/// Ports of a hop, at most.
pub const MAX_PORTS: u32 = 64;
/// Classes of backlog that frames are counted by: of equal width, the last for a full queue.
pub const BUCKETS: usize = 128;
/// 64-bit words of `struct queue` before the classes, the lock and its padding being the first.
const WORDS_BEFORE: usize = 10;

/// What a phantom queue does, in bytes on the wire (24 more than an Ethernet frame has).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueConfig {
    /// Bytes per second that drain; 0: nothing is queued.
    pub rate: u64,
    /// Bytes that fit.
    pub limit: u64,
    /// Backlog above which frames are marked with a probability that rises from 0, in bytes.
    pub kmin: u64,
    /// Backlog above which all are marked, in bytes.
    pub kmax: u64,
    /// The probability at `kmax`, of a million.
    pub pmax: u32,
    /// Frames dropped at random, of a million.
    pub loss: u32,
}

/// What has gone through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// Bytes it would hold when the last frame came.
    pub backlog: u64,
    /// Frames forwarded.
    pub frames: u64,
    /// Bytes forwarded, on the wire.
    pub bytes: u64,
    /// Frames forwarded with CE because of this queue.
    pub marked: u64,
    /// Frames dropped because they did not fit.
    pub overflowed: u64,
    /// Frames dropped at random.
    pub lost: u64,
    /// Largest backlog, in bytes.
    pub deepest: u64,
    /// Frames by the backlog they found, in units of limit / ([`BUCKETS`] - 1).
    pub seen: [u64; BUCKETS],
}

/// The loaded program and its maps.
#[derive(Debug)]
pub struct HopProgram {
    program: OwnedFd,
    ports: MapHandle,
    port_of: MapHandle,
    configs: MapHandle,
    queues: MapHandle,
}

impl HopProgram {
    /// Loads the program and creates its maps; attaches nothing.
    ///
    /// # Errors
    /// The kernel refuses: no CAP_BPF/CAP_NET_ADMIN (`PermissionDenied`), or a kernel without
    /// broadcasts by redirection (before 5.14) or multi-buffer XDP (before 5.18).
    pub fn load() -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let loaded = HopSkelBuilder::default().open(&mut storage)?.load()?;
        // Only descriptors are kept: the skeleton borrows `storage` and ends here.
        Ok(Self {
            program: loaded.progs.xroce_hop.as_fd().try_clone_to_owned()?,
            ports: MapHandle::try_from(&loaded.maps.ports)?,
            port_of: MapHandle::try_from(&loaded.maps.port_of)?,
            configs: MapHandle::try_from(&loaded.maps.configs)?,
            queues: MapHandle::try_from(&loaded.maps.queues)?,
        })
    }

    /// The program, for attaching it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Makes the interface with this index port `port`.
    ///
    /// # Errors
    /// `port` is not below [`MAX_PORTS`], or the interface cannot be redirected to.
    pub fn set_port(&self, port: u32, ifindex: u32) -> Result<()> {
        self.ports
            .update(&port.to_ne_bytes(), &ifindex.to_ne_bytes(), MapFlags::ANY)?;
        self.port_of
            .update(&ifindex.to_ne_bytes(), &port.to_ne_bytes(), MapFlags::ANY)
    }

    /// Sets the queue towards `port`, empties it and begins to count anew.
    ///
    /// # Errors
    /// `port` is not below [`MAX_PORTS`].
    pub fn set_queue(&self, port: u32, config: &QueueConfig) -> Result<()> {
        // The order of `struct queue_config`.
        let mut value = Vec::with_capacity(40);
        for word in [config.rate, config.limit, config.kmin, config.kmax] {
            value.extend_from_slice(&word.to_ne_bytes());
        }
        for word in [config.pmax, config.loss] {
            value.extend_from_slice(&word.to_ne_bytes());
        }
        self.configs
            .update(&port.to_ne_bytes(), &value, MapFlags::ANY)?;
        let empty = [0; 8 * (WORDS_BEFORE + BUCKETS)];
        // LOCK: not in the middle of a frame.
        self.queues
            .update(&port.to_ne_bytes(), &empty, MapFlags::LOCK)
    }

    /// What has gone to `port` since [`HopProgram::set_queue`].
    ///
    /// # Errors
    /// `port` is not below [`MAX_PORTS`].
    pub fn queue(&self, port: u32) -> Result<QueueState> {
        let value = self
            .queues
            .lookup(&port.to_ne_bytes(), MapFlags::LOCK)?
            .unwrap_or_default();
        let words: Vec<u64> = value
            .as_chunks()
            .0
            .iter()
            .map(|w| u64::from_ne_bytes(*w))
            .collect();
        // The order of `struct queue`.
        let [
            _,
            backlog,
            _,
            _,
            frames,
            bytes,
            marked,
            overflowed,
            lost,
            deepest,
            seen @ ..,
        ] = words.as_slice()
        else {
            return Err(Error::from_raw_os_error(22));
        };
        let seen = seen.try_into().map_err(|_| Error::from_raw_os_error(22))?;
        Ok(QueueState {
            backlog: *backlog,
            frames: *frames,
            bytes: *bytes,
            marked: *marked,
            overflowed: *overflowed,
            lost: *lost,
            deepest: *deepest,
            seen,
        })
    }
}
