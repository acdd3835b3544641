//! Calls on everything but work requests.

use xroce_api::{EngineError, MwType, Notify, ObjectError, Range, Rereg};
use xroce_proto::cc::{CongestionControl, Rate};
use xroce_proto::memory::{Access, Bind};
use xroce_proto::qp::{QpAttr, QpInit, QpState, QpType};
use xroce_proto::recovery::{AdaptiveParams, Reliability, SelectiveParams};
use xroce_proto::srq::SrqAttr;
use xroce_proto::time::Duration;
use xroce_proto::wc::{Cq, Srq};
use xroce_wire::newtypes::{Gid, LKey, PKey, PathMtu, Psn, QKey, Qpn};
use xroce_wire::syndrome::RnrTimer;

use super::{Caller, MEMORY, no_srq, refused};
use crate::bytes::Bytes;

const STATES: [QpState; 7] = QpState::ALL;
const TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

impl Caller {
    pub(super) fn cq(&self, bytes: &mut Bytes<'_>) -> Cq {
        match self.cqs.pick(bytes) {
            Some(cq) => cq,
            None => Cq(bytes.u32()),
        }
    }

    pub(super) fn create_cq(&mut self, bytes: &mut Bytes<'_>) {
        let depth = bytes.pick(&[0, 1, 2, 3, 8, 16, 100, u32::MAX]);
        let made = self.engine.create_cq(depth);
        assert_eq!(made.is_ok(), (1..=1 << 22).contains(&depth));
        if let Ok(cq) = made {
            if self.cqs.has_room() {
                self.cqs.add(cq);
            } else {
                self.engine.destroy_cq(cq).unwrap();
            }
        }
    }

    pub(super) fn change_cq(&mut self, bytes: &mut Bytes<'_>) {
        let cq = self.cq(bytes);
        let (lives, unknown) = (self.cqs.lives(cq), EngineError::NoCq(cq));
        match bytes.below(3) {
            0 => {
                let depth = u32::from(bytes.u8());
                let done = self.engine.resize_cq(cq, depth);
                if depth != 0 {
                    refused(done, lives, &unknown);
                }
            }
            1 => {
                let notify = bytes.pick(&[Notify::Any, Notify::Solicited]);
                refused(self.engine.req_notify_cq(cq, notify), lives, &unknown);
            }
            _ => {
                let uses = |i: &QpInit| u32::from(i.send_cq == cq) + u32::from(i.recv_cq == cq);
                let users = self.users(uses);
                let done = self.engine.destroy_cq(cq);
                if users > 0 {
                    assert_eq!(done, Err(ObjectError::Busy { users }.into()));
                } else {
                    refused(done, lives, &unknown);
                    self.cqs.gone(cq);
                }
            }
        }
    }

    pub(super) fn srq(&self, bytes: &mut Bytes<'_>) -> Srq {
        match self.srqs.pick(bytes) {
            Some(srq) => srq,
            None => Srq(bytes.u32()),
        }
    }

    pub(super) fn create_srq(&mut self, bytes: &mut Bytes<'_>) {
        if !self.srqs.has_room() {
            return;
        }
        let attr = SrqAttr {
            max_wr: bytes.pick(&[0, 1, 2, 8, u32::MAX]),
            max_sge: bytes.pick(&[0, 1, 2, 32, 33]),
            limit: u32::from(bytes.below(4)),
        };
        let pd = self.pd(bytes);
        if let Ok(srq) = self.engine.create_srq(pd, &attr) {
            assert!(attr.limit <= attr.max_wr && self.pds.contains(&pd));
            self.srqs.add(srq);
        }
    }

    pub(super) fn change_srq(&mut self, bytes: &mut Bytes<'_>) {
        let srq = self.srq(bytes);
        let lives = self.srqs.lives(srq);
        if bytes.flag() {
            let size = bytes.flag().then(|| u32::from(bytes.u8()));
            let limit = bytes.flag().then(|| u32::from(bytes.u8()));
            let before = self.engine.query_srq(srq);
            let done = self.engine.modify_srq(srq, size, limit);
            if refused(done, lives, &no_srq(srq)).is_none() {
                assert_eq!(self.engine.query_srq(srq), before);
            }
            return;
        }
        let users = self.users(|i| u32::from(i.srq == Some(srq)));
        let done = self.engine.destroy_srq(srq);
        if users > 0 {
            assert_eq!(done, Err(ObjectError::Busy { users }.into()));
        } else {
            refused(done, lives, &no_srq(srq));
            self.srqs.gone(srq);
        }
    }

    pub(super) fn qp(&self, bytes: &mut Bytes<'_>) -> Qpn {
        match self.qps.pick(bytes) {
            Some(qpn) => qpn,
            None => Qpn::new(bytes.u32() & 0xff_ffff),
        }
    }

    pub(super) fn create_qp(&mut self, bytes: &mut Bytes<'_>) {
        if !self.qps.has_room() {
            return;
        }
        let mut init = QpInit::rc(self.pd(bytes), self.cq(bytes), self.cq(bytes));
        init.qp_type = bytes.pick(&TYPES);
        init.srq = bytes.flag().then(|| self.srq(bytes));
        init.max_send_wr = bytes.pick(&[4, 1, 2, 8, 0, u32::MAX]);
        init.max_recv_wr = bytes.pick(&[4, 1, 2, 8, 0, u32::MAX]);
        init.max_send_sge = bytes.pick(&[2, 1, 32, 0, 33]);
        init.max_recv_sge = bytes.pick(&[2, 1, 32, 0, 33]);
        init.max_inline = bytes.pick(&[64, 0, 512, 513]);
        let exist = self.pds.contains(&init.pd)
            && self.cqs.lives(init.send_cq)
            && self.cqs.lives(init.recv_cq)
            && init.srq.is_none_or(|srq| self.srqs.lives(srq));
        match self.engine.create_qp(&init) {
            Ok(qpn) => {
                assert!(exist && init.validate().is_ok());
                assert_eq!(self.engine.qp_state(qpn), Some(QpState::Reset));
                self.qps.add(qpn);
                self.inits.insert(qpn.value(), init);
            }
            Err(error) => assert!(error.to_string().len() > 10),
        }
    }

    pub(super) fn destroy_qp(&mut self, bytes: &mut Bytes<'_>) {
        let qpn = self.qp(bytes);
        let done = self.engine.destroy_qp(qpn);
        refused(done, self.qps.lives(qpn), &EngineError::NoQp(qpn));
        self.qps.gone(qpn);
        assert!(self.engine.query_qp(qpn).is_none() && self.engine.qp_counters(qpn).is_none());
    }

    /// Takes two QPs to RTS, if they go together.
    pub(super) fn connect(&mut self, bytes: &mut Bytes<'_>) {
        let pair = [self.qp(bytes), self.qp(bytes)];
        let mtu = bytes.pick(&[PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024]);
        let (psn, reads) = (bytes.u32() & 0xff_ffff, bytes.below(5));
        let repair = bytes.flag().then(|| reliability(bytes));
        let control = bytes.flag().then(|| congestion(bytes)).flatten();
        for (i, qpn) in pair.into_iter().enumerate() {
            let Some(kind) = self.kind(qpn) else {
                continue;
            };
            let rights = Access::from_bits_truncate(!u32::from(bytes.u8()) & 0x10f);
            let (peer, psn) = (pair[1 - i], Psn::new(psn));
            let mut steps = match kind {
                QpType::Rc => [
                    QpAttr::init(rights),
                    QpAttr::rtr(Self::path(), mtu, peer, psn),
                    QpAttr::rts(psn),
                ],
                QpType::Uc => [
                    QpAttr::init(rights),
                    QpAttr::rtr_uc(Self::path(), mtu, peer, psn),
                    QpAttr::rts_unreliable(psn),
                ],
                QpType::Ud => [
                    QpAttr::init_ud(QKey::new(7)),
                    QpAttr::state(QpState::Rtr),
                    QpAttr::rts_unreliable(psn),
                ],
            };
            if kind == QpType::Rc {
                steps[1].max_dest_rd_atomic = Some(reads);
                (steps[2].max_rd_atomic, steps[2].timeout) = (Some(reads), Some(1));
                steps[1].reliability = repair;
                steps[2].congestion.clone_from(&control);
            }
            let reset = QpAttr::state(QpState::Reset);
            self.engine.modify_qp(qpn, &reset).unwrap();
            for attr in steps {
                // The number of the peer may be one that no QP has.
                let _ = self.engine.modify_qp(qpn, &attr);
            }
        }
    }

    pub(super) fn modify_qp(&mut self, bytes: &mut Bytes<'_>) {
        let qpn = self.qp(bytes);
        let attr = self.attributes(bytes);
        let lives = self.qps.lives(qpn);
        let before = self.engine.query_qp(qpn);
        let done = self.engine.modify_qp(qpn, &attr);
        // A path MTU that the port cannot carry is refused before the QP is looked for.
        let too_long = matches!(done, Err(EngineError::PathMtu { .. }));
        if too_long || refused(done, lives, &EngineError::NoQp(qpn)).is_none() {
            let after = self.engine.query_qp(qpn);
            let same = before.map(|i| format!("{i:?}")) == after.map(|i| format!("{i:?}"));
            assert!(same, "a refused modify changed something");
        } else if let Some(state) = attr.state {
            assert_eq!(self.engine.qp_state(qpn), Some(state));
        }
    }

    fn attributes(&self, bytes: &mut Bytes<'_>) -> QpAttr {
        let mut attr = QpAttr::default();
        let given = bytes.u16();
        let has = |n: u32| given >> n & 1 != 0;
        attr.state = has(0).then(|| bytes.pick(&STATES));
        attr.cur_state = has(1).then(|| bytes.pick(&STATES));
        attr.en_sqd_async_notify = has(2).then(|| bytes.flag());
        attr.access = has(3).then(|| Access::from_bits_truncate(bytes.u32()));
        attr.pkey_index = has(4).then(|| u16::from(bytes.below(2)));
        attr.port = has(5).then(|| bytes.below(3));
        attr.qkey = has(6).then(|| QKey::new(bytes.u32()));
        attr.av = has(7).then(Self::path);
        attr.path_mtu = has(8).then(|| bytes.pick(&PathMtu::ALL));
        attr.timeout = has(9).then(|| bytes.below(33));
        attr.retry_cnt = has(10).then(|| bytes.below(9));
        attr.rnr_retry = attr.retry_cnt;
        attr.rq_psn = has(11).then(|| Psn::new(bytes.u32() & 0xff_ffff));
        attr.max_rd_atomic = has(12).then(|| bytes.u8());
        attr.min_rnr_timer = has(13).then(|| bytes.below(33)).and_then(RnrTimer::new);
        attr.sq_psn = has(14).then(|| Psn::new(bytes.u32() & 0xff_ffff));
        attr.max_dest_rd_atomic = has(12).then(|| bytes.u8());
        attr.dest_qpn = has(15).then(|| self.qp(bytes));
        let how = bytes.u8();
        attr.reliability = (how & 1 != 0).then(|| reliability(bytes));
        attr.congestion = (how & 2 != 0).then(|| congestion(bytes)).flatten();
        attr.rate_limit = (how & 4 != 0).then(|| Rate::bits_per_second(bytes.u32().into()));
        attr
    }

    /// Mostly possible rights.
    fn rights(bytes: &mut Bytes<'_>) -> Access {
        match bytes.below(4) {
            0 => Access::all() - Access::FLUSH_PERSISTENT - Access::ZERO_BASED,
            1 => Access::all() - Access::FLUSH_PERSISTENT,
            2 => Access::LOCAL_WRITE,
            _ => Access::from_bits_truncate(bytes.u32()),
        }
    }

    fn cover(&mut self, offset: u64, len: u64) {
        self.covered.push((offset as usize, len as usize));
    }

    pub(super) fn register(&mut self, bytes: &mut Bytes<'_>) {
        if !self.mrs.has_room() {
            return;
        }
        let (offset, len) = (u64::from(bytes.u16()), u64::from(bytes.u16()));
        let (pd, access) = (self.pd(bytes), Self::rights(bytes));
        let region = self.region.clone();
        let made = self.engine.reg_mr_range(pd, &region, offset, len, access);
        let possible = self.pds.contains(&pd)
            && len > 0
            && offset + len <= MEMORY as u64
            && access.is_registrable()
            && !access.contains(Access::FLUSH_PERSISTENT);
        assert_eq!(made.is_ok(), possible, "{made:?}");
        if let Ok(mr) = made {
            self.cover(offset, len);
            self.mrs.add(mr);
        }
    }

    pub(super) fn reregister(&mut self, bytes: &mut Bytes<'_>) {
        let Some(mr) = self.mrs.pick(bytes) else {
            return;
        };
        let (offset, len) = (u64::from(bytes.u16()), u64::from(bytes.u16()));
        let region = self.region.clone();
        let range = bytes.flag().then_some(Range {
            region: &region,
            offset,
            len,
            iova: None,
        });
        let change = Rereg {
            pd: bytes.flag().then(|| self.pd(bytes)),
            access: bytes.flag().then(|| Self::rights(bytes)),
            range,
        };
        let pd_exists = change.pd.is_none_or(|pd| self.pds.contains(&pd));
        let done = self.engine.rereg_mr(mr.lkey, &change);
        if !pd_exists {
            assert!(done.is_err());
            return;
        }
        let unknown = EngineError::NoMr(mr.lkey);
        if let Some(new) = refused(done, self.mrs.lives(mr), &unknown) {
            assert_ne!(new.lkey, mr.lkey, "old keys die");
            self.mrs.gone(mr);
            self.mrs.add(new);
            if range.is_some() {
                self.cover(offset, len);
            }
        }
    }

    pub(super) fn deregister(&mut self, bytes: &mut Bytes<'_>) {
        let lkey = match self.mrs.pick(bytes) {
            Some(mr) => mr.lkey,
            None => LKey::new(bytes.u32()),
        };
        let mr = self.mrs.all.iter().find(|(m, l)| *l && m.lkey == lkey);
        let mr = mr.map(|&(mr, _)| mr);
        let done = self.engine.dereg_mr(lkey);
        if let (Some(()), Some(mr)) = (refused(done, mr.is_some(), &EngineError::NoMr(lkey)), mr) {
            self.mrs.gone(mr);
        }
    }

    pub(super) fn window(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.below(4) {
            0 if self.mws.has_room() => {
                let mw_type = bytes.pick(&[MwType::Type1, MwType::Type2]);
                let pd = self.pd(bytes);
                if let Ok(mw) = self.engine.alloc_mw(pd, mw_type) {
                    self.mws.add(mw.id);
                    self.window_keys.push(mw.rkey);
                }
            }
            1 => {
                let Some(mw) = self.mws.pick(bytes) else {
                    return;
                };
                let done = self.engine.dealloc_mw(mw);
                assert_eq!(done.is_ok(), self.mws.lives(mw));
                self.mws.gone(mw);
            }
            _ => {
                let Some(mw) = self.mws.pick(bytes) else {
                    return;
                };
                let bind = self.bind(bytes);
                let done = self.engine.bind_mw(mw, &bind);
                assert!(self.mws.lives(mw) || done.is_err());
                self.window_keys.extend(done);
            }
        }
    }

    pub(super) fn bind(&self, bytes: &mut Bytes<'_>) -> Bind {
        let mr = self.mrs.pick(bytes);
        let (lkey, va) = mr.map_or((LKey::new(0), 0), |mr| (mr.lkey, mr.va.value()));
        Bind {
            lkey,
            va: xroce_wire::newtypes::Va::new(va.wrapping_add(u64::from(bytes.u8()))),
            len: u64::from(bytes.u16()),
            access: match bytes.below(3) {
                0 => Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
                1 => Access::REMOTE_READ | Access::ZERO_BASED,
                _ => Access::from_bits_truncate(bytes.u32()),
            },
        }
    }

    pub(super) fn address(&mut self, bytes: &mut Bytes<'_>) {
        if bytes.flag() && self.ahs.has_room() {
            let mut path = Self::path();
            (path.hop_limit, path.flow_label) = (!bytes.u8(), u32::from(bytes.u8()) << 13);
            if bytes.below(3) == 1 {
                path.dst = Gid::from_v4([239, 1, 1, 1]);
            }
            let pd = self.pd(bytes);
            if let Ok(ah) = self.engine.create_ah(pd, &path) {
                assert!(path.hop_limit != 0);
                self.ahs.add(ah);
            }
        } else if let Some(ah) = self.ahs.pick(bytes) {
            let done = self.engine.destroy_ah(ah);
            refused(done, self.ahs.lives(ah), &EngineError::NoAh(ah));
            self.ahs.gone(ah);
        }
    }

    pub(super) fn group(&mut self, bytes: &mut Bytes<'_>) {
        let qpn = self.qp(bytes);
        let last = bytes.below(3);
        let group = bytes.pick(&[
            Gid::from_v4([239, 1, 1, last]),
            Gid::new([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
            Gid::from_v4([192, 0, 2, last]),
        ]);
        let done = if bytes.flag() {
            self.engine.attach_mcast(qpn, group)
        } else {
            self.engine.detach_mcast(qpn, group)
        };
        let possible = self.kind(qpn) == Some(QpType::Ud);
        assert!(possible || done.is_err());
        refused(done, self.qps.lives(qpn), &EngineError::NoQp(qpn));
    }

    pub(super) fn partition(&mut self, bytes: &mut Bytes<'_>) {
        if bytes.flag() {
            if self.pds.len() < 4 {
                self.pds.push(self.engine.alloc_pd());
            }
            return;
        }
        let (index, key) = (u16::from(bytes.below(2)), bytes.u16());
        let done = self.engine.set_pkey(index, PKey::new(key));
        assert_eq!(done.is_ok(), index == 0 && key & 0x7fff != 0);
    }
}

/// Any way to repair losses, possible or not.
fn reliability(bytes: &mut Bytes<'_>) -> Reliability {
    let params = SelectiveParams::default();
    match bytes.below(4) {
        0 => Reliability::GoBackN,
        1 => Reliability::Adaptive(AdaptiveParams {
            floor: Duration::from_nanos(bytes.u32().into()),
        }),
        2 => Reliability::Selective(params),
        _ => Reliability::Selective(SelectiveParams {
            range: bytes.pick(&[128, 256, 1 << 14, 1 << 15, 64, 129, 0]),
            window: bytes.pick(&[1, 128, 0, u32::MAX]),
            tolerance: bytes.pick(&[1, 128, 0, u32::MAX]),
            store: bytes.pick(&[1, 128, 0, u32::MAX]),
            rto_low: Duration::from_nanos(bytes.u8().into()),
            ..params
        }),
    }
}

/// A congestion control, if its rate and parameter are possible.
fn congestion(bytes: &mut Bytes<'_>) -> Option<CongestionControl> {
    let name = bytes.pick(&["fixed", "dcqcn", "dcqcn-mlx5", "swift", "nscc"]);
    let line = Rate::bits_per_second(bytes.pick(&[10_000_000_000, 1, 0, u64::MAX]));
    let value = u64::from(bytes.u32());
    let params = [
        ("rpg_min_rate", value),
        ("min_cwnd", value),
        ("base_rtt", value),
    ];
    let one = bytes.pick(&[0, 1, 2, 3]);
    let given = params.get(one..=one).unwrap_or(&[]);
    CongestionControl::by_name(name, line, given).ok()
}
