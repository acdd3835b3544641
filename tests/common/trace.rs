//! The last frames on the wires, as text for a test that fails.

use std::collections::VecDeque;
use std::fmt::Write as _;

use xroce_net::sim::{Fate, LinkId, TapEvent};
use xroce_wire::frame::{Frame, UdpMeta};
use xroce_wire::newtypes::Gid;
use xroce_wire::packet::Packet;

/// Frames kept.
const KEPT: usize = 400;

/// Bytes kept of each: all headers, and the start of the payload.
const HEAD: usize = 112;

#[derive(Clone, Copy)]
struct Seen {
    at: u64,
    back: bool,
    fate: Fate,
    len: usize,
    head: [u8; HEAD],
}

/// Ring of the last frames.
#[derive(Default)]
pub struct Trace {
    seen: VecDeque<Seen>,
}

impl Trace {
    /// Notes what a tap sees, all but departures of frames of which more is to come.
    pub fn note(&mut self, link: LinkId, event: &TapEvent<'_>) {
        if self.seen.len() == KEPT {
            self.seen.pop_front();
        }
        let mut head = [0; HEAD];
        let n = event.frame.len().min(HEAD);
        head[..n].copy_from_slice(&event.frame[..n]);
        self.seen.push_back(Seen {
            at: event.now,
            back: event.wire == link.back,
            fate: event.fate,
            len: event.frame.len(),
            head,
        });
    }

    /// One line per frame, the newest last.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for s in &self.seen {
            let way = if s.back { "A <- B" } else { "A -> B" };
            let us = s.at as f64 / 1000.0;
            let fate = format!("{:?}", s.fate);
            let text = describe(&s.head[..s.len.min(HEAD)], s.len);
            let _ = writeln!(out, "{us:>13.3} µs {way} {fate:<10} {text}");
        }
        out
    }
}

/// A frame, of which only the start may be there, in one line.
pub fn describe(head: &[u8], len: usize) -> String {
    // Headers are read as if the frame were whole.
    let mut whole = head.to_vec();
    whole.resize(len, 0);
    let ethernet = matches!(whole.get(12..14), Some([8, 0] | [0x86, 0xdd] | [0x81, 0]));
    let meta = UdpMeta {
        src: Gid::default(),
        dst: Gid::default(),
        src_port: 0,
        tos: 0,
        hop_limit: None,
    };
    let frame = if ethernet {
        Frame::parse_ethernet(&whole)
    } else {
        Ok(Frame::from_udp(&meta, &whole))
    };
    match frame.as_ref().map(|f| Packet::parse(f.transport())) {
        Ok(Ok(pkt)) => packet_text(&pkt),
        Ok(Err(e)) => format!("{len} bytes: {e}"),
        Err(e) => format!("{len} bytes: {e}"),
    }
}

/// A packet in one line.
pub fn packet_text(pkt: &Packet<'_>) -> String {
    let mut s = format!(
        "{} qp {:x} psn {:06x}",
        pkt.opcode().name(),
        pkt.dest_qp().value(),
        pkt.psn().value()
    );
    s += if pkt.ack_req() { " A" } else { "" };
    if let Some(r) = pkt.reth() {
        let (va, rkey) = (r.va.value(), r.rkey.value());
        let _ = write!(s, " va={va:x} rkey={rkey:x} len={}", r.len);
    }
    if let Some(a) = pkt.aeth() {
        let _ = write!(s, " {:?} msn {}", a.syndrome, a.msn.value());
    }
    if let Some(seth) = pkt.seth() {
        let (cack, base) = (seth.cack_psn.value(), seth.base().value());
        let _ = write!(s, " {:?} cack {cack:06x}", seth.cause);
        let _ = write!(s, " from {base:06x}: {:#x}", seth.bitmap);
    }
    if let Some(meth) = pkt.meth() {
        let _ = write!(s, " msn {}", meth.msn);
    }
    if !pkt.payload().is_empty() {
        let _ = write!(s, " [{}]", pkt.payload().len());
    }
    s
}
