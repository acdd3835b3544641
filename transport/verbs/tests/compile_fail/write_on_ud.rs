//! Datagrams write nobody's memory.
use xroce_verbs::{RemoteMr, SendBatch, Ud};

fn wrong(batch: &mut SendBatch<Ud>, to: RemoteMr) {
    batch.write(1, to);
}

fn main() {}
