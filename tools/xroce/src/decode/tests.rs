//! Decoding real captures, captures written by another implementation, and damaged ones.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic"
)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter, RawPcapPacket};
use pcap_file::{DataLink, Endianness, TsResolution};
use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data")
}

pub(super) fn capture(name: &str) -> Vec<u8> {
    std::fs::read(data().join("captures").join(name)).unwrap()
}

#[derive(Clone, Copy)]
enum Mode {
    Text,
    Json,
    Summary,
    SummaryJson,
}

/// Output, and the complaint if there was one.
fn decoded(file: &[u8], mode: Mode) -> (String, Option<String>) {
    let args = DecodeArgs {
        file: PathBuf::new(),
        json: matches!(mode, Mode::Json | Mode::SummaryJson),
        summary: matches!(mode, Mode::Summary | Mode::SummaryJson),
    };
    let mut out = Vec::new();
    let error = match decode(file, &args, &mut out) {
        Ok(()) => None,
        Err(Failure::Input(error)) => Some(format!("{:#}", anyhow::Error::from(error))),
        Err(Failure::Output(error)) => panic!("{error}"),
    };
    (String::from_utf8(out).unwrap(), error)
}

fn json(file: &[u8]) -> Vec<Value> {
    let (out, error) = decoded(file, Mode::Json);
    assert_eq!(error, None);
    out.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub(super) fn summary(file: &[u8]) -> Value {
    let (out, error) = decoded(file, Mode::SummaryJson);
    assert_eq!(error, None);
    serde_json::from_str(&out).unwrap()
}

/// The frames of a capture, read by another implementation.
fn frames(file: &[u8]) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(file).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

/// A capture of these frames, a millisecond apart, by another implementation.
fn written(frames: &[Vec<u8>], header: PcapHeader) -> Vec<u8> {
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (i, frame) in frames.iter().enumerate() {
        let time = Duration::from_nanos(1_700_000_000_000_000_000 + i as u64 * 1_000_001);
        writer
            .write_packet(&PcapPacket::new(time, frame.len() as u32, frame))
            .unwrap();
    }
    writer.into_writer()
}

#[test]
fn a_line_says_everything() {
    let (out, error) = decoded(&capture("rc_atomic_v4_mtu1024.pcap"), Mode::Text);
    assert_eq!(error, None);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 16);
    assert_eq!(
        lines[..2],
        [
            "1 0.000000000 10.77.0.10 -> 10.77.0.11 RC Compare Swap qp 0x000015 psn 0xfffffc [A] \
             va 0x7f54dde2c040 rkey 0x00000621 swap/add 0xa1a2a3a4a5a6a7a8 \
             compare 0x1122334455667788 len 0 icrc ok",
            "2 0.003927000 10.77.0.11 -> 10.77.0.10 RC ATOMIC ACK qp 0x000015 psn 0xfffffc ack \
             msn 1 original 0x1122334455667788 len 0 icrc ok",
        ]
    );
}

#[test]
fn json_has_the_promised_fields() {
    let first = |name: &str, opcode: &str| -> Value {
        let packets = json(&capture(name));
        packets
            .into_iter()
            .find(|p| p["opcode_name"] == opcode)
            .unwrap()
    };
    let p = first("vlan_send_v4.pcap", "RC SEND First");
    let always = [
        "n",
        "ts",
        "src",
        "dst",
        "sport",
        "vlan",
        "ecn",
        "opcode",
        "opcode_name",
        "dest_qp",
        "psn",
        "ack_req",
        "solicited",
        "pad",
        "pkey",
        "payload_len",
        "icrc",
    ];
    for field in always {
        assert!(p.get(field).is_some(), "{field}");
    }
    assert_eq!((&p["vlan"], &p["icrc"]), (&7.into(), &"ok".into()));
    let p = first("rc_write_v4_mtu1024.pcap", "RC RDMA WRITE Only Imm");
    assert_eq!(p["vlan"], Value::Null);
    assert_eq!(p["imm"], 0xbeef_0007_u32);
    assert_eq!(
        (&p["reth"]["len"], &p["payload_len"]),
        (&16.into(), &16.into())
    );
    let p = first("rc_sendinv_mw_v4.pcap", "RC SEND Only Inv");
    assert!(p["ieth"].is_u64());
    let p = first("rnr_nak_v4.pcap", "RC ACK");
    assert_eq!(
        p["aeth"],
        serde_json::json!({"kind": "rnr", "code": 12, "msn": 0})
    );
    let p = first("ud_send_v6.pcap", "UD SEND Only Imm");
    assert_eq!(
        (&p["deth"]["qkey"], &p["imm"]),
        (&0x1111_1111.into(), &0xabcd_0004_u32.into())
    );
    let p = first("rc_atomic_v4_mtu1024.pcap", "RC Compare Swap");
    assert_eq!(p["atomic"]["compare"], 0x1122_3344_5566_7788_u64);
}

#[test]
fn all_vectors_are_sound() {
    let file = std::fs::read(data().join("vectors/vectors.pcap")).unwrap();
    let packets = json(&file);
    assert_eq!(packets.len(), 58);
    assert!(packets.iter().all(|p| p["icrc"] == "ok"));
    assert_eq!(packets.iter().filter(|p| p["roce"] == 1).count(), 1);
}

#[test]
fn every_container_gives_the_same_packets() {
    let frames = frames(&capture("rc_read_v4_mtu1024.pcap"));
    let mut seen = Vec::new();
    for endianness in [Endianness::Big, Endianness::Little] {
        for ts_resolution in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
            let header = PcapHeader {
                endianness,
                ts_resolution,
                ..PcapHeader::default()
            };
            let packets = json(&written(&frames, header));
            let ns = u64::from(ts_resolution == TsResolution::NanoSecond);
            let (out, _) = decoded(&written(&frames, header), Mode::Json);
            assert!(
                out.contains(&format!("\"ts\":1700000000.00100000{ns},")),
                "{out}"
            );
            seen.push(without_time(packets));
        }
        for options in [&[][..], &[9, 6], &[9, 9], &[9, 0x94]] {
            seen.push(without_time(json(&pcapng(&frames, endianness, options))));
        }
    }
    assert_eq!(seen[0].len(), frames.len());
    assert!(seen.iter().all(|s| *s == seen[0]));
}

fn without_time(mut packets: Vec<Value>) -> Vec<Value> {
    for p in &mut packets {
        p.as_object_mut().unwrap().remove("ts");
    }
    packets
}

/// A pcapng file made by hand: an unknown block, an interface with a time resolution, enhanced
/// packet blocks without options.
fn pcapng(frames: &[Vec<u8>], endianness: Endianness, resolution: &[u8]) -> Vec<u8> {
    let big = endianness == Endianness::Big;
    let u32 = |v: u32| {
        if big {
            v.to_be_bytes()
        } else {
            v.to_le_bytes()
        }
    };
    let u16 = |v: u16| {
        if big {
            v.to_be_bytes()
        } else {
            v.to_le_bytes()
        }
    };
    let mut file = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let len = u32(12 + body.len().next_multiple_of(4) as u32);
        file.extend(u32(kind));
        file.extend(len);
        file.extend(body);
        file.resize(file.len().next_multiple_of(4), 0);
        file.extend(len);
    };
    let mut section = u32(0x1a2b_3c4d).to_vec();
    section.extend(u16(1));
    section.extend(u16(0));
    section.extend([0xff; 8]);
    block(0x0a0d_0d0a, &section);
    block(0x0bad_cafe, &[1, 2, 3, 4]);
    let mut interface = u16(1).to_vec();
    interface.extend(u16(0));
    interface.extend(u32(0));
    if let [code, value] = *resolution {
        // No end marker: legal.
        interface.extend(u16(u16::from(code)));
        interface.extend(u16(1));
        interface.extend([value, 0, 0, 0]);
    }
    block(1, &interface);
    let per_second = match resolution {
        [_, 9] => 1_000_000_000,
        [_, 0x94] => 1 << 20,
        _ => 1_000_000_u64,
    };
    for (i, frame) in frames.iter().enumerate() {
        let ticks = 1_700_000_000 * per_second + i as u64;
        let mut body = u32(0).to_vec();
        body.extend(u32((ticks >> 32) as u32));
        body.extend(u32(ticks as u32));
        body.extend(u32(frame.len() as u32));
        body.extend(u32(frame.len() as u32));
        body.extend(frame);
        block(6, &body);
    }
    file
}

#[test]
fn pcapng_times_follow_the_resolution() {
    let frames = frames(&capture("retry_exceeded_v4.pcap"));
    for (options, second) in [
        (&[][..], "1700000000.000001000"),
        (&[9, 6], "1700000000.000001000"),
        (&[9, 9], "1700000000.000000001"),
        (&[9, 0x94], "1700000000.000000953"),
    ] {
        let (out, _) = decoded(&pcapng(&frames, Endianness::Big, options), Mode::Json);
        let line = out.lines().nth(1).unwrap();
        assert!(line.contains(&format!("\"ts\":{second},")), "{line}");
    }
}

#[test]
fn other_link_types() {
    let frames = frames(&capture("rc_send_v6_mtu1024.pcap"));
    let frames: Vec<Vec<u8>> = frames
        .into_iter()
        .filter(|f| f[12..14] == [0x86, 0xdd])
        .collect();
    let ethernet = json(&written(&frames, PcapHeader::default()));
    let with = |front: &dyn Fn(&[u8]) -> Vec<u8>, link: u32| {
        let frames: Vec<Vec<u8>> = frames
            .iter()
            .map(|f| [front(f), f[14..].to_vec()].concat())
            .collect();
        let header = PcapHeader {
            datalink: DataLink::from(link),
            ..PcapHeader::default()
        };
        json(&written(&frames, header))
    };
    let cooked = |f: &[u8]| [&[0; 14][..], &f[12..14]].concat();
    let cooked2 = |f: &[u8]| [&f[12..14], &[0; 18][..]].concat();
    assert_eq!(with(&|_| vec![], 101), ethernet);
    assert_eq!(with(&|_| vec![30, 0, 0, 0], 0), ethernet);
    assert_eq!(with(&cooked, 113), ethernet);
    assert_eq!(with(&cooked2, 276), ethernet);
    // Unknown ones are said once.
    let other = with(&|_| vec![], 147);
    assert_eq!(other.len(), 1);
    assert!(
        other[0]["error"]
            .as_str()
            .unwrap()
            .contains("link type 147")
    );
}

#[test]
fn corrupted_packets_have_a_bad_icrc() {
    let mut frames = frames(&capture("rc_send_v4_mtu1024.pcap"));
    let roce: Vec<usize> = (0..frames.len())
        .filter(|i| frames[*i].len() > 100)
        .collect();
    let last = frames[roce[0]].len() - 10;
    frames[roce[0]][last] ^= 1;
    let file = written(&frames, PcapHeader::default());
    let bad: Vec<Value> = json(&file)
        .into_iter()
        .filter(|p| p["icrc"] == "bad")
        .collect();
    assert_eq!(bad.len(), 1);
    assert_eq!(bad[0]["n"], roce[0] + 1);
    let s = summary(&file);
    assert_eq!(s["icrc_errors"], 1);
    assert!(decoded(&file, Mode::Text).0.contains(" icrc bad\n"));
}

/// What a snap length cuts off is not held against the packet.
#[test]
fn cut_captures() {
    let frames = frames(&capture("rc_send_v4_mtu1024.pcap"));
    let full = json(&capture("rc_send_v4_mtu1024.pcap"));
    for snap in 0..160 {
        let header = PcapHeader {
            snaplen: snap as u32,
            ..PcapHeader::default()
        };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        for frame in &frames {
            let data = &frame[..frame.len().min(snap)];
            let raw = RawPcapPacket {
                ts_sec: 1,
                ts_frac: 2,
                incl_len: data.len() as u32,
                orig_len: frame.len() as u32,
                data: data.into(),
            };
            writer.write_raw_packet(&raw).unwrap();
        }
        let file = writer.into_writer();
        let packets = json(&file);
        for p in &packets {
            if let Some(error) = p["error"].as_str() {
                assert!(error.starts_with("truncated: "), "snap {snap}: {error}");
                continue;
            }
            let n = p["n"].as_u64().unwrap() as usize;
            let whole = full.iter().find(|f| f["n"] == p["n"]).unwrap();
            let fields = [
                "src",
                "dst",
                "opcode",
                "psn",
                "dest_qp",
                "payload_len",
                "pad",
                "aeth",
            ];
            for field in fields {
                assert_eq!(p[field], whole[field], "snap {snap}: {field}");
            }
            let icrc = if frames[n - 1].len() > snap {
                "unknown"
            } else {
                "ok"
            };
            assert_eq!(p["icrc"], icrc, "snap {snap}");
        }
        // With 14 + 20 + 8 + 12 + 4 bytes the headers are there.
        if snap >= 58 {
            assert_eq!(packets.len(), full.len(), "snap {snap}");
            assert!(packets.iter().all(|p| p.get("error").is_none()));
        }
        assert_eq!(decoded(&file, Mode::Summary).1, None);
    }
}

#[test]
fn damaged_files_name_the_packet() {
    let good = capture("retry_exceeded_v4.pcap");
    let (all, _) = decoded(&good, Mode::Text);
    for cut in 1..good.len() {
        let (out, error) = decoded(&good[..cut], Mode::Text);
        match error {
            // The cut is between two packets, or between the header and the first.
            None => assert!(all.starts_with(&out) || out.starts_with("no RoCE packet")),
            Some(error) if cut < 4 => assert!(error.contains("is no capture"), "{error}"),
            Some(error) => assert!(error.starts_with("packet "), "{cut}: {error}"),
        }
    }
    // The second record claims gigabytes.
    let mut bad = good.clone();
    let first = u32::from_le_bytes(bad[32..36].try_into().unwrap()) as usize;
    let second = 24 + 16 + first;
    bad[second + 8..second + 12].fill(0xff);
    let (out, error) = decoded(&bad, Mode::Text);
    assert_eq!(out.lines().count(), usize::from(out.contains("psn")));
    let error = error.unwrap();
    assert!(
        error.starts_with(&format!("packet 2, at byte {second}: its record claims")),
        "{error}"
    );

    let frames = frames(&good);
    let ng = pcapng(&frames, Endianness::Little, &[]);
    for cut in 1..ng.len() {
        let (_, error) = decoded(&ng[..cut], Mode::Json);
        if let Some(error) = error {
            assert!(error.starts_with("packet ") || cut < 4, "{cut}: {error}");
        }
    }
}

#[test]
fn what_is_no_capture() {
    let error = |bytes: &[u8]| decoded(bytes, Mode::Text).1.unwrap();
    assert_eq!(
        error(b""),
        "the file is empty, expected a pcap or pcapng capture"
    );
    assert!(error(b"# A text").starts_with("the file begins with 23 20 41 20 and is no capture"));
    assert!(error(&[0x1f, 0x8b, 8, 0]).contains("gzip"));
    let args = |file: &Path| DecodeArgs {
        file: file.into(),
        json: false,
        summary: false,
    };
    let failed = |file: &Path| format!("{:#}", run(&args(file), &mut Vec::new()).unwrap_err());
    let missing = failed(Path::new("/nonexistent/x.pcap"));
    assert!(
        missing.starts_with("cannot open /nonexistent/x.pcap, expected a pcap"),
        "{missing}"
    );
    let folder = failed(&data());
    assert!(
        folder.contains("cannot be read, expected a pcap or pcapng capture: "),
        "{folder}"
    );
    assert_eq!(
        decoded(&written(&[], PcapHeader::default()), Mode::Text).1,
        None
    );
}

/// Unknown opcodes, wrong versions, short packets: named, with the packet's number.
#[test]
fn damaged_frames_name_the_packet() {
    let good = frames(&capture("retry_exceeded_v4.pcap"));
    let good = good.into_iter().find(|f| f[23] == 17).unwrap();
    let bth = 42;
    let error = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bad = good.clone();
        edit(&mut bad);
        let packets = json(&written(
            &[good.clone(), bad, good.clone()],
            PcapHeader::default(),
        ));
        assert_eq!(packets.len(), 3);
        assert_eq!(packets[1]["n"], 2);
        packets[1]["error"].as_str().unwrap().to_owned()
    };
    assert!(error(&|f| f[bth] = 0xff).starts_with("unknown opcode 0xff"));
    assert!(error(&|f| f[bth + 1] |= 1).starts_with("transport header version 1"));
    // A runt: what is missing was never there, so it is no truncation.
    assert!(error(&|f| f.truncate(60)).starts_with("IP or UDP length wrong"));
    assert!(error(&|f| f[20] |= 0x20).starts_with("IP fragment"));
    assert!(error(&|f| f.truncate(10)).starts_with("frame ends inside its headers"));
    let tiny = |f: &mut Vec<u8>| {
        f[16..18].copy_from_slice(&38u16.to_be_bytes());
        f[38..40].copy_from_slice(&18u16.to_be_bytes());
    };
    assert!(error(&tiny).starts_with("shorter than its headers"));
}

/// Sums checked against the plain definition: requests whose PSN was seen before.
#[test]
fn summaries_of_lossy_captures() {
    for name in std::fs::read_dir(data().join("captures")).unwrap() {
        let path = name.unwrap().path();
        if path.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        let file = std::fs::read(&path).unwrap();
        let s = summary(&file);
        assert_eq!(s["icrc_errors"], 0);
        let packets = json(&file);
        assert_eq!(s["roce_packets"], packets.len());
        let by_opcode = s["opcodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|o| o["packets"].as_u64());
        assert_eq!(by_opcode.sum::<Option<u64>>(), Some(packets.len() as u64));
        for c in s["connections"].as_array().unwrap() {
            if c.get("src_qp").is_some() {
                continue;
            }
            let mine = packets.iter().filter(|p| {
                ["src", "dst", "dest_qp"].iter().all(|f| p[f] == c[f]) && p.get("deth").is_none()
            });
            let (mut seen, mut again, mut naks, mut rnrs) = (vec![], 0, 0, 0);
            for p in mine {
                let key = (
                    p.get("aeth").is_some() || p["opcode"] == 0x0e,
                    p["psn"].clone(),
                );
                naks += u64::from(p["aeth"]["kind"] == "nak");
                rnrs += u64::from(p["aeth"]["kind"] == "rnr");
                if p["aeth"]["kind"] == "nak" || p["aeth"]["kind"] == "rnr" {
                    continue;
                }
                again += u64::from(seen.contains(&key));
                seen.push(key);
            }
            let count = |field: &str| c[field].as_u64().unwrap();
            let name = path.display();
            // READ requests repeated from their middle have PSNs of their own, as have ACKs that
            // acknowledge less than one before.
            let counted = count("duplicates") + count("retransmissions");
            let reads = packets.iter().any(|p| p["opcode"] == 0x0c);
            let exact = !reads && count("duplicates") == 0;
            assert!(counted == again || !exact && counted > again, "{name}: {c}");
            assert_eq!((count("naks"), count("rnrs")), (naks, rnrs), "{name}");
            assert_eq!(
                (count("psn_gaps"), count("psn_missing")),
                (0, 0),
                "{name}: {c}"
            );
        }
    }
    let counts = |name: &str, src: &str| {
        let s = summary(&capture(name));
        let fields = ["duplicates", "retransmissions", "naks", "rnrs"];
        fields.map(|f| connection(&s, src)[f].as_u64().unwrap())
    };
    assert_eq!(counts("net_dup_send_v4.pcap", CLIENT), [5, 0, 0, 0]);
    assert_eq!(counts("loss_req_send_v4.pcap", CLIENT), [0, 127, 0, 0]);
    assert_eq!(counts("loss_req_send_v4.pcap", SERVER), [0, 0, 10, 0]);
    assert_eq!(counts("loss_ack_send_v4.pcap", SERVER), [2, 0, 0, 0]);
    assert_eq!(counts("rnr_exhausted_v4.pcap", CLIENT), [0, 2, 0, 0]);
    assert_eq!(counts("rnr_exhausted_v4.pcap", SERVER), [0, 0, 0, 3]);
    assert_eq!(counts("retry_exceeded_v4.pcap", CLIENT), [0, 3, 0, 0]);
}

const CLIENT: &str = "10.77.0.10";
const SERVER: &str = "10.77.0.11";

fn connection<'a>(summary: &'a Value, src: &str) -> &'a Value {
    summary["connections"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["src"] == src)
        .unwrap()
}

/// Taking packets out of a clean capture makes gaps of exactly their PSNs.
#[test]
fn gaps_are_where_packets_are_missing() {
    let gaps = |name: &str, drop: &[&str], src: &str| {
        let file = capture(name);
        let out: Vec<u64> = json(&file)
            .iter()
            .filter(|p| drop.contains(&p["opcode_name"].as_str().unwrap()))
            .map(|p| p["n"].as_u64().unwrap())
            .collect();
        let left = frames(&file)
            .into_iter()
            .zip(1..)
            .filter(|(_, n)| !out.contains(n));
        let left: Vec<Vec<u8>> = left.map(|(f, _)| f).collect();
        let s = summary(&written(&left, PcapHeader::default()));
        let c = connection(&s, src);
        let count = |field: &str| c[field].as_u64().unwrap();
        assert_eq!(count("retransmissions") + count("duplicates"), 0);
        (out.len() as u64, count("psn_gaps"), count("psn_missing"))
    };
    assert_eq!(
        gaps("rc_send_v4_mtu1024.pcap", &["RC SEND Middle"], CLIENT),
        (3, 2, 3)
    );
    // READ requests reserve the PSNs of their responses, whatever the path MTU.
    assert_eq!(gaps("rc_read_v4_mtu1024.pcap", &[], CLIENT), (0, 0, 0));
    assert_eq!(gaps("rc_read_v4_mtu4096.pcap", &[], CLIENT), (0, 0, 0));
    let (_, gaps_seen, missing) = gaps(
        "rc_read_v4_mtu1024.pcap",
        &["RC RDMA READ Response Middle"],
        SERVER,
    );
    assert_eq!((gaps_seen, missing), (4, 7));
}

#[test]
fn a_closed_pipe_is_no_error() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let file = data().join("captures/loss_req_send_v4.pcap");
    for (json, summary) in [(false, false), (true, false), (false, true), (true, true)] {
        run(
            &DecodeArgs {
                file: file.clone(),
                json,
                summary,
            },
            &mut Closed,
        )
        .unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(1000)))]

    #[test]
    fn no_bytes_make_it_panic(
        ng: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
        shorten: bool,
    ) {
        let good = capture("rnr_nak_v4.pcap");
        let mut file = if ng { pcapng(&frames(&good), Endianness::Little, &[9, 9]) } else { good };
        for (at, value) in changes {
            let at = at.index(file.len());
            file[at] = value;
        }
        if shorten {
            file.truncate(cut.index(file.len()));
        }
        for mode in [Mode::Text, Mode::Json, Mode::Summary, Mode::SummaryJson] {
            let (_, error) = decoded(&file, mode);
            prop_assert!(error.is_none_or(|e| !e.contains('\n')));
        }
    }

    #[test]
    fn no_text_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), magic in 0..6usize) {
        let magics = [0xa1b2_c3d4, 0xd4c3_b2a1, 0xa1b2_3c4d, 0x4d3c_b2a1, 0x0a0d_0d0a_u32, 0];
        let mut file = magics[magic].to_be_bytes().to_vec();
        file.extend(bytes);
        for mode in [Mode::Text, Mode::Json, Mode::Summary, Mode::SummaryJson] {
            decoded(&file, mode);
        }
    }
}
