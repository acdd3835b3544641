//! The x86-64 kernel: PCLMULQDQ, and twice as wide where the CPU has VPCLMULQDQ.
//!
//! Folding: a block A that lies n bits before a block B contributes to the remainder as
//! A · x^n mod P, so that A can be multiplied by constants and added to B. Four (or eight) blocks
//! run side by side, then are folded into one, then what is left of the input; the last
//! incomplete block is made whole by moving bytes of the accumulator in front of it. Barrett's
//! method reduces the last 128 bits.

use core::arch::x86_64::{
    __m128i, __m256i, _mm_and_si128, _mm_blendv_epi8, _mm_clmulepi64_si128, _mm_cvtsi32_si128,
    _mm_extract_epi32, _mm_set_epi32, _mm_set_epi64x, _mm_setzero_si128, _mm_shuffle_epi8,
    _mm_srli_si128, _mm_xor_si128, _mm256_castsi128_si256, _mm256_castsi256_si128,
    _mm256_clmulepi64_epi128, _mm256_extracti128_si256, _mm256_inserti128_si256,
    _mm256_loadu_si256, _mm256_set_epi64x, _mm256_storeu_si256, _mm256_xor_si256,
    _mm256_zextsi128_si256,
};
use core::ptr;
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};

use crate::gf2::{MU, P, x_pow};

/// Shorter inputs go by tables.
pub(crate) const LEN_MIN: usize = 16;
/// From here on the wide kernel pays.
const WIDE_MIN: usize = 256;
/// From here on [`copy_joined`] may do it.
pub(crate) const COPY_MIN: usize = WIDE_MIN;

const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const NARROW: u8 = 2;
const WIDE: u8 = 3;

/// What was detected; asked once, then one relaxed load: nothing else depends on it.
static LEVEL: AtomicU8 = AtomicU8::new(UNKNOWN);

#[inline]
pub(crate) fn is_supported() -> bool {
    level() >= NARROW
}

#[inline]
fn level() -> u8 {
    let level = LEVEL.load(Ordering::Relaxed);
    if level == UNKNOWN { detect() } else { level }
}

#[cold]
fn detect() -> u8 {
    let narrow = is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1");
    let wide = narrow && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vpclmulqdq");
    let level = if wide {
        WIDE
    } else if narrow {
        NARROW
    } else {
        NONE
    };
    LEVEL.store(level, Ordering::Relaxed);
    level
}

/// Register after at least [`LEN_MIN`] bytes.
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(crate) fn update(state: u32, bytes: &[u8]) -> u32 {
    seeded(_mm_cvtsi32_si128(state.cast_signed()), bytes)
}

/// Register after whole blocks and then `bytes`, starting from 0.
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(crate) fn update_joined<const N: usize>(head: [u128; N], bytes: &[u8]) -> u32 {
    let k = constants(128);
    let acc = fold_head(head);
    if bytes.len() < LEN_MIN {
        return crate::tables::update(reduce(acc), bytes);
    }
    seeded(fold(acc, _mm_setzero_si128(), k), bytes)
}

/// `head` folded into one block that stands in front of what follows.
#[target_feature(enable = "pclmulqdq,sse4.1")]
#[inline]
fn fold_head<const N: usize>(head: [u128; N]) -> __m128i {
    let k = constants(128);
    let mut acc = _mm_setzero_si128();
    for (i, block) in head.into_iter().enumerate() {
        let next = vector(block);
        acc = if i == 0 { next } else { fold(acc, next, k) };
    }
    acc
}

/// [`update_joined`] over what it copies from `src` to `dst`: each byte is loaded once, and its
/// store costs nothing beside the multiplications. `None` where the wide kernel is not there or
/// does not pay; nothing was copied then.
///
/// # Safety
/// `dst.len()` bytes at `src` can be read. Others may write there meanwhile; the register is that
/// of the bytes in `dst`.
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(crate) unsafe fn copy_joined<const N: usize>(
    head: [u128; N],
    src: *const u8,
    dst: &mut [u8],
) -> Option<u32> {
    if level() != WIDE {
        return None;
    }
    let seed = fold(fold_head(head), _mm_setzero_si128(), constants(128));
    // SAFETY: WIDE is stored only after AVX2 and VPCLMULQDQ were detected; the caller promises
    // that `src` can be read.
    Some(unsafe { wide_copy(seed, src, dst) })
}

/// Register after at least [`LEN_MIN`] bytes, to whose first block `seed` is added.
#[target_feature(enable = "pclmulqdq,sse4.1")]
#[inline]
fn seeded(seed: __m128i, bytes: &[u8]) -> u32 {
    if bytes.len() >= WIDE_MIN && level() == WIDE {
        // SAFETY: WIDE is stored only after AVX2 and VPCLMULQDQ were detected.
        return unsafe { wide(seed, bytes) };
    }
    narrow(seed, bytes)
}

#[target_feature(enable = "pclmulqdq,sse4.1")]
#[inline]
fn narrow(seed: __m128i, bytes: &[u8]) -> u32 {
    let (blocks, _) = bytes.as_chunks::<16>();
    let (quads, singles) = blocks.as_chunks::<4>();
    let (acc, singles) = match quads.split_first() {
        Some((first, quads)) => {
            let mut lanes = first.map(|block| load(&block));
            lanes[0] = _mm_xor_si128(lanes[0], seed);
            let k = constants(512);
            for quad in quads {
                for (lane, block) in lanes.iter_mut().zip(quad) {
                    *lane = fold(*lane, load(block), k);
                }
            }
            (fold_lanes(lanes), singles)
        }
        None => match singles.split_first() {
            Some((first, singles)) => (_mm_xor_si128(load(first), seed), singles),
            None => (seed, singles),
        },
    };
    finish(acc, singles, bytes)
}

#[target_feature(enable = "pclmulqdq,sse4.1,avx2,vpclmulqdq")]
fn wide(seed: __m128i, bytes: &[u8]) -> u32 {
    let (blocks, _) = bytes.as_chunks::<16>();
    let (octets, singles) = blocks.as_chunks::<8>();
    let Some((first, octets)) = octets.split_first() else {
        return narrow(seed, bytes);
    };
    let mut lanes = [
        load_wide(&first[0], &first[1]),
        load_wide(&first[2], &first[3]),
        load_wide(&first[4], &first[5]),
        load_wide(&first[6], &first[7]),
    ];
    lanes[0] = _mm256_xor_si256(lanes[0], _mm256_zextsi128_si256(seed));
    let (hi, lo) = (x_pow_i64::<{ 1024 - 32 }>(), x_pow_i64::<{ 1024 + 32 }>());
    let k = _mm256_set_epi64x(hi, lo, hi, lo);
    for octet in octets {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = fold_wide(*lane, load_wide(&octet[2 * i], &octet[2 * i + 1]), k);
        }
    }
    finish(fold_wide_lanes(lanes), singles, bytes)
}

/// [`wide`] over what it copies from `src` to `dst`.
///
/// # Safety
/// `dst.len()` bytes at `src` can be read.
#[target_feature(enable = "pclmulqdq,sse4.1,avx2,vpclmulqdq")]
unsafe fn wide_copy(seed: __m128i, src: *const u8, dst: &mut [u8]) -> u32 {
    let len = dst.len();
    let (octets, rest) = dst.as_chunks_mut::<128>();
    let (hi, lo) = (x_pow_i64::<{ 1024 - 32 }>(), x_pow_i64::<{ 1024 + 32 }>());
    let k = _mm256_set_epi64x(hi, lo, hi, lo);
    // Zeros in front of everything change nothing.
    let zero = _mm256_zextsi128_si256(_mm_setzero_si128());
    let mut lanes = [zero; 4];
    let count = octets.len();
    let mut first = _mm256_zextsi128_si256(seed);
    let mut blocks = [zero; 4];
    if count != 0 {
        // SAFETY: there is a first octet.
        blocks = unsafe { load_octet(src) };
    }
    for (i, octet) in octets.iter_mut().enumerate() {
        // The next octet is loaded before this one is stored. Where the destination lies a few
        // bytes past the source modulo 4096, each load would otherwise wait for the store before
        // it, whose address looks like its own: six times the time, on Zen 3.
        let mut next = [zero; 4];
        if i + 1 < count {
            // SAFETY: octet `i + 1` of `dst` is inside the `dst.len()` bytes that can be read.
            let from = unsafe { src.add(128 * (i + 1)) };
            // SAFETY: as above.
            next = unsafe { load_octet(from) };
        }
        compiler_fence(Ordering::SeqCst);
        let (parts, _) = octet.as_chunks_mut::<32>();
        for (to, block) in parts.iter_mut().zip(blocks) {
            // SAFETY: `to` is 32 bytes; the store needs no alignment.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), block) };
        }
        blocks[0] = _mm256_xor_si256(blocks[0], first);
        first = zero;
        for (lane, block) in lanes.iter_mut().zip(blocks) {
            *lane = fold_wide(*lane, block, k);
        }
        blocks = next;
    }
    let done = len - rest.len();
    // SAFETY: what is left of the bytes that can be read.
    let from = unsafe { src.add(done) };
    // SAFETY: `rest` is as long as that, and nobody else's.
    unsafe { ptr::copy_nonoverlapping(from, rest.as_mut_ptr(), rest.len()) };
    let rest = dst.get(done..).unwrap_or_default();
    let (singles, _) = rest.as_chunks::<16>();
    finish(fold_wide_lanes(lanes), singles, dst)
}

/// 128 bytes.
///
/// # Safety
/// They can be read.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn load_octet(from: *const u8) -> [__m256i; 4] {
    [0, 1, 2, 3].map(|i| {
        // SAFETY: 32 of the 128 bytes.
        let at = unsafe { from.add(32 * i) };
        // SAFETY: as above; the load needs no alignment.
        unsafe { _mm256_loadu_si256(at.cast()) }
    })
}

/// The four accumulators of the wide kernel as one.
#[target_feature(enable = "pclmulqdq,sse4.1,avx2,vpclmulqdq")]
#[inline]
fn fold_wide_lanes(lanes: [__m256i; 4]) -> __m128i {
    let k = constants(128);
    let mut acc = _mm256_castsi256_si128(lanes[0]);
    acc = fold(acc, _mm256_extracti128_si256::<1>(lanes[0]), k);
    for lane in &lanes[1..] {
        acc = fold(acc, _mm256_castsi256_si128(*lane), k);
        acc = fold(acc, _mm256_extracti128_si256::<1>(*lane), k);
    }
    acc
}

/// Folds the remaining whole blocks and the incomplete one, and reduces.
#[target_feature(enable = "pclmulqdq,sse4.1")]
#[inline]
fn finish(mut acc: __m128i, singles: &[[u8; 16]], bytes: &[u8]) -> u32 {
    let k = constants(128);
    for block in singles {
        acc = fold(acc, load(block), k);
    }
    let rest = bytes.len() % 16;
    if rest != 0
        && let Some(last) = bytes.last_chunk::<16>()
    {
        // The accumulator followed by `rest` bytes, cut into a block of its first `rest` bytes
        // (zeros in front) and a block of all that follows.
        let front = _mm_shuffle_epi8(acc, window(rest));
        let mask = window(16 + rest);
        let moved = _mm_shuffle_epi8(acc, mask);
        // Where the mask asks for nothing (0x80), the input's last bytes belong.
        let back = _mm_blendv_epi8(moved, load(last), mask);
        acc = fold(front, back, k);
    }
    reduce(acc)
}

/// `WINDOWS[n..n + 16]` is a shuffle that moves bytes up by 16 - n, `[16 + n..]` down by n.
static WINDOWS: [u8; 48] = {
    let mut w = [0x80; 48];
    let mut i = 0;
    while i < 16 {
        #[allow(clippy::cast_possible_truncation, reason = "below 16")]
        {
            w[16 + i] = i as u8;
        }
        i += 1;
    }
    w
};

#[target_feature(enable = "sse4.1")]
#[inline]
fn window(at: usize) -> __m128i {
    let bytes = WINDOWS.get(at..).and_then(|w| w.first_chunk::<16>());
    load(bytes.unwrap_or(&[0x80; 16]))
}

/// x^(bits - 32) above, x^(bits + 32) below: factors for a block `bits` further on.
#[target_feature(enable = "sse4.1")]
#[inline]
fn constants(bits: u32) -> __m128i {
    match bits {
        512 => _mm_set_epi64x(x_pow_i64::<{ 512 - 32 }>(), x_pow_i64::<{ 512 + 32 }>()),
        _ => _mm_set_epi64x(x_pow_i64::<{ 128 - 32 }>(), x_pow_i64::<{ 128 + 32 }>()),
    }
}

const fn x_pow_i64<const N: u32>() -> i64 {
    const { x_pow(N).cast_signed() }
}

#[target_feature(enable = "sse4.1")]
#[inline]
fn load(block: &[u8; 16]) -> __m128i {
    vector(u128::from_le_bytes(*block))
}

#[target_feature(enable = "sse4.1")]
#[inline]
fn vector(v: u128) -> __m128i {
    #[allow(clippy::cast_possible_truncation, reason = "the two halves")]
    let (lo, hi) = (v as u64, (v >> 64) as u64);
    _mm_set_epi64x(hi.cast_signed(), lo.cast_signed())
}

#[target_feature(enable = "avx2")]
#[inline]
fn load_wide(lo: &[u8; 16], hi: &[u8; 16]) -> __m256i {
    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load(lo)), load(hi))
}

/// `acc` moved on to `next` and added.
#[target_feature(enable = "pclmulqdq,sse4.1")]
#[inline]
fn fold(acc: __m128i, next: __m128i, k: __m128i) -> __m128i {
    let lo = _mm_clmulepi64_si128::<0x00>(acc, k);
    let hi = _mm_clmulepi64_si128::<0x11>(acc, k);
    _mm_xor_si128(_mm_xor_si128(lo, hi), next)
}

#[target_feature(enable = "avx2,vpclmulqdq")]
#[inline]
fn fold_wide(acc: __m256i, next: __m256i, k: __m256i) -> __m256i {
    let lo = _mm256_clmulepi64_epi128::<0x00>(acc, k);
    let hi = _mm256_clmulepi64_epi128::<0x11>(acc, k);
    _mm256_xor_si256(_mm256_xor_si256(lo, hi), next)
}

#[target_feature(enable = "pclmulqdq,sse4.1")]
#[inline]
fn fold_lanes(lanes: [__m128i; 4]) -> __m128i {
    let k = constants(128);
    let [a, b, c, d] = lanes;
    fold(fold(fold(a, b, k), c, k), d, k)
}

/// 128 bits to the 32 of the register.
#[target_feature(enable = "pclmulqdq,sse4.1")]
#[inline]
fn reduce(acc: __m128i) -> u32 {
    let mask = _mm_set_epi32(0, 0, 0, -1);
    // 128 to 96 bits: the low half moves on by 64 bits (x^96 with the halves' distance).
    let k = constants(128);
    let x = _mm_xor_si128(
        _mm_clmulepi64_si128::<0x10>(acc, k),
        _mm_srli_si128::<8>(acc),
    );
    // 96 to 64 bits.
    let k5 = _mm_set_epi64x(0, x_pow_i64::<64>());
    let low = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(x, mask), k5);
    let x = _mm_xor_si128(low, _mm_srli_si128::<4>(x));
    // Barrett: 64 to 32 bits.
    let factors = _mm_set_epi64x(MU.cast_signed(), P.cast_signed());
    let q = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(x, mask), factors);
    let qp = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(q, mask), factors);
    _mm_extract_epi32::<1>(_mm_xor_si128(x, qp)).cast_unsigned()
}
