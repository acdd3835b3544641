//! What the IPv4 identification adds to an ICRC, per packet length.

use xroce_wire::icrc::id_delta;

use super::train::MAX_SEGMENTS;

/// Covered bytes behind the identification besides the transport packet: 14 of IPv4, 8 of UDP.
const LOWER_AFTER_ID: usize = 22;
/// Lengths remembered: First, Middle, Last and ACK of two kinds of message.
const LENGTHS: usize = 8;

/// One length: the difference for each identification a segment can get.
#[derive(Clone, Debug)]
struct Row {
    len: usize,
    delta: [u32; MAX_SEGMENTS],
}

/// The rows in use, the latest found first. Computing a row costs six multiplications modulo the
/// CRC polynomial; bulk traffic has two or three lengths, so almost every look-up is one compare.
#[derive(Clone, Debug)]
pub(super) struct Deltas {
    rows: Vec<Row>,
    last: usize,
    oldest: usize,
}

impl Deltas {
    pub(super) fn new() -> Self {
        let rows = vec![
            Row {
                len: 0,
                delta: [0; MAX_SEGMENTS]
            };
            LENGTHS
        ];
        Self {
            rows,
            last: 0,
            oldest: 0,
        }
    }

    /// Differences for transport packets (BTH .. ICRC) of `len` bytes, by identification.
    fn row(&mut self, len: usize) -> &[u32; MAX_SEGMENTS] {
        if self.rows.get(self.last).is_none_or(|r| r.len != len) {
            self.last = match self.rows.iter().position(|r| r.len == len) {
                Some(at) => at,
                None => self.fill(len),
            };
        }
        self.rows
            .get(self.last)
            .map_or(&[0; MAX_SEGMENTS], |r| &r.delta)
    }

    fn fill(&mut self, len: usize) -> usize {
        let at = self.oldest;
        self.oldest = (self.oldest + 1) % LENGTHS;
        if let Some(row) = self.rows.get_mut(at) {
            row.len = len;
            let covered = LOWER_AFTER_ID + len.saturating_sub(4);
            for id in 1..MAX_SEGMENTS {
                // CRC is linear: the difference of a number is the XOR of those of its bits.
                let rest = id & (id - 1);
                row.delta[id] = if rest == 0 {
                    id_delta(covered, u16::try_from(id).unwrap_or(0))
                } else {
                    row.delta[rest] ^ row.delta[id & !rest]
                };
            }
        }
        at
    }

    /// Changes the ICRC of a packet from that for identification 0 to that for `id`, or back.
    pub(super) fn apply(&mut self, packet: &mut [u8], id: usize) {
        let delta = self.row(packet.len()).get(id).copied().unwrap_or(0);
        if let Some(icrc) = packet.last_chunk_mut::<4>() {
            *icrc = (u32::from_le_bytes(*icrc) ^ delta).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_agree_with_the_definition() {
        let mut d = Deltas::new();
        for round in 0..3 {
            for len in [16, 20, 84, 1040, 4112, 4128, 4096, 200, 300, 400, 500] {
                for id in [0u16, 1, 2, 3, 17, 42, 63] {
                    let mut packet = vec![0; len];
                    d.apply(&mut packet, id.into());
                    let want = id_delta(len - 4 + 22, id).to_le_bytes();
                    assert_eq!(packet[len - 4..], want, "round {round} len {len} id {id}");
                    d.apply(&mut packet, id.into());
                    assert!(packet.iter().all(|&b| b == 0));
                }
            }
        }
        d.apply(&mut [1, 2, 3], 5);
    }
}
