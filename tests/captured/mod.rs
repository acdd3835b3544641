//! The captures of `tests/data/captures`, and emitting a captured packet anew.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

use std::path::PathBuf;

use pcap_file::pcap::PcapReader;
use xroce_wire::frame::Frame;
use xroce_wire::newtypes::Qpn;
use xroce_wire::opcode::Opcode;
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;
use xroce_wire::template::{Emit, HeaderTemplate, Lower, TemplateOptions};

/// Where the captures are.
pub(crate) fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "data", "captures"]
        .iter()
        .collect()
}

/// All frames of a capture, of every kind.
pub(crate) fn frames(name: &str) -> Vec<Vec<u8>> {
    let file = std::fs::File::open(folder().join(name)).unwrap();
    let mut reader = PcapReader::new(file).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

/// Names of all captures, in order.
pub(crate) fn names() -> Vec<String> {
    let files = std::fs::read_dir(folder()).unwrap();
    let names = files.map(|f| f.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|n| n.ends_with(".pcap")).collect();
    names.sort_unstable();
    names
}

/// Emits a packet from nothing but its decoded values.
pub(crate) fn emit_again(f: &Frame<'_>, p: &Packet<'_>) -> Vec<u8> {
    let av = AddressVector {
        src: f.src(),
        dst: f.dst(),
        src_mac: f.src_mac().unwrap(),
        dst_mac: f.dst_mac().unwrap(),
        vlan: f.vlan(),
        traffic_class: f.tos(),
        hop_limit: f.hop_limit().unwrap(),
        flow_label: f.flow_label(),
        src_port: f.src_port(),
    };
    let options = TemplateOptions {
        ip_id: f.ip_id().unwrap_or(0),
        mig_req: p.mig_req(),
        fecn: p.fecn(),
        becn: p.becn() && p.opcode() != Opcode::Cnp,
    };
    let template =
        HeaderTemplate::with_options(Lower::Ethernet, &av, Qpn::new(0), p.pkey(), &options);
    let template = template.unwrap();
    let e = Emit {
        opcode: p.opcode(),
        psn: p.psn(),
        ack_req: p.ack_req(),
        solicited: p.solicited(),
        payload_len: p.payload().len(),
    };
    let mut frame = vec![0xa5; template.max_len(e.payload_len)];
    let mut out = template.start_to(&mut frame, &e, p.dest_qp()).unwrap();
    p.reth().inspect(|h| out.reth(h));
    p.aeth().inspect(|h| out.aeth(h));
    p.atomic().inspect(|h| out.atomic(h));
    p.atomic_ack().inspect(|h| out.atomic_ack(h));
    p.imm().inspect(|h| out.imm(*h));
    p.ieth().inspect(|h| out.ieth(*h));
    p.deth().inspect(|h| out.deth(h));
    p.xrceth().inspect(|h| out.xrceth(h));
    p.feth().inspect(|h| out.feth(h));
    out.payload_mut().copy_from_slice(p.payload());
    let len = out.finish();
    frame.truncate(len);
    frame
}
