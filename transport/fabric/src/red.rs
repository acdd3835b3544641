//! ECN marking by the instantaneous length of the egress queue, as DCQCN's congestion point does it
//! (Zhu et al., SIGCOMM 2015, section 3.1): with q bytes queued, q ≤ Kmin never marks, Kmin < q ≤
//! Kmax marks with probability Pmax·(q − Kmin)/(Kmax − Kmin), and q > Kmax always.

use xroce_net::sim::Rng;

/// When the queue is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MarkAt {
    /// When a packet leaves: it tells of those behind it, which is the freshest news.
    #[default]
    Dequeue,
    /// When a packet comes: it tells of those before it.
    Enqueue,
}

/// Parameters of marking, the same for all queues of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Red {
    /// Bytes up to which nothing is marked.
    pub kmin: u64,
    /// Bytes beyond which everything is marked, at least `kmin`.
    pub kmax: u64,
    /// Probability at `kmax`, in parts per million.
    pub pmax_ppm: u32,
    /// When the queue is looked at; the packet itself does not count.
    pub at: MarkAt,
    /// Priorities whose packets are marked, as bits.
    pub priorities: u8,
}

impl Red {
    /// Whether a packet is to be marked with `queued` bytes in its queue.
    pub(crate) fn marks(&self, priority: u8, queued: u64, rng: &mut Rng) -> bool {
        if queued <= self.kmin || self.priorities >> (priority & 7) & 1 == 0 {
            return false;
        }
        if queued > self.kmax {
            return true;
        }
        // Exact: a draw below span · 10^6 against Pmax · over.
        let span = (self.kmax - self.kmin).saturating_mul(1_000_000);
        rng.below(span) < u64::from(self.pmax_ppm).saturating_mul(queued - self.kmin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Red = Red {
        kmin: 5000,
        kmax: 200_000,
        pmax_ppm: 10_000,
        at: MarkAt::Dequeue,
        priorities: 1 << 3,
    };

    fn share(queued: u64) -> f64 {
        let mut rng = Rng::new(queued);
        let n = 1_000_000;
        let marked = (0..n).filter(|_| RED.marks(3, queued, &mut rng)).count();
        marked as f64 / f64::from(n)
    }

    #[test]
    fn probabilities_are_those_of_the_formula() {
        for queued in [0, 5000] {
            assert_eq!(share(queued), 0.0, "{queued}");
        }
        for queued in [5001, 24_500, 102_500, 180_500, 200_000] {
            let expected = 0.01 * (queued - 5000) as f64 / 195_000.0;
            // Five standard deviations of a million draws.
            let allowed = 5.0 * (expected / 1e6).sqrt() + 1e-6;
            assert!(
                (share(queued) - expected).abs() <= allowed,
                "{queued}: {}",
                share(queued)
            );
        }
        assert_eq!(share(200_001), 1.0);
    }

    #[test]
    fn other_priorities_and_steps() {
        let mut rng = Rng::new(1);
        assert!(!RED.marks(2, 1_000_000, &mut rng));
        // Kmin = Kmax is a step, as DCTCP has it.
        let step = Red { kmax: 5000, ..RED };
        assert!(!step.marks(3, 5000, &mut rng));
        assert!(step.marks(3, 5001, &mut rng));
    }
}
