//! Four bytes a step by tables: for short inputs and other CPUs.

use crate::gf2::POLY;

/// `TABLES[n][b]` is the register after byte `b` and `n` zero bytes.
static TABLES: [[u32; 256]; 4] = {
    let mut t = [[0u32; 256]; 4];
    let mut b = 0;
    while b < 256 {
        #[allow(clippy::cast_possible_truncation, reason = "below 256")]
        let mut v = b as u32;
        let mut bit = 0;
        while bit < 8 {
            v = (v >> 1) ^ (POLY & (v & 1).wrapping_neg());
            bit += 1;
        }
        t[0][b] = v;
        b += 1;
    }
    let mut n = 1;
    while n < 4 {
        let mut b = 0;
        while b < 256 {
            let v = t[n - 1][b];
            t[n][b] = (v >> 8) ^ t[0][(v & 0xff) as usize];
            b += 1;
        }
        n += 1;
    }
    t
};

#[inline]
pub(crate) fn update(mut state: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let [a, b, c, d] = (state ^ u32::from_le_bytes(*word)).to_le_bytes();
        state = TABLES[3][usize::from(a)]
            ^ TABLES[2][usize::from(b)]
            ^ TABLES[1][usize::from(c)]
            ^ TABLES[0][usize::from(d)];
    }
    for byte in rest {
        state = (state >> 8) ^ TABLES[0][usize::from(state.to_le_bytes()[0] ^ byte)];
    }
    state
}
