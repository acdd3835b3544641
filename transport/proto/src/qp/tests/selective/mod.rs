//! Transcripts of a selective queue pair.

mod hostile;
mod reads;
mod requester;
mod responder;
mod timers;

use super::*;
use crate::recovery::{Reliability, SelectiveParams};

/// Small enough to see the limits: 128 PSNs, 2 may overtake, 4 slots.
fn params() -> SelectiveParams {
    SelectiveParams {
        range: 128,
        window: 100,
        tolerance: 2,
        store: 4,
        ..SelectiveParams::default()
    }
}

/// A queue pair that expects PSN 0x100 and sends from 0x100.
fn bench() -> Bench {
    with(params(), 0x100)
}

fn with(params: SelectiveParams, psn: u32) -> Bench {
    let mut setup = Setup::default();
    setup.init.max_send_wr = 256;
    setup.access |= Access::REMOTE_ATOMIC;
    setup.rtr.reliability = Some(Reliability::Selective(params));
    setup.rtr.rq_psn = Some(Psn::new(psn));
    setup.rts.sq_psn = Some(Psn::new(psn));
    let mut t = setup.build();
    t.mem.access |= Access::REMOTE_ATOMIC;
    introduce(&mut t, psn);
    t
}

/// The peer shows that it knows of SACKs, by a probe; PSN and MSN are as before.
pub(super) fn introduce(t: &mut Bench, psn: u32) {
    let before = Psn::new(psn).sub(1).value();
    t.rx(probe(before, 0));
    t.tx();
}

/// A SACK: all before `expected` and the packets of these PSNs were received; made for `psn`.
fn sack(expected: u32, psns: &[u32], psn: u32) -> P {
    let cack = Psn::new(expected).sub(1);
    let far = |to: u32| i16::try_from(cack.distance_to(Psn::new(to))).unwrap();
    let mut packet = p(Opcode::ExtSack, cack.value());
    let base = psns.first().map_or(expected, |&first| first);
    let bit = |&n: &u32| 1u64 << Psn::new(base).distance_to(Psn::new(n));
    packet.seth = Seth {
        cause: SackCause::Packet {
            offset: far(psn),
            again: false,
        },
        cack_psn: cack,
        mpr: 1,
        sack_offset: far(base),
        bitmap: psns.iter().map(bit).sum(),
    };
    packet
}

/// The same, for a packet that had come before.
fn sack_again(expected: u32, psns: &[u32], psn: u32) -> P {
    let mut packet = sack(expected, psns, psn);
    if let SackCause::Packet { again, .. } = &mut packet.seth.cause {
        *again = true;
    }
    packet
}

fn sack_of_probe(expected: u32, psns: &[u32], id: u16) -> P {
    let mut packet = sack(expected, psns, expected);
    packet.seth.cause = SackCause::Probe(id);
    packet
}

fn probe(psn: u32, probe_id: u16) -> P {
    P {
        probe_id,
        ..p(Opcode::ExtProbe, psn)
    }
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// Measures a round trip of so many µs by a SEND of its own.
fn measured(t: &mut Bench, micros: u64) {
    t.send(99, SendOp::Send, 8);
    let sent = t.tx().pop().unwrap();
    let psn = u32::from_str_radix(sent.split(' ').nth(2).unwrap(), 16).unwrap();
    t.now += us(micros);
    t.rx(ack(psn));
    assert_eq!(t.sent(), [(99, WcStatus::Success)]);
}
