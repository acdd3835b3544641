//! What a device does, by the daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use xroce_abi::send::Destination;
use xroce_api::Request;
use xroce_api::message::{Across, PieceOf};
#[allow(clippy::wildcard_imports, reason = "what the table of verbs names")]
use xroce_api::types::*;
use xroce_api::{AsyncEvent, EngineError, Notify, ObjectError, Work};
use xroce_control::layout;
use xroce_proto::qp::rules::PostRules;
use xroce_proto::time::Instant;
use xroce_proto::wc::Completion;
use xroce_proto::wr::{Data, PostError, RecvWr, SendWr};
use xroce_shm::{ARM_AT, AdoptError, Adopted, ArmWord, Consumer, Producer, Region};
use xroce_wire::newtypes::Va;

use super::cq::{RemoteChannel, RemoteCq, Ring};
use super::queue::{RemoteQp, RemoteSrq};
use super::session::Doorbell;
use super::{QpSeat, Remote, end_of, find, map, odd, write};
use crate::backend::{Backend, Fixed, Motion};
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
    match range.region.share(range.offset, range.len) {
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

/// The verbs for which memory or descriptors travel, or something is remembered here.
impl Remote {
    pub(in crate::backend) fn reg_mr(
        &self,
        pd: Pd,
        range: &Range<'_>,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        let (shared, memory) = share(range)?;
        let request = Request::RegMr { pd, access, memory };
        let (mr, _) = self.gate.call_with(&request, &fds_of(shared.as_ref()))?;
        Ok(mr)
    }

    pub(in crate::backend) fn rereg_mr(
        &self,
        lkey: LKey,
        change: &Rereg<'_>,
    ) -> Result<Mr, VerbsError> {
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

    pub(in crate::backend) fn create_channel(&self) -> Result<Channel, VerbsError> {
        let (number, fds) = self.gate.call_with(&Request::CreateChannel, &[])?;
        let came = <[OwnedFd; 1]>::try_from(fds);
        let [pipe] = came.map_err(|fds| odd(&self.gate, fds.len()))?;
        let channel = RemoteChannel::new(number, pipe, Arc::clone(&self.gate));
        Ok(Channel::Remote(Arc::new(channel)))
    }

    pub(in crate::backend) fn create_cq(
        &self,
        depth: u32,
        channel: &Channel,
    ) -> Result<Cq, VerbsError> {
        let channel = channel.remote()?;
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

    pub(in crate::backend) fn resize_cq(&self, cq: Cq, depth: u32) -> Result<(), VerbsError> {
        let request = Request::ResizeCq { cq, depth };
        let (capacity, fds): (Capacity, _) = self.gate.call_with(&request, &[])?;
        let ring = self.cq_ring(fds, capacity)?;
        if let Some((queue, _)) = find(&self.cqs, &cq) {
            queue.resize(ring);
        }
        Ok(())
    }

    pub(in crate::backend) fn create_srq(&self, pd: Pd, attr: &SrqAttr) -> Result<Srq, VerbsError> {
        let request = Request::CreateSrq { pd, attr: *attr };
        let (made, fds): (SrqMade, _) = self.gate.call_with(&request, &[])?;
        let (ring, _) = self.work_rings(fds, made.ring, None)?;
        let bell = Doorbell::new(&self.session, made.number);
        let srq = Arc::new(RemoteSrq::new(bell, ring, *attr));
        write(&self.srqs).insert(made.srq, srq);
        Ok(made.srq)
    }

    pub(in crate::backend) fn create_qp(&self, init: &QpInit) -> Result<Qpn, VerbsError> {
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

    pub(in crate::backend) fn create_ah(&self, pd: Pd, attr: &AhAttr) -> Result<Ah, VerbsError> {
        let ah = self.gate.call(&Request::CreateAh { pd, attr: *attr })?;
        write(&self.ahs).insert(ah, pd);
        Ok(ah)
    }

    /// Asks, and follows what the request has changed.
    pub(in crate::backend) fn ask<R: DeserializeOwned>(
        &self,
        request: &Request,
    ) -> Result<R, VerbsError> {
        let answer = self.gate.call(request)?;
        self.follow(request);
        Ok(answer)
    }

    /// The same for the end of an object: that it went with the daemon is no error.
    pub(in crate::backend) fn ask_end(&self, request: &Request) -> Result<(), VerbsError> {
        self.gate.end_of_life(request)?;
        self.follow(request);
        Ok(())
    }

    /// What is remembered here follows what a request has changed.
    fn follow(&self, request: &Request) {
        match request {
            Request::ModifySrq { srq, max_wr, .. } => {
                if let Some(srq) = find(&self.srqs, srq) {
                    srq.note(*max_wr);
                }
            }
            Request::ModifyQp { qpn, attr, .. } => {
                if let Some(seat) = find(&self.qps, qpn) {
                    seat.qp.note(attr);
                }
            }
            Request::DestroyCq { cq } => {
                if let Some((_, channel)) = write(&self.cqs).remove(cq) {
                    channel.remove(*cq);
                }
            }
            Request::DestroySrq { srq } => drop(write(&self.srqs).remove(srq)),
            Request::DestroyQp { qpn } => {
                write(&self.qps).remove(qpn);
                self.qps_gone.fetch_add(1, Ordering::Release);
            }
            Request::DestroyAh { ah } => drop(write(&self.ahs).remove(ah)),
            _ => {}
        }
    }
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

    fn wait_channel(&self, on: &Channel, timeout: Duration) -> Result<Option<Cq>, VerbsError> {
        let channel = on.remote()?;
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

    fn poll_cq(&self, cq: Cq, out: &mut [Completion]) -> Result<usize, VerbsError> {
        self.take_completions(cq, out)
    }

    fn arm_cq(&self, cq: Cq, notify: Notify) -> Result<bool, VerbsError> {
        let (queue, _) = find(&self.cqs, &cq).ok_or(EngineError::NoCq(cq))?;
        let waiting = queue.arm(notify).map_err(|e| odd(&self.gate, e))?;
        // Who polls hears of the end.
        Ok(waiting || self.gate.is_broken())
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

    fn post_srq_recv(&self, context: u32, srq: Srq, batch: &RecvRecords) -> Result<(), BadWr> {
        let gone = || WrError::Engine(ObjectError::NoSrq(srq).into());
        let found = find(&self.srqs, &srq).ok_or_else(gone);
        let found = self.check_postable().and(found);
        let queue = found.map_err(|error| bad_recv(batch, (0, error)))?;
        let posted = queue.post(receives(context, batch));
        posted.map_err(|bad| bad_recv(batch, bad))
    }

    fn sends_posted(&self, qpn: Qpn) -> u32 {
        self.seat(qpn).map_or(0, |seat| seat.qp.sends_posted())
    }
}
