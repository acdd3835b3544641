//! What the requester of selective retransmission knows of every PSN from the oldest
//! unacknowledged to the newest.
//!
//! PSNs are of two kinds. One stands for a request packet, which an ACK or SACK acknowledges. The
//! others stand for the responses to a READ, which only themselves acknowledge; the first PSN of a
//! READ, and the one of an atomic, is both, one after the other. Each kind has its own order of
//! sending: requests overtake nothing but requests, responses nothing but responses. The order of
//! responses is that in which they were asked for, which is the one the responder keeps; only
//! those asked for again may come before their turn, and so are no proof that others are late.

use alloc::boxed::Box;
use alloc::vec;

use xroce_wire::newtypes::Psn;

use super::ring_bits::RingBits;
use super::send_order::{Order, SendOrder};
use crate::time::{Duration, Instant};

/// What is known of a PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum State {
    /// Not sent.
    #[default]
    Free,
    /// A request packet, sent.
    Flying,
    /// A request packet the responder has and has not executed.
    Sacked,
    /// A request packet to be sent again.
    LostRequest,
    /// A response to a request that is not known to have been executed.
    Asked,
    /// A response the responder has sent or will send.
    Awaited,
    /// A response to be asked for again.
    LostReply,
    /// Acknowledged: executed, or answered.
    Done,
}

impl State {
    const fn is_lost(self) -> bool {
        matches!(self, Self::LostRequest | Self::LostReply)
    }
}

/// One PSN.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// When it was sent or asked for last.
    at: Instant,
    /// Place in its order of sending.
    order: Order,
    /// Messages before it, modulo 2^16.
    msn: u16,
    state: State,
    /// Times sent or asked for, in the low seven bits; the eighth: a response acknowledges it.
    times: u8,
}

const _: () = assert!(size_of::<Sent>() == 16);

const ANSWERED: u8 = 0x80;
const TIMES: u8 = 0x7f;

/// A response asked for again is late after so long at least; asked for more often than so, after
/// twice as long, and so on.
const REPEAT_FLOOR: Duration = Duration::from_micros(10);
const REPEATS_AT_ONCE: u8 = 3;
const REPEAT_DOUBLINGS: u8 = 7;

/// When a PSN is deemed lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossRule {
    /// Packets that may overtake one.
    pub(crate) tolerance: u32,
    /// Time for which a packet may stay away once it was overtaken.
    pub(crate) reordering: Duration,
    /// Time after which a request that was overtaken is late: a round trip, and the above.
    pub(crate) patience: Duration,
    /// An answer that comes sooner than this after a packet was sent again is to an earlier copy.
    pub(crate) soonest: Duration,
}

/// The ring, and the two orders of sending.
#[derive(Debug)]
pub(crate) struct Scoreboard {
    ring: Box<[Sent]>,
    /// Place of each response in its order.
    reply_orders: Box<[Order]>,
    lost: RingBits,
    requests: SendOrder,
    replies: SendOrder,
    /// Every request before it was executed.
    cum: Psn,
    /// Request packets flying.
    flying: u32,
}

/// Places in an order of sending per PSN: a packet may be sent so often before the oldest of all
/// is given up without further evidence.
const PLACES: u32 = 4;

impl Scoreboard {
    pub(crate) fn new(range: u32) -> Self {
        Self {
            ring: vec![Sent::default(); range as usize].into(),
            reply_orders: vec![Order::default(); range as usize].into(),
            lost: RingBits::new(range),
            requests: SendOrder::new(range * PLACES),
            replies: SendOrder::new(range * PLACES),
            cum: Psn::default(),
            flying: 0,
        }
    }

    /// Begins at a PSN, with nothing sent.
    pub(crate) fn start(&mut self, psn: Psn) {
        self.ring.fill(Sent::default());
        self.lost.clear_all();
        self.requests.clear();
        self.replies.clear();
        self.cum = psn;
        self.flying = 0;
    }

    #[inline]
    fn slot(&self, psn: Psn) -> usize {
        psn.value() as usize & (self.ring.len() - 1)
    }

    #[inline]
    fn at(&self, psn: Psn) -> &Sent {
        &self.ring[self.slot(psn)]
    }

    #[inline]
    fn at_mut(&mut self, psn: Psn) -> &mut Sent {
        let slot = self.slot(psn);
        &mut self.ring[slot]
    }

    #[inline]
    pub(crate) fn state(&self, psn: Psn) -> State {
        self.at(psn).state
    }

    pub(crate) fn is_done(&self, psn: Psn) -> bool {
        self.state(psn) == State::Done
    }

    pub(crate) fn msn(&self, psn: Psn) -> u16 {
        self.at(psn).msn
    }

    /// Times sent so far. Stays known until the PSN a range later is sent.
    pub(crate) fn times(&self, psn: Psn) -> u8 {
        self.at(psn).times & TIMES
    }

    /// When it was sent, if it was sent once and is not acknowledged (Karn).
    pub(crate) fn timed(&self, psn: Psn) -> Option<Instant> {
        let sent = self.at(psn);
        (sent.state == State::Flying && sent.times & TIMES == 1).then_some(sent.at)
    }

    /// First PSN not known to be executed.
    pub(crate) fn cum(&self) -> Psn {
        self.cum
    }

    pub(crate) fn flying(&self) -> u32 {
        self.flying
    }

    fn set(&mut self, psn: Psn, state: State) {
        let slot = self.slot(psn);
        let old = core::mem::replace(&mut self.ring[slot].state, state);
        self.flying += u32::from(state == State::Flying);
        self.flying -= u32::from(old == State::Flying);
        match (old.is_lost(), state.is_lost()) {
            (false, true) => self.lost.set(psn.value()),
            (true, false) => self.lost.clear(psn.value()),
            _ => {}
        }
    }

    /// A new request packet of message number `msn` leaves, which stands for `psns` PSNs; a
    /// response acknowledges it if it is `answered`.
    pub(crate) fn sent(&mut self, now: Instant, psn: Psn, psns: u32, answered: bool, msn: u16) {
        for i in 0..psns {
            *self.at_mut(psn.add(i)) = Sent {
                at: now,
                order: Order::default(),
                msn,
                state: State::Free,
                times: if answered { 1 | ANSWERED } else { 1 },
            };
            if answered {
                self.ask(psn.add(i));
            }
        }
        self.at_mut(psn).order = self.push_request(psn);
        self.set(psn, State::Flying);
    }

    /// A request packet that was deemed lost leaves again; `psns` as before.
    pub(crate) fn sent_again(&mut self, now: Instant, psn: Psn, psns: u32) {
        for i in 0..psns {
            self.once_more(now, psn.add(i));
            if self.at(psn).times & ANSWERED != 0 {
                self.ask(psn.add(i));
            }
        }
        self.at_mut(psn).order = self.push_request(psn);
        self.set(psn, State::Flying);
    }

    /// Responses that were deemed lost are asked for again.
    pub(crate) fn asked_again(&mut self, now: Instant, psn: Psn, psns: u32) {
        for i in 0..psns {
            self.once_more(now, psn.add(i));
            self.ask(psn.add(i));
            self.set(psn.add(i), State::Awaited);
        }
    }

    /// Asks for a response.
    fn ask(&mut self, psn: Psn) {
        let (slot, order) = (self.slot(psn), self.push_reply(psn));
        self.reply_orders[slot] = order;
        self.set(psn, State::Asked);
    }

    fn once_more(&mut self, now: Instant, psn: Psn) {
        let sent = self.at_mut(psn);
        sent.at = now;
        if sent.times & TIMES != TIMES {
            sent.times += 1;
        }
    }

    /// A packet that is no request leaves and takes a place in both orders: what was sent before
    /// it and does not arrive before the answer to it was overtaken.
    pub(crate) fn probe(&mut self) -> (Order, Order) {
        // No PSN has these places: nobody waits for them.
        (
            self.push_request(self.cum),
            self.push_reply(self.cum.sub(1)),
        )
    }

    /// The answer to a probe came, and behind every response sent before it.
    pub(crate) fn probe_answered(&mut self, (request, reply): (Order, Order)) {
        self.requests.arrive(request);
        self.replies.arrive(reply);
    }

    fn push_request(&mut self, psn: Psn) -> Order {
        while self.requests.is_full() {
            self.give_up_request();
        }
        self.requests.push(psn)
    }

    fn push_reply(&mut self, psn: Psn) -> Order {
        while self.replies.is_full() {
            self.give_up_reply();
        }
        self.replies.push(psn)
    }

    /// The oldest request watched is not watched any more; whether it was still flying.
    fn give_up_request(&mut self) -> bool {
        let Some((order, psn)) = self.requests.front() else {
            return false;
        };
        let flying = self.is_flying(order, psn);
        if flying {
            self.set(psn, State::LostRequest);
        }
        self.requests.pop();
        flying
    }

    fn give_up_reply(&mut self) -> bool {
        let Some((order, psn)) = self.replies.front() else {
            return false;
        };
        let awaited = self.is_asked(order, psn) && self.state(psn) == State::Awaited;
        if awaited {
            self.set(psn, State::LostReply);
        }
        self.replies.pop();
        awaited
    }

    fn is_flying(&self, order: Order, psn: Psn) -> bool {
        let sent = self.at(psn);
        sent.state == State::Flying && sent.order == order
    }

    /// Whether this place is the one of a response that has not come.
    fn is_asked(&self, order: Order, psn: Psn) -> bool {
        let waits = !matches!(
            self.state(psn),
            State::Free | State::Done | State::LostReply
        );
        waits && self.reply_orders[self.slot(psn)] == order
    }

    /// The responder has this request packet, and has executed it if `executed`. Whether that is
    /// news.
    fn delivered(&mut self, now: Instant, psn: Psn, executed: bool, rule: &LossRule) -> bool {
        let sent = *self.at(psn);
        let answered = sent.times & ANSWERED != 0;
        let news = match sent.state {
            State::Flying => {
                if sent.times & TIMES == 1 || now.since(sent.at) >= rule.soonest {
                    self.requests.arrive(sent.order);
                }
                true
            }
            State::LostRequest => true,
            State::Sacked | State::Asked if executed => false,
            _ => return false,
        };
        match (executed, answered) {
            (false, _) => self.set(psn, State::Sacked),
            (true, false) => self.set(psn, State::Done),
            (true, true) => self.set(psn, State::Awaited),
        }
        news
    }

    /// Everything before `end` was executed; how many request packets that is news about. The
    /// caller has checked that `end` is not beyond what was sent.
    pub(crate) fn executed(&mut self, now: Instant, end: Psn, rule: &LossRule) -> u32 {
        let mut news = 0;
        while self.cum.is_before(end) {
            news += u32::from(self.delivered(now, self.cum, true, rule));
            self.cum = self.cum.add(1);
        }
        news
    }

    /// A bitmap of request packets received, the lowest bit being that of `base`; how many of
    /// them that is news about. `max` is the first PSN not sent.
    pub(crate) fn sacked(
        &mut self,
        now: Instant,
        base: Psn,
        bitmap: u64,
        max: Psn,
        rule: &LossRule,
    ) -> u32 {
        // The one expected next is by that not received: a bit for it is from before it was
        // refused.
        let first = self.cum.add(1);
        let Ok(count) = u32::try_from(first.distance_to(max)) else {
            return 0;
        };
        let (mut rest, mut news) = (bitmap, 0);
        while rest != 0 {
            let psn = base.add(rest.trailing_zeros());
            rest &= rest - 1;
            if psn.is_within(first, count) {
                news += u32::from(self.delivered(now, psn, false, rule));
            }
        }
        news
    }

    /// A response arrived, of a request that was executed; whether it is the first copy.
    pub(crate) fn answered(&mut self, psn: Psn) -> bool {
        let sent = *self.at(psn);
        match sent.state {
            State::Awaited if sent.times & TIMES == 1 => {
                self.replies.arrive(self.reply_orders[self.slot(psn)]);
            }
            State::Awaited | State::LostReply => {}
            _ => return false,
        }
        self.set(psn, State::Done);
        true
    }

    /// The responder wants this packet again, whatever it has said before.
    pub(crate) fn refused(&mut self, psn: Psn) {
        if !matches!(
            self.state(psn),
            State::Free | State::Done | State::Awaited | State::LostReply
        ) {
            self.set(psn, State::LostRequest);
        }
    }

    /// Gives up everything under way among `count` PSNs from `una` on; that one even if it was
    /// said to have arrived.
    pub(crate) fn lose_all(&mut self, una: Psn, count: u32) {
        for i in 0..count {
            let psn = una.add(i);
            match self.state(psn) {
                State::Flying => self.set(psn, State::LostRequest),
                State::Sacked if i == 0 => self.set(psn, State::LostRequest),
                State::Awaited => self.set(psn, State::LostReply),
                _ => {}
            }
        }
        self.requests.clear();
        self.replies.clear();
    }

    /// Finds what is lost; how many PSNs.
    pub(crate) fn detect(&mut self, now: Instant, rule: &LossRule) -> u32 {
        self.detect_requests(now, rule) + self.detect_replies(now, rule)
    }

    fn detect_requests(&mut self, now: Instant, rule: &LossRule) -> u32 {
        let overtaken = self.requests.overtaken(rule.tolerance);
        let mut lost = 0;
        while let Some((order, psn)) = self.requests.front() {
            if self.is_flying(order, psn) {
                let hopeless = overtaken.is_some_and(|o| order.is_before(o));
                if !hopeless && self.request_deadline(rule).is_none_or(|at| now < at) {
                    break;
                }
            }
            lost += u32::from(self.give_up_request());
        }
        lost
    }

    fn detect_replies(&mut self, now: Instant, rule: &LossRule) -> u32 {
        let overtaken = self.replies.overtaken(rule.tolerance);
        let mut lost = 0;
        while let Some((order, psn)) = self.replies.front() {
            if self.is_asked(order, psn) {
                if self.state(psn) != State::Awaited {
                    // Its request has not been executed, as far as is known: no response to
                    // anything behind it either.
                    break;
                }
                let hopeless = overtaken.is_some_and(|o| order.is_before(o));
                let repeat = self.repeat_deadline(psn, rule);
                let overdue = repeat.is_some_and(|at| now >= at);
                if !hopeless && !overdue && !self.is_late(now, order, rule) {
                    return lost;
                }
            }
            lost += u32::from(self.give_up_reply());
        }
        self.replies.hole_since = Instant::NEVER;
        lost
    }

    /// Whether the oldest awaited response has stayed away for too long since it was overtaken.
    fn is_late(&mut self, now: Instant, order: Order, rule: &LossRule) -> bool {
        let replies = &mut self.replies;
        let Some(newest) = replies.newest_arrived().filter(|&n| order.is_before(n)) else {
            replies.hole_since = Instant::NEVER;
            return false;
        };
        if replies.hole_since == Instant::NEVER || !order.is_before(replies.hole_end) {
            replies.hole_since = now;
            replies.hole_end = newest;
        }
        now >= replies.hole_since + rule.reordering
    }

    /// When the oldest flying request will be late, if it was overtaken.
    fn request_deadline(&self, rule: &LossRule) -> Option<Instant> {
        let (order, psn) = self.requests.front()?;
        let newest = self.requests.newest_arrived()?;
        (order.is_before(newest) && self.is_flying(order, psn))
            .then(|| self.at(psn).at + rule.patience)
    }

    /// When a response that was asked for again is late: it has no others to wait for. If it is lost
    /// again and again, twice as long each time: the responder may have more to do than round trips
    /// tell, or want to be asked.
    fn repeat_deadline(&self, psn: Psn, rule: &LossRule) -> Option<Instant> {
        let sent = self.at(psn);
        let repeats = (sent.times & TIMES).checked_sub(2)?;
        let doublings = repeats
            .saturating_sub(REPEATS_AT_ONCE)
            .min(REPEAT_DOUBLINGS);
        let patience = rule.patience.as_nanos().max(REPEAT_FLOOR.as_nanos()) << doublings;
        (sent.state == State::Awaited).then(|| sent.at + Duration::from_nanos(patience))
    }

    /// When [`Scoreboard::detect`] will find something by the time alone; `NEVER`: it will not.
    /// Asked right after it.
    pub(crate) fn deadline(&self, rule: &LossRule) -> Instant {
        let request = self.request_deadline(rule).unwrap_or(Instant::NEVER);
        let repeat = self.replies.front().and_then(|(order, psn)| {
            let asked = self.is_asked(order, psn);
            self.repeat_deadline(psn, rule).filter(|_| asked)
        });
        request
            .min(self.replies.hole_since + rule.reordering)
            .min(repeat.unwrap_or(Instant::NEVER))
    }

    /// The first PSN to be sent again among `count` from `una` on.
    pub(crate) fn first_lost(&self, una: Psn, count: u32) -> Option<Psn> {
        Some(una.add(self.lost.first_set(una.value(), count)?))
    }

    /// How many responses from `psn` on are to be asked for again, at most `count`.
    pub(crate) fn lost_replies(&self, psn: Psn, count: u32) -> u32 {
        let run = (0..count).take_while(|&i| self.state(psn.add(i)) == State::LostReply);
        // At most `count`.
        u32::try_from(run.count()).unwrap_or(count)
    }

    /// Forgets what is under way (the QP is in error).
    pub(crate) fn clear(&mut self) {
        let cum = self.cum;
        self.start(cum);
    }
}
