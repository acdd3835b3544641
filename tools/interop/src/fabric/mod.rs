//! The network between xroce and the virtual machine: a namespace with a tap, on which xroce
//! opens AF_XDP, and a cable from there to the machine's network card.
//!
//! ```text
//!   namespace             this process         QEMU
//!   x0 (tap, AF_XDP)  <── hop: records,    ──> eth0, eth0.7 (VLAN) of the guest
//!   10.77.0.1 fd77::1     drops, delays …      10.77.0.2 fd77::2
//! ```
//!
//! In the VLAN there is only our engine, which writes the tags itself: not every kernel that can
//! run this has VLAN devices. So nobody answers ARP there, and both ends know each other's
//! Ethernet address from the start.

pub(crate) mod account;
pub(crate) mod fault;
mod flush;
mod hop;
pub(crate) mod look;
pub(crate) mod peer;
pub(crate) mod record;
pub(crate) mod standard;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail};
use tun_rs::{DeviceBuilder, Layer};
use xroce_testnet::Netns;

use fault::{Rule, Side};
use hop::{Hop, Shared};
use look::Roce;
use record::Record;

/// Name of the tap in its namespace.
pub(crate) const DEV: &str = "x0";
/// IP MTU of the link: room for path MTU 4096.
pub(crate) const MTU: u16 = 4_200;
/// VLAN of the tagged scenarios.
pub(crate) const VLAN: u16 = 7;
/// Ethernet address of the tap.
pub(crate) const TAP_MAC: [u8; 6] = [0x52, 0x54, 0, 0x77, 0, 1];
/// Ethernet address of the machine's network card.
pub(crate) const VM_MAC: [u8; 6] = [0x52, 0x54, 0, 0x77, 0, 2];
/// Frames the tap holds while the cable is busy.
const TAP_QUEUE: u32 = 16_384;
/// Datagrams that wait in a socket; the kernel's default of 10 makes both ends stutter.
const DATAGRAMS: &str = "4096";

/// Which network a scenario uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct Route {
    /// IPv6 instead of IPv4.
    pub v6: bool,
    /// Tagged.
    pub vlan: bool,
}

impl Route {
    /// Untagged IPv4.
    pub(crate) const V4: Self = Self {
        v6: false,
        vlan: false,
    };
    /// Untagged IPv6.
    pub(crate) const V6: Self = Self {
        v6: true,
        vlan: false,
    };
    /// Address of host `host` (1: xroce, 2: the virtual machine) on it.
    pub(crate) fn ip(self, host: u8) -> IpAddr {
        let third = if self.vlan { 78 } else { 77 };
        if self.v6 {
            let first = if self.vlan { 0xfd78 } else { 0xfd77 };
            Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, host.into()).into()
        } else {
            Ipv4Addr::new(10, third, 0, host).into()
        }
    }

    /// As in tables.
    pub(crate) fn name(self) -> &'static str {
        match (self.v6, self.vlan) {
            (false, false) => "v4",
            (true, false) => "v6",
            (false, true) => "v4 VLAN",
            (true, true) => "v6 VLAN",
        }
    }
}

/// The network. Dropping it takes everything down.
#[derive(Debug)]
pub(crate) struct Fabric {
    /// Where xroce runs.
    pub netns: Netns,
    shared: Arc<Shared>,
    hop: Option<JoinHandle<Result<()>>>,
    ours: PathBuf,
    theirs: PathBuf,
}

impl Fabric {
    /// Makes it; sockets go into `dir`.
    ///
    /// # Errors
    /// Not root, no /dev/net/tun.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        if !Path::new("/dev/net/tun").exists() {
            bail!(
                "/dev/net/tun is missing: load the tun module (modprobe tun), or give the container \
                 the device (--device /dev/net/tun --cap-add NET_ADMIN)"
            );
        }
        let netns = Netns::alone(1).map_err(|e| anyhow!(e))?;
        let (ours, theirs) = (dir.join("hop.sock"), dir.join("vm.sock"));
        let (tap, vm) = netns.run(|| -> Result<_> {
            // Also QEMU gets it, which runs in the namespace.
            fs::write("/proc/sys/net/unix/max_dgram_qlen", DATAGRAMS)
                .context("net.unix.max_dgram_qlen")?;
            let tap = DeviceBuilder::new()
                .name(DEV)
                .layer(Layer::L2)
                .mtu(MTU)
                .build_sync()
                .context("making the tap")?;
            // That of a machine before, which did not answer any more.
            let _ = fs::remove_file(&ours);
            Ok((tap, UnixDatagram::bind(&ours)?))
        })?;
        configure(&netns)?;
        let shared = Shared::new();
        let hop = Hop::new(tap, vm, theirs.clone(), Arc::clone(&shared))?;
        let hop = thread::Builder::new()
            .name("hop".to_owned())
            .spawn(move || hop.run())
            .context("thread of the cable")?;
        Ok(Self {
            netns,
            shared,
            hop: Some(hop),
            ours,
            theirs,
        })
    }

    /// Socket of the cable, and the one the virtual machine must bind.
    pub(crate) fn sockets(&self) -> (&Path, &Path) {
        (&self.ours, &self.theirs)
    }

    /// Starts a scenario: these rules, an empty record.
    pub(crate) fn start(&self, rules: &[Rule], seed: u64) {
        self.shared.start(rules, seed);
    }

    /// The same rules from their beginning, without a new record.
    pub(crate) fn again(&self, rules: &[Rule], seed: u64) {
        self.shared.again(rules, seed);
    }

    /// Number of frames recorded, and what rules made vanish behind the first `from`.
    pub(crate) fn lost(&self, from: usize) -> (usize, Vec<(Side, Roce)>) {
        self.shared.lost(from)
    }

    /// How long one side has sent no RoCE packet.
    pub(crate) fn silence(&self, from: Side) -> std::time::Duration {
        self.shared.silence(from)
    }

    /// Cuts the cable, or mends it.
    pub(crate) fn set_cut(&self, cut: bool) {
        self.shared.set_cut(cut);
    }

    /// Ends a scenario: no more faults, and the record so far.
    ///
    /// # Errors
    /// The cable broke, which no scenario does on purpose.
    pub(crate) fn finish(&mut self) -> Result<Record> {
        if self.hop.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(hop) = self.hop.take()
        {
            match hop.join() {
                Ok(Ok(())) => bail!("the cable ended"),
                Ok(Err(e)) => return Err(e).context("the cable broke"),
                Err(_) => bail!("the cable panicked"),
            }
        }
        Ok(self.shared.finish())
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(hop) = self.hop.take() {
            // Its error is of no use any more.
            let _ = hop.join();
        }
    }
}

/// As `ip` takes it.
fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Commands for the guest: who we are in the VLAN.
pub(crate) fn guest_neighbours() -> String {
    let mac = mac_text(TAP_MAC);
    [false, true]
        .map(|v6| {
            let ip = Route { v6, vlan: true }.ip(1);
            format!("ip neigh replace {ip} lladdr {mac} dev eth0.{VLAN} && ")
        })
        .concat()
        + "true"
}

fn configure(netns: &Netns) -> Result<()> {
    let ip = |args: String| netns.ip_cmd(&args).map_err(|e| anyhow!(e));
    ip(format!(
        "link set {DEV} txqueuelen {TAP_QUEUE} address {} up",
        mac_text(TAP_MAC)
    ))?;
    ip(format!("addr add {}/24 dev {DEV}", Route::V4.ip(1)))?;
    ip(format!("addr add {}/64 dev {DEV} nodad", Route::V6.ip(1)))?;
    Ok(())
}
