//! Making ordinary memory of this process shareable, where it lies.
//!
//! [`adopt`] replaces pages (heap, stack, anonymous mappings) by a mapping of a sealed memfd with
//! the same bytes at the same addresses. The memfd can be given to another process, which then
//! reads and writes the very memory ([`crate::Region::from_pieces`]).
//!
//! # How
//! A helper thread write-protects the pages by userfaultfd, copies them to the memfd, moves a
//! mapping of it over them and wakes whoever waited to write. So nothing that other threads write
//! meanwhile is lost. It is a thread of its own because its stack is not among the pages; and it
//! allocates nothing while they are protected, as they may be the heap.
//!
//! What stays of it, and what it cannot do: [`crate::Region::share`].

mod guard;
mod maps;

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, major, memfd_create, minor,
};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mremap_fixed, munmap};
use rustix::process::{Resource, getrlimit};

use guard::{Faults, Guard, address};
pub use maps::Mapping;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// By how much a memfd is longer than what is adopted, in bytes. An allocator may lengthen the
/// mapping (`realloc` of a large block of glibc does); without room in the file the new pages
/// would be a SIGBUS. Empty room costs no memory.
const ROOM: u64 = 1 << 40;

/// Bytes of one copy by the system, which takes less than 2 GiB.
const COPY: u64 = 64 << 20;

/// How writers are held off, the better way first. System calls that write are held off only by the
/// first, which needs a privilege.
const GUARDS: [Faults; 2] = [Faults::All, Faults::User];

/// Memory that was not adopted; it is as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// Nothing to adopt.
    #[error("a range of 0 bytes")]
    Empty,
    /// The range reaches past the last address.
    #[error("{len} bytes from {address:#x} reach past the last address")]
    TooLong {
        /// First address.
        address: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The file behind the memory is another process's.
    #[error("the memory at {0:#x} is of another process's file, which cannot be handed on")]
    Theirs(u64),
    /// Nothing is mapped in a part of the range.
    #[error("nothing is mapped at {0:#x}")]
    Unmapped(u64),
    /// Memory of a kind that cannot be adopted.
    #[error("memory of the mapping {0} cannot be adopted: it is not private, anonymous, rw-")]
    Mapping(Box<Mapping>),
    /// Writers cannot be held off.
    #[error("writers cannot be held off while memory is copied: no userfaultfd")]
    NoGuard(#[source] io::Error),
    /// The system refused one of the steps.
    #[error("adoption failed: {step}")]
    System {
        /// What was to be done.
        step: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

fn failed(step: &'static str) -> impl Fn(rustix::io::Errno) -> AdoptError {
    move |errno| AdoptError::System {
        step,
        source: errno.into(),
    }
}

/// A part of adopted memory.
#[derive(Clone, Debug)]
pub struct AdoptedPiece {
    /// The memfd: sealed against shrinking and against other seals, and longer than the piece.
    pub fd: Arc<OwnedFd>,
    /// Where the piece begins in the memfd, in bytes; whole pages.
    pub offset: u64,
    /// Address of its first byte in this process; whole pages.
    pub address: u64,
    /// Its length in bytes; whole pages, but for what was in a memfd to begin with.
    pub len: u64,
}

/// A range whose pages are all shareable. Dropping it changes no memory.
#[derive(Clone, Debug)]
pub struct Adopted {
    pieces: Vec<AdoptedPiece>,
    lead: u64,
    len: u64,
}

impl Adopted {
    /// A part of a memfd that is mapped as a whole at `base`.
    pub(crate) fn of_file(fd: &Arc<OwnedFd>, base: u64, offset: u64, len: u64) -> Self {
        let lead = offset % PAGE;
        let piece = AdoptedPiece {
            fd: Arc::clone(fd),
            offset: offset - lead,
            address: base + offset - lead,
            len: lead + len,
        };
        let pieces = vec![piece];
        Self { pieces, lead, len }
    }

    /// The pages of the range, in rising order of addresses and without gaps. One piece, unless
    /// some of the pages were adopted earlier.
    #[must_use]
    pub fn pieces(&self) -> &[AdoptedPiece] {
        &self.pieces
    }

    /// Where the range begins in the first piece, in bytes, below 4096.
    #[must_use]
    pub fn lead(&self) -> u64 {
        self.lead
    }

    /// Length of the range in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never true.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A memfd that has taken over memory.
#[derive(Debug)]
struct File {
    fd: Arc<OwnedFd>,
    device: (u32, u32),
    inode: u64,
}

/// The memfds of this process. What of them is mapped where is not kept here: owners unmap and move
/// memory without telling, so the kernel's own list is read each time.
static FILES: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Makes the pages of `len` bytes at `address` shareable; pages that are so already stay where they
/// are.
///
/// It costs a copy of the pages, as to memory never touched (1 GiB: 0.7 s), and some tenths of a
/// millisecond (`examples/adopt_cost.rs`); threads that write to the pages wait so long.
///
/// # Errors
/// [`AdoptError`]; memory is as before, but of a range in several mappings or with adopted pages in
/// its middle a first part may have been adopted. Where writers cannot be held off (no
/// userfaultfd), nothing is adopted.
///
/// # Safety
/// "The pages" are all pages on which a byte of the range lies; so they may hold bytes of others.
/// * During the call no thread unmaps the pages, moves them, maps something else there or changes
///   their protection: they would be replaced by what was there when the call began.
/// * From then on whoever gets a file of [`Adopted::pieces`] can write any byte of the pages at any
///   time. While somebody has such a file who may write a byte, the program has no reference to
///   that byte but to atomics: it uses raw pointers or a [`crate::Region`]. Who is given a file must
///   leave bytes outside the range alone.
/// * Nobody relies on what private memory does and shared memory does not: `MADV_DONTNEED` makes
///   no zeroes, and after `fork` parent and child write to the same bytes.
pub(crate) unsafe fn adopt(address: u64, len: u64) -> Result<Adopted, AdoptError> {
    // SAFETY: the caller's promise.
    unsafe { adopt_guarded(address, len, &GUARDS) }
}

/// As [`adopt`], with the first of `guards` that the system grants.
///
/// # Safety
/// As of [`adopt`].
unsafe fn adopt_guarded(address: u64, len: u64, guards: &[Faults]) -> Result<Adopted, AdoptError> {
    if len == 0 {
        return Err(AdoptError::Empty);
    }
    let start = address - address % PAGE;
    let end = address.checked_add(len);
    let end = end.and_then(|end| end.checked_next_multiple_of(PAGE));
    let end = end.ok_or(AdoptError::TooLong { address, len })?;
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let text = std::fs::read_to_string("/proc/self/maps").map_err(|source| AdoptError::System {
        step: "read /proc/self/maps",
        source,
    })?;
    let maps = maps::parse(&text);
    let mapped: BTreeSet<_> = maps.iter().map(|m| (m.device, m.inode)).collect();
    // Nobody can ask for these any more.
    files.retain(|f| Arc::strong_count(&f.fd) > 1 || mapped.contains(&(f.device, f.inode)));
    // All is looked at before anything is done.
    let mut pieces = Vec::new();
    for part in parts(&maps, &files, start..end)? {
        pieces.push(match part {
            Part::Shared(piece) => piece,
            Part::Ordinary(range) => {
                // SAFETY: whole pages of the caller's range.
                let file = unsafe { replace(range.clone(), guards) }?;
                let fd = Arc::clone(&file.fd);
                files.push(file);
                AdoptedPiece {
                    fd,
                    offset: 0,
                    address: range.start,
                    len: range.end - range.start,
                }
            }
        });
    }
    Ok(Adopted {
        pieces,
        lead: address - start,
        len,
    })
}

/// A part of a range.
enum Part {
    /// Adopted earlier.
    Shared(AdoptedPiece),
    /// To be adopted.
    Ordinary(Range<u64>),
}

/// What `range` consists of, neighbours of the same kind joined.
fn parts(maps: &[Mapping], files: &[File], range: Range<u64>) -> Result<Vec<Part>, AdoptError> {
    let mut parts: Vec<Part> = Vec::new();
    let mut at = range.start;
    for map in maps.iter().filter(|m| m.range.end > range.start) {
        if at >= range.end || map.range.start > at {
            break;
        }
        let end = map.range.end.min(range.end);
        let file = files
            .iter()
            .find(|f| f.inode == map.inode && f.device == map.device);
        if let Some(file) = file.filter(|_| map.permissions == "rw-s") {
            let (offset, len) = (map.offset + (at - map.range.start), end - at);
            match parts.last_mut() {
                Some(Part::Shared(last))
                    if Arc::ptr_eq(&last.fd, &file.fd) && last.offset + last.len == offset =>
                {
                    last.len += len;
                }
                _ => parts.push(Part::Shared(AdoptedPiece {
                    fd: Arc::clone(&file.fd),
                    offset,
                    address: at,
                    len,
                })),
            }
        } else if map.is_ordinary() {
            match parts.last_mut() {
                Some(Part::Ordinary(last)) => last.end = end,
                _ => parts.push(Part::Ordinary(at..end)),
            }
        } else {
            return Err(AdoptError::Mapping(Box::new(map.clone())));
        }
        at = end;
    }
    if at < range.end {
        return Err(AdoptError::Unmapped(at));
    }
    Ok(parts)
}

/// The memfd for `len` bytes.
fn file(len: u64) -> Result<File, AdoptError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("xroce-adopted", flags).map_err(failed("make a memfd"))?;
    // To exceed the limit would be a signal.
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    let size = len.saturating_add(ROOM).min(limit).max(len);
    let size = size.min(i64::MAX.unsigned_abs());
    if size > limit {
        return Err(failed("size the memfd")(rustix::io::Errno::FBIG));
    }
    ftruncate(&fd, size).map_err(failed("size the memfd"))?;
    let seals = SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&fd, seals).map_err(failed("seal the memfd"))?;
    let stat = fstat(&fd).map_err(failed("look at the memfd"))?;
    Ok(File {
        fd: Arc::new(fd),
        device: (major(stat.st_dev), minor(stat.st_dev)),
        inode: stat.st_ino,
    })
}

/// Replaces `range`, whole pages, by a mapping of a memfd with the same bytes.
///
/// # Safety
/// As of [`adopt`].
unsafe fn replace(range: Range<u64>, guards: &[Faults]) -> Result<File, AdoptError> {
    let mut guard = Err(io::Error::from(io::ErrorKind::Unsupported));
    for faults in guards {
        guard = Guard::new(*faults);
        if guard.is_ok() {
            break;
        }
    }
    let guard = guard.map_err(AdoptError::NoGuard)?;
    let file = file(range.end - range.start)?;
    let fd = Arc::clone(&file.fd);
    // SAFETY: the caller's promise; this function waits for the thread.
    let work = move || unsafe { swap(&range, &fd, guard) };
    let quiet = Quiet::new();
    // The helper inherits the mask.
    let helper = std::thread::Builder::new().spawn(work);
    let helper = helper.map_err(|source| AdoptError::System {
        step: "start a thread",
        source,
    })?;
    let done = helper.join();
    drop(quiet);
    match done {
        Ok(Ok(())) => Ok(file),
        Ok(Err((step, errno))) => Err(failed(step)(errno)),
        Err(_) => Err(failed("run the thread")(rustix::io::Errno::CANCELED)),
    }
}

type Failure = (&'static str, rustix::io::Errno);

/// Protects, copies, replaces, wakes. Allocates nothing, and writes nowhere but to this thread's
/// stack until the guard is dropped, which is at its end: after a failure the pages are protected
/// until then.
///
/// # Safety
/// As of [`adopt`]; `fd` is a file of the length of `range` that nobody else knows.
unsafe fn swap(range: &Range<u64>, fd: &OwnedFd, guard: Guard) -> Result<(), Failure> {
    let held = guard.hold(range);
    held.map_err(|e| ("protect the pages", errno(&e)))?;
    // SAFETY: the pages stay what they are, and all writers wait.
    let done = copy(range, fd).and_then(|()| unsafe { cover(range, fd) });
    // Closing it wakes as well, should this fail.
    let woken = guard.wake(range);
    drop(guard);
    debug_assert!(woken.is_ok());
    done
}

fn errno(error: &io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::IO)
}

/// The bytes of `range` to the start of the file, by the system: no page of the file is zeroed
/// first or faulted in.
fn copy(range: &Range<u64>, fd: &OwnedFd) -> Result<(), Failure> {
    let mut at = range.start;
    while at < range.end {
        let len = usize::try_from((range.end - at).min(COPY)).unwrap_or(0);
        // SAFETY: `pwrite` reads the memory of this process that the caller named, and fails with
        // EFAULT where nothing is mapped. No reference to it is made.
        let copied = unsafe {
            libc::pwrite(
                std::os::fd::AsRawFd::as_raw_fd(fd),
                address(at),
                len,
                i64::try_from(at - range.start).unwrap_or(i64::MAX),
            )
        };
        match u64::try_from(copied) {
            Ok(copied) if copied > 0 => at += copied,
            _ => return Err(("copy the pages", errno(&io::Error::last_os_error()))),
        }
    }
    Ok(())
}

/// Maps the file over `range`.
///
/// # Safety
/// As of [`adopt`]; the file has the bytes of `range`, and nobody writes there.
unsafe fn cover(range: &Range<u64>, fd: &OwnedFd) -> Result<(), Failure> {
    let len = usize::try_from(range.end - range.start).unwrap_or(0);
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // The pages are there; to map them now spares a fault for each.
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let made = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) };
    let made = made.map_err(|e| ("map the memfd", e))?;
    let over = address(range.start);
    // SAFETY: both are whole pages, and `made` is this function's. What is replaced has the same
    // bytes, and its owner has agreed to the exchange.
    let moved = unsafe { mremap_fixed(made, len, len, MremapFlags::MAYMOVE, over) };
    if let Err(why) = moved {
        // SAFETY: just mapped, known to nobody.
        let unmapped = unsafe { munmap(made, len) };
        debug_assert!(unmapped.is_ok());
        return Err(("replace the pages", why));
    }
    Ok(())
}

/// No signal runs on this thread while it lives: its stack may be among the protected pages.
struct Quiet {
    before: libc::sigset_t,
}

impl Quiet {
    fn new() -> Self {
        // SAFETY: a `sigset_t` is bits.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = all;
        // SAFETY: `all` is a set.
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: both are sets.
        let masked =
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        debug_assert_eq!(masked, 0);
        Self { before }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let before = &raw const self.before;
        // SAFETY: `before` is what the mask was.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests;
