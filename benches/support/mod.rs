//! Two connected engines, and the work they are given: in one thread here, in two in [`threads`].
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each bench uses its own part"
)]

pub mod callgrind;
pub mod core;
pub mod threads;
#[cfg(feature = "xdp")]
pub mod xdp;

use xroce_api::Mr;
use xroce_engine::{Engine, EngineConfig, clock};
use xroce_net::datapath::{Datapath, Link};
use xroce_net::sim::{LoopConfig, LoopPort, loop_pair};
use xroce_proto::cc::{CongestionControl, Rate};
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit, QpState};
use xroce_proto::wc::{Completion, Cq, WcStatus};
use xroce_proto::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_shm::Region;
use xroce_wire::newtypes::{Gid, MacAddr, PathMtu, Psn, Qpn};
use xroce_wire::path::AddressVector;

/// Bytes of the region of each end.
pub const MEMORY: usize = 1 << 22;
/// Sends posted and not completed on a queue pair, at most.
pub const DEPTH: u32 = 128;
/// Completions of all queue pairs of an end.
const CQ_DEPTH: u32 = 1024;
/// Completions taken at once.
pub const REAP: usize = 64;

/// What messages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Send,
    Write,
    Read,
}

/// What governs the senders of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// The fixed window alone.
    Fixed,
    /// DCQCN, and every packet paced: at 100 Gb/s, which nothing here reaches, so that what is
    /// measured is the work and not the pause.
    Dcqcn,
}

impl Pace {
    fn apply(self, attr: QpAttr) -> QpAttr {
        if self == Self::Fixed || attr.state != Some(QpState::Rts) {
            return attr;
        }
        let line = Rate::bits_per_second(400_000_000_000);
        let control = CongestionControl::by_name("dcqcn", line, &[]).expect("it is known");
        QpAttr {
            congestion: Some(control),
            rate_limit: Some(Rate::bits_per_second(100_000_000_000)),
            ..attr
        }
    }
}

/// Where a port is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub gid: Gid,
    pub mac: MacAddr,
    /// UDP source port of its packets.
    pub src_port: u16,
}

/// One end.
pub struct End<D: Datapath> {
    pub engine: Engine<D>,
    pub place: Place,
    pub pd: Pd,
    pub cq: Cq,
    pub region: Region,
    pub mr: Mr,
    pub qpns: Vec<Qpn>,
}

impl<D: Datapath> End<D> {
    pub fn new(port: D, place: Place) -> Self {
        Self::with(port, place, CQ_DEPTH, MEMORY)
    }

    /// With a completion queue of its own depth and so much memory.
    pub fn with(port: D, place: Place, cq_depth: u32, memory: usize) -> Self {
        let mut engine = Engine::new(port, EngineConfig::default());
        let pd = engine.alloc_pd();
        let cq = engine.create_cq(cq_depth).expect("a CQ");
        let region = Region::anonymous(memory).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = engine.reg_mr(pd, &region, access).expect("an MR");
        Self {
            engine,
            place,
            pd,
            cq,
            region,
            mr,
            qpns: Vec::new(),
        }
    }

    pub fn create_qp(&mut self) -> Qpn {
        self.create_qp_of(DEPTH, 2 * DEPTH)
    }

    /// With queues of so many sends and receives.
    pub fn create_qp_of(&mut self, sends: u32, receives: u32) -> Qpn {
        let mut init = QpInit::rc(self.pd, self.cq, self.cq);
        init.max_send_wr = sends;
        init.max_recv_wr = receives;
        self.engine.create_qp(&init).expect("a QP")
    }

    /// `tune` gets the attributes of each step.
    pub fn connect(
        &mut self,
        qpn: Qpn,
        peer: &Place,
        peer_qpn: Qpn,
        mtu: PathMtu,
        tune: &dyn Fn(QpAttr) -> QpAttr,
    ) {
        let av = AddressVector {
            src: self.place.gid,
            dst: peer.gid,
            src_mac: self.place.mac,
            dst_mac: peer.mac,
            vlan: None,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            src_port: self.place.src_port,
        };
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        for attr in [
            QpAttr::init(access),
            QpAttr::rtr(av, mtu, peer_qpn, Psn::new(0)),
            QpAttr::rts(Psn::new(0)),
        ] {
            self.engine
                .modify_qp(qpn, &tune(attr))
                .expect("the next state");
        }
        self.qpns.push(qpn);
    }

    fn sge(&self, len: u32) -> Sge {
        Sge {
            lkey: self.mr.lkey,
            va: self.mr.va,
            len,
        }
    }

    /// The operation against the start of this end's region, for the peer to post.
    pub fn target(&self, op: Op) -> SendOp {
        let (va, rkey) = (self.mr.va, self.mr.rkey);
        match op {
            Op::Send => SendOp::Send,
            Op::Write => SendOp::Write { va, rkey },
            Op::Read => SendOp::Read { va, rkey },
        }
    }

    /// Posts a message; false if the queue is full.
    #[inline]
    pub fn post(&mut self, qpn: Qpn, wr_id: u64, op: SendOp, len: u32, signaled: bool) -> bool {
        let sges = [self.sge(len)];
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        let wr = SendWr {
            wr_id,
            op,
            flags,
            data: Data::Sges(&sges),
        };
        self.engine.post_send(qpn, &wr).is_ok()
    }

    /// Posts a receive; false if the queue is full.
    #[inline]
    pub fn post_recv(&mut self, qpn: Qpn, len: u32) -> bool {
        let sges = [self.sge(len)];
        let wr = RecvWr {
            wr_id: 0,
            sges: &sges,
        };
        self.engine.post_recv(qpn, &wr).is_ok()
    }

    /// Takes completions, all of which must be good.
    #[inline]
    pub fn reap(&mut self, batch: &mut [Completion; REAP]) -> usize {
        let n = self.engine.poll_cq(self.cq, batch);
        for wc in &batch[..n] {
            assert!(
                wc.status == WcStatus::Success,
                "{}",
                self.engine
                    .failure(wc.qpn)
                    .map_or_else(|| format!("{wc:?}"), |f| f.to_string())
            );
        }
        n
    }
}

/// Two ends with connected queue pairs.
pub struct Pair<D: Datapath = LoopPort> {
    pub ends: [End<D>; 2],
    /// Of the queue pairs connected from now on.
    pub pace: Pace,
}

impl Pair {
    /// Over the in-memory port, with `qps` queue pairs.
    pub fn in_memory(link: Link, mtu: PathMtu, qps: usize) -> Self {
        let mut pair = Self::new(memory_ports(link));
        for _ in 0..qps {
            pair.connect(mtu);
        }
        pair
    }
}

impl<D: Datapath> Pair<D> {
    /// Two engines, not connected yet.
    pub fn new(ports: [(D, Place); 2]) -> Self {
        Self::with(ports, CQ_DEPTH, MEMORY)
    }

    /// With completion queues of their own depth and so much memory at each end.
    pub fn with(ports: [(D, Place); 2], cq_depth: u32, memory: usize) -> Self {
        Self {
            ends: ports.map(|(port, place)| End::with(port, place, cq_depth, memory)),
            pace: Pace::Fixed,
        }
    }

    /// A new pair of connected queue pairs, the last of each end's list.
    pub fn connect(&mut self, mtu: PathMtu) {
        self.connect_of(mtu, DEPTH, 2 * DEPTH);
    }

    /// With queues of so many sends and receives.
    pub fn connect_of(&mut self, mtu: PathMtu, sends: u32, receives: u32) {
        let pace = self.pace;
        self.connect_tuned(mtu, [sends, receives], &|attr| pace.apply(attr));
    }

    /// [`Pair::connect_of`] with `tune` applied to the attributes of each step.
    pub fn connect_tuned(
        &mut self,
        mtu: PathMtu,
        [sends, receives]: [u32; 2],
        tune: &dyn Fn(QpAttr) -> QpAttr,
    ) {
        let [a, b] = &mut self.ends;
        let qa = a.create_qp_of(sends, receives);
        let qb = b.create_qp_of(sends, receives);
        a.connect(qa, &b.place, qb, mtu, tune);
        b.connect(qb, &a.place, qa, mtu, tune);
    }

    /// Sends `count` messages of `size` bytes from end 0 to end 1, round robin over the QPs,
    /// every one signaled, and returns when all are completed at both ends.
    pub fn stream(&mut self, op: Op, size: u32, count: usize) {
        let [from, to] = &mut self.ends;
        let qps = from.qpns.len();
        let send_op = to.target(op);
        let mut batch = [Completion::EMPTY; REAP];
        if op == Op::Send {
            for i in 0..qps {
                while to.post_recv(to.qpns[i], size) {}
            }
        }
        let (mut posted, mut sent) = (0, 0);
        let mut received = if op == Op::Send { 0 } else { count };
        // More could overrun the CQ.
        let window = (DEPTH as usize * qps).min(CQ_DEPTH as usize / 2);
        while sent < count || received < count {
            while posted < count && posted - sent < window {
                if !from.post(from.qpns[posted % qps], 0, send_op, size, true) {
                    break;
                }
                posted += 1;
            }
            let now = clock::now();
            from.engine.poll_once(now).expect("the port works");
            to.engine.poll_once(now).expect("the port works");
            sent += from.reap(&mut batch);
            let n = to.reap(&mut batch);
            received += n;
            for wc in &batch[..n] {
                to.post_recv(wc.qpn, size);
            }
        }
    }

    /// Destroys all queue pairs.
    pub fn disconnect(&mut self) {
        for end in &mut self.ends {
            for qpn in end.qpns.drain(..) {
                // It exists: nobody else destroys it.
                let _ = end.engine.destroy_qp(qpn);
            }
            while end.engine.poll_cq(end.cq, &mut [Completion::EMPTY; REAP]) != 0 {}
        }
    }
}

/// Both ends of an in-memory link, and where they are.
pub fn memory_ports(link: Link) -> [(LoopPort, Place); 2] {
    let addrs = [Gid::from_v4([10, 0, 0, 1]), Gid::from_v4([10, 0, 0, 2])];
    let (a, b) = loop_pair(&LoopConfig {
        link,
        addrs,
        ..LoopConfig::default()
    });
    let place = |i: u8| Place {
        gid: addrs[usize::from(i)],
        mac: MacAddr::new([2, 0, 0, 0, 0, i]),
        src_port: 4791,
    };
    [(a, place(0)), (b, place(1))]
}
