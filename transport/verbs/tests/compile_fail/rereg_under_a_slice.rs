//! Re-registration changes the keys in slices.
use xroce_verbs::{Mr, Rc, Rereg, SendBatch};

fn wrong(mut mr: Mr, batch: &mut SendBatch<Rc>) {
    let part = mr.slice(0..8).unwrap();
    let _ = mr.rereg(&Rereg::default());
    batch.send(1).sge(part);
}

fn main() {}
