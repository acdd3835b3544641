//! Prints ns per call: this crate, its tables, crc32fast.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement"
)]

use std::hint::black_box;
use std::time::Instant;

type Update = (&'static str, fn(u32, &[u8]) -> u32);

fn crc32fast_update(state: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!state);
    hasher.update(bytes);
    !hasher.finalize()
}

fn main() {
    let kernels: [Update; 3] = [
        ("xroce", xroce_crc::update),
        ("tables", xroce_crc::update_portable),
        ("crc32fast", crc32fast_update),
    ];
    let data = vec![7u8; 4200];
    for len in [12, 28, 76, 112, 256, 1036, 4108] {
        print!("{len:5} B:");
        for (name, update) in kernels {
            let calls = 2_000_000 / (1 + len / 64);
            let mut best = f64::MAX;
            for _ in 0..5 {
                let start = Instant::now();
                let mut state = 1;
                for _ in 0..calls {
                    state = update(black_box(state), black_box(&data[..len]));
                }
                black_box(state);
                best = best.min(start.elapsed().as_nanos() as f64 / calls as f64);
            }
            print!("  {name} {best:.1} ns");
        }
        println!();
    }
}
