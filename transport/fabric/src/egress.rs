//! The eight queues of an egress port and who is next: strict priorities first, the rest by
//! weighted round robin in bytes. A queue is in order of arrival, or ingress ports take turns in it.

use std::collections::VecDeque;

use crate::frame::{Frame, PRIORITIES};

/// Bytes that a weight of 1 is worth in a round: at least the longest frame, so that every queue
/// sends in every round (Shreedhar and Varghese, 1995).
const QUANTUM: u64 = 9216;

/// Share of each priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weights([u16; PRIORITIES]);

impl Weights {
    /// Weights 1 ..= 1000; 0 is strict priority: always before those with a weight, and the higher
    /// of two first. Larger weights are taken as 1000.
    #[must_use]
    pub fn new(weights: [u16; PRIORITIES]) -> Self {
        Self(weights.map(|w| w.min(1000)))
    }

    fn strict(&self) -> u8 {
        bits(self.0.iter().map(|&w| w == 0))
    }
}

impl Default for Weights {
    /// 6 (congestion notifications) and 7 strict, the others alike.
    fn default() -> Self {
        Self([1, 1, 1, 1, 1, 1, 0, 0])
    }
}

/// Who is next within a priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Whoever came first.
    #[default]
    Arrival,
    /// Ingress ports in turn, frame by frame: a switch with virtual output queues at its inputs.
    Ingress,
}

/// The frames of one priority.
#[derive(Debug, Default)]
struct Queue {
    /// One, or one per ingress port.
    lines: Vec<VecDeque<Frame>>,
    /// Line whose turn it is.
    turn: usize,
    frames: usize,
}

impl Queue {
    #[inline]
    fn push(&mut self, line: usize, frame: Frame) {
        if line >= self.lines.len() {
            self.lines.resize_with(line + 1, VecDeque::new);
        }
        self.lines[line].push_back(frame);
        self.frames += 1;
    }

    /// The line that is next.
    #[inline]
    fn next(&self) -> Option<usize> {
        let n = self.lines.len();
        let mut from_turn = (self.turn..n).chain(0..self.turn.min(n));
        from_turn.find(|&line| !self.lines[line].is_empty())
    }

    fn front(&self) -> Option<&Frame> {
        self.lines[self.next()?].front()
    }

    #[inline]
    fn pop(&mut self) -> Option<Frame> {
        let line = self.next()?;
        self.turn = line + 1;
        self.frames -= 1;
        self.lines[line].pop_front()
    }
}

/// Bits of a mask, the lowest first.
fn bits(set: impl Iterator<Item = bool>) -> u8 {
    set.enumerate()
        .filter(|(_, set)| *set)
        .fold(0, |mask, (i, _)| mask | 1 << i)
}

#[derive(Debug)]
pub(crate) struct Egress {
    queues: [Queue; PRIORITIES],
    order: Order,
    bytes: [u64; PRIORITIES],
    total: u64,
    filled: u8,
    paused: u8,
    strict: u8,
    weights: Weights,
    deficit: [u64; PRIORITIES],
    turn: usize,
}

impl Egress {
    pub(crate) fn new(weights: Weights, order: Order) -> Self {
        Self {
            queues: std::array::from_fn(|_| Queue::default()),
            order,
            bytes: [0; PRIORITIES],
            total: 0,
            filled: 0,
            paused: 0,
            strict: weights.strict(),
            weights,
            deficit: [0; PRIORITIES],
            turn: 0,
        }
    }

    /// Bytes that wait in one priority.
    #[inline]
    pub(crate) fn bytes_of(&self, priority: u8) -> u64 {
        self.bytes[usize::from(priority) % PRIORITIES]
    }

    /// Bytes that wait.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.total
    }

    /// Frames that wait in one priority.
    pub(crate) fn frames_of(&self, priority: usize) -> usize {
        self.queues[priority % PRIORITIES].frames
    }

    /// Frames that wait.
    pub(crate) fn frames(&self) -> usize {
        self.queues.iter().map(|q| q.frames).sum()
    }

    #[inline]
    pub(crate) fn is_paused(&self, priority: usize) -> bool {
        self.paused >> priority & 1 == 1
    }

    /// Pauses or resumes a priority; whether that changed anything.
    pub(crate) fn set_paused(&mut self, priority: u8, paused: bool) -> bool {
        let before = self.paused;
        let bit = 1 << (usize::from(priority) % PRIORITIES);
        if paused {
            self.paused |= bit;
        } else {
            self.paused &= !bit;
        }
        self.paused != before
    }

    #[inline]
    pub(crate) fn push(&mut self, frame: Frame) {
        let p = usize::from(frame.tag().priority) % PRIORITIES;
        self.bytes[p] += frame.len();
        self.total += frame.len();
        self.filled |= 1 << p;
        let line = match self.order {
            Order::Arrival => 0,
            Order::Ingress => usize::from(frame.tag().ingress),
        };
        self.queues[p].push(line, frame);
    }

    /// The next frame of a priority that is not paused.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Frame> {
        let ready = self.filled & !self.paused;
        if ready == 0 {
            return None;
        }
        let strict = ready & self.strict;
        if strict != 0 {
            return self.take(7 - strict.leading_zeros() as usize);
        }
        if ready.is_power_of_two() {
            // Alone: nobody to share with.
            return self.take(ready.trailing_zeros() as usize);
        }
        let p = self.round_robin(ready);
        self.take(p)
    }

    /// Everything, for a link that went down.
    pub(crate) fn pop_any(&mut self) -> Option<Frame> {
        match self.filled {
            0 => None,
            filled => self.take(filled.trailing_zeros() as usize),
        }
    }

    /// Deficit round robin among at least two queues.
    fn round_robin(&mut self, ready: u8) -> usize {
        loop {
            let p = self.turn;
            if ready >> p & 1 == 1 {
                let need = self.queues[p].front().map_or(0, Frame::len);
                if self.deficit[p] >= need {
                    self.deficit[p] -= need;
                    return p;
                }
            }
            // The next one that is ready has its quantum for this round.
            let after = (p + 1) % PRIORITIES;
            let ahead = ready
                .rotate_right(u32::try_from(after).unwrap_or(0))
                .trailing_zeros();
            self.turn = (after + ahead as usize) % PRIORITIES;
            self.deficit[self.turn] += u64::from(self.weights.0[self.turn]) * QUANTUM;
        }
    }

    fn take(&mut self, p: usize) -> Option<Frame> {
        let frame = self.queues[p].pop()?;
        self.bytes[p] -= frame.len();
        self.total -= frame.len();
        if self.queues[p].frames == 0 {
            self.filled &= !(1 << p);
            self.deficit[p] = 0;
        }
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(priority: u8, len: usize) -> Frame {
        let mut f = Frame::new(len);
        f.set_len(len);
        f.tag_mut().priority = priority;
        f
    }

    fn bytes_sent(egress: &mut Egress, refill: &[(u8, usize)], frames: usize) -> [u64; 8] {
        let mut sent = [0; 8];
        for _ in 0..frames {
            for &(p, len) in refill {
                while egress.frames_of(p.into()) < 2 {
                    egress.push(frame(p, len));
                }
            }
            let f = egress.pop().unwrap();
            sent[usize::from(f.tag().priority)] += f.len();
        }
        sent
    }

    #[test]
    fn weights_share_the_link_in_bytes_whatever_the_frames() {
        let weights = Weights::new([1, 3, 0, 2, 1, 1, 0, 0]);
        let mut egress = Egress::new(weights, Order::Arrival);
        let sent = bytes_sent(&mut egress, &[(0, 1082), (1, 4154), (3, 100)], 60_000);
        let share = |p: usize| sent[p] as f64 / sent.iter().sum::<u64>() as f64;
        for (p, expected) in [(0, 1.0 / 6.0), (1, 0.5), (3, 2.0 / 6.0)] {
            assert!((share(p) - expected).abs() < 0.01, "{p}: {}", share(p));
        }
    }

    #[test]
    fn strict_priorities_come_first_and_a_pause_holds_one_only() {
        let mut egress = Egress::new(Weights::default(), Order::Arrival);
        for p in [0, 3, 6, 7] {
            egress.push(frame(p, 100));
        }
        assert!(egress.set_paused(7, true));
        assert!(!egress.set_paused(7, true));
        let order: Vec<u8> = std::iter::from_fn(|| egress.pop())
            .map(|f| f.tag().priority)
            .collect();
        assert_eq!(order[0], 6);
        assert_eq!((order.len(), egress.frames(), egress.bytes()), (3, 1, 100));
        egress.set_paused(7, false);
        assert_eq!(egress.pop().map(|f| f.tag().priority), Some(7));
        assert!(egress.pop().is_none());
    }

    #[test]
    fn a_queue_that_was_empty_or_paused_saves_up_nothing() {
        let mut egress = Egress::new(Weights::default(), Order::Arrival);
        // Alone for a long time.
        bytes_sent(&mut egress, &[(0, 1000)], 1000);
        let sent = bytes_sent(&mut egress, &[(0, 1000), (1, 1000)], 1000);
        assert!(sent[0].abs_diff(sent[1]) <= 2 * QUANTUM, "{sent:?}");
    }

    #[test]
    fn ingress_ports_take_turns_and_keep_their_own_order() {
        let from = |ingress: u16, len: usize| {
            let mut f = frame(3, len);
            f.tag_mut().ingress = ingress;
            f
        };
        let served = |order: Order| {
            let mut egress = Egress::new(Weights::default(), order);
            for (ingress, len) in [(2, 100), (2, 101), (2, 102), (0, 103), (5, 104), (0, 105)] {
                egress.push(from(ingress, len));
            }
            assert_eq!((egress.frames(), egress.bytes()), (6, 615));
            std::iter::from_fn(|| egress.pop())
                .map(|f| f.len())
                .collect::<Vec<_>>()
        };
        assert_eq!(served(Order::Arrival), [100, 101, 102, 103, 104, 105]);
        assert_eq!(served(Order::Ingress), [103, 100, 104, 105, 101, 102]);
    }
}
