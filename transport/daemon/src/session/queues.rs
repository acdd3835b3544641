//! Completion queues, shared receive queues, queue pairs and address handles of a process.

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use xroce_api::message::Path;
use xroce_api::message::{Capacity, CqMade, QpMade, Reason, Refusal, SrqMade};
use xroce_api::{Ah, EngineError, ObjectError};
use xroce_control::layout;
use xroce_net::datapath::Datapath;
use xroce_proto::memory::Pd;
use xroce_proto::qp::{QpAttr, QpInfo, QpInit, QpState};
use xroce_proto::srq::SrqAttr;
use xroce_proto::wc::{Cq, Srq};
use xroce_shm::{ARM_AT, ArmWord, Consumer, Producer, Region};
use xroce_wire::newtypes::Qpn;
use xroce_wire::path::{AddressVector, AhAttr, Flow};

use super::objects::{Completes, Queued};
use super::refuse::{by_address, by_end, by_engine, by_system};
use super::{Attached, Carried};
use crate::bell::Bell;
use crate::serve::Server;
use crate::serve::client::{Queue, Target};
use crate::serve::seats::Seat;

/// Bytes of a completion in the engine, about.
const COMPLETION: u64 = 40;
/// Bytes of a work request in the engine without SGEs and inline bytes, about.
const WQE: u64 = 96;
const SGE: u64 = 16;

fn too_deep(what: &str, given: u32, limit: u32) -> Refusal {
    let text = format!("{what} is {given}, the daemon sets a limit of {limit}");
    Refusal::new(Reason::Invalid, text)
}

/// Makes the memory of some rings.
fn memory(bytes: u64) -> Result<(Region, OwnedFd), Refusal> {
    let bytes = usize::try_from(bytes).map_err(by_system)?;
    Region::with_file(bytes).map_err(by_system)
}

/// What the depth of a queue costs in the engine.
fn work_bytes(depth: u32, sges: u8, inline: u32) -> u64 {
    let each = WQE + SGE * u64::from(sges) + u64::from(inline);
    u64::from(depth.next_power_of_two()) * each
}

impl<D: Datapath + Send + 'static> Attached<D> {
    pub(super) fn create_channel(&mut self, _: Vec<OwnedFd>) -> Result<Carried<u32>, Refusal> {
        self.objects.room_for_channel()?;
        let (bell, theirs) = Bell::new().map_err(by_system)?;
        let number = self.objects.next_channel;
        self.objects.next_channel = number.wrapping_add(1);
        self.objects.channels.insert(number, Arc::new(bell));
        Ok(Carried::with(number, vec![theirs]))
    }

    pub(super) fn destroy_channel(&mut self, channel: u32) -> Result<(), Refusal> {
        let users = self.objects.cqs.values().filter(|cq| cq.channel == channel);
        let users = users.count();
        if users != 0 {
            let text = format!("{users} completion queues notify channel {channel}");
            return Err(Refusal::new(Reason::Busy, text));
        }
        let gone = self.objects.channels.remove(&channel);
        gone.map(drop).ok_or_else(|| no_channel(channel))
    }

    fn check_cq_depth(&self, depth: u32) -> Result<(), Refusal> {
        let most = self.objects.limits.cq_depth;
        if depth > most {
            return Err(too_deep("the depth of the completion queue", depth, most));
        }
        Ok(())
    }

    pub(super) fn create_cq(
        &mut self,
        depth: u32,
        channel: u32,
        _: Vec<OwnedFd>,
    ) -> Result<Carried<CqMade>, Refusal> {
        self.check_cq_depth(depth)?;
        let bell = self.objects.channels.get(&channel).map(Arc::clone);
        let bell = bell.ok_or_else(|| no_channel(channel))?;
        let (ring, bytes) = cq_ring(depth)?;
        self.objects.room_for_cq(bytes)?;
        let (region, file) = memory(layout::cq(ring).map_err(by_system)?.bytes())?;
        let client = self.id;
        let made = self.device.mailbox.run(move |server| {
            let cq = server.engine.create_cq(depth).map_err(|e| by_engine(&e))?;
            let geometry = layout::cq(ring).map_err(by_system)?;
            let seat = Seat {
                client,
                cq,
                ring: Producer::new(&region, 0, geometry).map_err(by_system)?,
                arm: ArmWord::new(&region, ARM_AT).map_err(by_system)?,
                bell,
                stalled: false,
            };
            server.seat(seat);
            Ok::<Cq, Refusal>(cq)
        });
        let cq = made.map_err(by_end)??;
        self.objects.cqs.insert(cq, Completes { channel, bytes });
        self.objects.take_queue_bytes(bytes);
        Ok(Carried::with(CqMade { cq, ring }, vec![file]))
    }

    /// The engine goes on in a new ring; what is in the old one the process still takes.
    pub(super) fn resize_cq(
        &mut self,
        cq: Cq,
        depth: u32,
        _: Vec<OwnedFd>,
    ) -> Result<Carried<Capacity>, Refusal> {
        self.objects.check_cq(cq)?;
        self.check_cq_depth(depth)?;
        let (ring, bytes) = cq_ring(depth)?;
        self.objects.room_for_queue(bytes)?;
        let (region, file) = memory(layout::cq(ring).map_err(by_system)?.bytes())?;
        let done = self.device.mailbox.run(move |server| {
            let resized = server.engine.resize_cq(cq, depth);
            resized.map_err(|e| by_engine(&e))?;
            let geometry = layout::cq(ring).map_err(by_system)?;
            let producer = Producer::new(&region, 0, geometry).map_err(by_system)?;
            let arm = ArmWord::new(&region, ARM_AT).map_err(by_system)?;
            if let Some(seat) = server.unseat(cq) {
                server.seat(Seat {
                    ring: producer,
                    arm,
                    stalled: false,
                    ..seat
                });
            }
            Ok::<(), Refusal>(())
        });
        done.map_err(by_end)??;
        let old = self.objects.cqs.get_mut(&cq);
        let old = old.map_or(0, |cq| std::mem::replace(&mut cq.bytes, bytes));
        self.objects.give_queue_bytes(old);
        self.objects.take_queue_bytes(bytes);
        Ok(Carried::with(ring, vec![file]))
    }

    pub(super) fn destroy_cq(&mut self, cq: Cq) -> Result<(), Refusal> {
        self.objects.check_cq(cq)?;
        let done = self.device.mailbox.run(move |server| {
            let destroyed = server.engine.destroy_cq(cq);
            destroyed.map_err(|e| by_engine(&e))?;
            Ok::<_, Refusal>(server.unseat(cq))
        });
        // Its memory is unmapped here, not by the engine's thread.
        drop(done.map_err(by_end)??);
        if let Some(old) = self.objects.cqs.remove(&cq) {
            self.objects.give_queue_bytes(old.bytes);
        }
        Ok(())
    }

    pub(super) fn create_srq(
        &mut self,
        pd: Pd,
        attr: SrqAttr,
        _: Vec<OwnedFd>,
    ) -> Result<Carried<SrqMade>, Refusal> {
        self.objects.check_pd(pd)?;
        let most = self.objects.limits.queue_depth;
        if attr.max_wr > most {
            return Err(too_deep("max_wr", attr.max_wr, most));
        }
        let ring = layout::recv_capacity(attr.max_wr, attr.max_sge);
        let geometry = layout::work_ring(ring).map_err(by_system)?;
        let bytes = geometry.bytes() + work_bytes(attr.max_wr, attr.max_sge, 0);
        self.objects.room_for_srq(bytes)?;
        let (region, file) = memory(geometry.bytes())?;
        let consumer = Consumer::new(&region, 0, geometry).map_err(by_system)?;
        let id = self.id;
        let made = self.device.mailbox.run(move |server| {
            let made = server.engine.create_srq(pd, &attr);
            let srq = made.map_err(|e| by_engine(&e))?;
            let queue = Queue::new(Target::Srq(srq), Some(consumer), None);
            match server.add_queue(id, queue) {
                Ok(number) => Ok((srq, number)),
                Err(_) => {
                    let _ = server.engine.destroy_srq(srq);
                    Err(no_more_queues())
                }
            }
        });
        let (srq, number) = made.map_err(by_end)??;
        self.objects.srqs.insert(srq, Queued { number, bytes });
        self.objects.take_queue_bytes(bytes);
        Ok(Carried::with(SrqMade { srq, number, ring }, vec![file]))
    }

    pub(super) fn modify_srq(
        &mut self,
        srq: Srq,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), Refusal> {
        self.objects.check_srq(srq)?;
        let most = self.objects.limits.queue_depth;
        if let Some(given) = max_wr.filter(|&given| given > most) {
            return Err(too_deep("max_wr", given, most));
        }
        let queue = self.objects.srqs.get(&srq);
        self.after_posts(queue, move |server| {
            server.engine.modify_srq(srq, max_wr, limit)
        })
    }

    /// Runs something on the engine's thread when what was posted to a queue before is posted.
    fn after_posts<R: Send + 'static>(
        &self,
        queue: Option<&Queued>,
        run: impl FnOnce(&mut Server<D>) -> Result<R, EngineError> + Send + 'static,
    ) -> Result<R, Refusal> {
        let id = self.id;
        let number = queue.map(|queue| queue.number);
        let done = self.device.mailbox.run(move |server| {
            if let Some(number) = number {
                server.take_all_of(id, number);
            }
            run(server)
        });
        done.map_err(by_end)?.map_err(|e| by_engine(&e))
    }

    pub(super) fn query_srq(&mut self, srq: Srq) -> Result<(SrqAttr, u32), Refusal> {
        self.objects.check_srq(srq)?;
        self.after_posts(self.objects.srqs.get(&srq), move |server| {
            let engine = &server.engine;
            let attr = engine.query_srq(srq).zip(engine.srq_len(srq));
            attr.ok_or_else(|| ObjectError::NoSrq(srq).into())
        })
    }

    pub(super) fn destroy_srq(&mut self, srq: Srq) -> Result<(), Refusal> {
        self.objects.check_srq(srq)?;
        let number = self.objects.srqs.get(&srq).map_or(u32::MAX, |q| q.number);
        let id = self.id;
        let done = self.device.mailbox.run(move |server| {
            let destroyed = server.engine.destroy_srq(srq);
            destroyed.map_err(|e| by_engine(&e))?;
            server.remove_queue(id, Target::Srq(srq), number);
            Ok::<(), Refusal>(())
        });
        done.map_err(by_end)??;
        if let Some(old) = self.objects.srqs.remove(&srq) {
            self.objects.give_queue_bytes(old.bytes);
        }
        Ok(())
    }

    /// What a queue pair would be made of is this process's, and not too much.
    fn check_init(&self, init: &QpInit) -> Result<(), Refusal> {
        self.objects.check_pd(init.pd)?;
        self.objects.check_cq(init.send_cq)?;
        self.objects.check_cq(init.recv_cq)?;
        if let Some(srq) = init.srq {
            self.objects.check_srq(srq)?;
        }
        let most = self.objects.limits.queue_depth;
        for (what, given) in [
            ("max_send_wr", init.max_send_wr),
            ("max_recv_wr", init.max_recv_wr),
        ] {
            if given > most {
                return Err(too_deep(what, given, most));
            }
        }
        // Before sizes are made of it.
        init.validate().map_err(|e| by_engine(&e.into()))
    }

    pub(super) fn create_qp(
        &mut self,
        init: QpInit,
        _: Vec<OwnedFd>,
    ) -> Result<Carried<QpMade>, Refusal> {
        self.check_init(&init)?;
        let send = layout::send_capacity(init.max_send_wr, init.max_send_sge, init.max_inline);
        let sends = layout::work_ring(send).map_err(by_system)?;
        let recv = match init.srq {
            Some(_) => None,
            None => Some(layout::recv_capacity(init.max_recv_wr, init.max_recv_sge)),
        };
        let recvs = recv.map(layout::work_ring).transpose().map_err(by_system)?;
        let rings = sends.bytes() + recvs.map_or(0, |g| g.bytes());
        let bytes = rings
            + work_bytes(init.max_send_wr, init.max_send_sge, init.max_inline)
            + recvs.map_or(0, |_| work_bytes(init.max_recv_wr, init.max_recv_sge, 0));
        self.objects.room_for_qp(bytes)?;
        let (region, file) = memory(rings)?;
        let send_ring = Consumer::new(&region, 0, sends).map_err(by_system)?;
        let recv_ring = recvs.map(|g| Consumer::new(&region, sends.bytes(), g));
        let recv_ring = recv_ring.transpose().map_err(by_system)?;
        let id = self.id;
        let made = self.device.mailbox.run(move |server| {
            let made = server.engine.create_qp(&init);
            let qpn = made.map_err(|e| by_engine(&e))?;
            let queue = Queue::new(Target::Qp(qpn), recv_ring, Some(send_ring));
            match server.add_queue(id, queue) {
                Ok(number) => Ok((qpn, number)),
                Err(_) => {
                    let _ = server.engine.destroy_qp(qpn);
                    Err(no_more_queues())
                }
            }
        });
        let (qpn, number) = made.map_err(by_end)??;
        self.objects.qps.insert(qpn, Queued { number, bytes });
        self.objects.take_queue_bytes(bytes);
        let made = QpMade {
            qpn,
            number,
            send,
            recv,
        };
        Ok(Carried::with(made, vec![file]))
    }

    pub(super) fn modify_qp(
        &mut self,
        qpn: Qpn,
        mut attr: Box<QpAttr>,
        path: Option<Path>,
    ) -> Result<(), Refusal> {
        self.objects.check_qp(qpn)?;
        if attr.av.is_some() {
            let text = "an address vector is not taken from a process: give the path";
            return Err(Refusal::new(Reason::Invalid, text));
        }
        if let Some(path) = path {
            attr.av = Some(self.resolve(&path.attr, path.flow)?);
        }
        self.after_posts(self.objects.qps.get(&qpn), move |server| {
            let modified = server.engine.modify_qp(qpn, &attr);
            server.reconnected(qpn, attr.state);
            modified
        })
    }

    /// As it is when what was posted before is posted: who asks knows that it is.
    pub(super) fn query_qp(&mut self, qpn: Qpn) -> Result<QpInfo, Refusal> {
        self.objects.check_qp(qpn)?;
        self.after_posts(self.objects.qps.get(&qpn), move |server| {
            let info = server.engine.query_qp(qpn);
            info.ok_or(EngineError::NoQp(qpn))
        })
    }

    /// With the addressing of the device, which may wait for a neighbour.
    fn resolve(&self, attr: &AhAttr, flow: Flow) -> Result<AddressVector, Refusal> {
        let addressing = self.device.addressing.read();
        let addressing = addressing.unwrap_or_else(PoisonError::into_inner);
        addressing.resolve(attr, flow).map_err(|e| by_address(&e))
    }

    pub(super) fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), Refusal> {
        self.objects.check_qp(qpn)?;
        let number = self.objects.qps.get(&qpn).map_or(u32::MAX, |q| q.number);
        let id = self.id;
        let done = self.device.mailbox.run(move |server| {
            server.retire_qp(id, qpn);
            let destroyed = server.engine.destroy_qp(qpn);
            destroyed.map_err(|e| by_engine(&e))?;
            server.remove_queue(id, Target::Qp(qpn), number);
            server.reconnected(qpn, Some(QpState::Reset));
            Ok::<(), Refusal>(())
        });
        done.map_err(by_end)??;
        if let Some(old) = self.objects.qps.remove(&qpn) {
            self.objects.give_queue_bytes(old.bytes);
        }
        Ok(())
    }

    pub(super) fn create_ah(
        &mut self,
        pd: Pd,
        attr: AhAttr,
        _: Vec<OwnedFd>,
    ) -> Result<Carried<Ah>, Refusal> {
        self.objects.check_pd(pd)?;
        self.objects.room_for_ah()?;
        let av = self.resolve(&attr, Flow::Datagrams)?;
        let ah = self.engine(move |engine| engine.create_ah(pd, &av))?;
        self.objects.ahs.insert(ah);
        Ok(ah.into())
    }

    pub(super) fn destroy_ah(&mut self, ah: Ah) -> Result<(), Refusal> {
        self.objects.check_ah(ah)?;
        self.engine(move |engine| engine.destroy_ah(ah))?;
        self.objects.ahs.remove(&ah);
        Ok(())
    }
}

fn no_channel(channel: u32) -> Refusal {
    let text = format!("this process has no completion channel {channel}");
    Refusal::new(Reason::NotFound, text)
}

fn no_more_queues() -> Refusal {
    let most = layout::QUEUES_MAX;
    let text = format!("this process has {most} queues, the limit");
    Refusal::new(Reason::Limit, text)
}

/// The ring of a completion queue, and the bytes that both take.
fn cq_ring(depth: u32) -> Result<(Capacity, u64), Refusal> {
    let ring = layout::cq_capacity(depth);
    let bytes = layout::cq(ring).map_err(by_system)?.bytes();
    let engine = u64::from(depth.clamp(1, 1 << 22).next_power_of_two()) * COMPLETION;
    Ok((ring, bytes + engine))
}
