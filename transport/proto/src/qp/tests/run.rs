//! Runs against their slow twin: whatever is posted and whatever comes, a queue pair that is asked
//! for runs sends the same packets as one that is asked packet by packet.

use proptest::prelude::*;

use super::*;
use crate::qp::{Look, Run};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Operation, length, which of the unusual things about it.
    Post(u8, u32, u8),
    /// The peer's answer to the PSN so far beyond the oldest.
    Ack(u8),
    Nak(u8),
    Rnr(u8),
    /// A SEND of the peer.
    Arrival,
    /// Time.
    Wait(u16),
    /// So many packets may leave.
    Turn(u8),
    /// SQD, and back to RTS.
    Drain(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![0..70u32, 1000..1100u32, 2000..9000u32];
    prop_oneof![
        8 => (0..6u8, len, 0..40u8).prop_map(|(op, len, odd)| Step::Post(op, len, odd)),
        4 => (0..12u8).prop_map(Step::Ack),
        1 => (0..12u8).prop_map(Step::Nak),
        1 => (0..12u8).prop_map(Step::Rnr),
        2 => Just(Step::Arrival),
        1 => (0..2000u16).prop_map(Step::Wait),
        8 => (1..20u8).prop_map(Step::Turn),
        1 => any::<bool>().prop_map(Step::Drain),
    ]
}

impl Bench {
    /// What the engine does with a run.
    fn follow(&mut self, most: usize, into: &mut Vec<Vec<u8>>) -> bool {
        let mut cx = Cx {
            now: self.now,
            mem: &mut self.mem,
            sink: &mut self.log,
        };
        let Some(mut run): Option<Run<'_>> = self.qp.run(self.now) else {
            return false;
        };
        let (dst, class) = run.path();
        assert_eq!((dst, class), (path().dst, path().traffic_class));
        while into.len() < most {
            let Look::Packet(ahead) = run.look() else {
                return matches!(run.look(), Look::Done);
            };
            let mut frame = [0x55; 5000];
            let Some(len) = run.write(&mut cx, &ahead, &mut frame) else {
                return false;
            };
            into.push(frame[..len].to_vec());
        }
        false
    }

    fn turn(&mut self, most: usize, by_runs: bool) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while all.len() < most {
            if by_runs && self.follow(most, &mut all) {
                // Done must mean what the slow twin says.
                assert!(self.tx_frame().is_none(), "a run ended too early");
                break;
            }
            if all.len() == most {
                break;
            }
            let Some(frame) = self.tx_frame() else { break };
            all.push(frame);
        }
        all
    }

    fn act(&mut self, step: Step, n: u64) {
        match step {
            Step::Post(op, len, odd) => {
                let (va, rkey) = (Va::new(BASE + 64), RKey::new(KEY));
                let op = match op {
                    0 | 1 => SendOp::Send,
                    2 | 3 => SendOp::Write { va, rkey },
                    4 if odd < 8 => SendOp::SendImm([1, 2, 3, 4]),
                    4 => SendOp::Send,
                    _ if odd < 8 => SendOp::Read { va, rkey },
                    _ => SendOp::Write { va, rkey },
                };
                let mut flags = SendFlags::SIGNALED;
                flags.set(SendFlags::FENCE, odd == 9);
                flags.set(SendFlags::SOLICITED, odd == 10);
                let key = if odd == 11 { KEY + 1 } else { KEY };
                let one = Sge {
                    lkey: LKey::new(key),
                    va: Va::new(BASE + u64::from(odd)),
                    len,
                };
                let (few, many) = ([one], [one, sge(5, 33)]);
                let sges = if odd == 12 { &many[..] } else { &few[..] };
                let wr = SendWr {
                    wr_id: n,
                    op,
                    flags,
                    data: Data::Sges(sges),
                };
                let _ = self.qp.post_send(&wr, &mut self.log);
            }
            Step::Ack(ahead) => self.rx(ack(0x100 + u32::from(ahead) + self.offset())),
            Step::Nak(ahead) => self.rx(nak(0x100 + u32::from(ahead) + self.offset(), 0x60)),
            Step::Rnr(ahead) => self.rx(nak(0x100 + u32::from(ahead) + self.offset(), 0x21)),
            Step::Arrival => {
                self.recv(n, 100);
                let psn = self.qp.rx.expected_psn.value();
                self.rx(p(Opcode::RcSendOnly, psn).a().len(20));
            }
            Step::Wait(us) => self.wait(Duration::from_nanos(u64::from(us) * 1000)),
            Step::Drain(true) => {
                let _ = self.qp.modify(&QpAttr::state(QpState::Sqd), &mut self.log);
            }
            Step::Drain(false) => {
                let _ = self.qp.modify(&QpAttr::state(QpState::Rts), &mut self.log);
            }
            Step::Turn(_) => {}
        }
    }

    /// How far the oldest unacknowledged PSN is from the first.
    fn offset(&self) -> u32 {
        self.qp.tx.una_psn.value() - 0x100
    }
}

fn build(window: u32, limit: Option<u64>) -> Bench {
    let mut setup = Setup::default();
    setup.init.max_recv_wr = 128;
    setup.rts.congestion = Some(crate::cc::CongestionControl::Fixed(crate::cc::Fixed::new(
        crate::cc::Rate::UNLIMITED,
        window,
    )));
    setup.rts.rate_limit = limit.map(crate::cc::Rate::bits_per_second);
    setup.build()
}

proptest! {
    #[test]
    fn a_run_sends_what_its_slow_twin_sends(
        window in 2..40u32,
        limit in prop_oneof![Just(None), (1_000_000..20_000_000_000u64).prop_map(Some)],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let (mut fast, mut slow) = (build(window, limit), build(window, limit));
        for (n, step) in steps.into_iter().enumerate() {
            fast.act(step, n as u64);
            slow.act(step, n as u64);
            if let Step::Turn(most) = step {
                let (a, b) = (fast.turn(most.into(), true), slow.turn(most.into(), false));
                prop_assert_eq!(a.len(), b.len());
                for (a, b) in a.iter().zip(&b) {
                    let shown = |f: &[u8]| text(&Packet::parse(f).unwrap());
                    prop_assert_eq!(shown(a), shown(b));
                    prop_assert_eq!(a, b);
                }
            }
            prop_assert_eq!(&fast.log.sends, &slow.log.sends);
            prop_assert_eq!(&fast.log.recvs, &slow.log.recvs);
            prop_assert_eq!(fast.qp.counters(), slow.qp.counters());
            prop_assert_eq!(fast.qp.poll_timeout(), slow.qp.poll_timeout());
            prop_assert_eq!(fast.qp.state(), slow.qp.state());
        }
    }
}

/// The property above would hold if no run ever began.
#[test]
fn plain_messages_are_sent_by_runs() {
    let mut bench = build(64, None);
    bench.send(1, SendOp::Send, 100);
    let (va, rkey) = (Va::new(BASE), RKey::new(KEY));
    bench.send(2, SendOp::Write { va, rkey }, 3000);
    let mut frames = Vec::new();
    assert!(bench.follow(100, &mut frames), "all is sent");
    assert_eq!(frames.len(), 4);
}
