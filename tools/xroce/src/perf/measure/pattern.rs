//! The bytes of a message: a function of step, round, queue pair and message number, so that a
//! lost, repeated, shifted or stale message does not compare equal.
//!
//! The bytes are windows into one table of pseudo-random bytes. Filling is a `memcpy` and
//! checking a `memcmp`, both far faster than a link, and two messages whose windows start at
//! different offsets differ in nearly every byte.

/// Windows start below this offset; a prime, so that the multipliers below spread over all of it.
const PERIOD: u64 = 65_521;
const PERIOD_LEN: usize = 65_521;

/// Which message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageId {
    /// Index of the step in the plan.
    pub step: u32,
    /// Round within the step.
    pub round: u64,
    /// Whether the client sends it, or reads it.
    pub of_client: bool,
    /// Index of the queue pair.
    pub qp: u32,
    /// Number of the message in the round.
    pub n: u64,
}

/// The table of bytes, large enough for messages up to the size it was made for.
#[derive(Debug)]
pub(crate) struct Pattern {
    bytes: Vec<u8>,
}

impl Pattern {
    /// A table for messages of up to `max_size` bytes.
    pub(crate) fn new(max_size: u32) -> Self {
        let len = (max_size as usize + PERIOD_LEN).next_multiple_of(8);
        let mut bytes = Vec::with_capacity(len);
        // xorshift64*: any fixed, aperiodic stream would do; both sides must make the same one.
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        while bytes.len() < len {
            x ^= x >> 12;
            x ^= x << 25;
            x ^= x >> 27;
            bytes.extend_from_slice(&x.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
        }
        Self { bytes }
    }

    /// The `size` bytes of message `id`; shorter only if `size` exceeds the table's limit.
    pub(crate) fn of(&self, id: MessageId, size: u32) -> &[u8] {
        let start = (id.n % PERIOD * 31
            + id.round % PERIOD * 7_919
            + u64::from(id.of_client) * 32_003
            + u64::from(id.qp) * 1_009
            + u64::from(id.step) * 13_007)
            % PERIOD;
        let start = usize::try_from(start).unwrap_or(0);
        self.bytes
            .get(start..)
            .and_then(|b| b.get(..size as usize))
            .unwrap_or_default()
    }

    /// Compares received bytes with message `id`: `None` if equal, else the offset of the first
    /// difference, the byte expected there and the byte found.
    pub(crate) fn mismatch(&self, id: MessageId, got: &[u8]) -> Option<Mismatch> {
        let want = self.of(id, u32::try_from(got.len()).unwrap_or(u32::MAX));
        if want == got {
            return None;
        }
        let at = want
            .iter()
            .zip(got)
            .position(|(w, g)| w != g)
            .unwrap_or(want.len());
        Some(Mismatch {
            id,
            offset: at,
            want: want.get(at).copied().unwrap_or(0),
            got: got.get(at).copied().unwrap_or(0),
        })
    }
}

/// The first byte of a message that is not what was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mismatch {
    /// Which message.
    pub id: MessageId,
    /// Offset in the message, in bytes.
    pub offset: usize,
    /// The byte that was sent.
    pub want: u8,
    /// The byte found.
    pub got: u8,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "message {} of round {} on queue pair {}: byte {} is {:#04x}, sent was {:#04x}",
            self.id.n, self.id.round, self.id.qp, self.offset, self.got, self.want
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: MessageId = MessageId {
        step: 3,
        round: 5,
        of_client: true,
        qp: 1,
        n: 9,
    };

    #[test]
    fn equal_and_unequal() {
        let p = Pattern::new(1 << 20);
        let mut m = p.of(ID, 1 << 20).to_vec();
        assert_eq!(m.len(), 1 << 20);
        assert_eq!(p.mismatch(ID, &m), None);
        m[700_000] ^= 1;
        let miss = p.mismatch(ID, &m).unwrap();
        assert_eq!((miss.offset, miss.want ^ miss.got), (700_000, 1));
    }

    #[test]
    fn neighbours_differ() {
        let p = Pattern::new(64);
        let m = p.of(ID, 64);
        for other in [
            MessageId { step: 4, ..ID },
            MessageId { round: 6, ..ID },
            MessageId { qp: 0, ..ID },
            MessageId {
                of_client: false,
                ..ID
            },
            MessageId { n: 10, ..ID },
            MessageId { n: 8, ..ID },
        ] {
            assert!(p.mismatch(other, m).is_some(), "{other:?}");
        }
    }

    #[test]
    fn every_message_of_a_round_has_its_own_window() {
        let p = Pattern::new(64);
        let mut seen = std::collections::HashSet::new();
        for n in 0..4096 {
            assert!(seen.insert(p.of(MessageId { n, ..ID }, 64).as_ptr() as usize));
        }
    }

    #[test]
    fn extreme_ids_and_sizes_do_not_overflow() {
        let p = Pattern::new(8);
        let id = MessageId {
            step: u32::MAX,
            round: u64::MAX,
            of_client: true,
            qp: u32::MAX,
            n: u64::MAX,
        };
        assert_eq!(p.of(id, 8).len(), 8);
        assert!(p.of(id, u32::MAX).is_empty());
    }
}
