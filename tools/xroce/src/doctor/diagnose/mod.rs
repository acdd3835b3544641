//! From what was measured to what is wrong: a pure function.

mod connection;
mod ends;
mod many;
mod path;
mod sizes;
#[cfg(test)]
mod tests;

use super::facts::{Direction, Facts};
use super::message::End;
use super::report::{Check, Fault, Finding, Report, SCHEMA, State};

/// Everything that can be said about a path.
pub(crate) fn report(facts: &Facts) -> Report {
    let mut findings = Vec::new();
    ends::ports(facts, &mut findings);
    ends::gids(facts, &mut findings);
    if facts.is_pair() {
        ends::neighbours(facts, &mut findings);
        sizes::links(facts, &mut findings);
        for way in ways(facts) {
            way.look(&mut findings);
        }
    } else {
        let why = "there is no pair of RoCE addresses to send between";
        let rest = [Check::Neighbour, Check::Reachability];
        for check in rest.into_iter().chain(BEHIND) {
            findings.push(unchecked(check, BOTH, why));
        }
    }
    connection::look(facts, &mut findings);
    let told = findings.iter().map(|f| f.state);
    let told = told.filter(|s| *s != State::NotChecked);
    let state = told.max().unwrap_or(State::Ok);
    Report {
        schema: SCHEMA,
        near: facts.near.gid,
        far: facts.far.gid,
        near_port: facts.near.port.clone(),
        far_port: facts.far.port.clone(),
        state,
        findings,
    }
}

/// Where a finding about neither side alone is.
const BOTH: &str = "both";

/// What needs packets that arrive.
const BEHIND: [Check; 8] = [
    Check::Addresses,
    Check::Icrc,
    Check::PathMtu,
    Check::Ecn,
    Check::Dscp,
    Check::Loss,
    Check::Order,
    Check::Duplicates,
];

/// One direction with all that belongs to it.
struct OneWay<'f> {
    /// What was measured.
    d: &'f Direction,
    /// The other direction.
    reverse: &'f Direction,
    /// Where packets come from.
    from: &'f End,
    /// Where they go.
    to: &'f End,
    /// Whether TCP passes between the same addresses.
    tcp_passes: bool,
    /// "10.0.0.1 to 10.0.0.2".
    place: String,
}

/// Both directions.
fn ways(facts: &Facts) -> [OneWay<'_>; 2] {
    let (near, far) = (&facts.near, &facts.far);
    let (there, back) = (&facts.there, &facts.back);
    [(there, back, near, far), (back, there, far, near)].map(|(d, reverse, from, to)| OneWay {
        d,
        reverse,
        from,
        to,
        tcp_passes: facts.tcp_passes,
        place: format!("{} to {}", from.gid, to.gid),
    })
}

impl OneWay<'_> {
    fn look(&self, out: &mut Vec<Finding>) {
        if let Some(why) = self.reachability(out) {
            out.extend(BEHIND.map(|check| unchecked(check, &self.place, why)));
            return;
        }
        self.addresses(out);
        self.icrc(out);
        self.path_mtu(out);
        self.ecn(out);
        self.dscp(out);
        self.loss(out);
        self.order(out);
        self.duplicates(out);
    }

    fn fine(&self, check: Check, measured: String) -> Finding {
        fine(check, &self.place, measured)
    }

    fn wrong(&self, check: Check, state: State, measured: String, why: Why) -> Finding {
        wrong(check, &self.place, state, measured, why)
    }
}

/// A fault with its explanation.
struct Why {
    fault: Fault,
    cause: String,
    remedy: String,
}

fn fine(check: Check, place: &str, measured: String) -> Finding {
    Finding {
        check,
        state: State::Ok,
        place: place.to_owned(),
        measured,
        fault: None,
        cause: None,
        remedy: None,
    }
}

fn unchecked(check: Check, place: &str, why: &str) -> Finding {
    Finding {
        state: State::NotChecked,
        ..fine(check, place, why.to_owned())
    }
}

fn wrong(check: Check, place: &str, state: State, measured: String, why: Why) -> Finding {
    Finding {
        state,
        fault: Some(why.fault),
        cause: Some(why.cause),
        remedy: Some(why.remedy),
        ..fine(check, place, measured)
    }
}

/// A share for people: "1.02 %".
fn percent(part: u64, whole: u64) -> String {
    let (part, whole) = (u128::from(part), u128::from(whole.max(1)));
    let hundredths = part * 10_000 / whole;
    if part > 0 && hundredths == 0 {
        return "less than 0.01 %".to_owned();
    }
    format!("{}.{:02} %", hundredths / 100, hundredths % 100)
}
