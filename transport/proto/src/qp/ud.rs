//! Unreliable datagram: one packet per message, to whom each send says (UD1 to UD7).
//!
//! A posted datagram keeps a copy of the headers of its address handle, so that the handle may be
//! destroyed at any time after and sending looks nothing up.

use alloc::boxed::Box;
use alloc::vec;

use xroce_wire::deth::Deth;
use xroce_wire::frame::GRH_LEN;
use xroce_wire::newtypes::{Gid, PKey, PathMtu, QKey, Qpn};
use xroce_wire::opcode::Opcode;
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;
use xroce_wire::template::{Emit, HeaderTemplate, Lower, TemplateError};

use super::sq::Traits;
use super::{Cx, Qp, QpInit, QpState, QpType, Transmit, sge};
use crate::memory::{KeyError, Memory, Pd};
use crate::wc::{Sink, WcFlags, WcOpcode, WcStatus};
use crate::wr::{Data, PostError, SendFlags, SendOp, SendWr};

/// Bytes of [`GRH_LEN`] as they count in a message.
#[allow(clippy::cast_possible_truncation, reason = "40")]
const GRH: u32 = GRH_LEN as u32;

/// A Q_Key with this bit set in a send stands for the key of the sending QP: only its owner may
/// use such keys.
const CONTROLLED: u32 = 1 << 31;

/// A resolved destination with its headers made once, `ibv_ah`.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    /// For [`PKey::DEFAULT`].
    template: HeaderTemplate,
    lower: Lower,
    av: AddressVector,
    pd: Pd,
}

impl AddressHandle {
    /// `lower` says what a frame of the port starts with.
    ///
    /// # Errors
    /// The path contradicts itself.
    pub fn new(lower: Lower, av: &AddressVector, pd: Pd) -> Result<Self, TemplateError> {
        // Who receives is said packet by packet.
        let template = HeaderTemplate::new(lower, av, Qpn::new(0), PKey::DEFAULT)?;
        Ok(Self {
            template,
            lower,
            av: *av,
            pd,
        })
    }

    /// The headers with the P_Key of a QP, which is the default one almost always.
    fn headers(&self, pkey: PKey) -> Result<HeaderTemplate, TemplateError> {
        if pkey == PKey::DEFAULT {
            return Ok(self.template.clone());
        }
        HeaderTemplate::new(self.lower, &self.av, Qpn::new(0), pkey)
    }
}

/// Where one datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// Address, of the protection domain of the QP.
    pub ah: &'a AddressHandle,
    /// Receiving QP; a group's datagrams go to [`Qpn::MULTICAST`] whatever is said here.
    pub qpn: Qpn,
    /// Q_Key the receiver demands; with the highest bit set the QP's own key is sent.
    pub qkey: QKey,
}

/// What a posted datagram needs beside its WQE.
#[derive(Clone, Debug)]
struct Target {
    headers: HeaderTemplate,
    dst: Gid,
    traffic_class: u8,
    qpn: Qpn,
    qkey: QKey,
}

/// The part of a QP that only UD has.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) qkey: QKey,
    /// Most payload bytes of a packet of the port.
    mtu: PathMtu,
    /// One per slot of the send queue.
    targets: Box<[Option<Target>]>,
}

impl Datagrams {
    /// `None` unless the QP is of type UD.
    pub(super) fn of(init: &QpInit) -> Option<Self> {
        let slots = init.max_send_wr.next_power_of_two() as usize;
        (init.qp_type == QpType::Ud).then(|| Self {
            qkey: QKey::new(0),
            mtu: PathMtu::Mtu4096,
            targets: vec![None; slots].into(),
        })
    }

    fn slot(&self, index: u32) -> usize {
        index as usize & (self.targets.len() - 1)
    }
}

impl Qp {
    /// Sets the longest payload of a datagram, the MTU of the port (4096 until then). No effect on
    /// other services, whose path MTU is an attribute.
    pub fn set_port_mtu(&mut self, mtu: PathMtu) {
        if let Some(datagrams) = &mut self.cold.datagrams {
            datagrams.mtu = mtu;
        }
    }

    /// Posts a SEND, with or without immediate data, to `to`.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then. A message longer than a packet is one of them,
    /// since the alternative of the specification is to send nothing and to report success (UD1).
    pub fn post_datagram(
        &mut self,
        wr: &SendWr<'_>,
        to: &Destination<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), PostError> {
        let state = self.tx.state;
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State(state));
        }
        let index = self.sq.tail;
        let Some(datagrams) = &mut self.cold.datagrams else {
            return Err(PostError::Connected(self.tx.qp_type));
        };
        if !matches!(wr.op, SendOp::Send | SendOp::SendImm(_)) {
            return Err(PostError::Operation(QpType::Ud));
        }
        if to.ah.pd != self.cold.init.pd {
            return Err(PostError::AddressPd);
        }
        let given = match wr.data {
            Data::Sges(sges) => sges.iter().map(|s| u64::from(s.len)).sum(),
            Data::Inline(parts) => parts.iter().map(|p| p.len() as u64).sum(),
        };
        let max = datagrams.mtu.bytes();
        if given > max as u64 {
            return Err(PostError::DatagramTooLong { given, max });
        }
        let av = &to.ah.av;
        // A path that made a handle makes headers for every P_Key.
        let headers = to.ah.headers(self.cold.pkey);
        let headers = headers.map_err(|_| PostError::NoDestination)?;
        self.sq.push(wr, datagrams.mtu)?;
        let slot = datagrams.slot(index);
        datagrams.targets[slot] = Some(Target {
            headers,
            dst: av.dst,
            traffic_class: av.traffic_class,
            // A group has no other number (UD7, case 10).
            qpn: if av.dst.ip().is_multicast() {
                Qpn::MULTICAST
            } else {
                to.qpn
            },
            qkey: to.qkey,
        });
        if matches!(state, QpState::Err | QpState::Sqe) {
            self.flush_sends(sink);
        }
        Ok(())
    }

    /// Writes the oldest datagram posted.
    pub(super) fn poll_datagram<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        let index = self.tx.send_index;
        let transmit = match self.write_datagram(cx, frame, index) {
            Ok(transmit) => transmit?,
            Err(_) => {
                self.stop_sending(cx, WcStatus::LocProtErr);
                return None;
            }
        };
        let psn = self.tx.next_psn;
        let wqe = self.sq.wqe_mut(index);
        wqe.first_psn = psn;
        wqe.psns = 1;
        let wqe = *wqe;
        self.sq.started = index.wrapping_add(1);
        self.counters.tx_bytes += u64::from(wqe.len);
        self.on_unreliable_sent(cx.sink, cx.now, &wqe, transmit.len);
        Some(transmit)
    }

    fn write_datagram<M: Memory, S: Sink>(
        &self,
        cx: &mut Cx<'_, M, S>,
        frame: &mut [u8],
        index: u32,
    ) -> Result<Option<Transmit>, KeyError> {
        let wqe = self.sq.wqe(index);
        let Some(datagrams) = &self.cold.datagrams else {
            return Ok(None);
        };
        let Some(to) = &datagrams.targets[datagrams.slot(index)] else {
            return Ok(None);
        };
        let payload_len = wqe.len as usize;
        let emit = Emit {
            opcode: match wqe.imm {
                Some(_) => Opcode::UdSendOnlyImm,
                None => Opcode::UdSendOnly,
            },
            psn: self.tx.next_psn,
            ack_req: false,
            solicited: wqe.flags.contains(SendFlags::SOLICITED),
            payload_len,
        };
        let Some(mut out) = to.headers.start_to(frame, &emit, to.qpn) else {
            return Ok(None);
        };
        let own = to.qkey.value() & CONTROLLED != 0;
        out.deth(&Deth {
            qkey: if own { datagrams.qkey } else { to.qkey },
            src_qp: self.cold.qpn,
        });
        if let Some(imm) = wqe.imm {
            out.imm(imm);
        }
        if wqe.traits.contains(Traits::INLINE) {
            out.payload_mut()
                .copy_from_slice(self.sq.inline(index, 0, payload_len));
        } else {
            let (pd, sges) = (self.cold.init.pd, self.sq.sges(index));
            sge::gather(cx, pd, sges, 0, out.payload_mut())?;
        }
        Ok(Some(Transmit {
            len: out.finish(),
            dst: to.dst,
            traffic_class: to.traffic_class,
        }))
    }

    /// Feeds a datagram whose ICRC was verified and whose destination is this QP, alone or as a
    /// member of a group. `grh` goes in front of its payload (UD2); `ce`: it was marked Congestion
    /// Experienced.
    ///
    /// Nothing is answered. What does not fit is dropped and counted, and its receive stays
    /// posted: a buffer that is too small as well (UD5, case 20).
    pub fn handle_datagram<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        grh: &[u8; GRH_LEN],
        ce: bool,
        pkt: &Packet<'_>,
    ) {
        let (Some(datagrams), Some(deth)) = (&self.cold.datagrams, pkt.deth()) else {
            self.counters.rare().discards += 1;
            return;
        };
        if !self.tx.state.receives() || !self.cold.pkey.matches(pkt.pkey()) {
            self.counters.rare().discards += 1;
            return;
        }
        self.counters.rx_packets += 1;
        // Whom to notify is known, but datagrams have no rate that could be changed.
        if ce {
            self.counters.ce_marked += 1;
            self.counters.rare().cnps_suppressed += 1;
        }
        let len = pkt.payload().len();
        if deth.qkey != datagrams.qkey {
            self.counters.rare().qkey_violations += 1;
            return;
        }
        if len > datagrams.mtu.bytes() || !pkt.pad_ok() {
            self.counters.rare().invalid_requests += 1;
            return;
        }
        if !self.has_receive(cx.sink) {
            self.counters.rare().no_receive += 1;
            return;
        }
        let (capacity, sges) = self.rq.front_room();
        if (GRH_LEN + len) as u64 > capacity {
            self.counters.rare().invalid_requests += 1;
            return;
        }
        self.counters.rx_bytes += len as u64;
        let pd = self.cold.init.pd;
        let written = sge::scatter(cx, pd, sges, 0, grh)
            .and_then(|()| sge::scatter(cx, pd, sges, GRH.into(), pkt.payload()));
        match written {
            Ok(()) => self.complete_datagram(cx.sink, pkt, &deth),
            Err(_) => self.fail_receive(cx, WcStatus::LocProtErr),
        }
    }

    fn complete_datagram(&mut self, sink: &mut impl Sink, pkt: &Packet<'_>, deth: &Deth) {
        let Some(wr_id) = self.rq.retire() else {
            return;
        };
        let mut wc = self.completion(wr_id, WcStatus::Success, WcOpcode::Recv);
        // At most GRH_LEN + 4096.
        wc.byte_len = GRH + u32::try_from(pkt.payload().len()).unwrap_or(0);
        wc.src_qp = deth.src_qp;
        wc.flags = WcFlags::GRH;
        if let Some(imm) = pkt.imm() {
            wc.imm = imm;
            wc.flags |= WcFlags::WITH_IMM;
        }
        wc.flags.set(WcFlags::SOLICITED, pkt.solicited());
        self.counters.recvs_completed += 1;
        sink.complete(self.cold.init.recv_cq, wc);
    }
}
