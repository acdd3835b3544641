//! Frames for tests.
#![allow(dead_code, reason = "each test file uses its part")]

use xroce_wire::aeth::Aeth;
use xroce_wire::atomic::{AtomicAckEth, AtomicEth};
use xroce_wire::deth::Deth;
use xroce_wire::ext::{Meth, Peth, SackCause, Seth};
use xroce_wire::feth::Feth;
use xroce_wire::newtypes::{Gid, MacAddr, Msn, PKey, Psn, QKey, Qpn, RKey, Srqn, Va, VlanTci};
use xroce_wire::opcode::{Headers, Opcode};
use xroce_wire::packet::PacketBuf;
use xroce_wire::path::AddressVector;
use xroce_wire::reth::Reth;
use xroce_wire::syndrome::Syndrome;
use xroce_wire::template::{Emit, HeaderTemplate, Lower};
use xroce_wire::xrceth::XrcEth;

pub(crate) const V4: (Gid, Gid) = (Gid::from_v4([192, 0, 2, 1]), Gid::from_v4([192, 0, 2, 2]));
pub(crate) const V6: (Gid, Gid) = (
    Gid::new([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
    Gid::new([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]),
);

/// A path between two of the addresses above.
pub(crate) fn path((src, dst): (Gid, Gid), vlan: Option<u16>) -> AddressVector {
    AddressVector {
        src,
        dst,
        src_mac: MacAddr::new([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr::new([2, 0, 0, 0, 0, 2]),
        vlan: vlan.map(VlanTci::new),
        traffic_class: 0x6a,
        hop_limit: 64,
        flow_label: 0xabcde,
        src_port: 0xc123,
    }
}

/// Values for every extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ext {
    pub(crate) reth: Reth,
    pub(crate) aeth: Aeth,
    pub(crate) atomic: AtomicEth,
    pub(crate) atomic_ack: AtomicAckEth,
    pub(crate) imm: [u8; 4],
    pub(crate) ieth: RKey,
    pub(crate) deth: Deth,
    pub(crate) xrceth: XrcEth,
    pub(crate) feth: Feth,
    pub(crate) meth: Meth,
    pub(crate) seth: Seth,
    pub(crate) peth: Peth,
}

impl Ext {
    /// Values made of one number.
    pub(crate) fn from_seed(seed: u64) -> Self {
        let word = |n: u64| {
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(n as u32 * 7)
        };
        Self {
            reth: Reth {
                va: Va::new(word(1)),
                rkey: RKey::new(word(2) as u32),
                len: word(3) as u32,
            },
            aeth: Aeth {
                syndrome: Syndrome::from_u8(word(4) as u8),
                msn: Msn::new(word(5) as u32),
            },
            atomic: AtomicEth {
                va: Va::new(word(6)),
                rkey: RKey::new(word(7) as u32),
                swap_add: word(8),
                compare: word(9),
            },
            atomic_ack: AtomicAckEth { original: word(10) },
            imm: (word(11) as u32).to_be_bytes(),
            ieth: RKey::new(word(12) as u32),
            deth: Deth {
                qkey: QKey::new(word(13) as u32),
                src_qp: Qpn::new(word(14) as u32),
            },
            xrceth: XrcEth {
                srqn: Srqn::new(word(15) as u32),
            },
            feth: Feth {
                placement: word(16) as u8 & 0xf,
                selectivity: word(17) as u8 & 3,
            },
            meth: Meth {
                rqmsn: word(18) as u16,
                msn: word(19) as u16,
            },
            seth: Seth {
                cause: if word(20) & 1 == 0 {
                    SackCause::Probe(word(21) as u16)
                } else {
                    let (offset, again) = (word(21) as i16, word(20) & 2 == 0);
                    SackCause::Packet { offset, again }
                },
                cack_psn: Psn::new(word(22) as u32),
                mpr: word(23) as u8,
                sack_offset: word(24) as i16,
                bitmap: word(25),
            },
            peth: Peth {
                probe_id: word(26) as u16,
            },
        }
    }

    /// Writes those the opcode has.
    pub(crate) fn write(&self, headers: Headers, out: &mut PacketBuf<'_>) {
        let has = |h| headers.contains(h);
        has(Headers::RETH).then(|| out.reth(&self.reth));
        has(Headers::AETH).then(|| out.aeth(&self.aeth));
        has(Headers::ATOMIC_ETH).then(|| out.atomic(&self.atomic));
        has(Headers::ATOMIC_ACK).then(|| out.atomic_ack(&self.atomic_ack));
        has(Headers::IMM).then(|| out.imm(self.imm));
        has(Headers::IETH).then(|| out.ieth(self.ieth));
        has(Headers::DETH).then(|| out.deth(&self.deth));
        has(Headers::XRCETH).then(|| out.xrceth(&self.xrceth));
        has(Headers::FETH).then(|| out.feth(&self.feth));
        has(Headers::METH).then(|| out.meth(&self.meth));
        has(Headers::SETH).then(|| out.seth(&self.seth));
        has(Headers::PETH).then(|| out.peth(&self.peth));
    }
}

/// A frame of `opcode` with a payload of ascending bytes, in a buffer full of ones before.
pub(crate) fn frame(
    lower: Lower,
    av: &AddressVector,
    opcode: Opcode,
    payload_len: usize,
) -> Vec<u8> {
    let template = HeaderTemplate::new(lower, av, Qpn::new(0x11), PKey::DEFAULT).unwrap();
    let e = Emit {
        opcode,
        psn: Psn::new(0xff_ffff),
        ack_req: true,
        solicited: false,
        payload_len,
    };
    emit(&template, &e, &Ext::from_seed(1))
}

/// A frame in a buffer that was full of ones before.
pub(crate) fn emit(template: &HeaderTemplate, e: &Emit, ext: &Ext) -> Vec<u8> {
    let mut bytes = vec![0xff; template.max_len(e.payload_len)];
    let mut out = template.start(&mut bytes, e).unwrap();
    ext.write(e.opcode.info().headers, &mut out);
    for (i, byte) in out.payload_mut().iter_mut().enumerate() {
        *byte = i as u8;
    }
    let len = out.finish();
    bytes.truncate(len);
    bytes
}
