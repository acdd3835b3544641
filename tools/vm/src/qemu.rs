//! What a machine is like, and the command line of QEMU that makes it.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::accel::Accel;
use crate::command::{command, find_program};
use crate::image::Image;

pub(crate) const QEMU: &str = "qemu-system-x86_64";
/// What QEMU and the host need beside the guest's own memory.
const SPARE_MIB: u64 = 512;
/// Of the path of a unix socket, its zero byte included (`sockaddr_un`).
const MAX_SOCKET_PATH: usize = 108;

/// What the guest's eth0 is connected to.
#[derive(Clone, Debug)]
pub enum Net {
    /// A tap device that is there already, up, with its MTU set.
    Tap {
        /// Its name.
        ifname: String,
    },
    /// Frames as datagrams between two unix sockets. QEMU makes `local` and sends to `remote`;
    /// what it sends while that is not there is lost.
    Dgram {
        /// QEMU's own.
        local: PathBuf,
        /// The other side's.
        remote: PathBuf,
    },
}

/// A VLAN device on eth0 with its addresses.
#[derive(Clone, Copy, Debug)]
pub struct Vlan {
    /// 1 to 4094.
    pub id: u16,
    /// Its IPv4 address and prefix length.
    pub v4: (Ipv4Addr, u8),
    /// Its IPv6 address and prefix length.
    pub v6: (Ipv6Addr, u8),
}

/// A machine to be booted.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// Kernel and initramfs, from [`prepare`](crate::prepare).
    pub image: Image,
    /// Its host name: letters, digits and hyphens.
    pub name: String,
    /// Runs QEMU in this network namespace (`ip netns`).
    pub netns: Option<String>,
    /// What eth0 is connected to.
    pub net: Net,
    /// Address of eth0.
    pub mac: [u8; 6],
    /// MTU of eth0 and of the VLAN device.
    pub mtu: u32,
    /// IPv4 address of eth0 and prefix length.
    pub v4: Option<(Ipv4Addr, u8)>,
    /// IPv6 address of eth0 and prefix length, beside the link-local one.
    pub v6: Option<(Ipv6Addr, u8)>,
    /// A VLAN device on eth0.
    pub vlan: Option<Vlan>,
    /// Its memory.
    pub memory_mib: u32,
    /// Its processors.
    pub cpus: u32,
    /// How it runs.
    pub accel: Accel,
    /// QEMU's model of the processor; `None` takes the fastest.
    pub cpu: Option<String>,
    /// Folder for its sockets, console.log and qemu.log, one per machine; made if need be.
    pub dir: PathBuf,
}

impl VmConfig {
    /// A machine without addresses other than its link-local one.
    pub fn new(image: Image, net: Net, dir: PathBuf) -> Self {
        Self {
            image,
            name: "rxe".to_owned(),
            netns: None,
            net,
            // 0x02: locally administered.
            mac: [0x02, 0x78, 0x72, 0x6f, 0x63, 0x65],
            // RoCE's largest MTU, 4096, and its headers.
            mtu: 4200,
            v4: None,
            v6: None,
            vlan: None,
            memory_mib: 256,
            cpus: 1,
            accel: Accel::Auto,
            cpu: None,
            dir,
        }
    }

    pub(crate) fn console_log(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    pub(crate) fn qemu_log(&self) -> PathBuf {
        self.dir.join("qemu.log")
    }

    pub(crate) fn agent_socket(&self) -> PathBuf {
        self.dir.join("agent.sock")
    }

    /// What can be known to go wrong, before anything is started.
    pub(crate) fn check(&self) -> Result<()> {
        if find_program(QEMU).is_none() {
            bail!(
                "{QEMU} is missing: install the package qemu-system-x86 (scripts/setup.sh interop)"
            );
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        ensure!(
            !self.name.is_empty() && self.name.len() < 64 && self.name.chars().all(is_plain),
            "{:?} is no host name",
            self.name
        );
        ensure!((68..=9000).contains(&self.mtu), "an MTU of {}", self.mtu);
        ensure!((1..=64).contains(&self.cpus), "{} processors", self.cpus);
        if let Some(vlan) = &self.vlan {
            ensure!((1..=4094).contains(&vlan.id), "VLAN {}", vlan.id);
        }
        let mut sockets = vec![self.agent_socket()];
        match &self.net {
            Net::Tap { .. } => ensure!(
                Path::new("/dev/net/tun").exists(),
                "/dev/net/tun is missing: load the module tun, or give the container the device"
            ),
            Net::Dgram { local, remote } => sockets.extend([local.clone(), remote.clone()]),
        }
        for socket in sockets {
            ensure!(
                socket.as_os_str().len() < MAX_SOCKET_PATH,
                "{} is too long for the path of a socket: use a shorter folder",
                socket.display()
            );
        }
        check_memory(
            &fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?,
            self.memory_mib,
        )
    }

    /// QEMU with this machine, in its namespace. The agent's socket has to be there already.
    pub(crate) fn command(&self, accel: Accel) -> Result<Command> {
        let mut qemu = match &self.netns {
            Some(name) => command("ip", ["netns", "exec", name, QEMU]),
            None => command(QEMU, [""; 0]),
        };
        let (how, model) = match accel {
            Accel::Kvm => ("kvm", "host"),
            _ => ("tcg,thread=multi", "qemu64"),
        };
        qemu.args(["-accel", how, "-cpu", self.cpu.as_deref().unwrap_or(model)]);
        qemu.args(["-name", &self.name]);
        qemu.args(["-m", &self.memory_mib.to_string()]);
        qemu.args(["-smp", &self.cpus.to_string()]);
        qemu.arg("-kernel").arg(&self.image.kernel);
        qemu.arg("-initrd").arg(&self.image.initrd);
        qemu.args(["-append", &self.kernel_arguments()]);
        qemu.args(["-netdev", &self.netdev()]);
        let mac = self.mac.map(|byte| format!("{byte:02x}")).join(":");
        let mtu = self.mtu;
        qemu.args([
            "-device",
            &format!("virtio-net-pci,netdev=n0,mac={mac},host_mtu={mtu}"),
        ]);
        qemu.args(["-device", "virtio-serial-pci"]);
        let socket = escape(&self.agent_socket());
        qemu.args(["-chardev", &format!("socket,id=agent,path={socket}")]);
        qemu.args(["-device", "virtserialport,chardev=agent,name=xroce.agent"]);
        qemu.args(["-serial", &format!("file:{}", escape(&self.console_log()))]);
        qemu.args("-nodefaults -no-user-config -display none -monitor none -no-reboot".split(' '));
        let log = fs::File::create(self.qemu_log())
            .with_context(|| format!("cannot write {}", self.qemu_log().display()))?;
        qemu.stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(qemu)
    }

    fn netdev(&self) -> String {
        match &self.net {
            // vnet_hdr=off: frames leave with their checksums, for whoever reads them raw.
            Net::Tap { ifname } => format!(
                "tap,id=n0,ifname={},script=no,downscript=no,vhost=off,vnet_hdr=off",
                ifname.replace(',', ",,")
            ),
            Net::Dgram { local, remote } => format!(
                "dgram,id=n0,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                escape(local),
                escape(remote)
            ),
        }
    }

    /// The fixed ones are for a fast start; guest/init reads the rest. A panic ends the machine.
    fn kernel_arguments(&self) -> String {
        let mut words = vec![
            "quiet console=ttyS0 mitigations=off nokaslr panic=-1".to_owned(),
            format!("xroce.name={} xroce.mtu={}", self.name, self.mtu),
        ];
        let mut address = |key: &str, addr: String, len: u8| {
            words.push(format!("xroce.{key}={addr}/{len}"));
        };
        if let Some((addr, len)) = self.v4 {
            address("ip4", addr.to_string(), len);
        }
        if let Some((addr, len)) = self.v6 {
            address("ip6", addr.to_string(), len);
        }
        if let Some(Vlan { id, v4, v6 }) = self.vlan {
            address("vlan4", v4.0.to_string(), v4.1);
            address("vlan6", v6.0.to_string(), v6.1);
            words.push(format!("xroce.vlan={id}"));
        }
        words.join(" ")
    }
}

/// QEMU's options are separated by commas, and two of them are one that is meant.
fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

fn check_memory(meminfo: &str, memory_mib: u32) -> Result<()> {
    let available: u64 = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|kib| kib.parse().ok())
        .context("no MemAvailable in /proc/meminfo")?;
    let needed = u64::from(memory_mib) + SPARE_MIB;
    ensure!(
        available / 1024 >= needed,
        "the machine needs {needed} MiB of memory and {} MiB are available: end other programs",
        available / 1024
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> VmConfig {
        let image = Image {
            kernel: "/k/vmlinux".into(),
            initrd: "/k/initrd.cpio".into(),
            release: "6.12".to_owned(),
        };
        let net = Net::Dgram {
            local: "/s/a,b".into(),
            remote: "/s/c".into(),
        };
        VmConfig::new(image, net, dir.to_path_buf())
    }

    #[test]
    fn the_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        config.netns = Some("peer".to_owned());
        config.v4 = Some((Ipv4Addr::new(10, 0, 0, 2), 24));
        config.vlan = Some(Vlan {
            id: 5,
            v4: (Ipv4Addr::new(10, 5, 0, 2), 24),
            v6: ("fd05::2".parse().unwrap(), 64),
        });
        let qemu = config.command(Accel::Tcg).unwrap();
        let args: Vec<_> = qemu.get_args().map(|arg| arg.to_str().unwrap()).collect();
        assert_eq!(args[..4], ["netns", "exec", "peer", QEMU]);
        let after = |flag| args[args.iter().position(|arg| *arg == flag).unwrap() + 1];
        assert_eq!(after("-accel"), "tcg,thread=multi");
        assert_eq!(
            after("-netdev"),
            "dgram,id=n0,local.type=unix,local.path=/s/a,,b,remote.type=unix,remote.path=/s/c"
        );
        assert!(after("-append").ends_with(
            "xroce.name=rxe xroce.mtu=4200 xroce.ip4=10.0.0.2/24 \
             xroce.vlan4=10.5.0.2/24 xroce.vlan6=fd05::2/64 xroce.vlan=5"
        ));
    }

    #[test]
    fn what_cannot_work_is_said_before() {
        let dir = tempfile::tempdir().unwrap();
        let mut bad = config(dir.path());
        bad.name = "two words".to_owned();
        assert!(bad.check().is_err());
        let mut bad = config(dir.path());
        bad.dir = PathBuf::from("/".to_owned() + &"x".repeat(120));
        assert!(bad.check().is_err());
    }

    #[test]
    fn memory() {
        let meminfo = "MemTotal: 9 kB\nMemAvailable:  786432 kB\n";
        assert!(check_memory(meminfo, 256).is_ok());
        let error = check_memory(meminfo, 257).unwrap_err().to_string();
        assert!(error.starts_with("the machine needs 769 MiB of memory and 768 MiB"));
        assert!(check_memory("", 1).is_err());
    }
}
