//! Who sends next: traffic classes share the port by weight, the queue pairs of a class take
//! turns.
//!
//! Up to eight classes, by the DSCP of a queue pair's packets or by the priority in their VLAN
//! tag. A class of weight 0 goes before all others (of several, the highest number first): for
//! what is urgent and little. The others share by bytes, deficit round robin (Shreedhar and
//! Varghese, SIGCOMM 1995): a class is given `weight` × 16 KiB in its turn and pays for what it
//! sends, so that bulk cannot hold up what came after it for longer than a turn of one queue pair.
//!
//! With one class ready, which is almost always, all this is one comparison.

use std::collections::VecDeque;

use xroce_wire::newtypes::VlanTci;
use xroce_wire::path::AddressVector;

use crate::qp_table::Entry;

/// Classes, at most.
pub const CLASSES_MAX: usize = 8;
/// Bytes a class of weight 1 is given in a round.
const ROUND_BYTES: i64 = 16 << 10;

/// What decides on the class of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Its DSCP.
    Dscp,
    /// The priority in its VLAN tag; 0 without tag.
    Priority,
}

/// Traffic classes of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrafficClasses {
    /// What decides.
    pub trust: Trust,
    /// Class of each DSCP, below [`CLASSES_MAX`]; higher numbers count modulo that.
    pub of_dscp: [u8; 64],
    /// Class of each priority, likewise.
    pub of_priority: [u8; 8],
    /// Share of each class; 0: before all others.
    pub weights: [u16; CLASSES_MAX],
}

impl Default for TrafficClasses {
    /// One class for everything.
    fn default() -> Self {
        Self {
            trust: Trust::Dscp,
            of_dscp: [0; 64],
            of_priority: [0; 8],
            weights: [1; CLASSES_MAX],
        }
    }
}

impl TrafficClasses {
    /// Eight classes by the upper three bits of the DSCP (the class selector), all of the same
    /// weight.
    #[must_use]
    pub fn by_class_selector() -> Self {
        let mut classes = Self::default();
        for (dscp, class) in (0_u8..).zip(&mut classes.of_dscp) {
            *class = dscp >> 3;
        }
        for (priority, class) in (0_u8..).zip(&mut classes.of_priority) {
            *class = priority;
        }
        classes
    }

    /// Class of packets on a path.
    pub(crate) fn of(&self, av: &AddressVector) -> u8 {
        let class = match self.trust {
            Trust::Dscp => self.of_dscp[usize::from(av.traffic_class >> 2)],
            Trust::Priority => {
                let priority = av.vlan.map_or(0, VlanTci::pcp);
                self.of_priority[usize::from(priority & 7)]
            }
        };
        class & 7
    }
}

/// Queue pairs that may have something to send, each in one list at most, once.
#[derive(Debug)]
pub(crate) struct Schedule {
    lists: [VecDeque<u32>; CLASSES_MAX],
    /// Which lists are not empty, one bit each.
    ready: u8,
    /// Which classes go before all others.
    strict: u8,
    weights: [u16; CLASSES_MAX],
    /// Bytes each class may still send in this round; below 0 it has sent ahead.
    deficit: [i64; CLASSES_MAX],
    /// Whose turn it is.
    current: u8,
}

impl Schedule {
    pub(crate) fn new(classes: &TrafficClasses) -> Self {
        let strict = (0..CLASSES_MAX).filter(|&c| classes.weights[c] == 0);
        Self {
            lists: Default::default(),
            ready: 0,
            strict: strict.fold(0, |bits, class| bits | 1 << class),
            weights: classes.weights,
            deficit: [0; CLASSES_MAX],
            current: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ready == 0
    }

    /// Makes room for so many queue pairs, all of which may be of one class.
    pub(crate) fn reserve(&mut self, count: usize) {
        for list in &mut self.lists {
            list.reserve(count.saturating_sub(list.len()));
        }
    }

    #[inline]
    pub(crate) fn push_back(&mut self, class: u8, index: u32) {
        let class = class & 7;
        self.ready |= 1 << class;
        self.lists[usize::from(class)].push_back(index);
    }

    /// Lists a queue pair that may have something to send, unless it is listed.
    #[inline(always)]
    pub(crate) fn enlist(&mut self, entry: &mut Entry, index: u32) {
        if !entry.active {
            entry.active = true;
            self.push_back(entry.class, index);
        }
    }

    #[inline]
    pub(crate) fn push_front(&mut self, class: u8, index: u32) {
        let class = class & 7;
        self.ready |= 1 << class;
        self.lists[usize::from(class)].push_front(index);
    }

    pub(crate) fn remove(&mut self, index: u32) {
        for (class, list) in self.lists.iter_mut().enumerate() {
            list.retain(|&i| i != index);
            if list.is_empty() {
                self.ready &= !(1 << class);
            }
        }
    }

    /// The queue pair whose turn it is, and its class.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u8, u32)> {
        if self.ready == 0 {
            return None;
        }
        let class = if self.ready.is_power_of_two() {
            self.only()
        } else {
            self.choose()
        };
        let list = &mut self.lists[usize::from(class)];
        let index = list.pop_front()?;
        if list.is_empty() {
            self.ready &= !(1 << class);
        }
        Some((class, index))
    }

    /// The only class that is ready. What it sends while nobody else wants to is nobody's loss.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "below 8")]
    fn only(&mut self) -> u8 {
        let class = self.ready.trailing_zeros() as u8;
        self.deficit[usize::from(class & 7)] = 0;
        class & 7
    }

    #[cold]
    #[allow(clippy::cast_possible_truncation, reason = "below 8")]
    fn choose(&mut self) -> u8 {
        let urgent = self.ready & self.strict;
        if urgent != 0 {
            return 7 - urgent.leading_zeros() as u8;
        }
        loop {
            let at = usize::from(self.current);
            let is_ready = self.ready & (1 << self.current) != 0;
            if is_ready && self.deficit[at] > 0 {
                return self.current;
            }
            if !is_ready {
                self.deficit[at] = self.deficit[at].min(0);
            }
            self.current = (self.current + 1) & 7;
            let next = usize::from(self.current);
            if self.ready & (1 << self.current) != 0 {
                self.deficit[next] += i64::from(self.weights[next]) * ROUND_BYTES;
            }
        }
    }

    /// A queue pair of this class has sent.
    #[inline]
    pub(crate) fn charge(&mut self, class: u8, bytes: usize) {
        self.deficit[usize::from(class & 7)] -= i64::try_from(bytes).unwrap_or(i64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All classes always want to send `packet` bytes: what each gets of `total` turns.
    fn shares(weights: [u16; CLASSES_MAX], wanting: &[u8], packet: usize) -> [u64; CLASSES_MAX] {
        let classes = TrafficClasses {
            weights,
            ..TrafficClasses::by_class_selector()
        };
        let mut schedule = Schedule::new(&classes);
        for &class in wanting {
            schedule.push_back(class, class.into());
            schedule.push_back(class, u32::from(class) + 8);
        }
        let mut sent = [0; CLASSES_MAX];
        for _ in 0..20_000 {
            let (class, index) = schedule.pop().unwrap();
            assert_eq!(index % 8, class.into());
            sent[usize::from(class)] += packet as u64;
            schedule.charge(class, packet);
            schedule.push_back(class, index);
        }
        sent
    }

    #[test]
    fn classes_share_by_weight_whatever_the_size_of_a_turn() {
        for packet in [64, 1082, 66_000, 400_000] {
            let sent = shares([3, 1, 1, 1, 1, 1, 1, 1], &[0, 1, 5], packet);
            let total: u64 = sent.iter().sum();
            for (class, share) in [(0, 60), (1, 20), (5, 20)] {
                let percent = sent[class] * 1000 / total;
                assert!(
                    percent.abs_diff(share * 10) <= 10,
                    "{packet}: class {class} has {percent} of 1000"
                );
            }
        }
    }

    #[test]
    fn a_class_of_weight_zero_goes_first_and_the_highest_of_several() {
        let sent = shares([1, 1, 0, 1, 0, 1, 1, 1], &[0, 2, 4], 1000);
        assert_eq!((sent[0], sent[2]), (0, 0));
        assert_eq!(sent[4], 20_000_000);
    }

    #[test]
    fn what_a_class_sent_alone_is_not_held_against_it() {
        let mut schedule = Schedule::new(&TrafficClasses::by_class_selector());
        schedule.push_back(0, 1);
        for _ in 0..1000 {
            let (class, index) = schedule.pop().unwrap();
            schedule.charge(class, 1 << 20);
            schedule.push_back(class, index);
        }
        schedule.push_back(7, 2);
        let mut seen = [0; 2];
        for _ in 0..200 {
            let (class, index) = schedule.pop().unwrap();
            seen[usize::from(class == 7)] += 1;
            schedule.charge(class, 16 << 10);
            schedule.push_back(class, index);
        }
        assert!(seen[0] > 20, "{seen:?}");
    }

    #[test]
    fn removed_from_whatever_list() {
        let mut schedule = Schedule::new(&TrafficClasses::by_class_selector());
        schedule.push_back(3, 9);
        schedule.push_front(3, 8);
        schedule.remove(8);
        assert_eq!(schedule.pop(), Some((3, 9)));
        schedule.push_back(3, 9);
        schedule.remove(9);
        assert!(schedule.is_empty());
        assert_eq!(schedule.pop(), None);
    }

    #[test]
    fn the_class_follows_from_dscp_or_priority() {
        let mut av = AddressVector {
            src: Default::default(),
            dst: Default::default(),
            src_mac: xroce_wire::newtypes::MacAddr::new([0; 6]),
            dst_mac: xroce_wire::newtypes::MacAddr::new([0; 6]),
            vlan: None,
            traffic_class: 46 << 2 | 1,
            hop_limit: 64,
            flow_label: 0,
            src_port: 0xc000,
        };
        let mut classes = TrafficClasses::by_class_selector();
        assert_eq!(classes.of(&av), 5);
        classes.trust = Trust::Priority;
        assert_eq!(classes.of(&av), 0);
        av.vlan = Some(VlanTci::tagged(7, 3));
        assert_eq!(classes.of(&av), 3);
    }
}
