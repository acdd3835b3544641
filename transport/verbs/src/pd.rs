//! Protection domains.

use std::sync::Arc;

use xroce_proto::memory::{Access, Pd as Handle};
use xroce_shm::Region;

use crate::ah::Ah;
use crate::context::Shared;
use crate::cq::Cq;
use crate::error::{Refused, VerbsError};
use crate::mr::Mr;
use crate::mw::{Mw, WindowType};
use crate::qp::{QpBuilder, Service};
use crate::srq::{Srq, SrqInfo};
use crate::uses::{Used, Uses};
use xroce_wire::path::AhAttr;

/// What a protection domain is, for all that use it.
#[derive(Debug)]
pub(crate) struct PdInner {
    pub(crate) context: Arc<Shared>,
    pub(crate) handle: Handle,
    uses: Uses,
}

impl Used for PdInner {
    fn uses(&self) -> &Uses {
        &self.uses
    }
}

/// A protection domain (`ibv_pd`): keys and queue pairs work together only within one.
#[derive(Debug)]
pub struct Pd {
    pub(crate) inner: Arc<PdInner>,
}

impl Pd {
    pub(crate) fn alloc(context: &Arc<Shared>) -> Result<Self, VerbsError> {
        let handle = context.backend().alloc_pd()?;
        Ok(Self {
            inner: Arc::new(PdInner {
                context: Arc::clone(context),
                handle,
                uses: Uses::default(),
            }),
        })
    }

    /// Registers a whole region (`ibv_reg_mr`).
    ///
    /// # Errors
    /// The rights are not possible, or there are 2^24 regions.
    pub fn reg_mr(&self, region: &Region, access: Access) -> Result<Mr, VerbsError> {
        Mr::register(&self.inner, region, 0..region.len() as u64, access)
    }

    /// Registers a part of a region.
    ///
    /// # Errors
    /// As [`Pd::reg_mr`], or the range is empty or not inside the region.
    pub fn reg_mr_range(
        &self,
        region: &Region,
        range: std::ops::Range<u64>,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        Mr::register(&self.inner, region, range, access)
    }

    /// Allocates `len` zero bytes and registers them.
    ///
    /// # Errors
    /// As [`Pd::reg_mr`], or the system has no memory.
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<Mr, VerbsError> {
        let region = Region::anonymous(len).map_err(|source| {
            if len == 0 {
                return VerbsError::RegionSize {
                    given: 0,
                    max: isize::MAX as u64,
                };
            }
            VerbsError::System {
                what: "allocating memory",
                source,
            }
        })?;
        self.reg_mr(&region, access)
    }

    /// A memory window, bound to nothing (`ibv_alloc_mw`): [`Type1`](crate::Type1) is bound by
    /// call, [`Type2`](crate::Type2) by work request.
    ///
    /// # Errors
    /// All keys are taken.
    pub fn alloc_mw<T: WindowType>(&self) -> Result<Mw<T>, VerbsError> {
        Mw::alloc(&self.inner)
    }

    /// What a queue pair will be made of; the service is the type: `pd.qp::<Rc>(…)`.
    pub fn qp<'a, S: Service>(&'a self, send_cq: &'a Cq, recv_cq: &'a Cq) -> QpBuilder<'a, S> {
        QpBuilder::new(self, send_cq, recv_cq)
    }

    /// A shared receive queue (`ibv_create_srq`).
    ///
    /// # Errors
    /// A capacity out of range, or a limit above it.
    pub fn create_srq(&self, info: &SrqInfo) -> Result<Srq, VerbsError> {
        Srq::create(&self.inner, info)
    }

    /// An address handle, resolved now: a neighbour the kernel does not know is waited for
    /// (`ibv_create_ah`).
    ///
    /// # Errors
    /// The address is of no neighbour, or a value is out of range.
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah, VerbsError> {
        Ah::create(&self.inner, attr)
    }

    /// Gives it back (`ibv_dealloc_pd`).
    ///
    /// # Errors
    /// Others are made of it.
    pub fn dealloc(self) -> Result<(), Refused<Self>> {
        let uses = self.inner.uses.now();
        if uses.is_empty() {
            return Ok(());
        }
        Err(Refused::new(self, VerbsError::InUse(uses)))
    }
}
