//! Every frame of `tests/data/vectors/vectors.json`, the two hardware captures among them: parsed
//! fields equal, emitted again byte for byte, ICRC equal by the fast and by the portable path.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic"
)]

use std::net::IpAddr;

use serde_json::Value;
use xroce_wire::aeth::Aeth;
use xroce_wire::atomic::{AtomicAckEth, AtomicEth};
use xroce_wire::deth::Deth;
use xroce_wire::feth::Feth;
use xroce_wire::frame::{Frame, FrameError, UdpMeta};
use xroce_wire::icrc::icrc_portable;
use xroce_wire::newtypes::{Gid, Qpn};
use xroce_wire::opcode::Headers;
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;
use xroce_wire::reth::Reth;
use xroce_wire::template::{Emit, HeaderTemplate, Lower, TemplateOptions};
use xroce_wire::xrceth::XrcEth;

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/data/vectors/vectors.json"
);

fn load() -> Value {
    serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .map(|b| (b as char).to_digit(16).unwrap() as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn hex_field(v: &Value, name: &str) -> Vec<u8> {
    unhex(v[name].as_str().unwrap())
}

fn gid(v: &Value) -> Gid {
    Gid::from(v.as_str().unwrap().parse::<IpAddr>().unwrap())
}

#[track_caller]
fn same(name: &str, field: &str, got: impl Into<u64>, want: &Value) {
    assert_eq!(got.into(), want.as_u64().unwrap(), "{name}: {field}");
}

/// Everything the vector says about the headers below BTH.
fn check_lower(name: &str, v: &Value, f: &Frame<'_>) {
    let eth = &v["eth"];
    assert_eq!(
        f.dst_mac().unwrap().to_string(),
        eth["dst"].as_str().unwrap(),
        "{name}"
    );
    assert_eq!(
        f.src_mac().unwrap().to_string(),
        eth["src"].as_str().unwrap(),
        "{name}"
    );
    assert_eq!(
        f.vlan().map(|t| u64::from(t.value())),
        eth["vlan_tci"].as_u64(),
        "{name}"
    );
    if let Some(ip) = v.get("ipv4") {
        assert_eq!(
            (f.src(), f.dst()),
            (gid(&ip["src"]), gid(&ip["dst"])),
            "{name}"
        );
        same(name, "tos", f.tos(), &ip["tos"]);
        same(name, "ttl", f.hop_limit().unwrap(), &ip["ttl"]);
        same(name, "id", f.ip_id().unwrap(), &ip["id"]);
        same(
            name,
            "total_len",
            (f.transport().len() + 28) as u64,
            &ip["total_len"],
        );
    }
    if let Some(ip) = v.get("ipv6") {
        assert_eq!(
            (f.src(), f.dst()),
            (gid(&ip["src"]), gid(&ip["dst"])),
            "{name}"
        );
        same(name, "tclass", f.tos(), &ip["tclass"]);
        same(name, "hop_limit", f.hop_limit().unwrap(), &ip["hop_limit"]);
        same(name, "flow_label", f.flow_label(), &ip["flow_label"]);
        same(
            name,
            "payload_len",
            (f.transport().len() + 8) as u64,
            &ip["payload_len"],
        );
    }
    if let Some(grh) = v.get("grh") {
        assert_eq!(
            (f.src(), f.dst()),
            (gid(&grh["sgid"]), gid(&grh["dgid"])),
            "{name}"
        );
        same(name, "tclass", f.tos(), &grh["tclass"]);
        same(name, "hoplmt", f.hop_limit().unwrap(), &grh["hoplmt"]);
        same(name, "paylen", f.transport().len() as u64, &grh["paylen"]);
    }
    if let Some(udp) = v.get("udp") {
        same(name, "sport", f.src_port(), &udp["sport"]);
        same(
            name,
            "udp length",
            (f.transport().len() + 8) as u64,
            &udp["length"],
        );
    }
}

/// Everything the vector says from BTH on.
fn check_packet(name: &str, v: &Value, p: &Packet<'_>) {
    let bth = &v["bth"];
    same(name, "opcode", p.opcode() as u8, &bth["opcode"]);
    same(name, "se", p.solicited(), &bth["se"]);
    same(name, "migreq", p.mig_req(), &bth["migreq"]);
    same(name, "padcnt", p.pad(), &bth["padcnt"]);
    same(name, "tver", p.bth().version(), &bth["tver"]);
    same(name, "pkey", p.pkey().value(), &bth["pkey"]);
    same(name, "fecn", p.fecn(), &bth["fecn"]);
    same(name, "becn", p.becn(), &bth["becn"]);
    same(name, "dest_qp", p.dest_qp().value(), &bth["dest_qp"]);
    same(name, "ackreq", p.ack_req(), &bth["ackreq"]);
    same(name, "psn", p.psn().value(), &bth["psn"]);
    assert_eq!(p.payload(), hex_field(v, "payload"), "{name}");
    same(
        name,
        "payload_len",
        p.payload().len() as u64,
        &v["payload_len"],
    );
    assert!(p.pad_ok(), "{name}");

    let ext = &v["ext"];
    assert_eq!(p.reth().is_some(), ext.get("reth").is_some(), "{name}");
    if let Some(h) = p.reth() {
        same(name, "va", h.va.value(), &ext["reth"]["va"]);
        same(name, "rkey", h.rkey.value(), &ext["reth"]["rkey"]);
        same(name, "dmalen", h.len, &ext["reth"]["dmalen"]);
    }
    assert_eq!(p.aeth().is_some(), ext.get("aeth").is_some(), "{name}");
    if let Some(h) = p.aeth() {
        same(
            name,
            "syndrome",
            h.syndrome.to_u8(),
            &ext["aeth"]["syndrome"],
        );
        same(name, "msn", h.msn.value(), &ext["aeth"]["msn"]);
    }
    assert_eq!(
        p.atomic().is_some(),
        ext.get("atomiceth").is_some(),
        "{name}"
    );
    if let Some(h) = p.atomic() {
        same(name, "va", h.va.value(), &ext["atomiceth"]["va"]);
        same(name, "rkey", h.rkey.value(), &ext["atomiceth"]["rkey"]);
        same(name, "swap_add", h.swap_add, &ext["atomiceth"]["swap_add"]);
        same(name, "compare", h.compare, &ext["atomiceth"]["compare"]);
    }
    assert_eq!(p.deth().is_some(), ext.get("deth").is_some(), "{name}");
    if let Some(h) = p.deth() {
        same(name, "qkey", h.qkey.value(), &ext["deth"]["qkey"]);
        same(name, "src_qp", h.src_qp.value(), &ext["deth"]["src_qp"]);
    }
    assert_eq!(p.feth().is_some(), ext.get("feth").is_some(), "{name}");
    if let Some(h) = p.feth() {
        same(name, "plt", h.placement, &ext["feth"]["plt"]);
        same(name, "sel", h.selectivity, &ext["feth"]["sel"]);
    }
    let number = |key: &str| ext.get(key).and_then(Value::as_u64);
    assert_eq!(
        p.atomic_ack().map(|h| h.original),
        number("atomicack"),
        "{name}"
    );
    let imm = p.imm().map(u32::from_be_bytes);
    assert_eq!(imm.map(u64::from), number("immdt"), "{name}");
    assert_eq!(
        p.ieth().map(|k| u64::from(k.value())),
        number("ieth"),
        "{name}"
    );
    assert_eq!(
        p.xrceth().map(|h| u64::from(h.srqn.value())),
        number("xrceth"),
        "{name}"
    );
}

/// The extension headers of a parsed packet, as values.
struct Values {
    reth: Option<Reth>,
    aeth: Option<Aeth>,
    atomic: Option<AtomicEth>,
    atomic_ack: Option<AtomicAckEth>,
    imm: Option<[u8; 4]>,
    ieth: Option<xroce_wire::newtypes::RKey>,
    deth: Option<Deth>,
    xrceth: Option<XrcEth>,
    feth: Option<Feth>,
}

/// Emits a frame anew from nothing but decoded values.
fn emit_again(f: &Frame<'_>, p: &Packet<'_>, lower: Lower) -> Vec<u8> {
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
        // A CNP gets its BECN from the opcode.
        becn: p.becn() && p.opcode() != xroce_wire::opcode::Opcode::Cnp,
    };
    let v = Values {
        reth: p.reth(),
        aeth: p.aeth(),
        atomic: p.atomic(),
        atomic_ack: p.atomic_ack(),
        imm: p.imm(),
        ieth: p.ieth(),
        deth: p.deth(),
        xrceth: p.xrceth(),
        feth: p.feth(),
    };
    let mut frame = vec![0xa5; 9000];
    let template =
        HeaderTemplate::with_options(lower, &av, Qpn::new(0x0bad), p.pkey(), &options).unwrap();
    let e = Emit {
        opcode: p.opcode(),
        psn: p.psn(),
        ack_req: p.ack_req(),
        solicited: p.solicited(),
        payload_len: p.payload().len(),
    };
    let mut out = template.start_to(&mut frame, &e, p.dest_qp()).unwrap();
    v.reth.inspect(|h| out.reth(h));
    v.aeth.inspect(|h| out.aeth(h));
    v.atomic.inspect(|h| out.atomic(h));
    v.atomic_ack.inspect(|h| out.atomic_ack(h));
    v.imm.inspect(|h| out.imm(*h));
    v.ieth.inspect(|h| out.ieth(*h));
    v.deth.inspect(|h| out.deth(h));
    v.xrceth.inspect(|h| out.xrceth(h));
    v.feth.inspect(|h| out.feth(h));
    out.payload_mut().copy_from_slice(p.payload());
    let len = out.finish();
    assert!(len <= template.max_len(p.payload().len()));
    frame.truncate(len);
    frame
}

/// The ICRC of a frame by both paths, against what the vector says.
fn check_icrc(name: &str, f: &Frame<'_>, wire: &[u8]) {
    assert!(f.icrc_ok(), "{name}");
    assert_eq!(f.icrc_computed().unwrap(), wire, "{name}: fast path");
    assert_eq!(
        icrc_portable(&f.icrc_input()).to_le_bytes(),
        wire,
        "{name}: portable path"
    );
    assert!(f.transport().ends_with(wire), "{name}");
}

#[test]
fn all_vectors() {
    let file = load();
    let vectors = file["vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 58);
    let mut seen = Headers::empty();
    for v in vectors {
        let name = v["name"].as_str().unwrap();
        let bytes = hex_field(v, "frame");
        assert_eq!(
            bytes.len() as u64,
            v["frame_len"].as_u64().unwrap(),
            "{name}"
        );
        let v1 = v.get("grh").is_some();
        let frame = if v1 {
            assert_eq!(
                Frame::parse_ethernet(&bytes).unwrap_err(),
                FrameError::RoceV1,
                "{name}"
            );
            Frame::dissect_ethernet(&bytes).unwrap()
        } else {
            Frame::parse_ethernet(&bytes).unwrap()
        };
        assert_eq!(frame.is_roce_v1(), v1, "{name}");
        let packet = Packet::parse(frame.transport()).unwrap();
        check_lower(name, v, &frame);
        check_packet(name, v, &packet);
        assert_eq!(frame.icrc_input(), hex_field(v, "icrc_input"), "{name}");
        let wire = hex_field(v, "icrc_wire");
        check_icrc(name, &frame, &wire);
        let value = v["icrc_crc32_value"].as_u64().unwrap();
        assert_eq!(
            u64::from(icrc_portable(&frame.icrc_input())),
            value,
            "{name}"
        );
        let lower = if v1 { Lower::RoceV1 } else { Lower::Ethernet };
        assert_eq!(
            emit_again(&frame, &packet, lower),
            bytes,
            "{name}: emitted again"
        );
        seen |= packet.info().headers;
    }
    // METH, SETH and PETH are not in the tools that made the vectors.
    let known = Headers::all() - Headers::METH - Headers::SETH - Headers::PETH;
    assert_eq!(seen, known, "the vectors hold every extension header");
}

/// Rules W10, W11, W20.
#[test]
fn hardware_captures() {
    let file = load();
    let references = file["references"].as_array().unwrap();
    assert_eq!(references.len(), 2);
    for v in references {
        let name = v["name"].as_str().unwrap();
        let bytes = hex_field(v, "frame");
        let frame = Frame::parse_ethernet(&bytes).unwrap();
        let packet = Packet::parse(frame.transport()).unwrap();
        // The number is that of the four bytes read big-endian.
        let wire = (v["icrc_be"].as_u64().unwrap() as u32).to_be_bytes();
        check_icrc(name, &frame, &wire);
        assert_eq!(
            emit_again(&frame, &packet, Lower::Ethernet),
            bytes,
            "{name}"
        );
    }
}

/// The same packets as a UDP socket hands them over, that is without IP header: those with
/// identification 0 (all over IPv6) have a right ICRC; those with 0x1234 have none of a segment.
#[test]
fn behind_a_socket() {
    let mut ok = 0;
    for v in load()["vectors"].as_array().unwrap() {
        let bytes = hex_field(v, "frame");
        let Ok(frame) = Frame::parse_ethernet(&bytes) else {
            continue;
        };
        let meta = UdpMeta {
            src: frame.src(),
            dst: frame.dst(),
            src_port: frame.src_port(),
            tos: 0,
            hop_limit: None,
        };
        let inner = Frame::from_udp(&meta, frame.transport());
        assert_eq!(inner.icrc_ok(), frame.ip_id().is_none());
        ok += u32::from(inner.icrc_ok());
    }
    assert!(ok >= 10);
}

/// Rule W11.
#[test]
fn case_2_the_byte_order_on_the_wire_does_not_depend_on_the_host() {
    let input = unhex(
        "ffffffffffffffff45ff003412344000ff11ffffc0000201c0000202c12312b70020ffff04b0ffffff000011\
         80ffffff68656c6c6f000000",
    );
    assert_eq!(icrc_portable(&input), 0x897a_fbc4);
    let state = xroce_wire::icrc::IcrcState::START.update(&input[8..]);
    assert_eq!(state.finish(), [0xc4, 0xfb, 0x7a, 0x89]);
}
