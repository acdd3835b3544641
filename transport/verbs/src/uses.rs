//! Who uses an object: counted by kind, so that a refusal to destroy it can say.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Kinds of objects that are made of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum User {
    Qp,
    Cq,
    Srq,
    Mr,
    Mw,
    Ah,
}

/// Counts of users, by kind.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    counts: [AtomicU32; 6],
}

impl Uses {
    fn change(&self, user: User, by: i32) {
        if let Some(count) = self.counts.get(user as usize) {
            // Only ever read to be told to people: no order needed.
            if by > 0 {
                count.fetch_add(1, Ordering::Relaxed);
            } else {
                count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn now(&self) -> InUse {
        let of = |user: User| {
            let count = self.counts.get(user as usize);
            count.map_or(0, |count| count.load(Ordering::Relaxed))
        };
        InUse {
            qps: of(User::Qp),
            cqs: of(User::Cq),
            srqs: of(User::Srq),
            mrs: of(User::Mr),
            mws: of(User::Mw),
            ahs: of(User::Ah),
        }
    }
}

/// What still uses an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InUse {
    /// Queue pairs. One that sends and receives to the same completion queue counts twice there.
    pub qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Memory windows.
    pub mws: u32,
    /// Address handles.
    pub ahs: u32,
}

impl InUse {
    /// Whether nothing does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.qps, "queue pair"),
            (self.cqs, "completion queue"),
            (self.srqs, "shared receive queue"),
            (self.mrs, "memory region"),
            (self.mws, "memory window"),
            (self.ahs, "address handle"),
        ];
        let mut lead = "";
        for (count, name) in counts.into_iter().filter(|(count, _)| *count != 0) {
            let plural = if count == 1 { "" } else { "s" };
            write!(f, "{lead}{count} {name}{plural}")?;
            lead = ", ";
        }
        if lead.is_empty() {
            f.write_str("nothing")?;
        }
        Ok(())
    }
}

/// An object that others are made of.
pub(crate) trait Used {
    fn uses(&self) -> &Uses;
}

/// A use of an object: keeps it alive, and counts.
#[derive(Debug)]
pub(crate) struct Held<T: Used> {
    object: Arc<T>,
    user: User,
}

impl<T: Used> Held<T> {
    pub(crate) fn new(object: &Arc<T>, user: User) -> Self {
        object.uses().change(user, 1);
        Self {
            object: Arc::clone(object),
            user,
        }
    }
}

impl<T: Used> Drop for Held<T> {
    fn drop(&mut self) {
        self.object.uses().change(self.user, -1);
    }
}

impl<T: Used> std::ops::Deref for Held<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_named_with_their_number() {
        let some = InUse {
            qps: 2,
            mrs: 1,
            ..InUse::default()
        };
        assert_eq!(some.to_string(), "2 queue pairs, 1 memory region");
        assert_eq!(InUse::default().to_string(), "nothing");
    }
}
