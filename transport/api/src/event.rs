//! Asynchronous events: what happened, and to which object.

use xroce_proto::wc::{Cq, Event, Srq};
use xroce_wire::newtypes::Qpn;

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Source {
    /// A queue pair.
    Qp(Qpn),
    /// A completion queue.
    Cq(Cq),
    /// A shared receive queue.
    Srq(Srq),
    /// The port of the engine.
    Port,
}

/// An asynchronous event (`ibv_async_event`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct AsyncEvent {
    /// What it is about.
    pub source: Source,
    /// What happened.
    pub event: Event,
}

impl AsyncEvent {
    /// Of a queue pair.
    #[must_use]
    pub const fn qp(qpn: Qpn, event: Event) -> Self {
        Self {
            source: Source::Qp(qpn),
            event,
        }
    }

    /// Of a completion queue.
    #[must_use]
    pub const fn cq(cq: Cq, event: Event) -> Self {
        Self {
            source: Source::Cq(cq),
            event,
        }
    }

    /// Of the port.
    #[must_use]
    pub const fn port(event: Event) -> Self {
        Self {
            source: Source::Port,
            event,
        }
    }

    /// Of a shared receive queue.
    #[must_use]
    pub const fn srq(srq: Srq, event: Event) -> Self {
        Self {
            source: Source::Srq(srq),
            event,
        }
    }
}
