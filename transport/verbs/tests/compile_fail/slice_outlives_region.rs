//! A slice of a region that was given back.
use xroce_verbs::{Mr, Rc, SendBatch};

fn wrong(mr: Mr, batch: &mut SendBatch<Rc>) {
    let part = mr.slice(0..8).unwrap();
    let _ = mr.dereg();
    batch.send(1).sge(part);
}

fn main() {}
