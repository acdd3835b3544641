//! What an entry costs from one thread to another, in a ring of 1024 entries of 64 bytes.
//!
//! `cargo run --release -p xroce-shm --example ring_rate`
#![allow(clippy::print_stdout, reason = "an example that reports")]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use xroce_shm::{Consumer, DIRTY_BYTES, DirtySet, Geometry, PARK_AT, ParkWord, Producer, Region};

const ENTRIES: u32 = 4_000_000;

/// Nanoseconds for each entry moved by two threads, `batch` at a time, with and without a doorbell.
fn threads(batch: u32, doorbell: bool) -> Result<f64, Box<dyn Error>> {
    let geometry = Geometry::new(64, 1024)?;
    let region = Region::anonymous(usize::try_from(geometry.bytes())?)?;
    let mut producer = Producer::new(&region, 0, geometry)?;
    let mut consumer = Consumer::new(&region, 0, geometry)?;
    let park = ParkWord::new(&region, PARK_AT)?;
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut sent = 0u32;
            while sent < ENTRIES {
                let before = sent;
                for _ in 0..batch {
                    match producer.stage(&[sent.to_le_bytes()[0]; 64]) {
                        Ok(true) => sent += 1,
                        _ => break,
                    }
                }
                producer.publish();
                if sent == before {
                    std::hint::spin_loop();
                } else if doorbell {
                    black_box(park.must_kick());
                }
            }
        });
        let (mut taken, mut entry) = (0u32, [0; 64]);
        while taken < ENTRIES {
            let before = taken;
            for _ in 0..batch {
                match consumer.fetch(&mut entry) {
                    Ok(true) => taken += 1,
                    _ => break,
                }
                black_box(&entry);
            }
            consumer.release();
            if taken == before {
                std::hint::spin_loop();
            }
        }
    });
    Ok(start.elapsed().as_nanos() as f64 / f64::from(ENTRIES))
}

/// Nanoseconds of `work`, of one thread.
fn alone(mut work: impl FnMut(u32)) -> f64 {
    let start = Instant::now();
    for n in 0..ENTRIES {
        work(n);
    }
    start.elapsed().as_nanos() as f64 / f64::from(ENTRIES)
}

fn main() -> Result<(), Box<dyn Error>> {
    for batch in [1, 8, 32] {
        for doorbell in [false, true] {
            let mut runs = [0.0; 5];
            for run in &mut runs {
                *run = threads(batch, doorbell)?;
            }
            runs.sort_by(f64::total_cmp);
            let [best, _, middle, _, worst] = runs;
            println!(
                "two threads, {batch:2} at a time, doorbell {doorbell:5}: \
                 {best:6.1} {middle:6.1} {worst:6.1} ns per entry (best, middle, worst of 5)"
            );
        }
    }
    let geometry = Geometry::new(64, 1024)?;
    let bytes = geometry.bytes();
    let region = Region::anonymous(usize::try_from(bytes + DIRTY_BYTES)?)?;
    let mut producer = Producer::new(&region, 0, geometry)?;
    let mut consumer = Consumer::new(&region, 0, geometry)?;
    let mut entry = [0; 64];
    let ring = alone(|n| {
        black_box(producer.push(&[n.to_le_bytes()[0]; 64]).is_ok());
        black_box(consumer.take(&mut entry).is_ok());
    });
    println!("one thread, push and take: {ring:.1} ns");
    let park = ParkWord::new(&region, PARK_AT)?;
    let kick = alone(|_| {
        black_box(park.must_kick());
    });
    println!("one thread, doorbell of who is awake: {kick:.1} ns");
    let set = DirtySet::new(&region, bytes, 4096)?;
    let mark = alone(|n| {
        black_box(set.mark(n % 4096).is_ok());
    });
    println!("one thread, mark: {mark:.1} ns");
    Ok(())
}
