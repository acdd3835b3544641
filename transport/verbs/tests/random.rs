//! Random sequences of calls: whatever is refused, nothing panics, and the engine stays usable.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "random numbers, cut to size"
)]

mod common;

use common::{ALL, World, connect_rc, gid};
use proptest::prelude::*;
use xroce_verbs::{
    Access, Ah, AhAttr, ConnectAttr, Cq, Mr, Mw, Notify, PKey, Pd, Placement, QKey, Qp, RKey, Rc,
    RecvBatch, RemoteMr, Rereg, SendBatch, Srq, SrqInfo, Type1, Type2, Ud, Va,
};

/// Objects of the first context; the second only answers.
struct Bag {
    world: World,
    pds: Vec<Pd>,
    cqs: Vec<Cq>,
    mrs: Vec<Mr>,
    ones: Vec<Mw<Type1>>,
    twos: Vec<Mw<Type2>>,
    srqs: Vec<Srq>,
    qps: Vec<Qp<Rc>>,
    datagram: Vec<Qp<Ud>>,
    ahs: Vec<Ah>,
}

fn pick<T>(all: &[T], n: u32) -> Option<&T> {
    let len = u32::try_from(all.len()).unwrap();
    all.get(n.checked_rem(len)? as usize)
}

fn take<T>(all: &mut Vec<T>, n: u32) -> Option<T> {
    let len = u32::try_from(all.len()).unwrap();
    let at = n.checked_rem(len)? as usize;
    Some(all.swap_remove(at))
}

type Step = (u8, u32, u32, u64);

impl Bag {
    fn new() -> Self {
        Self {
            world: World::new(),
            pds: Vec::new(),
            cqs: Vec::new(),
            mrs: Vec::new(),
            ones: Vec::new(),
            twos: Vec::new(),
            srqs: Vec::new(),
            qps: Vec::new(),
            datagram: Vec::new(),
            ahs: Vec::new(),
        }
    }

    fn make(&mut self, (op, a, b, c): Step) {
        let context = self.world.hosts[0].context.clone();
        let access = Access::from_bits_truncate(b);
        let pd = pick(&self.pds, a);
        match op % 10 {
            0 => self.pds.extend(context.alloc_pd()),
            1 => self.cqs.extend(context.create_cq(b % 40)),
            2 => self
                .mrs
                .extend(pd.and_then(|pd| pd.alloc_mr((c % 9000) as usize, access).ok())),
            3 => self.ones.extend(pd.and_then(|pd| pd.alloc_mw().ok())),
            4 => self.twos.extend(pd.and_then(|pd| pd.alloc_mw().ok())),
            5 => {
                let info = SrqInfo {
                    max_wr: b % 20,
                    max_sge: (c % 34) as u8,
                    limit: a % 30,
                };
                self.srqs
                    .extend(pd.and_then(|pd| pd.create_srq(&info).ok()));
            }
            6 | 7 => self.connect(a, b, c),
            8 => {
                let cq = pick(&self.cqs, b);
                let made = pd.zip(cq).and_then(|(pd, cq)| {
                    let qp = pd.qp::<Ud>(cq, cq).create().ok()?;
                    qp.init(QKey::new(1)).ok()?.activate().ok()
                });
                self.datagram.extend(made);
            }
            _ => {
                let attr = AhAttr {
                    sl: (b % 20) as u8,
                    sgid_index: a % 2,
                    ..AhAttr::to(gid((c % 3) as u8))
                };
                self.ahs.extend(pd.and_then(|pd| pd.create_ah(&attr).ok()));
            }
        }
    }

    fn connect(&mut self, a: u32, b: u32, c: u64) {
        let (Some(pd), Some(cq)) = (pick(&self.pds, a), pick(&self.cqs, b)) else {
            return;
        };
        let mut builder = pd.qp::<Rc>(cq, cq).max_send_wr(b % 20).max_inline(a % 600);
        if c.is_multiple_of(3)
            && let Some(srq) = pick(&self.srqs, a)
        {
            builder = builder.srq(srq);
        }
        let Ok(qp) = builder.create() else { return };
        let peer = self.world.hosts[1].qp::<Rc>().create().unwrap();
        let pair = [qp.init(ALL).unwrap(), peer.init(ALL).unwrap()];
        let attr = ConnectAttr {
            timeout: 8,
            retry_cnt: 1,
            ..ConnectAttr::default()
        };
        let [near, _far] = connect_rc(pair, &attr);
        self.qps.push(near);
    }

    fn drop_one(&mut self, (op, a, _, c): Step) {
        match op % 9 {
            0 => drop(
                take(&mut self.pds, a).map(|pd| if c % 2 == 0 { pd.dealloc() } else { Ok(()) }),
            ),
            1 => drop(
                take(&mut self.cqs, a).map(|cq| if c % 2 == 0 { cq.destroy() } else { Ok(()) }),
            ),
            2 => {
                drop(take(&mut self.mrs, a).map(|mr| if c % 2 == 0 { mr.dereg() } else { Ok(()) }))
            }
            3 => drop(take(&mut self.ones, a)),
            4 => drop(take(&mut self.twos, a)),
            5 => {
                drop(take(&mut self.srqs, a).map(|q| if c % 2 == 0 { q.destroy() } else { Ok(()) }))
            }
            6 => drop(take(&mut self.qps, a)),
            7 => drop(take(&mut self.datagram, a)),
            _ => drop(take(&mut self.ahs, a)),
        }
    }

    fn change(&mut self, (op, a, b, c): Step) {
        let access = Access::from_bits_truncate(b);
        match op % 8 {
            0 => drop(pick(&self.cqs, a).map(|cq| cq.resize(b % 50))),
            1 => drop(pick(&self.cqs, a).map(|cq| cq.arm(Notify::Any))),
            2 => {
                let pd = pick(&self.pds, b);
                let change = Rereg {
                    pd: pd.filter(|_| c % 2 == 0),
                    access: Some(access),
                    memory: None,
                };
                let len = u32::try_from(self.mrs.len()).unwrap();
                if let Some(at) = a.checked_rem(len) {
                    drop(self.mrs[at as usize].rereg(&change));
                }
            }
            3 => {
                let slice = pick(&self.mrs, b).and_then(|mr| mr.slice(c % 64..c % 99).ok());
                let len = u32::try_from(self.ones.len()).unwrap();
                if let (Some(slice), Some(at)) = (slice, a.checked_rem(len)) {
                    drop(self.ones[at as usize].bind(slice, access));
                }
            }
            4 => drop(pick(&self.srqs, a).map(|srq| (srq.resize(b % 30), srq.arm_limit(b % 9)))),
            5 => drop(pick(&self.qps, a).map(|qp| match c % 3 {
                0 => qp.drain(),
                1 => qp.resume(),
                _ => qp.fail(),
            })),
            6 => drop(take(&mut self.qps, a).map(Qp::reset)),
            _ => drop(
                self.world.hosts[0]
                    .context
                    .set_pkey(a as u16 % 2, PKey::new(b as u16)),
            ),
        }
    }

    fn receive(&self, (_, a, b, c): Step) {
        let mut batch = RecvBatch::new();
        for n in 0..c % 5 {
            let mut request = batch.recv(n);
            for _ in 0..b % 3 {
                if let Some(slice) = pick(&self.mrs, a).and_then(|mr| mr.slice(..c % 99).ok()) {
                    request = request.sge(slice);
                }
            }
        }
        drop(pick(&self.qps, b).map(|qp| qp.post_recv(&batch)));
        drop(pick(&self.srqs, b).map(|srq| srq.post(&batch)));
        drop(pick(&self.datagram, a).map(|qp| qp.post_recv(&batch)));
    }

    fn send(&self, (op, a, b, c): Step) {
        let Some(qp) = pick(&self.qps, a) else { return };
        let mr = pick(&self.mrs, b);
        let part = mr.and_then(|mr| mr.slice(c % 5000..).ok());
        let word = mr.and_then(|mr| mr.word(c % 16 * 8).ok());
        let there = self.world.hosts[1].mr.remote().unwrap();
        let there = match c % 5 {
            0 => RemoteMr::new(Va::new(c), 100, RKey::new(b)).unwrap_or(there),
            _ => there.slice(c % 5000..).unwrap(),
        };
        let at = there.word(0).ok();
        let mut batch = SendBatch::new();
        batch.write(0, there).inline(&[1; 8]).unsignaled();
        match (op % 10, part, word.zip(at)) {
            (0, Some(part), _) => drop(batch.send(1).sge(part).solicited()),
            (1, Some(part), _) => drop(batch.write(2, there).sge(part).sge(part)),
            (2, Some(part), _) => drop(batch.read(3, there).sge(part).fence()),
            (3, _, Some((word, at))) => drop(batch.fetch_add(4, at, c, word)),
            (4, _, Some((word, at))) => drop(batch.compare_swap(5, at, 0, c, word)),
            (5, _, Some((word, at))) => drop(batch.atomic_write(6, at, word)),
            (6, Some(part), _) => {
                if let Some(window) = pick(&self.twos, b) {
                    batch.bind(7, window, c as u8, part, Access::from_bits_truncate(b));
                }
            }
            (7, ..) => drop(batch.flush(8, there, Placement::from_bits_truncate(b as u8))),
            (8, ..) => drop(batch.local_inv(9, mr.map_or_else(|| RKey::new(b), Mr::rkey))),
            _ => drop(
                batch
                    .send_inv(10, RKey::new(b))
                    .inline(&vec![0; b as usize % 700]),
            ),
        }
        drop(qp.post(&batch));
        if let (Some(qp), Some(ah)) = (pick(&self.datagram, a), pick(&self.ahs, b)) {
            let mut batch = SendBatch::new();
            batch
                .send_to(11, ah.to(qp.qpn(), QKey::new(1)))
                .inline(&[0; 50]);
            drop(qp.post(&batch));
        }
    }

    /// A connection made at the end carries a message.
    fn check(mut self) {
        self.world.run();
        self.world.hosts[0].completions();
        let _ = self.world.hosts[0].context.set_pkey(0, PKey::DEFAULT);
        let [a, _b] = self.world.rc();
        let there = self.world.hosts[1].mr.remote().unwrap();
        let mut batch = SendBatch::new();
        batch.write(99, there).inline(b"alive");
        a.post(&batch).unwrap();
        self.world.run();
        let done = self.world.hosts[0].completions();
        assert_eq!(done.last().unwrap().ok().unwrap().wr_id, 99);
        assert_eq!(self.world.hosts[1].bytes(0, 5), b"alive");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_in_any_order(
        steps in prop::collection::vec((any::<(u8, u8)>(), any::<u32>(), any::<u32>(), any::<u64>()), 1..120)
    ) {
        let mut bag = Bag::new();
        for ((what, op), a, b, c) in steps {
            let step = (op, a, b, c);
            match what % 10 {
                0..=3 => bag.make(step),
                4 => bag.drop_one(step),
                5 => bag.change(step),
                6 => bag.receive(step),
                7 | 8 => bag.send(step),
                _ => bag.world.settle(),
            }
        }
        bag.check();
    }
}
