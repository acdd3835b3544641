//! What a hostile peer may say, and what becomes of it.

use std::net::IpAddr;

use proptest::prelude::*;

use super::message::{
    ADDRESSES_MAX, ClassSeen, End, Heard, ICMP_MAX, Message, SEEN_MAX, Sent, SourceSeen, Way,
};
use super::report::{Check, Fault, Finding, Report, SCHEMA, State};
use super::train::{Carrier, Group, Train};
use crate::perf::peer::message::{BadMessage, Decoder, Language, encode};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn end() -> End {
    End {
        gid: ip("10.0.0.1"),
        addresses: vec![ip("10.0.0.1"), ip("fe80::1")],
        port: "AF_XDP eth0".to_owned(),
        ethernet: true,
        up: true,
        link_mtu: 4200,
        queues: 2,
        qpn: 0x00f0_1234,
        other_port: 40_000,
        trouble: None,
    }
}

fn train() -> Train {
    let group = Group {
        payload: 64,
        count: 20,
    };
    Train {
        number: 3,
        carrier: Carrier::Roce,
        groups: vec![group, group],
        rate: 2_000,
        class: 0x6a,
    }
}

fn heard() -> Heard {
    Heard {
        groups: vec![20, 19],
        sources: vec![SourceSeen {
            address: ip("10.0.0.9"),
            port: 0xc000,
            packets: 39,
            icrc_wrong: 39,
        }],
        classes: vec![ClassSeen {
            class: 0x6a,
            packets: 39,
        }],
        dscp_known: true,
        hop_limit: Some(64),
        ..Heard::default()
    }
}

fn sent() -> Sent {
    Sent {
        packets: 40,
        refused: 1,
        src_port: 0xc000,
        hop_limit: Some(64),
        icmp: vec!["10.0.0.254 about packets to 10.0.0.2: forbidden by a filter".to_owned()],
    }
}

fn report() -> Report {
    Report {
        schema: SCHEMA,
        near: ip("10.0.0.1"),
        far: ip("fd77::2"),
        near_port: "a".to_owned(),
        far_port: "b".to_owned(),
        state: State::Problem,
        findings: vec![Finding {
            check: Check::Gid,
            state: State::Problem,
            place: "both".to_owned(),
            measured: "10.0.0.1 (IPv4) and fd77::2 (IPv6)".to_owned(),
            fault: Some(Fault::GidFamily),
            cause: Some("no common GID family".to_owned()),
            remedy: None,
        }],
    }
}

fn every_message() -> Vec<Message> {
    vec![
        Message::Hello {
            run: u64::MAX,
            end: end(),
        },
        Message::Resolve {},
        Message::Resolved {
            way: Way::Neighbour("02:00:00:00:00:01".to_owned()),
        },
        Message::Resolved {
            way: Way::Kernel {},
        },
        Message::Resolved {
            way: Way::None("no route".to_owned()),
        },
        Message::Expect { train: train() },
        Message::Ready {},
        Message::Sent { sent: sent() },
        Message::Heard {
            heard: Box::new(heard()),
        },
        Message::Send { train: train() },
        Message::Measure {},
        Message::Report { report: report() },
        Message::Heartbeat {},
        Message::Bye {},
        Message::abort("no"),
    ]
}

fn frame(body: &[u8]) -> Vec<u8> {
    let mut out = b"XRDR\x00\x01\x00\x00".to_vec();
    out.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
    out.extend_from_slice(body);
    out
}

fn decode(bytes: &[u8]) -> Result<Option<Message>, BadMessage> {
    let mut decoder = Decoder::default();
    decoder.feed(bytes);
    decoder.next()
}

#[test]
fn every_message_survives_the_trip() {
    for message in every_message() {
        let bytes = encode(&message).unwrap();
        assert_eq!(decode(&bytes).unwrap(), Some(message.clone()));
        for cut in 0..bytes.len() {
            assert_eq!(
                decode(&bytes[..cut]),
                Ok(None),
                "{} at {cut}",
                message.name()
            );
        }
    }
}

#[test]
fn the_other_language_is_named() {
    let perf = encode(&crate::perf::peer::message::Message::Bye {}).unwrap();
    let error = decode(&perf).unwrap_err().to_string();
    assert!(error.contains("the peer is not xroce doctor"), "{error}");
}

#[test]
fn fields_that_are_not_ours_are_refused() {
    for body in [
        r#"{"type":"ready","more":1}"#,
        r#"{"type":"cure"}"#,
        r#"{"type":"hello","run":-1}"#,
        r#"{"type":"resolved","way":{"kernel":{"x":1}}}"#,
        r#"{"type":"expect","train":{"number":1}}"#,
        "[]",
        "",
    ] {
        let error = decode(&frame(body.as_bytes())).unwrap_err();
        assert!(matches!(error, BadMessage::Json(_)), "{body}: {error}");
    }
}

#[test]
fn an_end_is_checked_and_its_texts_fit_a_line() {
    let checked = End {
        port: "a\u{1b}[2J\nb".repeat(1000),
        trouble: Some("x\ny".to_owned()),
        gid: ip("::ffff:10.0.0.1"),
        ..end()
    };
    let checked = checked.check().unwrap();
    assert!(checked.port.chars().count() <= 1000 && !checked.port.contains('\u{1b}'));
    assert_eq!(checked.trouble.as_deref(), Some("x y"));
    assert_eq!(checked.gid, ip("10.0.0.1"));
    let mut bad = vec![];
    for gid in ["0.0.0.0", "ff02::1", "224.0.0.1"] {
        bad.push(End {
            gid: ip(gid),
            ..end()
        });
    }
    for qpn in [0, 1, 0x00ff_ffff, u32::MAX] {
        bad.push(End { qpn, ..end() });
    }
    let addresses = vec![ip("10.0.0.1"); ADDRESSES_MAX + 1];
    bad.push(End { addresses, ..end() });
    for end in bad {
        assert!(end.clone().check().is_err(), "{end:?}");
    }
}

#[test]
fn counts_that_cannot_be_are_refused() {
    let train = train();
    assert!(sent().check(&train).is_ok());
    let packets = 41;
    assert!(Sent { packets, ..sent() }.check(&train).is_err());
    let icmp = vec![String::new(); ICMP_MAX + 1];
    assert!(Sent { icmp, ..sent() }.check(&train).is_err());
    assert!(heard().check(&train).is_ok());
    let few = heard().sources[0];
    for bad in [
        Heard {
            groups: vec![20],
            ..heard()
        },
        Heard {
            groups: vec![20, 21],
            ..heard()
        },
        Heard {
            sources: vec![few; SEEN_MAX + 1],
            ..heard()
        },
    ] {
        assert!(bad.check(&train).is_err());
    }
}

#[test]
fn a_report_of_a_peer_is_fit_for_a_terminal() {
    let mut hostile = report();
    hostile.findings[0].measured = "\u{1b}[31mred\r\n".to_owned();
    hostile.findings[0].cause = Some("\u{7}".repeat(5000));
    let text = hostile.clone().check().unwrap().text();
    assert!(!text.contains(['\u{1b}', '\u{7}', '\r']), "{text}");
    hostile.findings = vec![hostile.findings[0].clone(); 65];
    assert!(hostile.check().is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_an_error_or_wait(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes);
        let _ = decode(&frame(&bytes));
    }

    #[test]
    fn a_changed_byte_never_panics(which in 0..15usize, at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut bytes = encode(&every_message()[which]).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(Some(message)) = decode(&bytes) {
            match message {
                Message::Hello { end, .. } => drop(end.check()),
                Message::Expect { train } | Message::Send { train } => drop(train.check()),
                Message::Sent { sent } => drop(sent.check(&train())),
                Message::Heard { heard } => drop(heard.check(&train())),
                Message::Report { report } => drop(report.check().map(|r| r.text())),
                _ => {}
            }
        }
    }
}
