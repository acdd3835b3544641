//! Receives that stand in the ring of a process when a packet needs them.

use std::collections::HashMap;

use xroce_engine::{LateReceives, Receives};
use xroce_proto::wc::Srq;
use xroce_wire::newtypes::Qpn;

use super::client::{Client, ClientId, Target};
use super::{find, post};

/// Whose queue it is, and its number there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) client: ClientId,
    pub(super) number: u32,
}

/// The rings of all processes, while the engine polls.
#[derive(Debug)]
pub(super) struct Rings<'a> {
    pub(super) clients: &'a mut [(u32, Option<Client>)],
    pub(super) owners: &'a HashMap<Qpn, Owner>,
    pub(super) srq_owners: &'a HashMap<Srq, Owner>,
    pub(super) scratch: &'a mut post::Scratch,
    /// Processes that wrote nonsense, and what is wrong with it.
    pub(super) wrong: Vec<(ClientId, post::Wrong)>,
}

impl LateReceives for Rings<'_> {
    #[cold]
    fn fetch(&mut self, posts: &mut Receives<'_>, qpn: Qpn, srq: Option<Srq>) {
        let (owner, target) = match srq {
            Some(srq) => (self.srq_owners.get(&srq), Target::Srq(srq)),
            None => (self.owners.get(&qpn), Target::Qp(qpn)),
        };
        let Some(&Owner { client: id, number }) = owner else {
            return;
        };
        let Some(client) = find(self.clients, id) else {
            return;
        };
        let budget = client.budget;
        let Some(ring) = client.queue(number).and_then(|queue| queue.recv.as_mut()) else {
            return;
        };
        match post::take_receives(posts, ring, target, budget, self.scratch) {
            // What is left stays listed.
            Ok((count, _)) => client.posted += u64::from(count),
            Err(wrong) => self.wrong.push((id, wrong)),
        }
    }
}
