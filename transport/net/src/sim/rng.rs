//! The one source of chance in a simulation: small, seeded, the same on every machine.

/// xoshiro256** (Blackman and Vigna, 2018), state filled by SplitMix64 from one number.
///
/// Not a secret generator. Public, so that a test draws its workload from the same seed.
#[derive(Clone, Debug)]
pub struct Rng {
    s: [u64; 4],
}

impl Rng {
    /// Any seed is good, zero too.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut z = seed;
        let mut split_mix = || {
            z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = z;
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        };
        Self {
            s: [split_mix(), split_mix(), split_mix(), split_mix()],
        }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.s;
        let out = s1.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (s2 ^ s0, s3 ^ s1);
        self.s = [s0 ^ d, s1 ^ c, c ^ (s1 << 17), d.rotate_left(45)];
        out
    }

    /// Uniform in `0 .. n`; 0 when `n` is 0. The bias is below `n` / 2^64.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the upper half of a 128-bit product"
    )]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in `0 .. n` for lengths and indices; 0 when `n` is 0.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the result is below n, a usize"
    )]
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// True in `ppm` of a million draws. Certain cases (0, a million and more) draw nothing.
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        match ppm {
            0 => false,
            1_000_000.. => true,
            p => self.below(1_000_000) < u64::from(p),
        }
    }

    /// A generator of its own, for one part of a test.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sequence() {
        // Pins the generator: a seed noted years ago must replay. The first four state words
        // for seed 0 are the published SplitMix64 outputs.
        assert_eq!(
            Rng::new(0).s,
            [
                0xe220_a839_7b1d_cdaf,
                0x6e78_9e6a_a1b9_65f4,
                0x06c4_5d18_8009_454f,
                0xf88b_b8a8_724c_81ec
            ]
        );
        // Published first outputs of xoshiro256** for the state 1, 2, 3, 4.
        let mut r = Rng { s: [1, 2, 3, 4] };
        let got: Vec<u64> = (0..4).map(|_| r.next_u64()).collect();
        assert_eq!(got, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn chance_is_about_right() {
        let mut r = Rng::new(7);
        let hits = (0..100_000).filter(|_| r.chance_ppm(10_000)).count();
        assert!((900..1100).contains(&hits), "{hits}");
        assert!(!r.chance_ppm(0));
        assert!(r.chance_ppm(1_000_000));
        assert_eq!(r.below(0), 0);
        assert!((0..1000).all(|_| r.index(3) < 3));
    }
}
