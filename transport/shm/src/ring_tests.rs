use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

fn ring(entry_size: u32, capacity: u32) -> (Region, Producer, Consumer) {
    let geometry = Geometry::new(entry_size, capacity).unwrap();
    let region = Region::for_tests(usize::try_from(geometry.bytes()).unwrap());
    let producer = Producer::new(&region, 0, geometry).unwrap();
    let consumer = Consumer::new(&region, 0, geometry).unwrap();
    (region, producer, consumer)
}

#[test]
fn only_rings_that_can_be_are_made() {
    for size in [0, 8, 15, 20, 264, u32::MAX] {
        let refused = Err(RingLayoutError::EntrySize(size));
        assert_eq!(Geometry::new(size, 8), refused);
    }
    for capacity in [0, 3, CAPACITY_MAX * 2, u32::MAX] {
        let refused = Err(RingLayoutError::Capacity(capacity));
        assert_eq!(Geometry::new(64, capacity), refused);
    }
    let geometry = Geometry::new(64, 4).unwrap();
    assert_eq!(geometry.bytes(), 640);
    assert_eq!(Geometry::new(16, 1).unwrap().bytes(), 512);
    assert_eq!(
        Geometry::new(ENTRY_MAX, CAPACITY_MAX).unwrap().bytes(),
        384 + (256 << 20)
    );
    let region = Region::for_tests(700);
    assert!(Producer::new(&region, 0, geometry).is_ok());
    assert_eq!(
        Consumer::new(&region, 8, geometry).unwrap_err(),
        RingLayoutError::Misaligned(8)
    );
    // Memory of the program may begin anywhere; entries are words of eight bytes.
    let mut words = vec![0u64; 101];
    let base = NonNull::from(&mut words[0]).cast::<u8>();
    for shift in [1, 2, 4] {
        // SAFETY: inside the vector.
        let start = unsafe { base.add(shift) };
        // SAFETY: the vector is 8 bytes longer, lives longer, and is not used meanwhile.
        let region = unsafe { Region::of_memory(start, 800) }.unwrap();
        let refused = Producer::new(&region, 0, geometry).unwrap_err();
        assert_eq!(refused, RingLayoutError::Address(region.address()));
    }
    for offset in [64, 1 << 40, u64::MAX - 63] {
        let refused = Producer::new(&region, offset, geometry).unwrap_err();
        assert!(matches!(refused, RingLayoutError::OutOfRange(_)));
    }
}

#[test]
fn a_buffer_of_another_size_is_refused() {
    let (_, mut producer, mut consumer) = ring(64, 4);
    let refused = RingError::EntrySize {
        len: 63,
        entry_size: 64,
    };
    assert_eq!(producer.push(&[0; 63]), Err(refused));
    assert_eq!(consumer.take(&mut [0; 63]), Err(refused));
}

#[test]
fn what_is_staged_is_not_seen_before_it_is_published() {
    let (_, mut producer, mut consumer) = ring(16, 4);
    let mut entry = [0; 16];
    for n in 1..=4 {
        assert_eq!(producer.stage(&[n; 16]), Ok(true));
    }
    assert_eq!(producer.stage(&[5; 16]), Ok(false));
    assert_eq!(consumer.take(&mut entry), Ok(false));
    assert_eq!(producer.publish(), 4);
    assert_eq!(producer.publish(), 0);
    for n in 1..=4 {
        assert_eq!(consumer.fetch(&mut entry), Ok(true));
        assert_eq!(entry, [n; 16]);
    }
    assert_eq!(consumer.fetch(&mut entry), Ok(false));
    assert_eq!(producer.space(), Ok(0));
    assert_eq!(consumer.release(), 4);
    assert_eq!(producer.space(), Ok(4));
}

#[test]
fn an_index_that_cannot_be_is_an_error_with_both_numbers() {
    let (region, mut producer, mut consumer) = ring(64, 4);
    let mut entry = [0; 64];
    for n in 0..3 {
        assert_eq!(producer.push(&[n; 64]), Ok(true));
        assert_eq!(consumer.take(&mut entry), Ok(true));
    }
    for theirs in [8u32, 2, u32::MAX, 1 << 31] {
        region.write_at(PRODUCER_AT, &theirs.to_ne_bytes()).unwrap();
        let corrupt = RingCorrupt {
            whose: "producer",
            theirs,
            ours: 3,
            capacity: 4,
        };
        assert_eq!(consumer.take(&mut entry), Err(corrupt.into()));
        assert_eq!(consumer.available(), Err(corrupt));
    }
    // 4 entries that were never written are within the rules: what they say is looked at later.
    region.write_at(PRODUCER_AT, &7u32.to_ne_bytes()).unwrap();
    assert_eq!(consumer.available(), Ok(4));
    for theirs in [4u32, u32::MAX, u32::MAX - 1] {
        region.write_at(CONSUMER_AT, &theirs.to_ne_bytes()).unwrap();
        let refused = producer.space().unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!("the consumer index is {theirs} while ours is 3, in a ring of 4 entries")
        );
    }
}

#[test]
fn indices_run_over_the_end_of_u32() {
    let (region, mut producer, mut consumer) = ring(16, 8);
    let start = u32::MAX - 2;
    region.write_at(PRODUCER_AT, &start.to_ne_bytes()).unwrap();
    region.write_at(CONSUMER_AT, &start.to_ne_bytes()).unwrap();
    let writer = &mut producer.writer;
    (writer.tail, writer.published, writer.seen) = (start, start, start);
    let reader = &mut consumer.reader;
    (reader.head, reader.released, reader.seen) = (start, start, start);
    let mut entry = [0; 16];
    for round in 0..3u8 {
        for n in 0..8 {
            assert_eq!(producer.push(&[round * 8 + n; 16]), Ok(true));
        }
        assert_eq!(producer.push(&[0; 16]), Ok(false));
        for n in 0..8 {
            assert_eq!(consumer.take(&mut entry), Ok(true));
            assert_eq!(entry, [round * 8 + n; 16]);
        }
        assert_eq!(consumer.take(&mut entry), Ok(false));
    }
}

#[test]
fn entries_of_another_thread_come_whole_and_in_order() {
    const ENTRIES: u64 = if cfg!(miri) { 200 } else { 200_000 };
    let (_, mut producer, mut consumer) = ring(64, 16);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..ENTRIES {
                let entry: [[u8; 8]; 8] = [n.to_le_bytes(); 8];
                while !producer.push(entry.as_flattened()).unwrap() {
                    std::thread::yield_now();
                }
            }
        });
        for n in 0..ENTRIES {
            let mut entry = [0; 64];
            while !consumer.take(&mut entry).unwrap() {
                std::thread::yield_now();
            }
            assert_eq!(entry.as_slice(), [n.to_le_bytes(); 8].as_flattened());
        }
    });
}

#[derive(Clone, Debug)]
enum Op {
    Stage,
    Publish,
    Push,
    Fetch,
    Release,
    Take,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => Just(Op::Stage),
        1 => Just(Op::Publish),
        1 => Just(Op::Push),
        3 => Just(Op::Fetch),
        1 => Just(Op::Release),
        1 => Just(Op::Take),
    ];
    prop::collection::vec(op, 0..if cfg!(miri) { 20 } else { 300 })
}

proptest! {
    #[test]
    fn a_ring_is_a_queue_of_bounded_length(ops in ops(), bits in 0u32..4, words in 2u32..=32) {
        let (capacity, size) = (1usize << bits, words as usize * 8);
        let (_, mut producer, mut consumer) = ring(words * 8, 1 << bits);
        // Staged, published, and fetched but not released.
        let (mut staged, mut queue, mut kept) = (VecDeque::new(), VecDeque::new(), 0);
        let mut next = 0u8;
        let mut buffer = vec![0; size];
        for op in ops {
            let full = staged.len() + queue.len() + kept == capacity;
            match op {
                Op::Stage | Op::Push => {
                    let entry = vec![next; size];
                    let push = matches!(op, Op::Push);
                    let done = if push { producer.push(&entry) } else { producer.stage(&entry) };
                    prop_assert_eq!(done, Ok(!full));
                    if !full {
                        staged.push_back(next);
                        next = next.wrapping_add(1);
                    }
                    if push {
                        queue.append(&mut staged);
                    }
                }
                Op::Publish => {
                    prop_assert_eq!(producer.publish() as usize, staged.len());
                    queue.append(&mut staged);
                }
                Op::Fetch | Op::Take => {
                    let take = matches!(op, Op::Take);
                    let done =
                        if take { consumer.take(&mut buffer) } else { consumer.fetch(&mut buffer) };
                    let expected = queue.pop_front();
                    prop_assert_eq!(done, Ok(expected.is_some()));
                    if let Some(value) = expected {
                        prop_assert!(buffer.iter().all(|b| *b == value));
                        kept += 1;
                    }
                    if take {
                        kept = 0;
                    }
                }
                Op::Release => {
                    prop_assert_eq!(consumer.release() as usize, kept);
                    kept = 0;
                }
            }
        }
    }

    /// Whatever is written to the indices, and whenever: no panic, no access outside (the guard
    /// bytes around the ring are as before), and never more entries than the capacity at a time.
    #[test]
    fn hostile_indices_stay_inside(
        steps in prop::collection::vec((any::<u32>(), 0u32..20, any::<bool>()), 1..if cfg!(miri) { 8 } else { 60 }),
    ) {
        let geometry = Geometry::new(24, 4).unwrap();
        let len = usize::try_from(geometry.bytes()).unwrap();
        let region = Region::for_tests(len + 256);
        region.write_at(0, &[0xa5; 128]).unwrap();
        region.write_at(len as u64 + 128, &[0xa5; 128]).unwrap();
        let mut producer = Producer::new(&region, 128, geometry).unwrap();
        let mut consumer = Consumer::new(&region, 128, geometry).unwrap();
        let mut entry = [0; 24];
        for (value, near, far) in steps {
            let value = if far { value } else { near };
            region.write_at(128 + PRODUCER_AT, &value.to_ne_bytes()).unwrap();
            region.write_at(128 + CONSUMER_AT, &value.rotate_left(7).to_ne_bytes()).unwrap();
            let mut taken = 0;
            while consumer.fetch(&mut entry) == Ok(true) {
                taken += 1;
                prop_assert!(taken <= 4);
            }
            consumer.release();
            let mut put = 0;
            while producer.stage(&[1; 24]) == Ok(true) {
                put += 1;
                prop_assert!(put <= 4);
            }
            producer.publish();
        }
        let mut guard = [0; 128];
        region.read_at(0, &mut guard).unwrap();
        prop_assert_eq!(guard, [0xa5; 128]);
        region.read_at(len as u64 + 128, &mut guard).unwrap();
        prop_assert_eq!(guard, [0xa5; 128]);
    }
}
