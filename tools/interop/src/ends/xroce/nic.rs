//! The objects of one engine, by the identifiers of scenarios; on any port.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use xroce_api::{Ah, Mr as EngineMr, Mw as EngineMw, MwType, Range, Source, UdDest};
use xroce_net::neigh;
use xroce_proto::counters::Counters;
use xroce_proto::memory::{Access, Bind as BindAttr, Pd};
use xroce_proto::qp::{QpAttr, QpInit, QpState, QpType};
use xroce_proto::recovery::{AdaptiveParams, Reliability};
use xroce_proto::srq::SrqAttr;
use xroce_proto::time::Duration;
use xroce_proto::wc::{Completion, Cq, Srq, WcFlags};
use xroce_proto::wr::{Data, Placement, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_shm::Region;
use xroce_wire::newtypes::{Gid, MacAddr, Psn, QKey, Qpn, RKey, Va, VlanTci};
use xroce_wire::path::{AddressVector, Flow};
use xroce_wire::syndrome::RnrTimer;

use super::super::pattern::pattern_bytes;
use super::super::{
    AhId, Bind, Bound, Connect, CqId, Happened, Mr, MrId, Mw, Op, Piece, QpId, QpSpec, Recv, Send,
    Service, SrqId, Subject, Wc, fnv1a,
};
use super::device::{Verbs, Way};
use crate::fabric::{Route, VLAN, VM_MAC};

/// How long a neighbour is waited for, in ms.
const RESOLVE_MS: u64 = 5_000;
/// RoCE source ports start here.
const SRC_PORT_MIN: u16 = 0xc000;
/// Shortest timeout that follows the round trip: an emulated machine may be off the processor.
const ADAPTIVE_FLOOR: Duration = Duration::from_millis(100);

/// Who is at the ends of the port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Station {
    /// Own MAC address.
    pub mac: MacAddr,
    /// Own host number in addresses.
    pub host: u8,
    /// The other end's.
    pub peer: u8,
    /// Its MAC address if it is known, else the interface to ask on.
    pub next: Result<MacAddr, u32>,
}

/// An engine with what scenarios made of it.
pub(super) struct Nic<V: Verbs> {
    pub device: V,
    pd: Pd,
    station: Station,
    cqs: Vec<Cq>,
    mrs: Vec<(Region, EngineMr)>,
    qps: Vec<Option<Qpn>>,
    ahs: Vec<Ah>,
    srqs: Vec<Srq>,
    mws: Vec<Option<(EngineMw, MwType)>>,
    /// Counters of queue pairs that are gone.
    past: Counters,
}

impl<V: Verbs> Nic<V> {
    pub(super) fn new(mut device: V, station: Station) -> Result<Self> {
        let pd = device.alloc_pd()?;
        Ok(Self {
            device,
            pd,
            station,
            cqs: Vec::new(),
            mrs: Vec::new(),
            qps: Vec::new(),
            ahs: Vec::new(),
            srqs: Vec::new(),
            mws: Vec::new(),
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
            srq: spec.srq.map(|srq| self.shared(srq)).transpose()?,
            ..QpInit::rc(self.pd, cq(spec.send_cq)?, cq(spec.recv_cq)?)
        };
        let qpn = self.device.create_qp(&init)?;
        for step in steps {
            self.device.modify_qp(qpn, step, None)?;
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

    pub(super) fn sums(&mut self) -> Counters {
        let Self { qps, device, .. } = self;
        qps.iter()
            .flatten()
            .filter_map(|&qpn| device.counters(qpn))
            .fold(self.past, add)
    }

    fn destroy(&mut self, qp: usize) -> Result<()> {
        let Some(qpn) = self.qps.get_mut(qp).and_then(Option::take) else {
            return Ok(());
        };
        if let Some(counters) = self.device.counters(qpn) {
            self.past = add(self.past, counters);
        }
        self.device.destroy_qp(qpn)
    }

    fn way(&self, route: Route, group: Option<Gid>, flow: Flow) -> Result<Way> {
        let dest_qpn = match flow {
            Flow::Connected { peer, .. } => peer.value(),
            Flow::Datagrams => 0,
        };
        let local = route.ip(self.station.host);
        let peer = group.map_or_else(|| route.ip(self.station.peer), Gid::ip);
        let dst_mac = match (neigh::multicast_mac(peer), self.station.next) {
            (Some(mac), _) | (None, Ok(mac)) => mac,
            (None, Err(_)) if route.vlan => MacAddr::new(VM_MAC),
            (None, Err(ifindex)) => neigh::resolve(ifindex, local, peer, RESOLVE_MS)?,
        };
        let low = u16::try_from(dest_qpn & 0x3fff).unwrap_or(0);
        let av = AddressVector {
            src: Gid::from(local),
            dst: Gid::from(peer),
            src_mac: self.station.mac,
            dst_mac,
            vlan: route.vlan.then_some(VlanTci::new(VLAN)),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            src_port: SRC_PORT_MIN | low,
        };
        Ok(Way { av, flow })
    }

    pub(super) fn connect(&mut self, qp: QpId, to: &Connect) -> Result<()> {
        let qpn = self.qpn(qp)?;
        let t = to.tuning;
        let (dest, rq_psn) = (Qpn::new(to.dest_qpn), Psn::new(to.rq_psn));
        let flow = Flow::Connected {
            local: qpn,
            peer: dest,
        };
        let way = self.way(to.route, None, flow)?;
        let both = QpAttr {
            path_mtu: Some(to.mtu),
            dest_qpn: Some(dest),
            rq_psn: Some(rq_psn),
            ..QpAttr::state(QpState::Rtr)
        };
        if to.service == Service::Uc {
            self.device.modify_qp(qpn, &both, Some(&way))?;
            let rts = QpAttr::rts_unreliable(Psn::new(to.sq_psn));
            return self.device.modify_qp(qpn, &rts, None);
        }
        let timer = RnrTimer::new(t.rnr_timer);
        let adaptive = || {
            Reliability::Adaptive(AdaptiveParams {
                floor: ADAPTIVE_FLOOR,
            })
        };
        let rtr = QpAttr {
            max_dest_rd_atomic: Some(t.reads),
            reliability: t.adaptive.then(adaptive),
            min_rnr_timer: Some(timer.with_context(|| format!("RNR timer {}", t.rnr_timer))?),
            ..both
        };
        self.device.modify_qp(qpn, &rtr, Some(&way))?;
        let rts = QpAttr {
            timeout: Some(t.timeout),
            retry_cnt: Some(t.retry),
            rnr_retry: Some(t.rnr_retry),
            max_rd_atomic: Some(t.reads),
            ..QpAttr::rts(Psn::new(to.sq_psn))
        };
        self.device.modify_qp(qpn, &rts, None)
    }

    pub(super) fn send(&mut self, qp: QpId, send: &Send) -> Result<()> {
        let qpn = self.qpn(qp)?;
        for n in 0..u64::from(send.count) {
            let further = n * send.stride;
            let (va, rkey) = (Va::new(send.va + further), RKey::new(send.rkey));
            let imm = send.imm.to_be_bytes();
            let sges = self.sges(&send.pieces, further)?;
            let mut flags = SendFlags::empty();
            flags.set(SendFlags::SIGNALED, send.signaled);
            flags.set(SendFlags::FENCE, send.fence);
            let flush = send.flush;
            let inv = RKey::new(send.inv);
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
                    Op::SendInv => SendOp::SendInv { rkey: inv },
                    Op::LocalInv => SendOp::LocalInv { rkey: inv },
                    Op::AtomicWrite => SendOp::AtomicWrite { va, rkey },
                    Op::Flush => SendOp::Flush {
                        va,
                        rkey,
                        len: flush.len,
                        placement: if flush.persistent {
                            Placement::PERSISTENT
                        } else {
                            Placement::GLOBAL
                        },
                        whole_region: flush.whole,
                    },
                },
                flags,
                data: Data::Sges(&sges),
            };
            match send.to {
                None => self.device.post_send(qpn, &wr, None)?,
                Some(to) => {
                    let ah = self.ahs.get(to.ah.0 as usize).copied();
                    let to = UdDest {
                        ah: ah.with_context(|| format!("no address handle {:?}", to.ah))?,
                        qpn: Qpn::new(to.qpn),
                        qkey: QKey::new(to.qkey),
                    };
                    self.device.post_send(qpn, &wr, Some(&to))?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn recv(&mut self, qp: QpId, recv: &Recv) -> Result<()> {
        let qpn = self.qpn(qp)?;
        self.receives(recv, |device, wr| device.post_recv(qpn, wr))
    }

    pub(super) fn srq_recv(&mut self, srq: SrqId, recv: &Recv) -> Result<()> {
        let srq = self.shared(srq)?;
        self.receives(recv, |device, wr| device.post_srq_recv(srq, wr))
    }

    fn receives(
        &mut self,
        recv: &Recv,
        mut post: impl FnMut(&mut V, &RecvWr<'_>) -> Result<()>,
    ) -> Result<()> {
        for n in 0..u64::from(recv.count) {
            let sges = self.sges(&recv.pieces, n * recv.stride)?;
            let wr = RecvWr {
                wr_id: recv.wr + n,
                sges: &sges,
            };
            post(&mut self.device, &wr)?;
        }
        Ok(())
    }

    pub(super) fn poll(&mut self, cq: CqId, max: usize) -> Result<Vec<Wc>> {
        let cq = *self
            .cqs
            .get(cq.0 as usize)
            .with_context(|| format!("no completion queue {cq:?}"))?;
        let mut batch = vec![Completion::EMPTY; max];
        let n = self.device.poll_cq(cq, &mut batch)?;
        batch.truncate(n);
        Ok(batch.iter().map(completion).collect())
    }

    fn shared(&self, srq: SrqId) -> Result<Srq> {
        let found = self.srqs.get(srq.0 as usize).copied();
        found.with_context(|| format!("no shared receive queue {srq:?}"))
    }

    pub(super) fn reset(&mut self) -> Result<()> {
        for qp in 0..self.qps.len() {
            self.destroy(qp)?;
        }
        for ah in self.ahs.drain(..) {
            self.device.destroy_ah(ah)?;
        }
        for (mw, _) in self.mws.drain(..).flatten() {
            self.device.dealloc_mw(mw.id)?;
        }
        for srq in self.srqs.drain(..) {
            self.device.destroy_srq(srq)?;
        }
        for cq in self.cqs.drain(..) {
            self.device.destroy_cq(cq)?;
        }
        for (_, mr) in self.mrs.drain(..) {
            // An invalidated key is gone with its region.
            let _ = self.device.dereg_mr(mr.lkey);
        }
        self.qps.clear();
        Ok(())
    }

    pub(super) fn mr(&mut self, len: u64, access: u32) -> Result<Mr> {
        let region = Region::anonymous(usize::try_from(len)?)?;
        let access = Access::from_bits_truncate(access);
        let range = Range {
            region: &region,
            offset: 0,
            len,
            iova: None,
        };
        let mr = self.device.reg_mr(self.pd, &range, access)?;
        self.mrs.push((region, mr));
        Ok(Mr {
            id: MrId(u32::try_from(self.mrs.len() - 1)?),
            va: mr.va.value(),
            rkey: mr.rkey.value(),
        })
    }

    pub(super) fn fill(&mut self, mr: MrId, off: u64, len: u64, seed: u64) -> Result<()> {
        Ok(self
            .region(mr)?
            .0
            .write_at(off, &pattern_bytes(seed, len))?)
    }

    pub(super) fn peek(&mut self, mr: MrId, off: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len)?];
        self.region(mr)?.0.read_at(off, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn hash(&mut self, mr: MrId, off: u64, len: u64) -> Result<u64> {
        Ok(fnv1a(self.peek(mr, off, len)?))
    }

    pub(super) fn cq(&mut self, depth: u32) -> Result<CqId> {
        self.cqs.push(self.device.create_cq(depth)?);
        Ok(CqId(u32::try_from(self.cqs.len() - 1)?))
    }

    pub(super) fn qp(&mut self, spec: &QpSpec, access: u32) -> Result<(QpId, u32)> {
        let kind = match spec.service {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
        };
        let init = QpAttr::init(Access::from_bits_truncate(access));
        self.make_qp(kind, spec, &[init])
    }

    pub(super) fn datagram_qp(&mut self, spec: &QpSpec, qkey: u32) -> Result<(QpId, u32)> {
        let steps = [
            QpAttr::init_ud(QKey::new(qkey)),
            QpAttr::state(QpState::Rtr),
            QpAttr::rts_unreliable(Psn::new(0x00ff_fffe)),
        ];
        self.make_qp(QpType::Ud, spec, &steps)
    }

    pub(super) fn ah(&mut self, route: Route, group: Option<Gid>) -> Result<AhId> {
        let way = self.way(route, group, Flow::Datagrams)?;
        self.ahs.push(self.device.create_ah(self.pd, &way)?);
        Ok(AhId(u32::try_from(self.ahs.len() - 1)?))
    }

    pub(super) fn attach(&mut self, qp: QpId, group: Gid) -> Result<()> {
        let qpn = self.qpn(qp)?;
        self.device.attach_mcast(qpn, group)
    }

    pub(super) fn gid(&self, route: Route) -> Gid {
        Gid::from(route.ip(self.station.host))
    }

    pub(super) fn srq(&mut self, depth: u32, sges: u8) -> Result<SrqId> {
        let attr = SrqAttr {
            max_wr: depth,
            max_sge: sges,
            limit: 0,
        };
        self.srqs.push(self.device.create_srq(self.pd, &attr)?);
        Ok(SrqId(u32::try_from(self.srqs.len() - 1)?))
    }

    pub(super) fn srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<()> {
        let srq = self.shared(srq)?;
        self.device.arm_srq(srq, limit)
    }

    pub(super) fn events(&mut self) -> Vec<Happened> {
        let id = |at: Option<usize>| at.and_then(|at| u32::try_from(at).ok());
        let mut list = Vec::new();
        while let Some(event) = self.device.poll_event() {
            let of = match event.source {
                Source::Qp(qpn) => {
                    id(self.qps.iter().position(|q| *q == Some(qpn))).map(|n| Subject::Qp(QpId(n)))
                }
                Source::Srq(srq) => {
                    id(self.srqs.iter().position(|s| *s == srq)).map(|n| Subject::Srq(SrqId(n)))
                }
                Source::Cq(_) | Source::Port => None,
            };
            list.push(Happened {
                event: event.event as u32,
                of: of.unwrap_or(Subject::Other),
            });
        }
        list
    }

    pub(super) fn mw(&mut self, type2: bool) -> Result<Mw> {
        let kind = if type2 { MwType::Type2 } else { MwType::Type1 };
        let mw = self.device.alloc_mw(self.pd, kind)?;
        self.mws.push(Some((mw, kind)));
        Ok(Mw {
            id: u32::try_from(self.mws.len() - 1)?,
            rkey: mw.rkey.value(),
        })
    }

    /// Type 1 by call, which completes nothing; type 2 with the next of its keys.
    pub(super) fn bind(&mut self, qp: QpId, mw: Mw, bind: &Bind) -> Result<Bound> {
        let (_, mr) = *self.region(bind.mr)?;
        let attr = BindAttr {
            lkey: mr.lkey,
            va: mr.va.wrapping_add(bind.off),
            len: bind.len,
            access: Access::from_bits_truncate(bind.access),
        };
        let slot = self.mws.get_mut(mw.id as usize).and_then(Option::as_mut);
        let (own, kind) = slot.with_context(|| format!("no memory window {mw:?}"))?;
        if *kind == MwType::Type1 {
            let rkey = self.device.bind_mw(own.id, &attr)?.value();
            return Ok(Bound {
                rkey,
                completes: false,
            });
        }
        let key = own.rkey.value();
        own.rkey = RKey::new(key & !0xff | key.wrapping_add(1) & 0xff);
        let rkey = own.rkey;
        let wr = SendWr {
            wr_id: bind.wr,
            op: SendOp::BindMw { rkey, bind: attr },
            flags: SendFlags::SIGNALED,
            data: Data::Sges(&[]),
        };
        let qpn = self.qpn(qp)?;
        self.device.post_send(qpn, &wr, None)?;
        Ok(Bound {
            rkey: rkey.value(),
            completes: true,
        })
    }

    pub(super) fn free_mw(&mut self, mw: Mw) -> Result<()> {
        let slot = self.mws.get_mut(mw.id as usize).and_then(Option::take);
        let (own, _) = slot.with_context(|| format!("no memory window {mw:?}"))?;
        self.device.dealloc_mw(own.id)
    }

    pub(super) fn state(&mut self, qp: QpId) -> Result<String> {
        let qpn = self.qpn(qp)?;
        let state = self.device.qp_state(qpn)?;
        Ok(format!("{state:?}").to_lowercase())
    }

    pub(super) fn failure(&mut self, qp: QpId) -> Result<Option<String>> {
        let qpn = self.qpn(qp)?;
        let failure = self.device.failure(qpn);
        Ok(failure.map(|f| f.to_string()))
    }

    /// By the names of rxe's counters.
    pub(super) fn counters(&mut self) -> BTreeMap<String, u64> {
        let sums = self.sums();
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
        named.map(|(name, n)| (name.to_owned(), n)).into()
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
        inv: wc.invalidated().map(RKey::value),
        datagram_from: wc.flags.contains(WcFlags::GRH).then_some(wc.src_qp.value()),
    }
}

fn add(mut a: Counters, b: Counters) -> Counters {
    a += b;
    a
}
