//! What must hold for every frame on the wires, whatever the workload.

use std::cell::RefCell;
use std::rc::Rc;

use xroce_net::datapath::Link;
use xroce_net::sim::{Fate, LinkId, TapEvent};
use xroce_proto::recovery::Reliability;
use xroce_wire::ext::Seth;
use xroce_wire::frame::{Frame, UdpMeta};
use xroce_wire::newtypes::{PathMtu, Psn, Qpn};
use xroce_wire::opcode::Operation;
use xroce_wire::packet::Packet;
use xroce_wire::syndrome::Syndrome;

use crate::common::trace::{Trace, packet_text};
use crate::common::{SRC_PORT, World};

/// Requests of one direction of a pair, as seen from outside.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) from: usize,
    /// Requester, responder.
    pub(crate) qpns: [Qpn; 2],
    pub(crate) mtu: PathMtu,
    pub(crate) window: u32,
    pub(crate) reliability: Reliability,
    /// PSN of the next new request packet.
    pub(crate) next: Psn,
    /// No response beyond this PSN has reached the requester.
    pub(crate) una: Psn,
    pub(crate) msn: u32,
}

/// Checks flows and keeps a trace.
pub(crate) struct Watch {
    link: Link,
    /// What a socket on each host would say about a datagram it receives.
    metas: [UdpMeta; 2],
    pub(crate) flows: Vec<Flow>,
    pub(crate) trace: Trace,
}

impl Watch {
    /// Watches a network from now on.
    pub(crate) fn install(world: &World, link: Link, flows: Vec<Flow>) -> Rc<RefCell<Self>> {
        let metas = [0, 1].map(|i: usize| UdpMeta {
            src: world.hosts[1 - i].gid,
            dst: world.hosts[i].gid,
            src_port: SRC_PORT,
            tos: 0,
            hop_limit: None,
        });
        let watch = Rc::new(RefCell::new(Self {
            link,
            metas,
            flows,
            trace: Trace::default(),
        }));
        Self::attach(&watch, world);
        watch
    }

    /// Looks at the network, from the start or again.
    pub(crate) fn attach(watch: &Rc<RefCell<Self>>, world: &World) {
        let (tap, wires) = (Rc::clone(watch), world.link);
        world
            .net
            .set_tap(move |event| tap.borrow_mut().see(wires, event));
    }

    fn see(&mut self, wires: LinkId, event: &TapEvent<'_>) {
        self.trace.note(wires, event);
        if !matches!(event.fate, Fate::Sent | Fate::Delivered) {
            return;
        }
        let sender = usize::from(event.wire == wires.back);
        let frame = match self.link {
            Link::Ethernet => Frame::parse_ethernet(event.frame),
            Link::Udp => Ok(Frame::from_udp(&self.metas[1 - sender], event.frame)),
        };
        let Ok(frame) = frame else {
            return;
        };
        let Ok(pkt) = Packet::parse(frame.transport()) else {
            return;
        };
        let sent = event.fate == Fate::Sent;
        // The requester of a request is its sender, that of a response the receiver.
        let mine = |f: &&mut Flow| {
            if pkt.info().is_request {
                f.from == sender && f.qpns[1] == pkt.dest_qp()
            } else {
                f.from != sender && f.qpns[0] == pkt.dest_qp()
            }
        };
        let Some(flow) = self.flows.iter_mut().find(mine) else {
            return;
        };
        assert!(
            !sent || !pkt.info().is_extension() || flow.range().is_some(),
            "not agreed: {}, {flow:?}",
            packet_text(&pkt)
        );
        match (pkt.info().is_request, sent) {
            (true, true) => flow.request(&pkt),
            (false, true) => flow.response(&pkt),
            (false, false) if frame.icrc_ok() => flow.arrived(&pkt),
            _ => {}
        }
    }
}

impl Flow {
    /// PSNs that may be outstanding, if extensions were agreed on.
    fn range(&self) -> Option<u32> {
        match self.reliability {
            Reliability::Selective(params) => Some(params.range),
            _ => None,
        }
    }

    /// New packets take the next PSN and keep within the window; all others are old ones.
    fn request(&mut self, pkt: &Packet<'_>) {
        let ahead = self.next.distance_to(pkt.psn());
        let is_probe = pkt.peth().is_some();
        assert!(
            !is_probe || ahead < 0,
            "nothing to ask for: {}, {self:?}",
            packet_text(pkt)
        );
        assert!(
            ahead <= 0,
            "a PSN was left out: {}, {self:?}",
            packet_text(pkt)
        );
        if ahead < 0 {
            return;
        }
        let in_flight = self.una.distance_to(pkt.psn());
        let most = self.range().unwrap_or(self.window);
        assert!(
            in_flight < i32::try_from(most).unwrap(),
            "{in_flight} in flight: {}, {self:?}",
            packet_text(pkt)
        );
        let psns = match (pkt.info().operation, pkt.reth()) {
            (Operation::ReadRequest, Some(reth)) => self.mtu.packets(reth.len),
            _ => 1,
        };
        self.next = self.next.add(psns);
    }

    /// Nothing is acknowledged that was never sent, and the MSN never goes back.
    fn response(&mut self, pkt: &Packet<'_>) {
        if let Some(seth) = pkt.seth() {
            self.sack(pkt, &seth);
        }
        let Some(aeth) = pkt.aeth() else { return };
        let is_ack = matches!(aeth.syndrome, Syndrome::Ack { .. });
        assert!(
            !is_ack || pkt.psn().is_before(self.next),
            "acknowledged before it was sent: {}, {self:?}",
            packet_text(pkt)
        );
        let msn = aeth.msn.value();
        // 24 bits, modular like a PSN.
        let ahead = Psn::new(self.msn).distance_to(Psn::new(msn));
        assert!(ahead >= 0, "MSN goes back: {}, {self:?}", packet_text(pkt));
        self.msn = msn;
    }

    /// The same of a selective acknowledgement, which never says that the next PSN has arrived.
    fn sack(&self, pkt: &Packet<'_>, seth: &Seth) {
        let bits = (0..64).filter(|i| seth.bitmap >> i & 1 != 0);
        let told = bits.map(|i| seth.base().add(i));
        for psn in told.chain([seth.cack_psn]) {
            assert!(
                psn.is_before(self.next) && psn != seth.cack_psn.add(1),
                "acknowledged before it was sent: {}, {self:?}",
                packet_text(pkt)
            );
        }
    }

    fn arrived(&mut self, pkt: &Packet<'_>) {
        let is_nak = pkt
            .aeth()
            .is_some_and(|a| !matches!(a.syndrome, Syndrome::Ack { .. }));
        let una = pkt.psn().add(u32::from(!is_nak));
        if self.una.is_before(una) && !self.next.is_before(una) {
            self.una = una;
        }
    }
}
