//! A fault of the peer, told from a fault of ours by what reached the peer.
//!
//! rxe of 6.12, not of 6.1, looks at an ACK that comes between the responses of a READ even if it is
//! old: it forgets that it is in the middle of one. The next Middle or Last is then out of place for
//! it. It completes the READ as a success without the rest of its bytes, and flushes all behind it.
//! A requester has to drop such an ACK, which any duplicate on a network that reorders may bring
//! (R9, X17).

use super::account::{distance, step};
use super::fault::Side;
use super::look::Roce;
use super::record::Record;

/// Opcodes of RC.
const READ_FIRST: u8 = 0x0d;
const READ_MIDDLE: u8 = 0x0e;
const READ_LAST: u8 = 0x0f;
const READ_ONLY: u8 = 0x10;
const ACK: u8 = 0x11;

/// The PSNs of a READ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadPsns {
    /// Of its first response.
    pub first: u32,
    /// Responses.
    pub count: u32,
}

impl ReadPsns {
    fn has(self, psn: u32) -> bool {
        (0..i32::try_from(self.count).unwrap_or(i32::MAX)).contains(&distance(psn, self.first))
    }
}

/// Where an old ACK reached rxe between two responses of this READ, the later of which continues the
/// earlier one: PSNs of the ACK and of the response behind it. All three reached rxe undamaged and
/// are what the specification has at their places; so is what came between, which is for other PSNs.
pub(crate) fn old_ack_inside(record: &Record, read: ReadPsns) -> Option<(u32, u32)> {
    let packets: Vec<Roce> = record.arrived(Side::Xroce).map(|(_, p)| p).collect();
    packets.iter().enumerate().find_map(|(at, behind)| {
        let continues = matches!(behind.opcode, READ_MIDDLE | READ_LAST) && read.has(behind.psn);
        let before = step(behind.psn, 0x00ff_ffff);
        if !continues || !read.has(before) {
            return None;
        }
        // From the response backwards: the ACK, then the response before, and nothing that stands at
        // the same place in the READ.
        let mut earlier = packets.get(..at)?.iter().rev();
        let of_this = |p: &&Roce| p.psn == before || p.psn == behind.psn;
        let mut ack = None;
        for packet in earlier.by_ref() {
            if packet.opcode == ACK && is_old(packet, read) {
                ack = Some(packet.psn);
                break;
            }
            // What rxe has had is a duplicate to it; what it waits for is not.
            if of_this(&packet) && packet.psn == behind.psn && is_response(packet) {
                return None;
            }
        }
        let last = earlier.find(|p| is_response(p) && of_this(p))?;
        let opened = matches!(last.opcode, READ_FIRST | READ_MIDDLE) && last.psn == before;
        ack.filter(|_| opened).map(|psn| (psn, behind.psn))
    })
}

fn is_response(packet: &Roce) -> bool {
    (READ_FIRST..=READ_ONLY).contains(&packet.opcode)
}

/// A plain ACK for what was before the READ.
fn is_old(packet: &Roce, read: ReadPsns) -> bool {
    packet.syndrome.is_some_and(|s| s >> 5 == 0) && distance(packet.psn, read.first) < 0
}

#[cfg(test)]
mod tests {
    use super::super::look::Class;
    use super::super::record::Fate;
    use super::*;
    use crate::clock;

    const READ: ReadPsns = ReadPsns {
        first: 0x00ff_ffff,
        count: 3,
    };

    /// Packets of xroce as they reach rxe: opcode, PSN, syndrome.
    fn record(packets: &[(u8, u32, Option<u8>)]) -> Record {
        let mut record = Record::new(clock::now());
        for (number, &(opcode, psn, syndrome)) in (0..).zip(packets) {
            let packet = Roce {
                class: Class::ReadResponse,
                opcode,
                dest_qpn: 17,
                psn,
                ack_req: false,
                syndrome,
                read_len: None,
                bth_at: 42,
                end: 60,
            };
            record.add(Side::Xroce, vec![0; 60], Some(packet), Fate::Forwarded);
            record.forward(number);
        }
        record
    }

    const FIRST: (u8, u32, Option<u8>) = (READ_FIRST, 0x00ff_ffff, Some(0x1f));
    const MIDDLE: (u8, u32, Option<u8>) = (READ_MIDDLE, 0, None);
    const LAST: (u8, u32, Option<u8>) = (READ_LAST, 1, Some(0x1f));
    const OLD_ACK: (u8, u32, Option<u8>) = (ACK, 0x00ff_fffe, Some(0x1f));

    fn found(packets: &[(u8, u32, Option<u8>)]) -> Option<(u32, u32)> {
        old_ack_inside(&record(packets), READ)
    }

    /// Rule X17.
    #[test]
    fn an_old_ack_inside_a_read_is_found() {
        let ack = 0x00ff_fffe;
        assert_eq!(found(&[FIRST, OLD_ACK, MIDDLE]), Some((ack, 0)));
        assert_eq!(found(&[FIRST, MIDDLE, OLD_ACK, LAST]), Some((ack, 1)));
        // The First once more, and a response to something else, change nothing.
        let other = (READ_ONLY, 2, Some(0x1f));
        assert_eq!(
            found(&[LAST, FIRST, OLD_ACK, FIRST, other, MIDDLE]),
            Some((ack, 0))
        );
    }

    #[test]
    fn nothing_else_is() {
        // No ACK, or none that is old, or no plain one.
        assert_eq!(found(&[FIRST, MIDDLE, LAST]), None);
        assert_eq!(found(&[FIRST, (ACK, 5, Some(0x1f)), MIDDLE]), None);
        assert_eq!(found(&[FIRST, (ACK, 0, Some(0x62)), MIDDLE]), None);
        assert_eq!(
            found(&[FIRST, (ACK, 0x00ff_fffe, Some(0x60)), MIDDLE]),
            None
        );
        // Not inside.
        assert_eq!(found(&[OLD_ACK, FIRST, MIDDLE, LAST]), None);
        assert_eq!(found(&[FIRST, MIDDLE, LAST, OLD_ACK]), None);
        // What continues came before the ACK: the one behind it is a copy.
        assert_eq!(found(&[FIRST, MIDDLE, OLD_ACK, MIDDLE]), None);
        // Behind a gap, and an answer that begins anew.
        assert_eq!(found(&[FIRST, OLD_ACK, LAST]), None);
        let anew = (READ_FIRST, 0, Some(0x1f));
        assert_eq!(found(&[FIRST, OLD_ACK, anew, MIDDLE]), None);
        // Of another READ.
        let other = ReadPsns { first: 7, count: 3 };
        let all = record(&[FIRST, OLD_ACK, MIDDLE]);
        assert_eq!(old_ack_inside(&all, other), None);
    }

    #[test]
    fn what_did_not_reach_it_does_not_count() {
        let mut all = record(&[FIRST, OLD_ACK]);
        let packet = Roce {
            class: Class::ReadResponse,
            opcode: READ_MIDDLE,
            dest_qpn: 17,
            psn: 0,
            ack_req: false,
            syndrome: None,
            read_len: None,
            bth_at: 42,
            end: 60,
        };
        all.add(Side::Xroce, vec![0; 60], Some(packet), Fate::Corrupted);
        all.forward(2);
        assert_eq!(old_ack_inside(&all, READ), None);
        all.add(Side::Xroce, vec![0; 60], Some(packet), Fate::Dropped);
        assert_eq!(old_ack_inside(&all, READ), None);
        all.add(Side::Xroce, vec![0; 60], Some(packet), Fate::Forwarded);
        all.forward(4);
        assert_eq!(old_ack_inside(&all, READ), Some((0x00ff_fffe, 0)));
    }
}
