//! Receiving: the fill ring and the receive ring.
//!
//! A chunk for receiving is at any time either with the kernel (fill ring, being written, receive
//! ring) or in the batch here. It never leaves this file, so there is nothing to leak: the batch
//! goes back to the fill ring as a whole, before the next is taken.

use std::os::fd::{AsRawFd, RawFd};

use xsk_rs::{FillQueue, FrameDesc, RxQueue};

/// Chunks taken from the ring at a time.
pub(super) const BATCH: usize = 64;

/// The receiving half of a port.
#[derive(Debug)]
pub(super) struct Rx {
    ring: RxQueue,
    fill: FillQueue,
    /// The first `held` were received and not given back yet.
    batch: Box<[FrameDesc]>,
    held: usize,
}

/// A received chunk, for as long as the batch is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// Where its data starts in the memory.
    pub(super) addr: usize,
    /// Bytes of data.
    pub(super) len: usize,
    /// The frame goes on in the next chunk.
    pub(super) more: bool,
}

impl Rx {
    /// Gives all of `chunks` to the kernel. `None` if the fill ring is smaller.
    pub(super) fn new(ring: RxQueue, mut fill: FillQueue, chunks: &[FrameDesc]) -> Option<Self> {
        // SAFETY: the chunks belong to the UMEM of the ring; the caller hands them over, they
        // were never used before.
        let given = unsafe { fill.produce(chunks) };
        (given == chunks.len()).then(|| Self {
            ring,
            fill,
            batch: vec![FrameDesc::default(); BATCH].into(),
            held: 0,
        })
    }

    /// Takes up to `max` (at most [`BATCH`]) received chunks from the ring, after giving back
    /// those still held. Returns how many.
    pub(super) fn receive(&mut self, max: usize) -> usize {
        if self.held != 0 {
            self.refill();
            if self.held != 0 {
                return 0;
            }
        }
        let room = max.min(self.batch.len());
        let free = self.batch.get_mut(..room).unwrap_or_default();
        // SAFETY: every descriptor the kernel puts into this ring is of the UMEM of the ring.
        self.held = unsafe { self.ring.consume(free) };
        self.held
    }

    /// The chunks taken by the last [`Rx::receive`].
    pub(super) fn held(&self) -> impl Iterator<Item = Chunk> {
        self.batch.iter().take(self.held).map(|desc| Chunk {
            addr: desc.addr(),
            len: desc.lengths().data(),
            more: desc.has_more_frames(),
        })
    }

    /// Gives the chunks held back to the kernel; whether the kernel wants to be woken for them.
    pub(super) fn refill(&mut self) -> bool {
        let held = self.batch.get(..self.held).unwrap_or_default();
        // SAFETY: these chunks were received and are owned by the batch; once the ring has taken
        // them `held` is 0, so none is given twice.
        let given = unsafe { self.fill.produce(held) };
        // All or none; the ring is large enough for all, but if not they stay here.
        self.held -= given;
        self.fill.needs_wakeup()
    }

    /// Number of the socket, valid while `self` lives.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.ring.fd().as_raw_fd()
    }

    /// Counters of the kernel: dropped for want of a chunk or of room in the ring, and refused
    /// for sending.
    pub(super) fn kernel_drops(&self) -> (u64, u64) {
        match self.ring.fd().xdp_statistics() {
            Ok(s) => (s.rx_dropped() + s.rx_ring_full(), s.tx_invalid_descs()),
            Err(_) => (0, 0),
        }
    }
}
