//! Real rdma_rxe traffic: every RoCE packet decodes and has a right ICRC, the counts are those of
//! the captures' README, each packet is emitted again byte for byte; and a million mutated packets
//! neither panic nor pass for whole.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

mod captured;

use std::collections::BTreeMap;

use captured::{emit_again, folder, frames, names};
use xroce_wire::frame::{Frame, FrameError, UdpMeta};
use xroce_wire::icrc::icrc_portable;
use xroce_wire::opcode::Opcode;
use xroce_wire::packet::Packet;

/// What the README says about one capture.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    roce: usize,
    opcodes: BTreeMap<String, usize>,
    syndromes: BTreeMap<String, usize>,
    /// (source, destination QP) -> (first PSN, last PSN)
    flows: BTreeMap<(String, u32), (u32, u32)>,
}

/// `a x3, b x4` as a map.
fn counted(list: &str) -> BTreeMap<String, usize> {
    let pairs = list.split(", ").map(|item| item.rsplit_once(" x").unwrap());
    pairs
        .map(|(name, n)| (name.to_owned(), n.parse().unwrap()))
        .collect()
}

fn number(text: &str) -> u32 {
    u32::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

/// `10.77.0.10 -> 0x000001: 0x00000d..0x00000e; …` as a map.
fn flows(list: &str) -> BTreeMap<(String, u32), (u32, u32)> {
    let flow = |item: &str| {
        let (src, rest) = item.split_once(" -> ").unwrap();
        let (qp, psns) = rest.split_once(": ").unwrap();
        let (first, last) = psns.split_once("..").unwrap();
        ((src.to_owned(), number(qp)), (number(first), number(last)))
    };
    list.split("; ").map(flow).collect()
}

/// The README's sections.
fn readme() -> BTreeMap<String, Counts> {
    let text = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let mut sections = BTreeMap::new();
    for section in text.split("\n### ").skip(1) {
        let (name, rest) = section.split_once("  (").unwrap();
        let (size, rest) = rest.split_once(" RoCE packets)").unwrap();
        let (bytes, roce) = size.split_once(" B, ").unwrap();
        let on_disk = std::fs::metadata(folder().join(name)).unwrap().len();
        assert_eq!(bytes.parse(), Ok(on_disk), "{name}");
        let line = |start: &str| rest.lines().find_map(|l| l.strip_prefix(start));
        let mut counts = Counts {
            roce: roce.parse().unwrap(),
            opcodes: counted(line("- opcodes: ").unwrap()),
            syndromes: line("- AETH syndromes: ").map(counted).unwrap_or_default(),
            flows: flows(line("- flows (src -> dest QPN: first PSN .. last PSN): ").unwrap()),
        };
        // Only one section counts what is not RoCE; `what_is_not_roce` looks at that.
        counts
            .opcodes
            .retain(|opcode, _| !opcode.starts_with("(not RoCE"));
        sections.insert(name.to_owned(), counts);
    }
    sections
}

/// An opcode by the name the README gives it.
fn short_name(opcode: Opcode) -> String {
    opcode
        .name()
        .replace("RDMA ", "")
        .replace("Request", "Req")
        .replace("Response", "Resp")
        .replace("ATOMIC ACK", "ATOMIC Ack")
        .replace("RC ACK", "RC ACK/NAK")
        .replace("Compare Swap", "CmpSwap")
        .replace("Fetch Add", "FetchAdd")
}

#[test]
fn counts_are_those_of_the_readme() {
    let readme = readme();
    assert_eq!(readme.keys().cloned().collect::<Vec<_>>(), names());
    assert_eq!(readme.len(), 37);
    for (name, want) in readme {
        let mut got = Counts::default();
        for bytes in frames(&name) {
            let frame = match Frame::parse_ethernet(&bytes) {
                Ok(frame) => frame,
                Err(error) => {
                    assert_eq!(error, FrameError::NotRoce, "{name}");
                    continue;
                }
            };
            assert!(frame.icrc_ok(), "{name}");
            let p = Packet::parse(frame.transport()).unwrap();
            assert!(p.pad_ok(), "{name}");
            got.roce += 1;
            *got.opcodes.entry(short_name(p.opcode())).or_default() += 1;
            if let Some(aeth) = p.aeth() {
                let syndrome = format!("{:#04x}", aeth.syndrome.to_u8());
                *got.syndromes.entry(syndrome).or_default() += 1;
            }
            let flow = (frame.src().to_string(), p.dest_qp().value());
            let psn = p.psn().value();
            got.flows.entry(flow).or_insert((psn, psn)).1 = psn;
        }
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn what_is_not_roce() {
    let frames = frames("vlan_send_v4.pcap");
    let foreign = frames
        .iter()
        .filter(|f| Frame::parse_ethernet(f).is_err())
        .count();
    assert_eq!(foreign, 17);
}

#[test]
fn every_packet_is_emitted_again() {
    for name in names() {
        for bytes in frames(&name) {
            let Ok(frame) = Frame::parse_ethernet(&bytes) else {
                continue;
            };
            let packet = Packet::parse(frame.transport()).unwrap();
            let again = emit_again(&frame, &packet);
            // Ethernet pads what is shorter than 60 bytes.
            assert!(bytes.starts_with(&again), "{name}");
            assert!(bytes.len() == again.len() || bytes.len() == 60, "{name}");
        }
    }
}

/// xorshift64*: good enough to choose bytes, and the same on every machine.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }
}

const MUTATIONS: usize = 1_000_000;

/// Overwrites, flips, cuts and extends; half of the time in the headers, where it hurts most.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..=rng.below(4) {
        let range = if rng.below(2) == 0 {
            bytes.len().min(100)
        } else {
            bytes.len()
        };
        let at = rng.below(range);
        let value = rng.byte();
        match rng.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_within(at..),
            2 => bytes.resize(bytes.len() + usize::from(value), value),
            3..=5 => bytes
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|b| *b ^= 1 << (value & 7)),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|b| *b = value),
        }
    }
}

/// Reads everything there is to read.
fn touch(p: &Packet<'_>) -> usize {
    let headers = [
        p.reth().is_some(),
        p.aeth().is_some(),
        p.atomic().is_some(),
        p.atomic_ack().is_some(),
        p.imm().is_some(),
        p.ieth().is_some(),
        p.deth().is_some(),
        p.xrceth().is_some(),
        p.feth().is_some(),
        p.meth().is_some(),
        p.seth().is_some(),
        p.peth().is_some(),
    ];
    let bits = headers
        .into_iter()
        .zip(0..)
        .map(|(there, bit)| usize::from(there) << bit);
    assert_eq!(
        bits.sum::<usize>().count_ones(),
        p.info().headers.bits().count_ones()
    );
    p.payload().len() + usize::from(p.pad()) + usize::from(p.pad_ok())
}

#[test]
fn a_million_mutated_packets() {
    let all: Vec<Vec<u8>> = names().iter().flat_map(|n| frames(n)).collect();
    // What the ICRC covers, of every packet there is: the only inputs that may be accepted.
    let mut genuine: Vec<u32> = Vec::new();
    for bytes in &all {
        if let Ok(f) = Frame::parse_ethernet(bytes) {
            genuine.push(icrc_portable(&f.icrc_input()));
        }
    }
    genuine.sort_unstable();
    let mut rng = Rng(0x0123_4567_89ab_cdef);
    let mut bytes = Vec::new();
    let (mut framed, mut accepted) = (0, 0);
    for _ in 0..MUTATIONS {
        bytes.clear();
        bytes.extend_from_slice(&all[rng.below(all.len())]);
        mutate(&mut rng, &mut bytes);
        let _ = Frame::dissect_ethernet(&bytes).map(|f| f.icrc_ok());
        let Ok(frame) = Frame::parse_ethernet(&bytes) else {
            continue;
        };
        framed += 1;
        let packet = Packet::parse(frame.transport());
        let _ = packet.as_ref().map(touch);
        if frame.icrc_ok() && packet.is_ok() {
            accepted += 1;
            // Only masked fields or what is outside the packet can have changed.
            let crc = icrc_portable(&frame.icrc_input());
            assert!(genuine.binary_search(&crc).is_ok());
        }
        // The same behind a socket: no Ethernet, and the lengths are those of the datagram.
        let meta = UdpMeta {
            src: frame.src(),
            dst: frame.dst(),
            src_port: frame.src_port(),
            tos: frame.tos(),
            hop_limit: None,
        };
        let inner = Frame::from_udp(&meta, frame.transport());
        let _ = (
            inner.icrc_ok(),
            Packet::parse(inner.transport()).map(|p| touch(&p)),
        );
    }
    // The mutations reach both sides of every check.
    assert!(framed > MUTATIONS / 10 && framed < MUTATIONS, "{framed}");
    assert!(
        accepted > MUTATIONS / 1000 && accepted < framed,
        "{accepted} of {framed}"
    );
    println!("{framed} frames parsed, {accepted} accepted of {MUTATIONS}");
}
