//! Atomics need a reliable connection.
use xroce_verbs::{MrWord, RemoteWord, SendBatch, Uc};

fn wrong(batch: &mut SendBatch<Uc>, at: RemoteWord, old: MrWord<'_>) {
    batch.fetch_add(1, at, 1, old);
}

fn main() {}
