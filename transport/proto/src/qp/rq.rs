//! The receive queue: buffers for SENDs, in the order they were posted.

use alloc::boxed::Box;
use alloc::vec;
use core::slice;

use super::QpInit;
use super::sq::{NO_SGE, total};
use crate::wr::{PostError, RecvWr, Sge};

/// A posted receive work request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecvWqe {
    pub(super) wr_id: u64,
    /// Bytes all SGEs hold together.
    pub(super) capacity: u64,
    num_sge: u8,
    /// The SGE, if it is the only one.
    only_sge: Sge,
}

/// Ring of receive work requests, `head` being the one in use or next to be used.
#[derive(Debug)]
pub(super) struct RecvQueue {
    wqes: Box<[RecvWqe]>,
    /// Of work requests with several.
    sges: Box<[Sge]>,
    depth: u32,
    max_sge: u8,
    head: u32,
    tail: u32,
}

impl RecvQueue {
    pub(super) fn new(init: &QpInit) -> Self {
        let slots = init.max_recv_wr.next_power_of_two() as usize;
        Self {
            wqes: vec![RecvWqe::default(); slots].into(),
            sges: vec![Sge::default(); slots * usize::from(init.max_recv_sge)].into(),
            depth: init.max_recv_wr,
            max_sge: init.max_recv_sge,
            head: 0,
            tail: 0,
        }
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        index as usize & (self.wqes.len() - 1)
    }

    #[inline]
    pub(super) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.tail.wrapping_sub(self.head) >= self.depth {
            return Err(PostError::QueueFull { depth: self.depth });
        }
        let num_sge = u8::try_from(wr.sges.len()).unwrap_or(u8::MAX);
        if num_sge > self.max_sge {
            return Err(PostError::TooManySges {
                given: wr.sges.len(),
                max: self.max_sge,
            });
        }
        let slot = self.slot(self.tail);
        let (only_sge, capacity) = match *wr.sges {
            [sge] => (sge, u64::from(sge.len)),
            ref sges => {
                let first = slot * usize::from(self.max_sge);
                self.sges[first..first + sges.len()].copy_from_slice(sges);
                (NO_SGE, total(sges))
            }
        };
        self.wqes[slot] = RecvWqe {
            wr_id: wr.wr_id,
            capacity,
            num_sge,
            only_sge,
        };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// The receive in use or next to be used.
    #[inline]
    pub(super) fn front(&self) -> Option<&RecvWqe> {
        (self.head != self.tail).then(|| &self.wqes[self.slot(self.head)])
    }

    #[inline]
    pub(super) fn front_sges(&self) -> &[Sge] {
        let slot = self.slot(self.head);
        let wqe = &self.wqes[slot];
        if wqe.num_sge == 1 {
            return slice::from_ref(&wqe.only_sge);
        }
        let first = slot * usize::from(self.max_sge);
        &self.sges[first..first + usize::from(wqe.num_sge)]
    }

    /// Takes the front one out.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<RecvWqe> {
        let wqe = *self.front()?;
        self.head = self.head.wrapping_add(1);
        Some(wqe)
    }

    pub(super) fn clear(&mut self) {
        self.head = 0;
        self.tail = 0;
    }
}
