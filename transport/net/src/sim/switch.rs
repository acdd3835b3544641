//! A switch: learns who is where, floods what it does not know.

use std::fmt;

use super::frame::Frame;
use crate::datapath::Link;

/// What a switch looks addresses up by: a MAC address or a GID, both within 16 bytes.
pub(super) type Key = [u8; 16];

/// Where a frame goes from here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Targets {
    One(usize),
    Flood,
    Nowhere,
}

pub(super) type Route = Box<dyn FnMut(usize, &[u8]) -> Option<usize>>;

/// Table and ports of one switch.
#[derive(Default)]
pub(super) struct Switch {
    /// The wire that leads out of each port.
    pub(super) outs: Vec<usize>,
    /// Sorted by address. A vector, not a hash map: small, and the same on every run.
    table: Vec<(Key, usize)>,
    pub(super) route: Option<Route>,
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch")
            .field("outs", &self.outs)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

impl Switch {
    pub(super) fn out(&self, port: usize) -> Option<usize> {
        self.outs.get(port).copied()
    }

    /// Notes that `key` lives behind `port`, whatever was known before.
    pub(super) fn set(&mut self, key: Key, port: usize) {
        match self.table.binary_search_by_key(&key, |&(k, _)| k) {
            Ok(i) => {
                if let Some(entry) = self.table.get_mut(i) {
                    entry.1 = port;
                }
            }
            Err(i) => self.table.insert(i, (key, port)),
        }
    }

    /// Notes a source address the first time it is seen. Stations do not move here, and a
    /// corrupted source address must neither move one nor fill the table for ever.
    fn learn(&mut self, key: Key, port: usize) {
        if let Err(i) = self.table.binary_search_by_key(&key, |&(k, _)| k)
            && self.table.len() < MAX_ADDRESSES
        {
            self.table.insert(i, (key, port));
        }
    }

    fn lookup(&self, key: &Key) -> Option<usize> {
        let i = self.table.binary_search_by_key(key, |&(k, _)| k).ok()?;
        self.table.get(i).map(|&(_, port)| port)
    }

    /// Learns the source and finds the way out.
    pub(super) fn targets(&mut self, link: Link, from: usize, frame: &Frame) -> Targets {
        if let Some(route) = &mut self.route
            && let Some(out) = route(from, frame.bytes())
        {
            return Targets::One(out);
        }
        let (dst, src, group) = match link {
            Link::Udp => {
                let dst = frame.meta.dst.bytes();
                (dst, frame.meta.src.bytes(), dst.first() == Some(&0xff))
            }
            Link::Ethernet => match frame.bytes().first_chunk::<12>() {
                Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5]) => (
                    mac_key([d0, d1, d2, d3, d4, d5]),
                    mac_key([s0, s1, s2, s3, s4, s5]),
                    d0 & 1 == 1,
                ),
                None => return Targets::Nowhere,
            },
        };
        self.learn(src, from);
        match self.lookup(&dst) {
            _ if group => Targets::Flood,
            Some(out) if out == from => Targets::Nowhere,
            Some(out) => Targets::One(out),
            None => Targets::Flood,
        }
    }
}

/// Most addresses a switch remembers.
const MAX_ADDRESSES: usize = 4096;

/// A MAC address as a key.
pub(super) fn mac_key(mac: [u8; 6]) -> Key {
    let mut key = [0; 16];
    key[..6].copy_from_slice(&mac);
    key
}
