//! What a link does to frames, and the two impairments that touch their bytes.

use super::frame::Frame;
use super::rng::Rng;
use crate::datapath::Link;

/// What one direction of a link does to frames; all zero (the default) is a perfect wire.
///
/// Probabilities are parts per million, so that a run is exact on every machine. In the order
/// in which they act: queue limit and RED at the tail of the queue, then serialisation, then on
/// the wire blackhole, loss, corruption, CE, duplication, reordering, delay and jitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Propagation delay.
    pub delay_ns: u64,
    /// Added to the delay, uniform in `0 ..= jitter_ns`. Never reorders by itself.
    pub jitter_ns: u64,
    /// Serialisation rate, bits per second; 0 is infinite. A frame takes the time of its bytes
    /// and of what surrounds it ([`WIRE_OVERHEAD_ETHERNET`], [`WIRE_OVERHEAD_UDP`]).
    pub rate_bps: u64,
    /// Bytes that may wait for the serialiser, beyond which the tail is dropped; 0 is no limit.
    pub queue_bytes: u64,
    /// Frames lost.
    pub loss_ppm: u32,
    /// Every n-th frame is lost, by count: a loss in step with who sends in rounds. 0 is none.
    pub loss_every: u32,
    /// Frames that arrive twice.
    pub duplicate_ppm: u32,
    /// The copy comes later than the original by up to this; 0 is right behind it.
    pub duplicate_delay_ns: u64,
    /// Frames of which one more copy arrives exactly `late_copy_delay_ns` after the original, as from
    /// a way that was thought dead.
    pub late_copy_ppm: u32,
    /// See `late_copy_ppm`.
    pub late_copy_delay_ns: u64,
    /// Frames held back, so that later ones overtake them.
    pub reorder_ppm: u32,
    /// A held frame goes on after 1 ..= this many others have passed (uniform); 0 is no such
    /// bound and only `reorder_delay_ns` counts.
    pub reorder_positions: u32,
    /// A held frame goes on after this time at the latest. 0 with positions set means one
    /// millisecond, so that the last frame of a burst is not held for ever.
    pub reorder_delay_ns: u64,
    /// No frame is held so soon after another was, so that what follows from one is over before the
    /// next; 0 is no such bound.
    pub reorder_apart_ns: u64,
    /// Frames damaged: one to three random bits flipped anywhere in the frame (which a 32-bit
    /// CRC always finds), or, one in [`TRUNCATE_ONE_IN`], cut to a random length.
    pub corrupt_ppm: u32,
    /// Frames marked CE, if they are ECN-capable: ECT(0) or ECT(1). Others pass unmarked, as
    /// RFC 3168 has it, so give the traffic an ECT traffic class.
    pub ce_ppm: u32,
    /// Marks by queue depth, as a switch does.
    pub red: Option<Red>,
}

/// CE marking by queue depth, as the DCQCN paper sets up a switch. Only ECN-capable packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Red {
    /// Queue bytes below which nothing is marked.
    pub min_bytes: u64,
    /// Queue bytes from which everything is marked.
    pub max_bytes: u64,
    /// Probability just below `max_bytes`; rises linearly from 0 at `min_bytes`.
    pub max_ppm: u32,
}

/// Of so many corrupted frames one is cut instead of flipped.
pub const TRUNCATE_ONE_IN: u64 = 16;

/// Bytes on an Ethernet wire around a frame: preamble 8, FCS 4, inter-frame gap 12.
pub const WIRE_OVERHEAD_ETHERNET: u64 = 24;

/// The same around a UDP payload: Ethernet 14, IPv4 20 and UDP 8 besides.
pub const WIRE_OVERHEAD_UDP: u64 = WIRE_OVERHEAD_ETHERNET + 42;

impl Impairment {
    /// A perfect wire of this length.
    #[must_use]
    pub fn delay(delay_ns: u64) -> Self {
        Self {
            delay_ns,
            ..Self::default()
        }
    }

    /// Serialisation time in picoseconds; rounding to nanoseconds would be off by a tenth for
    /// the smallest frames at 100 Gb/s.
    pub(super) fn serialise_ps(&self, len: usize, link: Link) -> u64 {
        if self.rate_bps == 0 {
            return 0;
        }
        let around = match link {
            Link::Ethernet => WIRE_OVERHEAD_ETHERNET,
            Link::Udp => WIRE_OVERHEAD_UDP,
        };
        let bits = (len as u64 + around) * 8;
        let ps = u128::from(bits) * 1_000_000_000_000 / u128::from(self.rate_bps);
        u64::try_from(ps).unwrap_or(u64::MAX)
    }

    /// Longest time a frame is held for reordering.
    pub(super) fn hold_ns(&self) -> u64 {
        match self.reorder_delay_ns {
            0 => 1_000_000,
            ns => ns,
        }
    }
}

impl Red {
    /// Chance of a mark with `queued` bytes waiting.
    pub(super) fn mark_ppm(&self, queued: u64) -> u32 {
        if queued < self.min_bytes {
            return 0;
        }
        if queued >= self.max_bytes {
            return 1_000_000;
        }
        let span = u128::from(self.max_bytes - self.min_bytes);
        let over = u128::from(queued - self.min_bytes);
        u32::try_from(u128::from(self.max_ppm) * over / span).unwrap_or(1_000_000)
    }
}

/// Damages a frame; returns whether it was cut.
pub(super) fn corrupt(frame: &mut Frame, rng: &mut Rng) -> bool {
    let len = frame.len();
    if len == 0 {
        return false;
    }
    if rng.below(TRUNCATE_ONE_IN) == 0 {
        let keep = rng.index(len);
        frame.set_len(keep);
        return true;
    }
    // Distinct bits: three flips of one bit would be one, two of one would be none.
    let bits = len * 8;
    let mut hit = [usize::MAX; 3];
    for i in 0..=rng.index(hit.len()) {
        let mut bit = rng.index(bits);
        while hit.contains(&bit) {
            bit = (bit + 1) % bits;
        }
        if let Some(h) = hit.get_mut(i) {
            *h = bit;
        }
        if let Some(byte) = frame.bytes_mut().get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }
    false
}

const CE: u8 = 0b11;

/// Sets CE on an ECN-capable packet and mends the IPv4 checksum; returns whether it did.
pub(super) fn mark_ce(frame: &mut Frame, link: Link) -> bool {
    match link {
        Link::Udp => set_ce(&mut frame.meta.tos, 0),
        Link::Ethernet => mark_ethernet_ce(frame.bytes_mut()),
    }
}

/// Sets CE on an Ethernet frame, untagged or with one tag, whose packet is ECN-capable (ECT(0) or
/// ECT(1)), and mends the IPv4 checksum; returns whether it did. Any other frame is left as it is
/// (RFC 3168, section 5).
pub fn mark_ethernet_ce(bytes: &mut [u8]) -> bool {
    let tagged = matches!(bytes.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]));
    let at = if tagged { 16 } else { 12 };
    match bytes.get_mut(at..) {
        Some([0x08, 0x00, ip @ ..]) => mark_ipv4(ip),
        // IPv6: version 4 bits, traffic class 8, so ECN is bits 5 and 4 of the second byte.
        Some([0x86, 0xdd, _, second, ..]) => set_ce(second, 4),
        _ => false,
    }
}

fn set_ce(byte: &mut u8, shift: u32) -> bool {
    let capable = matches!((*byte >> shift) & CE, 0b01 | 0b10);
    if capable {
        *byte |= CE << shift;
    }
    capable
}

fn mark_ipv4(ip: &mut [u8]) -> bool {
    let Some(header) = ip.first_chunk_mut::<20>() else {
        return false;
    };
    let before = u16::from_be_bytes([header[0], header[1]]);
    if !set_ce(&mut header[1], 0) {
        return false;
    }
    let after = u16::from_be_bytes([header[0], header[1]]);
    // RFC 1624: HC' = ~(~HC + ~m + m').
    let sum = u32::from(!u16::from_be_bytes([header[10], header[11]]))
        + u32::from(!before)
        + u32::from(after);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    #[allow(clippy::cast_possible_truncation, reason = "two folds leave 16 bits")]
    let check = !(sum as u16);
    header[10..12].copy_from_slice(&check.to_be_bytes());
    true
}
