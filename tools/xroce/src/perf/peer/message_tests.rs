//! What a hostile peer may say, and what becomes of it.

use super::*;
use crate::perf::measure::pace::Arrivals;
use crate::perf::measure::quantiles::Quantiles;
use crate::perf::measure::usage::Events;
use crate::perf::plan::{Limit, Op, Repair, Test};

fn plan() -> Plan {
    Plan {
        ops: vec![Op::Send],
        tests: vec![Test::Open],
        sizes: vec![64],
        qps: vec![1],
        depths: vec![16],
        rates: vec![1_000],
        arrivals: Arrivals::Poisson,
        seed: u64::MAX,
        warmup_millis: 5,
        bidirectional: true,
        bw_limit: Limit::Messages(100),
        lat_limit: Limit::Millis(100),
        verify: false,
        lat_max_size: 4096,
        repair: Repair::Selective,
    }
}

fn every_message() -> Vec<Message> {
    let memory = MemoryData {
        va: 0x7f00_0000_0000,
        len: 1 << 20,
        rkey: u32::MAX,
    };
    let qps = vec![QpData {
        qpn: 17,
        psn: 0x00ff_ffff,
    }];
    let gid: IpAddr = "2001:db8::1".parse().unwrap();
    let port = "UDP 127.0.0.1".to_owned();
    vec![
        Message::Hello {
            plan: plan(),
            gid,
            link_mtu: 1500,
            port: port.clone(),
            lane: Lane {
                group: u64::MAX,
                index: 1,
                count: 2,
            },
        },
        Message::Accept {
            gid,
            link_mtu: 4200,
            port,
        },
        Message::Connect {
            path_mtu: 1024,
            memory,
        },
        Message::Connected { memory },
        Message::Start {
            step: 7,
            qps: qps.clone(),
            round: Round {
                counted: true,
                messages: Some(9),
            },
        },
        Message::Ready { qps },
        Message::Go {},
        Message::Sync {
            round: u64::MAX,
            messages: vec![0, u64::MAX],
            next: Some(Round {
                counted: false,
                messages: None,
            }),
        },
        Message::Synced {
            verified: 5,
            mismatches: 1,
            first: Some("byte 3".to_owned()),
            counters: SideCounters {
                retransmissions: 9,
                ..SideCounters::default()
            },
            usage: Usage {
                user_ns: 1,
                system_ns: u64::MAX,
                events: Some(Events::default()),
                refusal: Some("no".to_owned()),
            },
            sent: Some(SentData {
                round: vec![1, 2],
                messages: 3,
                elapsed_ns: 4,
                peak_per_s: 5,
                paced: Some(Paced {
                    latency: Quantiles::default(),
                    behind: Quantiles::default(),
                    unsent: 6,
                }),
            }),
        },
        Message::Heartbeat {},
        Message::Bye {},
        Message::abort("no"),
    ]
}

fn frame(body: &[u8]) -> Vec<u8> {
    let mut out = b"XRPF\x00\x03\x00\x00".to_vec();
    out.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
    out.extend_from_slice(body);
    out
}

fn decode(bytes: &[u8]) -> Result<Option<Message>, BadMessage> {
    let mut d = Decoder::default();
    d.feed(bytes);
    d.next()
}

#[test]
fn every_message_survives_the_trip_byte_by_byte() {
    let all = every_message();
    let stream: Vec<u8> = all.iter().flat_map(|m| encode(m).unwrap()).collect();
    let mut d = Decoder::<Message>::default();
    let mut got = Vec::new();
    for byte in stream {
        d.feed(&[byte]);
        while let Some(m) = d.next().unwrap() {
            got.push(m);
        }
    }
    assert_eq!(got, all);
    assert!(!d.is_midway());
}

#[test]
fn another_protocol_is_named() {
    let err = decode(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
    assert_eq!(
        err.to_string(),
        "the peer is not xroce perf: it sent \"GET / HTTP/1.1\\r\\n\""
    );
    // One wrong byte is enough, a right one is not.
    assert!(decode(b"Y").is_err());
    assert_eq!(decode(b"X"), Ok(None));
    assert_eq!(decode(b""), Ok(None));
    assert!(
        decode(&[0xff; 64])
            .unwrap_err()
            .to_string()
            .contains("\\xff")
    );
}

#[test]
fn header_fields_are_checked_before_the_body_is_kept() {
    assert_eq!(
        decode(b"XRPF\x00\x09\x00\x00\x00\x00\x00\x00"),
        Err(BadMessage::Version { theirs: 9, ours: 3 })
    );
    assert_eq!(
        decode(b"XRPF\x00\x03\x00\x01\x00\x00\x00\x00"),
        Err(BadMessage::Reserved)
    );
    assert_eq!(
        decode(b"XRPF\x00\x03\x00\x00\xff\xff\xff\xff"),
        Err(BadMessage::Length(u32::MAX))
    );
    let just_over = u32::try_from(MAX_BODY + 1).unwrap();
    let mut header = b"XRPF\x00\x03\x00\x00".to_vec();
    header.extend_from_slice(&just_over.to_be_bytes());
    assert_eq!(decode(&header), Err(BadMessage::Length(just_over)));
}

#[test]
fn bodies_that_are_not_messages() {
    for body in [
        &b""[..],
        b"\x00",
        b"null",
        b"[]",
        b"{}",
        b"{\"type\":\"nonsense\"}",
        b"{\"type\":\"bye\",\"extra\":1}",
        b"{\"type\":\"start\"}",
        b"{\"type\":\"go\",\"extra\":1}",
        b"{\"type\":\"sync\",\"round\":0,\"messages\":[],\"next\":{\"counted\":true,\"messages\":-1}}",
        b"{\"type\":\"sync\",\"round\":0,\"messages\":[],\"next\":{\"counted\":true}, \"x\":1}",
        b"{\"type\":\"connected\",\"memory\":{\"va\":-1,\"len\":1,\"rkey\":1}}",
        b"{\"type\":\"connected\",\"memory\":{\"va\":1,\"len\":1,\"rkey\":4294967296}}",
        b"{\"type\":\"connected\",\"memory\":{\"va\":1e99,\"len\":1,\"rkey\":1}}",
        b"{\"type\":\"connected\",\"memory\":{\"va\":\"1\",\"len\":1,\"rkey\":1}}",
        b"{\"type\":\"bye\"}{\"type\":\"bye\"}",
        b"{\"type\":\"accept\",\"gid\":\"not an address\",\"link_mtu\":1,\"port\":\"\"}",
        b"\xff\xfe{\"type\":\"bye\"}",
    ] {
        let got = decode(&frame(body));
        assert!(
            matches!(got, Err(BadMessage::Json(_))),
            "{}: {got:?}",
            body.escape_ascii()
        );
        assert!(!got.unwrap_err().to_string().contains('\n'));
    }
}

#[test]
fn deep_nesting_does_not_exhaust_the_stack() {
    let deep = [b'['].repeat(MAX_BODY);
    assert!(matches!(decode(&frame(&deep)), Err(BadMessage::Json(_))));
    let mut inside = b"{\"type\":\"connected\",\"memory\":".to_vec();
    inside.extend(b"{\"a\":".repeat(10_000));
    assert!(matches!(decode(&frame(&inside)), Err(BadMessage::Json(_))));
}

#[test]
fn truncation_and_every_flipped_bit_never_panic() {
    for message in every_message() {
        let good = encode(&message).unwrap();
        for cut in 0..good.len() {
            assert_eq!(
                decode(&good[..cut]),
                Ok(None),
                "{} cut at {cut}",
                message.name()
            );
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            match decode(&bad) {
                Ok(Some(Message::Connected { memory })) => drop(memory.check(4096)),
                Ok(Some(Message::Ready { qps })) => drop(check_qps(&qps, 1)),
                Ok(Some(Message::Hello { plan, .. })) => drop(plan.check()),
                _ => {}
            }
        }
    }
}

#[test]
fn memory_and_queue_pairs_are_checked_field_by_field() {
    let good = MemoryData {
        va: u64::MAX - 4096,
        len: 4096,
        rkey: 0,
    };
    assert!(good.check(4096).is_ok());
    assert!(good.check(4097).is_err());
    assert!(
        MemoryData {
            va: u64::MAX - 4095,
            ..good
        }
        .check(4096)
        .is_err()
    );
    assert!(
        MemoryData {
            len: u64::MAX,
            ..good
        }
        .check(4096)
        .is_err()
    );

    let good = [
        QpData { qpn: 2, psn: 0 },
        QpData {
            qpn: 0x00ff_fffe,
            psn: 0x00ff_ffff,
        },
    ];
    assert_eq!(check_qps(&good, 2).unwrap().len(), 2);
    assert!(check_qps(&good, 1).is_err());
    assert!(check_qps(&[], 1).is_err());
    for (qpn, psn) in [
        (0, 0),
        (1, 0),
        (0x00ff_ffff, 0),
        (u32::MAX, 0),
        (2, 0x0100_0000),
    ] {
        assert!(
            check_qps(&[QpData { qpn, psn }], 1).is_err(),
            "{qpn:#x} {psn:#x}"
        );
    }
}

#[test]
fn addresses_and_path_mtus_are_checked() {
    let v4: IpAddr = "10.0.0.1".parse().unwrap();
    let v6: IpAddr = "fd00::1".parse().unwrap();
    assert!(check_gid("10.0.0.2".parse().unwrap(), v4).is_ok());
    assert!(check_gid("::ffff:10.0.0.2".parse().unwrap(), v4).is_ok());
    for bad in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "fd00::2", "::"] {
        assert!(check_gid(bad.parse().unwrap(), v4).is_err(), "{bad}");
    }
    assert!(check_gid("10.0.0.2".parse().unwrap(), v6).is_err());
    assert!(check_gid("ff02::1".parse().unwrap(), v6).is_err());
    assert!(check_path_mtu(4096).is_ok());
    for bad in [0, 1, 1000, 8192, u32::MAX] {
        assert!(check_path_mtu(bad).is_err());
    }
}

#[test]
fn texts_of_a_peer_stay_on_one_line() {
    let nasty = format!("a\nb\r\x1b[31mred\x07{}", "x".repeat(10_000));
    let clean = one_line(&nasty);
    assert!(clean.len() <= MAX_TEXT && !clean.contains(|c: char| c.is_control()));
    let Message::Abort { reason } = Message::abort(&nasty) else {
        unreachable!()
    };
    assert_eq!(reason, clean);
}

#[test]
fn ports_are_checked() {
    let lane = |index, count| Lane {
        group: 1,
        index,
        count,
    };
    assert!(Lane::ONLY.check(1).is_ok());
    assert!(lane(3, 4).check(4).is_ok());
    for (index, count) in [(0, 0), (1, 1), (4, 4), (0, 65), (u32::MAX, u32::MAX)] {
        let error = lane(index, count).check(64).unwrap_err();
        assert!(matches!(error, BadMessage::Field { .. }), "{error}");
    }
    let error = lane(0, 2).check(1).unwrap_err().to_string();
    assert!(error.contains("2 ports, this server 1"), "{error}");
}

/// The longest message of each kind fits: 256 queue pairs, and numbers as long as they get.
#[test]
fn the_longest_messages_fit() {
    let qps = vec![
        QpData {
            qpn: u32::MAX,
            psn: u32::MAX,
        };
        256
    ];
    let longest = Quantiles {
        samples: u64::MAX,
        min_ns: u64::MAX,
        p50_ns: u64::MAX,
        p90_ns: u64::MAX,
        p99_ns: u64::MAX,
        p999_ns: u64::MAX,
        p9999_ns: u64::MAX,
        max_ns: u64::MAX,
        mean_ns: u64::MAX,
        stdev_ns: u64::MAX,
    };
    let synced = Message::Synced {
        verified: u64::MAX,
        mismatches: u64::MAX,
        first: Some("x".repeat(MAX_TEXT)),
        counters: SideCounters::default(),
        usage: Usage {
            refusal: Some("x".repeat(MAX_TEXT)),
            ..Usage::default()
        },
        sent: Some(SentData {
            round: vec![u64::MAX; 256],
            messages: u64::MAX,
            elapsed_ns: u64::MAX,
            peak_per_s: u64::MAX,
            paced: Some(Paced {
                latency: longest,
                behind: longest,
                unsent: u64::MAX,
            }),
        }),
    };
    let plan = Plan {
        sizes: vec![u32::MAX; 64],
        qps: vec![256; 32],
        depths: vec![1024; 32],
        rates: vec![u64::MAX; 32],
        ..plan()
    };
    let hello = Message::Hello {
        plan,
        gid: "2001:db8:1111:2222:3333:4444:5555:6666".parse().unwrap(),
        link_mtu: u32::MAX,
        port: "x".repeat(MAX_TEXT),
        lane: Lane::ONLY,
    };
    for message in [synced, hello, Message::Ready { qps }] {
        encode(&message).unwrap();
    }
}
