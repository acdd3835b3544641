//! A bad network: packets of one kind are lost, doubled, overtaken or damaged, in one direction,
//! and all work still completes once, in order, with the right data.

use anyhow::{Error, Result, bail, ensure};

use super::traffic::{self, Batch, Failed, Plan};
use super::{Counters, Direction, Outcome, Scenario, Seen, Stage, grown, in_order, status};
use crate::ends::{End, Op, Service, Tuning};
use crate::fabric::account::arrivals;
use crate::fabric::fault::{Fault, Rule, Side};
use crate::fabric::look::Class;
use crate::fabric::peer::old_ack_inside;
use crate::fabric::record::Record;
use crate::fabric::standard;

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

/// Attempts at a scenario in which the peer fails by a fault of its own.
const ATTEMPTS: usize = 4;
/// Name of the capture of such an attempt.
const PEER_FAULT: [&str; ATTEMPTS] = ["peer fault", "peer fault 2", "peer fault 3", "peer fault 4"];

fn run(stage: &mut Stage, scenario: &Scenario, trial: Trial) -> Result<Outcome> {
    let mut faults = Vec::new();
    for name in PEER_FAULT {
        match attempt(stage, scenario, trial, name)? {
            Attempt::Done(mut outcome) => {
                outcome.peer_faults = faults;
                return Ok(outcome);
            }
            Attempt::PeerFault(what) => faults.push(what),
        }
    }
    bail!(
        "in each of {ATTEMPTS} attempts, peer fault: {}",
        faults.join("; ")
    )
}

/// What came of an attempt.
enum Attempt {
    /// All was as it must be.
    Done(Outcome),
    /// The peer failed by a fault of its own.
    PeerFault(String),
}

/// Whether rxe failed because of an old ACK inside a READ: it said that the READ has succeeded, its
/// bytes are not there, all behind it is flushed, and such an ACK is what it got.
fn peer_fault(stage: &Stage, scenario: &Scenario, record: &Record, e: &Error) -> Option<String> {
    let failed = e.downcast_ref::<Failed>()?;
    let read = failed.read_before?;
    let newer = !stage.vm.release().starts_with("6.1.");
    let of_rxe = scenario.direction == Direction::ToXroce && failed.status == status::FLUSHED;
    if !newer || !of_rxe || read.whole {
        return None;
    }
    standard::check(record).ok()?;
    let (ack, behind) = old_ack_inside(record, read.psns)?;
    Some(format!(
        "rxe completed READ {} as a success without all of its bytes and flushed what is behind it: the \
         old ACK {ack:#08x} came before response {behind:#08x}",
        failed.wr - 1
    ))
}

fn plan(scenario: &Scenario, class: Class, adaptive: bool) -> Plan {
    Plan {
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
    }
}

fn attempt(
    stage: &mut Stage,
    scenario: &Scenario,
    trial: Trial,
    peer_fault_name: &'static str,
) -> Result<Attempt> {
    let Trial {
        rule,
        class,
        adaptive,
    } = trial;
    let plan = plan(scenario, class, adaptive);
    let (before, damaged_before) = {
        let (xroce, mut rxe) = stage.ends()?;
        ((xroce.counters()?, rxe.counters()?), xroce.damaged()?)
    };
    stage.start(&[rule]);
    let took = in_order(stage, scenario.direction, |a, b| traffic::run(a, b, &plan));
    stage.finish()?;
    let took = match (took, &stage.record) {
        (Err(e), Some(record)) => match peer_fault(stage, scenario, record, &e) {
            Some(what) => {
                stage.set_aside(peer_fault_name);
                return Ok(Attempt::PeerFault(what));
            }
            None => return Err(e),
        },
        (took, _) => took?,
    };
    let (after, damaged_after) = {
        let (xroce, mut rxe) = stage.ends()?;
        ((xroce.counters()?, rxe.counters()?), xroce.damaged()?)
    };
    let Some(record) = &stage.record else {
        bail!("nothing was recorded");
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
    let figure = format!("{hit} hit, {} ms", took.as_millis());
    Ok(Attempt::Done(seen.outcome(figure)))
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
fn agree(seen: &Seen, before: &Counters, after: &Counters, who: &str) -> Result<()> {
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
