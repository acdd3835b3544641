//! What the user says: flags, and the same names in a file.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::{Args, Parser, ValueEnum};
use serde::Deserialize;

/// The xroce daemon: one engine per device, shared by the processes that attach.
#[derive(Parser, Debug)]
#[command(
    name = "xroced",
    version,
    after_help = "\
SIGTERM and SIGINT end it: sends get --drain seconds to complete, what is left is flushed. SIGHUP reads \
--config again. `xroce stat` and `xroce top` show what it does; docs/operations.md tells the rest."
)]
pub(crate) struct Cli {
    /// Read the same names from this TOML file; flags win
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Explain what would happen and what is wrong, without starting anything
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub options: Options,
}

/// A queue of an interface: `eth1` or `eth1:3`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct DevArg {
    pub ifname: String,
    pub queue: u32,
}

impl FromStr for DevArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The last colon: names such as `eth0:1` of old aliases are no interfaces.
        let (ifname, queue) = text.rsplit_once(':').unwrap_or((text, "0"));
        let queue = queue.parse();
        let queue = queue.map_err(|e| format!("the queue of {text:?}: {e}"))?;
        // IFNAMSIZ, with its zero.
        if ifname.is_empty() || ifname.len() > 15 || ifname.contains('/') {
            return Err(format!(
                "{ifname:?} is not the name of an interface (1 to 15 characters)"
            ));
        }
        let ifname = ifname.to_owned();
        Ok(Self { ifname, queue })
    }
}

/// An address of this machine: `192.0.2.1`, or `fe80::1%eth1` of one interface.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct UdpArg {
    pub addr: IpAddr,
    pub ifname: Option<String>,
}

impl FromStr for UdpArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (addr, ifname) = match text.split_once('%') {
            Some((addr, ifname)) => (addr, Some(ifname.to_owned())),
            None => (text, None),
        };
        let addr = addr.parse();
        let addr = addr.map_err(|_| format!("{text:?} is not an IP address of this machine"))?;
        Ok(Self { addr, ifname })
    }
}

/// Permissions, in octal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ModeArg(pub u32);

impl FromStr for ModeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_start_matches("0o");
        match u32::from_str_radix(digits, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err(format!(
                "{text:?} are not permissions in octal, such as 0660"
            )),
        }
    }
}

impl fmt::Display for ModeArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

macro_rules! from_string {
    ($($Type:ident)+) => {$(
        impl TryFrom<String> for $Type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    )+};
}

from_string!(DevArg UdpArg ModeArg);

/// How the thread of a device waits for work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PollArg {
    Adaptive,
    Busy,
}

/// A `[[device]]` of the file: what one device has of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct DeviceTable {
    pub dev: Option<DevArg>,
    pub udp: Option<UdpArg>,
    pub name: Option<String>,
    pub poll: Option<PollArg>,
    pub core: Option<usize>,
    pub ring_size: Option<u32>,
}

/// Everything that can be said by flag and in the file.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct Options {
    /// Serve a queue of this interface by AF_XDP, queue 0 unless told; may be given again
    #[arg(long, value_name = "IF[:QUEUE]")]
    pub dev: Vec<DevArg>,
    /// Serve this address of the machine by a UDP socket; may be given again
    #[arg(long, value_name = "ADDR[%IF]")]
    pub udp: Vec<UdpArg>,
    /// Only in the file: devices with settings of their own.
    #[arg(skip)]
    pub device: Vec<DeviceTable>,
    /// How devices wait for work: sleep when there is none, or never [default: adaptive]
    #[arg(long, value_name = "HOW")]
    pub poll: Option<PollArg>,
    /// Core of a device's thread, one for each: those of --dev first, then those of --udp
    #[arg(long, value_name = "N")]
    pub core: Vec<usize>,
    /// Receive chunks of an AF_XDP device, a power of two from 64 to 16384 [default: 4096]
    #[arg(long, value_name = "N")]
    pub ring_size: Option<u32>,

    /// Where processes attach [default: /run/xroce/xroced.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Permissions of the socket, octal [default: 0660]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<ModeArg>,
    /// Group of the socket, by name or number [default: that of the daemon]
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Processes attached at once [default: 4096]
    #[arg(long, value_name = "N")]
    pub sessions: Option<u32>,
    /// Processes of one user at once; root has no such limit [default: 4096]
    #[arg(long, value_name = "N")]
    pub sessions_per_user: Option<u32>,

    /// Queue pairs of one process [default: 16384]
    #[arg(long, value_name = "N", help_heading = "Limits of one process")]
    pub limit_qps: Option<u32>,
    /// Work requests of a queue [default: 16384]
    #[arg(long, value_name = "N", help_heading = "Limits of one process")]
    pub limit_queue_depth: Option<u32>,
    /// Completion queues [default: 16384]
    #[arg(long, value_name = "N", help_heading = "Limits of one process")]
    pub limit_cqs: Option<u32>,
    /// Entries of a completion queue [default: 262144]
    #[arg(long, value_name = "N", help_heading = "Limits of one process")]
    pub limit_cq_depth: Option<u32>,
    /// Shared receive queues [default: 1024]
    #[arg(long, value_name = "N", help_heading = "Limits of one process")]
    pub limit_srqs: Option<u32>,
    /// Memory regions [default: 262144]
    #[arg(long, value_name = "N", help_heading = "Limits of one process")]
    pub limit_mrs: Option<u32>,
    /// Memory windows [default: 65536]
    #[arg(long, value_name = "N", help_heading = "Limits of one process")]
    pub limit_mws: Option<u32>,
    /// Address handles [default: 65536]
    #[arg(long, value_name = "N", help_heading = "Limits of one process")]
    pub limit_ahs: Option<u32>,
    /// Bytes of registered memory [default: 2^40]
    #[arg(long, value_name = "BYTES", help_heading = "Limits of one process")]
    pub limit_bytes: Option<u64>,
    /// Bytes that its queues take in the daemon [default: 2^32]
    #[arg(long, value_name = "BYTES", help_heading = "Limits of one process")]
    pub limit_queue_bytes: Option<u64>,
    /// Work requests taken from it before others have their turn [default: 64]
    #[arg(long, value_name = "N", help_heading = "Limits of one process")]
    pub limit_wqes_per_poll: Option<u32>,

    /// How long sends may go on at the end [default: 2]
    #[arg(long, value_name = "SECONDS")]
    pub drain: Option<u64>,
    /// Serve metrics for Prometheus here [default: nowhere]
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// What is logged: error, warn, info, debug, trace, or such as xroce_net=debug,info [default: RUST_LOG, or info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
}

impl Options {
    /// Those of a file.
    ///
    /// # Errors
    /// It cannot be read, or has a key or value that cannot be: which one is said.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("reading {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("in {}", path.display()))
    }

    /// These, and of `file` what these do not say. Devices are taken from one of the two, with their
    /// cores: the two lists would be put together in an order that nobody sees.
    pub(crate) fn over(self, file: Self) -> Self {
        macro_rules! first {
            ($($field:ident)+) => {
                Self { $($field: self.$field.or(file.$field),)+ ..self }
            };
        }
        let has_devices = !self.dev.is_empty() || !self.udp.is_empty();
        let has_cores = !self.core.is_empty();
        let mut all = first!(poll ring_size socket mode group sessions sessions_per_user
            limit_qps limit_queue_depth limit_cqs limit_cq_depth limit_srqs limit_mrs limit_mws
            limit_ahs limit_bytes limit_queue_bytes limit_wqes_per_poll drain metrics log);
        if !has_devices {
            (all.dev, all.udp, all.device) = (file.dev, file.udp, file.device);
            if !has_cores {
                all.core = file.core;
            }
        }
        all
    }
}

impl Cli {
    /// Everything said, by flag and file.
    ///
    /// # Errors
    /// See [`Options::read`].
    pub(crate) fn all(&self) -> Result<Options> {
        let flags = self.options.clone();
        match &self.config {
            Some(path) => Ok(flags.over(Options::read(path)?)),
            None => Ok(flags),
        }
    }
}
