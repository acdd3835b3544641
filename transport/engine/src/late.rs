//! Receives that a program has posted and that have not reached the engine yet.
//!
//! A program that posts through a ring of shared memory has posted when it has written there. What
//! its peer sends after that must find the receive, although whoever moves work requests from the
//! ring to the engine may come too late: a datagram would be lost, and a connection that allows no
//! RNR retry would end. So the ring is looked at once more before a packet goes without a receive.

use xroce_api::{EngineError, ObjectError};
use xroce_net::datapath::Datapath;
use xroce_proto::wc::Srq;
use xroce_proto::wr::RecvWr;
use xroce_wire::newtypes::Qpn;
use xroce_wire::packet::Packet;

use crate::engine::{Core, Engine};

/// Where receives may wait that the engine does not have.
pub trait LateReceives {
    /// A packet has come for a queue pair, needs a receive, and there is none: posts those that
    /// wait. `srq`: the shared receive queue from which the queue pair takes its receives.
    fn fetch(&mut self, posts: &mut Receives<'_>, qpn: Qpn, srq: Option<Srq>);
}

/// The place that a poll was given, if any: an engine whose work requests are posted by calls has
/// none.
pub(crate) type Late<'a> = Option<&'a mut dyn LateReceives>;

/// Takes receives while a frame is being received.
#[derive(Debug)]
pub struct Receives<'a>(&'a mut Core);

impl Receives<'_> {
    /// As [`crate::Engine::post_recv`].
    ///
    /// # Errors
    /// As [`crate::Engine::post_recv`].
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), EngineError> {
        self.0.post_recv(qpn, wr)
    }

    /// As [`crate::Engine::post_srq_recv`].
    ///
    /// # Errors
    /// As [`crate::Engine::post_srq_recv`].
    pub fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), EngineError> {
        self.0.post_srq_recv(srq, wr)
    }
}

impl<D: Datapath> Engine<D> {
    /// The same outside of a poll, for who posts in both ways.
    pub fn receives(&mut self) -> Receives<'_> {
        Receives(&mut self.core)
    }
}

impl Core {
    #[inline]
    pub(crate) fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), EngineError> {
        let found = self.qps.find_mut(qpn);
        let (_, entry) = found.ok_or(EngineError::NoQp(qpn))?;
        Ok(entry.qp.post_recv(wr, &mut self.cqs)?)
    }

    #[inline]
    pub(crate) fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), EngineError> {
        let found = self.cqs.srqs.get_mut(srq.0);
        Ok(found.ok_or(ObjectError::NoSrq(srq))?.post(wr)?)
    }

    /// Sees to it that a packet finds the receive that was posted for it.
    #[inline]
    pub(crate) fn fetch_receives(
        &mut self,
        late: &mut dyn LateReceives,
        index: u32,
        pkt: &Packet<'_>,
    ) {
        let Some(entry) = self.qps.get(index) else {
            return;
        };
        if !entry.qp.lacks_receive(pkt) {
            return;
        }
        let (qpn, srq) = (entry.qp.qpn(), entry.qp.srq());
        let shared = srq.and_then(|srq| self.cqs.srqs.get(srq.0));
        if shared.is_none_or(|queue| queue.is_empty()) {
            late.fetch(&mut Receives(self), qpn, srq);
        }
    }
}
