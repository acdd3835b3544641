//! Sending: the transmit ring and the completion ring.
//!
//! The chunks for sending form frames of one or two adjacent chunks. A frame is at any time in
//! exactly one of: the free stack, lent to the caller, the queue of committed frames, with the
//! kernel (transmit ring, device, completion ring). Its number travels between these, its
//! descriptors stay here.
//!
//! A frame of two chunks is lent as one slice that runs across the border between them. The
//! kernel wants each descriptor inside one chunk, and xsk-rs makes descriptors that start at the
//! data offset only, so what lies beyond the border is moved up by that offset on commit: 404
//! bytes for a packet of path MTU 4096, some 10 ns.

use xsk_rs::{CompQueue, FrameDesc, TxQueue};

use super::memory::{CHUNK, CHUNK_DATA, DATA_OFFSET, Memory};

/// Another descriptor of the same frame follows (XDP_PKT_CONTD).
const CONTINUED: u32 = 1;
/// Completions taken from the ring at a time.
const BATCH: usize = 64;

/// The sending half of a port.
#[derive(Debug)]
pub(super) struct Tx {
    ring: TxQueue,
    completions: CompQueue,
    /// Entries of the transmit ring.
    ring_size: u32,
    frames: Box<[Frame]>,
    /// Chunks per frame, 1 or 2.
    chunks: usize,
    /// Bytes lent.
    max_frame: usize,
    /// Address in the memory of the first chunk of frame 0.
    origin: usize,
    /// Numbers of free frames, the last used on top: its memory is still in the cache.
    free: Vec<u32>,
    /// The frame the caller writes to.
    lent: Option<u32>,
    /// Descriptors committed, not in the ring yet.
    queued: Vec<FrameDesc>,
    reaped: Box<[FrameDesc]>,
}

/// A frame to send from.
#[derive(Clone, Copy, Debug)]
struct Frame {
    descs: [FrameDesc; 2],
    /// Descriptors of it that are queued or with the kernel.
    in_flight: u8,
}

impl Tx {
    /// Makes frames of `chunks` adjacent chunks each out of all `descs`, and lends `max_frame`
    /// bytes of each. `ring_size` is that of the transmit ring and not less than `descs.len()`.
    pub(super) fn new(
        ring: TxQueue,
        completions: CompQueue,
        ring_size: u32,
        descs: &[FrameDesc],
        chunks: usize,
        max_frame: usize,
    ) -> Self {
        let frames: Box<[Frame]> = descs
            .chunks_exact(chunks)
            .filter_map(|d| {
                Some(Frame {
                    descs: [*d.first()?, *d.last()?],
                    in_flight: 0,
                })
            })
            .collect();
        let origin = descs.first().map_or(0, |d| d.addr() - DATA_OFFSET);
        // From the top of the stack: frame 0 first.
        let free = (0..)
            .take(frames.len())
            .collect::<Vec<u32>>()
            .into_iter()
            .rev()
            .collect();
        Self {
            ring,
            completions,
            ring_size,
            chunks,
            max_frame,
            origin,
            free,
            lent: None,
            queued: Vec::with_capacity(descs.len()),
            reaped: vec![FrameDesc::default(); BATCH].into(),
            frames,
        }
    }

    /// Bytes a frame of `chunks` chunks holds.
    pub(super) const fn capacity(chunks: usize) -> usize {
        // The part behind the border is moved up within its chunk.
        chunks * CHUNK_DATA
    }

    /// Whether a frame can be lent.
    pub(super) fn has_free(&self) -> bool {
        self.lent.is_some() || !self.free.is_empty()
    }

    /// Whether all frames are free or lent.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() + usize::from(self.lent.is_some()) == self.frames.len()
    }

    /// Lends a free frame; the same one again if the last was not committed.
    pub(super) fn begin<'a>(&'a mut self, memory: &'a Memory) -> Option<&'a mut [u8]> {
        if self.lent.is_none() {
            self.lent = self.free.pop();
        }
        let addr = self.data_addr(self.lent?);
        // SAFETY: the frame is lent: it is in no ring and not queued, and the slice borrows
        // `self`, so it is gone before the frame can be committed or lent again.
        unsafe { memory.bytes_mut(addr, self.max_frame) }
    }

    /// Queues the first `len` bytes of the lent frame.
    pub(super) fn commit(&mut self, memory: &Memory, len: usize) {
        let Some(number) = self.lent.take() else {
            return;
        };
        let len = len.min(self.max_frame);
        if len > CHUNK_DATA {
            self.move_up(memory, number, len);
        }
        self.set_len(memory, number, len);
        self.queue(number);
    }

    /// Moves what lies beyond the border between the two chunks to the data offset of the second.
    fn move_up(&self, memory: &Memory, number: u32, len: usize) {
        let addr = self.data_addr(number);
        // SAFETY: the frame was lent and is not queued yet, and the lent slice is gone.
        let both = unsafe { memory.bytes_mut(addr, 2 * CHUNK - DATA_OFFSET) };
        if let Some(both) = both {
            both.copy_within(CHUNK_DATA..len, CHUNK);
        }
    }

    fn set_len(&mut self, memory: &Memory, number: u32, len: usize) {
        let Some(frame) = self.frames.get_mut(number as usize) else {
            return;
        };
        let [first, second] = &mut frame.descs;
        let rest = len.saturating_sub(CHUNK_DATA);
        memory.set_len(first, len - rest);
        first.set_options(if rest > 0 { CONTINUED } else { 0 });
        if rest > 0 {
            memory.set_len(second, rest);
        }
    }

    fn queue(&mut self, number: u32) {
        let Some(frame) = self.frames.get_mut(number as usize) else {
            return;
        };
        let [first, second] = &frame.descs;
        self.queued.push(*first);
        frame.in_flight = 1;
        if first.options() == CONTINUED {
            self.queued.push(*second);
            frame.in_flight = 2;
        }
    }

    /// Puts what is queued into the ring; whether that was anything.
    ///
    /// The ring has room for all descriptors there are, but kernels before 6.17 say late how far
    /// they have read it. Then all stays queued until the next call.
    pub(super) fn submit(&mut self) -> bool {
        if self.queued.is_empty() {
            return false;
        }
        // SAFETY: the descriptors are of this UMEM, and each is in `queued` once: its frame left
        // the free stack when it was lent and returns there only after completion.
        let taken = unsafe { self.ring.produce(&self.queued) };
        if taken == self.queued.len() {
            self.queued.clear();
        }
        true
    }

    /// Whether committed frames are not in the ring yet.
    pub(super) fn is_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Whether the kernel must be told of new entries in the ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }

    /// Entries in the ring that the kernel has not taken yet.
    pub(super) fn unsent(&mut self) -> u32 {
        self.ring_size.saturating_sub(self.ring.nb_free_exact())
    }

    /// Takes back the frames the kernel has sent.
    pub(super) fn reap(&mut self) {
        loop {
            // SAFETY: the kernel puts into this ring only what was in the transmit ring.
            let n = unsafe { self.completions.consume(&mut self.reaped) };
            for desc in self.reaped.iter().take(n) {
                let number = desc.addr().wrapping_sub(self.origin) / (CHUNK * self.chunks);
                let Some(frame) = self.frames.get_mut(number) else {
                    continue;
                };
                match frame.in_flight {
                    0 => debug_assert!(false, "frame {number} completed twice"),
                    1 => {
                        frame.in_flight = 0;
                        // Below the number of frames, which is a u32.
                        self.free.push(u32::try_from(number).unwrap_or_default());
                    }
                    _ => frame.in_flight -= 1,
                }
            }
            if n < self.reaped.len() {
                return;
            }
        }
    }

    /// Writes `frame` into every free frame, for [`Tx::queue_prepared`].
    pub(super) fn prepare(&mut self, memory: &Memory, frame: &[u8]) {
        let len = frame.len().min(self.max_frame);
        self.free.extend(self.lent.take());
        for at in 0..self.free.len() {
            let Some(&number) = self.free.get(at) else {
                continue;
            };
            let addr = self.data_addr(number);
            // SAFETY: the frame is on the free stack: in no ring, not queued, not lent.
            let room = unsafe { memory.bytes_mut(addr, len) };
            if let (Some(room), Some(bytes)) = (room, frame.get(..len)) {
                room.copy_from_slice(bytes);
            }
            if len > CHUNK_DATA {
                self.move_up(memory, number, len);
            }
            self.set_len(memory, number, len);
        }
    }

    /// Queues up to `n` free frames with the content and length they have. Returns how many.
    pub(super) fn queue_prepared(&mut self, n: usize) -> usize {
        for queued in 0..n {
            let Some(number) = self.free.pop() else {
                return queued;
            };
            self.queue(number);
        }
        n
    }

    fn data_addr(&self, number: u32) -> usize {
        self.origin + number as usize * self.chunks * CHUNK + DATA_OFFSET
    }
}
