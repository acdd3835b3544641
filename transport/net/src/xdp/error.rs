//! Why a port could not be opened, in words that say what to do.

use std::io;

use thiserror::Error;

use crate::neigh::NeighError;

/// Why an [`XdpPort`](super::XdpPort) could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpError {
    /// The interface is missing or cannot be looked up.
    #[error(transparent)]
    Interface(#[from] NeighError),
    /// The interface is administratively down: AF_XDP binds to running interfaces only.
    #[error("interface {0} is down; bring it up: ip link set dev {0} up")]
    Down(String),
    /// The interface has no such queue.
    #[error("{ifname} has no queue {queue}: it has {queues}, numbered from 0")]
    Queue {
        /// Interface.
        ifname: String,
        /// The queue asked for.
        queue: u32,
        /// How many there are.
        queues: u32,
    },
    /// The interface has no address to claim RoCE frames for.
    #[error(
        "{0} has no usable address; give it one (ip addr add ADDRESS/BITS dev {0}) or name one"
    )]
    NoAddress(String),
    /// A value of the configuration is out of range.
    #[error("AF_XDP configuration: {0}")]
    Config(String),
    /// The process may not do this.
    #[error(
        "{what} is not permitted: run as root, or grant CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and \
         CAP_PERFMON; without privileges use the UDP backend"
    )]
    Permission {
        /// What was attempted.
        what: &'static str,
    },
    /// The kernel was built without AF_XDP.
    #[error("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS); use the UDP backend")]
    Unsupported,
    /// Another AF_XDP socket has the queue.
    #[error(
        "queue {queue} of {ifname} is in use by another AF_XDP socket; choose another queue or end its process"
    )]
    Busy {
        /// Interface.
        ifname: String,
        /// Queue.
        queue: u32,
    },
    /// Another XDP program is attached to the interface.
    #[error("{ifname} already has an XDP program attached: {program}. {remedy}")]
    Occupied {
        /// Interface.
        ifname: String,
        /// Its name and id.
        program: String,
        /// How to get rid of it.
        remedy: String,
    },
    /// A port of this process has attached the program in the other mode.
    #[error("{ifname} is already open in {attached} mode; ports of one interface share it")]
    OtherMode {
        /// Interface.
        ifname: String,
        /// "native" or "generic".
        attached: &'static str,
    },
    /// The program could not be attached.
    #[error(
        "attaching the XDP program to {ifname} (MTU {mtu}, {mode} mode): {source}{}",
        hint(source)
    )]
    Attach {
        /// Interface.
        ifname: String,
        /// Its IP MTU, in bytes: drivers limit what they can do with XDP.
        mtu: u32,
        /// "native" or "generic".
        mode: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Locked memory is limited.
    #[error("no memory for the frames: raise the limit on locked memory (ulimit -l)")]
    Memory,
    /// Any other refusal of the kernel.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        // EINVAL, ERANGE, EOPNOTSUPP, ENOTSUPP
        Some(22 | 34 | 95 | 524) => {
            "; the driver cannot do this here: try generic mode or a smaller MTU"
        }
        _ => "",
    }
}
