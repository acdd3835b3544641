//! Walks the part of a scatter/gather list that one packet covers.

use super::Cx;
use crate::memory::{Access, KeyError, Memory, Pd};
use crate::wc::Sink;
use crate::wr::Sge;

/// The pieces of `sges` that hold message bytes `offset .. offset + len`, as
/// `(sge, offset in the SGE, offset in the packet, length)`.
#[inline]
fn pieces(
    sges: &[Sge],
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (&Sge, u32, usize, usize)> {
    let mut skip = offset;
    let mut done = 0usize;
    sges.iter().filter_map(move |sge| {
        if skip >= u64::from(sge.len) {
            skip -= u64::from(sge.len);
            return None;
        }
        #[allow(clippy::cast_possible_truncation, reason = "below sge.len, a u32")]
        let within = skip as u32;
        skip = 0;
        let n = ((sge.len - within) as usize).min(len - done);
        if n == 0 {
            return None;
        }
        let at = done;
        done += n;
        Some((sge, within, at, n))
    })
}

/// Copies message bytes `offset .. offset + dst.len()` out of the list.
#[inline(always)]
pub(super) fn gather<M: Memory, S: Sink>(
    cx: &mut Cx<'_, M, S>,
    pd: Pd,
    sges: &[Sge],
    offset: u64,
    dst: &mut [u8],
) -> Result<(), KeyError> {
    if let [sge] = sges {
        // Almost always. A zero-length SGE is not looked at (K3).
        if dst.is_empty() {
            return Ok(());
        }
        let within = u32::try_from(offset).map_err(|_| KeyError::Range)?;
        let grant = cx
            .mem
            .check_local(pd, sge.lkey, sge.va, sge.len, Access::empty())?;
        return cx
            .mem
            .read(&grant, within, dst)
            .map_err(|_| KeyError::Unknown);
    }
    for (sge, within, at, n) in pieces(sges, offset, dst.len()) {
        let grant = cx
            .mem
            .check_local(pd, sge.lkey, sge.va, sge.len, Access::empty())?;
        cx.mem
            .read(&grant, within, &mut dst[at..at + n])
            .map_err(|_| KeyError::Unknown)?;
    }
    Ok(())
}

/// Copies `src` to message bytes `offset ..` of the list, whose capacity was checked before.
#[inline(always)]
pub(super) fn scatter<M: Memory, S: Sink>(
    cx: &mut Cx<'_, M, S>,
    pd: Pd,
    sges: &[Sge],
    offset: u64,
    src: &[u8],
) -> Result<(), KeyError> {
    if let [sge] = sges {
        if src.is_empty() {
            return Ok(());
        }
        let within = u32::try_from(offset).map_err(|_| KeyError::Range)?;
        return cx.mem.scatter(pd, sge, within, src);
    }
    for (sge, within, at, n) in pieces(sges, offset, src.len()) {
        let grant = cx
            .mem
            .check_local(pd, sge.lkey, sge.va, sge.len, Access::LOCAL_WRITE)?;
        cx.mem
            .write(&grant, within, &src[at..at + n])
            .map_err(|_| KeyError::Unknown)?;
    }
    Ok(())
}

/// Checks every SGE of a list before the first packet leaves (K5); empty ones are not looked at.
pub(super) fn check<M: Memory, S: Sink>(
    cx: &Cx<'_, M, S>,
    pd: Pd,
    sges: &[Sge],
    need: Access,
) -> Result<(), KeyError> {
    for sge in sges.iter().filter(|s| s.len != 0) {
        cx.mem.check_local(pd, sge.lkey, sge.va, sge.len, need)?;
    }
    Ok(())
}
