//! What a device does, by the daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use xroce_abi::send::Destination;
use xroce_control::reply::{Capacity, CqMade, QpMade, Reason, SrqMade};
use xroce_control::{Across, Memory, Path, PieceOf, Request, layout};
use xroce_engine::{
    Ah, AsyncEvent, EngineError, EngineStats, Failure, Mr, Mw, MwId, MwType, Notify, ObjectError,
    Range, Rereg, Work,
};
use xroce_net::datapath::PortStats;
use xroce_net::gids::GidEntry;
use xroce_proto::counters::Counters;
use xroce_proto::memory::{Access, Bind, Pd};
use xroce_proto::qp::rules::PostRules;
use xroce_proto::qp::{QpAttr, QpInfo, QpInit};
use xroce_proto::srq::SrqAttr;
use xroce_proto::time::Instant;
use xroce_proto::wc::{Completion, Cq, Srq};
use xroce_proto::wr::{Data, PostError, RecvWr, SendWr};
use xroce_shm::{ARM_AT, AdoptError, Adopted, ArmWord, Consumer, Producer, Race, Region};
use xroce_wire::newtypes::{Gid, LKey, PKey, Qpn, RKey, Va};
use xroce_wire::path::{AhAttr, Flow};

use super::cq::{RemoteChannel, RemoteCq, Ring};
use super::queue::{RemoteQp, RemoteSrq};
use super::session::Doorbell;
use super::{QpSeat, Remote, end_of, find, map, odd, write};
use crate::backend::{Backend, Fixed, Motion, no_qp};
use crate::batch::{BadWr, Part, RecvRecords, SendRecords, To, WrError};
use crate::channel::Channel;
use crate::error::VerbsError;

/// Memory of a range, shareable if it can be, and how it is described.
fn share(range: &Range<'_>) -> Result<(Option<Adopted>, Memory), VerbsError> {
    let here = Va::new(range.region.address().wrapping_add(range.offset));
    let mut memory = Memory {
        pieces: Vec::new(),
        lead: 0,
        len: range.len,
        iova: range.iova.unwrap_or(here),
        across: None,
    };
    match range.region.share(range.offset, range.len, Race::Refuse) {
        Ok(shared) => {
            let pieces = shared.pieces().iter();
            let pieces = pieces.map(|piece| PieceOf {
                offset: piece.offset,
                len: piece.len,
            });
            memory.pieces = pieces.collect();
            memory.lead = shared.lead();
            Ok((Some(shared), memory))
        }
        // It has to stay where it is.
        Err(why @ (AdoptError::Mapping(_) | AdoptError::NoGuard(_) | AdoptError::Theirs(_))) => {
            memory.across = Some(Across {
                address: here,
                why: why.to_string(),
            });
            Ok((None, memory))
        }
        Err(why) => Err(why.into()),
    }
}

fn fds_of(shared: Option<&Adopted>) -> Vec<BorrowedFd<'_>> {
    let pieces = shared.map_or(&[][..], Adopted::pieces).iter();
    pieces.map(|piece| piece.fd.as_fd()).collect()
}

impl Remote {
    fn end_of_life(&self, request: &Request) -> Result<(), VerbsError> {
        self.gate.end_of_life(request)
    }

    fn cq_ring(&self, fds: Vec<OwnedFd>, capacity: Capacity) -> Result<Ring, VerbsError> {
        let gate = &self.gate;
        let geometry = layout::cq(capacity).map_err(|e| odd(gate, e))?;
        let region = map(gate, fds, geometry.bytes())?;
        Ok(Ring {
            entries: Consumer::new(&region, 0, geometry).map_err(|e| odd(gate, e))?,
            arm: ArmWord::new(&region, ARM_AT).map_err(|e| odd(gate, e))?,
        })
    }

    fn work_rings(
        &self,
        fds: Vec<OwnedFd>,
        first: Capacity,
        second: Option<Capacity>,
    ) -> Result<(Producer, Option<Producer>), VerbsError> {
        let gate = &self.gate;
        let geometry = |capacity| layout::work_ring(capacity).map_err(|e| odd(gate, e));
        let first = geometry(first)?;
        let second = second.map(geometry).transpose()?;
        let bytes = first.bytes() + second.map_or(0, |g| g.bytes());
        let region: Region = map(gate, fds, bytes)?;
        let ring = |at, g| Producer::new(&region, at, g).map_err(|e| odd(gate, e));
        let second = second.map(|g| ring(first.bytes(), g)).transpose()?;
        Ok((ring(0, first)?, second))
    }

    fn seat(&self, qpn: Qpn) -> Result<Arc<QpSeat>, EngineError> {
        find(&self.qps, &qpn).ok_or(EngineError::NoQp(qpn))
    }

    fn check_postable(&self) -> Result<(), WrError> {
        match self.gate.reason() {
            None => Ok(()),
            Some((device, reason)) => Err(WrError::Device { device, reason }),
        }
    }

    /// Where a datagram goes, if the queue pair may use the address.
    fn destination(&self, seat: &QpSeat, to: &To) -> Result<Destination, WrError> {
        let pd = find(&self.ahs, &to.ah).ok_or(WrError::Engine(EngineError::NoAh(to.ah)))?;
        if pd != seat.pd {
            return Err(WrError::Post(PostError::AddressPd));
        }
        Ok(Destination {
            ah: to.ah.value(),
            qpn: to.qpn,
            qkey: to.qkey,
        })
    }
}

/// Receives of a batch, each after its own check.
fn receives<'a>(
    context: u32,
    batch: &'a RecvRecords,
) -> impl Iterator<Item = Result<RecvWr<'a>, WrError>> {
    batch.records.iter().map(move |record| {
        record.check(context)?;
        Ok(RecvWr {
            wr_id: record.wr_id,
            sges: batch.sges_of(record),
        })
    })
}

fn bad_recv(batch: &RecvRecords, (index, error): (usize, WrError)) -> BadWr {
    let wr_id = batch.records.get(index).map_or(0, |record| record.wr_id);
    BadWr::new(index, wr_id, error)
}

impl Backend for Remote {
    fn fixed(&self) -> &Fixed {
        &self.fixed
    }

    fn motion(&self) -> Motion {
        Motion::Thread
    }

    fn poll(&self, _: Instant) -> Result<Work, VerbsError> {
        self.gate.check_alive().map(|()| Work::default())
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn stop(&self) {
        self.gate.end();
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = watch.take() {
            // A panic there has been printed.
            let _ = watch.join();
        }
    }

    fn gids(&self) -> Vec<(u32, GidEntry)> {
        self.gate.call(&Request::Gids).unwrap_or_default()
    }

    fn is_up(&self) -> bool {
        self.gate.call(&Request::Up).unwrap_or(false)
    }

    fn pkey(&self, index: u16) -> Option<PKey> {
        self.gate.call(&Request::PKey { index }).ok().flatten()
    }

    fn set_pkey(&self, index: u16, pkey: PKey) -> Result<(), VerbsError> {
        self.gate.call(&Request::SetPKey { index, pkey })
    }

    fn stats(&self) -> (EngineStats, PortStats) {
        self.gate.call(&Request::Stats).unwrap_or_default()
    }

    fn poll_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        self.take_event()
    }

    fn wait_event(&self, timeout: Duration) -> Result<(), VerbsError> {
        let end = end_of(timeout);
        loop {
            // The pipe ends with the daemon, a moment before it is known here that it has.
            let waiting = self.events().available().map_err(|e| odd(&self.gate, e))?;
            if waiting != 0 || self.gate.is_broken() || !self.sleep(&self.event_pipe, end)? {
                return Ok(());
            }
            self.quiet_events();
        }
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_pipe.as_fd()
    }

    fn alloc_pd(&self) -> Result<Pd, VerbsError> {
        self.gate.call(&Request::AllocPd)
    }

    fn reg_mr(&self, pd: Pd, range: &Range<'_>, access: Access) -> Result<Mr, VerbsError> {
        let (shared, memory) = share(range)?;
        let request = Request::RegMr { pd, access, memory };
        let (mr, _) = self.gate.call_with(&request, &fds_of(shared.as_ref()))?;
        Ok(mr)
    }

    fn rereg_mr(&self, lkey: LKey, change: &Rereg<'_>) -> Result<Mr, VerbsError> {
        let shared = change.range.as_ref().map(share).transpose()?;
        let (shared, memory) = shared.unzip();
        let request = Request::ReregMr {
            lkey,
            pd: change.pd,
            access: change.access,
            memory,
        };
        let fds = fds_of(shared.as_ref().and_then(Option::as_ref));
        let (mr, _) = self.gate.call_with(&request, &fds)?;
        Ok(mr)
    }

    fn dereg_mr(&self, lkey: LKey) -> Result<(), VerbsError> {
        self.end_of_life(&Request::DeregMr { lkey })
    }

    fn abandon_mr(&self, lkey: LKey) {
        if let Err(error) = self.end_of_life(&Request::AbandonMr { lkey }) {
            tracing::warn!(%error, "a memory region was not taken back");
        }
    }

    fn alloc_mw(&self, pd: Pd, mw_type: MwType) -> Result<Mw, VerbsError> {
        self.gate.call(&Request::AllocMw { pd, mw_type })
    }

    fn dealloc_mw(&self, mw: MwId) -> Result<(), VerbsError> {
        self.end_of_life(&Request::DeallocMw { mw })
    }

    fn bind_mw(&self, mw: MwId, bind: &Bind) -> Result<RKey, VerbsError> {
        self.gate.call(&Request::BindMw { mw, bind: *bind })
    }

    fn create_channel(&self) -> Result<Channel, VerbsError> {
        let (number, fds) = self.gate.call_with(&Request::CreateChannel, &[])?;
        let came = <[OwnedFd; 1]>::try_from(fds);
        let [pipe] = came.map_err(|fds| odd(&self.gate, fds.len()))?;
        let channel = RemoteChannel::new(number, pipe, Arc::clone(&self.gate));
        Ok(Channel::Remote(Arc::new(channel)))
    }

    fn wait_channel(&self, on: &Channel, timeout: Duration) -> Result<Option<Cq>, VerbsError> {
        let Channel::Remote(channel) = on else {
            return Err(VerbsError::OtherContext("completion channel"));
        };
        let end = end_of(timeout);
        loop {
            let broken = self.gate.is_broken();
            if let Some(cq) = channel.take(broken) {
                return Ok(Some(cq));
            }
            if broken {
                return self.gate.check_alive().map(|()| None);
            }
            if !self.sleep(&**channel, end)? {
                return Ok(None);
            }
        }
    }

    fn create_cq(&self, depth: u32, channel: &Channel) -> Result<Cq, VerbsError> {
        let Channel::Remote(channel) = channel else {
            return Err(VerbsError::OtherContext("completion channel"));
        };
        let number = channel.number;
        let request = Request::CreateCq {
            depth,
            channel: number,
        };
        let (made, fds): (CqMade, _) = self.gate.call_with(&request, &[])?;
        let ring = self.cq_ring(fds, made.ring)?;
        let queue = Arc::new(RemoteCq::new(made.cq, ring));
        channel.add(&queue);
        write(&self.cqs).insert(made.cq, (queue, Arc::clone(channel)));
        Ok(made.cq)
    }

    fn resize_cq(&self, cq: Cq, depth: u32) -> Result<(), VerbsError> {
        let request = Request::ResizeCq { cq, depth };
        let (capacity, fds): (Capacity, _) = self.gate.call_with(&request, &[])?;
        let ring = self.cq_ring(fds, capacity)?;
        if let Some((queue, _)) = find(&self.cqs, &cq) {
            queue.resize(ring);
        }
        Ok(())
    }

    fn destroy_cq(&self, cq: Cq) -> Result<(), VerbsError> {
        self.end_of_life(&Request::DestroyCq { cq })?;
        if let Some((_, channel)) = write(&self.cqs).remove(&cq) {
            channel.remove(cq);
        }
        Ok(())
    }

    fn poll_cq(&self, cq: Cq, out: &mut [Completion]) -> Result<usize, VerbsError> {
        self.take_completions(cq, out)
    }

    fn arm_cq(&self, cq: Cq, notify: Notify) -> Result<bool, VerbsError> {
        let (queue, _) = find(&self.cqs, &cq).ok_or(EngineError::NoCq(cq))?;
        let waiting = queue.arm(notify).map_err(|e| odd(&self.gate, e))?;
        // Who polls hears of the end.
        Ok(waiting || self.gate.is_broken())
    }

    fn create_srq(&self, pd: Pd, attr: &SrqAttr) -> Result<Srq, VerbsError> {
        let request = Request::CreateSrq { pd, attr: *attr };
        let (made, fds): (SrqMade, _) = self.gate.call_with(&request, &[])?;
        let (ring, _) = self.work_rings(fds, made.ring, None)?;
        let bell = Doorbell::new(&self.session, made.number);
        let srq = Arc::new(RemoteSrq::new(bell, ring, *attr));
        write(&self.srqs).insert(made.srq, srq);
        Ok(made.srq)
    }

    fn modify_srq(
        &self,
        srq: Srq,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), VerbsError> {
        let request = Request::ModifySrq { srq, max_wr, limit };
        self.gate.call::<()>(&request)?;
        if let Some(srq) = find(&self.srqs, &srq) {
            srq.note(max_wr);
        }
        Ok(())
    }

    fn query_srq(&self, srq: Srq) -> Option<(SrqAttr, u32)> {
        self.gate.call(&Request::QuerySrq { srq }).ok()
    }

    fn destroy_srq(&self, srq: Srq) -> Result<(), VerbsError> {
        self.end_of_life(&Request::DestroySrq { srq })?;
        write(&self.srqs).remove(&srq);
        Ok(())
    }

    fn post_srq_recv(&self, context: u32, srq: Srq, batch: &RecvRecords) -> Result<(), BadWr> {
        let gone = || WrError::Engine(ObjectError::NoSrq(srq).into());
        let found = find(&self.srqs, &srq).ok_or_else(gone);
        let found = self.check_postable().and(found);
        let queue = found.map_err(|error| bad_recv(batch, (0, error)))?;
        let posted = queue.post(receives(context, batch));
        posted.map_err(|bad| bad_recv(batch, bad))
    }

    fn create_qp(&self, init: &QpInit) -> Result<Qpn, VerbsError> {
        let request = Request::CreateQp { init: *init };
        let (made, fds): (QpMade, _) = self.gate.call_with(&request, &[])?;
        let (send, recv) = self.work_rings(fds, made.send, made.recv)?;
        let bell = Doorbell::new(&self.session, made.number);
        let rules = PostRules::new(init, self.fixed.path_mtu);
        let srq = init.srq.and_then(|srq| find(&self.srqs, &srq));
        let seat = QpSeat {
            qp: Arc::new(RemoteQp::new(made.qpn, bell, rules, send, recv, srq)),
            pd: init.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
        };
        write(&self.qps).insert(made.qpn, Arc::new(seat));
        Ok(made.qpn)
    }

    fn modify_qp(
        &self,
        qpn: Qpn,
        attr: &QpAttr,
        path: Option<&(AhAttr, Flow)>,
    ) -> Result<(), VerbsError> {
        let seat = self.seat(qpn)?;
        let path = path.map(|&(attr, flow)| Path { attr, flow });
        self.gate.call::<()>(&Request::ModifyQp {
            qpn,
            attr: Box::new(attr.clone()),
            path,
        })?;
        seat.qp.note(attr);
        Ok(())
    }

    fn query_qp(&self, qpn: Qpn) -> Result<QpInfo, VerbsError> {
        self.gate.call(&Request::QueryQp { qpn })
    }

    fn destroy_qp(&self, qpn: Qpn) -> Result<(), VerbsError> {
        self.end_of_life(&Request::DestroyQp { qpn })?;
        write(&self.qps).remove(&qpn);
        self.qps_gone.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn post_send(&self, context: u32, qpn: Qpn, batch: &SendRecords) -> Result<(), BadWr> {
        let wr_id = |index: usize| batch.records.get(index).map_or(0, |record| record.wr_id);
        let found = self.check_postable();
        let found = found.and_then(|()| self.seat(qpn).map_err(WrError::from));
        let seat = found.map_err(|error| BadWr::new(0, wr_id(0), error))?;
        let posted = seat.qp.post_send(batch.records.len(), |index, put| {
            let Some(record) = batch.records.get(index) else {
                return Ok(());
            };
            batch.check(record, context)?;
            let inline = [batch.inline_of(record)];
            let wr = SendWr {
                wr_id: record.wr_id,
                op: record.op,
                flags: record.flags,
                data: match record.data {
                    Part::Sges { .. } => Data::Sges(batch.sges_of(record)),
                    Part::Inline { .. } => Data::Inline(&inline),
                },
            };
            match &record.to {
                None => put(&wr, None),
                Some(to) => put(&wr, Some(&self.destination(&seat, to)?)),
            }
        });
        posted.map_err(|(index, error)| BadWr::new(index, wr_id(index), error))
    }

    fn post_recv(&self, context: u32, qpn: Qpn, batch: &RecvRecords) -> Result<(), BadWr> {
        let found = self.check_postable();
        let found = found.and_then(|()| self.seat(qpn).map_err(WrError::from));
        let seat = found.map_err(|error| bad_recv(batch, (0, error)))?;
        let posted = seat.qp.post_recv(receives(context, batch));
        posted.map_err(|bad| bad_recv(batch, bad))
    }

    fn sends_posted(&self, qpn: Qpn) -> u32 {
        self.seat(qpn).map_or(0, |seat| seat.qp.sends_posted())
    }

    fn counters(&self, qpn: Qpn) -> Result<Counters, VerbsError> {
        let counters = self.gate.call(&Request::Counters { qpn });
        counters.map_err(|error| match error {
            VerbsError::Daemon(refusal) if refusal.reason == Reason::NotFound => no_qp(qpn),
            other => other,
        })
    }

    fn failure(&self, qpn: Qpn) -> Option<Failure> {
        self.gate.call(&Request::Failure { qpn }).ok().flatten()
    }

    fn attach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), VerbsError> {
        self.gate.call(&Request::AttachMcast { qpn, group })
    }

    fn detach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), VerbsError> {
        self.gate.call(&Request::DetachMcast { qpn, group })
    }

    fn create_ah(&self, pd: Pd, attr: &AhAttr) -> Result<Ah, VerbsError> {
        let ah = self.gate.call(&Request::CreateAh { pd, attr: *attr })?;
        write(&self.ahs).insert(ah, pd);
        Ok(ah)
    }

    fn destroy_ah(&self, ah: Ah) -> Result<(), VerbsError> {
        self.end_of_life(&Request::DestroyAh { ah })?;
        write(&self.ahs).remove(&ah);
        Ok(())
    }
}
