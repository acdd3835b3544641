//! The shared queue against a slow model.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use proptest::prelude::*;
use xroce_wire::newtypes::{LKey, Va};

use super::*;
use crate::wr::Sge;

const ATTR: SrqAttr = SrqAttr {
    max_wr: 5,
    max_sge: 3,
    limit: 0,
};

#[derive(Clone, Debug)]
enum Op {
    Post(u8),
    Take,
    Modify(Option<u32>, Option<u32>),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u8..5).prop_map(Op::Post),
        3 => Just(Op::Take),
        1 => (proptest::option::of(0u32..9), proptest::option::of(0u32..9))
            .prop_map(|(size, limit)| Op::Modify(size, limit)),
    ]
}

/// Distinct SGEs of receive `id`.
fn sges(id: u64, n: u8) -> Vec<Sge> {
    let one = |i| Sge {
        lkey: LKey::new(7),
        va: Va::new(id * 100 + u64::from(i)),
        len: 10 + u32::from(i),
    };
    (0..n).map(one).collect()
}

/// A queue in a vector.
struct Model {
    posted: VecDeque<(u64, u8)>,
    max_wr: u32,
    limit: u32,
}

impl Model {
    fn limit_reached(&mut self) -> bool {
        let reached = self.posted.len() < self.limit as usize;
        if reached {
            self.limit = 0;
        }
        reached
    }

    fn modify(&mut self, size: Option<u32>, limit: Option<u32>) -> Option<bool> {
        let new = size.unwrap_or(self.max_wr);
        let line = limit.unwrap_or(self.limit);
        if new == 0 || self.posted.len() > new as usize || line > new {
            return None;
        }
        self.max_wr = new;
        self.limit = line;
        Some(limit.is_some() && self.limit_reached())
    }
}

proptest! {
    /// Rule K7.
    #[test]
    fn first_in_first_out_through_every_change(ops in proptest::collection::vec(op(), 1..80)) {
        let mut srq = SharedReceiveQueue::new(&ATTR).unwrap();
        let mut model = Model { posted: VecDeque::new(), max_wr: 5, limit: 0 };
        for (id, op) in (0u64..).zip(ops) {
            match op {
                Op::Post(n) => {
                    let fits = n <= 3 && model.posted.len() < model.max_wr as usize;
                    let sges = sges(id, n);
                    let posted = srq.post(&RecvWr { wr_id: id, sges: &sges });
                    prop_assert_eq!(posted.is_ok(), fits);
                    if fits {
                        model.posted.push_back((id, n));
                    }
                }
                Op::Take => {
                    let mut slot = RecvQueue::new(1, 3);
                    let take = srq.take_into(&mut slot);
                    match model.posted.pop_front() {
                        None => prop_assert_eq!(take, Take::Empty),
                        Some((id, n)) => {
                            let expected = if model.limit_reached() {
                                Take::TakenLimitReached
                            } else {
                                Take::Taken
                            };
                            prop_assert_eq!(take, expected);
                            prop_assert_eq!(slot.front().map(|w| w.wr_id), Some(id));
                            prop_assert_eq!(slot.front_sges(), &sges(id, n)[..]);
                        }
                    }
                }
                Op::Modify(size, limit) => {
                    prop_assert_eq!(srq.modify(size, limit).ok(), model.modify(size, limit));
                }
            }
            prop_assert_eq!(srq.len() as usize, model.posted.len());
            let query = srq.query();
            prop_assert_eq!((query.max_wr, query.limit), (model.max_wr, model.limit));
        }
    }
}

#[test]
fn case_80_an_srq_that_is_full_refuses_and_keeps_what_it_has() {
    let mut srq = SharedReceiveQueue::new(&ATTR).unwrap();
    for wr_id in 0..5 {
        srq.post(&RecvWr { wr_id, sges: &[] }).unwrap();
    }
    let full = Err(PostError::QueueFull { depth: 5 });
    assert_eq!(
        srq.post(&RecvWr {
            wr_id: 5,
            sges: &[]
        }),
        full
    );
    for wr_id in 0..5 {
        let mut slot = RecvQueue::new(1, 3);
        assert_eq!(srq.take_into(&mut slot), Take::Taken);
        assert_eq!(slot.front().map(|w| w.wr_id), Some(wr_id));
    }
    assert!(srq.is_empty());
}

#[test]
fn a_slot_without_room_takes_nothing() {
    let mut srq = SharedReceiveQueue::new(&ATTR).unwrap();
    let three = sges(1, 3);
    srq.post(&RecvWr {
        wr_id: 1,
        sges: &three,
    })
    .unwrap();
    let mut narrow = RecvQueue::new(1, 2);
    assert_eq!(srq.take_into(&mut narrow), Take::Empty);
    let mut slot = RecvQueue::new(1, 3);
    assert_eq!(srq.take_into(&mut slot), Take::Taken);
    srq.post(&RecvWr {
        wr_id: 2,
        sges: &[],
    })
    .unwrap();
    assert_eq!(srq.take_into(&mut slot), Take::Empty);
    assert_eq!(srq.len(), 1);
}

#[test]
fn capacities_and_limits() {
    for (attr, ok) in [
        (SrqAttr { max_wr: 0, ..ATTR }, false),
        (
            SrqAttr {
                max_wr: (1 << 20) + 1,
                ..ATTR
            },
            false,
        ),
        (SrqAttr { max_sge: 0, ..ATTR }, false),
        (
            SrqAttr {
                max_sge: 33,
                ..ATTR
            },
            false,
        ),
        (SrqAttr { limit: 6, ..ATTR }, false),
        (SrqAttr { limit: 5, ..ATTR }, true),
    ] {
        assert_eq!(SharedReceiveQueue::new(&attr).is_ok(), ok, "{attr:?}");
    }
}
