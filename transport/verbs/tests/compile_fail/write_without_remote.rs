//! A WRITE needs to know where to.
use xroce_verbs::{Rc, SendBatch};

fn wrong(batch: &mut SendBatch<Rc>) {
    batch.write(1).inline(b"bytes");
}

fn main() {}
