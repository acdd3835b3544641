//! Network namespaces joined by veth pairs, for tests: two, or a star; removed on drop.
//!
//! Everything lives inside these namespaces, nothing is added to the one of the caller.
//! Names are `xr<pid>-<n>a` and `…b`; what a process that died without cleaning up left behind
//! is removed by the next one. Needs root and `ip` (iproute2).
#![forbid(unsafe_code)]

mod star;

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Protocol, Socket, Type};

pub use star::Star;

/// Where iproute2 keeps its namespaces.
const NETNS_DIR: &str = "/run/netns";
/// With this set to 1, [`NetnsPair::or_skip`] fails where it would skip.
pub const REQUIRE: &str = "XROCE_REQUIRE_XDP";
/// Name of the interface in either namespace.
pub const IFNAME: &str = "veth0";

/// One namespace with one end of the veth pair, named [`IFNAME`].
#[derive(Debug)]
pub struct Netns {
    name: String,
    /// Its IPv4 address, in a /24 shared with the other end.
    pub v4: Ipv4Addr,
    /// Its IPv6 address, in a /64 shared with the other end; usable at once.
    pub v6: Ipv6Addr,
}

impl Netns {
    /// The name, as `ip netns` knows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the interface.
    #[must_use]
    pub fn ifname(&self) -> &'static str {
        IFNAME
    }

    /// Either address.
    #[must_use]
    pub fn ip(&self, v6: bool) -> IpAddr {
        if v6 { self.v6.into() } else { self.v4.into() }
    }

    /// Runs `body` in a thread inside the namespace and returns its result. Sockets made there
    /// stay there, whichever thread uses them afterwards. A panic of `body` passes on.
    ///
    /// # Panics
    /// The namespace is gone, or `body` panics.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let inside = move || {
            enter_named(&self.name)?;
            Ok::<_, String>(body())
        };
        match thread::scope(|scope| scope.spawn(inside).join()) {
            Ok(Ok(value)) => value,
            Ok(Err(why)) => fail(&why),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// `ip -n <namespace> <args>`, split at blanks.
    ///
    /// # Errors
    /// What `ip` printed.
    pub fn ip_cmd(&self, args: &str) -> Result<String, String> {
        ip(&format!("-n {} {args}", self.name))
    }

    /// A command that runs inside the namespace.
    #[must_use]
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.name])
            .arg(program.as_ref());
        command
    }

    /// Interfaces up, addresses added.
    fn bring_up(&self) -> Result<(), String> {
        self.run(no_duplicate_detection);
        self.ip_cmd("link set lo up")?;
        self.ip_cmd(&format!("link set {IFNAME} up"))?;
        self.ip_cmd(&format!("addr add {}/24 dev {IFNAME}", self.v4))?;
        self.ip_cmd(&format!("addr add {}/64 dev {IFNAME} nodad", self.v6))?;
        Ok(())
    }

    /// One ICMP echo to `to` from inside the namespace, answered within two seconds.
    ///
    /// # Errors
    /// No answer, or no route.
    pub fn ping(&self, to: IpAddr) -> io::Result<()> {
        self.run(|| ping(to))
    }
}

impl Netns {
    /// A namespace of its own, empty but for a loopback interface that is up. Host `host` of the
    /// two subnets is meant for whatever the caller puts into it.
    ///
    /// # Errors
    /// Why it is not possible here: not root, no `ip`.
    pub fn alone(host: u8) -> Result<Self, String> {
        let netns = make(format!("{}a", next_prefix()?), host)?;
        netns.run(no_duplicate_detection);
        netns.ip_cmd("link set lo up")?;
        Ok(netns)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // Takes the veth pair along; the kernel finishes in the background.
        let _ = ip(&format!("netns del {}", self.name));
    }
}

/// Two namespaces joined by a veth pair.
#[derive(Debug)]
pub struct NetnsPair {
    /// One end: 10.77.0.1, fd77::1.
    pub a: Netns,
    /// The other end: 10.77.0.2, fd77::2.
    pub b: Netns,
}

impl NetnsPair {
    /// Makes both, with `queues` receive and transmit queues and an IP MTU of `mtu` bytes.
    ///
    /// # Errors
    /// Why it is not possible here: not root, no `ip`, no veth.
    pub fn new(mtu: u32, queues: u32) -> Result<Self, String> {
        let prefix = next_prefix()?;
        let pair = Self {
            a: make(format!("{prefix}a"), 1)?,
            b: make(format!("{prefix}b"), 2)?,
        };
        let end = |ns: &Netns| {
            format!(
                "netns {} mtu {mtu} numtxqueues {queues} numrxqueues {queues}",
                ns.name
            )
        };
        ip(&format!(
            "link add {IFNAME} {} type veth peer name {IFNAME} {}",
            end(&pair.a),
            end(&pair.b)
        ))?;
        for ns in [&pair.a, &pair.b] {
            ns.bring_up()?;
        }
        Ok(pair)
    }

    /// As [`NetnsPair::new`]; where that is not possible, prints why and returns `None`.
    ///
    /// # Panics
    /// It is not possible and [`REQUIRE`] is set to 1.
    #[must_use]
    pub fn or_skip(mtu: u32, queues: u32) -> Option<Self> {
        match Self::new(mtu, queues) {
            Ok(pair) => Some(pair),
            Err(why) => {
                skip(&why);
                None
            }
        }
    }
}

/// Says on stderr that a test is skipped, and why.
///
/// # Panics
/// [`REQUIRE`] is set to 1.
pub fn skip(why: &str) {
    if std::env::var(REQUIRE).is_ok_and(|v| v == "1") {
        fail(&format!("{REQUIRE}=1, but: {why}"));
    }
    eprintln!("skipped: {why}");
}

#[allow(clippy::panic, reason = "a test helper: the test has failed")]
fn fail(why: &str) -> ! {
    panic!("{why}")
}

/// A new prefix for names; the first call removes what dead processes left behind.
fn next_prefix() -> Result<String, String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    static CLEAN: Once = Once::new();
    if !rustix::process::geteuid().is_root() {
        return Err("making network namespaces needs root".to_owned());
    }
    CLEAN.call_once(remove_leftovers);
    // Relaxed: only uniqueness matters.
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(format!("xr{}-{n}", std::process::id()))
}

fn make(name: String, host: u8) -> Result<Netns, String> {
    ip(&format!("netns add {name}"))?;
    // From here on Drop removes it.
    Ok(Netns {
        name,
        v4: Ipv4Addr::new(10, 77, 0, host),
        v6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host.into()),
    })
}

/// Link-local addresses are usable at once too. `/proc/sys/net` is that of the calling thread.
fn no_duplicate_detection() {
    for scope in ["all", "default", IFNAME] {
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad"), "0");
    }
}

/// Moves the calling thread into the namespace called `name`, for good.
///
/// # Errors
/// It does not exist, or the caller is not root.
pub fn enter_named(name: &str) -> Result<(), String> {
    let path = Path::new(NETNS_DIR).join(name);
    enter(&path).map_err(|e| format!("entering {}: {e}", path.display()))
}

fn enter(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

fn ping(to: IpAddr) -> io::Result<()> {
    // Type, code, checksum, identifier, sequence number. The v4 checksum is a constant for these
    // bytes (RFC 1071); the kernel fills in the one of v6, which covers the addresses.
    let (domain, protocol, request, reply_type) = match to {
        IpAddr::V4(_) => (
            Domain::IPV4,
            Protocol::ICMPV4,
            [8, 0, 0x86, 0xc8, 0x71, 0x36, 0, 1],
            0,
        ),
        IpAddr::V6(_) => (
            Domain::IPV6,
            Protocol::ICMPV6,
            [128, 0, 0, 0, 0x71, 0x36, 0, 1],
            129,
        ),
    };
    let mut socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    socket.connect(&SocketAddr::new(to, 0).into())?;
    socket.send(&request)?;
    // A raw v4 socket shows the IP header too. Other ICMP (neighbour discovery) passes by.
    let header = if to.is_ipv4() { 20 } else { 0 };
    let mut buf = [0; 128];
    for _ in 0..32 {
        let n = socket.read(&mut buf)?;
        let icmp = buf.get(header..n).unwrap_or_default();
        if icmp.first() == Some(&reply_type) && icmp.get(4..8) == request.get(4..8) {
            return Ok(());
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn ip(args: &str) -> Result<String, String> {
    let output = Command::new("ip")
        .args(args.split_whitespace())
        .output()
        .map_err(|e| format!("`ip` (iproute2) does not run: {e}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("ip {args}: {}", said.trim()))
    }
}

/// Removes namespaces of processes that no longer exist.
fn remove_leftovers() {
    let Ok(entries) = fs::read_dir(NETNS_DIR) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name
            .strip_prefix("xr")
            .and_then(|rest| rest.split_once('-'))
            .map(|(p, _)| p);
        let Some(pid) = pid.and_then(|p| p.parse::<u32>().ok()) else {
            continue;
        };
        if !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pair_is_joined_and_goes_away() {
        let Some(pair) = NetnsPair::or_skip(1500, 2) else {
            return;
        };
        let names = [pair.a.name().to_owned(), pair.b.name().to_owned()];
        for v6 in [false, true] {
            let to = pair.b.ip(v6).to_string();
            let ping = pair
                .a
                .command("ping")
                .args(["-c1", "-W2", &to])
                .output()
                .unwrap();
            assert!(
                ping.status.success(),
                "{}",
                String::from_utf8_lossy(&ping.stdout)
            );
        }
        // Results and panics of a thread inside come out.
        assert_eq!(pair.a.run(|| 7), 7);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pair.b.run(|| resume_unwind(Box::new("inside")))
        }));
        assert!(caught.is_err());
        drop(pair);
        for name in names {
            assert!(!Path::new(NETNS_DIR).join(name).exists());
        }
    }
}
