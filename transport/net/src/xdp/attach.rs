//! The program on an interface, and the sockets and addresses it serves.
//!
//! One program is shared by all ports of an interface in this process; the last port takes it
//! away.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use xroce_wire::newtypes::Gid;
use xroce_xdp_prog::{Counters, RoceProgram};

use super::link::{CounterReader, ProgramLink, bpf_error, mode_name, quiet_libbpf};
use super::{Mode, XdpError};
use crate::neigh::Interface;

/// The programs of this process, one per interface.
static ATTACHED: Mutex<Vec<Weak<Attachment>>> = Mutex::new(Vec::new());

/// The program on one interface.
#[derive(Debug)]
struct Attachment {
    place: Place,
    // Dropped in this order: the program goes from the interface first.
    link: ProgramLink,
    program: RoceProgram,
    /// Addresses claimed, and by how many ports.
    addresses: Mutex<BTreeMap<[u8; 16], u32>>,
    counters: Mutex<CounterReader>,
}

/// An interface: network namespace (device and inode number of its file) and index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    netns: (u64, u64),
    ifindex: u32,
}

/// A port's share in the program: its queue and its addresses. Given up on drop.
#[derive(Debug)]
pub(super) struct Claim {
    attachment: Arc<Attachment>,
    queue: u32,
    addresses: Vec<Gid>,
}

impl Claim {
    /// Sends RoCE frames to `addresses` that arrive on `queue` to `socket`, attaching the program
    /// unless a port of this process did.
    pub(super) fn new(
        interface: &Interface,
        mode: Mode,
        queue: u32,
        addresses: &[Gid],
        socket: BorrowedFd<'_>,
    ) -> Result<Self, XdpError> {
        let attachment = Attachment::of(interface, mode)?;
        let mut claim = Self {
            attachment,
            queue,
            addresses: Vec::new(),
        };
        for &gid in addresses {
            claim.add_address(gid)?;
        }
        claim
            .attachment
            .program
            .set_socket(queue, socket)
            .map_err(|e| bpf_error("registering the socket with the XDP program", &e))?;
        Ok(claim)
    }

    /// Whether the program runs in the network stack, not in the driver.
    pub(super) fn is_generic(&self) -> bool {
        self.attachment.link.is_generic()
    }

    /// What the program has seen on this interface, all queues together.
    pub(super) fn counters(&self) -> io::Result<Counters> {
        lock(&self.attachment.counters).read(&self.attachment.program)
    }

    /// Claims the frames to one more address.
    pub(super) fn add_address(&mut self, gid: Gid) -> Result<(), XdpError> {
        if self.addresses.contains(&gid) {
            return Ok(());
        }
        let mut claimed = lock(&self.attachment.addresses);
        self.attachment
            .program
            .add_address(gid.bytes())
            .map_err(|e| bpf_error("registering an address with the XDP program", &e))?;
        *claimed.entry(gid.bytes()).or_default() += 1;
        drop(claimed);
        self.addresses.push(gid);
        Ok(())
    }

    /// Gives up the frames to an address, if they were claimed.
    pub(super) fn remove_address(&mut self, gid: Gid) {
        let before = self.addresses.len();
        self.addresses.retain(|&a| a != gid);
        if self.addresses.len() != before {
            self.attachment.release(gid);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Fails if the socket was never registered; the kernel removes it with the socket anyway.
        let _ = self.attachment.program.clear_socket(self.queue);
        for &gid in &self.addresses {
            self.attachment.release(gid);
        }
    }
}

impl Attachment {
    /// One port less wants an address; the last takes it out of the program.
    fn release(&self, gid: Gid) {
        let bytes = gid.bytes();
        let mut claimed = lock(&self.addresses);
        match claimed.get_mut(&bytes) {
            Some(n) if *n > 1 => *n -= 1,
            _ => {
                claimed.remove(&bytes);
                let _ = self.program.remove_address(bytes);
            }
        }
    }

    /// The program of this process on `interface`, attached now if it was not.
    fn of(interface: &Interface, mode: Mode) -> Result<Arc<Self>, XdpError> {
        let place = Place {
            netns: netns(),
            ifindex: interface.index,
        };
        // Held while attaching: two ports opened at once must not both attach.
        let mut attached = lock(&ATTACHED);
        attached.retain(|weak| weak.strong_count() > 0);
        if let Some(found) = attached
            .iter()
            .filter_map(Weak::upgrade)
            .find(|a| a.place == place)
        {
            let fits = match mode {
                Mode::Auto => true,
                Mode::Native => !found.link.is_generic(),
                Mode::Generic => found.link.is_generic(),
            };
            return if fits {
                Ok(found)
            } else {
                let attached = mode_name(found.link.is_generic());
                Err(XdpError::OtherMode {
                    ifname: interface.name.clone(),
                    attached,
                })
            };
        }
        quiet_libbpf();
        let program = RoceProgram::load().map_err(|e| bpf_error("loading the XDP program", &e))?;
        let link = ProgramLink::attach(program.fd(), interface, mode)?;
        let addresses = Mutex::default();
        let new = Arc::new(Self {
            place,
            program,
            link,
            addresses,
            counters: Mutex::new(CounterReader::new()?),
        });
        attached.push(Arc::downgrade(&new));
        Ok(new)
    }
}

/// The network namespace of this thread.
fn netns() -> (u64, u64) {
    fs::metadata("/proc/thread-self/ns/net").map_or((0, 0), |m| (m.dev(), m.ino()))
}

/// A panic while the lock was held leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
