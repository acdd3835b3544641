//! What scapy and tshark see in frames we emit: fields, checksums and ICRC.
//!
//! A check against independent implementations, run where they are installed (`make test` installs
//! them); otherwise it prints why it did not run.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic"
)]

#[path = "../transport/wire/tests/common/mod.rs"]
mod common;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Ext, V4, V6, emit, path};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use serde_json::Value;
use xroce_wire::newtypes::{PKey, Psn, Qpn};
use xroce_wire::opcode::{Headers, Opcode, Service};
use xroce_wire::path::AddressVector;
use xroce_wire::template::{Emit, HeaderTemplate, Lower, TemplateOptions};

/// A frame and all that went into it.
struct Sample {
    av: AddressVector,
    options: TemplateOptions,
    dest_qp: Qpn,
    pkey: PKey,
    emit: Emit,
    ext: Ext,
    bytes: Vec<u8>,
}

/// Every opcode over IPv4, IPv6 and VLAN with payloads that need every pad count.
fn samples() -> Vec<Sample> {
    let mut samples = Vec::new();
    let paths = [(V4, None), (V6, None), (V4, Some(0x6064)), (V6, Some(5))];
    for opcode in Opcode::ALL {
        let lens: &[usize] = match (opcode.info().has_payload(), opcode) {
            (_, Opcode::Cnp) => &[16],
            (_, Opcode::RcAtomicWrite) => &[8],
            (true, _) => &[32, 257, 510, 1023],
            (false, _) => &[0],
        };
        for (i, (addresses, vlan)) in paths.iter().enumerate() {
            for len in lens {
                let n = samples.len() as u32;
                let options = TemplateOptions {
                    ip_id: (n * 7919) as u16,
                    mig_req: n.is_multiple_of(3),
                    fecn: false,
                    becn: false,
                };
                let mut av = path(*addresses, *vlan);
                av.src_port = 0xc000 + n as u16;
                av.traffic_class = (n * 5) as u8;
                av.hop_limit = 1 + (n % 200) as u8;
                let (dest_qp, pkey) = (Qpn::new(n * 0x1_0203 + 2), PKey::new(0x8000 | n as u16));
                let emit_as = Emit {
                    opcode: *opcode,
                    psn: Psn::new(0xff_ff00 + n),
                    ack_req: n.is_multiple_of(2),
                    solicited: i == 1,
                    payload_len: *len,
                };
                let lower = Lower::Ethernet;
                let t = HeaderTemplate::with_options(lower, &av, dest_qp, pkey, &options).unwrap();
                let ext = Ext::from_seed(u64::from(n) + 1);
                let bytes = emit(&t, &emit_as, &ext);
                samples.push(Sample {
                    av,
                    options,
                    dest_qp,
                    pkey,
                    emit: emit_as,
                    ext,
                    bytes,
                });
            }
        }
    }
    samples
}

fn write_capture(samples: &[Sample], file: &Path) {
    let mut writer = PcapWriter::new(std::fs::File::create(file).unwrap()).unwrap();
    for (i, s) in samples.iter().enumerate() {
        let time = Duration::from_micros(i as u64);
        let packet = PcapPacket::new(time, s.bytes.len() as u32, &s.bytes);
        writer.write_packet(&packet).unwrap();
    }
}

/// Past the test harness, which hides what a passing test prints.
fn not_run(why: &str) {
    let _ = writeln!(std::io::stderr(), "wire_peers: not run: {why}");
}

/// Runs a program; `None` with the reason printed if it is not there.
fn output(command: &mut Command, missing: &str) -> Option<String> {
    match command.output() {
        Ok(out) if out.status.success() => Some(String::from_utf8(out.stdout).unwrap()),
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stderr);
            panic!("{command:?}: {}: {text}", out.status)
        }
        Err(error) => {
            not_run(&format!("{missing}: {error}"));
            None
        }
    }
}

const FIELDS: &[&str] = &[
    "eth.src",
    "eth.dst",
    "vlan.id",
    "vlan.priority",
    "ip.src",
    "ip.dst",
    "ip.id",
    "ip.ttl",
    "ip.dsfield",
    "ip.checksum.status",
    "ipv6.src",
    "ipv6.hlim",
    "ipv6.tclass",
    "ipv6.flow",
    "udp.srcport",
    "udp.dstport",
    "udp.length",
    "udp.checksum",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.invariant.crc",
];

/// A line of tshark's, by field.
struct Line<'a> {
    cells: Vec<&'a str>,
    n: usize,
}

impl Line<'_> {
    fn text(&self, field: &str) -> &str {
        let at = FIELDS.iter().position(|f| *f == field).unwrap();
        self.cells.get(at).copied().unwrap_or_default()
    }

    fn number(&self, field: &str) -> u64 {
        let text = self.text(field);
        match (text, text.strip_prefix("0x")) {
            ("True", _) => 1,
            ("False", _) => 0,
            (_, Some(hex)) => u64::from_str_radix(hex, 16).unwrap(),
            // Some numbers are shown as octets.
            _ if text.contains(':') => u64::from_str_radix(&text.replace(':', ""), 16).unwrap(),
            _ => text
                .parse()
                .unwrap_or_else(|_| panic!("{}: {field} is {text:?}", self.n)),
        }
    }

    #[track_caller]
    fn same(&self, field: &str, want: impl Into<u64>) {
        let want = want.into();
        assert_eq!(self.number(field), want, "packet {}: {field}", self.n);
    }
}

/// Whether Wireshark 4.0 knows this opcode: it lists CNP as 128 and the operations of IBTA 1.5
/// not at all, it does not take XRC apart, and knows no extensions.
fn known_to_tshark(opcode: Opcode) -> bool {
    let newer = matches!(
        opcode,
        Opcode::Cnp | Opcode::RcFlush | Opcode::RcAtomicWrite
    );
    !newer && !matches!(opcode.info().service, Service::Xrc | Service::Ext)
}

#[test]
fn tshark_sees_what_was_emitted() {
    let samples = samples();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("emitted.pcap");
    write_capture(&samples, &file);
    let mut command = Command::new("tshark");
    command
        .arg("-r")
        .arg(&file)
        .args(["-o", "ip.check_checksum:TRUE", "-T", "fields"]);
    // One value per field, or those of layers guessed inside the payload would join them.
    command.args(["-E", "separator=|", "-E", "occurrence=f"]);
    command.args(FIELDS.iter().flat_map(|f| ["-e", f]));
    let Some(out) = output(&mut command, "tshark (package tshark) is not installed") else {
        return;
    };
    assert_eq!(out.lines().count(), samples.len());
    for (n, (line, s)) in out.lines().zip(&samples).enumerate() {
        let line = Line {
            cells: line.split('|').collect(),
            n: n + 1,
        };
        check_lower(&line, s);
        // tshark shows the opcode of what it does not know, too.
        line.same("infiniband.bth.opcode", s.emit.opcode as u8);
        check_bth(&line, s);
        if known_to_tshark(s.emit.opcode) {
            check_ext(&line, s);
        }
    }
}

fn check_lower(line: &Line<'_>, s: &Sample) {
    assert_eq!(line.text("eth.src"), s.av.src_mac.to_string());
    assert_eq!(line.text("eth.dst"), s.av.dst_mac.to_string());
    if let Some(tag) = s.av.vlan {
        line.same("vlan.id", tag.vid());
        line.same("vlan.priority", tag.pcp());
    }
    if s.av.is_v4() {
        assert_eq!(line.text("ip.src"), s.av.src.to_string());
        assert_eq!(line.text("ip.dst"), s.av.dst.to_string());
        line.same("ip.id", s.options.ip_id);
        line.same("ip.ttl", s.av.hop_limit);
        line.same("ip.dsfield", s.av.traffic_class);
        let status = line.text("ip.checksum.status");
        assert!(
            ["1", "Good"].contains(&status),
            "packet {}: {status:?}",
            line.n
        );
    } else {
        assert_eq!(line.text("ipv6.src"), s.av.src.to_string());
        line.same("ipv6.hlim", s.av.hop_limit);
        line.same("ipv6.tclass", s.av.traffic_class);
        line.same("ipv6.flow", s.av.flow_label);
    }
    line.same("udp.srcport", s.av.src_port);
    line.same("udp.dstport", 4791_u16);
    line.same("udp.checksum", 0_u8);
    let lower = if s.av.is_v4() { 34 } else { 54 } + if s.av.vlan.is_some() { 4 } else { 0 };
    line.same("udp.length", (s.bytes.len() - lower) as u64);
}

fn check_bth(line: &Line<'_>, s: &Sample) {
    line.same("infiniband.bth.se", s.emit.solicited);
    line.same("infiniband.bth.m", s.options.mig_req);
    line.same(
        "infiniband.bth.padcnt",
        (4 - s.emit.payload_len as u64 % 4) % 4,
    );
    line.same("infiniband.bth.tver", 0_u8);
    line.same("infiniband.bth.p_key", s.pkey.value());
    line.same("infiniband.bth.destqp", s.dest_qp.value());
    line.same("infiniband.bth.a", s.emit.ack_req);
    line.same("infiniband.bth.psn", s.emit.psn.value());
}

fn check_ext(line: &Line<'_>, s: &Sample) {
    let headers = s.emit.opcode.info().headers;
    let has = |h| headers.contains(h);
    if has(Headers::DETH) {
        line.same("infiniband.deth.q_key", s.ext.deth.qkey.value());
        line.same("infiniband.deth.srcqp", s.ext.deth.src_qp.value());
    }
    if has(Headers::RETH) {
        line.same("infiniband.reth.va", s.ext.reth.va.value());
        line.same("infiniband.reth.r_key", s.ext.reth.rkey.value());
        line.same("infiniband.reth.dmalen", s.ext.reth.len);
    }
    if has(Headers::AETH) {
        line.same("infiniband.aeth.syndrome", s.ext.aeth.syndrome.to_u8());
        line.same("infiniband.aeth.msn", s.ext.aeth.msn.value());
    }
    if has(Headers::ATOMIC_ETH) {
        line.same("infiniband.atomiceth.swapdt", s.ext.atomic.swap_add);
        line.same("infiniband.atomiceth.cmpdt", s.ext.atomic.compare);
    }
    if has(Headers::ATOMIC_ACK) {
        line.same(
            "infiniband.atomicacketh.origremdt",
            s.ext.atomic_ack.original,
        );
    }
    if has(Headers::IMM) {
        let imm = u32::from_be_bytes(s.ext.imm);
        assert_eq!(line.text("infiniband.immdt"), format!("{imm:08x}"));
    }
    if has(Headers::IETH) {
        assert_eq!(
            line.text("infiniband.ieth"),
            format!("{:08x}", s.ext.ieth.value())
        );
    }
    // tshark shows the ICRC, big-endian, but does not check it.
    let crc = u32::from_be_bytes(*s.bytes.last_chunk().unwrap());
    line.same("infiniband.invariant.crc", crc);
}

/// scapy takes the frames apart and computes the ICRC over IPv4; over IPv6, which not every version
/// of it can, the rule is written down once more with zlib's CRC.
const SCAPY: &str = r#"
import json, sys, zlib
from scapy.all import Dot1Q, Ether, IP, IPv6, UDP, rdpcap
from scapy.contrib.roce import AETH, BTH

def icrc_v6(frame, at):
    b = bytearray(b"\xff" * 8 + frame[at:-4])
    for i, mask in [(8, 0x0f), (9, 255), (10, 255), (11, 255), (15, 255), (54, 255), (55, 255), (60, 255)]:
        b[i] |= mask
    return zlib.crc32(bytes(b)).to_bytes(4, "little")

for p in rdpcap(sys.argv[1]):
    frame = bytes(p)
    bth = p[BTH]
    row = {k: getattr(bth, k) for k in ("opcode", "solicited", "migreq", "padcount", "version", "pkey",
                                        "fecn", "becn", "resv6", "dqpn", "ackreq", "resv7", "psn")}
    row["sport"], row["dport"] = p[UDP].sport, p[UDP].dport
    if Dot1Q in p:
        row["vid"], row["pcp"] = p[Dot1Q].vlan, p[Dot1Q].prio
    if AETH in p:
        row["syndrome"], row["msn"] = p[AETH].syndrome, p[AETH].msn
    if IP in p:
        row["id"], row["tos"], row["ttl"], chksum = p[IP].id, p[IP].tos, p[IP].ttl, p[IP].chksum
        again = Ether(frame)
        del again[IP].chksum
        del again[IP].len
        del again[UDP].len
        again[BTH].icrc = None
        again[UDP].chksum = 0
        row["again"] = bytes(again) == frame
    else:
        row["tc"], row["hlim"], row["fl"] = p[IPv6].tc, p[IPv6].hlim, p[IPv6].fl
        row["again"] = icrc_v6(frame, 18 if Dot1Q in p else 14) == frame[-4:]
    print(json.dumps(row))
"#;

/// A Python that has scapy: the distribution's, if the first in the path is another.
fn python() -> Option<&'static str> {
    ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let import = Command::new(python)
            .args(["-c", "import scapy.contrib.roce"])
            .output();
        import.is_ok_and(|out| out.status.success())
    })
}

#[test]
fn scapy_sees_what_was_emitted() {
    let Some(python) = python() else {
        not_run("scapy (package python3-scapy) is not installed");
        return;
    };
    let samples = samples();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("emitted.pcap");
    write_capture(&samples, &file);
    let mut command = Command::new(python);
    command.args(["-c", SCAPY]).arg(&file);
    let Some(out) = output(&mut command, "python3 is not installed") else {
        return;
    };
    assert_eq!(out.lines().count(), samples.len());
    for (n, (line, s)) in out.lines().zip(&samples).enumerate() {
        let row: Value = serde_json::from_str(line).unwrap();
        let same = |field: &str, want: u64| {
            assert_eq!(
                row[field].as_u64(),
                Some(want),
                "packet {}: {field} of {line}",
                n + 1
            );
        };
        same("opcode", u64::from(s.emit.opcode as u8));
        same("solicited", s.emit.solicited.into());
        same("migreq", s.options.mig_req.into());
        same("padcount", (4 - s.emit.payload_len as u64 % 4) % 4);
        same("version", 0);
        same("pkey", s.pkey.value().into());
        same("fecn", 0);
        same("becn", u64::from(s.emit.opcode == Opcode::Cnp));
        same("resv6", 0);
        same("dqpn", s.dest_qp.value().into());
        same("ackreq", s.emit.ack_req.into());
        same("resv7", 0);
        same("psn", s.emit.psn.value().into());
        same("sport", s.av.src_port.into());
        same("dport", 4791);
        if let Some(tag) = s.av.vlan {
            same("vid", tag.vid().into());
            same("pcp", tag.pcp().into());
        }
        if s.av.is_v4() {
            same("id", s.options.ip_id.into());
            same("tos", s.av.traffic_class.into());
            same("ttl", s.av.hop_limit.into());
        } else {
            same("tc", s.av.traffic_class.into());
            same("hlim", s.av.hop_limit.into());
            same("fl", s.av.flow_label.into());
        }
        if s.emit.opcode == Opcode::RcAcknowledge {
            same("syndrome", s.ext.aeth.syndrome.to_u8().into());
            same("msn", s.ext.aeth.msn.value().into());
        }
        assert_eq!(
            row["again"],
            true,
            "packet {}: scapy builds it differently: {line}",
            n + 1
        );
    }
}
