//! The daemon as a whole: the socket, who may attach, and the end.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, Mode, chmod, chown};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use xroce_control::reply::{Farewell, SessionReport};
use xroce_control::socket::{self, Kind};
use xroce_net::addressing::Addressing;
use xroce_net::datapath::Datapath;

use crate::config::{DaemonConfig, DeviceConfig};
use crate::device::{self, AnyDevice, Device};
use crate::error::DaemonError;
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
    pub(crate) config: DaemonConfig,
    pub(crate) devices: Vec<Arc<dyn AnyDevice>>,
    stopping: AtomicBool,
    next: AtomicU32,
    sessions: Mutex<BTreeMap<u32, Arc<Vitals>>>,
}

impl Common {
    fn sessions(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Vitals>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn session_reports(&self) -> Vec<SessionReport> {
        self.sessions()
            .values()
            .map(|vitals| vitals.report())
            .collect()
    }

    /// Takes a process in, or says why not.
    fn enter(&self, vitals: &Arc<Vitals>) -> Result<(), String> {
        let mut sessions = self.sessions();
        let limit = self.config.sessions as usize;
        if sessions.len() >= limit {
            return Err(format!("{limit} processes are attached, the limit"));
        }
        let uid = vitals.uid;
        let theirs = sessions.values().filter(|other| other.uid == uid).count();
        let limit = self.config.sessions_per_user as usize;
        if uid != 0 && theirs >= limit {
            return Err(format!(
                "user {uid} has {limit} processes attached, the limit"
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
        listener: OwnedFd,
    ) -> Result<Self, DaemonError> {
        let common = Arc::new(Common {
            devices,
            config,
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
        self.end(reason, self.common.config.drain);
    }

    fn end(&mut self, reason: &str, drain: Duration) {
        let Some(accepting) = self.accepting.take() else {
            return;
        };
        self.common.stopping.store(true, Ordering::Release);
        let _ = accepting.join();
        let devices = &self.common.devices;
        let until = Instant::now() + drain;
        while devices.iter().any(|device| device.outstanding() != 0) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        for device in devices {
            device.expel_all(reason);
        }
        // Their threads destroy what is theirs; a process that does not answer is not waited for.
        let until = Instant::now() + Duration::from_secs(5);
        while !self.common.sessions().is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        for device in devices {
            device.stop();
        }
        // Another daemon may have taken the path meanwhile only after this one was gone.
        let _ = std::fs::remove_file(&self.common.config.socket);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end("the daemon ends", Duration::ZERO);
    }
}

/// The socket; one that a daemon left behind is replaced.
fn listen_at(config: &DaemonConfig) -> Result<OwnedFd, DaemonError> {
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

fn make(config: &DaemonConfig, path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    if let Some(group) = config.group {
        chown(path, None, Some(Gid::from_raw(group)))?;
    }
    chmod(path, Mode::from_raw_mode(config.mode))?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

fn accept_all(common: &Arc<Common>, listener: &OwnedFd) {
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
