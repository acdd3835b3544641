//! A RoCE packet as one JSON object. The field names are an interface: add, do not rename.

use std::fmt;

use serde::Serialize;
use serde_json::value::RawValue;
use xroce_wire::newtypes::{Gid, VlanTci};
use xroce_wire::syndrome::Syndrome;

use super::packet::Roce;

/// All there is to see. Fields that a packet lacks are left out; `vlan` is null without a tag.
#[derive(Debug, Serialize)]
pub(super) struct View {
    /// Number of the packet in the file, from 1, packets that are not RoCE included.
    pub(super) n: u64,
    /// Seconds since the epoch, with nanoseconds.
    pub(super) ts: Box<RawValue>,
    pub(super) src: String,
    pub(super) dst: String,
    /// 2, or 1 for RoCEv1.
    pub(super) roce: u8,
    /// UDP source port; 0 in RoCEv1.
    pub(super) sport: u16,
    /// VLAN id, and the priority of the tag.
    pub(super) vlan: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pcp: Option<u8>,
    pub(super) dscp: u8,
    /// The two ECN bits: 0 not capable, 1 ECT(1), 2 ECT(0), 3 CE.
    pub(super) ecn: u8,
    pub(super) hop_limit: Option<u8>,
    pub(super) opcode: u8,
    pub(super) opcode_name: &'static str,
    pub(super) dest_qp: u32,
    pub(super) psn: u32,
    pub(super) ack_req: bool,
    pub(super) solicited: bool,
    pub(super) mig_req: bool,
    pub(super) fecn: bool,
    pub(super) becn: bool,
    pub(super) pad: u8,
    pub(super) pkey: u16,
    pub(super) payload_len: usize,
    /// "ok", "bad", or "unknown" if the capture does not hold the whole packet.
    pub(super) icrc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deth: Option<DethView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) xrceth: Option<XrcEthView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) feth: Option<FethView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reth: Option<RethView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) atomic: Option<AtomicView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) aeth: Option<AethView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) atomic_ack: Option<AtomicAckView>,
    /// Immediate data, its four bytes read in network order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) imm: Option<u32>,
    /// Key to invalidate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ieth: Option<u32>,
}

#[derive(Debug, Serialize)]
pub(super) struct DethView {
    pub(super) qkey: u32,
    pub(super) src_qp: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct XrcEthView {
    pub(super) srqn: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct FethView {
    pub(super) placement: u8,
    pub(super) selectivity: u8,
}

#[derive(Debug, Serialize)]
pub(super) struct RethView {
    pub(super) va: u64,
    pub(super) rkey: u32,
    pub(super) len: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct AtomicView {
    pub(super) va: u64,
    pub(super) rkey: u32,
    pub(super) swap_add: u64,
    pub(super) compare: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct AethView {
    /// "ack", "rnr", "nak" or "reserved".
    pub(super) kind: &'static str,
    /// Credit code, timer code, NAK code; the whole syndrome if reserved.
    pub(super) code: u8,
    pub(super) msn: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct AtomicAckView {
    pub(super) original: u64,
}

/// A packet that could not be shown.
#[derive(Debug, Serialize)]
pub(super) struct ErrorView<'a> {
    pub(super) n: u64,
    pub(super) error: &'a str,
}

impl View {
    pub(super) fn new(n: u64, ts_ns: u64, roce: &Roce<'_>) -> serde_json::Result<Self> {
        let (f, p) = (&roce.frame, &roce.packet);
        Ok(Self {
            n,
            ts: RawValue::from_string(Seconds(ts_ns).to_string())?,
            src: address(f.src()),
            dst: address(f.dst()),
            roce: if f.is_roce_v1() { 1 } else { 2 },
            sport: f.src_port(),
            vlan: f.vlan().map(VlanTci::vid),
            pcp: f.vlan().map(VlanTci::pcp),
            dscp: f.tos() >> 2,
            ecn: f.tos() & 3,
            hop_limit: f.hop_limit(),
            opcode: p.opcode() as u8,
            opcode_name: p.opcode().name(),
            dest_qp: p.dest_qp().value(),
            psn: p.psn().value(),
            ack_req: p.ack_req(),
            solicited: p.solicited(),
            mig_req: p.mig_req(),
            fecn: p.fecn(),
            becn: p.becn(),
            pad: p.pad(),
            pkey: p.pkey().value(),
            payload_len: p.payload().len(),
            icrc: roce.icrc.text(),
            deth: p.deth().map(|h| DethView {
                qkey: h.qkey.value(),
                src_qp: h.src_qp.value(),
            }),
            xrceth: p.xrceth().map(|h| XrcEthView {
                srqn: h.srqn.value(),
            }),
            feth: p.feth().map(|h| FethView {
                placement: h.placement,
                selectivity: h.selectivity,
            }),
            reth: p.reth().map(|h| RethView {
                va: h.va.value(),
                rkey: h.rkey.value(),
                len: h.len,
            }),
            atomic: p.atomic().map(|h| AtomicView {
                va: h.va.value(),
                rkey: h.rkey.value(),
                swap_add: h.swap_add,
                compare: h.compare,
            }),
            aeth: p.aeth().map(|h| {
                let (kind, code) = kind_and_code(h.syndrome);
                AethView {
                    kind,
                    code,
                    msn: h.msn.value(),
                }
            }),
            atomic_ack: p.atomic_ack().map(|h| AtomicAckView {
                original: h.original,
            }),
            imm: p.imm().map(u32::from_be_bytes),
            ieth: p.ieth().map(|key| key.value()),
        })
    }
}

const fn kind_and_code(syndrome: Syndrome) -> (&'static str, u8) {
    match syndrome {
        Syndrome::Ack { credit } => ("ack", credit),
        Syndrome::RnrNak { timer } => ("rnr", timer.code()),
        Syndrome::Nak(code) => ("nak", code as u8),
        Syndrome::Reserved(byte) => ("reserved", byte),
    }
}

/// An address as people write it.
pub(super) fn address(gid: Gid) -> String {
    gid.to_string()
}

/// Nanoseconds, shown as seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seconds(pub(super) u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}
