//! Holding off all writers of a range, by userfaultfd.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

// From the kernel's `include/uapi/linux/userfaultfd.h`.
const UFFD_API: u64 = 0xaa;
const GROUP: u8 = 0xaa;
const FEATURE_WP: u64 = 1;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const REGISTER_MODE_WP: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;
/// Handle faults of user code only: the form that needs no privilege.
const USER_MODE_ONLY: u32 = 1;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct Span {
    start: u64,
    len: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    range: Span,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct Protect {
    range: Span,
    mode: u64,
}

const API: Opcode = opcode::read_write::<Api>(GROUP, 0x3f);
const REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 0);
const WAKE: Opcode = opcode::read::<Span>(GROUP, 2);
const PROTECT: Opcode = opcode::read_write::<Protect>(GROUP, 6);

/// Which faults are held: those of system calls too need a privilege.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Faults {
    All,
    User,
}

/// Writers of registered memory wait while this lives; those that wait go on when it is dropped.
#[derive(Debug)]
pub(super) struct Guard {
    fd: OwnedFd,
}

impl Guard {
    pub(super) fn new(faults: Faults) -> io::Result<Self> {
        let flags = match faults {
            Faults::All => 0,
            Faults::User => USER_MODE_ONLY,
        };
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(flags);
        // SAFETY: the descriptor stays in this module, which only delays writes to memory.
        let fd = unsafe { userfaultfd(flags) }?;
        let guard = Self { fd };
        // Without the second feature pages that were never touched are not protected.
        let mut api = Api {
            api: UFFD_API,
            features: FEATURE_WP | FEATURE_WP_UNPOPULATED,
            ioctls: 0,
        };
        // SAFETY: API takes an `Api`.
        let call = unsafe { Updater::<API, _>::new(&mut api) };
        // SAFETY: changes nothing but `api` and the descriptor.
        unsafe { ioctl(&guard.fd, call) }?;
        Ok(guard)
    }

    /// From now on writers of `range`, whole pages, wait. Allocates nothing.
    pub(super) fn hold(&self, range: &Range<u64>) -> io::Result<()> {
        let span = || Span {
            start: range.start,
            len: range.end - range.start,
        };
        let mut register = Register {
            range: span(),
            mode: REGISTER_MODE_WP,
            ioctls: 0,
        };
        // SAFETY: REGISTER takes a `Register`.
        let call = unsafe { Updater::<REGISTER, _>::new(&mut register) };
        // SAFETY: changes nothing but `register`; memory keeps its bytes.
        unsafe { ioctl(&self.fd, call) }?;
        let mut protect = Protect {
            range: span(),
            mode: WRITEPROTECT_MODE_WP,
        };
        // SAFETY: PROTECT takes a `Protect`.
        let call = unsafe { Updater::<PROTECT, _>::new(&mut protect) };
        // SAFETY: memory keeps its bytes, writes to it wait.
        unsafe { ioctl(&self.fd, call) }?;
        Ok(())
    }

    /// Writers of `range` go on, in whatever is mapped there now.
    pub(super) fn wake(&self, range: &Range<u64>) -> io::Result<()> {
        let mut span = Span {
            start: range.start,
            len: range.end - range.start,
        };
        // SAFETY: WAKE takes a `Span`.
        let call = unsafe { Updater::<WAKE, _>::new(&mut span) };
        // SAFETY: lets threads go on.
        Ok(unsafe { ioctl(&self.fd, call) }?)
    }
}

/// The address as what system calls take.
pub(super) fn address(at: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap_or(0))
}
