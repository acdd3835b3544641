//! The UMEM: one range of memory that the kernel and this process share, in chunks.
//!
//! Layout: first the chunks for receiving, then those for sending. Who may touch a chunk is not
//! known here but in [`super::rx`] and [`super::tx`]; here is only where it lies.

use std::num::NonZeroU32;
use std::{io, ptr, slice};

use xsk_rs::config::{FrameSize, QueueSize, UmemConfig};
use xsk_rs::{FrameDesc, Umem};

/// Bytes of a chunk: the largest the kernel takes (a page), and the smallest in which most
/// frames of path MTU 2048 need no second one.
pub(super) const CHUNK: usize = CHUNK_SIZE as usize;
const CHUNK_SIZE: u32 = 4096;
/// Bytes the kernel reserves at the start of a chunk for XDP programs (XDP_PACKET_HEADROOM).
const XDP_HEADROOM: usize = 256;
/// Bytes more that we reserve, so that the payload of an IPv4 RDMA WRITE Middle (14 Ethernet,
/// 20 IP, 8 UDP, 12 BTH = 54 bytes of headers) starts on a cache line: 256 + 74 + 54 = 6 * 64.
///
/// 10 would align as well, but then the kernel's copies between its packet buffers (data at 256)
/// and our chunks (data at 266) have their destination 10 bytes past the source modulo 4096:
/// the range 1–31 in which `rep movsb` of Zen 3 runs twenty times slower.
/// Measured over veth, frames/s with 74 and with 10: 424k and 245k at 2106 bytes, 225k and 164k
/// at 4170 bytes; with 0, which does not align, as with 74.
const HEADROOM: u32 = 74;
/// Where frame data starts in a chunk.
pub(super) const DATA_OFFSET: usize = XDP_HEADROOM + HEADROOM as usize;
/// Bytes of frame data in a chunk.
pub(super) const CHUNK_DATA: usize = CHUNK - DATA_OFFSET;

const _: () = assert!((DATA_OFFSET + 54).is_multiple_of(64));

/// The mapped UMEM.
#[derive(Debug)]
pub(super) struct Memory {
    base: *mut u8,
    len: usize,
    umem: Umem,
}

// SAFETY: `base` points into the mapping that `umem`, which is `Send`, keeps alive; it is not
// tied to a thread.
unsafe impl Send for Memory {}

impl Memory {
    /// Maps `chunks` chunks with fill and completion rings of the given sizes (powers of two).
    /// Returns one descriptor per chunk, in the order of their addresses.
    pub(super) fn new(chunks: u32, fill: u32, comp: u32) -> io::Result<(Self, Vec<FrameDesc>)> {
        let invalid =
            |e: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidInput, e.to_string());
        let count = NonZeroU32::new(chunks).ok_or_else(|| invalid(&"no chunks"))?;
        let frame_size = FrameSize::new(CHUNK_SIZE).map_err(|e| invalid(&e))?;
        let config = UmemConfig::builder()
            .frame_size(frame_size)
            .frame_headroom(HEADROOM)
            .fill_queue_size(QueueSize::new(fill).map_err(|e| invalid(&e))?)
            .comp_queue_size(QueueSize::new(comp).map_err(|e| invalid(&e))?)
            .build()
            .map_err(|e| invalid(&e))?;
        let (umem, descs) = Umem::new(config, count, false).map_err(|e| os_error(&e))?;
        let first = descs.first().ok_or_else(|| invalid(&"no chunks"))?;
        // SAFETY: `first` describes a frame of this UMEM, nothing else refers to its memory yet,
        // and its data length is 0.
        let data = unsafe { umem.data(first) };
        let address = data.contents().as_ptr().addr() - first.addr();
        // xsk-rs lends one chunk at a time; we need frames that span two. The pointer to the
        // whole mapping was exposed when libxdp registered it with the kernel.
        let base = ptr::with_exposed_provenance_mut(address);
        Ok((
            Self {
                base,
                len: chunks as usize * CHUNK,
                umem,
            },
            descs,
        ))
    }

    /// The UMEM itself, for making a socket.
    pub(super) fn umem(&self) -> &Umem {
        &self.umem
    }

    /// The bytes `addr .. addr + len`; `None` if they are not all inside.
    ///
    /// # Safety
    /// The caller owns the chunks these bytes lie in: neither the kernel nor another slice
    /// writes to them while the slice lives.
    pub(super) unsafe fn bytes(&self, addr: usize, len: usize) -> Option<&[u8]> {
        let start = self.locate(addr, len)?;
        // SAFETY: `locate` checked the range against the mapping, which lives as long as `self`
        // and was zeroed when made; the caller promises that nobody writes meanwhile.
        Some(unsafe { slice::from_raw_parts(start, len) })
    }

    /// As [`Memory::bytes`], to write to.
    ///
    /// # Safety
    /// The caller owns the chunks these bytes lie in: neither the kernel nor another slice
    /// refers to them while the slice lives.
    #[allow(
        clippy::mut_from_ref,
        reason = "chunks are disjoint and owned one by one"
    )]
    pub(super) unsafe fn bytes_mut(&self, addr: usize, len: usize) -> Option<&mut [u8]> {
        let start = self.locate(addr, len)?;
        // SAFETY: as in `bytes`; the caller promises that nobody else refers to them.
        Some(unsafe { slice::from_raw_parts_mut(start, len) })
    }

    fn locate(&self, addr: usize, len: usize) -> Option<*mut u8> {
        let end = addr.checked_add(len)?;
        // Inside the mapping, so the addition stays in one allocation.
        (end <= self.len).then(|| self.base.wrapping_add(addr))
    }

    /// Sets how many bytes of the chunk are to be sent, up to [`CHUNK_DATA`].
    pub(super) fn set_len(&self, desc: &mut FrameDesc, len: usize) {
        // SAFETY: descriptors come from this UMEM only; the view is used for its length alone,
        // no byte is touched.
        let mut data = unsafe { self.umem.data_mut(desc) };
        data.cursor().set_pos(len);
    }
}

/// The error number below an error of xsk-rs, which wraps it one level down.
pub(super) fn os_error(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let code = error
        .source()
        .and_then(|s| s.downcast_ref::<io::Error>())
        .and_then(io::Error::raw_os_error);
    match code {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::other(error.to_string()),
    }
}
