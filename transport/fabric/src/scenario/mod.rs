//! Scenarios: a run as a TOML file. `docs/simulator.md` has every key.
//!
//! Reading is in two steps. serde takes the text apart and knows types and names of keys; then
//! [`Scenario::setup`] checks every value against its limits and builds a [`Setup`]. An error says
//! in which line it is, which key, what is wrong and what would be right.

mod build;
mod congestion;
mod error;
mod shape;
mod sizes;
mod workload;

use std::collections::BTreeMap;

use serde::Deserialize;

pub use congestion::{ALGORITHMS, RECOVERIES};
pub use error::{Problem, ScenarioError};
pub use shape::{Pipe, Shape};
pub use sizes::Sizes;
pub use workload::{
    AllReduce, AllToAll, Checkpoint, Incast, ListedFlow, OpName, Permutation, Poisson, Rings,
    Workload,
};

use crate::setup::Setup;
use crate::units::{BitRate, Bytes, Time};

/// A whole scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name, for the report.
    #[serde(default)]
    pub name: String,
    /// What it is about, for people.
    #[serde(default)]
    pub description: String,
    /// All chance.
    #[serde(default = "one")]
    pub seed: u64,
    /// Virtual time after which the run ends; it ends earlier when all flows have.
    #[serde(default = "ten_ms")]
    pub duration: Time,
    /// Counters of links and queues start over here.
    #[serde(default)]
    pub warmup: Time,
    /// Time between samples; 200 samples of the duration by default, 0 is none.
    pub sample: Option<Time>,
    /// Flows in the series.
    #[serde(default = "sixty_four")]
    pub series_flows: usize,
    /// Links in the series.
    #[serde(default = "two_hundred_fifty_six")]
    pub series_links: usize,
    /// Hosts, switches and links.
    pub topology: Shape,
    /// Switches.
    #[serde(default)]
    pub switch: SwitchSpec,
    /// Marking; none without this table.
    pub ecn: Option<EcnSpec>,
    /// Priority flow control; none without this table.
    pub pfc: Option<PfcSpec>,
    /// Hosts.
    #[serde(default)]
    pub host: HostSpec,
    /// Queue pairs.
    #[serde(default)]
    pub transport: TransportSpec,
    /// Congestion control: `algorithm`, and its parameters.
    #[serde(default)]
    pub congestion: toml::Table,
    /// Classes of traffic by name. Without any there is "data".
    #[serde(default)]
    pub class: BTreeMap<String, ClassSpec>,
    /// What is sent.
    #[serde(default)]
    pub workload: Vec<Workload>,
    /// What happens to links.
    #[serde(default)]
    pub fault: Vec<FaultSpec>,
}

const fn one() -> u64 {
    1
}

const fn ten_ms() -> Time {
    Time::from_ms(10)
}

const fn sixty_four() -> usize {
    64
}

const fn two_hundred_fifty_six() -> usize {
    256
}

/// `[switch]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchSpec {
    /// The whole buffer of a switch, shared by its ports; 12 MB without both keys.
    pub buffer: Option<Bytes>,
    /// Instead: the buffer that each ingress port has for itself.
    pub port_buffer: Option<Bytes>,
    /// A queue without PFC may hold this multiple of the free shared buffer.
    pub alpha: f64,
    /// And at most so many bytes.
    pub queue_limit: Option<Bytes>,
    /// Shares of the priorities 0 to 7, 0 is strict priority.
    pub weights: [u16; 8],
    /// Who is next within a priority.
    pub order: OrderName,
    /// Choice among equal ways.
    pub ecmp: EcmpName,
    /// From a failure to new routes.
    pub reroute_delay: Time,
}

impl Default for SwitchSpec {
    fn default() -> Self {
        Self {
            buffer: None,
            port_buffer: None,
            alpha: 1.0,
            queue_limit: None,
            weights: [1, 1, 1, 1, 1, 1, 0, 0],
            order: OrderName::Arrival,
            ecmp: EcmpName::Flow,
            reroute_delay: Time::from_ms(1),
        }
    }
}

/// Names of [`Order`](crate::Order).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderName {
    /// Whoever came first.
    Arrival,
    /// Ingress ports in turn.
    Ingress,
}

/// Names of [`Balance`](crate::Balance).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EcmpName {
    /// By a hash of addresses and ports.
    Flow,
    /// At random for each packet.
    Spray,
    /// The port with the fewest bytes waiting.
    Adaptive,
}

/// `[ecn]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EcnSpec {
    /// Nothing is marked up to here.
    pub kmin: Bytes,
    /// Everything is marked beyond.
    pub kmax: Bytes,
    /// Probability at kmax, 0 to 1.
    pub pmax: f64,
    /// When the queue is looked at.
    #[serde(default)]
    pub at: MarkName,
    /// Priorities that are marked; all by default.
    pub priorities: Option<Vec<u8>>,
}

/// Names of [`MarkAt`](crate::MarkAt).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkName {
    /// When a packet leaves.
    #[default]
    Dequeue,
    /// When it comes.
    Enqueue,
}

/// `[pfc]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PfcSpec {
    /// Lossless priorities.
    pub priorities: Vec<u8>,
    /// Threshold of an ingress port and priority; without, it is dynamic.
    pub xoff: Option<Bytes>,
    /// The dynamic threshold: this multiple of the free shared buffer; 0.125 without both keys. With
    /// buffers of ports there is none unless given: all but headroom may be used.
    pub alpha: Option<f64>,
    /// The sender goes on once it is so many bytes below the threshold.
    pub xon_offset: Option<Bytes>,
    /// Bytes for what comes after a pause; computed from rate and delay without.
    pub headroom: Option<Bytes>,
}

impl Default for PfcSpec {
    fn default() -> Self {
        Self {
            priorities: vec![3],
            xoff: None,
            alpha: None,
            xon_offset: None,
            headroom: None,
        }
    }
}

/// `[host]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostSpec {
    /// Frames of a priority that may wait in the NIC.
    pub nic_queue: usize,
    /// The same while it is paused.
    pub nic_paused_queue: usize,
    /// Frames that may wait to be received.
    pub rx_ring: usize,
    /// Frames a queue pair sends before the next has its turn.
    pub quantum: usize,
    /// Least time between two congestion notifications.
    pub cnp_interval: Time,
    /// For what it is counted.
    pub cnp_scope: CnpScopeName,
    /// From the arrival of a frame until the engine sees it.
    pub delay: Time,
    /// The engine looks for arrivals no more often.
    pub poll_interval: Time,
    /// Priorities of DSCPs that differ from the three upper bits.
    pub dscp: BTreeMap<String, u8>,
}

impl Default for HostSpec {
    fn default() -> Self {
        let nic = crate::nic::NicConfig::default();
        Self {
            nic_queue: nic.queue,
            nic_paused_queue: nic.paused_queue,
            rx_ring: nic.rx_ring,
            quantum: 1,
            cnp_interval: Time::from_us(50),
            cnp_scope: CnpScopeName::Qp,
            delay: Time::ZERO,
            poll_interval: Time::ZERO,
            dscp: BTreeMap::new(),
        }
    }
}

/// Names of [`CnpScope`](xroce_engine::CnpScope).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CnpScopeName {
    /// Each queue pair.
    Qp,
    /// All queue pairs with one peer.
    Destination,
    /// The host.
    Port,
}

/// `[transport]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportSpec {
    /// Payload bytes of a packet: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    /// ACK timeout; the next of 4.096 µs · 2^n is taken, 0 is none.
    pub timeout: Time,
    /// Retries.
    pub retry_cnt: u8,
    /// Longest message; a longer flow is several.
    pub message: Bytes,
    /// Messages posted at once.
    pub depth: u32,
    /// Repair of losses.
    pub recovery: String,
}

impl Default for TransportSpec {
    fn default() -> Self {
        Self {
            path_mtu: 1024,
            timeout: Time::from_us(1000),
            retry_cnt: 7,
            message: Bytes(256 << 10),
            depth: 16,
            recovery: "go-back-n".to_owned(),
        }
    }
}

/// `[class.NAME]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClassSpec {
    /// DSCP of data.
    pub dscp: u8,
    /// DSCP of acknowledgements; that of data without.
    pub ack_dscp: Option<u8>,
    /// Whether data is ECN-capable.
    pub ecn: bool,
    /// Priority in a VLAN tag.
    pub pcp: Option<u8>,
}

impl Default for ClassSpec {
    fn default() -> Self {
        Self {
            dscp: 26,
            ack_dscp: None,
            ecn: true,
            pcp: None,
        }
    }
}

/// `[[fault]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    /// When.
    #[serde(default)]
    pub at: Time,
    /// Names of the two ends of the link.
    pub between: [String; 2],
    /// What.
    pub set: FaultName,
    /// `wire`: only from the first end to the second.
    #[serde(default)]
    pub one_way: bool,
    /// `wire`: rate.
    pub rate: Option<BitRate>,
    /// `wire`: share of frames lost, 0 to 1.
    #[serde(default)]
    pub loss: f64,
    /// `wire`: share of frames overtaken by others, 0 to 1.
    #[serde(default)]
    pub reorder: f64,
    /// `wire`: by how many at most.
    #[serde(default)]
    pub reorder_positions: u32,
    /// `wire`: added to the delay.
    #[serde(default)]
    pub extra_delay: Time,
    /// `storm`, `calm`: which priority.
    pub priority: Option<u8>,
}

/// What a fault does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultName {
    /// The link fails.
    Down,
    /// It works again.
    Up,
    /// It has another rate, loses, delays or reorders frames.
    Wire,
    /// The first end pauses the second and does not stop.
    Storm,
    /// It stops.
    Calm,
}

impl Scenario {
    /// Takes a scenario apart.
    ///
    /// # Errors
    /// It is no TOML, a key is not known, missing or of the wrong kind.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        toml::from_str(text).map_err(|e| ScenarioError::of_toml(text, &e))
    }

    /// Takes a scenario apart and checks it.
    ///
    /// # Errors
    /// As [`Scenario::parse`], or a value is out of its limits.
    pub fn load(text: &str, seed: Option<u64>) -> Result<(Self, Setup), ScenarioError> {
        let mut scenario = Self::parse(text)?;
        scenario.seed = seed.unwrap_or(scenario.seed);
        let setup = scenario.setup();
        let setup = setup.map_err(|problem| ScenarioError::locate(text, &problem))?;
        Ok((scenario, setup))
    }
}
