//! SACKs with anything in their fields.

use super::*;
use proptest::prelude::*;

fn any_seth() -> impl Strategy<Value = Seth> {
    let near = (0x80u32..0x200).prop_map(Psn::new);
    let psn = prop_oneof![near, any::<u32>().prop_map(Psn::new)];
    let offset = prop_oneof![Just(i16::MIN), Just(i16::MAX), -200i16..200, any::<i16>()];
    let cause = prop_oneof![
        any::<u16>().prop_map(SackCause::Probe),
        (0u16..4).prop_map(SackCause::Probe),
        (offset.clone(), any::<bool>())
            .prop_map(|(offset, again)| SackCause::Packet { offset, again }),
    ];
    (cause, psn, any::<u8>(), offset, any::<u64>()).prop_map(
        |(cause, cack_psn, mpr, sack_offset, bitmap)| Seth {
            cause,
            cack_psn,
            mpr,
            sack_offset,
            bitmap,
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Sack(Seth),
    Nak(u32, u8),
    Answer(u32, usize),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any_seth().prop_map(Step::Sack),
        1 => (0xf0u32..0x160, prop_oneof![Just(0x1f), Just(0x21), Just(0x60)])
            .prop_map(|(psn, syndrome)| Step::Nak(psn, syndrome)),
        1 => (0xf0u32..0x160, prop_oneof![Just(MTU), Just(8)])
            .prop_map(|(psn, len)| Step::Answer(psn, len)),
        1 => (1u64..2000).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Nothing is acknowledged that was not sent, nothing is completed out of order, and what was
    /// sent is in the window and the range.
    #[test]
    fn anything_may_be_in_a_sack(steps in proptest::collection::vec(any_step(), 1..60)) {
        let mut t = bench();
        let mut next = 0;
        for (wr_id, step) in (0..).zip(steps) {
            match wr_id % 3 {
                0 => t.send(wr_id, SendOp::Send, 8),
                1 => t.send(wr_id, write(0x10), 3 * MTU as u32),
                _ => t.send(wr_id, read(0x3000), 2 * MTU as u32),
            }
            t.tx();
            match step {
                Step::Sack(seth) => {
                    let mut packet = p(Opcode::ExtSack, seth.cack_psn.value());
                    packet.seth = seth;
                    t.rx(packet);
                }
                Step::Nak(psn, byte) => t.rx(nak(psn, byte)),
                Step::Answer(psn, len) => {
                    t.rx(response(Opcode::RcReadResponseOnly, psn, len));
                }
                Step::Wait(micros) => t.wait(us(micros)),
            }
            t.tx();
            let (max, una) = t.qp.send_psns();
            let outstanding = una.distance_to(max);
            prop_assert!((0..=128).contains(&outstanding), "{outstanding}");
            prop_assert!(t.qp.gauges().in_flight <= 128);
            for (done, status) in t.sent() {
                prop_assert_eq!(done, next);
                next += 1;
                let first = 0x100 + next_psn(done);
                prop_assert!(status != WcStatus::Success || Psn::new(first).is_before(max));
            }
            if t.qp.state() == QpState::Err {
                break;
            }
        }
    }
}

/// PSNs of the requests before number `n`.
fn next_psn(n: u64) -> u32 {
    (0..n).map(|i| [1, 3, 2][(i % 3) as usize]).sum()
}

#[test]
fn a_sack_at_the_ends_of_its_fields_says_what_it_says() {
    let mut t = bench();
    for wr_id in 0..4 {
        t.send(wr_id, SendOp::Send, 8);
    }
    t.tx();
    for (sack_offset, bitmap) in [(i16::MIN, u64::MAX), (i16::MAX, u64::MAX), (0, 0)] {
        let mut packet = sack(0x100, &[], 0x100);
        packet.seth.sack_offset = sack_offset;
        packet.seth.bitmap = bitmap;
        t.rx(packet);
    }
    t.expect_silence();
    assert_eq!(t.sent(), []);
    // Beyond what was sent: as if it had not come.
    let ghosts = t.qp.counters().ghost_responses;
    t.rx(sack(0x105, &[], 0x104));
    assert_eq!(t.qp.counters().ghost_responses, ghosts + 1);
    assert_eq!(t.sent(), []);
    // Bits for PSNs not sent say nothing when those are sent.
    t.rx(sack(0x100, &[0x104, 0x105, 0x106, 0x107], 0x107));
    for wr_id in 4..8 {
        t.send(wr_id, SendOp::Send, 8);
    }
    t.tx();
    assert_eq!(t.qp.gauges().in_flight, 8);
}
