//! What it costs to adopt memory, beside a copy of it.
//!
//! `cargo run --release -p xroce-shm --example adopt_cost -- [MIB]`
#![allow(clippy::print_stdout, reason = "an example that reports")]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use xroce_shm::{Race, adopt};

fn milliseconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let done = work();
    (start.elapsed().as_secs_f64() * 1e3, done)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mib: usize = std::env::args().nth(1).map_or(Ok(1024), |a| a.parse())?;
    let mut data = vec![1u8; mib << 20];
    let (fresh, copy) = milliseconds(|| data.clone());
    let mut copy = black_box(copy);
    let (warm, ()) = milliseconds(|| copy.copy_from_slice(black_box(&data)));
    drop(copy);
    let address = data.as_ptr().expose_provenance() as u64;
    let len = data.len() as u64;
    let (first, adopted) = milliseconds(|| adopt(address, len, Race::Refuse));
    let adopted = adopted?;
    let (again, second) = milliseconds(|| adopt(address, len, Race::Refuse));
    second?;
    let (touch, ()) = milliseconds(|| {
        for byte in data.iter_mut().step_by(4096) {
            *byte = 2;
        }
    });
    black_box(&data);
    println!(
        "{mib} MiB: copy to new memory {fresh:.1} ms, to warm memory {warm:.1} ms; \
         adopt {first:.1} ms ({} piece), find adopted {again:.3} ms, write each page {touch:.1} ms",
        adopted.pieces().len()
    );
    let mut small = vec![1u8; 4096 * 200];
    let start = small.as_mut_ptr().expose_provenance() as u64;
    let (each, done) = milliseconds(|| -> Result<(), xroce_shm::AdoptError> {
        for page in (1..199).step_by(2) {
            adopt(start + page * 4096, 1, Race::Refuse)?;
        }
        Ok(())
    });
    done?;
    println!("single pages: {:.1} microseconds each", each * 1e3 / 99.0);
    Ok(())
}
