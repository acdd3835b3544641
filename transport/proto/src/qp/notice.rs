//! ECN: packets that may be marked on the way, and the notification of those that were.
//!
//! The receiver of a marked data packet owes its sender a CNP (W20, CC2), and the driver says
//! whether it may be sent now: how often is moderated per queue pair, per destination or per port,
//! and only the driver sees all of them. A CNP goes before everything else, in a class of its own,
//! is neither paced nor acknowledged, and is never marked itself (CC4).

use xroce_wire::newtypes::{PKey, PathMtu, Psn, Qpn, VlanTci};
use xroce_wire::opcode::Opcode;
use xroce_wire::path::AddressVector;
use xroce_wire::template::{Emit, HeaderTemplate, Lower, TemplateError};

use super::{Qp, QpAttr, Transmit};
use crate::cc::{CongestionController, Rate};
use crate::pacer::Pacer;
use crate::time::{Duration, Instant};

/// Reserved bytes of a CNP behind its BTH.
const CNP_BYTES: usize = 16;
/// ECN field of a packet that may be marked: ECT(0).
const ECT0: u8 = 0b10;
const ECN_MASK: u8 = 0b11;

/// How congestion notifications are marked as urgent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CnpClass {
    /// DSCP, 0 ..= 63 (mlx5: `cnp_dscp`).
    pub dscp: u8,
    /// Priority in the VLAN tag, 0 ..= 7 (mlx5: `cnp_802p_prio`).
    pub priority: u8,
}

impl Default for CnpClass {
    /// mlx5's: DSCP 48, priority 6.
    fn default() -> Self {
        Self {
            dscp: 48,
            priority: 6,
        }
    }
}

/// Rate of a packet of the path MTU per quarter of the ACK timeout; next to none without timeout.
pub(super) fn least_rate(mtu: PathMtu, timeout: Option<Duration>) -> Rate {
    const HEADERS: u128 = 128;
    let Some(timeout) = timeout else {
        return Rate::bits_per_second(1);
    };
    let bits = (mtu.bytes() as u128 + HEADERS) * 8;
    let rate = bits * 4_000_000_000 / u128::from(timeout.as_nanos()).max(1);
    Rate::bits_per_second(u64::try_from(rate).unwrap_or(u64::MAX).max(1))
}

/// A pacer that counts what surrounds a frame on an Ethernet wire: preamble 8, FCS 4, gap 12; below
/// a socket the headers up to UDP as well, 42 with IPv4.
pub(super) fn pacer(lower: Lower) -> Pacer {
    Pacer::new(match lower {
        Lower::Ethernet | Lower::RoceV1 => 24,
        Lower::Udp => 24 + 42,
    })
}

impl Qp {
    /// Class of the congestion notifications it sends from now on.
    pub fn set_cnp_class(&mut self, class: CnpClass) {
        self.cold.cnp_class = class;
    }

    /// The traffic class packets carry after a modify with these attributes: ECN-capable if the
    /// congestion control lives on marks and the path does not say otherwise.
    pub(super) fn class_after(&self, attr: &QpAttr) -> u8 {
        let class = attr.av.unwrap_or(self.cold.av).traffic_class;
        let wants = match &attr.congestion {
            Some(cc) => cc.wants_ecn(),
            None => self.cc.wants_ecn(),
        };
        if wants && class & ECN_MASK == 0 {
            class | ECT0
        } else {
            class
        }
    }

    /// Makes the headers of data for a path.
    pub(super) fn make_templates(
        &mut self,
        av: &AddressVector,
        traffic_class: u8,
        dest: Qpn,
        pkey: PKey,
    ) -> Result<(), TemplateError> {
        let lower = self.cold.lower;
        let data = AddressVector {
            traffic_class,
            ..*av
        };
        self.template = Some(HeaderTemplate::new(lower, &data, dest, pkey)?);
        self.cold.traffic_class = traffic_class;
        Ok(())
    }

    /// The headers of notifications. They are few (one in 50 µs), queue pairs may be many: made when
    /// one is sent.
    fn cnp_template(&self) -> Option<HeaderTemplate> {
        let (cold, class) = (&self.cold, self.cold.cnp_class);
        let urgent = |tci: VlanTci| VlanTci::tagged(tci.vid(), class.priority);
        let av = AddressVector {
            traffic_class: class.dscp << 2,
            vlan: cold.av.vlan.map(urgent),
            ..cold.av
        };
        // The path is one: that of data has been made from it.
        HeaderTemplate::new(cold.lower, &av, cold.dest_qpn, cold.pkey).ok()
    }

    /// A data packet came marked; the sender is told if `may_notify`, else it has been shortly
    /// before.
    pub fn note_mark(&mut self, may_notify: bool) {
        if may_notify && !self.cnp_owed && self.template.is_some() {
            self.cnp_owed = true;
        } else {
            self.counters.rare().cnps_suppressed += 1;
        }
    }

    /// A notification that was owed is not sent any more.
    pub(super) fn drop_notice(&mut self) {
        if core::mem::take(&mut self.cnp_owed) {
            self.counters.rare().cnps_suppressed += 1;
        }
    }

    #[cold]
    pub(super) fn write_cnp(&mut self, frame: &mut [u8]) -> Option<Transmit> {
        let emit = Emit {
            opcode: Opcode::Cnp,
            psn: Psn::new(0),
            ack_req: false,
            solicited: false,
            payload_len: CNP_BYTES,
        };
        let template = self.cnp_template()?;
        let mut out = template.start(frame, &emit)?;
        out.payload_mut().fill(0);
        let len = out.finish();
        self.cnp_owed = false;
        self.counters.rare().cnps_out += 1;
        self.counters.tx_packets += 1;
        Some(Transmit {
            len,
            dst: self.cold.av.dst,
            traffic_class: self.cold.cnp_class.dscp << 2,
        })
    }

    /// Accounts for a packet of data of `len` bytes that has left.
    #[inline(always)]
    pub(super) fn on_data_sent(&mut self, now: Instant, len: usize) {
        self.cc.on_sent(now, len);
        let rate = self.rate();
        self.pacer.on_sent(now, len, rate);
    }
}
