//! Frames of several chunks, handed on as one slice.

use super::memory::Memory;

/// Joins the chunks of a frame. A frame of one chunk, the usual case, is not copied.
#[derive(Debug)]
pub(super) struct Assembly {
    buf: Box<[u8]>,
    /// Bytes of the current frame so far; more than `buf` holds if it does not fit.
    len: usize,
    /// The chunk before this one said that more follow.
    joining: bool,
    /// Frames that did not fit, or whose descriptor pointed outside the memory.
    pub(super) dropped: u64,
}

impl Assembly {
    /// For frames of up to `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self {
            buf: vec![0; max].into(),
            len: 0,
            joining: false,
            dropped: 0,
        }
    }

    /// Takes the next chunk, `len` bytes at `addr`; `more`: the frame goes on in the next one.
    /// Returns the frame once it is complete. A frame may be spread over several bursts.
    ///
    /// # Safety
    /// The caller owns the chunk at `addr` for as long as it uses the result.
    pub(super) unsafe fn push<'a>(
        &'a mut self,
        memory: &'a Memory,
        addr: usize,
        len: usize,
        more: bool,
    ) -> Option<&'a [u8]> {
        // SAFETY: the caller's promise.
        let part = unsafe { memory.bytes(addr, len) };
        if !self.joining && !more {
            self.dropped += u64::from(part.is_none());
            return part;
        }
        self.join(part, more)
    }

    #[cold]
    fn join(&mut self, part: Option<&[u8]>, more: bool) -> Option<&[u8]> {
        let at = self.len;
        let bytes = part.unwrap_or_default();
        self.len = at.saturating_add(bytes.len());
        match self.buf.get_mut(at..self.len) {
            Some(room) if part.is_some() => room.copy_from_slice(bytes),
            _ => self.len = usize::MAX,
        }
        self.joining = more;
        if more {
            return None;
        }
        let whole = std::mem::take(&mut self.len);
        let frame = self.buf.get(..whole);
        self.dropped += u64::from(frame.is_none());
        frame
    }
}
