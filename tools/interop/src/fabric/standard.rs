//! Whether packets are those of the specification, bit by bit and without the code under test: a peer
//! that has agreed to nothing must get nothing else.

use anyhow::{Result, bail};

use super::fault::Side;
use super::look::Roce;
use super::record::Record;

/// Every packet that xroce sent.
///
/// # Errors
/// The first that is not of the specification, and what about it.
pub(crate) fn check(record: &Record) -> Result<()> {
    for (number, seen) in (1..).zip(&record.frames) {
        let Some(packet) = seen.packet.filter(|_| seen.from == Side::Xroce) else {
            continue;
        };
        if let Some(what) = foreign(&packet, &seen.frame) {
            bail!("frame {number} of xroce is not standard: {what}");
        }
    }
    Ok(())
}

/// What is not of the specification in the BTH and AETH of a packet.
fn foreign(packet: &Roce, frame: &[u8]) -> Option<String> {
    let opcode = packet.opcode;
    // RC up to SEND with invalidate, FLUSH and ATOMIC WRITE; UC; UD; CNP.
    let known = matches!(
        opcode,
        0x00..=0x14 | 0x16 | 0x17 | 0x1c | 0x1d | 0x20..=0x2b | 0x64 | 0x65 | 0x81
    );
    if !known {
        return Some(format!("opcode {opcode:#04x}"));
    }
    let bth = frame.get(packet.bth_at..packet.bth_at + 12)?;
    let &[_, flags, _, _, congestion, _, _, _, ack, ..] = bth else {
        return None;
    };
    if flags & 0x0f != 0 {
        return Some(format!("transport version {}", flags & 0x0f));
    }
    // FECN and BECN are of the specification; BECN is set in CNPs.
    if congestion & 0x3f != 0 {
        return Some(format!(
            "reserved bits {:#04x} in BTH byte 4",
            congestion & 0x3f
        ));
    }
    if ack & 0x7f != 0 {
        return Some(format!("reserved bits {:#04x} in BTH byte 8", ack & 0x7f));
    }
    // ACK, RNR NAK, NAK; the third kind and the highest bit are reserved.
    if let Some(syndrome) = packet.syndrome
        && (syndrome & 0x80 != 0 || syndrome >> 5 == 2)
    {
        return Some(format!("AETH syndrome {syndrome:#04x}"));
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may panic")]
    use super::super::look;
    use super::super::record::Fate;
    use super::*;
    use crate::clock;
    use xroce_wire::opcode::{Opcode, Service};

    fn frame(bth_and_more: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        let len = u8::try_from(8 + bth_and_more.len()).unwrap();
        frame.extend([0x60, 0, 0, 0, 0, len, 17, 64]);
        frame.extend([0xfd; 32]);
        frame.extend([0xd8, 0x72, 0x12, 0xb7, 0, len, 0, 0]);
        frame.extend(bth_and_more);
        frame
    }

    /// An ACK with this byte of its BTH or AETH changed.
    fn verdict(at: usize, byte: u8) -> Option<String> {
        let mut bth = [0; 44];
        bth[..8].copy_from_slice(&[0x11, 0, 0xff, 0xff, 0, 0, 0, 0x12]);
        bth[12] = 0x1f;
        bth[at] = byte;
        let frame = frame(&bth);
        foreign(&look::roce(&frame).unwrap(), &frame)
    }

    #[test]
    fn what_no_standard_peer_knows_is_found() {
        assert_eq!(verdict(0, 0x11), None);
        assert_eq!(verdict(4, 0xc0), None, "FECN and BECN");
        assert_eq!(verdict(8, 0x80), None, "AckReq");
        for (at, byte, what) in [
            (1, 0x01, "version 1"),
            (4, 0x01, "byte 4"),
            (8, 0x01, "byte 8"),
            (12, 0x5f, "syndrome 0x5f"),
            (12, 0x9f, "syndrome 0x9f"),
        ] {
            let found = verdict(at, byte).unwrap();
            assert!(found.contains(what), "{found}");
        }
    }

    #[test]
    fn opcodes_are_foreign_if_they_are_extensions_and_only_then() {
        let mut extensions = 0;
        for value in 0..=255 {
            let foreign = verdict(0, value).is_some();
            let Some(opcode) = Opcode::from_u8(value) else {
                assert!(foreign, "{value:#04x}");
                continue;
            };
            let beyond = opcode.is_extension() || opcode.service == Service::Xrc;
            assert_eq!(foreign, beyond, "{value:#04x}");
            extensions += u32::from(opcode.is_extension());
        }
        assert!(extensions > 5);
    }

    #[test]
    fn only_what_xroce_sends_is_looked_at() {
        let mut record = Record::new(clock::now());
        let mut add = |from, opcode| {
            let frame = frame(&[opcode, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]);
            let packet = look::roce(&frame);
            record.add(from, frame, packet, Fate::Forwarded);
        };
        add(Side::Vm, 0xdc);
        add(Side::Xroce, 0x04);
        assert!(check(&record).is_ok());
        let frame = frame(&[0xdc, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]);
        let packet = look::roce(&frame);
        record.add(Side::Xroce, frame, packet, Fate::Dropped);
        let why = check(&record).unwrap_err().to_string();
        assert!(why.contains("frame 3") && why.contains("0xdc"), "{why}");
    }
}
