//! D6 and D7 of `benches/suite` alone, in seconds instead of minutes; with `--messages N` only
//! N messages of 64 bytes, for counting instructions:
//! `valgrind --tool=callgrind target/release/deps/core_rate-… --messages 20000`.
#![allow(clippy::print_stdout, missing_docs, reason = "a bench talks")]

mod support;

use support::core::{ByteRate, MessageRate, messages};
use support::{Op, Pace};
use xroce_bench_report::Spread;

const ROUNDS: usize = 7;

fn spread(rates: impl Iterator<Item = f64>) -> String {
    Spread::of(rates).map_or_else(String::new, |s| s.show(|v| format!("{v:.2}")))
}

fn main() {
    // `cargo bench` passes flags of its own.
    let args: Vec<String> = std::env::args().collect();
    let count = args.iter().position(|a| a == "--messages");
    if let Some(count) = count.and_then(|i| args.get(i + 1)?.parse().ok()) {
        messages(Op::Send, 64, count);
        return;
    }
    let mut rate = MessageRate::new();
    let rates = spread((0..ROUNDS).map(|_| rate.measure() / 1e6));
    println!("D6 SEND 64 B, two engines in one thread: {rates} M/s");

    let mut rate = ByteRate::new();
    let all: Vec<(f64, f64)> = (0..ROUNDS)
        .map(|_| (rate.measure(Pace::Fixed) / 1e9, rate.copy_and_crc() / 1e9))
        .collect();
    let ours = spread(all.iter().map(|r| r.0));
    let bare = spread(all.iter().map(|r| r.1));
    let ratio = spread(all.iter().map(|r| r.0 / r.1));
    println!("D7 WRITE 1 MB, PMTU 4096: {ours} GB/s");
    println!("   2 copies + 2 CRC of the same bytes: {bare} GB/s");
    println!("   ratio {ratio}");
}
