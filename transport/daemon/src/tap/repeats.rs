//! Requests that were sent before, told from PSNs that were passed.
//!
//! A table of fixed size with the connections seen last: two that fall on the same place displace
//! each other, and the first request afterwards is taken for a new one.

use xroce_api::message::Direction;
use xroce_wire::newtypes::{Gid, PathMtu, Psn, Qpn, RKey};
use xroce_wire::opcode::Operation;
use xroce_wire::packet::Packet;

use super::filter::{Connection, is_repairable};

/// Connections known at a time.
const PLACES: usize = 1024;

/// One direction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    direction: Direction,
    peer: Gid,
    to: Qpn,
}

/// A READ request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Read {
    psn: Psn,
    va: u64,
    rkey: RKey,
    len: u32,
}

impl Read {
    fn of(packet: &Packet<'_>) -> Option<Self> {
        let reth = packet.reth()?;
        (packet.info().operation == Operation::ReadRequest).then_some(Self {
            psn: packet.psn(),
            va: reth.va.value(),
            rkey: reth.rkey,
            len: reth.len,
        })
    }

    /// Whether it asks for the rest of an earlier one whose responses came in part: it ends where
    /// that ends, and lacks as many whole packets of some path MTU as the PSN has gone on.
    fn resumes(&self, earlier: &Self) -> bool {
        let end = |read: &Self| read.va.wrapping_add(u64::from(read.len));
        let packets = u64::try_from(earlier.psn.distance_to(self.psn)).unwrap_or(0);
        let lacks = u64::from(earlier.len).saturating_sub(u64::from(self.len));
        packets != 0
            && self.rkey == earlier.rkey
            && end(self) == end(earlier)
            && PathMtu::ALL
                .iter()
                .any(|mtu| packets * mtu.bytes() as u64 == lacks)
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    key: Key,
    /// The PSN behind the highest seen.
    next: Psn,
    /// The last READ.
    read: Option<Read>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Repeats {
    places: Box<[Option<Place>]>,
}

impl Repeats {
    pub(super) fn new() -> Self {
        let places = vec![None; PLACES].into();
        Self { places }
    }

    /// A connection begins, with PSNs of its own.
    pub(super) fn forget(&mut self, local: Qpn, to: &Connection) {
        for (direction, receiver) in [(Direction::In, local), (Direction::Out, to.qpn)] {
            let key = Key {
                direction,
                peer: to.peer,
                to: receiver,
            };
            let place = self.places.get_mut(place_of(&key));
            if let Some(place) = place.filter(|place| place.is_some_and(|p| p.key == key)) {
                *place = None;
            }
        }
    }

    /// Learns of a packet; whether it is a request that was sent before.
    pub(super) fn note(&mut self, direction: Direction, peer: Gid, packet: &Packet<'_>) -> bool {
        if !is_repairable(packet) {
            return false;
        }
        let key = Key {
            direction,
            peer,
            to: packet.dest_qp(),
        };
        let psn = packet.psn();
        let read = Read::of(packet);
        let Some(place) = self.places.get_mut(place_of(&key)) else {
            return false;
        };
        match place {
            Some(known) if known.key == key => {
                if psn.is_before(known.next) {
                    return true;
                }
                known.next = psn.add(1);
                let earlier = known.read;
                known.read = read.or(earlier);
                read.zip(earlier)
                    .is_some_and(|(now, then)| now.resumes(&then))
            }
            other => {
                let next = psn.add(1);
                *other = Some(Place { key, next, read });
                false
            }
        }
    }
}

/// Where a connection is looked for.
fn place_of(key: &Key) -> usize {
    let [.., a, b, c, d] = key.peer.bytes();
    let peer = u32::from_ne_bytes([a, b, c, d]);
    let mixed = (key.to.value() ^ peer).wrapping_mul(0x9e37_79b9);
    // The two ways of a connection side by side.
    let way = usize::from(key.direction == Direction::Out);
    ((mixed >> 23) as usize * 2 + way) % PLACES
}
