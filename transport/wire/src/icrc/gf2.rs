//! Arithmetic in GF(2)[x] modulo the CRC-32 polynomial, for the one thing a socket hides: the
//! IPv4 identification, which the ICRC covers.
//!
//! Elements are reflected as in the CRC register: bit 31 is x^0. Appending a zero byte to the
//! input multiplies the register by x^8.

use super::POLY;

/// `v * x`.
pub(super) const fn times_x(v: u32) -> u32 {
    (v >> 1) ^ (POLY & 0u32.wrapping_sub(v & 1))
}

/// `v / x`: the polynomial has a constant term, so x can be divided by.
const fn over_x(v: u32) -> u32 {
    if v & 0x8000_0000 != 0 {
        ((v ^ POLY) << 1) | 1
    } else {
        v << 1
    }
}

/// `a * b`.
const fn mul(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & 0u32.wrapping_sub((a >> bit) & 1);
        b = times_x(b);
    }
    product
}

/// Powers of a unit: `low[i] = unit^i`, `high[i] = unit^(256 i)`.
struct Powers {
    low: [u32; 256],
    high: [u32; 256],
}

impl Powers {
    const fn new(unit: u32) -> Self {
        let one = 0x8000_0000;
        let (mut low, mut high) = ([one; 256], [one; 256]);
        let mut i = 1;
        while i < 256 {
            low[i] = mul(low[i - 1], unit);
            i += 1;
        }
        let unit_256 = mul(low[255], unit);
        let mut i = 1;
        while i < 256 {
            high[i] = mul(high[i - 1], unit_256);
            i += 1;
        }
        Self { low, high }
    }

    /// `unit^n`; n modulo 2^16, more than any packet has bytes.
    fn pow(&self, n: usize) -> u32 {
        mul(self.high[n >> 8 & 0xff], self.low[n & 0xff])
    }
}

const fn times_x8(mut v: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        v = times_x(v);
        bit += 1;
    }
    v
}

const fn over_x8(mut v: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        v = over_x(v);
        bit += 1;
    }
    v
}

static BYTE: Powers = Powers::new(times_x8(0x8000_0000));
static BYTE_BACK: Powers = Powers::new(over_x8(0x8000_0000));

/// XOR difference of the ICRC when the IPv4 identification goes from 0 to `id`, as the number
/// whose little-endian bytes are on the wire. `bytes_after_id` counts the covered bytes behind the
/// identification: 14 of IPv4, 8 of UDP, and BTH .. pad.
#[must_use]
pub fn id_delta(bytes_after_id: usize, id: u16) -> u32 {
    // The two bytes in front of the register, in wire order, then advanced over themselves and
    // what follows.
    mul(u32::from(id.swap_bytes()), BYTE.pow(bytes_after_id + 2))
}

/// The identification that makes [`id_delta`] equal `delta`, if one does: of 2^32 differences
/// only 2^16 are those of an identification.
#[must_use]
pub fn id_of_delta(bytes_after_id: usize, delta: u32) -> Option<u16> {
    let id = mul(delta, BYTE_BACK.pow(bytes_after_id + 2));
    u16::try_from(id).ok().map(u16::swap_bytes)
}

#[cfg(test)]
mod tests {
    use super::super::crc_update;
    use super::*;

    #[test]
    fn dividing_undoes_multiplying() {
        for v in [1, 2, 0x8000_0000, 0xdead_beef, u32::MAX] {
            assert_eq!(over_x(times_x(v)), v);
            assert_eq!(mul(v, 0x8000_0000), v);
            assert_eq!(mul(mul(v, BYTE.pow(5000)), BYTE_BACK.pow(5000)), v);
        }
    }

    #[test]
    fn powers_append_zero_bytes() {
        for n in [0, 1, 2, 37, 255, 256, 257, 4242, 65_535] {
            assert_eq!(
                mul(0x1234_5678, BYTE.pow(n)),
                crc_update(0x1234_5678, &vec![0; n])
            );
        }
    }

    #[test]
    fn delta_names_its_id() {
        for n in [22, 38, 1062, 4142] {
            for id in [0, 1, 2, 63, 64, 0x1234, u16::MAX] {
                assert_eq!(id_of_delta(n, id_delta(n, id)), Some(id));
            }
            assert_eq!(id_of_delta(n, id_delta(n, 1) ^ 1), None);
        }
    }
}
