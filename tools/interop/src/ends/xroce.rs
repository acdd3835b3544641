//! Our end: an engine over AF_XDP on the tap, in a thread of its own inside the namespace.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use xroce_engine::{Ah, Engine, EngineConfig, Mr as EngineMr, PollMode, Poller, UdDest, clock};
use xroce_net::neigh;
use xroce_net::xdp::{XdpConfig, XdpPort};
use xroce_proto::counters::Counters;
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit, QpState, QpType};
use xroce_proto::wc::{Completion, Cq, WcFlags};
use xroce_proto::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_shm::Region;
use xroce_testnet::Netns;
use xroce_wire::newtypes::{Gid, MacAddr, Psn, QKey, Qpn, RKey, Va, VlanTci};
use xroce_wire::path::AddressVector;
use xroce_wire::syndrome::RnrTimer;

use super::pattern::pattern_bytes;
use super::{
    AhId, Connect, CqId, End, Mr, MrId, Op, Piece, QpId, QpSpec, Recv, Send, Service, Wc, fnv1a,
};
use crate::fabric::{DEV, Route, VLAN, VM_MAC};

/// Chunks of the receive ring: a burst of the machine at path MTU 4096, two a frame.
const RING: u32 = 4_096;
/// How long a neighbour is waited for, in ms.
const RESOLVE_MS: u64 = 5_000;
/// Pause between two looks at a completion queue.
const LOOK: Duration = Duration::from_micros(200);
/// Host number in our addresses.
const HOST: u8 = 1;
/// RoCE source ports start here.
const SRC_PORT_MIN: u16 = 0xc000;

type Job = Box<dyn FnOnce(&mut Nic) + std::marker::Send>;

/// A software RNIC.
pub(crate) struct Xroce {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// What lives in the thread.
struct Nic {
    engine: Engine<XdpPort>,
    pd: Pd,
    mac: MacAddr,
    ifindex: u32,
    cqs: Vec<Cq>,
    mrs: Vec<(Region, EngineMr)>,
    qps: Vec<Option<Qpn>>,
    ahs: Vec<Ah>,
    /// Counters of queue pairs that are gone.
    past: Counters,
}

impl Xroce {
    /// Opens the tap in `netns`.
    ///
    /// # Errors
    /// AF_XDP does not work here.
    pub(crate) fn open(netns: &Netns) -> Result<Self> {
        let (jobs, todo) = channel::<Job>();
        let (ready, opened) = channel();
        let nic = netns.run(Nic::open)?;
        let name = netns.name().to_owned();
        let thread = thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || {
                // Neighbours are looked up in the namespace of the calling thread.
                let entered = xroce_testnet::enter_named(&name).map_err(|e| anyhow!(e));
                let failed = entered.is_err();
                // The other side waits for exactly this.
                let _ = ready.send(entered);
                if failed { Ok(()) } else { turn(nic, &todo) }
            })
            .context("thread of the engine")?;
        opened.recv().context("thread of the engine")??;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Runs `job` in the thread of the engine.
    fn with<T: std::marker::Send + 'static>(
        &mut self,
        job: impl FnOnce(&mut Nic) -> T + std::marker::Send + 'static,
    ) -> Result<T> {
        let (done, result) = channel();
        let jobs = self.jobs.as_ref().context("the engine is closed")?;
        let job: Job = Box::new(move |nic| {
            // Nobody waits any more if the caller is gone.
            let _ = done.send(job(nic));
        });
        let sent = jobs.send(job).is_ok();
        match result.recv() {
            Ok(value) if sent => Ok(value),
            _ => Err(self.why_it_ended()),
        }
    }

    fn why_it_ended(&mut self) -> anyhow::Error {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(e))) => e.context("the engine failed"),
            Some(Err(_)) => anyhow!("the engine panicked"),
            _ => anyhow!("the engine has ended"),
        }
    }

    /// Packets since the start whose ICRC was wrong, or whose form already was.
    pub(crate) fn damaged(&mut self) -> Result<u64> {
        self.with(|nic| {
            let stats = nic.engine.stats();
            stats.icrc_errors + stats.bad_packets
        })
    }

    /// All counters of queue pairs, living and gone.
    pub(crate) fn sums(&mut self) -> Result<Counters> {
        self.with(|nic| nic.sums())
    }
}

impl Drop for Xroce {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A failure of the engine has shown in the call that met it.
            let _ = thread.join();
        }
    }
}

/// The loop of the thread: jobs, then the engine.
fn turn(mut nic: Nic, jobs: &Receiver<Job>) -> Result<()> {
    let mut poller = Poller::new(PollMode::Adaptive);
    loop {
        loop {
            match jobs.try_recv() {
                Ok(job) => job(&mut nic),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        poller.step(&mut nic.engine, clock::now()).context("port")?;
    }
}

impl Nic {
    fn open() -> Result<Self> {
        let interface = neigh::interface(DEV)?;
        let addresses = [false, true]
            .map(|v6| [false, true].map(|vlan| Gid::from(Route { v6, vlan }.ip(HOST))));
        let port = XdpPort::open(&XdpConfig {
            ring_size: RING,
            addresses: addresses.concat(),
            ..XdpConfig::new(DEV)
        })?;
        let mut engine = Engine::new(port, EngineConfig::default());
        let pd = engine.alloc_pd();
        Ok(Self {
            engine,
            pd,
            mac: interface.mac,
            ifindex: interface.index,
            cqs: Vec::new(),
            mrs: Vec::new(),
            qps: Vec::new(),
            ahs: Vec::new(),
            past: Counters::default(),
        })
    }

    /// A queue pair of a type, taken through `steps`.
    fn make_qp(&mut self, kind: QpType, spec: &QpSpec, steps: &[QpAttr]) -> Result<(QpId, u32)> {
        let cq = |id: CqId| {
            let found = self.cqs.get(id.0 as usize).copied();
            found.with_context(|| format!("no completion queue {id:?}"))
        };
        let init = QpInit {
            qp_type: kind,
            max_send_wr: spec.depth,
            max_recv_wr: spec.depth,
            max_send_sge: spec.sges,
            max_recv_sge: spec.sges,
            ..QpInit::rc(self.pd, cq(spec.send_cq)?, cq(spec.recv_cq)?)
        };
        let qpn = self.engine.create_qp(&init)?;
        for step in steps {
            self.engine.modify_qp(qpn, step)?;
        }
        self.qps.push(Some(qpn));
        Ok((QpId(u32::try_from(self.qps.len() - 1)?), qpn.value()))
    }

    fn qpn(&self, qp: QpId) -> Result<Qpn> {
        let found = self.qps.get(qp.0 as usize).copied().flatten();
        found.with_context(|| format!("no queue pair {qp:?}"))
    }

    fn region(&self, mr: MrId) -> Result<&(Region, EngineMr)> {
        self.mrs
            .get(mr.0 as usize)
            .with_context(|| format!("no region {mr:?}"))
    }

    fn sges(&self, pieces: &[Piece], further: u64) -> Result<Vec<Sge>> {
        pieces
            .iter()
            .map(|piece| {
                let (_, mr) = self.region(piece.mr)?;
                Ok(Sge {
                    lkey: mr.lkey,
                    va: mr.va.wrapping_add(piece.off + further),
                    len: piece.len,
                })
            })
            .collect()
    }

    fn sums(&self) -> Counters {
        self.qps
            .iter()
            .flatten()
            .filter_map(|&qpn| self.engine.qp_counters(qpn))
            .fold(self.past, add)
    }

    fn destroy(&mut self, qp: usize) -> Result<()> {
        let Some(qpn) = self.qps.get_mut(qp).and_then(Option::take) else {
            return Ok(());
        };
        if let Some(counters) = self.engine.qp_counters(qpn) {
            self.past = add(self.past, counters);
        }
        Ok(self.engine.destroy_qp(qpn)?)
    }

    fn path(&self, route: Route, group: Option<Gid>, dest_qpn: u32) -> Result<AddressVector> {
        let local = route.ip(HOST);
        let peer = group.map_or_else(|| route.ip(2), Gid::ip);
        let dst_mac = match neigh::multicast_mac(peer) {
            Some(mac) => mac,
            None if route.vlan => MacAddr::new(VM_MAC),
            None => neigh::resolve(self.ifindex, local, peer, RESOLVE_MS)?,
        };
        let low = u16::try_from(dest_qpn & 0x3fff).unwrap_or(0);
        Ok(AddressVector {
            src: Gid::from(local),
            dst: Gid::from(peer),
            src_mac: self.mac,
            dst_mac,
            vlan: route.vlan.then_some(VlanTci::new(VLAN)),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            src_port: SRC_PORT_MIN | low,
        })
    }

    fn connect(&mut self, qp: QpId, to: &Connect) -> Result<()> {
        let qpn = self.qpn(qp)?;
        let t = to.tuning;
        let path = self.path(to.route, None, to.dest_qpn)?;
        let (dest, rq_psn) = (Qpn::new(to.dest_qpn), Psn::new(to.rq_psn));
        if to.service == Service::Uc {
            let rtr = QpAttr::rtr_uc(path, to.mtu, dest, rq_psn);
            self.engine.modify_qp(qpn, &rtr)?;
            let rts = QpAttr::rts_unreliable(Psn::new(to.sq_psn));
            return Ok(self.engine.modify_qp(qpn, &rts)?);
        }
        let timer = RnrTimer::new(t.rnr_timer);
        let rtr = QpAttr {
            max_dest_rd_atomic: Some(t.reads),
            min_rnr_timer: Some(timer.with_context(|| format!("RNR timer {}", t.rnr_timer))?),
            ..QpAttr::rtr(path, to.mtu, dest, rq_psn)
        };
        self.engine.modify_qp(qpn, &rtr)?;
        let rts = QpAttr {
            timeout: Some(t.timeout),
            retry_cnt: Some(t.retry),
            rnr_retry: Some(t.rnr_retry),
            max_rd_atomic: Some(t.reads),
            ..QpAttr::rts(Psn::new(to.sq_psn))
        };
        Ok(self.engine.modify_qp(qpn, &rts)?)
    }

    fn send(&mut self, qp: QpId, send: &Send) -> Result<()> {
        let qpn = self.qpn(qp)?;
        for n in 0..u64::from(send.count) {
            let further = n * send.stride;
            let (va, rkey) = (Va::new(send.va + further), RKey::new(send.rkey));
            let imm = send.imm.to_be_bytes();
            let sges = self.sges(&send.pieces, further)?;
            let flags = if send.signaled {
                SendFlags::SIGNALED
            } else {
                SendFlags::empty()
            };
            let wr = SendWr {
                wr_id: send.wr + n,
                op: match send.op {
                    Op::Send => SendOp::Send,
                    Op::SendImm => SendOp::SendImm(imm),
                    Op::Write => SendOp::Write { va, rkey },
                    Op::WriteImm => SendOp::WriteImm { va, rkey, imm },
                    Op::Read => SendOp::Read { va, rkey },
                    Op::CompareSwap => SendOp::CompareSwap {
                        va,
                        rkey,
                        compare: send.operands[0],
                        swap: send.operands[1],
                    },
                    Op::FetchAdd => SendOp::FetchAdd {
                        va,
                        rkey,
                        add: send.operands[0],
                    },
                },
                flags,
                data: Data::Sges(&sges),
            };
            match send.to {
                None => self.engine.post_send(qpn, &wr)?,
                Some(to) => {
                    let ah = self.ahs.get(to.ah.0 as usize).copied();
                    let to = UdDest {
                        ah: ah.with_context(|| format!("no address handle {:?}", to.ah))?,
                        qpn: Qpn::new(to.qpn),
                        qkey: QKey::new(to.qkey),
                    };
                    self.engine.post_datagram(qpn, &wr, &to)?;
                }
            }
        }
        Ok(())
    }

    fn recv(&mut self, qp: QpId, recv: &Recv) -> Result<()> {
        let qpn = self.qpn(qp)?;
        for n in 0..u64::from(recv.count) {
            let sges = self.sges(&recv.pieces, n * recv.stride)?;
            let wr = RecvWr {
                wr_id: recv.wr + n,
                sges: &sges,
            };
            self.engine.post_recv(qpn, &wr)?;
        }
        Ok(())
    }

    fn poll(&mut self, cq: CqId, max: usize) -> Result<Vec<Wc>> {
        let cq = *self
            .cqs
            .get(cq.0 as usize)
            .with_context(|| format!("no completion queue {cq:?}"))?;
        let mut batch = vec![Completion::EMPTY; max];
        let n = self.engine.poll_cq(cq, &mut batch);
        batch.truncate(n);
        Ok(batch.iter().map(completion).collect())
    }
}

fn completion(wc: &Completion) -> Wc {
    Wc {
        wr: wc.wr_id,
        status: wc.status as u32,
        opcode: wc.opcode as u32,
        len: wc.byte_len,
        imm: wc
            .flags
            .contains(WcFlags::WITH_IMM)
            .then_some(u32::from_be_bytes(wc.imm)),
        datagram_from: wc.flags.contains(WcFlags::GRH).then_some(wc.src_qp.value()),
    }
}

fn add(mut a: Counters, b: Counters) -> Counters {
    a += b;
    a
}

impl End for Xroce {
    fn name(&self) -> &'static str {
        "xroce"
    }

    fn reset(&mut self) -> Result<()> {
        self.with(|nic| {
            for qp in 0..nic.qps.len() {
                nic.destroy(qp)?;
            }
            for ah in nic.ahs.drain(..) {
                nic.engine.destroy_ah(ah)?;
            }
            for (_, mr) in &nic.mrs {
                nic.engine.dereg_mr(mr.lkey)?;
            }
            nic.mrs.clear();
            nic.qps.clear();
            Ok(())
        })?
    }

    fn gid(&self, route: Route) -> Gid {
        Gid::from(route.ip(HOST))
    }

    fn mr(&mut self, len: u64, access: u32) -> Result<Mr> {
        self.with(move |nic| {
            let region = Region::anonymous(usize::try_from(len)?)?;
            let mr = nic
                .engine
                .reg_mr(nic.pd, &region, Access::from_bits_truncate(access))?;
            nic.mrs.push((region, mr));
            Ok(Mr {
                id: MrId(u32::try_from(nic.mrs.len() - 1)?),
                va: mr.va.value(),
                rkey: mr.rkey.value(),
            })
        })?
    }

    fn fill(&mut self, mr: MrId, off: u64, len: u64, seed: u64) -> Result<()> {
        let bytes = pattern_bytes(seed, len);
        self.with(move |nic| Ok(nic.region(mr)?.0.write_at(off, &bytes)?))?
    }

    fn hash(&mut self, mr: MrId, off: u64, len: u64) -> Result<u64> {
        let mut bytes = vec![0; usize::try_from(len)?];
        self.with(move |nic| {
            nic.region(mr)?.0.read_at(off, &mut bytes)?;
            Ok(fnv1a(bytes))
        })?
    }

    fn cq(&mut self, depth: u32) -> Result<CqId> {
        self.with(move |nic| {
            nic.cqs.push(nic.engine.create_cq(depth)?);
            Ok(CqId(u32::try_from(nic.cqs.len() - 1)?))
        })?
    }

    fn qp(&mut self, spec: &QpSpec, access: u32) -> Result<(QpId, u32)> {
        let spec = *spec;
        let kind = match spec.service {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
        };
        let init = QpAttr::init(Access::from_bits_truncate(access));
        self.with(move |nic| nic.make_qp(kind, &spec, &[init]))?
    }

    fn datagram_qp(&mut self, spec: &QpSpec, qkey: u32) -> Result<(QpId, u32)> {
        let spec = *spec;
        let steps = [
            QpAttr::init_ud(QKey::new(qkey)),
            QpAttr::state(QpState::Rtr),
            QpAttr::rts_unreliable(Psn::new(0x00ff_fffe)),
        ];
        self.with(move |nic| nic.make_qp(QpType::Ud, &spec, &steps))?
    }

    fn ah(&mut self, route: Route, group: Option<Gid>) -> Result<AhId> {
        self.with(move |nic| {
            let path = nic.path(route, group, 0)?;
            nic.ahs.push(nic.engine.create_ah(nic.pd, &path)?);
            Ok(AhId(u32::try_from(nic.ahs.len() - 1)?))
        })?
    }

    fn attach(&mut self, qp: QpId, group: Gid) -> Result<()> {
        self.with(move |nic| {
            let qpn = nic.qpn(qp)?;
            Ok(nic.engine.attach_mcast(qpn, group)?)
        })?
    }

    fn peek(&mut self, mr: MrId, off: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len)?];
        self.with(move |nic| {
            nic.region(mr)?.0.read_at(off, &mut bytes)?;
            Ok(bytes)
        })?
    }

    fn connect(&mut self, qp: QpId, to: &Connect) -> Result<()> {
        let to = *to;
        self.with(move |nic| nic.connect(qp, &to))?
    }

    fn send(&mut self, qp: QpId, send: &Send) -> Result<()> {
        let send = send.clone();
        self.with(move |nic| nic.send(qp, &send))?
    }

    fn recv(&mut self, qp: QpId, recv: &Recv) -> Result<()> {
        let recv = recv.clone();
        self.with(move |nic| nic.recv(qp, &recv))?
    }

    fn poll(&mut self, cq: CqId, min: u32, max: u32, timeout: Duration) -> Result<Vec<Wc>> {
        let (min, max) = (min as usize, max as usize);
        let until = crate::clock::now() + timeout;
        let mut all: Vec<Wc> = Vec::new();
        loop {
            let room = max - all.len();
            let got = self.with(move |nic| nic.poll(cq, room))??;
            all.extend(got);
            if all.len() >= min || crate::clock::now() >= until {
                return Ok(all);
            }
            thread::sleep(LOOK);
        }
    }

    fn counters(&mut self) -> Result<BTreeMap<String, u64>> {
        let sums = self.sums()?;
        let named = [
            ("duplicate_request", sums.duplicates),
            ("out_of_seq_request", sums.out_of_sequence),
            ("rcvd_rnr_err", sums.rnr_naks_in),
            ("send_rnr_err", sums.rnr_naks_out),
            ("rcvd_seq_err", sums.seq_naks_in),
            ("sent_seq_naks", sums.seq_naks_out),
            ("ack_timeouts", sums.timeouts),
            ("retransmitted_pkts", sums.retransmits),
            ("sent_pkts", sums.tx_packets),
            ("rcvd_pkts", sums.rx_packets),
        ];
        Ok(named.map(|(name, n)| (name.to_owned(), n)).into())
    }

    fn failure(&mut self, qp: QpId) -> Result<Option<String>> {
        self.with(move |nic| {
            let qpn = nic.qpn(qp)?;
            Ok(nic.engine.failure(qpn).map(|f| f.to_string()))
        })?
    }
}
