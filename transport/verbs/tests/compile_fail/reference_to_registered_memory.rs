//! A peer may write there at any time: copy.
use xroce_verbs::{Mr};

fn wrong(mr: &Mr) {
    let _bytes: &[u8] = mr.as_ref();
}

fn main() {}
