//! Receives need INIT.
use xroce_verbs::{Qp, Rc, RecvBatch, Reset};

fn wrong(qp: &Qp<Rc, Reset>, batch: &RecvBatch) {
    let _ = qp.post_recv(batch);
}

fn main() {}
