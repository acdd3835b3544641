//! Sends need a queue pair that is connected.
use xroce_verbs::{Init, Qp, Rc, SendBatch};

fn wrong(qp: &Qp<Rc, Init>, batch: &SendBatch<Rc>) {
    let _ = qp.post(batch);
}

fn main() {}
