//! A capture of a device's frames: what is asked for, and what stands in its ring.
//!
//! The ring has entries of [`ENTRY`] bytes. A record is a header of [`HEADER`] bytes ([`Header`])
//! with the kept bytes of the frame behind it, over as many entries as that takes; the next record
//! begins with a new entry. The daemon publishes whole records only.

use thiserror::Error;
use xroce_api::message::{Capacity, CaptureSpec, Direction, SNAPLEN_MAX};
use xroce_shm::{CAPACITY_MAX, Consumer, Geometry, RingError, RingLayoutError};
use xroce_wire::frame::UdpMeta;
use xroce_wire::newtypes::Gid;

/// Bytes of an entry of the ring.
pub const ENTRY: usize = ENTRY_SIZE as usize;
const ENTRY_SIZE: u32 = 256;
/// Bytes of the header of a record.
pub const HEADER: usize = HEADER_SIZE as usize;
const HEADER_SIZE: u32 = 64;
/// Entries of a ring, at least: one frame of every port fits.
pub const ENTRIES_MIN: u32 = 512;
/// Entries of a ring, at most: 256 MiB.
pub const ENTRIES_MAX: u32 = CAPACITY_MAX;
/// Entries of a MiB of ring.
pub const ENTRIES_PER_MIB: u32 = (1 << 20) / ENTRY_SIZE;

/// What cannot be asked of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{what} of a capture is {given}: from {least} to {most} can be")]
pub struct BadSpec {
    /// Which value.
    pub what: &'static str,
    /// What it is.
    pub given: u32,
    /// The least it can be.
    pub least: u32,
    /// The most it can be.
    pub most: u32,
}

/// The ring for a capture.
///
/// # Errors
/// A value out of range.
pub fn ring_for(spec: &CaptureSpec) -> Result<Capacity, BadSpec> {
    for (what, given, least, most) in [
        ("the sample", spec.sample, 1, u32::MAX),
        ("the snap length", spec.snaplen, 1, SNAPLEN_MAX),
        ("the ring", spec.entries, ENTRIES_MIN, ENTRIES_MAX),
    ] {
        if !(least..=most).contains(&given) {
            return Err(BadSpec {
                what,
                given,
                least,
                most,
            });
        }
    }
    Ok(Capacity(spec.entries.next_power_of_two()))
}

/// The ring of a capture.
///
/// # Errors
/// The capacity is no power of two, or too large.
pub const fn ring(capacity: Capacity) -> Result<Geometry, RingLayoutError> {
    Geometry::new(ENTRY_SIZE, capacity.0)
}

/// The header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The way of the frame.
    pub direction: Direction,
    /// When it was handed to the engine or by it, nanoseconds since the epoch.
    pub ts_ns: u64,
    /// Its bytes.
    pub len: u32,
    /// Those of them that follow.
    pub kept: u32,
    /// Frames dropped since the record before, for want of room.
    pub lost: u32,
    /// What a device of a UDP socket knows of the headers in front. The source of what is sent is
    /// the address and port of the device.
    pub udp: Option<UdpMeta>,
}

const OUT: u8 = 1;
const UDP: u8 = 2;
const HOP_LIMIT: u8 = 4;

/// What stands in a ring cannot be.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BadRecord {
    /// The ring itself.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Unknown flags, or more bytes kept than there were.
    #[error("a record with flags {flags:#x} that keeps {kept} bytes of {len}")]
    Header {
        /// Flags.
        flags: u8,
        /// Bytes that follow.
        kept: u32,
        /// Bytes of the frame.
        len: u32,
    },
    /// It ends before its frame does.
    #[error("a record of {0} bytes that are not all there")]
    Short(u32),
}

impl Header {
    /// Entries of the record.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        (self.kept + HEADER_SIZE).div_ceil(ENTRY_SIZE)
    }

    /// As in the ring.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut flags = 0;
        if self.direction == Direction::Out {
            flags |= OUT;
        }
        let mut addresses = [[0; 16]; 2];
        let (mut port, mut tos, mut hops) = (0u16, 0, 0);
        if let Some(udp) = &self.udp {
            flags |= UDP;
            addresses = [udp.src.bytes(), udp.dst.bytes()];
            (port, tos) = (udp.src_port, udp.tos);
            if let Some(limit) = udp.hop_limit {
                flags |= HOP_LIMIT;
                hops = limit;
            }
        }
        let mut bytes = [0; HEADER];
        let fields: [&[u8]; 10] = [
            &self.ts_ns.to_ne_bytes(),
            &self.len.to_ne_bytes(),
            &self.kept.to_ne_bytes(),
            &self.lost.to_ne_bytes(),
            &port.to_ne_bytes(),
            &[tos, hops],
            &[flags],
            &[0; 7],
            &addresses[0],
            &addresses[1],
        ];
        let each = fields.into_iter().flatten();
        bytes
            .iter_mut()
            .zip(each)
            .for_each(|(to, from)| *to = *from);
        bytes
    }

    /// From the ring.
    ///
    /// # Errors
    /// [`BadRecord::Header`].
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, BadRecord> {
        let mut rest = &bytes[..];
        let ts_ns = u64::from_ne_bytes(array(&mut rest));
        let [len, kept, lost] = [(); 3].map(|()| u32::from_ne_bytes(array(&mut rest)));
        let src_port = u16::from_ne_bytes(array(&mut rest));
        let [tos, hops, flags] = array(&mut rest);
        let _: [u8; 7] = array(&mut rest);
        let [src, dst] = [(); 2].map(|()| Gid::new(array(&mut rest)));
        if flags & !(OUT | UDP | HOP_LIMIT) != 0 || kept > len || kept > SNAPLEN_MAX {
            return Err(BadRecord::Header { flags, kept, len });
        }
        let direction = if flags & OUT == 0 {
            Direction::In
        } else {
            Direction::Out
        };
        let udp = (flags & UDP != 0).then_some(UdpMeta {
            src,
            dst,
            src_port,
            tos,
            hop_limit: (flags & HOP_LIMIT != 0).then_some(hops),
        });
        Ok(Self {
            direction,
            ts_ns,
            len,
            kept,
            lost,
            udp,
        })
    }
}

/// The next bytes of a header, which is long enough for all of its fields.
fn array<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (head, tail) = rest.split_first_chunk().unwrap_or((&[0; N], &[]));
    *rest = tail;
    *head
}

/// The next record of a ring, its kept bytes in `frame`; `None`: there is none yet. Its place is
/// the daemon's again at once.
///
/// # Errors
/// [`BadRecord`]; the ring is of no more use.
pub fn next(ring: &mut Consumer, frame: &mut Vec<u8>) -> Result<Option<Header>, BadRecord> {
    let mut entry = [0; ENTRY];
    if !ring.fetch(&mut entry)? {
        return Ok(None);
    }
    let (head, rest) = entry.split_first_chunk().unwrap_or((&[0; HEADER], &[]));
    let header = Header::decode(head)?;
    let kept = header.kept as usize;
    frame.clear();
    frame.extend_from_slice(rest.get(..kept).unwrap_or(rest));
    while frame.len() < kept {
        if !ring.fetch(&mut entry)? {
            return Err(BadRecord::Short(header.kept));
        }
        let left = kept - frame.len();
        frame.extend_from_slice(entry.get(..left).unwrap_or(&entry));
    }
    ring.release();
    Ok(Some(header))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> impl Strategy<Value = Header> {
        let gid = || any::<[u8; 16]>().prop_map(Gid::new);
        let meta = (gid(), gid(), any::<u16>(), any::<u8>(), any::<Option<u8>>());
        let udp = meta.prop_map(|(src, dst, src_port, tos, hop_limit)| UdpMeta {
            src,
            dst,
            src_port,
            tos,
            hop_limit,
        });
        let sizes = (0..=SNAPLEN_MAX, 0..1000u32);
        let rest = (any::<bool>(), any::<u64>(), any::<u32>());
        let udp = proptest::option::of(udp);
        (rest, sizes, udp).prop_map(|((out, ts_ns, lost), (kept, more), udp)| Header {
            direction: if out { Direction::Out } else { Direction::In },
            ts_ns,
            len: kept + more,
            kept,
            lost,
            udp,
        })
    }

    proptest! {
        #[test]
        fn a_header_comes_back(header in header()) {
            prop_assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        }

        #[test]
        fn any_bytes_are_a_header_or_refused(bytes in any::<[u8; HEADER]>()) {
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert!(header.kept <= header.len && header.kept <= SNAPLEN_MAX);
            }
        }
    }

    #[test]
    fn a_spec_names_the_value_and_its_range() {
        let spec = CaptureSpec {
            snaplen: 0,
            ..CaptureSpec::default()
        };
        assert_eq!(
            ring_for(&spec).unwrap_err().to_string(),
            "the snap length of a capture is 0: from 1 to 65536 can be"
        );
        let odd = CaptureSpec {
            entries: 513,
            ..CaptureSpec::default()
        };
        assert_eq!(ring_for(&odd), Ok(Capacity(1024)));
    }
}
