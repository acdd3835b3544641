//! From a frame to the queue pair it is for. Untrusted bytes are checked here and nowhere later.

use xroce_net::datapath::Rx;
use xroce_proto::qp::{Arrival, Cx};
use xroce_proto::time::Instant;
use xroce_wire::frame::{Ecn, Frame};
use xroce_wire::packet::Packet;

use crate::engine::Core;

impl Core {
    /// One received frame: parsed once, ICRC verified, handed to its QP or counted.
    #[inline]
    pub(crate) fn receive(&mut self, now: Instant, rx: Rx<'_>) {
        self.stats.rx_frames += 1;
        let frame = match rx {
            Rx::Ethernet(bytes) => match Frame::parse_ethernet(bytes) {
                Ok(frame) => frame,
                Err(_) => {
                    self.stats.bad_frames += 1;
                    return;
                }
            },
            Rx::Udp(meta, bytes) => Frame::from_udp(&meta, bytes),
        };
        let Ok(pkt) = Packet::parse(frame.transport()) else {
            self.stats.bad_packets += 1;
            return;
        };
        let index = self.qps.find(pkt.dest_qp());
        if !frame.icrc_ok() {
            self.stats.icrc_errors += 1;
            if let Some(entry) = index.and_then(|i| self.qps.get_mut(i)) {
                entry.icrc_errors += 1;
            }
            return;
        }
        let Some((index, entry)) = index.and_then(|i| Some((i, self.qps.get_mut(i)?))) else {
            self.stats.unknown_qp += 1;
            return;
        };
        self.stats.delivered += 1;
        let from = Arrival {
            src: frame.src(),
            dst: frame.dst(),
            ce: frame.ecn() == Ecn::Ce,
        };
        let mut cx = Cx {
            now,
            mem: &mut self.mem,
            sink: &mut self.cqs,
        };
        entry.qp.handle_packet(&mut cx, &from, &pkt);
        if !entry.active && entry.qp.wants_to_send(now) {
            entry.active = true;
            self.active.push_back(index);
        }
        self.rearm(index);
    }
}
