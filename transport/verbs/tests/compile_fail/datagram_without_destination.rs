//! A datagram needs a destination: send_to.
use xroce_verbs::{SendBatch, Ud};

fn wrong(batch: &mut SendBatch<Ud>) {
    batch.send(1).inline(b"bytes");
}

fn main() {}
