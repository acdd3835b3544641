//! Requests of eight bytes or none, both sides: compare-and-swap, fetch-and-add, ATOMIC WRITE,
//! FLUSH; and taking keys back, by SEND with invalidate and LOCAL_INV.
//!
//! The responder executes an atomic, ATOMIC WRITE or FLUSH at once and keeps the answer in its
//! ring: what comes again gets the same answer and changes nothing (S10, S12). ATOMIC WRITE and
//! FLUSH are answered by an empty READ response, as rdma_rxe since Linux 6.2 does.

use xroce_wire::aeth::Aeth;
use xroce_wire::atomic::{AtomicAckEth, AtomicEth};
use xroce_wire::feth::Feth;
use xroce_wire::newtypes::{PathMtu, Psn, RKey, Va};
use xroce_wire::opcode::{Opcode, Operation, Position, Service};
use xroce_wire::packet::Packet;
use xroce_wire::reth::Reth;
use xroce_wire::syndrome::{NakCode, Syndrome};
use xroce_wire::template::Emit;

use super::replay::{Answer, ReadJob};
use super::responder::{INVALID_REQUEST, REMOTE_ACCESS};
use super::sq::{Operands, SendQueue, Traits};
use super::{Cx, Qp, sge};
use crate::memory::{Access, AtomicError, AtomicOp, KeyError, Memory};
use crate::reject::{Reject, Why};
use crate::wc::{Sink, WcOpcode, WcStatus};
use crate::wr::{Data, Placement, PostError, SendOp, SendWr};

/// Bytes an atomic works on, and what its address is a multiple of.
const ATOMIC_LEN: u32 = 8;

/// [`Feth::selectivity`] of a range of memory.
const SELECT_RANGE: u8 = 0;
/// [`Feth::selectivity`] of a whole region.
const SELECT_REGION: u8 = 1;

/// Whether a request is answered by a response of its own and not by an ACK: READ, atomics,
/// ATOMIC WRITE, FLUSH.
#[inline]
pub(super) fn has_response(operation: Operation) -> bool {
    operation == Operation::ReadRequest || is_executed_at_once(operation)
}

/// Whether it counts against `max_dest_rd_atomic`: all of these but FLUSH, as with rdma_rxe.
pub(super) fn takes_resource(operation: Operation) -> bool {
    has_response(operation) && operation != Operation::Flush
}

/// Those of them whose answer is made when they are executed.
#[inline]
pub(super) fn is_executed_at_once(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::CmpSwap | Operation::FetchAdd | Operation::AtomicWrite | Operation::Flush
    )
}

/// Eight bytes of ATOMIC WRITE, announced as such, and nothing behind the others (S4).
pub(super) fn check_length(operation: Operation, pkt: &Packet<'_>) -> Result<(), Reject> {
    let (announced, carried) = match operation {
        Operation::AtomicWrite => (pkt.reth().map_or(0, |r| r.len), ATOMIC_LEN as usize),
        _ => (ATOMIC_LEN, 0),
    };
    if announced == ATOMIC_LEN && pkt.payload().len() == carried {
        Ok(())
    } else {
        Err(INVALID_REQUEST)
    }
}

fn is_aligned(va: Va) -> bool {
    va.value().is_multiple_of(ATOMIC_LEN.into())
}

fn misaligned(error: AtomicError) -> Reject {
    match error {
        AtomicError::Misaligned => INVALID_REQUEST,
        AtomicError::Revoked(_) => REMOTE_ACCESS,
    }
}

/// The right each way of placing needs, at the QP and at the region.
fn right_for(placement: Placement) -> Access {
    let mut need = Access::empty();
    need.set(Access::FLUSH_GLOBAL, placement.contains(Placement::GLOBAL));
    need.set(
        Access::FLUSH_PERSISTENT,
        placement.contains(Placement::PERSISTENT),
    );
    need
}

impl SendQueue {
    /// Takes in what [`SendQueue::push`] leaves to this: the WQE of a SEND with the same data, and
    /// then what differs.
    #[cold]
    pub(super) fn push_rare(&mut self, wr: &SendWr<'_>, mtu: PathMtu) -> Result<(), PostError> {
        check_data(&wr.op, &wr.data)?;
        let plain = SendWr {
            op: SendOp::Send,
            ..*wr
        };
        self.push(&plain, mtu)?;
        let (wqe, operands) = self.last_mut();
        match wr.op {
            SendOp::SendInv { rkey } => {
                wqe.rkey = rkey;
                wqe.traits |= Traits::INVALIDATE;
            }
            SendOp::LocalInv { rkey } => {
                wqe.rkey = rkey;
                wqe.traits |= Traits::INVALIDATE | Traits::LOCAL;
                wqe.wc_opcode = WcOpcode::LocalInv;
            }
            SendOp::CompareSwap {
                va,
                rkey,
                compare,
                swap: swap_add,
            } => {
                wqe.turn_into(Operation::CmpSwap, WcOpcode::CompSwap);
                (wqe.va, wqe.rkey) = (va, rkey);
                *operands = Operands { swap_add, compare };
            }
            SendOp::FetchAdd {
                va,
                rkey,
                add: swap_add,
            } => {
                wqe.turn_into(Operation::FetchAdd, WcOpcode::FetchAdd);
                (wqe.va, wqe.rkey) = (va, rkey);
                let compare = 0;
                *operands = Operands { swap_add, compare };
            }
            SendOp::AtomicWrite { va, rkey } => {
                wqe.turn_into(Operation::AtomicWrite, WcOpcode::AtomicWrite);
                (wqe.va, wqe.rkey) = (va, rkey);
            }
            SendOp::Flush {
                va,
                rkey,
                len,
                placement,
                whole_region,
            } => {
                wqe.turn_into(Operation::Flush, WcOpcode::Flush);
                (wqe.va, wqe.rkey) = (va, rkey);
                wqe.len = len;
                wqe.feth = Feth {
                    placement: placement.bits(),
                    selectivity: if whole_region {
                        SELECT_REGION
                    } else {
                        SELECT_RANGE
                    },
                };
            }
            SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::Write { .. }
            | SendOp::WriteImm { .. }
            | SendOp::BindMw { .. }
            | SendOp::Read { .. } => debug_assert!(false, "push does these"),
        }
        Ok(())
    }
}

/// What local memory a request may have, and where an atomic may go.
pub(super) fn check_data(op: &SendOp, data: &Data<'_>) -> Result<(), PostError> {
    let given: u64 = match data {
        Data::Sges(sges) => super::sq::total(sges),
        Data::Inline(parts) => parts.iter().map(|p| p.len() as u64).sum(),
    };
    match *op {
        SendOp::CompareSwap { va, .. }
        | SendOp::FetchAdd { va, .. }
        | SendOp::AtomicWrite { va, .. } => {
            let is_write = matches!(op, SendOp::AtomicWrite { .. });
            if matches!(data, Data::Inline(_)) && !is_write {
                return Err(PostError::InlineRead);
            }
            if given != u64::from(ATOMIC_LEN) {
                return Err(PostError::AtomicLen { given });
            }
            if !is_aligned(va) {
                return Err(PostError::Misaligned(va));
            }
        }
        SendOp::Flush { .. } | SendOp::LocalInv { .. } if given != 0 => {
            return Err(PostError::NoData { given });
        }
        SendOp::Flush { placement, .. } if right_for(placement).is_empty() => {
            return Err(PostError::NoPlacement);
        }
        _ => {}
    }
    Ok(())
}

/// Requester and completer.
impl Qp {
    /// A request that is headers only: atomic or FLUSH.
    #[cold]
    pub(super) fn write_bare_request(
        &mut self,
        frame: &mut [u8],
        index: u32,
        psn: Psn,
    ) -> Result<Option<usize>, KeyError> {
        let wqe = self.sq.wqe(index);
        let opcode = Opcode::for_request(Service::Rc, wqe.operation, Position::Only, false, false);
        let (Some(opcode), Some(template)) = (opcode, self.template.as_mut()) else {
            return Ok(None);
        };
        let emit = Emit {
            opcode,
            psn,
            ack_req: true,
            solicited: false,
            payload_len: 0,
        };
        let Some(mut out) = template.start(frame, &emit) else {
            return Ok(None);
        };
        if wqe.operation == Operation::Flush {
            out.feth(&wqe.feth);
            out.reth(&Reth {
                va: wqe.va,
                rkey: wqe.rkey,
                len: wqe.len,
            });
        } else {
            let Operands { swap_add, compare } = self.sq.operands(index);
            out.atomic(&AtomicEth {
                va: wqe.va,
                rkey: wqe.rkey,
                swap_add,
                compare,
            });
        }
        Ok(Some(out.finish()))
    }

    /// The answer to an atomic: the original value goes to its SGEs.
    #[cold]
    pub(super) fn handle_atomic_ack<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
    ) {
        // As with a READ response: all before it is acknowledged, or proven lost (R8).
        if !self.acknowledge_before(cx, pkt.psn()) || self.sq.head == self.sq.started {
            return;
        }
        let index = self.sq.head;
        let is_ack = matches!(pkt.aeth().map(|a| a.syndrome), Some(Syndrome::Ack { .. }));
        let (true, true, Some(ack)) = (
            is_ack && self.sq.wqe(index).is_atomic(),
            pkt.payload().is_empty(),
            pkt.atomic_ack(),
        ) else {
            self.bad_response(cx);
            return;
        };
        let (pd, original) = (self.cold.init.pd, ack.original.to_ne_bytes());
        if sge::scatter(cx, pd, self.sq.sges(index), 0, &original).is_err() {
            self.fail_send(cx, index, WcStatus::LocProtErr);
            return;
        }
        self.complete_answered(cx, pkt.psn());
    }

    /// A READ response where no READ waits: right if it is the empty one that answers an ATOMIC
    /// WRITE or a FLUSH. All before it has been acknowledged.
    #[cold]
    pub(super) fn handle_bare_response<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
    ) {
        let awaited = matches!(
            self.sq.wqe(self.sq.head).operation,
            Operation::AtomicWrite | Operation::Flush
        );
        let is_ack = matches!(pkt.aeth().map(|a| a.syndrome), Some(Syndrome::Ack { .. }));
        let is_empty = pkt.payload().is_empty() && pkt.info().position == Position::Only;
        if awaited && is_ack && is_empty {
            self.complete_answered(cx, pkt.psn());
        } else {
            self.bad_response(cx);
        }
    }

    /// The oldest request, of one PSN, has its answer.
    fn complete_answered<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>, psn: Psn) {
        self.tx.una_psn = psn.add(1);
        self.complete_head(cx.sink, WcStatus::Success);
        self.on_progress(cx, 1);
    }
}

/// Responder.
impl Qp {
    /// Executes what needs no second packet, and leaves the answer to be sent.
    #[cold]
    pub(super) fn execute_at_once<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        pkt: &Packet<'_>,
    ) -> Result<(), Reject> {
        let operation = pkt.info().operation;
        self.counters.rare().atomics_in += 1;
        let (va, rkey, answer) = match (operation, pkt.atomic(), pkt.reth()) {
            (_, Some(eth), _) => {
                let op = if operation == Operation::CmpSwap {
                    AtomicOp::CompareSwap {
                        compare: eth.compare,
                        swap: eth.swap_add,
                    }
                } else {
                    AtomicOp::FetchAdd(eth.swap_add)
                };
                let need = Access::REMOTE_ATOMIC;
                let original = self.do_atomic(cx, eth.va, eth.rkey, need, op)?;
                (eth.va, eth.rkey, Answer::Atomic(operation, original))
            }
            (Operation::AtomicWrite, _, Some(reth)) => {
                // The length was checked.
                let bytes = pkt.payload().try_into().map_err(|_| INVALID_REQUEST)?;
                let op = AtomicOp::Store(u64::from_ne_bytes(bytes));
                self.do_atomic(cx, reth.va, reth.rkey, Access::REMOTE_WRITE, op)?;
                (reth.va, reth.rkey, Answer::Empty(operation))
            }
            (Operation::Flush, _, Some(reth)) => {
                self.do_flush(cx, pkt.feth(), &reth)?;
                self.note_read(pkt.psn());
                self.replay.push_flush(pkt.psn(), reth.rkey);
                return Ok(());
            }
            _ => return Err(INVALID_REQUEST),
        };
        self.owe(ReadJob::executed(answer, va, rkey, pkt.psn()));
        Ok(())
    }

    fn do_atomic<M: Memory, S: Sink>(
        &self,
        cx: &mut Cx<'_, M, S>,
        va: Va,
        rkey: RKey,
        need: Access,
        op: AtomicOp,
    ) -> Result<u64, Reject> {
        let (pd, qpn) = (self.cold.init.pd, self.cold.qpn);
        let grant = cx
            .mem
            .check_remote(pd, qpn, rkey, va, ATOMIC_LEN, need)
            .map_err(|_| REMOTE_ACCESS)?;
        if !is_aligned(va) {
            return Err(INVALID_REQUEST);
        }
        cx.mem.atomic(&grant, op).map_err(misaligned)
    }

    fn do_flush<M: Memory, S: Sink>(
        &self,
        cx: &mut Cx<'_, M, S>,
        feth: Option<Feth>,
        reth: &Reth,
    ) -> Result<(), Reject> {
        let feth = feth.ok_or(INVALID_REQUEST)?;
        let placement = Placement::from_bits(feth.placement).ok_or(INVALID_REQUEST)?;
        let need = right_for(placement);
        if need.is_empty() || !self.cold.access.contains(need) {
            return Err(INVALID_REQUEST);
        }
        let range = match feth.selectivity {
            SELECT_RANGE => Some((reth.va, reth.len)),
            SELECT_REGION => None,
            _ => return Err(INVALID_REQUEST),
        };
        let (pd, qpn) = (self.cold.init.pd, self.cold.qpn);
        cx.mem
            .flush(pd, qpn, reth.rkey, range, need)
            .map_err(|_| REMOTE_ACCESS)
    }

    /// The stored answer once more, or nothing (S12).
    #[cold]
    pub(super) fn repeat(&mut self, pkt: &Packet<'_>) -> Result<(), Reject> {
        let named = pkt
            .atomic()
            .map(|eth| (eth.va, eth.rkey))
            .or_else(|| pkt.reth().map(|reth| (reth.va, reth.rkey)));
        match named {
            Some((va, rkey))
                if self
                    .replay
                    .repeat(pkt.psn(), va, rkey, pkt.info().operation) =>
            {
                Ok(())
            }
            _ => Err(Reject::Discard(Why::Duplicate)),
        }
    }

    #[cold]
    pub(super) fn write_atomic_ack(
        &mut self,
        frame: &mut [u8],
        psn: Psn,
        original: u64,
    ) -> Option<usize> {
        let emit = Emit {
            opcode: Opcode::RcAtomicAcknowledge,
            psn,
            ack_req: false,
            solicited: false,
            payload_len: 0,
        };
        let mut out = self.template.as_mut()?.start(frame, &emit)?;
        out.aeth(&Aeth {
            syndrome: Syndrome::ACK,
            msn: self.rx.msn,
        });
        out.atomic_ack(&AtomicAckEth { original });
        let len = out.finish();
        self.replay.advance();
        Some(len)
    }

    /// After the data is placed and before the completion (S14). A key that cannot be taken back
    /// is an error of the peer's request, so it hears of it. rdma_rxe acknowledges the SEND.
    #[cold]
    pub(super) fn invalidate_remote<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        rkey: RKey,
    ) -> Result<(), Reject> {
        let (pd, qpn) = (self.cold.init.pd, self.cold.qpn);
        cx.mem
            .invalidate(rkey, qpn, pd)
            .map_err(|_| Reject::Fatal(NakCode::RemoteAccess, WcStatus::RemInvReqErr))
    }
}
