//! A process that captures and means harm: it scribbles over its ring, or never reads it.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use serde_json::Value;
use xroce_api::Request;
use xroce_api::message::{CaptureMade, CaptureSpec, CaptureStats};
use xroce_control::capture::{self};
use xroce_shm::{Piece, Region};

use super::mock::Mock;
use super::witness::{self, Witness};
use super::{Host, LONG, Random, rounds};

/// Where the consumer index of a ring is (`xroce-shm`, `ring`).
const CONSUMER_AT: u64 = 128;

/// One that captures, and the memory it shares for that.
struct Listener {
    mock: Mock,
    ring: Region,
    _bell: OwnedFd,
}

impl Listener {
    fn new(host: &Host, spec: CaptureSpec) -> Self {
        let mock = Mock::connect(&host.socket());
        let program = "listener".to_owned();
        let _: (Value, _) = mock.ask(&Request::Hello { program }, &[]);
        let _: (Value, _) = mock.ask(&Request::Open { device: None }, &[]);
        let (made, fds): (CaptureMade, _) = mock.ask(&Request::Capture { spec }, &[]);
        let [fd, bell] = <[OwnedFd; 2]>::try_from(fds).unwrap();
        let len = capture::ring(made.ring).unwrap().bytes();
        let piece = Piece { fd, offset: 0, len };
        let ring = Region::from_pieces(vec![piece]).unwrap();
        Self {
            mock,
            ring,
            _bell: bell,
        }
    }

    fn stats(&self) -> CaptureStats {
        self.mock.ask(&Request::CaptureStats, &[]).0
    }

    fn end(&self) -> CaptureStats {
        self.mock.ask(&Request::EndCapture, &[]).0
    }
}

fn small() -> CaptureSpec {
    CaptureSpec {
        entries: 512,
        ..CaptureSpec::default()
    }
}

#[test]
fn who_captures_and_never_reads_holds_nobody_up() {
    let host = Host::start(|_| {});
    let before = witness::undisturbed(&host);
    let witness = Witness::start(&host);
    let listener = Listener::new(&host, small());
    std::thread::sleep(Duration::from_millis(10 * rounds()));
    let stats = listener.end();
    witness::print("capture never read", &before, &witness.finish());
    println!("capture never read: {stats:?}");
    assert!(stats.captured > 0 && stats.dropped > stats.captured);
    assert_eq!(stats.seen, stats.captured + stats.dropped);
}

#[test]
fn who_scribbles_over_its_capture_spoils_that_alone() {
    let host = Host::start(|_| {});
    let before = witness::undisturbed(&host);
    let witness = Witness::start(&host);
    let mut random = Random::new("capture scribbled over");
    let mut spoiled = 0;
    for round in 0..rounds() {
        let listener = Listener::new(&host, small());
        for _ in 0..200 {
            // Every other one the words in front, the rest anywhere.
            let (bytes, most) = if round % 2 == 0 {
                (4, 384)
            } else {
                (64, listener.ring.len() as u64 - 64)
            };
            let bytes = random.bytes(bytes);
            let at = random.below(most) & !3;
            listener.ring.write_at(at, &bytes).unwrap();
            if at.is_multiple_of(16) {
                std::thread::yield_now();
            }
        }
        if round % 3 == 0 {
            // Gone without a word: its capture ends all the same.
            drop(listener);
            host.wait_for(2);
        } else {
            let stats = listener.end();
            assert_eq!(stats.seen, stats.captured + stats.dropped);
            spoiled += u64::from(stats.broken.is_some());
            drop(listener);
            host.wait_for(2);
        }
    }
    // Whether a scribble is noticed before the capture ends is chance. This one waits until it is: an
    // index that cannot be, met when the ring has been filled once.
    let listener = Listener::new(&host, small());
    listener
        .ring
        .write_at(CONSUMER_AT, &(1u32 << 31).to_ne_bytes())
        .unwrap();
    let end = Instant::now() + LONG;
    while listener.stats().broken.is_none() {
        assert!(Instant::now() < end, "{:?}", listener.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    spoiled += 1;
    drop(listener);
    host.wait_for(2);
    println!(
        "capture scribbled over: {spoiled} of {} noticed",
        rounds() + 1
    );
    assert!(spoiled > 0);
    witness::print("capture scribbled over", &before, &witness.finish());
}
