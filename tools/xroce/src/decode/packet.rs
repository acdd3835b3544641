//! One captured packet: is it RoCE, is it whole, is it sound.

use xroce_wire::bth::Bth;
use xroce_wire::frame::{Frame, FrameError};
use xroce_wire::packet::Packet;

use super::capture::Record;
use super::link::Link;

/// Longest packet IP allows, with room for the longest link header.
const MAX_WIRE: usize = 65_535 + 64;

/// What the ICRC tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Icrc {
    /// Right.
    Ok,
    /// Wrong.
    Bad,
    /// The capture does not hold all it covers.
    Unknown,
}

impl Icrc {
    /// As printed, also in JSON.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Bad => "bad",
            Self::Unknown => "unknown",
        }
    }
}

/// A RoCE packet of a capture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Roce<'a> {
    pub(super) frame: Frame<'a>,
    pub(super) packet: Packet<'a>,
    pub(super) icrc: Icrc,
}

/// Verdict on a captured packet.
#[derive(Debug)]
pub(super) enum Verdict<'a> {
    /// RoCE, headers complete.
    Roce(Roce<'a>),
    /// Traffic of others.
    Foreign,
    /// RoCE, or what may be RoCE, that cannot be shown: why.
    Broken(String),
}

/// Judges a record. A packet cut short by the capture is completed with zeros in `scratch`, so
/// that it has the lengths it had on the wire; its ICRC is unknown.
pub(super) fn judge<'a>(record: &Record<'a>, link: Link, scratch: &'a mut Vec<u8>) -> Verdict<'a> {
    let captured = record.data.len();
    let wire_len = (record.wire_len as usize).clamp(captured, MAX_WIRE.max(captured));
    let cut = captured < wire_len;
    let truncated = |what: &str| {
        let text =
            format!("truncated: {captured} of {wire_len} bytes captured, too few for {what}");
        Verdict::Broken(text)
    };
    let mut data = record.data;
    let mut frame = link.dissect(data);
    if cut && frame.is_err_and(|e| e == FrameError::Length) {
        scratch.clear();
        scratch.extend_from_slice(record.data);
        scratch.resize(wire_len, 0);
        data = scratch;
        frame = link.dissect(data);
    }
    let frame = match frame {
        Ok(frame) => frame,
        Err(FrameError::NotRoce) => return Verdict::Foreign,
        Err(FrameError::Short) if cut => return truncated("its headers"),
        Err(error) => return Verdict::Broken(error.to_string()),
    };
    let transport = frame.transport();
    // Where the transport part begins: both are slices of the same bytes.
    let offset = transport
        .as_ptr()
        .addr()
        .saturating_sub(data.as_ptr().addr());
    let packet = match Packet::parse(transport) {
        Err(_) if offset + Bth::LEN > captured => return truncated("its BTH"),
        Err(error) => {
            return Verdict::Broken(format!("{error} ({} bytes behind UDP)", transport.len()));
        }
        Ok(packet) => packet,
    };
    if offset + Bth::LEN + usize::from(packet.info().header_len) > captured {
        return truncated(&format!("the headers of {}", packet.opcode().name()));
    }
    let icrc = if offset + transport.len() > captured {
        Icrc::Unknown
    } else if frame.icrc_ok() {
        Icrc::Ok
    } else {
        Icrc::Bad
    };
    Verdict::Roce(Roce {
        frame,
        packet,
        icrc,
    })
}
