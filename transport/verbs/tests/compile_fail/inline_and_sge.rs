//! Either memory or bytes.
use xroce_verbs::{MrSlice, Rc, SendBatch};

fn wrong(batch: &mut SendBatch<Rc>, part: MrSlice<'_>) {
    batch.send(1).inline(b"bytes").sge(part);
}

fn main() {}
