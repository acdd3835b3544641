//! Packets that fail the ICRC check, by where they come from.

use xroce_wire::newtypes::{Gid, Qpn};

use crate::engine::Core;

/// Sources remembered; the one with the fewest failures makes room for another.
const SOURCES_MAX: usize = 16;

/// Failures by source address.
#[derive(Debug)]
pub(crate) struct IcrcTable {
    sources: Vec<(Gid, u64)>,
}

impl Default for IcrcTable {
    /// With room for all it will ever hold: a damaged packet must not cost an allocation.
    fn default() -> Self {
        Self {
            sources: Vec::with_capacity(SOURCES_MAX),
        }
    }
}

impl IcrcTable {
    /// Failures from an address, as far as they are remembered.
    pub(crate) fn from(&self, src: Gid) -> u64 {
        let found = self.sources.iter().find(|(gid, _)| *gid == src);
        found.map_or(0, |(_, count)| *count)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Gid, u64)> {
        self.sources.iter().copied()
    }

    /// Counts one; `true` for the first of an address that was not remembered.
    fn note(&mut self, src: Gid) -> bool {
        if let Some((_, count)) = self.sources.iter_mut().find(|(gid, _)| *gid == src) {
            *count += 1;
            return false;
        }
        if self.sources.len() < SOURCES_MAX {
            self.sources.push((src, 1));
        } else if let Some(least) = self.sources.iter_mut().min_by_key(|(_, count)| *count) {
            *least = (src, 1);
        }
        true
    }
}

impl Core {
    /// Counts a packet that failed the check, and says so once per source.
    #[cold]
    pub(crate) fn icrc_failed(&mut self, src: Gid, dest_qp: Qpn) {
        self.stats.icrc_errors += 1;
        let mut peer = None;
        if let Some((_, entry)) = self.qps.find_mut(dest_qp) {
            let trouble = entry.trouble_mut();
            trouble.icrc_errors += 1;
            trouble.icrc_last_from = Some(src);
            peer = entry.qp.path().map(|av| av.dst);
        }
        if self.icrc.note(src) {
            let qpn = dest_qp.value();
            match peer.filter(|peer| *peer != src) {
                Some(peer) => tracing::warn!(
                    %src, %peer, qpn,
                    "ICRC failure, and not from the peer's address: a NAT rewrites addresses, \
                     which RoCE does not survive"
                ),
                None => tracing::warn!(
                    %src, qpn,
                    "ICRC failure: something on the way corrupts packets, or rewrites addresses or \
                     ports (NAT)"
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_sources_do_not_drive_out_the_one_that_fails_often() {
        let mut table = IcrcTable::default();
        let gid = |n: u8| Gid::from_v4([10, 0, 0, n]);
        for n in 0..100 {
            table.note(gid(1));
            assert_eq!(table.note(gid(n)), n != 1, "{n}");
        }
        assert_eq!(table.iter().count(), SOURCES_MAX);
        assert_eq!(table.from(gid(1)), 101);
        assert_eq!(table.from(gid(99)), 1);
        assert_eq!(table.from(gid(40)), 0, "forgotten");
    }
}
