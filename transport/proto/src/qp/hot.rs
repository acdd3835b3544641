//! The cache lines of a QP, pinned in size: a sent packet touches [`TxHot`], a received request
//! [`RxHot`]; everything else is colder.

use xroce_wire::newtypes::{Msn, PathMtu, Psn};
use xroce_wire::syndrome::{NakCode, RnrTimer};

use super::{QpState, QpType};
use crate::memory::Grant;
use crate::recovery::NO_BURST_LIMIT;
use crate::time::Instant;

/// Requester and completer: one line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct TxHot {
    /// When the answer that was asked for is given up waiting for.
    pub(super) ack_deadline: Instant,
    /// Since when such an answer is awaited; `NEVER`: nothing outstanding has asked for one.
    pub(super) demand_since: Instant,
    /// Nothing is sent before this (RNR NAK); `NEVER`: no wait.
    pub(super) rnr_until: Instant,
    /// PSN of the next packet to send; behind `max_psn` while resending.
    pub(super) next_psn: Psn,
    /// Oldest PSN not acknowledged.
    pub(super) una_psn: Psn,
    /// One past the highest PSN ever sent.
    pub(super) max_psn: Psn,
    /// PSN at which the READ being answered was last (re)requested.
    pub(super) read_start_psn: Psn,
    /// The last PSN that an answer was asked for: when it is acknowledged, none is awaited.
    pub(super) asked_psn: Psn,
    /// WQE the next packet belongs to, and which packet of it.
    pub(super) send_index: u32,
    pub(super) send_packet: u32,
    /// Packets sent since one asked for an ACK.
    pub(super) since_ack_req: u16,
    /// READs in progress, and how many may be.
    pub(super) reads: u8,
    pub(super) max_reads: u8,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    pub(super) mtu: PathMtu,
    pub(super) state: QpState,
    /// A WQE that may not be sent: it fails once all before it are done.
    pub(super) poisoned: bool,
    /// Service, fixed since creation: where RC and the unreliable services part.
    pub(super) qp_type: QpType,
    /// The next packet leaves whatever the window, to ask for an ACK.
    pub(super) solicit: bool,
    /// Packets that may be in flight, at most, as a power of two: [`LossRecovery::burst_shift`].
    ///
    /// [`LossRecovery::burst_shift`]: crate::recovery::LossRecovery::burst_shift
    pub(super) burst_shift: u8,
}

const _: () = assert!(size_of::<TxHot>() == 64);

impl TxHot {
    pub(super) const fn new(qp_type: QpType) -> Self {
        Self {
            ack_deadline: Instant::NEVER,
            demand_since: Instant::NEVER,
            rnr_until: Instant::NEVER,
            next_psn: Psn::new(0),
            una_psn: Psn::new(0),
            max_psn: Psn::new(0),
            read_start_psn: Psn::new(0),
            asked_psn: Psn::new(0).sub(1),
            send_index: 0,
            send_packet: 0,
            since_ack_req: 0,
            reads: 0,
            max_reads: 0,
            retries_left: 0,
            rnr_retries_left: 0,
            mtu: PathMtu::Mtu256,
            state: QpState::Reset,
            poisoned: false,
            qp_type,
            solicit: false,
            burst_shift: NO_BURST_LIMIT,
        }
    }

    /// Whether a response is awaited.
    #[inline]
    pub(super) fn is_outstanding(&self) -> bool {
        self.una_psn != self.max_psn
    }

    /// Whether something outstanding has asked for an answer.
    #[inline]
    pub(super) fn is_demanding(&self) -> bool {
        self.is_outstanding() && !self.asked_psn.is_before(self.una_psn)
    }

    /// Whether less may be in flight than the window, because losses come in step.
    #[inline]
    pub(super) const fn is_burst_limited(&self) -> bool {
        self.burst_shift != NO_BURST_LIMIT
    }

    /// Nothing that was sent so far counts as asking for an answer: it is sent again, or comes too
    /// late.
    pub(super) fn forget_demand(&mut self) {
        self.asked_psn = self.una_psn.sub(1);
        self.demand_since = Instant::NEVER;
        self.ack_deadline = Instant::NEVER;
    }
}

/// What an unfinished incoming message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ongoing {
    Nothing,
    Send,
    Write,
}

/// What the responder owes the peer; READ responses are in the replay ring and go first. What takes
/// the place of what: `debt.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Debt {
    Nothing,
    /// A positive ACK up to this PSN.
    Ack(Psn),
    /// Sequence error at the expected PSN, while packets up to [`RxHot::dropped_to`] are missing.
    SequenceNak,
    /// Receiver not ready at the expected PSN, whose packet was dropped, and maybe others as above.
    RnrNak(RnrTimer),
    /// What has arrived, of a selective queue pair.
    Sack,
    /// Error at this PSN; the QP is in ERR already.
    FatalNak(NakCode, Psn),
}

/// Responder: one line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct RxHot {
    /// Region the WRITE in progress may touch.
    pub(super) grant: Grant,
    /// Bytes of the message in progress received so far.
    pub(super) received: u32,
    /// Length the WRITE in progress announced.
    pub(super) write_len: u32,
    pub(super) expected_psn: Psn,
    pub(super) msn: Msn,
    pub(super) debt: Debt,
    pub(super) ongoing: Ongoing,
    /// The gap before the expected PSN was reported; silence until it closes.
    pub(super) nak_sent: bool,
    /// The peer was told to wait; what follows the refused packet is dropped silently (S6).
    pub(super) rnr_sent: bool,
    /// Last PSN of the latest READ, and whether there was one: a re-ACK must not pass it.
    pub(super) has_read: bool,
    pub(super) last_read_psn: Psn,
    /// Last PSN of those dropped since a sequence or RNR NAK is owed.
    pub(super) dropped_to: Psn,
    /// An ACK is owed where such a NAK comes to be pointless.
    pub(super) ack_behind: bool,
}

const _: () = assert!(size_of::<RxHot>() == 64);

impl RxHot {
    pub(super) const fn new() -> Self {
        Self {
            grant: Grant::EMPTY,
            received: 0,
            write_len: 0,
            expected_psn: Psn::new(0),
            msn: Msn::new(0),
            debt: Debt::Nothing,
            ongoing: Ongoing::Nothing,
            nak_sent: false,
            rnr_sent: false,
            has_read: false,
            last_read_psn: Psn::new(0),
            dropped_to: Psn::new(0),
            ack_behind: false,
        }
    }
}
