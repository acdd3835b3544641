//! The memory of both hosts as it must be, and ranges of it to work with.

use std::ops::Range;

use xroce_api::Mr;
use xroce_net::sim::Rng;
use xroce_proto::memory::Access;
use xroce_proto::wr::Sge;
use xroce_wire::newtypes::LKey;

use super::{Host, World, pattern};

/// What both memories must look like.
pub struct Model {
    bytes: [Vec<u8>; 2],
    /// Where a request that failed in flight may have left something.
    unsure: [Vec<Range<usize>>; 2],
}

impl Model {
    /// Fills both regions; call it before any traffic.
    pub fn new(world: &World, seed: u64) -> Self {
        let bytes = [0, 1].map(|i| {
            let region = &world.hosts[i].region;
            let bytes = pattern(seed ^ i as u64, region.len());
            region.write_at(0, &bytes).unwrap();
            bytes
        });
        Self {
            bytes,
            unsure: Default::default(),
        }
    }

    /// Compares everything.
    pub fn check(&self, world: &World) {
        for (i, host) in world.hosts.iter().enumerate() {
            let mut real = host.bytes(0, host.region.len());
            for range in &self.unsure[i] {
                real[range.clone()].copy_from_slice(&self.bytes[i][range.clone()]);
            }
            if real != self.bytes[i] {
                let differs = |&n: &usize| real[n] != self.bytes[i][n];
                let first = (0..real.len()).find(differs).unwrap();
                let count = (0..real.len()).filter(differs).count();
                panic!("memory of host {i}: {count} bytes differ from the model, first {first:#x}");
            }
        }
    }

    pub fn slice(&self, host: usize, at: u64, len: u32) -> &[u8] {
        &self.bytes[host][at as usize..][..len as usize]
    }

    pub fn put(&mut self, host: usize, pieces: &[Piece], data: &[u8]) {
        let mut rest = data;
        for &(at, len) in pieces {
            let n = rest.len().min(len as usize);
            self.bytes[host][at as usize..][..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
        }
        assert!(rest.is_empty());
    }

    pub fn forget(&mut self, host: usize, pieces: &[Piece]) {
        let range = |&(at, len): &Piece| at as usize..at as usize + len as usize;
        self.unsure[host].extend(pieces.iter().map(range));
    }
}

/// Offset and length in a host's region.
pub type Piece = (u64, u32);

/// A part of a host's region with keys of its own, handed out in disjoint ranges.
pub struct Area {
    pub host: usize,
    pub at: u64,
    pub mr: Mr,
    /// Bytes at the start that are not handed out.
    skip: u64,
    pub len: u64,
    busy: Vec<Range<u64>>,
}

impl Area {
    pub fn new(world: &mut World, host: usize, len: u64, skip: u64, access: Access) -> Self {
        let (at, mr) = world.hosts[host].carve(len, access);
        Self {
            host,
            at,
            mr,
            skip,
            len,
            busy: Vec::new(),
        }
    }

    /// A free range, with at least one byte to the next, if a few guesses find one.
    pub fn take(&mut self, rng: &mut Rng, len: u32) -> Option<u64> {
        let room = self.len - self.skip - u64::from(len);
        (0..8).find_map(|_| {
            let start = self.at + self.skip + rng.below(room + 1);
            let end = start + u64::from(len) + 1;
            let free = self.busy.iter().all(|b| b.end <= start || end <= b.start);
            free.then(|| {
                self.busy.push(start..end);
                start
            })
        })
    }

    pub fn give(&mut self, start: u64) {
        let at = self.busy.iter().position(|b| b.start == start).unwrap();
        self.busy.swap_remove(at);
    }
}

/// Random parts of a length, empty ones among them.
pub fn split(rng: &mut Rng, len: u32, max_parts: u8) -> Vec<u32> {
    let parts = rng.below(u64::from(max_parts)) as usize;
    if len == 0 && parts == 0 {
        return Vec::new();
    }
    let mut cuts: Vec<u32> = (0..parts)
        .map(|_| rng.below(u64::from(len) + 1) as u32)
        .collect();
    cuts.sort_unstable();
    cuts.push(len);
    let mut last = 0;
    cuts.into_iter()
        .map(|cut| cut - std::mem::replace(&mut last, cut))
        .collect()
}

/// Random parts of a range, in or against their order.
pub fn pieces(rng: &mut Rng, start: u64, len: u32, max_parts: u8) -> Vec<Piece> {
    let mut at = start;
    let mut pieces = Vec::new();
    for len in split(rng, len, max_parts) {
        pieces.push((at, len));
        at += u64::from(len);
    }
    if rng.below(2) == 0 {
        pieces.reverse();
    }
    pieces
}

/// Scatter/gather elements; empty ones name nothing.
pub fn sges(host: &Host, lkey: LKey, pieces: &[Piece]) -> Vec<Sge> {
    let sge = |&(at, len): &Piece| match len {
        0 => Sge::default(),
        len => Sge {
            lkey,
            va: host.va(at),
            len,
        },
    };
    pieces.iter().map(sge).collect()
}
