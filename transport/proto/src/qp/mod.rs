//! A queue pair: its parts and the entry points a driver calls.
//!
//! * [`attr`], [`state`]: attributes, states and the modify table,
//! * `requester`: work requests to packets; `asking`: which of them ask for an ACK; `loss`: when the
//!   answer does not come,
//! * `completer`: responses to completions,
//! * `responder`: requests to memory operations, `debt`: what it owes and how it pays, `replay`:
//!   what can be answered again, `flushes` of it those without a result,
//! * `uc`, `ud`: the unreliable services, with send and receive paths of their own,
//! * `atomic`: all that is done in eight bytes or none: atomics, ATOMIC WRITE, FLUSH, LOCAL_INV,
//! * `notice`: ECN: packets that may be marked, and the notification of marks (CNP),
//! * `adaptive`: the ACK timeout that follows the round trip,
//! * `selective`: selective retransmission, for peers that agreed,
//! * `turn`: what is sent next, and when something is due,
//! * `sq`, `rq`: the rings of posted work, `sge` walks their lists,
//! * `hot`: layout; [`report`]: what a QP says when it dies.

mod adaptive;
mod asking;
mod atomic;
pub mod attr;
mod attribute;
mod bind;
mod completer;
mod debt;
mod flush;
mod flushes;
mod hot;
mod loss;
mod notice;
mod query;
mod refusal;
mod replay;
pub mod report;
mod requester;
mod responder;
mod rq;
pub mod rules;
mod run;
mod selective;
mod sge;
mod shared;
mod sq;
pub mod state;
mod tally;
mod turn;
mod uc;
mod ud;

#[cfg(test)]
mod tests;

use alloc::boxed::Box;

use serde::{Deserialize, Serialize};
use xroce_wire::newtypes::{Gid, MacAddr, PKey, PathMtu, Qpn};
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;
use xroce_wire::syndrome::RnrTimer;
use xroce_wire::template::{HeaderTemplate, Lower};

pub use attr::{CreateError, ModifyError, QpAttr, QpInit};
pub use attribute::Attribute;
use hot::{RxHot, TxHot};
pub use notice::CnpClass;
use query::Given;
pub use query::{Gauges, QpInfo};
use replay::Replay;
use report::{FailureReport, LastSeen};
use requester::Cause;
pub use rq::RecvQueue;
pub use run::{Ahead, Look, Run};
use selective::Selective;
use sq::SendQueue;
pub use state::{QpState, QpType};
use tally::Tally;
use ud::Datagrams;
pub use ud::{AddressHandle, Destination};

use crate::cc::{CongestionControl, Fixed, Rate};
use crate::memory::{Access, Memory};
use crate::pacer::Pacer;
use crate::recovery::{AdaptiveParams, LossRecovery, Reliability};
use crate::reject::Why;
use crate::rtt::{Histogram, RttEstimator, Timed};
use crate::time::{Duration, Instant};
use crate::wc::{Sink, WcStatus};
use crate::wr::{PostError, RecvWr, SendWr};

/// What a driver lends for one call.
#[derive(Debug)]
pub struct Cx<'a, M: Memory, S: Sink> {
    /// The time.
    pub now: Instant,
    /// Registered memory.
    pub mem: &'a mut M,
    /// Where completions go.
    pub sink: &'a mut S,
}

/// Where a packet came from, as the layers below BTH told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Arrival {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// VLAN id, 0 without tag.
    pub vid: u16,
    /// Marked Congestion Experienced on the way.
    pub ce: bool,
}

/// A packet written by [`Qp::poll_transmit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Bytes of the frame.
    pub len: usize,
    /// Where it goes, for backends without L2.
    pub dst: Gid,
    /// Traffic class / TOS byte it carries.
    pub traffic_class: u8,
}

/// What is needed rarely: identity, attributes, peer, last words.
#[derive(Debug)]
struct Cold {
    qpn: Qpn,
    init: QpInit,
    lower: Lower,
    access: Access,
    /// Attributes given since RESET.
    given: Given,
    pkey: PKey,
    av: AddressVector,
    /// Traffic class that packets carry: that of the path, ECN-capable if the congestion control
    /// wants it.
    traffic_class: u8,
    /// Priority of congestion notifications.
    cnp_class: CnpClass,
    /// VLAN of the path, 0 without: frames from others are not this QP's.
    vid: u16,
    dest_qpn: Qpn,
    /// Congestion control slows down to this and no further.
    least_rate: Rate,
    /// How long an ACK is waited for: the timeout attribute, or less if it follows the round trip;
    /// [`Duration::MAX`]: for ever.
    ack_wait: Duration,
    /// The same for the next packet that asks for one: longer after timeouts, shorter after a NAK.
    next_wait: Duration,
    /// What is awaited is the answer to what a NAK asked for.
    repairing: bool,
    recovery: LossRecovery,
    /// When the wait began that the timeouts in a row are part of.
    quiet_since: Instant,
    /// Timeouts since the peer was last heard of; what is waited next follows from it.
    timeouts_in_row: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    min_rnr_timer: RnrTimer,
    notify_drained: bool,
    /// [`crate::wc::Event::CommEst`] was reported.
    comm_est: bool,
    /// What the WQE that cannot be sent will complete with.
    poison_status: WcStatus,
    last_seen: LastSeen,
    /// Most queue pairs never fail.
    failure: Option<Box<FailureReport>>,
    /// The last packet that came on another path.
    stray: Option<Box<Arrival>>,
    /// Why the send position went back last.
    cause: Cause,
    /// From the first round trip measured.
    rtt: Option<Box<Histogram>>,
    rtt_estimator: RttEstimator,
    /// Largest payload among the packets that were timed.
    largest_acked: u32,
    /// What only a UD QP has.
    datagrams: Option<Box<Datagrams>>,
}

impl Cold {
    /// The timeout attribute, as a time; `None`: no ACK is waited for.
    fn timeout(&self) -> Option<Duration> {
        crate::params::ack_timeout(self.given.timeout()?)
    }

    /// Set where the ACK timeout follows the measured round trip.
    fn adaptive(&self) -> Option<AdaptiveParams> {
        match self.given.reliability()? {
            Reliability::Adaptive(params) => Some(params),
            Reliability::GoBackN | Reliability::Selective(_) => None,
        }
    }
}

/// The path before RTR: none.
const NO_PATH: AddressVector = AddressVector {
    src: Gid::new([0; 16]),
    dst: Gid::new([0; 16]),
    src_mac: MacAddr::new([0; 6]),
    dst_mac: MacAddr::new([0; 6]),
    vlan: None,
    traffic_class: 0,
    hop_limit: 64,
    flow_label: 0,
    src_port: 0,
};

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    tx: TxHot,
    rx: RxHot,
    template: Option<HeaderTemplate>,
    pacer: Pacer,
    cc: CongestionControl,
    sq: SendQueue,
    rq: RecvQueue,
    replay: Replay,
    counters: Tally,
    timed: Timed,
    /// Upper limit of the rate, whatever the congestion control says.
    rate_limit: Rate,
    /// A congestion notification is to be sent.
    cnp_owed: bool,
    /// Which half sent last: READ responses and requests alternate.
    responded_last: bool,
    /// A request has gone ahead of the ACK that is owed.
    ack_passed: bool,
    /// There if the peer agreed to selective retransmission.
    selective: Option<Box<Selective>>,
    cold: Box<Cold>,
}

impl Qp {
    /// A queue pair in RESET. `lower` says what a frame starts with.
    ///
    /// # Errors
    /// A capacity out of range or a service that is not implemented.
    pub fn new(qpn: Qpn, init: QpInit, lower: Lower) -> Result<Self, CreateError> {
        init.validate()?;
        Ok(Self {
            tx: TxHot::new(init.qp_type),
            rx: RxHot::new(),
            template: None,
            pacer: notice::pacer(lower),
            cc: CongestionControl::Fixed(Fixed::default()),
            sq: SendQueue::new(&init),
            rq: RecvQueue::for_qp(&init),
            replay: Replay::default(),
            counters: Tally::default(),
            timed: Timed::NONE,
            rate_limit: Rate::UNLIMITED,
            cnp_owed: false,
            responded_last: false,
            ack_passed: false,
            selective: None,
            cold: Box::new(Cold {
                qpn,
                init,
                lower,
                access: Access::empty(),
                given: Given::default(),
                pkey: PKey::DEFAULT,
                av: NO_PATH,
                traffic_class: 0,
                cnp_class: CnpClass::default(),
                vid: 0,
                dest_qpn: Qpn::new(0),
                least_rate: Rate::bits_per_second(1),
                ack_wait: Duration::MAX,
                next_wait: Duration::MAX,
                repairing: false,
                recovery: LossRecovery::default(),
                quiet_since: Instant::default(),
                timeouts_in_row: 0,
                retry_cnt: 0,
                rnr_retry: 0,
                min_rnr_timer: RnrTimer::at_least(0),
                notify_drained: false,
                comm_est: false,
                poison_status: WcStatus::LocProtErr,
                last_seen: LastSeen::default(),
                failure: None,
                stray: None,
                cause: Cause::Solicit,
                rtt: None,
                rtt_estimator: RttEstimator::default(),
                largest_acked: 0,
                datagrams: Datagrams::of(&init).map(Box::new),
            }),
        })
    }

    /// Own number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.cold.qpn
    }

    /// State.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.tx.state
    }

    /// What is fixed since creation.
    #[must_use]
    pub fn init(&self) -> &QpInit {
        &self.cold.init
    }

    /// Path MTU, meaningful from RTR on.
    #[must_use]
    pub fn path_mtu(&self) -> PathMtu {
        self.tx.mtu
    }

    /// Posts a send.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    pub fn post_send(&mut self, wr: &SendWr<'_>, sink: &mut impl Sink) -> Result<(), PostError> {
        let state = self.tx.state;
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State(state));
        }
        if self.tx.qp_type != QpType::Rc {
            self.check_operation(&wr.op)?;
        }
        if self.tx.max_reads == 0 && wr.op.takes_rd_atomic() {
            return Err(PostError::NoRdAtomic);
        }
        self.sq.push(wr, self.tx.mtu)?;
        if matches!(state, QpState::Err | QpState::Sqe) {
            self.flush_sends(sink);
        }
        Ok(())
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    pub fn post_recv(&mut self, wr: &RecvWr<'_>, sink: &mut impl Sink) -> Result<(), PostError> {
        if self.tx.state == QpState::Reset {
            return Err(PostError::State(QpState::Reset));
        }
        if self.cold.init.srq.is_some() {
            return Err(PostError::HasSrq);
        }
        self.rq.push(wr)?;
        if self.tx.state == QpState::Err {
            self.flush_recvs(sink);
        }
        Ok(())
    }

    /// Changes state and attributes, or nothing at all.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn modify(&mut self, attr: &QpAttr, sink: &mut impl Sink) -> Result<(), ModifyError> {
        let from = self.tx.state;
        let to = attr.check(self.cold.init.qp_type, from)?;
        // The template is made first: it is the one step that can still fail.
        let pkey = self.pkey_after(attr);
        let class_after = self.class_after(attr);
        let remade = pkey != self.cold.pkey || class_after != self.cold.traffic_class;
        if attr.av.is_some() || (remade && self.template.is_some()) {
            let av = attr.av.unwrap_or(self.cold.av);
            let dest = attr.dest_qpn.unwrap_or(self.cold.dest_qpn);
            self.make_templates(&av, class_after, dest, pkey)?;
            self.cold.av = av;
            // Behind a UDP socket tags are the kernel's; it takes them off without a word.
            self.cold.vid = match self.cold.lower {
                Lower::Udp => 0,
                Lower::Ethernet | Lower::RoceV1 => av.vid(),
            };
            self.cold.dest_qpn = dest;
        }
        self.cold.pkey = pkey;
        self.apply(attr);
        self.tx.state = to;
        match (from, to) {
            (_, QpState::Reset) => self.reset(),
            (f, QpState::Err) if f != QpState::Err => self.enter_error(sink),
            (from, QpState::Sqd) => {
                if from != QpState::Sqd {
                    // An event asked for in an earlier SQD that was left before it drained.
                    self.cold.notify_drained = attr.en_sqd_async_notify.unwrap_or(false);
                    if !self.may_request(turn::WHENEVER) {
                        self.solicit_ack();
                    }
                }
                self.notify_if_drained(sink);
            }
            _ => {}
        }
        self.allowance_changed();
        Ok(())
    }

    fn apply(&mut self, attr: &QpAttr) {
        // What is given its old value stays as it is at the moment, with what depends on it.
        let cold = &mut *self.cold;
        let retries = attr.retry_cnt.filter(|&n| n != cold.retry_cnt);
        let rnr_retries = attr.rnr_retry.filter(|&n| n != cold.rnr_retry);
        let timeout_changes = attr.timeout.is_some() && attr.timeout != cold.given.timeout();
        cold.given.note(attr);
        if let Some(access) = attr.access {
            cold.access = access;
        }
        if let Some(mtu) = attr.path_mtu {
            self.tx.mtu = mtu;
        }
        if let Some(n) = retries {
            cold.retry_cnt = n;
            self.tx.retries_left = n;
        }
        if let Some(n) = rnr_retries {
            cold.rnr_retry = n;
            self.tx.rnr_retries_left = n;
        }
        if let Some(timer) = attr.min_rnr_timer {
            cold.min_rnr_timer = timer;
        }
        if let Some(psn) = attr.rq_psn {
            self.rx.expected_psn = psn;
        }
        if let Some(psn) = attr.sq_psn {
            self.tx.next_psn = psn;
            self.tx.una_psn = psn;
            self.tx.max_psn = psn;
            self.tx.asked_psn = psn.sub(1);
        }
        if let Some(n) = attr.max_rd_atomic {
            self.tx.max_reads = n;
        }
        if let Some(n) = attr.max_dest_rd_atomic {
            self.replay.set_limit(n);
        }
        if let Some(notify) = attr.en_sqd_async_notify {
            cold.notify_drained = notify;
        }
        if let (Some(qkey), Some(datagrams)) = (attr.qkey, &mut cold.datagrams) {
            datagrams.qkey = qkey;
        }
        if timeout_changes || attr.path_mtu.is_some() {
            cold.least_rate = notice::least_rate(self.tx.mtu, cold.timeout());
        }
        if timeout_changes {
            self.change_timeout();
        }
        if let Some(cc) = &attr.congestion {
            self.cc.adopt(cc);
        }
        if let Some(limit) = attr.rate_limit {
            self.rate_limit = limit;
        }
        self.apply_reliability(attr);
    }

    /// The timeout attribute is another. It holds for the answer that is awaited, too.
    fn change_timeout(&mut self) {
        let cold = &mut *self.cold;
        cold.ack_wait = cold.timeout().unwrap_or(Duration::MAX);
        cold.repairing = false;
        self.adapt_wait();
        self.cold.next_wait = self.wait_after(self.cold.timeouts_in_row);
        if self.selective.is_some() {
            self.set_selective_deadline();
        } else if self.tx.demand_since != Instant::NEVER {
            self.tx.ack_deadline = self.tx.demand_since + self.cold.next_wait;
        }
    }

    /// Back to the state after creation; nothing completes (C4).
    fn reset(&mut self) {
        self.tx = TxHot::new(self.tx.qp_type);
        self.rx = RxHot::new();
        self.template = None;
        self.drop_notice();
        self.pacer = notice::pacer(self.cold.lower);
        self.cc = CongestionControl::Fixed(Fixed::default());
        self.rate_limit = Rate::UNLIMITED;
        self.cold.recovery = LossRecovery::default();
        self.replay = Replay::default();
        self.sq.clear();
        self.rq.clear();
        self.cold.given = Given::default();
        (self.cold.retry_cnt, self.cold.rnr_retry) = (0, 0);
        self.cold.comm_est = false;
        self.cold.notify_drained = false;
        self.cold.last_seen = LastSeen::default();
        self.cold.failure = None;
        self.cold.stray = None;
        self.cold.largest_acked = 0;
        self.cold.timeouts_in_row = 0;
        self.cold.repairing = false;
        self.cold.rtt_estimator = RttEstimator::default();
        self.selective = None;
        self.timed = Timed::NONE;
        (self.responded_last, self.ack_passed) = (false, false);
    }

    /// Feeds a packet whose ICRC was verified and whose destination is this QP.
    ///
    /// Says why if it is not taken at all. Of [`Why::Peer`] the driver may tell the details by
    /// [`Qp::note_stray`].
    pub fn handle_packet<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Cx<'_, M, S>,
        from: &Arrival,
        pkt: &Packet<'_>,
    ) -> Option<Why> {
        let info = pkt.info();
        if let Err(why) = self.admit(from, pkt) {
            self.discard(why);
            return Some(why);
        }
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += pkt.payload().len() as u64;
        self.counters.ce_marked += u64::from(from.ce && info.is_data());
        if self.tx.qp_type != QpType::Rc {
            self.handle_unacknowledged(cx, *pkt);
        } else if info.is_request {
            self.handle_request(cx, pkt);
        } else {
            self.handle_response(cx, pkt);
        }
        None
    }

    #[cold]
    fn discard(&mut self, why: Why) {
        self.counters.rare().discards += 1;
        self.counters.rare().wrong_path += u64::from(why == Why::Peer);
        self.counters.rare().unagreed_extensions += u64::from(why == Why::Extension);
    }

    #[inline]
    fn is_on_path(&self, from: &Arrival) -> bool {
        let av = &self.cold.av;
        from.src == av.dst && from.dst == av.src && from.vid == self.cold.vid
    }

    /// The checks of a received packet (W22) that need the QP.
    #[inline(always)]
    fn admit(&self, from: &Arrival, pkt: &Packet<'_>) -> Result<(), Why> {
        let info = pkt.info();
        if info.service != self.tx.qp_type.service() {
            self.admit_extension(info)?;
        }
        let state = self.tx.state;
        let works = if info.is_request {
            state.receives()
        } else {
            state.sends()
        };
        if !works {
            return Err(Why::State);
        }
        if !self.is_on_path(from) {
            return Err(Why::Peer);
        }
        if !self.cold.pkey.matches(pkt.pkey()) {
            return Err(Why::PKey);
        }
        Ok(())
    }
}

/// Sizes a driver may pin in a test: of the QP with what every one has in a box, without its rings.
pub const QP_SIZE: usize = size_of::<Qp>() + size_of::<Cold>();
