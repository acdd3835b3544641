//! Requests that must be refused: the statuses at both ends are those of the specification, or
//! those rxe is known to give.

use anyhow::{Result, ensure};

use super::pair::{self, Setting};
use super::{Direction, Outcome, Scenario, Seen, Stage, in_order, mtu, status};
use crate::ends::{End, Op, access};
use crate::fabric::Route;

/// What is wrong with the first of three work requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    /// No region has this R_Key.
    Key,
    /// The range ends beyond the region.
    Range,
    /// The region lacks the right.
    RegionRight,
    /// The queue pair lacks the right.
    QpRight,
    /// The SEND is longer than the receive.
    TooLong,
    /// The requester's own data is not in its region.
    OwnData,
    /// The receive's buffer is not in the responder's region.
    Buffer,
}

/// Statuses that must come: of the wrong request, and of the receive it took, if it took one.
fn expected(wrong: Wrong, direction: Direction, kernel: &str) -> (u32, Option<u32>) {
    use status::{FLUSHED, LOC_LEN, LOC_PROT, LOC_QP_OP, REM_ACCESS, REM_INV_REQ, REM_OP};
    let by_rxe = direction == Direction::ToRxe;
    match wrong {
        Wrong::Key | Wrong::Range | Wrong::RegionRight => (REM_ACCESS, None),
        Wrong::QpRight => (REM_INV_REQ, None),
        // rxe answers with another code than the specification has (S5, X9).
        Wrong::TooLong if by_rxe => (REM_OP, Some(LOC_QP_OP)),
        Wrong::TooLong => (REM_INV_REQ, Some(LOC_LEN)),
        // rxe 6.12 flushes the work request that caused it as well.
        Wrong::OwnData if !by_rxe && !kernel.starts_with("6.1.") => (FLUSHED, None),
        Wrong::OwnData => (LOC_PROT, None),
        Wrong::Buffer if by_rxe => (REM_OP, Some(LOC_QP_OP)),
        Wrong::Buffer => (REM_OP, Some(LOC_PROT)),
    }
}

fn run(stage: &mut Stage, scenario: &Scenario, op: Op, wrong: Wrong) -> Result<Outcome> {
    stage.start(&[]);
    let direction = scenario.direction;
    let statuses = expected(wrong, direction, stage.vm.release());
    let done = in_order(stage, direction, |a, b| {
        play(a, b, scenario, op, wrong, statuses)
    });
    let record = stage.finish()?;
    done?;
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    let naks = match direction {
        Direction::ToXroce => seen.xroce.fatal_naks,
        _ => seen.rxe.fatal_naks,
    };
    let wanted = u64::from(wrong != Wrong::OwnData);
    ensure!(
        naks == wanted,
        "{naks} fatal NAKs on the cable, expected {wanted}"
    );
    let (status, _) = statuses;
    Ok(seen.outcome(format!("status {status}")))
}

/// One good request, the wrong one, and one that is flushed; two receives.
fn play(
    a: &mut dyn End,
    b: &mut dyn End,
    scenario: &Scenario,
    op: Op,
    wrong: Wrong,
    (status, receive): (u32, Option<u32>),
) -> Result<()> {
    const LEN: u32 = 3_000;
    let mut how = Setting::new(scenario.route, scenario.mtu);
    match wrong {
        Wrong::RegionRight => how.mr_access = access::LOCAL_WRITE,
        Wrong::QpRight => how.responder.access = access::LOCAL_WRITE,
        _ => {}
    }
    let [ha, hb] = pair::connect(a, b, &how)?;
    let short = if wrong == Wrong::TooLong { 1_500 } else { LEN };
    let mut second = pair::recv(102, &hb, short);
    if wrong == Wrong::Buffer
        && let Some(piece) = second.pieces.first_mut()
    {
        piece.off = pair::REGION - 100;
    }
    b.recv(hb.qp, &pair::recv(101, &hb, LEN))?;
    b.recv(hb.qp, &second)?;
    b.recv(hb.qp, &pair::recv(103, &hb, LEN))?;

    let mut bad = pair::send(2, op, &ha, &hb, LEN);
    match wrong {
        Wrong::Key => bad.rkey ^= 0x0001_5500,
        Wrong::Range => bad.va += pair::REGION - u64::from(LEN) + 1,
        Wrong::OwnData => {
            if let Some(piece) = bad.pieces.first_mut() {
                piece.off = pair::REGION - 100;
            }
        }
        _ => {}
    }
    let ok = status::SUCCESS;
    a.send(ha.qp, &pair::send(1, Op::Send, &ha, &hb, LEN))?;
    // An error of its own ends rxe's queue pair at once, with what is under way.
    pair::expect(a, ha.send_cq, &[(1, ok)])?;
    a.send(ha.qp, &bad)?;
    a.send(ha.qp, &pair::send(3, Op::Send, &ha, &hb, LEN))?;
    pair::expect(a, ha.send_cq, &[(2, status), (3, status::FLUSHED)])?;
    let flushed = status::FLUSHED;
    // After its own error the requester's responder is in ERR too, the peer's only if it answered
    // with the NAK.
    let receives = match (wrong, receive) {
        (Wrong::OwnData, _) => vec![(101, ok)],
        (_, Some(status)) => vec![(101, ok), (102, status), (103, flushed)],
        (_, None) => vec![(101, ok), (102, flushed), (103, flushed)],
    };
    pair::expect(b, hb.recv_cq, &receives)?;
    if let Some(why) = a.failure(ha.qp)? {
        ensure!(
            why.contains("likely: 1."),
            "the report names no likely cause: {why}"
        );
    }
    Ok(())
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let cases = [
        (Op::Write, Wrong::Key, "WRITE, wrong R_Key"),
        (Op::Read, Wrong::Key, "READ, wrong R_Key"),
        (Op::Write, Wrong::Range, "WRITE beyond the region"),
        (Op::Read, Wrong::Range, "READ beyond the region"),
        (Op::Write, Wrong::RegionRight, "WRITE, region not writable"),
        (Op::Read, Wrong::RegionRight, "READ, region not readable"),
        (Op::Write, Wrong::QpRight, "WRITE, queue pair allows none"),
        (Op::Read, Wrong::QpRight, "READ, queue pair allows none"),
        (Op::Send, Wrong::TooLong, "SEND longer than the receive"),
        (Op::Send, Wrong::OwnData, "SEND of memory not its own"),
        (Op::Send, Wrong::Buffer, "receive into memory not its own"),
    ];
    let mut list = Vec::new();
    for (op, wrong, name) in cases {
        for direction in Direction::EACH {
            list.push(Scenario {
                name: format!("refused: {name}"),
                direction,
                route: Route::V4,
                mtu: mtu(1024),
                smoke: op == Op::Write && wrong == Wrong::Key,
                run: Box::new(move |stage, scenario| run(stage, scenario, op, wrong)),
            });
        }
    }
    list
}
