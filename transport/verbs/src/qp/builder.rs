//! What a queue pair is made of.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::marker::PhantomData;
use std::sync::Arc;

use xroce_proto::qp::QpInit;
use xroce_proto::recovery::Reliability;
use xroce_wire::newtypes::Psn;

use super::{Parts, Qp, QpInner, Rc, Reset, Service};
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::pd::Pd;
use crate::srq::Srq;
use crate::uses::{Held, User};

/// A queue pair to be (`ibv_qp_init_attr`): 128 sends and receives of one SGE, 64 inline bytes,
/// unless said otherwise.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct QpBuilder<'a, S: Service> {
    pd: &'a Pd,
    send_cq: &'a Cq,
    recv_cq: &'a Cq,
    srq: Option<&'a Srq>,
    init: QpInit,
    psn: Option<Psn>,
    reliability: Reliability,
    service: PhantomData<S>,
}

impl<'a, S: Service> QpBuilder<'a, S> {
    pub(crate) fn new(pd: &'a Pd, send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        let parts = (pd.inner.handle, send_cq.inner.handle, recv_cq.inner.handle);
        Self {
            pd,
            send_cq,
            recv_cq,
            srq: None,
            init: QpInit {
                qp_type: S::TYPE,
                ..QpInit::rc(parts.0, parts.1, parts.2)
            },
            psn: None,
            reliability: Reliability::GoBackN,
            service: PhantomData,
        }
    }

    /// Sends that may be posted at once, 1 ..= 2^20.
    pub const fn max_send_wr(mut self, max: u32) -> Self {
        self.init.max_send_wr = max;
        self
    }

    /// Receives that may be posted at once, 1 ..= 2^20.
    pub const fn max_recv_wr(mut self, max: u32) -> Self {
        self.init.max_recv_wr = max;
        self
    }

    /// SGEs per send, 1 ..= 32.
    pub const fn max_send_sge(mut self, max: u8) -> Self {
        self.init.max_send_sge = max;
        self
    }

    /// SGEs per receive, 1 ..= 32; with a shared receive queue, that one's.
    pub const fn max_recv_sge(mut self, max: u8) -> Self {
        self.init.max_recv_sge = max;
        self
    }

    /// Inline bytes per send, 0 ..= 512.
    pub const fn max_inline(mut self, max: u32) -> Self {
        self.init.max_inline = max;
        self
    }

    /// Takes its receives from `srq`.
    pub fn srq(mut self, srq: &'a Srq) -> Self {
        self.srq = Some(srq);
        self.init.srq = Some(srq.inner.handle);
        self.init.max_recv_sge = srq.inner.max_sge;
        self
    }

    /// First PSN it sends; random if not given.
    pub const fn psn(mut self, psn: Psn) -> Self {
        self.psn = Some(psn);
        self
    }

    /// Makes it (`ibv_create_qp`).
    ///
    /// # Errors
    /// A capacity out of range, a part of another context, or no number is left.
    pub fn create(self) -> Result<Qp<S, Reset>, VerbsError> {
        let context = &self.pd.inner.context;
        for cq in [self.send_cq, self.recv_cq] {
            if !Arc::ptr_eq(&cq.inner.context, context) {
                return Err(VerbsError::OtherContext("completion queue"));
            }
        }
        if let Some(srq) = self.srq
            && !Arc::ptr_eq(srq.inner.context(), context)
        {
            return Err(VerbsError::OtherContext("shared receive queue"));
        }
        let qpn = context.backend().create_qp(&self.init)?;
        Ok(Qp::of(Box::new(QpInner {
            pd: Held::new(&self.pd.inner, User::Qp),
            qpn,
            psn: self.psn.unwrap_or_else(random_psn),
            reliability: self.reliability,
            parts: Parts {
                send_cq: Held::new(&self.send_cq.inner, User::Qp),
                recv_cq: Held::new(&self.recv_cq.inner, User::Qp),
                srq: self.srq.map(|srq| Held::new(&srq.inner, User::Qp)),
            },
        })))
    }
}

impl QpBuilder<'_, Rc> {
    /// How losses are repaired; go-back-N if not given.
    ///
    /// [`Reliability::Selective`] is an offer, which [`Qp::endpoint`](crate::Qp::endpoint) carries to
    /// the peer: it is used if the peer's endpoint has one as well, over the smaller of both
    /// ranges. Otherwise, and towards peers of another make, the timeout follows the measured round
    /// trip, which no peer notices.
    pub const fn reliability(mut self, reliability: Reliability) -> Self {
        self.reliability = reliability;
        self
    }
}

/// A start that packets of an earlier connection do not hit. The random state of a hash map is
/// random enough: this keeps no secret.
fn random_psn() -> Psn {
    let bits = RandomState::new().build_hasher().finish().to_ne_bytes();
    let [a, b, c, d, ..] = bits;
    Psn::new(u32::from_ne_bytes([a, b, c, d]))
}
