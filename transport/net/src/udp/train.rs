//! Frames put together into trains: one system call sends up to 64 of them (`UDP_SEGMENT`).
//!
//! A train is contiguous memory, cut by the kernel every `segment` bytes; only its last frame may
//! be shorter. Frames are written where they will be sent from, so nothing is copied. Over IPv4
//! the kernel numbers the packets of a train 0, 1, 2, … in the identification field, which the
//! ICRC covers: frame `k` gets its ICRC changed from that for identification 0 to that for `k`.

use xroce_wire::newtypes::Gid;

use super::delta::Deltas;
use crate::datapath::TxMeta;

/// Most frames in a train: what every kernel cuts (`UDP_MAX_SEGMENTS` was 64 before 6.10), what
/// one receive coalesces, and the identifications a receiver tries.
pub(super) const MAX_SEGMENTS: usize = 64;
/// Most bytes in a train: 65535 less IPv4 and UDP headers.
pub(super) const MAX_TRAIN: usize = 65_507;
/// Bytes lent for one frame: path MTU 4096 and the longest headers, BTH 12, XRCETH 4, RETH 16,
/// immediate 4, ICRC 4, with some room.
pub(super) const MAX_FRAME: usize = 4096 + 128;
/// Room for a train that waits, one being built behind it and a frame, as the worst case.
const ARENA: usize = 2 * MAX_TRAIN + 2 * MAX_FRAME;
/// Where in its first cache line a train begins: 12 bytes of BTH then end on a line boundary.
/// Copying a payload to 1..31 bytes past its source modulo 4096 is 20 times slower on Zen 3;
/// packets of PMTU + 16 bytes started here stay clear of that over the whole train, if the
/// source is aligned to a cache line.
const FIRST: usize = 64 - 12;

/// Frames that leave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Train {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Length of each frame but the last.
    pub(super) segment: usize,
    pub(super) count: usize,
    pub(super) dst: Gid,
    pub(super) tos: u8,
    /// Not cut by the kernel: sent frame by frame, each with identification 0.
    pub(super) single: bool,
}

impl Train {
    /// Whether another frame may follow.
    fn fits(&self, meta: &TxMeta, len: usize, max_segments: usize) -> bool {
        self.dst == meta.dst
            && self.tos == meta.tos
            && len <= self.segment
            && len > 0
            && self.has_room(max_segments)
            && self.end + len - self.start <= MAX_TRAIN
    }

    /// Whether a full-sized frame more is possible; a short one ends a train.
    fn has_room(&self, max_segments: usize) -> bool {
        self.count < max_segments
            && self.end - self.start == self.count * self.segment
            && (self.count + 1) * self.segment <= MAX_TRAIN
    }
}

/// The memory of the trains, at most two: one that waits for the socket, one being built.
#[derive(Debug)]
pub(super) struct Trains {
    arena: Box<[u8]>,
    base: usize,
    tail: usize,
    ready: Option<Train>,
    open: Option<Train>,
    deltas: Deltas,
    max_segments: usize,
}

impl Trains {
    /// `max_segments` 1: no `UDP_SEGMENT`, every frame is a train of its own.
    pub(super) fn new(max_segments: usize) -> Self {
        let arena = vec![0; ARENA + 128].into_boxed_slice();
        let base = arena.as_ptr().align_offset(64).min(63) + FIRST;
        Self {
            arena,
            base,
            tail: base,
            ready: None,
            open: None,
            deltas: Deltas::new(),
            max_segments: max_segments.clamp(1, MAX_SEGMENTS),
        }
    }

    /// Whether there is room for a frame; the caller sends what there is if not.
    pub(super) fn has_room(&self) -> bool {
        self.tail + MAX_FRAME <= self.arena.len()
    }

    /// Where the next frame is written.
    pub(super) fn room(&mut self) -> Option<&mut [u8]> {
        self.arena.get_mut(self.tail..self.tail + MAX_FRAME)
    }

    /// Takes the `len` bytes just written in [`Trains::room`]. Returns whether a train is
    /// complete and should be sent now, while it is in the cache. Needs: no train waits.
    pub(super) fn commit(&mut self, meta: &TxMeta, len: usize) -> bool {
        debug_assert!(self.ready.is_none(), "committed while blocked");
        let (start, end) = (self.tail, self.tail + len);
        self.tail = end;
        let joined = match &mut self.open {
            Some(t) if t.fits(meta, len, self.max_segments) => {
                if t.dst.v4().is_some() {
                    let frame = self.arena.get_mut(start..end).unwrap_or_default();
                    self.deltas.apply(frame, t.count);
                }
                t.count += 1;
                t.end = end;
                true
            }
            _ => false,
        };
        if !joined {
            self.ready = self.open.replace(Train {
                start,
                end,
                segment: len,
                count: 1,
                dst: meta.dst,
                tos: meta.tos,
                single: false,
            });
        }
        self.ready.is_some() || self.open.is_some_and(|t| !t.has_room(self.max_segments))
    }

    /// The train to send next: one that waits, or the open one if it is complete or `all` is
    /// asked for.
    pub(super) fn next(&mut self, all: bool) -> Option<Train> {
        if self.ready.is_none() {
            let max = self.max_segments;
            self.ready = self.open.take_if(|t| all || !t.has_room(max));
        }
        self.ready
    }

    /// The bytes of a train.
    pub(super) fn bytes(&self, start: usize, end: usize) -> &[u8] {
        self.arena.get(start..end).unwrap_or_default()
    }

    /// The waiting train is gone: sent, or given up.
    pub(super) fn done(&mut self) {
        self.ready = None;
        if self.open.is_none() {
            self.tail = self.base;
        }
    }

    /// The first `len` bytes, one frame, of the waiting train are gone.
    pub(super) fn done_first(&mut self, len: usize) {
        match &mut self.ready {
            Some(t) if t.count > 1 => {
                t.start += len;
                t.count -= 1;
            }
            _ => self.done(),
        }
    }

    /// The kernel does not cut: the waiting train, and all after it, go frame by frame.
    pub(super) fn give_up_segments(&mut self) {
        self.max_segments = 1;
        for train in [&mut self.ready, &mut self.open] {
            if let Some(t) = train.as_mut().filter(|t| !t.single) {
                t.single = true;
                if t.dst.v4().is_some() {
                    let bytes = self.arena.get_mut(t.start..t.end).unwrap_or_default();
                    for (id, frame) in bytes.chunks_mut(t.segment.max(1)).enumerate() {
                        self.deltas.apply(frame, id);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: Gid = Gid::from_v4([127, 0, 0, 2]);
    const V6: Gid = Gid::new([1; 16]);

    fn put(t: &mut Trains, dst: Gid, tos: u8, len: usize, fill: u8) -> bool {
        t.room().unwrap()[..len].fill(fill);
        t.commit(&TxMeta { dst, tos }, len)
    }

    /// Takes everything out; (frames, bytes) per train.
    fn drain(t: &mut Trains) -> Vec<(usize, usize)> {
        let mut out = Vec::new();
        while let Some(train) = t.next(true) {
            out.push((train.count, train.end - train.start));
            t.done();
        }
        assert_eq!(t.tail, t.base);
        out
    }

    #[test]
    fn equal_frames_make_a_train_and_a_short_one_ends_it() {
        let mut t = Trains::new(64);
        assert!(!put(&mut t, V6, 0, 1040, 1));
        assert!(!put(&mut t, V6, 0, 1040, 2));
        assert!(put(&mut t, V6, 0, 24, 3));
        assert_eq!(drain(&mut t), [(3, 2104)]);

        // Longer, other destination, other TOS: each starts a train.
        for (dst, tos, len) in [(V6, 0, 1041), (V4, 0, 1040), (V6, 2, 1040)] {
            assert!(!put(&mut t, V6, 0, 1040, 1));
            assert!(put(&mut t, dst, tos, len, 2));
            assert_eq!(drain(&mut t), [(1, 1040), (1, len)]);
        }
    }

    #[test]
    fn limits_of_a_train() {
        let mut t = Trains::new(64);
        for i in 1..=64 {
            assert_eq!(put(&mut t, V6, 0, 84, 1), i == 64);
        }
        assert_eq!(drain(&mut t), [(64, 64 * 84)]);
        for i in 1..=15 {
            // 15 x 4112 = 61680; a sixteenth does not fit 65507.
            assert_eq!(put(&mut t, V6, 0, 4112, 1), i == 15);
        }
        assert_eq!(drain(&mut t), [(15, 15 * 4112)]);
        // Without segmentation every frame is complete at once.
        let mut t = Trains::new(1);
        assert!(put(&mut t, V6, 0, 84, 1));
        assert_eq!(drain(&mut t), [(1, 84)]);
        // An empty frame cannot be cut off: it goes alone.
        let mut t = Trains::new(64);
        assert!(!put(&mut t, V6, 0, 84, 1));
        assert!(put(&mut t, V6, 0, 0, 1));
        assert_eq!(drain(&mut t), [(1, 84), (1, 0)]);
    }

    #[test]
    fn room_runs_out_only_when_nothing_is_taken() {
        let mut t = Trains::new(64);
        let mut frames = 0;
        // The worst case: a train that waits, then one behind it.
        while t.has_room() {
            let complete = put(&mut t, V6, 0, MAX_FRAME, 1);
            frames += 1;
            if complete {
                let _ = t.next(false);
                t.ready = None;
            }
        }
        assert!(frames >= 2 * (MAX_TRAIN / MAX_FRAME), "{frames}");
        assert!(t.room().is_none());
        drain(&mut t);
        assert!(t.has_room());
    }

    #[test]
    fn identifications_are_patched_and_taken_back() {
        let mut t = Trains::new(64);
        let mut deltas = Deltas::new();
        for _ in 0..3 {
            put(&mut t, V4, 0, 100, 7);
        }
        put(&mut t, V4, 0, 60, 7);
        let train = t.next(true).unwrap();
        let mut want = vec![7; 360];
        for (id, frame) in want.chunks_mut(100).enumerate() {
            deltas.apply(frame, id);
        }
        assert_eq!(t.bytes(train.start, train.end), want);
        t.give_up_segments();
        assert_eq!(t.bytes(train.start, train.end), [7; 360]);
        t.give_up_segments();
        assert_eq!(t.bytes(train.start, train.end), [7; 360]);
        assert_eq!(t.max_segments, 1);
        for len in [100, 100, 100, 60] {
            assert!(t.next(true).unwrap().single);
            t.done_first(len);
        }
        assert_eq!(t.next(true), None);
    }

    /// Whatever is committed comes out once, in order, in trains the kernel takes.
    #[test]
    fn any_sequence_of_frames() {
        let mut rng = crate::sim::Rng::new(11);
        for round in 0..500 {
            let mut t = Trains::new(1 + rng.index(64));
            let mut expect = Vec::new();
            let mut trains = Vec::new();
            let mut send = |t: &mut Trains, all: bool| {
                while let Some(train) = t.next(all) {
                    let bytes = t.bytes(train.start, train.end).to_vec();
                    trains.push((train, bytes));
                    t.done();
                }
            };
            for _ in 0..rng.index(400) {
                if !t.has_room() || rng.below(50) == 0 {
                    send(&mut t, true);
                }
                let dst = [V6, Gid::new([2; 16])][rng.index(8) / 7];
                let len = [84, 84, 1040, 4112, rng.index(MAX_FRAME + 1)][rng.index(5)];
                let fill = u8::try_from(rng.below(256)).unwrap();
                expect.push((dst, vec![fill; len]));
                if put(&mut t, dst, 0, len, fill) {
                    send(&mut t, false);
                }
            }
            send(&mut t, true);
            let mut got = Vec::new();
            for (train, bytes) in &trains {
                assert!(bytes.len() <= MAX_TRAIN && train.count <= t.max_segments);
                let frames: Vec<_> = bytes.chunks(train.segment.max(1)).collect();
                assert_eq!(frames.len().max(1), train.count, "round {round}");
                match &frames[..] {
                    [] => got.push((train.dst, Vec::new())),
                    frames => got.extend(frames.iter().map(|f| (train.dst, f.to_vec()))),
                }
            }
            assert_eq!(got, expect, "round {round}");
        }
    }
}
