//! Receive work requests.

use super::{Owner, RecvRecord, RecvRecords};
use crate::mr::MrSlice;

/// Receives, to be posted together to a queue pair or a shared receive queue.
///
/// It can be posted more than once, and cleared and filled again without allocating.
#[derive(Clone, Debug, Default)]
pub struct RecvBatch {
    records: RecvRecords,
}

impl RecvBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.records.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.records.is_empty()
    }

    /// Removes all requests, keeping the memory they took.
    pub fn clear(&mut self) {
        self.records.clear();
    }

    /// A receive; `wr_id` comes back with its completion. Without memory it takes messages of no
    /// bytes, and what an RDMA WRITE with immediate needs.
    ///
    /// On UD the first [`GRH_BYTES`](crate::GRH_BYTES) bytes are the network header.
    pub fn recv(&mut self, wr_id: u64) -> RecvRequest<'_> {
        self.records.records.push(RecvRecord {
            wr_id,
            first: self.records.sges.len(),
            count: 0,
            owner: Owner::default(),
        });
        RecvRequest {
            batch: &mut self.records,
        }
    }

    pub(crate) fn records(&self) -> &RecvRecords {
        &self.records
    }
}

/// The receive just added to a batch.
#[derive(Debug)]
pub struct RecvRequest<'b> {
    batch: &'b mut RecvRecords,
}

impl RecvRequest<'_> {
    /// The message goes on here. The region needs [`Access::LOCAL_WRITE`](crate::Access).
    pub fn sge(self, slice: MrSlice<'_>) -> Self {
        self.batch.sges.push(slice.sge);
        if let Some(record) = self.batch.records.last_mut() {
            record.count += 1;
            record.owner.add(slice.context);
        }
        self
    }
}
