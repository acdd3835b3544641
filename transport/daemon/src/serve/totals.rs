//! Sums over queue pairs, those that are gone included: totals never fall.

use std::collections::BTreeMap;
use std::ops::Bound;

use xroce_net::datapath::Datapath;
use xroce_proto::counters::Counters;
use xroce_proto::qp::QpState;
use xroce_proto::rtt::Histogram;
use xroce_wire::newtypes::Qpn;

use super::client::ClientId;
use super::{Server, find};

/// Queue pairs added up in one command: a few microseconds, then others have their turn.
const PAGE: usize = 64;

/// What several queue pairs did together.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Counters, of those that are gone too.
    pub counters: Counters,
    /// Round-trip times, of those that are gone too.
    pub rtt: Histogram,
    /// Queue pairs there are in each state, in the order of [`QpState::ALL`].
    pub states: [u32; QpState::ALL.len()],
}

impl Totals {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.counters += other.counters;
        self.rtt.merge(&other.rtt);
        for (to, from) in self.states.iter_mut().zip(other.states) {
            *to += from;
        }
    }
}

/// Totals under way: they go to the engine's thread and back, a page at a time.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub(crate) sessions: BTreeMap<u32, Totals>,
    pub(crate) device: Totals,
    after: Option<(u32, u32)>,
    pub(crate) done: bool,
}

impl<D: Datapath> Server<D> {
    /// Takes down what a queue pair did that is about to be destroyed.
    pub(crate) fn retire_qp(&mut self, id: ClientId, qpn: Qpn) {
        let gone = self.totals_of(qpn);
        self.retired.add(&gone);
        if let Some(client) = find(&mut self.clients, id) {
            client.retired.add(&gone);
        }
    }

    /// Of one queue pair; it is in no state if it is counted as gone.
    fn totals_of(&self, qpn: Qpn) -> Totals {
        Totals {
            counters: self.engine.qp_counters(qpn).unwrap_or_default(),
            rtt: self.engine.qp_rtt(qpn).cloned().unwrap_or_default(),
            states: Default::default(),
        }
    }

    /// Adds the next queue pairs, and first those that are gone.
    pub(crate) fn add_page(&self, mut sums: Sums) -> Sums {
        if sums.after.is_none() {
            sums.device.add(&self.retired);
            for client in self.clients.iter().filter_map(|(_, c)| c.as_ref()) {
                let of = sums.sessions.entry(client.session()).or_default();
                of.add(&client.retired);
            }
        }
        let from = sums.after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut seen = 0;
        for (&key, &qpn) in self.listing.range((from, Bound::Unbounded)).take(PAGE) {
            let mut one = self.totals_of(qpn);
            let state = self.engine.qp_state(qpn).map_or(0, |state| state as usize);
            if let Some(count) = one.states.get_mut(state) {
                *count = 1;
            }
            sums.device.add(&one);
            sums.sessions.entry(key.0).or_default().add(&one);
            sums.after = Some(key);
            seen += 1;
        }
        sums.done = seen < PAGE;
        sums
    }
}
