//! What a record shows: packets sent again, how often a requester went back, faults that hit.
//! Counted from the frames alone, to hold the counters of both ends against.

use std::collections::BTreeMap;
use std::time::Duration;

use super::fault::Side;
use super::look::Class;
use super::record::{Fate, Record};

/// NAK for a PSN sequence error.
const NAK_SEQUENCE: u8 = 0x60;
/// Shortest wait of a requester for an answer to what it sent again
/// (`xroce_proto::params::REPAIR_FLOOR`).
const SHORTEST_WAIT: Duration = Duration::from_micros(100);

/// One direction, as seen on the cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Account {
    /// RoCE packets sent.
    pub packets: u64,
    /// Request packets whose PSN had been sent before.
    pub retransmitted: u64,
    /// Times the requester went back: runs of packets sent again with ascending PSNs.
    pub went_back: u64,
    /// Those of them before which a request that asks for an answer had none for as long as a
    /// requester waits at least.
    pub unanswered: u64,
    /// NAKs for sequence errors that reached the other end.
    pub sequence_naks: u64,
    /// RNR NAKs that reached the other end.
    pub rnr_naks: u64,
    /// Other NAKs that reached the other end.
    pub fatal_naks: u64,
}

/// What the cable did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Harm {
    /// RoCE packets dropped, damaged, or caught by the cut.
    pub lost: u64,
    /// RoCE packets delayed.
    pub delayed: u64,
    /// RoCE packets doubled.
    pub doubled: u64,
    /// Damaged packets on their way to xroce.
    pub damaged_to_xroce: u64,
    /// Frames for which an end was too slow: nobody asked for that.
    pub overflow: u64,
}

/// Position of one flow of requests.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// The PSN after the highest sent.
    next_new: u32,
    /// The PSN that continues the current run.
    continues: u32,
    /// Whether the last packet was one sent again.
    again: bool,
}

/// Signed distance of two PSNs.
pub(super) fn distance(a: u32, b: u32) -> i32 {
    (a.wrapping_sub(b) << 8).cast_signed() >> 8
}

/// The PSN so many behind another.
pub(super) fn step(psn: u32, by: u32) -> u32 {
    psn.wrapping_add(by) & 0x00ff_ffff
}

/// The account of what `from` sent, at path MTU `mtu` bytes.
pub(crate) fn account(record: &Record, from: Side, mtu: usize) -> Account {
    let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
    let mut sum = Account::default();
    let mut flows: BTreeMap<u32, Flow> = BTreeMap::new();
    // When the last request that asks for an answer was sent, if the other end said nothing since.
    let mut asked = None;
    for seen in &record.frames {
        let Some(packet) = seen.packet else { continue };
        if seen.from != from {
            asked = None;
            continue;
        }
        sum.packets += 1;
        let arrives = !matches!(
            seen.fate,
            Fate::Dropped | Fate::Cut | Fate::Corrupted | Fate::Overflow
        );
        match packet.syndrome {
            Some(NAK_SEQUENCE) if arrives => sum.sequence_naks += 1,
            Some(s) if arrives && s >> 5 == 1 => sum.rnr_naks += 1,
            Some(s) if arrives && s >> 5 == 3 => sum.fatal_naks += 1,
            _ => {}
        }
        if packet.class != Class::Request {
            continue;
        }
        let psns = packet.read_len.map_or(1, |len| len.div_ceil(mtu).max(1));
        let after = step(packet.psn, psns);
        let flow = flows.entry(packet.dest_qpn).or_insert(Flow {
            next_new: packet.psn,
            continues: packet.psn,
            again: false,
        });
        let again = distance(packet.psn, flow.next_new) < 0;
        if again {
            sum.retransmitted += 1;
            if !flow.again || packet.psn != flow.continues {
                sum.went_back += 1;
                let silence = asked.map(|since| seen.at.saturating_sub(since));
                sum.unanswered += u64::from(silence >= Some(SHORTEST_WAIT));
            }
        }
        flow.again = again;
        flow.continues = after;
        if distance(after, flow.next_new) > 0 {
            flow.next_new = after;
        }
        if arrives && (packet.ack_req || packet.read_len.is_some()) {
            asked = Some(seen.at);
        }
    }
    sum
}

/// What a responder must have seen of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Arrivals {
    /// Requests it had executed before.
    pub duplicates: u64,
    /// Requests that came too early.
    pub early: u64,
    /// Gaps: a run of early ones between two in order is one.
    pub gaps: u64,
}

/// What the responder must have counted of the requests that `from` sent. Only for faults that
/// keep the order, and receivers that are always ready.
pub(crate) fn arrivals(record: &Record, from: Side, mtu: usize) -> Arrivals {
    let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
    let mut expected: BTreeMap<u32, u32> = BTreeMap::new();
    let mut sum = Arrivals::default();
    let mut in_gap = false;
    for (seen, packet) in record.packets(from) {
        if packet.class != Class::Request {
            continue;
        }
        // The first packet sent is the one the responder expects, whether it arrives or not.
        let next = expected.entry(packet.dest_qpn).or_insert(packet.psn);
        let copies = match seen.fate {
            Fate::Forwarded | Fate::Delayed => 1,
            Fate::Duplicated => 2,
            Fate::Dropped | Fate::Cut | Fate::Corrupted | Fate::Overflow => 0,
        };
        for _ in 0..copies {
            match distance(packet.psn, *next) {
                0 => {
                    let psns = packet.read_len.map_or(1, |len| len.div_ceil(mtu).max(1));
                    *next = step(packet.psn, psns);
                    in_gap = false;
                }
                d if d < 0 => sum.duplicates += 1,
                _ => {
                    sum.early += 1;
                    sum.gaps += u64::from(!in_gap);
                    in_gap = true;
                }
            }
        }
    }
    sum
}

/// What the cable did to RoCE packets, in both directions.
pub(crate) fn harm(record: &Record) -> Harm {
    let mut sum = Harm::default();
    for seen in &record.frames {
        if seen.fate == Fate::Overflow {
            sum.overflow += 1;
        }
        if seen.packet.is_none() {
            continue;
        }
        match seen.fate {
            Fate::Forwarded | Fate::Overflow => {}
            Fate::Duplicated => sum.doubled += 1,
            Fate::Delayed => sum.delayed += 1,
            Fate::Dropped | Fate::Cut => sum.lost += 1,
            Fate::Corrupted => {
                sum.lost += 1;
                sum.damaged_to_xroce += u64::from(seen.from == Side::Vm);
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {

    use super::super::look::Roce;
    use super::*;

    fn record(packets: &[(u32, Option<u32>, Fate)]) -> Record {
        let mut record = Record::new(crate::clock::now());
        for &(psn, read_len, fate) in packets {
            let packet = Roce {
                class: Class::Request,
                opcode: 4,
                dest_qpn: 17,
                psn,
                ack_req: false,
                syndrome: None,
                read_len,
                bth_at: 42,
                end: 60,
            };
            record.add(Side::Xroce, vec![0; 60], Some(packet), fate);
        }
        record
    }

    #[test]
    fn runs_of_resent_packets_are_counted_across_the_wrap() {
        let pass = Fate::Forwarded;
        let psns = [
            0x00ff_fffe,
            0x00ff_ffff,
            0,
            1, // new
            0x00ff_ffff,
            0,
            1,
            2, // went back once, then new
            0,
            1, // and again, twice:
            0,
            1,
            2,
            3,
        ];
        let list: Vec<_> = psns.iter().map(|&p| (p, None, pass)).collect();
        let sum = account(&record(&list), Side::Xroce, 1024);
        assert_eq!((sum.packets, sum.retransmitted, sum.went_back), (14, 8, 3));
    }

    #[test]
    fn a_request_without_an_answer_is_a_reason_to_go_back() {
        let mut record = record(&[]);
        let mut add = |from, psn, at, class| {
            let packet = Roce {
                class,
                opcode: 4,
                dest_qpn: 17,
                psn,
                ack_req: true,
                syndrome: None,
                read_len: None,
                bth_at: 42,
                end: 60,
            };
            record.add(from, vec![0; 60], Some(packet), Fate::Forwarded);
            if let Some(seen) = record.frames.last_mut() {
                seen.at = Duration::from_micros(at);
            }
        };
        let (request, ack) = (Class::Request, Class::Ack);
        add(Side::Xroce, 1, 0, request);
        // Too early.
        add(Side::Xroce, 1, 99, request);
        add(Side::Xroce, 2, 100, request);
        add(Side::Xroce, 2, 200, request);
        // It has spoken.
        add(Side::Vm, 2, 250, ack);
        add(Side::Xroce, 2, 900, request);
        let sum = account(&record, Side::Xroce, 1024);
        assert_eq!((sum.went_back, sum.unanswered), (3, 1));
    }

    #[test]
    fn a_responder_counts_what_comes_again_and_what_comes_too_early() {
        let pass = Fate::Forwarded;
        let list = [
            (5, None, Fate::Dropped),
            (6, None, pass),
            (7, None, Fate::Duplicated),
            (5, None, pass),
            (6, Some(2048), Fate::Duplicated),
            (9, None, pass),
            (7, None, pass),
        ];
        let seen = arrivals(&record(&list), Side::Xroce, 1024);
        let wanted = Arrivals {
            duplicates: 2,
            early: 4,
            gaps: 2,
        };
        assert_eq!(seen, wanted);
    }

    #[test]
    fn the_tail_of_a_read_is_one_packet_sent_again() {
        let pass = Fate::Forwarded;
        let list = [
            (10, Some(5000), Fate::Dropped),
            (15, Some(1), pass),
            (12, Some(2952), pass),
            (15, Some(1), pass),
        ];
        let record = record(&list);
        let sum = account(&record, Side::Xroce, 1024);
        assert_eq!((sum.packets, sum.retransmitted, sum.went_back), (4, 2, 1));
        assert_eq!(harm(&record).lost, 1);
    }
}
