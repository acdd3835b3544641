//! READ brings bytes back: they cannot be inline.
use xroce_verbs::{Rc, RemoteMr, SendBatch};

fn wrong(batch: &mut SendBatch<Rc>, from: RemoteMr) {
    batch.read(1, from).inline(b"bytes");
}

fn main() {}
