//! Devices: a port, an engine and its thread, each.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{Builder, JoinHandle};

use xroce_api::message::{DeviceReport, QpReport};
use xroce_engine::{Engine, EngineConfig};
use xroce_net::addressing::Addressing;
use xroce_net::datapath::{Datapath, Link};
use xroce_net::neigh;
use xroce_net::udp::{UdpConfig, UdpPort};
use xroce_wire::newtypes::{PathMtu, Qpn};

use crate::config::{Below, DeviceConfig};
use crate::error::DaemonError;
use crate::mailbox::Mailbox;
use crate::report;
use crate::serve::Server;
use crate::serve::totals::Sums;
use crate::session::{Attached, Greeted};
use crate::tap::Tap;

/// A device in use.
pub(crate) struct Device<D: Datapath> {
    pub(crate) name: String,
    pub(crate) port: String,
    pub(crate) ethernet: bool,
    pub(crate) link_mtu: usize,
    pub(crate) max_frame: usize,
    pub(crate) path_mtu: PathMtu,
    pub(crate) mailbox: Arc<Mailbox<D>>,
    pub(crate) addressing: Arc<RwLock<Addressing>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<D: Datapath> fmt::Debug for Device<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name).finish()
    }
}

/// A device whatever its port is.
pub(crate) trait AnyDevice: fmt::Debug + Send + Sync {
    fn name(&self) -> &str;
    /// Serves a process until it hangs up or is closed.
    fn serve(self: Arc<Self>, who: Greeted);
    fn report(&self) -> Option<DeviceReport>;
    /// Queue pairs of some sessions behind `after`, in order, up to `most`.
    fn qps(&self, sessions: &[u32], after: Option<(u32, Qpn)>, most: usize) -> Vec<QpReport>;
    /// What the queue pairs of each session and all together did; `None`: the thread has ended.
    fn totals(&self) -> Option<Sums>;
    /// Sessions closed for cause.
    fn expelled(&self) -> u64;
    /// Sends that are not completed, of all processes.
    fn outstanding(&self) -> u64;
    /// Ends all sessions for a reason.
    fn expel_all(&self, reason: &str);
    /// Ends the thread.
    fn stop(&self);
}

impl<D: Datapath + Send + 'static> Device<D> {
    pub(crate) fn start(
        config: &DeviceConfig,
        port: D,
        addressing: Addressing,
    ) -> Result<Arc<Self>, DaemonError> {
        let caps = port.caps();
        let (port_name, link_mtu) = (caps.name.clone(), caps.mtu);
        let max_frame = caps.max_frame;
        let ethernet = caps.link == Link::Ethernet;
        let mailbox = Mailbox::new().map_err(DaemonError::system("making an eventfd"))?;
        let mailbox = Arc::new(mailbox);
        let mut engine = Engine::new(Tap::new(port), EngineConfig::default());
        engine.set_gids(addressing.gids());
        let addressing = Arc::new(RwLock::new(addressing));
        let made = Server::new(
            engine,
            Arc::clone(&mailbox),
            Arc::clone(&addressing),
            config.poll,
        );
        let server = made.map_err(DaemonError::system("making an epoll descriptor"))?;
        let core = config.core;
        let thread = Builder::new().name(format!("xroced-{}", config.name));
        let thread = thread.spawn(move || {
            if let Some(id) = core
                && !core_affinity::set_for_current(core_affinity::CoreId { id })
            {
                tracing::warn!(core = id, "the engine cannot be kept on this core");
            }
            server.run();
        });
        let thread = thread.map_err(DaemonError::system("starting a thread"))?;
        Ok(Arc::new(Self {
            name: config.name.clone(),
            port: port_name,
            ethernet,
            link_mtu,
            max_frame,
            path_mtu: PathMtu::for_link_mtu(link_mtu).unwrap_or(PathMtu::Mtu256),
            mailbox,
            addressing,
            thread: Mutex::new(Some(thread)),
        }))
    }

    pub(crate) fn is_up(&self) -> bool {
        let addressing = self.addressing.read();
        addressing.unwrap_or_else(PoisonError::into_inner).is_up()
    }
}

impl<D: Datapath + Send + 'static> AnyDevice for Device<D> {
    fn name(&self) -> &str {
        &self.name
    }

    fn serve(self: Arc<Self>, who: Greeted) {
        Attached::run(self, who);
    }

    fn report(&self) -> Option<DeviceReport> {
        report::device(self)
    }

    fn qps(&self, sessions: &[u32], after: Option<(u32, Qpn)>, most: usize) -> Vec<QpReport> {
        let sessions = sessions.to_vec();
        let listed = self
            .mailbox
            .run(move |server| server.qp_reports(&sessions, after, most));
        listed.unwrap_or_default()
    }

    fn totals(&self) -> Option<Sums> {
        let mut sums = Sums::default();
        while !sums.done {
            let next = self.mailbox.run(move |server| server.add_page(sums));
            sums = next.ok()?;
        }
        Some(sums)
    }

    fn expelled(&self) -> u64 {
        self.mailbox.run(|server| server.expelled).unwrap_or(0)
    }

    fn outstanding(&self) -> u64 {
        let counted = self.mailbox.run(|server| server.outstanding());
        counted.unwrap_or(0)
    }

    fn expel_all(&self, reason: &str) {
        let reason = reason.to_owned();
        let _ = self
            .mailbox
            .run(move |server| server.flush_and_expel(&reason));
    }

    fn stop(&self) {
        self.mailbox.post(Server::stop);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // A panic there has been printed, and there is nobody to hand it to.
            let _ = thread.join();
        }
    }
}

/// Opens a device and starts its thread.
pub(crate) fn open(config: &DeviceConfig) -> Result<Arc<dyn AnyDevice>, DaemonError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| DaemonError::Device {
        device: config.name.clone(),
        source,
    };
    match &config.below {
        Below::Udp { addr, ifname } => {
            let mut udp = UdpConfig::default();
            if let Some(name) = ifname {
                udp.scope_id = neigh::interface(name).map_err(|e| failed(e.into()))?.index;
            }
            let port = UdpPort::bind(*addr, &udp).map_err(|e| failed(e.into()))?;
            let (gid, src_port) = (port.gid(), port.src_port());
            let addressing = Addressing::udp(gid, udp.scope_id, src_port);
            let addressing = addressing.map_err(|e| failed(e.into()))?;
            Ok(Device::start(config, port, addressing)?)
        }
        Below::Xdp {
            ifname,
            queue,
            ring_size,
        } => open_xdp(config, ifname, *queue, *ring_size).map_err(failed)?,
    }
}

type Opened = Result<Arc<dyn AnyDevice>, DaemonError>;

#[cfg(feature = "xdp")]
fn open_xdp(
    config: &DeviceConfig,
    ifname: &str,
    queue: u32,
    ring_size: u32,
) -> Result<Opened, Box<dyn std::error::Error + Send + Sync>> {
    use xroce_net::xdp::{XdpConfig, XdpPort};
    let port = XdpPort::open(&XdpConfig {
        queue,
        ring_size,
        ..XdpConfig::new(ifname)
    })?;
    let addressing = Addressing::ethernet(ifname, None)?;
    Ok(Device::start(config, port, addressing).map(|device| device as Arc<dyn AnyDevice>))
}

#[cfg(not(feature = "xdp"))]
fn open_xdp(
    _: &DeviceConfig,
    _: &str,
    _: u32,
    _: u32,
) -> Result<Opened, Box<dyn std::error::Error + Send + Sync>> {
    Err("built without AF_XDP: build with the feature xdp, or use a UDP device".into())
}
