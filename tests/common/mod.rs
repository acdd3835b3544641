//! Two production engines over the simulated network, under a virtual clock.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

use std::net::IpAddr;

use xroce_engine::{Engine, EngineConfig, Mr};
use xroce_net::sim::{Impairment, LinkId, SimNet, SimPort};
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::time::Instant;
use xroce_proto::wc::{Completion, Cq, WcFlags, WcOpcode, WcStatus};
use xroce_proto::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_shm::Region;
use xroce_wire::newtypes::{Gid, MacAddr, PathMtu, Psn, Qpn, Va};
use xroce_wire::path::AddressVector;

/// Everything a peer may do.
pub const ALL_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// One end: an engine with a PD, a CQ and one region.
pub struct Host {
    pub engine: Engine<SimPort>,
    pub gid: Gid,
    pub mac: MacAddr,
    pub pd: Pd,
    pub cq: Cq,
    pub region: Region,
    pub mr: Mr,
}

impl Host {
    pub fn new(port: SimPort, ip: &str, n: u8, memory: usize) -> Self {
        let mut engine = Engine::new(port, EngineConfig::default());
        let pd = engine.alloc_pd();
        let cq = engine.create_cq(4096).unwrap();
        let region = Region::anonymous(memory).unwrap();
        let mr = engine.reg_mr(pd, &region, ALL_ACCESS).unwrap();
        let gid = Gid::from(ip.parse::<IpAddr>().unwrap());
        Self {
            engine,
            gid,
            mac: MacAddr::new([2, 0, 0, 0, 0, n]),
            pd,
            cq,
            region,
            mr,
        }
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

    pub fn path_to(&self, peer: &Self) -> AddressVector {
        AddressVector {
            src: self.gid,
            dst: peer.gid,
            src_mac: self.mac,
            dst_mac: peer.mac,
            vlan: None,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            src_port: 0xc123,
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
        let mut batch = [NO_COMPLETION; 64];
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

/// Filler for arrays of completions.
pub const NO_COMPLETION: Completion = Completion {
    wr_id: 0,
    status: WcStatus::GeneralErr,
    opcode: WcOpcode::Send,
    flags: WcFlags::empty(),
    byte_len: 0,
    qpn: Qpn::new(0),
    imm: [0; 4],
};

/// Two hosts and the network between them.
pub struct World {
    pub net: SimNet,
    pub link: LinkId,
    pub hosts: [Host; 2],
}

impl World {
    pub fn new(seed: u64, there: Impairment, back: Impairment) -> Self {
        Self::with_addresses(seed, there, back, ["192.0.2.1", "192.0.2.2"], 1 << 22)
    }

    pub fn with_addresses(
        seed: u64,
        there: Impairment,
        back: Impairment,
        ips: [&str; 2],
        memory: usize,
    ) -> Self {
        let net = SimNet::new(seed);
        let a = net.port(&xroce_net::sim::PortConfig::numbered(0));
        let b = net.port(&xroce_net::sim::PortConfig::numbered(1));
        let link = net.connect(&a, &b, there, back);
        let hosts = [
            Host::new(a, ips[0], 1, memory),
            Host::new(b, ips[1], 2, memory),
        ];
        Self { net, link, hosts }
    }

    /// A connected pair of RC QPs in RTS, with attributes adjusted by `tune`.
    pub fn connect(
        &mut self,
        mtu: PathMtu,
        psns: [u32; 2],
        init: impl Fn(&mut QpInit),
        tune: impl Fn(&mut QpAttr),
    ) -> [Qpn; 2] {
        let qpns = [0, 1].map(|i| {
            let host = &mut self.hosts[i];
            let mut qp = QpInit::rc(host.pd, host.cq, host.cq);
            qp.max_send_wr = 256;
            qp.max_recv_wr = 256;
            qp.max_send_sge = 4;
            qp.max_recv_sge = 4;
            init(&mut qp);
            host.engine.create_qp(&qp).unwrap()
        });
        for i in [0, 1] {
            let path = self.hosts[i].path_to(&self.hosts[1 - i]);
            let host = &mut self.hosts[i];
            host.engine
                .modify_qp(qpns[i], &QpAttr::init(ALL_ACCESS))
                .unwrap();
            let mut rtr = QpAttr::rtr(path, mtu, qpns[1 - i], Psn::new(psns[1 - i]));
            tune(&mut rtr);
            host.engine.modify_qp(qpns[i], &rtr).unwrap();
            let mut rts = QpAttr::rts(Psn::new(psns[i]));
            tune(&mut rts);
            host.engine.modify_qp(qpns[i], &rts).unwrap();
        }
        qpns
    }

    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.net.now())
    }

    /// Polls both engines until neither has anything to do now.
    pub fn settle(&mut self) {
        loop {
            let now = self.now();
            let idle = self.hosts.iter_mut().all(|h| {
                let work = h.engine.poll_once(now).unwrap();
                work.is_idle()
            });
            if idle {
                return;
            }
        }
    }

    /// Settles, then moves time to the next thing that will happen; `false` if nothing will.
    pub fn step(&mut self) -> bool {
        self.settle();
        let deadlines = self
            .hosts
            .iter()
            .filter_map(|h| h.engine.next_deadline())
            .map(|d| d.as_nanos());
        let Some(next) = deadlines.chain(self.net.next_event()).min() else {
            return false;
        };
        // A tick of the timer wheel may lie just behind: time never stands still.
        self.net.advance_to(next.max(self.net.now() + 1));
        true
    }

    /// Runs until `done` or until `limit_ns` of virtual time are over; `true` if done.
    pub fn run(&mut self, limit_ns: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.net.now() + limit_ns;
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            if self.net.now() >= end || !self.step() {
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
