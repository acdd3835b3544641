//! Selective retransmission, between peers of this stack that both were told to
//! ([`crate::recovery::Reliability::Selective`]).
//!
//! * `requester`: what is sent next, and again; probes; timeouts,
//! * `completer`: what SACKs, ACKs, NAKs and responses say,
//! * `responder`, `reorder`: packets before their turn,
//! * [`crate::recovery`]: what is known of every PSN, and when one is deemed lost.
//!
//! The state is one box, made when the attribute is given: other queue pairs pay for a pointer.

mod completer;
mod reorder;
mod requester;
mod responder;

use alloc::boxed::Box;

use xroce_wire::newtypes::Psn;
use xroce_wire::opcode::OpcodeInfo;

use super::{Qp, QpAttr, turn};
use crate::cc::CongestionController;
use crate::params;
use crate::recovery::{LossRule, Order, Reliability, Scoreboard, SelectiveParams};
use crate::reject::Why;
use crate::time::{Duration, Instant};
use crate::wc::WcStatus;
use reorder::Reorder;
use responder::Running;

/// Probes a round trip at most, and not faster than this when the measured one is shorter than
/// timers can tell.
const PROBE_FLOOR: Duration = Duration::from_micros(10);

/// Packets sent at once after two timeouts in a row.
const FEW: u32 = 8;
/// Doublings of a timeout that brings nothing back, at most.
const BACKOFF_MAX: u8 = 16;

/// A probe on its way.
#[derive(Clone, Copy, Debug)]
struct Probe {
    id: u16,
    /// Its place in both orders of sending.
    places: (Order, Order),
}

/// All that only a selective queue pair has.
#[derive(Debug)]
pub(super) struct Selective {
    params: SelectiveParams,
    board: Scoreboard,
    reorder: Reorder,
    /// The WRITE being received.
    running: Running,
    /// PSNs the peer takes ahead, as it told.
    peer_range: u32,
    /// The peer has sent an extension packet: it has agreed, whatever else was agreed elsewhere.
    peer_agrees: bool,
    /// Messages sent so far, and the number of the one being sent.
    next_msn: u16,
    current_msn: u16,
    /// A probe is to be sent.
    ask: bool,
    /// The last one was sent because nothing came; until something does there is no other.
    asked: bool,
    probe_id: u16,
    probe: Option<Probe>,
    /// When something was last sent.
    sent_at: Instant,
    /// Timeouts since a round trip was measured.
    backoff: u8,
    /// The last round-trip time, until congestion control has it.
    measured: Option<Duration>,
    /// The packet that the RNR wait is for.
    refused: Psn,
    /// A fatal NAK that waits for the answers to requests before it.
    fatal: Option<(Psn, WcStatus)>,
    /// Losses of PSNs before this one are one event to congestion control.
    recovery_end: Psn,
    in_recovery: bool,
}

impl Selective {
    pub(super) fn new(params: SelectiveParams, payload_max: usize) -> Self {
        Self {
            params,
            board: Scoreboard::new(params.range),
            reorder: Reorder::new(&params, payload_max),
            running: Running::NONE,
            peer_range: params.range,
            peer_agrees: false,
            next_msn: 0,
            current_msn: 0,
            ask: false,
            asked: false,
            probe_id: 0,
            probe: None,
            sent_at: Instant::default(),
            backoff: 0,
            measured: None,
            refused: Psn::default(),
            fatal: None,
            recovery_end: Psn::default(),
            in_recovery: false,
        }
    }

    /// The queue pair is in error: nothing is kept, nothing awaited.
    pub(super) fn clear(&mut self) {
        self.board.clear();
        self.reorder.clear();
        self.ask = false;
        self.probe = None;
        self.fatal = None;
    }

    /// Requests flying, for a gauge.
    pub(super) fn in_flight(&self) -> u32 {
        self.board.flying()
    }

    /// Packets ahead of the expected PSN, for a gauge.
    pub(super) fn ahead(&self) -> u32 {
        self.reorder.len()
    }

    /// An extension packet of the peer came.
    fn note_agreement(&mut self) {
        self.peer_agrees = true;
    }

    /// PSNs from the oldest unacknowledged on that may be sent.
    fn range(&self) -> u32 {
        self.params.range.min(self.peer_range)
    }
}

impl Qp {
    /// The part of a modify that concerns recovery; all else has been applied.
    pub(super) fn apply_reliability(&mut self, attr: &QpAttr) {
        if let Some(reliability) = attr.reliability {
            self.set_reliability(reliability);
        }
        let Some(selective) = &mut self.selective else {
            return;
        };
        if let Some(psn) = attr.sq_psn {
            selective.board.start(psn);
        }
        // The ring of responder resources may be a new one.
        self.replay.keep_repeats();
    }

    fn set_reliability(&mut self, reliability: Reliability) {
        self.selective = None;
        match reliability {
            // Of the timeout that follows the round trip there are only the parameters.
            Reliability::GoBackN | Reliability::Adaptive(_) => {}
            Reliability::Selective(params) => {
                let state = Selective::new(params, self.tx.mtu.bytes());
                self.selective = Some(Box::new(state));
            }
        }
    }

    /// Whether a packet of another service than the QP's is one its peer may send.
    #[cold]
    pub(super) fn admit_extension(&self, info: &OpcodeInfo) -> Result<(), Why> {
        match (info.is_extension(), &self.selective) {
            (false, _) => Err(Why::Service),
            (true, None) => Err(Why::Extension),
            (true, Some(_)) => Ok(()),
        }
    }

    /// Packets that may be in flight.
    fn selective_window(&self, selective: &Selective) -> u32 {
        self.cc.window_psns().min(selective.params.window)
    }

    /// The same while the timer has fired twice without any word of the peer: so few that packets
    /// lost in step with the whole window are not lost again.
    fn window_now(&self, selective: &Selective) -> u32 {
        let window = self.selective_window(selective);
        if selective.backoff < 2 {
            return window;
        }
        window.min(FEW)
    }

    /// When a packet is deemed lost, from what is measured now. Reordering is given the time that
    /// twice the tolerated number of packets takes at the rate of the window, or four times what
    /// round trips vary by.
    fn loss_rule(&self, selective: &Selective) -> LossRule {
        let rtt = &self.cold.rtt_estimator;
        let ns = |d: Option<Duration>| d.map_or(0, Duration::as_nanos);
        let srtt = ns(rtt.srtt());
        let packets = 2 * u64::from(selective.params.tolerance);
        let passing = packets * srtt / u64::from(self.selective_window(selective).max(1));
        let varying = ns(rtt.longest()) - srtt;
        let most = selective.params.rto_high.as_nanos().max(4 * srtt);
        let (reordering, patience) = if srtt == 0 {
            (most, most)
        } else {
            let reordering = passing.max(varying).min(most);
            (reordering, srtt + reordering)
        };
        LossRule {
            tolerance: selective.params.tolerance,
            reordering: Duration::from_nanos(reordering),
            patience: Duration::from_nanos(patience),
            soonest: Duration::from_nanos(srtt / 2),
        }
    }

    /// The timeout now: IRN's two, never shorter than what round trips take.
    fn selective_rto(&self, selective: &Selective) -> Duration {
        let params = &selective.params;
        let few = selective.board.flying() < SelectiveParams::FEW;
        let floor = if few { params.rto_low } else { params.rto_high };
        let configured = self.cold.timeout().map_or(u64::MAX, Duration::as_nanos);
        let longest = self.cold.rtt_estimator.longest();
        let measured = longest.map_or(0, Duration::as_nanos) * if few { 1 } else { 2 };
        let shortest = measured.max(floor.as_nanos().min(configured));
        let doubled = shortest << selective.backoff.min(BACKOFF_MAX);
        Duration::from_nanos(doubled.min(configured.max(shortest)))
    }

    /// How long nothing may come back before a probe asks; `None` before the first sample.
    fn probe_after(&self) -> Option<Duration> {
        let rtt = &self.cold.rtt_estimator;
        let twice = rtt.srtt()?.as_nanos() * 2;
        let longest = rtt.longest()?.as_nanos();
        let floor = PROBE_FLOOR.as_nanos();
        Some(Duration::from_nanos(twice.max(longest).max(floor)))
    }

    /// When the next timer of the requester is due.
    fn selective_deadline(&self, selective: &Selective) -> Instant {
        if !self.tx.is_outstanding() || self.tx.rnr_until != Instant::NEVER {
            return Instant::NEVER;
        }
        let late = selective.board.deadline(&self.loss_rule(selective));
        let Some(quiet) = self.quiet_since(selective) else {
            return late;
        };
        let mut at = quiet + self.selective_rto(selective);
        if !selective.asked
            && let Some(after) = self.probe_after()
        {
            at = at.min(quiet + after);
        }
        at.min(late)
    }

    /// Since when an answer is awaited and nothing was sent; `None` if nothing outstanding has
    /// asked for one. What the pacer holds back is not yet sent: that is no silence of the peer.
    fn quiet_since(&self, selective: &Selective) -> Option<Instant> {
        let since = self.tx.demand_since.deadline()?.max(selective.sent_at);
        Some(
            if self.rate().is_limited() && self.may_request(turn::WHENEVER) {
                since.max(self.pacer.next())
            } else {
                since
            },
        )
    }

    /// The wait that the responder asked for is over: as if it had just been heard of, however late
    /// this is.
    pub(super) fn end_selective_wait(&mut self, now: Instant) {
        if self.selective.is_some() {
            self.note_heard(now, true);
            self.set_selective_deadline();
        }
    }

    /// Whether an answer is awaited still, after something came that may have been one. News of the
    /// peer begin a new wait.
    fn note_heard(&mut self, now: Instant, news: bool) {
        if !self.tx.is_demanding() {
            self.tx.demand_since = Instant::NEVER;
        } else if news {
            self.tx.demand_since = now;
        }
    }

    /// Files the next timer.
    pub(super) fn set_selective_deadline(&mut self) {
        if let Some(selective) = &self.selective {
            self.tx.ack_deadline = self.selective_deadline(selective);
        }
    }

    /// How long nothing may come back before the peer is given up: as long as go-back-N waits
    /// through all its retries; `None`: for ever.
    fn selective_patience(&self) -> Option<Duration> {
        let timeout = self.cold.timeout()?.as_nanos();
        let waits = (0..=self.cold.retry_cnt).map(|n| 1u64 << n.min(params::TIMEOUT_DOUBLINGS));
        Some(Duration::from_nanos(timeout.saturating_mul(waits.sum())))
    }
}
