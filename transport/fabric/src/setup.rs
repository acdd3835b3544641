//! All that a run depends on.

use crate::buffer::{BufferConfig, Sharing, Xoff};
use crate::egress::{Order, Weights};
use crate::flow::{Class, Flow, Transport};
use crate::host::HostConfig;
use crate::lane::Impairment;
use crate::net::{Balance, NoBuffer, SwitchConfig};
use crate::topology::Topology;
use crate::units::{BitRate, Time};
use xroce_api::EngineError;

/// Longest message, bytes: hosts share two regions of this size.
pub(crate) const MESSAGE_MAX: u64 = 64 << 20;

/// Most flows of a run.
pub(crate) const FLOWS_MAX: usize = 4_000_000;

/// Something that happens to a link or host at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// When.
    pub at: Time,
    /// Index of the link in [`Topology::links`].
    pub link: usize,
    /// What.
    pub change: Change,
}

/// What happens to a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Both directions fail, with all that is in their queues and on the wire.
    Down,
    /// Both work again.
    Up,
    /// It carries frames in another way from now on.
    Wire {
        /// From a to b.
        there: bool,
        /// From b to a.
        back: bool,
        /// Rate; `None` leaves it.
        rate: Option<BitRate>,
        /// What it does to frames.
        impairment: Impairment,
    },
    /// One end of the link begins to pause a priority at the other and does not stop: a NIC gone
    /// wrong.
    Storm {
        /// Whether it is end a.
        from_a: bool,
        /// 0 ..= 7.
        priority: u8,
        /// `false` ends it.
        on: bool,
    },
}

/// A run, completely.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Hosts, switches and links.
    pub topology: Topology,
    /// All switches.
    pub switch: SwitchConfig,
    /// All hosts.
    pub host: HostConfig,
    /// All queue pairs.
    pub transport: Transport,
    /// Classes of traffic, at least one.
    pub classes: Vec<Class>,
    /// What is sent.
    pub flows: Vec<Flow>,
    /// Names of the groups of flows, for the report.
    pub groups: Vec<String>,
    /// What happens to links.
    pub faults: Vec<Fault>,
    /// All chance.
    pub seed: u64,
    /// The run ends here, or when all flows have ended.
    pub end: Time,
    /// Counters of links and queues start over here.
    pub warmup: Time,
    /// Time between samples of the series; zero for none.
    pub sample: Time,
    /// Flows in the series, the first so many.
    pub series_flows: usize,
    /// Links in the series, at most: those of switches first.
    pub series_links: usize,
}

impl Setup {
    /// Nothing to send; 12 MB of buffer per switch with alpha 1, no ECN, no PFC; for at most 1 s.
    #[must_use]
    pub fn new(topology: Topology) -> Self {
        let host = HostConfig::default();
        let buffer = BufferConfig {
            sharing: Sharing::Switch,
            total: 12_000_000,
            alpha: 1024,
            queue_limit: u64::MAX,
            lossless: 0,
            xoff: Xoff::Dynamic(1024),
            xon_offset: 2 * host.nic.max_frame() as u64,
            headroom: None,
            max_frame: host.nic.max_frame() as u64,
        };
        Self {
            topology,
            switch: SwitchConfig {
                buffer,
                red: None,
                weights: Weights::default(),
                order: Order::default(),
                balance: Balance::default(),
                reroute: Time::from_ms(1),
            },
            host,
            transport: Transport::default(),
            classes: vec![Class::default()],
            flows: Vec::new(),
            groups: Vec::new(),
            faults: Vec::new(),
            seed: 1,
            end: Time::from_ms(1000),
            warmup: Time::ZERO,
            sample: Time::ZERO,
            series_flows: 64,
            series_links: 256,
        }
    }

    /// # Errors
    /// What cannot be simulated.
    pub(crate) fn check(&self) -> Result<(), SetupError> {
        self.topology.check().map_err(SetupError::Topology)?;
        let bad = |what: String| Err(SetupError::Value(what));
        let t = &self.transport;
        if !(1..=MESSAGE_MAX).contains(&t.message_bytes) {
            return bad(format!(
                "messages of {} bytes, 1 to {MESSAGE_MAX} are possible",
                t.message_bytes
            ));
        }
        if !(1..=1024).contains(&t.depth) {
            return bad(format!(
                "{} messages posted at once, 1 to 1024 are possible",
                t.depth
            ));
        }
        let nic = &self.host.nic;
        if !(2..=4096).contains(&nic.queue) || !(nic.queue..=65_536).contains(&nic.paused_queue) {
            let (queue, paused) = (nic.queue, nic.paused_queue);
            return bad(format!(
                "NIC queues of {queue} and {paused} frames, 2 to 4096 and from there to 65536 are possible"
            ));
        }
        if self.flows.len() > FLOWS_MAX {
            return bad(format!(
                "{} flows, {FLOWS_MAX} are possible",
                self.flows.len()
            ));
        }
        if let Some(red) = self.switch.red
            && (red.kmin > red.kmax || red.pmax_ppm > 1_000_000)
        {
            return bad(format!(
                "Kmin {} is above Kmax {}, or Pmax above 1",
                red.kmin, red.kmax
            ));
        }
        if let Some(fault) = self
            .faults
            .iter()
            .find(|f| f.link >= self.topology.links.len())
        {
            return bad(format!(
                "a fault of link {}, which does not exist",
                fault.link
            ));
        }
        self.check_flows()
    }

    fn check_flows(&self) -> Result<(), SetupError> {
        let hosts = self.topology.hosts.len();
        for (i, flow) in self.flows.iter().enumerate() {
            let no = |why: &str| Err(SetupError::Value(format!("flow {i}: {why}")));
            if flow.src as usize >= hosts || flow.dst as usize >= hosts {
                return no("a host that does not exist");
            }
            if flow.src == flow.dst {
                return no("from a host to itself");
            }
            if flow.class >= self.classes.len() {
                return no("a class that does not exist");
            }
            // Only earlier ones: no circles.
            if flow.after.iter().any(|&j| j as usize >= i) {
                return no("it begins after a flow that is not before it in the list");
            }
        }
        Ok(())
    }
}

/// Why there is no run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The topology cannot be.
    #[error("{0}")]
    Topology(String),
    /// A value is out of range.
    #[error("{0}")]
    Value(String),
    /// See [`NoBuffer`].
    #[error(transparent)]
    Buffer(#[from] NoBuffer),
    /// An engine refused something.
    #[error("host: {0}")]
    Engine(#[from] EngineError),
    /// No memory for messages.
    #[error("no memory for messages: {0}")]
    Memory(#[from] std::io::Error),
}
