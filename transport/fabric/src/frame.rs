//! Frames, moved from queue to queue as a pointer, and what switches know about them.

use xroce_net::datapath::Rx;
use xroce_wire::frame::Frame as Parsed;
use xroce_wire::newtypes::Gid;

use crate::units::{BitRate, Time};

/// Bytes an Ethernet header with one VLAN tag adds to the IP MTU.
pub(crate) const L2_BYTES: usize = 18;

/// Shortest Ethernet frame without FCS; shorter ones are padded on the wire.
const MIN_FRAME: u64 = 60;

/// Bytes around a frame on the wire: preamble 8, FCS 4, gap 12.
pub(crate) const WIRE_OVERHEAD: u64 = xroce_net::sim::WIRE_OVERHEAD_ETHERNET;

/// Priorities of an Ethernet port (IEEE 802.1Q).
pub const PRIORITIES: usize = 8;

/// Idle frames a host keeps for itself.
const SPARE_MAX: usize = 64;

/// How long a frame of `len` bytes (without FCS) occupies a link.
#[inline]
pub(crate) fn serialise(rate: BitRate, len: u64) -> Time {
    rate.time_for(len.max(MIN_FRAME) + WIRE_OVERHEAD)
}

/// What is read from the headers once, when a frame leaves its host.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tag {
    /// Host it is for.
    pub(crate) dst: u32,
    /// Of addresses and ports, for ECMP.
    pub(crate) hash: u64,
    /// 0 ..= 7.
    pub(crate) priority: u8,
    /// Links crossed.
    pub(crate) hops: u8,
    /// Port by which it came into the switch it is in.
    pub(crate) ingress: u16,
}

/// One frame.
#[derive(Debug)]
pub(crate) struct Frame(Box<Buffer>);

#[derive(Debug)]
struct Buffer {
    tag: Tag,
    len: u32,
    bytes: Box<[u8]>,
}

impl Frame {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(Box::new(Buffer {
            tag: Tag::default(),
            len: 0,
            bytes: vec![0; capacity].into_boxed_slice(),
        }))
    }

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.0.len)
    }

    pub(crate) fn set_len(&mut self, len: usize) {
        self.0.len = u32::try_from(len.min(self.0.bytes.len())).unwrap_or(0);
    }

    /// The whole buffer, to write a frame into.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.0.bytes
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes.get(..self.0.len as usize).unwrap_or_default()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.0.len as usize;
        self.0.bytes.get_mut(..len).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn tag(&self) -> &Tag {
        &self.0.tag
    }

    #[inline]
    pub(crate) fn tag_mut(&mut self) -> &mut Tag {
        &mut self.0.tag
    }

    pub(crate) fn as_rx(&self) -> Rx<'_> {
        Rx::Ethernet(self.bytes())
    }
}

/// Which priority a DSCP has, in switches and NICs alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DscpMap([u8; 64]);

impl DscpMap {
    /// Gives a DSCP (0 ..= 63) a priority (0 ..= 7); others change nothing.
    pub fn set(&mut self, dscp: u8, priority: u8) {
        if let Some(entry) = self.0.get_mut(usize::from(dscp))
            && usize::from(priority) < PRIORITIES
        {
            *entry = priority;
        }
    }

    /// Priority of a DSCP; the upper bits of a larger one are not looked at.
    #[must_use]
    pub const fn priority(&self, dscp: u8) -> u8 {
        self.0[dscp as usize % 64]
    }
}

impl Default for DscpMap {
    /// The three upper bits of the DSCP (class selector): 26 is priority 3, 48 is 6.
    fn default() -> Self {
        let mut map = [0; 64];
        for (dscp, priority) in (0_u8..64).zip(&mut map) {
            *priority = dscp >> 3;
        }
        Self(map)
    }
}

/// IPv4 address of a host: 10.x.y.z, counted from 10.0.0.1.
pub(crate) fn address(host: u32) -> Gid {
    let [_, x, y, z] = (host + 1).to_be_bytes();
    Gid::from_v4([10, x, y, z])
}

/// The reverse.
fn host_of(gid: Gid) -> Option<u32> {
    let [10, x, y, z] = gid.v4()? else {
        return None;
    };
    u32::from_be_bytes([0, x, y, z]).checked_sub(1)
}

/// Finalizer of SplitMix64: every bit of the input reaches every bit of the result.
pub(crate) const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Reads what switches need, `None` if it is no RoCE frame to a host of the fabric.
pub(crate) fn classify(bytes: &[u8], map: &DscpMap) -> Option<Tag> {
    let frame = Parsed::parse_ethernet(bytes).ok()?;
    let dst = host_of(frame.dst())?;
    let src = host_of(frame.src())?;
    let priority = match frame.vlan() {
        Some(tci) => tci.pcp(),
        None => map.priority(frame.tos() >> 2),
    };
    // Protocol and destination port are the same in all packets.
    let hash = mix((u64::from(src) << 40) ^ (u64::from(dst) << 16) ^ u64::from(frame.src_port()));
    Some(Tag {
        dst,
        hash,
        priority,
        hops: 0,
        ingress: 0,
    })
}

/// Idle frames of the whole fabric. Grows when empty and never shrinks.
#[derive(Debug)]
pub(crate) struct Pool {
    idle: Vec<Frame>,
    capacity: usize,
    /// Frames made so far.
    pub(crate) made: u64,
}

impl Pool {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            idle: Vec::new(),
            capacity,
            made: 0,
        }
    }

    pub(crate) fn give(&mut self, frame: Frame) {
        self.idle.push(frame);
    }

    /// Brings the idle frames of a host to at least `least` and not many more.
    pub(crate) fn level(&mut self, spare: &mut Vec<Frame>, least: usize) {
        while spare.len() < least {
            let frame = self.idle.pop().unwrap_or_else(|| {
                self.made += 1;
                Frame::new(self.capacity)
            });
            spare.push(frame);
        }
        if spare.len() > least + SPARE_MAX {
            self.idle.extend(spare.drain(least + SPARE_MAX / 2..));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_hosts() {
        for host in [0, 1, 254, 255, 65_535, 70_000, 0xff_fffe] {
            assert_eq!(host_of(address(host)), Some(host));
        }
        assert_eq!(host_of(Gid::from_v4([10, 0, 0, 0])), None);
        assert_eq!(host_of(Gid::from_v4([11, 0, 0, 1])), None);
    }

    #[test]
    fn classes_by_dscp() {
        let mut map = DscpMap::default();
        assert_eq!([0, 8, 26, 48, 63].map(|d| map.priority(d)), [0, 1, 3, 6, 7]);
        map.set(26, 5);
        map.set(26, 8);
        map.set(64, 1);
        assert_eq!((map.priority(26), map.priority(0)), (5, 0));
    }

    #[test]
    fn short_frames_are_padded_on_the_wire() {
        let rate = BitRate::from_gbps(1);
        assert_eq!(serialise(rate, 42), serialise(rate, 60));
        assert_eq!(serialise(rate, 60).ns(), 84 * 8);
        assert_eq!(serialise(rate, 1082).ns(), 1106 * 8);
    }
}
