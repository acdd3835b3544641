//! The receive queue: buffers for SENDs, in the order they were posted.

use alloc::boxed::Box;
use alloc::vec;
use core::slice;

use super::QpInit;
use super::sq::{NO_SGE, total};
use crate::wr::{PostError, RecvWr, Sge};

/// A posted receive work request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    /// Bytes all SGEs hold together.
    pub(crate) capacity: u64,
    num_sge: u8,
    /// The SGE, if it is the only one.
    only_sge: Sge,
}

/// Ring of receive work requests, `head` being the one in use or next to be used.
///
/// A QP with an SRQ has one of a single slot, for the receive it has taken and not completed.
#[derive(Debug)]
pub struct RecvQueue {
    wqes: Box<[RecvWqe]>,
    /// Of work requests with several.
    sges: Box<[Sge]>,
    depth: u32,
    max_sge: u8,
    head: u32,
    tail: u32,
}

impl RecvQueue {
    pub(super) fn for_qp(init: &QpInit) -> Self {
        let depth = match init.srq {
            Some(_) => 1,
            None => init.max_recv_wr,
        };
        Self::new(depth, init.max_recv_sge)
    }

    pub(crate) fn new(depth: u32, max_sge: u8) -> Self {
        let slots = depth.next_power_of_two() as usize;
        Self {
            wqes: vec![RecvWqe::default(); slots].into(),
            sges: vec![Sge::default(); slots * usize::from(max_sge)].into(),
            depth,
            max_sge,
            head: 0,
            tail: 0,
        }
    }

    /// Receives posted and not completed.
    pub(crate) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn max_sge(&self) -> u8 {
        self.max_sge
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        index as usize & (self.wqes.len() - 1)
    }

    #[inline]
    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
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
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&RecvWqe> {
        (self.head != self.tail).then(|| &self.wqes[self.slot(self.head)])
    }

    /// Its SGEs.
    #[inline]
    pub(crate) fn front_sges(&self) -> &[Sge] {
        self.front_room().1
    }

    /// Bytes the front one holds, and where; nothing if there is none.
    #[inline(always)]
    pub(crate) fn front_room(&self) -> (u64, &[Sge]) {
        if self.is_empty() {
            return (0, &[]);
        }
        let slot = self.slot(self.head);
        let wqe = &self.wqes[slot];
        if wqe.num_sge == 1 {
            return (wqe.capacity, slice::from_ref(&wqe.only_sge));
        }
        let first = slot * usize::from(self.max_sge);
        let sges = &self.sges[first..first + usize::from(wqe.num_sge)];
        (wqe.capacity, sges)
    }

    /// Takes the front one out; its `wr_id`.
    #[inline(always)]
    pub(crate) fn retire(&mut self) -> Option<u64> {
        let wr_id = self.front()?.wr_id;
        self.head = self.head.wrapping_add(1);
        Some(wr_id)
    }

    /// Takes the front one out.
    pub(crate) fn pop(&mut self) -> Option<RecvWqe> {
        let wqe = *self.front()?;
        self.head = self.head.wrapping_add(1);
        Some(wqe)
    }

    /// Moves the front one to the end of another queue; `false` if there is none, or no room
    /// for it there.
    #[inline]
    pub(crate) fn move_front_to(&mut self, other: &mut Self) -> bool {
        let Some(wqe) = self.front() else {
            return false;
        };
        let wr = RecvWr {
            wr_id: wqe.wr_id,
            sges: self.front_sges(),
        };
        if other.push(&wr).is_err() {
            return false;
        }
        self.head = self.head.wrapping_add(1);
        true
    }

    pub(super) fn clear(&mut self) {
        self.head = 0;
        self.tail = 0;
    }
}
