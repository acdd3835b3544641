//! `roce.bpf.c`: passes to the kernel all that is not RoCEv2 to a registered address on a queue with
//! a socket; see the source for the exact rule.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Result};

use crate::skeletons::roce::RoceSkelBuilder;

/// Receive queues a program can serve: queue numbers are 0 ..= 255.
pub const MAX_QUEUES: u32 = 256;
/// Addresses a program can claim.
pub const MAX_ADDRESSES: usize = 1024;

/// Frames the program has seen, summed over the CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Not ours: left to the kernel.
    pub passed: u64,
    /// Redirected to a socket (the socket may still drop them for want of a frame).
    pub redirected: u64,
    /// RoCEv2 to one of our addresses, but on a queue without a socket: left to the kernel.
    pub no_socket: u64,
    /// First fragments of RoCEv2 datagrams to our addresses: left to the kernel.
    pub fragments: u64,
}

impl Counters {
    /// From the map, of which `each` gives the value under a key.
    ///
    /// # Errors
    /// The first of `each`.
    pub fn read<E>(
        mut each: impl FnMut(u32) -> std::result::Result<u64, E>,
    ) -> std::result::Result<Self, E> {
        // The order of `enum counter`.
        Ok(Self {
            passed: each(0)?,
            redirected: each(1)?,
            no_socket: each(2)?,
            fragments: each(3)?,
        })
    }
}

/// The loaded program and its maps.
#[derive(Debug)]
pub struct RoceProgram {
    program: OwnedFd,
    sockets: MapHandle,
    addresses: MapHandle,
    counters: MapHandle,
}

impl RoceProgram {
    /// Loads the program and creates its maps; attaches nothing.
    ///
    /// # Errors
    /// The kernel refuses: no CAP_BPF/CAP_NET_ADMIN (`PermissionDenied`), or a kernel without
    /// XSKMAP or multi-buffer XDP (before 5.18).
    pub fn load() -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let loaded = RoceSkelBuilder::default().open(&mut storage)?.load()?;
        // Only descriptors are kept: the skeleton borrows `storage` and ends here.
        Ok(Self {
            program: loaded.progs.xroce_steer.as_fd().try_clone_to_owned()?,
            sockets: MapHandle::try_from(&loaded.maps.sockets)?,
            addresses: MapHandle::try_from(&loaded.maps.addresses)?,
            counters: MapHandle::try_from(&loaded.maps.counters)?,
        })
    }

    /// The program, for attaching it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Sends the frames of `queue` to the AF_XDP socket `socket`, in place of any other.
    ///
    /// The kernel removes the entry by itself when the socket is closed.
    ///
    /// # Errors
    /// `queue` is not below [`MAX_QUEUES`], or `socket` is not an AF_XDP socket.
    pub fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<()> {
        let fd = socket.as_raw_fd();
        self.sockets
            .update(&queue.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
    }

    /// Leaves the frames of `queue` to the kernel again.
    ///
    /// # Errors
    /// There was no socket for this queue.
    pub fn clear_socket(&self, queue: u32) -> Result<()> {
        self.sockets.delete(&queue.to_ne_bytes())
    }

    /// Claims RoCEv2 frames to `gid` (network order; IPv4 mapped into `::ffff:0:0/96`).
    ///
    /// # Errors
    /// [`MAX_ADDRESSES`] are claimed already.
    pub fn add_address(&self, gid: [u8; 16]) -> Result<()> {
        self.addresses
            .update(&gid, &1u32.to_ne_bytes(), MapFlags::ANY)
    }

    /// Gives up `gid`.
    ///
    /// # Errors
    /// It was not claimed.
    pub fn remove_address(&self, gid: [u8; 16]) -> Result<()> {
        self.addresses.delete(&gid)
    }

    /// The map of what the program has seen: [`Counters::read`] knows what is where. A per-CPU
    /// array with keys of four bytes and values of eight.
    #[must_use]
    pub fn counters_map(&self) -> BorrowedFd<'_> {
        self.counters.as_fd()
    }
}
