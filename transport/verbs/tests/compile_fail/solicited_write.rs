//! A WRITE takes no receive that could be solicited.
use xroce_verbs::{Rc, RemoteMr, SendBatch};

fn wrong(batch: &mut SendBatch<Rc>, to: RemoteMr) {
    batch.write(1, to).inline(b"bytes").solicited();
}

fn main() {}
