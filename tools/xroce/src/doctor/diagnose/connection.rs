//! Reliable connections.

use super::super::facts::{Connected, Facts, Rates, Trial};
use super::super::report::{Check, Fault, Finding, State};
use super::{Why, fine, percent, unchecked, wrong};

/// Sequence NAKs per thousand packets from which on something is lost under load.
const NAKS: u64 = 1;
/// Timeouts that mean the same if more than one packet of a hundred was sent again: a busy host may be
/// late with an answer or two.
const TIMEOUTS: u64 = 5;

/// What they did.
pub(super) fn look(facts: &Facts, out: &mut Vec<Finding>) {
    let check = Check::Connection;
    let place = format!("{} to {}", facts.near.gid, facts.far.gid);
    let rates = match &facts.connected {
        Connected::Measured(rates) => rates,
        Connected::Failed(text) => {
            let why = Why {
                fault: Fault::ConnectionFailed,
                cause: "packets arrive, but a queue pair does not get its work done".to_owned(),
                remedy: "first mend what else is named here; then look at the counters of both \
                         sides (xroce perf --stats)"
                    .to_owned(),
            };
            out.push(wrong(check, &place, State::Problem, text.clone(), why));
            return;
        }
        Connected::NotTried(why) => {
            out.push(unchecked(check, &place, why));
            return;
        }
    };
    let measured = words(rates);
    match why(facts, rates) {
        Some((state, why)) => out.push(wrong(check, &place, state, measured, why)),
        None => out.push(fine(check, &place, measured)),
    }
}

/// What the rates say that the probes did not, and what became of the queue pairs where these did.
fn why(facts: &Facts, rates: &Rates) -> Option<(State, Why)> {
    if rates.wrong > 0 {
        let why = Why {
            fault: Fault::WrongData,
            cause: "data is changed where no ICRC covers it: in the memory of a host".to_owned(),
            remedy: "test the memory of both hosts".to_owned(),
        };
        return Some((State::Problem, why));
    }
    let naks = rates.sequence_naks * 1000 >= rates.packets.max(1) * NAKS;
    let timeouts = rates.timeouts >= TIMEOUTS && rates.retransmissions * 100 > rates.packets;
    if !naks && !timeouts {
        return None;
    }
    let met = |what: fn(&Trial) -> u32| {
        let trials = facts.there.many.iter().chain(&facts.back.many);
        trials.map(what).any(|n| n > 0)
    };
    let known = if met(|t| t.heard.reordered) {
        Some((Fault::Reordering, "reordering"))
    } else if met(Trial::lost) {
        Some((Fault::Loss, "loss"))
    } else {
        None
    };
    let why = match known {
        Some((fault, name)) => Why {
            fault,
            cause: format!("the {name} that the probes met: each time a window is sent again"),
            remedy: format!("mend the {name} first"),
        },
        None => Why {
            fault: Fault::LossUnderLoad,
            cause: "nothing is lost at a low rate, but packets are missing under load: a queue on \
                    the way overflows without PFC or ECN, or a host cannot keep up"
                .to_owned(),
            remedy: "look at the discards of the switch ports on the way, at the PFC and ECN \
                     configuration of the RoCE class, and at the drops of both hosts (xroce perf \
                     --stats)"
                .to_owned(),
        },
    };
    Some((State::Warning, why))
}

#[allow(clippy::cast_precision_loss, reason = "times for people")]
fn words(rates: &Rates) -> String {
    let us = |ns: u64| ns as f64 / 1e3;
    let mut text = format!(
        "path MTU {}: {:.2} Gb/s; round trip p50 {:.1} µs, p99 {:.1} µs, max {:.1} µs of {}",
        rates.path_mtu,
        rates.gbit_per_s,
        us(rates.p50_ns),
        us(rates.p99_ns),
        us(rates.max_ns),
        rates.round_trips
    );
    let share = percent(rates.retransmissions, rates.packets);
    text += &match rates.retransmissions {
        0 => "; no retransmissions".to_owned(),
        n => format!(
            "; {n} retransmissions ({share}), {} sequence NAKs, {} timeouts",
            rates.sequence_naks, rates.timeouts
        ),
    };
    if rates.icrc_errors > 0 {
        text += &format!(", {} with a wrong ICRC", rates.icrc_errors);
    }
    if rates.wrong > 0 {
        text += &format!("; {} messages were not what was sent", rates.wrong);
    }
    text
}
