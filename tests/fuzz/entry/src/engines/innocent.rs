//! A pair nobody attacks: its requests are known, and so is what must come of them.

use std::collections::VecDeque;
use std::ops::Range;

use xroce_api::Mr;
use xroce_proto::qp::{QpInit, QpState};
use xroce_proto::wc::{Completion, WcStatus};
use xroce_proto::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_wire::newtypes::Qpn;

use super::{ALL_ACCESS, Host, Manner, capacities, connect, filler};
use crate::bytes::Bytes;

/// Bytes that its requests write, of each host: receives, targets of WRITEs, landings of READs and
/// atomics, one word.
pub(crate) const WRITTEN: Range<u64> = 10_240..15_368;
const INBOX: u64 = 10_240;
const TARGET: u64 = INBOX + SLOTS * SLOT;
const LANDING: u64 = TARGET + SLOTS * SLOT;
const WORD: u64 = 15_360;
const SLOTS: u64 = 4;
const SLOT: u64 = 416;
/// Constant bytes.
const SOURCE: u64 = 0;
const LEN_MAX: u32 = 400;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    Write,
    Read,
    Add,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    kind: Kind,
    slot: u64,
    at: u64,
    len: u32,
}

#[derive(Debug, Default)]
struct Way {
    open: VecDeque<Request>,
    /// Messages sent and not received.
    messages: VecDeque<Request>,
    posted: u64,
    received: u64,
    adds: u64,
    added: u64,
}

/// The pair, both ways.
#[derive(Debug)]
pub(crate) struct Innocent {
    pub(crate) qpns: [Qpn; 2],
    pub(crate) mrs: [Mr; 2],
    ways: [Way; 2],
}

fn constant(at: u64, len: u32) -> Vec<u8> {
    (0..len as usize)
        .map(|i| filler((SOURCE + at) as usize + i))
        .collect()
}

impl Innocent {
    pub(crate) fn new(hosts: &mut [Host; 2], manner: &Manner) -> Self {
        let mrs = hosts.each_mut().map(|h| {
            let region = h.region.clone();
            h.engine.reg_mr(h.pd, &region, ALL_ACCESS).unwrap()
        });
        let qpns = hosts.each_mut().map(|h| {
            let mut init = QpInit::rc(h.pd, h.cq, h.cq);
            capacities(&mut init);
            h.engine.create_qp(&init).unwrap()
        });
        connect(hosts, qpns, [0xff_fffc, 0x10], 12, manner);
        let mut it = Self {
            qpns,
            mrs,
            ways: Default::default(),
        };
        for i in [0, 1] {
            hosts[i].region.write_at(WORD, &[0; 8]).unwrap();
            for n in 0..SLOTS {
                it.post_recv(hosts, i, n);
            }
        }
        it
    }

    fn sge(&self, host: &Host, i: usize, at: u64, len: u32) -> Sge {
        let _ = host;
        Sge {
            lkey: self.mrs[i].lkey,
            va: self.mrs[i].va.wrapping_add(at),
            len,
        }
    }

    fn post_recv(&mut self, hosts: &mut [Host; 2], i: usize, n: u64) {
        let sge = self.sge(&hosts[i], i, INBOX + n % SLOTS * SLOT, SLOT as u32);
        let wr = RecvWr {
            wr_id: n,
            sges: &[sge],
        };
        hosts[i].engine.post_recv(self.qpns[i], &wr).unwrap();
    }

    /// One more request, unless enough are under way.
    pub(crate) fn work(&mut self, hosts: &mut [Host; 2], i: usize, bytes: &mut Bytes<'_>) {
        let kind = bytes.pick(&[Kind::Send, Kind::Write, Kind::Read, Kind::Add]);
        let (at, len) = (
            u64::from(bytes.u8()),
            u32::from(bytes.u16()) % (LEN_MAX + 1),
        );
        let way = &self.ways[i];
        if way.open.len() as u64 >= SLOTS || way.messages.len() as u64 >= SLOTS {
            return;
        }
        let len = if kind == Kind::Add { 8 } else { len };
        let request = Request {
            kind,
            slot: way.posted % SLOTS * SLOT,
            at,
            len,
        };
        let (va, rkey) = (self.mrs[1 - i].va, self.mrs[1 - i].rkey);
        let slot = request.slot;
        let (op, here) = match kind {
            Kind::Send => (SendOp::Send, SOURCE + at),
            Kind::Write => {
                let va = va.wrapping_add(TARGET + slot);
                (SendOp::Write { va, rkey }, SOURCE + at)
            }
            Kind::Read => {
                let va = va.wrapping_add(SOURCE + at);
                (SendOp::Read { va, rkey }, LANDING + slot)
            }
            Kind::Add => {
                let va = va.wrapping_add(WORD);
                (SendOp::FetchAdd { va, rkey, add: 3 }, LANDING + slot)
            }
        };
        let sge = self.sge(&hosts[i], i, here, len);
        let wr = SendWr {
            wr_id: self.ways[i].posted,
            op,
            flags: SendFlags::SIGNALED,
            data: Data::Sges(&[sge]),
        };
        hosts[i].engine.post_send(self.qpns[i], &wr).unwrap();
        let way = &mut self.ways[i];
        way.posted += 1;
        way.adds += u64::from(kind == Kind::Add);
        way.open.push_back(request);
        if kind == Kind::Send {
            way.messages.push_back(request);
        }
    }

    /// Takes completions of a host and checks what they stand for.
    pub(crate) fn collect(&mut self, hosts: &mut [Host; 2], i: usize) {
        let mut wcs = [Completion::EMPTY; 8];
        loop {
            let n = hosts[i].engine.poll_cq(hosts[i].cq, &mut wcs);
            if n == 0 {
                return;
            }
            for wc in &wcs[..n] {
                assert_eq!(
                    (wc.status, wc.qpn),
                    (WcStatus::Success, self.qpns[i]),
                    "{wc:?}"
                );
                if wc.opcode as u8 >= 128 {
                    self.received(hosts, i, wc);
                } else {
                    self.sent(hosts, i, wc);
                }
            }
        }
    }

    fn received(&mut self, hosts: &mut [Host; 2], i: usize, wc: &Completion) {
        let way = &mut self.ways[1 - i];
        let message = way.messages.pop_front().expect("a message nobody sent");
        assert_eq!((wc.wr_id, wc.byte_len), (way.received, message.len));
        let at = INBOX + wc.wr_id % SLOTS * SLOT;
        let data = hosts[i].bytes(at, message.len as usize);
        assert_eq!(data, constant(message.at, message.len), "{message:?}");
        way.received += 1;
        let n = way.received + SLOTS - 1;
        self.post_recv(hosts, i, n);
    }

    fn sent(&mut self, hosts: &[Host; 2], i: usize, wc: &Completion) {
        let way = &mut self.ways[i];
        let request = way.open.pop_front().expect("a completion of nothing");
        assert_eq!(wc.wr_id + way.open.len() as u64 + 1, way.posted);
        let (host, at) = match request.kind {
            Kind::Send => return,
            Kind::Write => (&hosts[1 - i], TARGET),
            Kind::Read | Kind::Add => (&hosts[i], LANDING),
        };
        let data = host.bytes(at + request.slot, request.len as usize);
        if request.kind == Kind::Add {
            assert_eq!(
                data,
                (3 * way.added).to_ne_bytes(),
                "executed once, in order"
            );
            way.added += 1;
        } else {
            assert_eq!(data, constant(request.at, request.len), "{request:?}");
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.ways
            .iter()
            .all(|w| w.open.is_empty() && w.messages.is_empty())
    }

    pub(crate) fn check(&self, hosts: &[Host; 2]) {
        for i in [0, 1] {
            let state = hosts[i].engine.qp_state(self.qpns[i]);
            assert_eq!(state, Some(QpState::Rts));
            let sum = hosts[1 - i].bytes(WORD, 8);
            assert_eq!(sum, (3 * self.ways[i].adds).to_ne_bytes());
        }
    }
}
