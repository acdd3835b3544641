//! The ICRC of a FLUSH. rdma_rxe (up to 6.12 at least) does not know where the payload of that
//! opcode starts and takes it to start with the BTH: its ICRC covers all headers twice, and it
//! takes no other. So that the two can talk at all, the cable changes one form into the other;
//! what it records is what the sender sent.

use super::fault::Side;
use super::look::Roce;

/// BTH opcode of a FLUSH.
const OPCODE: u8 = 0x1c;
/// CRC-32 of Ethernet, reflected.
const POLY: u32 = 0xedb8_8320;

/// Gives a FLUSH the ICRC that the other end expects; leaves all else alone.
pub(super) fn translate(frame: &mut [u8], packet: &Roce, from: Side) {
    if packet.opcode != OPCODE || packet.end < packet.bth_at + 4 {
        return;
    }
    let Some((headers, rest)) = frame
        .get_mut(packet.bth_at..)
        .and_then(|roce| roce.split_at_mut_checked(packet.end - 4 - packet.bth_at))
    else {
        return;
    };
    let Some(icrc) = rest.first_chunk_mut::<4>() else {
        return;
    };
    let state = !u32::from_le_bytes(*icrc);
    let state = match from {
        Side::Xroce => headers.iter().fold(state, forth),
        Side::Vm => headers.iter().rev().fold(state, back),
    };
    *icrc = (!state).to_le_bytes();
}

/// The state after one more byte.
fn forth(state: u32, byte: &u8) -> u32 {
    (0..8).fold(state ^ u32::from(*byte), |s, _| {
        (s >> 1) ^ if s & 1 == 1 { POLY } else { 0 }
    })
}

/// The state before that byte.
fn back(state: u32, byte: &u8) -> u32 {
    let before = (0..8).fold(state, |s, _| {
        if s >> 31 == 1 {
            (s ^ POLY) << 1 | 1
        } else {
            s << 1
        }
    });
    before ^ u32::from(*byte)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may panic")]
    use super::super::look::roce;
    use super::*;

    /// A FLUSH as rxe of 6.12 sent it, and the ICRC that zlib computes for it.
    /// Rule X19.
    #[test]
    fn there_and_back() {
        let hex = "525400770001525400770002080045000040 7a9040004011ab800a4d00020a4d0001 \
                   c19112b7002c0000 1c00ffff002c001180fffff0 00000001 \
                   00007fd6b85260000001540c00000040 2f5d8cce";
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        let sent: Vec<u8> = digits.chunks(2).map(|pair| byte(pair).unwrap()).collect();
        let packet = roce(&sent).unwrap();
        let mut frame = sent.clone();
        translate(&mut frame, &packet, Side::Vm);
        assert_eq!(frame[packet.end - 4..packet.end], [0x84, 0xf8, 0x48, 0x19]);
        translate(&mut frame, &packet, Side::Xroce);
        assert_eq!(frame, sent);
        let mut other = frame.clone();
        other[packet.bth_at] = 4;
        let packet = roce(&other).unwrap();
        translate(&mut other, &packet, Side::Vm);
        assert_eq!(other[packet.end - 4..], frame[packet.end - 4..]);
    }
}
