//! An atomic works on eight aligned bytes: RemoteMr::word.
use xroce_verbs::{MrWord, Rc, RemoteMr, SendBatch};

fn wrong(batch: &mut SendBatch<Rc>, at: RemoteMr, old: MrWord<'_>) {
    batch.fetch_add(1, at, 1, old);
}

fn main() {}
