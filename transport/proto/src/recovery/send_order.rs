//! Packets in the order they were sent, and which of them have arrived: what tells a lost packet
//! from one that was overtaken.
//!
//! Every packet gets the next number when it leaves, a packet sent again gets a new one. A packet
//! is deemed lost when more than a tolerated number of packets sent after it have arrived, or when
//! one has and it stays away for a time; both work for packets sent again as for others.

use alloc::boxed::Box;
use alloc::vec;

use xroce_wire::newtypes::Psn;

use super::ring_bits::RingBits;
use crate::time::Instant;

/// Number of a packet in the order of sending; wraps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Order(pub(crate) u32);

impl Order {
    #[inline]
    pub(crate) const fn is_before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() < 0
    }

    #[inline]
    const fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    #[inline]
    const fn distance_to(self, later: Self) -> u32 {
        later.0.wrapping_sub(self.0)
    }
}

/// The order of one direction.
#[derive(Debug)]
pub(crate) struct SendOrder {
    /// PSN sent at each number.
    psns: Box<[Psn]>,
    arrived: RingBits,
    /// Number the next packet gets.
    next: Order,
    /// All before it need no watching any more.
    oldest: Order,
    /// Newest that arrived, if it is behind `oldest`.
    newest_arrived: Option<Order>,
    /// When it was first seen that something before `hole_end` is missing; `NEVER`: nothing is.
    pub(crate) hole_since: Instant,
    pub(crate) hole_end: Order,
}

impl SendOrder {
    /// For `capacity` packets, a power of two.
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            psns: vec![Psn::default(); capacity as usize].into(),
            arrived: RingBits::new(capacity),
            next: Order(0),
            oldest: Order(0),
            newest_arrived: None,
            hole_since: Instant::NEVER,
            hole_end: Order(0),
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.oldest = self.next;
        self.newest_arrived = None;
        self.hole_since = Instant::NEVER;
    }

    #[inline]
    fn slot(&self, order: Order) -> usize {
        order.0 as usize & (self.psns.len() - 1)
    }

    /// The oldest that is watched, if any is.
    #[inline]
    pub(crate) fn front(&self) -> Option<(Order, Psn)> {
        (self.oldest != self.next).then(|| (self.oldest, self.psns[self.slot(self.oldest)]))
    }

    /// The oldest needs no watching any more.
    #[inline]
    pub(crate) fn pop(&mut self) {
        self.oldest = self.oldest.add(1);
        if self
            .newest_arrived
            .is_some_and(|n| n.is_before(self.oldest))
        {
            self.newest_arrived = None;
        }
    }

    /// Whether [`SendOrder::push`] would forget the oldest.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.oldest.distance_to(self.next) as usize >= self.psns.len()
    }

    /// A packet leaves; the caller has made room.
    #[inline]
    pub(crate) fn push(&mut self, psn: Psn) -> Order {
        let order = self.next;
        let slot = self.slot(order);
        self.psns[slot] = psn;
        self.arrived.clear(order.0);
        self.next = order.add(1);
        order
    }

    /// A packet sent at this place arrived.
    #[inline]
    pub(crate) fn arrive(&mut self, order: Order) {
        if order.is_before(self.oldest) || !order.is_before(self.next) {
            return;
        }
        self.arrived.set(order.0);
        if self.newest_arrived.is_none_or(|n| n.is_before(order)) {
            self.newest_arrived = Some(order);
        }
    }

    /// Newest that arrived while something older is watched.
    #[inline]
    pub(crate) fn newest_arrived(&self) -> Option<Order> {
        self.newest_arrived
    }

    /// Everything before the number returned has been overtaken by more than `tolerance` packets.
    pub(crate) fn overtaken(&self, tolerance: u32) -> Option<Order> {
        let mut top = self.newest_arrived?;
        let mut wanted = tolerance + 1;
        loop {
            let watched = self.oldest.distance_to(top) + 1;
            let first = Order(top.0.wrapping_sub(63));
            let mut bits = self.arrived.window(first.0);
            if watched < 64 {
                bits &= u64::MAX << (64 - watched);
            }
            if bits.count_ones() >= wanted {
                for _ in 1..wanted {
                    bits &= !(1 << (63 - bits.leading_zeros()));
                }
                return Some(first.add(63 - bits.leading_zeros()));
            }
            wanted -= bits.count_ones();
            if watched <= 64 {
                return None;
            }
            top = Order(top.0.wrapping_sub(64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An order of `n` packets sent that begins at `start`.
    fn sent(start: u32, n: u32) -> SendOrder {
        let mut order = SendOrder::new(1024);
        order.next = Order(start);
        order.oldest = Order(start);
        for i in 0..n {
            assert_eq!(order.push(Psn::new(i)), Order(start.wrapping_add(i)));
        }
        order
    }

    #[test]
    fn counts_what_overtook_exactly() {
        for start in [0u32, 5, 0xffff_ff00, 0xffff_fffe] {
            let at = |n: u32| Order(start.wrapping_add(n));
            let mut order = sent(start, 300);
            // 0, 100 and 150 stay away.
            let missing = [0, 100, 150];
            for last in 0..=170 {
                if !missing.contains(&last) {
                    order.arrive(at(last));
                }
                for tolerance in [1, 2, 64, 65, 160] {
                    let passed = |n: u32| (n + 1..=last).filter(|l| !missing.contains(l)).count();
                    let is_overtaken = |n: &u32| passed(*n) > tolerance as usize;
                    // The first that is not.
                    let end = (0..=last).find(|n| !is_overtaken(n)).filter(|&n| n > 0);
                    let got = order.overtaken(tolerance);
                    let got = got.map(|o| o.0.wrapping_sub(start)).filter(|&n| n > 0);
                    assert_eq!(got, end, "{tolerance} tolerated, {last} was the last");
                }
            }
        }
    }

    #[test]
    fn what_is_no_longer_watched_does_not_count() {
        let mut order = sent(0, 10);
        for n in 0..5 {
            order.arrive(Order(n));
        }
        assert_eq!(order.overtaken(4), Some(Order(0)));
        order.pop();
        assert_eq!(order.overtaken(4), None);
        assert_eq!(order.overtaken(3), Some(Order(1)));
        for _ in 0..4 {
            order.pop();
        }
        assert_eq!(order.newest_arrived(), None);
        order.arrive(Order(3));
        order.arrive(Order(10));
        assert_eq!(order.newest_arrived(), None, "nothing that is watched");
        assert_eq!(order.front(), Some((Order(5), Psn::new(5))));
    }
}
