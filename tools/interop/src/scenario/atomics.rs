//! Compare and swap, fetch and add: the results, and each of them exactly once, also where requests
//! and answers get lost.

use anyhow::{Result, ensure};

use super::pair::{self, Half, Setting};
use super::{Direction, Outcome, Scenario, Seen, Stage, in_order, lossy_rules, mtu};
use crate::ends::{End, Op, Piece, Send, access};
use crate::fabric::Route;

/// Additions, in groups that are posted together.
const ADDITIONS: u64 = 96;
const GROUP: u64 = 16;
/// What each adds.
const STEP: u64 = 3;
/// Where results go at the requester.
const RESULTS: u64 = 8_192;

fn run(stage: &mut Stage, scenario: &Scenario, lossy: bool) -> Result<Outcome> {
    stage.start(&lossy_rules(scenario.direction, if lossy { 20 } else { 0 }));
    let done = in_order(stage, scenario.direction, |a, b| play(a, b, scenario));
    let record = stage.finish()?;
    done?;
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    seen.went_back_with_reason()?;
    ensure!(
        lossy == (seen.harm.lost > 0),
        "{} packets were lost",
        seen.harm.lost
    );
    Ok(seen.outcome(format!("{} lost", seen.harm.lost)))
}

/// An atomic on the eight bytes at `at`, with its result at `result`.
fn atomic(wr: u64, op: Op, halves: &[Half; 2], at: u64, result: u64, operands: [u64; 2]) -> Send {
    let [own, remote] = halves;
    let base = pair::send(wr, op, own, remote, 8);
    Send {
        va: base.va + at,
        pieces: vec![Piece {
            mr: own.mr.id,
            off: result,
            len: 8,
        }],
        operands,
        ..base
    }
}

/// Eight bytes of a region, as an integer of this kind of host.
fn value(end: &mut dyn End, half: &Half, at: u64) -> Result<u64> {
    let bytes = end.peek(half.mr.id, at, 8)?;
    let bytes: [u8; 8] = bytes.as_slice().try_into()?;
    Ok(u64::from_le_bytes(bytes))
}

fn play(a: &mut dyn End, b: &mut dyn End, scenario: &Scenario) -> Result<()> {
    let mut how = Setting::new(scenario.route, scenario.mtu);
    // Code 16 is 268 ms.
    how.requester.timeout = 16;
    how.responder.access = access::ATOMIC;
    how.mr_access = access::ATOMIC;
    let halves = pair::connect(a, b, &how)?;
    let [ha, hb] = halves;
    let first = value(b, &hb, 0)?;
    let stored = 0x1122_3344_5566_7788;
    // One that fits, and one that does not any more.
    for (wr, swap) in [(1, stored), (2, !stored)] {
        let swap = [first, swap];
        a.send(
            ha.qp,
            &atomic(wr, Op::CompareSwap, &halves, 0, wr * 8, swap),
        )?;
    }
    pair::expect(a, ha.send_cq, &[(1, 0), (2, 0)])?;
    let results = (value(a, &ha, 8)?, value(a, &ha, 16)?, value(b, &hb, 0)?);
    ensure!(
        results == (first, stored, stored),
        "compare and swap gave {results:x?}, not {:x?}",
        (first, stored, stored)
    );
    let start = value(b, &hb, 8)?;
    for group in 0..ADDITIONS / GROUP {
        let numbers = group * GROUP..(group + 1) * GROUP;
        for n in numbers.clone() {
            let add = atomic(10 + n, Op::FetchAdd, &halves, 8, RESULTS + n * 8, [STEP, 0]);
            a.send(ha.qp, &add)?;
        }
        let wanted: Vec<(u64, u32)> = numbers.map(|n| (10 + n, 0)).collect();
        pair::expect(a, ha.send_cq, &wanted)?;
    }
    for n in 0..ADDITIONS {
        let before = value(a, &ha, RESULTS + n * 8)?;
        let wanted = start.wrapping_add(n * STEP);
        ensure!(
            before == wanted,
            "addition {n} found {before:#x}, not {wanted:#x}: not exactly once, or out of order"
        );
    }
    let end = value(b, &hb, 8)?;
    let wanted = start.wrapping_add(ADDITIONS * STEP);
    ensure!(end == wanted, "the sum is {end:#x}, not {wanted:#x}");
    Ok(())
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    for (name, lossy, routes) in [
        ("atomics", false, &[Route::V4, Route::V6][..]),
        ("atomics, 5 % lost", true, &[Route::V4][..]),
    ] {
        for &route in routes {
            for direction in Direction::EACH {
                list.push(Scenario {
                    name: name.to_owned(),
                    direction,
                    route,
                    mtu: mtu(1024),
                    smoke: lossy,
                    run: Box::new(move |stage, scenario| run(stage, scenario, lossy)),
                });
            }
        }
    }
    list
}
