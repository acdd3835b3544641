//! A receiver that is not ready: the request waits, or gives up after the tries it was given.

use anyhow::{Result, ensure};

use super::pair::{self, Setting};
use super::{Direction, Outcome, Scenario, Seen, Stage, grown, in_order, mtu, until_refused};
use crate::ends::{End, Op, access};
use crate::fabric::Route;

/// `RNR_RETRY_EXC_ERR`.
const RNR_EXHAUSTED: u32 = 13;
const FLUSHED: u32 = 5;
/// Tries after the first.
const TRIES: u8 = 2;
/// RNR NAKs before a late receive is there.
const LATE: u64 = 3;

fn run(stage: &mut Stage, scenario: &Scenario, served: bool) -> Result<Outcome> {
    stage.start(&[]);
    let direction = scenario.direction;
    let before = {
        let (xroce, mut rxe) = stage.ends()?;
        (xroce.counters()?, rxe.counters()?)
    };
    let done = in_order(stage, direction, |a, b| play(a, b, scenario, served));
    stage.finish()?;
    done?;
    let after = {
        let (xroce, mut rxe) = stage.ends()?;
        (xroce.counters()?, rxe.counters()?)
    };
    let Some(record) = &stage.record else {
        return Ok(Outcome::default());
    };
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    let (naks, counted, peer) = if direction == Direction::ToXroce {
        (
            seen.xroce.rnr_naks,
            grown(&before.0, &after.0, "send_rnr_err")?,
            grown(&before.1, &after.1, "rcvd_rnr_err")?,
        )
    } else {
        (
            seen.rxe.rnr_naks,
            grown(&before.0, &after.0, "rcvd_rnr_err")?,
            grown(&before.1, &after.1, "send_rnr_err")?,
        )
    };
    ensure!(naks > 0, "no RNR NAK was seen");
    ensure!(
        counted == naks,
        "xroce counted {counted} RNR NAKs, on the cable there were {naks}"
    );
    ensure!(
        peer == naks,
        "rxe counted {peer} RNR NAKs, on the cable there were {naks}"
    );
    if !served {
        let tries = u64::from(TRIES) + 1;
        ensure!(naks == tries, "{naks} RNR NAKs, expected {tries}");
    }
    Ok(seen.outcome(format!("{naks} RNR NAKs")))
}

fn play(a: &mut dyn End, b: &mut dyn End, scenario: &Scenario, served: bool) -> Result<()> {
    const LEN: u32 = 3_000;
    let mut how = Setting::new(scenario.route, scenario.mtu);
    how.requester.rnr_retry = if served { 7 } else { TRIES };
    // Code 18 is 5.12 ms.
    how.responder.rnr_timer = 18;
    how.responder.access = access::ALL;
    let [ha, hb] = pair::connect(a, b, &how)?;
    let before = b.counters()?;
    a.send(ha.qp, &pair::send(1, Op::Send, &ha, &hb, LEN))?;
    a.send(ha.qp, &pair::send(2, Op::Send, &ha, &hb, LEN))?;
    if served {
        until_refused(b, &before, LATE)?;
        b.recv(hb.qp, &pair::recv(101, &hb, LEN))?;
        pair::expect(a, ha.send_cq, &[(1, 0)])?;
        b.recv(hb.qp, &pair::recv(102, &hb, LEN))?;
        pair::expect(a, ha.send_cq, &[(2, 0)])?;
        pair::expect(b, hb.recv_cq, &[(101, 0), (102, 0)])?;
    } else {
        pair::expect(a, ha.send_cq, &[(1, RNR_EXHAUSTED), (2, FLUSHED)])?;
        if let Some(why) = a.failure(ha.qp)? {
            ensure!(
                why.contains("receive"),
                "the report does not say why: {why}"
            );
        }
    }
    Ok(())
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    for served in [true, false] {
        for direction in Direction::EACH {
            let what = if served { "served late" } else { "exhausted" };
            list.push(Scenario {
                name: format!("receiver not ready: {what}"),
                direction,
                route: Route::V4,
                mtu: mtu(1024),
                smoke: served,
                run: Box::new(move |stage, scenario| run(stage, scenario, served)),
            });
        }
    }
    list
}
