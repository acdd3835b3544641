//! The notification point of DCQCN: which marks are told to their senders.
//!
//! One CNP per `min_time_between_cnps` and queue pair, destination or port (`DCQCN.md` §2; mlx5's
//! NPs do the same). Every marked data packet is counted once: `cnps_out` or `cnps_suppressed`.

use xroce_proto::qp::CnpClass;
use xroce_proto::time::{Duration, Instant};
use xroce_wire::newtypes::Gid;

use crate::engine::Core;

/// Destinations remembered: a power of two. Two that fall on one place are not moderated together.
const DESTINATIONS: usize = 256;

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
    destinations: Vec<(Gid, Instant)>,
}

impl Notifier {
    pub(crate) fn new(config: NotifyConfig) -> Self {
        let destinations = match config.scope {
            CnpScope::Destination => vec![(Gid::default(), Instant::default()); DESTINATIONS],
            _ => Vec::new(),
        };
        Self {
            config,
            port: Instant::default(),
            destinations,
        }
    }

    pub(crate) fn class(&self) -> CnpClass {
        self.config.class
    }

    /// Whether a notification to `peer` may leave at `now`; then the next may not for a while.
    /// `of_qp` is what is remembered of the queue pair.
    fn may_notify(&mut self, now: Instant, peer: Gid, of_qp: &mut Instant) -> bool {
        let next = match self.config.scope {
            CnpScope::Qp => of_qp,
            CnpScope::Port => &mut self.port,
            CnpScope::Destination => {
                let slot = place(peer);
                let Some(known) = self.destinations.get_mut(slot) else {
                    return true;
                };
                if known.0 != peer {
                    *known = (peer, Instant::default());
                }
                &mut known.1
            }
        };
        if now < *next {
            return false;
        }
        *next = now + self.config.min_time_between_cnps;
        true
    }
}

/// Place of an address in the table.
fn place(gid: Gid) -> usize {
    let hash = gid.bytes().iter().fold(0x811c_9dc5_u32, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash as usize % DESTINATIONS
}

impl Core {
    /// A data packet of a queue pair came marked.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_mark(&mut self, now: Instant, index: u32, peer: Gid) {
        if let Some(entry) = self.qps.get_mut(index) {
            // While one waits to leave, another would be the same.
            let may = self.notifier.may_notify(now, peer, &mut entry.next_cnp);
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

    #[test]
    fn one_notification_per_interval_and_scope() {
        assert_eq!(notified(CnpScope::Qp), [20, 20, 20]);
        assert_eq!(notified(CnpScope::Destination), [20, 0, 20]);
        assert_eq!(notified(CnpScope::Port), [20, 0, 0]);
    }
}
