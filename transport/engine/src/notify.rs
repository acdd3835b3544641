//! The notification point of DCQCN: which marks are told to their senders.
//!
//! One CNP per `min_time_between_cnps` and queue pair, destination or port (CC2; mlx5's
//! NPs do the same). Every marked data packet is counted once: `cnps_out` or `cnps_suppressed`.

use xroce_proto::qp::CnpClass;
use xroce_proto::time::{Duration, Instant};
use xroce_wire::newtypes::Gid;

use crate::engine::Core;

/// Places for destinations at first: a power of two. They become more with the queue pairs.
const PLACES_MIN: usize = 256;
/// Places for each queue pair, so that those of different peers hardly ever compete for one.
const PLACES_PER_QP: usize = 4;
/// Places where a destination may be. If others have them all, it has to wait until one of them
/// may be notified again: moderation is then stricter than asked, and never laxer.
const WAYS: usize = 16;

/// What the least time between two notifications is counted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CnpScope {
    /// Each queue pair.
    #[default]
    Qp,
    /// All queue pairs whose peers have one address.
    Destination,
    /// All of the port.
    Port,
}

/// How marks are answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotifyConfig {
    /// Least time between two notifications (mlx5: `min_time_between_cnps`).
    pub min_time_between_cnps: Duration,
    /// For what it is counted.
    pub scope: CnpScope,
    /// How urgent they are.
    pub class: CnpClass,
}

impl Default for NotifyConfig {
    /// mlx5's: every 4 µs for each queue pair, DSCP 48, priority 6. The DCQCN paper has 50 µs.
    fn default() -> Self {
        Self {
            min_time_between_cnps: Duration::from_micros(4),
            scope: CnpScope::Qp,
            class: CnpClass::default(),
        }
    }
}

/// When the next notification may leave, for each scope.
#[derive(Debug)]
pub(crate) struct Notifier {
    config: NotifyConfig,
    port: Instant,
    destinations: Destinations,
}

impl Notifier {
    pub(crate) fn new(config: NotifyConfig) -> Self {
        let mut notifier = Self {
            config,
            port: Instant::default(),
            destinations: Destinations::default(),
        };
        notifier.reserve(0);
        notifier
    }

    pub(crate) fn class(&self) -> CnpClass {
        self.config.class
    }

    /// Makes room for the peers of so many queue pairs.
    pub(crate) fn reserve(&mut self, qps: usize) {
        if self.config.scope == CnpScope::Destination {
            self.destinations.reserve(qps);
        }
    }

    /// Whether a notification to `peer` may leave at `now`; then the next may not for a while.
    /// `of_qp` is what is remembered of the queue pair.
    fn may_notify(&mut self, now: Instant, peer: Gid, of_qp: &mut Instant) -> bool {
        let next = match self.config.scope {
            CnpScope::Qp => Some(of_qp),
            CnpScope::Port => Some(&mut self.port),
            CnpScope::Destination => self.destinations.next_of(now, peer),
        };
        match next {
            Some(next) if now >= *next => {
                *next = now + self.config.min_time_between_cnps;
                true
            }
            _ => false,
        }
    }
}

/// The destinations notified a short time ago: the only ones that have to be known. Any number of
/// them in fixed memory, since a place is free again when its time has come.
#[derive(Debug, Default)]
struct Destinations {
    /// Who was notified, and when he may be again; a power of two of them.
    places: Vec<(Gid, Instant)>,
    /// Until then nobody is notified who has no place: he may have had one in a smaller table.
    quiet_until: Instant,
}

impl Destinations {
    fn reserve(&mut self, qps: usize) {
        let wanted = (qps * PLACES_PER_QP).next_power_of_two().max(PLACES_MIN);
        if wanted <= self.places.len() {
            return;
        }
        // Rarely, and for as long as a single interval.
        let latest = self.places.iter().map(|&(_, next)| next).max();
        self.quiet_until = self.quiet_until.max(latest.unwrap_or_default());
        self.places = vec![(Gid::default(), Instant::default()); wanted];
    }

    /// When `peer` may be notified again, in the place it has from now on; `None` if there is no
    /// place for it.
    fn next_of(&mut self, now: Instant, peer: Gid) -> Option<&mut Instant> {
        let mask = self.places.len().checked_sub(1)?;
        let first = hash(peer);
        let at = |way: usize| first.wrapping_add(way) & mask;
        let known = (0..WAYS).map(at).find(|&i| self.places[i].0 == peer);
        let place = known.or_else(|| {
            if now < self.quiet_until {
                return None;
            }
            (0..WAYS).map(at).find(|&i| self.places[i].1 <= now)
        });
        let (gid, next) = self.places.get_mut(place?)?;
        if *gid != peer {
            (*gid, *next) = (peer, Instant::default());
        }
        Some(next)
    }
}

/// FNV-1a (RFC 9923), with its upper half folded in.
fn hash(gid: Gid) -> usize {
    let hash = gid.bytes().iter().fold(0x811c_9dc5_u32, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (hash ^ hash >> 16) as usize
}

impl Core {
    /// A data packet of a queue pair came marked.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_mark(&mut self, now: Instant, index: u32, peer: Gid) {
        if let Some(entry) = self.qps.get_mut(index) {
            // Datagrams are not notified: their senders, who may be anybody, take no place and no
            // turn of those that are. While one waits to leave, another would be the same.
            let notified = entry.qp.path().is_some();
            let may = notified && self.notifier.may_notify(now, peer, &mut entry.next_cnp);
            entry.qp.note_mark(may);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    /// Marks of two queue pairs to one peer and one to another, every µs for 1 ms.
    fn notified(scope: CnpScope) -> [u32; 3] {
        let config = NotifyConfig {
            min_time_between_cnps: Duration::from_micros(50),
            scope,
            ..NotifyConfig::default()
        };
        let mut notifier = Notifier::new(config);
        let peers = [1, 1, 2].map(|n| Gid::from_v4([10, 0, 0, n]));
        let mut of_qp = [Instant::default(); 3];
        let mut seen = [0; 3];
        for us in 0..1000 {
            for n in 0..3 {
                let may = notifier.may_notify(at(us), peers[n], &mut of_qp[n]);
                seen[n] += u32::from(may);
            }
        }
        seen
    }

    /// Rule CC2.
    #[test]
    fn one_notification_per_interval_and_scope() {
        assert_eq!(notified(CnpScope::Qp), [20, 20, 20]);
        assert_eq!(notified(CnpScope::Destination), [20, 0, 20]);
        assert_eq!(notified(CnpScope::Port), [20, 0, 0]);
    }
    /// Most notifications of `peers` destinations in 1 ms of marks of each in every µs, and how
    /// many destinations had any.
    fn crowd(peers: u32, qps: &[(u64, usize)]) -> (u32, usize) {
        let config = NotifyConfig {
            min_time_between_cnps: Duration::from_micros(50),
            scope: CnpScope::Destination,
            ..NotifyConfig::default()
        };
        let mut notifier = Notifier::new(config);
        let mut seen = vec![0; peers as usize];
        for us in 0..1000 {
            for &(_, count) in qps.iter().filter(|&&(when, _)| when == us) {
                notifier.reserve(count);
            }
            for (n, seen) in (0..peers).zip(&mut seen) {
                let [_, a, b, c] = n.to_be_bytes();
                let peer = Gid::from_v4([10, a, b, c]);
                let may = notifier.may_notify(at(us), peer, &mut Instant::default());
                *seen += u32::from(may);
            }
        }
        let heard = seen.iter().filter(|&&n| n != 0).count();
        (seen.into_iter().max().unwrap(), heard)
    }

    #[test]
    fn case_125_the_bound_holds_for_any_number_of_destinations() {
        // A queue pair for each: none is forgotten, and none has to wait for another.
        for peers in [1000, 10_000] {
            assert_eq!(crowd(peers, &[(0, peers as usize)]), (20, peers as usize));
        }
        // Nor with less room than peers.
        for peers in [1000, 10_000] {
            let (most, heard) = crowd(peers, &[]);
            assert_eq!(most, 20);
            assert!(heard >= PLACES_MIN, "{heard} of {peers}");
        }
        // Nor is anybody forgotten while the table grows.
        let growing: Vec<(u64, usize)> = (1..10).map(|n| (n * 33, 100 << n)).collect();
        assert!(crowd(1000, &growing).0 <= 20);
    }
}
