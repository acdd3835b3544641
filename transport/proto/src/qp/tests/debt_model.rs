//! Every order in which four requests and copies of them can arrive while what is owed leaves
//! packet by packet: the peer hears of all that was executed and of all that is missing, and of
//! nothing it never sent.

use super::*;
use xroce_wire::opcode::Opcode as O;

const REQUESTS: u32 = 4;
const TURNS: u32 = 6;
const FIRST: u32 = 0xff_fffe;

/// What the requests are, one letter each: `s` a SEND, `S` one that asks for its ACK, `R` a READ.
type Kinds = &'static [u8; REQUESTS as usize];

/// How far behind the first PSN.
fn nth(psn: Psn) -> i32 {
    Psn::new(FIRST).distance_to(psn)
}

fn request(kinds: Kinds, n: u32) -> P {
    let psn = Psn::new(FIRST).add(n).value();
    match kinds[n as usize] {
        b'R' => p(O::RcReadRequest, psn).a().reth(BASE, KEY, 8),
        b'S' => p(O::RcSendOnly, psn).len(8).a(),
        _ => p(O::RcSendOnly, psn).len(8),
    }
}

/// What the peer has been told and what it should have been.
#[derive(Default)]
struct Watch {
    /// So many are executed.
    executed: i32,
    /// Highest request that ever arrived.
    highest: i32,
    /// The highest that asked for an ACK since it was last given one.
    unacknowledged: Option<i32>,
    /// The highest that was dropped and of which no NAK has told.
    untold: Option<i32>,
    /// A NAK was sent for the gap at hand.
    told: bool,
}

impl Watch {
    fn arrives(&mut self, kinds: Kinds, n: i32, receives: bool) {
        self.highest = self.highest.max(n);
        let kind = kinds[usize::try_from(n).unwrap()];
        if n > self.executed {
            // What comes behind a NAK was sent before it arrived.
            if !self.told {
                self.untold = self.untold.max(Some(n));
            }
            return;
        }
        if n == self.executed {
            self.told = false;
            if kind != b'R' && !receives {
                self.untold = self.untold.max(Some(n));
                return;
            }
            self.executed += 1;
            self.untold = self.untold.filter(|&n| n >= self.executed);
        }
        // A READ that comes again is answered and acknowledges nothing new.
        if kind == b'S' || kind == b'R' && n + 1 == self.executed {
            self.unacknowledged = self.unacknowledged.max(Some(n));
        }
    }

    fn leaves(&mut self, pkt: &Packet<'_>) {
        let n = nth(pkt.psn());
        let syndrome = pkt.aeth().map_or(0x1f, |a| a.syndrome.to_u8());
        let acknowledged = if syndrome == 0x1f {
            assert!(n < self.executed, "acknowledges what is not executed");
            n
        } else {
            assert!(n <= self.highest, "a NAK of what was never sent");
            assert_eq!(n, self.executed, "a NAK of another PSN");
            self.told = true;
            self.untold = None;
            n - 1
        };
        if self.unacknowledged.is_some_and(|n| n <= acknowledged) {
            self.unacknowledged = None;
        }
    }
}

fn renew(t: &mut Bench) {
    for attr in [
        QpAttr::state(QpState::Reset),
        QpAttr::init(Access::all()),
        QpAttr::rtr(path(), PathMtu::Mtu1024, PEER, Psn::new(FIRST)),
        QpAttr::rts(Psn::new(0)),
    ] {
        t.qp.modify(&attr, &mut t.log).unwrap();
    }
    t.log.recvs.clear();
}

/// `receives` are there from the beginning, the others come with turn 3.
fn run(t: &mut Bench, kinds: Kinds, receives: u32, mut order: u32) {
    renew(t);
    let mut posted = 0;
    let mut watch = Watch::default();
    let what = format!("{} order {order}", String::from_utf8_lossy(kinds));
    for turn in 0..TURNS {
        let goal = if turn < 3 { receives } else { REQUESTS };
        while posted < goal {
            t.recv(posted.into(), 64);
            posted += 1;
        }
        let choice = order % (REQUESTS + 1);
        order /= REQUESTS + 1;
        if choice == REQUESTS {
            if let Some(frame) = t.tx_frame() {
                watch.leaves(&Packet::parse(&frame).unwrap());
            }
        } else {
            let executed = usize::try_from(watch.executed).unwrap();
            let used = kinds[..executed].iter();
            let used = used.filter(|&&kind| kind != b'R').count() as u32;
            t.rx(request(kinds, choice));
            watch.arrives(kinds, i32::try_from(choice).unwrap(), used < posted);
        }
    }
    while let Some(frame) = t.tx_frame() {
        watch.leaves(&Packet::parse(&frame).unwrap());
    }
    assert_eq!(nth(t.qp.expected_psn()), watch.executed, "{what}");
    assert_eq!(watch.unacknowledged, None, "{what}: no ACK");
    assert_eq!(watch.untold, None, "{what}: no NAK");
}

#[test]
fn what_is_owed_is_told_in_every_order() {
    let mut t = Setup {
        access: Access::all(),
        ..Setup::default()
    }
    .build();
    t.mem.access = Access::all();
    let kinds: [Kinds; 4] = [b"SSSS", b"sSsS", b"RsRS", b"sRss"];
    for kinds in kinds {
        for receives in [0, 1, REQUESTS] {
            for order in 0..(REQUESTS + 1).pow(TURNS) {
                run(&mut t, kinds, receives, order);
            }
        }
    }
}
