//! Responder resources against a slow model, over all orders in which four requests and copies of
//! them can arrive while the answers leave packet by packet.

use super::*;
use xroce_wire::opcode::Opcode as O;

/// Resources of the responder: fewer than there are requests.
const RESOURCES: usize = 2;
const REQUESTS: usize = 4;
/// Things that happen in one run.
const TURNS: u32 = 6;
const FIRST: u32 = 0xff_fffd;
const WORD: u64 = BASE + 64;
/// A READ of two packets, in the first of which is the word.
const READ_LEN: u32 = MTU as u32 + 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    Add,
    Swap,
    Store,
}
use Kind::{Add, Read, Store, Swap};

/// What a response says: PSN, opcode, original value, start of the payload.
type Said = (u32, O, u64, Vec<u8>);

/// A request the model has accepted.
#[derive(Clone, Debug)]
struct Accepted {
    kind: Kind,
    psn: u32,
    original: u64,
    /// Packets still to be sent, by index.
    owed: Vec<u32>,
    answered: bool,
}

/// The model: a list of all that was accepted, of which only the last few are remembered.
#[derive(Default)]
struct Model {
    accepted: Vec<Accepted>,
    word: u64,
    executed: u32,
}

impl Model {
    fn remembered(&mut self) -> &mut [Accepted] {
        let first = self.accepted.len().saturating_sub(RESOURCES);
        &mut self.accepted[first..]
    }

    /// False if the peer has asked for more than it may.
    fn arrives(&mut self, kinds: [Kind; REQUESTS], n: usize) -> bool {
        let next = self.accepted.len();
        if n > next {
            return true;
        }
        if n < next {
            let first = next.saturating_sub(RESOURCES);
            if n >= first {
                let it = &mut self.accepted[n];
                it.owed = packets(it.kind);
            }
            return true;
        }
        let oldest_is_open = next >= RESOURCES && !self.accepted[next - RESOURCES].answered;
        if oldest_is_open {
            return false;
        }
        let (kind, original) = (kinds[n], self.word);
        self.word = match kind {
            Read => self.word,
            Add => self.word.wrapping_add(operand(n)),
            Swap if self.word == compare(n) => operand(n),
            Swap => self.word,
            Store => operand(n),
        };
        self.executed += u32::from(kind != Read);
        self.accepted.push(Accepted {
            kind,
            psn: psn(kinds, n),
            original,
            owed: packets(kind),
            answered: false,
        });
        true
    }

    fn sends(&mut self, word_at: &[u8]) -> Option<Said> {
        let word = self.word.to_ne_bytes();
        let it = self.remembered().iter_mut().find(|a| !a.owed.is_empty())?;
        let index = it.owed.remove(0);
        it.answered |= it.owed.is_empty();
        let psn = Psn::new(it.psn).add(index).value();
        Some(match (it.kind, index) {
            (Read, 0) => (psn, O::RcReadResponseFirst, 0, word.to_vec()),
            (Read, _) => (psn, O::RcReadResponseLast, 0, word_at.to_vec()),
            (Add | Swap, _) => (psn, O::RcAtomicAcknowledge, it.original, Vec::new()),
            (Store, _) => (psn, O::RcReadResponseOnly, 0, Vec::new()),
        })
    }
}

fn packets(kind: Kind) -> Vec<u32> {
    if kind == Read { vec![0, 1] } else { vec![0] }
}

fn psn(kinds: [Kind; REQUESTS], n: usize) -> u32 {
    let before = kinds[..n].iter().map(|&k| packets(k).len() as u32);
    Psn::new(FIRST).add(before.sum()).value()
}

/// Of every request another one.
fn operand(n: usize) -> u64 {
    0x0101 << (16 * n)
}

fn compare(n: usize) -> u64 {
    operand(n).wrapping_sub(1) & 1
}

fn request(kinds: [Kind; REQUESTS], n: usize) -> P {
    let psn = psn(kinds, n);
    match kinds[n] {
        Read => p(O::RcReadRequest, psn).a().reth(WORD, KEY, READ_LEN),
        Add => p(O::RcFetchAdd, psn).a().atomic(WORD, KEY, operand(n), 0),
        Swap => p(O::RcCmpSwap, psn)
            .a()
            .atomic(WORD, KEY, operand(n), compare(n)),
        Store => p(O::RcAtomicWrite, psn)
            .a()
            .reth(WORD, KEY, 8)
            .bytes(&operand(n).to_ne_bytes()),
    }
}

/// The next packet that is a response of its own and no ACK or NAK.
fn said(t: &mut Bench) -> Option<Said> {
    while let Some(frame) = t.tx_frame() {
        let pkt = Packet::parse(&frame).unwrap();
        if pkt.opcode() != O::RcAcknowledge {
            let original = pkt.atomic_ack().map_or(0, |a| a.original);
            let start = pkt.payload().get(..8).unwrap_or_default().to_vec();
            return Some((pkt.psn().value(), pkt.opcode(), original, start));
        }
    }
    None
}

/// A QP in RTS whose peer begins anew.
fn renew(t: &mut Bench) {
    let mut rtr = QpAttr::rtr(path(), PathMtu::Mtu1024, PEER, Psn::new(FIRST));
    rtr.max_dest_rd_atomic = Some(RESOURCES as u8);
    for attr in [
        QpAttr::state(QpState::Reset),
        QpAttr::init(Access::all()),
        rtr,
        QpAttr::rts(Psn::new(0)),
    ] {
        t.qp.modify(&attr, &mut t.log).unwrap();
    }
    t.mem.atomics = 0;
    t.mem.bytes[64..72].fill(0);
}

/// One run: in each turn a request arrives, for the first time or again, or a packet leaves.
/// Returns how many copies were answered.
fn run(t: &mut Bench, kinds: [Kind; REQUESTS], mut order: u32) -> u32 {
    renew(t);
    let last = t.mem.bytes[64 + MTU..64 + MTU + 8].to_vec();
    let mut model = Model::default();
    let mut repeated = 0;
    for _ in 0..TURNS {
        let what = (order % (REQUESTS as u32 + 1)) as usize;
        order /= REQUESTS as u32 + 1;
        if what == REQUESTS {
            assert_eq!(said(t), model.sends(&last), "{kinds:?}");
            continue;
        }
        repeated += u32::from(what < model.accepted.len());
        t.rx(request(kinds, what));
        if !model.arrives(kinds, what) {
            assert_eq!(t.qp.state(), QpState::Err, "{kinds:?}");
            break;
        }
        assert_eq!(t.qp.state(), QpState::Rts, "{kinds:?}");
    }
    loop {
        let response = said(t);
        assert_eq!(response, model.sends(&last), "{kinds:?}");
        if response.is_none() {
            break;
        }
    }
    assert_eq!(t.mem.atomics, model.executed, "{kinds:?}: each once");
    let word = u64::from_ne_bytes(t.mem.bytes[64..72].try_into().unwrap());
    assert_eq!(word, model.word, "{kinds:?}");
    repeated
}

/// Rules S12, S13.
#[test]
fn s12_every_order_of_requests_copies_and_answers() {
    let mut t = Setup {
        access: Access::all(),
        ..Setup::default()
    }
    .build();
    t.mem.access = Access::all();
    let mut repeated = 0;
    for kinds in [
        [Add, Store, Add, Add],
        [Read, Add, Swap, Read],
        [Swap, Read, Read, Store],
    ] {
        for order in 0..(REQUESTS as u32 + 1).pow(TURNS) {
            repeated += run(&mut t, kinds, order);
        }
    }
    assert!(repeated > 10_000, "{repeated}");
}
