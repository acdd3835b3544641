//! A mapped, sealed memfd: its size cannot change, so no access can fault.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::across::Across;
use crate::adopt::{AdoptError, Adopted, adopt};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use xroce_crc::COPY_CHUNK;

/// An access outside the region; nothing was copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} bytes at offset {offset} are not inside a region of {size} bytes")]
pub struct OutOfRange {
    /// Offset of the access.
    pub offset: u64,
    /// Length of the access.
    pub len: usize,
    /// Size of the region.
    pub size: usize,
}

/// An atomic that was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AtomicAtError {
    /// See [`OutOfRange`].
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The address is not a multiple of the atomic's size.
    #[error("an atomic at offset {0}, which is not a multiple of its size")]
    Misaligned(u64),
}

/// What memory a region is of, and so what becomes of it in the end.
#[derive(Debug)]
pub(crate) enum Backing {
    /// A mapping of a memfd of this process, which can be handed on.
    File(Arc<OwnedFd>),
    /// A mapping that another process has its own file of, or got the file of.
    Mapped,
    /// Memory of the allocator.
    Heap(#[allow(dead_code, reason = "kept alive")] Vec<u8>),
    /// Memory that somebody else looks after.
    Lent,
    /// Memory of another process, which has no address here.
    Across(Across),
}

/// Memory, and what is behind it.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    /// Bytes that have an address here: all, or none.
    here: usize,
    len: usize,
    /// Bytes that are mapped: `len`, or more if the pages are huge.
    mapped: usize,
    backing: Backing,
}

// SAFETY: the mapping is plain memory owned by this value; all access is by raw copies, which
// allow that other threads and processes write at the same time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if matches!(
            self.backing,
            Backing::Heap(_) | Backing::Lent | Backing::Across(_)
        ) {
            return;
        }
        // SAFETY: `base` and `mapped` are what mmap returned and was asked for, and no copy can run:
        // this was the last owner.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Shared memory; clones are the same memory.
#[derive(Clone, Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
}

impl Region {
    /// `len` zero bytes in a new memfd, sealed against any change of size.
    ///
    /// # Errors
    /// `len` is 0, or the system has no memory or file descriptor left.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let (base, fd) = map_new(len)?;
        let backing = Backing::File(Arc::new(fd));
        // SAFETY: just mapped, and the file is sealed.
        Ok(unsafe { Self::of_mapping(base, len, len, backing) })
    }

    /// The same for a process that gives the file away: the region keeps no descriptor.
    ///
    /// # Errors
    /// As [`Self::anonymous`].
    pub fn with_file(len: usize) -> io::Result<(Self, OwnedFd)> {
        let (base, fd) = map_new(len)?;
        // SAFETY: just mapped, and the file is sealed.
        let region = unsafe { Self::of_mapping(base, len, len, Backing::Mapped) };
        Ok((region, fd))
    }

    /// Memory of the allocator, which the region takes over: bytes stay where they are.
    ///
    /// # Errors
    /// There are none.
    pub fn of_heap(mut bytes: Vec<u8>) -> io::Result<Self> {
        let len = bytes.len();
        if len == 0 {
            return Err(no_bytes());
        }
        let base = NonNull::from(bytes.as_mut_slice()).cast();
        // Not a box: to move one claims that no other pointer to its bytes is in use.
        let backing = Backing::Heap(bytes);
        // SAFETY: the vector keeps `len` bytes there, is never touched again, and nothing unmaps it.
        Ok(unsafe { Self::of_mapping(base, len, len, backing) })
    }

    /// `len` bytes from `base`, wherever they are: stack, heap, a mapping of any kind.
    ///
    /// # Errors
    /// `len` is 0.
    ///
    /// # Safety
    /// Until the last clone of the region is gone, and nobody has a registration of it, the bytes
    /// are readable and writable memory of this process; and the program has no reference to them
    /// while a peer, or a call that copies, may read or write there: raw pointers and atomics only.
    ///
    /// [`Self::share`] may turn the pages they lie on into shared memory. So until then nobody
    /// unmaps these pages, moves them or changes their protection, and nobody relies on
    /// `MADV_DONTNEED` to zero them or on `fork` to copy them.
    pub unsafe fn of_memory(base: NonNull<u8>, len: usize) -> io::Result<Self> {
        if len == 0 {
            return Err(no_bytes());
        }
        // SAFETY: the caller's promise; nothing unmaps what is lent.
        Ok(unsafe { Self::of_mapping(base, len, len, Backing::Lent) })
    }

    /// A part of it for another process. Memory that is in no memfd yet is adopted: moved into one
    /// where it lies. That costs a copy, and threads that write there wait meanwhile.
    ///
    /// # What stays
    /// Adopted memory stays adopted for the life of the process, or until its owner unmaps it.
    /// Moving it back would cost a second copy, a reader in the daemon would be left with the old
    /// pages, and other registrations may lie on the same pages. Shared anew, it costs no copy.
    ///
    /// # Limits
    /// * Whole pages are shared. Who is given a file reaches the neighbours of the part too, and is
    ///   trusted to leave them alone.
    /// * A child of `fork` shares adopted pages with its parent instead of having a copy.
    /// * Each adopted piece keeps a descriptor open, until the memory is unmapped and no
    ///   [`Adopted`] refers to it.
    /// * `madvise(MADV_DONTNEED)` no longer zeroes the pages. An allocator that relies on that (not
    ///   glibc's) could hand out memory as zero that is not: with such a one take
    ///   [`Self::anonymous`], not [`Self::of_heap`]. `mlock` and advice on huge pages are lost.
    /// * Unprivileged, only faults of user code can be held off: a *system call* of another thread
    ///   that writes to the pages during the copy fails with `EFAULT`, and a signal to a thread
    ///   whose stack is among the pages, or a switch of a thread whose control block is, ends the
    ///   process. The caller's signals are blocked meanwhile.
    /// * File-backed memory (among it initialised statics), executable, read-only, shared and
    ///   huge-page memory is refused; the error names the mapping.
    ///
    /// # Errors
    /// The part is not inside, another process owns the file, or see [`AdoptError`].
    pub fn share(&self, offset: u64, len: u64) -> Result<Adopted, AdoptError> {
        let address = self.address().saturating_add(offset);
        let inside = offset
            .checked_add(len)
            .filter(|&end| end <= self.len() as u64);
        if inside.is_none() {
            return Err(AdoptError::TooLong { address, len });
        }
        match &self.mapping.backing {
            Backing::File(fd) => Ok(Adopted::of_file(fd, self.address(), offset, len)),
            Backing::Mapped | Backing::Across(_) => Err(AdoptError::Theirs(address)),
            // SAFETY: the vector lives as long as the region, so the allocator leaves its pages mapped
            // as they are, and only copies and atomics touch its bytes. What else is on the pages
            // is left alone by who is given the file. glibc's allocator does not rely on zeroes
            // from `MADV_DONTNEED`; the limits above say what to do with another.
            Backing::Heap(_) => unsafe { adopt(address, len) },
            // SAFETY: the caller of `of_memory` has promised it of these pages.
            Backing::Lent => unsafe { adopt(address, len) },
        }
    }

    /// Whether [`Self::share`] has nothing to move.
    #[must_use]
    pub fn is_file(&self) -> bool {
        matches!(self.mapping.backing, Backing::File(_))
    }
}

fn no_bytes() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "a region of 0 bytes")
}

/// Maps `len` zero bytes of a new memfd, sealed against any change of size.
fn map_new(len: usize) -> io::Result<(NonNull<u8>, OwnedFd)> {
    if len == 0 {
        return Err(no_bytes());
    }
    let fd = memfd_create("xroce", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing; the file is
    // sealed at `len` bytes, so that no later access can hit a page that is gone.
    let base = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, &fd, 0) }?;
    let base = NonNull::new(base.cast())
        .ok_or_else(|| io::Error::other("the kernel mapped memory at address 0"))?;
    Ok((base, fd))
}

impl Region {
    /// The region of some memory.
    ///
    /// # Safety
    /// `mapped` bytes from `base`, at least `len`, are mapped for reading and writing. Of a
    /// mapping: nobody else unmaps them, and the file behind them is sealed against shrinking.
    pub(crate) unsafe fn of_mapping(
        base: NonNull<u8>,
        len: usize,
        mapped: usize,
        backing: Backing,
    ) -> Self {
        Self {
            mapping: Arc::new(Mapping {
                base,
                here: len,
                len,
                mapped,
                backing,
            }),
        }
    }

    /// The region of memory of another process.
    pub(crate) fn of_across(across: Across, len: usize) -> Self {
        Self {
            mapping: Arc::new(Mapping {
                base: NonNull::dangling(),
                here: 0,
                len,
                mapped: 0,
                backing: Backing::Across(across),
            }),
        }
    }

    pub(crate) fn as_across(&self) -> Option<&Across> {
        match &self.mapping.backing {
            Backing::Across(across) => Some(across),
            _ => None,
        }
    }

    /// Size in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.mapping.len
    }

    /// Never true: a region has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mapping.len == 0
    }

    /// Address of the first byte in this process, as a number for peers and keys.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.mapping.base.as_ptr().addr() as u64
    }

    /// The file, to hand to another process, if this process made it and has it.
    #[must_use]
    pub fn fd(&self) -> Option<&OwnedFd> {
        match &self.mapping.backing {
            Backing::File(fd) => Some(fd),
            _ => None,
        }
    }

    /// Where `len` bytes at `offset` are, all of them inside.
    #[inline]
    pub(crate) fn pointer(&self, offset: u64, len: usize) -> Result<NonNull<u8>, OutOfRange> {
        let size = self.mapping.here;
        let inside = usize::try_from(offset)
            .ok()
            .and_then(|start| start.checked_add(len).map(|end| (start, end)))
            .filter(|&(_, end)| end <= size);
        let Some((start, _)) = inside else {
            let size = self.mapping.len;
            return Err(OutOfRange { offset, len, size });
        };
        // SAFETY: `start` is at most `size`, so the pointer stays inside the mapping or one past.
        Ok(unsafe { self.mapping.base.add(start) })
    }

    /// Copies `src` to `offset`.
    ///
    /// # Errors
    /// [`OutOfRange`].
    #[inline]
    pub fn write_at(&self, offset: u64, src: &[u8]) -> Result<(), OutOfRange> {
        let mut to = match self.pointer(offset, src.len()) {
            Ok(to) => to,
            Err(refused) => return self.write_across(refused, src),
        };
        if src.len() <= COPY_CHUNK {
            // SAFETY: as below.
            unsafe {
                to.as_ptr()
                    .copy_from_nonoverlapping(src.as_ptr(), src.len())
            };
            return Ok(());
        }
        for chunk in src.chunks(COPY_CHUNK) {
            // SAFETY: `pointer` proved `src.len()` bytes from `to` inside the mapping; `chunk` is
            // private memory and cannot overlap it. Others may write here meanwhile: which bytes
            // win is theirs to sort out, no reference is ever made.
            unsafe {
                to.as_ptr()
                    .copy_from_nonoverlapping(chunk.as_ptr(), chunk.len())
            };
            // SAFETY: at most one past the checked range.
            to = unsafe { to.add(chunk.len()) };
        }
        Ok(())
    }

    /// Copies `dst.len()` bytes at `offset` out.
    ///
    /// # Errors
    /// [`OutOfRange`]; `dst` is as before.
    #[inline]
    pub fn read_at(&self, offset: u64, dst: &mut [u8]) -> Result<(), OutOfRange> {
        let mut from = match self.pointer(offset, dst.len()) {
            Ok(from) => from,
            Err(refused) => return self.read_across(refused, dst),
        };
        if dst.len() <= COPY_CHUNK {
            // SAFETY: as in `write_at`, the other way.
            unsafe {
                from.as_ptr()
                    .copy_to_nonoverlapping(dst.as_mut_ptr(), dst.len())
            };
            return Ok(());
        }
        for chunk in dst.chunks_mut(COPY_CHUNK) {
            // SAFETY: as in `write_at`, the other way.
            unsafe {
                from.as_ptr()
                    .copy_to_nonoverlapping(chunk.as_mut_ptr(), chunk.len())
            };
            // SAFETY: at most one past the checked range.
            from = unsafe { from.add(chunk.len()) };
        }
        Ok(())
    }

    /// [`Region::read_at`] that gives the CRC register after `head` and the bytes copied
    /// ([`xroce_crc::update_joined`]), whoever writes here meanwhile. Long copies are made by the
    /// loop that computes it.
    ///
    /// # Errors
    /// [`OutOfRange`]; `dst` is as before.
    #[inline]
    pub fn read_joined<const N: usize>(
        &self,
        offset: u64,
        dst: &mut [u8],
        head: [u128; N],
    ) -> Result<u32, OutOfRange> {
        match self.pointer(offset, dst.len()) {
            // SAFETY: `pointer` proved `dst.len()` bytes inside the mapping; `dst` is private
            // memory and cannot overlap it.
            Ok(from) => Ok(unsafe { xroce_crc::copy_joined(head, from.as_ptr(), dst) }),
            Err(refused) => {
                self.read_across(refused, dst)?;
                Ok(xroce_crc::update_joined(head, dst))
            }
        }
    }

    /// The eight bytes at `offset`, to be worked on at once with other threads and processes.
    fn cell(&self, offset: u64) -> Result<&AtomicU64, AtomicAtError> {
        let at = self.pointer(offset, size_of::<u64>())?.cast::<AtomicU64>();
        if !at.is_aligned() {
            return Err(AtomicAtError::Misaligned(offset));
        }
        // SAFETY: aligned, inside the mapping, which lives as long as `self`, and any bits are a
        // u64. The reference is to an atomic, which may be shared with whoever else writes here,
        // and does not leave this file. A plain copy at the same time, by `write_at` or another
        // process, meets it as it meets another plain copy.
        Ok(unsafe { at.as_ref() })
    }

    /// Adds to the eight bytes at `offset`, wrapping; what was there before.
    ///
    /// # Errors
    /// [`AtomicAtError`]; nothing was written.
    pub fn fetch_add_at(&self, offset: u64, add: u64) -> Result<u64, AtomicAtError> {
        Ok(self.cell(offset)?.fetch_add(add, Ordering::SeqCst))
    }

    /// Stores `swap` in the eight bytes at `offset` if `compare` is there; what was there before.
    ///
    /// # Errors
    /// [`AtomicAtError`]; nothing was written.
    pub fn compare_swap_at(
        &self,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, AtomicAtError> {
        let order = Ordering::SeqCst;
        let found = self.cell(offset)?;
        let (Ok(old) | Err(old)) = found.compare_exchange(compare, swap, order, order);
        Ok(old)
    }

    /// Stores eight bytes at `offset` at once; what was there before.
    ///
    /// # Errors
    /// [`AtomicAtError`]; nothing was written.
    pub fn swap_at(&self, offset: u64, value: u64) -> Result<u64, AtomicAtError> {
        Ok(self.cell(offset)?.swap(value, Ordering::SeqCst))
    }
}

#[cfg(test)]
impl Region {
    /// As [`Self::anonymous`], for tests that need no file: Miri has no memfd.
    pub(crate) fn for_tests(len: usize) -> Self {
        if !cfg!(miri) {
            return Self::anonymous(len).unwrap();
        }
        let words = vec![0u64; len.div_ceil(8)].leak();
        // SAFETY: memory that lives for ever, which nobody else knows.
        unsafe { Self::of_memory(NonNull::from(words).cast(), len) }.unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_in_and_out_over_chunk_borders() {
        let region = Region::for_tests(10_000);
        let data: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
        for offset in [0, 1, 31, 1023, 1024, 5000] {
            region.write_at(offset, &data).unwrap();
            let mut back = vec![0; data.len()];
            region.read_at(offset, &mut back).unwrap();
            assert_eq!(back, data);
        }
    }

    #[test]
    fn the_bounds_hold() {
        let region = Region::for_tests(100);
        for (offset, len) in [
            (0, 101),
            (100, 1),
            (u64::MAX, 1),
            (u64::MAX - 3, 8),
            (99, 2),
        ] {
            let refused = OutOfRange {
                offset,
                len,
                size: 100,
            };
            assert_eq!(region.write_at(offset, &vec![1; len]), Err(refused));
            let mut out = vec![7; len];
            assert_eq!(region.read_at(offset, &mut out), Err(refused));
            assert_eq!(out, vec![7; len]);
        }
        region.write_at(100, &[]).unwrap();
        let mut all = vec![1; 100];
        region.read_at(0, &mut all).unwrap();
        assert_eq!(all, vec![0; 100]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn the_size_is_sealed() {
        let region = Region::anonymous(4096).unwrap();
        assert!(ftruncate(region.fd().unwrap(), 0).is_err());
        assert!(ftruncate(region.fd().unwrap(), 8192).is_err());
        assert_eq!(
            Region::anonymous(0).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }

    #[test]
    fn atomics_return_what_was_there() {
        let region = Region::for_tests(24);
        region.write_at(8, &5u64.to_ne_bytes()).unwrap();
        assert_eq!(region.fetch_add_at(8, u64::MAX), Ok(5));
        assert_eq!(region.compare_swap_at(8, 5, 9), Ok(4));
        assert_eq!(region.compare_swap_at(8, 4, 9), Ok(4));
        assert_eq!(region.swap_at(8, 1), Ok(9));
        let mut all = [0; 24];
        region.read_at(0, &mut all).unwrap();
        let mut expected = [0; 24];
        expected[8..16].copy_from_slice(&1u64.to_ne_bytes());
        assert_eq!(all, expected);
    }

    #[test]
    fn atomics_keep_their_bounds() {
        let region = Region::for_tests(20);
        for offset in [16, 24, u64::MAX - 7] {
            let refused = region.fetch_add_at(offset, 1);
            assert!(matches!(refused, Err(AtomicAtError::OutOfRange(_))));
        }
        let refused = Err(AtomicAtError::Misaligned(4));
        assert_eq!(region.compare_swap_at(4, 0, 1), refused);
        assert_eq!(region.swap_at(4, 1), refused);
    }

    #[test]
    fn additions_of_two_threads_all_count() {
        const ROUNDS: u64 = if cfg!(miri) { 100 } else { 10_000 };
        let region = Region::for_tests(8);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        region.fetch_add_at(0, 1).unwrap();
                    }
                });
            }
        });
        assert_eq!(region.fetch_add_at(0, 0), Ok(2 * ROUNDS));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn a_part_of_a_file_is_shared_where_it_lies() {
        let region = Region::anonymous(10_000).unwrap();
        region.write_at(5000, b"here").unwrap();
        let shared = region.share(5000, 4).unwrap();
        let [piece] = shared.pieces() else { panic!() };
        assert_eq!((piece.offset, piece.len, shared.lead()), (4096, 908, 904));
        let theirs = Region::from_pieces(vec![crate::Piece {
            fd: piece.fd.try_clone().unwrap(),
            offset: piece.offset,
            len: piece.len,
        }]);
        let mut seen = [0; 4];
        theirs.unwrap().read_at(shared.lead(), &mut seen).unwrap();
        assert_eq!(&seen, b"here");
        assert!(region.share(9_999, 2).is_err());
    }

    #[test]
    fn heap_memory_stays_where_it_is() {
        let bytes = vec![7; 5000];
        let address = bytes.as_ptr().addr() as u64;
        let region = Region::of_heap(bytes).unwrap();
        assert_eq!((region.address(), region.len()), (address, 5000));
        assert!(!region.is_file() && region.fd().is_none());
        let mut seen = [0; 2];
        region.read_at(4998, &mut seen).unwrap();
        assert_eq!(seen, [7; 2]);
        assert!(Region::of_heap(Vec::new()).is_err());
    }

    #[test]
    fn clones_are_the_same_memory() {
        let a = Region::for_tests(8);
        let b = a.clone();
        a.write_at(3, &[42]).unwrap();
        let mut byte = [0];
        b.read_at(3, &mut byte).unwrap();
        assert_eq!(byte, [42]);
        assert_eq!(a.address(), b.address());
    }
}
