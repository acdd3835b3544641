//! What a frame is, found without the code under test: `etherparse` and fixed offsets.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

/// UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;
/// Bytes of a BTH.
const BTH_LEN: usize = 12;

/// Kinds of RoCE packets that faults tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum Class {
    /// SEND, WRITE, READ request, atomic request.
    Request,
    /// ACK, NAK, RNR NAK, atomic answer.
    Ack,
    /// Data of a READ.
    ReadResponse,
}

impl Class {
    /// As it appears in names of scenarios.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Request => "requests",
            Self::Ack => "ACKs",
            Self::ReadResponse => "READ responses",
        }
    }
}

/// A RoCE packet in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Roce {
    /// What it is for.
    pub class: Class,
    /// BTH opcode.
    pub opcode: u8,
    /// Destination QP.
    pub dest_qpn: u32,
    /// PSN.
    pub psn: u32,
    /// Whether it asks for an ACK.
    pub ack_req: bool,
    /// AETH syndrome, where there is an AETH.
    pub syndrome: Option<u8>,
    /// `dmalen` of a READ request, in bytes.
    pub read_len: Option<u32>,
    /// Where the BTH starts in the frame.
    pub bth_at: usize,
    /// Where the UDP payload ends in the frame.
    pub end: usize,
}

/// The RoCE packet of `frame`, unless it is something else.
pub(crate) fn roce(frame: &[u8]) -> Option<Roce> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    if !matches!(sliced.net, Some(NetSlice::Ipv4(_) | NetSlice::Ipv6(_))) {
        return None;
    }
    let Some(TransportSlice::Udp(udp)) = &sliced.transport else {
        return None;
    };
    if udp.destination_port() != ROCE_PORT {
        return None;
    }
    let bth = udp.payload();
    let bth_at = bth.as_ptr().addr() - frame.as_ptr().addr();
    let opcode = *bth.first()?;
    let be24 = |at: usize| {
        let b = bth.get(at..at + 3)?;
        Some(u32::from_be_bytes([0, *b.first()?, *b.get(1)?, *b.get(2)?]))
    };
    // The RC opcodes with an AETH right after the BTH: READ response First, Last and Only, ACK
    // and atomic ACK. A Middle has none.
    let has_aeth = matches!(opcode, 0x0d | 0x0f | 0x10 | 0x11 | 0x12);
    let syndrome = if has_aeth {
        bth.get(BTH_LEN).copied()
    } else {
        None
    };
    let read_len = if opcode == 0x0c {
        let len = bth.get(BTH_LEN + 12..BTH_LEN + 16)?;
        Some(u32::from_be_bytes(len.try_into().ok()?))
    } else {
        None
    };
    Some(Roce {
        class: class(opcode),
        opcode,
        dest_qpn: be24(5)?,
        psn: be24(9)?,
        ack_req: bth.get(8)? >> 7 == 1,
        syndrome,
        read_len,
        bth_at,
        end: bth_at + bth.len(),
    })
}

fn class(opcode: u8) -> Class {
    match opcode & 0x1f {
        0x0d..=0x10 => Class::ReadResponse,
        0x11 | 0x12 => Class::Ack,
        _ => Class::Request,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may panic")]
    use super::*;

    /// The frames of the shared vectors, which also say what is in them.
    #[test]
    fn an_ack_in_a_vlan_over_ipv6() {
        let mut frame = Vec::new();
        frame.extend([
            2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0, 7, 0x86, 0xdd,
        ]);
        frame.extend([0x60, 0, 0, 0, 0, 28, 17, 64]);
        frame.extend([0xfd; 32]);
        frame.extend([0xd8, 0x72, 0x12, 0xb7, 0, 28, 0, 0]);
        frame.extend([0x11, 0, 0xff, 0xff, 0, 0, 0, 0x12, 0, 0xff, 0xff, 0xf0]);
        frame.extend([0x60, 0, 0, 1, 9, 9, 9, 9]);
        let packet = roce(&frame).unwrap();
        assert_eq!(
            packet,
            Roce {
                class: Class::Ack,
                opcode: 0x11,
                dest_qpn: 0x12,
                psn: 0x00ff_fff0,
                ack_req: false,
                syndrome: Some(0x60),
                read_len: None,
                bth_at: 66,
                end: frame.len(),
            }
        );
        for cut in 0..frame.len() {
            let _ = roce(&frame[..cut]);
        }
        assert_eq!(roce(&[]), None);
    }
}
