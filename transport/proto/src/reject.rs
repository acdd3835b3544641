//! The ways a packet can be refused, and no others: see [`Reject`].

use xroce_wire::syndrome::{NakCode, RnrTimer};

use crate::wc::WcStatus;

/// Why a packet was dropped without an answer; each feeds a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The QP is not in a state to process it.
    State,
    /// The opcode is of another service than the QP.
    Service,
    /// An extension packet, and the QP has not agreed to them.
    Extension,
    /// Not from the peer this QP is connected to.
    Peer,
    /// P_Key mismatch.
    PKey,
    /// Ahead of the expected PSN after the NAK was sent.
    OutOfSequence,
    /// A duplicate that has no answer (unknown READ).
    Duplicate,
}

/// A refused packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reject {
    /// Count and forget.
    Discard(Why),
    /// Answer, the QP goes on: sequence error.
    Sequence,
    /// Answer, the QP goes on: receiver not ready.
    Rnr(RnrTimer),
    /// Answer with this NAK, complete a claimed receive with this status, QP to error.
    Fatal(NakCode, WcStatus),
}
