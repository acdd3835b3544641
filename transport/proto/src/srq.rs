//! Shared receive queues: receives that several QPs take from, in the order they were posted.
//!
//! The queue belongs to the driver. A QP takes one receive at the packet that needs it (K7) and
//! keeps it in a slot of its own until it completes: from then on it is like a receive posted to
//! that QP, and dies with it. What no QP has taken is never flushed (C4).

use crate::params;
use crate::qp::{Attribute, CreateError, RecvQueue};
use crate::wr::{PostError, RecvWr};
use serde::{Deserialize, Serialize};

/// What is fixed, or may be changed, about a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SrqAttr {
    /// Receives that may be posted at once, 1 ..= [`params::QUEUE_DEPTH_MAX`].
    pub max_wr: u32,
    /// SGEs per receive, 1 ..= [`params::SGE_MAX`]; fixed at creation.
    pub max_sge: u8,
    /// [`Event::SrqLimitReached`](crate::wc::Event::SrqLimitReached) is reported once when fewer
    /// receives than this are left; 0: never.
    pub limit: u32,
}

/// Why a shared receive queue cannot be made so; it is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SrqError {
    /// See [`CreateError`].
    #[error(transparent)]
    Capacity(#[from] CreateError),
    /// The limit could never be reached from above.
    #[error("a limit of {limit} in a shared receive queue of {max_wr} work requests")]
    Limit {
        /// Limit given.
        limit: u32,
        /// Receives the queue holds.
        max_wr: u32,
    },
    /// More receives are posted than the new size holds.
    #[error("{posted} work requests are posted, they do not fit in {max_wr}")]
    TooSmall {
        /// Receives posted.
        posted: u32,
        /// Size asked for.
        max_wr: u32,
    },
}

/// What [`SharedReceiveQueue::take_into`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Take {
    /// Nothing was posted.
    Empty,
    /// The oldest receive moved.
    Taken,
    /// The same, and fewer than the limit are left: to be reported. The limit is 0 now.
    TakenLimitReached,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    ring: RecvQueue,
    limit: u32,
}

fn capacity(what: Attribute, given: u32, max: u32) -> Result<(), CreateError> {
    if (1..=max).contains(&given) {
        return Ok(());
    }
    Err(CreateError::Capacity {
        what,
        given,
        min: 1,
        max,
    })
}

impl SharedReceiveQueue {
    /// An empty queue.
    ///
    /// # Errors
    /// A capacity out of range, or a limit above it.
    pub fn new(attr: &SrqAttr) -> Result<Self, SrqError> {
        capacity(Attribute::SrqMaxWr, attr.max_wr, params::QUEUE_DEPTH_MAX)?;
        capacity(
            Attribute::SrqMaxSge,
            attr.max_sge.into(),
            params::SGE_MAX.into(),
        )?;
        check_limit(attr.limit, attr.max_wr)?;
        Ok(Self {
            ring: RecvQueue::new(attr.max_wr, attr.max_sge),
            limit: attr.limit,
        })
    }

    /// Capacities, and the limit that is armed (0: none).
    #[must_use]
    pub fn query(&self) -> SrqAttr {
        SrqAttr {
            max_wr: self.ring.depth(),
            max_sge: self.ring.max_sge(),
            limit: self.limit,
        }
    }

    /// Receives posted and not taken.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.ring.len()
    }

    /// Whether nothing is posted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The queue is full or the receive has too many SGEs; nothing was posted then.
    #[inline]
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.ring.push(wr)
    }

    /// Changes the size, keeping what is posted in order, or the limit, or both. `true` if the
    /// new limit is reached already: the event is due now, since an empty queue would never
    /// report it by being taken from.
    ///
    /// # Errors
    /// See [`SrqError`]; nothing changed.
    pub fn modify(&mut self, max_wr: Option<u32>, limit: Option<u32>) -> Result<bool, SrqError> {
        let new_depth = max_wr.unwrap_or_else(|| self.ring.depth());
        capacity(Attribute::SrqMaxWr, new_depth, params::QUEUE_DEPTH_MAX)?;
        if new_depth < self.len() {
            return Err(SrqError::TooSmall {
                posted: self.len(),
                max_wr: new_depth,
            });
        }
        check_limit(limit.unwrap_or(self.limit), new_depth)?;
        if new_depth != self.ring.depth() {
            let mut ring = RecvQueue::new(new_depth, self.ring.max_sge());
            while self.ring.move_front_to(&mut ring) {}
            self.ring = ring;
        }
        if let Some(limit) = limit {
            self.limit = limit;
            return Ok(self.limit_reached());
        }
        Ok(false)
    }

    /// Moves the oldest receive to `into`, which has room for one of as many SGEs: if it has not,
    /// nothing is taken.
    #[inline]
    pub fn take_into(&mut self, into: &mut RecvQueue) -> Take {
        if !self.ring.move_front_to(into) {
            return Take::Empty;
        }
        if self.limit_reached() {
            Take::TakenLimitReached
        } else {
            Take::Taken
        }
    }

    /// Disarms the limit if it is reached.
    fn limit_reached(&mut self) -> bool {
        let reached = self.len() < self.limit;
        if reached {
            self.limit = 0;
        }
        reached
    }
}

fn check_limit(limit: u32, max_wr: u32) -> Result<(), SrqError> {
    if limit <= max_wr {
        Ok(())
    } else {
        Err(SrqError::Limit { limit, max_wr })
    }
}

#[cfg(test)]
mod tests;
