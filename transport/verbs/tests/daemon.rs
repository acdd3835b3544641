//! Contexts of devices of a daemon: the same as those of an engine in this process.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

mod threads;

use tempfile::TempDir;
use xroce_daemon::{Below, Daemon, DaemonConfig, DeviceConfig};
use xroce_verbs::{
    AhAttr, Context, Event, Placement, QKey, Qp, RecvBatch, Region, SendBatch, SrqInfo, Type1,
    Type2, Uc, Ud, VerbsError, WcOpcode, WcStatus,
};

use threads::{ALL, End, LONG, address, pair, ping_pong};

/// A daemon with a device on an address of its own.
struct Host {
    daemon: Option<Daemon>,
    dir: TempDir,
}

impl Host {
    fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let device = DeviceConfig::new(Below::Udp {
            addr: address(),
            ifname: None,
        });
        let config = DaemonConfig::new(dir.path().join("xroced.sock"), vec![device]);
        let daemon = Some(Daemon::start(config).unwrap());
        Self { daemon, dir }
    }

    fn attach(&self) -> Context {
        Context::attach(&self.dir.path().join("xroced.sock"), None).unwrap()
    }

    fn end(&self) -> End {
        End::of(self.attach())
    }

    fn stop(&mut self, reason: &str) {
        self.daemon.take().unwrap().stop(reason);
    }
}

#[test]
fn two_processes_of_one_daemon_carry_messages() {
    let host = Host::start();
    ping_pong(&host.end(), &host.end());
}

#[test]
fn processes_of_two_daemons_carry_messages() {
    let hosts = [Host::start(), Host::start()];
    ping_pong(&hosts[0].end(), &hosts[1].end());
}

#[test]
fn several_threads_post_to_one_queue_pair() {
    let hosts = [Host::start(), Host::start()];
    threads::several_threads_post(&hosts[0].end(), &hosts[1].end());
}

#[test]
fn channels_and_events_have_descriptors_to_poll() {
    let hosts = [Host::start(), Host::start()];
    threads::channels_and_events_have_descriptors(&hosts[0].end(), &hosts[1].end());
}
