//! From a frame to the queue pair it is for. Untrusted bytes are checked here and nowhere later.

use xroce_net::datapath::Rx;
use xroce_proto::qp::{Arrival, Cx};
use xroce_proto::time::Instant;
use xroce_wire::frame::{Ecn, Frame};
use xroce_wire::newtypes::VlanTci;
use xroce_wire::opcode::Service;
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
        if !frame.icrc_ok() {
            self.stats.icrc_errors += 1;
            if let Some((_, entry)) = self.qps.find_mut(pkt.dest_qp()) {
                entry.icrc_errors += 1;
            }
            return;
        }
        if pkt.info().service == Service::Ud {
            self.receive_datagram(now, rx);
            return;
        }
        let Some((index, entry)) = self.qps.find_mut(pkt.dest_qp()) else {
            self.stats.unknown_qp += 1;
            return;
        };
        self.stats.delivered += 1;
        let from = Arrival {
            src: frame.src(),
            dst: frame.dst(),
            vid: frame.vlan().map_or(0, VlanTci::vid),
            ce: frame.ecn() == Ecn::Ce,
        };
        let mut cx = Cx {
            now,
            mem: &mut self.mem,
            sink: &mut self.cqs,
        };
        entry.qp.handle_packet(&mut cx, &from, &pkt);
        // Whether it now wants to send, and when its timer is due, is asked once per burst: at
        // its next turn in the transmit phase.
        if !entry.active {
            entry.active = true;
            self.active.push_back(index);
        }
    }
}
