//! What the length fields add to the CRC register after the headers below BTH.
//!
//! A template knows its headers except the lengths. The register is linear, so the register for a
//! length is that for length zero XOR one table entry per length byte: no pass over the headers
//! and no cache that a change of packet size would invalidate.

use super::gf2::times_x;

/// Contribution of a 16-bit field, by its bytes.
struct Field {
    high: [u32; 256],
    low: [u32; 256],
}

/// Register after each byte value.
const fn first() -> [u32; 256] {
    let mut t = [0; 256];
    let mut b = 0;
    while b < 256 {
        #[allow(clippy::cast_possible_truncation, reason = "below 256")]
        let mut v = b as u32;
        let mut bit = 0;
        while bit < 8 {
            v = times_x(v);
            bit += 1;
        }
        t[b] = v;
        b += 1;
    }
    t
}

/// Register after each byte value and `after` zero bytes.
const fn byte(after: usize) -> [u32; 256] {
    let first = first();
    let mut t = first;
    let mut n = 0;
    while n < after {
        let mut b = 0;
        while b < 256 {
            t[b] = (t[b] >> 8) ^ first[(t[b] & 0xff) as usize];
            b += 1;
        }
        n += 1;
    }
    t
}

const fn xor(mut a: [u32; 256], b: [u32; 256]) -> [u32; 256] {
    let mut i = 0;
    while i < 256 {
        a[i] ^= b[i];
        i += 1;
    }
    a
}

impl Field {
    /// A field whose last byte is followed by `after` bytes of header.
    const fn new(after: usize) -> Self {
        Self {
            high: byte(after + 1),
            low: byte(after),
        }
    }

    /// Two fields that always hold the same number.
    const fn twice(a: usize, b: usize) -> Self {
        Self {
            high: xor(byte(a + 1), byte(b + 1)),
            low: xor(byte(a), byte(b)),
        }
    }

    #[inline]
    fn of(&self, v: u16) -> u32 {
        let [high, low] = v.to_be_bytes();
        self.high[usize::from(high)] ^ self.low[usize::from(low)]
    }
}

// Bytes of headers behind the field: offsets 2 and 24 of 28, 4 and 44 of 48, 4 of 40.
static V4_TOTAL: Field = Field::new(24);
static V4_UDP: Field = Field::new(2);
static V6: Field = Field::twice(42, 2);
static GRH: Field = Field::new(34);

/// IPv4 total length and UDP length.
#[inline]
pub(crate) fn v4(total_len: u16, udp_len: u16) -> u32 {
    V4_TOTAL.of(total_len) ^ V4_UDP.of(udp_len)
}

/// IPv6 payload length, which is the UDP length.
#[inline]
pub(crate) fn v6(udp_len: u16) -> u32 {
    V6.of(udp_len)
}

/// GRH payload length.
#[inline]
pub(crate) fn grh(len: u16) -> u32 {
    GRH.of(len)
}
