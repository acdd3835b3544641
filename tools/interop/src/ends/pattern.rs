//! Contents of messages and their hashes; the guest's agent has the same two functions in C.

/// Byte `at` of the pattern of `seed`.
pub(crate) fn pattern_byte(seed: u64, at: u64) -> u8 {
    let mixed = (at + 1)
        .wrapping_mul(seed | 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes()[0]
}

/// Bytes `0..len` of the pattern of `seed`.
pub(super) fn pattern_bytes(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| pattern_byte(seed, at)).collect()
}

/// FNV-1a with 64 bits (Fowler, Noll, Vo).
pub(crate) fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_the_published_ones() {
        // Test vectors of the authors.
        assert_eq!(fnv1a([]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(*b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(*b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn patterns_differ_by_seed_and_position() {
        assert_ne!(pattern_bytes(1, 64), pattern_bytes(3, 64));
        assert_ne!(pattern_byte(1, 0), pattern_byte(1, 1));
    }
}
