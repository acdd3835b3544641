//! Hostile frames into engines in the middle of their work: no panic, nothing written outside a
//! grant, a connection that is not attacked goes on, every frame is counted once.
//!
//! `XROCE_FUZZ_FRAMES=n` says how many mutated captures are sent (1,000,000 unless said),
//! `XROCE_SEED=n` with which seed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic, and its sizes are small"
)]

#[path = "../captured/mod.rs"]
mod captured;
#[path = "../common/mod.rs"]
mod common;
mod field;
mod frames;

use std::cell::Cell;
use std::io::Write as _;

use field::Field;
use frames::{Attack, Shot};
use xroce_net::datapath::Link;
use xroce_proto::recovery::{Reliability, SelectiveParams};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

/// Says how far it had come when it fails.
struct Sent {
    seed: u64,
    frames: Cell<u64>,
}

impl Drop for Sent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (seed, frames) = (self.seed, self.frames.get());
            eprintln!("XROCE_SEED={seed} failed after {frames} frames");
        }
    }
}

/// Sends all shots at a live field, `volley` at once, then checks what must hold.
fn bombard(
    what: &str,
    link: Link,
    peaceful: Reliability,
    volley: usize,
    mut shots: impl FnMut(&mut Attack<'_>) -> Option<Shot>,
) {
    let seed = number("XROCE_SEED").unwrap_or(1);
    let mut field = Field::new(seed, link, peaceful);
    let mut go_on = true;
    let sent = Sent {
        seed,
        frames: Cell::new(0),
    };
    while go_on {
        for _ in 0..volley {
            let Some(shot) = shots(&mut field.attack()) else {
                go_on = false;
                break;
            };
            field.fire(&shot);
            sent.frames.set(sent.frames.get() + 1);
        }
        field.turn();
        if sent.frames.get().is_multiple_of(100_000) {
            field.check_memory();
        }
    }
    let report = field.finish();
    // Not `println!`: what was done is to be seen although the test passes.
    let line = format!(
        "hostile: {what}: seed {seed}, {} frames: {report}",
        sent.frames.get()
    );
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[test]
fn every_opcode_with_every_length() {
    let selective = Reliability::Selective(SelectiveParams::default());
    for (link, peaceful) in [
        (Link::Ethernet, Reliability::GoBackN),
        (Link::Udp, selective),
    ] {
        let mut n = 0u32;
        bombard("all opcodes", link, peaceful, 2, |attack| {
            // Lengths in the innermost loop: a QP that dies of one opcode sees all of them.
            let (len, icrc, opcode, round) = (n % 129, n / 129 % 2, n / 258 % 256, n / 66_048);
            n += 1;
            (round < 2).then(|| attack.plain(opcode as u8, len as usize, icrc == 0, round == 0))
        });
    }
}

#[test]
fn mutated_captures() {
    let frames = number("XROCE_FUZZ_FRAMES").unwrap_or(1_000_000);
    let corpus = frames::corpus();
    let mut n = 0;
    let peaceful = Reliability::GoBackN;
    bombard("mutated captures", Link::Ethernet, peaceful, 16, |attack| {
        n += 1;
        (n <= frames).then(|| attack.mutated(&corpus))
    });
}
