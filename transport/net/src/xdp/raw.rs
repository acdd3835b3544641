//! The ceiling of a link: the fastest loops on the rings of a port, without any RoCE logic.
//!
//! What xroce reaches over AF_XDP is reported as a ratio to this, so it must not be beaten by
//! anything built on the same rings: frames are written once, before the measurement, and sent
//! again and again; received ones are counted and given back unread. Frame size, ring sizes,
//! frame pool and batch are those of the [`XdpPort`] measured.
//!
//! Time is the caller's: each loop takes `now`, a monotonic clock in nanoseconds.

use std::io;
use std::net::Ipv6Addr;

use xroce_wire::newtypes::{Gid, MacAddr};

use super::XdpPort;
use super::rx::BATCH;

/// Frames sent per flush unless told otherwise: what the kernel takes in one system call.
pub const DEFAULT_BATCH: usize = 32;
/// Shortest frame over IPv4: Ethernet, IP, UDP, BTH and ICRC, in bytes. Over IPv6 it is 20 more.
pub const MIN_FRAME: usize = 14 + 20 + 8 + 12 + 4;
/// An answer is given up after this time, in ns.
const PING_TIMEOUT_NS: u64 = 10_000_000;
/// Polls between two readings of the clock while waiting.
const POLLS_PER_CLOCK: u32 = 64;

/// Where raw frames come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawPath {
    /// Own Ethernet address.
    pub src_mac: MacAddr,
    /// Ethernet address of the next hop.
    pub dst_mac: MacAddr,
    /// Own address.
    pub src: Gid,
    /// Address of the peer; a port there must claim it.
    pub dst: Gid,
    /// UDP source port, which picks the receive queue of a NIC.
    pub src_port: u16,
}

/// How much went one way in how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawCount {
    /// Frames.
    pub frames: u64,
    /// Bytes of these frames, Ethernet header included.
    pub bytes: u64,
    /// From the first to the last, in ns.
    pub nanos: u64,
}

impl RawCount {
    /// Frames per second.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    pub fn frames_per_second(&self) -> f64 {
        self.frames as f64 * 1e9 / self.nanos.max(1) as f64
    }

    /// Gigabits per second.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    pub fn gigabits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.nanos.max(1) as f64
    }
}

/// One end of a link under measurement; the port is free again when this is dropped.
#[derive(Debug)]
pub struct RawEnd<'p> {
    port: &'p mut XdpPort,
    frame_len: u64,
}

impl<'p> RawEnd<'p> {
    /// Fills every frame of the port with one of `len` bytes ([`MIN_FRAME`] ..= `max_frame`).
    ///
    /// # Errors
    /// `len` does not fit, the families of the addresses differ, or frames sent earlier do not
    /// come back from the device.
    pub fn new(port: &'p mut XdpPort, path: &RawPath, len: usize) -> io::Result<Self> {
        let bytes = frame(path, len)?;
        port.settle()?;
        port.prepare(&bytes)?;
        Ok(Self {
            port,
            frame_len: bytes.len() as u64,
        })
    }

    /// Sends up to `batch` frames, fewer if they are not back from the device yet. Returns how
    /// many.
    ///
    /// # Errors
    /// The device is gone.
    pub fn send(&mut self, batch: usize) -> io::Result<usize> {
        self.port.send_prepared(batch)
    }

    /// Takes and gives back what one batch of the receive ring holds.
    ///
    /// # Errors
    /// The device is gone.
    pub fn receive(&mut self) -> io::Result<RawCount> {
        let (frames, bytes) = self.port.count_received(BATCH)?;
        Ok(RawCount {
            frames,
            bytes,
            nanos: 0,
        })
    }

    /// Sends for `duration_ns`, as fast as it goes. Counts what was handed to the kernel.
    ///
    /// # Errors
    /// The device is gone.
    pub fn flood(
        &mut self,
        batch: usize,
        duration_ns: u64,
        now: impl Fn() -> u64,
    ) -> io::Result<RawCount> {
        let start = now();
        let mut count = RawCount::default();
        while count.nanos < duration_ns {
            count.frames += self.send(batch)? as u64;
            count.nanos = now().saturating_sub(start);
        }
        count.bytes = count.frames * self.frame_len;
        Ok(count)
    }

    /// Receives until nothing came for `quiet_ns` after the first frame, or until `patience_ns`
    /// if none comes. Counts what arrived, over the time from the first to the last burst.
    ///
    /// # Errors
    /// The device is gone.
    pub fn sink(
        &mut self,
        quiet_ns: u64,
        patience_ns: u64,
        now: impl Fn() -> u64,
    ) -> io::Result<RawCount> {
        let start = now();
        let (mut first, mut last) = (start, start);
        let mut count = RawCount::default();
        let mut empty = 0u32;
        loop {
            let got = self.receive()?;
            if got.frames == 0 {
                empty += 1;
                if empty.is_multiple_of(POLLS_PER_CLOCK) {
                    let limit = if count.frames == 0 {
                        patience_ns
                    } else {
                        quiet_ns
                    };
                    if now().saturating_sub(last) > limit {
                        break;
                    }
                }
                continue;
            }
            last = now();
            if count.frames == 0 {
                // The first burst only starts the clock.
                first = last;
            }
            count.frames += got.frames;
            count.bytes += got.bytes;
        }
        count.nanos = last.saturating_sub(first);
        Ok(count)
    }

    /// Sends one frame at a time and waits for the answer of an [`RawEnd::echo`] at the other
    /// end, for `duration_ns`; `each` gets every round-trip time in ns. Returns the number of
    /// answers that did not come within 10 ms.
    ///
    /// # Errors
    /// The device is gone.
    pub fn ping(
        &mut self,
        duration_ns: u64,
        now: impl Fn() -> u64,
        mut each: impl FnMut(u64),
    ) -> io::Result<u64> {
        let start = now();
        let mut lost = 0;
        let mut sent = start;
        while sent.saturating_sub(start) < duration_ns {
            // A late answer to a frame given up must not count for the next.
            while self.receive()?.frames != 0 {}
            sent = now();
            self.send(1)?;
            if self.await_frame(PING_TIMEOUT_NS, &now)? {
                each(now().saturating_sub(sent));
            } else {
                lost += 1;
            }
        }
        Ok(lost)
    }

    /// Answers every frame until none came for `quiet_ns` after the first, or for `patience_ns`.
    /// Returns how many were answered.
    ///
    /// # Errors
    /// The device is gone.
    pub fn echo(
        &mut self,
        quiet_ns: u64,
        patience_ns: u64,
        now: impl Fn() -> u64,
    ) -> io::Result<u64> {
        let mut answered = 0;
        while self.await_frame(if answered == 0 { patience_ns } else { quiet_ns }, &now)? {
            self.send(1)?;
            answered += 1;
        }
        Ok(answered)
    }

    /// Polls until a frame comes; false after `limit_ns` without one.
    fn await_frame(&mut self, limit_ns: u64, now: &impl Fn() -> u64) -> io::Result<bool> {
        let start = now();
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                if self.receive()?.frames != 0 {
                    return Ok(true);
                }
            }
            if now().saturating_sub(start) > limit_ns {
                return Ok(false);
            }
        }
    }
}

/// Both ends in one thread: a batch out of `from`, the same into `to`, for `duration_ns`.
///
/// # Errors
/// A device is gone.
pub fn one_thread(
    from: &mut RawEnd<'_>,
    to: &mut RawEnd<'_>,
    batch: usize,
    duration_ns: u64,
    now: impl Fn() -> u64,
) -> io::Result<RawCount> {
    let start = now();
    let mut count = RawCount::default();
    while count.nanos < duration_ns {
        from.send(batch)?;
        loop {
            let got = to.receive()?;
            if got.frames == 0 {
                break;
            }
            count.frames += got.frames;
            count.bytes += got.bytes;
        }
        count.nanos = now().saturating_sub(start);
    }
    Ok(count)
}

/// A frame of `len` bytes that looks like RoCEv2 to the XDP program; zeroes behind UDP.
///
/// # Errors
/// See [`RawEnd::new`].
pub fn frame(path: &RawPath, len: usize) -> io::Result<Vec<u8>> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let too_long = || invalid(format!("a frame of {len} bytes is too long"));
    let least = MIN_FRAME + if path.src.v4().is_some() { 0 } else { 20 };
    if len < least {
        return Err(invalid(format!(
            "a frame of {len} bytes is too short: {least} at least"
        )));
    }
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(path.dst_mac.bytes());
    bytes.extend(path.src_mac.bytes());
    match (path.src.v4(), path.dst.v4()) {
        (Some(src), Some(dst)) => {
            let total = u16::try_from(len - 14).map_err(|_| too_long())?;
            bytes.extend([0x08, 0x00]);
            bytes.extend(ipv4_header(src, dst, total));
        }
        (None, None) => {
            let payload = u16::try_from(len - 14 - 40).map_err(|_| too_long())?;
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend(payload.to_be_bytes());
            bytes.extend([17, 64]);
            bytes.extend(Ipv6Addr::from(path.src.bytes()).octets());
            bytes.extend(Ipv6Addr::from(path.dst.bytes()).octets());
        }
        _ => return Err(invalid("IPv4 on one side, IPv6 on the other".to_owned())),
    }
    let udp = u16::try_from(len - bytes.len()).map_err(|_| too_long())?;
    bytes.extend(path.src_port.to_be_bytes());
    bytes.extend(4791u16.to_be_bytes());
    bytes.extend(udp.to_be_bytes());
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Don't fragment, TTL 64, UDP; with its checksum (RFC 791 §3.1).
fn ipv4_header(src: [u8; 4], dst: [u8; 4], total: u16) -> [u8; 20] {
    let [len_high, len_low] = total.to_be_bytes();
    let [s0, s1, s2, s3] = src;
    let [d0, d1, d2, d3] = dst;
    let with = |[c0, c1]: [u8; 2]| {
        [
            0x45, 0, len_high, len_low, 0, 0, 0x40, 0, 64, 17, c0, c1, s0, s1, s2, s3, d0, d1, d2,
            d3,
        ]
    };
    let header = with([0, 0]);
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words
        .iter()
        .map(|w| u32::from(u16::from_be_bytes(*w)))
        .sum();
    // Ten words: one fold leaves at most one carry, the second none.
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    let [_, _, c0, c1] = (!folded).to_be_bytes();
    with([c0, c1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(src: Gid, dst: Gid) -> RawPath {
        let mac = |n| MacAddr::new([2, 0, 0, 0, 0, n]);
        RawPath {
            src_mac: mac(1),
            dst_mac: mac(2),
            src,
            dst,
            src_port: 0xc000,
        }
    }

    #[test]
    fn frames_have_the_length_asked_for_and_a_right_checksum() {
        let v4 = path(Gid::from_v4([10, 0, 0, 1]), Gid::from_v4([10, 0, 0, 2]));
        for len in [MIN_FRAME, 1082, 4170] {
            let bytes = frame(&v4, len).unwrap();
            assert_eq!(bytes.len(), len);
            let sum: u32 = bytes[14..34]
                .chunks(2)
                .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
                .sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
            assert_eq!(
                bytes[16..18],
                u16::try_from(len - 14).unwrap().to_be_bytes()
            );
            assert_eq!(bytes[36..38], 4791u16.to_be_bytes());
        }
        let v6 = path(Gid::new([0xfd; 16]), Gid::new([0xfe; 16]));
        let bytes = frame(&v6, 200).unwrap();
        assert_eq!(
            (bytes.len(), &bytes[18..20]),
            (200, &146u16.to_be_bytes()[..])
        );
    }

    #[test]
    fn impossible_frames_are_refused() {
        let v4 = Gid::from_v4([10, 0, 0, 1]);
        let v6 = Gid::new([0xfd; 16]);
        assert!(frame(&path(v4, v4), MIN_FRAME - 1).is_err());
        assert!(frame(&path(v6, v6), MIN_FRAME + 19).is_err());
        assert!(frame(&path(v4, v4), 70_000).is_err());
        assert!(frame(&path(v4, Gid::new([0xfd; 16])), 100).is_err());
    }
}
