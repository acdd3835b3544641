//! From a scenario to a [`Setup`]: every value is held against its limits here.

use xroce_engine::{CnpScope, EngineConfig, NotifyConfig};
use xroce_net::sim::Rng;
use xroce_proto::time::Duration;
use xroce_wire::newtypes::PathMtu;

use super::congestion;
use super::error::{Problem, within};
use super::workload::Ground;
use super::{CnpScopeName, EcmpName, FaultName, FaultSpec, MarkName, OrderName, Scenario};
use crate::buffer::{BufferConfig, Sharing, Xoff};
use crate::egress::{Order, Weights};
use crate::flow::{Class, Flow, Transport};
use crate::frame::DscpMap;
use crate::host::HostConfig;
use crate::lane::{Impairment, Node};
use crate::metrics::SAMPLES_MAX;
use crate::net::{Balance, SwitchConfig};
use crate::nic::NicConfig;
use crate::red::{MarkAt, Red};
use crate::setup::{Change, Fault, MESSAGE_MAX, Setup};
use crate::topology::Topology;
use crate::units::{BitRate, Time};

/// Longest run.
const DURATION_MAX: Time = Time::from_ms(1_000_000);
/// Largest buffer of a switch, bytes.
const BUFFER_MAX: u64 = 1_000_000_000_000;
/// Unless a scenario says otherwise.
const BUFFER_DEFAULT: u64 = 12_000_000;
/// IP, UDP and transport headers beside the payload of a packet, at most.
const HEADERS: usize = 88;

/// A factor as a multiple of 1/1024.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "up to 1000 · 1024"
)]
fn factor(path: &str, value: f64) -> Result<u64, Problem> {
    let value = within(path, value, (0.001, 1000.0))?;
    Ok((value * 1024.0).round() as u64)
}

/// A share of 1 in parts per million.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "0 to 10^6"
)]
fn ppm(path: &str, share: f64) -> Result<u32, Problem> {
    let share = within(path, share, (0.0, 1.0))?;
    Ok((share * 1e6).round() as u32)
}

fn priorities(path: &str, list: &[u8]) -> Result<u8, Problem> {
    list.iter().enumerate().try_fold(0, |mask, (i, &p)| {
        let p = within(&format!("{path}.{i}"), p, (0, 7))?;
        Ok(mask | 1 << p)
    })
}

impl Scenario {
    /// Checks every value and builds the run.
    ///
    /// # Errors
    /// The first value out of its limits.
    pub fn setup(&self) -> Result<Setup, Problem> {
        within("duration", self.duration, (Time::from_ns(1), DURATION_MAX))?;
        within("warmup", self.warmup, (Time::ZERO, self.duration))?;
        within("series_flows", self.series_flows, (0, 4096))?;
        within("series_links", self.series_links, (0, 65_536))?;
        let topology = self.topology.topology()?;
        topology
            .check()
            .map_err(|what| Problem::at("topology", what))?;
        let host = self.host_config()?;
        let rate = slowest_host(&topology);
        let switch = self.switch_config(&host)?;
        let (classes, names) = self.classes()?;
        let ground = Ground {
            hosts: u32::try_from(topology.hosts.len()).unwrap_or(0),
            machines: self.topology.machines(),
            rate,
            end: self.duration,
            classes: names,
        };
        let (flows, groups) = self.flows(&ground)?;
        let faults = self.faults(&topology)?;
        let setup = Setup {
            transport: self.transport_config(rate)?,
            sample: self.sample_interval()?,
            topology,
            switch,
            host,
            classes,
            flows,
            groups,
            faults,
            seed: self.seed,
            end: self.duration,
            warmup: self.warmup,
            series_flows: self.series_flows,
            series_links: self.series_links,
        };
        crate::net::check_buffers(&setup.topology, &setup.switch)
            .map_err(|e| Problem::at(buffer_key(&setup.switch), e.to_string()))?;
        setup
            .check()
            .map_err(|e| Problem::at("topology", e.to_string()))?;
        Ok(setup)
    }

    fn sample_interval(&self) -> Result<Time, Problem> {
        let Some(sample) = self.sample else {
            return Ok(Time::from_ps((self.duration.ps() / 200).max(1000)));
        };
        if sample == Time::ZERO {
            return Ok(sample);
        }
        let least = Time::from_ps(self.duration.ps().div_ceil(SAMPLES_MAX as u64));
        within(
            "sample",
            sample,
            (least.max(Time::from_ns(1)), DURATION_MAX),
        )
    }

    fn host_config(&self) -> Result<HostConfig, Problem> {
        let h = &self.host;
        let queue = within("host.nic_queue", h.nic_queue, (2, 4096))?;
        let mut dscp_map = DscpMap::default();
        for (dscp, &priority) in &h.dscp {
            let path = format!("host.dscp.{dscp}");
            let number = dscp.parse::<u8>().ok().filter(|d| *d < 64);
            let number = number.ok_or_else(|| Problem::at(&path, "a DSCP is 0 to 63"))?;
            dscp_map.set(number, within(&path, priority, (0, 7))?);
        }
        let paused = within("host.nic_paused_queue", h.nic_paused_queue, (queue, 65_536))?;
        let mtu = path_mtu(self.transport.path_mtu)?.bytes() + HEADERS;
        let second = Time::from_ms(1000);
        let cnp_interval = within("host.cnp_interval", h.cnp_interval, (Time::ZERO, second))?;
        Ok(HostConfig {
            nic: NicConfig {
                queue,
                paused_queue: paused,
                rx_ring: within("host.rx_ring", h.rx_ring, (1, 1 << 20))?,
                mtu,
            },
            engine: EngineConfig {
                quantum: within("host.quantum", h.quantum, (1, 64))?,
                notify: NotifyConfig {
                    min_time_between_cnps: Duration::from_nanos(cnp_interval.ps() / 1000),
                    scope: match h.cnp_scope {
                        CnpScopeName::Qp => CnpScope::Qp,
                        CnpScopeName::Destination => CnpScope::Destination,
                        CnpScopeName::Port => CnpScope::Port,
                    },
                    ..NotifyConfig::default()
                },
                ..EngineConfig::default()
            },
            delay: within("host.delay", h.delay, (Time::ZERO, second))?,
            poll_interval: within("host.poll_interval", h.poll_interval, (Time::ZERO, second))?,
            dscp_map,
        })
    }

    fn switch_config(&self, host: &HostConfig) -> Result<SwitchConfig, Problem> {
        let s = &self.switch;
        let frame = host.nic.max_frame() as u64;
        let (sharing, total) = self.buffer_size(frame)?;
        let queue_limit = match s.queue_limit {
            Some(limit) => within("switch.queue_limit", limit.0, (frame, BUFFER_MAX))?,
            None => u64::MAX,
        };
        let mut buffer = BufferConfig {
            sharing,
            total,
            alpha: factor("switch.alpha", s.alpha)?,
            queue_limit,
            lossless: 0,
            xoff: Xoff::Dynamic(128),
            xon_offset: 2 * frame,
            headroom: None,
            max_frame: frame,
        };
        self.apply_pfc(&mut buffer)?;
        for (i, weight) in s.weights.into_iter().enumerate() {
            within(&format!("switch.weights.{i}"), weight, (0, 1000))?;
        }
        let reroute = within(
            "switch.reroute_delay",
            s.reroute_delay,
            (Time::ZERO, DURATION_MAX),
        )?;
        Ok(SwitchConfig {
            buffer,
            red: self.red()?,
            weights: Weights::new(s.weights),
            order: match s.order {
                OrderName::Arrival => Order::Arrival,
                OrderName::Ingress => Order::Ingress,
            },
            balance: match s.ecmp {
                EcmpName::Flow => Balance::Flow,
                EcmpName::Spray => Balance::Spray,
                EcmpName::Adaptive => Balance::Adaptive,
            },
            reroute,
        })
    }

    /// Whose the buffers of switches are, and their size.
    fn buffer_size(&self, least: u64) -> Result<(Sharing, u64), Problem> {
        let limits = (least, BUFFER_MAX);
        match (self.switch.buffer, self.switch.port_buffer) {
            (None, None) => Ok((Sharing::Switch, BUFFER_DEFAULT)),
            (Some(all), None) => Ok((Sharing::Switch, within("switch.buffer", all.0, limits)?)),
            (None, Some(each)) => {
                let total = within("switch.port_buffer", each.0, limits)?;
                Ok((Sharing::Port, total))
            }
            (Some(_), Some(_)) => {
                let what =
                    "ports share the buffer or have one each: leave out buffer or port_buffer";
                Err(Problem::at("switch.port_buffer", what))
            }
        }
    }

    fn apply_pfc(&self, buffer: &mut BufferConfig) -> Result<(), Problem> {
        let Some(pfc) = &self.pfc else {
            return Ok(());
        };
        buffer.lossless = priorities("pfc.priorities", &pfc.priorities)?;
        buffer.xoff = match pfc.xoff {
            Some(xoff) => {
                let least = buffer.max_frame;
                Xoff::Static(within("pfc.xoff", xoff.0, (least, BUFFER_MAX))?)
            }
            None => match (pfc.alpha, buffer.sharing) {
                (None, Sharing::Port) => Xoff::Static(u64::MAX),
                (alpha, _) => Xoff::Dynamic(factor("pfc.alpha", alpha.unwrap_or(0.125))?),
            },
        };
        if let Some(offset) = pfc.xon_offset {
            buffer.xon_offset = within("pfc.xon_offset", offset.0, (0, BUFFER_MAX))?;
        }
        if let Some(headroom) = pfc.headroom {
            buffer.headroom = Some(within("pfc.headroom", headroom.0, (0, BUFFER_MAX))?);
        }
        Ok(())
    }

    fn red(&self) -> Result<Option<Red>, Problem> {
        let Some(ecn) = &self.ecn else {
            return Ok(None);
        };
        let kmin = within("ecn.kmin", ecn.kmin.0, (0, BUFFER_MAX))?;
        if ecn.kmax < ecn.kmin {
            let what = format!("{} is below kmin, which is {}", ecn.kmax, ecn.kmin);
            return Err(Problem::at("ecn.kmax", what));
        }
        Ok(Some(Red {
            kmin,
            kmax: within("ecn.kmax", ecn.kmax.0, (kmin, BUFFER_MAX))?,
            pmax_ppm: ppm("ecn.pmax", ecn.pmax)?,
            at: match ecn.at {
                MarkName::Dequeue => MarkAt::Dequeue,
                MarkName::Enqueue => MarkAt::Enqueue,
            },
            priorities: match &ecn.priorities {
                Some(list) => priorities("ecn.priorities", list)?,
                None => 0xff,
            },
        }))
    }

    fn transport_config(&self, rate: BitRate) -> Result<Transport, Problem> {
        let t = &self.transport;
        Ok(Transport {
            path_mtu: path_mtu(t.path_mtu)?,
            timeout: timeout_code(t.timeout)?,
            retry_cnt: within("transport.retry_cnt", t.retry_cnt, (0, 7))?,
            message_bytes: within("transport.message", t.message.0, (1, MESSAGE_MAX))?,
            depth: within("transport.depth", t.depth, (1, 1024))?,
            recovery: congestion::recovery(&t.recovery)?,
            congestion: congestion::control(&self.congestion, rate)?,
        })
    }

    fn classes(&self) -> Result<(Vec<Class>, Vec<String>), Problem> {
        if self.class.is_empty() {
            return Ok((vec![Class::default()], vec!["data".to_owned()]));
        }
        let mut classes = Vec::new();
        for (name, spec) in &self.class {
            let key = |key: &str| format!("class.{name}.{key}");
            let pcp = spec
                .pcp
                .map(|p| within(&key("pcp"), p, (0, 7)))
                .transpose()?;
            classes.push(Class {
                dscp: within(&key("dscp"), spec.dscp, (0, 63))?,
                ack_dscp: within(
                    &key("ack_dscp"),
                    spec.ack_dscp.unwrap_or(spec.dscp),
                    (0, 63),
                )?,
                ecn: spec.ecn,
                pcp,
            });
        }
        Ok((classes, self.class.keys().cloned().collect()))
    }

    fn flows(&self, ground: &Ground) -> Result<(Vec<Flow>, Vec<String>), Problem> {
        within("workload", self.workload.len(), (1, 1000)).map_err(|_| {
            let what = "there is nothing to send: 1 to 1000 tables [[workload]] are needed";
            Problem::at("workload", what)
        })?;
        // Not the switches' chance: another topology has the same traffic.
        let mut rng = Rng::new(self.seed ^ 0x7769_6f6c_6164);
        let mut flows: Vec<Flow> = Vec::new();
        let mut groups = Vec::new();
        for (i, workload) in self.workload.iter().enumerate() {
            let offset = flows.len() as u64;
            flows.extend(workload.flows((i, offset), ground, rng.fork())?);
            let kind = workload.kind().unwrap_or("flows").to_owned();
            groups.push(workload.name.clone().unwrap_or(kind));
        }
        Ok((flows, groups))
    }

    fn faults(&self, topology: &Topology) -> Result<Vec<Fault>, Problem> {
        within("fault", self.fault.len(), (0, 100_000))?;
        let each = self.fault.iter().enumerate();
        each.map(|(i, spec)| fault(i, spec, topology)).collect()
    }
}

fn buffer_key(switch: &SwitchConfig) -> &'static str {
    match switch.buffer.sharing {
        Sharing::Switch => "switch.buffer",
        Sharing::Port => "switch.port_buffer",
    }
}

fn path_mtu(bytes: u32) -> Result<PathMtu, Problem> {
    let mtu = PathMtu::from_bytes(bytes as usize);
    mtu.ok_or_else(|| {
        let what = format!("{bytes} is no path MTU: 256, 512, 1024, 2048 and 4096 are");
        Problem::at("transport.path_mtu", what)
    })
}

/// The code of the next longer timeout.
fn timeout_code(timeout: Time) -> Result<u8, Problem> {
    if timeout == Time::ZERO {
        return Ok(0);
    }
    let most = Time::from_ms(100_000);
    let timeout = within("transport.timeout", timeout, (Time::from_ns(1), most))?;
    let code = (1..=31).find(|&code| Time::from_ns(4096 << code) >= timeout);
    Ok(code.unwrap_or(31))
}

fn slowest_host(topology: &Topology) -> BitRate {
    let of_host =
        |l: &&crate::topology::Link| matches!(l.a, Node::Host(_)) || matches!(l.b, Node::Host(_));
    let rates = topology.links.iter().filter(of_host).map(|l| l.rate);
    rates.min().unwrap_or(BitRate::MAX)
}

fn fault(i: usize, spec: &FaultSpec, topology: &Topology) -> Result<Fault, Problem> {
    let key = |key: &str| format!("fault.{i}.{key}");
    let mut ends = [Node::Host(0); 2];
    for (n, (end, name)) in ends.iter_mut().zip(&spec.between).enumerate() {
        *end = topology.find(name).ok_or_else(|| {
            let all = topology.hosts.iter().chain(&topology.switches);
            let near = super::error::nearest(name, all.map(String::as_str));
            let hint = near.map_or_else(String::new, |n| format!(": did you mean \"{n}\"?"));
            Problem::at(
                &key(&format!("between.{n}")),
                format!("there is no \"{name}\"{hint}"),
            )
        })?;
    }
    let [a, b] = ends;
    let joins = |l: &crate::topology::Link| (l.a, l.b) == (a, b) || (l.a, l.b) == (b, a);
    let link = topology.links.iter().position(joins).ok_or_else(|| {
        let [from, to] = &spec.between;
        Problem::at(
            &key("between"),
            format!("there is no link between {from} and {to}"),
        )
    })?;
    let turned = topology.links[link].a != a;
    let change = match spec.set {
        FaultName::Down => Change::Down,
        FaultName::Up => Change::Up,
        FaultName::Wire => {
            let both = !spec.one_way;
            Change::Wire {
                there: both || !turned,
                back: both || turned,
                rate: spec.rate,
                impairment: Impairment {
                    loss_ppm: ppm(&key("loss"), spec.loss)?,
                    reorder_ppm: ppm(&key("reorder"), spec.reorder)?,
                    reorder_positions: within(
                        &key("reorder_positions"),
                        spec.reorder_positions,
                        (0, 10_000),
                    )?,
                    extra_delay: within(
                        &key("extra_delay"),
                        spec.extra_delay,
                        (Time::ZERO, Time::from_ms(1000)),
                    )?,
                },
            }
        }
        FaultName::Storm | FaultName::Calm => {
            let priority = spec.priority.unwrap_or(3);
            Change::Storm {
                from_a: !turned,
                priority: within(&key("priority"), priority, (0, 7))?,
                on: spec.set == FaultName::Storm,
            }
        }
    };
    Ok(Fault {
        at: within(&key("at"), spec.at, (Time::ZERO, DURATION_MAX))?,
        link,
        change,
    })
}
