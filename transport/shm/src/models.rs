//! Every interleaving of the protocols of this crate, by loom.
//!
//! The protocols are generic over where their words lie ([`Word`]), so what loom runs here is the
//! code that runs on shared memory. Each model has variants that lack a fence, an ordering or a
//! step: loom has to find what they break, which shows that the models can fail.
#![allow(
    clippy::arc_with_non_send_sync,
    reason = "loom runs its threads one at a time"
)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;

use crate::dirty::Marks;
use crate::park::{Arm, ArmState, Park};
use crate::ring::{Memory, Reader, Writer};
use crate::words::Word;

/// What a word of a model does not do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lacks {
    Nothing,
    /// All orderings are relaxed.
    Order,
    /// Fences do nothing.
    Fence,
}

/// A word of loom.
#[derive(Debug)]
struct Modelled<A> {
    word: A,
    lacks: Lacks,
}

macro_rules! word {
    ($value:ty, $atomic:ty) => {
        impl Modelled<$atomic> {
            fn zero(lacks: Lacks) -> Self {
                let word = <$atomic>::new(0);
                Self { word, lacks }
            }

            fn order(&self, order: Ordering) -> Ordering {
                if self.lacks == Lacks::Order {
                    return Ordering::Relaxed;
                }
                order
            }
        }

        impl Word<$value> for Modelled<$atomic> {
            fn load(&self, order: Ordering) -> $value {
                self.word.load(self.order(order))
            }
            fn store(&self, value: $value, order: Ordering) {
                self.word.store(value, self.order(order));
            }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.word.swap(value, self.order(order))
            }
            fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                self.word.fetch_or(bits, self.order(order))
            }
            fn fence(&self) {
                if self.lacks != Lacks::Fence {
                    fence(Ordering::SeqCst);
                }
            }
        }
    };
}
word!(u32, AtomicU32);
word!(u64, AtomicU64);

/// A ring of two entries of one byte. loom refuses accesses to a slot that are not ordered.
#[derive(Debug)]
struct Slots {
    producer: Modelled<AtomicU32>,
    consumer: Modelled<AtomicU32>,
    slots: [UnsafeCell<u8>; 2],
}

impl Slots {
    fn new(lacks: Lacks) -> Arc<Self> {
        Arc::new(Self {
            producer: Modelled::<AtomicU32>::zero(lacks),
            consumer: Modelled::<AtomicU32>::zero(lacks),
            slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }
}

impl Memory for Arc<Slots> {
    type Index = Modelled<AtomicU32>;
    fn producer(&self) -> &Self::Index {
        &self.producer
    }
    fn consumer(&self) -> &Self::Index {
        &self.consumer
    }
    fn write(&self, index: u32, entry: &[u8]) {
        self.slots[index as usize % 2].with_mut(|slot| {
            // SAFETY: loom checks that nothing else uses the slot meanwhile.
            unsafe { slot.write(entry[0]) };
        });
    }
    fn read(&self, index: u32, entry: &mut [u8]) {
        entry[0] = self.slots[index as usize % 2].with(|slot| {
            // SAFETY: as above.
            unsafe { slot.read() }
        });
    }
}

/// A descriptor that is readable once it was written.
#[derive(Debug)]
struct Eventfd {
    count: AtomicU32,
    /// How many of those who write have finished.
    gone: AtomicU32,
    writers: u32,
}

impl Eventfd {
    fn new(writers: u32) -> Arc<Self> {
        Arc::new(Self {
            count: AtomicU32::new(0),
            gone: AtomicU32::new(0),
            writers,
        })
    }

    fn write(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Nothing will be written any more, by one of the writers.
    fn leave(&self) {
        self.gone.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until it is readable, and reads it. A panic and not a deadlock of loom, which ends
    /// the process, if that is never.
    fn wait(&self) {
        loop {
            let last = self.gone.load(Ordering::Acquire) == self.writers;
            if self.count.swap(0, Ordering::AcqRel) != 0 {
                return;
            }
            assert!(!last, "it sleeps for ever");
            thread::yield_now();
        }
    }
}

/// Runs all interleavings with up to `preemptions` of them forced.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

// ---- the ring

fn ring_model(lacks: Lacks) {
    check(3, move || {
        let slots = Slots::new(lacks);
        let mut writer = Writer::new(Arc::clone(&slots), 2);
        let mut reader = Reader::new(slots, 2);
        let producer = thread::spawn(move || {
            for n in 1..=3 {
                while !writer.stage(&[n]).unwrap() {
                    writer.publish();
                    thread::yield_now();
                }
                // Two entries at once, then one.
                if n != 1 {
                    writer.publish();
                }
            }
        });
        for n in 1..=3 {
            let mut entry = [0];
            while !reader.fetch(&mut entry).unwrap() {
                thread::yield_now();
            }
            reader.release();
            assert_eq!(entry, [n]);
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_ring_loses_and_tears_no_entry() {
    ring_model(Lacks::Nothing);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_ring_without_orderings_is_found_out() {
    ring_model(Lacks::Order);
}

// ---- the doorbell

/// A ring, a sleeping consumer and a producer that kicks. `look`: whether the consumer looks for
/// work after it said that it sleeps.
fn park_model(lacks: Lacks, look: bool) {
    check(3, move || {
        let slots = Slots::new(Lacks::Nothing);
        let park = Arc::new(Park(Modelled::<AtomicU32>::zero(lacks)));
        let eventfd = Eventfd::new(1);
        let mut writer = Writer::new(Arc::clone(&slots), 2);
        let mut reader = Reader::new(slots, 2);
        let producer = {
            let (park, eventfd) = (Arc::clone(&park), Arc::clone(&eventfd));
            thread::spawn(move || {
                for n in 1..=2 {
                    assert!(writer.stage(&[n]).unwrap());
                    writer.publish();
                    if park.must_kick() {
                        eventfd.write();
                    }
                }
                eventfd.leave();
            })
        };
        let mut taken = 0;
        while taken < 2 {
            let mut entry = [0];
            while reader.fetch(&mut entry).unwrap() {
                taken += 1;
                assert_eq!(entry, [taken]);
            }
            if taken == 2 {
                break;
            }
            park.park();
            if !look || reader.available().unwrap() == 0 {
                eventfd.wait();
            }
            park.unpark();
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_sleeper_is_always_woken() {
    park_model(Lacks::Nothing, true);
}

#[test]
#[should_panic(expected = "it sleeps for ever")]
fn a_doorbell_without_fences_is_found_out() {
    park_model(Lacks::Fence, true);
}

#[test]
#[should_panic(expected = "it sleeps for ever")]
fn a_sleeper_that_does_not_look_again_is_found_out() {
    park_model(Lacks::Nothing, false);
}

/// A completion queue: an unsolicited batch and then a solicited one. The reader arms, polls once,
/// and waits for the event only.
fn arm_model(lacks: Lacks, arm: Arm, look: bool) {
    check(3, move || {
        let slots = Slots::new(Lacks::Nothing);
        let word = Arc::new(ArmState(Modelled::<AtomicU32>::zero(lacks)));
        let eventfd = Eventfd::new(1);
        let mut writer = Writer::new(Arc::clone(&slots), 2);
        let mut reader = Reader::new(slots, 2);
        let producer = {
            let (word, eventfd) = (Arc::clone(&word), Arc::clone(&eventfd));
            thread::spawn(move || {
                for (n, solicited) in [(1, false), (2, true)] {
                    assert!(writer.stage(&[n]).unwrap());
                    writer.publish();
                    if word.must_notify(solicited) {
                        eventfd.write();
                    }
                }
                eventfd.leave();
            })
        };
        word.arm(arm);
        let mut entry = [0];
        let mut last = 0;
        while look && reader.fetch(&mut entry).unwrap() {
            last = entry[0];
        }
        // For a reader that has not seen the solicited one yet, the event comes, and afterwards
        // what it stands for is there.
        if last < 2 {
            eventfd.wait();
            assert!(reader.fetch(&mut entry).unwrap() || arm == Arm::Any);
        }
        producer.join().unwrap();
    });
}

#[test]
fn an_armed_queue_notifies() {
    arm_model(Lacks::Nothing, Arm::Solicited, true);
    arm_model(Lacks::Nothing, Arm::Any, true);
}

#[test]
#[should_panic(expected = "it sleeps for ever")]
fn an_arming_without_fences_is_found_out() {
    arm_model(Lacks::Fence, Arm::Solicited, true);
}

#[test]
#[should_panic(expected = "it sleeps for ever")]
fn a_reader_that_arms_and_does_not_poll_is_found_out() {
    arm_model(Lacks::Nothing, Arm::Solicited, false);
}

// ---- the dirty set

/// What a model of the set does in another order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Broken {
    Nothing,
    /// Marks the summary before the word.
    Mark,
    /// Takes the words before the summary.
    Drain,
}

type Set = Marks<Modelled<AtomicU64>>;

fn mark(set: &Set, number: u32, broken: Broken) {
    if broken != Broken::Mark {
        return set.mark(number).unwrap();
    }
    let (word, bit) = (number / 64, number % 64);
    set.summary.fetch_or(1 << word, Ordering::AcqRel);
    set.words[word as usize].fetch_or(1 << bit, Ordering::AcqRel);
}

fn drain(set: &Set, broken: Broken, mut each: impl FnMut(u32)) {
    if broken != Broken::Drain {
        set.drain(each);
        return;
    }
    let summary = set.summary.load(Ordering::Acquire);
    for (word, place) in (0..).zip(&set.words).filter(|(w, _)| summary >> w & 1 == 1) {
        let mut bits = place.swap(0, Ordering::AcqRel);
        while bits != 0 {
            each(word * 64 + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
    set.summary.swap(0, Ordering::AcqRel);
}

/// Two markers, and a drain in the middle and one at the end. What was published before a mark is
/// found by one of them.
fn dirty_model(lacks: Lacks, broken: Broken) {
    check(3, move || {
        let zero = || Modelled::<AtomicU64>::zero(lacks);
        let set = Arc::new(Set {
            summary: zero(),
            words: [zero(), zero()].into(),
            limit: 128,
        });
        // Queues 3 and 4 share a word. Not atomics: loom objects to a drain that reaches them
        // without the mark's ordering.
        let queues = Arc::new([UnsafeCell::new(0u8), UnsafeCell::new(0u8)]);
        let markers = [0u8, 1].map(|n| {
            let (set, queues) = (Arc::clone(&set), Arc::clone(&queues));
            thread::spawn(move || {
                queues[usize::from(n)].with_mut(|queue| {
                    // SAFETY: loom checks that nothing else uses it meanwhile.
                    unsafe { queue.write(1) };
                });
                mark(&set, 3 + u32::from(n), broken);
            })
        });
        let mut found = [0; 2];
        let mut take = |number: u32| {
            let n = number as usize - 3;
            found[n] += queues[n].with(|queue| {
                // SAFETY: as above.
                unsafe { queue.read() }
            });
        };
        drain(&set, broken, &mut take);
        for marker in markers {
            marker.join().unwrap();
        }
        drain(&set, broken, &mut take);
        assert_eq!(found, [1, 1], "a mark is lost");
    });
}

#[test]
fn a_set_loses_no_mark() {
    dirty_model(Lacks::Nothing, Broken::Nothing);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn marks_without_orderings_are_found_out() {
    dirty_model(Lacks::Order, Broken::Nothing);
}

#[test]
#[should_panic(expected = "a mark is lost")]
fn marking_the_summary_first_is_found_out() {
    dirty_model(Lacks::Nothing, Broken::Mark);
}

#[test]
#[should_panic(expected = "a mark is lost")]
fn taking_the_words_first_is_found_out() {
    dirty_model(Lacks::Nothing, Broken::Drain);
}

/// All together: two threads with a queue each mark it and kick, the drainer sleeps between.
fn service_model(lacks: Lacks) {
    check(2, move || {
        let zero = || Modelled::<AtomicU64>::zero(Lacks::Nothing);
        let set = Arc::new(Set {
            summary: zero(),
            words: [zero()].into(),
            limit: 64,
        });
        let park = Arc::new(Park(Modelled::<AtomicU32>::zero(lacks)));
        let eventfd = Eventfd::new(2);
        let markers = [1u32, 2].map(|n| {
            let (set, park) = (Arc::clone(&set), Arc::clone(&park));
            let eventfd = Arc::clone(&eventfd);
            thread::spawn(move || {
                set.mark(n).unwrap();
                if park.must_kick() {
                    eventfd.write();
                }
                eventfd.leave();
            })
        });
        let mut found = 0;
        while found != 3 {
            set.drain(|n| found += n);
            if found != 3 {
                park.park();
                if set.is_empty() {
                    eventfd.wait();
                }
                park.unpark();
            }
        }
        for marker in markers {
            marker.join().unwrap();
        }
    });
}

#[test]
fn marks_wake_the_drainer() {
    service_model(Lacks::Nothing);
}

#[test]
#[should_panic(expected = "it sleeps for ever")]
fn marks_without_fences_are_found_out() {
    service_model(Lacks::Fence);
}
