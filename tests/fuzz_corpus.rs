//! The committed corpora of the fuzz targets (`tests/fuzz`), played to the same functions.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

use std::fs;
use std::path::Path;

use xroce_fuzz_entry::{calls, engines, frame};

fn replay(target: &str, play: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let mut inputs = 0;
    for entry in fs::read_dir(folder.join(target)).unwrap() {
        let path = entry.unwrap().path();
        let data = fs::read(&path).unwrap();
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(&data)));
        assert!(played.is_ok(), "{} fails", path.display());
        inputs += 1;
    }
    assert!(inputs > 50, "{inputs} inputs for {target}");
}

#[test]
fn frames() {
    replay("frame", frame);
}

#[test]
fn live_engines() {
    replay("engines", engines);
}

#[test]
fn sequences_of_calls() {
    replay("calls", calls);
}
