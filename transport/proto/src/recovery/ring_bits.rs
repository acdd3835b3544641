//! Bits of a window of serial numbers, each found by the low bits of its number.

use alloc::boxed::Box;
use alloc::vec;

/// A ring of bits. Its size is a power of two, so that it divides the space of PSNs, and at least
/// 64.
#[derive(Debug)]
pub(crate) struct RingBits {
    words: Box<[u64]>,
}

impl RingBits {
    /// For windows of `size` numbers, a power of two.
    pub(crate) fn new(size: u32) -> Self {
        Self {
            words: vec![0; (size as usize / 64).max(1)].into(),
        }
    }

    #[inline]
    fn word(&self, n: u32) -> usize {
        (n as usize / 64) & (self.words.len() - 1)
    }

    #[inline]
    pub(crate) fn set(&mut self, n: u32) {
        let word = self.word(n);
        self.words[word] |= 1 << (n % 64);
    }

    #[inline]
    pub(crate) fn clear(&mut self, n: u32) {
        let word = self.word(n);
        self.words[word] &= !(1 << (n % 64));
    }

    #[inline]
    pub(crate) fn get(&self, n: u32) -> bool {
        self.words[self.word(n)] >> (n % 64) & 1 != 0
    }

    pub(crate) fn clear_all(&mut self) {
        self.words.fill(0);
    }

    /// The 64 bits from `first` on, the lowest bit being that of `first`.
    #[inline]
    pub(crate) fn window(&self, first: u32) -> u64 {
        let shift = first % 64;
        let low = self.words[self.word(first)] >> shift;
        if shift == 0 {
            return low;
        }
        low | self.words[self.word(first.wrapping_add(64))] << (64 - shift)
    }

    /// How far behind `first` the first set bit is, among `count`.
    #[inline]
    pub(crate) fn first_set(&self, first: u32, count: u32) -> Option<u32> {
        let mut done = 0;
        while done < count {
            let bits = self.window(first.wrapping_add(done));
            if bits != 0 {
                let found = done + bits.trailing_zeros();
                return (found < count).then_some(found);
            }
            done += 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_wrap() {
        let mut bits = RingBits::new(128);
        for n in [0xff_fffe, 0xff_ffff, 0x00_0000, 0x00_003f] {
            bits.set(n);
        }
        assert_eq!(bits.window(0xff_fffe), 0b111);
        assert!(bits.get(0x00_003f));
        assert_eq!(bits.window(0x00_0000), 1 | 1 << 63);
        assert_eq!(bits.first_set(0x00_0001, 62), None);
        assert_eq!(bits.first_set(0x00_0001, 63), Some(62));
        bits.clear(0xff_fffe);
        assert_eq!(bits.first_set(0xff_fff0, 100), Some(15));
        bits.clear_all();
        assert_eq!(bits.first_set(0, 128), None);
    }

    #[test]
    fn the_smallest_ring_is_one_word() {
        let mut bits = RingBits::new(1);
        bits.set(70);
        assert!(bits.get(70));
        assert_eq!(bits.window(65), 1 << 5);
    }
}
