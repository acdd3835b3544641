//! The committed corpora of the fuzz targets (`tests/fuzz`), played to the same functions.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use xroce_fuzz_entry::{calls, engines, frame};

/// The inputs of a target by name, from its archive (`scripts/fuzz.sh` makes it).
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let path = folder.join(format!("{target}.tar.xz"));
    let packed = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut archive = tar::Archive::new(liblzma::read::XzDecoder::new(packed));
    let mut inputs = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let header = entry.header();
        let made = (header.mtime(), header.uid(), header.gid());
        let made = (made.0.unwrap(), made.1.unwrap(), made.2.unwrap());
        assert_eq!(made, (0, 0, 0), "{name}: when and by whom does not belong");
        let mut data = Vec::new();
        entry.read_to_end(&mut data).unwrap();
        inputs.push((name, data));
    }
    assert!(inputs.is_sorted_by(|a, b| a.0 < b.0), "names must rise");
    inputs
}

fn replay(target: &str, play: impl Fn(&[u8])) {
    let inputs = inputs(target);
    for (name, data) in &inputs {
        let played = catch_unwind(AssertUnwindSafe(|| play(data)));
        assert!(
            played.is_ok(),
            "{name} fails; `scripts/fuzz.sh unpack {target}` writes it to target/fuzz/kept"
        );
    }
    assert!(inputs.len() > 50, "{} inputs for {target}", inputs.len());
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
