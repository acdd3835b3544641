//! From a frame to the queue pair it is for. Untrusted bytes are checked here and nowhere later.

use xroce_net::datapath::Rx;
use xroce_proto::qp::{Arrival, Cx};
use xroce_proto::reject::Why;
use xroce_proto::time::Instant;
use xroce_wire::frame::{Ecn, Frame};
use xroce_wire::newtypes::VlanTci;
use xroce_wire::opcode::Service;
use xroce_wire::packet::Packet;

use crate::engine::Core;
use crate::late::Late;

/// A frame that was parsed before.
pub(crate) fn again(rx: Rx<'_>) -> Option<Frame<'_>> {
    match rx {
        Rx::Ethernet(bytes) => Frame::parse_ethernet(bytes).ok(),
        Rx::Udp(meta, bytes) => Some(Frame::from_udp(&meta, bytes)),
    }
}

#[inline(always)]
pub(crate) fn arrival(frame: &Frame<'_>) -> Arrival {
    Arrival {
        src: frame.src(),
        dst: frame.dst(),
        vid: frame.vlan().map_or(0, VlanTci::vid),
        ce: frame.ecn() == Ecn::Ce,
    }
}

impl Core {
    /// A packet for a QP that came on another path than its peer's. Parsed again: see
    /// [`Core::receive_datagram`].
    #[cold]
    #[inline(never)]
    fn note_stray(&mut self, rx: Rx<'_>) {
        let Some(frame) = again(rx) else { return };
        let Ok(pkt) = Packet::parse(frame.transport()) else {
            return;
        };
        if let Some((_, entry)) = self.qps.find_mut(pkt.dest_qp()) {
            entry.qp.note_stray(&arrival(&frame));
        }
    }

    /// One received frame: parsed once, ICRC verified, handed to its QP or counted.
    #[inline]
    pub(crate) fn receive(&mut self, now: Instant, rx: Rx<'_>, late: &mut Late<'_>) {
        self.stats.rx_frames += 1;
        let frame = match rx {
            Rx::Ethernet(bytes) => match Frame::parse_untagged(bytes) {
                Ok(frame) => frame,
                Err(_) => return self.receive_tagged(now, rx, late),
            },
            Rx::Udp(meta, bytes) => Frame::from_udp(&meta, bytes),
        };
        self.deliver(now, rx, frame, late);
    }

    /// A frame that is none without a tag. Out of line, so that frames without do not pay for the
    /// VLAN of those that have one.
    #[inline(never)]
    fn receive_tagged(&mut self, now: Instant, rx: Rx<'_>, late: &mut Late<'_>) {
        match again(rx) {
            Some(frame) => self.deliver(now, rx, frame, late),
            None => self.stats.bad_frames += 1,
        }
    }

    #[inline(always)]
    fn deliver(&mut self, now: Instant, rx: Rx<'_>, frame: Frame<'_>, late: &mut Late<'_>) {
        let Ok(pkt) = Packet::parse(frame.transport()) else {
            self.stats.bad_packets += 1;
            return;
        };
        if !frame.icrc_ok() {
            self.icrc_failed(frame.src(), pkt.dest_qp());
            return;
        }
        if matches!(pkt.info().service, Service::Ud | Service::Cnp) {
            self.receive_datagram(now, rx, late);
            return;
        }
        if let Some(late) = late
            && let Some(index) = self.qps.find(pkt.dest_qp())
        {
            self.fetch_receives(*late, index, &pkt);
        }
        let Some((index, entry)) = self.qps.find_mut(pkt.dest_qp()) else {
            self.stats.unknown_qp += 1;
            return;
        };
        self.stats.delivered += 1;
        let from = arrival(&frame);
        let mut cx = Cx {
            now,
            mem: &mut self.mem,
            sink: &mut self.cqs,
        };
        let refused = entry.qp.handle_packet(&mut cx, &from, &pkt);
        if refused == Some(Why::Peer) {
            self.note_stray(rx);
            return;
        }
        // Whether it now wants to send, and when its timer is due, is asked once per burst: at
        // its next turn in the transmit phase.
        self.schedule.enlist(entry, index);
        if from.ce && refused.is_none() && pkt.info().is_data() {
            self.note_mark(now, index, from.src);
        }
    }
}
