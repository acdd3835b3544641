//! One life of a connection, from its queue pairs in RESET until both ends are torn down.

use std::collections::VecDeque;
use std::fmt;

use xroce_api::{EngineError, Mr, MwId, MwType, ObjectError, Rereg};
use xroce_proto::memory::{Access, Bind};
use xroce_proto::qp::{QpAttr, QpInit, QpState, QpType};
use xroce_proto::recovery::{AdaptiveParams, Reliability, SelectiveParams};
use xroce_proto::wc::{Completion, Cq, WcStatus};
use xroce_proto::wr::{Data, SendFlags, SendOp, SendWr};
use xroce_wire::newtypes::{Psn, QKey, Qpn, RKey, Va};

use super::{ALL_ACCESS, BUFFERS_MAX, COUNTER, Churn, LEN_MAX, POOL, QKEY, SRQ_SGE, pick};

/// Marks the `wr_id` of a send.
pub(super) const SEND: u64 = 1 << 63;

/// Sends under way on a QP.
const DEPTH: u32 = 8;
/// Messages of a run.
const MESSAGES: usize = 320;

/// What is known about a send.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Plain,
    /// Bytes of the pool at `from` to the target of the peer.
    Write {
        from: u64,
        len: u32,
    },
    Read {
        from: u64,
        len: u32,
        to: u64,
    },
    Add {
        to: u64,
    },
    /// The own target is reachable under this key from now on.
    Bind(RKey),
    /// The own target is out of reach from now on.
    Invalidate,
    /// A WRITE through a window of another QP.
    Stray,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) signaled: bool,
    pub(super) op: Op,
}

/// Where the peer may write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) at: u64,
    pub(super) va: Va,
    /// Key for the peer, while there is one.
    pub(super) rkey: Option<RKey>,
    mr: Option<Mr>,
    window: Option<(MwId, MwType)>,
}

/// A life.
pub(super) struct Life {
    pub(super) kind: QpType,
    pub(super) qpns: [Qpn; 2],
    /// Something was done to it that it need not survive.
    pub(super) doomed: bool,
    /// Both ends are torn down.
    pub(super) over: bool,
    /// Its QP on the second host has been in the group.
    pub(super) member: bool,
    pub(super) small_cq: [Option<Cq>; 2],
    pub(super) overflowed: [bool; 2],
    pub(super) targets: [Target; 2],
    pub(super) sends: [VecDeque<Posted>; 2],
    /// Messages sent and not received, by sender.
    pub(super) queue: [VecDeque<usize>; 2],
    /// The QP of this side is gone or in RESET.
    down: [bool; 2],
    failed: [bool; 2],
    /// What the targets must hold, as far as requests have completed.
    model: [Vec<u8>; 2],
    next: u64,
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {:x?}, doomed {}, failed {:?}, sends {:?}, messages {:?}, targets {:x?}",
            self.kind,
            self.qpns.map(Qpn::value),
            self.doomed,
            self.failed,
            self.sends,
            self.queue,
            self.targets.map(|t| (t.at, t.rkey, t.window))
        )
    }
}

impl Life {
    pub(super) fn doom(&mut self) {
        self.doomed = true;
    }

    pub(super) fn is_done(&self) -> bool {
        let received = self.kind != QpType::Rc || self.queue.iter().all(VecDeque::is_empty);
        received && self.sends.iter().all(|s| s.iter().all(|p| !p.signaled))
    }

    /// A number for a send.
    pub(super) fn number(&mut self, n: usize, from: usize) -> u64 {
        self.next += 1;
        SEND | (from as u64) << 62 | (n as u64) << 32 | self.next
    }
}

impl Churn {
    /// A new life of a connection, with queue pairs that were reset or new ones.
    pub(super) fn bear(&mut self, at: usize, kind: QpType, reuse: Option<[Qpn; 2]>) {
        let small = reuse.is_none() && kind == QpType::Rc && self.rng.below(6) == 0;
        let depth = 1 + self.rng.below(3) as u32;
        let small_cq = [0, 1].map(|i: usize| {
            let engine = &mut self.world.hosts[i].engine;
            (small && !self.calm).then(|| engine.create_cq(depth).unwrap())
        });
        let qpns = reuse.unwrap_or_else(|| {
            [0, 1].map(|i: usize| {
                let host = &mut self.world.hosts[i];
                let mut init = QpInit::rc(host.pd, small_cq[i].unwrap_or(host.cq), host.cq);
                init.qp_type = kind;
                init.srq = Some(self.sides[i].srq);
                init.max_recv_sge = SRQ_SGE;
                init.max_send_wr = DEPTH;
                host.engine.create_qp(&init).unwrap()
            })
        });
        self.raise(kind, qpns);
        let targets = [0, 1].map(|i| self.target(i, kind));
        let model = [0, 1].map(|i| self.world.hosts[i].bytes(targets[i].at, LEN_MAX as usize));
        self.lives.push(Life {
            kind,
            qpns,
            doomed: false,
            over: false,
            member: false,
            small_cq,
            overflowed: [false; 2],
            targets,
            sends: Default::default(),
            queue: Default::default(),
            down: [false; 2],
            failed: [false; 2],
            model,
            next: 0,
        });
        self.now[at] = self.lives.len() - 1;
        for i in [0, 1] {
            self.bind(at, i);
        }
    }

    fn raise(&mut self, kind: QpType, qpns: [Qpn; 2]) {
        let psns = [0, 0].map(|_: u32| self.rng.below(1 << 24) as u32);
        // The first PSN decides, as it is as random as anything.
        let reliability = match psns[0] % 3 {
            0 => Reliability::Selective(SelectiveParams::default()),
            1 => Reliability::Adaptive(AdaptiveParams::default()),
            _ => Reliability::GoBackN,
        };
        for i in [0, 1] {
            let path = self.world.hosts[i].path_to(&self.world.hosts[1 - i]);
            let (own, theirs) = (Psn::new(psns[i]), Psn::new(psns[1 - i]));
            let peer = qpns[1 - i];
            let steps = match kind {
                QpType::Rc => {
                    let mut rts = QpAttr::rts(own);
                    (rts.timeout, rts.rnr_retry) = (Some(6), Some(7));
                    let mut rtr = QpAttr::rtr(path, self.mtu, peer, theirs);
                    rtr.min_rnr_timer = xroce_wire::syndrome::RnrTimer::new(1);
                    rtr.reliability = Some(reliability);
                    [QpAttr::init(ALL_ACCESS), rtr, rts]
                }
                QpType::Uc => [
                    QpAttr::init(ALL_ACCESS),
                    QpAttr::rtr_uc(path, self.mtu, peer, theirs),
                    QpAttr::rts_unreliable(own),
                ],
                QpType::Ud => [
                    QpAttr::init_ud(QKey::new(QKEY)),
                    QpAttr::state(QpState::Rtr),
                    QpAttr::rts_unreliable(own),
                ],
            };
            for attr in steps {
                self.world.hosts[i]
                    .engine
                    .modify_qp(qpns[i], &attr)
                    .unwrap();
            }
        }
    }

    /// An area that the peer may write, by its region or a window.
    fn target(&mut self, i: usize, kind: QpType) -> Target {
        let at = self.buffer(i).expect("the run ends before all is used");
        let how = self.rng.below(3);
        let host = &mut self.world.hosts[i];
        let all = ALL_ACCESS | Access::MW_BIND;
        let mr = host
            .engine
            .reg_mr_range(host.pd, &host.region, at, LEN_MAX, all)
            .unwrap();
        let mut target = Target {
            at,
            va: mr.va,
            rkey: Some(mr.rkey),
            mr: Some(mr),
            window: None,
        };
        if how != 0 && kind == QpType::Rc {
            let mw_type = if how == 1 {
                MwType::Type1
            } else {
                MwType::Type2
            };
            let mw = host.engine.alloc_mw(host.pd, mw_type).unwrap();
            target.window = Some((mw.id, mw_type));
            target.rkey = (mw_type == MwType::Type2).then_some(mw.rkey);
        }
        target
    }

    /// Binds the window of a target, if it has one.
    fn bind(&mut self, at: usize, i: usize) {
        let n = self.now[at];
        let target = self.lives[n].targets[i];
        let (Some((id, mw_type)), Some(mr)) = (target.window, target.mr) else {
            return;
        };
        let bind = Bind {
            lkey: mr.lkey,
            va: mr.va,
            len: LEN_MAX,
            access: Access::REMOTE_WRITE,
        };
        if mw_type == MwType::Type1 {
            let key = self.world.hosts[i].engine.bind_mw(id, &bind).unwrap();
            self.lives[n].targets[i].rkey = Some(key);
        } else if let Some(rkey) = self.lives[n].targets[i].rkey.take() {
            self.post(n, i, SendOp::BindMw { rkey, bind }, None, Op::Bind(rkey));
        }
    }

    fn post(&mut self, n: usize, i: usize, op: SendOp, place: Option<(u64, u32)>, what: Op) {
        let local = matches!(what, Op::Bind(_) | Op::Invalidate | Op::Stray);
        let mut flags = self.flags();
        flags.set(
            SendFlags::SIGNALED,
            local || flags.contains(SendFlags::SIGNALED),
        );
        let life = &mut self.lives[n];
        let wr_id = life.number(n, i);
        let host = &mut self.world.hosts[i];
        let sge = place.map(|(at, len)| host.sge(at, len));
        let wr = SendWr {
            wr_id,
            op,
            flags,
            data: Data::Sges(sge.as_slice()),
        };
        host.engine.post_send(life.qpns[i], &wr).unwrap();
        let signaled = flags.contains(SendFlags::SIGNALED);
        life.sends[i].push_back(Posted {
            wr_id,
            signaled,
            op: what,
        });
    }

    /// Some requests on connections that are well.
    pub(super) fn work(&mut self) {
        for _ in 0..=self.rng.below(5) {
            let (at, i) = (self.rng.index(self.now.len()), self.rng.index(2));
            let n = self.now[at];
            let open = self.world.hosts[i].engine.sends_posted(self.qpn_of(at, i));
            if self.lives[n].doomed
                || open.is_none_or(|n| n >= DEPTH)
                || self.messages.len() >= MESSAGES
                || self.sides.iter().any(|s| s.used > BUFFERS_MAX * 2 / 3)
            {
                continue;
            }
            match (self.lives[n].kind, self.rng.below(8)) {
                (QpType::Rc, 0) => self.read(n, i),
                (QpType::Rc, 1 | 2) => self.add(n, i),
                (QpType::Rc, 3) => self.write(n, i),
                _ => self.send(at, i),
            }
        }
    }

    fn write(&mut self, n: usize, i: usize) {
        let target = self.lives[n].targets[1 - i];
        let Some(rkey) = target.rkey else {
            return;
        };
        let len = self.rng.below(LEN_MAX + 1) as u32;
        let from = self.rng.below(POOL - LEN_MAX);
        let op = SendOp::Write {
            va: target.va,
            rkey,
        };
        self.post(n, i, op, Some((from, len)), Op::Write { from, len });
    }

    fn read(&mut self, n: usize, i: usize) {
        let len = self.rng.below(LEN_MAX + 1) as u32;
        let from = self.rng.below(POOL - LEN_MAX);
        let Some(to) = self.buffer(i) else {
            return;
        };
        let peer = &self.world.hosts[1 - i];
        let op = SendOp::Read {
            va: peer.va(from),
            rkey: peer.mr.rkey,
        };
        self.post(n, i, op, Some((to, len)), Op::Read { from, len, to });
    }

    fn add(&mut self, n: usize, i: usize) {
        let Some(to) = self.buffer(i) else {
            return;
        };
        let peer = &self.world.hosts[1 - i];
        let op = SendOp::FetchAdd {
            va: peer.va(COUNTER),
            rkey: peer.mr.rkey,
            add: 1,
        };
        self.sides[i].adding += 1;
        self.post(n, i, op, Some((to, 8)), Op::Add { to });
    }

    /// The completion of a send: those before it that were not signalled are done as well.
    pub(super) fn sent(&mut self, i: usize, wc: &Completion) {
        let n = (wc.wr_id >> 32 & 0x3fff_ffff) as usize;
        assert_eq!(wc.wr_id >> 62 & 1, i as u64);
        assert_eq!(wc.qpn, self.lives[n].qpns[i]);
        assert!(
            !self.lives[n].over && !self.lives[n].down[i],
            "{wc:?} of the past"
        );
        loop {
            let life = &mut self.lives[n];
            let posted = life.sends[i].pop_front();
            let posted = posted.unwrap_or_else(|| panic!("{wc:?} came before"));
            if posted.wr_id != wc.wr_id {
                let lost = life.overflowed[i];
                assert!(
                    lost || !posted.signaled && !life.failed[i],
                    "{wc:?} before {posted:?}"
                );
                self.settle_send(n, i, posted.op, !lost);
                continue;
            }
            let good = wc.status == WcStatus::Success;
            let allowed = if good {
                posted.signaled && !life.failed[i]
            } else {
                life.doomed
            };
            if !allowed {
                let why = self.world.hosts[i].engine.failure(wc.qpn);
                let why = why.map(|f| f.to_string()).unwrap_or_default();
                panic!("{wc:?} of {posted:?}: {why}\n{:?}", self.lives[n]);
            }
            life.failed[i] |= !good;
            return self.settle_send(n, i, posted.op, good);
        }
    }

    /// What a send leaves behind that is done, or of which nobody knows.
    fn settle_send(&mut self, n: usize, i: usize, op: Op, good: bool) {
        match op {
            Op::Plain => {}
            Op::Stray => assert!(!good, "a window served a QP that had not bound it"),
            Op::Write { from, len } => self.written(n, i, from, len, good),
            Op::Read { to, .. } | Op::Add { to } if !good => {
                self.sides[i].unsure.insert(to);
            }
            Op::Read { from, len, to } => {
                let data = self.world.hosts[i].bytes(to, len as usize);
                let want = self.world.hosts[1 - i].bytes(from, len as usize);
                assert!(data == want, "a READ brought something else");
                self.sides[i].known.insert(to, data);
            }
            Op::Add { to } => {
                let data = self.world.hosts[i].bytes(to, 8);
                let old = u64::from_ne_bytes(data[..].try_into().unwrap());
                let side = &mut self.sides[i];
                assert!(old < side.adding, "{old} of {}", side.adding);
                assert!(side.olds.insert(old), "{old} was there twice");
                side.added += 1;
                side.known.insert(to, data);
            }
            Op::Bind(key) if good => self.lives[n].targets[i].rkey = Some(key),
            Op::Bind(_) => {}
            Op::Invalidate => {
                if good {
                    self.seal(n, i);
                }
            }
        }
    }

    fn written(&mut self, n: usize, i: usize, from: u64, len: u32, good: bool) {
        let life = &mut self.lives[n];
        let at = life.targets[1 - i].at;
        if !good || life.kind != QpType::Rc {
            self.sides[1 - i].unsure.insert(at);
            return;
        }
        let data = self.world.hosts[i].bytes(from, len as usize);
        let model = &mut life.model[1 - i];
        model[..data.len()].copy_from_slice(&data);
        // Later ones may have written already.
        let last = !life.sends[i]
            .iter()
            .any(|p| matches!(p.op, Op::Write { .. }));
        // Of one before it may not be known whether it was done: its completion fell off a full
        // queue, and it counts for the model as not done.
        let side = &self.sides[1 - i];
        let known = !side.sealed.contains_key(&at) && !side.unsure.contains(&at);
        if last && known {
            let have = self.world.hosts[1 - i].bytes(at, model.len());
            assert!(have == *model, "the target is not what was written");
        }
    }

    /// Nothing is written to a target any more.
    fn seal(&mut self, n: usize, i: usize) {
        let at = self.lives[n].targets[i].at;
        let data = self.world.hosts[i].bytes(at, LEN_MAX as usize);
        self.sides[i].sealed.entry(at).or_insert(data);
        // Whoever does not know yet goes on writing.
        let engine = &self.world.hosts[1 - i].engine;
        let life = &self.lives[n];
        let open = engine.sends_posted(life.qpns[1 - i]);
        let able = life.kind == QpType::Rc && !life.down[1 - i] && !life.failed[1 - i];
        if able && life.doomed && open.is_some_and(|n| n < DEPTH) {
            self.write(n, 1 - i);
        }
    }

    /// Does something to a connection that it need not survive.
    pub(super) fn hurt(&mut self, at: usize) {
        let (n, i) = (self.now[at], self.rng.index(2));
        self.lives[n].doom();
        self.deaths += 1;
        let qpn = self.lives[n].qpns[i];
        let target = self.lives[n].targets[i];
        match (self.rng.below(7), target.window) {
            (0, _) => self.take_down(n, i, true),
            (1, _) => self.take_down(n, i, false),
            (2, Some((id, MwType::Type1))) => {
                let nothing = Bind {
                    lkey: target.mr.unwrap().lkey,
                    va: target.va,
                    len: 0,
                    access: Access::empty(),
                };
                self.world.hosts[i].engine.bind_mw(id, &nothing).unwrap();
                self.seal(n, i);
                self.lives[n].targets[i].rkey = None;
            }
            (2, Some((_, MwType::Type2))) => {
                let open = self.world.hosts[i].engine.sends_posted(qpn);
                if let (Some(rkey), Some(0..DEPTH)) = (target.rkey, open) {
                    let op = SendOp::LocalInv { rkey };
                    self.post(n, i, op, None, Op::Invalidate);
                }
            }
            (3, _) => self.take_back(n, i),
            (5, _) if self.stray(n, i) => {}
            (4, None) => {
                let engine = &mut self.world.hosts[i].engine;
                let mr = engine.rereg_mr(target.mr.unwrap().lkey, &Rereg::default());
                self.lives[n].targets[i].mr = Some(mr.unwrap());
                self.seal(n, i);
            }
            _ => {
                let attr = QpAttr::state(QpState::Err);
                self.world.hosts[i].engine.modify_qp(qpn, &attr).unwrap();
            }
        }
    }

    /// Posts a WRITE through a window of type 2 that another QP has bound, if there is one.
    fn stray(&mut self, n: usize, i: usize) -> bool {
        let open = self.world.hosts[i]
            .engine
            .sends_posted(self.lives[n].qpns[i]);
        let able = self.lives[n].kind == QpType::Rc && open.is_some_and(|n| n < DEPTH);
        let found = self.now.iter().filter(|&&m| m != n).find_map(|&m| {
            let life = &self.lives[m];
            let target = life.targets[1 - i];
            let fits = matches!(target.window, Some((_, MwType::Type2))) && !life.doomed;
            target.rkey.filter(|_| fits).map(|rkey| (target.va, rkey))
        });
        let (true, Some((va, rkey))) = (able, found) else {
            return false;
        };
        let op = SendOp::Write { va, rkey };
        self.post(n, i, op, Some((0, 8)), Op::Stray);
        true
    }

    /// The keys of a target, windows first.
    fn take_back(&mut self, n: usize, i: usize) {
        let target = &mut self.lives[n].targets[i];
        let engine = &mut self.world.hosts[i].engine;
        let Some(mr) = target.mr.take() else {
            return;
        };
        if let Some((id, mw_type)) = target.window.take() {
            // Refused while a window is bound, and done if it is not.
            let bound = mw_type == MwType::Type1 && target.rkey.is_some();
            match engine.dereg_mr(mr.lkey) {
                Err(error) => {
                    assert!(matches!(error, EngineError::Object(ObjectError::Dereg(_))));
                    engine.dealloc_mw(id).unwrap();
                    engine.dereg_mr(mr.lkey).unwrap();
                }
                Ok(()) => {
                    assert!(!bound, "a region with a bound window was deregistered");
                    engine.dealloc_mw(id).unwrap();
                }
            }
        } else {
            engine.dereg_mr(mr.lkey).unwrap();
        }
        self.seal(n, i);
    }

    /// Resets or destroys the QP of one side; what it had posted vanishes.
    fn take_down(&mut self, n: usize, i: usize, destroy: bool) {
        self.world.settle();
        self.drain_all();
        let life = &mut self.lives[n];
        let engine = &mut self.world.hosts[i].engine;
        if destroy && engine.qp_state(life.qpns[i]).is_some() {
            engine.destroy_qp(life.qpns[i]).unwrap();
        } else if !destroy {
            let reset = QpAttr::state(QpState::Reset);
            engine.modify_qp(life.qpns[i], &reset).unwrap();
        }
        life.down[i] = true;
        let rest: Vec<Posted> = life.sends[i].drain(..).collect();
        for posted in rest {
            self.settle_send(n, i, posted.op, false);
        }
    }

    /// All completions that are there, also of who was not woken.
    fn drain_all(&mut self) {
        for i in [0, 1] {
            while let Some(event) = self.world.hosts[i].engine.poll_event() {
                self.event(i, event);
            }
            for wc in self.world.hosts[i].completions() {
                self.completed(i, &wc);
            }
            for n in 0..self.lives.len() {
                let Some(cq) = self.lives[n].small_cq[i] else {
                    continue;
                };
                let mut wcs = [Completion::EMPTY; 4];
                let got = self.world.hosts[i].engine.poll_cq(cq, &mut wcs);
                for wc in &wcs[..got] {
                    self.completed(i, wc);
                }
            }
        }
    }

    /// Ends a life and begins the next.
    pub(super) fn renew(&mut self, at: usize) {
        let n = self.now[at];
        let gone = |i: usize| {
            let engine = &self.world.hosts[i].engine;
            engine.qp_state(self.lives[n].qpns[i]).is_none()
        };
        let small = self.lives[n].small_cq.iter().any(Option::is_some);
        let destroy = small || gone(0) || gone(1) || pick(&mut self.rng, &[true, false]);
        for i in [0, 1] {
            self.take_down(n, i, destroy);
            self.take_back(n, i);
            if let Some(cq) = self.lives[n].small_cq[i].take() {
                self.world.hosts[i].engine.destroy_cq(cq).unwrap();
            }
        }
        self.lives[n].over = true;
        let (kind, qpns) = (self.lives[n].kind, self.lives[n].qpns);
        self.bear(at, kind, (!destroy).then_some(qpns));
        // A QP is a member until it is destroyed.
        let (old, new) = (self.lives[n].member && !destroy, self.now[at]);
        self.lives[new].member = old;
    }

    /// At the end: what the targets of those that are well must hold.
    pub(super) fn settle_targets(&mut self) {
        for n in self.now.clone() {
            for i in [0, 1] {
                let (kind, at) = (self.lives[n].kind, self.lives[n].targets[i].at);
                while let Some(posted) = self.lives[n].sends[1 - i].pop_front() {
                    assert!(!posted.signaled, "{posted:?} never completed");
                    self.settle_send(n, 1 - i, posted.op, true);
                }
                let model = std::mem::take(&mut self.lives[n].model[i]);
                if kind == QpType::Rc {
                    self.sides[i].known.insert(at, model);
                }
            }
        }
    }
}
