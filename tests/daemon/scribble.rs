//! A process that writes over every byte it shares with the daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xroce_api::Request;

use super::mock::Settled;
use super::witness::{self, Witness};
use super::{Host, Random, rounds};

/// Every byte of all three, from one place on.
fn scribble(settled: &Settled, random: &mut Random) {
    for region in settled.regions() {
        let from = random.below(region.len() as u64);
        for n in 0..region.len() as u64 {
            let at = (from + n) % region.len() as u64;
            let byte = random.next().to_le_bytes()[0];
            region.write_at(at, &[byte]).unwrap();
        }
        settled.ring();
    }
}

/// A word here and there: what gets furthest.
fn poke(settled: &Settled, random: &mut Random) {
    for _ in 0..50 {
        let regions = settled.regions();
        let region = regions[usize::try_from(random.below(3)).unwrap()];
        // Indices are at the beginning; the first entries behind.
        let at = random.below(1024.min(region.len() as u64 - 8)) & !7;
        let value = match random.below(4) {
            0 => random.below(300),
            1 => u64::MAX,
            2 => random.next(),
            _ => 1 << random.below(64),
        };
        region.write_at(at, &value.to_ne_bytes()).unwrap();
        settled.ring();
    }
}

#[test]
fn who_scribbles_over_its_rings_is_closed_alone() {
    let host = Host::start(|_| {});
    let before = witness::undisturbed(&host);
    let witness = Witness::start(&host);
    let mut random = Random::new("scribble");
    let mut expelled = 0;
    for round in 0..rounds() {
        let settled = Settled::new(&host.socket());
        for _ in 0..4 {
            if round % 2 == 0 {
                scribble(&settled, &mut random);
            } else {
                poke(&settled, &mut random);
            }
        }
        // A query has the daemon look at the rings; asked something harmless then, the process is told
        // why it was closed, or answered.
        let qpn = settled.qp.0.qpn;
        let looked = settled.mock.send(&Request::QueryQp { qpn }, &[]);
        let asked = looked.and_then(|_| settled.mock.send(&Request::Up, &[]));
        if let Err(closed) = asked {
            expelled += 1;
            let known = ["queue", "ring", "hung up", "reset", "Broken pipe"];
            assert!(known.iter().any(|w| closed.0.contains(w)), "{closed:?}");
        }
    }
    host.wait_for(2);
    println!(
        "scribble: {expelled} of {} sessions closed for cause",
        rounds()
    );
    assert!(expelled > rounds() / 4, "most scribbles are noticed");
    witness::print("scribble", &before, &witness.finish());
    host.wait_for(0);
}

/// What the daemon has been taught to expect is written while it reads.
#[test]
fn rings_that_change_while_they_are_read_hurt_nobody() {
    let host = Host::start(|_| {});
    let witness = Witness::start(&host);
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..2)
        .map(|n| {
            let (stop, socket) = (Arc::clone(&stop), host.socket());
            std::thread::spawn(move || {
                let mut random = Random(n);
                while !stop.load(Ordering::Relaxed) {
                    let settled = Settled::new(&socket);
                    for _ in 0..20 {
                        poke(&settled, &mut random);
                    }
                }
            })
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(20 * rounds()));
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().unwrap();
    }
    host.wait_for(2);
    witness.finish();
    host.wait_for(0);
}
