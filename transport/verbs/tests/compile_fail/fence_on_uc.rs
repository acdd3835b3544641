//! Nothing on UC to wait for.
use xroce_verbs::{SendBatch, Uc};

fn wrong(batch: &mut SendBatch<Uc>) {
    batch.send(1).fence();
}

fn main() {}
