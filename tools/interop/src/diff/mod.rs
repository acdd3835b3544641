//! The same random programs between two rxe, between xroce and rxe both ways, and between two
//! xroce: statuses, lengths, immediate data, order, memory and states must be the same.
//!
//! ```text
//!   program    what a program is, and how one is made smaller
//!   make       makes one from a seed
//!   play       runs one between two ends
//!   allow      differences that are known, with reasons
//! ```

mod allow;
mod make;
mod play;
mod program;

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use crate::clock;
use crate::ends::{End, LoopPair, Looped, Rxe, Service, loop_ends};
use crate::fabric::Route;
use crate::fabric::fault::{Fault, Rule, Side};
use crate::fabric::look::Roce;
use crate::scenario::{Direction, Outcome, Scenario, Stage, mtu};
use allow::{Difference, Ends, What, explain};
use play::Seen;
use program::{Kind, Program};

/// One packet in so many is lost, where packets are lost.
const ONE_IN: u32 = 30;
/// Longest time to make a program smaller.
const SHRINK: std::time::Duration = std::time::Duration::from_secs(90);

/// A part of the programs of a run.
#[derive(Clone, Copy, Debug)]
struct Share {
    name: &'static str,
    kind: Kind,
    lossy: bool,
    /// Of a hundred.
    percent: u32,
}

const SHARES: [Share; 4] = [
    Share {
        name: "programs: RC",
        kind: Kind::Connected(Service::Rc),
        lossy: false,
        percent: 50,
    },
    Share {
        name: "programs: RC, 3 % lost",
        kind: Kind::Connected(Service::Rc),
        lossy: true,
        percent: 20,
    },
    Share {
        name: "programs: UC",
        kind: Kind::Connected(Service::Uc),
        lossy: false,
        percent: 15,
    },
    Share {
        name: "programs: UD",
        kind: Kind::Ud,
        lossy: false,
        percent: 15,
    },
];

/// Attempts at a program in which rxe stops.
const ATTEMPTS: u32 = 3;
/// One program in so many may have rxe stop in all of them, or nothing has been compared.
const UNFINISHED_ONE_IN: u32 = 5;

/// Captures of a program that fails: as it was made, and the smallest one that still did.
const FOUND: &str = "as found";
const SMALLEST: &str = "smallest";

/// What running one program showed.
#[derive(Default)]
struct Trial {
    /// Times rxe stopped.
    stops: u32,
    /// It did so in every attempt.
    unfinished: bool,
    /// Rules that explained differences, and how often.
    used: BTreeMap<&'static str, u64>,
    /// What nothing explains.
    unlisted: Vec<String>,
}

fn rules(lossy: bool) -> Vec<Rule> {
    if !lossy {
        return Vec::new();
    }
    let rule = |from| Rule {
        from,
        class: None,
        one_in: ONE_IN,
        fault: Fault::Drop,
    };
    vec![rule(Side::Xroce), rule(Side::Vm)]
}

fn run(stage: &mut Stage, share: Share) -> Result<Outcome> {
    let newer = !stage.vm.release().starts_with("6.1.");
    let count = (stage.programs.count * share.percent).div_ceil(100).max(1);
    let pair = loop_ends()?;
    let mut used: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut requests, mut stops, mut unfinished) = (0, 0, 0);
    stage.start(&rules(share.lossy));
    for n in 0..u64::from(count) {
        let seed = stage.programs.seed.wrapping_add(n);
        let program = make::program(seed, share.kind, newer, share.lossy);
        let (recorded, _) = stage.fabric.lost(0);
        let trial = trial(stage, &pair, &program, newer, share.lossy)?;
        if !trial.unlisted.is_empty() {
            stage.finish_failed(FOUND, recorded)?;
            return fail(stage, &pair, program, trial, (newer, share));
        }
        for (name, times) in trial.used {
            *used.entry(name).or_default() += times;
        }
        requests += program.len();
        stops += trial.stops;
        unfinished += u32::from(trial.unfinished);
    }
    stage.finish()?;
    let bound = count.div_ceil(UNFINISHED_ONE_IN);
    ensure!(
        unfinished <= bound,
        "in {unfinished} of {count} programs, more than {bound}, rxe stopped in each of {ATTEMPTS} \
         attempts: its work request neither completed nor was sent again"
    );
    let note = |rule: &allow::Rule| {
        let (name, reason, follows) = (rule.name, rule.reason, rule.follows);
        let times = used.get(name)?;
        let share = share.name;
        Some(format!(
            "{share}: {name}, {times} times ({reason}; as specified: {follows})"
        ))
    };
    let mut notes: Vec<String> = allow::RULES.iter().filter_map(note).collect();
    if stops != 0 {
        notes.push(format!(
            "{}: rxe stopped {stops} times: its work request did not complete, and it sent \
             nothing for longer than the four timeouts after which a requester has to send \
             again; {unfinished} programs were not compared for it",
            share.name
        ));
    }
    let known: u64 = used.values().sum();
    Ok(Outcome {
        figure: format!("{count} × 4, {requests} requests, {known} known differences"),
        notes,
        ..Outcome::default()
    })
}

/// Makes the program smaller as long as it fails, and leaves the record of the smallest that did.
fn fail(
    stage: &mut Stage,
    pair: &LoopPair,
    mut program: Program,
    mut found: Trial,
    (newer, share): (bool, Share),
) -> Result<Outcome> {
    let until = clock::now() + SHRINK;
    let mut at = 0;
    while at < program.len() && clock::now() < until {
        let Some(less) = program.without(at) else {
            at += 1;
            continue;
        };
        stage.start(&rules(share.lossy));
        let again = trial(stage, pair, &less, newer, share.lossy)?;
        if again.unlisted.is_empty() {
            at += 1;
        } else {
            stage.finish_failed(SMALLEST, 0)?;
            program = less;
            found = again;
        }
    }
    bail!(
        "{}\n{}(again: --filter \"{}\" --programs 1 --program-seed {:#x})",
        found.unlisted.join("\n"),
        program.text(),
        share.name,
        program.seed
    )
}

/// Runs a program between all ends and compares.
fn trial(
    stage: &mut Stage,
    pair: &LoopPair,
    program: &Program,
    newer: bool,
    lossy: bool,
) -> Result<Trial> {
    let mut found = Trial::default();
    let Some(base) = rxe_alone(stage, program, newer, lossy, &mut found)? else {
        return Ok(found);
    };
    for ends in Ends::ALL {
        let Some(got) = between(stage, pair, ends, program, (newer, lossy), &mut found)? else {
            continue;
        };
        let (got, recorded) = got;
        for difference in differences(&base, &got) {
            match explain(program, ends, &difference) {
                Some(rule) => *found.used.entry(rule.name).or_default() += 1,
                None => {
                    let lost = lost(stage, recorded);
                    let text = format!("{}: {}{lost}", ends.name(), difference.text);
                    found.unlisted.push(text);
                }
            }
        }
    }
    Ok(found)
}

/// A program between two rxe; `None` if rxe stops each time.
fn rxe_alone(
    stage: &mut Stage,
    program: &Program,
    newer: bool,
    lossy: bool,
    found: &mut Trial,
) -> Result<Option<play::Outcome>> {
    for _ in 0..ATTEMPTS {
        let base = {
            let agent = RefCell::new(stage.vm.agent());
            let [mut a, mut b] = Rxe::twins(&agent);
            play::run(&mut [&mut a, &mut b], program, newer, lossy)
        };
        match base {
            Ok(base) => return Ok(Some(base)),
            Err(e) if e.is::<play::NotDone>() => found.stops += 1,
            Err(e) => {
                alive(stage)?;
                found.unlisted.push(format!("rxe → rxe: {e:#}"));
                return Ok(None);
            }
        }
        alive(stage)?;
    }
    found.unfinished = true;
    Ok(None)
}

/// A program between other ends, and where its record begins. `None` if it did not come to an end,
/// which is noted.
///
/// A work request of rxe that does not complete is rxe's own fault if rxe has been silent for
/// longer than any requester may: it has to send again.
fn between(
    stage: &mut Stage,
    pair: &LoopPair,
    ends: Ends,
    program: &Program,
    (newer, lossy): (bool, bool),
    found: &mut Trial,
) -> Result<Option<(play::Outcome, usize)>> {
    for _ in 0..ATTEMPTS {
        // What gets lost depends on the program alone, not on those before it.
        stage.fabric.again(&rules(lossy), program.seed);
        let (recorded, _) = stage.fabric.lost(0);
        let got = match ends {
            Ends::XroceRxe | Ends::RxeXroce => {
                let (xroce, rxe) = stage.ends()?;
                let mut rxe = rxe.lazy();
                let mut order: [&mut dyn End; 2] = [xroce, &mut rxe];
                if ends == Ends::RxeXroce {
                    order.reverse();
                }
                play::run(&mut order, program, newer, lossy)
            }
            Ends::XroceXroce => {
                let [mut a, mut b] = Looped::both(pair);
                play::run(&mut [&mut a, &mut b], program, newer, lossy)
            }
        };
        let e = match got {
            Ok(got) => return Ok(Some((got, recorded))),
            Err(e) => e,
        };
        let silence = stage.fabric.silence(Side::Vm);
        alive(stage)?;
        let of_rxe = e
            .downcast_ref::<play::NotDone>()
            .is_some_and(|not| ends.rxe() == Some(not.end));
        if of_rxe && silence > play::patience(lossy) {
            found.stops += 1;
            continue;
        }
        let lost = lost(stage, recorded);
        found.unlisted.push(format!("{}: {e:#}{lost}", ends.name()));
        return Ok(None);
    }
    found.unfinished = true;
    Ok(None)
}

/// For people: what got lost.
fn lost(stage: &Stage, recorded: usize) -> String {
    let (_, gone) = stage.fabric.lost(recorded);
    let text = |(side, packet): &(Side, Roce)| {
        let from = if *side == Side::Xroce { "xroce" } else { "rxe" };
        format!(" {from} {:#04x} {:#08x}", packet.opcode, packet.psn)
    };
    if gone.is_empty() {
        return String::new();
    }
    let texts: Vec<String> = gone.iter().map(text).collect();
    format!(" (lost, opcode and PSN:{})", texts.concat())
}

/// After an error: without a machine there is nothing to compare with.
fn alive(stage: &mut Stage) -> Result<()> {
    ensure!(
        stage.vm.agent().counters().is_ok(),
        "the machine does not answer any more"
    );
    Ok(())
}

fn differences(base: &play::Outcome, got: &play::Outcome) -> Vec<Difference> {
    let mut list = Vec::new();
    for end in 0..2 {
        completions(end, true, &base.sends[end], &got.sends[end], &mut list);
        completions(end, false, &base.recvs[end], &got.recvs[end], &mut list);
        for (slot, pair) in (0..).zip(base.memory[end].iter().zip(&got.memory[end])) {
            if pair.0 != pair.1 {
                list.push(Difference {
                    what: What::Memory,
                    end,
                    at: slot,
                    text: format!("end {end}: slot {slot} has other bytes than with rxe → rxe"),
                });
            }
        }
        if base.states[end] != got.states[end] {
            let (was, is) = (&base.states[end], &got.states[end]);
            list.push(Difference {
                what: What::State,
                end,
                at: 0,
                text: format!("end {end} is in state {is}, with rxe → rxe in {was}"),
            });
        }
    }
    list
}

/// Completions of one queue: the same ones in the same order.
fn completions(end: usize, sends: bool, base: &[Seen], got: &[Seen], list: &mut Vec<Difference>) {
    let kind = if sends { "send" } else { "receive" };
    let order = |seen: &[Seen]| seen.iter().map(|s| s.at).collect::<Vec<_>>();
    if order(base) != order(got) && got.len() >= base.len() && base.len() == got.len() {
        list.push(Difference {
            what: What::Field,
            end,
            at: 0,
            text: format!(
                "end {end}: {kind}s completed in the order {:?}, with rxe → rxe {:?}",
                order(got),
                order(base)
            ),
        });
        return;
    }
    let mut numbers = order(base);
    numbers.extend(order(got));
    numbers.sort_unstable();
    numbers.dedup();
    for at in numbers {
        let find = |seen: &[Seen]| seen.iter().find(|s| s.at == at).copied();
        let (was, is) = (find(base), find(got));
        if was == is {
            continue;
        }
        let status = |seen: Option<Seen>| seen.map(|s| s.status);
        let statuses = (status(was), status(is));
        let what = if statuses.0 == statuses.1 {
            What::Field
        } else if sends {
            What::Send(statuses.0, statuses.1)
        } else {
            What::Recv(statuses.0, statuses.1)
        };
        list.push(Difference {
            what,
            end,
            at,
            text: format!("end {end}: {kind} {at} is {is:?}, with rxe → rxe {was:?}"),
        });
    }
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenario = |share: Share| Scenario {
        name: share.name.to_owned(),
        direction: Direction::Both,
        route: Route::V4,
        mtu: mtu(1024),
        smoke: true,
        run: Box::new(move |stage, _| run(stage, share)),
    };
    SHARES.map(scenario).into()
}
