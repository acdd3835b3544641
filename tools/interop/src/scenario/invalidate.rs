//! SEND with invalidate: the key is worth nothing afterwards, at once and for good; a key that may
//! not be taken back is refused.

use anyhow::{Result, ensure};

use super::pair::{self, Half, Setting};
use super::{Direction, Outcome, Scenario, Seen, Stage, in_order, lossy_rules, status};
use crate::ends::{Bind, End, Mw, Op, Send, access};

/// Windows bound, used and taken back one after the other.
const ROUNDS: u64 = 24;
/// Part of the region that windows show.
const SHOWN: (u64, u64) = (4_096, 8_192);
/// Bytes of a message.
const LEN: u32 = 2_500;

/// What is taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    /// Windows of type 2B, again and again.
    Windows,
    /// A region.
    Region,
    /// A key that nobody has.
    Nothing,
    /// A window of type 1.
    Type1,
}

fn run(stage: &mut Stage, scenario: &Scenario, target: Target, one_in: u32) -> Result<Outcome> {
    let rules = lossy_rules(scenario.direction, one_in);
    stage.start(&rules);
    let direction = scenario.direction;
    let done = in_order(stage, direction, |a, b| match target {
        Target::Windows => windows(a, b, scenario, one_in > 0),
        Target::Region | Target::Nothing | Target::Type1 => once(a, b, scenario, target),
    });
    let record = stage.finish()?;
    let figure = done?;
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    seen.went_back_with_reason()?;
    Ok(seen.outcome(if one_in == 0 {
        figure
    } else {
        format!("{figure}, {} lost", seen.harm.lost)
    }))
}

/// SEND of `LEN` bytes that takes `key` back.
fn taking(wr: u64, key: u32, halves: &[Half; 2]) -> Send {
    Send {
        inv: key,
        ..pair::send(wr, Op::SendInv, &halves[0], &halves[1], LEN)
    }
}

/// WRITE into the window.
fn through(wr: u64, key: u32, halves: &[Half; 2]) -> Send {
    let base = pair::send(wr, Op::Write, &halves[0], &halves[1], LEN);
    Send {
        va: base.va + SHOWN.0,
        rkey: key,
        ..base
    }
}

/// Binds the next key of a window at the responder.
fn bind(end: &mut dyn End, half: &Half, mw: Mw, wr: u64) -> Result<u32> {
    let attr = Bind {
        wr,
        mr: half.mr.id,
        off: SHOWN.0,
        len: SHOWN.1,
        access: access::REMOTE_WRITE | access::REMOTE_READ,
    };
    let bound = end.bind(half.qp, mw, &attr)?;
    if bound.completes {
        pair::expect(end, half.send_cq, &[(wr, status::SUCCESS)])?;
    }
    Ok(bound.rkey)
}

fn setting(scenario: &Scenario) -> Setting {
    let mut how = Setting::new(scenario.route, scenario.mtu);
    // Code 16 is 268 ms.
    how.requester.timeout = 16;
    how.mr_access = access::ALL | access::MW_BIND;
    how
}

fn windows(a: &mut dyn End, b: &mut dyn End, scenario: &Scenario, lossy: bool) -> Result<String> {
    let halves = pair::connect(a, b, &setting(scenario))?;
    let [ha, hb] = halves;
    let mw = b.mw(true)?;
    let mut key = mw.rkey;
    for round in 0..ROUNDS {
        let before = key;
        key = bind(b, &hb, mw, 1_000 + round)?;
        ensure!(key != before, "the window was bound under its old key");
        b.recv(hb.qp, &pair::recv(round, &hb, LEN))?;
        a.send(ha.qp, &through(2 * round, key, &halves))?;
        a.send(ha.qp, &taking(2 * round + 1, key, &halves))?;
        pair::expect(a, ha.send_cq, &[(2 * round, 0), (2 * round + 1, 0)])?;
        let got = pair::expect(b, hb.recv_cq, &[(round, 0)])?;
        for wc in got {
            ensure!(
                wc.inv == Some(key) && wc.len == LEN && wc.imm.is_none(),
                "the receive says {wc:?}, not that {key:#x} was taken back"
            );
        }
    }
    let hash = b.hash(hb.mr.id, SHOWN.0, LEN.into())?;
    ensure!(
        hash == a.hash(ha.mr.id, 0, LEN.into())?,
        "what was written through the window is not there"
    );
    // On a lossy cable the NAK can get lost, and then nobody answers: that is no loss to go back for.
    if !lossy {
        refused(a, b, &halves, &through(900, key, &halves))?;
    }
    Ok(format!("{ROUNDS} keys taken back"))
}

/// The access is refused with status 10, and nothing is written.
fn refused(a: &mut dyn End, b: &mut dyn End, halves: &[Half; 2], access: &Send) -> Result<()> {
    let [ha, hb] = halves;
    let before = b.hash(hb.mr.id, 0, pair::REGION)?;
    a.send(ha.qp, access)?;
    pair::expect(a, ha.send_cq, &[(access.wr, status::REM_ACCESS)])?;
    ensure!(
        b.hash(hb.mr.id, 0, pair::REGION)? == before,
        "bytes were written although the access was refused"
    );
    Ok(())
}

/// Statuses of the SEND, of the receive it took, and of a WRITE under the key that it took back or
/// should not have.
fn wanted(target: Target, direction: Direction) -> (u32, u32) {
    let by_rxe = direction == Direction::ToRxe;
    match target {
        Target::Region if !by_rxe => (status::SUCCESS, status::SUCCESS),
        // rxe acknowledges and fails nevertheless; regions of users cannot be taken back there.
        _ if by_rxe => (status::SUCCESS, status::REM_INV_REQ),
        _ => (status::REM_ACCESS, status::REM_INV_REQ),
    }
}

fn once(a: &mut dyn End, b: &mut dyn End, scenario: &Scenario, target: Target) -> Result<String> {
    let mut how = setting(scenario);
    if target == Target::Region && b.name() == "xroce" {
        how.mr_access |= access::INVALIDATE;
    }
    let halves = pair::connect(a, b, &how)?;
    let [ha, hb] = halves;
    let key = match target {
        Target::Nothing => hb.mr.rkey ^ 0x0001_5500,
        Target::Type1 => {
            let mw = b.mw(false)?;
            bind(b, &hb, mw, 1_000)?
        }
        _ => hb.mr.rkey,
    };
    let (sent, received) = wanted(target, scenario.direction);
    b.recv(hb.qp, &pair::recv(101, &hb, LEN))?;
    a.send(ha.qp, &taking(1, key, &halves))?;
    pair::expect(a, ha.send_cq, &[(1, sent)])?;
    let got = pair::expect(b, hb.recv_cq, &[(101, received)])?;
    if received == status::SUCCESS {
        ensure!(
            got.first().is_some_and(|wc| wc.inv == Some(key)),
            "the receive does not say that {key:#x} was taken back: {got:?}"
        );
        let access = Send {
            rkey: key,
            ..pair::send(2, Op::Write, &ha, &hb, LEN)
        };
        refused(a, b, &halves, &access)?;
    } else {
        let state = b.state(hb.qp)?;
        ensure!(state == "err", "the responder is in state {state}, not err");
    }
    Ok(format!("status {sent}, receive {received}"))
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let cases = [
        ("SEND inv: windows", Target::Windows, 0),
        ("SEND inv: windows, 2 % lost", Target::Windows, 50),
        ("SEND inv: windows, 5 % lost", Target::Windows, 20),
        ("SEND inv: a region", Target::Region, 0),
        ("SEND inv: a key of nothing", Target::Nothing, 0),
        ("SEND inv: a window of type 1", Target::Type1, 0),
    ];
    let mut list = Vec::new();
    for (name, target, one_in) in cases {
        for direction in Direction::EACH {
            list.push(Scenario::plain(
                name,
                direction,
                one_in == 20,
                move |stage, scenario| run(stage, scenario, target, one_in),
            ));
        }
    }
    list
}
