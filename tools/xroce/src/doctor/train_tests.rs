//! Counting trains.

use xroce_wire::newtypes::Gid;

use super::message::{Heard, SEEN_MAX, Sent};
use super::probe::{Arrival, PAYLOAD_MAX, PAYLOAD_MIN};
use super::train::{Carrier, GROUPS_MAX, Group, PACKETS_MAX, Tally, Train};

fn arrival() -> Arrival {
    Arrival {
        src: Gid::from_v4([10, 0, 0, 1]),
        src_port: 0xc000,
        class: 0x6a,
        hop_limit: Some(63),
        icrc_ok: true,
    }
}

fn train(groups: &[(u32, u32)]) -> Train {
    let group = |&(payload, count)| Group { payload, count };
    Train {
        number: 1,
        carrier: Carrier::Roce,
        groups: groups.iter().map(group).collect(),
        rate: 10_000,
        class: 0x6a,
    }
}

/// What is heard of a train of ten in two groups when these come in this order.
fn heard(numbers: &[u32]) -> Heard {
    let mut tally = Tally::new(&train(&[(64, 4), (128, 6)]), true);
    for number in numbers {
        tally.note(*number, &arrival());
    }
    let sent = Sent {
        packets: 10,
        ..Sent::default()
    };
    tally.finish(&sent, 7)
}

#[test]
fn a_whole_train_in_order() {
    let heard = heard(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(heard.groups, [4, 6]);
    assert_eq!((heard.gaps, heard.longest_gap), (0, 0));
    assert_eq!((heard.reordered, heard.duplicates), (0, 0));
    assert_eq!(heard.sources.len(), 1);
    assert_eq!(heard.sources[0].packets, 10);
    assert_eq!((heard.hop_limit, heard.dropped_here), (Some(63), 7));
}

#[test]
fn gaps_are_counted_and_measured() {
    let heard = heard(&[1, 2, 6, 8]);
    assert_eq!(heard.groups, [2, 2]);
    // 0; 3 4 5; 7; 9.
    assert_eq!((heard.gaps, heard.longest_gap), (4, 3));
    assert_eq!(self::heard(&[]).longest_gap, 10);
}

#[test]
fn late_packets_and_copies_are_no_losses() {
    let heard = heard(&[0, 1, 5, 2, 3, 4, 6, 6, 0, 7, 8, 9]);
    assert_eq!((heard.reordered, heard.displacement), (3, 3));
    assert_eq!((heard.duplicates, heard.gaps), (2, 0));
}

#[test]
fn numbers_beyond_the_train_and_more_sources_than_are_told_do_no_harm() {
    let mut tally = Tally::new(&train(&[(64, 20)]), true);
    tally.note(20, &arrival());
    tally.note(u32::MAX, &arrival());
    assert_eq!(tally.packets(), 0);
    for n in 0..20 {
        let at = Arrival {
            src_port: 1000 + u16::try_from(n).unwrap(),
            class: u8::try_from(n).unwrap(),
            icrc_ok: n % 2 == 0,
            ..arrival()
        };
        tally.note(n, &at);
    }
    let sent = Sent {
        packets: u32::MAX,
        ..Sent::default()
    };
    let heard = tally.finish(&sent, 0);
    assert_eq!((heard.packets(), heard.gaps), (20, 0));
    assert_eq!(heard.sources.len(), SEEN_MAX);
    assert_eq!(heard.classes.len(), SEEN_MAX);
    assert_eq!(heard.icrc_wrong(), 4);
    assert!(heard.check(&train(&[(64, 20)])).is_ok());
}

#[test]
fn a_train_has_limits() {
    assert!(train(&[]).check().is_ok());
    assert!(train(&[(PAYLOAD_MAX, PACKETS_MAX)]).check().is_ok());
    for groups in [
        vec![(64, PACKETS_MAX + 1)],
        vec![(64, u32::MAX), (64, u32::MAX)],
        vec![(PAYLOAD_MIN - 1, 1)],
        vec![(PAYLOAD_MAX + 1, 1)],
        vec![(64, 1); GROUPS_MAX + 1],
    ] {
        assert!(train(&groups).check().is_err(), "{groups:?}");
    }
    for rate in [0, 99, 50_001, u32::MAX] {
        let train = Train {
            rate,
            ..train(&[(64, 1)])
        };
        assert!(train.check().is_err(), "{rate}");
    }
    // 20 000 at 100 per second would take minutes.
    let slow = Train {
        rate: 100,
        ..train(&[(64, PACKETS_MAX)])
    };
    assert!(slow.check().is_err());
}

#[test]
fn payloads_come_in_the_order_of_the_groups() {
    let all: Vec<_> = train(&[(64, 2), (128, 1)]).payloads().collect();
    assert_eq!(all, [(0, 64), (1, 64), (2, 128)]);
}
