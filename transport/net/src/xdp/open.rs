//! Opening a port: what it needs, and the memory and socket it is made of.

use std::fmt::Display;
use std::time::Duration;
use std::{io, thread};

use rustix::io::Errno;
use xroce_wire::newtypes::Gid;
use xroce_xdp_prog::MAX_QUEUES;
use xsk_rs::config::{BindFlags, Interface as XskInterface, LibxdpFlags, QueueSize, SocketConfig};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue};

use super::memory::{CHUNK_DATA, Memory, os_error};
use super::{Mode, XdpConfig, XdpError};
use crate::neigh::Interface;

/// Ethernet header with one 802.1Q tag, in bytes.
pub(super) const L2_HEADER: usize = 18;
/// Attempts to bind while the queue is busy, and the pause between them: the kernel takes about
/// 20 ms to release the queue of a socket just closed.
const BIND_ATTEMPTS: u32 = 15;
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// How large everything is; follows from the configuration and the interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) rx_chunks: u32,
    pub(super) tx_frames: u32,
    /// Chunks per frame sent: 2 if a frame of the interface may not fit in one.
    pub(super) chunks: usize,
    pub(super) fill_ring: u32,
    pub(super) tx_ring: u32,
}

pub(super) struct Parts {
    pub(super) memory: Memory,
    pub(super) descs: Vec<FrameDesc>,
    pub(super) rx: RxQueue,
    pub(super) tx: TxQueue,
    pub(super) fill: FillQueue,
    pub(super) comp: CompQueue,
}

/// Whether a port can be opened there, and the addresses it is to claim.
pub(super) fn check(interface: &Interface, config: &XdpConfig) -> Result<Vec<Gid>, XdpError> {
    config.check()?;
    if !interface.up {
        return Err(XdpError::Down(interface.name.clone()));
    }
    let queues = interface.rx_queues.max(interface.tx_queues).min(MAX_QUEUES);
    if config.queue >= queues {
        let ifname = interface.name.clone();
        return Err(XdpError::Queue {
            ifname,
            queue: config.queue,
            queues,
        });
    }
    addresses(interface, config)
}

fn addresses(interface: &Interface, config: &XdpConfig) -> Result<Vec<Gid>, XdpError> {
    if !config.addresses.is_empty() {
        return Ok(config.addresses.clone());
    }
    let own: Vec<Gid> = interface
        .addresses
        .iter()
        .filter(|a| a.usable)
        .map(|a| Gid::from(a.ip))
        .collect();
    if own.is_empty() {
        return Err(XdpError::NoAddress(interface.name.clone()));
    }
    Ok(own)
}

/// Memory and socket; again for a while if the queue is busy, without multi-buffer if the kernel
/// refuses it.
pub(super) fn make_patiently(
    config: &XdpConfig,
    interface: &Interface,
) -> Result<(Parts, Plan), XdpError> {
    let mut chunks = if interface.mtu as usize + L2_HEADER > CHUNK_DATA {
        2
    } else {
        1
    };
    let mut attempt = 1;
    loop {
        let plan = plan(config, chunks);
        let error = match make(config, &plan) {
            Ok(parts) => return Ok((parts, plan)),
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            Some(Errno::BUSY) if attempt < BIND_ATTEMPTS => {
                attempt += 1;
                thread::sleep(BIND_PAUSE);
            }
            Some(Errno::INVAL | Errno::OPNOTSUPP) if chunks == 2 => {
                tracing::info!(ifname = %interface.name, %error, "no multi-buffer AF_XDP");
                chunks = 1;
            }
            errno => return Err(make_error(config, interface, errno, error)),
        }
    }
}

fn plan(config: &XdpConfig, chunks: usize) -> Plan {
    // At most 2 * 8192, checked.
    let tx_chunks = config.tx_frames * if chunks == 2 { 2 } else { 1 };
    Plan {
        rx_chunks: config.ring_size,
        tx_frames: config.tx_frames,
        chunks,
        // Twice the chunks: the kernel hands received chunks over before it says that it has read
        // their entries of the fill ring, so they may come back while these seem still taken.
        fill_ring: 2 * config.ring_size,
        tx_ring: tx_chunks.next_power_of_two(),
    }
}

fn make(config: &XdpConfig, plan: &Plan) -> io::Result<Parts> {
    let invalid = |e: &dyn Display| io::Error::new(io::ErrorKind::InvalidInput, e.to_string());
    let tx_chunks = plan.tx_frames * if plan.chunks == 2 { 2 } else { 1 };
    let (memory, descs) = Memory::new(plan.rx_chunks + tx_chunks, plan.fill_ring, plan.tx_ring)?;
    let mut flags = BindFlags::XDP_USE_NEED_WAKEUP;
    if plan.chunks == 2 {
        flags |= BindFlags::XDP_USE_SG;
    }
    if config.mode == Mode::Generic {
        flags |= BindFlags::XDP_COPY;
    }
    let size = |n: u32| QueueSize::new(n).map_err(|e| invalid(&e));
    let socket = SocketConfig::builder()
        .rx_queue_size(size(plan.rx_chunks)?)
        .tx_queue_size(size(plan.tx_ring)?)
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(flags)
        .build();
    let ifname: XskInterface = config.ifname.parse().map_err(|e| invalid(&e))?;
    // SAFETY: the UMEM is not shared, and the flag that keeps libxdp from loading a program of
    // its own is set.
    let made = unsafe { Socket::new(socket, memory.umem(), &ifname, config.queue) };
    let (tx, rx, rings) = made.map_err(|e| os_error(&e))?;
    // There are rings: this is the first socket of its UMEM.
    let (fill, comp) = rings.ok_or_else(|| invalid(&"no fill and completion rings"))?;
    Ok(Parts {
        memory,
        descs,
        rx,
        tx,
        fill,
        comp,
    })
}

fn make_error(
    config: &XdpConfig,
    interface: &Interface,
    errno: Option<Errno>,
    source: io::Error,
) -> XdpError {
    let ifname = config.ifname.clone();
    let what = "opening an AF_XDP socket";
    match errno {
        Some(Errno::PERM | Errno::ACCESS) => XdpError::Permission { what },
        Some(Errno::AFNOSUPPORT) => XdpError::Unsupported,
        Some(Errno::NOBUFS | Errno::NOMEM) => XdpError::Memory,
        Some(Errno::BUSY) => XdpError::Busy {
            ifname,
            queue: config.queue,
        },
        Some(Errno::NETDOWN) => XdpError::Down(ifname),
        // The driver made more queues than it uses.
        Some(Errno::INVAL) if config.queue > 0 => {
            let queues = interface.rx_queues.max(interface.tx_queues);
            XdpError::Queue {
                ifname,
                queue: config.queue,
                queues: queues.min(config.queue),
            }
        }
        _ => XdpError::System { what, source },
    }
}
