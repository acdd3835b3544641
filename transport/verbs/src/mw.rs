//! Memory windows: keys for a part of a region, given and taken without registering.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use xroce_api::{Mw as Allocated, MwId, MwType};
use xroce_proto::memory::{Access, Bind};
use xroce_wire::newtypes::{RKey, Va};

use crate::error::VerbsError;
use crate::mr::{MrSlice, RemoteMr};
use crate::pd::PdInner;
use crate::uses::{Held, User};

mod sealed {
    pub trait Sealed {}
}

/// How a window is bound.
pub trait WindowType: sealed::Sealed + Debug {
    /// As the engine knows it.
    const TYPE: MwType;
}

/// Bound by call, as often as one likes; usable through every queue pair of its protection domain.
#[derive(Clone, Copy, Debug)]
pub enum Type1 {}
/// Bound by work request ([`SendBatch::bind`](crate::SendBatch::bind)), usable through that queue
/// pair only, and bound again only after its key was invalidated (type 2B).
#[derive(Clone, Copy, Debug)]
pub enum Type2 {}

impl sealed::Sealed for Type1 {}
impl sealed::Sealed for Type2 {}
impl WindowType for Type1 {
    const TYPE: MwType = MwType::Type1;
}
impl WindowType for Type2 {
    const TYPE: MwType = MwType::Type2;
}

/// A memory window (`ibv_mw`). Dropped, it is unbound and freed.
#[derive(Debug)]
pub struct Mw<T: WindowType> {
    pub(crate) pd: Held<PdInner>,
    id: MwId,
    rkey: RKey,
    kind: PhantomData<T>,
}

impl<T: WindowType> Mw<T> {
    pub(crate) fn alloc(pd: &Arc<PdInner>) -> Result<Self, VerbsError> {
        let Allocated { id, rkey } = pd.context.backend().alloc_mw(pd.handle, T::TYPE)?;
        Ok(Self {
            pd: Held::new(pd, User::Mw),
            id,
            rkey,
            kind: PhantomData,
        })
    }
}

/// As the peer sees what a window shows of `slice`.
fn shown(rkey: RKey, slice: &MrSlice<'_>, access: Access) -> RemoteMr {
    let va = if access.contains(Access::ZERO_BASED) {
        Va::new(0)
    } else {
        slice.sge.va
    };
    RemoteMr::of_region(va, slice.sge.len.into(), rkey)
}

pub(crate) fn bind_of(slice: &MrSlice<'_>, access: Access) -> Bind {
    Bind {
        lkey: slice.sge.lkey,
        va: slice.sge.va,
        len: slice.sge.len.into(),
        access,
    }
}

impl Mw<Type1> {
    /// Binds it to a part of a region, whether it was bound or not; an empty part only unbinds.
    /// Returns what the peer needs: the key is a new one each time.
    ///
    /// # Errors
    /// The region does not grant what the window would, lacks [`Access::MW_BIND`], or is of
    /// another protection domain or context. The window is bound as before then.
    pub fn bind(&mut self, slice: MrSlice<'_>, access: Access) -> Result<RemoteMr, VerbsError> {
        let context = &self.pd.context;
        if slice.context != context.number {
            return Err(VerbsError::OtherContext("memory region"));
        }
        let bind = bind_of(&slice, access);
        self.rkey = context.backend().bind_mw(self.id, bind)?;
        Ok(shown(self.rkey, &slice, access))
    }
}

impl Mw<Type2> {
    /// The key it has when bound with this tag. Take another tag each time, so that a key that
    /// was taken back does not come to life again.
    #[must_use]
    pub const fn key(&self, tag: u8) -> RKey {
        RKey::new(self.rkey.value() & !0xff | tag as u32)
    }

    /// What the peer needs once it is bound so.
    #[must_use]
    pub fn remote(&self, tag: u8, slice: MrSlice<'_>, access: Access) -> RemoteMr {
        shown(self.key(tag), &slice, access)
    }
}

impl<T: WindowType> Drop for Mw<T> {
    fn drop(&mut self) {
        if let Err(error) = self.pd.context.backend().dealloc_mw(self.id) {
            tracing::warn!(%error, "a memory window was not freed");
        }
    }
}
