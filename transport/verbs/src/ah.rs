//! Address handles: where datagrams go.

use std::sync::Arc;

use xroce_api::Ah as Handle;
use xroce_wire::newtypes::{Gid, QKey, Qpn};
use xroce_wire::path::AhAttr;

use crate::error::VerbsError;
use crate::pd::PdInner;
use crate::uses::{Held, User};

/// A resolved address of datagrams (`ibv_ah`): a host's or a group's.
///
/// It may be dropped as soon as the datagrams that use it are posted.
#[derive(Debug)]
pub struct Ah {
    pub(crate) pd: Held<PdInner>,
    pub(crate) handle: Handle,
    dgid: Gid,
}

impl Ah {
    pub(crate) fn create(pd: &Arc<PdInner>, attr: &AhAttr) -> Result<Self, VerbsError> {
        let backend = pd.context.backend();
        Ok(Self {
            handle: backend.create_ah(pd.handle, attr)?,
            pd: Held::new(pd, User::Ah),
            dgid: attr.dgid,
        })
    }

    /// Where it leads.
    #[must_use]
    pub const fn dgid(&self) -> Gid {
        self.dgid
    }

    /// A queue pair there, with the Q_Key it expects. For a group the number does not matter.
    #[must_use]
    pub const fn to(&self, qpn: Qpn, qkey: QKey) -> Destination<'_> {
        Destination {
            ah: self,
            qpn,
            qkey,
        }
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        if let Err(error) = self.pd.context.backend().destroy_ah(self.handle) {
            tracing::warn!(%error, "an address handle was not destroyed");
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    pub(crate) ah: &'a Ah,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: QKey,
}
