//! D6 and D7: what the core costs when nothing is below it. Not a criterion bench: it prints the
//! rate, the ceiling and the ratio of several alternating rounds.
#![allow(clippy::print_stdout, missing_docs, reason = "a bench talks")]

mod support;

use std::hint::black_box;

use support::{Pair, send, write};
use xroce_engine::clock;
use xroce_net::datapath::Link;
use xroce_wire::icrc::crc_update;
use xroce_wire::newtypes::PathMtu;

const ROUNDS: usize = 7;

fn seconds(f: impl FnOnce()) -> f64 {
    let start = clock::now();
    f();
    clock::now().since(start).as_nanos() as f64 / 1e9
}

fn spread(mut v: Vec<f64>) -> (f64, f64, f64) {
    v.sort_by(f64::total_cmp);
    (v[v.len() / 2], v[0], v[v.len() - 1])
}

fn main() {
    // `cargo bench` passes flags; `--messages N` is ours, for instruction counts.
    let args: Vec<String> = std::env::args().collect();
    let messages = args
        .iter()
        .position(|a| a == "--messages")
        .and_then(|i| args.get(i + 1)?.parse().ok());
    if let Some(count) = messages {
        let mut pair = Pair::new(Link::Ethernet, PathMtu::Mtu1024, 1);
        pair.stream(send, 64, count);
        for end in &pair.ends {
            println!("{:?}", end.engine.qp_counters(end.qpns[0]));
        }
        return;
    }
    let mut pair = Pair::new(Link::Ethernet, PathMtu::Mtu1024, 1);
    let n = 400_000;
    pair.stream(send, 64, n);
    let rates = (0..ROUNDS).map(|_| n as f64 / seconds(|| pair.stream(send, 64, n)) / 1e6);
    let (med, min, max) = spread(rates.collect());
    println!("D6 SEND 64 B, two engines in one thread: {med:.2} M/s ({min:.2}-{max:.2})");

    let mut pair = Pair::new(Link::Ethernet, PathMtu::Mtu4096, 1);
    let (size, n) = (1 << 20, 400);
    pair.stream(write, size, n);
    let mut ratios = Vec::new();
    let mut ours = Vec::new();
    let mut ceiling = Vec::new();
    for _ in 0..ROUNDS {
        let bytes = f64::from(size) * n as f64;
        let rate = bytes / seconds(|| pair.stream(write, size, n)) / 1e9;
        let bare = bytes / seconds(|| copy_and_crc(size as usize * n)) / 1e9;
        ratios.push(rate / bare);
        ours.push(rate);
        ceiling.push(bare);
    }
    let (med, min, max) = spread(ours);
    println!("D7 WRITE 1 MB, PMTU 4096: {med:.2} GB/s ({min:.2}-{max:.2})");
    let (med, min, max) = spread(ceiling);
    println!("   2 copies + 2 CRC of the same bytes: {med:.2} GB/s ({min:.2}-{max:.2})");
    let (med, min, max) = spread(ratios);
    println!("   ratio {med:.2} ({min:.2}-{max:.2})");
}

/// What no implementation can do without: at each end one copy and one CRC of each packet.
fn copy_and_crc(bytes: usize) {
    const PACKET: usize = 4096;
    let memory = vec![7u8; support::MEMORY];
    let mut landing = vec![0u8; support::MEMORY];
    let mut frame = vec![0u8; PACKET];
    let mut crc = 0;
    for i in 0..bytes / PACKET {
        let at = (i * PACKET) % (1 << 20);
        frame.copy_from_slice(&memory[at..at + PACKET]);
        crc ^= crc_update(!0, black_box(&frame));
        crc ^= crc_update(!0, black_box(&frame));
        landing[at..at + PACKET].copy_from_slice(&frame);
    }
    black_box((crc, &landing));
}
