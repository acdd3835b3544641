//! Commands on the objects around queue pairs: completion and shared receive queues, memory
//! regions and windows, the P_Key table, events.

use xroce_api::{
    AsyncEvent, EngineError, Mr, Mw, MwId, MwType, Notify, ObjectError, Range, Rereg, Source,
};
use xroce_net::datapath::Datapath;
use xroce_proto::memory::{Access, Bind, Pd};
use xroce_proto::qp::{QpAttr, QpInfo, QpInit};
use xroce_proto::srq::{SharedReceiveQueue, SrqAttr};
use xroce_proto::wc::{Completion, Cq, Event, Srq};
use xroce_proto::wr::RecvWr;
use xroce_shm::Region;
use xroce_wire::newtypes::{LKey, PKey, Qpn, RKey};

use crate::cq::Resize;
use crate::engine::{Core, Engine};
use crate::handles::Kept;

/// CQ entries, at most (rxe: 32767; no reason to stay so low).
pub(crate) const CQ_DEPTH_MAX: u32 = 1 << 22;

fn kept(kept: Kept, unknown: EngineError) -> EngineError {
    match kept {
        Kept::Unknown => unknown,
        Kept::Used(users) => ObjectError::Busy { users }.into(),
    }
}

/// Completion queues.
impl<D: Datapath> Engine<D> {
    /// A completion queue of `depth` entries, 1 ..= 2^22.
    ///
    /// # Errors
    /// The depth is out of range, or there are 2^20 already.
    pub fn create_cq(&mut self, depth: u32) -> Result<Cq, EngineError> {
        check_depth(depth)?;
        let cq = self.core.cqs.create(depth);
        cq.ok_or(EngineError::Object(ObjectError::Exhausted))
    }

    /// Changes the depth; what is queued stays, in order. Whether the CQ is armed stays too.
    ///
    /// # Errors
    /// It does not exist, the depth is out of range or less than what is queued.
    pub fn resize_cq(&mut self, cq: Cq, depth: u32) -> Result<(), EngineError> {
        check_depth(depth)?;
        let resized = self.core.cqs.resize(cq, depth);
        resized.map_err(|error| match error {
            Resize::Unknown => EngineError::NoCq(cq),
            Resize::TooSmall(queued) => ObjectError::CqTooSmall { queued, depth }.into(),
        })
    }

    /// Destroys a CQ, with completions, notifications and events that nobody took.
    ///
    /// # Errors
    /// It does not exist, or QPs use it.
    pub fn destroy_cq(&mut self, cq: Cq) -> Result<(), EngineError> {
        let destroyed = self.core.cqs.destroy(cq);
        destroyed.map_err(|error| kept(error, EngineError::NoCq(cq)))
    }

    /// Asks for one notification of the next completion that counts (`ibv_req_notify_cq`).
    ///
    /// `true` if completions are there already: they fire nothing, so whoever is about to wait
    /// has to poll once more after arming. Arming again before it fired changes nothing, except
    /// that solicited-only becomes any.
    ///
    /// # Errors
    /// It does not exist.
    pub fn req_notify_cq(&mut self, cq: Cq, notify: Notify) -> Result<bool, EngineError> {
        let waiting = self.core.cqs.arm(cq, notify);
        waiting.ok_or(EngineError::NoCq(cq))
    }

    /// The oldest notification not yet taken; each arming gives one at most.
    pub fn poll_notification(&mut self) -> Option<Cq> {
        self.core.cqs.poll_notification()
    }

    /// Whether [`Engine::poll_notification`] has one: after a poll, for a driver that tells
    /// others by eventfd.
    #[must_use]
    pub fn has_notification(&self) -> bool {
        self.core.cqs.has_notification()
    }

    /// Takes completions out of a CQ, returns how many.
    #[inline]
    pub fn poll_cq(&mut self, cq: Cq, out: &mut [Completion]) -> usize {
        self.core.cqs.poll(cq, out)
    }

    /// Whether [`Engine::poll_event`] has one, for a driver that tells others.
    #[must_use]
    pub fn has_event(&self) -> bool {
        !self.core.cqs.events.is_empty()
    }

    /// The oldest asynchronous event not yet taken. Those that found the queue full are counted
    /// in [`EngineStats::events_lost`](xroce_api::EngineStats::events_lost).
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.core.cqs.events.pop()
    }
}

fn check_depth(depth: u32) -> Result<(), EngineError> {
    if (1..=CQ_DEPTH_MAX).contains(&depth) {
        return Ok(());
    }
    Err(EngineError::CqDepth {
        given: depth,
        max: CQ_DEPTH_MAX,
    })
}

/// Shared receive queues.
impl<D: Datapath> Engine<D> {
    /// A shared receive queue of a protection domain.
    ///
    /// # Errors
    /// A capacity is out of range, or the PD does not exist.
    pub fn create_srq(&mut self, pd: Pd, attr: &SrqAttr) -> Result<Srq, EngineError> {
        self.check_pd(pd)?;
        let srq = SharedReceiveQueue::new(attr)?;
        let srqs = &mut self.core.cqs.srqs;
        let handle = srqs.insert(srq);
        handle.map(Srq).ok_or_else(|| ObjectError::Exhausted.into())
    }

    /// Changes size or limit. If fewer receives than the limit are posted already, the event
    /// comes at once.
    ///
    /// # Errors
    /// It does not exist, or see [`SrqError`](xroce_proto::srq::SrqError).
    pub fn modify_srq(
        &mut self,
        srq: Srq,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), EngineError> {
        if self.srq_mut(srq)?.modify(max_wr, limit)? {
            let event = AsyncEvent::srq(srq, Event::SrqLimitReached);
            self.core.cqs.events.push(event);
        }
        Ok(())
    }

    /// Size and limit; `None` if it does not exist.
    #[must_use]
    pub fn query_srq(&self, srq: Srq) -> Option<SrqAttr> {
        Some(self.core.cqs.srqs.get(srq.0)?.query())
    }

    /// Receives posted to an SRQ and not taken.
    #[must_use]
    pub fn srq_len(&self, srq: Srq) -> Option<u32> {
        Some(self.core.cqs.srqs.get(srq.0)?.len())
    }

    /// Destroys an SRQ; what no QP took vanishes without completion.
    ///
    /// # Errors
    /// It does not exist, or QPs use it.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), EngineError> {
        let removed = self.core.cqs.srqs.remove(srq.0);
        removed.map_err(|error| kept(error, ObjectError::NoSrq(srq).into()))?;
        self.core.cqs.events.forget(Source::Srq(srq));
        Ok(())
    }

    /// Posts a receive to an SRQ.
    ///
    /// # Errors
    /// It does not exist, or see [`PostError`](xroce_proto::wr::PostError).
    #[inline]
    pub fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), EngineError> {
        self.core.post_srq_recv(srq, wr)
    }

    fn srq_mut(&mut self, srq: Srq) -> Result<&mut SharedReceiveQueue, EngineError> {
        let found = self.core.cqs.srqs.get_mut(srq.0);
        found.ok_or_else(|| ObjectError::NoSrq(srq).into())
    }

    /// What a QP is about to be made of exists and fits.
    pub(crate) fn check_parts(&self, init: &QpInit) -> Result<(), EngineError> {
        self.check_pd(init.pd)?;
        for cq in [init.send_cq, init.recv_cq] {
            if !self.core.cqs.exists(cq) {
                return Err(EngineError::NoCq(cq));
            }
        }
        let Some(srq) = init.srq else { return Ok(()) };
        let attr = self.query_srq(srq).ok_or(ObjectError::NoSrq(srq))?;
        if attr.max_sge != init.max_recv_sge {
            return Err(EngineError::Object(ObjectError::SrqSge {
                given: init.max_recv_sge,
                needed: attr.max_sge,
            }));
        }
        Ok(())
    }
}

impl Core {
    /// A QP made of these came (1) or went (-1).
    pub(crate) fn count_users(&mut self, init: &QpInit, more: i32) {
        self.cqs.add_users(init.send_cq, more);
        self.cqs.add_users(init.recv_cq, more);
        if let Some(srq) = init.srq {
            self.cqs.srqs.add_users(srq.0, more);
        }
    }
}

/// Memory regions and windows.
impl<D: Datapath> Engine<D> {
    /// Registers a whole region.
    ///
    /// # Errors
    /// See [`RegError`](xroce_api::RegError).
    pub fn reg_mr(&mut self, pd: Pd, region: &Region, access: Access) -> Result<Mr, EngineError> {
        self.reg_mr_range(pd, region, 0, region.len() as u64, access)
    }

    /// Registers `len` bytes at `offset` of a region.
    ///
    /// # Errors
    /// See [`RegError`](xroce_api::RegError).
    pub fn reg_mr_range(
        &mut self,
        pd: Pd,
        region: &Region,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr, EngineError> {
        let range = Range {
            region,
            offset,
            len,
            iova: None,
        };
        self.reg_mr_at(pd, &range, access)
    }

    /// Registers a range, under addresses of the caller's choice if it has one.
    ///
    /// # Errors
    /// See [`RegError`](xroce_api::RegError).
    pub fn reg_mr_at(
        &mut self,
        pd: Pd,
        range: &Range<'_>,
        access: Access,
    ) -> Result<Mr, EngineError> {
        self.check_pd(pd)?;
        Ok(self.core.mem.register(pd, range, access)?)
    }

    /// Changes PD, rights or memory of a region. It gets new keys; the old ones, and operations
    /// running under them, end as with [`Engine::dereg_mr`].
    ///
    /// # Errors
    /// No region has this key, windows are bound to it, the PD does not exist or the new rights
    /// or range are not possible: then the region and its keys are as before.
    pub fn rereg_mr(&mut self, lkey: LKey, change: &Rereg<'_>) -> Result<Mr, EngineError> {
        if let Some(pd) = change.pd {
            self.check_pd(pd)?;
        }
        Ok(self.core.mem.reregister(lkey, change)?)
    }

    /// Takes a region back: nobody can reach it by its keys any more, and operations that are
    /// running on it fail.
    ///
    /// # Errors
    /// No region has this key, or windows are bound to it.
    pub fn dereg_mr(&mut self, lkey: LKey) -> Result<(), EngineError> {
        Ok(self.core.mem.deregister(lkey)?)
    }

    /// A memory window, bound to nothing.
    ///
    /// # Errors
    /// The PD does not exist, or all keys are taken.
    pub fn alloc_mw(&mut self, pd: Pd, mw_type: MwType) -> Result<Mw, EngineError> {
        self.check_pd(pd)?;
        Ok(self.core.mem.alloc_window(pd, mw_type)?)
    }

    /// Frees a window; if it is bound, its key is worth nothing from now on.
    ///
    /// # Errors
    /// It does not exist.
    pub fn dealloc_mw(&mut self, mw: MwId) -> Result<(), EngineError> {
        Ok(self.core.mem.dealloc_window(mw)?)
    }

    /// Binds a type 1 window, whether bound or not, and returns its new key; a length of 0 only
    /// unbinds it. Type 2 is bound by [`SendOp::BindMw`](xroce_proto::wr::SendOp::BindMw).
    ///
    /// # Errors
    /// See [`BindError`](xroce_proto::memory::BindError); the window is bound as before.
    pub fn bind_mw(&mut self, mw: MwId, bind: &Bind) -> Result<RKey, EngineError> {
        Ok(self.core.mem.bind_type1(mw, bind)?)
    }
}

/// Queue pairs and their partition.
impl<D: Datapath> Engine<D> {
    /// State, attributes and capacities of a queue pair.
    #[must_use]
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpInfo> {
        Some(self.qp(qpn)?.query())
    }

    /// An entry of the P_Key table; there is one.
    #[must_use]
    pub fn pkey(&self, index: u16) -> Option<PKey> {
        (index == 0).then_some(self.core.pkey)
    }

    /// Changes an entry of the P_Key table; all QPs follow at once. A limited member (top bit 0)
    /// talks to full members only.
    ///
    /// # Errors
    /// There is no such entry, or the key is of no partition.
    pub fn set_pkey(&mut self, index: u16, pkey: PKey) -> Result<(), EngineError> {
        if index != 0 {
            return Err(ObjectError::PKeyIndex(index).into());
        }
        if pkey.value() & 0x7fff == 0 {
            return Err(ObjectError::PKey(pkey).into());
        }
        self.core.pkey = pkey;
        for entry in self.core.qps.iter_mut() {
            // The path has been used to make a template before.
            let _ = entry.qp.set_pkey(pkey);
        }
        Ok(())
    }

    /// The attributes with what the P_Key table says, if they name an entry of it.
    pub(crate) fn with_pkey(&self, attr: &QpAttr) -> Option<QpAttr> {
        attr.pkey_index?;
        Some(QpAttr {
            pkey: self.core.pkey,
            ..attr.clone()
        })
    }
}
