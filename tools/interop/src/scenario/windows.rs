//! Memory windows: what they show can be reached with their rights and nothing else, and no more
//! once they are bound anew, invalidated or freed.

use anyhow::{Result, ensure};

use super::pair::{self, Half, Setting};
use super::{Direction, Outcome, Scenario, Seen, Stage, in_order, lossy_rules, status};
use crate::ends::{Bind, End, Mw, Op, Send, access};

/// Part of the region that the window shows.
const SHOWN: (u64, u64) = (4_096, 8_192);
/// Bytes of an access.
const LEN: u32 = 1_500;
/// Identifier of a request that binds.
const BIND: u64 = 1_000;

/// An access that must be refused, or a window that must not be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    /// One byte before the window.
    Before,
    /// One byte beyond it.
    Beyond,
    /// Without the right.
    Right,
    /// Under the key that it had before it was bound anew, type 1.
    Rebound,
    /// After its end has invalidated it, type 2.
    Invalidated,
    /// After it was freed.
    Freed,
    /// Through another queue pair than the one it was bound by, type 2.
    OtherQp,
    /// Bound although it is bound already, type 2.
    BoundTwice,
    /// Bound to a region without the right to.
    NoBindRight,
    /// Bound beyond the region.
    BindBeyond,
}

impl Case {
    const ALL: [Self; 10] = [
        Self::Before,
        Self::Beyond,
        Self::Right,
        Self::Rebound,
        Self::Invalidated,
        Self::Freed,
        Self::OtherQp,
        Self::BoundTwice,
        Self::NoBindRight,
        Self::BindBeyond,
    ];

    fn is_of(self, type2: bool) -> bool {
        match self {
            Self::Rebound => !type2,
            Self::Invalidated | Self::OtherQp | Self::BoundTwice => type2,
            // Type 1 is bound by a call of xroce, which says so itself.
            Self::NoBindRight | Self::BindBeyond => type2,
            Self::Before | Self::Beyond | Self::Right | Self::Freed => true,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Before => "before it",
            Self::Beyond => "beyond it",
            Self::Right => "without the right",
            Self::Rebound => "its old key",
            Self::Invalidated => "invalidated",
            Self::Freed => "freed",
            Self::OtherQp => "another queue pair",
            Self::BoundTwice => "bound twice",
            Self::NoBindRight => "bound without the right",
            Self::BindBeyond => "bound beyond the region",
        }
    }
}

fn run(stage: &mut Stage, scenario: &Scenario, type2: bool, case: Case) -> Result<Outcome> {
    stage.start(&[]);
    let by_rxe = scenario.direction == Direction::ToRxe;
    let wanted = wanted(case, by_rxe, stage.vm.release().starts_with("6.1."));
    let done = in_order(stage, scenario.direction, |a, b| {
        play(a, b, scenario, type2, (case, wanted))
    });
    let record = stage.finish()?;
    let status = done?;
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    Ok(seen.outcome(format!("status {status}")))
}

/// An access of `LEN` bytes at `at` in the region.
fn at(wr: u64, op: Op, halves: &[Half; 2], at: u64, key: u32) -> Send {
    let base = pair::send(wr, op, &halves[0], &halves[1], LEN);
    Send {
        va: base.va + at,
        rkey: key,
        ..base
    }
}

/// Binds a window to a part of the region of `half`, which must complete with `wanted`.
fn bind(end: &mut dyn End, half: &Half, mw: Mw, part: (u64, u64), wanted: u32) -> Result<u32> {
    let attr = Bind {
        wr: BIND,
        mr: half.mr.id,
        off: part.0,
        len: part.1,
        access: access::REMOTE_WRITE,
    };
    let bound = end.bind(half.qp, mw, &attr)?;
    if bound.completes {
        pair::expect(end, half.send_cq, &[(BIND, wanted)])?;
    }
    Ok(bound.rkey)
}

/// The status that must come: of the access at the requester, or of the bind at its end.
fn wanted(case: Case, by_rxe: bool, old: bool) -> u32 {
    match case {
        // rxe holds an access against the region, not against the window.
        Case::Before | Case::Beyond if by_rxe => status::SUCCESS,
        // As with all its own errors, rxe of 6.12 flushes the request that caused it.
        Case::BoundTwice | Case::NoBindRight | Case::BindBeyond if by_rxe && !old => {
            status::FLUSHED
        }
        Case::BoundTwice | Case::NoBindRight | Case::BindBeyond => status::MW_BIND,
        _ => status::REM_ACCESS,
    }
}

fn play(
    a: &mut dyn End,
    b: &mut dyn End,
    scenario: &Scenario,
    type2: bool,
    (case, wanted): (Case, u32),
) -> Result<u32> {
    let mut how = Setting::new(scenario.route, scenario.mtu);
    how.mr_access = access::ALL;
    if case != Case::NoBindRight {
        how.mr_access |= access::MW_BIND;
    }
    let halves = pair::connect(a, b, &how)?;
    let [ha, hb] = halves;
    let mw = b.mw(type2)?;
    if matches!(case, Case::NoBindRight | Case::BindBeyond) {
        let part = (pair::REGION - SHOWN.0, SHOWN.1);
        let part = if case == Case::BindBeyond {
            part
        } else {
            SHOWN
        };
        bind(b, &hb, mw, part, wanted)?;
        return Ok(wanted);
    }
    let mut key = bind(b, &hb, mw, SHOWN, status::SUCCESS)?;
    good(a, b, &halves, key)?;
    let mut access = at(3, Op::Write, &halves, SHOWN.0, key);
    match case {
        Case::Before => access.va -= 1,
        Case::Beyond => access.va += SHOWN.1 - u64::from(LEN) + 1,
        Case::Right => access.op = Op::Read,
        Case::Rebound => {
            let old = key;
            key = bind(b, &hb, mw, SHOWN, status::SUCCESS)?;
            ensure!(key != old, "the window was bound under its old key");
            a.send(ha.qp, &at(4, Op::Write, &halves, SHOWN.0, key))?;
            pair::expect(a, ha.send_cq, &[(4, status::SUCCESS)])?;
        }
        Case::Invalidated => {
            b.send(
                hb.qp,
                &Send {
                    inv: key,
                    ..Send::new(5, Op::LocalInv)
                },
            )?;
            let got = pair::expect(b, hb.send_cq, &[(5, status::SUCCESS)])?;
            let opcode = got.first().map(|wc| wc.opcode);
            ensure!(
                opcode == Some(6),
                "LOCAL_INV completed as opcode {opcode:?}"
            );
        }
        Case::Freed => b.free_mw(mw)?,
        Case::OtherQp => return other_qp(a, b, &how, &halves, &access),
        Case::BoundTwice => {
            bind(b, &hb, mw, SHOWN, wanted)?;
            return Ok(wanted);
        }
        Case::NoBindRight | Case::BindBeyond => {}
    }
    a.send(ha.qp, &access)?;
    pair::expect(a, ha.send_cq, &[(3, wanted)])?;
    Ok(wanted)
}

/// The first and the last byte of the window can be reached.
fn good(a: &mut dyn End, b: &mut dyn End, halves: &[Half; 2], key: u32) -> Result<()> {
    let [ha, hb] = halves;
    let ends = [(1, SHOWN.0), (2, SHOWN.0 + SHOWN.1 - u64::from(LEN))];
    for (wr, off) in ends {
        a.send(ha.qp, &at(wr, Op::Write, halves, off, key))?;
        pair::expect(a, ha.send_cq, &[(wr, status::SUCCESS)])?;
        let hash = b.hash(hb.mr.id, off, LEN.into())?;
        let sent = a.hash(ha.mr.id, 0, LEN.into())?;
        ensure!(
            hash == sent,
            "what was written through the window is not there"
        );
    }
    Ok(())
}

/// The access through a second queue pair of the same protection domain.
fn other_qp(
    a: &mut dyn End,
    b: &mut dyn End,
    how: &Setting,
    halves: &[Half; 2],
    access: &Send,
) -> Result<u32> {
    let [qa, _] = pair::second(a, b, how, halves)?;
    a.send(qa, access)?;
    pair::expect(a, halves[0].send_cq, &[(access.wr, status::REM_ACCESS)])?;
    Ok(status::REM_ACCESS)
}

/// Many accesses through windows of both types, over a network that loses packets.
fn lossy(stage: &mut Stage, scenario: &Scenario, type2: bool) -> Result<Outcome> {
    stage.start(&lossy_rules(scenario.direction, 20));
    let done = in_order(stage, scenario.direction, |a, b| {
        many(a, b, scenario, type2)
    });
    let record = stage.finish()?;
    done?;
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    seen.went_back_with_reason()?;
    ensure!(seen.harm.lost > 0, "no packet was lost");
    Ok(seen.outcome(format!("{} lost", seen.harm.lost)))
}

fn many(a: &mut dyn End, b: &mut dyn End, scenario: &Scenario, type2: bool) -> Result<()> {
    const GROUPS: u64 = 8;
    const WRITES: u64 = 8;
    let mut how = Setting::new(scenario.route, scenario.mtu);
    // Code 16 is 268 ms.
    how.requester.timeout = 16;
    how.mr_access = access::ALL | access::MW_BIND;
    let halves = pair::connect(a, b, &how)?;
    let [ha, hb] = halves;
    for group in 0..GROUPS {
        let mw = b.mw(type2)?;
        let key = bind(b, &hb, mw, SHOWN, status::SUCCESS)?;
        let mut wanted = Vec::new();
        for n in 0..WRITES {
            let wr = group * WRITES + n;
            let mut write = at(wr, Op::Write, &halves, SHOWN.0 + n * 900, key);
            for piece in &mut write.pieces {
                piece.off = wr * 700;
            }
            a.send(ha.qp, &write)?;
            wanted.push((wr, status::SUCCESS));
        }
        pair::expect(a, ha.send_cq, &wanted)?;
        // The last one is whole, of each earlier one the first 900 bytes.
        for n in 0..WRITES {
            let len = if n + 1 == WRITES { LEN.into() } else { 900 };
            let sent = a.hash(ha.mr.id, (group * WRITES + n) * 700, len)?;
            let there = b.hash(hb.mr.id, SHOWN.0 + n * 900, len)?;
            ensure!(sent == there, "write {n} of window {group} is not there");
        }
        b.free_mw(mw)?;
    }
    Ok(())
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    for type2 in [false, true] {
        let kind = if type2 { "2B" } else { "1" };
        for case in Case::ALL {
            if !case.is_of(type2) {
                continue;
            }
            for direction in Direction::EACH {
                list.push(Scenario::plain(
                    format!("window of type {kind}: {}", case.name()),
                    direction,
                    case == Case::Freed,
                    move |stage, scenario| run(stage, scenario, type2, case),
                ));
            }
        }
        for direction in Direction::EACH {
            list.push(Scenario::plain(
                format!("window of type {kind}: 5 % lost"),
                direction,
                false,
                move |stage, scenario| lossy(stage, scenario, type2),
            ));
        }
    }
    list
}
