//! An XDP program on an interface, by a bpf_link.
//!
//! Never by netlink: the link is a file descriptor, so the kernel detaches the program when the
//! process ends, however it ends, and nobody can replace it meanwhile.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Once;
use std::thread;
use std::time::Duration;

use libbpf_rs::libbpf_sys::{
    BPF_XDP, XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE, bpf_link_create, bpf_link_create_opts,
    bpf_link_detach, bpf_map_lookup_elem,
};
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, ProgInfoIter};
use libbpf_rs::{ErrorKind, PrintLevel, Xdp, XdpFlags, num_possible_cpus, set_print};
use rustix::io::Errno;
use xroce_xdp_prog::{Counters, PROGRAM_NAMES, RoceProgram};

use super::{Mode, XdpError};
use crate::neigh::Interface;

/// Attempts to attach while another program is there, and the pause between them: that of a
/// process just killed needs a few milliseconds to go away.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);
/// ENOTSUPP: not for user space, but some drivers let it out.
const NOT_SUPPORTED_BY_KERNEL: Errno = Errno::from_raw_os_error(524);

/// A program on an interface, until this is dropped.
#[derive(Debug)]
pub(super) struct ProgramLink {
    link: OwnedFd,
    generic: bool,
}

impl ProgramLink {
    /// Attaches as `mode` says.
    pub(super) fn attach(
        program: BorrowedFd<'_>,
        interface: &Interface,
        mode: Mode,
    ) -> Result<Self, XdpError> {
        let (link, generic) = attach(program, interface, mode)?;
        Ok(Self { link, generic })
    }

    /// Whether the program runs in the network stack, not in the driver.
    pub(super) fn is_generic(&self) -> bool {
        self.generic
    }
}

impl Drop for ProgramLink {
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
    program: BorrowedFd<'_>,
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

fn attach_patiently(
    program: BorrowedFd<'_>,
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

fn attach_once(program: BorrowedFd<'_>, ifindex: u32, generic: bool) -> Result<OwnedFd, Errno> {
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
    let program = program.as_raw_fd();
    // SAFETY: the program is open, `options` is initialised, has its true size in `sz` and
    // outlives the call; libbpf keeps no reference to it.
    let fd = unsafe { bpf_link_create(program, ifindex, BPF_XDP, &options) };
    if fd < 0 {
        return Err(Errno::from_raw_os_error(-fd));
    }
    // SAFETY: a new descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reads the counters of a program. That of libbpf-rs allocates, and a port is asked for its
/// counters between packets.
#[derive(Debug)]
pub(super) struct CounterReader {
    /// A place for the value of each CPU there may be.
    of_cpu: Box<[u64]>,
}

impl CounterReader {
    pub(super) fn new() -> Result<Self, XdpError> {
        let cpus = num_possible_cpus().map_err(|e| bpf_error("counting the CPUs", &e))?;
        let of_cpu = vec![0; cpus].into();
        Ok(Self { of_cpu })
    }

    pub(super) fn read(&mut self, program: &RoceProgram) -> io::Result<Counters> {
        let map = program.counters_map().as_raw_fd();
        Counters::read(|key: u32| {
            let (key, values) = (ptr::from_ref(&key), self.of_cpu.as_mut_ptr());
            // SAFETY: the map is open and a per-CPU array: the kernel reads four bytes at `key`
            // and writes eight for each possible CPU, which is what `of_cpu` has; both outlive
            // the call.
            let failed = unsafe { bpf_map_lookup_elem(map, key.cast(), values.cast()) };
            if failed != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(self.of_cpu.iter().copied().fold(0, u64::wrapping_add))
        })
    }
}

fn attach_error(
    program: BorrowedFd<'_>,
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
fn occupied(program: BorrowedFd<'_>, interface: &Interface) -> XdpError {
    let ifname = interface.name.clone();
    let index = i32::try_from(interface.index).unwrap_or_default();
    let id = Xdp::new(program)
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
    let ours = PROGRAM_NAMES.contains(&name.as_str());
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

pub(super) fn mode_name(generic: bool) -> &'static str {
    if generic { "generic" } else { "native" }
}

pub(super) fn bpf_error(what: &'static str, error: &libbpf_rs::Error) -> XdpError {
    match error.kind() {
        ErrorKind::PermissionDenied => XdpError::Permission { what },
        _ => XdpError::System {
            what,
            source: io::Error::other(format!("{error:#}")),
        },
    }
}

/// libbpf prints to stderr unless told otherwise; what it has to say is in our errors.
pub(super) fn quiet_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_print(Some((PrintLevel::Info, |_, text| {
            tracing::debug!("libbpf: {}", text.trim())
        })));
    });
}
