//! What happens below the queue pairs and is told by the owner of the engine: addresses that come
//! and go, a link that fails, ICMP errors. Nothing of it changes the state of a queue pair: an
//! address may come back, a link too, and anybody can send an ICMP message. It is counted,
//! reported as an event, and part of the report of a queue pair that fails.

use xroce_api::{AsyncEvent, IcmpError};
use xroce_net::addressing::PathEvent;
use xroce_net::datapath::Datapath;
use xroce_net::gids::GidTable;
use xroce_proto::qp::QpType;
use xroce_proto::wc::Event;
use xroce_wire::newtypes::{Gid, Qpn};
use xroce_wire::path::AddressVector;

use crate::engine::{Core, Engine};

/// An address of the port and its VLAN (0: none).
type Local = (Gid, u16);

/// What the engine knows of its port's addresses.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// Empty until told: then nothing is known, and nothing refused.
    locals: Vec<Local>,
    pub(crate) link_down: bool,
}

impl Paths {
    /// Whether a datagram to `dst` may come in this VLAN: not if that address is known, in others
    /// only.
    pub(crate) fn admit(&self, dst: Gid, vid: u16) -> bool {
        let mut found = self.locals.iter().filter(|(gid, _)| *gid == dst).peekable();
        found.peek().is_none() || found.any(|(_, of)| *of == vid)
    }
}

impl<D: Datapath> Engine<D> {
    /// Tells the engine which addresses its port has. From then on datagrams to one of them are
    /// taken in its VLAN only. Later changes are told by [`Engine::apply`].
    pub fn set_gids(&mut self, gids: &GidTable) {
        let local = |entry: &xroce_api::GidEntry| (entry.gid, entry.vlan.unwrap_or(0));
        self.core.paths.locals = gids.iter().map(|(_, entry)| local(entry)).collect();
    }

    /// Takes note of an event of [`Addressing::poll`](xroce_net::addressing::Addressing::poll).
    ///
    /// Changes of addresses and of the link become the asynchronous events `GID_CHANGE`, `PORT_ERR`
    /// and `PORT_ACTIVE` of the port; the queue pairs whose address went are
    /// [`Engine::orphans`]. Frames to an address that is gone are no longer taken.
    pub fn apply(&mut self, event: &PathEvent) {
        let core = &mut self.core;
        match event {
            PathEvent::GidAdded(_, entry) => {
                let local = (entry.gid, entry.vlan.unwrap_or(0));
                core.paths.locals.push(local);
                core.mark(local, false);
                core.stats.gid_changes += 1;
                core.cqs.events.push(AsyncEvent::port(Event::GidChange));
                self.port.claim(entry.gid);
            }
            PathEvent::GidRemoved(_, entry) => {
                let local = (entry.gid, entry.vlan.unwrap_or(0));
                core.paths.locals.retain(|known| *known != local);
                core.mark(local, true);
                core.stats.gid_changes += 1;
                core.cqs.events.push(AsyncEvent::port(Event::GidChange));
                if core.paths.locals.iter().all(|(gid, _)| *gid != entry.gid) {
                    self.port.release(entry.gid);
                }
            }
            PathEvent::PortUp => {
                core.paths.link_down = false;
                core.cqs.events.push(AsyncEvent::port(Event::PortActive));
            }
            PathEvent::PortDown => {
                core.paths.link_down = true;
                core.stats.link_downed += 1;
                core.cqs.events.push(AsyncEvent::port(Event::PortErr));
            }
            PathEvent::Icmp(error) => core.attribute(error),
        }
    }

    /// Queue pairs whose own address is gone: their packets are not answered any more.
    pub fn orphans(&self) -> impl Iterator<Item = Qpn> {
        let all = self.core.qps.iter();
        all.filter(|(_, e)| e.address_gone).map(|(_, e)| e.qp.qpn())
    }
}

impl Core {
    /// Notes at the queue pairs that use an address whether it is gone.
    fn mark(&mut self, (gid, vid): Local, gone: bool) {
        for entry in self.qps.iter_mut() {
            let of = entry.qp.path().map(|av| (av.src, entry.qp.vid()));
            let hit = of == Some((gid, vid));
            if hit {
                entry.address_gone = gone;
            }
        }
    }

    /// Counts an ICMP error at the queue pair whose packet it quotes.
    fn attribute(&mut self, error: &IcmpError) {
        self.stats.icmp_errors += 1;
        let (src, dst) = (Gid::from(error.src), Gid::from(error.dst));
        for entry in self.qps.iter_mut() {
            if entry.qp.init().qp_type == QpType::Ud {
                continue;
            }
            let is_it = |av: &AddressVector| {
                let who = match error.dest_qpn {
                    Some(qpn) => entry.qp.dest_qpn() == qpn,
                    None => av.src_port == error.src_port,
                };
                who && av.src == src && av.dst == dst
            };
            if entry.qp.path().is_some_and(is_it) {
                entry.trouble_mut().icmp.note(error);
            }
        }
    }
}
