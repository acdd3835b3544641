//! Notification against all interleavings, queues against slow models.

use std::collections::VecDeque;

use proptest::prelude::*;
use xroce_api::Notify;
use xroce_proto::wc::WcOpcode;

use super::*;

fn wc(wr_id: u64, flags: WcFlags, status: WcStatus) -> Completion {
    Completion {
        wr_id,
        flags,
        status,
        opcode: WcOpcode::Recv,
        ..Completion::EMPTY
    }
}

fn plain(wr_id: u64) -> Completion {
    wc(wr_id, WcFlags::empty(), WcStatus::Success)
}

fn solicited(wr_id: u64) -> Completion {
    wc(wr_id, WcFlags::SOLICITED, WcStatus::Success)
}

fn error(wr_id: u64) -> Completion {
    wc(wr_id, WcFlags::empty(), WcStatus::WrFlushErr)
}

fn table(depth: u32) -> (CqTable, Cq) {
    let mut table = CqTable::default();
    let cq = table.create(depth).unwrap();
    (table, cq)
}

fn drain(table: &mut CqTable, cq: Cq) -> Vec<u64> {
    let mut out = [Completion::EMPTY; 64];
    let n = table.poll(cq, &mut out);
    out[..n].iter().map(|c| c.wr_id).collect()
}

/// What a consumer does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Poll,
    Arm,
    /// After arming.
    PollAgain,
    /// Sleep until a notification.
    Wait,
}

/// Runs one interleaving: in turn `i` the producer moves if bit `i` of `order` is set. Returns
/// how many completions the consumer has when neither can move any more.
fn interleave(order: u32, turns: u32, work: &[Completion], notify: Notify, careful: bool) -> usize {
    let (mut table, cq) = table(16);
    let (mut made, mut seen) = (work.iter(), 0);
    let mut step = Step::Poll;
    let mut fired = 0;
    let mut armings = 0;
    let mut consume = |table: &mut CqTable, step: Step| match step {
        Step::Poll | Step::PollAgain => {
            seen += drain(table, cq).len();
            if step == Step::Poll {
                Step::Arm
            } else {
                Step::Wait
            }
        }
        Step::Arm => {
            armings += 1;
            let waiting = table.arm(cq, notify).unwrap();
            if waiting && careful {
                Step::PollAgain
            } else {
                Step::Wait
            }
        }
        Step::Wait => match table.poll_notification() {
            Some(of) => {
                assert_eq!(of, cq);
                fired += 1;
                assert!(fired <= armings, "more than one notification per arming");
                Step::Poll
            }
            None => Step::Wait,
        },
    };
    for turn in 0..turns {
        if order >> turn & 1 == 1
            && let Some(&wc) = made.next()
        {
            table.complete(cq, wc);
        } else {
            step = consume(&mut table, step);
        }
    }
    for &wc in made {
        table.complete(cq, wc);
    }
    // The consumer alone, until it sleeps without anything to wake it.
    for _ in 0..50 {
        step = consume(&mut table, step);
    }
    assert_eq!(step, Step::Wait);
    assert_eq!(table.poll_notification(), None);
    seen
}

/// All interleavings of four completions with twelve steps of the consumer.
const TURNS: u32 = 14;

#[test]
fn case_79_no_wake_up_is_lost_in_any_interleaving() {
    let work: Vec<Completion> = (0..4).map(plain).collect();
    for order in 0..1 << TURNS {
        let seen = interleave(order, TURNS, &work, Notify::Any, true);
        assert_eq!(seen, 4, "{order:#b}");
    }
}

/// Rule C8.
#[test]
fn case_79_solicited_only_wakes_for_solicited_and_for_errors() {
    // The consumer waits for the message that is solicited: all before it must be there then.
    for last in [solicited(3), error(3)] {
        let work = [plain(0), plain(1), plain(2), last];
        for order in 0..1 << TURNS {
            let seen = interleave(order, TURNS, &work, Notify::Solicited, true);
            assert_eq!(seen, 4, "{order:#b}");
        }
    }
    // What is neither wakes nobody.
    let work = [plain(0), plain(1)];
    let asleep =
        (0..1 << TURNS).filter(|&o| interleave(o, TURNS, &work, Notify::Solicited, true) < 2);
    assert!(asleep.count() > 0);
}

#[test]
fn case_79_the_model_finds_a_consumer_that_does_not_poll_again() {
    let work: Vec<Completion> = (0..4).map(plain).collect();
    let lost = (0..1 << TURNS).find(|&o| interleave(o, TURNS, &work, Notify::Any, false) < 4);
    assert!(lost.is_some());
}

#[test]
fn arming_fires_once_and_solicited_does_not_weaken_any() {
    let (mut table, cq) = table(16);
    assert_eq!(table.arm(cq, Notify::Solicited), Some(false));
    assert_eq!(table.arm(cq, Notify::Any), Some(false));
    assert_eq!(table.arm(cq, Notify::Solicited), Some(false));
    table.complete(cq, plain(0));
    table.complete(cq, plain(1));
    assert!(table.has_notification());
    assert_eq!(table.poll_notification(), Some(cq));
    assert_eq!(table.poll_notification(), None);
    // What is there already is told by arming, and fires nothing.
    assert_eq!(table.arm(cq, Notify::Any), Some(true));
    assert!(!table.has_notification());
    // Two armings that fired are two notifications, even if nobody took the first.
    table.complete(cq, plain(2));
    table.arm(cq, Notify::Any);
    table.complete(cq, plain(3));
    let both = std::iter::from_fn(|| table.poll_notification());
    assert_eq!(both.count(), 2);
    assert_eq!(table.arm(Cq(77), Notify::Any), None);
}

#[test]
fn two_queues_are_told_apart_and_a_destroyed_one_is_silent() {
    let (mut table, a) = table(4);
    let b = table.create(4).unwrap();
    for cq in [a, b] {
        table.arm(cq, Notify::Any);
        table.complete(cq, plain(0));
    }
    assert_eq!(table.destroy(a), Ok(()));
    assert_eq!(table.destroy(a), Err(Kept::Unknown));
    assert_eq!(table.poll_notification(), Some(b));
    assert_eq!(table.poll_notification(), None);
    let c = table.create(4).unwrap();
    assert_ne!(a, c);
    table.complete(a, plain(1));
    assert!(
        drain(&mut table, c).is_empty(),
        "a stale handle reaches nobody"
    );
    assert!(drain(&mut table, a).is_empty());
}

#[test]
fn a_used_queue_is_not_destroyed() {
    let (mut table, cq) = table(4);
    table.add_users(cq, 1);
    table.complete(cq, plain(1));
    assert_eq!(table.destroy(cq), Err(Kept::Used(1)));
    assert_eq!(drain(&mut table, cq), [1]);
    table.add_users(cq, -1);
    assert_eq!(table.destroy(cq), Ok(()));
}

#[test]
fn case_78_resizing_loses_nothing_and_overrun_is_told() {
    let (mut table, cq) = table(1);
    table.complete(cq, plain(0));
    table.complete(cq, plain(1));
    assert_eq!(table.overflow_count, 1);
    assert_eq!(table.take_overflow(), Some(cq));
    assert_eq!(table.resize(cq, 3), Ok(()));
    table.complete(cq, plain(2));
    table.complete(cq, plain(3));
    assert_eq!(table.resize(cq, 2), Err(Resize::TooSmall(3)));
    assert_eq!(table.resize(Cq(9), 2), Err(Resize::Unknown));
    table.complete(cq, plain(4));
    assert_eq!(table.overflow_count, 2);
    assert_eq!(drain(&mut table, cq), [0, 2, 3]);
    // Armed it stays.
    table.arm(cq, Notify::Any);
    assert_eq!(table.resize(cq, 1), Ok(()));
    table.complete(cq, plain(5));
    assert_eq!(table.poll_notification(), Some(cq));
}

/// Rule C7.
#[test]
fn case_119_every_overrun_of_a_queue_is_told() {
    let told = |table: &mut CqTable| std::iter::from_fn(|| table.take_overflow()).count();
    let (mut table, cq) = table(1);
    table.complete(cq, plain(1));
    table.complete(cq, plain(2));
    table.complete(cq, plain(3));
    assert_eq!(
        told(&mut table),
        1,
        "once for all that was lost since last asked"
    );
    // Nobody polled: another queue pair may have lost it.
    table.complete(cq, plain(4));
    assert_eq!(told(&mut table), 1);
    assert_eq!(drain(&mut table, cq), [1]);
    table.complete(cq, plain(5));
    assert_eq!(told(&mut table), 0, "there was room");
    table.complete(cq, plain(6));
    assert_eq!(told(&mut table), 1);
    assert_eq!(table.resize(cq, 2), Ok(()));
    table.complete(cq, plain(7));
    assert_eq!(told(&mut table), 0);
    table.complete(cq, plain(8));
    assert_eq!(told(&mut table), 1);
    assert_eq!(drain(&mut table, cq), [5, 7]);
    assert_eq!(table.overflow_count, 5);
    // A queue that goes takes what was not told with it.
    table.complete(cq, plain(9));
    table.complete(cq, plain(10));
    table.complete(cq, plain(11));
    assert_eq!(table.destroy(cq), Ok(()));
    assert_eq!(told(&mut table), 0);
}

#[derive(Clone, Debug)]
enum Op {
    Complete(u8),
    Poll(usize),
    Arm(bool),
    Resize(u32),
    Notification,
    Settle,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u8..3).prop_map(Op::Complete),
        2 => (0usize..5).prop_map(Op::Poll),
        2 => any::<bool>().prop_map(Op::Arm),
        1 => (1u32..9).prop_map(Op::Resize),
        2 => Just(Op::Notification),
        1 => Just(Op::Settle),
    ]
}

proptest! {
    #[test]
    fn a_queue_is_its_model(ops in proptest::collection::vec(op(), 1..120)) {
        let (mut table, cq) = table(4);
        let mut queued = VecDeque::new();
        let (mut depth, mut armed, mut fired, mut lost) = (4, None, 0, 0);
        let mut untold = false;
        for (id, op) in (0u64..).zip(ops) {
            match op {
                Op::Complete(kind) => {
                    let wc = [plain, solicited, error][usize::from(kind)](id);
                    table.complete(cq, wc);
                    if queued.len() < depth {
                        queued.push_back(id);
                        if armed == Some(Notify::Any) || armed.is_some() && kind != 0 {
                            armed = None;
                            fired += 1;
                        }
                    } else {
                        lost += 1;
                        untold = true;
                    }
                }
                Op::Poll(n) => {
                    let mut out = [Completion::EMPTY; 8];
                    let got = table.poll(cq, &mut out[..n]);
                    let ids: Vec<u64> = out[..got].iter().map(|c| c.wr_id).collect();
                    let n = n.min(queued.len());
                    prop_assert_eq!(ids, queued.drain(..n).collect::<Vec<u64>>());
                }
                Op::Arm(any) => {
                    prop_assert_eq!(
                        table.arm(cq, if any { Notify::Any } else { Notify::Solicited }),
                        Some(!queued.is_empty())
                    );
                    armed = match (armed, any) {
                        (Some(Notify::Any), _) | (_, true) => Some(Notify::Any),
                        _ => Some(Notify::Solicited),
                    };
                }
                Op::Resize(new) => {
                    let fits = queued.len() <= new as usize;
                    prop_assert_eq!(table.resize(cq, new).is_ok(), fits);
                    if fits {
                        depth = new as usize;
                    }
                }
                Op::Notification => {
                    prop_assert_eq!(table.poll_notification().is_some(), fired > 0);
                    fired = i32::max(fired - 1, 0);
                }
                Op::Settle => {
                    prop_assert_eq!(table.take_overflow(), untold.then_some(cq));
                    prop_assert_eq!(table.take_overflow(), None);
                    untold = false;
                }
            }
            prop_assert_eq!(table.has_notification(), fired > 0);
            prop_assert_eq!(table.overflow_count, lost);
        }
    }
}
