//! What a responder does with a request it refuses for good (S16), and what it says about it.

use alloc::boxed::Box;

use xroce_wire::newtypes::{Psn, Va};
use xroce_wire::opcode::Operation;
use xroce_wire::packet::Packet;
use xroce_wire::syndrome::NakCode;

use super::hot::{Debt, Ongoing};
use super::report::{Refusal, Request};
use super::{Cx, Qp, QpState, atomic};
use crate::memory::{Access, Memory};
use crate::wc::{Event, Sink, WcOpcode, WcStatus};

impl Qp {
    /// A fatal error of the peer's request: one NAK, the receive in use completes with `status`,
    /// everything else flushes (S16).
    #[cold]
    pub(super) fn refuse<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
        code: NakCode,
        status: WcStatus,
    ) {
        let info = pkt.info();
        let refusal = self.refusal(cx, pkt, code, status);
        let psn = self.rx.expected_psn;
        let uses_receive =
            self.rx.ongoing == Ongoing::Send || info.operation == Operation::Send || info.has_imm();
        let claimed = if uses_receive { self.rq.pop() } else { None };
        let wr_id = claimed.map(|wqe| wqe.wr_id);
        let request = Some(request_of(pkt));
        let report = self.failure_report(cx.now, status, wr_id, request, Some(refusal));
        self.cold.failure = Some(Box::new(report));
        if let Some(wqe) = claimed {
            self.counters.rare().recv_errors += 1;
            let wc = self.completion(wqe.wr_id, status, WcOpcode::Recv);
            cx.sink.complete(self.cold.init.recv_cq, wc);
        } else {
            let event = match code {
                NakCode::RemoteAccess => Event::QpAccessErr,
                NakCode::RemoteOperational => Event::QpFatal,
                _ => Event::QpReqErr,
            };
            cx.sink.event(self.cold.qpn, event);
        }
        self.flush(cx.sink);
        // READ responses owed for earlier requests still go first, then the NAK.
        self.rx.debt = Debt::FatalNak(code, psn);
    }

    /// Why a request is refused, found out once more: the packet path keeps no reasons.
    #[cold]
    fn refusal<M: Memory, S: Sink>(
        &mut self,
        cx: &Cx<'_, M, S>,
        pkt: &Packet<'_>,
        code: NakCode,
        status: WcStatus,
    ) -> Refusal {
        let info = pkt.info();
        match code {
            NakCode::RemoteOperational => Refusal::OwnBuffer,
            NakCode::RemoteAccess => self.key_refusal(cx, pkt),
            _ if status == WcStatus::LocLenErr => {
                self.counters.rare().length_errors += 1;
                let (capacity, _) = self.rq.front_room();
                Refusal::TooLong { capacity }
            }
            _ if self.check_sequence(info, info.operation).is_err() => Refusal::Sequence,
            _ if self.check_permitted(info.operation).is_err() => Refusal::NotAllowed,
            _ if atomic::takes_resource(info.operation) && !self.replay.has_room() => {
                Refusal::TooManyReads(self.replay.limit())
            }
            _ => Refusal::Malformed,
        }
    }

    fn key_refusal<M: Memory, S: Sink>(&self, cx: &Cx<'_, M, S>, pkt: &Packet<'_>) -> Refusal {
        let request = request_of(pkt);
        let need = match request.operation {
            Operation::ReadRequest => Access::REMOTE_READ,
            Operation::CmpSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            Operation::Flush => Access::empty(),
            _ => Access::REMOTE_WRITE,
        };
        let (pd, qpn) = (self.cold.init.pd, self.cold.qpn);
        let found = request.rkey.map(|rkey| {
            let (va, len) = (request.va, request.len);
            cx.mem.check_remote(pd, qpn, rkey, va, len, need)
        });
        match found {
            Some(Err(error)) if request.operation != Operation::Send => Refusal::Key(error),
            _ => Refusal::MemoryGone,
        }
    }

    #[cold]
    pub(super) fn count_fatal_nak(&mut self, code: NakCode) {
        let counters = self.counters.rare();
        counters.fatal_naks_out += 1;
        match code {
            NakCode::RemoteAccess => counters.access_naks_out += 1,
            NakCode::RemoteOperational => counters.operational_naks_out += 1,
            _ => counters.invalid_request_naks_out += 1,
        }
    }

    #[cold]
    pub(super) fn refuse_read<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>, psn: Psn) {
        let status = WcStatus::LocAccessErr;
        if self.tx.state != QpState::Err {
            let request = self.replay.front_request();
            let gone = Some(Refusal::MemoryGone);
            let report = self.failure_report(cx.now, status, None, request, gone);
            self.cold.failure = Some(Box::new(report));
            self.flush(cx.sink);
            cx.sink.event(self.cold.qpn, Event::QpAccessErr);
        }
        self.replay.clear();
        self.rx.debt = Debt::FatalNak(NakCode::RemoteAccess, psn);
    }
}

/// The request a packet makes, as far as the packet tells.
fn request_of(pkt: &Packet<'_>) -> Request {
    let named = pkt.reth().map(|reth| (reth.rkey, reth.va, reth.len));
    let named = named.or_else(|| pkt.atomic().map(|atomic| (atomic.rkey, atomic.va, 8)));
    let taken_back = || pkt.ieth().map(|rkey| (rkey, Va::new(0), pkt_len(pkt)));
    let (rkey, va, len) = match named.or_else(taken_back) {
        Some((rkey, va, len)) => (Some(rkey), va, len),
        None => (None, Va::new(0), pkt_len(pkt)),
    };
    Request {
        operation: pkt.info().operation,
        psn: pkt.psn(),
        rkey,
        va,
        len,
    }
}

fn pkt_len(pkt: &Packet<'_>) -> u32 {
    // A frame has less than 64 KB.
    u32::try_from(pkt.payload().len()).unwrap_or(u32::MAX)
}
