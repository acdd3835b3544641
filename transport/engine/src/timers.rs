//! Deadlines of queue pairs: a hashed wheel of intrusive lists.
//!
//! Lazy: a QP sits in at most one slot, at or before its real deadline, and is asked again when
//! the slot comes round; moving a deadline later costs nothing, which is what every ACK does.
//! Arming, moving and firing neither allocate nor search.

use xroce_proto::time::Instant;

/// Width of a slot: 2^10 ns, 1 µs, so that a pace is kept within a few packets.
const TICK_SHIFT: u32 = 10;
/// Slots; later deadlines wait in the last and are asked again every 4 ms.
const SLOTS: usize = 4096;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    prev: u32,
    /// Tick it is filed under, `u64::MAX` if not filed.
    tick: u64,
}

const IDLE: Node = Node {
    next: NONE,
    prev: NONE,
    tick: u64::MAX,
};

/// The wheel; members are small dense indices.
#[derive(Debug)]
pub(crate) struct Wheel {
    heads: Box<[u32]>,
    occupied: [u64; SLOTS / 64],
    nodes: Vec<Node>,
    /// First tick not yet fired.
    current: u64,
    armed: u32,
}

#[allow(clippy::cast_possible_truncation, reason = "below SLOTS")]
const fn slot_of(tick: u64) -> usize {
    (tick % SLOTS as u64) as usize
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Self {
            heads: vec![NONE; SLOTS].into(),
            occupied: [0; SLOTS / 64],
            nodes: Vec::new(),
            current: 0,
            armed: 0,
        }
    }

    /// Makes room for members `0 .. count`.
    pub(crate) fn reserve(&mut self, count: usize) {
        if self.nodes.len() < count {
            self.nodes.resize(count, IDLE);
        }
    }

    /// Files `member` so that it fires no later than one tick after `deadline`.
    #[inline]
    pub(crate) fn arm(&mut self, member: u32, deadline: Instant) {
        let latest = self.current + SLOTS as u64 - 1;
        let tick = ((deadline.as_nanos() >> TICK_SHIFT) + 1).clamp(self.current, latest);
        let Some(node) = self.nodes.get(member as usize) else {
            return;
        };
        // Filed earlier already: it will be asked then and filed again.
        if node.tick <= tick {
            return;
        }
        self.disarm(member);
        self.link(member, tick);
    }

    fn link(&mut self, member: u32, tick: u64) {
        let slot = slot_of(tick);
        let next = self.heads[slot];
        self.nodes[member as usize] = Node {
            next,
            prev: NONE,
            tick,
        };
        if next != NONE {
            self.nodes[next as usize].prev = member;
        }
        self.heads[slot] = member;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.armed += 1;
    }

    pub(crate) fn disarm(&mut self, member: u32) {
        let Some(&Node { next, prev, tick }) = self.nodes.get(member as usize) else {
            return;
        };
        if tick == u64::MAX {
            return;
        }
        let slot = slot_of(tick);
        if prev == NONE {
            self.heads[slot] = next;
        } else {
            self.nodes[prev as usize].next = next;
        }
        if next != NONE {
            self.nodes[next as usize].prev = prev;
        }
        if self.heads[slot] == NONE {
            self.occupied[slot / 64] &= !(1 << (slot % 64));
        }
        self.nodes[member as usize] = IDLE;
        self.armed -= 1;
    }

    /// Takes out one member whose slot has come by `now`; `None` when there is none left.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let head = self.first_due(now)?;
        self.disarm(head);
        Some(head)
    }

    /// Whether the slot of a member has come by `now`.
    #[inline]
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        self.first_due(now).is_some()
    }

    #[inline]
    fn first_due(&mut self, now: Instant) -> Option<u32> {
        let end = now.as_nanos() >> TICK_SHIFT;
        if self.armed == 0 {
            self.current = self.current.max(end + 1);
            return None;
        }
        // A jump of more than a turn passes every slot once.
        if end.saturating_sub(self.current) > SLOTS as u64 {
            self.current = self.current.max(end - SLOTS as u64);
        }
        while self.current <= end {
            let slot = slot_of(self.current);
            let head = self.heads[slot];
            if head != NONE {
                return Some(head);
            }
            self.current += 1;
            if self.occupied[slot / 64] == 0 {
                // Skip the rest of an empty word.
                let rest = 63 - (slot % 64) as u64;
                self.current = (self.current + rest).min(end + 1);
            }
        }
        None
    }

    /// Earliest time at which a member has to be asked, at most one tick late.
    pub(crate) fn next(&self) -> Option<Instant> {
        if self.armed == 0 {
            return None;
        }
        let first = (0..SLOTS as u64)
            .find(|i| self.heads[slot_of(self.current + i)] != NONE)
            .unwrap_or(0);
        Some(Instant::from_nanos((self.current + first) << TICK_SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    fn due(wheel: &mut Wheel, us: u64) -> Vec<u32> {
        std::iter::from_fn(|| wheel.pop_due(at(us))).collect()
    }

    #[test]
    fn fires_after_the_deadline_and_within_a_tick() {
        let mut wheel = Wheel::new();
        wheel.reserve(3);
        wheel.arm(0, at(100));
        wheel.arm(1, at(50));
        wheel.arm(2, at(100));
        assert_eq!(due(&mut wheel, 49), [] as [u32; 0]);
        assert_eq!(due(&mut wheel, 66), [1]);
        assert_eq!(due(&mut wheel, 99), [] as [u32; 0]);
        let mut both = due(&mut wheel, 117);
        both.sort_unstable();
        assert_eq!(both, [0, 2]);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn an_earlier_deadline_wins_a_later_one_is_free() {
        let mut wheel = Wheel::new();
        wheel.reserve(1);
        wheel.arm(0, at(1000));
        wheel.arm(0, at(5000));
        assert!(wheel.next().unwrap() <= at(1017));
        wheel.arm(0, at(20));
        assert_eq!(due(&mut wheel, 40), [0]);
        assert_eq!(due(&mut wheel, 10_000), [] as [u32; 0]);
    }

    #[test]
    fn an_overdue_deadline_is_asked_once_per_tick() {
        // A member that stays overdue, such as a paced QP on a full port, must not be asked
        // again at the same time: the poll loop would find work for ever.
        for others in [false, true] {
            let mut wheel = Wheel::new();
            wheel.reserve(2);
            wheel.arm(0, at(50));
            if others {
                wheel.arm(1, at(5000));
            }
            assert_eq!(due(&mut wheel, 66), [0]);
            wheel.arm(0, at(50));
            assert_eq!(due(&mut wheel, 66), [] as [u32; 0]);
            assert!(wheel.next().unwrap() <= at(74));
            assert_eq!(due(&mut wheel, 74), [0]);
        }
    }

    #[test]
    fn beyond_the_horizon_it_is_asked_on_the_way() {
        let mut wheel = Wheel::new();
        wheel.reserve(1);
        wheel.arm(0, at(1_000_000));
        assert_eq!(due(&mut wheel, 40_000), [0]);
        wheel.arm(0, at(1_000_000));
        wheel.disarm(0);
        assert_eq!(due(&mut wheel, 2_000_000), [] as [u32; 0]);
        wheel.arm(0, at(1));
        assert_eq!(
            due(&mut wheel, 2_000_020),
            [0],
            "an overdue deadline fires at once"
        );
    }
}
