//! Which frames a capture wants, told from their bytes before anything is copied.

use xroce_api::message::{CaptureSpec, Direction};
use xroce_wire::frame::{Frame, UdpMeta};
use xroce_wire::newtypes::{Gid, Qpn};
use xroce_wire::opcode::{Operation, Service};
use xroce_wire::packet::Packet;
use xroce_wire::syndrome::Syndrome;

use super::repeats::Repeats;

/// A frame on its way through the port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passing<'a> {
    pub(super) direction: Direction,
    pub(super) bytes: &'a [u8],
    /// What is known of the headers in front if `bytes` lacks them.
    pub(super) udp: Option<UdpMeta>,
}

impl<'a> Passing<'a> {
    /// Its addresses, if it is RoCE.
    fn frame(&self) -> Option<Frame<'a>> {
        match &self.udp {
            Some(meta) => Some(Frame::from_udp(meta, self.bytes)),
            None => Frame::dissect_ethernet(self.bytes).ok(),
        }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Gid,
    pub(crate) qpn: Qpn,
}

/// Which packets a queue pair sends or receives. A packet of a connection names its receiver only;
/// who sent it is known from what is connected to what.
#[derive(Debug)]
struct Trace {
    /// The queue pair, here or at a peer.
    qpn: Qpn,
    /// What the one here is connected to.
    remote: Option<Connection>,
    /// Queue pairs here that are connected to one of this number, in order.
    locals: Vec<Qpn>,
}

impl Trace {
    fn wants(&self, direction: Direction, frame: &Frame<'_>, packet: &Packet<'_>) -> bool {
        let to = packet.dest_qp();
        if to == self.qpn || packet.deth().is_some_and(|h| h.src_qp == self.qpn) {
            return true;
        }
        match direction {
            Direction::In => self
                .locals
                .binary_search_by_key(&to.value(), |q| q.value())
                .is_ok(),
            Direction::Out => {
                let qpn = to;
                let peer = frame.dst();
                self.remote == Some(Connection { peer, qpn })
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Filter {
    direction: Option<Direction>,
    peer: Option<Gid>,
    trace: Option<Trace>,
    errors: Option<Repeats>,
}

impl Filter {
    pub(super) fn new(spec: &CaptureSpec) -> Self {
        Self {
            direction: spec.direction,
            peer: spec.peer,
            trace: spec.qp.map(|qpn| Trace {
                qpn,
                remote: None,
                locals: Vec::new(),
            }),
            errors: spec.errors.then(Repeats::new),
        }
    }

    pub(super) const fn follows(&self) -> bool {
        self.trace.is_some() || self.errors.is_some()
    }

    /// A queue pair here is connected to this now, or to nothing. Not from the packet path: what is
    /// kept of it may grow.
    pub(super) fn connected(&mut self, local: Qpn, to: Option<Connection>) {
        if let (Some(repeats), Some(to)) = (&mut self.errors, to) {
            repeats.forget(local, &to);
        }
        let Some(trace) = &mut self.trace else {
            return;
        };
        if local == trace.qpn {
            trace.remote = to;
        }
        let found = trace
            .locals
            .binary_search_by_key(&local.value(), |q| q.value());
        match (found, to.is_some_and(|to| to.qpn == trace.qpn)) {
            (Err(at), true) => trace.locals.insert(at, local),
            (Ok(at), false) => drop(trace.locals.remove(at)),
            (Ok(_), true) | (Err(_), false) => {}
        }
    }

    #[inline]
    pub(super) fn wants(&mut self, passing: &Passing<'_>) -> bool {
        if self.direction.is_some_and(|d| d != passing.direction) {
            return false;
        }
        if self.peer.is_none() && self.trace.is_none() && self.errors.is_none() {
            return true;
        }
        self.wants_packet(passing)
    }

    fn wants_packet(&mut self, passing: &Passing<'_>) -> bool {
        let Some(frame) = passing.frame() else {
            // No RoCE, and so no address or queue pair that could be asked for.
            return self.peer.is_none() && self.trace.is_none();
        };
        let peer = match passing.direction {
            Direction::In => frame.src(),
            Direction::Out => frame.dst(),
        };
        if self.peer.is_some_and(|wanted| wanted != peer) {
            return false;
        }
        let Ok(packet) = Packet::parse(frame.transport()) else {
            return self.trace.is_none();
        };
        if let Some(trace) = &self.trace
            && !trace.wants(passing.direction, &frame, &packet)
        {
            return false;
        }
        let Some(repeats) = &mut self.errors else {
            return true;
        };
        // Looked at in any case: it learns from every packet.
        let again = repeats.note(passing.direction, peer, &packet);
        again || tells_of_trouble(&packet)
    }
}

/// Whether a packet by itself tells that something was lost or went wrong.
fn tells_of_trouble(packet: &Packet<'_>) -> bool {
    let acknowledged = |syndrome| matches!(syndrome, Syndrome::Ack { .. });
    match packet.info().operation {
        Operation::Cnp | Operation::Sack | Operation::Probe => true,
        _ => packet.aeth().is_some_and(|h| !acknowledged(h.syndrome)),
    }
}

/// Whether the PSNs of a request say if it was sent before: only where losses are repaired.
pub(super) fn is_repairable(packet: &Packet<'_>) -> bool {
    let info = packet.info();
    info.is_request && matches!(info.service, Service::Rc | Service::Xrc)
}
