//! CRC-32 (reflected, 0xEDB88320) by carry-less multiplication.
//!
//! Every RoCE packet pays for this twice, once at either end. crc32fast, the well-kept choice, uses
//! carry-less multiplication from 128 bytes on only; a small packet has about 100 bytes under its
//! ICRC, and table lookups over these were the largest single cost of a 64-byte SEND.
//!
//! [`update`] works on the raw register: nothing is inverted at either end.
//!
//! There are two kinds of `unsafe` here: calls of functions that need CPU features which were just
//! detected, and copies through raw pointers ([`copy_joined`]) out of memory that others may write.
//! It is a crate of its own so that `xroce-wire` can go on forbidding `unsafe`.

#[cfg(target_arch = "x86_64")]
mod clmul;
mod gf2;
mod tables;

/// Register after `bytes`.
#[inline]
#[must_use]
pub fn update(state: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= clmul::LEN_MIN && clmul::is_supported() {
        // SAFETY: the features the function is compiled for were just detected.
        return unsafe { clmul::update(state, bytes) };
    }
    tables::update(state, bytes)
}

/// Register after the 16-byte blocks `head`, as little-endian numbers, and then `bytes`, starting
/// from 0. For headers that are put together in registers: folded straight into what follows,
/// they cost next to nothing.
///
/// Zeros in front of everything change nothing, so that any length can be filled up to blocks. A
/// register to start from is XORed into the first four bytes behind them.
#[inline]
#[must_use]
pub fn update_joined<const N: usize>(head: [u128; N], bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if clmul::is_supported() {
        // SAFETY: the features the function is compiled for were just detected.
        return unsafe { clmul::update_joined(head, bytes) };
    }
    update_joined_portable(head, bytes)
}

/// Copies `dst.len()` bytes from `src` to `dst` and gives [`update_joined`] of them.
///
/// # Safety
/// `dst.len()` bytes at `src` can be read and do not overlap `dst`. Others may write there
/// meanwhile: which of their bytes are copied is theirs to sort out, but the register is always
/// that of what `dst` holds afterwards.
#[inline]
#[must_use]
pub unsafe fn copy_joined<const N: usize>(head: [u128; N], src: *const u8, dst: &mut [u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if dst.len() >= clmul::COPY_MIN && clmul::is_supported() {
        // SAFETY: the features were just detected, the caller promises the rest.
        if let Some(state) = unsafe { clmul::copy_joined(head, src, dst) } {
            return state;
        }
    }
    for (i, chunk) in dst.chunks_mut(COPY_CHUNK).enumerate() {
        // SAFETY: the chunk lies that far in `dst`, and as many bytes can be read at `src`.
        let from = unsafe { src.add(i * COPY_CHUNK) };
        // SAFETY: the caller promises that the bytes can be read and do not overlap.
        unsafe { from.copy_to_nonoverlapping(chunk.as_mut_ptr(), chunk.len()) };
    }
    update_joined(head, dst)
}

/// Longest piece copied at once.
///
/// glibc switches to `rep movsb` at about 2 KiB, which on Zen 3 is 30 times slower when the
/// destination lies 1 to 31 bytes past the source modulo 4096 (measured: 1400 ns instead of 50 ns
/// for 4 KiB). Shorter copies stay on the vector path.
pub const COPY_CHUNK: usize = 1024;

/// [`update_joined`] by tables: the slow twin.
#[must_use]
pub fn update_joined_portable<const N: usize>(head: [u128; N], bytes: &[u8]) -> u32 {
    let state = head
        .iter()
        .fold(0, |s, block| tables::update(s, &block.to_le_bytes()));
    tables::update(state, bytes)
}

/// [`update`] by tables, whatever the CPU can: the slow twin.
#[must_use]
pub fn update_portable(state: u32, bytes: &[u8]) -> u32 {
    tables::update(state, bytes)
}

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut x = 0x1234_5678_9abc_def1u64;
        (0..len)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                (x >> 24).to_le_bytes()[0]
            })
            .collect()
    }

    /// Miri takes some lengths only.
    const STEP: usize = if cfg!(miri) { 61 } else { 1 };

    fn reference(state: u32, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(!state);
        hasher.update(bytes);
        !hasher.finalize()
    }

    #[test]
    fn every_length_and_alignment_agrees_with_crc32fast() {
        let data = noise(9000);
        for len in (0..700)
            .step_by(STEP)
            .chain([1024, 1040, 2048, 4096, 4112, 4157, 8999])
        {
            for start in [0, 1, 7] {
                let bytes = &data[start..(start + len).min(data.len())];
                for state in [0, !0, 0xdebb_20e3] {
                    let expected = reference(state, bytes);
                    assert_eq!(update(state, bytes), expected, "{len} bytes from {start}");
                    assert_eq!(
                        update_portable(state, bytes),
                        expected,
                        "{len} bytes, tables"
                    );
                }
            }
        }
    }

    #[test]
    fn the_check_value() {
        let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);
        let text = b"123456789 and more than sixteen bytes";
        assert_eq!(!update(!0, text), crc.checksum(text));
        assert_eq!(!update(!0, b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_head_joined_is_a_head_in_front() {
        let data = noise(1200);
        let block = |at: usize| u128::from_le_bytes(*data[at..].first_chunk().unwrap());
        for len in (0..300).step_by(STEP).chain([512, 1000, 1100]) {
            let rest = &data[64..64 + len];
            for (head, expected) in [
                (
                    update_joined([block(0)], rest),
                    update(update(0, &data[..16]), rest),
                ),
                (
                    update_joined([block(0), block(16), block(32), block(48)], rest),
                    update(0, &data[..64 + len]),
                ),
                (
                    // Filled up with zeros, and a register to start from.
                    update_joined([(block(0) >> 32 ^ 0x1234_5678) << 32, block(16)], rest),
                    update(update(0x1234_5678, &data[4..32]), rest),
                ),
                (
                    update_joined_portable([block(0), block(16)], rest),
                    update_joined([block(0), block(16)], rest),
                ),
            ] {
                assert_eq!(head, expected, "{len} bytes behind");
            }
        }
    }

    #[test]
    fn copied_is_the_same_bytes_and_the_same_register() {
        let data = noise(4200);
        let block = |at: usize| u128::from_le_bytes(*data[at..].first_chunk().unwrap());
        for len in (0..700)
            .step_by(STEP)
            .chain([1023, 1024, 1025, 2048, 4092, 4096, 4112])
        {
            for start in [0, 1, 13] {
                let from = &data[start..start + len];
                let mut to = vec![0xaa; len + 1];
                let head = [block(3), block(40)];
                // SAFETY: both are slices of that length.
                let state = unsafe { copy_joined(head, from.as_ptr(), &mut to[..len]) };
                assert_eq!(
                    state,
                    update_joined_portable(head, from),
                    "{len} from {start}"
                );
                assert_eq!(&to[..len], from, "{len} from {start}");
                assert_eq!(to[len], 0xaa, "{len} from {start}: one byte too many");
            }
        }
    }

    #[test]
    fn pieces_make_the_whole() {
        let data = noise(600);
        let whole = update(!0, &data);
        for cut in (0..data.len()).step_by(STEP) {
            assert_eq!(update(update(!0, &data[..cut]), &data[cut..]), whole);
        }
    }
}
