//! Polynomials over GF(2), at compile time: the constants of folding come from the definition,
//! not from a table of somebody.

/// The CRC-32 polynomial, reflected: bit 31 is x^0.
pub(crate) const POLY: u32 = 0xedb8_8320;
/// The same, not reflected and without x^32.
const POLY_NORMAL: u32 = POLY.reverse_bits();

/// x^n mod P, reflected, in the form in which a carry-less multiplication of reflected operands
/// wants it: one bit to the left.
pub(crate) const fn x_pow(n: u32) -> u64 {
    let mut r = 1u32;
    let mut i = 0;
    while i < n {
        r = (r << 1) ^ (POLY_NORMAL & (r >> 31).wrapping_neg());
        i += 1;
    }
    (r.reverse_bits() as u64) << 1
}

/// P itself, reflected, 33 bits.
pub(crate) const P: u64 = (POLY as u64) << 1 | 1;

/// floor(x^64 / P), reflected, 33 bits: the factor of Barrett's reduction.
pub(crate) const MU: u64 = {
    // Long division of x^64 by P, quotient bits from x^32 down.
    let p = (1u128 << 32) | POLY_NORMAL as u128;
    let mut rest = 1u128 << 64;
    let mut quotient = 0u64;
    let mut bit = 32i32;
    while bit >= 0 {
        if rest >> (bit + 32) & 1 == 1 {
            rest ^= p << bit;
            quotient |= 1 << bit;
        }
        bit -= 1;
    }
    // Reflect 33 bits.
    quotient.reverse_bits() >> 31
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constants_of_the_literature() {
        // Gopal et al., Fast CRC Computation Using PCLMULQDQ, Intel 2009, bit-reflected set.
        assert_eq!(x_pow(4 * 128 + 32), 0x1_5444_2bd4);
        assert_eq!(x_pow(4 * 128 - 32), 0x1_c6e4_1596);
        assert_eq!(x_pow(128 + 32), 0x1_7519_97d0);
        assert_eq!(x_pow(128 - 32), 0x0_ccaa_009e);
        assert_eq!(x_pow(64), 0x1_63cd_6124);
        assert_eq!(P, 0x1_db71_0641);
        assert_eq!(MU, 0x1_f701_1641);
    }
}
