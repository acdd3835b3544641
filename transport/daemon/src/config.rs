//! What a daemon is to do.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use xroce_api::PollMode;
use xroce_api::message::Limits;

/// What is below a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Below {
    /// AF_XDP on a queue of an interface.
    Xdp {
        /// Interface.
        ifname: String,
        /// Its queue.
        queue: u32,
        /// Receive chunks, a power of two.
        ring_size: u32,
    },
    /// A UDP socket on an address.
    Udp {
        /// The address.
        addr: IpAddr,
        /// Interface of a link-local address that several have.
        ifname: Option<String>,
    },
}

/// A device to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceConfig {
    /// What processes call it.
    pub name: String,
    /// What is below.
    pub below: Below,
    /// How its thread waits for work.
    pub poll: PollMode,
    /// Core its thread stays on.
    pub core: Option<usize>,
}

impl DeviceConfig {
    /// A device with a thread that sleeps when there is nothing to do, named after what is below.
    #[must_use]
    pub fn new(below: Below) -> Self {
        let name = match &below {
            Below::Xdp {
                ifname, queue: 0, ..
            } => ifname.clone(),
            Below::Xdp { ifname, queue, .. } => format!("{ifname}:{queue}"),
            Below::Udp { addr, .. } => format!("udp:{addr}"),
        };
        Self {
            name,
            below,
            poll: PollMode::Adaptive,
            core: None,
        }
    }
}

/// Who may attach, and to what.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// Where to listen.
    pub socket: PathBuf,
    /// Permissions of the socket.
    pub mode: u32,
    /// Group of the socket.
    pub group: Option<u32>,
    /// Processes at once.
    pub sessions: u32,
    /// Sessions of a user who is not root at once.
    pub sessions_per_user: u32,
    /// What one process may have.
    pub limits: Limits,
    /// How long to wait at the end for sends to complete.
    pub drain: Duration,
    /// The devices.
    pub devices: Vec<DeviceConfig>,
}

impl DaemonConfig {
    /// Of some devices, for everybody who may open the socket.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>, devices: Vec<DeviceConfig>) -> Self {
        Self {
            socket: socket.into(),
            mode: 0o660,
            group: None,
            sessions: 4096,
            sessions_per_user: 4096,
            limits: Limits::default(),
            drain: Duration::from_secs(2),
            devices,
        }
    }
}
