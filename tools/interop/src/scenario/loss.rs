//! A bad network: packets of one kind are lost, doubled, overtaken or damaged, in one direction,
//! and all work still completes once, in order, with the right data.

use anyhow::{Result, ensure};

use super::traffic::{self, Batch, Plan};
use super::{Counters, Direction, Outcome, Scenario, Seen, Stage, grown, in_order};
use crate::ends::{End, Op, Service, Tuning};
use crate::fabric::account::arrivals;
use crate::fabric::fault::{Fault, Rule, Side};
use crate::fabric::look::Class;

/// What happens, how often, and its name.
const FAULTS: [(&str, Fault, u32); 5] = [
    ("1 % lost", Fault::Drop, 100),
    ("5 % lost", Fault::Drop, 20),
    ("5 % doubled", Fault::Duplicate, 20),
    ("5 % overtaken", Fault::Delay(3), 20),
    ("5 % damaged", Fault::Corrupt, 20),
];

/// Work in which packets of `class` are many.
fn batches(class: Class) -> Vec<Batch> {
    let batch = |op, size, count| Batch {
        op,
        size,
        pieces: 1,
        count,
    };
    match class {
        // Long and short messages: losses at every place in a message.
        Class::Request => vec![
            batch(Op::Send, 9_000, 8),
            batch(Op::WriteImm, 5_000, 8),
            batch(Op::Write, 1_000, 40),
            batch(Op::Read, 1_500, 40),
            batch(Op::SendImm, 700, 20),
        ],
        Class::Ack => vec![
            batch(Op::Send, 600, 60),
            batch(Op::Write, 2_500, 30),
            batch(Op::WriteImm, 100, 60),
        ],
        Class::ReadResponse => vec![
            batch(Op::Read, 9_000, 12),
            batch(Op::Write, 500, 4),
            batch(Op::Read, 1_100, 40),
        ],
    }
}

/// What a fault is, and how xroce waits for ACKs.
#[derive(Clone, Copy)]
struct Trial {
    rule: Rule,
    class: Class,
    adaptive: bool,
}

fn run(stage: &mut Stage, scenario: &Scenario, trial: Trial) -> Result<Outcome> {
    let Trial {
        rule,
        class,
        adaptive,
    } = trial;
    let plan = Plan {
        route: scenario.route,
        mtu: scenario.mtu,
        qps: 1,
        batches: batches(class),
        // Code 16 is 268 ms: the last packet of a burst is often the lost one.
        tuning: Tuning {
            timeout: 16,
            adaptive,
            ..Tuning::default()
        },
        both: false,
        service: Service::Rc,
        // Alone on the way, each message gets an ACK of its own.
        window: if class == Class::Ack { 1 } else { u32::MAX },
    };
    let (before, damaged_before) = {
        let (xroce, mut rxe) = stage.ends()?;
        ((xroce.counters()?, rxe.counters()?), xroce.damaged()?)
    };
    stage.start(&[rule]);
    let took = in_order(stage, scenario.direction, |a, b| traffic::run(a, b, &plan));
    stage.finish()?;
    let took = took?;
    let (after, damaged_after) = {
        let (xroce, mut rxe) = stage.ends()?;
        ((xroce.counters()?, rxe.counters()?), xroce.damaged()?)
    };
    let Some(record) = &stage.record else {
        return Ok(Outcome::default());
    };
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    let hit = seen.harm.lost + seen.harm.delayed + seen.harm.doubled;
    ensure!(hit > 0, "no packet was hit: the scenario tests nothing");
    seen.went_back_with_reason()?;
    let damaged = damaged_after - damaged_before;
    ensure!(
        damaged == seen.harm.damaged_to_xroce,
        "xroce counted {damaged} damaged packets, there were {}",
        seen.harm.damaged_to_xroce
    );
    agree(&seen, &before.0, &after.0, "xroce")?;
    // rxe counts only those it acts on: not a second one before it made progress (X3).
    let naks = grown(&before.1, &after.1, "rcvd_seq_err")?;
    ensure!(
        naks <= seen.xroce.sequence_naks,
        "rxe counted {naks} sequence NAKs, {} reached it",
        seen.xroce.sequence_naks
    );
    if !matches!(rule.fault, Fault::Delay(_)) {
        responder_agrees(stage, scenario, &before, &after)?;
    }
    Ok(seen.outcome(format!("{hit} hit, {} ms", took.as_millis())))
}

/// Counters of xroce and of rxe.
type Both = (Counters, Counters);

/// Duplicates and packets out of sequence, as the responder counted them.
fn responder_agrees(stage: &Stage, scenario: &Scenario, before: &Both, after: &Both) -> Result<()> {
    let Some(record) = &stage.record else {
        return Ok(());
    };
    let requester = scenario.direction.requester();
    let wire = arrivals(record, requester, scenario.mtu.bytes());
    // rxe counts gaps, xroce the packets beyond them.
    let (before, after, out_of_sequence) = match requester {
        Side::Xroce => (&before.1, &after.1, wire.gaps),
        Side::Vm => (&before.0, &after.0, wire.early),
    };
    for (name, wire) in [
        ("duplicate_request", wire.duplicates),
        ("out_of_seq_request", out_of_sequence),
    ] {
        let counted = grown(before, after, name)?;
        ensure!(
            counted == wire,
            "the responder counted {counted} as {name}, on the cable there were {wire}"
        );
    }
    Ok(())
}

/// Our counters against what was on the cable.
fn agree(
    seen: &Seen,
    before: &Counters,
    after: &Counters,
    who: &str,
) -> Result<()> {
    for (name, wire) in [
        ("retransmitted_pkts", seen.xroce.retransmitted),
        ("sent_pkts", seen.xroce.packets),
        ("rcvd_seq_err", seen.rxe.sequence_naks),
        ("rcvd_rnr_err", seen.rxe.rnr_naks),
    ] {
        let counted = grown(before, after, name)?;
        ensure!(
            counted == wire,
            "{who} counted {counted} as {name}, on the cable there were {wire}"
        );
    }
    Ok(())
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    for (fault_name, fault, one_in) in FAULTS {
        for class in [Class::Request, Class::Ack, Class::ReadResponse] {
            for direction in Direction::EACH {
                let what = format!("{} {fault_name}", class.name());
                let from = match class {
                    Class::Request => direction.requester(),
                    Class::Ack | Class::ReadResponse => direction.requester().other(),
                };
                let trial = Trial {
                    rule: Rule {
                        from,
                        class: Some(class),
                        one_in,
                        fault,
                    },
                    class,
                    adaptive: false,
                };
                let smoke = one_in == 20 && fault == Fault::Drop && class == Class::Request;
                list.push(scenario(
                    format!("bad network: {what}"),
                    direction,
                    smoke,
                    trial,
                ));
                // The timeout that follows the round trip is a requester's alone.
                if direction == Direction::ToRxe && fault == Fault::Drop {
                    let trial = Trial {
                        adaptive: true,
                        ..trial
                    };
                    let name = format!("bad network, adaptive timeout: {what}");
                    list.push(scenario(name, direction, smoke, trial));
                }
            }
        }
    }
    list
}

fn scenario(name: String, direction: Direction, smoke: bool, trial: Trial) -> Scenario {
    Scenario::plain(name, direction, smoke, move |stage, scenario| {
        run(stage, scenario, trial)
    })
}
