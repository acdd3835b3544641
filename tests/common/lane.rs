//! Random work in one direction of a QP pair, checked against a model of both memories.
//!
//! What a message carries and where it goes is known when it is posted: sources are constant
//! bytes, or what an earlier request of the same QP is known to produce; targets are disjoint,
//! or written in the order of the requests. So every completion can be checked at once, and the
//! whole memory of both hosts at the end, canaries between the targets included.

use std::collections::VecDeque;

use xroce_api::{EngineError, Mr, MwType};
use xroce_net::sim::Rng;
use xroce_proto::memory::{Access, Bind};
use xroce_proto::wc::{Completion, WcFlags, WcOpcode, WcStatus};
use xroce_proto::wr::{Data, Placement, PostError, RecvWr, SendFlags, SendOp, SendWr};
use xroce_wire::newtypes::{LKey, Qpn, RKey, Va};

use super::World;
use super::model::{Area, Model, Piece, pieces, sges, split};
use super::script::{Fate, Fault, Kind, Limits, Op, SCRIBBLE, script};

/// Constant bytes of a host that messages are made of and READs read.
pub const POOL: u64 = 96 << 10;

/// Bytes of each of the three areas of a lane.
const AREA: u64 = 160 << 10;

/// Marks the `wr_id` of a receive.
const RECEIVE: u64 = 1 << 63;

/// What is known about a request in flight.
struct Posted {
    index: usize,
    kind: Kind,
    data: Vec<u8>,
    /// Where `data` must be once the request is complete, and on which host.
    lands: Option<(usize, Vec<Piece>)>,
    /// Ranges of the target and landing areas to be given back.
    target: Option<u64>,
    landing: Option<u64>,
}

struct Inbox {
    start: u64,
    pieces: Vec<Piece>,
}

/// One direction of a QP pair.
pub struct Lane {
    id: u64,
    pub from: usize,
    /// Requester, responder.
    pub qpns: [Qpn; 2],
    pub fate: Fate,
    limits: Limits,
    rng: Rng,
    script: Vec<Op>,
    /// Requests that take a receive, in order.
    takers: Vec<usize>,
    pools: [(u64, Mr); 2],
    targets: Area,
    /// Offset of the word that atomics work on, in the targets.
    word: u64,
    /// Regions of the responder to be taken back by a SEND, in order, and those that were.
    lent: VecDeque<Mr>,
    spent: Vec<LKey>,
    /// The same of the requester, taken back by LOCAL_INV.
    own: VecDeque<(usize, Mr)>,
    inbox: Area,
    landing: Area,
    posted: usize,
    in_flight: VecDeque<Posted>,
    /// Posted requests that must still say that they are done.
    signals: VecDeque<usize>,
    messages: VecDeque<(usize, Vec<u8>)>,
    inboxes: VecDeque<Inbox>,
    recvs_posted: usize,
    recvs_done: usize,
    recv_failed: bool,
    /// First request that completed in error, and the next one that must.
    failed: Option<(usize, usize)>,
    post_after: u64,
    recv_after: u64,
}

/// What all lanes between two hosts share.
pub fn pools(world: &mut World) -> [(u64, Mr); 2] {
    [0, 1].map(|i| world.hosts[i].carve(POOL, Access::REMOTE_READ))
}

impl Lane {
    pub fn new(
        world: &mut World,
        pools: [(u64, Mr); 2],
        from: usize,
        qpns: [Qpn; 2],
        limits: Limits,
        fate: Fate,
        rng: &mut Rng,
    ) -> Self {
        let mut rng = rng.fork();
        let script = script(&limits, fate, &mut rng);
        let taking = |(i, op): (usize, &Op)| op.kind.takes_receive().then_some(i);
        let takers = script.iter().enumerate().filter_map(taking).collect();
        let remote = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let all = remote | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL;
        let to = 1 - from;
        let targets = Area::new(world, to, AREA, SCRIBBLE + 16, all);
        Self {
            id: u64::from(qpns[0].value()) << 32 | (from as u64) << 62,
            from,
            qpns,
            fate,
            limits,
            rng,
            script,
            takers,
            pools,
            word: (targets.at + SCRIBBLE).next_multiple_of(8),
            targets,
            lent: VecDeque::new(),
            spent: Vec::new(),
            own: VecDeque::new(),
            inbox: Area::new(world, to, AREA, 0, remote),
            landing: Area::new(world, from, AREA, 0, Access::LOCAL_WRITE),
            posted: 0,
            in_flight: VecDeque::new(),
            signals: VecDeque::new(),
            messages: VecDeque::new(),
            inboxes: VecDeque::new(),
            recvs_posted: 0,
            recvs_done: 0,
            recv_failed: false,
            failed: None,
            post_after: 0,
            recv_after: 0,
        }
    }

    /// Whether the work is done, receives included.
    pub fn is_done(&self) -> bool {
        self.posted == self.script.len()
            && self.in_flight.is_empty()
            && self.recvs_done == self.takers.len()
    }

    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Requests and receives that succeeded, if none failed.
    pub fn totals(&self) -> (u64, u64) {
        (self.script.len() as u64, self.takers.len() as u64)
    }

    /// Length of the request that fails.
    pub fn fault_len(&self) -> u32 {
        match self.fate {
            Fate::Faulty(at, _) => self.script[at].len,
            _ => 0,
        }
    }

    pub fn progress(&self) -> String {
        format!(
            "QP {:x} of host {}: {} of {} posted, {} in flight, receives {} posted {} done of {}",
            self.qpns[0].value(),
            self.from,
            self.posted,
            self.script.len(),
            self.in_flight.len(),
            self.recvs_posted,
            self.recvs_done,
            self.takers.len()
        )
    }

    /// Lets the lane have its work anew, for ever (a test that has enough stops asking).
    pub fn again(&mut self) {
        assert!(self.is_done() && self.fate == Fate::Sound);
        self.script = script(&self.limits, self.fate, &mut self.rng);
        let taking = |(i, op): (usize, &Op)| op.kind.takes_receive().then_some(i);
        self.takers = self.script.iter().enumerate().filter_map(taking).collect();
        (self.posted, self.recvs_posted, self.recvs_done) = (0, 0, 0);
    }

    /// Posts what can be posted now; `hurry` leaves out all waiting. When it waits, until when.
    pub fn pump(&mut self, world: &mut World, model: &mut Model, hurry: bool) -> Option<u64> {
        let now = world.net.now();
        for lkey in self.spent.drain(..) {
            world.hosts[1 - self.from].engine.dereg_mr(lkey).unwrap();
        }
        if hurry {
            (self.post_after, self.recv_after) = (0, 0);
        }
        while self.recv_after <= now && self.recvs_posted < self.takers.len() {
            if !self.post_receive(world) {
                break;
            }
            if !hurry && self.rng.chance_ppm(self.limits.late_ppm) {
                self.recv_after = now + self.rng.below(self.limits.late_ns);
            }
        }
        while self.post_after <= now && self.posted < self.script.len() {
            if !self.post_request(world, model) {
                break;
            }
            if !hurry && self.rng.chance_ppm(self.limits.pause_ppm) {
                self.post_after = now + self.rng.below(self.limits.pause_ns);
            }
        }
        let waits = [self.post_after, self.recv_after];
        waits.into_iter().filter(|&at| at > now).min()
    }

    fn post_receive(&mut self, world: &mut World) -> bool {
        let index = self.takers[self.recvs_posted];
        let op = self.script[index];
        if self.inboxes.len() >= self.limits.recv_wr as usize {
            return false;
        }
        let fault = match self.fate {
            Fate::Faulty(at, fault) if at == index => Some(fault),
            _ => None,
        };
        let capacity = match (fault, op.kind, self.rng.below(4)) {
            (Some(Fault::SendLong), ..) => u32::try_from(self.rng.below(op.len.into())).unwrap(),
            (_, Kind::WriteImm, _) => 0,
            (_, _, 0) => op.len + u32::try_from(self.rng.below(3000)).unwrap(),
            (_, _, 1) => op.len + 1,
            _ => op.len,
        };
        let Some(start) = self.inbox.take(&mut self.rng, capacity) else {
            return false;
        };
        let pieces = pieces(&mut self.rng, start, capacity, self.limits.recv_sge);
        let lkey = match fault {
            Some(Fault::ReceiveKey) => LKey::new(self.inbox.mr.lkey.value() ^ 0xff),
            _ => self.inbox.mr.lkey,
        };
        let host = &mut world.hosts[self.inbox.host];
        let sges = sges(host, lkey, &pieces);
        let wr = RecvWr {
            wr_id: self.id | RECEIVE | self.recvs_posted as u64,
            sges: &sges,
        };
        host.engine.post_recv(self.qpns[1], &wr).unwrap();
        self.inboxes.push_back(Inbox { start, pieces });
        self.recvs_posted += 1;
        true
    }

    fn post_request(&mut self, world: &mut World, model: &mut Model) -> bool {
        let index = self.posted;
        let op = self.script[index];
        let engine = &world.hosts[self.from].engine;
        let full = engine.sends_posted(self.qpns[0]).unwrap() >= self.limits.send_wr;
        // Now and then it is tried all the same: refused, and no harm done (case 80).
        if full && !self.rng.chance_ppm(50_000) {
            return false;
        }
        let Some(mut posted) = self.prepare(&op) else {
            return false;
        };
        if full {
            let wr = SendWr {
                wr_id: u64::MAX,
                op: SendOp::Send,
                flags: SendFlags::SIGNALED,
                data: Data::Sges(&[]),
            };
            let depth = self.limits.send_wr;
            let refused = world.hosts[self.from].engine.post_send(self.qpns[0], &wr);
            assert_eq!(
                refused,
                Err(EngineError::Post(PostError::QueueFull { depth }))
            );
            self.give_back(&posted);
            return false;
        }
        self.post(world, model, &op, &mut posted);
        if op.flags.contains(SendFlags::SIGNALED) {
            self.signals.push_back(index);
        }
        if op.kind.takes_receive() {
            let is_write = op.kind == Kind::WriteImm;
            let data = if is_write {
                Vec::new()
            } else {
                posted.data.clone()
            };
            self.messages.push_back((index, data));
        }
        self.in_flight.push_back(posted);
        self.posted += 1;
        true
    }

    /// Takes the ranges a request needs.
    fn prepare(&mut self, op: &Op) -> Option<Posted> {
        let to = 1 - self.from;
        let mut posted = Posted {
            index: self.posted,
            kind: op.kind,
            data: Vec::new(),
            lands: None,
            target: None,
            landing: None,
        };
        match op.kind {
            Kind::Write | Kind::WriteImm => {
                let start = self.targets.take(&mut self.rng, op.len)?;
                posted.target = Some(start);
                posted.lands = Some((to, vec![(start, op.len)]));
            }
            Kind::Read | Kind::ReadBack => {
                let start = self.landing.take(&mut self.rng, op.len)?;
                posted.landing = Some(start);
                let pieces = pieces(&mut self.rng, start, op.len, self.limits.send_sge);
                posted.lands = Some((self.from, pieces));
            }
            Kind::Scribble => {
                let at = self.rng.below(SCRIBBLE - u64::from(op.len) + 1);
                posted.target = Some(self.targets.at + at);
            }
            Kind::FetchAdd | Kind::CompareSwap => {
                let start = self.landing.take(&mut self.rng, op.len)?;
                posted.landing = Some(start);
                let pieces = pieces(&mut self.rng, start, op.len, self.limits.send_sge);
                posted.lands = Some((self.from, pieces));
                posted.target = Some(self.word);
            }
            Kind::AtomicWrite => posted.target = Some(self.word),
            Kind::Send
            | Kind::SendImm
            | Kind::SendInv
            | Kind::Relay
            | Kind::Flush
            | Kind::LocalInv => {}
        }
        Some(posted)
    }

    fn give_back(&mut self, posted: &Posted) {
        let shared = posted.kind == Kind::Scribble || posted.kind.is_of_word();
        if let (Some(start), false) = (posted.target, shared) {
            self.targets.give(start);
        }
        if let Some(start) = posted.landing {
            self.landing.give(start);
        }
    }

    fn post(&mut self, world: &mut World, model: &mut Model, op: &Op, posted: &mut Posted) {
        let to = 1 - self.from;
        let fault = match self.fate {
            Fate::Faulty(at, fault) if at == posted.index => Some(fault),
            _ => None,
        };
        let executed = self.executes(posted.index);
        let (wire_op, sges) = if op.kind.is_bare() {
            (self.bare(world, op, fault, posted.index), Vec::new())
        } else if op.kind.is_atomic() {
            let wire_op = self.atomic(world, model, op, posted, fault);
            let pieces = &posted.lands.as_ref().unwrap().1;
            let lkey = self.landing.mr.lkey;
            (wire_op, sges(&world.hosts[self.from], lkey, pieces))
        } else if op.kind.is_read() {
            let (at, rkey) = self.read_source(op, posted);
            posted.data = model.slice(to, at, op.len).to_vec();
            let (va, rkey) = self.remote(world, fault, op.len, at, rkey);
            let lkey = self.landing.mr.lkey;
            let pieces = &posted.lands.as_ref().unwrap().1;
            (
                SendOp::Read { va, rkey },
                sges(&world.hosts[self.from], lkey, pieces),
            )
        } else {
            let (lkey, pieces) = self.source(op, posted, model);
            let at = posted.target.unwrap_or(0);
            let (va, rkey) = self.remote(world, fault, op.len, at, self.targets.mr.rkey);
            let imm = op.imm;
            let wire_op = match op.kind {
                Kind::Send | Kind::Relay => SendOp::Send,
                Kind::SendInv => {
                    let rkey = self.lend(world);
                    let wrong = u32::from(fault == Some(Fault::InvalidateKey)) * 0x5a;
                    SendOp::SendInv {
                        rkey: RKey::new(rkey.value() ^ wrong),
                    }
                }
                Kind::AtomicWrite => SendOp::AtomicWrite { va, rkey },
                Kind::SendImm => SendOp::SendImm(imm),
                Kind::WriteImm => SendOp::WriteImm { va, rkey, imm },
                _ => SendOp::Write { va, rkey },
            };
            let lkey = match fault {
                Some(Fault::LocalKey) => LKey::new(lkey.value() ^ 0xff),
                _ => lkey,
            };
            (wire_op, sges(&world.hosts[self.from], lkey, &pieces))
        };
        let parts = inline_parts(&mut self.rng, &posted.data);
        let wr = SendWr {
            wr_id: self.id | posted.index as u64,
            op: wire_op,
            flags: op.flags,
            data: if op.inline {
                Data::Inline(&parts)
            } else {
                Data::Sges(&sges)
            },
        };
        let engine = &mut world.hosts[self.from].engine;
        engine.post_send(self.qpns[0], &wr).unwrap();
        let answered = op.kind.is_read() || op.kind.is_atomic();
        if let (true, false, Some(start)) = (executed, answered, posted.target) {
            model.put(to, &[(start, op.len)], &posted.data);
        }
    }

    /// An atomic on the word of the lane. Requests are executed in order and once, so what it will
    /// find there is known now.
    fn atomic(
        &mut self,
        world: &World,
        model: &mut Model,
        op: &Op,
        posted: &mut Posted,
        fault: Option<Fault>,
    ) -> SendOp {
        let to = 1 - self.from;
        posted.data = model.slice(to, self.word, 8).to_vec();
        let old = u64::from_ne_bytes(posted.data[..].try_into().unwrap());
        let (va, rkey) = self.remote(world, fault, 8, self.word, self.targets.mr.rkey);
        let operand = self.rng.below(u64::MAX);
        let (wire_op, new) = if op.kind == Kind::FetchAdd {
            let add = operand;
            let new = old.wrapping_add(add);
            (SendOp::FetchAdd { va, rkey, add }, new)
        } else {
            let hit = self.rng.below(2) == 0;
            let (compare, swap) = (if hit { old } else { !old }, operand);
            let wire_op = SendOp::CompareSwap {
                va,
                rkey,
                compare,
                swap,
            };
            (wire_op, if hit { swap } else { old })
        };
        if self.executes(posted.index) {
            model.put(to, &[(self.word, 8)], &new.to_ne_bytes());
        }
        wire_op
    }

    /// Whether a request comes before the one that fails.
    fn executes(&self, index: usize) -> bool {
        !matches!(self.fate, Fate::Faulty(at, _) if index >= at)
    }

    /// A request without data.
    fn bare(&mut self, world: &mut World, op: &Op, fault: Option<Fault>, index: usize) -> SendOp {
        if op.kind == Kind::LocalInv {
            let host = &mut world.hosts[self.from];
            let access = Access::REMOTE_READ | Access::INVALIDATE | Access::MW_BIND;
            let mr = host
                .engine
                .reg_mr_range(host.pd, &host.region, self.landing.at, 64, access)
                .unwrap();
            self.own.push_back((index, mr));
            let wrong = u32::from(fault == Some(Fault::LocalInvKey)) * 0x5a;
            return SendOp::LocalInv {
                rkey: RKey::new(mr.rkey.value() ^ wrong),
            };
        }
        let len = 1 + self.rng.below(self.targets.len) as u32;
        let (va, rkey) = self.remote(world, fault, len, self.targets.at, self.targets.mr.rkey);
        SendOp::Flush {
            va,
            rkey,
            len,
            placement: Placement::GLOBAL,
            whole_region: self.rng.below(4) == 0,
        }
    }

    /// A region of the responder that only exists to be taken back.
    fn lend(&mut self, world: &mut World) -> RKey {
        let host = &mut world.hosts[1 - self.from];
        let access = Access::REMOTE_READ | Access::INVALIDATE;
        let (at, len) = (self.targets.at, self.targets.len);
        let mr = host
            .engine
            .reg_mr_range(host.pd, &host.region, at, len, access)
            .unwrap();
        self.lent.push_back(mr);
        mr.rkey
    }

    /// What a READ reads: constant bytes, or what the WRITE just posted writes, whose range is
    /// then held until the READ is done.
    fn read_source(&mut self, op: &Op, posted: &mut Posted) -> (u64, RKey) {
        if op.kind == Kind::ReadBack
            && let Some(last) = self.in_flight.back_mut()
            && last.kind == Kind::Write
            && last.index + 1 == posted.index
            && last.data.len() == op.len as usize
            && let Some(start) = last.target.take()
        {
            posted.target = Some(start);
            return (start, self.targets.mr.rkey);
        }
        let (at, mr) = self.pools[1 - self.from];
        let offset = self.rng.below(POOL - u64::from(op.len) + 1);
        (at + offset, mr.rkey)
    }

    /// What a SEND or WRITE carries: pieces of the constant bytes, or what the READ just posted
    /// will have read.
    fn source(&mut self, op: &Op, posted: &mut Posted, model: &Model) -> (LKey, Vec<Piece>) {
        if op.kind == Kind::Relay
            && let Some(last) = self.in_flight.back_mut()
            && last.kind.is_read()
            && last.index + 1 == posted.index
            && last.data.len() == op.len as usize
            && let Some(start) = last.landing.take()
        {
            posted.landing = Some(start);
            posted.data = last.data.clone();
            let pieces = last.lands.as_ref().unwrap().1.clone();
            return (self.landing.mr.lkey, pieces);
        }
        let (at, mr) = self.pools[self.from];
        let mut pieces = Vec::new();
        for len in split(&mut self.rng, op.len, self.limits.send_sge) {
            let piece = (at + self.rng.below(POOL - u64::from(len) + 1), len);
            posted
                .data
                .extend_from_slice(model.slice(self.from, piece.0, len));
            pieces.push(piece);
        }
        (mr.lkey, pieces)
    }

    /// Remote address and key of a request, right or wrong.
    fn remote(
        &mut self,
        world: &World,
        fault: Option<Fault>,
        len: u32,
        at: u64,
        rkey: RKey,
    ) -> (Va, RKey) {
        let peer = &world.hosts[1 - self.from];
        if len == 0 && self.rng.below(2) == 0 {
            // Nobody looks at the key of nothing (K3, case 35).
            return (Va::new(0), RKey::new(0xdead));
        }
        let outside = self.targets.at + self.targets.len + 1 - u64::from(len);
        match fault {
            Some(
                Fault::WriteKey
                | Fault::WriteImmKey
                | Fault::ReadKey
                | Fault::AtomicKey
                | Fault::AtomicWriteKey
                | Fault::FlushKey,
            ) => (peer.va(at), RKey::new(rkey.value() ^ 0x5a)),
            Some(Fault::WriteRange | Fault::ReadRange) => (peer.va(outside), self.targets.mr.rkey),
            Some(
                Fault::WriteRight
                | Fault::AtomicRight
                | Fault::AtomicWriteRight
                | Fault::FlushRight,
            ) => {
                let (at, mr) = self.pools[1 - self.from];
                (peer.va(at.next_multiple_of(8)), mr.rkey)
            }
            Some(Fault::ReadRight) => (peer.va(self.inbox.at), self.inbox.mr.rkey),
            _ => (peer.va(at), rkey),
        }
    }

    /// Takes a completion if it is one of this lane.
    pub fn completed(&mut self, host: usize, wc: &Completion, model: &mut Model) -> bool {
        let mine = wc.wr_id & !RECEIVE & !0xffff_ffff == self.id;
        let is_receive = wc.wr_id & RECEIVE != 0;
        if !mine || host != if is_receive { 1 - self.from } else { self.from } {
            return false;
        }
        assert_eq!(wc.qpn, self.qpns[usize::from(is_receive)]);
        let n = (wc.wr_id & 0xffff_ffff) as usize;
        if is_receive {
            self.receive_completed(n, wc, model);
        } else {
            self.send_completed(n, wc);
        }
        true
    }

    fn send_completed(&mut self, index: usize, wc: &Completion) {
        let op = self.script[index];
        assert!(index < self.posted, "{wc:?} was never posted");
        if wc.status == WcStatus::Success {
            assert_eq!(
                self.signals.pop_front(),
                Some(index),
                "{wc:?} is not the next one"
            );
            let opcode = match op.kind {
                Kind::Send | Kind::SendImm | Kind::SendInv | Kind::Relay => WcOpcode::Send,
                Kind::Write | Kind::WriteImm | Kind::Scribble => WcOpcode::RdmaWrite,
                Kind::Read | Kind::ReadBack => WcOpcode::RdmaRead,
                Kind::FetchAdd => WcOpcode::FetchAdd,
                Kind::CompareSwap => WcOpcode::CompSwap,
                Kind::AtomicWrite => WcOpcode::AtomicWrite,
                Kind::Flush => WcOpcode::Flush,
                Kind::LocalInv => WcOpcode::LocalInv,
            };
            assert_eq!(wc.opcode, opcode, "{op:?}");
            // Of a FLUSH it is the range, which is not planned.
            assert!(
                wc.byte_len == op.len || op.kind == Kind::Flush,
                "{wc:?} of {op:?}"
            );
            assert_eq!(self.failed, None, "{wc:?} after an error");
            return;
        }
        let (first, next) = *self.failed.get_or_insert((index, index));
        assert_eq!(index, next, "{wc:?} is not the next one");
        self.failed = Some((first, next + 1));
        if self.signals.front() == Some(&index) {
            self.signals.pop_front();
        }
        assert!(
            self.signals.front().is_none_or(|&s| s > index),
            "{wc:?} too early"
        );
        let expected = match self.fate {
            Fate::Faulty(at, fault) if at == index => fault.status(),
            Fate::Faulty(at, _) => {
                assert!(index > at, "{wc:?} before the fault");
                WcStatus::WrFlushErr
            }
            Fate::Broken => WcStatus::WrFlushErr,
            Fate::Sound => WcStatus::Success,
        };
        assert_eq!(wc.status, expected, "request {index} {op:?}");
    }

    fn receive_completed(&mut self, n: usize, wc: &Completion, model: &mut Model) {
        assert!(
            n == self.recvs_done && n < self.recvs_posted,
            "{wc:?} is not the next one"
        );
        self.recvs_done += 1;
        let inbox = self.inboxes.pop_front().unwrap();
        let index = self.takers[n];
        let op = self.script[index];
        let host = self.inbox.host;
        if wc.status == WcStatus::Success {
            let (sent, data) = self.messages.pop_front().unwrap();
            assert_eq!(sent, index, "{wc:?} of {op:?}");
            assert!(!self.recv_failed, "{wc:?} after an error");
            let (opcode, imm) = match op.kind {
                Kind::WriteImm => (WcOpcode::RecvRdmaWithImm, Some(op.imm)),
                Kind::SendImm => (WcOpcode::Recv, Some(op.imm)),
                _ => (WcOpcode::Recv, None),
            };
            let mut flags = WcFlags::empty();
            flags.set(WcFlags::WITH_IMM, imm.is_some());
            let taken = (op.kind == Kind::SendInv).then(|| self.lent.pop_front().unwrap());
            self.spent.extend(taken.map(|mr| mr.lkey));
            flags.set(WcFlags::WITH_INV, taken.is_some());
            let imm = imm.or_else(|| taken.map(|mr| mr.rkey.value().to_be_bytes()));
            flags.set(WcFlags::SOLICITED, op.flags.contains(SendFlags::SOLICITED));
            let expected = Completion {
                status: WcStatus::Success,
                opcode,
                flags,
                byte_len: op.len,
                imm: imm.unwrap_or_default(),
                ..*wc
            };
            assert_eq!(*wc, expected, "{op:?}");
            model.put(host, &inbox.pieces, &data);
        } else {
            let expected = match self.fate {
                Fate::Faulty(at, fault) if at == index => fault
                    .receive_status(op.len as usize <= self.limits.mtu.bytes())
                    .unwrap_or(WcStatus::WrFlushErr),
                Fate::Faulty(at, _) if index < at => WcStatus::Success,
                Fate::Sound => WcStatus::Success,
                _ => WcStatus::WrFlushErr,
            };
            assert_eq!(wc.status, expected, "receive {n} of request {index} {op:?}");
            self.recv_failed = true;
            model.forget(host, &inbox.pieces);
        }
        self.inbox.give(inbox.start);
    }

    /// Checks and gives back what belongs to requests that are done; call it when all
    /// completions are taken.
    /// Whether there were any.
    pub fn retire(&mut self, world: &mut World, model: &mut Model) -> bool {
        let before = self.in_flight.len();
        self.retire_done(world, model);
        self.in_flight.len() != before
    }

    fn retire_done(&mut self, world: &mut World, model: &mut Model) {
        let open = world.hosts[self.from].engine.sends_posted(self.qpns[0]);
        let open = open.unwrap() as usize;
        while let Some(posted) = self.in_flight.front() {
            if posted.index + open >= self.posted {
                return;
            }
            let posted = self.in_flight.pop_front().unwrap();
            assert!(
                self.signals.front().is_none_or(|&s| s > posted.index),
                "no completion for request {}",
                posted.index
            );
            let failed = self.failed.is_some_and(|(first, _)| posted.index >= first);
            if posted.kind == Kind::LocalInv {
                self.check_taken_back(world, &posted, failed);
            }
            if failed {
                let target = posted.target.map(|at| (at, posted.data.len() as u32));
                if let (Some(target), Fate::Broken) = (target, self.fate) {
                    model.forget(1 - self.from, &[target]);
                }
                if let (Some((host, pieces)), Fate::Broken) = (&posted.lands, self.fate) {
                    model.forget(*host, pieces);
                }
            } else if let Some((host, pieces)) = &posted.lands {
                let at: Vec<u8> = pieces
                    .iter()
                    .flat_map(|&(at, len)| world.hosts[*host].bytes(at, len as usize))
                    .collect();
                assert!(
                    at == posted.data,
                    "wrong data of request {} {:?}",
                    posted.index,
                    self.script[posted.index]
                );
                model.put(*host, pieces, &posted.data);
            }
            self.give_back(&posted);
        }
    }
}

impl Lane {
    /// A region that LOCAL_INV took back is good for nothing but to be deregistered.
    fn check_taken_back(&mut self, world: &mut World, posted: &Posted, failed: bool) {
        let (index, mr) = self.own.pop_front().unwrap();
        assert_eq!(index, posted.index);
        let host = &mut world.hosts[self.from];
        if !failed {
            let mw = host.engine.alloc_mw(host.pd, MwType::Type1).unwrap();
            let bind = Bind {
                lkey: mr.lkey,
                va: mr.va,
                len: 8,
                access: Access::REMOTE_READ,
            };
            let refused = host.engine.bind_mw(mw.id, &bind);
            assert!(refused.is_err(), "a region taken back is used");
            host.engine.dealloc_mw(mw.id).unwrap();
        }
        host.engine.dereg_mr(mr.lkey).unwrap();
    }
}

fn inline_parts<'a>(rng: &mut Rng, data: &'a [u8]) -> Vec<&'a [u8]> {
    let (a, b) = data.split_at(rng.index(data.len() + 1));
    vec![a, b]
}
