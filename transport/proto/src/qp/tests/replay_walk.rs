//! Long lives of the responder resources against a slow model: random requests, copies of them and
//! answers, keys taken back and given again, other limits, and laps of PSNs.
//!
//! The model counts PSNs without end, so that a lap means nothing to it, and keeps everything.

use super::*;
use proptest::prelude::*;
use xroce_wire::opcode::Opcode as O;

const WORD: u64 = BASE + 64;
/// Lowest limit in a walk: so many READs and atomics are remembered at any time.
const LEAST: usize = 2;
const LAP: u64 = 1 << 24;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Of so many packets.
    Read(u32),
    Add,
    Store,
    Flush,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// A new request.
    New(Kind),
    /// A WRITE of nothing.
    Write,
    /// The n-th latest request that may come again does, a READ from this packet on.
    Again(usize, u32),
    /// One of the latest FLUSHes comes again.
    FlushAgain(usize),
    Answer,
    /// The memory goes, or is there again.
    Key(bool),
    Limit(u8),
    /// Almost a lap of WRITEs, this many less, with or without ACKs.
    Lap(u64, bool),
}

fn event() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![
        (1..4_u32).prop_map(Kind::Read),
        Just(Kind::Add),
        Just(Kind::Store),
        Just(Kind::Flush),
    ];
    prop_oneof![
        8 => kind.prop_map(Event::New),
        2 => Just(Event::Write),
        6 => (0..LEAST, 0..3_u32).prop_map(|(n, from)| Event::Again(n, from)),
        2 => (0..6_usize).prop_map(Event::FlushAgain),
        14 => Just(Event::Answer),
        1 => Just(Event::Key(false)),
        3 => Just(Event::Key(true)),
        1 => (LEAST as u8..6).prop_map(Event::Limit),
        1 => (0..40_u64, any::<bool>()).prop_map(|(short, acks)| Event::Lap(short, acks)),
    ]
}

/// What a packet says: PSN, opcode, original value or syndrome.
type Said = (u32, O, u64);

struct Request {
    kind: Kind,
    /// Counted without end.
    psn: u64,
    original: u64,
    /// Packets to be sent, and where the answer begins.
    owed: Vec<u32>,
    start: u32,
    /// So many have been sent at least once.
    sent: u32,
}

impl Request {
    fn packets(&self) -> u32 {
        match self.kind {
            Kind::Read(n) => n,
            _ => 1,
        }
    }

    fn counts(&self) -> bool {
        self.kind != Kind::Flush
    }

    fn opcode(&self, index: u32) -> O {
        let is_last = index + 1 == self.packets();
        match self.kind {
            Kind::Add => O::RcAtomicAcknowledge,
            Kind::Read(_) if index == self.start && !is_last => O::RcReadResponseFirst,
            Kind::Read(_) if index != self.start && is_last => O::RcReadResponseLast,
            Kind::Read(_) if !is_last => O::RcReadResponseMiddle,
            _ => O::RcReadResponseOnly,
        }
    }
}

struct Model {
    requests: Vec<Request>,
    /// The first request that may still come again.
    window: usize,
    next_psn: u64,
    word: u64,
    limit: u8,
    /// So many READs and atomics are kept, once there was one.
    kept: usize,
    alive: bool,
}

fn wire(psn: u64) -> u32 {
    (psn % LAP) as u32
}

impl Model {
    fn may_start(&self, kind: Kind) -> bool {
        let open = |r: &&Request| r.counts() && r.sent != r.packets();
        let open = self.requests.iter().filter(open).count();
        self.alive && (kind == Kind::Flush || open < usize::from(self.limit))
    }

    fn start(&mut self, kind: Kind) -> P {
        let original = self.word;
        match kind {
            Kind::Add => self.word = self.word.wrapping_add(3),
            Kind::Store => self.word = self.next_psn,
            Kind::Read(_) | Kind::Flush => {}
        }
        let psn = self.next_psn;
        let mut request = Request {
            kind,
            psn,
            original,
            owed: Vec::new(),
            start: 0,
            sent: 0,
        };
        request.owed = (0..request.packets()).collect();
        if request.counts() {
            self.kept = self.kept.max(self.limit.into());
            // It takes the place of one that can only have been asked for again.
            if let Some(at) = self.latest(self.kept - 1, false) {
                self.requests[at].owed.clear();
            }
        }
        self.next_psn += u64::from(request.packets());
        self.requests.push(request);
        self.packet(self.requests.len() - 1, 0)
    }

    /// The packet of a request, that of a READ from one of its packets on.
    fn packet(&self, at: usize, from: u32) -> P {
        let request = &self.requests[at];
        let psn = wire(request.psn);
        match request.kind {
            Kind::Read(n) => {
                let len = (n - from - 1) * MTU as u32 + 10;
                let at = WORD + u64::from(from) * MTU as u64;
                p(O::RcReadRequest, psn).a().reth(at, KEY, len).later(from)
            }
            Kind::Add => p(O::RcFetchAdd, psn).a().atomic(WORD, KEY, 3, 0),
            Kind::Store => p(O::RcAtomicWrite, psn)
                .a()
                .reth(WORD, KEY, 8)
                .bytes(&request.psn.to_ne_bytes()),
            Kind::Flush => p(O::RcFlush, psn).a().reth(WORD, KEY, 8).feth(1, 0),
        }
    }

    /// A request comes again; `None` if that cannot be.
    fn again(&mut self, at: usize, from: u32) -> Option<P> {
        let request = &mut self.requests[at];
        let from = if matches!(request.kind, Kind::Read(_)) {
            from.min(request.packets() - 1)
        } else {
            0
        };
        if at < self.window || from > request.sent {
            return None;
        }
        // Without its key it asks for nothing.
        if self.alive || !matches!(request.kind, Kind::Read(_)) {
            request.owed = (from..request.packets()).collect();
            request.start = from;
        }
        Some(self.packet(at, from))
    }

    /// Index of the n-th latest request that is a FLUSH, or is none.
    fn latest(&self, n: usize, flush: bool) -> Option<usize> {
        let wanted = |&at: &usize| self.requests[at].counts() != flush;
        (0..self.requests.len()).rev().filter(wanted).nth(n)
    }

    fn answer(&mut self) -> Option<Said> {
        for request in &mut self.requests {
            let is_read = matches!(request.kind, Kind::Read(_));
            if is_read && !self.alive {
                request.owed.retain(|&index| index >= request.sent);
                if let Some(&index) = request.owed.first() {
                    let psn = wire(request.psn + u64::from(index));
                    return Some((psn, O::RcAcknowledge, 0x62));
                }
            }
            if request.owed.is_empty() {
                continue;
            }
            let index = request.owed.remove(0);
            request.sent = request.sent.max(index + 1);
            let original = if request.kind == Kind::Add {
                request.original
            } else {
                0
            };
            let psn = wire(request.psn + u64::from(index));
            return Some((psn, request.opcode(index), original));
        }
        None
    }
}

impl P {
    /// So many PSNs on.
    fn later(mut self, psns: u32) -> Self {
        self.psn = Psn::new(self.psn).add(psns).value();
        self
    }
}

fn said(t: &mut Bench) -> Option<Said> {
    let frame = t.tx_frame()?;
    let pkt = Packet::parse(&frame).unwrap();
    let syndrome = pkt.aeth().map(|a| u64::from(a.syndrome.to_u8()));
    let told = match pkt.opcode() {
        O::RcAcknowledge => syndrome,
        _ => pkt.atomic_ack().map(|a| a.original),
    };
    Some((pkt.psn().value(), pkt.opcode(), told.unwrap_or(0)))
}

/// As if so many WRITEs had come.
fn skip_silently(t: &mut Bench, model: &mut Model, psns: u64) {
    model.next_psn += psns;
    t.qp.rx.expected_psn = Psn::new(wire(model.next_psn));
    model.window = model.requests.len();
}

/// The same, and another one that asks for its ACK.
fn skip(t: &mut Bench, model: &mut Model, psns: u64) {
    skip_silently(t, model, psns);
    let psn = wire(model.next_psn);
    t.rx(p(O::RcWriteOnly, psn).reth(0, 0, 0).a());
    model.next_psn += 1;
    assert_eq!(said(t), Some((psn, O::RcAcknowledge, 0x1f)));
}

fn happen(t: &mut Bench, model: &mut Model, event: Event) {
    match event {
        Event::New(kind) if model.may_start(kind) => {
            let packet = model.start(kind);
            t.rx(packet);
        }
        Event::Write => {
            t.rx(p(O::RcWriteOnly, wire(model.next_psn)).reth(0, 0, 0));
            model.next_psn += 1;
        }
        Event::Again(n, from) => {
            let again = model.latest(n, false).and_then(|at| model.again(at, from));
            if let Some(packet) = again {
                t.rx(packet);
            }
        }
        Event::FlushAgain(n) => {
            if let Some(packet) = model.latest(n, true).and_then(|at| model.again(at, 0)) {
                t.rx(packet);
            }
        }
        Event::Key(alive) => {
            model.alive = alive;
            t.mem.alive = alive;
        }
        Event::Limit(limit) => {
            model.limit = limit;
            if model.kept != 0 {
                model.kept = model.kept.max(limit.into());
            }
            let attr = QpAttr {
                max_dest_rd_atomic: Some(limit),
                ..QpAttr::default()
            };
            t.qp.modify(&attr, &mut t.log).unwrap();
        }
        Event::Lap(short, acks) if model.requests.iter().all(|r| r.owed.is_empty()) => {
            if !acks {
                skip_silently(t, model, LAP - short);
                return;
            }
            for _ in 0..3 {
                skip(t, model, LAP / 4);
            }
            skip(t, model, LAP / 4 - 4 - short);
        }
        Event::New(_) | Event::Lap(..) | Event::Answer => {}
    }
}

fn walk(first: u32, events: &[Event]) {
    let mut setup = Setup {
        access: Access::all(),
        ..Setup::default()
    };
    setup.rtr.rq_psn = Some(Psn::new(first));
    setup.rtr.max_dest_rd_atomic = Some(LEAST as u8);
    let mut t = setup.build();
    t.mem.access = Access::all();
    t.mem.bytes[64..72].fill(0);
    t.qp.modify(&QpAttr::state(QpState::Sqd), &mut t.log)
        .unwrap();
    let mut model = Model {
        requests: Vec::new(),
        window: 0,
        next_psn: first.into(),
        word: 0,
        limit: LEAST as u8,
        kept: 0,
        alive: true,
    };
    for &event in events {
        happen(&mut t, &mut model, event);
        if event == Event::Answer {
            let answer = model.answer();
            assert_eq!(said(&mut t), answer);
            if matches!(answer, Some((_, O::RcAcknowledge, _))) {
                assert_eq!(t.qp.state(), QpState::Err);
                return;
            }
        }
        assert_eq!(t.qp.state(), QpState::Sqd);
    }
    let word = u64::from_ne_bytes(t.mem.bytes[64..72].try_into().unwrap());
    assert_eq!(word, model.word);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn s12_long_lives_with_laps_keys_and_other_limits(
        first in 0..LAP as u32,
        events in proptest::collection::vec(event(), 1..120),
    ) {
        walk(first, &events);
    }
}
