//! A shared receive queue: several queue pairs take from it, its limit is reported, where it is
//! empty they wait, and a queue pair that fails says when it takes nothing any more.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::traffic::PSNS;
use super::{
    Direction, Outcome, Scenario, Seen, Stage, in_order, lossy_rules, pair, until_refused,
};
use crate::ends::{
    Connect, CqId, End, Mr, Op, Piece, QpId, QpSpec, Recv, Send, Service, SrqId, Subject, Tuning,
    Wc, access, fnv1a, pattern_byte,
};

/// Queue pairs that share it.
const QPS: usize = 4;
/// Messages of each.
const EACH: u64 = 6;
/// Distance of buffers, odd.
const STRIDE: u64 = 2_503;
/// Bytes of a message: three packets.
const LEN: u32 = 2_400;
/// Seed of what is sent.
const SEED: u64 = 0x5a5;
/// `IBV_EVENT_SRQ_LIMIT_REACHED`, `IBV_EVENT_QP_LAST_WQE_REACHED`.
const LIMIT_REACHED: u32 = 15;
const LAST_WQE: u32 = 16;
/// Limit that is armed.
const LIMIT: u32 = 5;
/// RNR NAKs before the receive that is missing is there.
const LATE: u64 = 3;
/// Longest wait for an event.
const EVENT: Duration = Duration::from_secs(5);

/// Both ends.
struct Ready {
    source: Mr,
    target: Mr,
    send_cq: CqId,
    recv_cq: CqId,
    srq: SrqId,
    senders: Vec<QpId>,
    receivers: Vec<(QpId, u32)>,
}

fn run(stage: &mut Stage, scenario: &Scenario, one_in: u32) -> Result<Outcome> {
    stage.start(&lossy_rules(scenario.direction, one_in));
    // rxe of 6.1 has no event LAST_WQE_REACHED.
    let by_old = scenario.direction == Direction::ToRxe && stage.vm.release().starts_with("6.1.");
    let done = in_order(stage, scenario.direction, |a, b| {
        play(a, b, scenario, !by_old, one_in > 0)
    });
    let record = stage.finish()?;
    let figure = done?;
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    ensure!(one_in == 0 || seen.harm.lost > 0, "no packet was lost");
    Ok(seen.outcome(format!("{figure}, {} lost", seen.harm.lost)))
}

fn set_up(a: &mut dyn End, b: &mut dyn End, scenario: &Scenario) -> Result<Ready> {
    a.reset()?;
    b.reset()?;
    let room = STRIDE * (EACH + 1) * QPS as u64;
    let source = a.mr(room, access::ALL)?;
    a.fill(source.id, 0, room, SEED)?;
    let target = b.mr(room, access::ALL)?;
    let srq = b.srq(64, 2)?;
    let cqs = [a.cq(64)?, a.cq(8)?, b.cq(64)?, b.cq(64)?];
    let spec = |send_cq, recv_cq, srq| QpSpec {
        service: Service::Rc,
        send_cq,
        recv_cq,
        depth: 32,
        sges: 2,
        srq,
    };
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    // Code 16 is 268 ms, RNR code 14 1.28 ms.
    let tuning = Tuning {
        timeout: 16,
        rnr_timer: 14,
        ..Tuning::default()
    };
    for _ in 0..QPS {
        let (qa, na) = a.qp(&spec(cqs[0], cqs[1], None), access::ALL)?;
        let (qb, nb) = b.qp(&spec(cqs[2], cqs[3], Some(srq)), access::ALL)?;
        let to = |dest_qpn, sq_psn, rq_psn| Connect {
            route: scenario.route,
            mtu: scenario.mtu,
            dest_qpn,
            sq_psn,
            rq_psn,
            tuning,
            service: Service::Rc,
        };
        b.connect(qb, &to(na, PSNS[1], PSNS[0]))?;
        a.connect(qa, &to(nb, PSNS[0], PSNS[1]))?;
        senders.push(qa);
        receivers.push((qb, nb));
    }
    Ok(Ready {
        source,
        target,
        send_cq: cqs[0],
        recv_cq: cqs[3],
        srq,
        senders,
        receivers,
    })
}

/// Message `n` of queue pair `qp`: its immediate data say which it is.
fn message(r: &Ready, qp: usize, n: u64) -> Send {
    let id = n * QPS as u64 + qp as u64;
    Send {
        imm: u32::try_from(id).unwrap_or(u32::MAX),
        pieces: vec![Piece {
            mr: r.source.id,
            off: id * STRIDE,
            len: LEN,
        }],
        ..Send::new(id, Op::SendImm)
    }
}

/// Receives `from..from + count`, each in two pieces.
fn refill(b: &mut dyn End, r: &Ready, from: u64, count: u32) -> Result<()> {
    let piece = |off, len| Piece {
        mr: r.target.id,
        off: from * STRIDE + off,
        len,
    };
    let recv = Recv {
        wr: from,
        pieces: vec![piece(0, 1_001), piece(1_001, LEN - 1_001)],
        count,
        stride: STRIDE,
    };
    b.srq_recv(r.srq, &recv)
}

/// Takes `count` completions of an end, all of them good.
fn take(end: &mut dyn End, cq: CqId, count: u32) -> Result<Vec<Wc>> {
    let mut all = Vec::new();
    while all.len() < count as usize {
        let left = count - u32::try_from(all.len())?;
        let got = end.poll(cq, left, left, pair::WAIT)?;
        ensure!(
            !got.is_empty(),
            "{}: {} of {count} completed",
            end.name(),
            all.len()
        );
        all.extend(got);
    }
    if let Some(wc) = all.iter().find(|wc| wc.status != 0) {
        anyhow::bail!("{} completed {wc:?}", end.name());
    }
    Ok(all)
}

/// Waits for one event, whatever else comes.
fn event(end: &mut dyn End, event: u32, of: Subject) -> Result<bool> {
    let until = crate::clock::now() + EVENT;
    while crate::clock::now() < until {
        let got = end.events(Duration::from_millis(100))?;
        if got.iter().any(|e| e.event == event && e.of == of) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Contents and order: what each queue pair sent arrived whole, in order.
fn check(b: &mut dyn End, r: &Ready, got: &[Wc]) -> Result<()> {
    let mut last = [None; QPS];
    let mut ranges = Vec::new();
    for wc in got {
        let id = wc.imm.context("immediate data")?;
        let qp = id as usize % QPS;
        ensure!(
            last[qp] < Some(id),
            "message {id} came after {:?}",
            last[qp]
        );
        last[qp] = Some(id);
        ensure!(wc.len == LEN, "message {id} has {} bytes", wc.len);
        ranges.push((r.target.id, wc.wr * STRIDE, u64::from(LEN)));
    }
    let hashes = b.hashes(&ranges)?;
    for (wc, hash) in got.iter().zip(hashes) {
        let start = u64::from(wc.imm.unwrap_or(0)) * STRIDE;
        let right = fnv1a((start..start + u64::from(LEN)).map(|p| pattern_byte(SEED, p)));
        ensure!(hash == right, "{wc:?} has other bytes than were sent");
    }
    Ok(())
}

fn play(
    a: &mut dyn End,
    b: &mut dyn End,
    scenario: &Scenario,
    says_last: bool,
    lossy: bool,
) -> Result<String> {
    let r = set_up(a, b, scenario)?;
    let before = b.counters()?;
    // One receive less than there are messages: the last one waits.
    let all = EACH * QPS as u64;
    refill(b, &r, 0, u32::try_from(all - 1)?)?;
    b.srq_limit(r.srq, LIMIT)?;
    for n in 0..EACH {
        for qp in 0..QPS {
            a.send(r.senders[qp], &message(&r, qp, n))?;
        }
    }
    let mut got = take(b, r.recv_cq, u32::try_from(all - 1)?)?;
    ensure!(
        event(b, LIMIT_REACHED, Subject::Srq(r.srq))?,
        "{} did not say that the limit was reached",
        b.name()
    );
    until_refused(b, &before, LATE)?;
    refill(b, &r, all - 1, 1)?;
    got.extend(take(b, r.recv_cq, 1)?);
    take(a, r.send_cq, u32::try_from(all)?)?;
    check(b, &r, &got)?;
    // One fails; the others go on.
    let bad = Send {
        va: r.target.va,
        rkey: r.target.rkey ^ 0x0001_5500,
        ..message(&r, 0, EACH)
    };
    let bad = Send {
        op: Op::Write,
        ..bad
    };
    a.send(r.senders[0], &bad)?;
    pair::expect_refused(a, r.send_cq, bad.wr, lossy)?;
    ensure!(
        !says_last || event(b, LAST_WQE, Subject::Qp(r.receivers[0].0))?,
        "{} did not say that the queue pair takes nothing any more",
        b.name()
    );
    others(a, b, &r)?;
    Ok(format!("{QPS} queue pairs"))
}

/// The queue pairs that did not fail go on.
fn others(a: &mut dyn End, b: &mut dyn End, r: &Ready) -> Result<()> {
    refill(b, r, 0, u32::try_from(QPS - 1)?)?;
    for qp in 1..QPS {
        a.send(r.senders[qp], &message(r, qp, EACH))?;
    }
    let got = take(b, r.recv_cq, u32::try_from(QPS - 1)?)?;
    check(b, r, &got)?;
    take(a, r.send_cq, u32::try_from(QPS - 1)?)?;
    Ok(())
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    for (name, one_in) in [
        ("shared receive queue", 0),
        ("shared receive queue, 2 % lost", 50),
        ("shared receive queue, 5 % lost", 20),
    ] {
        for direction in Direction::EACH {
            list.push(Scenario::plain(
                name,
                direction,
                one_in == 20,
                move |stage, scenario| run(stage, scenario, one_in),
            ));
        }
    }
    list
}
