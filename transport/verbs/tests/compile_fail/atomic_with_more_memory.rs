//! An atomic has its eight bytes.
use xroce_verbs::{MrSlice, MrWord, Rc, RemoteWord, SendBatch};

fn wrong(batch: &mut SendBatch<Rc>, at: RemoteWord, old: MrWord<'_>, more: MrSlice<'_>) {
    batch.compare_swap(1, at, 0, 1, old).sge(more);
}

fn main() {}
