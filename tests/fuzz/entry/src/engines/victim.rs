//! The attacked queue pairs: their work, commands on them and their memory, and what they may
//! never do whatever arrives.

use xroce_api::{Ah, Mr, MwId, MwType, Notify, Rereg, UdDest};
use xroce_proto::memory::{Access, Bind, Pd};
use xroce_proto::qp::{QpAttr, QpInit, QpState, QpType};
use xroce_proto::srq::SrqAttr;
use xroce_proto::wc::{Completion, Cq, Srq};
use xroce_proto::wr::{Data, Placement, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_wire::newtypes::{Gid, Psn, QKey, Qpn, RKey, Va};

use super::{
    ALL_ACCESS, Host, MTU, Manner, OPEN, OPEN_LEN, READABLE, READABLE_LEN, capacities, connect,
};
use crate::bytes::Bytes;

pub(crate) const QKEY: u32 = 0x1111_1111;
const GROUP: [u8; 4] = [239, 1, 2, 3];

/// RC with receives of its own, RC with shared ones, UC, UD with shared ones.
const KINDS: usize = 4;
const UC: usize = 2;
const UD: usize = 3;

/// The attacked pairs.
pub(crate) struct Victim {
    pub(crate) qpns: [[Qpn; 2]; KINDS],
    pub(crate) open: [Mr; 2],
    pub(crate) readable: [Mr; 2],
    pub(crate) window_keys: [Vec<RKey>; 2],
    /// A key of another protection domain.
    pub(crate) foreign: [RKey; 2],
    windows: [Vec<MwId>; 2],
    pds: [Pd; 2],
    cqs: [Cq; 2],
    srqs: [Srq; 2],
    ahs: [Ah; 2],
    /// What the open memory was when its keys were taken back.
    closed: [Option<Vec<u8>>; 2],
    manner: Manner,
    /// Number of the next work request.
    next: u64,
    /// Last send and own receive completed, by host and kind.
    last: [[[u64; 2]; KINDS]; 2],
}

impl Victim {
    pub(crate) fn new(hosts: &mut [Host; 2], manner: Manner) -> Self {
        let all = ALL_ACCESS | Access::MW_BIND;
        let pds = hosts.each_mut().map(|h| h.engine.alloc_pd());
        let cqs = hosts.each_mut().map(|h| h.engine.create_cq(32).unwrap());
        let reg = |h: &mut Host, pd, at, len, access| {
            let region = h.region.clone();
            h.engine.reg_mr_range(pd, &region, at, len, access).unwrap()
        };
        let open = [0, 1].map(|i| reg(&mut hosts[i], pds[i], OPEN, OPEN_LEN, all));
        let read_only = Access::REMOTE_READ;
        let readable =
            [0, 1].map(|i| reg(&mut hosts[i], pds[i], READABLE, READABLE_LEN, read_only));
        let srqs = [0, 1].map(|i: usize| {
            let attr = SrqAttr {
                max_wr: 8,
                max_sge: 2,
                limit: 2,
            };
            hosts[i].engine.create_srq(pds[i], &attr).unwrap()
        });
        let qpns = std::array::from_fn(|kind| {
            [0, 1].map(|i: usize| {
                let mut init = QpInit::rc(pds[i], cqs[i], cqs[i]);
                capacities(&mut init);
                init.qp_type = [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud][kind];
                init.srq = (kind % 2 == 1).then_some(srqs[i]);
                hosts[i].engine.create_qp(&init).unwrap()
            })
        });
        let ahs = [0, 1].map(|i: usize| {
            let path = hosts[i].path_to(&hosts[1 - i]);
            hosts[i].engine.create_ah(pds[i], &path).unwrap()
        });
        // The whole memory, in the domain of the pair that is left in peace: registered first.
        let foreign = [RKey::new(1 << 8 | 1); 2];
        let it = Self {
            qpns,
            open,
            readable,
            window_keys: Default::default(),
            foreign,
            windows: Default::default(),
            pds,
            cqs,
            srqs,
            ahs,
            closed: Default::default(),
            manner,
            next: 1,
            last: Default::default(),
        };
        for kind in 0..KINDS {
            it.raise(hosts, kind, [0x00_fffe, 0xff_fffe]);
        }
        for (i, host) in hosts.iter_mut().enumerate() {
            let group = Gid::from_v4(GROUP);
            host.engine.attach_mcast(it.qpns[UD][i], group).unwrap();
        }
        it
    }

    fn raise(&self, hosts: &mut [Host; 2], kind: usize, psns: [u32; 2]) {
        let qpns = self.qpns[kind];
        if kind < UC {
            return connect(hosts, qpns, psns, 4, &self.manner);
        }
        for i in [0, 1] {
            let path = hosts[i].path_to(&hosts[1 - i]);
            let peer = Psn::new(psns[1 - i]);
            let steps = if kind == UC {
                let rtr = QpAttr::rtr_uc(path, MTU, qpns[1 - i], peer);
                [QpAttr::init(ALL_ACCESS), rtr]
            } else {
                let init = QpAttr::init_ud(QKey::new(QKEY));
                [init, QpAttr::state(QpState::Rtr)]
            };
            for attr in steps {
                hosts[i].engine.modify_qp(qpns[i], &attr).unwrap();
            }
            let rts = QpAttr::rts_unreliable(Psn::new(psns[i]));
            hosts[i].engine.modify_qp(qpns[i], &rts).unwrap();
        }
    }

    /// Both ends from RESET, with other PSNs.
    pub(crate) fn reconnect(&mut self, hosts: &mut [Host; 2], bytes: &mut Bytes<'_>) {
        let kind = usize::from(bytes.below(4));
        let psns = [(); 2].map(|()| bytes.u32() & 0xff_ffff);
        for (i, host) in hosts.iter_mut().enumerate() {
            let reset = QpAttr::state(QpState::Reset);
            host.engine.modify_qp(self.qpns[kind][i], &reset).unwrap();
        }
        self.raise(hosts, kind, psns);
    }

    fn sge(&self, i: usize, bytes: &mut Bytes<'_>) -> Sge {
        let at = u64::from(bytes.u16()) % OPEN_LEN;
        let len = match bytes.below(4) {
            0 => u32::from(bytes.u8()),
            1 => 8,
            2 => 300,
            _ => 1000,
        };
        Sge {
            lkey: self.open[i].lkey,
            va: self.open[i].va.wrapping_add(at),
            len,
        }
    }

    /// A send of any kind with anything wrong with it; refused or not.
    pub(crate) fn post_send(&mut self, hosts: &mut [Host; 2], i: usize, bytes: &mut Bytes<'_>) {
        let kind = usize::from(bytes.below(4));
        let flags = SendFlags::from_bits_truncate(u32::from(bytes.u8()));
        let sges = [self.sge(i, bytes), Sge::default()];
        let op = self.operation(1 - i, bytes);
        let sges = match op {
            SendOp::BindMw { .. } | SendOp::LocalInv { .. } | SendOp::Flush { .. } => &sges[..0],
            _ => &sges[..1],
        };
        let wr = SendWr {
            wr_id: self.next,
            op: self.local_operation(i, op, bytes),
            flags,
            data: Data::Sges(sges),
        };
        self.next += 1;
        let (engine, qpn) = (&mut hosts[i].engine, self.qpns[kind][i]);
        let _ = if kind == UD {
            let to = UdDest {
                ah: self.ahs[i],
                qpn: self.qpns[UD][1 - i],
                qkey: QKey::new(QKEY),
            };
            engine.post_datagram(qpn, &wr, &to)
        } else {
            engine.post_send(qpn, &wr)
        };
    }

    fn operation(&self, peer: usize, bytes: &mut Bytes<'_>) -> SendOp {
        let open = self.open[peer];
        let va = open.va.wrapping_add(8 * u64::from(bytes.u8()));
        let rkey = match bytes.below(4) {
            0 => *self.window_keys[peer].last().unwrap_or(&open.rkey),
            1 => self.readable[peer].rkey,
            _ => open.rkey,
        };
        match bytes.below(12) {
            0 => SendOp::Send,
            1 => SendOp::SendImm([1; 4]),
            2 => SendOp::Write { va, rkey },
            3 => SendOp::WriteImm {
                va,
                rkey,
                imm: [2; 4],
            },
            4 => SendOp::Read { va, rkey },
            5 => SendOp::SendInv { rkey },
            6 => SendOp::CompareSwap {
                va,
                rkey,
                compare: 1,
                swap: 2,
            },
            7 => SendOp::FetchAdd { va, rkey, add: 1 },
            8 => SendOp::AtomicWrite { va, rkey },
            9 => SendOp::Flush {
                va,
                rkey,
                len: 16,
                placement: Placement::GLOBAL,
                whole_region: false,
            },
            10 => SendOp::LocalInv { rkey },
            _ => SendOp::BindMw {
                rkey,
                bind: Bind {
                    lkey: self.open[1 - peer].lkey,
                    va: self.open[1 - peer].va,
                    len: OPEN_LEN,
                    access: ALL_ACCESS - Access::LOCAL_WRITE - Access::FLUSH_GLOBAL,
                },
            },
        }
    }

    /// Keys of one's own where the operation is about those.
    fn local_operation(&self, i: usize, op: SendOp, bytes: &mut Bytes<'_>) -> SendOp {
        let keys = &self.window_keys[i];
        let n = usize::from(bytes.u8()).checked_rem(keys.len());
        let key = n.map_or(RKey::new(0), |n| keys[n]);
        match op {
            SendOp::BindMw { bind, .. } => SendOp::BindMw { rkey: key, bind },
            SendOp::LocalInv { .. } => SendOp::LocalInv { rkey: key },
            op => op,
        }
    }

    pub(crate) fn post_recv(&mut self, hosts: &mut [Host; 2], i: usize, bytes: &mut Bytes<'_>) {
        let kind = usize::from(bytes.below(4));
        let sges = [self.sge(i, bytes), self.sge(i, bytes)];
        let wr = RecvWr {
            wr_id: self.next,
            sges: &sges[..1 + usize::from(bytes.below(2))],
        };
        self.next += 1;
        let engine = &mut hosts[i].engine;
        let _ = if kind % 2 == 1 {
            engine.post_srq_recv(self.srqs[i], &wr)
        } else {
            engine.post_recv(self.qpns[kind][i], &wr)
        };
    }

    /// Takes keys back and gives them, changes states, sizes and limits.
    pub(crate) fn command(&mut self, hosts: &mut [Host; 2], i: usize, bytes: &mut Bytes<'_>) {
        let kind = usize::from(bytes.below(4));
        let qpn = self.qpns[kind][i];
        let what = bytes.below(9);
        let engine = &mut hosts[i].engine;
        match what {
            0 => self.reopen(&mut hosts[i], i),
            1 => self.close(&mut hosts[i], i),
            2 => {
                let state = bytes.pick(&[QpState::Err, QpState::Sqd, QpState::Rts, QpState::Reset]);
                let _ = engine.modify_qp(qpn, &QpAttr::state(state));
            }
            3 if self.windows[i].len() < 4 => {
                let mw_type = bytes.pick(&[MwType::Type1, MwType::Type2]);
                let mw = engine.alloc_mw(self.pds[i], mw_type).unwrap();
                self.windows[i].push(mw.id);
                self.window_keys[i].push(mw.rkey);
            }
            4 => self.bind(&mut hosts[i], i, bytes),
            5 => {
                if let Some(mw) = self.windows[i].pop() {
                    engine.dealloc_mw(mw).unwrap();
                    self.window_keys[i].truncate(8);
                }
            }
            6 => {
                let limit = u32::from(bytes.below(9));
                engine.modify_srq(self.srqs[i], None, Some(limit)).unwrap();
            }
            7 => {
                let notify = bytes.pick(&[Notify::Any, Notify::Solicited]);
                engine.req_notify_cq(self.cqs[i], notify).unwrap();
                let _ = engine.resize_cq(self.cqs[i], u32::from(bytes.u8()));
            }
            _ => while engine.poll_event().is_some() {},
        }
    }

    fn bind(&mut self, host: &mut Host, i: usize, bytes: &mut Bytes<'_>) {
        let Some(&mw) = self.windows[i].first() else {
            return;
        };
        let bind = Bind {
            lkey: self.open[i].lkey,
            va: self.open[i].va.wrapping_add(u64::from(bytes.u16())),
            len: u64::from(bytes.u16()),
            access: Access::from_bits_truncate(u32::from(bytes.u8())),
        };
        if let Ok(key) = host.engine.bind_mw(mw, &bind) {
            self.window_keys[i].push(key);
        }
    }

    /// From here on nothing may be written.
    fn close(&mut self, host: &mut Host, i: usize) {
        if self.closed[i].is_none() && host.engine.dereg_mr(self.open[i].lkey).is_ok() {
            self.closed[i] = Some(host.bytes(OPEN, OPEN_LEN as usize));
        }
    }

    fn reopen(&mut self, host: &mut Host, i: usize) {
        let all = ALL_ACCESS | Access::MW_BIND;
        if let Some(before) = self.closed[i].take() {
            let now = host.bytes(OPEN, OPEN_LEN as usize);
            assert!(before == now, "written under keys that were taken back");
            let region = host.region.clone();
            let mr = host
                .engine
                .reg_mr_range(self.pds[i], &region, OPEN, OPEN_LEN, all);
            self.open[i] = mr.unwrap();
        } else if let Ok(mr) = host.engine.rereg_mr(self.open[i].lkey, &Rereg::default()) {
            assert_ne!(mr.rkey, self.open[i].rkey);
            self.open[i] = mr;
        }
    }

    /// Completions of one queue come in the order of its work requests.
    pub(crate) fn collect(&mut self, host: &mut Host, i: usize) {
        let mut wcs = [Completion::EMPTY; 8];
        loop {
            let n = host.engine.poll_cq(self.cqs[i], &mut wcs);
            if n == 0 {
                break;
            }
            for wc in &wcs[..n] {
                let kind = self.qpns.iter().position(|q| q[i] == wc.qpn);
                let kind = kind.expect("a completion of another's QP");
                assert!(wc.wr_id < self.next, "{wc:?} was never posted");
                // In an error the opcode says nothing.
                let sends = (wc.opcode as u8) < 128;
                if wc.status as u8 == 0 && (sends || kind % 2 == 0) {
                    let last = &mut self.last[i][kind][usize::from(sends)];
                    assert!(*last < wc.wr_id, "{wc:?} after {last}");
                    *last = wc.wr_id;
                }
            }
        }
        while host.engine.poll_notification().is_some() {}
    }

    pub(crate) fn check(&self, hosts: &[Host; 2]) {
        for (host, closed) in hosts.iter().zip(&self.closed) {
            if let Some(before) = closed {
                let now = host.bytes(OPEN, OPEN_LEN as usize);
                assert!(*before == now, "written under keys that were taken back");
            }
        }
        let _ = Va::new(0);
    }
}
