//! Spaces packets so that a QP keeps to its rate.
//!
//! One deadline, no tokens: after `n` bytes the next packet may leave `n · 8 / rate` later. Time
//! is kept in 2^-32 ns, so that at 100 Gb/s, where 64 bytes take 5.12 ns, the rate is as exact as
//! at 1 Mb/s; and per byte, computed when the rate changes, so that a packet costs a
//! multiplication. A late packet does not save credit beyond [`Pacer::BURST`], so an idle QP
//! cannot burst.

use crate::cc::Rate;
use crate::time::{Duration, Instant};

/// The next time a QP may send.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pacer {
    next: Instant,
    /// What `next` leaves out, 2^-32 ns.
    fraction: u32,
    /// Bytes on the wire that a packet has beyond those of its frame.
    overhead: u8,
    /// Bytes on the wire of the last packet, which `next` leaves room for.
    wire: u16,
    /// Rate `per_byte` is for.
    rate: Rate,
    /// Time a byte takes, 2^-32 ns.
    per_byte: u64,
}

impl Pacer {
    /// Lateness that is made up for: covers the poll interval of a busy engine.
    pub const BURST: Duration = Duration::from_micros(20);

    /// For frames with so many bytes around them on the wire.
    #[must_use]
    pub fn new(overhead: u8) -> Self {
        Self {
            overhead,
            ..Self::default()
        }
    }

    /// When the next packet may leave.
    #[must_use]
    pub const fn next(&self) -> Instant {
        self.next
    }

    /// Accounts for a frame of `bytes` sent at `now`.
    #[inline]
    pub fn on_sent(&mut self, now: Instant, bytes: usize, rate: Rate) {
        if rate.is_limited() {
            self.advance(now, bytes, rate);
        }
    }

    /// From now on the rate is another. A higher one holds for the packet that was sent last, too:
    /// the next may leave as if that had been sent at this rate.
    pub fn raise(&mut self, rate: Rate) {
        if rate <= self.rate {
            return;
        }
        let kept = whole_ns(self.gap(self.wire.into()));
        self.next = Instant::from_nanos(self.next.as_nanos().saturating_sub(kept));
        self.set_rate(rate);
        self.fraction = 0;
        self.next += Duration::from_nanos(whole_ns(self.gap(self.wire.into())));
    }

    fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
        let bits = u128::from(rate.as_bits_per_second());
        // No limit: no time at all.
        let per_byte = (8_000_000_000_u128 << 32).checked_div(bits).unwrap_or(0);
        self.per_byte = u64::try_from(per_byte).unwrap_or(u64::MAX);
    }

    /// Time that so many bytes take, 2^-32 ns.
    fn gap(&self, wire: u64) -> u128 {
        u128::from(wire) * u128::from(self.per_byte)
    }

    fn advance(&mut self, now: Instant, bytes: usize, rate: Rate) {
        if rate != self.rate {
            self.set_rate(rate);
        }
        let wire = bytes as u64 + u64::from(self.overhead);
        // An Ethernet frame has less than 64 KB.
        self.wire = u16::try_from(wire).unwrap_or(u16::MAX);
        let gap = self.gap(wire) + u128::from(self.fraction);
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(Self::BURST.as_nanos()));
        if self.next < earliest {
            self.next = earliest;
        }
        self.next += Duration::from_nanos(whole_ns(gap));
        #[allow(clippy::cast_possible_truncation, reason = "the low half")]
        {
            self.fraction = gap as u32;
        }
    }
}

/// Whole ns of a time in 2^-32 ns.
fn whole_ns(time: u128) -> u64 {
    u64::try_from(time >> 32).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `frames` frames as early as allowed and gives the time this took, ns.
    fn time_for(rate: u64, bytes: usize, frames: u64) -> u64 {
        let mut pacer = Pacer::new(24);
        let rate = Rate::bits_per_second(rate);
        let start = Instant::from_nanos(1_000_000_000);
        let mut now = start;
        // The first takes up what an idle QP may have saved.
        while pacer.next() <= start {
            pacer.on_sent(start, bytes, rate);
        }
        let begin = pacer.next();
        for _ in 0..frames {
            now = pacer.next();
            pacer.on_sent(now, bytes, rate);
        }
        assert!(now >= begin);
        pacer.next().since(begin).as_nanos()
    }

    /// Rule CC10.
    #[test]
    fn exact_at_any_rate() {
        for rate in [1_000_000, 123_456_789, 40_000_000_000, 400_000_000_000_u64] {
            for bytes in [64, 1082, 4178] {
                let frames = 100_000;
                let bits = (bytes as u64 + 24) * 8 * frames;
                let expected = u128::from(bits) * 1_000_000_000 / u128::from(rate);
                let expected = u64::try_from(expected).unwrap();
                let took = time_for(rate, bytes, frames);
                // 2^-32 ns a byte, and 1 ns at the end.
                let off = took.abs_diff(expected);
                assert!(off <= 1 + expected / 10_000_000, "{rate} {bytes}: {off}");
            }
        }
    }

    /// Rule CC10.
    #[test]
    fn an_idle_queue_pair_saves_twenty_microseconds_and_no_more() {
        let rate = Rate::bits_per_second(8_000_000_000);
        let mut pacer = Pacer::new(0);
        let now = Instant::from_nanos(1_000_000_000);
        let mut burst = 0;
        while pacer.next() <= now {
            pacer.on_sent(now, 1000, rate);
            burst += 1;
        }
        // 1 µs each.
        assert_eq!(burst, 21);
    }

    #[test]
    fn a_change_of_rate_counts_from_the_next_frame() {
        let mut pacer = Pacer::new(0);
        let now = Instant::from_nanos(0);
        pacer.on_sent(now, 1000, Rate::bits_per_second(8_000_000_000));
        assert_eq!(pacer.next(), Instant::from_nanos(1000));
        pacer.on_sent(now, 1000, Rate::bits_per_second(1_000_000_000));
        assert_eq!(pacer.next(), Instant::from_nanos(9000));
        pacer.on_sent(now, 1000, Rate::UNLIMITED);
        assert_eq!(pacer.next(), Instant::from_nanos(9000));
    }

    /// Rule CC11.
    #[test]
    fn case_120_a_raised_rate_holds_for_the_appointment_too() {
        let mut pacer = Pacer::new(0);
        let now = Instant::from_nanos(5_000_000_000);
        while pacer.next() <= now {
            pacer.on_sent(now, 1000, Rate::bits_per_second(1000));
        }
        let slow = pacer.next();
        assert_eq!(slow.since(now).as_nanos() / 1_000_000_000, 7, "8 s a frame");
        pacer.raise(Rate::bits_per_second(500));
        assert_eq!(
            pacer.next(),
            slow,
            "a lower rate counts from the next frame"
        );
        pacer.raise(Rate::bits_per_second(8_000_000_000));
        assert!(pacer.next() <= now + Duration::from_micros(1));
        pacer.on_sent(now, 1000, Rate::bits_per_second(1000));
        assert!(pacer.next() > now + Duration::from_millis(7000));
        pacer.raise(Rate::UNLIMITED);
        pacer.on_sent(now, 1000, Rate::bits_per_second(8_000_000_000));
        assert!(pacer.next() <= now + Duration::from_micros(1));
    }
}
