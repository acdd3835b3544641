//! A connected queue pair has one peer.
use xroce_verbs::{Destination, Rc, SendBatch};

fn wrong(batch: &mut SendBatch<Rc>, to: Destination<'_>) {
    batch.send_to(1, to);
}

fn main() {}
