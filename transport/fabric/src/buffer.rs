//! The buffer of a switch: who may store a frame, who has to pause.
//!
//! A frame occupies the buffer from its arrival until it begins to leave. The buffer is shared, or
//! each ingress port has its own, which others neither fill nor may use. Priorities under PFC are
//! accounted by ingress port: up to a threshold in the shared part, then the sender is paused and
//! what still comes goes into headroom of its own. Priorities without PFC are limited by egress
//! queue. Both thresholds are dynamic (Choudhury and Hahne, 1998): a multiple of what is free.

use crate::frame::{PRIORITIES, serialise};
use crate::units::{BitRate, Time};

/// Bytes of a PFC frame without FCS: padded to the minimum.
pub(crate) const PAUSE_FRAME: u64 = 60;

/// When the sender of a lossless priority is paused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Xoff {
    /// When its bytes exceed this multiple of the free shared buffer, in 1/1024.
    Dynamic(u64),
    /// When its bytes exceed so many, or the shared buffer is full.
    Static(u64),
}

/// Who uses a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// All ports of a switch use one.
    #[default]
    Switch,
    /// What comes in by a port uses that port's own.
    Port,
}

/// How a switch manages its buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BufferConfig {
    /// Of a switch or of each of its ports?
    pub sharing: Sharing,
    /// All of it, headroom included, in bytes.
    pub total: u64,
    /// An egress queue without PFC may hold this multiple of the free shared buffer, in 1/1024.
    /// Buffers of ports have no such limit.
    pub alpha: u64,
    /// And at most so many bytes.
    pub queue_limit: u64,
    /// Priorities under PFC, as bits.
    pub lossless: u8,
    /// When to pause.
    pub xoff: Xoff,
    /// The sender goes on once it is so many bytes below the threshold.
    pub xon_offset: u64,
    /// Headroom of a port for each lossless priority, bytes; `None` is [`headroom`].
    pub headroom: Option<u64>,
    /// Longest frame, bytes, for that.
    pub max_frame: u64,
}

/// Bytes that may still arrive on a priority after the threshold was crossed: the frame that
/// crossed it; while the pause waits for a frame on its way out and crosses the link, what comes
/// at full rate; a frame that the other side has begun; and what is on the link behind it.
#[must_use]
pub fn headroom(rate: BitRate, delay: Time, max_frame: u64) -> u64 {
    let frame = serialise(rate, max_frame);
    let pause = serialise(rate, PAUSE_FRAME);
    let way = frame + pause + delay + delay;
    rate.bytes_in(way) + 2 * max_frame
}

/// Headroom of a port for one lossless priority.
fn headroom_of(config: &BufferConfig, &(rate, delay): &(BitRate, Time)) -> u64 {
    let computed = || headroom(rate, delay, config.max_frame);
    config.headroom.unwrap_or_else(computed)
}

/// What the buffer of a switch with such ports, or of each of them, has beside headroom; or the
/// headroom that leaves nothing. `ports`: rate and delay of each.
pub(crate) fn beside_headroom(
    config: &BufferConfig,
    ports: &[(BitRate, Time)],
) -> Result<Vec<u64>, u64> {
    let of = |part: &[(BitRate, Time)]| {
        let each = part.iter().map(|port| headroom_of(config, port));
        let one = each.fold(0, u64::saturating_add);
        let all = one.saturating_mul(u64::from(config.lossless.count_ones()));
        let rest = config.total.checked_sub(all).filter(|&rest| rest > 0);
        rest.ok_or(all)
    };
    match config.sharing {
        Sharing::Switch => of(ports).map(|rest| vec![rest]),
        Sharing::Port => ports.chunks(1).map(of).collect(),
    }
}

/// What becomes of a frame at its arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// It is stored.
    Stored {
        /// The sender must pause now.
        pause: bool,
    },
    /// No room.
    Refused {
        /// The sender must pause now.
        pause: bool,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Ingress {
    shared: u64,
    headroom: u64,
    /// The sender was told to pause.
    asserted: bool,
}

/// What one switch, or one ingress port, has beside headroom.
#[derive(Clone, Copy, Debug)]
struct Pool {
    size: u64,
    used: u64,
}

impl Pool {
    fn free(self) -> u64 {
        self.size - self.used
    }

    fn share_of_free(self, factor: u64) -> u64 {
        u64::try_from((u128::from(self.free()) * u128::from(factor)) >> 10).unwrap_or(u64::MAX)
    }

    /// Bytes from which a lossless priority has to pause.
    fn xoff(self, xoff: Xoff) -> u64 {
        match xoff {
            Xoff::Dynamic(factor) => self.share_of_free(factor),
            Xoff::Static(bytes) => bytes.min(self.size),
        }
    }
}

/// The buffer of one switch.
#[derive(Debug)]
pub(crate) struct Buffer {
    config: BufferConfig,
    /// One, or one per port.
    pools: Vec<Pool>,
    /// Bytes stored, headroom included.
    stored: u64,
    /// Most bytes ever in headroom of one port and priority, and in all.
    pub(crate) headroom_peak: u64,
    pub(crate) peak: u64,
    headroom: Vec<u64>,
    ingress: Vec<[Ingress; PRIORITIES]>,
}

impl Buffer {
    /// `ports`: rate and delay of each. The error is the headroom that leaves nothing else.
    pub(crate) fn new(config: &BufferConfig, ports: &[(BitRate, Time)]) -> Result<Self, u64> {
        let sizes = beside_headroom(config, ports)?;
        Ok(Self {
            config: config.clone(),
            pools: sizes.iter().map(|&size| Pool { size, used: 0 }).collect(),
            stored: 0,
            headroom_peak: 0,
            peak: 0,
            headroom: ports.iter().map(|p| headroom_of(config, p)).collect(),
            ingress: vec![[Ingress::default(); PRIORITIES]; ports.len()],
        })
    }

    pub(crate) fn is_lossless(&self, priority: u8) -> bool {
        self.config.lossless >> (priority & 7) & 1 == 1
    }

    fn pool(&mut self, port: u16) -> &mut Pool {
        let i = match self.config.sharing {
            Sharing::Switch => 0,
            Sharing::Port => usize::from(port),
        };
        &mut self.pools[i]
    }

    /// Takes a frame of `len` bytes in, with `queued` bytes in the egress queue it is for.
    pub(crate) fn admit(&mut self, port: u16, priority: u8, len: u64, queued: u64) -> Admission {
        let admission = if self.is_lossless(priority) {
            self.admit_lossless(port, priority, len)
        } else if self.has_room(port, len, queued) {
            self.ingress[usize::from(port)][usize::from(priority)].shared += len;
            self.pool(port).used += len;
            Admission::Stored { pause: false }
        } else {
            Admission::Refused { pause: false }
        };
        if let Admission::Stored { .. } = admission {
            self.stored += len;
        }
        self.peak = self.peak.max(self.stored);
        admission
    }

    /// Whether a frame of a priority without PFC may be stored.
    fn has_room(&mut self, port: u16, len: u64, queued: u64) -> bool {
        let pool = *self.pool(port);
        let most = match self.config.sharing {
            Sharing::Switch => pool.share_of_free(self.config.alpha),
            Sharing::Port => u64::MAX,
        };
        len <= pool.free() && queued + len <= most.min(self.config.queue_limit)
    }

    fn admit_lossless(&mut self, port: u16, priority: u8, len: u64) -> Admission {
        let pool = *self.pool(port);
        let xoff = pool.xoff(self.config.xoff);
        let headroom = self.headroom[usize::from(port)];
        let ingress = &mut self.ingress[usize::from(port)][usize::from(priority)];
        if !ingress.asserted && len <= pool.free() && ingress.shared + len <= xoff {
            ingress.shared += len;
            self.pool(port).used += len;
            return Admission::Stored { pause: false };
        }
        let pause = !ingress.asserted;
        ingress.asserted = true;
        if ingress.headroom + len > headroom {
            return Admission::Refused { pause };
        }
        ingress.headroom += len;
        self.headroom_peak = self.headroom_peak.max(ingress.headroom);
        Admission::Stored { pause }
    }

    /// A frame begins to leave; whether the sender may go on now.
    pub(crate) fn release(&mut self, port: u16, priority: u8, len: u64) -> bool {
        let ingress = &mut self.ingress[usize::from(port)][usize::from(priority)];
        let from_headroom = len.min(ingress.headroom);
        ingress.headroom -= from_headroom;
        ingress.shared -= len - from_headroom;
        self.pool(port).used -= len - from_headroom;
        self.stored -= len;
        self.may_resume(port, priority)
    }

    fn may_resume(&mut self, port: u16, priority: u8) -> bool {
        let xoff = self.pool(port).xoff(self.config.xoff);
        let offset = self.config.xon_offset;
        let ingress = &mut self.ingress[usize::from(port)][usize::from(priority)];
        let below = ingress.shared == 0 || ingress.shared + offset <= xoff;
        let resume = ingress.asserted && ingress.headroom == 0 && below;
        if resume {
            ingress.asserted = false;
        }
        resume
    }

    /// Forgets that a port's sender was paused: its link went down.
    pub(crate) fn forget_pauses(&mut self, port: u16) {
        for ingress in &mut self.ingress[usize::from(port)] {
            ingress.asserted = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(lossless: u8) -> BufferConfig {
        BufferConfig {
            sharing: Sharing::Switch,
            total: 100_000,
            alpha: 1024,
            queue_limit: u64::MAX,
            lossless,
            xoff: Xoff::Static(10_000),
            xon_offset: 2000,
            headroom: Some(3000),
            max_frame: 1000,
        }
    }

    fn ports(n: usize) -> Vec<(BitRate, Time)> {
        vec![(BitRate::from_gbps(40), Time::from_us(1)); n]
    }

    #[test]
    fn headroom_is_the_round_trip_and_two_frames() {
        let rate = BitRate::from_gbps(40);
        // 2 µs there and back are 10 000 bytes; 4178+24 and 60+24 bytes on the wire; two frames.
        let expected = 10_000 + 4202 + 84 + 2 * 4178;
        assert_eq!(headroom(rate, Time::from_us(1), 4178), expected);
    }

    #[test]
    fn a_lossless_priority_is_paused_at_the_threshold_and_lives_on_headroom() {
        let mut b = Buffer::new(&config(1 << 3), &ports(2)).unwrap();
        let stored = |pause| Admission::Stored { pause };
        for _ in 0..10 {
            assert_eq!(b.admit(0, 3, 1000, 0), stored(false));
        }
        assert_eq!(b.admit(0, 3, 1000, 0), stored(true));
        assert_eq!(b.admit(0, 3, 1000, 0), stored(false), "told already");
        assert_eq!(b.admit(1, 3, 1000, 0), stored(false), "another port");
        assert_eq!(b.admit(0, 3, 1000, 0), stored(false));
        assert_eq!(b.admit(0, 3, 1000, 0), Admission::Refused { pause: false });
        assert_eq!((b.peak, b.headroom_peak), (14_000, 3000));
        // Headroom empties first; then 2000 below the threshold.
        let resumed: Vec<bool> = (0..5).map(|_| b.release(0, 3, 1000)).collect();
        assert_eq!(resumed, [false, false, false, false, true]);
        assert!(!b.release(0, 3, 1000), "once");
    }

    #[test]
    fn a_lossy_queue_has_alpha_of_what_is_free() {
        let mut c = config(0);
        c.alpha = 512;
        let mut b = Buffer::new(&c, &ports(2)).unwrap();
        // q <= (100 000 - q) / 2 has its limit at a third.
        let mut queued = 0;
        while b.admit(0, 0, 100, queued) == (Admission::Stored { pause: false }) {
            queued += 100;
        }
        assert_eq!(queued, 33_300);
        c.queue_limit = 5000;
        let mut b = Buffer::new(&c, &ports(2)).unwrap();
        assert_eq!(
            b.admit(0, 0, 1000, 4001),
            Admission::Refused { pause: false }
        );
        assert_eq!(
            b.admit(0, 0, 1000, 4000),
            Admission::Stored { pause: false }
        );
    }

    #[test]
    fn dynamic_thresholds_shrink_with_the_buffer() {
        let mut c = config(1);
        c.xoff = Xoff::Dynamic(1024);
        c.xon_offset = 0;
        let mut b = Buffer::new(&c, &ports(2)).unwrap();
        // 94 000 shared: one port gets half of it, the second half of what is left.
        let fill = |b: &mut Buffer, port| {
            let mut n = 0;
            while b.admit(port, 0, 1000, 0) == (Admission::Stored { pause: false }) {
                n += 1;
            }
            n
        };
        assert_eq!(fill(&mut b, 0), 47);
        assert_eq!(fill(&mut b, 1), 24);
        assert!(!b.release(0, 0, 1000), "headroom first");
    }

    #[test]
    fn headroom_that_takes_everything_is_none() {
        let mut c = config(0xff);
        c.headroom = Some(10_000);
        assert_eq!(Buffer::new(&c, &ports(2)).err(), Some(160_000));
        assert!(Buffer::new(&c, &ports(1)).is_ok());
    }

    #[test]
    fn a_port_with_a_buffer_of_its_own_is_paused_by_what_came_in_there() {
        let mut c = config(1 << 3);
        c.sharing = Sharing::Port;
        c.total = 15_000;
        // All there is but for headroom: 12 000.
        c.xoff = Xoff::Static(u64::MAX);
        let mut b = Buffer::new(&c, &ports(2)).unwrap();
        let stored = |pause| Admission::Stored { pause };
        for _ in 0..12 {
            // However long the egress queue is.
            assert_eq!(b.admit(0, 3, 1000, 1_000_000), stored(false));
        }
        assert_eq!(b.admit(0, 3, 1000, 0), stored(true));
        assert_eq!(b.admit(1, 3, 1000, 0), stored(false), "another port");
        for _ in 0..2 {
            assert_eq!(b.admit(0, 3, 1000, 0), stored(false));
        }
        assert_eq!(b.admit(0, 3, 1000, 0), Admission::Refused { pause: false });
        assert_eq!((b.peak, b.headroom_peak), (16_000, 3000));
        let resumed: Vec<bool> = (0..5).map(|_| b.release(0, 3, 1000)).collect();
        assert_eq!(resumed, [false, false, false, false, true]);
    }

    #[test]
    fn without_pfc_a_port_drops_when_its_own_buffer_is_full() {
        let mut c = config(0);
        c.sharing = Sharing::Port;
        c.total = 5000;
        c.alpha = 1;
        let mut b = Buffer::new(&c, &ports(2)).unwrap();
        let mut fill = |port| {
            let stored = Admission::Stored { pause: false };
            (0..10)
                .filter(|_| b.admit(port, 0, 1000, 0) == stored)
                .count()
        };
        assert_eq!((fill(0), fill(1), fill(0)), (5, 5, 0));
        assert!(!b.release(0, 0, 1000));
        assert_eq!(b.admit(0, 0, 1000, 0), Admission::Stored { pause: false });
        c.queue_limit = 3000;
        let mut b = Buffer::new(&c, &ports(2)).unwrap();
        assert_eq!(
            b.admit(0, 0, 1000, 2001),
            Admission::Refused { pause: false }
        );
        // Headroom is a part of each.
        c.lossless = 1;
        c.total = 3000;
        assert_eq!(Buffer::new(&c, &ports(2)).err(), Some(3000));
    }
}
