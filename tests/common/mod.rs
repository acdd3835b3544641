//! Two production engines over the simulated network, under a virtual clock.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "offsets and lengths of small regions"
)]

pub mod lane;
pub mod model;
#[cfg(feature = "xdp")]
pub mod netns_end;
pub mod script;
pub mod trace;

use std::net::IpAddr;

use xroce_api::Mr;
use xroce_engine::{Engine, EngineConfig};
use xroce_net::datapath::{Datapath, Link};
use xroce_net::sim::{Impairment, LinkId, PortConfig, Rng, SimNet, SimPort};
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::time::Instant;
use xroce_proto::wc::{Completion, Cq};
use xroce_proto::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_shm::Region;
use xroce_wire::newtypes::{Gid, MacAddr, PathMtu, Psn, Qpn, Va, VlanTci};
use xroce_wire::path::AddressVector;

/// Everything a peer may do.
pub const ALL_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL);

/// UDP source port of both hosts.
pub const SRC_PORT: u16 = 0xc123;

/// Polls at one point in time, at most: more frames than fit into all rings.
const POLLS_MAX: u32 = 1_000_000;

/// Bytes of canary before each area taken by [`Host::carve`].
const GAP: u64 = 64;

/// One end: an engine with a PD, a CQ and one region.
pub struct Host<D: Datapath = SimPort> {
    pub engine: Engine<D>,
    pub gid: Gid,
    pub mac: MacAddr,
    pub vlan: Option<VlanTci>,
    pub pd: Pd,
    pub cq: Cq,
    pub region: Region,
    pub mr: Mr,
    carved: u64,
}

impl<D: Datapath> Host<D> {
    pub fn new(port: D, ip: &str, n: u8, memory: usize) -> Self {
        Self::with_config(port, ip, n, memory, EngineConfig::default())
    }

    pub fn with_config(port: D, ip: &str, n: u8, memory: usize, config: EngineConfig) -> Self {
        let mut engine = Engine::new(port, config);
        let pd = engine.alloc_pd();
        let cq = engine.create_cq(4096).unwrap();
        let region = Region::anonymous(memory).unwrap();
        let mr = engine.reg_mr(pd, &region, ALL_ACCESS).unwrap();
        Self {
            engine,
            gid: gid(ip),
            mac: MacAddr::new([2, 0, 0, 0, 0, n]),
            vlan: None,
            pd,
            cq,
            region,
            mr,
            carved: 0,
        }
    }

    /// Registers the next `len` bytes of the region under keys of their own; returns where they
    /// start.
    pub fn carve(&mut self, len: u64, access: Access) -> (u64, Mr) {
        let at = self.carved + GAP;
        self.carved = at + len;
        let mr = self
            .engine
            .reg_mr_range(self.pd, &self.region, at, len, access);
        (at, mr.unwrap())
    }

    /// A scatter/gather element into the own region.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge {
            lkey: self.mr.lkey,
            va: self.mr.va.wrapping_add(offset),
            len,
        }
    }

    /// Address of an offset in the own region, for the peer.
    pub fn va(&self, offset: u64) -> Va {
        self.mr.va.wrapping_add(offset)
    }

    pub fn path_to<P: Datapath>(&self, peer: &Host<P>) -> AddressVector {
        AddressVector {
            src: self.gid,
            dst: peer.gid,
            src_mac: self.mac,
            dst_mac: peer.mac,
            vlan: self.vlan,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            src_port: SRC_PORT,
        }
    }

    pub fn post_send(&mut self, qpn: Qpn, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            data: Data::Sges(sges),
        };
        self.engine.post_send(qpn, &wr).unwrap();
    }

    pub fn post_recv(&mut self, qpn: Qpn, wr_id: u64, sges: &[Sge]) {
        self.engine.post_recv(qpn, &RecvWr { wr_id, sges }).unwrap();
    }

    /// All completions that are there.
    pub fn completions(&mut self) -> Vec<Completion> {
        let mut all = Vec::new();
        let mut batch = [Completion::EMPTY; 64];
        loop {
            let n = self.engine.poll_cq(self.cq, &mut batch);
            if n == 0 {
                return all;
            }
            all.extend_from_slice(&batch[..n]);
        }
    }

    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.region.read_at(offset, &mut out).unwrap();
        out
    }
}

/// What two hosts and the network between them are made of.
#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    /// From the first host to the second, and back.
    pub wires: [Impairment; 2],
    pub link: Link,
    pub ips: [&'static str; 2],
    pub vlan: Option<VlanTci>,
    /// Frames a port takes before it is full.
    pub tx_ring: usize,
    /// Bytes of each host's region.
    pub memory: usize,
    pub engine: EngineConfig,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            seed: 0,
            wires: [Impairment::delay(1000); 2],
            link: Link::Ethernet,
            ips: ["192.0.2.1", "192.0.2.2"],
            vlan: None,
            tx_ring: 256,
            memory: 1 << 22,
            engine: EngineConfig::default(),
        }
    }
}

impl Setup {
    pub fn build(&self) -> World {
        let net = SimNet::with_link(self.seed, self.link);
        let [a, b] = [0, 1].map(|n| self.port(&net, n));
        let link = net.connect(&a, &b, self.wires[0], self.wires[1]);
        World {
            net,
            link,
            hosts: self.hosts([a, b]),
        }
    }

    /// The two hosts on a switch, each behind a wire of its own (there is up, back is down), and a
    /// third port there that belongs to nobody. Without L2 it can only send as the first host.
    pub fn build_with_intruder(&self) -> (World, [LinkId; 2], SimPort) {
        let net = SimNet::with_link(self.seed, self.link);
        let switch = net.switch();
        let ports = [0, 1].map(|n| self.port(&net, n));
        let links = [0, 1].map(|n| {
            let up = self.wires[n];
            net.attach(&ports[n], switch, up, self.wires[1 - n])
        });
        let intruder = self.port(&net, 0);
        net.attach(&intruder, switch, self.wires[0], self.wires[0]);
        let hosts = self.hosts(ports);
        for (host, link) in hosts.iter().zip(links) {
            net.set_station(switch, host.mac, link.back);
            net.set_station_gid(switch, host.gid, link.back);
        }
        let link = links[0];
        (World { net, link, hosts }, links, intruder)
    }

    fn port(&self, net: &SimNet, n: usize) -> SimPort {
        net.port(&PortConfig {
            addr: gid(self.ips[n]),
            src_port: SRC_PORT,
            tx_ring: self.tx_ring,
            rx_ring: 1 << 16,
            ..PortConfig::numbered(n as u8)
        })
    }

    fn hosts(&self, [a, b]: [SimPort; 2]) -> [Host; 2] {
        [(a, 1), (b, 2)].map(|(port, n)| {
            let ip = self.ips[usize::from(n) - 1];
            let mut host = Host::with_config(port, ip, n, self.memory, self.engine);
            host.vlan = self.vlan;
            host
        })
    }
}

pub fn gid(ip: &str) -> Gid {
    Gid::from(ip.parse::<IpAddr>().unwrap())
}

/// Two hosts and the network between them.
pub struct World {
    pub net: SimNet,
    pub link: LinkId,
    pub hosts: [Host; 2],
}

impl World {
    pub fn new(seed: u64, there: Impairment, back: Impairment) -> Self {
        let setup = Setup {
            seed,
            wires: [there, back],
            ..Setup::default()
        };
        setup.build()
    }

    /// A connected pair of RC QPs in RTS, with attributes adjusted by `tune`.
    pub fn connect(
        &mut self,
        mtu: PathMtu,
        psns: [u32; 2],
        init: impl Fn(&mut QpInit),
        tune: impl Fn(&mut QpAttr),
    ) -> [Qpn; 2] {
        let qpns = [0, 1].map(|i| self.create_qp(i, &init));
        self.bring_up(qpns, mtu, psns, |_, attr| tune(attr));
        qpns
    }

    /// An RC QP of a host in RESET.
    pub fn create_qp(&mut self, host: usize, init: impl Fn(&mut QpInit)) -> Qpn {
        let host = &mut self.hosts[host];
        let mut qp = QpInit::rc(host.pd, host.cq, host.cq);
        qp.max_send_wr = 256;
        qp.max_recv_wr = 256;
        qp.max_send_sge = 4;
        qp.max_recv_sge = 4;
        init(&mut qp);
        host.engine.create_qp(&qp).unwrap()
    }

    /// Takes a pair from RESET to RTS; `tune` sees the attributes of each step of each host.
    pub fn bring_up(
        &mut self,
        qpns: [Qpn; 2],
        mtu: PathMtu,
        psns: [u32; 2],
        mut tune: impl FnMut(usize, &mut QpAttr),
    ) {
        for i in [0, 1] {
            let path = self.hosts[i].path_to(&self.hosts[1 - i]);
            let steps = [
                QpAttr::init(ALL_ACCESS),
                QpAttr::rtr(path, mtu, qpns[1 - i], Psn::new(psns[1 - i])),
                QpAttr::rts(Psn::new(psns[i])),
            ];
            for mut attr in steps {
                tune(i, &mut attr);
                self.hosts[i].engine.modify_qp(qpns[i], &attr).unwrap();
            }
        }
    }

    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.net.now())
    }

    /// Polls both engines until neither has anything to do now.
    pub fn settle(&mut self) {
        let now = self.now();
        for _ in 0..POLLS_MAX {
            let idle = self.hosts.iter_mut().all(|h| {
                let work = h.engine.poll_once(now).unwrap();
                work.is_idle()
            });
            if idle {
                return;
            }
        }
        panic!("the engines find work for ever at {} ns", self.net.now());
    }

    /// When something will happen next, by itself.
    pub fn next_event(&self) -> Option<u64> {
        let now = self.net.now();
        let deadlines = self.hosts.iter().filter_map(|h| h.engine.next_deadline());
        // A deadline that has passed after everything settled is a full port: it is the network
        // that knows when there is room again.
        deadlines
            .map(Instant::as_nanos)
            .filter(|&at| at > now)
            .chain(self.net.next_event())
            .min()
    }

    /// Settles, then moves time to the next thing that will happen, or to `wake`; `false` if
    /// nothing will.
    pub fn step(&mut self, wake: Option<u64>) -> bool {
        self.settle();
        let Some(next) = self.next_event().into_iter().chain(wake).min() else {
            return false;
        };
        // A tick of the timer wheel may lie just behind: time never stands still.
        self.net.advance_to(next.max(self.net.now() + 1));
        true
    }

    /// Lets time pass.
    pub fn idle(&mut self, ns: u64) {
        let end = self.net.now() + ns;
        while self.net.now() < end && self.step(Some(end)) {}
        self.settle();
    }

    /// Runs until `done` or until `limit_ns` of virtual time are over; `true` if done.
    pub fn run(&mut self, limit_ns: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.net.now() + limit_ns;
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            if self.net.now() >= end || !self.step(Some(end)) {
                return done(self);
            }
        }
    }
}

/// A recognisable pattern.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

/// A wire of random faults: up to `loss` and `corrupt` ppm, 5 % marked, and unless `in_order` up to
/// 5 % doubled and 5 % overtaken, those at most so many ns late.
pub fn rough_wire(
    rng: &mut Rng,
    in_order: bool,
    [loss, corrupt]: [u64; 2],
    [duplicate_delay_ns, reorder_delay_ns]: [u64; 2],
) -> Impairment {
    let mut up_to = |max: u64| u32::try_from(rng.below(max)).unwrap();
    let mut wire = Impairment {
        loss_ppm: up_to(loss),
        corrupt_ppm: up_to(corrupt),
        ce_ppm: up_to(50_000),
        rate_bps: 10_000_000_000,
        ..Impairment::delay(1000)
    };
    if !in_order {
        wire.duplicate_ppm = up_to(50_000);
        wire.duplicate_delay_ns = duplicate_delay_ns;
        wire.reorder_ppm = up_to(50_000);
        wire.reorder_positions = 3;
        wire.reorder_delay_ns = reorder_delay_ns;
    }
    wire
}
