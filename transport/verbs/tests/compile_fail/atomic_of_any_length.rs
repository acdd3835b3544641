//! An atomic works on eight aligned bytes: Mr::word.
use xroce_verbs::{MrSlice, Rc, RemoteWord, SendBatch};

fn wrong(batch: &mut SendBatch<Rc>, at: RemoteWord, old: MrSlice<'_>) {
    batch.fetch_add(1, at, 1, old);
}

fn main() {}
