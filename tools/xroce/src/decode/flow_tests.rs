//! Order, losses and repeats: captures made for one trouble each, and the summary of random ones
//! held against the plain definitions.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic"
)]
#![allow(
    clippy::single_range_in_vec_init,
    reason = "which responses are seen is a list of ranges"
)]

mod model_tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pcap_file::TsResolution;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use serde_json::Value;
use xroce_wire::aeth::Aeth;
use xroce_wire::atomic::{AtomicAckEth, AtomicEth};
use xroce_wire::deth::Deth;
use xroce_wire::ext::{Meth, Peth, SackCause, Seth};
use xroce_wire::newtypes::{Gid, MacAddr, PKey, Psn, QKey, Qpn, Va};
use xroce_wire::opcode::{Headers, Opcode};
use xroce_wire::path::AddressVector;
use xroce_wire::reth::Reth;
use xroce_wire::syndrome::{NakCode, RnrTimer, Syndrome};
use xroce_wire::template::{Emit, HeaderTemplate, Lower};

use super::tests::{capture, summary};

const ACK: Syndrome = Syndrome::Ack { credit: 31 };
const NAK: Syndrome = Syndrome::Nak(NakCode::PsnSequence);
/// Longer than a copy made by the network takes.
const LATER_US: u64 = 5_000;
const MTU: u32 = 256;

/// A packet of a capture to make.
#[derive(Clone, Copy, Debug)]
struct P {
    opcode: Opcode,
    psn: u32,
    len: usize,
    /// Of a READ: where, and how much.
    read: (u64, u32),
    syndrome: Syndrome,
    /// Of the datagram's sender.
    src_qp: u32,
    dest_qp: u32,
    /// From 10.0.0.`from` to 10.0.0.`to`.
    from: u8,
    to: u8,
    at_us: u64,
}

/// From the requester; responses come from the other.
fn p(opcode: Opcode, psn: u32) -> P {
    let (from, to, dest_qp) = if opcode.info().is_response() {
        (2, 1, 0x11)
    } else {
        (1, 2, 0x22)
    };
    P {
        opcode,
        psn: psn & 0xff_ffff,
        len: 0,
        read: (0, 0),
        syndrome: ACK,
        src_qp: 0x11,
        dest_qp,
        from,
        to,
        at_us: 0,
    }
}

fn send(psn: u32) -> P {
    p(Opcode::RcSendOnly, psn)
}

fn uc(psn: u32) -> P {
    p(Opcode::UcSendOnly, psn)
}

fn ud(psn: u32, dest_qp: u32) -> P {
    P {
        dest_qp,
        ..p(Opcode::UdSendOnly, psn)
    }
}

/// Tells the path MTU.
fn first(psn: u32) -> P {
    P {
        len: MTU as usize,
        ..p(Opcode::RcSendFirst, psn)
    }
}

fn read(psn: u32, va: u64, len: u32) -> P {
    P {
        read: (va, len),
        ..p(Opcode::RcReadRequest, psn)
    }
}

fn ack(psn: u32) -> P {
    p(Opcode::RcAcknowledge, psn)
}

fn nak(psn: u32) -> P {
    P {
        syndrome: NAK,
        ..ack(psn)
    }
}

/// Responses `from..to` of a READ of `n` packets at `psn`.
fn responses(psn: u32, n: u32, part: std::ops::Range<u32>) -> Vec<P> {
    let one = |i: u32| {
        let opcode = match (i == 0, i + 1 == n) {
            (true, true) => Opcode::RcReadResponseOnly,
            (true, false) => Opcode::RcReadResponseFirst,
            (false, true) => Opcode::RcReadResponseLast,
            (false, false) => Opcode::RcReadResponseMiddle,
        };
        let full = i + 1 < n;
        P {
            len: if full { MTU as usize } else { 8 },
            ..p(opcode, psn + i)
        }
    };
    part.map(one).collect()
}

impl P {
    fn at(self, at_us: u64) -> Self {
        Self { at_us, ..self }
    }

    fn qps(self, dest_qp: u32) -> Self {
        Self { dest_qp, ..self }
    }

    fn frame(&self) -> Vec<u8> {
        let av = AddressVector {
            src: Gid::from_v4([10, 0, 0, self.from]),
            dst: Gid::from_v4([10, 0, 0, self.to]),
            src_mac: MacAddr::new([2, 0, 0, 0, 0, self.from]),
            dst_mac: MacAddr::new([2, 0, 0, 0, 0, self.to]),
            vlan: None,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            src_port: 0xc000,
        };
        let dest_qp = Qpn::new(self.dest_qp);
        let template = HeaderTemplate::new(Lower::Ethernet, &av, dest_qp, PKey::DEFAULT).unwrap();
        let mut frame = vec![0; template.max_len(self.len)];
        let emit = Emit {
            opcode: self.opcode,
            psn: Psn::new(self.psn),
            ack_req: true,
            solicited: false,
            payload_len: self.len,
        };
        let mut packet = template.start(&mut frame, &emit).unwrap();
        let has = |h| self.opcode.info().headers.contains(h);
        if has(Headers::RETH) {
            packet.reth(&Reth {
                va: Va::new(self.read.0),
                len: self.read.1,
                ..Reth::default()
            });
        }
        if has(Headers::AETH) {
            packet.aeth(&Aeth {
                syndrome: self.syndrome,
                msn: Default::default(),
            });
        }
        if has(Headers::DETH) {
            packet.deth(&Deth {
                qkey: QKey::new(1),
                src_qp: Qpn::new(self.src_qp),
            });
        }
        if has(Headers::ATOMIC_ETH) {
            packet.atomic(&AtomicEth::default());
        }
        if has(Headers::ATOMIC_ACK) {
            packet.atomic_ack(&AtomicAckEth::default());
        }
        if has(Headers::METH) {
            packet.meth(&Meth::default());
        }
        if has(Headers::PETH) {
            packet.peth(&Peth::default());
        }
        if has(Headers::SETH) {
            packet.seth(&Seth {
                cause: SackCause::Probe(0),
                cack_psn: Psn::new(self.psn),
                mpr: 8,
                sack_offset: 1,
                bitmap: 2,
            });
        }
        packet.payload_mut().fill(0x5a);
        let len = packet.finish();
        frame.truncate(len);
        frame
    }
}

/// Ten microseconds apart, and by their own times.
fn file(packets: &[P]) -> Vec<u8> {
    let header = PcapHeader {
        ts_resolution: TsResolution::NanoSecond,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    let mut now_us = 0;
    for packet in packets {
        now_us = (now_us + 10).max(packet.at_us);
        let frame = packet.frame();
        let time = Duration::from_micros(now_us);
        let packet = PcapPacket::new(time, frame.len() as u32, &frame);
        writer.write_packet(&packet).unwrap();
    }
    writer.into_writer()
}

/// Gaps, missing, overtaken, by at most, duplicates, retransmissions.
type Figures = [u64; 6];

fn figures(connection: &Value) -> Figures {
    [
        "psn_gaps",
        "psn_missing",
        "overtaken",
        "max_overtaken_by",
        "duplicates",
        "retransmissions",
    ]
    .map(|field| connection[field].as_u64().unwrap())
}

/// Of each flow, in the order of its first packet.
fn all(packets: &[P]) -> Vec<Figures> {
    let s = summary(&file(packets));
    assert_eq!(s["icrc_errors"], 0);
    let connections = s["connections"].as_array().unwrap();
    connections.iter().map(figures).collect()
}

fn one(packets: &[P]) -> Figures {
    let all = all(packets);
    assert_eq!(all.len(), 1);
    all[0]
}

fn sends(psns: impl IntoIterator<Item = u32>) -> Vec<P> {
    psns.into_iter().map(send).collect()
}

/// 96 requests on 20 PSNs, each first sighting behind that of its successor: all the others are
/// repeats, and nothing is missing.
#[test]
fn case_129_overtaken_first_sightings_are_no_repeats() {
    let pairs = |round: u32| (0..10).flat_map(move |i| [2 * i + 1, 2 * i].map(|p| (round, p)));
    let mut packets: Vec<P> = (0..4)
        .flat_map(pairs)
        .map(|(round, psn)| send(0xff_fff8 + psn).at(u64::from(round) * LATER_US))
        .collect();
    packets.extend((4..20).map(|psn| send(0xff_fff8 + psn).at(4 * LATER_US)));
    assert_eq!(packets.len(), 96);
    assert_eq!(one(&packets), [0, 0, 10, 1, 0, 76]);
}

#[test]
fn overtaken_packets_are_late_by_places() {
    assert_eq!(one(&sends(0..10)), [0; 6]);
    assert_eq!(one(&sends([0, 2, 1, 3])), [0, 0, 1, 1, 0, 0]);
    // 1 is passed by 2, 3, 4 and 5; 7 and 6 by one each.
    assert_eq!(one(&sends([0, 2, 3, 4, 5, 1, 8, 6, 7])), [0, 0, 3, 4, 0, 0]);
    // A hole closed from its end: both are behind 3.
    assert_eq!(one(&sends([0, 3, 2, 1])), [0, 0, 2, 2, 0, 0]);
    // A capture that begins with an overtaken packet.
    assert_eq!(one(&sends([1, 0, 2])), [0, 0, 1, 1, 0, 0]);
}

#[test]
fn copies_and_repeats() {
    assert_eq!(one(&sends([0, 1, 1, 2])), [0, 0, 0, 0, 1, 0]);
    let later = [send(0), send(1), send(1).at(LATER_US), send(2)];
    assert_eq!(one(&later), [0, 0, 0, 0, 0, 1]);
    // Refused, and sent again at once.
    let refused = [send(0), send(2), nak(1), send(1), send(2)];
    assert_eq!(all(&refused)[0], [0, 0, 1, 1, 0, 1]);
    // Another QP of the same host refuses: that is no sign.
    let other = [
        send(0),
        ack(0),
        send(100).qps(0x33),
        ack(100).qps(0x44),
        nak(101).qps(0x44),
        send(0),
    ];
    assert_eq!(all(&other)[0], [0, 0, 0, 0, 1, 0]);
}

#[test]
fn losses() {
    // In front of the capture, and never sent again.
    assert_eq!(one(&sends([0, 1, 4, 5, 7])), [2, 3, 0, 0, 0, 0]);
    // Sent again: there after all, late.
    assert_eq!(one(&sends([0, 1, 4, 5, 2, 3])), [0, 0, 2, 3, 0, 0]);
    // Go-back-N with a packet lost behind the capture: four are sent again.
    let mut again = sends(0..6);
    again.extend([nak(2), ack(1)]);
    again.extend((2..6).map(|psn| send(psn).at(LATER_US)));
    assert_eq!(all(&again)[0], [0, 0, 0, 0, 0, 4]);
    // What was sent in front of a capture that begins in the middle is not missing, and a repeat
    // of what it has seen is one.
    let middle = [send(100), send(101), send(90), send(90).at(LATER_US)];
    assert_eq!(one(&middle), [0, 0, 1, 2, 0, 1]);
}

#[test]
fn what_naks_acknowledge() {
    let responder = |responses: &[P]| {
        let all = all(&[&[send(0), send(1), send(2)], responses].concat());
        (all[1][4], all[1][5])
    };
    // The PSN of a NAK is not acknowledged by it.
    assert_eq!(responder(&[nak(1), ack(1), ack(2)]), (0, 0));
    // All before it are.
    assert_eq!(responder(&[nak(1), ack(0)]), (1, 0));
    assert_eq!(responder(&[ack(0), nak(2), ack(1), ack(2)]), (1, 0));
    let rnr = P {
        syndrome: Syndrome::RnrNak {
            timer: RnrTimer::new(12).unwrap(),
        },
        ..ack(2)
    };
    assert_eq!(responder(&[rnr, ack(1), ack(2), ack(2)]), (2, 0));
    // Over the wrap.
    let wrap = [send(0xff_ffff), send(0), nak(0), ack(0xff_ffff), ack(0)];
    assert_eq!(all(&wrap)[1], [0, 0, 0, 0, 1, 0]);
    // A READ response acknowledges all before it, an atomic response too, a SACK what it says.
    let read = [
        first(0),
        send(1),
        read(2, 0, 8),
        responses(2, 1, 0..1)[0],
        ack(1),
    ];
    assert_eq!(all(&read)[1], [0, 0, 0, 0, 1, 0]);
    let atomic = [
        send(1),
        p(Opcode::RcFetchAdd, 2),
        p(Opcode::RcAtomicAcknowledge, 2),
        ack(1),
    ];
    assert_eq!(all(&atomic)[1], [0, 0, 0, 0, 1, 0]);
    let sack = [send(1), send(2), p(Opcode::ExtSack, 1), ack(1), ack(2)];
    assert_eq!(all(&sack)[1], [0, 0, 0, 0, 1, 0]);
}

#[test]
fn reads_and_their_responses() {
    let n = 4;
    let reads = [read(1, 0, 3 * MTU + 8), send(5)];
    let with = |answers: &[P]| all(&[&[first(0)], &reads[..], answers].concat());
    let seen = |parts: &[std::ops::Range<u32>]| -> Vec<P> {
        let parts = parts.iter().cloned();
        parts.flat_map(|part| responses(1, n, part)).collect()
    };
    let whole = with(&[&seen(&[0..4])[..], &[ack(5)]].concat());
    assert_eq!(whole, [[0; 6]; 2]);
    // Overtaken.
    assert_eq!(
        with(&seen(&[0..1, 2..3, 1..2, 3..4]))[1],
        [0, 0, 1, 1, 0, 0]
    );
    // Missing: one in the middle, and what a later READ shows to be missing at the end.
    assert_eq!(with(&seen(&[0..1, 2..4]))[1], [1, 1, 0, 0, 0, 0]);
    let two = |answers: &[P]| {
        let requests = [first(0), read(1, 0, 3 * MTU + 8), send(5), read(6, 0, 8)];
        all(&[&requests[..], answers, &responses(6, 1, 0..1)].concat())[1]
    };
    assert_eq!(two(&seen(&[0..2])), [1, 2, 0, 0, 0, 0]);
    assert_eq!(two(&seen(&[0..4])), [0; 6]);
    // The same, with the path MTU learned from the responses.
    let late = [read(1, 0, 3 * MTU + 8), send(5), read(6, 0, 8)];
    let late = [&late[..], &seen(&[0..1, 2..3]), &responses(6, 1, 0..1)].concat();
    assert_eq!(all(&late), [[0; 6], [2, 2, 0, 0, 0, 0]]);
    // Asked for again from the middle, and answered again.
    let again = [
        &[first(0), read(1, 0, 3 * MTU + 8), send(5)][..],
        &seen(&[0..4]),
        &[read(3, 2 * u64::from(MTU), MTU + 8).at(LATER_US)],
        &responses(3, 2, 0..2),
    ]
    .concat();
    assert_eq!(all(&again), [[0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 2]]);
    // A READ that was overtaken reserves its PSNs all the same.
    let overtaken = [first(0), send(5), read(1, 0, 3 * MTU + 8)];
    assert_eq!(one(&overtaken), [0, 0, 1, 1, 0, 0]);
    // Nobody tells the path MTU: the one is taken that leaves nothing missing.
    let alone = [read(1, 0, 3 * MTU + 8), read(5, 0, 3 * MTU), send(8)];
    assert_eq!(one(&alone), [0; 6]);
    let lost = [
        read(1, 0, 3 * MTU + 8),
        read(5, 0, 3 * MTU),
        read(10, 0, 3 * MTU),
        send(13),
    ];
    assert_eq!(one(&lost), [1, 2, 0, 0, 0, 0]);
    // Longer than the window in which PSNs are told apart.
    let long = 100_000;
    let packets = [
        first(0),
        read(1, 0, long * MTU),
        send(1 + long),
        read(10_001, 10_000 * u64::from(MTU), 90_000 * MTU).at(LATER_US),
        send(2 + long),
    ];
    assert_eq!(one(&packets), [0, 0, 0, 0, 0, 1]);
}

/// What is missing of each direction when the requests are not in order, or the path MTU is known to
/// the other direction only, or to nobody.
#[test]
fn what_a_read_reserves() {
    // Both responses of the READ at 5 are missing; its request was overtaken.
    let reads = [first(0), read(20, 0, 8), read(5, 0, 2 * MTU), read(1, 0, 8)];
    let answers = [responses(1, 1, 0..1), responses(20, 1, 0..1)].concat();
    let lost = all(&[&reads[..], &answers].concat());
    assert_eq!(lost[1], [1, 2, 0, 0, 0, 0]);
    // 1024 bytes, says the response: the READ takes three PSNs, and eight are missing.
    let answer = P {
        len: 1024,
        ..responses(1, 3, 0..1)[0]
    };
    let told = all(&[read(1, 0, 2056), send(12), answer]);
    assert_eq!(told, [[1, 8, 0, 0, 0, 0], [0; 6]]);
    // With 512 bytes nothing would be missing, but then the first READ took the PSN of the second.
    let alone = [read(1, 0, 2048), read(3, 0, 2048), send(7)];
    assert_eq!(one(&alone), [1, 2, 0, 0, 0, 0]);
}

/// Responses without their requests: what the packets next to a hole imply.
#[test]
fn responses_alone() {
    let first_and = |last: u32| [&responses(1, 4, 0..1)[..], &responses(1, 4, last..4)].concat();
    assert_eq!(one(&first_and(3)), [1, 2, 0, 0, 0, 0]);
    assert_eq!(one(&responses(1, 4, 0..4)), [0; 6]);
    // SENDs may lie between two READs.
    let apart = [responses(1, 1, 0..1), responses(9, 2, 0..2)].concat();
    assert_eq!(one(&apart), [0; 6]);
    // At least the first is missing.
    let apart = [responses(1, 1, 0..1), responses(9, 2, 1..2)].concat();
    assert_eq!(one(&apart), [1, 1, 0, 0, 0, 0]);
}

/// Two connections between the same hosts are told apart by their PSNs.
#[test]
fn pairs_of_queue_pairs() {
    let mut packets = Vec::new();
    for (n, base) in [(0, 1000), (1, 500_000), (2, 9_000_000)] {
        packets.push(first(base).qps(0x20 + n));
        packets.push(read(base + 1, 0, 2 * MTU).qps(0x20 + n));
        packets.push(read(base + 3, 0, 8).qps(0x20 + n));
    }
    for (n, base) in [(2, 9_000_000), (0, 1000), (1, 500_000)] {
        // The second response of the first READ never comes.
        packets.push(responses(base + 1, 2, 0..1)[0].qps(0x10 + n));
        packets.push(responses(base + 3, 1, 0..1)[0].qps(0x10 + n));
    }
    let all = all(&packets);
    assert_eq!(all[..3], [[0; 6]; 3]);
    assert_eq!(all[3..], [[1, 1, 0, 0, 0, 0]; 3]);
}

#[test]
fn unreliable_services() {
    let later = |packet: P| packet.at(LATER_US);
    // UC sends nothing twice: each repeat is a copy.
    let packets = [uc(0), uc(1), uc(4), uc(3), later(uc(1)), uc(5)];
    assert_eq!(one(&packets), [1, 1, 1, 1, 1, 0]);
    // A QP numbers its datagrams to all peers in one sequence.
    let packets = [ud(7, 1), ud(8, 2), ud(9, 1), ud(10, 2)];
    assert_eq!(all(&packets), [[0; 6]; 2]);
    // What is missing counts where the packet behind it is.
    let packets = [ud(7, 1), ud(10, 2), ud(11, 1), ud(9, 1), later(ud(10, 2))];
    assert_eq!(all(&packets), [[0, 0, 1, 2, 0, 0], [1, 1, 0, 0, 1, 0]]);
}

/// Selective repair: WRITE packets of the extension are in the sequence, probes and SACKs not.
#[test]
fn extension_packets() {
    let write = |opcode, psn| P {
        len: MTU as usize,
        ..p(opcode, psn)
    };
    let packets = [
        write(Opcode::ExtWriteFirst, 0),
        write(Opcode::ExtWriteMiddle, 2),
        p(Opcode::ExtProbe, 0),
        write(Opcode::ExtWriteMiddle, 1),
        p(Opcode::ExtSack, 0),
        write(Opcode::ExtWriteMiddle, 1),
        write(Opcode::ExtWriteLast, 5),
    ];
    assert_eq!(all(&packets), [[1, 2, 1, 1, 0, 1], [0; 6]]);
}

/// Several laps of PSNs, and new connections on the same numbers.
#[test]
fn laps_and_new_connections() {
    // Steps as long as a READ can make them; each PSN of a lap comes round again.
    let n = 40_000;
    let mut packets = vec![first(0)];
    let mut psn = 1;
    for _ in 0..1300 {
        packets.push(read(psn, 0, n * MTU));
        psn += n;
    }
    assert!(psn > 3 << 24);
    packets.extend([send(psn + 1), send(psn)]);
    assert_eq!(one(&packets), [0, 0, 1, 1, 0, 0]);
    // What was missing before counts still.
    let mut packets = sends([0, 1, 3]);
    packets.extend(sends([0x80_0000, 0x80_0002, 0x80_0001]));
    assert_eq!(one(&packets), [1, 1, 1, 1, 0, 0]);
}

/// Every second PSN lost for a long time: holes are given up, and counted.
#[test]
fn memory_is_bounded() {
    let packets: Vec<P> = (0..20_000).map(|i| send(2 * i)).collect();
    assert_eq!(one(&packets), [19_999, 19_999, 0, 0, 0, 0]);
}

/// Captures that tshark reads, too.
const TSHARK: [&str; 5] = [
    "cm_rping_v6.pcap",
    "loss_req_send_v4.pcap",
    "loss_resp_read_v4.pcap",
    "net_dup_send_v4.pcap",
    "uc_send_v4.pcap",
];

/// The captures of the repository have no loss in front of them and nothing overtaken. Each flow has
/// as many packets as tshark sees in it, where there is one.
#[test]
fn real_captures_as_tshark_reads_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/captures");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.ends_with(".pcap") {
            continue;
        }
        let s = summary(&capture(&name));
        for c in s["connections"].as_array().unwrap() {
            assert_eq!(figures(c)[..4], [0; 4], "{name}: {c}");
        }
        // Each run of it takes seconds.
        if !TSHARK.contains(&name.as_str()) {
            continue;
        }
        let Some(packets) = tshark(&path) else {
            eprintln!("no tshark here: its counts are not compared");
            continue;
        };
        let mut flows: BTreeMap<[String; 3], u64> = BTreeMap::new();
        for flow in packets {
            *flows.entry(flow).or_default() += 1;
        }
        let mut ours: BTreeMap<[String; 3], u64> = BTreeMap::new();
        for c in s["connections"].as_array().unwrap() {
            let text = |field: &str| c[field].as_str().unwrap().to_owned();
            let qp = format!("{:#08x}", c["dest_qp"].as_u64().unwrap());
            let flow = [text("src"), text("dst"), qp];
            *ours.entry(flow).or_default() += c["packets"].as_u64().unwrap();
        }
        assert_eq!(ours, flows, "{name}");
    }
}

/// Source, destination and destination QP of each packet.
fn tshark(file: &Path) -> Option<Vec<[String; 3]>> {
    let fields = [
        "ip.src",
        "ip.dst",
        "ipv6.src",
        "ipv6.dst",
        "infiniband.bth.destqp",
    ];
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file);
    command.args(["-Y", "infiniband.bth", "-T", "fields", "-E", "separator=,"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().ok()?;
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let packet = |line: &str| {
        let f: Vec<&str> = line.split(',').collect();
        [
            [f[0], f[2]].concat(),
            [f[1], f[3]].concat(),
            f[4].to_owned(),
        ]
    };
    Some(lines.lines().map(packet).collect())
}
