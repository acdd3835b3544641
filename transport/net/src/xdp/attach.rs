//! The program on an interface, and the sockets and addresses it serves.
//!
//! One program is shared by all ports of an interface in this process; the last port takes it
//! away. It is attached by a bpf_link, never by netlink: the link is a file descriptor, so the
//! kernel detaches the program when the process ends, however it ends, and nobody can replace it
//! meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use libbpf_rs::libbpf_sys::{
    BPF_XDP, XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE, bpf_link_create, bpf_link_create_opts,
    bpf_link_detach,
};
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, ProgInfoIter};
use libbpf_rs::{ErrorKind, PrintLevel, Xdp, XdpFlags, set_print};
use rustix::io::Errno;
use xroce_wire::newtypes::Gid;
use xroce_xdp_prog::{Counters, RoceProgram};

use super::{Mode, XdpError};
use crate::neigh::Interface;

/// Attempts to attach while another program is there, and the pause between them: that of a
/// process just killed needs a few milliseconds to go away.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// The programs of this process, one per interface.
static ATTACHED: Mutex<Vec<Weak<Attachment>>> = Mutex::new(Vec::new());

/// The program on one interface.
#[derive(Debug)]
struct Attachment {
    place: Place,
    program: RoceProgram,
    link: OwnedFd,
    generic: bool,
    /// Addresses claimed, and by how many ports.
    addresses: Mutex<BTreeMap<[u8; 16], u32>>,
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
        self.attachment.generic
    }

    /// What the program has seen on this interface, all queues together.
    pub(super) fn counters(&self) -> io::Result<Counters> {
        self.attachment.program.counters().map_err(io::Error::other)
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
                Mode::Native => !found.generic,
                Mode::Generic => found.generic,
            };
            return if fits {
                Ok(found)
            } else {
                let attached = mode_name(found.generic);
                Err(XdpError::OtherMode {
                    ifname: interface.name.clone(),
                    attached,
                })
            };
        }
        quiet_libbpf();
        let program = RoceProgram::load().map_err(|e| bpf_error("loading the XDP program", &e))?;
        let (link, generic) = attach(&program, interface, mode)?;
        let addresses = Mutex::default();
        let new = Arc::new(Self {
            place,
            program,
            link,
            generic,
            addresses,
        });
        attached.push(Arc::downgrade(&new));
        Ok(new)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // Closing the link would do, were it the only descriptor: but a process that another
        // thread is starting has a copy of it until it has started.
        //
        // SAFETY: the descriptor is open and a bpf_link; the call takes nothing else.
        unsafe { bpf_link_detach(self.link.as_raw_fd()) };
    }
}

/// Attaches as `mode` says; the link, and whether it is generic.
fn attach(
    program: &RoceProgram,
    interface: &Interface,
    mode: Mode,
) -> Result<(OwnedFd, bool), XdpError> {
    let generic = mode == Mode::Generic;
    let error = match attach_patiently(program, interface, generic) {
        Ok(link) => return Ok((link, generic)),
        Err(error) => error,
    };
    // What drivers say that cannot do XDP, or not with this MTU or these features.
    let cannot = [
        Errno::OPNOTSUPP,
        Errno::NOTSUP,
        Errno::INVAL,
        Errno::RANGE,
        NOT_SUPPORTED_BY_KERNEL,
    ];
    if mode == Mode::Auto && cannot.contains(&error) {
        tracing::info!(ifname = %interface.name, %error, "no native XDP, using generic mode");
        return match attach_patiently(program, interface, true) {
            Ok(link) => Ok((link, true)),
            Err(error) => Err(attach_error(program, interface, true, error)),
        };
    }
    Err(attach_error(program, interface, generic, error))
}

/// ENOTSUPP: not for user space, but some drivers let it out.
const NOT_SUPPORTED_BY_KERNEL: Errno = Errno::from_raw_os_error(524);

fn attach_patiently(
    program: &RoceProgram,
    interface: &Interface,
    generic: bool,
) -> Result<OwnedFd, Errno> {
    for _ in 1..ATTEMPTS {
        match attach_once(program, interface.index, generic) {
            Err(Errno::BUSY | Errno::EXIST) => thread::sleep(PAUSE),
            result => return result,
        }
    }
    attach_once(program, interface.index, generic)
}

fn attach_once(program: &RoceProgram, ifindex: u32, generic: bool) -> Result<OwnedFd, Errno> {
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as _,
        flags: if generic {
            XDP_FLAGS_SKB_MODE
        } else {
            XDP_FLAGS_DRV_MODE
        },
        ..Default::default()
    };
    let ifindex = i32::try_from(ifindex).map_err(|_| Errno::NODEV)?;
    let program = program.fd().as_raw_fd();
    // SAFETY: the program is open, `options` is initialised, has its true size in `sz` and
    // outlives the call; libbpf keeps no reference to it.
    let fd = unsafe { bpf_link_create(program, ifindex, BPF_XDP, &options) };
    if fd < 0 {
        return Err(Errno::from_raw_os_error(-fd));
    }
    // SAFETY: a new descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn attach_error(
    program: &RoceProgram,
    interface: &Interface,
    generic: bool,
    error: Errno,
) -> XdpError {
    let ifname = interface.name.clone();
    match error {
        Errno::BUSY | Errno::EXIST => occupied(program, interface),
        Errno::PERM | Errno::ACCESS => XdpError::Permission {
            what: "attaching an XDP program",
        },
        _ => XdpError::Attach {
            ifname,
            mtu: interface.mtu,
            mode: mode_name(generic),
            source: error.into(),
        },
    }
}

/// Says which program has the interface and how to remove it.
fn occupied(program: &RoceProgram, interface: &Interface) -> XdpError {
    let ifname = interface.name.clone();
    let index = i32::try_from(interface.index).unwrap_or_default();
    let id = Xdp::new(program.fd())
        .query(index, XdpFlags::NONE)
        .map(|q| [q.prog_id, q.drv_prog_id, q.skb_prog_id, q.hw_prog_id])
        .ok()
        .and_then(|ids| ids.into_iter().find(|&id| id != 0));
    let Some(id) = id else {
        let remedy = format!("Look with: ip link show dev {ifname}");
        return XdpError::Occupied {
            program: "unknown".to_owned(),
            remedy,
            ifname,
        };
    };
    let name = ProgInfoIter::default()
        .find(|p| p.id == id)
        .map(|p| p.name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let link = LinkInfoIter::default().find(|l| {
        l.prog_id == id && matches!(&l.info, LinkTypeInfo::Xdp(x) if x.ifindex == interface.index)
    });
    let ours = name == xroce_xdp_prog::PROGRAM_NAME;
    let remedy = match link {
        Some(_) if ours => "Another xroce process has the interface: end it, it takes the program \
                            away"
            .to_owned(),
        Some(link) => format!(
            "The process that holds bpf_link {} must end (bpftool link detach id {})",
            link.id, link.id
        ),
        None => format!("Remove it with: ip link set dev {ifname} xdp off"),
    };
    XdpError::Occupied {
        program: format!("`{name}`, id {id}"),
        remedy,
        ifname,
    }
}

fn mode_name(generic: bool) -> &'static str {
    if generic { "generic" } else { "native" }
}

fn bpf_error(what: &'static str, error: &libbpf_rs::Error) -> XdpError {
    match error.kind() {
        ErrorKind::PermissionDenied => XdpError::Permission { what },
        _ => XdpError::System {
            what,
            source: io::Error::other(format!("{error:#}")),
        },
    }
}

/// The network namespace of this thread.
fn netns() -> (u64, u64) {
    fs::metadata("/proc/thread-self/ns/net").map_or((0, 0), |m| (m.dev(), m.ino()))
}

/// libbpf prints to stderr unless told otherwise; what it has to say is in our errors.
fn quiet_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_print(Some((PrintLevel::Info, |_, text| {
            tracing::debug!("libbpf: {}", text.trim())
        })));
    });
}

/// A panic while the lock was held leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
