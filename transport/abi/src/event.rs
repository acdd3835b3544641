//! Asynchronous events, of [`LEN`] bytes.
//!
//! ```text
//!  0  event           u8: the values of verbs
//!  1  source          u8: 0 port, 1 QP, 2 CQ, 3 SRQ
//!  2  reserved        u16, 0
//!  4  handle          u32: number of the QP, handle of the CQ or SRQ, 0 for the port
//!  8  reserved        u64, 0
//! ```

use xroce_proto::wc::{Cq, Event, Srq};
use xroce_wire::newtypes::Qpn;

use crate::BadEntry;
use crate::field::{byte, put, word16, word32, word64, zero};

/// Bytes of an event.
pub const LEN: usize = 16;

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The port.
    Port,
    /// A queue pair.
    Qp(Qpn),
    /// A completion queue.
    Cq(Cq),
    /// A shared receive queue.
    Srq(Srq),
}

const EVENTS: [Event; 13] = [
    Event::CqErr,
    Event::QpFatal,
    Event::QpReqErr,
    Event::QpAccessErr,
    Event::CommEst,
    Event::SqDrained,
    Event::DeviceFatal,
    Event::PortActive,
    Event::PortErr,
    Event::SrqErr,
    Event::SrqLimitReached,
    Event::QpLastWqeReached,
    Event::GidChange,
];

/// As it stands in the ring.
#[must_use]
pub fn encode(source: Source, event: Event) -> [u8; LEN] {
    let (kind, handle) = match source {
        Source::Port => (0, 0),
        Source::Qp(qpn) => (1, qpn.value()),
        Source::Cq(cq) => (2, cq.0),
        Source::Srq(srq) => (3, srq.0),
    };
    let mut to = [0; LEN];
    put(&mut to, 0, &[event as u8, kind]);
    put(&mut to, 4, &handle.to_ne_bytes());
    to
}

/// # Errors
/// [`BadEntry::Code`], [`BadEntry::Reserved`].
pub fn decode(from: &[u8; LEN]) -> Result<(Source, Event), BadEntry> {
    zero("bytes 2 and 3 of an event", word16(from, 2).into())?;
    zero("bytes 8 to 15 of an event", word64(from, 8))?;
    let handle = word32(from, 4);
    let code = |what, value| BadEntry::Code { what, value };
    let source = match byte(from, 1) {
        0 => {
            zero("the handle of the port", handle.into())?;
            Source::Port
        }
        1 if handle <= 0x00ff_ffff => Source::Qp(Qpn::new(handle)),
        1 => return Err(code("QP", handle)),
        2 => Source::Cq(Cq(handle)),
        3 => Source::Srq(Srq(handle)),
        kind => return Err(code("source of an event", kind.into())),
    };
    let event = EVENTS.into_iter().find(|&e| e as u8 == byte(from, 0));
    let event = event.ok_or_else(|| code("event", byte(from, 0).into()))?;
    Ok((source, event))
}
