//! One request is built at a time.
use xroce_verbs::{Rc, SendBatch};

fn wrong(batch: &mut SendBatch<Rc>) {
    let first = batch.send(1);
    let second = batch.send(2);
    first.inline(b"bytes");
    second.inline(b"bytes");
}

fn main() {}
