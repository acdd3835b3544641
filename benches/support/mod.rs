//! Two engines in one thread over the in-memory port, and the work they are given.
#![allow(dead_code, unreachable_pub, reason = "each bench uses its own part")]

use xroce_engine::{Engine, EngineConfig, Mr, clock};
use xroce_net::datapath::Link;
use xroce_net::sim::{LoopConfig, LoopPort, loop_pair};
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::time::Instant;
use xroce_proto::wc::{Completion, Cq, WcFlags, WcOpcode, WcStatus};
use xroce_proto::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_shm::Region;
use xroce_wire::newtypes::{Gid, MacAddr, PathMtu, Psn, Qpn};
use xroce_wire::path::AddressVector;

/// One end.
pub struct End {
    pub engine: Engine<LoopPort>,
    pub pd: Pd,
    pub cq: Cq,
    pub region: Region,
    pub mr: Mr,
    pub qpns: Vec<Qpn>,
}

/// Bytes of the region of each end.
pub const MEMORY: usize = 1 << 22;
const DEPTH: u32 = 128;

pub const NO_COMPLETION: Completion = Completion {
    wr_id: 0,
    status: WcStatus::GeneralErr,
    opcode: WcOpcode::Send,
    flags: WcFlags::empty(),
    byte_len: 0,
    qpn: Qpn::new(0),
    imm: [0; 4],
};

fn end(port: LoopPort) -> End {
    let mut engine = Engine::new(port, EngineConfig::default());
    let pd = engine.alloc_pd();
    let cq = engine.create_cq(1 << 16).expect("a CQ");
    let region = Region::anonymous(MEMORY).expect("memory");
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = engine.reg_mr(pd, &region, access).expect("an MR");
    End { engine, pd, cq, region, mr, qpns: Vec::new() }
}

/// Two ends with `qps` connected pairs.
pub struct Pair {
    pub ends: [End; 2],
}

impl Pair {
    pub fn new(link: Link, mtu: PathMtu, qps: usize) -> Self {
        let addrs = [Gid::from_v4([10, 0, 0, 1]), Gid::from_v4([10, 0, 0, 2])];
        let (a, b) = loop_pair(&LoopConfig { link, addrs, ..LoopConfig::default() });
        let mut pair = Self { ends: [end(a), end(b)] };
        for _ in 0..qps {
            pair.connect(addrs, mtu);
        }
        pair
    }

    fn connect(&mut self, addrs: [Gid; 2], mtu: PathMtu) {
        let qpns = [0, 1].map(|i| {
            let end = &mut self.ends[i];
            let mut init = QpInit::rc(end.pd, end.cq, end.cq);
            init.max_send_wr = DEPTH;
            init.max_recv_wr = 2 * DEPTH;
            end.engine.create_qp(&init).expect("a QP")
        });
        for i in [0, 1] {
            let av = AddressVector {
                src: addrs[i],
                dst: addrs[1 - i],
                src_mac: MacAddr::new([2, 0, 0, 0, 0, 1]),
                dst_mac: MacAddr::new([2, 0, 0, 0, 0, 2]),
                vlan: None,
                traffic_class: 2,
                hop_limit: 64,
                flow_label: 0,
                src_port: 4791,
            };
            let engine = &mut self.ends[i].engine;
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
            engine.modify_qp(qpns[i], &QpAttr::init(access)).expect("INIT");
            let rtr = QpAttr::rtr(av, mtu, qpns[1 - i], Psn::new(0));
            engine.modify_qp(qpns[i], &rtr).expect("RTR");
            engine.modify_qp(qpns[i], &QpAttr::rts(Psn::new(0))).expect("RTS");
            self.ends[i].qpns.push(qpns[i]);
        }
    }

    fn poll(&mut self, now: Instant) {
        for end in &mut self.ends {
            end.engine.poll_once(now).expect("the port works");
        }
    }

    /// Sends `count` messages of `size` bytes from end 0 to end 1, round robin over the QPs,
    /// every one signaled, and returns when all are completed at both ends.
    pub fn stream(&mut self, op: fn(&End) -> SendOp, size: u32, count: usize) {
        let qps = self.ends[0].qpns.len();
        let op = op(&self.ends[1]);
        let is_send = matches!(op, SendOp::Send);
        let mut batch = [NO_COMPLETION; 64];
        if is_send {
            for i in 0..qps {
                for _ in 0..DEPTH.min(u32::try_from(count).unwrap_or(DEPTH)) {
                    self.ends[1].post_recv(i, size);
                }
            }
        }
        let (mut posted, mut sent, mut received) = (0, 0, if is_send { 0 } else { count });
        let window = DEPTH as usize * qps;
        while sent < count || received < count {
            while posted < count && posted - sent < window {
                let qpn = self.ends[0].qpns[posted % qps];
                if !self.ends[0].post(qpn, op, size) {
                    break;
                }
                posted += 1;
            }
            self.poll(clock::now());
            loop {
                let n = self.ends[0].engine.poll_cq(self.ends[0].cq, &mut batch);
                if n == 0 {
                    break;
                }
                assert!(batch[..n].iter().all(|c| c.status == WcStatus::Success));
                sent += n;
            }
            loop {
                let n = self.ends[1].engine.poll_cq(self.ends[1].cq, &mut batch);
                if n == 0 {
                    break;
                }
                for wc in &batch[..n] {
                    assert!(wc.status == WcStatus::Success);
                    if received + (DEPTH as usize) < count * qps {
                        let index = self.ends[1].qpns.iter().position(|&q| q == wc.qpn);
                        if let Some(i) = index {
                            self.ends[1].post_recv(i, size);
                        }
                    }
                    received += 1;
                }
            }
        }
    }
}

impl End {
    fn sge(&self, len: u32) -> Sge {
        Sge { lkey: self.mr.lkey, va: self.mr.va, len }
    }

    fn post(&mut self, qpn: Qpn, op: SendOp, len: u32) -> bool {
        let sges = [self.sge(len)];
        let wr = SendWr { wr_id: 0, op, flags: SendFlags::SIGNALED, data: Data::Sges(&sges) };
        self.engine.post_send(qpn, &wr).is_ok()
    }

    fn post_recv(&mut self, qp: usize, len: u32) {
        let sges = [self.sge(len)];
        let qpn = self.qpns[qp];
        // A full queue only means that enough are posted.
        let _ = self.engine.post_recv(qpn, &RecvWr { wr_id: 0, sges: &sges });
    }
}

/// SEND.
pub fn send(_peer: &End) -> SendOp {
    SendOp::Send
}

/// RDMA WRITE to the start of the peer's region.
pub fn write(peer: &End) -> SendOp {
    SendOp::Write { va: peer.mr.va, rkey: peer.mr.rkey }
}

/// RDMA READ from the start of the peer's region.
pub fn read(peer: &End) -> SendOp {
    SendOp::Read { va: peer.mr.va, rkey: peer.mr.rkey }
}
