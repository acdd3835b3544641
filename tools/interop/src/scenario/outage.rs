//! A peer that is gone: for three seconds, then all goes on; or for ever, then the work fails
//! within the time that follows from timeout and retries, and says why.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::pair::{self, Half, Setting};
use super::{Direction, Outcome, Scenario, Seen, Stage, in_order, mtu};
use crate::clock;
use crate::ends::{End, Op, Tuning};
use crate::fabric::Route;

/// `RETRY_EXC_ERR`.
const RETRY_EXHAUSTED: u32 = 12;
const FLUSHED: u32 = 5;
/// Length of the outage that is survived.
const OUTAGE: Duration = Duration::from_secs(3);
/// Bytes of each message.
const LEN: u32 = 3_000;
/// What a loaded machine may take to notice, beyond the computed time.
const SLACK: Duration = Duration::from_secs(3);

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gone {
    /// The virtual machine stands still.
    Paused,
    /// No frame passes.
    Cut,
    /// No frame passes any more.
    ForEver,
}

fn tuning(gone: Gone) -> Tuning {
    match gone {
        // 67 ms, four transmissions.
        Gone::ForEver => Tuning {
            timeout: 14,
            retry: 3,
            ..Tuning::default()
        },
        // 1.07 s, seven transmissions: longer than the outage.
        Gone::Paused | Gone::Cut => Tuning {
            timeout: 18,
            retry: 6,
            ..Tuning::default()
        },
    }
}

/// Debian's kernels have 250 of them a second.
const JIFFY: Duration = Duration::from_millis(4);

/// Shortest and longest time to give up: each of the transmissions waits between T and 4 T (R12).
fn bounds(tuning: Tuning) -> (Duration, Duration) {
    let timeout = Duration::from_nanos(4_096 << tuning.timeout);
    let transmissions = u32::from(tuning.retry) + 1;
    (timeout * transmissions, timeout * transmissions * 4 + SLACK)
}

fn run(stage: &mut Stage, scenario: &Scenario, gone: Gone) -> Result<Outcome> {
    stage.start(&[]);
    let result = play(stage, scenario, gone);
    // Whatever happened, the next scenario finds both running.
    stage.fabric.set_cut(false);
    stage.vm.resume()?;
    let record = stage.finish()?;
    let took = result?;
    let seen = Seen::of(record, scenario.mtu);
    Ok(seen.outcome(format!("{} ms", took.as_millis())))
}

fn play(stage: &mut Stage, scenario: &Scenario, gone: Gone) -> Result<Duration> {
    let direction = scenario.direction;
    let mut how = Setting::new(scenario.route, scenario.mtu);
    how.requester = tuning(gone);
    let halves = in_order(stage, direction, |a, b| {
        let halves = pair::connect(a, b, &how)?;
        let [ha, hb] = &halves;
        for wr in 1..=4 {
            b.recv(hb.qp, &pair::recv(100 + wr, hb, LEN))?;
        }
        a.send(ha.qp, &pair::send(1, Op::Send, ha, hb, LEN))?;
        pair::expect(a, ha.send_cq, &[(1, 0)])?;
        Ok(halves)
    })?;
    let started = clock::now();
    match (gone, direction) {
        (Gone::Paused, Direction::ToXroce) => {
            // The machine stops with work under way, and goes on by itself.
            post(stage, direction, gone, &halves)?;
            stage.vm.pause()?;
        }
        (Gone::Paused, _) => {
            stage.vm.pause()?;
            post(stage, direction, gone, &halves)?;
        }
        _ => {
            stage.fabric.set_cut(true);
            post(stage, direction, gone, &halves)?;
        }
    }
    match gone {
        Gone::ForEver => give_up(stage, direction, &how, &halves, started),
        Gone::Paused | Gone::Cut => recover(stage, direction, &halves, started),
    }
}

/// Posts three more sends. With rxe paused only our end may be touched.
fn post(stage: &mut Stage, direction: Direction, gone: Gone, halves: &[Half; 2]) -> Result<()> {
    let [ha, hb] = halves;
    let sends = |a: &mut dyn End| -> Result<()> {
        for wr in 2..=4 {
            a.send(ha.qp, &pair::send(wr, Op::Send, ha, hb, LEN))?;
        }
        Ok(())
    };
    if gone == Gone::Paused && direction == Direction::ToRxe {
        return sends(stage.ours()?);
    }
    in_order(stage, direction, |a, _| sends(a))
}

fn recover(
    stage: &mut Stage,
    direction: Direction,
    halves: &[Half; 2],
    started: Instant,
) -> Result<Duration> {
    thread::sleep(OUTAGE);
    stage.fabric.set_cut(false);
    stage.vm.resume()?;
    let [ha, hb] = halves;
    in_order(stage, direction, |a, b| {
        pair::expect(a, ha.send_cq, &[(2, 0), (3, 0), (4, 0)])?;
        let all = [(101, 0), (102, 0), (103, 0), (104, 0)];
        pair::expect(b, hb.recv_cq, &all)?;
        let sent = a.hash(ha.mr.id, 0, u64::from(LEN))?;
        let received = b.hash(hb.mr.id, 0, u64::from(LEN))?;
        ensure!(sent == received, "other bytes arrived than were sent");
        Ok(started.elapsed())
    })
}

fn give_up(
    stage: &mut Stage,
    direction: Direction,
    how: &Setting,
    halves: &[Half; 2],
    started: Instant,
) -> Result<Duration> {
    let [ha, _] = halves;
    let took = in_order(stage, direction, |a, _| {
        let wanted = [(2, RETRY_EXHAUSTED), (3, FLUSHED), (4, FLUSHED)];
        pair::expect(a, ha.send_cq, &wanted)?;
        let took = started.elapsed();
        if let Some(why) = a.failure(ha.qp)? {
            for part in ["PSN", "retr", "likely: 1."] {
                ensure!(why.contains(part), "the report lacks {part:?}: {why}");
            }
        }
        Ok(took)
    })?;
    let (shortest, longest) = bounds(how.requester);
    // rxe counts in jiffies, and of each of its waits the first one is not whole. On a busy machine
    // every wait begins at another point of it.
    let waits = u32::from(how.requester.retry) + 1;
    let shortest = match direction {
        Direction::ToXroce => shortest.saturating_sub(JIFFY * waits),
        Direction::ToRxe | Direction::Both => shortest,
    };
    ensure!(
        (shortest..=longest).contains(&took),
        "gave up after {took:?}, expected {shortest:?} to {longest:?}"
    );
    Ok(took)
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    for (gone, name) in [
        (Gone::Paused, "peer stands still for 3 s"),
        (Gone::Cut, "link cut for 3 s"),
        (Gone::ForEver, "link cut for ever"),
    ] {
        for direction in Direction::EACH {
            list.push(Scenario {
                name: format!("outage: {name}"),
                direction,
                route: Route::V4,
                mtu: mtu(1024),
                smoke: gone == Gone::ForEver && direction == Direction::ToRxe,
                run: Box::new(move |stage, scenario| run(stage, scenario, gone)),
            });
        }
    }
    list
}
