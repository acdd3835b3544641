//! Frames by value in reusable buffers, and the pool they come from.

use core::ops::{Deref, DerefMut};

use xroce_wire::newtypes::Gid;

use crate::datapath::Link;

/// Bytes an Ethernet header with one VLAN tag adds to the IP MTU.
pub(super) const L2_BYTES: usize = 18;

/// Addresses of a frame on a [`Link::Udp`] network; unused on Ethernet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meta {
    pub(super) src: Gid,
    pub(super) dst: Gid,
    pub(super) src_port: u16,
    pub(super) tos: u8,
}

/// One frame, moved from ring to ring as a pointer.
#[derive(Debug)]
pub(super) struct Frame(Box<Inner>);

/// A buffer of fixed capacity, of which `len` bytes from `start` are the frame.
#[derive(Debug)]
pub(super) struct Inner {
    buf: Box<[u8]>,
    /// First byte used, so that the payload of a Middle packet begins on a cache line (below).
    start: u32,
    len: u32,
    pub(super) hops: u8,
    pub(super) meta: Meta,
}

impl Frame {
    /// A zeroed buffer of at least `capacity` bytes.
    ///
    /// Eth 14 + IPv4 20 + UDP 8 + BTH 12 = 54 bytes come before the payload of a Middle packet
    /// (BTH alone on a UDP link). That payload is put on a 64-byte boundary: a 4 KB copy whose
    /// destination lies 1..31 bytes past the source modulo 4096 is 20 times slower on Zen 3,
    /// and with 64-byte aligned memory on the other side this cannot happen.
    fn new(capacity: usize, link: Link) -> Self {
        let before = match link {
            Link::Ethernet => 54,
            Link::Udp => 12,
        };
        let buf = vec![0; capacity + 128].into_boxed_slice();
        let start = buf.as_ptr().align_offset(64).min(63) + (64 - before);
        let start = u32::try_from(start).unwrap_or(0);
        Self(Box::new(Inner {
            buf,
            start,
            len: 0,
            hops: 0,
            meta: Meta::default(),
        }))
    }
}

impl Deref for Frame {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.0
    }
}

impl Inner {
    /// The whole buffer from the first byte of the frame on, for writing one.
    pub(super) fn room(&mut self, capacity: usize) -> &mut [u8] {
        let start = self.start as usize;
        self.buf
            .get_mut(start..start + capacity)
            .unwrap_or_default()
    }

    pub(super) fn capacity(&self) -> usize {
        self.buf.len() - self.start as usize
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Sets the length, at most the capacity.
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = u32::try_from(len.min(self.capacity())).unwrap_or(0);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let start = self.start as usize;
        self.buf.get(start..start + self.len()).unwrap_or_default()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, len) = (self.start as usize, self.len());
        self.buf.get_mut(start..start + len).unwrap_or_default()
    }
}

/// Idle frames. Grows when it is empty and never shrinks: after warm-up nothing allocates.
#[derive(Debug)]
pub(super) struct Pool {
    idle: Vec<Frame>,
    capacity: usize,
    link: Link,
    /// Buffers made so far; for the test that counts.
    made: usize,
}

impl Pool {
    pub(super) fn new(link: Link) -> Self {
        Self {
            idle: Vec::new(),
            capacity: 0,
            link,
            made: 0,
        }
    }

    pub(super) fn link(&self) -> Link {
        self.link
    }

    pub(super) fn made(&self) -> usize {
        self.made
    }

    /// Makes every frame taken from now on hold `capacity` bytes at least.
    pub(super) fn require(&mut self, capacity: usize) {
        if capacity > self.capacity {
            self.capacity = capacity;
            self.idle.retain(|f| f.capacity() >= capacity);
        }
    }

    /// Has `n` idle frames ready.
    pub(super) fn reserve(&mut self, n: usize) {
        self.idle.reserve(n);
        while self.idle.len() < n {
            let frame = self.make();
            self.idle.push(frame);
        }
    }

    fn make(&mut self) -> Frame {
        self.made += 1;
        Frame::new(self.capacity, self.link)
    }

    /// The most recently used idle frame, which is the one still in the cache.
    pub(super) fn take(&mut self) -> Frame {
        match self.idle.pop() {
            Some(f) => f,
            None => self.make(),
        }
    }

    pub(super) fn give(&mut self, mut frame: Frame) {
        // A frame from before `require` is too small to be lent again.
        if frame.capacity() >= self.capacity {
            frame.hops = 0;
            self.idle.push(frame);
        }
    }

    pub(super) fn copy(&mut self, of: &Frame) -> Frame {
        let mut f = self.take();
        f.room(of.len()).copy_from_slice(of.bytes());
        f.set_len(of.len());
        f.hops = of.hops;
        f.meta = of.meta;
        f
    }
}
