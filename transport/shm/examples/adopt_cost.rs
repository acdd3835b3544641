//! What it costs to adopt memory, beside a copy of it.
//!
//! `cargo run --release -p xroce-shm --example adopt_cost -- [MIB]`
#![allow(clippy::print_stdout, reason = "an example that reports")]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use xroce_shm::{AdoptError, Region};

fn milliseconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let done = work();
    (start.elapsed().as_secs_f64() * 1e3, done)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mib: usize = std::env::args().nth(1).map_or(Ok(1024), |a| a.parse())?;
    let data = vec![1u8; mib << 20];
    let (fresh, copy) = milliseconds(|| data.clone());
    let mut copy = black_box(copy);
    let (warm, ()) = milliseconds(|| copy.copy_from_slice(black_box(&data)));
    drop(copy);
    let data = Region::of_heap(data)?;
    let len = data.len() as u64;
    let (first, adopted) = milliseconds(|| data.share(0, len));
    let adopted = adopted?;
    let (again, second) = milliseconds(|| data.share(0, len));
    second?;
    let (touch, touched) = milliseconds(|| {
        let mut pages = (0..len).step_by(4096);
        pages.try_for_each(|page| data.write_at(page, &[2]))
    });
    touched?;
    println!(
        "{mib} MiB: copy to new memory {fresh:.1} ms, to warm memory {warm:.1} ms; \
         adopt {first:.1} ms ({} piece), find adopted {again:.3} ms, write each page {touch:.1} ms",
        adopted.pieces().len()
    );
    let small = Region::of_heap(vec![1u8; 4096 * 200])?;
    let (each, done) = milliseconds(|| -> Result<(), AdoptError> {
        for page in (1..199).step_by(2) {
            small.share(page * 4096, 1)?;
        }
        Ok(())
    });
    done?;
    println!("single pages: {:.1} microseconds each", each * 1e3 / 99.0);
    Ok(())
}
