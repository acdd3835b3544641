//! The daemon among processes that mean harm, die, or do not care: it serves the others as if
//! nothing had happened.
//!
//! `XROCE_DAEMON_ROUNDS` says how often each of them tries (60 unless given); `XROCE_SEED` replays
//! one run. Latencies of the processes that behave are printed, before and during, and not judged.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test that fails may panic; figures are printed, and time is measured for them"
)]

mod crowd;
mod fuzzed;
mod killed;
mod listening;
mod mock;
mod scribble;
mod stalled;
mod witness;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use xroce_daemon::{Below, Daemon, DaemonConfig, DeviceConfig};
use xroce_verbs::Context;

/// Nothing here takes so long.
const LONG: Duration = Duration::from_secs(60);

fn rounds() -> u64 {
    let given = std::env::var("XROCE_DAEMON_ROUNDS").ok();
    given.map_or(60, |n| n.parse().unwrap())
}

/// A small generator: what it makes is told by its seed.
struct Random(u64);

impl Random {
    fn new(what: &str) -> Self {
        let given = std::env::var("XROCE_SEED").ok();
        let seed = given.map_or(20_261_130, |n| n.parse().unwrap());
        println!("{what}: XROCE_SEED={seed}");
        Self(seed)
    }

    /// splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

/// A daemon with a device on an address of its own.
struct Host {
    daemon: Daemon,
    dir: TempDir,
}

impl Host {
    fn start(tune: impl FnOnce(&mut DaemonConfig)) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        // 127.128.0.0/9, to be no other test's.
        let addr = IpAddr::V4(Ipv4Addr::new(127, 128 + n, high, low.clamp(1, 254)));
        let dir = TempDir::new().unwrap();
        let device = DeviceConfig::new(Below::Udp { addr, ifname: None });
        let mut config = DaemonConfig::new(dir.path().join("s"), vec![device]);
        tune(&mut config);
        let daemon = Daemon::start(config).unwrap();
        Self { daemon, dir }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn attach(&self) -> Context {
        Context::attach(&self.socket(), None).unwrap()
    }

    /// Waits until only so many processes are attached: what the others had is gone then.
    fn wait_for(&self, sessions: usize) {
        let end = Instant::now() + LONG;
        while self.daemon.sessions().len() != sessions {
            assert!(Instant::now() < end, "{:?}", self.daemon.sessions());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Resident memory of this process, bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Descriptors this process has.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
