//! Generators: one queue pair against plain models of its peer.
//!
//! * `peer`: a responder, strict in what it acknowledges, `work` what it is given to do,
//! * `world`: a queue pair, that responder and a network between them, in virtual time,
//! * `lossless`, `loss`: what the requester has to keep to over such networks,
//! * `asker`: a requester, `responder` what is demanded of the queue pair that answers it, over a
//!   network that copies and overtakes; `lap` the same a lap of PSNs later,
//! * `modify`: attributes that change, or do not, in the middle of a conversation.

extern crate std;

mod asker;
mod lap;
mod loss;
mod lossless;
mod modify;
mod peer;
mod responder;
mod work;
mod world;

use proptest::prelude::ProptestConfig;

/// `n` cases; `PROPTEST_CASES` multiplies them as it does the 256 of every other property.
fn cases(n: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: (u64::from(default.cases) * u64::from(n) / 256).max(1) as u32,
        // ms
        max_shrink_time: 10_000,
        ..default
    }
}

/// Numbers at random, the same for the same seed (xorshift).
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 0 ..= n - 1.
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }

    /// True once in `n` times.
    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
