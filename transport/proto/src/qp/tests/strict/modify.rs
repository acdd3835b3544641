//! Attributes in the middle of a conversation of two queue pairs: to set one to the value it has
//! changes nothing that can be seen, packet by packet; to set another keeps the conversation alive
//! or is refused and changes nothing.

use alloc::collections::VecDeque;

use proptest::prelude::*;

use super::super::*;
use super::{Dice, cases};
use crate::cc::{CongestionControl, Fixed, Rate};
use crate::qp::state::{AttrMask, rule_of};
use crate::qp::{AddressHandle, Destination};
use crate::recovery::{AdaptiveParams, Reliability, SelectiveParams};

/// One way.
const DELAY: Duration = Duration::from_micros(5);
/// Packets of a turn, and the time until the next one.
const TURN: usize = 4;
const PAUSE: Duration = Duration::from_micros(1);
/// Frames after which enough has been compared.
const FRAMES: usize = 1500;
/// What stands for the network header of a datagram.
const HEADER: [u8; xroce_wire::frame::GRH_LEN] = [0x5a; xroce_wire::frame::GRH_LEN];

#[derive(Clone, Debug)]
enum Action {
    /// What, and how many bytes.
    Post(u8, u32),
    /// These attributes to the values they have.
    Same(u32),
    /// An attribute to another value.
    New(u8, u8),
    Sqd,
    Rts,
}

/// At one end, so long after the one before it, µs.
type Script = Vec<(u64, usize, Action)>;

#[derive(Clone, Debug)]
struct Plan {
    qp_type: QpType,
    repair: Option<Reliability>,
    timeout: u8,
    retry: u8,
    /// Mb/s; 0: no limit.
    rate: u64,
    control: &'static str,
    /// One frame in so many is lost; 0: none.
    lose: u64,
    first: u32,
    seed: u64,
}

/// What can be seen from outside.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Seen {
    Frame(u64, usize, Vec<u8>),
    Done(u64, usize, u64, WcStatus),
    Event(u64, usize, Event),
}

struct Pair {
    ends: [Bench; 2],
    ways: [VecDeque<(Instant, Vec<u8>)>; 2],
    seen: Vec<Seen>,
    start: Instant,
    /// When each has its next turn.
    turns: [Instant; 2],
    dice: Dice,
    plan: Plan,
    posted: [u64; 2],
    succeeded: [u64; 2],
}

fn control(name: &'static str) -> CongestionControl {
    let line = Rate::bits_per_second(10_000_000_000);
    CongestionControl::by_name(name, line, &[]).unwrap()
}

fn window(n: u32) -> CongestionControl {
    CongestionControl::Fixed(Fixed::new(Rate::UNLIMITED, n))
}

impl Plan {
    fn bench(&self) -> Bench {
        let mut setup = Setup {
            access: Access::all(),
            ..Setup::default()
        };
        let first = Psn::new(self.first);
        setup.init.qp_type = self.qp_type;
        setup.rtr = match self.qp_type {
            QpType::Rc => QpAttr::rtr(path(), PathMtu::Mtu512, PEER, first),
            QpType::Uc => QpAttr::rtr_uc(path(), PathMtu::Mtu512, PEER, first),
            QpType::Ud => QpAttr::state(QpState::Rtr),
        };
        setup.rts = QpAttr::rts_unreliable(first);
        if self.qp_type == QpType::Rc {
            setup.rtr.reliability = self.repair;
            setup.rts = QpAttr::rts(first);
            setup.rts.timeout = Some(self.timeout);
            setup.rts.retry_cnt = Some(self.retry);
        }
        setup.rts.rate_limit = Some(Rate::bits_per_second(self.rate * 1_000_000));
        setup.rts.congestion = Some(control(self.control));
        let mut t = setup.build();
        t.qp.set_port_mtu(PathMtu::Mtu1024);
        t.mem.access = Access::all();
        for n in 0..100 {
            t.recv(n, 0x4000);
        }
        t
    }
}

impl Pair {
    fn new(plan: &Plan) -> Self {
        let ends = [plan.bench(), plan.bench()];
        Self {
            start: ends[0].now,
            turns: [ends[0].now; 2],
            ends,
            ways: [VecDeque::new(), VecDeque::new()],
            seen: Vec::new(),
            dice: Dice::new(plan.seed),
            plan: plan.clone(),
            posted: [0; 2],
            succeeded: [0; 2],
        }
    }

    fn now(&self) -> Instant {
        self.ends[0].now
    }

    /// Goes on until `until`.
    fn run(&mut self, until: Instant) {
        for _ in 0..100_000 {
            self.note();
            for end in [0, 1] {
                self.send(end);
            }
            self.note();
            if self.seen.len() > FRAMES {
                return;
            }
            let now = self.now();
            let next = [0, 1].map(|end| {
                let qp = &self.ends[end].qp;
                let due = match qp.wants_to_send(now) {
                    true => self.turns[end],
                    false => qp.poll_timeout().unwrap_or(Instant::NEVER),
                };
                let front = self.ways[end].front();
                front.map_or(due, |&(at, _)| due.min(at))
            });
            let at = next[0].min(next[1]).max(self.now());
            if at >= until {
                break;
            }
            self.pass(at);
        }
        self.ends.iter_mut().for_each(|t| t.now = until);
    }

    /// A turn: a few packets, and then others have theirs.
    fn send(&mut self, end: usize) {
        let now = self.now();
        for _ in 0..TURN {
            if now < self.turns[end] {
                return;
            }
            let Some(frame) = self.ends[end].tx_frame() else {
                return;
            };
            let ns = now.since(self.start).as_nanos();
            self.seen.push(Seen::Frame(ns, end, frame.clone()));
            if self.plan.lose == 0 || !self.dice.once_in(self.plan.lose) {
                self.ways[1 - end].push_back((now + DELAY, frame));
            }
        }
        self.turns[end] = now + PAUSE;
    }

    fn pass(&mut self, at: Instant) {
        for end in [0, 1] {
            let t = &mut self.ends[end];
            t.now = at;
            while self.ways[end].front().is_some_and(|&(when, _)| when <= at) {
                let (_, frame) = self.ways[end].pop_front().unwrap();
                let pkt = Packet::parse(&frame).unwrap();
                t.cx(|qp, cx| match qp.init().qp_type {
                    QpType::Ud => qp.handle_datagram(cx, &HEADER, false, &pkt),
                    _ => drop(qp.handle_packet(cx, &arrival(), &pkt)),
                });
            }
            if t.qp.poll_timeout().is_some_and(|due| due <= at) {
                t.cx(|qp, cx| qp.handle_timeout(cx));
            }
        }
    }

    /// Notes completions and events.
    fn note(&mut self) {
        let ns = self.now().since(self.start).as_nanos();
        for (end, t) in self.ends.iter_mut().enumerate() {
            for (wr_id, status) in t.sent() {
                self.succeeded[end] += u64::from(status == WcStatus::Success);
                self.seen.push(Seen::Done(ns, end, wr_id, status));
            }
            for (wr_id, status) in t.received() {
                self.seen.push(Seen::Done(ns, end, wr_id, status));
            }
            let events = t.events().into_iter();
            self.seen
                .extend(events.map(|event| Seen::Event(ns, end, event)));
        }
    }

    fn act(&mut self, end: usize, action: &Action) {
        match *action {
            Action::Post(what, len) => self.post(end, what, len),
            Action::Same(bits) => self.set_same(end, bits),
            Action::New(what, value) => self.set_new(end, what, value),
            Action::Sqd => self.go(end, QpState::Rts, QpState::Sqd),
            Action::Rts => self.go(end, QpState::Sqd, QpState::Rts),
        }
    }

    fn go(&mut self, end: usize, from: QpState, to: QpState) {
        let t = &mut self.ends[end];
        if t.qp.state() == from {
            t.qp.modify(&QpAttr::state(to), &mut t.log).unwrap();
        }
    }

    fn post(&mut self, end: usize, what: u8, len: u32) {
        let (va, rkey) = (Va::new(BASE + 0x8000), RKey::new(KEY));
        let kind = self.plan.qp_type;
        let (op, len) = match (kind, what % 5) {
            (QpType::Ud, _) => (SendOp::Send, len % 1000),
            (_, 0 | 1) => (SendOp::Send, len),
            (QpType::Rc, 3) => (SendOp::Read { va, rkey }, len),
            (QpType::Rc, 4) => (SendOp::FetchAdd { va, rkey, add: 1 }, 8),
            _ => (SendOp::Write { va, rkey }, len),
        };
        self.posted[end] += 1;
        let t = &mut self.ends[end];
        let wr = SendWr {
            wr_id: 1000 + self.posted[end],
            op,
            flags: SendFlags::SIGNALED,
            data: Data::Sges(&[sge(0, len)]),
        };
        let posted = match kind {
            QpType::Ud => {
                let ah = &AddressHandle::new(Lower::Udp, &path(), PD).unwrap();
                let (qpn, qkey) = (PEER, QKey::new(QKEY));
                let to = Destination { ah, qpn, qkey };
                t.qp.post_datagram(&wr, &to, &mut t.log)
            }
            _ => t.qp.post_send(&wr, &mut t.log),
        };
        posted.unwrap();
    }

    /// Sets those attributes that the state takes to what a query says.
    fn set_same(&mut self, end: usize, bits: u32) {
        let t = &mut self.ends[end];
        let (kind, state) = (self.plan.qp_type, t.qp.state());
        let Some(rule) = rule_of(kind, state, state) else {
            return;
        };
        let now = t.qp.query().attr;
        let takes = |mask: AttrMask| rule.optional.contains(mask) && bits & mask.bits() != 0;
        let mut attr = QpAttr::default();
        macro_rules! same {
            ($($field:ident $mask:ident)*) => { $(
                if takes(AttrMask::$mask) {
                    attr.$field = now.$field.clone();
                }
            )* };
        }
        same!(cur_state CUR_STATE access ACCESS_FLAGS pkey_index PKEY_INDEX port PORT qkey QKEY);
        same!(av AV path_mtu PATH_MTU timeout TIMEOUT retry_cnt RETRY_CNT rnr_retry RNR_RETRY);
        same!(max_rd_atomic MAX_QP_RD_ATOMIC min_rnr_timer MIN_RNR_TIMER dest_qpn DEST_QPN);
        same!(max_dest_rd_atomic MAX_DEST_RD_ATOMIC reliability RELIABILITY);
        same!(congestion RATE_LIMIT rate_limit RATE_LIMIT);
        attr.pkey = now.pkey;
        // One half of the times it names the state as well.
        attr.state = (bits & 1 != 0).then_some(state);
        t.qp.modify(&attr, &mut t.log).unwrap();
    }

    fn set_new(&mut self, end: usize, what: u8, n: u8) {
        let t = &mut self.ends[end];
        let mut attr = QpAttr::default();
        let rates = [1, 10, 1000, 100_000, 10_000_000, 0];
        let windows = [1, 2, 8, 30, 64, 256];
        match what % 9 {
            0 => attr.rate_limit = Some(Rate::bits_per_second(rates[usize::from(n % 6)] * 1000)),
            1 => attr.congestion = Some(window(windows[usize::from(n % 6)])),
            2 => attr.min_rnr_timer = xroce_wire::syndrome::RnrTimer::new(n % 32),
            // Some of these are out of range.
            3 => attr.timeout = Some([0, 8, 10, 14, 18, 40][usize::from(n % 6)]),
            4 => attr.retry_cnt = Some(1 + n % 10),
            5 => attr.rnr_retry = Some(1 + n % 10),
            6 => attr.max_rd_atomic = Some(1 + n % 16),
            7 => attr.max_dest_rd_atomic = Some(16 + n % 120),
            _ => {
                attr.av = Some(AddressVector {
                    traffic_class: n & 0xfc,
                    ..path()
                });
            }
        }
        // To write all of it down takes long.
        let bad = attr.check(QpType::Rc, t.qp.state()).is_err();
        let before = (bad && n.is_multiple_of(4)).then(|| format!("{:?}", t.qp));
        let refused = t.qp.modify(&attr, &mut t.log).is_err();
        assert_eq!(refused, bad);
        if let Some(before) = before {
            assert_eq!(before, format!("{:?}", t.qp), "refused, and changed");
        }
        self.has_a_timer(end);
    }

    /// What is outstanding has a timer, if there is a timeout at all.
    fn has_a_timer(&self, end: usize) {
        let qp = &self.ends[end].qp;
        let (max, una) = qp.send_psns();
        let timeout = qp.query().attr.timeout.unwrap_or(0);
        let alive = qp.poll_timeout().is_some() || qp.wants_to_send(self.ends[end].now);
        assert!(
            max == una || timeout == 0 || alive,
            "no timer: {:?}",
            qp.gauges()
        );
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    let types = prop_oneof![6 => Just(QpType::Rc), 1 => Just(QpType::Uc), 1 => Just(QpType::Ud)];
    let repairs = prop::sample::select(vec![
        None,
        Some(Reliability::Adaptive(AdaptiveParams::default())),
        Some(Reliability::Selective(SelectiveParams::default())),
    ]);
    let timeouts = prop::sample::select(&[0u8, 8, 10, 14][..]);
    let controls = prop::sample::select(&["fixed", "dcqcn-mlx5", "swift", "nscc"][..]);
    let rates = prop::sample::select(&[0u64, 0, 10, 1000][..]);
    let lose = prop::sample::select(&[0u64, 5, 20, 60][..]);
    let attrs = (types, repairs, timeouts, 0..=7u8, rates, controls, lose);
    (attrs, 0xff_ff00..=0xff_ffffu32, any::<u64>()).prop_map(|(attrs, first, seed)| {
        let (qp_type, repair, timeout, retry, rate, control, lose) = attrs;
        Plan {
            qp_type,
            repair,
            timeout,
            retry,
            rate,
            control,
            lose,
            first,
            seed,
        }
    })
}

fn script(modify: BoxedStrategy<Action>) -> impl Strategy<Value = Script> {
    let len = prop_oneof![0..100u32, 500..8000u32, 8000..0x4000u32];
    let action = prop_oneof![
        6 => (any::<u8>(), len).prop_map(|(what, len)| Action::Post(what, len)),
        6 => modify,
        1 => Just(Action::Sqd),
        1 => Just(Action::Rts),
    ];
    let pause = prop_oneof![2 => Just(0u64), 2 => 0..12u64, 1 => 0..3000u64];
    prop::collection::vec((pause, 0..2usize, action), 1..25)
}

/// A whole conversation, with the modifies or without.
fn talk(plan: &Plan, script: &[(u64, usize, Action)], modify: bool) -> Vec<Seen> {
    let mut pair = Pair::new(plan);
    for (pause, end, action) in script {
        pair.run(pair.now() + Duration::from_micros(*pause));
        if modify || !matches!(action, Action::Same(_)) {
            pair.act(*end, action);
        }
    }
    pair.act(0, &Action::Rts);
    pair.act(1, &Action::Rts);
    pair.run(pair.now() + Duration::from_millis(1000));
    pair.seen
}

fn tell(seen: Option<&Seen>) -> String {
    match seen {
        Some(Seen::Frame(ns, end, frame)) => {
            format!("{ns} {end}: {}", text(&Packet::parse(frame).unwrap()))
        }
        other => format!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// Rule Q7.
    #[test]
    fn an_attribute_set_to_its_value_changes_nothing(
        plan in plan(),
        script in script(any::<u32>().prop_map(Action::Same).boxed()),
    ) {
        let (with, without) = (talk(&plan, &script, true), talk(&plan, &script, false));
        let differs = with.iter().zip(&without).position(|(a, b)| a != b);
        let first = differs.unwrap_or_else(|| with.len().min(without.len()));
        let (a, b) = (tell(with.get(first)), tell(without.get(first)));
        prop_assert!(with == without, "{} and not {}", a, b);
    }
}

proptest! {
    #![proptest_config(cases(300))]

    /// Nothing is lost: whatever is set, all completes, and soon after what slowed it down is gone.
    #[test]
    fn an_attribute_set_to_another_value_keeps_the_conversation_alive(
        plan in plan(),
        script in script((any::<u8>(), any::<u8>()).prop_map(|(a, b)| Action::New(a, b)).boxed()),
    ) {
        let (lose, retry) = (0, plan.retry.max(1));
        let plan = Plan { lose, retry, qp_type: QpType::Rc, ..plan };
        let mut pair = Pair::new(&plan);
        // A peer that answers READs at a low rate is silent for longer than a timeout.
        let sets_rate =
            |(.., action): &(u64, usize, Action)| matches!(action, Action::New(n, _) if n % 9 == 0);
        let is_slow = plan.rate != 0 || script.iter().any(sets_rate);
        for (pause, end, action) in &script {
            pair.run(pair.now() + Duration::from_micros(*pause));
            match action {
                Action::Post(what, len) if is_slow && what % 5 >= 3 => {
                    pair.act(*end, &Action::Post(2, *len));
                }
                action => pair.act(*end, action),
            }
            pair.has_a_timer(*end);
        }
        let fast = QpAttr {
            rate_limit: Some(Rate::UNLIMITED),
            congestion: Some(window(256)),
            ..QpAttr::default()
        };
        for end in [0, 1] {
            pair.act(end, &Action::Rts);
            let t = &mut pair.ends[end];
            t.qp.modify(&fast, &mut t.log).unwrap();
        }
        pair.seen.clear();
        // A few hundred round trips.
        pair.run(pair.now() + Duration::from_millis(5));
        prop_assert_eq!(pair.succeeded, pair.posted);
        for t in &pair.ends {
            let counters = t.qp.counters();
            prop_assert_eq!((counters.timeouts, counters.retries), (0, 0));
        }
    }
}
