//! What is below each device.

use std::net::IpAddr;
use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::path::PathBuf;

use xroce_daemon::{Below, DeviceConfig};
use xroce_engine::PollMode;
use xroce_net::neigh::{self, Interface};
use xroce_wire::udp::ROCE_PORT;

use super::{Findings, features, host};

/// Explains one device.
pub(super) fn check(device: &DeviceConfig, found: &mut Findings) {
    match &device.below {
        Below::Xdp {
            ifname,
            queue,
            ring_size,
        } => {
            found.about(format!(
                "device {}: AF_XDP on queue {queue} of {ifname}, {ring_size} receive chunks",
                device.name
            ));
            xdp(ifname, *queue, device.core, found);
        }
        Below::Udp { addr, ifname } => {
            found.about(format!("device {}: a UDP socket on {addr}", device.name));
            udp(*addr, ifname.as_deref(), found);
        }
    }
    let how = match device.poll {
        PollMode::Busy => "never sleeps: lowest latency, and a core for itself",
        PollMode::Adaptive => "sleeps when there is nothing to do",
    };
    found.say(match device.core {
        Some(core) => format!("its thread stays on core {core} and {how}"),
        None => format!("its thread may run on any core and {how}"),
    });
}

fn udp(addr: IpAddr, ifname: Option<&str>, found: &mut Findings) {
    let scope = match ifname.map(neigh::interface) {
        Some(Ok(interface)) => interface.index,
        Some(Err(error)) => return found.wrong(error.to_string()),
        None => 0,
    };
    let at = match addr {
        IpAddr::V6(addr) => SocketAddrV6::new(addr, ROCE_PORT, 0, scope).into(),
        IpAddr::V4(_) => SocketAddr::new(addr, ROCE_PORT),
    };
    // Taken and given back at once: nobody is told that it was there.
    match UdpSocket::bind(at) {
        Ok(_) => found.say(format!("{at} can be bound; no privileges are needed")),
        Err(error) => found.wrong(format!(
            "{at} cannot be bound: {error}; is it an address of this machine, and does no other RoCE \
             endpoint (another xroced, rdma_rxe) have it?"
        )),
    }
}

fn xdp(ifname: &str, queue: u32, core: Option<usize>, found: &mut Findings) {
    if !cfg!(feature = "xdp") {
        found.wrong(
            "this xroced was built without AF_XDP: use --udp, or build with the feature xdp",
        );
    }
    let interface = match neigh::interface(ifname) {
        Ok(interface) => interface,
        Err(error) => return found.wrong(error.to_string()),
    };
    state(&interface, found);
    driver(&interface, found);
    queues(&interface, queue, found);
    numa(&interface, core, found);
}

fn state(interface: &Interface, found: &mut Findings) {
    let name = &interface.name;
    let state = match (interface.up, interface.running) {
        (false, _) => "down",
        (true, false) => "up, without carrier",
        (true, true) => "up",
    };
    let (mac, mtu) = (interface.mac, interface.mtu);
    found.say(format!("{name} is {state}, {mac}, MTU {mtu}"));
    if !interface.up {
        found.wrong(format!("{name} is down: ip link set {name} up"));
    }
    if interface.loopback {
        found.wrong(format!("{name} is the loopback: use --udp 127.0.0.1"));
    }
    if interface.vlan.is_some() {
        found.wrong(format!(
            "{name} is a VLAN device: give the interface below it; its VLANs are served too"
        ));
    }
    let usable = interface.addresses.iter().filter(|a| a.usable);
    let usable: Vec<_> = usable.map(|a| format!("{}/{}", a.ip, a.prefix)).collect();
    if usable.is_empty() {
        found.wrong(format!(
            "{name} has no address, so no packet has a source: ip address add ADDR/BITS dev {name}"
        ));
    } else {
        found.say(format!("addresses: {}", usable.join(", ")));
    }
}

fn sysfs(interface: &Interface, rest: &str) -> PathBuf {
    ["/sys/class/net", &interface.name, rest].iter().collect()
}

fn driver(interface: &Interface, found: &mut Findings) {
    let link = std::fs::read_link(sysfs(interface, "device/driver"));
    let driver = link
        .ok()
        .and_then(|p| Some(p.file_name()?.to_string_lossy().into_owned()));
    let driver = driver.unwrap_or_else(|| "none of a device (virtual)".to_owned());
    let xdp = match features::of(interface.index) {
        Ok(features) if features.native() => format!(
            "native XDP, {}, {}",
            if features.zero_copy() {
                "AF_XDP without copies"
            } else {
                "AF_XDP with a copy"
            },
            if features.large_frames() {
                "frames larger than a page"
            } else {
                "frames of at most a page (path MTU 2048)"
            },
        ),
        Ok(_) => "no native XDP: generic mode, slower and always with a copy".to_owned(),
        Err(error) => format!("XDP unknown, the kernel does not tell ({error}); it is tried"),
    };
    found.say(format!("driver: {driver}; {xdp}"));
}

fn queues(interface: &Interface, queue: u32, found: &mut Findings) {
    let name = &interface.name;
    let entries = std::fs::read_dir(sysfs(interface, "queues"))
        .into_iter()
        .flatten();
    let names = entries.flatten().map(|e| e.file_name());
    let in_use = names
        .filter(|n| n.to_string_lossy().starts_with("rx-"))
        .count();
    let in_use = u32::try_from(in_use).unwrap_or(0);
    found.say(format!("{in_use} receive queues"));
    if in_use != 0 && queue >= in_use {
        let last = in_use - 1;
        found.wrong(format!(
            "{name} has no queue {queue}, its last is {last}: ethtool -L {name} combined {}",
            queue + 1
        ));
    } else if in_use > 1 {
        found.say(format!(
            "RoCE packets have to reach queue {queue}: ethtool -N {name} flow-type udp4 dst-port {ROCE_PORT} \
             action {queue} (udp6 likewise), or a single queue: ethtool -L {name} combined 1"
        ));
    }
}

fn numa(interface: &Interface, core: Option<usize>, found: &mut Findings) {
    let text = std::fs::read_to_string(sysfs(interface, "device/numa_node"));
    // -1: the machine has one node, or the device is virtual.
    let node = text.ok().and_then(|t| t.trim().parse::<u32>().ok());
    let Some(node) = node else {
        return found.say("NUMA node: none told");
    };
    let near = host::cores_of_node(node);
    found.say(format!("NUMA node {node}, cores {}", host::show(&near)));
    match core {
        Some(core) if !near.contains(&core) => found.say(format!(
            "hint: core {core} is on another node, each packet crosses between them"
        )),
        None => found.say("hint: --core with one of these keeps its thread near the interface"),
        Some(_) => {}
    }
    let irqs = std::fs::read_dir(sysfs(interface, "device/msi_irqs"))
        .into_iter()
        .flatten();
    let count = irqs.flatten().count();
    if count != 0
        && let Some(core) = core
    {
        found.say(format!(
            "hint: the interrupt of the queue (one of the {count} in {}) goes best to another core of the node \
             than {core}: write it to /proc/irq/N/smp_affinity_list",
            sysfs(interface, "device/msi_irqs").display()
        ));
    }
}
