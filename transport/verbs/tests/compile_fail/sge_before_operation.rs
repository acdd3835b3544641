//! Memory without an operation it is for.
use xroce_verbs::{MrSlice, Rc, SendBatch};

fn wrong(batch: &mut SendBatch<Rc>, part: MrSlice<'_>) {
    batch.sge(part);
}

fn main() {}
