//! The daemon as a whole: the socket, who may attach, and the end.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, Mode, chmod, chown};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use xroce_api::clock;
use xroce_api::message::{Farewell, Report, SessionReport};
use xroce_control::socket::{self, Kind};
use xroce_net::addressing::Addressing;
use xroce_net::datapath::Datapath;

use crate::config::{DaemonConfig, DeviceConfig};
use crate::device::{self, AnyDevice, Device};
use crate::error::DaemonError;
use crate::report;
use crate::serve::totals::Totals;
use crate::session::{self, Vitals};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Stack of the thread of a session, bytes.
const STACK: usize = 256 << 10;
/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(200);

/// What all threads know.
#[derive(Debug)]
pub(crate) struct Common {
    /// Read when a process attaches and at the end.
    config: RwLock<DaemonConfig>,
    pub(crate) devices: Vec<Arc<dyn AnyDevice>>,
    stopping: AtomicBool,
    next: AtomicU32,
    sessions: Mutex<BTreeMap<u32, Arc<Vitals>>>,
}

impl Common {
    pub(crate) fn config(&self) -> RwLockReadGuard<'_, DaemonConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Vitals>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn session_reports(&self) -> Vec<SessionReport> {
        self.sessions()
            .values()
            .map(|vitals| vitals.report())
            .collect()
    }

    /// Whether a process still uses a device. Those that only ask have nothing to destroy.
    fn any_attached(&self) -> bool {
        self.sessions().values().any(|vitals| vitals.has_device())
    }

    /// Takes a process in, or says why not.
    fn enter(&self, vitals: &Arc<Vitals>) -> Result<(), String> {
        let (limit, limit_per_user) = {
            let config = self.config();
            (config.sessions as usize, config.sessions_per_user as usize)
        };
        let mut sessions = self.sessions();
        if sessions.len() >= limit {
            return Err(format!("{limit} processes are attached, the limit"));
        }
        let uid = vitals.uid;
        let theirs = sessions.values().filter(|other| other.uid == uid).count();
        if uid != 0 && theirs >= limit_per_user {
            return Err(format!(
                "user {uid} has {limit_per_user} processes attached, the limit"
            ));
        }
        sessions.insert(vitals.session, Arc::clone(vitals));
        Ok(())
    }

    pub(crate) fn leave(&self, session: u32) {
        self.sessions().remove(&session);
    }
}

/// A running daemon. Dropped, it ends at once.
#[derive(Debug)]
pub struct Daemon {
    common: Arc<Common>,
    accepting: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Opens the devices and listens.
    ///
    /// # Errors
    /// See [`DaemonError`].
    pub fn start(config: DaemonConfig) -> Result<Self, DaemonError> {
        if config.devices.is_empty() {
            return Err(DaemonError::NoDevice);
        }
        for (n, device) in config.devices.iter().enumerate() {
            if config.devices.iter().take(n).any(|d| d.name == device.name) {
                return Err(DaemonError::TwoDevices(device.name.clone()));
            }
        }
        let listener = listen_at(&config)?;
        let devices: Result<Vec<_>, _> = config.devices.iter().map(device::open).collect();
        Self::listen(config, devices?, listener)
    }

    /// The same on a port of one's own, and only that: `device` says what it is called and how it
    /// is polled.
    ///
    /// # Errors
    /// See [`DaemonError`].
    pub fn on_port<D: Datapath + Send + 'static>(
        config: DaemonConfig,
        device: &DeviceConfig,
        port: D,
        addressing: Addressing,
    ) -> Result<Self, DaemonError> {
        let listener = listen_at(&config)?;
        let device: Arc<dyn AnyDevice> = Device::start(device, port, addressing)?;
        Self::listen(config, vec![device], listener)
    }

    fn listen(
        config: DaemonConfig,
        devices: Vec<Arc<dyn AnyDevice>>,
        listener: Listening,
    ) -> Result<Self, DaemonError> {
        let common = Arc::new(Common {
            devices,
            config: RwLock::new(config),
            stopping: AtomicBool::new(false),
            next: AtomicU32::new(1),
            sessions: Mutex::default(),
        });
        let thread = Builder::new().name("xroced-accept".to_owned());
        let theirs = Arc::clone(&common);
        let accepting = thread.spawn(move || accept_all(&theirs, &listener));
        Ok(Self {
            common,
            accepting: Some(accepting.map_err(DaemonError::system("starting a thread"))?),
        })
    }

    /// Processes attached.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionReport> {
        self.common.session_reports()
    }

    /// What it has and does.
    #[must_use]
    pub fn report(&self) -> Report {
        report::report(&self.common, self.common.sessions().len())
    }

    /// What queue pairs did, per device. The engine adds them up a few at a time, serving in
    /// between, so a sum is no snapshot; it never falls.
    #[must_use]
    pub fn totals(&self) -> Vec<DeviceTotals> {
        let of = |device: &Arc<dyn AnyDevice>| {
            let sums = device.totals()?;
            Some(DeviceTotals {
                device: device.name().to_owned(),
                all: sums.device,
                sessions: sums.sessions,
            })
        };
        self.common.devices.iter().filter_map(of).collect()
    }

    /// Takes over what can be changed while it runs: limits (for processes that attach from now
    /// on), numbers of sessions (nobody is sent away), mode and group of the socket, and the time
    /// to drain.
    ///
    /// # Errors
    /// [`DaemonError::Socket`]: mode or group cannot be set; nothing is taken over then.
    pub fn reload(&self, new: &DaemonConfig) -> Result<Reloaded, DaemonError> {
        let mut config = self.common.config.write();
        let config = config.as_mut().unwrap_or_else(|e| e.get_mut());
        if (config.mode, config.group) != (new.mode, new.group) {
            let group = new.group.or_else(|| config.group.map(|_| own_group()));
            let set = permit(&config.socket, new.mode, group);
            set.map_err(|source| DaemonError::Socket {
                path: config.socket.clone(),
                source,
            })?;
        }
        config.mode = new.mode;
        config.group = new.group;
        config.sessions = new.sessions;
        config.sessions_per_user = new.sessions_per_user;
        config.limits = new.limits;
        config.drain = new.drain;
        Ok(Reloaded {
            other_socket: config.socket != new.socket,
            other_devices: config.devices != new.devices,
        })
    }

    /// Names of the devices, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<String> {
        self.common
            .devices
            .iter()
            .map(|d| d.name().to_owned())
            .collect()
    }

    /// Ends it: nobody is let in, sends get time to complete, what is left is flushed, and
    /// processes are told `reason`.
    pub fn stop(mut self, reason: &str) {
        let drain = self.common.config().drain;
        self.end(reason, drain);
    }

    fn end(&mut self, reason: &str, drain: Duration) {
        let Some(accepting) = self.accepting.take() else {
            return;
        };
        self.common.stopping.store(true, Ordering::Release);
        let _ = accepting.join();
        let devices = &self.common.devices;
        let until = after(drain);
        while devices.iter().any(|device| device.outstanding() != 0) && clock::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        for device in devices {
            device.expel_all(reason);
        }
        // Their threads destroy what is theirs; a process that does not answer is not waited for.
        let until = after(Duration::from_secs(5));
        while self.common.any_attached() && clock::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        for device in devices {
            device.stop();
        }
    }
}

/// What queue pairs of a device did.
#[derive(Clone, Debug)]
pub struct DeviceTotals {
    /// The device.
    pub device: String,
    /// All together, those of sessions that have ended too.
    pub all: Totals,
    /// By session.
    pub sessions: BTreeMap<u32, Totals>,
}

/// What a reload left as it was, though the new configuration says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reloaded {
    /// Where it listens.
    pub other_socket: bool,
    /// The devices.
    pub other_devices: bool,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end("the daemon ends", Duration::ZERO);
    }
}

/// That much from now.
fn after(wait: Duration) -> xroce_proto::time::Instant {
    let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
    clock::now() + xroce_proto::time::Duration::from_nanos(ns)
}

/// A socket at its path. Both go together: nobody finds a path where nobody will answer, and the path
/// that another daemon takes afterwards is left alone.
#[derive(Debug)]
struct Listening {
    fd: OwnedFd,
    path: PathBuf,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The socket; one that a daemon left behind is replaced.
fn listen_at(config: &DaemonConfig) -> Result<Listening, DaemonError> {
    let path = &config.socket;
    let failed = |source: io::Error| DaemonError::Socket {
        path: path.clone(),
        source,
    };
    if socket::connect_to(path).is_ok() {
        return Err(DaemonError::Taken(path.clone()));
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if is_socket(&found) => std::fs::remove_file(path).map_err(failed)?,
        // Whatever it is, it is not ours to remove: bind says so.
        Ok(_) | Err(_) => {}
    }
    make(config, path).map_err(failed)
}

fn is_socket(found: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    found.file_type().is_socket()
}

fn make(config: &DaemonConfig, path: &Path) -> io::Result<Listening> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&fd, &SocketAddrUnix::new(path)?)?;
    let path = path.to_owned();
    let listener = Listening { fd, path };
    permit(&listener.path, config.mode, config.group)?;
    listen(&listener.fd, BACKLOG)?;
    Ok(listener)
}

/// Says who may open the socket.
fn permit(path: &Path, mode: u32, group: Option<u32>) -> io::Result<()> {
    if let Some(group) = group {
        chown(path, None, Some(Gid::from_raw(group)))?;
    }
    Ok(chmod(path, Mode::from_raw_mode(mode))?)
}

fn own_group() -> u32 {
    rustix::process::getegid().as_raw()
}

fn accept_all(common: &Arc<Common>, listener: &Listening) {
    let listener = &listener.fd;
    while !common.stopping.load(Ordering::Acquire) {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        let timeout = Timespec::try_from(LOOK).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "waiting for processes to attach");
                return;
            }
        }
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => admit(common, socket),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
            Err(error) => {
                // Descriptors have run out: others have to go first.
                tracing::error!(%error, "a process could not attach");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn admit(common: &Arc<Common>, socket: OwnedFd) {
    let Ok(who) = socket_peercred(&socket) else {
        return;
    };
    let session = common.next.fetch_add(1, Ordering::Relaxed);
    let pid = u32::try_from(who.pid.as_raw_pid()).unwrap_or(0);
    let vitals = Arc::new(Vitals::new(session, pid, who.uid.as_raw()));
    if let Err(text) = common.enter(&vitals) {
        tracing::warn!(pid, text, "a process was not let in");
        let _ = socket::send(socket.as_fd(), Kind::Farewell, &Farewell { text }, &[]);
        return;
    }
    let theirs = Arc::clone(common);
    let thread = Builder::new()
        .name(format!("session-{session}"))
        .stack_size(STACK);
    let started = thread.spawn(move || {
        session::greet(&theirs, socket, &vitals);
        theirs.leave(session);
    });
    if let Err(error) = started {
        tracing::error!(%error, pid, "no thread for a session");
        common.leave(session);
    }
}
