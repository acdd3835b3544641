//! Memory regions, parts of them, and how the peer names them.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use xroce_api::{Mr as Keys, Range, Rereg as Change};
use xroce_proto::memory::Access;
use xroce_proto::params::MESSAGE_LEN_MAX;
use xroce_proto::wr::Sge;
use xroce_shm::{AtomicAtError, Region};
use xroce_wire::newtypes::{LKey, RKey, Va};

use crate::error::{Refused, VerbsError};
use crate::pd::{Pd, PdInner};
use crate::uses::{Held, User};

/// A range that is not inside its region, too long for a message, or not where an atomic can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SliceError {
    /// Not inside.
    #[error("bytes {start} to {end} are not inside a memory region of {size} bytes")]
    Range {
        /// First byte.
        start: u64,
        /// Byte behind the last.
        end: u64,
        /// Bytes of the region.
        size: u64,
    },
    /// More than a message carries.
    #[error("{given} bytes in one piece, a message carries {MESSAGE_LEN_MAX}")]
    TooLong {
        /// Bytes asked for.
        given: u64,
    },
    /// Eight bytes of an atomic at an address that is not a multiple of eight.
    #[error("address {address:#x} (offset {offset}) is not a multiple of 8")]
    Misaligned {
        /// Offset in the region.
        offset: u64,
        /// Address it has.
        address: u64,
    },
}

/// Turns any kind of range into start and length within `size` bytes.
fn within(range: &impl RangeBounds<u64>, size: u64) -> Result<(u64, u64), SliceError> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => size,
    };
    let inside = end <= size;
    let len = end.checked_sub(start).filter(|_| inside);
    let len = len.ok_or(SliceError::Range { start, end, size })?;
    Ok((start, len))
}

/// A registered memory region (`ibv_mr`).
///
/// It keeps the memory alive; when it is dropped, operations that are running on it fail. With
/// windows bound to it, it is taken back when the last of them is unbound.
#[derive(Debug)]
pub struct Mr {
    pub(crate) pd: Held<PdInner>,
    keys: Keys,
    region: Region,
    offset: u64,
    access: Access,
    registered: bool,
}

/// What a re-registration changes (`ibv_rereg_mr`); what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct Rereg<'a> {
    /// Another protection domain of the same context.
    pub pd: Option<&'a Pd>,
    /// Other rights.
    pub access: Option<Access>,
    /// Other memory, and which part of it.
    pub memory: Option<(&'a Region, std::ops::Range<u64>)>,
}

impl Mr {
    pub(crate) fn register(
        pd: &Arc<PdInner>,
        region: &Region,
        range: std::ops::Range<u64>,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let memory = part_of(region, &range);
        let keys = pd.context.backend().reg_mr(pd.handle, &memory, access)?;
        Ok(Self {
            pd: Held::new(pd, User::Mr),
            keys,
            region: region.clone(),
            offset: range.start,
            access,
            registered: true,
        })
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.keys.len
    }

    /// Never true: a region has at least one byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.keys.len == 0
    }

    /// Key for own work requests.
    #[must_use]
    pub const fn lkey(&self) -> LKey {
        self.keys.lkey
    }

    /// Key for the peer; 0 without remote rights.
    #[must_use]
    pub const fn rkey(&self) -> RKey {
        self.keys.rkey
    }

    /// Address of the first byte, under both keys; 0 for [`Access::ZERO_BASED`].
    #[must_use]
    pub const fn va(&self) -> Va {
        self.keys.va
    }

    /// Rights it was registered with.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// The memory, of which this may be a part.
    #[must_use]
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// A part, for work requests.
    ///
    /// # Errors
    /// Not inside, or longer than a message.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<MrSlice<'_>, SliceError> {
        let (start, len) = within(&range, self.len())?;
        let len = u32::try_from(len)
            .ok()
            .filter(|&len| len <= MESSAGE_LEN_MAX)
            .ok_or(SliceError::TooLong { given: len })?;
        Ok(MrSlice {
            sge: Sge {
                lkey: self.keys.lkey,
                va: self.keys.va.wrapping_add(start),
                len,
            },
            context: self.pd.context.number,
            region: PhantomData,
        })
    }

    /// Eight bytes that begin at a multiple of eight, for what an atomic returns or an ATOMIC
    /// WRITE stores.
    ///
    /// # Errors
    /// Not inside, or not aligned.
    pub fn word(&self, offset: u64) -> Result<MrWord<'_>, SliceError> {
        let slice = self.slice(offset..offset.saturating_add(8))?;
        aligned(offset, slice.sge.va)?;
        Ok(MrWord { slice })
    }

    /// The region as the peer needs it; `None` without remote rights.
    #[must_use]
    pub fn remote(&self) -> Option<RemoteMr> {
        (self.rkey().value() != 0).then(|| RemoteMr {
            va: self.keys.va.value(),
            len: self.keys.len,
            rkey: self.keys.rkey.value(),
        })
    }

    fn locate(&self, offset: u64, len: usize) -> Result<u64, SliceError> {
        let end = offset.saturating_add(len as u64);
        let (start, _) = within(&(offset..end), self.len())?;
        Ok(self.offset + start)
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// Not inside.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), SliceError> {
        let at = self.locate(offset, bytes.len())?;
        let copied = self.region.write_at(at, bytes);
        copied.map_err(|_| self.outside(offset, bytes.len()))
    }

    /// Copies the bytes at `offset` out. A peer that writes at the same time may be seen half way,
    /// at any granularity.
    ///
    /// # Errors
    /// Not inside; `into` is as before.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SliceError> {
        let at = self.locate(offset, into.len())?;
        let copied = self.region.read_at(at, into);
        copied.map_err(|_| self.outside(offset, into.len()))
    }

    /// Adds to the eight bytes at `offset` at once, wrapping, and returns what they held. Atomic
    /// with atomics of peers.
    ///
    /// # Errors
    /// Not inside, or not aligned.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, SliceError> {
        let at = self.locate(offset, size_of::<u64>())?;
        let done = self.region.fetch_add_at(at, add);
        done.map_err(|e| self.no_atomic(offset, e))
    }

    /// Stores `swap` in the eight bytes at `offset` if they hold `compare`, at once, and returns
    /// what they held. Atomic with atomics of peers.
    ///
    /// # Errors
    /// Not inside, or not aligned.
    pub fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, SliceError> {
        let at = self.locate(offset, size_of::<u64>())?;
        let done = self.region.compare_swap_at(at, compare, swap);
        done.map_err(|e| self.no_atomic(offset, e))
    }

    fn no_atomic(&self, offset: u64, error: AtomicAtError) -> SliceError {
        match error {
            AtomicAtError::Misaligned(at) => SliceError::Misaligned {
                offset,
                address: self.region.address() + at,
            },
            AtomicAtError::OutOfRange(_) => self.outside(offset, size_of::<u64>()),
        }
    }

    fn outside(&self, offset: u64, len: usize) -> SliceError {
        SliceError::Range {
            start: offset,
            end: offset.saturating_add(len as u64),
            size: self.len(),
        }
    }

    /// Changes protection domain, rights or memory, all at once (`ibv_rereg_mr`). It has new keys
    /// afterwards; the old ones, and operations running under them, are worth nothing.
    ///
    /// # Errors
    /// Windows are bound to it, the protection domain is another context's, or the new rights or
    /// range are not possible. Then everything is as before.
    pub fn rereg(&mut self, change: &Rereg<'_>) -> Result<(), VerbsError> {
        let context = Arc::clone(&self.pd.context);
        if let Some(pd) = change.pd
            && !Arc::ptr_eq(&pd.inner.context, &context)
        {
            return Err(VerbsError::OtherContext("protection domain"));
        }
        let memory = change.memory.as_ref();
        let engine = Change {
            pd: change.pd.map(|pd| pd.inner.handle),
            access: change.access,
            range: memory.map(|(region, range)| part_of(region, range)),
        };
        self.keys = context.backend().rereg_mr(self.keys.lkey, &engine)?;
        if let Some(pd) = change.pd {
            self.pd = Held::new(&pd.inner, User::Mr);
        }
        if let Some((region, range)) = memory {
            self.region = (*region).clone();
            self.offset = range.start;
        }
        self.access = change.access.unwrap_or(self.access);
        Ok(())
    }

    /// Takes it back (`ibv_dereg_mr`); operations that are running on it fail.
    ///
    /// # Errors
    /// Windows are bound to it.
    pub fn dereg(mut self) -> Result<(), Refused<Self>> {
        match self.pd.context.backend().dereg_mr(self.keys.lkey) {
            Ok(()) => {
                self.registered = false;
                Ok(())
            }
            Err(error) => Err(Refused::new(self, error)),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.registered
            && let Err(error) = self.pd.context.backend().abandon_mr(self.keys.lkey)
        {
            tracing::warn!(%error, "a memory region was not taken back");
        }
    }
}

fn part_of<'a>(region: &'a Region, range: &std::ops::Range<u64>) -> Range<'a> {
    Range {
        region,
        offset: range.start,
        // An empty or reversed range is refused as one of no bytes.
        len: range.end.saturating_sub(range.start),
        iova: None,
    }
}

fn aligned(offset: u64, va: Va) -> Result<(), SliceError> {
    if va.value().is_multiple_of(8) {
        return Ok(());
    }
    let address = va.value();
    Err(SliceError::Misaligned { offset, address })
}

/// A part of a registered region, to be read or written by a work request.
///
/// The region cannot be re-registered or given back while this is around; once it is posted, it
/// can, and the work request fails.
#[derive(Clone, Copy, Debug)]
pub struct MrSlice<'a> {
    pub(crate) sge: Sge,
    pub(crate) context: u32,
    region: PhantomData<&'a Mr>,
}

impl MrSlice<'_> {
    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.sge.len
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.sge.len == 0
    }
}

/// Eight aligned bytes of a registered region.
#[derive(Clone, Copy, Debug)]
pub struct MrWord<'a> {
    pub(crate) slice: MrSlice<'a>,
}

/// Memory of a peer: an address, how much, and the key for it.
///
/// What a peer says is believed only as far as the sum of address and length: whether the key fits
/// is for the peer's device to find out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, try_from = "RemoteFields")]
pub struct RemoteMr {
    va: u64,
    len: u64,
    rkey: u32,
}

/// [`RemoteMr`] before it is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoteFields {
    va: u64,
    len: u64,
    rkey: u32,
}

impl TryFrom<RemoteFields> for RemoteMr {
    type Error = SliceError;

    fn try_from(fields: RemoteFields) -> Result<Self, SliceError> {
        Self::new(Va::new(fields.va), fields.len, RKey::new(fields.rkey))
    }
}

impl RemoteMr {
    /// Memory of a peer, as it said.
    ///
    /// # Errors
    /// It would reach past the end of the address space.
    pub const fn new(va: Va, len: u64, rkey: RKey) -> Result<Self, SliceError> {
        if va.checked_add(len).is_none() {
            return Err(SliceError::Range {
                start: va.value(),
                end: u64::MAX,
                size: len,
            });
        }
        Ok(Self {
            va: va.value(),
            len,
            rkey: rkey.value(),
        })
    }

    /// A part of an own region, which does not reach past the end of the address space.
    pub(crate) const fn of_region(va: Va, len: u64, rkey: RKey) -> Self {
        Self {
            va: va.value(),
            len,
            rkey: rkey.value(),
        }
    }

    /// Address of the first byte, in the address space of the key.
    #[must_use]
    pub const fn va(&self) -> Va {
        Va::new(self.va)
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key.
    #[must_use]
    pub const fn rkey(&self) -> RKey {
        RKey::new(self.rkey)
    }

    /// A part of it.
    ///
    /// # Errors
    /// Not inside.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Self, SliceError> {
        let (start, len) = within(&range, self.len)?;
        Ok(Self {
            va: self.va + start,
            len,
            rkey: self.rkey,
        })
    }

    /// Eight aligned bytes of it, for atomics.
    ///
    /// # Errors
    /// Not inside, or not aligned.
    pub fn word(&self, offset: u64) -> Result<RemoteWord, SliceError> {
        let part = self.slice(offset..offset.saturating_add(8))?;
        aligned(offset, part.va())?;
        Ok(RemoteWord { at: part })
    }
}

/// Eight aligned bytes of a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteWord {
    pub(crate) at: RemoteMr,
}
