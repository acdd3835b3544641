//! BIND_MW and LOCAL_INV: work requests without packets (K6).
//!
//! They wait until all before them have completed (R4): what was sent under the
//! old key must not meet the new one.

use xroce_wire::newtypes::{PathMtu, RKey, Va};

use super::sq::{SendQueue, Traits, total};
use super::{Cx, Qp};
use crate::memory::{Access, Bind, Memory};
use crate::wc::{Sink, WcOpcode, WcStatus};
use crate::wr::{Data, PostError, SendOp, SendWr, Sge};

impl SendQueue {
    /// Takes a BIND_MW in. Its WQE has the window's key and the address where a WRITE has them;
    /// key, length and rights for the region stand in the place of an SGE.
    pub(super) fn push_bind(
        &mut self,
        wr: &SendWr<'_>,
        mtu: PathMtu,
        rkey: RKey,
        bind: &Bind,
    ) -> Result<(), PostError> {
        let given = match wr.data {
            Data::Sges(sges) => total(sges),
            Data::Inline(parts) => parts.iter().map(|p| p.len() as u64).sum(),
        };
        if given != 0 {
            return Err(PostError::NoData { given });
        }
        let packed = Sge {
            lkey: bind.lkey,
            va: Va::new(bind.len),
            len: bind.access.bits(),
        };
        let op = SendOp::Write { va: bind.va, rkey };
        let data = Data::Sges(&[packed]);
        self.push(&SendWr { op, data, ..*wr }, mtu)?;
        let wqe = self.wqe_mut(self.tail.wrapping_sub(1));
        wqe.traits |= Traits::LOCAL;
        wqe.wc_opcode = WcOpcode::BindMw;
        wqe.len = 0;
        Ok(())
    }
}

impl Qp {
    /// Does the local requests at the send position, which all before them have made way for.
    /// `false` if then no packet may leave.
    #[cold]
    pub(super) fn execute_local<M: Memory, S: Sink>(&mut self, cx: &mut Cx<'_, M, S>) -> bool {
        loop {
            let index = self.tx.send_index;
            let wqe = *self.sq.wqe(index);
            if !wqe.is_local() {
                return true;
            }
            let (pd, qpn) = (self.cold.init.pd, self.cold.qpn);
            let done = match self.sq.sges(index) {
                _ if wqe.traits.contains(Traits::INVALIDATE) => {
                    let done = cx.mem.invalidate(wqe.rkey, qpn, pd);
                    done.map_err(|_| WcStatus::LocQpOpErr)
                }
                &[packed] => {
                    let bind = Bind {
                        lkey: packed.lkey,
                        va: wqe.va,
                        len: packed.va.value(),
                        access: Access::from_bits_retain(packed.len),
                    };
                    let done = cx.mem.bind_window(pd, qpn, wqe.rkey, &bind);
                    done.map_err(|_| WcStatus::MwBindErr)
                }
                _ => Err(WcStatus::LocQpOpErr),
            };
            self.sq.started = index.wrapping_add(1);
            self.tx.send_index = self.sq.started;
            if let Err(status) = done {
                self.fail_send(cx, index, status);
                return false;
            }
            self.complete_head(cx.sink, WcStatus::Success);
            if !self.may_request(cx.now) {
                return false;
            }
        }
    }
}
