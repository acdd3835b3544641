//! Work requests, collected and posted together.
//!
//! [`send`] and [`recv`] build them with types; what they build are the plain records here, which
//! a backend posts.

mod recv;
mod send;

use thiserror::Error;
use xroce_api::{Ah, EngineError, UdDest};
use xroce_proto::wr::{Data, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_wire::newtypes::{QKey, Qpn};

pub use recv::{RecvBatch, RecvRequest};
pub use send::{
    Complete, Gathered, Gathers, Inlined, Kind, NoData, Outgoing, Reads, Request, SendBatch, Sends,
    Writes,
};

/// Why a work request was refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum WrError {
    /// The queue did not take it.
    #[error(transparent)]
    Post(PostError),
    /// Memory, window or address handle of another context than the queue's.
    #[error("it names objects of another context")]
    OtherContext,
    /// More bytes than the part of the peer's memory it was given.
    #[error("{given} bytes to or from {room} bytes of the peer's memory")]
    RemoteRoom {
        /// Bytes in the request.
        given: u64,
        /// Bytes of the part.
        room: u64,
    },
    /// The engine refused it for another reason.
    #[error(transparent)]
    Engine(EngineError),
    /// The device does not work any more.
    #[error("device {device} is broken: {reason}; open it again")]
    Device {
        /// Its name.
        device: String,
        /// What it said.
        reason: String,
    },
}

impl From<EngineError> for WrError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Post(error) => Self::Post(error),
            error => Self::Engine(error),
        }
    }
}

/// The work request of a batch that was refused (`bad_wr`). Those before it are posted, it and
/// those behind it are not.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("work request {index} of the batch (wr_id {wr_id:#x}): {error}")]
pub struct BadWr {
    /// Its place in the batch, which is also how many were posted.
    pub index: usize,
    /// Its id.
    pub wr_id: u64,
    /// Why.
    #[source]
    pub error: Box<WrError>,
}

impl BadWr {
    pub(crate) fn new(index: usize, wr_id: u64, error: WrError) -> Self {
        let error = Box::new(error);
        Self {
            index,
            wr_id,
            error,
        }
    }
}

/// Whose objects a request names: of no context, of one, or of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Owner(u32);

impl Owner {
    /// Contexts are numbered from 1 on, and not that far.
    const SEVERAL: Self = Self(u32::MAX);

    fn add(&mut self, context: u32) {
        if self.0 == 0 {
            self.0 = context;
        } else if self.0 != context {
            *self = Self::SEVERAL;
        }
    }

    fn check(self, context: u32) -> Result<(), WrError> {
        if self.0 == 0 || self.0 == context {
            Ok(())
        } else {
            Err(WrError::OtherContext)
        }
    }
}

/// Where in the lists of a batch the bytes of a request are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Sges { first: usize, count: usize },
    Inline { first: usize, len: usize },
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    pub(crate) ah: Ah,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: QKey,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRecord {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) data: Part,
    pub(crate) to: Option<To>,
    /// Bytes of the peer's memory it may use.
    room: Option<u64>,
    owner: Owner,
}

/// Send work requests, with their lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendRecords {
    pub(crate) records: Vec<SendRecord>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

impl SendRecords {
    /// Adds what nobody checked anything of.
    pub(crate) fn push(&mut self, wr: &SendWr<'_>, to: Option<&UdDest>) {
        let data = match wr.data {
            Data::Sges(sges) => {
                let first = self.sges.len();
                self.sges.extend_from_slice(sges);
                let count = sges.len();
                Part::Sges { first, count }
            }
            Data::Inline(parts) => {
                let first = self.inline.len();
                for part in parts {
                    self.inline.extend_from_slice(part);
                }
                let len = self.inline.len() - first;
                Part::Inline { first, len }
            }
        };
        self.records.push(SendRecord {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags,
            data,
            to: to.map(|to| To {
                ah: to.ah,
                qpn: to.qpn,
                qkey: to.qkey,
            }),
            room: None,
            owner: Owner::default(),
        });
    }

    pub(crate) fn clear(&mut self) {
        self.records.clear();
        self.sges.clear();
        self.inline.clear();
    }

    pub(crate) fn sges_of(&self, record: &SendRecord) -> &[Sge] {
        match record.data {
            Part::Sges { first, count } => self.sges.get(first..first + count).unwrap_or(&[]),
            Part::Inline { .. } => &[],
        }
    }

    pub(crate) fn inline_of(&self, record: &SendRecord) -> &[u8] {
        match record.data {
            Part::Inline { first, len } => self.inline.get(first..first + len).unwrap_or(&[]),
            Part::Sges { .. } => &[],
        }
    }

    /// What the queue cannot know.
    pub(crate) fn check(&self, record: &SendRecord, context: u32) -> Result<(), WrError> {
        record.owner.check(context)?;
        let Some(room) = record.room else {
            return Ok(());
        };
        let given = match record.data {
            Part::Sges { .. } => {
                let sges = self.sges_of(record).iter();
                sges.map(|sge| u64::from(sge.len)).sum()
            }
            Part::Inline { len, .. } => len as u64,
        };
        if given <= room {
            Ok(())
        } else {
            Err(WrError::RemoteRoom { given, room })
        }
    }
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvRecord {
    pub(crate) wr_id: u64,
    first: usize,
    count: usize,
    owner: Owner,
}

impl RecvRecord {
    pub(crate) fn check(&self, context: u32) -> Result<(), WrError> {
        self.owner.check(context)
    }
}

/// Receive work requests, with their lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecvRecords {
    pub(crate) records: Vec<RecvRecord>,
    sges: Vec<Sge>,
}

impl RecvRecords {
    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) {
        self.records.push(RecvRecord {
            wr_id: wr.wr_id,
            first: self.sges.len(),
            count: wr.sges.len(),
            owner: Owner::default(),
        });
        self.sges.extend_from_slice(wr.sges);
    }

    pub(crate) fn clear(&mut self) {
        self.records.clear();
        self.sges.clear();
    }

    pub(crate) fn sges_of(&self, record: &RecvRecord) -> &[Sge] {
        let RecvRecord { first, count, .. } = *record;
        self.sges.get(first..first + count).unwrap_or(&[])
    }
}
