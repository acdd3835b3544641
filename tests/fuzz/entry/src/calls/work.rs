//! Work requests, and what comes of them.

use xroce_api::{EngineError, Source, UdDest};
use xroce_proto::qp::QpState;
use xroce_proto::wc::Completion;
use xroce_proto::wr::{Data, Placement, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_wire::newtypes::{LKey, QKey, RKey, Va};

use super::{Caller, no_srq, refused};
use crate::bytes::Bytes;

const SGES: usize = 3;

impl Caller {
    fn sge(&self, bytes: &mut Bytes<'_>) -> Sge {
        let len = match bytes.below(5) {
            0 => 0,
            1 => 8,
            2 => u32::from(bytes.u8()),
            3 => u32::from(bytes.u16()),
            _ => bytes.u32(),
        };
        match self.mrs.pick(bytes) {
            Some(mr) => Sge {
                lkey: mr.lkey,
                va: mr.va.wrapping_add(u64::from(bytes.u8())),
                len,
            },
            None => Sge {
                lkey: LKey::new(bytes.u32()),
                va: Va::new(bytes.u64()),
                len,
            },
        }
    }

    fn remote(&self, bytes: &mut Bytes<'_>) -> (Va, RKey) {
        let key = match bytes.below(3) {
            0 => self.window_keys.last().copied(),
            _ => None,
        };
        let mr = self.mrs.pick(bytes);
        let va = mr.map_or(0, |mr| mr.va.value());
        let va = va.wrapping_add(8 * u64::from(bytes.u8()));
        let rkey = key.or_else(|| mr.map(|mr| mr.rkey));
        (Va::new(va), rkey.unwrap_or_else(|| RKey::new(bytes.u32())))
    }

    fn operation(&self, bytes: &mut Bytes<'_>) -> SendOp {
        let (va, rkey) = self.remote(bytes);
        match bytes.below(13) {
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
                len: u32::from(bytes.u8()),
                placement: Placement::from_bits_truncate(bytes.u8()),
                whole_region: bytes.flag(),
            },
            10 => SendOp::LocalInv { rkey },
            11 => SendOp::FetchAdd {
                va: va.wrapping_add(1),
                rkey,
                add: 1,
            },
            _ => SendOp::BindMw {
                rkey: self.window_keys.last().copied().unwrap_or(rkey),
                bind: self.bind(bytes),
            },
        }
    }

    pub(super) fn post_send(&mut self, bytes: &mut Bytes<'_>) {
        let qpn = self.qp(bytes);
        let op = self.operation(bytes);
        let flags = SendFlags::from_bits_truncate(u32::from(bytes.u8()));
        let sges = [(); SGES].map(|()| self.sge(bytes));
        let n = usize::from(bytes.below(SGES as u8 + 1));
        let text = bytes.take(n * 30);
        let inline = [text];
        let wr = SendWr {
            wr_id: 5,
            op,
            flags,
            data: if flags.bits() == 0 && n > 0 {
                Data::Inline(&inline)
            } else {
                Data::Sges(&sges[..n])
            },
        };
        let lives = self.qps.lives(qpn);
        let ah = bytes.flag().then(|| self.ahs.pick(bytes)).flatten();
        let open = self.engine.sends_posted(qpn);
        if let Some(ah) = ah {
            let to = UdDest {
                ah,
                qpn: self.qp(bytes),
                qkey: QKey::new(7),
            };
            let done = self.engine.post_datagram(qpn, &wr, &to);
            let no_ah = EngineError::NoAh(ah);
            let done = refused(
                done,
                self.ahs.lives(ah) && lives,
                &match lives {
                    true => no_ah,
                    false if self.ahs.lives(ah) => EngineError::NoQp(qpn),
                    false => no_ah,
                },
            );
            self.check_posted(qpn, open, done.is_some());
            return;
        }
        let done = self.engine.post_send(qpn, &wr);
        let done = refused(done, lives, &EngineError::NoQp(qpn));
        self.check_posted(qpn, open, done.is_some());
    }

    /// A request that was refused is not there; one that was not is, unless it completed at once.
    fn check_posted(&self, qpn: xroce_wire::newtypes::Qpn, before: Option<u32>, done: bool) {
        let after = self.engine.sends_posted(qpn);
        let state = self.engine.qp_state(qpn);
        if !done || state == Some(QpState::Err) {
            assert_eq!(after, before);
        } else if let (Some(before), Some(after)) = (before, after) {
            let depth = self.inits[&qpn.value()].max_send_wr;
            let at_once = state == Some(QpState::Sqe);
            assert!(after == before + 1 || at_once, "{before} {after}");
            assert!(after <= depth);
        }
    }

    pub(super) fn post_recv(&mut self, bytes: &mut Bytes<'_>) {
        let sges = [(); SGES].map(|()| self.sge(bytes));
        let wr = RecvWr {
            wr_id: 6,
            sges: &sges[..usize::from(bytes.below(SGES as u8 + 1))],
        };
        if bytes.flag() && !self.srqs.all.is_empty() {
            let srq = self.srq(bytes);
            let before = self.engine.srq_len(srq).unwrap_or(0);
            let done = self.engine.post_srq_recv(srq, &wr);
            let done = refused(done, self.srqs.lives(srq), &no_srq(srq));
            let after = self.engine.srq_len(srq).unwrap_or(0);
            assert_eq!(after, before + u32::from(done.is_some()));
            return;
        }
        let qpn = self.qp(bytes);
        let done = self.engine.post_recv(qpn, &wr);
        let done = refused(done, self.qps.lives(qpn), &EngineError::NoQp(qpn));
        if done.is_some() {
            assert!(self.inits[&qpn.value()].srq.is_none());
        }
    }

    /// Completions, notifications and events: all of those who live.
    pub(super) fn take(&mut self, bytes: &mut Bytes<'_>) {
        let cq = self.cq(bytes);
        let mut wcs = [Completion::EMPTY; 4];
        let n = self.engine.poll_cq(cq, &mut wcs);
        assert!(n == 0 || self.cqs.lives(cq));
        for wc in &wcs[..n] {
            assert!(matches!(wc.wr_id, 5 | 6), "{wc:?}");
        }
        if let Some(cq) = self.engine.poll_notification() {
            assert!(self.cqs.lives(cq));
        }
        if let Some(event) = self.engine.poll_event() {
            let lives = match event.source {
                Source::Qp(qpn) => self.qps.lives(qpn),
                Source::Cq(cq) => self.cqs.lives(cq),
                Source::Srq(srq) => self.srqs.lives(srq),
                Source::Port => true,
            };
            assert!(lives, "{event:?}");
        }
    }
}
