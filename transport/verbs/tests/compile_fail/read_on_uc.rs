//! READ needs a reliable connection.
use xroce_verbs::{RemoteMr, SendBatch, Uc};

fn wrong(batch: &mut SendBatch<Uc>, from: RemoteMr) {
    batch.read(1, from);
}

fn main() {}
